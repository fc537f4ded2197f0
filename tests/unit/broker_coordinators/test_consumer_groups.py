"""Goal: consumer groups of KIP-848 follow Apache Kafka's rules (trap 58), also through restarts.

Method: the coordinator runs on storage in memory with a hand-moved clock (`coordinator_bench`);
members are clients that own what they may (`consumer_group_peer`). Codes and words were seen on
Apache Kafka 4.4. The last test is random: whatever happens, no partition has two owners, and in
quiet times everything is divided.
"""

from __future__ import annotations

import random
from uuid import UUID, uuid4

import pytest
from consumer_group_peer import Peer, beat, settle
from coordinator_bench import Bench, FakeTopics, ProcessDied

from onceflow.broker_lite.coordinators.consumer.group import ConsumerGroup, SubscriptionChange
from onceflow.broker_lite.coordinators.consumer.member import ConsumerMember
from onceflow.broker_lite.coordinators.consumer.reconciliation import reconcile
from onceflow.broker_lite.coordinators.consumer.records import encode_change
from onceflow.broker_lite.coordinators.consumer.states import MemberState
from onceflow.broker_lite.coordinators.consumer.topics import COMPILED_MAX
from onceflow.broker_lite.coordinators.offset_commits import Committer, OffsetToCommit
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

SESSION_MS = 45_000


@pytest.fixture
def bench() -> Bench:
    return Bench(topics=FakeTopics(a=4, b=3))


def group_of(bench: Bench, group_id: str = "g") -> ConsumerGroup:
    found = bench.groups.admin.describe_consumer(group_id)
    assert found is not None
    return found.group


def pair(bench: Bench, **options: object) -> tuple[Peer, Peer]:
    """Two members that share topic `a`."""
    one, two = Peer(bench, "m1", "a", **options), Peer(bench, "m2", "a", **options)  # type: ignore[arg-type]
    settle([one])
    settle([one, two])
    return one, two


class TestJoining:
    def test_first_member_gets_everything_at_once(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a")
        assert one.beat() is ErrorCode.NONE
        one.take()
        assert (one.epoch, one.numbers()) == (2, [0, 1, 2, 3])

    def test_member_without_topics_is_in_the_first_epoch(self, bench: Bench) -> None:
        answer = beat(bench, "m", 0, topics=(), owned={}, rebalance_timeout_ms=5_000)
        assert (answer.member_epoch, answer.assignment) == (1, {})

    def test_unchanged_assignment_is_not_told_trap_58(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a")
        one.beat()
        assert beat(bench, "m1", one.epoch).assignment is None

    def test_second_member_waits_for_what_the_first_gives_up_trap_58(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a")
        settle([one])
        two = Peer(bench, "m2", "a")
        two.step()
        assert two.numbers() == []
        one.beat()
        assert one.target is not None
        two.step()
        assert two.numbers() == [], "the first still works on everything"
        one.give_up()
        one.beat()
        two.step()
        assert len(one.numbers()) == len(two.numbers()) == 2
        assert not one.partitions() & two.partitions()
        assert group_of(bench).state.value == "Stable"

    def test_lost_answer_is_told_again(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a")
        settle([one])
        Peer(bench, "m2", "a").beat()
        one.beat(lose_answer=True)
        one.beat()
        assert one.target is not None
        assert len(one.target[next(iter(one.target))]) == 2

    def test_epoch_before_is_good_for_what_was_given_only_trap_58(self, bench: Bench) -> None:
        one, _two = pair(bench)
        epoch, owned = one.epoch, dict(one.owned)
        beat(bench, "m2", -1)
        beat(bench, "m1", epoch)
        answer = beat(bench, "m1", epoch, owned=owned)
        assert answer.error_code is ErrorCode.NONE
        assert answer.member_epoch == epoch + 1
        a_id = next(iter(owned))
        too_much = {a_id: frozenset(range(9))}
        answer = beat(bench, "m1", epoch, owned=too_much)
        assert answer.error_code is ErrorCode.FENCED_MEMBER_EPOCH
        assert beat(bench, "m1", epoch).error_code is ErrorCode.FENCED_MEMBER_EPOCH

    @pytest.mark.parametrize(
        ("said", "code", "words"),
        [
            ({"rebalance_timeout_ms": -1}, 42, "RebalanceTimeoutMs must be provided"),
            ({"owned": None}, 42, "TopicPartitions must be empty"),
            ({"owned": {UUID(int=1): frozenset([1])}}, 42, "TopicPartitions must be empty"),
            ({"topics": None}, 42, "Either SubscribedTopicNames or SubscribedTopicRegex"),
            ({"instance_id": ""}, 42, "InstanceId can't be empty."),
            ({"rack_id": ""}, 42, "RackId can't be empty."),
            ({"server_assignor": "no"}, 112, "Supported assignors: uniform, range."),
            ({"regex": "("}, 128, "`(` is not a valid regular expression: missing closing )."),
            ({"group_id": ""}, 42, "GroupId can't be empty."),
        ],
    )
    def test_refusals(self, bench: Bench, said: dict[str, object], code: int, words: str) -> None:
        full = {"topics": ("a",), "owned": {}, "rebalance_timeout_ms": 5_000}
        answer = beat(bench, "m", 0, **{**full, **said})
        assert answer.error_code == code
        assert words in (answer.error_message or "")

    def test_refused_epochs(self, bench: Bench) -> None:
        assert beat(bench, "", 0).error_message == "MemberId can't be empty."
        assert beat(bench, "m", -3).error_message == "MemberEpoch is invalid."
        assert beat(bench, "m", -2).error_message == "InstanceId can't be null."
        assert beat(bench, "m", 3).error_code is ErrorCode.GROUP_ID_NOT_FOUND
        pair(bench)
        assert beat(bench, "who", 3).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        answer = beat(bench, "m1", 99)
        assert answer.error_code is ErrorCode.FENCED_MEMBER_EPOCH
        assert "greater member epoch (99)" in (answer.error_message or "")

    def test_version_0_gets_an_id_from_the_coordinator(self, bench: Bench) -> None:
        full = {"topics": ("a",), "owned": {}, "rebalance_timeout_ms": 5_000}
        answer = beat(bench, "", 0, api_version=0, **full)
        assert answer.error_code is ErrorCode.NONE
        assert answer.member_id is not None
        assert beat(bench, answer.member_id, answer.member_epoch).error_code is ErrorCode.NONE

    def test_full_group(self) -> None:
        bench = Bench(
            topics=FakeTopics(a=1),
            group_settings=GroupSettings(consumer_max_size=1, consumer_assignment_interval_ms=0),
        )
        assert Peer(bench, "m1", "a").beat() is ErrorCode.NONE
        assert Peer(bench, "m2", "a").beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert Peer(bench, "m1", "a").beat() is ErrorCode.NONE

    def test_protocol_may_be_switched_off(self) -> None:
        bench = Bench(group_settings=GroupSettings(serves_consumer_protocol=False))
        assert Peer(bench, "m1", "a").beat() is ErrorCode.UNSUPPORTED_VERSION

    def test_divisions_keep_their_distance(self) -> None:
        bench = Bench(topics=FakeTopics(a=4), group_settings=GroupSettings())
        one, two = Peer(bench, "m1", "a"), Peer(bench, "m2", "a")
        one.beat()
        two.beat()
        assert group_of(bench).state.value == "Assigning"
        bench.pass_ms(1_000)
        one.beat()
        assert group_of(bench).state.value == "Reconciling"

    def test_a_clock_that_was_set_back_holds_up_no_division(self) -> None:
        """Found by simulation: a restart on an earlier clock left partitions without a reader."""
        bench = Bench(topics=FakeTopics(a=4), group_settings=GroupSettings())
        one, two = Peer(bench, "m1", "a"), Peer(bench, "m2", "a")
        one.beat()
        bench.now_ms -= 3_600_000
        bench.restart()
        one.beat()
        two.beat()
        assert group_of(bench).state.value == "Reconciling"


class TestStaticMembers:
    def test_return_moves_nothing(self, bench: Bench) -> None:
        one, two = pair(bench, instance=None)
        static = Peer(bench, "s1", "a", instance="i")
        settle([one, two, static])
        owned, epoch = static.numbers(), group_of(bench).group_epoch
        assert static.leave(-2) is ErrorCode.NONE
        back = Peer(bench, "s2", "a", instance="i")
        back.step()
        assert (back.numbers(), group_of(bench).group_epoch) == (owned, epoch)
        assert set(group_of(bench).members) == {"m1", "m2", "s2"}

    def test_name_in_use_trap_58(self, bench: Bench) -> None:
        settle([Peer(bench, "s1", "a", instance="i")])
        assert Peer(bench, "s2", "a", instance="i").beat() is ErrorCode.UNRELEASED_INSTANCE_ID
        assert beat(bench, "s2", 2, instance_id="i").error_code is ErrorCode.FENCED_INSTANCE_ID
        assert beat(bench, "s2", 2, instance_id="x").error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_away_for_longer_than_a_session(self, bench: Bench) -> None:
        static = Peer(bench, "s1", "a", instance="i")
        settle([static])
        static.leave(-2)
        bench.pass_ms(SESSION_MS)
        assert group_of(bench).state.value == "Empty"

    def test_old_process_is_fenced_by_its_own_goodbye(self, bench: Bench) -> None:
        static = Peer(bench, "s1", "a", instance="i")
        settle([static])
        epoch = static.epoch
        static.leave(-2)
        answer = beat(bench, "s1", epoch, instance_id="i")
        assert answer.error_code is ErrorCode.FENCED_MEMBER_EPOCH


class TestTimeouts:
    def test_silent_member_is_out(self, bench: Bench) -> None:
        one, _two = pair(bench)
        bench.pass_ms(SESSION_MS - 1)
        one.step()
        bench.pass_ms(1)
        settle([one])
        assert one.numbers() == [0, 1, 2, 3]

    def test_member_that_gives_nothing_up_is_out_after_its_rebalance_timeout(
        self, bench: Bench
    ) -> None:
        one = Peer(bench, "m1", "a", rebalance_ms=10_000)
        settle([one])
        two = Peer(bench, "m2", "a")
        two.step()
        one.beat()
        for _ in range(9):
            bench.pass_ms(1_000)
            one.beat()
        assert "m1" in group_of(bench).members
        bench.pass_ms(1_000)
        assert one.beat() is ErrorCode.UNKNOWN_MEMBER_ID
        settle([two])
        assert two.numbers() == [0, 1, 2, 3]

    def test_restart_gives_a_whole_session(self, bench: Bench) -> None:
        one, two = pair(bench)
        bench.pass_ms(SESSION_MS - 1)
        bench.restart()
        bench.pass_ms(SESSION_MS - 1)
        settle([one, two])
        assert group_of(bench).state.value == "Stable"
        bench.restart()
        bench.pass_ms(SESSION_MS)
        assert group_of(bench).state.value == "Empty"

    def test_member_is_out_although_the_log_refused_it_first(self, bench: Bench) -> None:
        pair(bench)
        bench.disk.offsets.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.pass_ms(SESSION_MS)
        assert set(group_of(bench).members) == {"m1", "m2"}
        bench.disk.offsets.fail_with = None
        bench.pass_ms(1_000)
        assert not group_of(bench).members


class TestTopics:
    def test_growth_is_divided(self, bench: Bench) -> None:
        one, two = pair(bench)
        bench.topics.create("a", 6)
        settle([one, two])
        assert sorted(one.numbers() + two.numbers()) == list(range(6))

    def test_topic_that_comes_later(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "later")
        settle([one])
        assert one.numbers() == []
        bench.topics.create("later", 2)
        settle([one])
        assert one.numbers() == [0, 1]

    def test_topic_made_anew_is_another_one(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a")
        settle([one])
        old = one.partitions()
        bench.topics.delete("a")
        bench.topics.create("a", 4)
        settle([one])
        assert one.numbers() == [0, 1, 2, 3]
        assert not one.partitions() & old

    def test_topic_no_longer_wanted_is_given_up(self, bench: Bench) -> None:
        one = Peer(bench, "m1", "a", "b")
        settle([one])
        one.topics = ("b",)
        settle([one])
        assert len(one.owned) == 1
        assert one.numbers() == [0, 1, 2]

    def test_pattern(self, bench: Bench) -> None:
        bench.topics.create("orders-1", 2)
        bench.topics.create("orders-2", 2)
        one = Peer(bench, "m1", regex="orders-.*")
        settle([one])
        assert one.numbers() == [0, 0, 1, 1]
        bench.topics.create("orders-3", 1)
        settle([one])
        assert one.numbers() == [0, 0, 0, 1, 1]
        bench.restart()
        bench.topics.delete("orders-1")
        settle([one])
        assert one.numbers() == [0, 0, 1]
        one.regex, one.topics = "", ("b",)
        settle([one])
        assert one.numbers() == [0, 1, 2]
        assert not group_of(bench).regexes

    def test_pattern_in_the_log_that_is_not_understood(self, bench: Bench) -> None:
        foreign = ConsumerMember("m1", regex=r"\p{L}+", rebalance_timeout_ms=60_000)
        key_value = encode_change("g", SubscriptionChange("m1", foreign))
        bench.disk.offsets.append(bench.groups.partition_for("g"), [key_value], bench.now_ms)
        bench.restart()
        answer = beat(bench, "m1", 0, topics=("a",), owned={}, rebalance_timeout_ms=5_000)
        assert answer.error_code is ErrorCode.NONE

    def test_patterns_that_are_kept_are_bounded(self, bench: Bench) -> None:
        topics = bench.groups.consumers.steps.topics
        for number in range(COMPILED_MAX + 10):
            topics.compile(f"a{number}")
        assert len(topics._compiled) <= COMPILED_MAX

    def test_assignor_of_the_majority(self, bench: Bench) -> None:
        peers = [Peer(bench, f"m{n}", "a", "b", assignor="range") for n in range(2)]
        settle(peers)
        found = bench.groups.admin.describe_consumer("g")
        assert found is not None
        assert found.assignor_name == "range"
        assert sorted(len(peer.partitions()) for peer in peers) == [3, 4]


class TestOffsets:
    def commit(self, bench: Bench, member_id: str, epoch: int, partition: int = 0) -> ErrorCode:
        tp = TopicPartition("a", partition)
        return bench.groups.offsets.commit(
            Committer("g", member_id, epoch), [OffsetToCommit(tp, 5)], bench.now_ms
        )[tp]

    def test_epochs_of_commits_trap_37(self, bench: Bench) -> None:
        one, two = pair(bench)
        mine, other = one.numbers()[0], two.numbers()[0]
        assert self.commit(bench, "m1", one.epoch) is ErrorCode.NONE
        assert self.commit(bench, "m1", one.epoch - 1, mine) is ErrorCode.NONE, "KIP-1251"
        assert self.commit(bench, "m1", one.epoch - 1, other) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(bench, "m1", one.epoch - 2, mine) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(bench, "m1", one.epoch + 1, mine) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(bench, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(bench, "who", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_older_requests_may_not_commit_for_members_trap_37(self, bench: Bench) -> None:
        one, _two = pair(bench)
        tp = TopicPartition("a", 0)
        codes = bench.groups.offsets.commit(
            Committer("g", "m1", one.epoch),
            [OffsetToCommit(tp, 5)],
            bench.now_ms,
            knows_member_epochs=False,
        )
        assert codes[tp] is ErrorCode.UNSUPPORTED_VERSION

    def test_transactional_commit_of_a_stale_member_trap_49(self, bench: Bench) -> None:
        one, _two = pair(bench)
        tp = TopicPartition("a", 0)
        for epoch, code in ((one.epoch, ErrorCode.NONE), (99, ErrorCode.ILLEGAL_GENERATION)):
            codes = bench.groups.offsets.commit_transactional(
                Committer("g", "m1", epoch), 1, 0, [OffsetToCommit(tp, 5)], bench.now_ms
            )
            assert codes[tp] is code

    def test_reading(self, bench: Bench) -> None:
        one, _two = pair(bench)
        check = bench.groups.offsets.check_reader
        assert check("g", None, -1) is ErrorCode.NONE
        assert check("g", "m1", one.epoch) is ErrorCode.NONE
        assert check("g", "m1", one.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
        assert check("g", "", -1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_offsets_survive_the_group_and_expire(self, bench: Bench) -> None:
        one, two = pair(bench)
        self.commit(bench, "m1", one.epoch)
        one.leave()
        two.leave()
        bench.restart()
        tp = TopicPartition("a", 0)
        found = bench.groups.offsets.fetch("g", [tp], require_stable=False)
        assert found[tp].committed_offset == 5
        bench.pass_ms(8 * 24 * 3_600_000)
        assert bench.groups.admin.describe_consumer("g") is None
        bench.restart()
        assert bench.groups.admin.list_groups() == []

    def test_offsets_of_read_topics_do_not_expire(self) -> None:
        bench = Bench(
            topics=FakeTopics(a=4, b=3),
            group_settings=GroupSettings(
                consumer_assignment_interval_ms=0,
                offsets_retention_ms=60_000,
                offsets_retention_check_interval_ms=10_000,
            ),
        )
        one, two = pair(bench)
        tp, unread = TopicPartition("a", 0), TopicPartition("b", 0)
        self.commit(bench, "m1", one.epoch)
        offsets = [OffsetToCommit(unread, 7)]
        bench.groups.offsets.commit(Committer("g", "m1", one.epoch), offsets, bench.now_ms)
        for _ in range(4):
            bench.pass_ms(20_000)
            settle([one, two])
        found = bench.groups.offsets.fetch("g", None, require_stable=False)
        assert set(found) == {tp}

    def test_deleting(self, bench: Bench) -> None:
        one, two = pair(bench)
        self.commit(bench, "m1", one.epoch)
        admin, tp = bench.groups.admin, TopicPartition("a", 0)
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert admin.delete_offsets("g", [tp], bench.now_ms) == {tp: subscribed}
        assert admin.delete("g", bench.now_ms) is ErrorCode.NON_EMPTY_GROUP
        assert admin.delete_offsets("no", [tp], bench.now_ms) is ErrorCode.GROUP_ID_NOT_FOUND
        one.leave()
        two.leave()
        assert admin.delete_offsets("g", [tp], bench.now_ms) == {tp: ErrorCode.NONE}
        assert admin.delete("g", bench.now_ms) is ErrorCode.NONE
        bench.restart()
        assert bench.groups.admin.list_groups() == []


@pytest.mark.parametrize("seed", range(12))
def test_nothing_has_two_owners_whatever_happens_trap_58(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(topics=FakeTopics(a=5, b=3), seed=seed)
    peers: list[Peer] = []
    made = 0
    for _ in range(250):
        action = rng.random()
        try:
            if rng.random() < 0.1:
                bench.disk.die_after = bench.disk.writes + rng.randint(1, 3)
            if action < 0.08 and len(peers) < 6:
                made += 1
                topics = rng.choice([("a",), ("b",), ("a", "b")])
                peers.append(Peer(bench, f"m{made}", *topics))
            elif action < 0.12 and peers:
                peers.pop(rng.randrange(len(peers))).leave()
            elif action < 0.14 and peers:
                peers.pop(rng.randrange(len(peers)))  # Killed: its session will end.
            elif action < 0.17:
                bench.topics.create(rng.choice("ab"), rng.randint(3, 9))
            elif action < 0.20:
                bench.restart()
            elif action < 0.24 and peers:
                rng.choice(peers).topics = rng.choice([("a",), ("b",), ("a", "b")])
            elif action < 0.30:
                bench.pass_ms(rng.choice([500, 5_000, 20_000]))
            elif peers:
                peer = rng.choice(peers)
                peer.beat(lose_answer=rng.random() < 0.2, full=rng.random() < 0.8)
                if rng.random() < 0.8:
                    peer.give_up()
                    peer.take()
        except ProcessDied:
            bench.restart()
        bench.disk.die_after = None
        live = [p for p in peers if p.member_id in _members(bench)]
        owned = [tp for peer in live for tp in peer.partitions()]
        assert len(owned) == len(set(owned)), f"seed {seed}: a partition has two owners"
    before = _standings(bench)
    bench.restart()
    assert _standings(bench) == before, "a restart changes nothing"
    bench.pass_ms(40_000)
    for peer in peers:
        peer.step()
    bench.pass_ms(5_000)
    if peers:
        settle(peers, 40)
        wanted = {t for peer in peers for t in peer.topics}
        counts = bench.groups.consumers.steps.topics.ids_of(wanted)
        assert sum(len(p.partitions()) for p in peers) == sum(counts.values())


def _members(bench: Bench) -> set[str]:
    found = bench.groups.admin.describe_consumer("g")
    return set() if found is None else set(found.group.members)


def _standings(bench: Bench) -> dict[str, object]:
    found = bench.groups.admin.describe_consumer("g")
    if found is None:
        return {}
    return {
        member_id: (member.subscription, member.standing, found.group.targets.get(member_id))
        for member_id, member in found.group.members.items()
    } | {"epochs": (found.group.group_epoch, found.group.assignment_epoch)}


def test_a_member_that_gave_up_what_it_had_to_goes_one_epoch_at_a_time() -> None:
    """Kafka's: it is told of epoch 6 before it has to give up more for epoch 8."""
    topic = uuid4()
    member = ConsumerMember(
        "m",
        member_epoch=5,
        previous_epoch=4,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={topic: {0: 5, 1: 5}},
        revoking={topic: {2: 5}},
    )
    owned = {topic: frozenset({0, 1})}
    target = {topic: frozenset({0})}
    moved = reconcile(member, 8, target, owned, lambda *_: False, lambda _: True)
    assert (moved.member_epoch, moved.state) == (6, MemberState.UNREVOKED_PARTITIONS)
    assert (moved.assigned, moved.revoking) == ({topic: {0: 5}}, {topic: {1: 5}})
    last = reconcile(moved, 8, target, target, lambda *_: False, lambda _: True)
    assert (last.member_epoch, last.state) == (8, MemberState.STABLE)
