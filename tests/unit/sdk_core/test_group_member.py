"""Goal: the membership machine follows the classic group protocol and its traps.

Method: a test plays driver, coordinator and application: it takes steps, gives answers, fetches
and confirms events. Time is a number, nothing waits.
"""

from __future__ import annotations

import logging

import pytest

from onceflow.sdk.core.group.assignors import ASSIGNORS
from onceflow.sdk.core.group.classic_member import GroupMember
from onceflow.sdk.core.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from onceflow.sdk.core.group.steps import (
    Exchange,
    FindCoordinator,
    GroupSettings,
    LookUpTopics,
    MemberState,
    RebalanceEvent,
    RebalanceKind,
    Wait,
)
from onceflow.sdk.errors import (
    BrokerConnectionError,
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    NoBrokersAvailableError,
    UnsupportedVersionError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

P0, P1, P2 = (TopicPartition("t", p) for p in range(3))
COOPERATIVE = (ASSIGNORS["cooperative-sticky"],)


class Rig:
    """A member, its driver, its application and its coordinator in one."""

    def __init__(self, *, cooperative: bool = False, instance: str | None = None) -> None:
        assignors = COOPERATIVE if cooperative else (ASSIGNORS["range"],)
        self.member = GroupMember(
            GroupSettings("g", group_instance_id=instance, assignors=assignors)
        )
        self.now_ms = 0
        self.events: list[tuple[str, list[int]]] = []

    # the application

    def poll(self) -> None:
        """One poll: hear all events and confirm them."""
        self.member.poll_started(self.now_ms)
        while (event := self.member.next_event()) is not None:
            self.note(event)
            self.member.confirm_event(event)
        self.member.poll_ended(self.now_ms)

    def note(self, event: RebalanceEvent) -> None:
        self.events.append((event.kind.value, [p.partition for p in event.partitions]))

    def heard(self) -> list[tuple[str, list[int]]]:
        heard, self.events = self.events, []
        return heard

    # the driver

    def step(self) -> object:
        step = self.member.next_step(self.now_ms)
        while isinstance(step, FindCoordinator):
            self.member.on_coordinator()
            step = self.member.next_step(self.now_ms)
        return step

    def request(self) -> object:
        step = self.step()
        assert isinstance(step, Exchange), step
        return step.request

    def answer(self, response: object) -> None:
        self.member.on_response(response, self.now_ms)  # type: ignore[arg-type]

    # whole conversations

    def join_as_follower(self, *partitions: TopicPartition, generation: int = 1) -> None:
        request = self.request()
        assert isinstance(request, JoinGroupRequest), request
        name = request.protocols[0].name
        self.answer(
            JoinGroupResponse(
                generation_id=generation, member_id="me", leader="boss", protocol_name=name
            )
        )
        assert isinstance(self.request(), SyncGroupRequest)
        self.answer(SyncGroupResponse(assignment=encode_assignment(partitions)))

    def stable(self, *partitions: TopicPartition) -> None:
        self.member.subscribe(frozenset({"t"}))
        self.poll()
        self.join_as_follower(*partitions)
        self.poll()
        self.heard()

    def heartbeat(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.now_ms += 3_000
        assert isinstance(self.request(), HeartbeatRequest)
        self.answer(HeartbeatResponse(error_code=code))


# --- joining ---


def test_nothing_is_sent_before_the_application_polls() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    assert rig.step() == Wait(None)
    rig.poll()
    assert isinstance(rig.request(), JoinGroupRequest)


def test_a_member_without_id_joins_again_under_the_id_that_it_was_given() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    first = rig.request()
    assert isinstance(first, JoinGroupRequest)
    assert (first.member_id, first.rebalance_timeout_ms) == ("", 300_000)
    rig.answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    second = rig.request()
    assert isinstance(second, JoinGroupRequest)
    assert second.member_id == "me"


def test_joining_may_take_as_long_as_a_rebalance() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    step = rig.step()
    assert isinstance(step, Exchange)
    assert step.timeout_ms == 305_000


def test_a_follower_gets_its_partitions_with_the_next_poll() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.join_as_follower(P0, P1)
    assert rig.heard() == []
    rig.poll()
    assert rig.heard() == [("assigned", [0, 1])]
    assert rig.member.metadata() == ("g", 1, "me", None)


def test_the_leader_divides_the_partitions_of_the_whole_group() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(topics, [], -1)
        )
        for name, topics in (("me", ["t"]), ("you", ["t", "u"]))
    ]
    rig.answer(
        JoinGroupResponse(
            generation_id=1, member_id="me", leader="me", protocol_name="range", members=members
        )
    )
    assert rig.step() == LookUpTopics(frozenset({"t", "u"}))
    rig.member.on_partitions_of_group({"t": 2, "u": 1}, 0)
    request = rig.request()
    assert isinstance(request, SyncGroupRequest)
    found = {a.member_id: decode_assignment(a.assignment) for a in request.assignments}
    assert found == {"me": [P0], "you": [P1, TopicPartition("u", 0)]}
    assert rig.member.watched_topics == {"t", "u"}


def test_only_a_leader_rejoins_when_a_partition_count_changes() -> None:
    rig = Rig()
    rig.stable(P0)
    rig.member.on_partition_counts({"t": 4})
    assert rig.member.state is MemberState.STABLE


def test_a_leader_rejoins_when_a_partition_count_changes() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    me = JoinGroupResponse.JoinGroupResponseMember(
        member_id="me", metadata=encode_subscription(["t"], [], -1)
    )
    rig.answer(
        JoinGroupResponse(
            generation_id=1, member_id="me", leader="me", protocol_name="range", members=[me]
        )
    )
    rig.step()
    rig.member.on_partitions_of_group({"t": 2}, 0)
    rig.request()
    rig.answer(SyncGroupResponse(assignment=encode_assignment([P0, P1])))
    rig.poll()
    rig.member.on_partition_counts({"t": 2})
    assert rig.member.state is MemberState.STABLE
    rig.member.on_partition_counts({"t": 3})
    rig.poll()
    assert isinstance(rig.request(), JoinGroupRequest)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_for_after_a_pause(code: ErrorCode) -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.answer(JoinGroupResponse(error_code=code))
    assert rig.member.next_step(0) == Wait(100)
    assert rig.member.next_step(100) == FindCoordinator()


def test_pauses_grow_with_failures_in_a_row() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    pauses = []
    for _ in range(6):
        rig.request()
        rig.answer(JoinGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        wait = rig.member.next_step(rig.now_ms)
        assert isinstance(wait, Wait)
        assert wait.until_ms is not None
        pauses.append(wait.until_ms - rig.now_ms)
        rig.now_ms = wait.until_ms
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]


def test_a_broken_connection_while_syncing_leads_to_a_new_join() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.answer(JoinGroupResponse(generation_id=1, member_id="me", leader="boss"))
    rig.request()
    rig.member.on_failure(BrokerConnectionError("gone"), 0)
    rig.now_ms = 1_000
    assert isinstance(rig.request(), JoinGroupRequest)


def test_a_refusal_that_does_not_pass_is_raised_once_and_tried_again() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.answer(JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    assert isinstance(rig.member.take_failure(), InconsistentGroupProtocolError)
    assert rig.member.take_failure() is None
    rig.now_ms = 1_000
    assert isinstance(rig.request(), JoinGroupRequest)


# --- rebalances ---


def test_an_eager_rebalance_waits_for_the_application_to_give_everything_up() -> None:
    rig = Rig()
    rig.stable(P0, P1)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.member.poll_started(rig.now_ms)
    event = rig.member.next_event()
    assert event is not None
    assert (event.kind, event.partitions) == (RebalanceKind.REVOKED, (P0, P1))
    # Offsets may be committed under the old generation until the event is confirmed.
    assert rig.member.metadata().generation_id == 1
    assert not isinstance(rig.step(), JoinGroupRequest)
    rig.member.confirm_event(event)
    request = rig.request()
    assert isinstance(request, JoinGroupRequest)
    subscription = decode_subscription("me", None, request.protocols[0].metadata)
    assert subscription.owned_partitions == ()


def test_a_cooperative_rebalance_gives_up_only_what_others_get_and_joins_again() -> None:
    rig = Rig(cooperative=True)
    rig.stable(P0, P1)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.poll()
    assert rig.heard() == []
    request = rig.request()
    assert isinstance(request, JoinGroupRequest)
    subscription = decode_subscription("me", None, request.protocols[0].metadata)
    assert (subscription.owned_partitions, subscription.generation_id) == ((P0, P1), 1)
    rig.join_as_follower(P0, generation=2)
    rig.poll()
    assert rig.heard() == [("revoked", [1]), ("assigned", [])]
    second = rig.request()
    assert isinstance(second, JoinGroupRequest)
    owned = decode_subscription("me", None, second.protocols[0].metadata).owned_partitions
    assert owned == (P0,)
    rig.join_as_follower(P0, P2, generation=3)
    rig.poll()
    assert rig.heard() == [("assigned", [2])]
    assert isinstance(rig.step(), Wait)


def test_the_next_rebalance_may_begin_while_this_one_is_being_synced() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.answer(JoinGroupResponse(generation_id=1, member_id="me", leader="boss"))
    rig.request()
    rig.answer(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert isinstance(rig.request(), JoinGroupRequest)


def test_an_assignment_is_announced_before_the_rebalance_that_follows_it() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.join_as_follower(P0)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.poll()
    assert rig.heard() == [("assigned", [0]), ("revoked", [0])]


def test_a_changed_subscription_is_taken_to_the_group() -> None:
    rig = Rig(cooperative=True)
    rig.stable(P0)
    rig.member.subscribe(frozenset({"u"}))
    rig.poll()
    assert rig.heard() == [("revoked", [0])]
    request = rig.request()
    assert isinstance(request, JoinGroupRequest)
    assert decode_subscription("me", None, request.protocols[0].metadata).topics == {"u"}


def test_partitions_of_topics_that_are_not_wanted_any_more_are_not_taken() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.member.subscribe(frozenset({"u"}))
    rig.answer(JoinGroupResponse(generation_id=1, member_id="me", leader="boss"))
    rig.request()
    rig.answer(SyncGroupResponse(assignment=encode_assignment([P0])))
    rig.poll()
    assert rig.heard() == [("assigned", [])]
    assert isinstance(rig.request(), JoinGroupRequest)


# --- losing ---


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("cooperative", [True, False])
def test_an_expelled_member_loses_its_partitions_and_joins_anew(
    code: ErrorCode, cooperative: bool
) -> None:
    rig = Rig(cooperative=cooperative)
    rig.stable(P0)
    rig.heartbeat(code)
    assert not rig.member.is_member
    assert rig.member.metadata() == ("g", -1, "", None)
    rig.poll()
    assert rig.heard() == [("lost", [0])]
    request = rig.request()
    assert isinstance(request, JoinGroupRequest)
    assert request.member_id == ("me" if code == ErrorCode.ILLEGAL_GENERATION else "")
    assert decode_subscription("x", None, request.protocols[0].metadata).owned_partitions == ()


def test_a_loss_while_the_application_handles_a_revocation_is_told_after_it() -> None:
    rig = Rig(cooperative=True)
    rig.stable(P0, P1)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.poll()
    rig.join_as_follower(P0, generation=2)
    rig.member.poll_started(rig.now_ms)
    event = rig.member.next_event()
    assert event is not None
    assert (event.kind, event.partitions) == (RebalanceKind.REVOKED, (P1,))
    rig.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    rig.member.confirm_event(event)
    rig.poll()
    assert rig.heard() == [("lost", [0])]


def test_a_loss_while_the_application_takes_over_partitions_covers_them() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.join_as_follower(P0, P1)
    rig.member.poll_started(rig.now_ms)
    event = rig.member.next_event()
    assert event is not None
    rig.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    rig.member.confirm_event(event)
    rig.poll()
    assert rig.heard() == [("lost", [0, 1])]


def test_a_fenced_static_member_is_at_its_end() -> None:
    rig = Rig(instance="i1")
    rig.stable(P0)
    rig.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    for _ in range(2):
        assert isinstance(rig.member.take_failure(), FencedInstanceIdError)
    rig.poll()
    assert rig.heard() == [("lost", [0])]
    assert rig.step() == Wait(None)


# --- polling in time ---


def test_a_silent_application_is_warned_then_leaves_and_hears_of_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.stable(P0)
    while rig.now_ms < 297_000:
        if rig.now_ms == 147_000:
            assert caplog.records == []
        with caplog.at_level(logging.WARNING):
            rig.heartbeat()
    (warning,) = caplog.records
    assert "max.poll.interval.ms" in warning.message
    rig.now_ms = 300_000
    request = rig.request()
    assert isinstance(request, LeaveGroupRequest)
    assert [m.member_id for m in request.members] == ["me"]
    rig.answer(LeaveGroupResponse())
    assert rig.step() == Wait(None), "it comes back only when the application polls"
    rig.poll()
    assert rig.heard() == [("lost", [0])]
    assert isinstance(rig.request(), JoinGroupRequest)


def test_a_poll_that_waits_is_no_silence() -> None:
    rig = Rig()
    rig.stable(P0)
    rig.member.poll_started(rig.now_ms)
    for _ in range(200):
        rig.heartbeat()
    assert rig.member.is_member


def test_heartbeats_go_on_while_the_application_has_not_polled_for_a_rebalance() -> None:
    rig = Rig()
    rig.stable(P0)
    for _ in range(5):
        rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.member.is_member


def test_the_driver_wakes_for_the_warning_between_heartbeats() -> None:
    rig = Rig()
    rig.stable(P0)
    rig.now_ms = 148_000
    assert isinstance(rig.request(), HeartbeatRequest)
    rig.answer(HeartbeatResponse())
    assert rig.step() == Wait(150_000)


# --- leaving ---


def test_unsubscribing_leaves_the_group() -> None:
    rig = Rig()
    rig.stable(P0)
    rig.member.forget_owned()
    rig.member.subscribe(frozenset())
    assert isinstance(rig.request(), LeaveGroupRequest)
    rig.answer(LeaveGroupResponse())
    assert rig.step() == Wait(None)
    assert rig.member.next_event() is None


def test_unsubscribing_while_joining_leaves_as_soon_as_there_is_something_to_leave() -> None:
    rig = Rig()
    rig.member.subscribe(frozenset({"t"}))
    rig.poll()
    rig.request()
    rig.member.subscribe(frozenset())
    rig.answer(JoinGroupResponse(generation_id=1, member_id="me", leader="boss"))
    assert isinstance(rig.request(), LeaveGroupRequest)


def test_a_static_member_keeps_its_place_when_it_closes() -> None:
    rig = Rig(instance="i1")
    rig.stable(P0)
    assert rig.member.closing_request() is None
    leaving = rig.member.closing_request(leave_group=True)
    assert leaving is not None
    assert (leaving.members[0].member_id, leaving.members[0].group_instance_id) == ("me", "i1")
    rig.member.forget_owned()
    rig.member.subscribe(frozenset())
    assert rig.step() == Wait(None)


def test_a_dynamic_member_leaves_when_it_closes_even_in_the_middle_of_a_join() -> None:
    rig = Rig()
    rig.stable(P0)
    rig.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.poll()
    assert rig.member.state is MemberState.JOINING
    assert rig.member.closing_request() is not None


def test_a_refused_commit_makes_the_next_heartbeat_due_at_once() -> None:
    rig = Rig()
    rig.stable(P0)
    assert isinstance(rig.step(), Wait)
    rig.member.expect_expulsion()
    assert isinstance(rig.request(), HeartbeatRequest)


def test_a_list_of_strategies_is_cooperative_only_if_all_are() -> None:
    both = (ASSIGNORS["range"], *COOPERATIVE)
    assert not GroupMember(GroupSettings("g", assignors=both)).cooperative
    assert GroupMember(GroupSettings("g", assignors=COOPERATIVE)).cooperative


# --- a static member that comes back in the middle of a cooperative rebalance ---


def described(state: str, *assignments: tuple[TopicPartition, ...]) -> DescribeGroupsResponse:
    group = DescribeGroupsResponse.DescribedGroup
    return DescribeGroupsResponse(
        groups=[
            group(
                group_id="g",
                group_state=state,
                members=[
                    group.DescribedGroupMember(
                        member_id=f"m{number}",
                        group_instance_id=None,
                        client_id="",
                        client_host="",
                        member_metadata=encode_subscription(frozenset({"t"}), frozenset(), 1),
                        member_assignment=encode_assignment(partitions),
                    )
                    for number, partitions in enumerate(assignments)
                ],
            )
        ]
    )


def returned(*assignments: tuple[TopicPartition, ...], state: str = "Stable") -> Rig:
    """A static member that owns t-0 again and has looked at its group."""
    rig = Rig(cooperative=True, instance="i1")
    rig.stable(P0)
    assert isinstance(rig.request(), DescribeGroupsRequest)
    rig.answer(described(state, *assignments))
    return rig


def test_a_static_member_that_comes_back_asks_for_the_round_that_is_missing() -> None:
    """It died after it gave up t-1 and before it said so: nobody else would ever ask."""
    rig = returned((P0,), ())
    assert rig.step() == LookUpTopics(frozenset({"t"}))
    rig.member.on_partitions_of_group({"t": 2}, rig.now_ms)
    rig.poll()
    join = rig.request()
    assert isinstance(join, JoinGroupRequest)
    assert join.reason == "nobody owns t-1"
    owned = decode_subscription("me", "i1", join.protocols[0].metadata).owned_partitions
    assert list(owned) == [P0]
    assert rig.heard() == []  # What it has it keeps.


def test_a_group_that_is_whole_is_left_in_peace() -> None:
    rig = returned((P0,), (P1,))
    rig.step()
    rig.member.on_partitions_of_group({"t": 2}, rig.now_ms)
    rig.poll()
    assert isinstance(rig.step(), Wait)
    rig.heartbeat()
    assert isinstance(rig.step(), Wait)  # Once is enough.


def test_a_group_that_rebalances_anyway_is_not_looked_at_closer() -> None:
    rig = returned((P0,), (), state="PreparingRebalance")
    assert isinstance(rig.step(), Wait)


def test_a_coordinator_that_describes_nothing_is_not_asked_again() -> None:
    rig = Rig(cooperative=True, instance="i1")
    rig.stable(P0)
    assert isinstance(rig.request(), DescribeGroupsRequest)
    rig.member.on_failure(UnsupportedVersionError("no DescribeGroups"), rig.now_ms)
    assert isinstance(rig.step(), Wait)
    assert rig.member.take_failure() is None


def test_a_look_that_fails_is_taken_again_and_raised_to_nobody() -> None:
    rig = returned((P0,), ())
    assert isinstance(rig.step(), LookUpTopics)
    rig.member.on_failure(NoBrokersAvailableError("none answers"), rig.now_ms)
    assert rig.member.take_failure() is None
    rig.now_ms += 1_000
    assert isinstance(rig.request(), DescribeGroupsRequest)


@pytest.mark.parametrize(("cooperative", "instance"), [(True, None), (False, "i1")])
def test_who_cannot_come_back_so_does_not_look(cooperative: bool, instance: str | None) -> None:
    rig = Rig(cooperative=cooperative, instance=instance)
    rig.stable(P0)
    assert isinstance(rig.step(), Wait)
