"""A worker's outside world over the in-memory cluster of ``processor_fakes``, with a virtual clock.

``World`` runs applications to the end of their input: polling an empty input moves the clock, so
that nothing waits, and an idle worker is stopped.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from processor_fakes import FakeClients, FakeCluster, FakeConsumer, FakePlainProducer

from onceflow.processors import App, StoreKind
from onceflow.processors.calls import Calls, InPlace
from onceflow.processors.graph.topology import Topology
from onceflow.processors.ledger.at_least_once import AtLeastOnceProducer
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.ledger.sink import SinkLedger
from onceflow.processors.ledger.transaction import TransactionLedger
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.stores.lmdb import open_map
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.unit import Unit
from onceflow.processors.worker.loop import Worker
from onceflow.sdk.model.acl_enums import AclResourceType
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import NewTopic, OffsetAndMetadata, TopicPartition
from onceflow.transactions import SessionConfig, TransactionSession
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.listener import SessionListener
from onceflow.transactions.sinks.session_core import SinkSessionCore


class FakeAdmin:
    """Topics of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        return {topic: self.world.topics[topic] for topic in topics if topic in self.world.topics}

    def create(self, topics: Sequence[NewTopic]) -> None:
        for topic in topics:
            facts = TopicFacts(max(1, topic.partitions), f"id-{len(self.world.topics)}")
            self.world.topics[topic.name] = facts
            self.world.configs[topic.name] = dict(topic.configs or {})

    def configs(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {topic: self.world.configs.get(topic, {}) for topic in topics}

    def purge(self, before: Mapping[TopicPartition, int]) -> None:
        for partition, offset in before.items():
            assert offset <= self.world.cluster.committed[partition].offset
            self.world.log_starts[partition] = offset

    def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        return FakeChangelogReader(self.world).bounds(partitions, committed=True)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return {tp: entry.offset for tp, entry in self.world.cluster.committed.items()}

    def allowed(self, kind: AclResourceType, name: str) -> None:
        """A world without an authorizer."""

    def broker_count(self) -> int:
        return self.world.brokers

    def close(self) -> None:
        pass


class FakeChangelogReader:
    """Reads committed entries up to the first open one."""

    records_max = 1_000_000

    def __init__(self, world: World) -> None:
        self.cluster = world.cluster
        self.world = world
        self.positions: dict[TopicPartition, int] = {}

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        return {
            tp: (self.world.log_starts.get(tp, 0), self._end(tp, committed)) for tp in partitions
        }

    def _end(self, partition: TopicPartition, committed: bool) -> int:
        log = self.cluster.logs[partition]
        open_ones = (n for n, entry in enumerate(log) if committed and entry.state == "open")
        return next(open_ones, len(log))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)

    def poll(self, timeout_ms: int) -> Mapping[TopicPartition, RecordColumns]:
        found: dict[TopicPartition, RecordColumns] = {}
        for tp, position in self.positions.items():
            log = self.cluster.logs[tp]
            batch = []
            while position < len(log) and log[position].state != "open":
                if len(batch) == self.records_max:
                    break
                if log[position].state == "committed":
                    entry = log[position]
                    batch.append(ConsumerRecord(*tp, position, key=entry.key, value=entry.value))
                position += 1
            self.positions[tp] = position
            if batch:
                found[tp] = RecordColumns.from_records(batch)
        if not found:
            self.world.now_ms += timeout_ms
        return found

    def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    def close(self) -> None:
        pass


class TimedConsumer(FakeConsumer):
    """Waiting moves the clock; a worker that waits for input in vain is stopped."""

    world: World
    idle_polls = 0

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        found = super().poll(timeout_ms, max_records)
        if found:
            self.idle_polls = 0
        else:
            self.world.now_ms += max(1, timeout_ms)
            self.idle_polls += 1
            if self.idle_polls > self.world.idle_polls_max and not self.paused:
                self.world.stop_all()
        return found

    def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        return super().position(partition)

    def commit_async(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What a session with a sink shows to tools."""
        for partition, offset in offsets.items():
            self.cluster.committed[partition] = OffsetAndMetadata(offset)

    def topic_id(self, partition: TopicPartition) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_DNS, partition.topic)


class TimedClients(FakeClients):
    """Clients whose consumer keeps the world's time."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(world.cluster, partitions)
        self.world = world

    def topic_ids(self, config: SessionConfig, topics: Sequence[str]) -> dict[str, str]:
        return {topic: str(uuid.uuid5(uuid.NAMESPACE_DNS, topic)) for topic in topics}

    def producer(self, config):  # type: ignore[no-untyped-def]
        if not self.world.repeats:
            return super().producer(config)
        plain = FakePlainProducer(self.cluster)
        return AtLeastOnceProducer(plain, lambda: self.latest)

    def consumer(self, config, hooks):  # type: ignore[no-untyped-def]
        self.latest = consumer = TimedConsumer(self.cluster, config, hooks)
        consumer.world = self.world
        self.cluster.generation += 1
        consumer.pending.append((set(self.partitions), False, self.cluster.generation))
        return consumer


class World:
    """Cluster, clock and topics; also the services of every worker in it."""

    def __init__(self, state_dir: Path, *inputs: str, partitions: int = 1) -> None:
        self.cluster = FakeCluster()
        self.state_dir = state_dir
        self.now_ms = 1_000_000
        self.topics = {topic: TopicFacts(partitions, f"id-{topic}") for topic in inputs}
        self.configs: dict[str, dict[str, str]] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.brokers = 1
        self.idle_polls_max = 3
        self.workers: list[Worker] = []
        self.owned: Sequence[TopicPartition] | None = None
        self.repeats = False

    # Services

    def admin(self) -> FakeAdmin:
        return FakeAdmin(self)

    def clients(self, config: SessionConfig) -> TimedClients:
        owned = self.owned
        if owned is None:
            owned = [
                TopicPartition(topic, number)
                for topic in config.topics
                for number in range(self.topics[topic].partitions)
            ]
        return TimedClients(self, owned)

    def sink_ledger(
        self,
        config: SessionConfig,
        owner: LedgerOwner,
        unit: Unit,
        calls: Calls,
        topology: Topology,
    ) -> Ledger:
        sink, clients = topology.sink, self.clients(config)

        def make(listener: SessionListener) -> SinkSessionCore:
            core = SinkSessionCore(
                config,
                clients,  # type: ignore[arg-type]
                sink.copy(),  # type: ignore[union-attr]
                self.monotonic_s,
                listener,
            )
            run_blocking(core.start())
            return core

        return SinkLedger(
            make,
            lambda: FakePlainProducer(self.cluster),
            owner,
            unit.lanes,
            calls,
            topology.dead_letter_topics,
            config.revoke_budget_ms,
        )

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        clients = self.clients(config)
        return TransactionLedger(
            lambda listener: TransactionSession(config, listener=listener, clients=clients),
            owner,
            unit.lanes,
            calls,
            config.revoke_budget_ms,
        )

    def changelog_reader(self) -> FakeChangelogReader:
        return FakeChangelogReader(self)

    def open_map(self, kind: StoreKind, directory: Path, tombstone_age_ms: int) -> ByteMap | None:
        if kind is StoreKind.MEMORY:
            return MemoryMap()
        return open_map(directory, self.now_ms, tombstone_age_ms)

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    def sleep(self, delay_s: float) -> None:
        self.now_ms += int(delay_s * 1000)

    def wake(self) -> None:
        pass

    # Running

    def make(self, app: App, *, until_end: bool = False) -> Worker:
        app.configure(state_dir=self.state_dir)
        self.repeats = app.settings.repeats
        worker = Worker(app.topology(), app.settings, self, until_end=until_end)
        self.workers.append(worker)
        return worker

    def run(self, app: App) -> None:
        """Run one worker until its input is exhausted."""
        run_blocking(self.make(app).run(InPlace()))

    def make_running(self, app: App) -> None:
        """As ``run``, for an application that may call its own ``stop``."""
        worker = app._worker = self.make(app)
        run_blocking(worker.run(InPlace()))

    def stop_all(self) -> None:
        for worker in self.workers:
            worker.stop()
