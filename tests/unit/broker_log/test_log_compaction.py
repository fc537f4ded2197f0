"""Goal: compaction keeps the newest record of each key and breaks nothing that readers rely on.

Method: seeded random appends of plain, idempotent and transactional producers on a compacted log
with tiny segments; after rounds of compaction, restarts and crashes at each write, the newest
committed value of each key, offsets, producers and aborted lists are compared with a model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import pytest
from log_batches import NOW_MS, PARTITION, batch, open_log, read_all
from power_loss import disk_after_power_loss

from onceflow.broker_lite.log import AppendError, LogConfig, LogError, MemoryStorage, PartitionLog
from onceflow.broker_lite.log import compaction as compaction_module
from onceflow.broker_lite.log.disk_jobs import Job
from onceflow.broker_lite.log.segment_walk import FoundBatch
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.batch_header import pack_batch, parse_batch_header
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import (
    check_crc,
    decode_batch,
    encode_batch,
    iter_batch_headers,
    parse_control_batch,
)

CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=1200,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
COMMITTED = IsolationLevel.READ_COMMITTED
T = TypeVar("T")


def put(log: PartitionLog, *pairs: tuple[bytes, bytes | None], codec: int = 0) -> int:
    data = encode_batch([(NOW_MS, key, value, []) for key, value in pairs], codec=codec)
    return log.append(bytes(data), now_ms=NOW_MS).base_offset


def compact(log: PartitionLog, now_ms: int = NOW_MS) -> int:
    """Run one round; returns its steps, -1 if there was nothing to do."""
    steps = log.compaction(now_ms)
    return -1 if steps is None else sum(1 for _ in steps)


def committed_table(log: PartitionLog) -> dict[bytes, bytes]:
    """The newest committed value of each key, as a reader of a changelog builds it.

    A marker may be there without an aborted entry: Kafka, too, writes none where no data is.
    """
    table: dict[bytes, bytes] = {}
    position = log.log_start_offset
    while True:
        result = log.read(position, 1 << 20, isolation_level=COMMITTED)
        if len(result.records) == 0:
            return table
        pending = sorted((first, pid) for pid, first in result.aborted_transactions or ())
        aborting: set[int] = set()
        for at, header in iter_batch_headers(result.records):
            check_crc(result.records, at, header)
            assert header.base_offset >= position or at == 0
            position = header.next_offset
            while pending and pending[0][0] <= header.last_offset:
                aborting.add(pending.pop(0)[1])
            if header.is_control:
                if parse_control_batch(result.records, at).is_abort:
                    aborting.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            for record in decode_batch(result.records, at):
                key = bytes(record.key or b"")
                if record.value is None:
                    table.pop(key, None)
                else:
                    table[key] = bytes(record.value)


def pad(log: PartitionLog, count: int = 12) -> None:
    """Fill up, so that what was written before lies in closed segments."""
    for number in range(count):
        put(log, (b"pad%d" % number, b"x" * 150))


def test_only_the_newest_record_of_each_key_stays_at_its_offset() -> None:
    """Traps 27 and 72: offsets have holes, and no record moves."""
    log = open_log(config=CONFIG)
    for turn in range(8):
        put(log, *[(b"k%d" % key, b"%d" % turn * 20) for key in range(4)])
    pad(log)
    end_offset = log.log_end_offset
    before = log.size_bytes
    assert compact(log) >= 0
    values = [entry for entry in read_all(log) if b"x" not in (entry[1] or b"")]
    assert values == [(28 + key, b"7" * 20) for key in range(4)]
    assert log.log_end_offset == end_offset
    assert log.size_bytes < before
    assert log.log_start_offset == 0
    assert compact(log) == -1, "nothing is dirty after a round"


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_with_fewer_records_keeps_codec_times_headers_and_place(codec: int) -> None:
    log = open_log(config=CONFIG)
    headers: list[tuple[str, bytes | None]] = [("h", b"1"), ("n", None)]
    data = encode_batch(
        [(NOW_MS + i, b"k%d" % i, b"v%d" % i * 9, headers) for i in range(6)],
        codec=codec,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
    )
    log.append(bytes(data), now_ms=NOW_MS)
    put(log, *[(b"k%d" % i, b"new") for i in (0, 2, 5)])
    pad(log)
    compact(log)
    records = log.read(0, 1 << 20).records
    _, header = next(iter_batch_headers(records))
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 5, 3)
    assert (header.producer_id, header.base_sequence, header.codec) == (5, 0, codec)
    assert header.max_timestamp == NOW_MS + 4
    kept = decode_batch(records)
    assert [(r.offset, r.timestamp, r.value) for r in kept] == [
        (i, NOW_MS + i, b"v%d" % i * 9) for i in (1, 3, 4)
    ]
    assert [r.headers for r in kept] == [headers] * 3
    assert read_all(log, 2)[0][0] == 3


def test_tombstones_stay_until_their_time_and_then_go() -> None:
    """Trap 73."""
    log = open_log(config=CONFIG)
    put(log, (b"gone", b"value"), (b"kept", b"value"))
    put(log, (b"gone", None))
    pad(log)
    compact(log)
    assert (2, None) in read_all(log)
    assert b"gone" not in committed_table(log)
    assert [value for offset, value in read_all(log) if offset < 2] == [b"value"]
    _, header = next(iter_batch_headers(log.read(2, 200).records))
    assert header.delete_horizon_ms == NOW_MS + 1000
    pad(log)
    compact(log, NOW_MS + 999)
    assert (2, None) in read_all(log)
    pad(log)
    compact(log, NOW_MS + 1000)
    assert (2, None) not in read_all(log)
    assert committed_table(log)[b"kept"] == b"value"


def test_nothing_at_or_above_an_open_transaction_is_touched() -> None:
    """Trap 72."""
    log = open_log(config=CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    pad(log, 6)
    stable = log.log_end_offset
    log.append(
        batch(b"t", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        now_ms=NOW_MS,
    )
    for _ in range(3):
        pad(log)
    compact(log)
    assert log.compacted_offset <= stable
    above = [offset for offset, _ in read_all(log, stable)]
    assert above == list(range(stable, log.log_end_offset))


def test_the_newest_batch_of_a_producer_stays_so_that_sequences_go_on() -> None:
    """Trap 72."""
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    sent = batch(b"old", producer_id=5, producer_epoch=0, base_sequence=0)
    log.append(sent, now_ms=NOW_MS)
    put(log, (b"k", b"new"))
    pad(log)
    compact(log)
    assert (0, b"old") not in read_all(log)
    log.close(clean=False)
    for name in list(storage.files(str(PARTITION))):
        if name.endswith((".snapshot", ".producers5")):
            storage.remove(f"{PARTITION}/{name}")
    log = open_log(storage, CONFIG, clean=False)
    assert log.append(sent, now_ms=NOW_MS).duplicate
    following = batch(b"next", producer_id=5, producer_epoch=0, base_sequence=1)
    assert not log.append(following, now_ms=NOW_MS).duplicate


def test_markers_go_after_their_data_and_their_time() -> None:
    """Trap 72."""
    log = open_log(config=CONFIG)
    for number in range(4):
        data = batch(
            b"t%d" % number,
            producer_id=3,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        log.append(data, now_ms=NOW_MS)
        log.append_control(3, 0, 0, number % 2 == 1, NOW_MS)
    put(log, (b"k", b"new"))
    log.append(batch(b"z", producer_id=3, producer_epoch=1, base_sequence=0), now_ms=NOW_MS)

    def markers() -> int:
        records = log.read(0, 1 << 20).records
        return sum(header.is_control for _, header in iter_batch_headers(records))

    for now_ms, expected in ((NOW_MS, 4), (NOW_MS + 500, 4), (NOW_MS + 600, 4)):
        pad(log)
        compact(log, now_ms)
        assert markers() == expected
        assert committed_table(log)[b"k"] == b"z"
    pad(log)
    compact(log, NOW_MS + 1500)
    assert markers() == 0
    assert committed_table(log)[b"k"] == b"z"
    assert log.read(0, 1 << 20, isolation_level=COMMITTED).aborted_transactions == []


def test_ratio_and_lag_decide_when_it_is_worth_it() -> None:
    ratio = LogConfig(cleanup_policy="compact", segment_bytes=1200, min_cleanable_dirty_ratio=0.5)
    log = open_log(config=ratio)
    pad(log, 40)
    assert compact(log) >= 0
    before = log.compacted_offset
    pad(log, 7)
    assert compact(log) == -1
    late = LogConfig(
        cleanup_policy="compact",
        segment_bytes=1200,
        min_cleanable_dirty_ratio=0.5,
        max_compaction_lag_ms=1000,
    )
    log.config = late
    assert compact(log, NOW_MS + 1001) >= 0
    assert log.compacted_offset > before
    young = open_log(
        config=LogConfig(cleanup_policy="compact", segment_bytes=1200, min_compaction_lag_ms=500)
    )
    pad(young, 40)
    assert compact(young, NOW_MS + 499) == -1
    assert compact(young, NOW_MS + 500) >= 0
    plain = open_log(config=LogConfig(segment_bytes=1200))
    pad(plain, 40)
    assert compact(plain) == -1


def test_a_damaged_segment_is_left_as_it_is() -> None:
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    pad(log, 40)
    files = storage.content[str(PARTITION)]
    first = bytes(files["00000000000000000000.log"])
    files["00000000000000000000.log"][100] ^= 1
    steps = log.compaction(NOW_MS)
    assert steps is not None
    with pytest.raises(LogError) as refused:
        list(steps)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(files["00000000000000000000.log"]) == len(first)


def test_the_work_is_cut_into_small_steps() -> None:
    config = LogConfig(cleanup_policy="compact", segment_bytes=1 << 20)
    log = open_log(config=config)
    for number in range(60):
        put(log, (b"%d" % number, b"x" * 50_000))
    steps = log.compaction(NOW_MS)
    assert steps is not None
    assert sum(1 for _ in steps) >= 2 * log.compacted_offset * 50_000 // (512 * 1024)


class Writer:
    """Random writers of a compacted topic and the table that must come out."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.table: dict[bytes, bytes] = {}
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.open: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.count = 0

    def pairs(self) -> list[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = []
        for _ in range(self.random.choice((1, 1, 3, 6))):
            self.count += 1
            key = b"k%d" % self.random.randrange(12)
            value = None if self.random.random() < 0.2 else b"%d" % self.count * 5
            found.append((key, value))
        return found

    def apply(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in pairs:
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value

    def step(self, log: PartitionLog) -> None:
        producer_id = self.random.choice((0, 1, 2, 3))
        if self.open and producer_id not in self.open:
            return
        if producer_id == 0:
            pairs = self.pairs()
            put(log, *pairs, codec=self.random.choice((0, 1)))
            self.apply(pairs)
        elif producer_id in self.open and self.random.random() < 0.5:
            committed = self.random.random() < 0.5
            log.append_control(producer_id, 0, 0, committed, NOW_MS)
            pairs = self.open.pop(producer_id)
            if committed:
                self.apply(pairs)
        else:
            pairs = self.pairs()
            data = encode_batch(
                [(NOW_MS, key, value, []) for key, value in pairs],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=self.sequences[producer_id],
                transactional=True,
            )
            log.append(bytes(data), now_ms=NOW_MS)
            self.sequences[producer_id] += len(pairs)
            self.open.setdefault(producer_id, []).extend(pairs)


@pytest.mark.parametrize("seed", range(8))
def test_the_table_stays_the_same_through_rounds_and_restarts(seed: int) -> None:
    # One transaction at a time, so that the order of commits is the order of offsets.
    writer = Writer(seed)
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    now_ms = NOW_MS
    for number in range(400):
        writer.step(log)
        if number % 40 == 39:
            end_offset = log.log_end_offset
            now_ms += writer.random.choice((0, 600, 1200))
            compact(log, now_ms)
            assert log.log_end_offset == end_offset
            if not writer.open:
                assert committed_table(log) == writer.table
        if writer.random.random() < 0.02:
            clean = writer.random.random() < 0.5
            compacted_offset, recovery_point = log.compacted_offset, log.recovery_point
            log.close(clean)
            log = open_log(storage, CONFIG, clean=clean, recovery_point=recovery_point)
            log.compacted_offset = compacted_offset
            for producer_id in writer.open:
                assert log.has_open_transaction(producer_id)
    for producer_id, pairs in writer.open.items():
        log.append_control(producer_id, 0, 0, True, NOW_MS)
        writer.apply(pairs)
    assert committed_table(log) == writer.table
    assert len(read_all(log)) < writer.count


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_write_of_a_round_leaves_the_same_table(seed: int) -> None:
    writer = Writer(100 + seed)
    inner = MemoryStorage()
    log = open_log(inner, CONFIG)
    for _ in range(120):
        writer.step(log)
    for producer_id, pairs in writer.open.items():
        log.append_control(producer_id, 0, 0, True, NOW_MS)
        writer.apply(pairs)
    writer.open.clear()
    log.close()
    storage = FailingStorage(inner)
    log = open_log(storage, CONFIG)
    end_offset = log.log_end_offset
    before = len(storage.writes)
    assert compact(log) >= 0
    assert len(storage.writes) > before + 10
    for count in range(before, len(storage.writes) + 1):
        for torn_bytes in (None, 7):
            for clean in (False, True):
                disk = storage.disk_after(count, torn_bytes=torn_bytes)
                found = open_log(disk, CONFIG, clean=clean, recovery_point=end_offset)
                assert found.log_end_offset == end_offset
                assert committed_table(found) == writer.table
                names = disk.files(str(PARTITION))
                assert not any(name.endswith((".cleaned", ".swap")) for name in names)


def test_a_full_disk_ends_a_round_and_changes_nothing() -> None:
    storage = FailingStorage()
    log = open_log(storage, CONFIG)
    pad(log, 40)
    table = committed_table(log)
    storage.fail_write(len(storage.writes) + 6)
    steps = log.compaction(NOW_MS)
    assert steps is not None
    with pytest.raises(LogError) as refused:
        list(steps)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert committed_table(log) == table
    assert compact(log) >= 0
    assert committed_table(log) == table


def test_a_failure_while_files_take_their_place_is_completed_by_the_next_start() -> None:
    probe = FailingStorage()
    log = open_log(probe, CONFIG)
    pad(log, 40)
    before = len(probe.writes)
    compact(log)
    renames = [
        number
        for number, write in enumerate(probe.writes[before:], before)
        if write.path.endswith(".log.swap")
    ]
    storage = FailingStorage()
    log = open_log(storage, CONFIG)
    pad(log, 40)
    table = committed_table(log)
    storage.fail_write(renames[0])
    steps = log.compaction(NOW_MS)
    assert steps is not None
    with pytest.raises(LogError):
        list(steps)
    assert log.failed
    with pytest.raises(AppendError, match="offline"):
        put(log, (b"k", b"v"))
    log.close(clean=False)
    assert committed_table(open_log(storage.inner, CONFIG, clean=False)) == table


def test_segments_that_retention_took_meanwhile_stay_gone() -> None:
    both = LogConfig(
        cleanup_policy="compact,delete",
        segment_bytes=1 << 20,
        max_message_bytes=1 << 20,
        min_cleanable_dirty_ratio=0.0,
    )
    storage = MemoryStorage()
    log = open_log(storage, both)
    for number in range(60):
        put(log, (b"%d" % (number % 7), b"x" * 100_000))
    for steps_done in (1, 12):
        steps = log.compaction(NOW_MS)
        assert steps is not None
        for _ in range(steps_done):
            next(steps)
        log.delete_records_before(log.log_start_offset + 10)
        log.apply_retention(NOW_MS)
        expected = read_all(log)
        list(steps)
        assert read_all(log) == expected
    log.close()
    log = open_log(storage, both)
    assert read_all(log) == expected
    assert not any("cleaned" in name for name in storage.files(str(PARTITION)))


@pytest.mark.parametrize("batch_records", [1, 7, 1000])
def test_no_more_keys_are_kept_than_allowed_and_each_round_goes_further(
    batch_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds within a segment and within a batch; Kafka's map is bounded as well."""
    monkeypatch.setattr(compaction_module, "KEYS_MAX", 50)
    most = [0]
    take_keys = compaction_module.Compaction._take_keys

    def counting(self: compaction_module.Compaction, found: FoundBatch) -> int | None:
        result = take_keys(self, found)
        most[0] = max(most[0], len(self._newest))
        return result

    monkeypatch.setattr(compaction_module.Compaction, "_take_keys", counting)
    config = LogConfig(
        cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01
    )
    log = open_log(config=config)
    table: dict[bytes, bytes] = {}
    pairs = [(b"k%d" % (number % 700), b"%d" % number) for number in range(2000)]
    for first in range(0, len(pairs), batch_records):
        put(log, *pairs[first : first + batch_records])
    table.update(dict(pairs))
    log.roll(NOW_MS)
    put(log, (b"last", b"one"))
    table[b"last"] = b"one"
    rounds, before = 0, 0
    while compact(log) >= 0:
        rounds += 1
        assert log.compacted_offset > before
        before = log.compacted_offset
        assert committed_table(log) == table
    assert most[0] == 50
    assert rounds >= 2000 // 50
    assert log.compacted_offset == 2000
    # Those whose next record lay further on than a round remembers are still there.
    assert len(read_all(log)) <= 2001


def test_a_batch_of_many_records_is_looked_at_in_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "STEP_RECORDS", 20)

    class Counting(MemoryStorage):
        jobs: ClassVar[list[object]] = []

        def begin(self, work: Callable[[], T]) -> Job[T]:
            self.jobs.append(getattr(work, "func", work))
            return super().begin(work)

    storage = Counting()
    log = open_log(storage, CONFIG)
    put(log, *[(b"k%d" % (number % 9), b"%d" % number) for number in range(60)])
    put(log, (b"k1", b"newest"))
    log.roll(NOW_MS)
    put(log, (b"last", b"one"))
    table = committed_table(log)
    assert compact(log) >= 0
    assert committed_table(log) == table
    assert len(read_all(log)) == 10
    names = {getattr(job, "__name__", "") for job in storage.jobs}
    assert {"_take_keys", "_clean_records"} <= names


def test_a_batch_that_cannot_be_decoded_is_damage() -> None:
    """Its checksum holds, its records do not."""
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    header = parse_batch_header(batch(b"v"))
    log.append(
        bytes(pack_batch(header._replace(records_count=5), batch(b"v")[61:])),
        now_ms=NOW_MS,
        from_client=False,
    )
    log.roll(NOW_MS)
    put(log, (b"last", b"one"))
    steps = log.compaction(NOW_MS)
    assert steps is not None
    with pytest.raises(LogError) as refused:
        list(steps)
    assert refused.value.code is not ErrorCode.KAFKA_STORAGE_ERROR


class SlowFlushes(FailingStorage):
    """Background flushes do not finish, as when the disk is slow."""

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        pass


@pytest.mark.parametrize("marker", ["none", "in the active segment"])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_never_leaves_a_key_without_any_value(marker: str, seed: int) -> None:
    """A record goes because a newer one is there: that one must not be lost instead.

    The newer one may be visible by a marker that lies further on.
    """
    chance = random.Random(seed)
    storage = SlowFlushes()
    config = CONFIG.replace(min_cleanable_dirty_ratio=0.01)
    log = open_log(storage, config)
    put(log, (b"K", b"one"))
    pad(log, 10)
    log.flush()
    if marker == "none":
        put(log, (b"K", b"two"))
    else:
        log.append(
            batch(
                b"two",
                key=b"K",
                producer_id=5,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            ),
            now_ms=NOW_MS,
        )
    log.roll(NOW_MS)
    if marker != "none":
        log.append_control(5, 0, 0, True, NOW_MS)
    put(log, (b"last", b"one"))
    recovery_point = log.noted_recovery_point
    first = len(storage.writes)
    assert compact(log) >= 0
    assert committed_table(log)[b"K"] == b"two"
    assert log.compacted_offset > recovery_point
    for count in range(first, len(storage.writes) + 1):
        for _ in range(4):
            disk = disk_after_power_loss(storage, count, chance)
            after = open_log(disk, config, clean=False, recovery_point=recovery_point)
            if after.has_open_transaction(5):
                after.append_control(5, 1, 0, False, NOW_MS)  # As a start does.
            assert committed_table(after)[b"K"] in (b"one", b"two")


def test_a_round_that_is_given_up_leaves_nothing_that_hurts_the_next() -> None:
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    pad(log, 60)
    table = committed_table(log)
    whole = len(list(log.compaction(NOW_MS) or ()))
    for steps_done in range(1, whole):
        inner = MemoryStorage()
        log = open_log(inner, CONFIG)
        pad(log, 60)
        steps = log.compaction(NOW_MS)
        assert steps is not None
        for _ in range(steps_done):
            next(steps)
        steps.close()
        assert not log.failed
        assert committed_table(log) == table
        assert compact(log) >= -1
        assert committed_table(log) == table
        names = inner.files(str(PARTITION))
        assert not any(name.endswith((".cleaned", ".swap")) for name in names)
