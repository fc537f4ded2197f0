"""Goal: the recovery point follows the last finished flush, so that a start checks little.

Method: a storage in memory whose background flushes finish when the test says so, in any order.
What a start after a crash checks and keeps is looked at on copies of the folder.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from log_batches import NOW_MS, batch, open_log, read_all
from power_loss import disk_after_power_loss

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
FOLDER = "orders-0"


class SlowFlushes(FailingStorage):
    """Background flushes finish when the test says so."""

    def __init__(self, inner: MemoryStorage | None = None, *, durable: bool = False) -> None:
        super().__init__(inner, durable=durable)
        self.waiting: list[
            tuple[Sequence[str], Callable[[], None], Callable[[OSError], None] | None]
        ] = []

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        self.waiting.append((paths, done, failed))

    def finish(self, number: int = 0) -> None:
        """Let one of the flushes reach the disk."""
        super().flush_later(*self.waiting.pop(number))

    def finish_all(self) -> None:
        """Let all of them reach the disk."""
        while self.waiting:
            self.finish()


def fill(log: PartitionLog, segments: int) -> None:
    """Append until the log has so many segments."""
    while len(log._segments) < segments:
        log.append(batch(b"x" * 100), now_ms=NOW_MS)


def last_roll(log: PartitionLog) -> int:
    return log._segments.active.base_offset


def test_rolls_during_a_flush_are_flushed_too() -> None:
    storage = SlowFlushes()
    log = open_log(storage, SMALL)
    fill(log, 6)
    assert log.recovery_point == 0
    storage.finish_all()
    assert log.recovery_point == last_roll(log)
    fill(log, 7)
    storage.finish_all()
    assert log.recovery_point == last_roll(log)


@pytest.mark.parametrize("seed", range(5))
def test_flushes_that_finish_in_another_order_move_it_no_further_than_is_safe(seed: int) -> None:
    chance = random.Random(seed)
    storage = SlowFlushes()
    log = open_log(storage, SMALL)
    fill(log, 6)
    bases = [segment.base_offset for segment in log._segments][1:]
    left = list(bases)
    while left:
        number = chance.randrange(len(left))
        storage.finish(number)
        del left[number]
        # Everything before the first flush that is not finished.
        expected = max((base for base in bases if not left or base < left[0]), default=0)
        assert log.recovery_point == expected


def test_it_does_not_pass_a_flush_that_failed() -> None:
    storage = SlowFlushes()
    log = open_log(storage, SMALL)
    fill(log, 4)
    storage.finish()
    before = log.recovery_point
    _, _, failed = storage.waiting.pop(0)
    assert failed is not None
    failed(OSError(errno.EIO, "input/output error"))
    storage.finish()
    assert log.recovery_point == before > 0
    assert log.failed


@pytest.mark.parametrize("durability", ["kafka", "group", "always"])
def test_what_an_earlier_process_left_in_the_page_cache_is_flushed_after_the_start(
    durability: str,
) -> None:
    config = LogConfig(segment_bytes=600, durability=durability)
    storage = SlowFlushes()
    fill(open_log(storage, config), 4)
    again = SlowFlushes(storage.inner)
    log = open_log(again, config, clean=False, recovery_point=0)
    again.finish_all()
    assert log.recovery_point >= last_roll(log)
    flushed = {write.path for write in again.writes if write.change is Change.FLUSH}
    assert {segment.path(".log") for segment in log._segments} - flushed <= {
        log._segments.active.path(".log")
    }


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_damaged_old_segment_costs_nothing_behind_it(overlapping: bool) -> None:
    """A flipped bit below the recovery point is met by its readers only."""
    storage = SlowFlushes()
    log = open_log(storage, SMALL)
    if overlapping:
        fill(log, 4)
    while len(log._segments) < 30:
        fill(log, len(log._segments) + 1)
        storage.finish_all()
    end_offset, recovery_point = log.log_end_offset, log.recovery_point
    storage.inner.content[FOLDER][f"{log._segments[5].base_offset:020d}.log"][90] ^= 1
    again = open_log(storage.inner, SMALL, clean=False, recovery_point=recovery_point)
    assert again.log_end_offset == end_offset


def test_a_roll_right_after_a_flush_waits_for_the_indexes() -> None:
    """The batches are on the disk then, the last entries of the indexes are not."""
    storage = SlowFlushes()
    log = open_log(storage, SMALL)
    fill(log, 2)
    storage.finish_all()
    log.append(batch(b"x" * 100), now_ms=NOW_MS)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    noted = log.noted_recovery_point
    log.roll(NOW_MS)
    old = log._segments[1]
    assert max(noted, log.recovery_point, log.noted_recovery_point) <= old.base_offset
    storage.finish_all()
    assert log.recovery_point == log.noted_recovery_point == log.log_end_offset


@pytest.mark.parametrize("durability", ["kafka", "group", "always"])
def test_a_roll_flushes_nothing_before_it_returns(durability: str) -> None:
    storage = SlowFlushes()
    log = open_log(storage, LogConfig(durability=durability))
    log.append(batch(b"a"), now_ms=NOW_MS)
    before = len(storage.writes)
    log.roll(NOW_MS)
    assert not [write for write in storage.writes[before:] if write.change is Change.FLUSH]
    assert storage.waiting


@pytest.mark.parametrize("durability", ["kafka", "group", "always"])
@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_loss_everything_below_it_is_there(durability: str, seed: int) -> None:
    chance = random.Random(f"{seed} {durability}")
    config = LogConfig(segment_bytes=600, index_interval_bytes=100, durability=durability)
    storage = SlowFlushes(durable=durability != "kafka")
    log = open_log(storage, config)
    points: list[int] = []

    def done(step: Callable[[], object]) -> None:
        """Do a step; while its changes are made the point is at most what it was before."""
        point = log.noted_recovery_point
        step()
        points.extend([point] * (len(storage.writes) - len(points)))

    for number in range(60):
        records = batch(b"%d" % number * 20)
        done(partial(log.append, records, now_ms=NOW_MS))
        if chance.random() < 0.1:
            done(log.flush)
        while storage.waiting and chance.random() < 0.4:
            done(partial(storage.finish, chance.randrange(len(storage.waiting))))
    for count in range(10, len(storage.writes), 7):
        disk = disk_after_power_loss(storage, count, chance)
        if FOLDER not in disk.content:
            continue
        after = open_log(disk, config, clean=False, recovery_point=points[count - 1])
        assert after.log_end_offset >= points[count - 1]
        assert read_all(after) == [
            (number, b"%d" % number * 20) for number in range(after.log_end_offset)
        ]
