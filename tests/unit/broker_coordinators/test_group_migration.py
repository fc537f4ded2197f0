"""Goal: a group changes its protocol while its members go on (KIP-848), both ways.

Method: members of both protocols on the coordinators' bench; answers were seen on Apache Kafka 4.4.
Each change is one batch: the process may die before or after it, never within.
"""

from __future__ import annotations

import pytest
from consumer_group_peer import Peer, beat, settle
from coordinator_bench import Bench, FakeTopics, ProcessDied, done, is_parked

from onceflow.broker_lite.coordinators.classic.group import JoinResult
from onceflow.broker_lite.coordinators.classic.subscription_metadata import (
    read_assignment,
    write_assignment,
)
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.consumer_protocol import ConsumerProtocolSubscription
from onceflow.sdk.protocol.error_codes import ErrorCode


def bench_with(policy: str = "bidirectional") -> Bench:
    return Bench(
        topics=FakeTopics(a=4),
        group_settings=GroupSettings(
            initial_rebalance_delay_ms=0,
            consumer_assignment_interval_ms=0,
            consumer_migration_policy=policy,
        ),
    )


@pytest.fixture
def bench() -> Bench:
    return bench_with()


def subscription(owned: list[int] | None = None, topic: str = "a") -> bytes:
    value = ConsumerProtocolSubscription(
        topics=[topic],
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=owned or [])
        ],
    )
    return b"\0\3" + value.encode(3)


def partitions(data: bytes) -> list[int]:
    found = read_assignment(data)
    assert found is not None
    return [tp.partition for tp in found[0]]


class Classic:
    """A member of the classic protocol, cooperative."""

    def __init__(self, bench: Bench, instance: str | None = None) -> None:
        self.bench = bench
        self.instance = instance
        self.member_id = ""
        self.generation_id = -1
        self.owned: list[int] = []

    def join(self) -> JoinResult:
        for _ in range(2):
            result = done(
                self.bench.join(
                    self.member_id,
                    instance=self.instance,
                    protocols={"range": subscription(self.owned)},
                )
            )
            self.member_id = result.member_id
            if result.error_code is not ErrorCode.MEMBER_ID_REQUIRED:
                break
        self.generation_id = result.generation_id
        return result

    def sync(self, assignments: dict[str, bytes] | None = None) -> ErrorCode:
        result = done(
            self.bench.sync(self.member_id, self.generation_id, assignments, instance=self.instance)
        )
        if result.error_code is ErrorCode.NONE:
            self.owned = partitions(result.assignment)
        return result.error_code

    def beat(self) -> ErrorCode:
        return self.bench.heartbeat(self.member_id, self.generation_id, instance=self.instance)

    def step(self) -> None:
        """Heartbeat, and whatever it asks for."""
        for _ in range(4):
            if self.beat() is not ErrorCode.REBALANCE_IN_PROGRESS:
                return
            if self.join().error_code is ErrorCode.NONE:
                self.sync()


def classic_group(bench: Bench, instance: str | None = None) -> Classic:
    """A stable classic group of one, with everything."""
    member = Classic(bench, instance)
    joined = member.join()
    assert joined.leader == joined.member_id
    member.sync({member.member_id: write_assignment({"a": range(4)}, 3)})
    assert member.owned == [0, 1, 2, 3]
    return member


def group_type(bench: Bench) -> str:
    return bench.groups.admin.list_groups()[0].group_type


def test_first_new_member_turns_the_group_and_nothing_is_read_twice(bench: Bench) -> None:
    old = classic_group(bench)
    new = Peer(bench, "n1", "a")
    new.step()
    assert (group_type(bench), new.numbers()) == ("consumer", [])
    for _ in range(4):
        old.step()
        assert not set(old.owned) & set(new.numbers())
        new.step()
        assert not set(old.owned) & set(new.numbers())
    assert sorted(old.owned + new.numbers()) == [0, 1, 2, 3]
    assert len(old.owned) == 2
    assert old.beat() is ErrorCode.NONE


@pytest.mark.parametrize("restart", [False, True])
def test_last_new_member_turns_it_back(bench: Bench, restart: bool) -> None:
    old = classic_group(bench)
    new = Peer(bench, "n1", "a")
    for _ in range(4):
        new.step()
        old.step()
    if restart:
        bench.restart()
        old.step()
        new.step()
    assert new.leave() is ErrorCode.NONE
    assert group_type(bench) == "classic"
    if restart:
        bench.restart()
    assert bench.group_state() == "PreparingRebalance"
    joined = old.join()
    assert joined.leader == old.member_id
    assert old.sync({old.member_id: write_assignment({"a": range(4)}, 3)}) is ErrorCode.NONE
    assert old.owned == [0, 1, 2, 3]


def test_restart_after_turning_back_leaves_no_partition_to_nobody(bench: Bench) -> None:
    """Of members that stay, static ones would keep their shares: nobody else asks for more."""
    stays = classic_group(bench, "s1")
    leaves = Peer(bench, "n1", "a")
    for _ in range(4):
        leaves.step()
        stays.step()
    assert leaves.numbers()
    leaves.leave()
    bench.restart()
    assert stays.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert stays.join().leader == stays.member_id
    stays.sync({stays.member_id: write_assignment({"a": range(4)}, 3)})
    bench.restart()  # That generation was divided, and stands.
    assert (stays.beat(), stays.owned) == (ErrorCode.NONE, [0, 1, 2, 3])


def test_silent_new_member_turns_it_back(bench: Bench) -> None:
    old = classic_group(bench)
    new = Peer(bench, "n1", "a")
    for _ in range(4):
        new.step()
        old.step()
    for _ in range(9):
        bench.pass_ms(5_000)
        old.step()
    assert group_type(bench) == "classic"


def test_silent_classic_member_is_out(bench: Bench) -> None:
    classic_group(bench)
    new = Peer(bench, "n1", "a")
    new.step()
    bench.pass_ms(10_000)
    settle([new])
    assert new.numbers() == [0, 1, 2, 3]


def test_classic_member_that_does_not_rejoin_in_time_is_out(bench: Bench) -> None:
    old = classic_group(bench)
    new = Peer(bench, "n1", "a")
    new.step()
    for _ in range(60):
        assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        bench.pass_ms(1_000)
        new.beat()
    assert old.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_classic_member_keeps_its_name(bench: Bench) -> None:
    old = classic_group(bench, "i")
    new = Peer(bench, "n1", "a")
    for _ in range(4):
        new.step()
        old.step()
    twin = Classic(bench, "i")
    assert twin.join().error_code is ErrorCode.NONE
    assert twin.sync() is ErrorCode.NONE
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert len(twin.owned) == 2
    assert bench.leave("", instance="i") is ErrorCode.NONE
    settle([new])
    assert new.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("state", ["has more", "has less", "gives up"])
def test_static_classic_member_goes_on_where_its_predecessor_stopped(
    bench: Bench, state: str
) -> None:
    """Found by simulation seed 40251: the successor stood in the target's epoch at once, and kept
    what others waited for, or never got its own. Apache Kafka 4.4 brings it to its target.
    """
    old, other = classic_group(bench, "i"), Peer(bench, "n1", "a")
    other.step()
    if state == "gives up":
        assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert old.join().error_code is ErrorCode.NONE
    elif state == "has less":
        guests = [Peer(bench, "n2", "a"), Peer(bench, "n3", "a")]
        for _ in range(4):
            for member in (*guests, other, old):
                member.step()
        assert len(old.owned) == 1
        for guest in guests:
            guest.leave()
        other.step()
    twin = Classic(bench, "i")
    assert twin.join().error_code is ErrorCode.NONE
    assert twin.sync() is ErrorCode.NONE
    for _ in range(4):
        other.step()
        twin.step()
    assert twin.beat() is ErrorCode.NONE
    assert len(twin.owned) == 2
    assert sorted(twin.owned + other.numbers()) == [0, 1, 2, 3]


def test_partitions_that_nobody_owned_between_two_rounds_are_divided(bench: Bench) -> None:
    """Found by simulation seed 209634: a cooperative group was turned between its two rounds, by a
    member that takes another's place, which asks for no division."""
    old = Classic(bench, "i")
    old.join()
    old.sync({old.member_id: write_assignment({"a": range(2)}, 3)})
    twin = Peer(bench, "n1", "a", instance="i")
    assert old.owned == [0, 1]
    for _ in range(4):
        twin.step()
    assert twin.numbers() == [0, 1, 2, 3]


def test_parked_requests_are_sent_back(bench: Bench) -> None:
    classic_group(bench)
    second = Classic(bench)
    second.member_id = bench.new_id()
    parked = bench.join(second.member_id, protocols={"range": subscription()})
    assert is_parked(parked)
    Peer(bench, "n1", "a").beat()
    assert done(parked).error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_policies() -> None:
    for policy, up in (("disabled", False), ("downgrade", False), ("upgrade", True)):
        bench = bench_with(policy)
        old = classic_group(bench)
        answer = beat(bench, "n1", 0, topics=("a",), owned={}, rebalance_timeout_ms=5_000)
        assert (answer.error_code is ErrorCode.NONE) is up
        if not up:
            assert "online upgrade is disabled" in (answer.error_message or "")
            continue
        for _ in range(3):
            old.step()
        beat(bench, "n1", -1)
        assert group_type(bench) == "consumer"


def test_groups_that_stay_classic(bench: Bench) -> None:
    full = {"topics": ("a",), "owned": {}, "rebalance_timeout_ms": 5_000}
    done(bench.join(version=3, protocol_type="connect"))
    answer = beat(bench, "n1", 0, **full)
    assert answer.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert "does not use the consumer embedded protocol" in (answer.error_message or "")
    custom = Bench(topics=FakeTopics(a=4))
    member = Classic(custom)
    member.join()
    data = write_assignment({"a": [0]}, 3)[:-4] + b"\0\0\0\1x"
    member.sync({member.member_id: data})
    answer = beat(custom, "n1", 0, **full)
    assert "custom assignor" in (answer.error_message or "")
    assert "not a consumer group" in (beat(custom, "n1", 3).error_message or "")


def test_empty_groups_change_without_any_ado(bench: Bench) -> None:
    old = classic_group(bench)
    bench.leave(old.member_id)
    new = Peer(bench, "n1", "a")
    settle([new])
    assert group_type(bench) == "consumer"
    new.leave()
    bench.restart()
    assert classic_group(bench).owned == [0, 1, 2, 3]
    assert group_type(bench) == "classic"


def test_offsets_go_along(bench: Bench) -> None:
    from onceflow.broker_lite.coordinators.offset_commits import Committer, OffsetToCommit

    old = classic_group(bench)
    tp = TopicPartition("a", 0)
    committer = Committer("g", old.member_id, old.generation_id)
    bench.groups.offsets.commit(committer, [OffsetToCommit(tp, 9)], bench.now_ms)
    new = Peer(bench, "n1", "a")
    new.step()
    bench.restart()
    found = bench.groups.offsets.fetch("g", [tp], require_stable=True)
    assert found[tp].committed_offset == 9


def test_death_at_each_write_leaves_one_group() -> None:
    for writes in range(1, 12):
        bench = bench_with()
        old = classic_group(bench)
        new = Peer(bench, "n1", "a")
        bench.disk.die_after = bench.disk.writes + writes
        died = False
        for step in (new.step, old.step, new.step, old.step, new.step, new.leave, old.step):
            try:
                step()
            except ProcessDied:
                died = True
                bench.restart()
        bench.disk.die_after = None
        assert len(bench.groups.admin.list_groups()) == 1
        if not died:
            return
    raise AssertionError("the walk is longer than the bound")
