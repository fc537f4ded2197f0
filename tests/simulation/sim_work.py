"""What simulated clients do: producers, transactions, sessions, groups, readers.

Each worker is a process that may be killed and started again at any moment; what it did and was
told goes to the history. The workers decide nothing about right and wrong, except that what the
SDK raises must be one of its own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceflow.sdk import AsyncConsumer, AsyncProducer
from onceflow.sdk.errors import CommitOutcomeUnknownError, FatalError, KafkaError
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)
from onceflow.transactions import AsyncTransactionSession, SessionConfig
from onceflow.transactions.errors import TransactionalIdInUseError

if TYPE_CHECKING:
    from sim_run import Simulation
    from sim_world import Process

TIMES = {
    "request_timeout_ms": 2_000,
    "retry_backoff_ms": 50,
    "retry_backoff_max_ms": 400,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 300,
    "socket_connection_setup_timeout_ms": 1_500,
    "metadata_max_age_ms": 5_000,
}
PRODUCER_TIMES = {"max_block_ms": 6_000, "delivery_timeout_ms": 8_000}
CONSUMER_TIMES = {
    "default_api_timeout_ms": 6_000,
    "session_timeout_ms": 3_000,
    "heartbeat_interval_ms": 700,
    "max_poll_interval_ms": 6_000,
    "fetch_max_wait_ms": 300,
}


def member_times(protocol: dict[str, object], times: dict[str, Any]) -> dict[str, Any]:
    """Times of a group's member: under the consumer protocol, the broker decides two of them."""
    if protocol.get("group_protocol") != "consumer":
        return times
    decided = ("session_timeout_ms", "heartbeat_interval_ms")
    return {name: value for name, value in times.items() if name not in decided}


class Worker:
    """One client that lives through several processes.

    Attributes:
        name: Its name; its processes are ``name/1`` and so on.
        left: Units of work still to be done.
        finished: Whether its last process came to its own end.
    """

    def __init__(self, sim: Simulation, name: str, left: int) -> None:
        self.sim = sim
        self.name = name
        self.left = left
        self.finished = False
        self.lives = 0
        self.process: Process | None = None
        self.random = sim.world.stream(f"work/{name}")
        self.count = 0

    def start(self) -> None:
        """Begin another life."""
        self.lives += 1
        process = self.sim.spawn(f"{self.name}/{self.lives}")
        self.process = process
        me = process.name

        async def main() -> None:
            try:
                await self.work(me)
            except Exception as error:  # noqa: BLE001 - everything is judged here
                process.fault(f"{type(error).__name__} got out of {me}: {error}")
            await asyncio.sleep(0)
            if self.process is process:
                self.finished = True
                self.note(me, "finished")
            others = [t for t in process.loop.tasks if t is not asyncio.current_task()]
            if others:
                process.fault(f"tasks left behind: {[t.get_name() for t in others]}")

        process.call(lambda: process.loop.create_task(main(), name=me) and None)

    def note(self, me: str, what: str, *details: object) -> None:
        self.sim.world.note(me, what, *details)

    async def work(self, me: str) -> None:
        raise NotImplementedError

    async def pause(self, most_ms: int = 60) -> None:
        await asyncio.sleep(self.random.randrange(most_ms + 1) / 1000)

    def next_value(self, me: str) -> bytes:
        self.count += 1
        return f"{me}.{self.count}".encode()

    def producer_settings(self) -> dict[str, Any]:
        rng = self.random
        return {
            "bootstrap_servers": self.sim.broker.addresses,
            "client_id": self.name,
            "linger_ms": rng.choice((0, 0, 5, 20)),
            "batch_size": rng.choice(self.sim.batch_sizes),
            "compression_type": rng.choice((None, None, "gzip", "lz4")),
            **TIMES,
            **PRODUCER_TIMES,
        }

    async def failed(self, me: str, what: str, error: KafkaError) -> None:
        self.note(me, f"{what} failed", type(error).__name__, str(error)[:160])
        await self.pause(100)


class Sending:
    """Sends records of one worker and notes what becomes of each."""

    def __init__(self, worker: Worker, me: str, producer: AsyncProducer, life: str) -> None:
        self.worker = worker
        self.me = me
        self.producer = producer
        self.life = life
        self.watchers: set[asyncio.Task[None]] = set()

    async def send(self, topic: str, value: bytes, key: bytes | None, partition: int | None,
                   transaction: str = "", timestamp_ms: int | None = None) -> None:  # fmt: skip
        worker, me = self.worker, self.me
        worker.note(me, "send", value, topic, self.life, transaction, key)
        try:
            delivery = await self.producer.send(
                topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms
            )
        except KafkaError as error:
            worker.note(me, "refused", value, type(error).__name__)
            raise
        task = asyncio.create_task(self._watch(value, delivery))
        self.watchers.add(task)
        task.add_done_callback(self.watchers.discard)

    async def _watch(self, value: bytes, delivery: Any) -> None:
        try:
            stored = await delivery
        except KafkaError as error:
            self.worker.note(self.me, "not acked", value, type(error).__name__)
        else:
            self.worker.note(self.me, "acked", value, stored.topic, stored.partition, stored.offset)

    async def settle(self) -> None:
        if self.watchers:
            await asyncio.gather(*self.watchers)


class IdempotentProducer(Worker):
    """Sends records outside of transactions, as fast or slow as it likes."""

    topic = "a"
    keys = 0

    async def work(self, me: str) -> None:
        while self.left > 0:
            life = f"{me}:{self.random.getrandbits(32):x}"
            producer = AsyncProducer(**self.producer_settings())
            sending = Sending(self, me, producer, life)
            try:
                await producer.start()
                while self.left > 0:
                    self.left -= 1
                    await self._send(me, sending)
                    if self.random.random() < 0.25:
                        await self.pause()
                    if self.random.random() < 0.05:
                        await producer.flush()
                await sending.settle()
            except KafkaError as error:
                await self.failed(me, "producing", error)
            finally:
                await self._close(me, producer)
                await sending.settle()

    async def _send(self, me: str, sending: Sending) -> None:
        rng = self.random
        key = f"k{rng.randrange(self.keys)}".encode() if self.keys else None
        partition = None if self.keys else rng.randrange(self.sim.partitions[self.topic])
        await sending.send(self.topic, self.next_value(me), key, partition)

    async def _close(self, me: str, producer: AsyncProducer) -> None:
        try:
            await producer.close()
        except KafkaError as error:
            self.note(me, "close failed", type(error).__name__)


class CompactionProducer(IdempotentProducer):
    """Overwrites few keys of a compacted topic."""

    topic = "compact"
    keys = 5


class ShortLivedProducer(IdempotentProducer):
    """Fills a topic whose old segments go."""

    topic = "short"


class TransactionalProducer(Worker):
    """Commits and aborts, sometimes too late."""

    async def work(self, me: str) -> None:
        while self.left > 0:
            life = f"{me}:{self.random.getrandbits(32):x}"
            producer = AsyncProducer(
                transactional_id=self.name,
                transaction_timeout_ms=self.sim.transaction_timeout_ms,
                **self.producer_settings(),
            )
            sending = Sending(self, me, producer, life)
            try:
                await producer.start()
                while self.left > 0:
                    self.left -= 1
                    await self._transaction(me, producer, sending)
            except KafkaError as error:
                await self.failed(me, "transacting", error)
            finally:
                try:
                    await producer.close()
                except KafkaError as error:
                    self.note(me, "close failed", type(error).__name__)
                await sending.settle()

    async def _transaction(self, me: str, producer: AsyncProducer, sending: Sending) -> None:
        rng = self.random
        self.count += 1
        name = f"{me}-t{self.count}"
        self.note(me, "begin", name)
        try:
            await producer.begin_transaction()
            for _ in range(rng.randrange(1, 7)):
                topic = rng.choice(("a", "a", "b", "b", "compact"))
                partition = rng.randrange(self.sim.partitions[topic])
                key = f"k{rng.randrange(5)}".encode() if topic == "compact" else None
                await sending.send(topic, self.next_value(me), key, partition, name)
                if rng.random() < 0.2:
                    await self.pause()
            if rng.random() < 0.4:
                offset = self.count  # Another life of this worker, a zombie, may count on.
                # It is no place in the log; a start after a power loss leaves it by its epoch.
                named = OffsetAndMetadata(offset, leader_epoch=0)
                await producer.send_offsets_to_transaction(
                    {TopicPartition("a", 0): named}, ConsumerGroupMetadata(f"of-{self.name}")
                )
                self.note(me, "offsets", name, f"of-{self.name}", offset)
            if rng.random() < 0.04:
                await asyncio.sleep(self.sim.transaction_timeout_ms * 1.3 / 1000)
            if rng.random() < 0.2:
                self.note(me, "abort", name)
                await producer.abort_transaction()
                self.note(me, "aborted", name)
                return
            self.note(me, "commit", name)
            await self._commit(me, producer, name)
            self.note(me, "committed", name)
        except (CommitOutcomeUnknownError, FatalError):
            self.note(me, "unknown", name)
            raise
        except KafkaError as error:
            # Any other error: nothing of it is committed, and an abort makes the way free.
            self.note(me, "void", name, type(error).__name__, str(error)[:120])
            await producer.abort_transaction()
            self.note(me, "aborted", name)

    async def _commit(self, me: str, producer: AsyncProducer, name: str) -> None:
        """Ask for the commit until its outcome is known, or until patience ends."""
        while True:
            try:
                await producer.commit_transaction()
            except CommitOutcomeUnknownError as error:
                self.note(me, "commit unanswered", name, str(error)[:160])
                if self.random.random() < 0.2:
                    raise
            else:
                return


class SessionWorker(Worker):
    """Reads ``a``, writes ``b`` and commits both together."""

    def __init__(self, sim: Simulation, name: str, slot: int) -> None:
        super().__init__(sim, name, 0)
        self.slot = slot

    async def work(self, me: str) -> None:
        protocol = self.random.choice(self.sim.protocols)
        times = {
            "session_timeout_ms": max(3_000, self.sim.transaction_timeout_ms),
            "heartbeat_interval_ms": 700,
            "fetch_max_wait_ms": 300,
        }
        config = SessionConfig(
            topics=["a"],
            bootstrap_servers=self.sim.broker.addresses,
            group_id="session",
            slot=str(self.slot),
            commit_interval_ms=self.random.choice((1, 30, 200)),
            transaction_timeout_ms=self.sim.transaction_timeout_ms,
            max_poll_interval_ms=6_000,
            max_poll_records=self.random.choice((1, 5, 100)),
            operation_timeout_ms=3_000,
            revoke_budget_ms=1_500,
            auto_offset_reset="none",
            consumer_settings={
                **TIMES,
                **member_times(protocol, times),
                **protocol,
            },
            producer_settings={
                **TIMES,
                "linger_ms": self.random.choice((0, 10)),
                "batch_size": self.random.choice(self.sim.batch_sizes),
            },
        )
        while not self.sim.drained("session"):
            session = AsyncTransactionSession(config)
            try:
                await session.start()
                while not self.sim.drained("session"):
                    await self._step(me, session)
            except TransactionalIdInUseError as error:
                await self.failed(me, "session (fenced)", error)
            except KafkaError as error:
                await self.failed(me, "session", error)
            finally:
                try:
                    await session.close()
                except KafkaError as error:
                    self.note(me, "close failed", type(error).__name__)

    async def _step(self, me: str, session: AsyncTransactionSession) -> None:
        polled = await session.poll(200)
        for partition, records in polled.items():
            self.note(me, "input", str(partition), [r.offset for r in records])
            for record in records:
                value = b"out:" + record.value
                await session.send("b", value, key=record.value)
        if self.random.random() < 0.1:
            await self.pause(200)
        if self.random.random() < 0.05:
            await session.abort()
            self.note(me, "session abort")
        elif session.commit_due:
            done = await session.commit()
            self.note(me, "session commit", done, "" if done else str(session.last_abort)[:200])


class GroupConsumer(Worker):
    """A member of a group that commits what it processed."""

    async def work(self, me: str) -> None:
        rng = self.random
        while not self.sim.drained("group"):
            protocol = rng.choice(self.sim.protocols)
            settings = dict(protocol)
            if self.sim.static_members:
                settings["group_instance_id"] = self.name
            consumer = AsyncConsumer(
                bootstrap_servers=self.sim.broker.addresses,
                group_id="group",
                client_id=self.name,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                max_poll_records=rng.choice((3, 20, 500)),
                **TIMES,
                **member_times(protocol, CONSUMER_TIMES),
                **settings,
            )
            life = f"{me}:{rng.getrandbits(32):x}"
            self.note(me, "member", life)
            self._subscribe(me, consumer, life)
            try:
                await consumer.start()
                while not self.sim.drained("group"):
                    await self._step(me, consumer, life)
                    if rng.random() < 0.01 and not self.sim.calm:
                        break  # In the calm a new member would mend what is divided badly.
            except KafkaError as error:
                await self.failed(me, "group", error)
            finally:
                await close_consumer(self, me, consumer)

    def _subscribe(self, me: str, consumer: AsyncConsumer, life: str) -> None:
        def told(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.note(me, what, life, [str(p) for p in partitions])

        consumer.subscribe(
            ["a"],
            on_lost=told("lost"),
            on_revoked=told("revoked"),
            on_assigned=told("assigned"),
        )

    async def _step(self, me: str, consumer: AsyncConsumer, life: str) -> None:
        polled = await consumer.poll(200)
        for partition, records in polled.items():
            self.note(me, "read", life, "read_committed", str(partition),
                      [(r.offset, r.value) for r in records], True)  # fmt: skip
        if self.random.random() < 0.1:
            await self.pause(300)
        if not polled and self.random.random() < 0.7:
            return
        positions = {}
        for partition in sorted(consumer.assignment()):
            try:
                positions[partition] = await consumer.position(partition, timeout_ms=1_000)
            except KafkaError as error:
                await self.failed(me, "position", error)
                return
        if not positions:
            return
        try:
            generation = consumer.group_metadata().generation_id
            self.note(me, "committing", life, generation, _plain(positions))
            # By the leader epochs the offsets of a log that lost its end are told from others.
            await consumer.commit(None if self.sim.may_lose_records else positions)
        except KafkaError as error:
            await self.failed(me, "commit", error)
        else:
            self.note(me, "group commit", life, generation, _plain(positions))


class Reader(Worker):
    """Follows topics without a group, in one of the isolation levels."""

    def __init__(self, sim: Simulation, name: str, isolation: str, topics: list[str]) -> None:
        super().__init__(sim, name, 0)
        self.isolation = isolation
        self.topics = topics

    async def work(self, me: str) -> None:
        rng = self.random
        while not self.sim.is_over():
            consumer = AsyncConsumer(
                bootstrap_servers=self.sim.broker.addresses,
                client_id=self.name,
                isolation_level=self.isolation,
                auto_offset_reset="earliest",
                max_poll_records=rng.choice((3, 500)),
                max_partition_fetch_bytes=rng.choice((200, 1_048_576)),
                **TIMES,
                **{**CONSUMER_TIMES, "session_timeout_ms": 45_000},
            )
            partitions = [
                TopicPartition(topic, index)
                for topic in self.topics
                for index in range(self.sim.partitions[topic])
            ]
            consumer.assign(partitions)
            life = f"{me}:{rng.getrandbits(32):x}"
            try:
                await consumer.start()
                while not self.sim.is_over():
                    polled = await consumer.poll(300)
                    for partition, records in polled.items():
                        self.note(me, "read", life, self.isolation, str(partition),
                                  [(r.offset, r.value) for r in records], False)  # fmt: skip
                    if rng.random() < 0.03:
                        await self._look(me, consumer, rng.choice(partitions))
                    if rng.random() < 0.02:
                        partition = rng.choice(partitions)
                        consumer.seek_to_beginning([partition])
                        self.note(me, "seek", life, str(partition))
            except KafkaError as error:
                await self.failed(me, "reading", error)
            finally:
                await close_consumer(self, me, consumer)

    async def _look(self, me: str, consumer: AsyncConsumer, partition: TopicPartition) -> None:
        try:
            begins = await consumer.beginning_offsets([partition], timeout_ms=1_500)
            ends = await consumer.end_offsets([partition], timeout_ms=1_500)
        except KafkaError as error:
            await self.failed(me, "offsets", error)
        else:
            self.note(me, "ends", self.isolation, str(partition),
                      begins[partition], ends[partition])  # fmt: skip


def _plain(positions: dict[TopicPartition, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in positions.items()}


async def close_consumer(worker: Worker, me: str, consumer: AsyncConsumer) -> None:
    """Close; the errors of the SDK are noted."""
    try:
        await consumer.close()
    except KafkaError as error:
        worker.note(me, "close failed", type(error).__name__)
