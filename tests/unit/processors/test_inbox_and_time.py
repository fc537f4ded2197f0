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


@pytest.mark.parametrize("idle_ms", [0, 100])
def test_records_that_the_broker_has_are_waited_for_without_bound(idle_ms: int) -> None:
    """What is not fetched yet may be earlier (KIP-695); an unknown end may hide such records."""
    inboxes = Inboxes([A0, B0], idle_ms=idle_ms)
    inboxes.put(A0, [record(A0, 0, 5), record(A0, 1, 6)])
    for now_ms in (1_000, 1_100, 1_000_000):
        assert inboxes.next(now_ms) is None
        assert inboxes.waits_until_ms() is None
    assert inboxes.empty() == [B0]
    inboxes.put(B0, [record(B0, 0, 1)])
    assert take(inboxes, 1_000_000) == [("b", 0)]
    inboxes.note_end(B0, True)
    assert take(inboxes, 1_000_000 + idle_ms) == ([] if idle_ms else [("a", 0), ("a", 1)])
    assert take(inboxes, 1_000_000 + 2 * idle_ms) == ([("a", 0), ("a", 1)] if idle_ms else [])


def test_an_input_at_its_end_is_waited_for_as_long_as_declared() -> None:
    inboxes = Inboxes([A0, B0], idle_ms=100)
    inboxes.put(A0, [record(A0, 0, 5), record(A0, 1, 7)])
    inboxes.note_end(B0, True)
    assert take(inboxes, 1_000) == []
    assert inboxes.waits_until_ms() == 1_100
    inboxes.put(B0, [record(B0, 0, 6)])
    assert take(inboxes, 1_050) == [("a", 0), ("b", 0)]
    inboxes.note_end(B0, True)
    assert take(inboxes, 1_149) == []
    assert take(inboxes, 1_249) == [("a", 1)]
    assert inboxes.waits_until_ms() is None


def test_an_idle_input_is_waited_for_once() -> None:
    """From when it was seen idle, whatever the others have meanwhile (KIP-353)."""
    inboxes = Inboxes([A0, B0], idle_ms=100)
    inboxes.note_end(A0, True)
    inboxes.note_end(B0, True)
    assert inboxes.next(1_000) is None
    assert inboxes.waits_until_ms() is None  # There is nothing to take after a wait.
    inboxes.put(A0, [record(A0, 0, 5)])
    assert take(inboxes, 1_099) == []
    assert inboxes.waits_until_ms() == 1_100
    assert take(inboxes, 1_100) == [("a", 0)]
    inboxes.note_end(A0, True)
    assert inboxes.next(1_200) is None
    inboxes.put(A0, [record(A0, 1, 6)])
    assert take(inboxes, 1_201) == [("a", 1)]  # B0 is idle for longer than the wait.
    inboxes.note_end(B0, False)  # There was something after all.
    inboxes.put(A0, [record(A0, 2, 7)])
    assert take(inboxes, 1_300) == []
    inboxes.note_end(B0, True)
    assert take(inboxes, 1_301) == []
    assert inboxes.waits_until_ms() == 1_401


def test_of_several_idle_inputs_the_latest_is_waited_for() -> None:
    c0 = TopicPartition("c", 0)
    inboxes = Inboxes([A0, B0, c0], idle_ms=100)
    inboxes.note_end(B0, True)
    assert inboxes.next(1_000) is None
    inboxes.note_end(c0, True)
    inboxes.put(A0, [record(A0, 0, 5)])
    assert take(inboxes, 1_060) == []
    assert take(inboxes, 1_159) == []
    assert take(inboxes, 1_160) == [("a", 0)]


def test_inputs_that_are_read_again_are_not_at_their_ends() -> None:
    inboxes = Inboxes([A0, B0])
    inboxes.note_end(B0, True)
    inboxes.clear()
    inboxes.put(A0, [record(A0, 0, 5)])
    assert take(inboxes, 1_000) == []


def test_no_input_is_waited_for_if_that_is_declared() -> None:
    inboxes = Inboxes([A0, B0], idle_ms=-1)
    inboxes.put(A0, [record(A0, 0, 5)])
    assert take(inboxes) == [("a", 0)]


def test_input_that_got_records_is_waited_for_again() -> None:
    """That it was at its end once says nothing about what follows its new records."""
    inboxes = Inboxes([A0, B0])
    inboxes.note_end(B0, True)
    inboxes.put(A0, [record(A0, 0, 5), record(A0, 1, 8)])
    inboxes.put(B0, [record(B0, 0, 6)])
    assert take(inboxes, 1_000) == [("a", 0), ("b", 0)]
    inboxes.put(B0, [record(B0, 1, 7)])
    assert take(inboxes, 1_000) == [("b", 1)]


def test_inboxes_of_several_inputs_are_bounded() -> None:
    inboxes = Inboxes([A0, B0])
    inboxes.put(A0, [record(A0, n, 5) for n in range(3)])
    assert (inboxes.full(3), inboxes.full(4)) == ([A0], [])
    alone = Inboxes([A0])
    alone.put(A0, [record(A0, n, 5) for n in range(3)])
    assert alone.full(1) == []  # It waits for nothing but itself.
