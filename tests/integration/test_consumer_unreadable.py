"""Goal: what cannot be read holds up its own partition alone: it is tried again after pauses, the
application is told the place and the remedy, and the other partitions go on.

Method: a bit of a log on disk is flipped under the bundled broker, and flipped back; deserializers
refuse records. Both faces, all forms of reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_worlds import PATIENCE_S, fresh, make_topic, write

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import AsyncConsumer, Consumer, TopicPartition
from onceflow.sdk.errors import RecordError, SerializationError
from onceflow.sdk.protocol.api.fetch import FetchRequest


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data=tmp_path / "data") as running:
        yield running


class World:
    """A topic of two partitions; a bit of the first one's second batch is flipped on disk.

    Attributes:
        topic: Its name.
        bad: The partition that cannot be read on.
        good: The other one.
    """

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.topic = make_topic(broker.bootstrap_servers, 2)
        self.bad, self.good = TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)
        for value in ("aaaa", "bbbb", "cccc"):
            write(broker.bootstrap_servers, self.topic, [value])
        self.log = next((folder / "data").glob(f"{self.topic}-0/*.log"))
        self.replace(b"bbbb", b"bbbc")
        self.count = 0

    def replace(self, old: bytes, new: bytes) -> None:
        """Change bytes of the log where they are."""
        data = self.log.read_bytes()
        with self.log.open("r+b") as file:
            file.seek(data.index(old))
            file.write(new)

    def feed(self) -> str:
        """Write one more record to the good partition."""
        self.count += 1
        write(self.broker.bootstrap_servers, self.topic, [f"good {self.count}"], partition=1)
        return f"good {self.count}"

    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.broker.bootstrap_servers,
            "auto_offset_reset": "earliest",
            "retry_backoff_ms": 20,
            "retry_backoff_max_ms": 100,
        }


@pytest.fixture
def world(broker: Broker, tmp_path: Path) -> World:
    return World(broker, tmp_path)


def poll(consumer: Consumer) -> list[str]:
    return [r.value.decode() for rs in consumer.poll(50).values() for r in rs]


def poll_for_ever(consumer: Consumer) -> None:
    while True:
        poll(consumer)


def iterate(consumer: Consumer) -> list[str]:
    return [next(consumer).value.decode()]


def columns(consumer: Consumer) -> list[str]:
    found = consumer.poll_columns(50, values_only=True)
    return [value.decode() for run in found.values() for value in run.values if value]


FORMS = [poll, iterate, columns]


@pytest.mark.parametrize("read", FORMS)
def test_a_damaged_batch_is_told_with_its_place_while_other_partitions_go_on(
    world: World, read: Callable[[Consumer], list[str]]
) -> None:
    with Consumer(**world.settings()) as consumer:
        consumer.assign([world.bad, world.good])
        seen: list[str] = []
        errors: list[RecordError] = []
        wanted = world.feed()
        deadline = time.monotonic() + PATIENCE_S
        while len(errors) < 3 or wanted not in seen or world.count < 5:
            assert time.monotonic() < deadline, (seen, errors)
            if wanted in seen:
                wanted = world.feed()
            try:
                seen += read(consumer)
            except RecordError as error:
                errors.append(error)
        assert "aaaa" in seen
        assert not {"bbbc", "cccc"} & {*seen}
        for error in errors:
            assert f"cannot read {world.bad} at offset 1" in str(error)
            assert "seek to 2 to go on without the batch" in str(error)
            assert error.place == (*world.bad, 1)
        consumer.seek(world.bad, 2)
        while "cccc" not in seen:
            world.feed()  # Iteration waits for a record.
            with contextlib.suppress(RecordError):
                seen += read(consumer)


def test_a_damaged_batch_is_read_once_it_is_right(world: World) -> None:
    with Consumer(**world.settings()) as consumer:
        consumer.assign([world.bad, world.good])
        with pytest.raises(RecordError):
            poll_for_ever(consumer)
        world.replace(b"bbbc", b"bbbb")
        seen: list[str] = []
        while "cccc" not in seen:
            with contextlib.suppress(RecordError):
                seen += poll(consumer)
        assert seen == ["bbbb", "cccc"]


async def test_so_it_is_with_asyncio(world: World) -> None:
    async with AsyncConsumer(**world.settings()) as consumer:
        consumer.assign([world.bad, world.good])
        seen: list[str] = []
        errors: list[RecordError] = []
        wanted = await asyncio.to_thread(world.feed)
        while len(errors) < 2 or wanted not in seen:
            try:
                polled = await consumer.poll(50)
                seen += [r.value.decode() for rs in polled.values() for r in rs]
            except RecordError as error:
                errors.append(error)
        assert all(f"cannot read {world.bad} at offset 1" in str(error) for error in errors)
        world.replace(b"bbbc", b"bbbb")
        while "cccc" not in seen:
            with contextlib.suppress(RecordError):
                record = await anext(consumer)
                seen.append(record.value.decode())


def test_polls_in_a_row_ask_the_broker_no_more_often_than_the_pauses_allow(world: World) -> None:
    """A loop that goes on after errors costs neither side a processor."""
    fetches = 0

    def count(request: object, _: object) -> bool:
        nonlocal fetches
        fetches += isinstance(request, FetchRequest)
        return False

    world.broker.faults.add(FetchRequest, Fault.DELAY, times=None, condition=count)
    with Consumer(**world.settings()) as consumer:
        consumer.assign([world.bad])
        errors = 0
        while errors < 10:
            try:
                consumer.poll(0)
            except RecordError:
                errors += 1
    # One try for each error and a silent one before them; each asks for what comes next as well,
    # and the next try may be on its way.
    assert fetches <= 2 * (errors + 2)


def test_a_record_that_is_refused_holds_up_its_own_partition_only(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers, 2)
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(broker.bootstrap_servers, topic, ["1", "poison", "3"], partition=0)
    write(broker.bootstrap_servers, topic, [str(n) for n in range(100, 400)], partition=1)
    refused = True

    def number(data: bytes) -> int:
        if refused:
            return int(data)
        return -1 if data == b"poison" else int(data)

    settings: dict[str, Any] = {"group_id": fresh("group"), "value_deserializer": number}
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        max_poll_records=10,
        **settings,
    ) as consumer:
        consumer.assign([bad, good])
        seen: list[object] = []
        errors: list[SerializationError] = []
        while len(errors) < 3 or 399 not in seen:
            try:
                seen += [r.value for rs in consumer.poll(50).values() for r in rs]
            except SerializationError as error:
                errors.append(error)
        assert sorted(map(str, seen)) == sorted(["1", *map(str, range(100, 400))])
        for error in errors:
            assert f"offset 1 of {bad}" in str(error)
            assert "seek to 2 to go on without it" in str(error)
            assert error.place == (*bad, 1)
        assert consumer.position(bad) == 1
        refused = False
        while 3 not in seen:
            seen += [r.value for rs in consumer.poll(50).values() for r in rs]
        assert -1 in seen
