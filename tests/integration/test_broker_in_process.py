"""Goal: a broker starts inside of a process in milliseconds, on the caller's loop or in a thread,
keeps what it was told to keep, and stops or dies as asked.

Method: raw clients against brokers in memory and on disk; starts, stops and kills in between.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest
from broker_requests import fetch, list_offset, produce, topic_metadata
from broker_wire import Wire, batch, values_of

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.log import StorageLockedError
from onceflow.broker_lite.testing import Fault
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.cluster import MetadataRequest
from onceflow.sdk.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse

START_SECONDS_MAX = 0.5
"""Ten times the goal, since the machine may be busy."""


async def write(broker: Broker, *values: bytes) -> None:
    async with Wire(broker) as wire:
        await topic_metadata(wire, "t", create=True)
        for value in values:
            assert (await produce(wire, "t", batch(value))).error_code == 0


async def read(broker: Broker) -> list[bytes | None]:
    async with Wire(broker) as wire:
        return values_of((await fetch(wire, "t")).records)


def test_thread_runs_the_broker_and_ends_with_it() -> None:
    before = set(threading.enumerate())
    with Broker() as broker:
        host, port = broker.bootstrap_servers.split(":")
        assert (host, int(port)) == ("127.0.0.1", broker.port)
        asyncio.run(write(broker, b"a", b"b"))
        assert asyncio.run(read(broker)) == [b"a", b"b"]
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) <= before


def test_first_answer_comes_within_milliseconds() -> None:
    async def first_answer() -> None:
        async with Broker() as broker, Wire(broker) as wire:
            await topic_metadata(wire, "t", create=True)

    def took() -> float:
        began = time.perf_counter()
        asyncio.run(first_answer())
        return time.perf_counter() - began

    # What else the machine does can take time from some of the attempts, hardly from all.
    assert any(took() < START_SECONDS_MAX for _ in range(20))


async def test_same_loop_serves_broker_and_client() -> None:
    async with Broker() as broker:
        await write(broker, b"a")
        assert await read(broker) == [b"a"]


async def test_memory_is_empty_at_each_start() -> None:
    broker = Broker()
    for _ in range(2):
        async with broker:
            async with Wire(broker) as wire:
                assert (await topic_metadata(wire, "t")).error_code == 3
            await write(broker, b"a")


async def test_port_is_kept_over_a_restart(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    async with broker:
        address = broker.bootstrap_servers
    async with broker:
        assert broker.bootstrap_servers == address


async def test_folder_keeps_records_ids_settings_and_cluster(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        broker.create_topic("t", partitions=2, configs={"retention.ms": "-1"})
        await write(broker, b"a", b"b")
        async with Wire(broker) as wire:
            topic_id = (await topic_metadata(wire, "t")).topic_id
        cluster_id = broker.state.cluster_id
    async with Broker(tmp_path) as broker:
        assert broker.state.cluster_id == cluster_id
        assert await read(broker) == [b"a", b"b"]
        topic = broker.state.topics.get("t")
        assert topic is not None
        assert (topic.topic_id, len(topic.partitions)) == (topic_id, 2)
        assert topic.overrides == {"retention.ms": "-1"}
        assert topic.config.retention_ms == -1


def test_killed_broker_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """The process of a killed broker loses nothing that the system has taken."""
    broker = Broker(tmp_path).start()
    asyncio.run(write(broker, *(b"%d" % number for number in range(50))))
    broker.kill()
    with broker:
        assert asyncio.run(read(broker)) == [b"%d" % number for number in range(50)]

        async def epoch() -> int:
            async with Wire(broker) as wire:
                return (await list_offset(wire, "t", -1)).leader_epoch

        assert asyncio.run(epoch()) == 1


async def test_producer_ids_are_not_given_twice_over_restarts(tmp_path: Path) -> None:
    """Trap 50."""
    seen = []
    for _ in range(3):
        async with Broker(tmp_path) as broker, Wire(broker) as wire:
            for _ in range(3):
                response = await wire.ask(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                    4,
                    InitProducerIdResponse,
                )
                assert (response.error_code, response.producer_epoch) == (0, 0)
                seen.append(response.producer_id)
    assert len(set(seen)) == len(seen)


def test_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        with pytest.raises(StorageLockedError, match="used by another broker"):
            Broker(tmp_path).start()
        asyncio.run(write(first, b"a"))


def test_taken_port_is_refused_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Broker() as first:
        with pytest.raises(OSError, match="in use"):
            Broker(tmp_path, port=first.port).start()
        with Broker(tmp_path):
            pass
    assert set(threading.enumerate()) <= before


def test_wrong_use_is_told() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="no address"):
        _ = broker.bootstrap_servers
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.state
    broker.stop()
    with broker:
        with pytest.raises(RuntimeError, match="running already"):
            broker.start()
        before_ms = broker.now_ms()
        broker.advance(60_000)
        assert broker.now_ms() >= before_ms + 60_000
        with pytest.raises(ConfigError, match=r"retention\.ms"):
            broker.create_topic("t", configs={"retention.m": "5"})
        with pytest.raises(TopicError, match="not allowed"):
            broker.create_topic("a/b")
    with Broker(clock=lambda: 5) as fixed, pytest.raises(RuntimeError, match="VirtualClock"):
        fixed.advance(5)
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(settings={"num.partition": 2})


def test_virtual_clock_is_moved_from_outside_of_the_thread() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    with Broker(clock=clock) as broker:
        broker.call(lambda state, now_ms: state.timers.schedule(now_ms + 1000, fired.append))
        broker.advance(999)
        assert fired == []
        broker.advance(1)
        assert fired == [clock()]
    with pytest.raises(ValueError, match="must not be negative"):
        clock.advance(-1)


class OddEnd(BaseException):
    """Of a kind that no library knows."""


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(5),
        TimeoutError("of the function"),
        OddEnd("odd"),
        ValueError("plain"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_called_function_raises_comes_to_the_caller(error: BaseException) -> None:
    """Also what would end the broker's loop; the broker goes on."""

    def function(state: object, now_ms: int) -> None:
        raise error

    with Broker() as broker:
        with pytest.raises(type(error)) as raised:
            broker.call(function)
        assert raised.value is error
        asyncio.run(write(broker, b"a"))
        assert asyncio.run(read(broker)) == [b"a"]


def test_functions_that_the_broker_calls_later_end_it_neither(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A timer's costs nothing, a fault's condition costs the connection that it was asked for."""

    def leave(*_: object) -> bool:
        sys.exit(3)

    async def send() -> None:
        async with Wire(broker) as wire:
            await topic_metadata(wire, "t")

    with Broker(clock=VirtualClock()) as broker:
        broker.call(lambda state, now_ms: state.timers.schedule(now_ms + 1000, leave))
        with pytest.raises(SystemExit):
            broker.advance(1000)
        broker.call(lambda state, now_ms: asyncio.get_running_loop().call_soon(leave))
        asyncio.run(write(broker, b"a"))
        assert "tried to end the program" in caplog.text
        broker.faults.add(MetadataRequest, Fault.ERROR, condition=leave)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            asyncio.run(asyncio.wait_for(send(), 30))
        assert "a condition of ERROR raised SystemExit(3)" in caplog.text
        broker.faults.clear()
        asyncio.run(write(broker, b"b"))
        assert asyncio.run(read(broker)) == [b"a", b"b"]


def test_what_would_wait_for_itself_says_so() -> None:
    with Broker() as broker:
        for wait in (broker.stop, broker.kill, broker.restart, lambda: broker.stop_node(1)):
            with pytest.raises(RuntimeError, match="this call would wait for itself"):
                broker.call(lambda state, now_ms, wait=wait: wait())
        broker.create_topic("t")


async def test_blocking_calls_in_the_callers_loop_name_what_to_await() -> None:
    async with Broker() as broker:
        for wait in (broker.stop, broker.kill, broker.restart, lambda: broker.start_node(1)):
            with pytest.raises(RuntimeError, match="await the method with _async"):
                wait()
        await write(broker, b"a")
    broker.stop()


def test_seed_makes_ids_repeatable() -> None:
    def ids() -> tuple[str, object]:
        with Broker(seed=7) as broker:
            broker.create_topic("t")
            topic = broker.state.topics.get("t")
            assert topic is not None
            return broker.state.cluster_id, topic.topic_id

    assert ids() == ids()


def test_what_needs_a_running_broker_says_so() -> None:
    broker = Broker()
    for call in (broker.restart, lambda: broker.stop_node(1), lambda: broker.create_topic("t")):
        with pytest.raises(RuntimeError, match="the broker is not running"):
            call()
    broker.stop()


def test_a_relative_folder_is_the_same_one_after_the_process_changed_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = Broker("data")
    with broker:
        broker.create_topic("before")
        monkeypatch.chdir(tmp_path / "elsewhere")
        broker.create_topic("after")
    with broker:
        assert broker.topic_names() == ["after", "before"]
    assert not list((tmp_path / "elsewhere").iterdir())
