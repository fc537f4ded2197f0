"""Goal: the inputs of a task are taken by time, and stream time neither goes back nor runs away.

Method: inboxes and stream time alone, with given clocks; order against a sorted list.
"""

from __future__ import annotations

import random

import pytest

from onceflow.processors.inbox import Inboxes
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


def record(partition: TopicPartition, offset: int, time_ms: int) -> ConsumerRecord:
    return ConsumerRecord(*partition, offset, time_ms)


def take(inboxes: Inboxes, now_ms: int = 0) -> list[tuple[str, int]]:
    """Everything that may be taken now."""
    found = []
    while (inbox := inboxes.next(now_ms)) is not None:
        head = inbox.head()
        assert head is not None
        found.append((head.topic, head.offset))
        inbox.advance(1)
    return found


def test_one_input_is_a_queue_of_runs() -> None:
    inboxes = Inboxes([A0])
    inbox = inboxes.by_partition[A0]
    inbox.put([record(A0, n, 0) for n in range(3)])
    inbox.put([record(A0, n, 0) for n in range(3, 5)])
    assert len(inboxes) == 5
    assert (len(inbox.records), inbox.index) == (3, 0)
    inbox.advance(2)
    assert take(inboxes) == [("a", 2), ("a", 3), ("a", 4)]
    assert (len(inboxes), inboxes.next(0)) == (0, None)
    inbox.put([record(A0, 9, 0)])
    inboxes.clear()
    assert len(inboxes) == 0


@pytest.mark.parametrize("seed", range(5))
def test_several_inputs_are_merged_by_time(seed: int) -> None:
    chance = random.Random(seed)
    inboxes = Inboxes([A0, B0])
    wanted = []
    for partition in (A0, B0):
        times = sorted(chance.randrange(20) for _ in range(10))
        records = [record(partition, n, time_ms) for n, time_ms in enumerate(times)]
        inboxes.put(partition, records)
        inboxes.note_end(partition, True)
        wanted += [(r.timestamp_ms, r.topic, r.offset) for r in records]
    assert take(inboxes) == [(topic, offset) for _, topic, offset in sorted(wanted)]


def test_empty_input_is_waited_for_unless_it_is_at_its_end() -> None:
    inboxes = Inboxes([A0, B0], idle_ms=100)
    inboxes.put(A0, [record(A0, 0, 5), record(A0, 1, 6)])
    assert inboxes.next(1_000) is None
    assert inboxes.waits_until_ms() == 1_100
    assert inboxes.empty() == [B0]
    inboxes.put(B0, [record(B0, 0, 1)])
    assert take(inboxes, 1_050) == [("b", 0)]
    assert inboxes.waits_until_ms() == 1_150
    inboxes.note_end(B0, True)
    assert take(inboxes, 1_060) == [("a", 0), ("a", 1)]
    assert inboxes.waits_until_ms() is None


def test_input_that_got_records_is_waited_for_again() -> None:
    """That it was at its end once says nothing about what follows its new records."""
    inboxes = Inboxes([A0, B0], idle_ms=100)
    inboxes.note_end(B0, True)
    inboxes.put(A0, [record(A0, 0, 5), record(A0, 1, 8)])
    inboxes.put(B0, [record(B0, 0, 6)])
    assert take(inboxes, 1_000) == [("a", 0), ("b", 0)]
    inboxes.put(B0, [record(B0, 1, 7)])
    assert take(inboxes, 1_000) == [("b", 1)]


def test_wait_for_an_empty_input_is_bounded() -> None:
    inboxes = Inboxes([A0, B0], idle_ms=100)
    inboxes.put(A0, [record(A0, 0, 5)])
    assert take(inboxes, 1_000) == []
    assert take(inboxes, 1_099) == []
    assert take(inboxes, 1_100) == [("a", 0)]
    assert Inboxes([A0, B0]).next(0) is None


def test_inboxes_of_several_inputs_are_bounded() -> None:
    inboxes = Inboxes([A0, B0])
    inboxes.put(A0, [record(A0, n, 5) for n in range(3)])
    assert (inboxes.full(3), inboxes.full(4)) == ([A0], [])
    alone = Inboxes([A0])
    alone.put(A0, [record(A0, n, 5) for n in range(3)])
    assert alone.full(1) == []  # It waits for nothing but itself.
