"""Restores state from changelogs: up to their present ends, or without an end for a standby.

The end is the high watermark when the partition was taken over, although the records are read with
read_committed. With the last stable offset as the end, a restoration would miss committed changes
that follow a transaction which is still being ended. The last offsets are transaction markers, so
the reader's position shows the end, not the last record.

Changes are written to the map in large portions, each with its last offset, so that an interrupted
restoration reads only the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from onceflow.processors.errors import StateMismatchError
from onceflow.processors.state.task_state import TaskState
from onceflow.sdk.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import settle

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

PROGRESS_INTERVAL_S = 5.0
"""Time between two lines of progress in the log."""

COMPLETE_NOTED_MS = 600_000
"""How often a copy notes that it was complete."""

PORTION_RECORDS = 40_000
"""Changes of one changelog that are written to its map together, while the next ones are fetched.
A later portion may be a quarter of what is written already: the larger the map, the more changes
it takes until several of them share a page."""

COLLECTED_BYTES = 128 * 1024 * 1024
"""Memory for changes that are not in a map yet, of all changelogs together."""

RECORD_BYTES = 200
"""Memory of a change beside its value: key, objects, and place in a dictionary."""


class ChangelogReader(Protocol):
    """Reads changelog partitions, committed records only, outside of any group.

    Every method returns its result or an awaitable of it.
    """

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> (
        Mapping[TopicPartition, tuple[int, int]]
        | Awaitable[Mapping[TopicPartition, tuple[int, int]]]
    ):
        """Return log start offset and high watermark of each partition.

        Args:
            partitions: The partitions.
            committed: Return the last stable offset in place of the high watermark.
        """

    def assign(self, positions: Mapping[TopicPartition, int]) -> Awaitable[None] | None:
        """Read only these partitions, from these offsets on."""

    def poll(
        self, timeout_ms: int
    ) -> Mapping[TopicPartition, RecordColumns] | Awaitable[Mapping[TopicPartition, RecordColumns]]:
        """Take records.

        Raises:
            OffsetOutOfRangeError: The log does not hold a position any more.
        """

    def position(self, partition: TopicPartition) -> int | Awaitable[int]:
        """Return the next offset to read, after markers and aborted records."""

    def close(self) -> Awaitable[None] | None:
        """Release connections."""


@dataclass(slots=True)
class _Replay:
    """One changelog partition being replayed.

    Attributes:
        state: The task's state.
        name: Which of its stores.
        position: Offset to read next.
        end: Offset at which it is complete; None for a standby.
        start: Offset at which this replay began, for progress lines.
        changes: Changes that were read and are not in the map yet.
        size_bytes: Approximate memory of these changes.
        written: Changes that were written to the map.
    """

    state: TaskState
    name: str
    position: int
    end: int | None
    start: int
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    size_bytes: int = 0
    written: int = 0

    def take(self, columns: RecordColumns) -> None:
        """Collect changes; a later one of a key replaces an earlier one."""
        values = columns.values
        self.changes.update(zip(cast("list[bytes]", columns.keys), values, strict=True))
        self.size_bytes += sum(map(len, filter(None, values))) + RECORD_BYTES * len(values)
        self.position = columns.offsets[-1] + 1
        if len(self.changes) >= max(PORTION_RECORDS, self.written // 4):
            self.store()

    def store(self) -> None:
        """Write the changes to the map."""
        self.state.restored(self.name, self.changes, self.position)
        self.written += len(self.changes)
        self.changes = {}
        self.size_bytes = 0


class Restorer:
    """All replays of a worker, advanced in slices between polls of the input.

    Args:
        make_reader: Makes the reader, at its first use.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        make_reader: Callable[[], ChangelogReader | Awaitable[ChangelogReader]],
        clock: Callable[[], float],
    ) -> None:
        self._make_reader = make_reader
        self._clock = clock
        self._reader: ChangelogReader | None = None
        self._replays: dict[TopicPartition, _Replay] = {}
        self._waiting: dict[TaskState, set[TopicPartition]] = {}
        self._reading: dict[TopicPartition, _Replay] = {}
        self._stale = False
        self._told_s = 0.0
        self._broken: list[TaskState] = []
        self._goals: dict[TaskState, tuple[dict[TopicPartition, int], int]] = {}
        self._noted_ms: dict[TaskState, int] = {}

    @property
    def active(self) -> bool:
        """Whether anything is being replayed."""
        return bool(self._replays)

    @property
    def left(self) -> dict[TopicPartition, int]:
        """Offsets that are left to replay, by changelog, without standbys."""
        return {
            changelog: max(0, replay.end - replay.position)
            for changelog, replay in self._replays.items()
            if replay.end is not None
        }

    async def add(self, state: TaskState, partition: int, *, follow: bool = False) -> bool:
        """Replay the changelogs of one task.

        Args:
            state: The task's state, with an open map.
            partition: Its partition number.
            follow: Whether to replay without an end, for a standby.

        Returns:
            Whether the state is complete already.

        Raises:
            StateMismatchError: State and changelogs do not belong together.
        """
        if self._reader is None:
            self._reader = await settle(self._make_reader())
        changelogs = {
            TopicPartition(topic, partition): name for name, topic in state.changelogs().items()
        }
        bounds = await settle(self._reader.bounds(list(changelogs)))
        waiting = self._waiting[state] = set(changelogs)
        for changelog, name in changelogs.items():
            self._begin(changelog, name, state, bounds[changelog], follow)
        return not waiting and self._waiting.pop(state, None) is not None

    def _begin(
        self,
        changelog: TopicPartition,
        name: str,
        state: TaskState,
        bounds: tuple[int, int],
        follow: bool = False,
    ) -> None:
        start, end = bounds
        position = state.begin_restoring(name, start, end)
        replay = _Replay(state, name, position, None if follow else end, position)
        self._replays[changelog] = replay
        self._stale = True
        if follow:
            logger.info("following %s from offset %d", changelog, position)
        elif position < end:
            logger.info("restoring %s: offsets %d to %d", changelog, position, end)
        self._finish_if_done(changelog, replay)

    async def _begin_again(self, reader: ChangelogReader) -> None:
        """Compare all states with their changelogs again, after one was truncated or made again."""
        replays = dict(self._replays)
        bounds = await settle(reader.bounds(list(replays)))
        for changelog, replay in replays.items():
            follows = replay.end is None
            try:
                self._begin(changelog, replay.name, replay.state, bounds[changelog], follows)
            except StateMismatchError as error:
                if not follows:
                    raise
                logger.warning("following %s: %s", changelog, error)
                self._broken.append(replay.state)
                self.drop(replay.state)

    def take_broken(self) -> list[TaskState]:
        """Return the copies that were dropped since the last call, as their changelogs differ."""
        broken, self._broken = self._broken, []
        return broken

    async def measure(self, wall_ms: int) -> dict[TaskState, int]:
        """By how many offsets each copy is behind the last stable offsets; without a reader none.

        A copy that has reached the ends of the measurement before held all committed values then,
        and none that was deleted: its map notes that time.

        Args:
            wall_ms: Wall clock.
        """
        reader = self._reader
        follows = {tp: replay for tp, replay in self._replays.items() if replay.end is None}
        if reader is None or not follows:
            return {}
        bounds = await settle(reader.bounds(list(follows), committed=True))
        lags: dict[TaskState, int] = {}
        ends: dict[TaskState, dict[TopicPartition, int]] = {}
        for changelog, replay in follows.items():
            end = bounds[changelog][1]
            lags[replay.state] = lags.get(replay.state, 0) + max(0, end - replay.position)
            ends.setdefault(replay.state, {})[changelog] = end
        for state, found in ends.items():
            goal, asked_ms = self._goals.get(state, ({}, 0))
            reached = all(tp in follows and follows[tp].position >= end for tp, end in goal.items())
            if goal and reached and asked_ms - self._noted_ms.get(state, 0) >= COMPLETE_NOTED_MS:
                self._noted_ms[state] = asked_ms
                state.note_complete(asked_ms)
            if reached:
                self._goals[state] = found, wall_ms
        return lags

    def drop(self, state: TaskState) -> None:
        """Stop the replays of a task whose partition is gone."""
        self._waiting.pop(state, None)
        self._goals.pop(state, None)
        self._noted_ms.pop(state, None)
        for changelog, replay in list(self._replays.items()):
            if replay.state is state:
                del self._replays[changelog]
                self._stale = True

    def _finish_if_done(self, changelog: TopicPartition, replay: _Replay) -> None:
        if replay.end is None or replay.position < replay.end:
            return
        replay.store()
        del self._replays[changelog]
        self._stale = True
        self._waiting[replay.state].discard(changelog)

    async def step(self, timeout_ms: int) -> list[TaskState]:
        """Replay for a while.

        Args:
            timeout_ms: Approximate duration.

        Returns:
            States that are complete now.

        Raises:
            StateMismatchError: State and changelogs do not belong together.
        """
        reader = self._reader
        if reader is not None and self._replays:
            until_s = self._clock() + timeout_ms / 1000
            try:
                while self._replays:
                    left_ms = int((until_s - self._clock()) * 1000)
                    await self._replay(reader, max(0, left_ms))
                    if left_ms <= 0:
                        break
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                logger.warning("restoring: %s", error)
                await self._begin_again(reader)
            self._tell_progress()
        ready = [state for state, waiting in self._waiting.items() if not waiting]
        for state in ready:
            del self._waiting[state]
        return ready

    async def _replay(self, reader: ChangelogReader, timeout_ms: int) -> None:
        if self._stale:
            bounded = {tp: replay for tp, replay in self._replays.items() if replay.end is not None}
            self._reading = bounded or dict(self._replays)  # A task waits; copies do not matter.
            await settle(
                reader.assign({tp: replay.position for tp, replay in self._reading.items()})
            )
            self._stale = False
        for changelog, columns in (await settle(reader.poll(timeout_ms))).items():
            replay = self._replays.get(changelog)
            if replay is not None and len(columns):
                replay.take(columns)
        self._store_largest()
        for changelog, replay in self._reading.items():
            # Markers between the last record and the end move the position without a record.
            position = await settle(reader.position(changelog))
            if position > replay.position:
                replay.position = position
            if replay.end is None and replay.changes:
                replay.store()
            self._finish_if_done(changelog, replay)

    def _store_largest(self) -> None:
        """Write changes to their maps, the largest portion first, until memory is within limits."""
        sizes = {changelog: replay.size_bytes for changelog, replay in self._replays.items()}
        left = sum(sizes.values()) - COLLECTED_BYTES
        while sizes and left >= 0:
            largest = max(sizes, key=sizes.__getitem__)
            self._replays[largest].store()
            left -= sizes.pop(largest)

    def _tell_progress(self) -> None:
        now = self._clock()
        if not self._replays or now - self._told_s < PROGRESS_INTERVAL_S:
            return
        self._told_s = now
        for changelog, replay in self._replays.items():
            if replay.end is not None:
                total = max(1, replay.end - replay.start)
                logger.info(
                    "restoring %s: %d of %d offsets (%.0f %%); if this stands still, a "
                    "transaction of a former owner is open until its timeout",
                    changelog,
                    replay.position - replay.start,
                    total,
                    100 * (replay.position - replay.start) / total,
                )

    async def close(self) -> None:
        """Release the reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await settle(reader.close())
