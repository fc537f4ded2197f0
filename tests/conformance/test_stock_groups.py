"""Goal: groups of many members of published clients share everything out, whoever comes and goes.

Method: eight members of one client, half of them static, come in two waves; two leave, a static one
goes and comes back. After each step every partition has one owner and none has much more than
another; a static member's absence disturbs nobody; in the end every record was read. On our broker
and on Apache Kafka. (confluent-kafka's members: `test_stock_surface`.)
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from stock_clients import DEADLINE_S, LoopThread, wait_until
from stock_confluent import settings_for
from stock_kafka_python import kafka
from stock_scenarios import make_topic

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

PARTITIONS = 8
SETTINGS = {
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 100,
    "auto_offset_reset": "earliest",
}


class Member(Protocol):
    """One member that reads by itself.

    Attributes:
        owned: Its partitions.
        read: Values that it was given.
        rebalances: How often it was told of an assignment.
    """

    owned: frozenset[int]
    read: list[bytes]

    def leave(self) -> None: ...


class KafkaPythonMember:
    """Cooperative; it works in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, instance: str | None) -> None:
        self.owned: frozenset[int] = frozenset()
        self.read: list[bytes] = []
        self._leaving = threading.Event()
        self._done: Future[None] = Future()
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            group_instance_id=instance,
            partition_assignment_strategy=[CooperativeStickyAssignor],
            # A leader that joined before it knew the topic divides nothing ("No partition metadata
            # for topic" in its log), and looks again only when its metadata is old.
            metadata_max_age_ms=1_000,
            **SETTINGS,
        )
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            while not self._leaving.is_set():
                for records in self._consumer.poll(50).values():
                    self.read += [record.value for record in records]
                self.owned = frozenset(each.partition for each in self._consumer.assignment())
            self._consumer.close()
            self._done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._done.set_exception(error)

    def leave(self) -> None:
        self._leaving.set()
        self._done.result(DEADLINE_S)


class AiokafkaMember:
    """Sticky, which stops everybody at each rebalance; it works in a task."""

    loop: LoopThread

    def __init__(self, bootstrap: str, topic: str, instance: str | None) -> None:
        self.owned: frozenset[int] = frozenset()
        self.read: list[bytes] = []

        async def start() -> asyncio.Task[None]:
            self._consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=topic,
                group_instance_id=instance,
                partition_assignment_strategy=(StickyPartitionAssignor,),
                **SETTINGS,
            )
            await self._consumer.start()
            return asyncio.create_task(self._work())

        self._task = self.loop.run(start)

    async def _work(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=50)).values():
                self.read += [record.value for record in records]
            self.owned = frozenset(each.partition for each in self._consumer.assignment())

    def leave(self) -> None:
        async def stop() -> None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._consumer.stop()

        self.loop.run(stop)


@pytest.fixture
def loop() -> Iterator[None]:
    AiokafkaMember.loop = LoopThread()
    yield
    AiokafkaMember.loop.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [KafkaPythonMember, AiokafkaMember], ids=lambda k: k.__name__)
def test_eight_members_come_and_go(
    kind: type[Member], bootstrap: str, name: str, loop: None
) -> None:
    make_topic(bootstrap, name, PARTITIONS)
    sent = [b"%d" % number for number in range(80)]
    fill(bootstrap, name, sent[:40])
    everybody: list[Member] = []
    here: dict[int, Member] = {}

    def join(number: int) -> None:
        here[number] = kind(bootstrap, name, f"i{number}" if number % 2 else None)  # type: ignore[call-arg]
        everybody.append(here[number])

    try:
        for wave in (range(4), range(4, 8)):
            for number in wave:
                join(number)
            wait_until(lambda: is_shared(here.values()), f"{len(here)} members share")
        for number in (0, 2):
            here.pop(number).leave()
        wait_until(lambda: is_shared(here.values()), "six members share")
        others = {number: member.owned for number, member in here.items() if number != 3}
        away = here.pop(3)
        owned = away.owned
        away.leave()
        join(3)
        wait_until(lambda: here[3].owned == owned, "the static member has its own again")
        assert {number: here[number].owned for number in others} == others
        fill(bootstrap, name, sent[40:])
        wait_until(
            lambda: {value for member in everybody for value in member.read} == set(sent),
            "everything is read",
        )
    finally:
        for member in here.values():
            member.leave()


def fill(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer(settings_for(bootstrap))
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def is_shared(members: object) -> bool:
    """Whether each partition has one owner, and no member has much more than another."""
    owned = [member.owned for member in members]  # type: ignore[attr-defined]
    sizes = sorted(map(len, owned))
    everything = sorted(partition for own in owned for partition in own)
    return everything == list(range(PARTITIONS)) and sizes[-1] - sizes[0] <= 1
