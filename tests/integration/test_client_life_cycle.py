"""Goal: clients leave nothing behind: no thread, task, socket or file, however they are closed.

Method: a broker in a process of its own, so that all that is counted is the clients'. Producer,
transactional producer, member of a group and admin client are made, used and closed many times;
closing is interrupted at every line (blocking) or cancelled at every suspension (asyncio) and then
asked for again; and it is done when the broker was killed. What the process holds is compared with
what it held before. The first round only imports and warms up.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import pytest
from stock_daemon import StockDaemon

from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
)
from onceflow.sdk.errors import KafkaError

ROUNDS = 20
SETTLED_S = 60.0
INTERRUPTIONS_MAX = 400
CLOSE_MS = 300
"""Limit of closing without a broker."""

NUMBERS = itertools.count()
KINDS = ("producer", "transactional", "consumer", "admin")


class Client(Protocol):
    def close(self) -> None: ...


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockDaemon]:
    """A broker for all tests of this file, with one record to read."""
    daemon = StockDaemon(tmp_path_factory.mktemp("life") / "data")
    daemon.start()
    with Producer(bootstrap_servers=daemon.bootstrap_servers) as producer:
        producer.send("life", b"first")
    yield daemon
    if daemon.process is not None:
        daemon.kill()


POOLS = ("asyncio_", "ThreadPoolExecutor")


def held() -> dict[str, int]:
    """What this process holds: by kind, how many."""
    gc.collect()
    objects = gc.get_objects()
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/dev/fd")),
        "sockets": sum(type(each) is socket.socket and each.fileno() >= 0 for each in objects),
        "tasks": sum(isinstance(each, asyncio.Task) and not each.done() for each in objects),
        "transports": sum(
            isinstance(each, asyncio.Transport) and not each.is_closing() for each in objects
        ),
        "loops": sum(
            isinstance(each, asyncio.BaseEventLoop) and not each.is_closed() for each in objects
        ),
    }


def more_than(before: dict[str, int]) -> dict[str, int]:
    """By how much this process holds more than before."""
    now = held()
    return {kind: now[kind] - count for kind, count in before.items() if now[kind] > count}


def assert_nothing_left(before: dict[str, int]) -> None:
    """Fails if anything is left for long."""
    deadline = time.monotonic() + SETTLED_S
    pause = threading.Event()
    while left := more_than(before):
        names = [thread.name for thread in threading.enumerate()]
        assert time.monotonic() < deadline, f"left behind: {left}; threads: {names}"
        pause.wait(0.02)


async def assert_nothing_left_here(before: dict[str, int]) -> None:
    """The same within a loop, which needs turns to close what was given up."""
    deadline = time.monotonic() + SETTLED_S
    while left := more_than(before):
        # The loop's own pool for look-ups of names grows as it likes, and ends with the loop.
        pool = sum(thread.name.startswith(POOLS) for thread in threading.enumerate())
        if set(left) == {"threads"} and left["threads"] <= pool:
            return
        tasks = [task.get_name() for task in asyncio.all_tasks()]
        assert time.monotonic() < deadline, f"left behind: {left}; tasks: {tasks}"
        for _ in range(100):
            await asyncio.sleep(0)


def opened(kind: str, bootstrap: str) -> Client:
    """A blocking client that has done its work."""
    if kind == "admin":
        admin = Admin(bootstrap_servers=bootstrap)
        assert "life" in admin.list_topics()
        return admin
    if kind == "consumer":
        consumer = Consumer(
            "life",
            bootstrap_servers=bootstrap,
            group_id=f"life-{next(NUMBERS)}",
            auto_offset_reset="earliest",
        )
        assert consumer.poll(timeout_ms=10_000)
        return consumer
    if kind == "producer":
        producer = Producer(bootstrap_servers=bootstrap)
        producer.send("life", b"more")
        return producer
    producer = Producer(bootstrap_servers=bootstrap, transactional_id="life")
    with producer.transaction():
        producer.send("life", b"committed")
    producer.begin_transaction()
    producer.send("life", b"open at the end")
    return producer


async def opened_here(kind: str, bootstrap: str) -> Any:
    """An asyncio client that has done its work."""
    if kind == "admin":
        admin = AsyncAdmin(bootstrap_servers=bootstrap)
        await admin.start()
        assert "life" in await admin.list_topics()
        return admin
    if kind == "consumer":
        consumer = AsyncConsumer(
            "life",
            bootstrap_servers=bootstrap,
            group_id=f"life-{next(NUMBERS)}",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        assert await consumer.poll(timeout_ms=10_000)
        return consumer
    if kind == "producer":
        producer = AsyncProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send("life", b"more")
        return producer
    producer = AsyncProducer(bootstrap_servers=bootstrap, transactional_id="life")
    await producer.start()
    async with producer.transaction():
        await producer.send("life", b"committed")
    await producer.begin_transaction()
    await producer.send("life", b"open at the end")
    return producer


class InterruptAt:
    """Ctrl-C at one line of what a client does in the caller's thread."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.happened = False

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        waits = path.endswith("futures/_base.py") and frame.f_code.co_name == "result"
        return self.step if waits or "onceflow/sdk/sync/" in path else None

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self.happened:
            self.left -= 1
            if self.left < 0:
                self.happened = True
                raise KeyboardInterrupt
        return self.step

    def run(self, function: Callable[[], object]) -> None:
        traced = sys.gettrace()
        sys.settrace(self.enter)
        try:
            function()
        finally:
            sys.settrace(traced)


@pytest.mark.parametrize("kind", KINDS)
def test_blocking_clients_leave_nothing_behind(daemon: StockDaemon, kind: str) -> None:
    opened(kind, daemon.bootstrap_servers).close()
    before = held()
    for _ in range(ROUNDS):
        opened(kind, daemon.bootstrap_servers).close()
    assert_nothing_left(before)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_any_line_closing_can_be_asked_for_again(
    daemon: StockDaemon, kind: str
) -> None:
    opened(kind, daemon.bootstrap_servers).close()
    before = held()
    others = set(threading.enumerate())  # Of tests before this one; some take their time to end.
    for line in range(INTERRUPTIONS_MAX):
        client = opened(kind, daemon.bootstrap_servers)
        interrupt = InterruptAt(line)
        with suppress(KeyboardInterrupt, KafkaError):
            interrupt.run(client.close)
        with suppress(KafkaError):
            client.close()
        own = set(threading.enumerate()) - others
        alive = [each.name for each in own if each.name.startswith("onceflow")]
        assert not alive, f"left by an interruption at line {line} of closing"
        if not interrupt.happened:
            break
    else:
        raise AssertionError(f"closing took more than {INTERRUPTIONS_MAX} lines")
    assert line > 5, "the lines of closing were not seen"
    del client
    assert_nothing_left(before)


async def close_cancelled(client: Any, turns: int) -> bool:
    """Cancel closing after so many turns of the loop; tells whether it was still under way."""
    closing = asyncio.ensure_future(client.close())
    for _ in range(turns):
        if not closing.done():
            await asyncio.sleep(0)
    under_way = not closing.done()
    closing.cancel()
    with suppress(asyncio.CancelledError, KafkaError):
        await closing
    return under_way


@pytest.mark.parametrize("kind", KINDS)
async def test_asyncio_clients_leave_nothing_behind(daemon: StockDaemon, kind: str) -> None:
    await (await opened_here(kind, daemon.bootstrap_servers)).close()
    before = held()
    for _ in range(ROUNDS):
        await (await opened_here(kind, daemon.bootstrap_servers)).close()
    await assert_nothing_left_here(before)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_at_any_time_closing_can_be_asked_for_again(
    daemon: StockDaemon, kind: str
) -> None:
    await (await opened_here(kind, daemon.bootstrap_servers)).close()
    before = held()
    for turns in range(ROUNDS):
        client = await opened_here(kind, daemon.bootstrap_servers)
        await close_cancelled(client, turns)
        with suppress(KafkaError):
            await client.close()
    del client
    await assert_nothing_left_here(before)


@pytest.fixture
async def gone(tmp_path: Path) -> AsyncIterator[StockDaemon]:
    """A broker that a test kills."""
    daemon = StockDaemon(tmp_path / "gone")
    daemon.start()
    with Producer(bootstrap_servers=daemon.bootstrap_servers) as producer:
        producer.send("life", b"first")
    yield daemon
    if daemon.process is not None:
        daemon.kill()


async def test_nothing_is_left_when_the_broker_is_gone(gone: StockDaemon) -> None:
    # One thread for what blocks, which stays.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await asyncio.to_thread(gc.collect)
    for client in [await opened_here(kind, gone.bootstrap_servers) for kind in KINDS]:
        await client.close()
    before = held()
    here = [await opened_here(kind, gone.bootstrap_servers) for kind in KINDS]
    blocking = await asyncio.to_thread(
        lambda: [opened(kind, gone.bootstrap_servers) for kind in KINDS if kind != "transactional"]
    )
    gone.kill()
    for client in [*here, *blocking]:
        limit = () if isinstance(client, Admin | AsyncAdmin) else (CLOSE_MS,)
        with suppress(KafkaError):
            closing = client.close(*limit)
            if isinstance(closing, Awaitable):
                await closing
    del client, here, blocking
    await assert_nothing_left_here(before)
