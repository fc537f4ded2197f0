"""The coordinator's assignors ``range`` and ``uniform`` for consumer groups (KIP-848).

``range`` gives each member a run of neighbouring partitions of each topic, the same numbers for
topics with the same readers, so that joined topics meet. ``uniform`` balances over all topics and
moves no more than it has to. These are pure functions; the same input gives the same assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.member import Assignment

Partition: TypeAlias = tuple[UUID, int]
Division: TypeAlias = dict[str, dict[UUID, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class Reader:
    """A member as an assignor sees it.

    Attributes:
        member_id: Its id.
        instance_id: Name of a static member; it decides the order, so that a restart moves nothing.
        topics: Topics that it subscribes to.
        has: Its current target assignment.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    has: Assignment

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, each by name."""
        if self.instance_id is not None:
            return (False, self.instance_id)
        return (True, self.member_id)


def assign_range(readers: Sequence[Reader], counts: Mapping[UUID, int]) -> Division:
    """Assign runs of neighbouring partitions of each topic.

    Args:
        readers: Members of the group.
        counts: Partitions of each topic that exists.

    Returns:
        A target for every member.
    """
    found: dict[str, dict[UUID, frozenset[int]]] = {reader.member_id: {} for reader in readers}
    in_order = sorted(readers, key=lambda reader: reader.order)
    for topic_id in sorted(counts):
        of_topic = [reader for reader in in_order if topic_id in reader.topics]
        if not of_topic:
            continue
        share, extra = divmod(counts[topic_id], len(of_topic))
        start = 0
        for position, reader in enumerate(of_topic):
            end = start + share + (position < extra)
            if end > start:
                found[reader.member_id][topic_id] = frozenset(range(start, end))
            start = end
    return found


def assign_uniform(readers: Sequence[Reader], counts: Mapping[UUID, int]) -> Division:
    """Assign as evenly as the subscriptions allow, with as few moves as possible.

    Args:
        readers: Members of the group.
        counts: Partitions of each topic that exists.

    Returns:
        A target for every member.
    """
    plan = _UniformPlan(readers, counts)
    plan.keep()
    plan.hand_out()
    plan.balance()
    return plan.result()


class _UniformPlan:
    def __init__(self, readers: Sequence[Reader], counts: Mapping[UUID, int]) -> None:
        self._readers = sorted(readers, key=lambda reader: reader.order)
        self._counts = counts
        self._rank = {reader.member_id: rank for rank, reader in enumerate(self._readers)}
        self._held: dict[str, set[Partition]] = {r.member_id: set() for r in self._readers}
        self._owner: dict[Partition, str] = {}
        subscribed = {topic_id for reader in self._readers for topic_id in reader.topics}
        self._topics = sorted(subscribed & counts.keys())
        self._of_topic = {
            topic_id: [r.member_id for r in self._readers if topic_id in r.topics]
            for topic_id in self._topics
        }
        known = [reader.topics & counts.keys() for reader in self._readers]
        self._alike = all(topics == known[0] for topics in known)
        self._total = sum(counts[topic_id] for topic_id in self._topics)

    def _give(self, partition: Partition, member_id: str) -> None:
        self._owner[partition] = member_id
        self._held[member_id].add(partition)

    def keep(self) -> None:
        """Let members keep what they have, as far as an even assignment allows it."""
        least = most = self._total
        extra = 0
        if self._alike and self._readers:
            least, extra = divmod(self._total, len(self._readers))
            most = least + (extra > 0)
        for reader in self._readers:
            had = sorted(
                (topic_id, partition)
                for topic_id, partitions in reader.has.items()
                if topic_id in reader.topics and topic_id in self._counts
                for partition in partitions
                if partition < self._counts[topic_id]
            )
            had = [partition for partition in had if partition not in self._owner]
            room = most
            if self._alike and most > least:
                # Only `extra` members may have one partition more; members that have it keep it.
                room = most if extra > 0 and len(had) >= most else least
                extra -= room > least
            for partition in had[:room]:
                self._give(partition, reader.member_id)

    def hand_out(self) -> None:
        """Assign partitions without an owner to the member with the fewest, hardest ones first."""
        open_topics: dict[UUID, list[Partition]] = {}
        for topic_id in self._topics:
            free = [
                (topic_id, partition)
                for partition in range(self._counts[topic_id])
                if (topic_id, partition) not in self._owner
            ]
            if free:
                open_topics[topic_id] = free
        if self._alike:
            everybody = [reader.member_id for reader in self._readers]
            self._hand_out_to(everybody, [p for free in open_topics.values() for p in free])
            return
        for topic_id in sorted(open_topics, key=lambda t: (len(self._of_topic[t]), t)):
            self._hand_out_to(self._of_topic[topic_id], open_topics[topic_id])

    def _hand_out_to(self, member_ids: Sequence[str], free: Sequence[Partition]) -> None:
        heap = [(len(self._held[member_id]), self._rank[member_id]) for member_id in member_ids]
        heapq.heapify(heap)
        for partition in free:
            count, rank = heap[0]
            self._give(partition, self._readers[rank].member_id)
            heapq.heapreplace(heap, (count + 1, rank))

    def balance(self) -> None:
        """With unlike subscriptions, move single partitions while that makes it more even.

        Each move lowers the sum of the squares of the counts, so it ends; the bound is for groups
        in which that would take too long.
        """
        if self._alike:
            return
        for _ in range(self._total + 1):
            moved = False
            for topic_id in self._topics:
                moved = self._balance_topic(topic_id) or moved
            if not moved:
                return

    def _balance_topic(self, topic_id: UUID) -> bool:
        member_ids = self._of_topic[topic_id]
        moved = False
        for partition in range(self._counts[topic_id]):
            owner = self._owner[topic_id, partition]
            poorest = min(member_ids, key=lambda m: (len(self._held[m]), self._rank[m]))
            if len(self._held[owner]) > len(self._held[poorest]) + 1:
                self._held[owner].discard((topic_id, partition))
                self._give((topic_id, partition), poorest)
                moved = True
        return moved

    def result(self) -> Division:
        """The targets."""
        found: Division = {}
        for reader in self._readers:
            by_topic: dict[UUID, set[int]] = {}
            for topic_id, partition in self._held[reader.member_id]:
                by_topic.setdefault(topic_id, set()).add(partition)
            found[reader.member_id] = {t: frozenset(by_topic[t]) for t in sorted(by_topic)}
        return found


AssignFunction: TypeAlias = Callable[[Sequence[Reader], Mapping[UUID, int]], Division]

SERVER_ASSIGNORS: Mapping[str, AssignFunction] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)
"""By the name that members and ``group.consumer.assignors`` use."""
