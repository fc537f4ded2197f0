"""Durability `group` and `always`: no answer before the flush, none ever after a failed one.

Method: a broker without sockets on a storage in memory whose flushes the test lets end or fail.
Answers that must wait are parked; what a reader sees is asked beside them.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from broker_requests import fetch_request, fetched, produce_request
from broker_state import SocketlessBroker
from broker_wire import batch
from coordinator_processor import OUTPUT, Processor
from log_batches import NOW_MS, idempotent, open_log, read_all
from log_batches import batch as plain_batch
from power_loss import disk_after_power_loss

from onceflow.broker_lite.log import AppendError, LogConfig, MemoryStorage
from onceflow.broker_lite.log.storage import RealStorage
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request

GROUP = {"onceflow.durability": "group"}
ALWAYS = LogConfig(durability="always")


class SlowDisk(FailingStorage):
    """Flushes end when the test says so."""

    def __init__(self) -> None:
        super().__init__(durable=True)
        self.flying: list[
            tuple[tuple[str, ...], Callable[[], None], Callable[[OSError], None] | None]
        ] = []

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        self.flying.append((tuple(paths), done, failed))

    def end_flush(self) -> None:
        """The oldest flush reaches the disk."""
        super().flush_later(*self.flying.pop(0))

    def fail_flush(self) -> None:
        """The oldest flush does not."""
        _, _, failed = self.flying.pop(0)
        assert failed is not None
        failed(OSError(errno.EIO, "input/output error"))


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def broker(disk: SlowDisk) -> SocketlessBroker:
    broker = SocketlessBroker(GROUP, disk)
    broker.state.topics.create("t", 2, {}, broker.now_ms)
    return broker


def send(broker: SocketlessBroker, request: Request, api_version: int) -> list[object]:
    """What comes back, in time."""
    result = broker.dispatch(request, api_version).result
    if not isinstance(result, Deferred):
        return [result]
    answers: list[object] = []
    result.add_done_callback(answers.append)
    return answers


def produce(broker: SocketlessBroker, records: bytes, partition: int = 0) -> list[object]:
    return send(broker, produce_request("t", records, partition=partition), 9)


def readable(broker: SocketlessBroker, partition: int = 0) -> int:
    response = broker.ask(fetch_request("t", partitions={partition: 0}), 12)
    return fetched(response)[partition].high_watermark


def error_of(answer: object) -> int:
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def test_an_answer_waits_for_the_flush_and_so_do_readers(
    broker: SocketlessBroker, disk: SlowDisk
) -> None:
    answers = produce(broker, batch(b"a"))
    assert not answers
    assert readable(broker) == 0
    disk.end_flush()
    assert [error_of(answer) for answer in answers] == [ErrorCode.NONE]
    assert readable(broker) == 1


def test_all_that_waits_shares_the_next_flush(broker: SocketlessBroker, disk: SlowDisk) -> None:
    first = produce(broker, batch(b"a"))
    later = [produce(broker, batch(b"b"), partition) for partition in (0, 1, 0)]
    assert len(disk.flying) == 1
    disk.end_flush()
    assert first
    assert not any(later)
    assert len(disk.flying) == 1
    paths = disk.flying[0][0]
    assert sorted(path.split("/")[0] for path in paths) == ["t-0", "t-1"]
    disk.end_flush()
    assert all(later)
    assert not disk.flying


def test_a_repeated_batch_is_not_acknowledged_before_the_first_copy_is_safe(
    broker: SocketlessBroker, disk: SlowDisk
) -> None:
    records = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    produce(broker, records)
    repeated = produce(broker, records)
    assert not repeated
    disk.end_flush()
    assert [error_of(answer) for answer in repeated] == [ErrorCode.NONE]
    assert readable(broker) == 1


def test_other_requests_go_on_meanwhile(broker: SocketlessBroker, disk: SlowDisk) -> None:
    produce(broker, batch(b"a"))
    assert readable(broker, 1) == 0
    disk.end_flush()


def test_a_deleted_topic_does_not_end_the_flush_of_others(
    broker: SocketlessBroker, disk: SlowDisk
) -> None:
    broker.state.topics.create("u", 1, {}, broker.now_ms)
    send(broker, produce_request("u", batch(b"x")), 9)
    topic = broker.state.topics.get("u")
    assert topic is not None
    broker.state.topics.delete(topic, broker.now_ms)
    waiting = produce(broker, batch(b"a"))
    assert len(disk.flying) == 1
    disk.end_flush()
    assert not waiting
    disk.end_flush()
    assert waiting


def test_nothing_is_acknowledged_after_a_failed_flush(
    broker: SocketlessBroker, disk: SlowDisk
) -> None:
    told: list[OSError] = []
    broker.state.log_manager.on_failure = told.append
    kept = produce(broker, batch(b"kept", producer_id=7, producer_epoch=0, base_sequence=0))
    disk.end_flush()
    assert kept
    records = batch(b"lost", producer_id=7, producer_epoch=0, base_sequence=1)
    held = produce(broker, records)
    behind = produce(broker, batch(b"behind"), 1)
    disk.fail_flush()
    assert held == behind == [None], "the connections are closed without an answer"
    assert produce(broker, records) == [None], "not even as a repetition"
    assert produce(broker, batch(b"new"), 1) == [None]
    assert readable(broker) == 1
    assert [error.errno for error in told] == [errno.EIO]
    broker.state.close(broker.now_ms, clean=True)
    assert disk.inner.read_bytes(".kafka_cleanshutdown") is None
    again = SocketlessBroker(GROUP, disk_after_power_loss(disk, len(disk.writes), random.Random(1)))
    assert readable(again) >= 1


def test_transactions_and_offsets_wait_too() -> None:
    """Every step of a transaction is parked until a flush: none is answered from memory alone."""

    class Patient(SlowDisk):
        waits = 0

        def flush_later(
            self,
            paths: Sequence[str],
            done: Callable[[], None],
            failed: Callable[[OSError], None] | None = None,
        ) -> None:
            self.waits += 1
            FailingStorage.flush_later(self, paths, done, failed)

    disk = Patient()
    processor = Processor(disk, 2, GROUP)
    processor.create_topics()
    before = disk.waits
    processor.init()
    assert disk.waits > before
    for step in (
        lambda: processor.send(0, "x"),
        lambda: processor.commit_offset(1),
        lambda: processor.end(True),
    ):
        before = disk.waits
        step()
        assert disk.waits > before
        assert not processor.broker.state.log_manager.shared_flush.pending  # type: ignore[union-attr]
    assert OUTPUT in {path.rpartition("-")[0] for path in disk.directories()}


@pytest.mark.parametrize("mode", ["group", "always"])
def test_a_power_loss_right_after_any_answer_costs_nothing_of_it(mode: str) -> None:
    disk = FailingStorage(durable=True)
    processor = Processor(disk, 2, {"onceflow.durability": mode})
    processor.create_topics()
    processor.init()
    done: list[tuple[int, list[str], int]] = []
    for position in range(3):
        processor.process(position, committed=position != 1)
        done.append((len(disk.writes), sorted(processor.outputs()), processor.position()))
    for seed in range(4):
        for writes, outputs, position in done:
            lost = disk_after_power_loss(disk, writes, random.Random(seed))
            again = Processor(lost, 2, {"onceflow.durability": mode})
            assert sorted(again.outputs()) == outputs
            assert again.position() == position


def test_without_flushes_the_model_does_lose_what_was_answered() -> None:
    """The check of the check: in mode ``kafka`` a power loss costs something."""
    disk = FailingStorage()
    processor = Processor(disk, 2)
    processor.create_topics()
    processor.init()
    processor.process(0)
    found = set()
    for seed in range(8):
        lost = disk_after_power_loss(disk, len(disk.writes), random.Random(seed))
        again = Processor(lost, 2)
        again.create_topics()
        found.add(len(again.outputs()))
    assert 0 in found


def test_always_flushes_each_append_before_it_shows() -> None:
    storage = FailingStorage(durable=True)
    log = open_log(storage, ALWAYS)
    for number in range(3):
        log.append(idempotent(number, b"v%d" % number), now_ms=NOW_MS)
        assert storage.writes[-1].change is Change.FLUSH
    log.append_control(7, 0, 0, True, NOW_MS)
    assert storage.writes[-1].change is Change.FLUSH


def test_a_failed_flush_of_one_append_takes_the_log_offline() -> None:
    storage = FailingStorage(durable=True)
    log = open_log(storage, ALWAYS)
    log.append(plain_batch(b"a"), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes) + 1, code=errno.EIO)
    for _ in range(2):
        with pytest.raises(AppendError) as refused:
            log.append(plain_batch(b"b"), now_ms=NOW_MS)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed
    assert read_all(log) == [(0, b"a")]


def test_a_roll_between_two_flushes_is_flushed_with_its_indexes() -> None:
    storage = FailingStorage(durable=True)
    log = open_log(storage, LogConfig(durability="always", segment_bytes=1000))
    for number in range(8):
        log.append(plain_batch(b"%d" % number * 300), now_ms=NOW_MS)
    for write in storage.writes:
        assert write.change is not Change.REPLACE or write.durable
    closed = sorted(path for path in storage.files("orders-0") if path.endswith(".timeindex"))[:-1]
    assert len(closed) >= 2
    flushed = {write.path for write in storage.writes if write.change is Change.FLUSH}
    assert {f"orders-0/{name}" for name in closed} <= flushed


def test_a_flush_by_flush_messages_that_fails_takes_the_log_offline() -> None:
    storage = FailingStorage()
    log = open_log(storage, LogConfig(flush_messages=1))
    storage.fail_write(len(storage.writes) + 1, code=errno.EIO)
    with pytest.raises(AppendError):
        log.append(plain_batch(b"a"), now_ms=NOW_MS)
    with pytest.raises(AppendError, match="offline"):
        log.append(plain_batch(b"a"), now_ms=NOW_MS)


def test_what_a_crash_left_in_the_page_cache_is_flushed_before_it_counts() -> None:
    """A killed process leaves unacknowledged batches; a repetition would be answered from them."""
    storage = FailingStorage(durable=True)
    log = open_log(storage, LogConfig(durability="group"))
    log.append(idempotent(0, b"a"), now_ms=NOW_MS)
    log.close(clean=False)
    assert not any(write.change is Change.FLUSH for write in storage.writes)
    log = open_log(storage, LogConfig(durability="group"), clean=False)
    assert any(write.change is Change.FLUSH for write in storage.writes)
    assert log.high_watermark == 1


def test_real_files_are_flushed_where_the_mode_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files, folders and replaced files: each brings its folder to the disk as well."""
    synced: list[str] = []
    module = "onceflow.broker_lite.log.storage._sync_path"
    monkeypatch.setattr(module, synced.append)
    storage = RealStorage(tmp_path, durable=True)
    storage.make_directory("d")
    storage.open("d/f").append([b"x"])
    storage.replace("d/g", b"x")
    storage.rename("d/g", "d/h")
    storage.rename_directory("d", "e")
    root = str(tmp_path)
    assert synced == [root, f"{root}/d", f"{root}/d", f"{root}/d", root]
    storage.close()
    synced.clear()
    storage = RealStorage(tmp_path)
    storage.make_directory("q")
    storage.open("q/f").append([b"x"])
    storage.replace("q/g", b"x")
    assert not synced
    storage.close()


def test_memory_has_every_mode() -> None:
    for mode in ("kafka", "group", "always"):
        broker = SocketlessBroker({"onceflow.durability": mode}, MemoryStorage())
        broker.state.topics.create("t", 1, {}, broker.now_ms)
        assert [error_of(answer) for answer in produce(broker, batch(b"a"))] == [0]


def test_a_log_that_is_gone_hears_nothing_of_its_flush(
    broker: SocketlessBroker, disk: SlowDisk
) -> None:
    log = broker.state.topics.partition("t", 0)
    assert log is not None
    produce(broker, batch(b"a"))
    flush = broker.state.log_manager.shared_flush
    assert flush is not None
    flush.forget(log)
    before = log.high_watermark
    disk.end_flush()
    assert log.high_watermark == before == 0
