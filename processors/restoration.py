"""Rebuilds stores from changelog topics, up to a bound that misses nothing.

The bound is the high watermark at the moment when the partition was taken over, read while the
changelog is consumed with read_committed: with the last stable offset as the bound, committed
changes behind a transaction that is still being ended would be missed without a word. The end is
recognised by the reader's position, because the last offsets are transaction markers. Who may
start a restoration, and when, is decided in ``tasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from onceflow.processors.stores.base import TaskStore
from onceflow.sdk.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

PROGRESS_INTERVAL_S = 5.0
"""Time between two lines of progress in the log."""


class ChangelogReader(Protocol):
    """Reads changelog partitions, committed records only, outside of any group."""

    def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Log start offset and high watermark of each partition."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others."""

    def poll(self, timeout_ms: int) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """Take records.

        Raises:
            OffsetOutOfRangeError: A position is not in its changelog any more.
        """

    def position(self, partition: TopicPartition) -> int:
        """Where reading goes on, behind markers and aborted records."""

    def close(self) -> None:
        """Release connections."""


@dataclass(slots=True)
class _Replay:
    """One changelog partition being replayed."""

    state: str
    store: TaskStore
    position: int
    end: int
    start: int = field(default=0)


class Restoration:
    """All replays of a worker, advanced in slices between polls of the input.

    Args:
        make_reader: Makes the reader at the first need.
        clock: Monotonic seconds, for progress lines.
    """

    def __init__(
        self, make_reader: Callable[[], ChangelogReader], clock: Callable[[], float]
    ) -> None:
        self._make_reader = make_reader
        self._clock = clock
        self._reader: ChangelogReader | None = None
        self._waiting: dict[TopicPartition, set[TopicPartition]] = {}
        self._replays: dict[TopicPartition, _Replay] = {}
        self._ready: list[TopicPartition] = []
        self._stale = False
        self._told_s = 0.0

    @property
    def active(self) -> bool:
        """Whether anything is being replayed."""
        return bool(self._waiting) or bool(self._ready)

    def add(
        self,
        partition: TopicPartition,
        store: TaskStore,
        changelogs: Mapping[TopicPartition, str],
    ) -> None:
        """Replay the changelogs of one task.

        Args:
            partition: The input partition, which names the task.
            store: Its open store.
            changelogs: Changelog partitions and their states.
        """
        if self._reader is None:
            self._reader = self._make_reader()
        bounds = self._reader.bounds(list(changelogs))
        self._waiting[partition] = set(changelogs)
        for changelog, state in changelogs.items():
            self._begin(changelog, state, store, bounds[changelog])
        self._stale = True

    def _begin(
        self, changelog: TopicPartition, state: str, store: TaskStore, bounds: tuple[int, int]
    ) -> None:
        start, end = bounds
        stored = store.offset(state)
        if stored is not None and not start <= stored <= end:
            logger.warning(
                "state %s: stored offset %d is outside of changelog %s (%d to %d), which was "
                "truncated or made anew; rebuilding",
                state,
                stored,
                changelog,
                start,
                end,
            )
            store.wipe(state)
            stored = None
        position = start if stored is None else stored
        self._replays[changelog] = _Replay(state, store, position, end, position)
        self._finish_if_done(changelog)

    def _begin_again(self, reader: ChangelogReader) -> None:
        """A changelog was truncated or made anew while it was replayed: look at all once more."""
        replays = dict(self._replays)
        bounds = reader.bounds(list(replays))
        for changelog, replay in replays.items():
            self._begin(changelog, replay.state, replay.store, bounds[changelog])
        self._stale = True

    def drop(self, partition: TopicPartition) -> None:
        """Forget a task whose partition is gone."""
        for changelog in self._waiting.pop(partition, ()):
            self._replays.pop(changelog, None)
            self._stale = True
        if partition in self._ready:
            self._ready.remove(partition)

    def _finish_if_done(self, changelog: TopicPartition) -> None:
        replay = self._replays[changelog]
        if replay.position < replay.end:
            return
        replay.store.apply({}, {replay.state: replay.position})
        del self._replays[changelog]
        self._stale = True
        for partition, waiting in list(self._waiting.items()):
            waiting.discard(changelog)
            if not waiting:
                del self._waiting[partition]
                self._ready.append(partition)
                logger.info("state of %s is complete", partition)

    def step(self, timeout_ms: int) -> list[TopicPartition]:
        """Replay for a while.

        Returns:
            Input partitions whose tasks are complete.
        """
        reader = self._reader
        if reader is not None and self._replays:
            try:
                self._replay(reader, timeout_ms)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                logger.warning("restoring: %s", error)
                self._begin_again(reader)
            self._tell_progress()
        ready, self._ready = self._ready, []
        return ready

    def _replay(self, reader: ChangelogReader, timeout_ms: int) -> None:
        if self._stale:
            reader.assign({tp: replay.position for tp, replay in self._replays.items()})
            self._stale = False
        for changelog, records in reader.poll(timeout_ms).items():
            if changelog in self._replays:
                self._apply(self._replays[changelog], records)
        for changelog in list(self._replays):
            replay = self._replays[changelog]
            position = reader.position(changelog)
            if position > replay.position:
                replay.position = position
            self._finish_if_done(changelog)

    @staticmethod
    def _apply(replay: _Replay, records: Sequence[ConsumerRecord]) -> None:
        changes = {
            cast(bytes, record.key): cast("bytes | None", record.value) for record in records
        }
        replay.position = records[-1].offset + 1
        replay.store.apply({replay.state: changes}, {replay.state: replay.position})

    def _tell_progress(self) -> None:
        now = self._clock()
        if not self._replays or now - self._told_s < PROGRESS_INTERVAL_S:
            return
        self._told_s = now
        for changelog, replay in self._replays.items():
            total = max(1, replay.end - replay.start)
            logger.info(
                "restoring %s: %d of %d offsets (%.0f %%); if this stands still, a transaction "
                "of a former owner is open until its timeout",
                changelog,
                replay.position - replay.start,
                total,
                100 * (replay.position - replay.start) / total,
            )

    def close(self) -> None:
        """Release the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
