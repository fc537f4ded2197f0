"""Goal: both server-side assignors divide everything once, evenly, and `uniform` moves little.

Method: random groups, each divided, changed a little and divided again; what must hold is checked
by counting.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from onceflow.broker_lite.coordinators.consumer.server_assignors import (
    SERVER_ASSIGNORS,
    Division,
    Reader,
    assign_range,
    assign_uniform,
)

A, B = UUID(int=1), UUID(int=2)


def flat(division: Division) -> dict[tuple[UUID, int], str]:
    owners: dict[tuple[UUID, int], str] = {}
    for member_id, topics in division.items():
        for topic_id, partitions in topics.items():
            for partition in partitions:
                assert (topic_id, partition) not in owners, "divided twice"
                owners[topic_id, partition] = member_id
    return owners


def readers(
    rng: random.Random, topics: list[UUID], count: int, *, alike: bool, has: Division
) -> list[Reader]:
    return [
        Reader(
            f"m{n}",
            f"i{n}" if n % 3 == 0 else None,
            frozenset(topics if alike else rng.sample(topics, rng.randint(0, len(topics)))),
            has.get(f"m{n}", {}),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", SERVER_ASSIGNORS)
def test_everything_that_is_read_is_divided_once(name: str, seed: int) -> None:
    rng = random.Random(seed)
    topics = [UUID(int=n) for n in range(1, rng.randint(2, 6))]
    counts = {topic_id: rng.randint(1, 9) for topic_id in topics}
    group = readers(rng, topics, rng.randint(1, 7), alike=rng.random() < 0.5, has={})
    owners = flat(SERVER_ASSIGNORS[name](group, counts))
    read = {topic_id for reader in group for topic_id in reader.topics}
    assert set(owners) == {(t, p) for t in read for p in range(counts[t])}
    by_id = {reader.member_id: reader for reader in group}
    assert all(topic_id in by_id[member].topics for (topic_id, _), member in owners.items())


@pytest.mark.parametrize("seed", range(40))
def test_uniform_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    topics = [A, B]
    counts = {A: rng.randint(1, 12), B: rng.randint(1, 12)}
    total = sum(counts.values())
    before_count, after_count = rng.randint(1, 6), rng.randint(1, 6)
    first = assign_uniform(readers(rng, topics, before_count, alike=True, has={}), counts)
    second = assign_uniform(readers(rng, topics, after_count, alike=True, has=first), counts)
    sizes = [sum(map(len, division.values())) for division in second.values()]
    assert max(sizes) - min(sizes) <= 1
    old, new = flat(first), flat(second)
    moved = sum(old[partition] != new[partition] for partition in new)
    stay = min(before_count, after_count)
    # Who stays keeps as much as an even division lets it have.
    share, extra = divmod(total, after_count)
    had = sorted((sum(map(len, first[f"m{n}"].values())) for n in range(stay)), reverse=True)
    room = [share + (n < extra) for n in range(stay)]
    kept = sum(min(h, r) for h, r in zip(had, room, strict=True))
    assert moved == total - kept


@pytest.mark.parametrize("seed", range(40))
def test_uniform_with_unlike_subscriptions_leaves_no_better_move(seed: int) -> None:
    rng = random.Random(seed)
    topics = [UUID(int=n) for n in range(1, 5)]
    counts = {topic_id: rng.randint(1, 8) for topic_id in topics}
    group = readers(rng, topics, 5, alike=False, has={})
    division = assign_uniform(group, counts)
    sizes = {m: sum(map(len, parts.values())) for m, parts in division.items()}
    by_id = {reader.member_id: reader for reader in group}
    for (topic_id, _), owner in flat(division).items():
        for other, reader in by_id.items():
            if topic_id in reader.topics:
                assert sizes[owner] <= sizes[other] + 1


def test_uniform_is_its_own_fixed_point() -> None:
    group = readers(random.Random(1), [A, B], 4, alike=False, has={})
    counts = {A: 7, B: 5}
    first = assign_uniform(group, counts)
    again = [Reader(r.member_id, r.instance_id, r.topics, first[r.member_id]) for r in group]
    assert assign_uniform(again, counts) == first


def test_range_gives_the_same_numbers_of_topics_with_the_same_readers() -> None:
    group = readers(random.Random(1), [A, B], 3, alike=True, has={})
    division = assign_range(group, {A: 7, B: 7})
    assert all(parts[A] == parts[B] for parts in division.values())
    assert sorted(len(parts[A]) for parts in division.values()) == [2, 2, 3]
    assert division["m0"][A] == {0, 1, 2}, "static members come first, in the order of their names"
