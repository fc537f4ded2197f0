"""Values that group members exchange with the application and with their driver.

``classic_member`` and ``consumer_member`` make and take them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from onceflow.sdk.core.group.assignors import ASSIGNORS, Assignor
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.groups import LeaveGroupRequest
from onceflow.sdk.protocol.schema import Request

LEAVE_BY_LIST_FROM = 3
"""First version of LeaveGroup that takes several members."""


class MemberState(enum.Enum):
    """State of a group member."""

    UNJOINED = "unjoined"
    """Not a member: there is no subscription, or the application has not polled yet."""
    PREPARING = "preparing"
    """A rebalance is due; the application must first give up partitions."""
    JOINING = "joining"
    ASSIGNING = "assigning"
    """This member is the leader and needs the partition counts."""
    SYNCING = "syncing"
    STABLE = "stable"
    LEAVING = "leaving"
    FAILED = "failed"
    """Another process has taken the group instance id; this member is fenced for good (KIP-345)."""


class RebalanceKind(enum.Enum):
    """What happened to the partitions of a `RebalanceEvent`."""

    REVOKED = "revoked"
    """The member owns them until the application confirms, which may commit before."""
    ASSIGNED = "assigned"
    LOST = "lost"
    """Another member may own them already, so their offsets must not be committed."""


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """A change of partitions that the application must confirm before the rebalance continues.

    Attributes:
        kind: Revoked, assigned or lost.
        partitions: Those that changed, in order.
        assignment: All partitions after the event.
    """

    kind: RebalanceKind
    partitions: tuple[TopicPartition, ...]
    assignment: frozenset[TopicPartition]

    @classmethod
    def of(
        cls,
        kind: RebalanceKind,
        partitions: frozenset[TopicPartition],
        assignment: frozenset[TopicPartition],
    ) -> RebalanceEvent:
        """Return an event with its partitions in order."""
        return cls(kind, tuple(sorted(partitions)), assignment)


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """The driver must look for the group's coordinator."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The driver must send a request to the coordinator and report the answer.

    Attributes:
        request: The request.
        timeout_ms: How long to wait for the answer; None takes the connection's usual time.
    """

    request: Request
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LookUpTopics:
    """The driver must report the partition counts of these topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """The driver must wait until this time, or until the application acts (None: only then)."""

    until_ms: int | None


@dataclass(frozen=True, slots=True)
class NameTopics:
    """The driver must report the names of these topics, as far as it finds them.

    Attributes:
        topic_ids: Ids that the coordinator assigned.
        topics: Topics of the subscription, which should include them; empty for a pattern.
    """

    topic_ids: frozenset[UUID]
    topics: frozenset[str]


Step = FindCoordinator | Exchange | LookUpTopics | NameTopics | Wait


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a member behaves; names and defaults as Kafka's consumer properties.

    Attributes:
        group_id: ``group.id``.
        group_instance_id: ``group.instance.id``; a static member does not leave on close.
        session_timeout_ms: ``session.timeout.ms``.
        heartbeat_interval_ms: ``heartbeat.interval.ms``.
        max_poll_interval_ms: ``max.poll.interval.ms``, also sent as rebalance timeout.
        assignors: ``partition.assignment.strategy``, in order of preference.
        retry_backoff_ms: ``retry.backoff.ms``, doubled with each failure in a row.
        retry_backoff_max_ms: ``retry.backoff.max.ms``.
        rack: ``client.rack`` or None.
        member_id: Made by the client, for the consumer protocol; empty for the classic one.
        remote_assignor: ``group.remote.assignor`` or None.
    """

    group_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[Assignor, ...] = (ASSIGNORS["range"], ASSIGNORS["cooperative-sticky"])
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    rack: str | None = None
    member_id: str = ""
    remote_assignor: str | None = None


def leaving_in(request: LeaveGroupRequest, version: int) -> LeaveGroupRequest:
    """Return a member's LeaveGroup in the form of a version: before 3 it has no list of members."""
    if version >= LEAVE_BY_LIST_FROM:
        return request
    (member,) = request.members
    return LeaveGroupRequest(group_id=request.group_id, member_id=member.member_id)
