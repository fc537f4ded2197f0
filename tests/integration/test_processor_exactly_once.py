"""Goal: applications are exactly-once on real sockets, with state, dead letters and rebalances.

Method: the in-process broker; applications run in this process until their input is done, or as
worker processes that are killed and restarted (field cases 29, 64, 65 and 68).
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processor_processes import (
    Workers,
    committed_offsets,
    committed_values,
    ends,
    fill,
    read_all,
    wait_for,
    workers_in,
)

from onceflow.broker_lite import Broker
from onceflow.processors import (
    App,
    Context,
    OnError,
    Output,
    OutputRefusedError,
    ProcessingError,
    State,
    TopicSetupError,
)
from onceflow.sdk import Consumer

COUNTER = """
import json, sys
from onceflow.processors import App, State

app = App(
    "counter", bootstrap_servers=sys.argv[1], state_dir=sys.argv[2], commit_records=50,
    **json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"),
)

@app.processor("in", to="out")
def count(value: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return f"{value}:{seen.get()}"

print("started", flush=True)
app.run()
print("stopped", flush=True)
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        broker.create_topic("in", partitions=3)
        yield broker


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def run_until(app: App, condition: Callable[[], bool]) -> None:
    """Run an application in this thread; another one stops it when the condition is met."""
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            wait_for(condition, "the condition to stop at")
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failed.append(error)
        finally:
            app.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        app.run()
    finally:
        watcher.join()
    if failed:
        raise failed[0]


def processed(broker: Broker, group: str, count: int, partitions: int = 3) -> Callable[[], bool]:
    return lambda: (
        sum(committed_offsets(broker.bootstrap_servers, group, "in", partitions)) >= count
    )


def test_transform(broker: Broker, tmp_path: Path) -> None:
    app = App("upper", broker.bootstrap_servers, state_dir=tmp_path)

    @app.processor("in", to="out")
    def upper(value: str) -> str:
        return f"<{value}>"

    fill(broker.bootstrap_servers, "in", numbers(1_000), numbers(1_000))
    run_until(app, processed(broker, "upper", 1_000))
    found = committed_values(broker.bootstrap_servers, "out")
    assert sorted(found) == sorted(b"<%d>" % number for number in range(1_000))


def test_state_stays_in_its_folder_when_the_process_goes_elsewhere(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app = App("moved", broker.bootstrap_servers, state_dir="states")

    @app.processor("in", to="out")
    def count(value: str, seen: State[int]) -> str:
        os.chdir(tmp_path / "elsewhere")
        seen.set(seen.get(0) + 1)
        return f"{value}:{seen.get()}"

    for times in (1, 2):  # Stores are opened anew each time.
        fill(broker.bootstrap_servers, "in", numbers(30), numbers(30))
        run_until(app, processed(broker, "moved", 30 * times))
    assert any((tmp_path / "states" / "moved" / "state").iterdir())
    assert not any((tmp_path / "elsewhere").iterdir())
    found = committed_values(broker.bootstrap_servers, "out")
    assert sorted(found) == sorted(
        b"%d:%d" % (number, times) for number in range(30) for times in (1, 2)
    )


def test_async_handlers(broker: Broker, tmp_path: Path) -> None:
    app = App("async", broker.bootstrap_servers, state_dir=tmp_path)

    @app.processor("in", to="out")
    async def slow(value: str, key: str) -> list[str]:
        await asyncio.sleep(0)
        return [value, f"{key}!"]

    fill(broker.bootstrap_servers, "in", numbers(100), numbers(100))
    run_until(app, processed(broker, "async", 100))
    assert len(committed_values(broker.bootstrap_servers, "out")) == 200


async def test_within_a_running_event_loop(broker: Broker, tmp_path: Path) -> None:
    app = App("embedded", broker.bootstrap_servers, state_dir=tmp_path)
    done = asyncio.Event()

    @app.processor("in", to="out")
    async def same(value: bytes) -> bytes:
        if value == b"99":
            done.set()
        return value

    await asyncio.to_thread(fill, broker.bootstrap_servers, "in", numbers(100), [b"k"] * 100)
    running = asyncio.create_task(app.run_async())
    await done.wait()
    app.stop()
    await running
    assert await asyncio.to_thread(committed_values, broker.bootstrap_servers, "out") == numbers(
        100
    )


def test_every_way_of_output_is_in_the_transaction(broker: Broker, tmp_path: Path) -> None:
    """Field case 64: return, yield, send, second topic, own key and headers, un-awaited task."""
    app = App("ways", broker.bootstrap_servers, state_dir=tmp_path)
    refused: list[BaseException] = []
    failures = {"3": 1}
    stray: list[asyncio.Task[None]] = []

    @app.processor("in", to="returned", retries=1)
    async def ways(value: str, context: Context) -> list[object]:
        async def forgotten() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            try:
                context.send("stray", value)
            except OutputRefusedError as error:
                refused.append(error)

        stray.append(asyncio.create_task(forgotten()))
        context.send("sent", value)
        context.send("keyed", value, key="own", headers=[("h", b"1")])
        if failures.get(value, 0):
            failures[value] -= 1
            raise ValueError("first attempt")
        return [value, Output(value, topic="second")]

    values = [b"%d" % number for number in range(1, 7)]
    fill(broker.bootstrap_servers, "in", values, [b"k"] * 6)
    run_until(app, processed(broker, "ways", 6))
    for topic in ("returned", "sent", "keyed", "second"):
        assert committed_values(broker.bootstrap_servers, topic) == values, topic
        assert len(read_all(broker.bootstrap_servers, topic, "read_uncommitted")) == 6
    keyed = read_all(broker.bootstrap_servers, "keyed")
    assert [(r.key, list(r.headers)) for r in keyed] == [(b"own", [("h", b"1")])] * 6
    assert len(refused) >= 6
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        assert "stray" not in consumer.topics()


def failing(broker: Broker, tmp_path: Path, bad: set[str], **options: object) -> App:
    app = App("failing", broker.bootstrap_servers, state_dir=tmp_path)

    @app.processor("one", to="out", **options)  # type: ignore[arg-type]
    def handle(value: str) -> str:
        if value in bad:
            raise ValueError(f"no {value}")
        return value

    return app


SIX = [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("options", [{}, {"retries": 2}])
def test_failure_stops_before_the_record_and_a_restart_continues_with_it(
    broker: Broker, tmp_path: Path, options: dict[str, object]
) -> None:
    """Field case 68: default policy and retries."""
    address = broker.bootstrap_servers
    broker.create_topic("one", partitions=1)
    fill(address, "one", SIX)
    with pytest.raises(ProcessingError, match="one-0@2"):
        failing(broker, tmp_path, {"3"}, **options).run()
    assert committed_offsets(address, "failing", "one", 1) == [2]
    assert committed_values(address, "out") == [b"1", b"2"]
    run_until(
        failing(broker, tmp_path, set()),
        lambda: committed_offsets(address, "failing", "one", 1) == [6],
    )
    assert committed_values(address, "out") == SIX


def test_skip_and_dead_letter(broker: Broker, tmp_path: Path) -> None:
    """Field case 68: the other policies."""
    address = broker.bootstrap_servers
    broker.create_topic("one", partitions=1)
    fill(address, "one", SIX)
    run_until(
        failing(broker, tmp_path, {"3"}, on_error=OnError.SKIP),
        lambda: committed_offsets(address, "failing", "one", 1) == [6],
    )
    assert committed_values(address, "out") == [b"1", b"2", b"4", b"5", b"6"]
    fill(address, "one", [b"7", b"8"])
    run_until(
        failing(broker, tmp_path, {"7"}, dead_letter="dead"),
        lambda: committed_offsets(address, "failing", "one", 1) == [8],
    )
    (letter,) = read_all(address, "dead")
    assert letter.value == b"7"
    assert dict(letter.headers)["onceflow.error.offset"] == b"6"


def test_handler_that_raises_once_gives_every_output_once(broker: Broker, tmp_path: Path) -> None:
    """Field case 29, part B."""
    address = broker.bootstrap_servers
    broker.create_topic("one", partitions=1)
    fill(address, "one", numbers(10))
    app = App("once", address, state_dir=tmp_path)
    failures = {"3"}

    @app.processor("one", to="out", retries=1)
    def handle(value: str) -> str:
        if value in failures:
            failures.remove(value)
            raise ValueError(value)
        return value

    run_until(app, lambda: committed_offsets(address, "once", "one", 1) == [10])
    assert committed_values(address, "out") == numbers(10)


def test_missing_input_is_named(broker: Broker, tmp_path: Path) -> None:
    app = App("lost", broker.bootstrap_servers, state_dir=tmp_path)

    @app.processor("no-such-topic")
    def nothing(value: bytes) -> None:
        return None

    with pytest.raises(TopicSetupError, match="no-such-topic"):
        app.run()


def test_state_goes_with_the_partition(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    """Workers 1-2-1, different disks: counts go on where they were."""
    address = broker.bootstrap_servers
    keys = [b"k%d" % (number % 30) for number in range(600)]
    first = workers.start(COUNTER, address, str(tmp_path / "disk-1"))
    fill(address, "in", keys[:200], keys[:200])
    wait_for(processed(broker, "counter", 200), "first part")
    second = workers.start(COUNTER, address, str(tmp_path / "disk-2"))
    wait_for(lambda: "started" in second.output(), "second worker")
    fill(address, "in", keys[200:400], keys[200:400])
    wait_for(processed(broker, "counter", 400), "second part")
    assert first.stop() == 0
    fill(address, "in", keys[400:], keys[400:])
    wait_for(processed(broker, "counter", 600), "third part")
    assert second.stop() == 0
    found = collections.Counter(committed_values(address, "out"))
    wanted = collections.Counter(
        b"k%d:%d" % (number % 30, number // 30 + 1) for number in range(600)
    )
    assert found == wanted, first.output() + second.output()


def test_zombie_with_state(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    """A worker is stopped past its session timeout; what it wakes up with is void.

    Traps 7, 46, 47; the case of a former owner that overwrites newer state.
    """
    address = broker.bootstrap_servers
    options = json.dumps(
        {
            "session_timeout_ms": 2_000,
            "transaction_timeout_ms": 1_500,
            "consumer_settings": {"heartbeat_interval_ms": 200},
        }
    )
    keys = [b"k%d" % (number % 20) for number in range(600)]
    zombie = workers.start(COUNTER, address, str(tmp_path / "disk-1"), options)
    fill(address, "in", keys[:200], keys[:200])
    wait_for(processed(broker, "counter", 100), "the zombie at work")
    zombie.signal(signal.SIGSTOP)
    other = workers.start(COUNTER, address, str(tmp_path / "disk-2"), options)
    fill(address, "in", keys[200:400], keys[200:400])
    wait_for(processed(broker, "counter", 400), "the other worker does all")
    zombie.signal(signal.SIGCONT)
    fill(address, "in", keys[400:], keys[400:])
    wait_for(processed(broker, "counter", 600), "the end")
    found = collections.Counter(committed_values(address, "out"))
    wanted = collections.Counter(
        b"k%d:%d" % (number % 20, number // 20 + 1) for number in range(600)
    )
    assert found == wanted, zombie.output() + other.output()
    assert (zombie.stop(), other.stop()) == (0, 0)


def test_ten_kills(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    """Field case 65: killed hard at random moments and restarted at once."""
    address = broker.bootstrap_servers
    chance = random.Random(65)
    restarts = []
    values = numbers(1_000)
    broker.create_topic("out", partitions=3)
    worker = workers.start(COUNTER, address, str(tmp_path / "disk"))
    for part in range(10):
        before = sum(committed_offsets(address, "counter", "in", 3))
        fill(address, "in", values[part * 100 : part * 100 + 100], values[part * 100 :][:100])
        started = time.monotonic()
        wait_for(processed(broker, "counter", before + chance.choice([1, 30, 100])), "progress")
        restarts.append(time.monotonic() - started)
        threading.Event().wait(chance.random() * 0.05)
        worker.kill()
        worker = workers.start(COUNTER, address, str(tmp_path / "disk"))
    wait_for(processed(broker, "counter", 1_000), "the end")
    worker.stop()
    found = collections.Counter(committed_values(address, "out"))
    assert found == collections.Counter(value + b":1" for value in values)
    assert sum(committed_offsets(address, "counter", "in", 3)) == 1_000
    stable, high = ends(address, "out", 3)
    assert stable == high
    assert max(restarts) < 10, json.dumps(restarts)
