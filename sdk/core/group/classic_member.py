"""One member of a classic consumer group: joins, syncs, sends heartbeats, revokes, leaves.

It decides which request to send next and which event the application must get. Its driver carries
out one `Step` after the other and reports the outcome. ``membership`` is the part that it shares
with members of the consumer protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from onceflow.sdk.core.group.assignors import Assignor, InformedAssignor, MemberSubscription
from onceflow.sdk.core.group.consumer_protocol import (
    assignment_user_data,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from onceflow.sdk.core.group.membership import EXPELLED, REDISCOVER, Membership
from onceflow.sdk.core.group.ownership_check import GroupCheck
from onceflow.sdk.core.group.steps import (
    Exchange,
    FindCoordinator,
    GroupSettings,
    LookUpTopics,
    MemberState,
    RebalanceEvent,
    RebalanceKind,
    Step,
    Wait,
)
from onceflow.sdk.errors import KafkaError, RemoteProtocolError, UnsupportedVersionError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import CONSUMER_PROTOCOL_TYPE
from onceflow.sdk.protocol.api.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.schema import Response

logger: logging.Logger = logging.getLogger("onceflow.sdk.group")

JOIN_GRACE_MS = 5_000
"""Wait for a JoinGroup answer, beyond the rebalance timeout, as in Kafka."""


class GroupMember(Membership):
    """A member of a classic group; see the module's text."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self._assignors: dict[str, Assignor] = {
            assignor.name: assignor for assignor in settings.assignors
        }
        self._informed_assignors = {
            name: each
            for name, each in self._assignors.items()
            if isinstance(each, InformedAssignor)
        }
        # As in Kafka, a list of strategies is cooperative only if all of its members are.
        self.cooperative: bool = all(assignor.cooperative for assignor in self._assignors.values())
        self._last_assignment: tuple[TopicPartition, ...] = ()
        self._last_generation_id = -1
        self._rejoin_reason: str | None = None
        self._join: JoinGroupResponse | None = None
        self._sync_assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = []
        self._group_topics: frozenset[str] = frozenset()
        self._assigned_counts: dict[str, int] | None = None
        # A static member that comes back checks the group once; see `ownership_check`.
        self._may_come_back = self.cooperative and settings.group_instance_id is not None
        self._looks_at_group = self._may_come_back
        self._check: GroupCheck | None = None

    # --- the application's side -------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        """Set the topics to read; an empty set makes the member leave."""
        if topics == self._topics:
            return
        self._topics = topics
        if topics:
            self.request_rejoin("the subscription changed")
        else:
            self._rejoin_reason = None
            self.begin_leave()

    def subscribe_regex(self, regex: str) -> None:
        """Raise an error: in this protocol the client resolves patterns."""
        raise AssertionError("the classic protocol has no patterns")

    def on_topic_names(self, names: Mapping[UUID, str], now_ms: int) -> None:
        """Do nothing: this protocol names topics by name."""

    def probe_request(self) -> HeartbeatRequest:
        """Return a heartbeat of the present generation."""
        return self.heartbeat_request()

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance; it starts with the application's next poll."""
        if self._rejoin_reason is None:
            self._rejoin_reason = reason
        if self.state is MemberState.STABLE and self._pending is None:
            self.state = MemberState.PREPARING

    def confirm_event(self, event: RebalanceEvent) -> None:
        """Note that the application has handled the event."""
        if not self._take_over(event):
            return
        if event.kind is RebalanceKind.ASSIGNED:
            self._pending = None
        elif event.kind is RebalanceKind.REVOKED and self._pending is not None:
            # Other members wait for these partitions: start the second round of a cooperative
            # rebalance.
            self._rejoin_reason = self._rejoin_reason or "partitions were revoked"
            return
        if self.state is MemberState.PREPARING:
            self.state = MemberState.JOINING

    def _make_event(self) -> RebalanceEvent | None:
        if loss := self._event_of_loss():
            return loss
        if self._pending is not None:
            return self._event_towards(self._pending)
        if self.state is MemberState.UNJOINED and self._topics:
            self.state = MemberState.PREPARING
        if self.state is MemberState.STABLE and self._rejoin_reason is None:
            assignor = self._informed()
            self._rejoin_reason = None if assignor is None else assignor.rejoin_reason()
        if self.state is MemberState.STABLE and self._rejoin_reason is not None:
            self.state = MemberState.PREPARING
        if self.state is MemberState.PREPARING:
            given_up = self._owned
            if self.cooperative:
                given_up = frozenset(p for p in self._owned if p.topic not in self._topics)
            if given_up:
                return RebalanceEvent.of(RebalanceKind.REVOKED, given_up, self._owned - given_up)
            self.state = MemberState.JOINING
        return None

    def _informed(self) -> InformedAssignor | None:
        """Return the assignor of this generation, if it exchanges user data."""
        name = None if self._join is None else self._join.protocol_name
        return self._informed_assignors.get(name or "")

    @property
    def watched_topics(self) -> frozenset[str]:
        """Topics whose partition counts matter; for the leader those of the whole group."""
        return self._topics | self._group_topics

    def on_partition_counts(self, partition_counts: Mapping[str, int]) -> None:
        """Request a rebalance, as leader, if partition counts have changed."""
        if self._assigned_counts is None or self.state is not MemberState.STABLE:
            return
        current = {t: partition_counts[t] for t in self._group_topics if t in partition_counts}
        if current != self._assigned_counts:
            self.request_rejoin("partition counts changed")

    # --- the driver's side --------------------------------------------------------------------

    def next_step(self, now_ms: int) -> Step:
        """Return the driver's next step."""
        if self.state in (MemberState.UNJOINED, MemberState.FAILED):
            return Wait(None)
        if self.generation_id >= 0 and self._poll_overdue(now_ms):
            self._give_up_for_silence()
            return self.next_step(now_ms)
        if now_ms < self._not_before_ms:
            return Wait(self._not_before_ms)
        if self.state is MemberState.PREPARING and self.generation_id < 0:
            return Wait(None)
        if not self.coordinator_known:
            return FindCoordinator()
        if self.state is MemberState.JOINING:
            return self._send_join()
        if self.state is MemberState.ASSIGNING:
            return LookUpTopics(self._group_topics)
        if self.state is MemberState.SYNCING:
            return Exchange(self._sync_request())
        if self.state is MemberState.LEAVING:
            return Exchange(self._leave_request())
        if now_ms >= self._heartbeat_due_ms:
            return Exchange(self.heartbeat_request())
        if self.state is MemberState.STABLE and self._check is not None:
            return LookUpTopics(self._check.topics)
        if self.state is MemberState.STABLE and self._looks_at_group:
            return Exchange(DescribeGroupsRequest(groups=[self._settings.group_id]))
        return Wait(self._next_deadline_ms())

    def on_partitions_of_group(self, partition_counts: Mapping[str, int], now_ms: int) -> None:
        """Take the counts for `LookUpTopics`, and assign the partitions to the members."""
        if self.state is MemberState.STABLE and self._check is not None:
            check, self._check = self._check, None
            if unowned := check.unowned(partition_counts):
                self.request_rejoin(f"nobody owns {', '.join(map(str, unowned[:3]))}")
            return
        if self.state is not MemberState.ASSIGNING or self._join is None:
            return
        join = self._join
        counts = {t: partition_counts[t] for t in self._group_topics if t in partition_counts}
        try:
            assignor = self._assignors[join.protocol_name or ""]
            members = [_subscription_of(member) for member in join.members]
        except (KeyError, RemoteProtocolError) as error:
            self._fail_join(
                RemoteProtocolError(
                    f"cannot assign partitions in group {self._settings.group_id!r}: {error}"
                ),
                now_ms,
            )
            return
        self._assigned_counts = counts
        told: Mapping[str, bytes] = {}
        informed = self._informed()
        if informed is not None:
            divided, told = informed.assign_informed(counts, members)
        else:
            divided = assignor.assign(counts, members)
        self._sync_assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=encode_assignment(partitions, user_data=told.get(member_id)),
            )
            for member_id, partitions in divided.items()
        ]
        self.state = MemberState.SYNCING

    def on_failure(self, error: KafkaError, now_ms: int) -> None:
        """React to a step that failed: no connection, no coordinator, no answer in time."""
        if self.state is MemberState.LEAVING:
            self._reset_membership(MemberState.UNJOINED)
            return
        logger.info(
            "group %s: %s while %s; looking for the coordinator again",
            self._settings.group_id,
            error,
            self.state.value,
        )
        if isinstance(error, UnsupportedVersionError) and self.state is MemberState.STABLE:
            self._looks_at_group = False  # This coordinator cannot describe groups.
            return
        if self.state is MemberState.STABLE and self._check is not None:
            # This check is internal; on failure it is repeated without a message.
            self._check, self._looks_at_group = None, True
            self._rediscover(now_ms)
            return
        if not error.retriable:
            self._failure = error
        self._rediscover(now_ms)
        if self.state is MemberState.SYNCING:
            self.state = MemberState.JOINING

    def on_response(self, response: Response, now_ms: int) -> None:
        """Handle the answer to an `Exchange`."""
        if isinstance(response, HeartbeatResponse):
            self.on_heartbeat(response, now_ms)
        elif isinstance(response, JoinGroupResponse):
            self._on_join(response, now_ms)
        elif isinstance(response, SyncGroupResponse):
            self._on_sync(response, now_ms)
        elif isinstance(response, DescribeGroupsResponse):
            self._looks_at_group = False
            self._check = GroupCheck.of(response)
        elif self.state is MemberState.LEAVING:
            self._reset_membership(MemberState.UNJOINED)

    def begin_leave(self) -> None:
        """Leave the group as soon as possible; a static member only stops its heartbeats."""
        if self.state in (MemberState.JOINING, MemberState.ASSIGNING, MemberState.SYNCING):
            return  # Leaving needs the member id in the answer in flight.
        if self.state is MemberState.FAILED:
            return
        if self._settings.group_instance_id is not None or not self.member_id:
            self._reset_membership(MemberState.UNJOINED)
            return
        self.state = MemberState.LEAVING
        self._not_before_ms = 0
        self.generation_id = -1

    def closing_request(self, leave_group: bool | None = None) -> LeaveGroupRequest | None:
        """Return the LeaveGroup of a consumer that closes now, in any state.

        Args:
            leave_group: Whether to leave; None as Kafka does: dynamic members leave, static ones
                keep their place until their session times out (KIP-345, KIP-1092).

        Returns:
            The request; None to stay, or if the coordinator does not know this member.
        """
        if leave_group is None:
            leave_group = self._settings.group_instance_id is None
        return self._leave_request() if leave_group and self.member_id else None

    # --- join ---

    def _send_join(self) -> Exchange:
        settings = self._settings
        reason, self._rejoin_reason = self._rejoin_reason, None
        protocols = [
            JoinGroupRequest.JoinGroupRequestProtocol(
                name=name, metadata=self._encode_subscription(assignor)
            )
            for name, assignor in self._assignors.items()
        ]
        request = JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=protocols,
            reason=reason,
        )
        return Exchange(request, settings.max_poll_interval_ms + JOIN_GRACE_MS)

    def _encode_subscription(self, assignor: Assignor) -> bytes:
        informed = self._informed_assignors.get(assignor.name)
        return encode_subscription(
            self._topics,
            self._owned,
            self._last_generation_id,
            rack=self._settings.rack,
            sticky_memory=self._last_assignment if assignor.sends_owned_in_user_data else None,
            user_data=None if informed is None else informed.subscription_user_data(),
        )

    def _on_join(self, response: JoinGroupResponse, now_ms: int) -> None:
        code = response.error_code
        if self.state is not MemberState.JOINING:
            return
        if code == ErrorCode.NONE:
            self._joined(response)
            return
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            if not self._topics:
                self.state = MemberState.STABLE
                self.begin_leave()
        elif code in EXPELLED:
            self._expelled("JoinGroup", code)
        else:
            self._on_common_error("JoinGroup", code, now_ms)

    def _joined(self, response: JoinGroupResponse) -> None:
        self._failures = 0
        self.member_id = response.member_id
        self.generation_id = response.generation_id
        self._join = response
        self._check = None
        self._assigned_counts = None
        self._group_topics = frozenset()
        self._sync_assignments = []
        if not self._topics:
            self.state = MemberState.STABLE
            self.begin_leave()
            return
        if response.leader != response.member_id:
            self.state = MemberState.SYNCING
            return
        try:
            self._group_topics = frozenset[str]().union(
                *(_subscription_of(member).topics for member in response.members)
            )
        except RemoteProtocolError:
            self._group_topics = frozenset()  # Reported when the partitions are assigned.
        self.state = MemberState.SYNCING if response.skip_assignment else MemberState.ASSIGNING

    # --- sync ---

    def _sync_request(self) -> SyncGroupRequest:
        join = self._join
        assert join is not None, "a SyncGroup follows a JoinGroup"
        return SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=join.protocol_name,
            assignments=self._sync_assignments,
        )

    def _on_sync(self, response: SyncGroupResponse, now_ms: int) -> None:
        code = response.error_code
        if self.state is not MemberState.SYNCING:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.state = MemberState.JOINING
        elif code in EXPELLED:
            self._expelled("SyncGroup", code)
        elif code != ErrorCode.NONE:
            self.state = MemberState.JOINING
            self._on_common_error("SyncGroup", code, now_ms)
        else:
            self._synced(response, now_ms)

    def _synced(self, response: SyncGroupResponse, now_ms: int) -> None:
        try:
            partitions = decode_assignment(response.assignment)
            user_data = assignment_user_data(response.assignment)
        except RemoteProtocolError as error:
            self._fail_join(error, now_ms)
            return
        self.state = MemberState.STABLE
        self._heartbeat_due_ms = now_ms + self._settings.heartbeat_interval_ms
        if not self._topics:
            self.begin_leave()
            return
        if (assignor := self._informed()) is not None:
            assignor.on_assignment(user_data)
        # The subscription may have changed during the rebalance: drop topics that are not in it.
        usable = tuple(sorted(p for p in partitions if p.topic in self._topics))
        self._pending = frozenset(usable)
        self._last_assignment = usable
        self._last_generation_id = self.generation_id
        logger.info(
            "group %s: member %s has generation %d with %d partitions",
            self._settings.group_id,
            self.member_id,
            self.generation_id,
            len(usable),
        )

    # --- heartbeat ---

    def heartbeat_request(self) -> HeartbeatRequest:
        """Return a heartbeat of the present generation."""
        return HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )

    def on_heartbeat(self, response: HeartbeatResponse, now_ms: int) -> None:
        """Handle the answer to a heartbeat of the present generation."""
        code = response.error_code
        if self.state not in (MemberState.STABLE, MemberState.PREPARING):
            return
        self._heartbeat_due_ms = now_ms + self._settings.heartbeat_interval_ms
        if code == ErrorCode.NONE:
            self._failures = 0
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")
        elif code in EXPELLED:
            self._expelled("Heartbeat", code)
        else:
            self._on_common_error("Heartbeat", code, now_ms)

    # --- leaving and losing ---

    def _give_up_for_silence(self) -> None:
        logger.warning(
            "group %s: member %s leaves, the application has not polled for %d ms",
            self._settings.group_id,
            self.member_id,
            self._settings.max_poll_interval_ms,
        )
        self._lose_partitions()
        self.generation_id = -1
        if self._settings.group_instance_id is not None or not self.coordinator_known:
            self._reset_membership(MemberState.UNJOINED)
        else:
            self.state = MemberState.LEAVING
            self._not_before_ms = 0

    def _leave_request(self) -> LeaveGroupRequest:
        reason = "poll overdue" if self._lost else "unsubscribed or closed"
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            reason=reason,
        )
        return LeaveGroupRequest(group_id=self._settings.group_id, members=[identity])

    def _expelled(self, api: str, code: int) -> None:
        """React to a coordinator that does not know this member or its generation any more."""
        logger.warning(
            "group %s: %s answered %s to member %s of generation %d; joining again",
            self._settings.group_id,
            api,
            ErrorCode(code).name,
            self.member_id,
            self.generation_id,
        )
        self._lose_partitions()
        # With an outdated generation the member id is still valid.
        keep = self.member_id if code == ErrorCode.ILLEGAL_GENERATION else ""
        self._reset_membership(MemberState.PREPARING if self._topics else MemberState.UNJOINED)
        self.member_id = keep
        self._rejoin_reason = f"{api} answered {ErrorCode(code).name}"

    def _reset_membership(self, state: MemberState) -> None:
        self.state: MemberState = state
        self.generation_id: int = -1
        self.member_id: str = ""
        self._pending = None
        self._join = None
        self._assigned_counts = None
        self._group_topics = frozenset()
        self._failures = 0
        self._check = None
        self._looks_at_group = self._may_come_back

    def _on_common_error(self, api: str, code: int, now_ms: int) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._lose_partitions()
            self._reset_membership(MemberState.FAILED)
            self._failure = error_for(
                code,
                f"group.instance.id {self._settings.group_instance_id!r} of group "
                f"{self._settings.group_id!r} was taken over by another consumer; "
                "give every running consumer an id of its own",
            )
        elif code in REDISCOVER:
            self._rediscover(now_ms)
        elif code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS):
            self._back_off(now_ms)
        else:
            group_id = self._settings.group_id
            self._fail_join(error_for(code, f"{api} of group {group_id!r}"), now_ms)

    def _fail_join(self, error: KafkaError, now_ms: int) -> None:
        """Report an error to the next poll, then try to join again."""
        self._failure = error
        self._back_off(now_ms)
        if self.state in (MemberState.ASSIGNING, MemberState.SYNCING):
            self.state = MemberState.JOINING


def _subscription_of(member: JoinGroupResponse.JoinGroupResponseMember) -> MemberSubscription:
    return decode_subscription(member.member_id, member.group_instance_id, member.metadata)
