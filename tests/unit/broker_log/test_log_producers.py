"""Goal: sequences, epochs and duplicates are judged as Kafka's ProducerAppendInfo does.

Method: one log in memory; batches of single producers are sent in, out of and against the order,
and the answers and error codes are compared.
"""

from __future__ import annotations

import pytest
from log_batches import NOW_MS, batch, idempotent, open_log

from onceflow.broker_lite.log import AppendError, LogConfig, PartitionLog
from onceflow.broker_lite.log.producer_snapshot import (
    apply_window,
    parse_snapshot,
    render_snapshot,
    render_window,
)
from onceflow.broker_lite.log.producer_state import (
    SEQUENCE_MAX,
    ProducerEntry,
    RememberedBatch,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

HOUR_MS = 3_600_000


def code_of(log: PartitionLog, data: bytes, **options: bool) -> ErrorCode:
    end_offset = log.log_end_offset
    with pytest.raises(AppendError) as refused:
        log.append(data, now_ms=NOW_MS, **options)
    assert log.log_end_offset == end_offset
    return refused.value.code


def test_exactly_the_last_five_batches_are_answered_as_duplicates() -> None:
    log = open_log()
    sent = [idempotent(number * 2, b"a", b"b") for number in range(7)]
    first = [log.append(data, now_ms=NOW_MS) for data in sent]
    for data, result in list(zip(sent, first, strict=True))[-5:]:
        again = log.append(data, now_ms=NOW_MS + 9)
        assert again.duplicate
        assert again[:2] == result[:2]
        assert again.log_append_time_ms == NOW_MS
    for data in sent[:2]:
        assert code_of(log, data) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14


def test_a_repeated_sequence_with_another_length_is_out_of_order() -> None:
    log = open_log()
    log.append(idempotent(0, b"a", b"b"), now_ms=NOW_MS)
    assert code_of(log, idempotent(0, b"a")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(log, idempotent(1, b"b")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(log, idempotent(3, b"b")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_go_on_at_zero_after_the_greatest_one() -> None:
    """Trap 3."""
    log = open_log()
    log.append(batch(b"x"), now_ms=NOW_MS)
    log.append(idempotent(SEQUENCE_MAX - 1, b"a"), now_ms=NOW_MS)
    wrapping = idempotent(SEQUENCE_MAX, b"b", b"c", b"d")
    log.append(wrapping, now_ms=NOW_MS)
    assert log.append(wrapping, now_ms=NOW_MS).duplicate
    assert code_of(log, idempotent(0, b"e")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(idempotent(2, b"e"), now_ms=NOW_MS).base_offset == 5
    assert log.producers()[0].last_sequence == 2


def test_the_sequence_after_the_greatest_is_zero() -> None:
    log = open_log()
    log.append(batch(b"x"), now_ms=NOW_MS)
    log.append(idempotent(SEQUENCE_MAX, b"a"), now_ms=NOW_MS)
    assert log.append(idempotent(0, b"b"), now_ms=NOW_MS).base_offset == 2


def test_a_lower_epoch_is_refused_and_a_higher_one_begins_at_zero() -> None:
    log = open_log()
    log.append(idempotent(0, b"a", epoch=3), now_ms=NOW_MS)
    assert code_of(log, idempotent(1, b"b", epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(log, idempotent(1, b"b", epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(idempotent(0, b"b", epoch=4), now_ms=NOW_MS)
    assert code_of(log, idempotent(0, b"a", epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append(idempotent(1, b"c", epoch=4), now_ms=NOW_MS).base_offset == 2


def test_an_unknown_producer_may_go_on_anywhere() -> None:
    """Trap 4; a log without records may be that of a topic that was created anew."""
    log = open_log()
    assert log.append(idempotent(5, b"a"), now_ms=NOW_MS).base_offset == 0
    assert log.append(idempotent(6, b"b"), now_ms=NOW_MS).base_offset == 1
    assert code_of(log, idempotent(8, b"c")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    other = idempotent(5, b"a", producer_id=8)
    code = code_of(log, other, first_sequence_zero=True)
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_after_a_failed_batch_the_ones_behind_it_fail_too() -> None:
    """Trap 6."""
    log = open_log(config=LogConfig(max_message_bytes=200))
    log.append(idempotent(0, b"a"), now_ms=NOW_MS)
    assert code_of(log, idempotent(1, b"x" * 300)) is ErrorCode.MESSAGE_TOO_LARGE
    for sequence in (2, 3, 4):
        code = code_of(log, idempotent(sequence, b"b"))
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_idle_producer_is_forgotten_but_never_with_an_open_transaction() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=HOUR_MS))
    log.append(idempotent(0, b"a", producer_id=1), now_ms=NOW_MS)
    log.append(idempotent(0, b"a", producer_id=2, transactional=True), now_ms=NOW_MS)
    log.append(idempotent(0, b"a", producer_id=3), now_ms=NOW_MS + HOUR_MS // 2)
    log.apply_retention(NOW_MS + HOUR_MS)
    assert {producer.producer_id for producer in log.producers()} == {2, 3}
    log.append_control(2, 0, 0, True, NOW_MS + HOUR_MS)
    log.apply_retention(NOW_MS + 3 * HOUR_MS)
    assert log.producers() == []


def test_producers_of_old_records_are_not_forgotten_early() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=HOUR_MS))
    old = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, timestamp_ms=5)
    log.append(old, now_ms=NOW_MS)
    log.apply_retention(NOW_MS + HOUR_MS - 1)
    assert log.append(old, now_ms=NOW_MS + HOUR_MS - 1).duplicate


def entries() -> list[ProducerEntry]:
    batches = [RememberedBatch(n * 3 + 2, 100 + n * 3, 2, NOW_MS + n) for n in range(5)]
    return [
        ProducerEntry(
            7, 2, last_timestamp_ms=NOW_MS + 4, last_append_ms=NOW_MS - 5, batches=batches
        ),
        ProducerEntry(8, 0, coordinator_epoch=3, transaction_first_offset=55),
    ]


def test_snapshots_keep_the_last_batch_and_the_window_file_keeps_all() -> None:
    snapshot, window = render_snapshot(entries()), render_window(entries())
    assert len(snapshot) == 10 + 2 * 46
    kept = parse_snapshot(snapshot, NOW_MS)
    assert [list(entry.batches) for entry in kept] == [list(entries()[0].batches)[-1:], []]
    assert kept[1].transaction_first_offset == 55
    assert kept[1].coordinator_epoch == 3
    apply_window(kept, window)
    assert list(kept[0].batches) == list(entries()[0].batches)
    assert kept[0].last_append_ms == NOW_MS - 5


def test_a_window_that_disagrees_with_the_snapshot_is_left_aside() -> None:
    older = entries()
    window = render_window(older)
    newer = entries()
    newer[0].batches.append(RememberedBatch(17, 115, 2, NOW_MS))
    kept = parse_snapshot(render_snapshot(newer), NOW_MS)
    apply_window(kept, window)
    assert len(kept[0].batches) == 1


@pytest.mark.parametrize("cut", [0, 3, 9, 20, -1])
def test_damaged_snapshots_are_recognised(cut: int) -> None:
    snapshot, window = render_snapshot(entries()), render_window(entries())
    with pytest.raises(ValueError, match="producer"):
        parse_snapshot(snapshot[:cut], NOW_MS)
    with pytest.raises(ValueError, match="producer"):
        apply_window(entries(), window[:cut])
    flipped = bytearray(snapshot)
    flipped[cut] ^= 1
    with pytest.raises(ValueError, match="producer"):
        parse_snapshot(bytes(flipped), NOW_MS)
