"""A member of a consumer group as a value: its subscription, its partitions, and its epochs.

It is immutable: a change makes another value, which takes effect when its record is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from onceflow.broker_lite.coordinators.classic.group import GroupProtocol
from onceflow.broker_lite.coordinators.consumer.states import MemberState

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id; no topic without partitions."""

Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which the member got it (KIP-1251)."""

NOTHING: Owned = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """Fields that only a member of the classic protocol has.

    Attributes:
        session_timeout_ms: How long it may be silent.
        protocols: Strategies that it offers, with its subscription for each.
    """

    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member.

    Attributes:
        member_id: Made by the client from version 1 on, else by the coordinator.
        instance_id: Name of a static member, or None.
        rack_id: Where it runs, or None.
        client_id: As the client named itself.
        client_host: Address of the client, with a leading slash.
        topics: Topics subscribed to by name, in order.
        regex: Pattern subscribed to, empty for none.
        rebalance_timeout_ms: How long it may take to give partitions up.
        server_assignor: Assignor that it prefers, or None.
        classic: Set for a member that speaks the classic protocol.
        member_epoch: Epoch that it has reached; -2 while a static member is away.
        previous_epoch: Its last epoch; after a lost answer, the next heartbeat carries it.
        state: How far it is on the way to its target.
        assigned: Partitions that it owns and keeps.
        revoking: Partitions that it owns and has to give up.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSide | None = None
    member_epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)

    @property
    def subscription(self) -> tuple[object, ...]:
        """The fields in the record of its subscription."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topics,
            self.regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    @property
    def standing(self) -> tuple[object, ...]:
        """The fields in the record of its current assignment."""
        return (
            self.member_epoch,
            self.previous_epoch,
            self.state,
            self.assigned,
            self.revoking,
        )

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """True when it owns the assignment of that epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def may_commit(self, epoch: int, topic_id: UUID | None, partition: int) -> bool:
        """Whether it may commit an offset of a partition under ``epoch``.

        An older epoch is valid for a partition that it has owned since then (KIP-1251): the answer
        with the newer epoch may not have arrived yet.
        """
        if epoch == self.member_epoch:
            return True
        if self.classic is not None or not 0 < epoch < self.member_epoch or topic_id is None:
            return False
        since = self.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = self.revoking.get(topic_id, {}).get(partition)
        return since is not None and epoch >= since


def plain(owned: Owned) -> dict[UUID, frozenset[int]]:
    """Partitions without their epochs."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def merged(one: Owned, other: Owned) -> dict[UUID, dict[int, int]]:
    """Partitions of both."""
    both = {topic_id: dict(partitions) for topic_id, partitions in one.items()}
    for topic_id, partitions in other.items():
        both.setdefault(topic_id, {}).update(partitions)
    return both


def same_partitions(one: Owned, other: Owned) -> bool:
    """True when both have the same partitions, whatever their epochs."""
    return plain(one) == plain(other)


def assignment_of(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> dict[UUID, frozenset[int]]:
    """Return an assignment; partitions of a topic that is named twice are joined."""
    found: dict[UUID, set[int]] = {}
    for topic_id, partitions in pairs:
        found.setdefault(topic_id, set()).update(partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in found.items() if partitions}
