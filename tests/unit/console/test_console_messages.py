"""Goal: each message of a page is marked with what really became of its transaction.

Method: random histories of several producers are written into a log in memory, whose reads stand
for a leader's answers. A page of any size from any offset must equal a model that knows the whole
history; reads are so small that a page takes many of them.
"""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest
from log_batches import NOW_MS, PARTITION, batch, idempotent, open_log

from onceflow.broker_lite.log import PartitionLog
from onceflow.console import messages
from onceflow.console.batches import BatchAdmin, Batches
from onceflow.console.messages import MessagePage, read_page
from onceflow.sdk import TopicPartition
from onceflow.sdk.model.admin import ProducerState

Line = tuple[int, str, str | None]
"""Offset, kind and fate."""


class Leader:
    """Answers from a log."""

    def __init__(self, log: PartitionLog, opened: dict[int, int], read_bytes: int) -> None:
        self.log = log
        self.opened = opened
        self.read_bytes = read_bytes
        self.damage = b""

    async def read_batches(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, read_committed: bool
    ) -> Batches:
        found = self.log.read(offset, self.read_bytes, isolation_level=int(read_committed))
        return Batches(
            self.damage or bytes(found.records),
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            tuple(found.aborted_transactions or ()),
        )

    async def describe_producers(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState]]:
        states = [ProducerState(p, 0, 0, NOW_MS, 0, offset) for p, offset in self.opened.items()]
        return {PARTITION: states}


def page(leader: Leader, offset: int, limit: int) -> MessagePage:
    return asyncio.run(read_page(cast("BatchAdmin", leader), PARTITION, offset, limit))


def lines(found: MessagePage) -> list[Line]:
    return [(each.offset, each.kind, each.transaction) for each in found.messages]


def history(seed: int, read_bytes: int) -> tuple[Leader, list[Line]]:
    """A log of random writes, and what each of its offsets is."""
    chance = random.Random(seed)
    log = open_log()
    model: list[Line] = []
    opened: dict[int, int] = {}
    sequences = dict.fromkeys((1, 2, 3), 0)
    of_open: dict[int, list[int]] = {}
    for _ in range(chance.randrange(5, 40)):
        producer = chance.choice((1, 2, 3))
        kind = chance.random()
        offset = log.log_end_offset
        if kind < 0.2:
            log.append(batch(b"plain"), now_ms=NOW_MS)
            model.append((offset, "record", None))
        elif kind < 0.7:
            count = chance.randrange(1, 4)
            values = [b"v" * chance.randrange(60)] * count
            data = idempotent(
                sequences[producer], *values, producer_id=producer, transactional=True
            )
            log.append(data, now_ms=NOW_MS)
            sequences[producer] += count
            opened.setdefault(producer, offset)
            for each in range(offset, offset + count):
                of_open.setdefault(producer, []).append(len(model))
                model.append((each, "record", "open"))
        elif producer in opened:
            is_commit = chance.random() < 0.5
            log.append_control(producer, 0, 0, is_commit, NOW_MS)
            del opened[producer]
            fate = "committed" if is_commit else "aborted"
            for index in of_open.pop(producer):
                model[index] = (*model[index][:2], fate)
            model.append((offset, "commit" if is_commit else "abort", None))
    return Leader(log, opened, read_bytes), model


@pytest.mark.parametrize("seed", range(60))
def test_pages_equal_the_history(seed: int) -> None:
    chance = random.Random(-seed)
    leader, model = history(seed, read_bytes=chance.choice((1, 300, 100_000)))
    for _ in range(8):
        start = chance.randrange(leader.log.log_end_offset + 1)
        limit = chance.randrange(1, 15)
        found = page(leader, start, limit)
        wanted = [line for line in model if line[0] >= start][:limit]
        assert lines(found) == wanted, (start, limit)
        assert found.high_watermark == leader.log.log_end_offset
        assert found.next_offset == (wanted[-1][0] + 1 if wanted else leader.log.log_end_offset)


def test_all_pages_are_the_whole_log() -> None:
    leader, model = history(7, read_bytes=1)
    offset, seen = 0, []
    while offset < leader.log.log_end_offset:
        found = page(leader, offset, 3)
        assert found.next_offset > offset
        offset = found.next_offset
        seen += lines(found)
    assert seen == model


def test_a_transaction_whose_marker_is_too_far_away_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "READS_MAX", 2)
    log = open_log()
    log.append(idempotent(0, b"open", producer_id=1, transactional=True), now_ms=NOW_MS)
    log.append(idempotent(0, b"ended", producer_id=2, transactional=True), now_ms=NOW_MS)
    for _ in range(9):
        log.append(batch(b"between"), now_ms=NOW_MS)
    log.append_control(2, 0, 0, True, NOW_MS)
    found = page(Leader(log, {1: 0}, read_bytes=1), 0, 2)
    assert lines(found) == [(0, "record", "open"), (1, "record", "unknown")]


def test_a_damaged_batch_is_shown_as_such() -> None:
    log = open_log()
    sound = bytearray(batch(b"one", b"two"))
    log.append(bytes(sound), now_ms=NOW_MS)
    leader = Leader(log, {}, read_bytes=1_000)
    sound[-3] ^= 1
    leader.damage = bytes(sound)
    (only,) = page(leader, 0, 10).messages
    assert (only.kind, only.transaction) == ("unreadable", None)
    assert only.error is not None
    assert "checksum" in only.error.lower() or "crc" in only.error.lower()


def test_bytes_that_are_no_batch_end_the_page() -> None:
    log = open_log()
    log.append(batch(b"one"), now_ms=NOW_MS)
    leader = Leader(log, {}, read_bytes=1_000)
    leader.damage = b"\xff" * 200
    found = page(leader, 0, 10)
    assert [each.kind for each in found.messages] == ["unreadable"]
