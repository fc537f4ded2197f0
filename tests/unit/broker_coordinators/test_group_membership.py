"""Membership of classic groups: joining, syncing, heartbeats, leaving, rebalances.

Method: the coordinator runs on storage in memory with a hand-moved clock (`coordinator_bench`);
tests are named after the trap where there is one.
"""

from __future__ import annotations

import pytest
from coordinator_bench import Bench, done, is_parked

from onceflow.broker_lite.coordinators.classic.coordinator import (
    PENDING_MEMBERS_MAX,
    MemberIdentity,
)
from onceflow.broker_lite.coordinators.classic.group import JoinResult
from onceflow.broker_lite.coordinators.classic.states import LEGAL_PREDECESSORS, GroupState
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.protocol.error_codes import ErrorCode


@pytest.fixture
def bench() -> Bench:
    return Bench()


def error(result: object) -> ErrorCode:
    return done(result).error_code  # type: ignore[attr-defined, no-any-return]


def test_every_group_state_has_its_row() -> None:
    assert set(LEGAL_PREDECESSORS) == set(GroupState)


class TestFirstJoin:
    def test_member_id_is_required_from_version_4_trap_52(self, bench: Bench) -> None:
        result = bench.join(version=4)
        assert error(result) is ErrorCode.MEMBER_ID_REQUIRED
        member_id = done(result).member_id
        assert member_id.startswith("c-")
        joined = done(bench.join(member_id, version=4))
        assert joined.error_code is ErrorCode.NONE
        assert joined.member_id == member_id

    @pytest.mark.parametrize("version", [0, 3])
    def test_older_versions_join_at_once_trap_52(self, bench: Bench, version: int) -> None:
        joined = done(bench.join(version=version))
        assert joined.error_code is ErrorCode.NONE
        assert joined.leader == joined.member_id

    def test_static_member_joins_at_once_trap_52(self, bench: Bench) -> None:
        joined = done(bench.join(instance="i1"))
        assert joined.error_code is ErrorCode.NONE
        assert joined.member_id.startswith("i1-")

    def test_pending_id_expires_with_the_session_trap_52(self, bench: Bench) -> None:
        member_id = bench.new_id(session_ms=10_000)
        bench.pass_ms(10_000)
        assert error(bench.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_pending_id_can_leave(self, bench: Bench) -> None:
        member_id = bench.new_id()
        assert bench.leave(member_id) is ErrorCode.NONE
        assert error(bench.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_unknown_member_of_an_unknown_group(self, bench: Bench) -> None:
        assert error(bench.join("who")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.group_state() == "Dead"

    def test_empty_group_id(self, bench: Bench) -> None:
        assert error(bench.join(group_id="")) is ErrorCode.INVALID_GROUP_ID

    @pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
    def test_session_timeout_out_of_range(self, bench: Bench, session_ms: int) -> None:
        assert error(bench.join(session_ms=session_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT

    def test_no_protocols(self, bench: Bench) -> None:
        assert error(bench.join(protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert error(bench.join(protocol_type="")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert bench.group_state() == "Dead"

    def test_leader_gets_the_members_trap_54(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        assert lead.leader == follow.leader == lead.member_id
        assert {member.member_id for member in lead.members} == {
            lead.member_id,
            follow.member_id,
        }
        assert lead.members[0].metadata == b"sub"
        assert not follow.members

    def test_group_is_full(self) -> None:
        bench = Bench(group_settings=GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
        done(bench.join(instance="a"))
        assert error(bench.join(instance="b")) is ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_ids_that_are_only_asked_for_are_bounded(self, bench: Bench) -> None:
        for _ in range(PENDING_MEMBERS_MAX):
            bench.join()
        assert error(bench.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
        bench.pass_ms(10_000)
        assert error(bench.join()) is ErrorCode.MEMBER_ID_REQUIRED


class TestInitialDelay:
    @pytest.fixture
    def patient(self) -> Bench:
        return Bench(group_settings=GroupSettings(initial_rebalance_delay_ms=3_000))

    def test_first_rebalance_waits_for_more_members_trap_56(self, patient: Bench) -> None:
        first = patient.join(instance="a")
        patient.pass_ms(2_999)
        assert is_parked(first)
        second = patient.join(instance="b")
        patient.pass_ms(2_999)
        assert is_parked(first)
        patient.pass_ms(3)
        assert done(first).generation_id == done(second).generation_id == 1
        assert len(done(first).members) == 2

    def test_wait_is_bounded_by_the_rebalance_timeout_trap_56(self, patient: Bench) -> None:
        first = patient.join(instance="m0", rebalance_ms=10_000)
        for index in range(1, 20):
            patient.join(instance=f"m{index}", rebalance_ms=10_000)
            patient.pass_ms(1_000)
            if not is_parked(first):
                break
        assert index == 10

    def test_later_rebalances_do_not_wait(self, patient: Bench) -> None:
        first = patient.join(instance="a")
        patient.pass_ms(3_000)
        done(patient.sync(done(first).member_id, 1, {}, instance="a"))
        second = patient.join(instance="b")
        assert is_parked(second)
        again = patient.join(done(first).member_id, instance="a")
        assert done(again).generation_id == done(second).generation_id == 2


class TestRejoin:
    def test_follower_with_the_same_metadata_changes_nothing_trap_53(self, bench: Bench) -> None:
        _, follow = bench.stable_pair()
        again = done(bench.join(follow.member_id))
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, follow.generation_id)
        assert bench.group_state() == "Stable"

    def test_leader_always_rebalances_trap_53(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        assert is_parked(bench.join(lead.member_id))
        assert bench.group_state() == "PreparingRebalance"

    def test_follower_with_other_metadata_rebalances(self, bench: Bench) -> None:
        _, follow = bench.stable_pair()
        assert is_parked(bench.join(follow.member_id, protocols={"range": b"other"}))

    def test_lost_join_answer_is_repeated(self, bench: Bench) -> None:
        member_id = bench.new_id()
        first = done(bench.join(member_id))
        assert bench.group_state() == "CompletingRebalance"
        assert done(bench.join(member_id)) == first

    def test_second_parked_join_sends_the_first_back_trap_53(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        first = bench.join(lead.member_id)
        second = bench.join(lead.member_id)
        assert error(first) is ErrorCode.REBALANCE_IN_PROGRESS
        assert is_parked(second)
        bench.join(follow.member_id)
        assert done(second).generation_id == lead.generation_id + 1

    def test_slow_member_is_left_behind_after_the_rebalance_timeout(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(rebalance_ms=20_000, session_ms=60_000)
        parked = bench.join(lead.member_id, rebalance_ms=20_000, session_ms=60_000)
        bench.pass_ms(19_999)
        assert is_parked(parked)
        bench.pass_ms(1)
        assert [m.member_id for m in done(parked).members] == [lead.member_id]
        assert bench.heartbeat(follow.member_id, 3) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_new_leader_when_the_old_one_stays_away(self, bench: Bench) -> None:
        _, follow = bench.stable_pair(rebalance_ms=20_000, session_ms=60_000)
        parked = bench.join(
            follow.member_id, protocols={"range": b"x"}, rebalance_ms=20_000, session_ms=60_000
        )
        bench.pass_ms(20_000)
        assert done(parked).leader == follow.member_id
        assert len(done(parked).members) == 1


class TestProtocols:
    def test_vote_among_common_protocols_trap_54(self, bench: Bench) -> None:
        first = bench.join(instance="a", protocols={"range": b"", "sticky": b""})
        done(bench.sync(done(first).member_id, 1, instance="a"))
        bench.join(instance="b", protocols={"sticky": b"", "range": b""})
        third = bench.join(instance="c", protocols={"sticky": b"", "odd": b"", "range": b""})
        bench.join(done(first).member_id, instance="a", protocols={"range": b"", "sticky": b""})
        assert done(third).protocol_name == "sticky"

    def test_nothing_in_common_trap_54(self, bench: Bench) -> None:
        bench.join(instance="a", protocols={"range": b""})
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert error(bench.join(instance="b", protocols={"sticky": b""})) is inconsistent
        assert error(bench.join(instance="b", protocol_type="connect")) is inconsistent

    def test_sync_checks_type_and_name_trap_54(self, bench: Bench) -> None:
        joined = done(bench.join(instance="a"))
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        for options in ({"protocol_type": "x"}, {"protocol_name": "x"}):
            result = bench.sync(joined.member_id, 1, instance="a", **options)
            assert error(result) is inconsistent
        right = bench.sync(
            joined.member_id, 1, instance="a", protocol_type="consumer", protocol_name="range"
        )
        assert done(right).protocol_name == "range"


class TestSync:
    def joined_pair(self, bench: Bench) -> tuple[JoinResult, JoinResult]:
        lead, follow = bench.stable_pair()
        parked = bench.join(lead.member_id)
        follow = done(bench.join(follow.member_id))
        return done(parked), follow

    def test_parks_until_the_leader_brings_it_trap_55(self, bench: Bench) -> None:
        lead, follow = self.joined_pair(bench)
        parked = bench.sync(follow.member_id, follow.generation_id)
        assert is_parked(parked)
        bench.sync(lead.member_id, lead.generation_id, {follow.member_id: b"mine"})
        assert done(parked).assignment == b"mine"
        assert bench.group_state() == "Stable"

    def test_member_that_the_leader_forgot_gets_an_empty_assignment(self, bench: Bench) -> None:
        lead, follow = self.joined_pair(bench)
        parked = bench.sync(follow.member_id, follow.generation_id)
        bench.sync(lead.member_id, lead.generation_id, {lead.member_id: b"all"})
        assert done(parked).assignment == b""

    def test_again_in_stable_gives_the_assignment(self, bench: Bench) -> None:
        _, follow = bench.stable_pair()
        assert done(bench.sync(follow.member_id, follow.generation_id)).assignment == b"b"

    def test_wrong_generation_and_unknown_member(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        wrong = bench.sync(lead.member_id, lead.generation_id + 1)
        assert error(wrong) is ErrorCode.ILLEGAL_GENERATION
        assert error(bench.sync("who", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert error(bench.sync("who", 1, group_id="none")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert error(bench.sync("who", 1, group_id="")) is ErrorCode.INVALID_GROUP_ID

    def test_rebalance_in_progress_while_preparing_trap_55(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        bench.join(lead.member_id)
        result = bench.sync(follow.member_id, follow.generation_id)
        assert error(result) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_parked_syncs_go_back_when_a_new_rebalance_begins(self, bench: Bench) -> None:
        _, follow = self.joined_pair(bench)
        parked = bench.sync(follow.member_id, follow.generation_id)
        bench.join(instance="third")
        assert error(parked) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_members_that_never_sync_are_expelled_trap_55(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(rebalance_ms=20_000)
        parked_lead = bench.join(lead.member_id, rebalance_ms=20_000)
        bench.join(follow.member_id, rebalance_ms=20_000)
        generation = done(parked_lead).generation_id
        bench.sync(lead.member_id, generation)
        assert bench.group_state() == "Stable"
        for _ in range(4):
            bench.pass_ms(5_000)
            bench.heartbeat(lead.member_id, generation)
            bench.heartbeat(follow.member_id, generation)
        assert bench.heartbeat(follow.member_id, generation) is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.group_state() == "PreparingRebalance"

    def test_storage_failure_sends_everybody_back_to_join(self, bench: Bench) -> None:
        lead, follow = self.joined_pair(bench)
        parked = bench.sync(follow.member_id, follow.generation_id)
        bench.disk.offsets.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        failed = bench.sync(lead.member_id, lead.generation_id)
        assert error(failed) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert error(parked) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.group_state() == "PreparingRebalance"


class TestHeartbeat:
    def test_answers_by_state_trap_55(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        assert bench.heartbeat(follow.member_id, follow.generation_id) is ErrorCode.NONE
        parked = bench.join(lead.member_id)
        code = bench.heartbeat(follow.member_id, follow.generation_id)
        assert code is ErrorCode.REBALANCE_IN_PROGRESS
        bench.join(follow.member_id)
        assert bench.group_state() == "CompletingRebalance"
        assert bench.heartbeat(follow.member_id, done(parked).generation_id) is ErrorCode.NONE

    def test_wrong_identity(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        assert bench.heartbeat(lead.member_id, 99) is ErrorCode.ILLEGAL_GENERATION
        assert bench.heartbeat("who", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.heartbeat("who", 1, group_id="none") is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.heartbeat("who", 1, group_id="") is ErrorCode.INVALID_GROUP_ID

    def test_silence_expels_and_rebalances(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=10_000)
        for _ in range(3):
            bench.pass_ms(4_000)
            bench.heartbeat(lead.member_id, lead.generation_id)
        assert bench.heartbeat(follow.member_id, follow.generation_id) is (
            ErrorCode.UNKNOWN_MEMBER_ID
        )
        assert bench.group_state() == "PreparingRebalance"

    def test_regular_heartbeats_keep_a_member(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=10_000)
        for _ in range(30):
            bench.pass_ms(3_000)
            for member in (lead, follow):
                assert bench.heartbeat(member.member_id, member.generation_id) is ErrorCode.NONE

    def test_a_parked_member_is_not_silent(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=10_000, rebalance_ms=100_000)
        parked = bench.join(lead.member_id, session_ms=10_000, rebalance_ms=100_000)
        for _ in range(9):
            bench.pass_ms(9_000)
            bench.heartbeat(follow.member_id, follow.generation_id)
        assert is_parked(parked)
        bench.join(follow.member_id, session_ms=10_000, rebalance_ms=100_000)
        assert len(done(parked).members) == 2

    def test_a_new_member_is_not_parked_forever(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair(session_ms=1_800_000, rebalance_ms=3_600_000)
        parked = bench.join(instance="new", rebalance_ms=3_600_000)
        bench.pass_ms(300_000)
        assert error(parked) is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.heartbeat(lead.member_id, lead.generation_id) is (
            ErrorCode.REBALANCE_IN_PROGRESS
        )


class TestLeave:
    def test_others_rebalance(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        assert bench.leave(lead.member_id) is ErrorCode.NONE
        rejoined = done(bench.join(follow.member_id))
        assert rejoined.leader == follow.member_id
        assert rejoined.generation_id == lead.generation_id + 1

    def test_last_one_leaves_an_empty_group(self, bench: Bench) -> None:
        joined = done(bench.join(instance="a"))
        done(bench.sync(joined.member_id, 1, instance="a"))
        bench.leave(joined.member_id)
        assert bench.group_state() == "Empty"
        assert bench.leave(joined.member_id) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_parked_answers_of_a_leaver_are_given_up(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        parked = bench.join(lead.member_id)
        bench.leave(lead.member_id)
        assert error(parked) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_static_member_leaves_by_name_alone(self, bench: Bench) -> None:
        done(bench.join(instance="a"))
        assert bench.leave("", instance="a") is ErrorCode.NONE
        assert bench.leave("", instance="a") is ErrorCode.UNKNOWN_MEMBER_ID

    def test_each_member_of_a_batch_has_its_own_answer(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        code, codes = bench.groups.leave(
            "g",
            [MemberIdentity(lead.member_id), MemberIdentity("who"),
             MemberIdentity(follow.member_id)],
            bench.now_ms,
        )  # fmt: skip
        assert code is ErrorCode.NONE
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
        assert bench.group_state() == "Empty"

    def test_unknown_and_empty_group(self, bench: Bench) -> None:
        assert bench.leave("m", group_id="none") is ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.leave("m", group_id="") is ErrorCode.INVALID_GROUP_ID


class TestStaticMembers:
    def pair(self, bench: Bench, **options: object) -> tuple[JoinResult, JoinResult]:
        first = done(bench.join(instance="i1", **options))  # type: ignore[arg-type]
        done(bench.sync(first.member_id, 1, {first.member_id: b"a"}, instance="i1"))
        parked = bench.join(instance="i2", **options)  # type: ignore[arg-type]
        first = done(bench.join(first.member_id, instance="i1", **options))  # type: ignore[arg-type]
        second = done(parked)
        parked_sync = bench.sync(second.member_id, 2, instance="i2")
        shares = {first.member_id: b"a", second.member_id: b"b"}
        done(bench.sync(first.member_id, 2, shares, instance="i1"))
        assert done(parked_sync).assignment == b"b"
        return first, second

    def test_follower_comes_back_without_a_rebalance_trap_53_fc_26(self, bench: Bench) -> None:
        first, second = self.pair(bench)
        back = done(bench.join(instance="i2"))
        assert (back.error_code, back.generation_id) == (ErrorCode.NONE, 2)
        assert back.member_id != second.member_id
        assert back.leader == first.member_id
        assert bench.group_state() == "Stable"
        assert done(bench.sync(back.member_id, 2, instance="i2")).assignment == b"b"

    @pytest.mark.parametrize("request_name", ["join", "sync", "heartbeat", "leave"])
    def test_replaced_member_is_fenced_trap_53_fc_26(self, bench: Bench, request_name: str) -> None:
        _, second = self.pair(bench)
        done(bench.join(instance="i2"))
        old = second.member_id
        code = {
            "join": lambda: error(bench.join(old, instance="i2")),
            "sync": lambda: error(bench.sync(old, 2, instance="i2")),
            "heartbeat": lambda: bench.heartbeat(old, 2, instance="i2"),
            "leave": lambda: bench.leave(old, instance="i2"),
        }[request_name]()
        assert code is ErrorCode.FENCED_INSTANCE_ID

    def test_parked_request_of_the_replaced_member_is_fenced(self, bench: Bench) -> None:
        first, _ = self.pair(bench)
        parked = bench.join(first.member_id, instance="i1")
        again = bench.join(instance="i1")
        assert error(parked) is ErrorCode.FENCED_INSTANCE_ID
        assert is_parked(again)

    def test_returning_leader_keeps_the_assignment_trap_54(self, bench: Bench) -> None:
        first, _ = self.pair(bench)
        back = done(bench.join(instance="i1", version=9))
        assert back.skip_assignment
        assert back.leader == back.member_id != first.member_id
        assert len(back.members) == 2
        assert done(bench.sync(back.member_id, 2, {}, instance="i1")).assignment == b"a"

    def test_returning_leader_before_version_9_is_no_leader_by_its_own_id(
        self, bench: Bench
    ) -> None:
        first, _ = self.pair(bench)
        back = done(bench.join(instance="i1", version=8))
        assert (back.leader, back.skip_assignment) == (first.member_id, False)
        assert not back.members
        # The group itself knows who leads: the next rebalance works.
        parked = bench.join(back.member_id, instance="i1", protocols={"range": b"new"})
        assert is_parked(parked)

    def test_other_subscription_alone_keeps_the_assignment(self, bench: Bench) -> None:
        self.pair(bench)
        back = done(bench.join(instance="i2", protocols={"range": b"other"}))
        assert back.generation_id == 2
        assert done(bench.sync(back.member_id, 2, instance="i2")).assignment == b"b"

    def test_other_protocol_rebalances(self, bench: Bench) -> None:
        both = {"range": b"sub", "sticky": b"sub"}
        self.pair(bench, protocols=both)
        assert is_parked(bench.join(instance="i2", protocols={"sticky": b"sub"}))
        assert bench.group_state() == "PreparingRebalance"

    def test_replacement_survives_a_restart(self, bench: Bench) -> None:
        _, second = self.pair(bench)
        back = done(bench.join(instance="i2"))
        bench.restart()
        assert bench.heartbeat(back.member_id, 2, instance="i2") is ErrorCode.NONE
        fenced = bench.heartbeat(second.member_id, 2, instance="i2")
        assert fenced is ErrorCode.FENCED_INSTANCE_ID

    def test_replacement_that_cannot_be_written_did_not_happen(self, bench: Bench) -> None:
        _, second = self.pair(bench)
        bench.disk.offsets.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert error(bench.join(instance="i2")) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert bench.heartbeat(second.member_id, 2, instance="i2") is ErrorCode.NONE

    def test_absent_static_member_keeps_its_place_through_a_rebalance(self, bench: Bench) -> None:
        first, _ = self.pair(bench, rebalance_ms=20_000, session_ms=60_000)
        parked = bench.join(first.member_id, instance="i1", rebalance_ms=20_000, session_ms=60_000)
        bench.pass_ms(20_000)
        members = {member.group_instance_id for member in done(parked).members}
        assert members == {"i1", "i2"}

    def test_barrier_goes_on_when_no_static_member_came(self, bench: Bench) -> None:
        self.pair(bench, rebalance_ms=20_000, session_ms=100_000)
        parked = bench.join(instance="i3", rebalance_ms=20_000, session_ms=100_000)
        assert isinstance(parked, Deferred)
        parked.disconnect()
        bench.pass_ms(25_000)
        assert bench.group_state() == "PreparingRebalance"
        back = bench.join(instance="i1", rebalance_ms=20_000, session_ms=100_000)
        bench.pass_ms(20_000)
        assert done(back).leader == done(back).member_id


class TestDisconnect:
    def test_parked_join_of_a_first_timer_without_id_leaves_no_member_trap_71(
        self, bench: Bench
    ) -> None:
        lead, _ = bench.stable_pair()
        parked = bench.join(version=3)
        assert isinstance(parked, Deferred)
        parked.disconnect()
        bench.pass_ms(0)
        assert len(bench.groups.admin.describe("g").members) == 2
        assert bench.heartbeat(lead.member_id, lead.generation_id) is (
            ErrorCode.REBALANCE_IN_PROGRESS
        )

    def test_member_with_an_id_may_come_back_within_its_session(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=10_000)
        parked = bench.join(lead.member_id, session_ms=10_000)
        assert isinstance(parked, Deferred)
        parked.disconnect()
        bench.join(follow.member_id, session_ms=10_000)
        again = bench.join(lead.member_id, session_ms=10_000)
        assert done(again).error_code is ErrorCode.NONE

    def test_member_with_an_id_that_stays_away_is_expelled(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=10_000)
        parked_lead = bench.join(lead.member_id, session_ms=10_000)
        parked = bench.join(instance="x", session_ms=10_000)
        assert isinstance(parked_lead, Deferred)
        parked_lead.disconnect()
        parked_follow = bench.join(follow.member_id, session_ms=10_000)
        bench.pass_ms(10_000)
        assert len(done(parked).members) + len(done(parked_follow).members) == 2

    def test_new_member_with_an_id_has_only_its_session(self, bench: Bench) -> None:
        bench.stable_pair()
        member_id = bench.new_id(session_ms=10_000)
        parked = bench.join(member_id, session_ms=10_000)
        assert isinstance(parked, Deferred)
        parked.disconnect()
        bench.pass_ms(10_001)
        assert error(bench.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_parked_sync_is_forgotten(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        parked_lead = bench.join(lead.member_id)
        bench.join(follow.member_id)
        generation = done(parked_lead).generation_id
        parked = bench.sync(follow.member_id, generation)
        assert isinstance(parked, Deferred)
        parked.disconnect()
        bench.sync(lead.member_id, generation, {follow.member_id: b"b"})
        assert done(bench.sync(follow.member_id, generation)).assignment == b"b"


class TestRestart:
    def test_stable_group_goes_on_with_generation_and_assignment(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        bench.restart()
        assert bench.group_state() == "Stable"
        assert bench.heartbeat(lead.member_id, lead.generation_id) is ErrorCode.NONE
        assert done(bench.sync(follow.member_id, follow.generation_id)).assignment == b"b"
        assert is_parked(bench.join(lead.member_id))

    def test_members_that_do_not_come_back_are_expelled(self, bench: Bench) -> None:
        bench.stable_pair(session_ms=10_000)
        bench.restart()
        bench.pass_ms(10_001)
        assert bench.group_state() == "Empty"

    def test_empty_group_keeps_its_generation(self, bench: Bench) -> None:
        joined = done(bench.join(instance="a"))
        done(bench.sync(joined.member_id, 1, instance="a"))
        bench.leave("", instance="a")
        bench.restart()
        assert bench.group_state() == "Empty"
        assert done(bench.join(instance="a")).generation_id == 3

    def test_close_gives_up_every_parked_answer(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        parked = bench.join(lead.member_id)
        bench.groups.close()
        assert error(parked) is ErrorCode.COORDINATOR_NOT_AVAILABLE
