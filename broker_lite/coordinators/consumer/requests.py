"""Requests and answers of members of consumer groups, as values, and first checks of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.broker_lite.coordinators.consumer.member import Assignment
from onceflow.sdk.model.special_values import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from onceflow.sdk.protocol.error_codes import ErrorCode

CLIENT_MADE_ID_FROM = 1
"""First ConsumerGroupHeartbeat version whose senders make their member id themselves."""


class GroupError(Exception):
    """A request is refused.

    Attributes:
        code: The error code of the answer.
        message: The error message of the answer.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class TopicRights(NamedTuple):
    """Which topics a pattern may select for the sender of a heartbeat.

    Attributes:
        may_describe: Whether the sender may describe the topic of this name.
        version: Rises when answers of `may_describe` may have changed.
    """

    may_describe: Callable[[str], bool] = lambda name: True
    version: int = 0


EVERY_TOPIC = TopicRights()
"""Rights if there is no authorizer."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A heartbeat; None and -1 mean "as I said before".

    Attributes:
        group_id: Group.
        member_id: The member; empty for one of version 0 that has no id yet.
        member_epoch: Its epoch; 0 joins, -1 leaves, -2 leaves for a while (trap 58).
        client_id: As the client named itself, else empty.
        client_host: Address with a leading slash.
        instance_id: Name of a static member.
        rack_id: Where it runs.
        rebalance_timeout_ms: How long it may take to give partitions up.
        topics: Topics subscribed to by name.
        regex: Pattern subscribed to; empty ends the subscription by pattern.
        server_assignor: Assignor that it prefers.
        owned: Partitions that it owns.
        api_version: Version of the request.
        rights: Topics that its pattern may select.
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    api_version: int = 1
    rights: TopicRights = EVERY_TOPIC

    @property
    def joins(self) -> bool:
        """True if the member joins or rejoins."""
        return self.member_epoch == JOIN_EPOCH

    @property
    def is_full(self) -> bool:
        """True when every field is set, as a member does that may have missed an answer."""
        return self.joins or (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Answer to a heartbeat.

    Attributes:
        error_code: NONE, or why it is refused.
        error_message: The same in words.
        member_id: The member, None with an error.
        member_epoch: Its epoch now.
        heartbeat_interval_ms: When to send the next heartbeat.
        assignment: Partitions that it may own; None if they did not change (trap 58).
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


def check_heartbeat(request: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    """Refuse fields that contradict each other, in Apache Kafka's order and words.

    Raises:
        GroupError: With the reason.
    """
    epoch = request.member_epoch
    makes_id = request.api_version >= CLIENT_MADE_ID_FROM
    _refuse(not request.group_id, "GroupId can't be empty.")
    _refuse(
        not request.member_id and (makes_id or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH),
        "MemberId can't be empty.",
    )
    _refuse(request.instance_id == "", "InstanceId can't be empty.")
    _refuse(request.rack_id == "", "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _refuse(
            request.rebalance_timeout_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        _refuse(
            request.owned is None or bool(request.owned),
            "TopicPartitions must be empty when (re-)joining.",
        )
        _refuse(
            request.topics is None and request.regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        )
    _refuse(
        epoch == LEAVE_STATIC_EPOCH and request.instance_id is None, "InstanceId can't be null."
    )
    _refuse(epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid.")
    wanted = request.server_assignor
    if wanted is not None and wanted not in assignors:
        raise GroupError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {wanted} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise GroupError(ErrorCode.INVALID_REQUEST, message)
