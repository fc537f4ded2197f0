"""Committed offsets: who may commit, what a fetch shows, transactions, expiry, restart.

Method: the coordinators run on storage in memory with a hand-moved clock (`coordinator_bench`);
tests are named after the trap where there is one.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from coordinator_bench import Bench, done

from onceflow.broker_lite.coordinators.classic.subscription_metadata import subscribed_topics
from onceflow.broker_lite.coordinators.group_records import decode_offset, offset_record
from onceflow.broker_lite.coordinators.offset_commits import (
    Committer,
    FetchedOffset,
    OffsetToCommit,
)
from onceflow.broker_lite.coordinators.offsets import CommittedOffset
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
SIMPLE = Committer("g")
DAY_MS = 86_400_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


def commit(
    bench: Bench,
    offset: int,
    committer: Committer = SIMPLE,
    partition: TopicPartition = P0,
    *,
    metadata: str | None = None,
    retention_ms: int = -1,
) -> ErrorCode:
    wanted = [OffsetToCommit(partition, offset, 5, metadata)]
    codes = bench.groups.offsets.commit(committer, wanted, bench.now_ms, retention_ms=retention_ms)
    return codes[partition]


def commit_in_transaction(
    bench: Bench,
    offset: int,
    identity: tuple[int, int],
    committer: Committer = SIMPLE,
    partition: TopicPartition = P0,
) -> ErrorCode:
    """AddOffsetsToTxn and TxnOffsetCommit."""
    index = bench.groups.partition_for(committer.group_id)
    code = bench.add(*identity, TopicPartition(OFFSETS_TOPIC, index))
    assert code is ErrorCode.NONE
    codes = bench.groups.offsets.commit_transactional(
        committer, *identity, [OffsetToCommit(partition, offset)], bench.now_ms
    )
    return codes[partition]


def fetch(
    bench: Bench, partition: TopicPartition = P0, *, stable: bool = False, group_id: str = "g"
) -> FetchedOffset:
    return bench.groups.offsets.fetch(group_id, [partition], require_stable=stable)[partition]


class TestPlainCommit:
    def test_offset_epoch_and_metadata_are_kept_trap_37(self, bench: Bench) -> None:
        assert commit(bench, 42, metadata="note") is ErrorCode.NONE
        assert fetch(bench) == (ErrorCode.NONE, 42, 5, "note")

    def test_nothing_committed_is_minus_one_without_error_trap_36(self, bench: Bench) -> None:
        assert fetch(bench, group_id="unknown") == (ErrorCode.NONE, -1, -1, "")
        commit(bench, 1)
        assert fetch(bench, P1) == (ErrorCode.NONE, -1, -1, "")

    @pytest.mark.parametrize("of_two", ["xx", "éé", "\N{GRINNING FACE}"])  # As Java counts them.
    def test_metadata_too_large_fails_only_its_partition_trap_37(
        self, bench: Bench, of_two: str
    ) -> None:
        fits = of_two * 2_048
        codes = bench.groups.offsets.commit(
            SIMPLE,
            [OffsetToCommit(P0, 1, -1, fits + "x"), OffsetToCommit(P1, 2, -1, fits)],
            bench.now_ms,
        )
        assert codes == {P0: ErrorCode.OFFSET_METADATA_TOO_LARGE, P1: ErrorCode.NONE}
        assert fetch(bench).committed_offset == -1

    def test_simple_consumer_needs_an_empty_group_trap_37(self, bench: Bench) -> None:
        bench.stable_pair()
        assert commit(bench, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_generation_of_an_unknown_group(self, bench: Bench) -> None:
        assert commit(bench, 1, Committer("g", "m", 3)) is ErrorCode.ILLEGAL_GENERATION

    def test_member_checks(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        good = Committer("g", lead.member_id, lead.generation_id)
        assert commit(bench, 1, good) is ErrorCode.NONE
        old = good._replace(generation_id=lead.generation_id - 1)
        assert commit(bench, 1, old) is ErrorCode.ILLEGAL_GENERATION
        assert commit(bench, 1, good._replace(member_id="who")) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_fenced_static_member(self, bench: Bench) -> None:
        first = done(bench.join(instance="i"))
        done(bench.sync(first.member_id, 1, instance="i"))
        done(bench.join(instance="i"))
        fenced = commit(bench, 1, Committer("g", first.member_id, 1, "i"))
        assert fenced is ErrorCode.FENCED_INSTANCE_ID

    def test_states_of_a_rebalance_trap_55(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        parked = bench.join(lead.member_id)
        old = Committer("g", follow.member_id, follow.generation_id)
        assert commit(bench, 1, old) is ErrorCode.NONE
        bench.join(follow.member_id)
        new = old._replace(generation_id=done(parked).generation_id)
        assert commit(bench, 2, new) is ErrorCode.REBALANCE_IN_PROGRESS
        assert fetch(bench).committed_offset == 1

    def test_expelled_member_cannot_commit_fc_25(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair(session_ms=6_000)
        bench.pass_ms(5_000)
        bench.heartbeat(lead.member_id, lead.generation_id)
        bench.pass_ms(5_000)
        late = commit(bench, 1, Committer("g", follow.member_id, follow.generation_id))
        assert late in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)

    def test_a_commit_is_a_sign_of_life(self, bench: Bench) -> None:
        joined = done(bench.join(instance="a", session_ms=10_000))
        done(bench.sync(joined.member_id, 1, instance="a"))
        committer = Committer("g", joined.member_id, 1, "a")
        for offset in range(5):
            bench.pass_ms(8_000)
            assert commit(bench, offset, committer) is ErrorCode.NONE

    def test_storage_failure_shows_nothing(self, bench: Bench) -> None:
        bench.disk.offsets.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert commit(bench, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fetch(bench).committed_offset == -1
        assert bench.group_state() == "Dead"

    def test_survives_a_restart(self, bench: Bench) -> None:
        commit(bench, 7, metadata="m")
        commit(bench, 8, partition=P1)
        bench.restart()
        assert fetch(bench) == (ErrorCode.NONE, 7, 5, "m")
        assert bench.groups.offsets.fetch("g", None, require_stable=True).keys() == {P0, P1}


class TestTransactionalCommit:
    def test_pending_until_the_commit_marker_trap_38(self, bench: Bench) -> None:
        identity = bench.identity()
        commit(bench, 1)
        assert commit_in_transaction(bench, 10, identity) is ErrorCode.NONE
        assert fetch(bench).committed_offset == 1
        bench.end(*identity)
        assert fetch(bench).committed_offset == 10

    def test_dropped_on_abort_trap_38(self, bench: Bench) -> None:
        identity = bench.identity()
        commit_in_transaction(bench, 10, identity)
        bench.end(*identity, committed=False)
        assert fetch(bench, stable=True) == (ErrorCode.NONE, -1, -1, "")

    def test_unstable_only_for_its_partition_trap_36(self, bench: Bench) -> None:
        identity = bench.identity()
        commit(bench, 1)
        commit(bench, 2, partition=P1)
        commit_in_transaction(bench, 10, identity)
        unstable = fetch(bench, stable=True)
        assert unstable == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1, -1, "")
        assert fetch(bench, P1, stable=True).committed_offset == 2
        everything = bench.groups.offsets.fetch("g", None, require_stable=True)
        assert everything[P0].error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT

    @pytest.mark.parametrize("committed", [True, False])
    def test_survives_a_restart_pending_trap_38(self, bench: Bench, committed: bool) -> None:
        identity = bench.identity()
        commit_in_transaction(bench, 10, identity)
        bench.restart()
        assert fetch(bench, stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        bench.end(*identity, committed=committed)
        expected = 10 if committed else -1
        assert fetch(bench, stable=True).committed_offset == expected
        bench.restart()
        assert fetch(bench, stable=True).committed_offset == expected

    @pytest.mark.parametrize("restart", [False, True])
    def test_later_plain_commit_beats_an_earlier_pending_one_trap_38(
        self, bench: Bench, restart: bool
    ) -> None:
        identity = bench.identity()
        commit_in_transaction(bench, 10, identity)
        commit(bench, 20)
        bench.end(*identity)
        if restart:
            bench.restart()
        assert fetch(bench).committed_offset == 20

    def test_several_commits_in_one_transaction(self, bench: Bench) -> None:
        identity = bench.identity()
        commit_in_transaction(bench, 10, identity)
        commit_in_transaction(bench, 11, identity)
        commit_in_transaction(bench, 5, identity, partition=P1)
        bench.end(*identity)
        assert fetch(bench).committed_offset == 11
        assert fetch(bench, P1).committed_offset == 5

    def test_two_groups_in_one_transaction(self, bench: Bench) -> None:
        identity = bench.identity()
        for group_id in ("a", "b", "c", "d", "e"):
            commit_in_transaction(bench, 3, identity, Committer(group_id))
        bench.end(*identity)
        for group_id in ("a", "b", "c", "d", "e"):
            assert fetch(bench, group_id=group_id).committed_offset == 3

    def test_member_fencing_trap_49(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        identity = bench.identity()
        good = Committer("g", lead.member_id, lead.generation_id)
        assert commit_in_transaction(bench, 1, identity, good) is ErrorCode.NONE
        old = good._replace(generation_id=lead.generation_id - 1)
        assert commit_in_transaction(bench, 2, identity, old) is ErrorCode.ILLEGAL_GENERATION
        who = good._replace(member_id="who")
        assert commit_in_transaction(bench, 2, identity, who) is ErrorCode.UNKNOWN_MEMBER_ID
        copied = good._replace(group_instance_id="none")
        assert commit_in_transaction(bench, 2, identity, copied) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_not_held_to_the_state_of_the_group_trap_55(self, bench: Bench) -> None:
        lead, follow = bench.stable_pair()
        parked = bench.join(lead.member_id)
        bench.join(follow.member_id)
        assert bench.group_state() == "CompletingRebalance"
        identity = bench.identity()
        committer = Committer("g", lead.member_id, done(parked).generation_id)
        assert commit_in_transaction(bench, 1, identity, committer) is ErrorCode.NONE

    def test_clients_before_kip_447_carry_no_member(self, bench: Bench) -> None:
        bench.stable_pair()
        assert commit_in_transaction(bench, 1, bench.identity()) is ErrorCode.NONE

    def test_fenced_producer_cannot_reach_the_log(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity()
        commit_in_transaction(bench, 1, (producer_id, epoch))
        bench.identity()  # a second instance takes over
        codes = bench.groups.offsets.commit_transactional(
            SIMPLE, producer_id, epoch, [OffsetToCommit(P0, 9)], bench.now_ms
        )
        assert codes == {P0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert fetch(bench, stable=True) == (ErrorCode.NONE, -1, -1, "")


class TestAdministration:
    def test_delete_group_and_its_offsets(self, bench: Bench) -> None:
        commit(bench, 1)
        assert bench.groups.admin.delete("g", bench.now_ms) is ErrorCode.NONE
        assert bench.group_state() == "Dead"
        bench.restart()
        assert bench.group_state() == "Dead"
        assert fetch(bench).committed_offset == -1

    def test_delete_errors(self, bench: Bench) -> None:
        admin = bench.groups.admin
        assert admin.delete("", bench.now_ms) is ErrorCode.GROUP_ID_NOT_FOUND
        assert admin.delete("none", bench.now_ms) is ErrorCode.GROUP_ID_NOT_FOUND
        bench.stable_pair()
        assert admin.delete("g", bench.now_ms) is ErrorCode.NON_EMPTY_GROUP

    @pytest.mark.parametrize("restart", [False, True])
    def test_deleted_group_is_not_revived_by_a_late_marker(
        self, bench: Bench, restart: bool
    ) -> None:
        identity = bench.identity()
        commit_in_transaction(bench, 1, identity)
        bench.groups.admin.delete("g", bench.now_ms)
        if restart:
            bench.restart()
        bench.end(*identity)
        assert bench.group_state() == "Dead"

    def test_describe(self, bench: Bench) -> None:
        lead, _ = bench.stable_pair()
        described = bench.groups.admin.describe("g")
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        assert described.members[0].member_metadata == b"sub"
        assert described.members[0].client_host == "/127.0.0.1"
        bench.join(lead.member_id)
        described = bench.groups.admin.describe("g")
        assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
        assert described.members[0].member_metadata == b""

    def test_list_filters(self, bench: Bench) -> None:
        bench.stable_pair()
        commit(bench, 1, Committer("plain"))
        admin = bench.groups.admin
        assert {g.group_id for g in admin.list_groups()} == {"g", "plain"}
        assert [g.group_id for g in admin.list_groups(["stable"])] == ["g"]
        assert [g.group_id for g in admin.list_groups(["Empty"], ["Classic"])] == ["plain"]
        assert admin.list_groups(type_filters=["consumer"]) == []

    def test_offsets_of_a_deleted_topic_go(self, bench: Bench) -> None:
        commit(bench, 1)
        commit(bench, 2, partition=TopicPartition("other", 0))
        bench.groups.admin.on_topics_deleted(["in"], bench.now_ms)
        bench.restart()
        assert bench.groups.offsets.fetch("g", None, require_stable=False).keys() == {
            TopicPartition("other", 0)
        }


class TestExpiry:
    def test_offsets_go_seven_days_after_the_group_is_empty(self, bench: Bench) -> None:
        joined = done(bench.join(instance="a"))
        done(bench.sync(joined.member_id, 1, instance="a"))
        commit(bench, 1, Committer("g", joined.member_id, 1, "a"))
        bench.pass_ms(9_000)
        bench.leave("", instance="a")
        bench.pass_ms(7 * DAY_MS - 1_000)
        assert fetch(bench).committed_offset == 1
        bench.pass_ms(700_000)
        assert fetch(bench).committed_offset == -1
        assert bench.group_state() == "Dead"
        bench.restart()
        assert bench.group_state() == "Dead"

    def test_simple_commits_count_from_the_commit(self, bench: Bench) -> None:
        commit(bench, 1)
        bench.pass_ms(4 * DAY_MS)
        commit(bench, 2, partition=P1)
        bench.pass_ms(4 * DAY_MS)
        assert fetch(bench).committed_offset == -1
        assert fetch(bench, P1).committed_offset == 2

    def test_time_given_by_the_client(self, bench: Bench) -> None:
        commit(bench, 1, retention_ms=3_600_000)
        bench.restart()
        bench.pass_ms(3_000_000)
        assert fetch(bench).committed_offset == 1
        bench.pass_ms(1_300_000)
        assert fetch(bench).committed_offset == -1

    def test_pending_offsets_do_not_expire(self) -> None:
        bench = Bench(group_settings=GroupSettings(offsets_retention_ms=1_000))
        identity = bench.identity(timeout_ms=900_000)
        commit(bench, 1)
        commit_in_transaction(bench, 2, identity)
        bench.pass_ms(700_000)
        bench.end(*identity)
        assert fetch(bench).committed_offset == 2

    def test_stable_group_loses_only_topics_it_no_longer_reads(self) -> None:
        bench = Bench(
            group_settings=GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=100_000)
        )
        subscription = b"\x00\x03\x00\x00\x00\x01\x00\x02in\xff\xff\xff\xff trailing"
        options = {"protocols": {"range": subscription}, "session_ms": 1_800_000}
        joined = done(bench.join(instance="a", **options))  # type: ignore[arg-type]
        done(bench.sync(joined.member_id, 1, instance="a"))
        committer = Committer("g", joined.member_id, 1, "a")
        commit(bench, 1, committer)
        commit(bench, 2, committer, TopicPartition("old", 0))
        bench.pass_ms(700_000)
        assert bench.groups.offsets.fetch("g", None, require_stable=False).keys() == {P0}


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\x00\x00\x00\x00\x00\x02\x00\x01a\x00\x02bb\x00\x00\x00\x00", {"a", "bb"}),
        (b"\x00\x63\x00\x00\x00\x01\x00\x01a what comes later", {"a"}),
        (b"\x00\x00\x00\x00\x00\x00", set()),
        (b"", None),
        (b"\x00\x00\x00\x00\x00\x02\x00\x01a", None),
        (b"\x00\x00\x7f\xff\xff\xff\x00\x01a", None),
        (b"\x00\x00\x00\x00\x00\x01\x00\x05ab", None),
        (b"\x00\x00\x00\x00\x00\x01\x00\x01\xff", None),
    ],
)
def test_subscription_is_read_as_far_as_needed_trap_60(
    metadata: bytes, topics: set[str] | None
) -> None:
    assert subscribed_topics(metadata) == topics


ORACLE_TOPIC_ID = UUID("7a7b04bb-8417-444e-9dce-422a6953ddaa")
"""Of the topic `offsets` that groups of an Apache Kafka 4.4.0 committed to."""


@pytest.mark.parametrize(
    ("stored", "version", "offset"),
    [
        (  # By OffsetCommit 8, 9 and 10 alike.
            "00040000000000000000ffffffff026d000001a221317dfa0100107a7b04bb8417444e9dce422a6953ddaa",
            4,
            CommittedOffset(0, -1, "m", 0x1A221317DFA, topic_id=ORACLE_TOPIC_ID),
        ),
        (  # By TxnOffsetCommit.
            "00040000000000000000ffffffff01000001a22131c3200100107a7b04bb8417444e9dce422a6953ddaa",
            4,
            CommittedOffset(0, -1, "", 0x1A22131C320, topic_id=ORACLE_TOPIC_ID),
        ),
        ("0003000000000000002a0000000500016d0000000000000007", 3, CommittedOffset(42, 5, "m", 7)),
        (
            "0001000000000000002a00016d00000000000000070000000000000009",
            1,
            CommittedOffset(42, -1, "m", 7, 9),
        ),
    ],
)
def test_offsets_are_stored_as_kafka_stores_them(
    stored: str, version: int, offset: CommittedOffset
) -> None:
    record = offset_record("g", TopicPartition("offsets", 0), offset)
    assert record.value is not None
    assert record.value.hex() == stored
    assert int.from_bytes(record.value[:2], "big") == version
    assert decode_offset(record.value, offset.log_offset) == offset


def test_a_commit_is_stored_with_the_id_of_its_topic(bench: Bench) -> None:
    topic_id = bench.topics.create("in", 2)
    identity = bench.identity()
    assert commit(bench, 1) is ErrorCode.NONE
    assert commit_in_transaction(bench, 2, identity, partition=P1) is ErrorCode.NONE
    assert commit(bench, 3, partition=TopicPartition("unknown", 0)) is ErrorCode.NONE
    bench.end(*identity)
    bench.restart()
    group = bench.groups.offsets._table.find("g")
    assert group is not None
    found = {str(partition): kept.topic_id for partition, kept in group.offsets.committed.items()}
    assert found == {"in-0": topic_id, "in-1": topic_id, "unknown-0": ZERO_UUID}
