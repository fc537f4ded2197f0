"""Goal: committed offsets are what a simple model of the log says, whatever the order of events.

Method: plain commits, commits in transactions that end either way, deletions, expiry, deaths right
after a write, and restarts, at random; after each step every partition of every group is compared
with the model, stable (trap 36) and not. Among the rules: pending until the marker, a later plain
commit beats an earlier pending one (trap 38), deleted is deleted for both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from coordinator_bench import Bench, FakeTopics, ProcessDied

from onceflow.broker_lite.coordinators.offset_commits import Committer, OffsetToCommit
from onceflow.broker_lite.coordinators.settings import GroupSettings, TransactionSettings
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

GROUPS = ("g1", "g2")
PARTITIONS = tuple(TopicPartition(topic, index) for topic in "ab" for index in range(2))
PRODUCERS = ("t1", "t2", "t3")
RETENTION_MS = 3_600_000

Key = tuple[str, TopicPartition]


@dataclass
class Model:
    """The log as it matters: what was committed when, and what still waits for a marker."""

    step: int = 0
    committed: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    pending: dict[str, dict[Key, tuple[int, int, int]]] = field(default_factory=dict)

    def commit(self, key: Key, offset: int, now_ms: int) -> None:
        self.step += 1
        self._keep(key, (self.step, offset, now_ms))

    def _keep(self, key: Key, entry: tuple[int, int, int]) -> None:
        old = self.committed.get(key)
        if old is None or old[0] <= entry[0]:
            self.committed[key] = entry

    def commit_pending(self, producer: str, key: Key, offset: int, now_ms: int) -> None:
        self.step += 1
        self.pending.setdefault(producer, {})[key] = (self.step, offset, now_ms)

    def end(self, producer: str, committed: bool) -> None:
        for key, entry in self.pending.pop(producer, {}).items():
            if committed:
                self._keep(key, entry)

    def forget(self, key: Key) -> None:
        self.committed.pop(key, None)
        for entries in self.pending.values():
            entries.pop(key, None)

    def is_unstable(self, key: Key) -> bool:
        return any(key in entries for entries in self.pending.values())

    def expire(self, now_ms: int) -> None:
        for key, (_, _, at_ms) in list(self.committed.items()):
            if at_ms + RETENTION_MS <= now_ms and not self.is_unstable(key):
                del self.committed[key]


class World:
    """The coordinators beside the model."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(
            topics=FakeTopics(a=2, b=2),
            group_settings=GroupSettings(
                offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=60_000
            ),
            transaction_settings=TransactionSettings(max_timeout_ms=2**31 - 1),
            seed=seed,
        )
        self.model = Model()
        self.identities: dict[str, tuple[int, int]] = {}

    def step(self) -> None:
        rng, bench, model = self.random, self.bench, self.model
        action = rng.random()
        group, partition = rng.choice(GROUPS), rng.choice(PARTITIONS)
        key, offset = (group, partition), rng.randint(0, 999)
        offsets = [OffsetToCommit(partition, offset)]
        if action < 0.35:
            codes = bench.groups.offsets.commit(Committer(group), offsets, bench.now_ms)
            assert codes == {partition: ErrorCode.NONE}
            model.commit(key, offset, bench.now_ms)
        elif action < 0.60:
            producer = rng.choice(PRODUCERS)
            identity = self._identity(producer)
            index = TopicPartition(OFFSETS_TOPIC, bench.groups.partition_for(group))
            assert bench.add(*identity, index, transactional_id=producer) is ErrorCode.NONE
            bench.groups.offsets.commit_transactional(
                Committer(group), *identity, offsets, bench.now_ms
            )
            model.commit_pending(producer, key, offset, bench.now_ms)
        elif action < 0.78:
            self._end(rng.choice(PRODUCERS), committed=rng.random() < 0.6)
        elif action < 0.86:
            outcome = bench.groups.admin.delete_offsets(group, [partition], bench.now_ms)
            if not isinstance(outcome, ErrorCode):
                model.forget(key)
        elif action < 0.89:
            if bench.groups.admin.delete(group, bench.now_ms) is ErrorCode.NONE:
                for each in PARTITIONS:
                    model.forget((group, each))
        elif action < 0.94:
            bench.restart()
        else:
            bench.pass_ms(rng.choice([60_000, 20 * 60_000, RETENTION_MS]))
            model.expire(bench.now_ms)

    def _identity(self, producer: str) -> tuple[int, int]:
        if producer not in self.identities:
            self.identities[producer] = self.bench.identity(producer, timeout_ms=2**31 - 1)
        return self.identities[producer]

    def _end(self, producer: str, *, committed: bool) -> None:
        if producer in self.model.pending:
            identity = self._identity(producer)
            grant = self.bench.end(*identity, committed, transactional_id=producer)
            assert grant.error_code is ErrorCode.NONE
            self.model.end(producer, committed)

    def check(self) -> None:
        fetch = self.bench.groups.offsets.fetch
        for group in GROUPS:
            plain = fetch(group, PARTITIONS, require_stable=False)
            stable = fetch(group, PARTITIONS, require_stable=True)
            for partition in PARTITIONS:
                entry = self.model.committed.get((group, partition))
                assert plain[partition].committed_offset == (-1 if entry is None else entry[1])
                unstable = self.model.is_unstable((group, partition))
                code = stable[partition].error_code
                assert (code is ErrorCode.UNSTABLE_OFFSET_COMMIT) is unstable


@pytest.mark.parametrize("seed", range(25))
def test_offsets_are_those_of_the_model_traps_36_38(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
        world.check()


@pytest.mark.parametrize("seed", range(10))
def test_death_after_a_plain_commit_keeps_it(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()
        bench = world.bench
        partition, offset = world.random.choice(PARTITIONS), world.random.randint(0, 999)
        bench.disk.die_after = bench.disk.writes + 1
        with pytest.raises(ProcessDied):
            bench.groups.offsets.commit(
                Committer("g1"), [OffsetToCommit(partition, offset)], bench.now_ms
            )
        world.model.commit(("g1", partition), offset, bench.now_ms)
        bench.restart()
        world.check()
