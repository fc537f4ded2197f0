"""Goal: whatever a handler raises or gives, only its record is concerned, and the worker goes on.

Method: a worker over the in-memory cluster meets a record between two good ones whose handler
raises or returns something that cannot be described, encoded or delivered; the record must be in
the dead letters, and the others in the output.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_fakes import FakeCluster
from processor_worlds import World

from onceflow.processors import App, Output, ProcessingError
from onceflow.processors.calls import InPlace
from onceflow.sdk.errors import ConfigError, UnknownTopicOrPartitionError
from onceflow.sdk.model.partitions import TopicPartition


class NoText(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def generator() -> Iterator[bytes]:
    yield b"half"
    raise ValueError("in the middle")


def ring() -> list[object]:
    items: list[object] = []
    items.append(items)
    return [{"ring": items}]


RAISED = {
    "lone surrogate": ValueError("\ud800"),
    "no str and no repr": NoText(),
    "megabytes of text": ValueError("x" * 3_000_000),
    "StopIteration": StopIteration(),
    "StopAsyncIteration": StopAsyncIteration(),
    "GeneratorExit in disguise": RuntimeError("generator raised StopIteration"),
    "RecursionError": RecursionError(),
}
RETURNED = {
    "generator that fails": generator,
    "object without encoding": object,
    "lone surrogate": lambda: "\ud800",
    "ring": ring,
    "too large": lambda: b"x" * 2_000_000,
    "negative partition": lambda: Output(b"x", partition=-1),
    "partition as text": lambda: Output(b"x", partition="1"),  # type: ignore[arg-type]
    "no topic name": lambda: Output(b"x", topic="not a name!"),
    "headers as a number": lambda: Output(b"x", headers=5),  # type: ignore[arg-type]
    "header as text": lambda: Output(b"x", headers=[("a", "text")]),  # type: ignore[list-item]
    "time before 1970": lambda: Output(b"x", timestamp_ms=-2),
    "time as text": lambda: Output(b"x", timestamp_ms="now"),  # type: ignore[arg-type]
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, "in")
    world.cluster.put("in", b"good 1", b"bad", b"good 2", key=b"k")
    return world


def app_with(give: object, **options: object) -> App:
    app = App("poison")

    @app.processor("in", to="out", **({"dead_letter": "dead"} | options))  # type: ignore[arg-type]
    def handle(value: bytes) -> object:
        if value != b"bad":
            return value
        if isinstance(give, Exception):
            raise give
        return give()  # type: ignore[operator]

    return app


def check(cluster: FakeCluster) -> None:
    assert cluster.values("out") == [b"good 1", b"good 2"]
    assert cluster.values("dead") == [b"bad"]
    assert cluster.offset("in") == 3


@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_error_of_any_kind_makes_a_dead_letter(world: World, error: Exception) -> None:
    world.run(app_with(error))
    check(world.cluster)
    letter = world.cluster.logs[TopicPartition("dead", 0)][0]
    headers = dict(letter.headers)  # type: ignore[call-overload]
    assert headers["onceflow.error.class"].endswith(type(error).__qualname__.encode())
    assert sum(map(len, headers.values())) < 40_000


def called_by_the_handler(value: bytes) -> None:
    json.loads(value)


def test_place_in_the_users_code_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The innermost one: not Python's json, which raised the error."""
    where = rf"JSONDecodeError\(.*\) at {re.escape(__file__)}:\d+ in called_by_the_handler"
    app = App("places")
    app.processor("in", name="places", dead_letter="dead")(called_by_the_handler)
    world.cluster.put("in", b"no json", key=b"k")
    world.run(app)
    assert re.search(f"places: dead letter for in-0@0 after 1 attempt: {where}", caplog.text)
    assert world.cluster.values("dead")[-1] == b"no json"
    stopping = App("stops")
    stopping.processor("in", name="stops", retries=1)(called_by_the_handler)
    world.cluster.put("in", b"no json", key=b"k")
    with pytest.raises(ProcessingError, match=f"stops failed at in-0@4 after 2 attempts: {where}"):
        world.run(stopping)
    assert "places: dead letter" in caplog.text


def test_bytes_that_do_not_fit_have_no_place_in_the_users_code(world: World) -> None:
    app = App("places")

    @app.processor("in")
    def number(value: int) -> None: ...

    world.cluster.put("in", b"x", key=b"k")
    with pytest.raises(ProcessingError, match=r"after 1 attempt: DeserializationError\(.*\)\. The"):
        world.run(app)


@pytest.mark.parametrize("give", RETURNED.values(), ids=RETURNED)
def test_result_of_any_kind_makes_a_dead_letter(world: World, give: object) -> None:
    world.run(app_with(give))
    check(world.cluster)


@pytest.mark.parametrize(
    "refusal", [UnknownTopicOrPartitionError("gone"), ConfigError("partition", 99, "there are 3")]
)
def test_target_that_the_brokers_do_not_have_makes_a_dead_letter(
    world: World, refusal: Exception
) -> None:
    """Trap 83. They are asked once a minute, not for each record again."""
    asked = []

    def refuse() -> None:
        entry = world.cluster
        asked.append(entry)
        raise refusal

    world.cluster.put("in", *[b"bad"] * 5, key=b"k")
    app = app_with(lambda: Output(b"x", topic="elsewhere"))
    for _ in range(50):
        world.cluster.do("send elsewhere", refuse)
    world.run(app)
    assert world.cluster.values("out") == [b"good 1", b"good 2"]
    assert world.cluster.values("dead") == [b"bad"] * 6
    assert world.cluster.offset("in") == 8
    if isinstance(refusal, UnknownTopicOrPartitionError):
        assert len(asked) == 1


def test_declared_output_that_the_brokers_lost_is_not_the_records_fault(world: World) -> None:
    world.cluster.fail("send out", UnknownTopicOrPartitionError("gone"), times=3)
    world.run(app_with(lambda: b"fine"))
    assert world.cluster.values("out") == [b"good 1", b"fine", b"good 2"]
    assert world.cluster.values("dead") == []


def test_policy_stop_names_the_target(world: World) -> None:
    app = app_with(lambda: Output(b"x", topic="not a name!"), dead_letter=None)
    with pytest.raises(ProcessingError, match="'not a name!' is not allowed: it holds other"):
        world.run(app)
    assert world.cluster.offset("in") == 1


async def cancelled_within() -> None:
    """A handler's own task is cancelled, as when a client that it uses is closed."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.sleep(0)
    task.cancel()
    await task


async def test_cancellation_within_a_handler_is_its_own_failure(world: World) -> None:
    app = App("poison")

    @app.processor("in", to="out", dead_letter="dead")
    async def handle(value: bytes) -> bytes:
        if value == b"bad":
            await cancelled_within()
        return value

    await world.make(app).run(InPlace())
    check(world.cluster)


async def test_cancelling_the_worker_still_ends_it(world: World) -> None:
    app, started = App("poison"), asyncio.Event()

    @app.processor("in", to="out", dead_letter="dead")
    async def handle(value: bytes) -> bytes:
        started.set()
        await asyncio.Event().wait()
        return value

    worker = asyncio.ensure_future(world.make(app).run(InPlace()))
    await started.wait()
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert world.cluster.values("dead") == []
    assert world.cluster.offset("in") is None
