"""The assignor of groups whose workers keep copies of state, and what its members exchange.

Each member tells the leader which state it holds; the leader tells each member which state to
follow, and who has which task. The rules of placing are in ``placement``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from onceflow.processors.graph.topology import Topology
from onceflow.processors.placement import Placement, PlacementRules, Seat, place
from onceflow.processors.task import TaskId
from onceflow.sdk import MemberSubscription
from onceflow.sdk.model.partitions import TopicPartition

FACTS_VERSION: Final = 1


class _Told(msgspec.Struct, omit_defaults=True):
    """What a member tells the leader, as MessagePack."""

    v: int = FACTS_VERSION
    host: str = ""
    server: str = ""
    sums: list[tuple[str, int, int]] = []


class _Given(msgspec.Struct, omit_defaults=True):
    """What the leader tells a member, as MessagePack."""

    v: int = FACTS_VERSION
    copies: list[tuple[str, int]] = []
    warmups: list[tuple[str, int]] = []
    servers: dict[str, list[tuple[str, int]]] = {}


class MemberFacts(NamedTuple):
    """What a member tells the leader of itself.

    Attributes:
        host: Its state directory, by the id in it.
        server: Where it answers queries, as ``host:port``; empty for nowhere.
        sums: For each task whose state it has: offsets of the changelogs that it holds, together.
    """

    host: str = ""
    server: str = ""
    sums: Mapping[TaskId, int] = {}


class Given(NamedTuple):
    """The leader's data for a member.

    Attributes:
        number: Rises with each assignment.
        copies: Tasks whose state is to be followed.
        warmups: Those of them that this member is to take over.
        servers: Where the owner of a task answers queries, by task.
    """

    number: int = 0
    copies: tuple[TaskId, ...] = ()
    warmups: tuple[TaskId, ...] = ()
    servers: Mapping[TaskId, str] = {}


class TaskAssignor:
    """Divides tasks by where their state is, cooperatively (KIP-429, KIP-441).

    The group member calls it in a thread of its own; the worker reads ``given`` and writes
    ``facts`` as wholes.

    Args:
        topology: The application.
        rules: How copies are placed.
        facts: What the member tells, at first.

    Attributes:
        facts: What the member tells with its next JoinGroup.
        given: What the leader said last.
    """

    name = "onceflow-tasks"
    cooperative = True
    sends_owned_in_user_data = False

    def __init__(self, topology: Topology, rules: PlacementRules, facts: MemberFacts) -> None:
        self._part_of = {
            topic: part.name for part in topology.sub_topologies for topic in part.input_topics
        }
        self._stateful = {part.name for part in topology.sub_topologies if part.states}
        self._rules = rules
        self.facts = facts
        self.given: Given = Given()
        self._reason: str | None = None
        self._lock = threading.Lock()

    def rejoin(self, reason: str) -> None:
        """Ask for a rebalance, because this member has something new to tell.

        Args:
            reason: Shown by the coordinator's log.
        """
        with self._lock:
            self._reason = reason

    # --- the group member's side ------------------------------------------------------------

    def rejoin_reason(self) -> str | None:
        """Why the group is to be divided again, once."""
        with self._lock:
            reason, self._reason = self._reason, None
        return reason

    def subscription_user_data(self) -> bytes:
        """What this member tells the leader."""
        host, server, sums = self.facts
        told = _Told(
            FACTS_VERSION, host, server, [(*task, offsets) for task, offsets in sums.items()]
        )
        return msgspec.msgpack.encode(told)

    def on_assignment(self, user_data: bytes) -> None:
        """Take what the leader tells; a leader of another version may tell nothing."""
        try:
            given = msgspec.msgpack.decode(user_data, type=_Given)
        except (msgspec.DecodeError, ValueError):
            given = _Given()
        self.given = Given(
            self.given.number + 1,
            tuple(TaskId(*task) for task in given.copies),
            tuple(TaskId(*task) for task in given.warmups),
            {TaskId(*task): server for server, tasks in given.servers.items() for task in tasks},
        )

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        """Divide all partitions of all subscribed topics.

        Args:
            partition_counts: By topic.
            members: Who takes part.

        Returns:
            Partitions by member id.
        """
        return self.assign_informed(partition_counts, members)[0]

    def assign_informed(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> tuple[dict[str, list[TopicPartition]], dict[str, bytes]]:
        """Divide all partitions, and tell each member what to follow and who answers queries.

        Args:
            partition_counts: By topic.
            members: The members, with the data that they sent.

        Returns:
            Partitions by member id, and the data for each.
        """
        topics: dict[str, list[str]] = {}
        for topic in partition_counts:
            topics.setdefault(self._part(topic), []).append(topic)
        tasks = {
            TaskId(part, number): part in self._stateful
            for part, found in topics.items()
            for number in range(max(partition_counts[topic] for topic in found))
        }
        told = {member.member_id: _told_by(member) for member in members}
        placement = place(
            tasks, [self._seat(each, told[each.member_id]) for each in members], self._rules
        )
        reads = {member.member_id: member.topics for member in members}
        divided = {
            member_id: sorted(
                TopicPartition(topic, task.partition)
                for task in assigned
                for topic in topics[task.part]
                if task.partition < partition_counts[topic] and topic in reads[member_id]
            )
            for member_id, assigned in placement.active.items()
        }
        return divided, _given(placement, told)

    def _part(self, topic: str) -> str:
        """The sub-topology of a topic; a topic of another version of the application is its own."""
        return self._part_of.get(topic, topic)

    def _seat(self, member: MemberSubscription, told: _Told) -> Seat:
        claims = {TaskId(self._part(tp.topic), tp.partition) for tp in member.owned_partitions}
        return Seat(
            member.member_id,
            member.sort_key,
            frozenset(self._part(topic) for topic in member.topics),
            frozenset(claims),
            member.generation_id,
            told.host,
            {TaskId(part, number): offsets for part, number, offsets in told.sums},
        )


def _told_by(member: MemberSubscription) -> _Told:
    try:
        return msgspec.msgpack.decode(member.user_data, type=_Told)
    except (msgspec.DecodeError, ValueError):
        return _Told()  # One that tells nothing, or in another way.


def _given(placement: Placement, told: Mapping[str, _Told]) -> dict[str, bytes]:
    servers: dict[str, list[tuple[str, int]]] = {}
    for member_id, tasks in placement.active.items():
        server = told[member_id].server
        if server:
            servers.setdefault(server, []).extend((task.part, task.partition) for task in tasks)
    return {
        member_id: msgspec.msgpack.encode(
            _Given(
                FACTS_VERSION,
                [(task.part, task.partition) for task in placement.copies[member_id]],
                [(task.part, task.partition) for task in placement.warmups[member_id]],
                servers,
            )
        )
        for member_id in placement.active
    }
