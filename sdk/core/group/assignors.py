"""Assignors: how the leader of a group assigns partitions to its members.

Each assignor is a pure function of the partition counts and the members' subscriptions.
``consumer_protocol`` encodes both, and ``classic_member`` decides when to rebalance. The names are
Kafka's, so that groups with other clients agree on a protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from onceflow.sdk.model.partitions import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription, as it sent it to the leader.

    Attributes:
        member_id: The member's id.
        topics: Topics it wants to read.
        owned_partitions: Partitions it held when it joined (KIP-429).
        generation_id: Generation in which it held them, -1 if unknown (KIP-792).
        group_instance_id: Static member id or None; orders members stably (KIP-345).
        user_data: Data of its assignor for the leader, see ``InformedAssignor``.
    """

    member_id: str
    topics: frozenset[str]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    group_instance_id: str | None = None
    user_data: bytes = b""

    @property
    def sort_key(self) -> tuple[bool, str]:
        """Static members first, by instance id, so that a restart does not change the order."""
        if self.group_instance_id is not None:
            return False, self.group_instance_id
        return True, self.member_id


@runtime_checkable
class Assignor(Protocol):
    """A way to assign partitions to members.

    Attributes:
        name: Protocol name as sent in JoinGroup.
        cooperative: Whether members keep their partitions during a rebalance (KIP-429).
        sends_owned_in_user_data: Whether the owned partitions also travel in ``user_data``, as
            Kafka's eager sticky assignor expects.
    """

    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool: ...

    @property
    def sends_owned_in_user_data(self) -> bool: ...

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign all partitions of all subscribed topics.

        Args:
            partition_counts: Number of partitions of each topic that exists.
            members: Subscriptions of all members.

        Returns:
            Partitions by member id, with an entry for every member.
        """
        ...


@runtime_checkable
class InformedAssignor(Assignor, Protocol):
    """An assignor that adds data to subscriptions and to assignments.

    The counterpart of ``subscriptionUserData`` and ``onAssignment`` of Kafka's
    ``ConsumerPartitionAssignor``. All methods are called by the machine of the group member, so
    they must return at once.
    """

    def subscription_user_data(self) -> bytes:
        """Return this member's data for the leader, which each JoinGroup carries."""
        ...

    def assign_informed(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> tuple[Assignment, Mapping[str, bytes]]:
        """Assign all partitions; see ``assign``.

        Args:
            partition_counts: Number of partitions of each topic that exists.
            members: Subscriptions of all members, with their user data.

        Returns:
            Partitions by member id, and data for members by member id.
        """
        ...

    def on_assignment(self, user_data: bytes) -> None:
        """Take the leader's data for this member, before its partitions.

        Args:
            user_data: Empty if the leader gave none.
        """
        ...

    def rejoin_reason(self) -> str | None:
        """Return why a new assignment is needed, once; None if none is."""
        ...


class RangeAssignor:
    """Assigns consecutive partitions of each topic; members get the same numbers of each topic."""

    name = "range"
    cooperative = False
    sends_owned_in_user_data = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        ordered = sorted(members, key=lambda member: member.sort_key)
        assignment: Assignment = {member.member_id: [] for member in ordered}
        for topic in sorted(partition_counts):
            readers = [member.member_id for member in ordered if topic in member.topics]
            if not readers:
                continue
            share, larger = divmod(partition_counts[topic], len(readers))
            start = 0
            for index, member_id in enumerate(readers):
                end = start + share + (index < larger)
                assignment[member_id] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor:
    """Assigns all partitions in order, one by one to each member in turn."""

    name = "roundrobin"
    cooperative = False
    sends_owned_in_user_data = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        ordered = sorted(members, key=lambda member: member.sort_key)
        assignment: Assignment = {member.member_id: [] for member in ordered}
        turn = 0
        for partition in _wanted_partitions(partition_counts, ordered):
            while partition.topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assignment[ordered[turn % len(ordered)].member_id].append(partition)
            turn += 1
        return assignment


class StickyAssignor:
    """Balances with as few moves as possible; all members stop reading meanwhile."""

    name = "sticky"
    cooperative = False
    sends_owned_in_user_data = True

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        return _StickyPlan(partition_counts, members).solve()


class CooperativeStickyAssignor:
    """Assigns as StickyAssignor, in two rebalances in which members keep reading (KIP-429).

    A partition that changes its owner has none after the first rebalance. Its former owner gives it
    up and rejoins, and the second rebalance assigns it.
    """

    name = "cooperative-sticky"
    cooperative = True
    sends_owned_in_user_data = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign all partitions of all subscribed topics.

        Args:
            partition_counts: By topic.
            members: Subscriptions of all members, with the partitions that they hold.

        Returns:
            Partitions by member id, without those that a former owner still has to give up.
        """
        plan = _StickyPlan(partition_counts, members)
        assignment = plan.solve()
        # An outdated claim counts too: its member may still read the partition, and must stop
        # before the new owner starts.
        claimants: dict[TopicPartition, set[str]] = {}
        for member in members:
            for partition in member.owned_partitions:
                claimants.setdefault(partition, set()).add(member.member_id)
        return {
            member_id: [
                partition
                for partition in partitions
                if plan.former_owner.get(partition) == member_id
                or not claimants.get(partition, set()) - {member_id}
            ]
            for member_id, partitions in assignment.items()
        }


def _wanted_partitions(
    partition_counts: Mapping[str, int], members: Iterable[MemberSubscription]
) -> list[TopicPartition]:
    """Return all partitions of topics that exist and that a member reads, in order."""
    wanted = frozenset[str]().union(*(member.topics for member in members))
    return [
        TopicPartition(topic, partition)
        for topic in sorted(wanted & partition_counts.keys())
        for partition in range(partition_counts[topic])
    ]


class _StickyPlan:
    """Keeps valid owners, assigns the rest, then moves partitions until loads are even."""

    def __init__(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> None:
        self._members = {
            member.member_id: member for member in sorted(members, key=lambda m: m.sort_key)
        }
        self._partitions = _wanted_partitions(partition_counts, members)
        self._owned: dict[str, list[TopicPartition]] = {
            member_id: [] for member_id in self._members
        }
        self.former_owner = _valid_owners(self._members.values(), set(self._partitions))

    def solve(self) -> Assignment:
        """Run the three steps."""
        unassigned = []
        for partition in self._partitions:
            owner = self.former_owner.get(partition)
            if owner is None:
                unassigned.append(partition)
            else:
                self._owned[owner].append(partition)
        self._hand_out(unassigned)
        while self._improve():
            pass
        return {member_id: sorted(partitions) for member_id, partitions in self._owned.items()}

    def _hand_out(self, unassigned: list[TopicPartition]) -> None:
        readers = {
            topic: [
                member_id for member_id, member in self._members.items() if topic in member.topics
            ]
            for topic in {partition.topic for partition in unassigned}
        }
        # Topics with few readers first: their partitions fit to the fewest members.
        for partition in sorted(unassigned, key=lambda p: (len(readers[p.topic]), p)):
            least = min(readers[partition.topic], key=lambda name: len(self._owned[name]))
            self._owned[least].append(partition)

    def _improve(self) -> bool:
        """Move one partition from a fuller to an emptier member, over other members if needed.

        Each move lowers the sum of squared counts by at least two, so the loop ends. If there is no
        such move, no assignment is more even (there would be an augmenting path).
        """
        by_load = sorted(self._owned, key=lambda name: len(self._owned[name]), reverse=True)
        lightest = len(self._owned[by_load[-1]]) if by_load else 0
        for giver in by_load:
            if len(self._owned[giver]) - lightest < 2:
                return False
            path = self._path_from(giver)
            if path is not None:
                for source, partition, target in path:
                    self._owned[source].remove(partition)
                    self._owned[target].append(partition)
                return True
        return False

    def _path_from(self, giver: str) -> list[tuple[str, TopicPartition, str]] | None:
        """Return the shortest chain of moves to a member with at least two partitions fewer."""
        limit = len(self._owned[giver]) - 2
        came_from: dict[str, tuple[str, TopicPartition]] = {}
        queue = deque([giver])
        while queue:
            source = queue.popleft()
            movable = self._movable(source)
            reachable = sorted(
                (
                    name
                    for name in self._owned
                    if name != giver
                    and name not in came_from
                    and not movable.keys().isdisjoint(self._members[name].topics)
                ),
                key=lambda name: len(self._owned[name]),
            )
            for target in reachable:
                came_from[target] = (source, self._choose(movable, target))
                if len(self._owned[target]) <= limit:
                    return _unwind(came_from, giver, target)
                queue.append(target)
        return None

    def _movable(self, member_id: str) -> dict[str, TopicPartition]:
        """Return a member's best partition to give away, by topic: one that it did not hold."""
        best: dict[str, TopicPartition] = {}
        for partition in self._owned[member_id]:
            known = best.get(partition.topic)
            if known is None or self.former_owner.get(known) == member_id:
                best[partition.topic] = partition
        return best

    def _choose(self, movable: Mapping[str, TopicPartition], target: str) -> TopicPartition:
        topics = self._members[target].topics
        candidates = [partition for topic, partition in movable.items() if topic in topics]
        # Prefer a partition that the target held before; else the last in order.
        return max(candidates, key=lambda p: (self.former_owner.get(p) == target, p))


def _unwind(
    came_from: Mapping[str, tuple[str, TopicPartition]], start: str, end: str
) -> list[tuple[str, TopicPartition, str]]:
    path = []
    while end != start:
        source, partition = came_from[end]
        path.append((source, partition, end))
        end = source
    return path


def _valid_owners(
    members: Iterable[MemberSubscription], wanted: set[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return which member may keep which partition.

    Of several claims, that of the latest generation counts (KIP-792). If two members claim a
    partition for the same generation, neither may keep it.
    """
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in member.owned_partitions:
            if partition not in wanted or partition.topic not in member.topics:
                continue
            generation, _ = best.get(partition, (-2, None))
            if member.generation_id > generation:
                best[partition] = (member.generation_id, member.member_id)
            elif member.generation_id == generation:
                best[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in best.items() if owner is not None}


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}
"""Built-in assignors by protocol name."""
