"""What goes wrong around a log: no room, a folder that cannot be written, a clock that goes back.

Method: storages in memory that fail on demand, and logs opened again under an earlier time.
Each trouble is an error that says what to do, and costs nothing that was acknowledged. A failing
flush is in `test_durability.py`, damage in the middle in `test_log_crash.py`, two processes on one
folder in `test_broker_in_process.py`.
"""

from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest
from broker_requests import produce_request
from broker_state import SocketlessBroker
from broker_wire import batch as wire_batch
from log_batches import NOW_MS, batch, idempotent, open_log, read_all

from onceflow.broker_lite.broker import open_broker
from onceflow.broker_lite.daemon.commands import _reason
from onceflow.broker_lite.log import LogConfig, MemoryStorage
from onceflow.broker_lite.log.log_errors import AppendError
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.broker_lite.testing.nodes import Nodes
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

HOUR_MS = 3_600_000


def code_of(broker: SocketlessBroker, records: bytes) -> int:
    response = broker.ask(produce_request("t", records), 9)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("written_bytes", [0, 30])
def test_a_full_disk_is_an_answer_and_room_again_goes_on(written_bytes: int) -> None:
    storage = FailingStorage()
    broker = SocketlessBroker({}, storage)
    broker.state.topics.create("t", 1, {}, broker.now_ms)
    first = wire_batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    second = wire_batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    assert code_of(broker, first) == ErrorCode.NONE
    storage.fail_write(len(storage.writes), written_bytes=written_bytes)
    assert code_of(broker, second) == ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(broker, second) == ErrorCode.NONE
    again = SocketlessBroker({}, storage.disk_after(len(storage.writes)))
    log = again.state.topics.partition("t", 0)
    assert log is not None
    assert [value for _, value in read_all(log)] == [b"a", b"b"]


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy() -> None:
    storage = FailingStorage()
    storage.fail_write(0, code=errno.EROFS)
    with pytest.raises(OSError) as failed:
        SocketlessBroker({}, storage)
    assert failed.value.errno == errno.EROFS
    told = _reason(failed.value, [])
    assert "read-only file system" in told
    assert "give a --data folder that can be written to" in told
    SocketlessBroker({}, storage)  # the lock was given back


def test_a_start_on_a_folder_that_became_read_only_loses_nothing() -> None:
    storage = FailingStorage()
    broker = SocketlessBroker({}, storage)
    broker.state.topics.create("t", 1, {}, broker.now_ms)
    assert code_of(broker, wire_batch(b"a")) == ErrorCode.NONE
    broker.close()
    disk = FailingStorage(storage.disk_after(len(storage.writes)))
    disk.fail_write(0, code=errno.EROFS)
    with pytest.raises(OSError):
        SocketlessBroker({}, disk)
    again = SocketlessBroker({}, disk)
    log = again.state.topics.partition("t", 0)
    assert log is not None
    assert read_all(log) == [(0, b"a")]


def test_a_clock_that_was_set_back_removes_nothing_and_stops_nobody() -> None:
    storage = MemoryStorage()
    config = LogConfig(retention_ms=60_000, segment_ms=1000, segment_bytes=1 << 20)
    log = open_log(storage, config)
    for number in range(5):
        log.append(idempotent(number, b"%d" % number, producer_id=3), now_ms=NOW_MS + number * 2000)
    log.close()
    log = open_log(storage, config)
    earlier_ms = NOW_MS - HOUR_MS // 2
    assert log.apply_retention(earlier_ms) == 0
    for number in range(5, 8):
        log.append(idempotent(number, b"%d" % number, producer_id=3), now_ms=earlier_ms + number)
    assert [value for _, value in read_all(log)] == [b"%d" % number for number in range(8)]
    assert log.append(idempotent(7, b"7", producer_id=3), now_ms=earlier_ms).duplicate


def test_timestamps_that_go_back_are_still_found_by_time() -> None:
    """Records written after the clock was set back lie behind later times (trap 33)."""
    log = open_log(config=LogConfig(index_interval_bytes=100))
    times = [NOW_MS, NOW_MS + 1000, NOW_MS - HOUR_MS, NOW_MS + 2000]
    for time_ms in times:
        log.append(batch(b"x" * 200, timestamp_ms=time_ms), now_ms=NOW_MS)
    for asked_ms, offset in ((NOW_MS - HOUR_MS, 0), (NOW_MS + 1, 1), (NOW_MS + 1500, 3)):
        found = log.offset_for_timestamp(asked_ms)
        assert found is not None
        assert found.offset == offset
    assert log.offset_for_timestamp(NOW_MS + 3000) is None


def test_a_leader_epoch_that_cannot_be_written_follows_later() -> None:
    """Found by simulation: a full disk while a node stopped left its partitions with it."""
    storage = FailingStorage()
    log = open_log(storage)
    log.append(batch(b"a"), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes))
    log.begin_leader_epoch(4)
    log.append(batch(b"b"), now_ms=NOW_MS)
    assert log.leader_epoch == 4
    log.close()
    again = open_log(storage.disk_after(len(storage.writes)))
    assert again.leader_epoch == 4
    assert again.end_offset_for_epoch(0) == (0, 1)


@pytest.mark.parametrize("failing_writes", [1, 2, 3])
def test_a_node_that_stops_on_a_full_disk_leaves_nothing_behind_that_it_leads(
    failing_writes: int,
) -> None:
    storage = FailingStorage()
    config = BrokerConfig.from_properties({}, defaults=IN_PROCESS_DEFAULTS)
    nodes = Nodes(3, config.node_id)
    state = open_broker(storage, config, Random(1), NOW_MS, placement=nodes.placement)
    nodes.opened(state)
    topic = state.topics.create("t", 9, {}, NOW_MS)
    led = [index for index in range(9) if state.placement.leads(2, "t", index)]
    for number in range(failing_writes):
        storage.fail_write(len(storage.writes) + number)
    nodes.placement.stop_node(2, NOW_MS)
    assert {state.placement.leader("t", index) for index in range(9)} == {1, 3}
    assert [topic.partitions[index].leader_epoch for index in led] == [1, 1, 1]
    # No recovery point passes batches whose epochs are not written.
    log = topic.partitions[led[0]]
    log.append(batch(b"a"), now_ms=NOW_MS)
    log.roll(NOW_MS)
    storage.fail_write(len(storage.writes))
    for expected in (OSError, None):
        with contextlib.nullcontext() if expected is None else pytest.raises(expected):
            state.log_manager.note_recovery_points(NOW_MS)
        points = storage.inner.read_bytes("recovery-point-offset-checkpoint") or b""
        assert (b"t %d 1" % led[0] in points) is (expected is None)
    kept = storage.inner.read_bytes(f"t-{led[0]}/leader-epoch-checkpoint") or b""
    assert kept.splitlines()[-1] == b"1 0"


@pytest.mark.parametrize("written_bytes", [1, 30, 70])
def test_a_write_that_failed_just_before_a_roll_costs_nothing_that_came_after(
    written_bytes: int,
) -> None:
    """Found by simulation (seeds 1864, 1925): a start took the closed segment for torn."""
    storage = FailingStorage()
    config = LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    log.append(batch(b"x" * 150), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes), written_bytes=written_bytes)
    with pytest.raises(AppendError):
        log.append(batch(b"lost"), now_ms=NOW_MS)
    log.append(batch(b"y" * 150), now_ms=NOW_MS)
    assert len(log._segments) == 2
    for clean in (False, True):
        again = open_log(storage.disk_after(len(storage.writes)), config, clean=clean)
        assert [value for _, value in read_all(again)] == [b"x" * 150, b"y" * 150]


def test_a_folder_with_a_torn_write_in_a_closed_segment_keeps_what_comes_after() -> None:
    """Such folders exist: brokers up to 0.1 left what the test above is about."""
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    for value in (b"x" * 150, b"y" * 150):
        log.append(batch(value), now_ms=NOW_MS)
    first = min(name for name in storage.files("orders-0") if name.endswith(".log"))
    storage.content["orders-0"][first] += batch(b"torn")[:40]
    again = open_log(storage, config, clean=False)
    assert [value for _, value in read_all(again)] == [b"x" * 150, b"y" * 150]
