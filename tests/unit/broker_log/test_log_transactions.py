"""Goal: open transactions hold back committed readers, markers end and fence them.

Method: one log in memory; transactions of several producers overlap, and the last stable offset,
the aborted lists and the refusals are compared with KIP-98 and KIP-890 by hand. Random mixtures
are in ``test_log_model``.
"""

from __future__ import annotations

import pytest
from log_batches import NOW_MS, batch, idempotent, open_log, read_all

from onceflow.broker_lite.log import AppendError, LogConfig, MemoryStorage, PartitionLog
from onceflow.broker_lite.log.log_reader import aborted_transactions
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.error_codes import ErrorCode

COMMITTED = IsolationLevel.READ_COMMITTED


def send(log: PartitionLog, producer_id: int, sequence: int, epoch: int = 0) -> int:
    data = idempotent(
        sequence,
        b"%d/%d" % (producer_id, sequence),
        producer_id=producer_id,
        epoch=epoch,
        transactional=True,
    )
    return log.append(data, now_ms=NOW_MS).base_offset


def code_of_marker(log: PartitionLog, *arguments: int) -> ErrorCode:
    with pytest.raises(AppendError) as refused:
        log.append_control(arguments[0], arguments[1], arguments[2], True, NOW_MS)
    return refused.value.code


def aborted(log: PartitionLog, start: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    result = log.read(start, max_bytes, isolation_level=COMMITTED)
    assert result.aborted_transactions is not None
    return result.aborted_transactions


def test_the_last_stable_offset_is_the_first_one_of_the_oldest_open_transaction() -> None:
    log = open_log()
    log.append(batch(b"plain"), now_ms=NOW_MS)
    assert send(log, 1, 0) == 1
    assert send(log, 2, 0) == 2
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    log.append_control(2, 0, 0, True, NOW_MS)
    assert log.last_stable_offset == 1
    log.append_control(1, 0, 0, False, NOW_MS)
    assert log.last_stable_offset == log.high_watermark == 5
    assert read_all(log, isolation_level=COMMITTED) == [(0, b"plain"), (2, b"2/0")]
    assert len(read_all(log)) == 3


def test_uncommitted_readers_get_aborted_data_and_no_list() -> None:
    log = open_log()
    send(log, 1, 0)
    log.append_control(1, 0, 0, False, NOW_MS)
    result = log.read(0, 1000)
    assert result.aborted_transactions is None
    assert read_all(log) == [(0, b"1/0")]


def test_committed_readers_get_an_empty_list_where_nothing_was_aborted() -> None:
    log = open_log()
    assert aborted(log, 0) == []
    log.append(batch(b"a"), now_ms=NOW_MS)
    assert aborted(log, 0) == []
    assert aborted(log, 1) == []


def test_the_aborted_list_is_sorted_and_holds_only_what_overlaps() -> None:
    log = open_log()
    send(log, 1, 0)  # 0, aborted at 4
    send(log, 2, 0)  # 1, aborted at 3
    send(log, 3, 0)  # 2, committed at 5
    log.append_control(2, 0, 0, False, NOW_MS)
    log.append_control(1, 0, 0, False, NOW_MS)
    log.append_control(3, 0, 0, True, NOW_MS)
    send(log, 2, 1)  # 6, aborted at 7
    log.append_control(2, 0, 0, False, NOW_MS)
    assert aborted(log, 0) == [(1, 0), (2, 1), (2, 6)]
    assert aborted(log, 0, 1) == [(1, 0)]
    assert aborted(log, 3) == [(1, 0), (2, 1), (2, 6)]
    assert aborted(log, 4) == [(1, 0), (2, 6)]
    assert aborted(log, 5) == [(2, 6)]
    assert aborted(log, 7) == [(2, 6)]


def test_an_abort_far_behind_its_data_is_found_in_a_later_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=600, index_interval_bytes=100))
    send(log, 1, 0)
    for number in range(40):
        log.append(idempotent(number, b"x" * 50, producer_id=2), now_ms=NOW_MS)
    log.append_control(1, 0, 0, False, NOW_MS)
    assert len(log._segments) > 5
    assert aborted(log, 0, 1) == [(1, 0)]
    assert (0, b"1/0") not in read_all(log, isolation_level=COMMITTED)
    log.close(clean=False)
    log = open_log(storage, log.config, clean=False)
    assert aborted(log, 0, 1) == [(1, 0)]


def test_the_search_stops_at_an_entry_written_when_the_range_was_stable() -> None:
    log = open_log()
    for number in range(300):
        send(log, 1, number)
        log.append_control(1, 0, 0, False, NOW_MS)
    visited = []
    index = log._segments[0].aborted
    entries_from = type(index).entries_from

    class Counting:
        def __len__(self) -> int:
            return len(index)

        def entries_from(self, offset: int) -> object:
            for entry in entries_from(index, offset):
                visited.append(entry)
                yield entry

    log._segments[0].aborted = Counting()  # type: ignore[assignment]
    assert aborted_transactions(log._segments, 200, 210) == [(1, at) for at in range(200, 210, 2)]
    assert len(visited) <= 6


def test_a_marker_with_the_next_epoch_fences_the_old_one() -> None:
    log = open_log()
    send(log, 1, 0)
    log.append_control(1, 1, 0, True, NOW_MS)
    with pytest.raises(AppendError) as refused:
        send(log, 1, 1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(AppendError) as refused:
        send(log, 1, 1, epoch=1)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 1, 0, epoch=1) == 2


def test_a_marker_of_an_old_epoch_or_an_old_coordinator_is_refused() -> None:
    log = open_log()
    send(log, 1, 0, epoch=5)
    assert code_of_marker(log, 1, 4, 9) is ErrorCode.INVALID_PRODUCER_EPOCH
    log.append_control(1, 5, 9, True, NOW_MS)
    assert code_of_marker(log, 1, 5, 8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.log_end_offset == 2


def test_a_marker_without_a_transaction_is_written_and_fences() -> None:
    log = open_log()
    assert log.append_control(1, 3, 0, False, NOW_MS).base_offset == 0
    assert aborted(log, 0) == []
    with pytest.raises(AppendError) as refused:
        send(log, 1, 0, epoch=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 1, 0, epoch=3) == 1


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    log = open_log()
    send(log, 1, 0)
    log.append_control(1, 0, 0, True, NOW_MS)
    assert send(log, 1, 1) == 2
    with pytest.raises(AppendError) as refused:
        send(log, 1, 3)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_plain_batch_inside_of_an_open_transaction_is_refused() -> None:
    log = open_log()
    send(log, 1, 0)
    with pytest.raises(AppendError) as refused:
        log.append(idempotent(1, b"x", producer_id=1), now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_an_unverified_batch_may_go_on_with_a_transaction_but_not_begin_one() -> None:
    log = open_log()

    def unverified(sequence: int, epoch: int = 0) -> ErrorCode | None:
        data = idempotent(sequence, b"x", producer_id=1, epoch=epoch, transactional=True)
        try:
            log.append(data, now_ms=NOW_MS, verified_transaction=False)
        except AppendError as error:
            return error.code
        return None

    assert unverified(0) is ErrorCode.INVALID_TXN_STATE
    send(log, 1, 0)
    assert unverified(1) is None
    log.append_control(1, 0, 0, True, NOW_MS)
    assert unverified(2) is ErrorCode.INVALID_TXN_STATE
    assert unverified(1) is None, "a repeated batch is answered even after the marker"
    assert log.log_end_offset == 3


def test_an_open_transaction_is_known_by_producer_and_epoch() -> None:
    log = open_log()
    send(log, 1, 0, epoch=2)
    assert log.has_open_transaction(1)
    assert log.has_open_transaction(1, 2)
    assert not log.has_open_transaction(1, 3)
    assert not log.has_open_transaction(9)
    (producer,) = log.producers()
    assert producer.current_transaction_start_offset == 0
    log.append_control(1, 2, 0, True, NOW_MS)
    assert not log.has_open_transaction(1)


def test_deleting_records_does_not_end_an_open_transaction() -> None:
    log = open_log()
    send(log, 1, 0)
    log.append(batch(b"a"), now_ms=NOW_MS)
    assert log.delete_records_before(1) == 1
    assert log.last_stable_offset == 1
    assert log.has_open_transaction(1)
    log.append_control(1, 0, 0, False, NOW_MS)
    assert log.last_stable_offset == 3
    assert read_all(log, isolation_level=COMMITTED) == [(1, b"a")]
