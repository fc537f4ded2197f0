"""Goal: assignors divide partitions completely, disjointly, evenly, and move as few as possible.

Method: known small cases by hand, properties over random groups with hypothesis, and for the
cooperative assignor a simulation of both rounds. The wire format is compared with kafka-python's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.sdk.core.group.assignors import (
    ASSIGNORS,
    Assignment,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from onceflow.sdk.core.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as ForeignAssignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as ForeignSubscription


def tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def member(
    name: str, topics: str = "t", owned: Sequence[TopicPartition] = (), generation: int = -1
) -> MemberSubscription:
    return MemberSubscription(name, frozenset(topics.split()), tuple(owned), generation)


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assignment.values())


# --- by hand ---


def test_range_gives_the_first_members_one_more() -> None:
    assignment = RangeAssignor().assign({"t": 5}, [member("b"), member("a")])
    assert assignment == {"a": [tp("t", 0), tp("t", 1), tp("t", 2)], "b": [tp("t", 3), tp("t", 4)]}


def test_range_keeps_equal_indexes_of_topics_together() -> None:
    members = [member("a", "t u"), member("b", "t u")]
    assignment = RangeAssignor().assign({"t": 2, "u": 2}, members)
    assert assignment["a"] == [tp("t", 0), tp("u", 0)]


def test_static_members_come_first_and_by_their_instance_id() -> None:
    static = MemberSubscription("z", frozenset({"t"}), group_instance_id="i1")
    assignment = RangeAssignor().assign({"t": 1}, [member("a"), static])
    assert assignment == {"z": [tp("t", 0)], "a": []}


def test_round_robin_skips_members_that_do_not_read_a_topic() -> None:
    members = [member("a", "t"), member("b", "t u"), member("c", "u")]
    assignment = RoundRobinAssignor().assign({"t": 2, "u": 3}, members)
    assert assignment == {
        "a": [tp("t", 0)],
        "b": [tp("t", 1), tp("u", 1)],
        "c": [tp("u", 0), tp("u", 2)],
    }


def test_a_topic_that_does_not_exist_is_nobodys() -> None:
    for assignor in ASSIGNORS.values():
        assert assignor.assign({"t": 1}, [member("a", "t missing")]) == {"a": [tp("t", 0)]}


def test_sticky_moves_only_what_a_newcomer_needs() -> None:
    held = {name: [tp("t", 3 * i + k) for k in range(3)] for i, name in enumerate("abc")}
    members = [member(name, "t", owned, 7) for name, owned in held.items()] + [member("d")]
    assignment = StickyAssignor().assign({"t": 9}, members)
    assert loads(assignment) == [2, 2, 2, 3]
    for name, owned in held.items():
        assert set(assignment[name]) <= set(owned)


def test_sticky_shifts_load_over_a_third_member() -> None:
    # a can give only t, b takes t and u, c only u: evenness needs a chain of two moves.
    owned_a = [tp("t", 0), tp("t", 1), tp("t", 2)]
    members = [
        member("a", "t", owned_a, 1),
        member("b", "t u", [tp("u", 0), tp("u", 1)], 1),
        member("c", "u", [tp("u", 2)], 1),
    ]
    assert loads(StickyAssignor().assign({"t": 3, "u": 3}, members)) == [2, 2, 2]


def test_a_claim_of_an_older_generation_does_not_count() -> None:
    members = [member("a", "t", [tp("t", 0)], 4), member("b", "t", [tp("t", 0)], 5)]
    assert StickyAssignor().assign({"t": 1}, members) == {"a": [], "b": [tp("t", 0)]}


def test_cooperative_withholds_a_partition_from_its_next_owner_until_it_was_given_up() -> None:
    owned = [tp("t", 0), tp("t", 1)]
    assignor = CooperativeStickyAssignor()
    first = assignor.assign({"t": 2}, [member("a", "t", owned, 3), member("b")])
    assert first["b"] == []
    (kept,) = first["a"]
    second = assignor.assign({"t": 2}, [member("a", "t", [kept], 4), member("b")])
    assert second == {"a": [kept], "b": [p for p in owned if p != kept]}


def test_cooperative_lets_the_valid_owner_keep_what_a_stale_member_claims_too() -> None:
    members = [member("a", "t", [tp("t", 0)], 5), member("b", "t", [tp("t", 0)], 4)]
    assert CooperativeStickyAssignor().assign({"t": 1}, members)["a"] == [tp("t", 0)]


def test_cooperative_gives_a_partition_that_two_claim_equally_to_nobody_at_first() -> None:
    members = [member("a", "t", [tp("t", 0)], 5), member("b", "t", [tp("t", 0)], 5)]
    assert loads(CooperativeStickyAssignor().assign({"t": 1}, members)) == [0, 0]


# --- properties ---

TOPICS = ("p", "q", "r", "s")


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], list[MemberSubscription]]:
    counts = {topic: draw(st.integers(1, 7)) for topic in TOPICS}
    names = [f"m{i}" for i in range(draw(st.integers(1, 6)))]
    same = draw(st.booleans())
    topics_of = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    common = draw(topics_of)
    free = [tp(topic, p) for topic, count in counts.items() for p in range(count)]
    members = []
    for name in names:
        owned = [p for p in free if draw(st.integers(0, 3)) == 0]
        free = [p for p in free if p not in owned]
        topics = common if same else draw(topics_of)
        members.append(
            MemberSubscription(name, topics, tuple(p for p in owned if p.topic in topics), 1)
        )
    return counts, members


def check_complete_and_disjoint(
    counts: Mapping[str, int], members: Sequence[MemberSubscription], assignment: Assignment
) -> None:
    given_out = [partition for partitions in assignment.values() for partition in partitions]
    wanted = frozenset[str]().union(*(m.topics for m in members))
    assert sorted(given_out) == sorted(tp(t, p) for t in wanted for p in range(counts[t]))
    assert assignment.keys() == {m.member_id for m in members}
    topics = {m.member_id: m.topics for m in members}
    for member_id, partitions in assignment.items():
        assert {partition.topic for partition in partitions} <= topics[member_id]


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@given(group=groups())
def test_every_partition_has_exactly_one_reader(
    name: str, group: tuple[dict[str, int], list[MemberSubscription]]
) -> None:
    counts, members = group
    check_complete_and_disjoint(counts, members, ASSIGNORS[name].assign(counts, members))


@given(group=groups())
def test_sticky_is_even_for_equal_subscriptions(
    group: tuple[dict[str, int], list[MemberSubscription]],
) -> None:
    counts, members = group
    if len({m.topics for m in members}) == 1:
        found = loads(StickyAssignor().assign(counts, members))
        assert found[-1] - found[0] <= 1


@given(group=groups())
def test_no_chain_of_moves_would_make_sticky_more_even(
    group: tuple[dict[str, int], list[MemberSubscription]],
) -> None:
    counts, members = group
    assignment = StickyAssignor().assign(counts, members)
    topics = {m.member_id: m.topics for m in members}
    for giver, partitions in assignment.items():
        seen, queue = {giver}, [giver]
        while queue:
            movable = {p.topic for p in assignment[queue.pop()]}
            for name, own in topics.items():
                if name not in seen and movable & own:
                    assert len(assignment[name]) >= len(partitions) - 1
                    seen.add(name)
                    queue.append(name)


@given(group=groups())
def test_sticky_keeps_an_even_assignment_as_it_is(
    group: tuple[dict[str, int], list[MemberSubscription]],
) -> None:
    counts, members = group
    first = StickyAssignor().assign(counts, members)
    again = [
        MemberSubscription(m.member_id, m.topics, tuple(first[m.member_id]), 2) for m in members
    ]
    assert StickyAssignor().assign(counts, again) == first


@given(group=groups())
def test_sticky_moves_no_more_than_evenness_asks_for(
    group: tuple[dict[str, int], list[MemberSubscription]],
) -> None:
    counts, members = group
    if len({m.topics for m in members}) > 1:
        return
    assignment = StickyAssignor().assign(counts, members)
    quota = max(loads(assignment))
    for m in members:
        lost = set(m.owned_partitions) - set(assignment[m.member_id])
        assert not lost or len(assignment[m.member_id]) >= quota - 1


@settings(max_examples=60)
@given(group=groups(), leaver=st.integers(0, 5), newcomer=st.booleans())
def test_cooperative_rounds_never_share_a_partition_and_end_even(
    group: tuple[dict[str, int], list[MemberSubscription]], leaver: int, newcomer: bool
) -> None:
    counts, members = group
    if len(members) > 1:
        members = [m for i, m in enumerate(members) if i != leaver]
    if newcomer:
        members.append(MemberSubscription("new", members[0].topics))
    assignor = CooperativeStickyAssignor()
    held = {m.member_id: set(m.owned_partitions) for m in members}
    for generation in range(2, 10):
        assignment = assignor.assign(counts, members)
        # While some still read what they are about to give up, nobody else gets it.
        reading = {m: held[m] | set(assignment[m]) for m in held}
        everyone = [partition for partitions in reading.values() for partition in partitions]
        assert len(everyone) == len(set(everyone))
        revoked = any(held[m] - set(assignment[m]) for m in held)
        held = {m: set(partitions) for m, partitions in assignment.items()}
        members = [
            MemberSubscription(m.member_id, m.topics, tuple(held[m.member_id]), generation)
            for m in members
        ]
        if not revoked:
            break
    else:
        pytest.fail("the rounds did not end")
    check_complete_and_disjoint(counts, members, assignment)


def test_ten_thousand_partitions_are_divided_quickly() -> None:
    members = [member(f"m{i:03}", "t") for i in range(50)]
    first = StickyAssignor().assign({"t": 5_000}, members)
    members = [member(name, "t", owned, 1) for name, owned in first.items()][:45]
    assert max(loads(StickyAssignor().assign({"t": 5_000}, members))) == 112


# --- the bytes ---


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_subscription_is_read_by_a_foreign_client(version: int) -> None:
    owned = [tp("a", 1), tp("a", 2), tp("b", 0)]
    data = encode_subscription(["b", "a"], owned, 9, rack="r", version=version)
    assert int.from_bytes(data[:2], "big") == version
    found = ForeignSubscription.decode(data)
    assert found.topics == ["a", "b"]
    if version >= 1:
        assert [(o.topic, o.partitions) for o in found.owned_partitions] == [
            ("a", [1, 2]),
            ("b", [0]),
        ]
    if version >= 2:
        assert found.generation_id == 9


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_assignment_is_read_by_a_foreign_client_and_back(version: int) -> None:
    partitions = [tp("a", 0), tp("a", 3), tp("b", 1)]
    data = encode_assignment(partitions, version)
    found = ForeignAssignment.decode(data)
    assert [(a.topic, a.partitions) for a in found.assigned_partitions] == [
        ("a", [0, 3]),
        ("b", [1]),
    ]
    assert decode_assignment(data) == partitions


def test_what_a_member_sends_comes_back_with_its_generation() -> None:
    data = encode_subscription(["t"], [tp("t", 1)], 4)
    found = decode_subscription("m", "i", data)
    assert found == MemberSubscription("m", frozenset({"t"}), (tp("t", 1),), 4, "i")


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    data = encode_subscription(["t"], [tp("t", 1)], 4)
    newer = (7).to_bytes(2, "big") + data[2:] + b"what comes with version 7"
    assert decode_subscription("m", None, newer).owned_partitions == (tp("t", 1),)


def test_the_eager_sticky_assignor_finds_its_memory_in_the_user_data() -> None:
    data = encode_subscription(["t"], [], 4, sticky_memory=[tp("t", 1)])
    found = decode_subscription("m", None, data)
    assert (found.owned_partitions, found.generation_id) == ((tp("t", 1),), 4)


def test_user_data_of_somebody_else_is_left_alone() -> None:
    ours = encode_subscription(["t"], [], 4, sticky_memory=[])
    assert decode_subscription("m", None, ours).owned_partitions == ()


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0", b"\0\0\x7f\xff\xff\xff"])
def test_bytes_that_are_no_subscription_are_a_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_subscription("m", None, data)


def test_no_bytes_are_an_empty_assignment() -> None:
    assert decode_assignment(b"") == []


def test_names_are_kafkas() -> None:
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]
