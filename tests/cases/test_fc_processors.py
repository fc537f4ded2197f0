"""Goal: field cases of processors (T10): outputs, offsets and dead letters share one fate.

Method: applications in this process, or as worker processes that are killed hard; batches of their
outputs are looked at raw.
"""

from __future__ import annotations

import asyncio
import collections
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_requests import fetch
from broker_wire import Wire
from case_proxy import Action, Proxy
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

from onceflow.processors import App, Context, OnError, Output, OutputRefusedError, ProcessingError
from onceflow.sdk import Admin, NewTopic
from onceflow.sdk.protocol.api.transactions import EndTxnRequest
from onceflow.sdk.protocol.batch_header import iter_batch_headers

CONTROL, TRANSACTIONAL = 0x20, 0x10


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Worker processes; none is left behind."""
    with workers_in(tmp_path) as running:
        yield running


def create(bootstrap: str, *topics: str, partitions: int = 1, **configs: str) -> None:
    """Create topics."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1, settings) for topic in topics])


def numbers(count: int) -> list[bytes]:
    """Values 1, 2, ..."""
    return [b"%d" % number for number in range(1, count + 1)]


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


# --- FC-64


def test_fc64_no_output_escapes_the_transaction(cluster: str, name: str, tmp_path: Path) -> None:
    source, ways = f"{name}-in", [f"{name}-{way}" for way in ("returned", "second", "sent", "own")]
    stray_topic = f"{name}-stray"
    create(cluster, source, *ways, stray_topic)
    app = App(name, cluster, state_dir=tmp_path)
    failures = {"3"}
    tasks: list[asyncio.Task[None]] = []
    refused: list[BaseException] = []

    @app.processor(source, to=ways[0], retries=1)
    async def every_way(value: str, context: Context) -> list[object]:
        async def forgotten() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            try:
                context.send(stray_topic, value)
            except OutputRefusedError as error:
                refused.append(error)

        tasks.append(asyncio.create_task(forgotten()))
        context.send(ways[2], value)
        context.send(ways[3], value, key="own", headers=[("h", b"1")])
        if value in failures:
            failures.remove(value)
            raise ValueError("first attempt only")
        return [value, Output(value, topic=ways[1])]

    fill(cluster, source, numbers(6))
    run_until(app, lambda: committed_offsets(cluster, name, source, 1) == [6])
    for topic in ways:
        assert committed_values(cluster, topic) == numbers(6), topic
    assert len(refused) == 7
    assert read_all(cluster, stray_topic, "read_uncommitted") == []

    async def check_batches() -> None:
        async with Wire(address(cluster)) as wire:
            for topic in ways:
                records = (await fetch(wire, topic, api_version=11)).records
                headers = [header for _, header in iter_batch_headers(bytes(records or b""))]
                data = [header for header in headers if not header.attributes & CONTROL]
                assert data
                assert all(header.attributes & TRANSACTIONAL for header in data)
                assert all(header.producer_id >= 0 for header in headers)

    asyncio.run(check_batches())


# --- FC-65

ONE_TO_ONE = """
import sys
from onceflow.processors import App

app = App(
    sys.argv[3], bootstrap_servers=sys.argv[1], state_dir=sys.argv[2],
    commit_records=50, commit_interval_ms=100, transaction_timeout_ms=60_000,
    session_timeout_ms=70_000, max_poll_interval_ms=300_000,
)

@app.processor(sys.argv[3] + "-in", to=sys.argv[3] + "-out")
def same(value: bytes) -> bytes:
    return value

app.run()
"""
INPUTS = 1_000


@pytest.mark.slow
def test_fc65_kill_and_restart_ten_times(
    cluster: str, proxy: Proxy, name: str, tmp_path: Path, workers: Workers
) -> None:
    source, out = f"{name}-in", f"{name}-out"
    create(cluster, source, out, partitions=3)
    chance = random.Random(65)
    inputs = numbers(INPUTS)
    # Slow enough, through the relay, for kills to meet transactions in every state.
    proxy.add(None, Action.DELAY, delay_ms=2)

    def start() -> None:
        workers.start(ONE_TO_ONE, proxy.bootstrap_servers, str(tmp_path / "state"), name)

    def done() -> int:
        return sum(committed_offsets(cluster, name, source, 3))

    start()
    waits = []
    for part in range(10):
        before = done()
        fill(cluster, source, inputs[part * 100 : part * 100 + 100])
        started = time.monotonic()
        wait_for(lambda before=before: done() > before, "progress after a restart")  # type: ignore[misc]
        waits.append(time.monotonic() - started)
        if part == 5:
            # Right after a commit was sent.
            sent = proxy.count(EndTxnRequest)
            fill(cluster, source, [b"extra"])
            wait_for(lambda sent=sent: proxy.count(EndTxnRequest) > sent, "a commit")  # type: ignore[misc]
        else:
            threading.Event().wait(chance.random() * 0.1)
        workers.all[-1].kill()
        start()
    wait_for(lambda: done() == INPUTS + 1, "the end")
    workers.all[-1].stop()
    found = collections.Counter(committed_values(cluster, out))
    assert found == collections.Counter([*inputs, b"extra"])
    assert done() == INPUTS + 1
    stable, high = ends(cluster, out, 3)
    assert stable == high
    assert max(waits) < 10, waits


# --- FC-68


def failing(cluster: str, name: str, tmp_path: Path, bad: set[str], **options: object) -> App:
    """An application that cannot process some values."""
    app = App(name, cluster, state_dir=tmp_path)

    @app.processor(f"{name}-in", to=f"{name}-out", **options)  # type: ignore[arg-type]
    def handle(value: str) -> str:
        if value in bad:
            raise ValueError(f"no {value}")
        return value

    return app


@pytest.fixture
def six(cluster: str, name: str) -> str:
    """An input topic with six records, and its output topic."""
    create(cluster, f"{name}-in", f"{name}-out", f"{name}-dead")
    fill(cluster, f"{name}-in", numbers(6))
    return name


@pytest.mark.parametrize("options", [{}, {"retries": 2}])
def test_fc68_default_and_retries_stop_before_the_record(
    cluster: str, six: str, tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(ProcessingError, match=f"{six}-in-0@2"):
        failing(cluster, six, tmp_path, {"3"}, **options).run()
    assert committed_offsets(cluster, six, f"{six}-in", 1) == [2]
    assert committed_values(cluster, f"{six}-out") == numbers(2)
    run_until(
        failing(cluster, six, tmp_path, set(), **options),
        lambda: committed_offsets(cluster, six, f"{six}-in", 1) == [6],
    )
    assert committed_values(cluster, f"{six}-out") == numbers(6)


def test_fc68_skip(cluster: str, six: str, tmp_path: Path) -> None:
    app = failing(cluster, six, tmp_path, {"3"}, on_error=OnError.SKIP)
    run_until(app, lambda: committed_offsets(cluster, six, f"{six}-in", 1) == [6])
    assert committed_values(cluster, f"{six}-out") == [b"1", b"2", b"4", b"5", b"6"]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_fc68_refused_output_holds_the_offset_back(
    cluster: str, name: str, tmp_path: Path, guarantee: str
) -> None:
    """In either mode."""
    create(cluster, f"{name}-in")
    create(cluster, f"{name}-out", max_message_bytes="10000")
    fill(cluster, f"{name}-in", numbers(6))
    app = App(name, cluster, state_dir=tmp_path, processing_guarantee=guarantee)

    @app.processor(f"{name}-in", to=f"{name}-out")
    def inflate(value: str) -> str:
        return value * 100_000 if value == "3" else value

    with pytest.raises(ProcessingError, match=f"{name}-in-0@2"):
        app.run()
    assert committed_offsets(cluster, name, f"{name}-in", 1) == [2]
    found = committed_values(cluster, f"{name}-out")
    if guarantee == "exactly_once_v2":
        assert found == numbers(2)
    assert set(found) >= set(numbers(2))


DEAD_LETTER = """
import sys
from onceflow.processors import App

name = sys.argv[3]
app = App(name, bootstrap_servers=sys.argv[1], state_dir=sys.argv[2])

@app.processor(name + "-in", to=name + "-out", dead_letter=name + "-dead")
def handle(value: str) -> str:
    if value == "3":
        raise ValueError("no 3")
    return value

app.run()
"""


def test_fc68_dead_letter_survives_a_kill_before_its_commit_once(
    cluster: str, proxy: Proxy, six: str, tmp_path: Path, workers: Workers
) -> None:
    # The commit never arrives: the dead letter is written, its transaction is open.
    lost = proxy.add(EndTxnRequest, Action.SWALLOW, times=1)
    arguments = (proxy.bootstrap_servers, str(tmp_path / "state"), six)
    first = workers.start(DEAD_LETTER, *arguments)
    wait_for(lambda: lost.hits == 1, "the commit")
    assert len(read_all(cluster, f"{six}-dead", "read_uncommitted")) == 1
    first.kill()
    assert read_all(cluster, f"{six}-dead") == []
    with Admin(bootstrap_servers=cluster) as admin:  # Without waiting for a stable answer.
        assert admin.list_group_offsets(six) == {}
    second = workers.start(DEAD_LETTER, *arguments)
    wait_for(lambda: committed_offsets(cluster, six, f"{six}-in", 1) == [6], "the end")
    assert second.stop() == 0
    (letter,) = read_all(cluster, f"{six}-dead")
    assert letter.value == b"3"
    assert dict(letter.headers)["onceflow.error.offset"] == b"2"
    assert committed_values(cluster, f"{six}-out") == [b"1", b"2", b"4", b"5", b"6"]


def test_fc29_handler_that_raises_once_gives_every_output_once(
    cluster: str, name: str, tmp_path: Path
) -> None:
    create(cluster, f"{name}-in", f"{name}-out")
    fill(cluster, f"{name}-in", numbers(10))
    app = App(name, cluster, state_dir=tmp_path)
    failures = {"3"}

    @app.processor(f"{name}-in", to=f"{name}-out", retries=1)
    def handle(value: str) -> str:
        if value in failures:
            failures.remove(value)
            raise ValueError(value)
        return value

    run_until(app, lambda: committed_offsets(cluster, name, f"{name}-in", 1) == [10])
    assert committed_values(cluster, f"{name}-out") == numbers(10)
