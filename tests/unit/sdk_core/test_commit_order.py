"""Goal: a repeated commit never stores an older offset over a later one of the same partition, nor
anything for a partition that was given up since.

Method: the machine against a model coordinator that stores what it is sent, fails, or loses the
answer, while partitions come and go in any order (hypothesis).
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from onceflow.sdk.core.group.commit_order import CommitOrder, PendingCommit
from onceflow.sdk.errors import CommitFailedError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = st.sets(st.sampled_from([A, B]), min_size=1)


class World:
    """A consumer's assignments and its order of commits."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, object] = {A: object(), B: object()}
        self.order = CommitOrder(self.owners.get)

    def commit(self, offset: int, *partitions: TopicPartition) -> PendingCommit:
        return self.order.begin({p: OffsetAndMetadata(offset) for p in partitions})


def test_a_repetition_leaves_out_what_a_later_commit_was_sent_for() -> None:
    world = World()
    older, newer = world.commit(41, A, B), world.commit(45, A)
    assert set(world.order.take(older)) == {A, B}
    assert set(world.order.take(newer)) == {A}
    world.order.stored(newer, [A])
    world.order.end(newer)
    assert set(world.order.take(older)) == {B}
    assert older.replaced_by == {newer}


def test_a_later_call_that_was_not_sent_yet_holds_nothing_up() -> None:
    world = World()
    older = world.commit(41, A)
    world.commit(45, A)
    assert set(world.order.take(older)) == {A}


def test_a_later_commit_stays_the_later_one_after_its_end() -> None:
    world = World()
    older, newer = world.commit(41, A), world.commit(45, A)
    world.order.take(newer)
    failure = CommitFailedError("no")
    world.order.end(newer, failure)
    assert world.order.take(older) == {}
    (later,) = older.replaced_by
    assert (later.is_over, later.failure) == (True, failure)


def test_a_partition_that_came_back_is_another_assignment() -> None:
    world = World()
    commit = world.commit(41, A, B)
    world.owners[A] = object()
    del world.owners[B]
    assert world.order.take(commit) == {}
    assert commit.lost == {A, B}


def test_what_was_never_assigned_may_be_committed() -> None:
    world = World()
    elsewhere = TopicPartition("other", 0)
    assert set(world.order.take(world.commit(3, elsewhere))) == {elsewhere}


def test_nothing_is_remembered_once_all_calls_are_over() -> None:
    world = World()
    for offset in range(100):
        commit = world.commit(offset, A)
        world.order.take(commit)
        world.order.end(commit)
    assert not world.order._last_sent
    assert not world.order._pending


class AnyOrder(RuleBasedStateMachine):
    """Calls, tries, answers and assignments in any order."""

    commits: Bundle[PendingCommit] = Bundle("commits")

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.stored: dict[TopicPartition, int] = {}
        self.next_offset = 0

    @rule(target=commits, partitions=PARTITIONS)
    def commit(self, partitions: set[TopicPartition]) -> PendingCommit:
        """Of partitions that are assigned, as members of a group must."""
        self.next_offset += 1
        return self.world.commit(self.next_offset, *(partitions & self.world.owners.keys()))

    @rule(commit=commits, arrives=st.booleans(), is_answered=st.booleans())
    def try_once(self, commit: PendingCommit, arrives: bool, is_answered: bool) -> None:
        if commit.is_over:
            return
        offsets = self.world.order.take(commit)
        if arrives:
            for partition, offset in offsets.items():
                assert offset.offset >= self.stored.get(partition, -1), "a commit goes back"
                assert partition in self.world.owners, "a commit of what was given up"
                self.stored[partition] = offset.offset
            if is_answered:
                self.world.order.stored(commit, offsets)
        if not commit.left:
            self.world.order.end(commit)

    @rule(commit=commits)
    def give_up(self, commit: PendingCommit) -> None:
        if not commit.is_over:
            self.world.order.end(commit, CommitFailedError("time is up"))

    @rule(partition=st.sampled_from([A, B]))
    def revoke(self, partition: TopicPartition) -> None:
        self.world.owners.pop(partition, None)

    @rule(partition=st.sampled_from([A, B]))
    def assign_anew(self, partition: TopicPartition) -> None:
        """Another member had it meanwhile, and committed more than this one had."""
        if partition not in self.world.owners:
            self.world.owners[partition] = object()
            self.next_offset += 1
            self.stored[partition] = self.next_offset


TestAnyOrder: Any = AnyOrder.TestCase
