"""A runner's outside world over the in-memory cluster of ``processor_fakes``, with a virtual clock.

``Workers`` runs applications to the end of their input: polling an empty input moves the clock, so
that nothing waits, and an idle worker is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from processor_fakes import FakeClients, FakeCluster, FakeConsumer

from onceflow.processors import App
from onceflow.processors.calls import DirectCalls
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.runner import Runner
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import NewTopic, TopicPartition
from onceflow.transactions import SessionConfig, SessionListener, TransactionSession
from onceflow.transactions.colour import run_blocking


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

    def cleanup_policy(self, topic: str) -> str:
        return self.world.configs.get(topic, {}).get("cleanup.policy", "delete")

    def close(self) -> None:
        pass


class FakeChangelogReader:
    """Reads committed entries up to the first open one."""

    def __init__(self, world: World) -> None:
        self.cluster = world.cluster
        self.world = world
        self.positions: dict[TopicPartition, int] = {}

    def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        return {
            tp: (self.world.log_starts.get(tp, 0), len(self.cluster.logs[tp])) for tp in partitions
        }

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)

    def poll(self, timeout_ms: int) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        self.world.now_ms += timeout_ms
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for tp, position in self.positions.items():
            log = self.cluster.logs[tp]
            batch = []
            while position < len(log) and log[position].state != "open":
                if log[position].state == "committed":
                    entry = log[position]
                    batch.append(ConsumerRecord(*tp, position, key=entry.key, value=entry.value))
                position += 1
            self.positions[tp] = position
            if batch:
                found[tp] = batch
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


class TimedClients(FakeClients):
    """Clients whose consumer keeps the world's time."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(world.cluster, partitions)
        self.world = world

    def consumer(self, config, hooks):  # type: ignore[no-untyped-def]
        consumer = TimedConsumer(self.cluster, config, hooks)
        consumer.world = self.world
        self.cluster.generation += 1
        consumer.pending.append((set(self.partitions), False, self.cluster.generation))
        return consumer


class World:
    """Cluster, clock and topics; also the services of every runner in it."""

    def __init__(self, state_dir: Path, *inputs: str, partitions: int = 1) -> None:
        self.cluster = FakeCluster()
        self.state_dir = state_dir
        self.now_ms = 1_000_000
        self.topics = {topic: TopicFacts(partitions, f"id-{topic}") for topic in inputs}
        self.configs: dict[str, dict[str, str]] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.idle_polls_max = 3
        self.runners: list[Runner] = []
        self.owned: Sequence[TopicPartition] | None = None

    # Services

    def admin(self) -> FakeAdmin:
        return FakeAdmin(self)

    def session(self, config: SessionConfig, listener: SessionListener) -> TransactionSession:
        owned = self.owned
        if owned is None:
            owned = [
                TopicPartition(topic, number)
                for topic in config.topics
                for number in range(self.topics[topic].partitions)
            ]
        return TransactionSession(config, listener=listener, clients=TimedClients(self, owned))

    def changelog_reader(self) -> FakeChangelogReader:
        return FakeChangelogReader(self)

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    # Running

    def make(self, app: App) -> Runner:
        app.configure(state_dir=self.state_dir)
        runner = Runner(app.topology(), app.settings, self)
        self.runners.append(runner)
        return runner

    def run(self, app: App) -> None:
        """Run one worker until its input is exhausted."""
        runner = self.make(app)
        run_blocking(runner.run(DirectCalls()))

    def stop_all(self) -> None:
        for runner in self.runners:
            runner.stop()
