"""Overlapping calls of one task, in order for each key (``concurrency=``).

The row holds the taken records in their order. Calls of different keys overlap; a record begins
when the previous one of its key is done. The effects of a record stay in its frame, and frames
reach the unit in the order of the row. So a commit covers a contiguous prefix of the row while
later calls go on, outputs keep the order of the input, and an abort or a rebalance only drops
frames.

A retry is scheduled as soon as a call fails. The policy after the last attempt (dead letter, skip,
stop) applies when it is the record's turn to reach the unit, so that after a stop exactly the
earlier records are committed. Only the worker waits for the calls.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final, Protocol

from onceflow.processors.errors import (
    HandlerCancelledError,
    ProcessingError,
    StateDirectoryError,
)
from onceflow.processors.inbox import Inbox, Inboxes
from onceflow.processors.job import Doomed, DoomedRow, Job, Waiting
from onceflow.processors.nodes.base import Program, Stores, WorkNode
from onceflow.processors.unit import BYTES_MAX, Unit
from onceflow.sdk.errors import RecordError
from onceflow.sdk.model.partitions import TopicPartition

ROW_PER_CALL: Final = 16
"""Most records in the row, as a multiple of ``concurrency``: how far other keys may get ahead of a
slow call."""


class InFlight:
    """The running calls of one worker.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock: Callable[[], float] = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether any call is running."""
        return bool(self._tasks)

    def start(
        self, call: Coroutine[object, None, None], ended: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        """Start a call.

        Args:
            call: The coroutine.
            ended: Called in the loop when the call has ended.
        """
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        task.add_done_callback(ended)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until a call has ended since the last wait.

        Args:
            timeout_s: Longest wait; None for no limit.
        """
        try:
            if not self._ended.is_set() and timeout_s != 0:
                await asyncio.wait_for(self._ended.wait(), timeout_s)
            else:
                await asyncio.sleep(0)  # Let the calls run between polls.
        except TimeoutError:
            return
        self._ended.clear()

    async def finish(self, timeout_s: float) -> None:
        """Cancel the running calls, and wait for their ends.

        Args:
            timeout_s: Longest wait, for calls that ignore the cancellation.
        """
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)


class _State(enum.Enum):
    WAITING = "for a record of its key, for a free place, or for its next attempt"
    RUNNING = "its calls are made"
    FAILED = "its policy is followed when it is its turn"
    DONE = "all its calls are made"
    DROPPED = "its unit was aborted, or its partition went"


class _Place:
    """A record's place in the row.

    Attributes:
        job: Its calls.
        state: Its state.
        follower: The next record of the same key, if it waits for this one.
        error: Error of its call, or of the brokers for its outputs.
        attempt: Number of that attempt.
        call: The task that makes its calls.
        size_bytes: Size of its outputs, once it is done.
    """

    __slots__ = ("attempt", "call", "error", "follower", "job", "size_bytes", "state")

    def __init__(self, job: Job) -> None:
        self.job: Job = job
        self.state: _State = _State.WAITING
        self.follower: _Place | None = None
        self.error: Exception | None = None
        self.attempt: int = 1
        self.call: asyncio.Task[None] | None = None
        self.size_bytes: int = 0

    @property
    def where(self) -> tuple[TopicPartition, int]:
        return self.job.partition, self.job.record.offset


class Owner(Protocol):
    """The task that the calls belong to."""

    @property
    def held_until_s(self) -> float:
        """Time until which it takes no records."""

    @property
    def doomed(self) -> Mapping[Doomed | DoomedRow, RecordError]:
        """The errors of records whose outputs were refused."""

    @property
    def stores(self) -> Stores:
        """The open stores."""

    def give_up(self, job: Job, node: WorkNode, error: Exception, attempt: int) -> None:
        """Apply the policy to a call after its last attempt; raise if that is to stop."""

    def give_up_outputs(self, job: Job, error: RecordError) -> None:
        """Apply the policies to a record whose outputs were refused."""

    def finished(self, job: Job, unit: Unit) -> None:
        """Note that all calls of a record are in the unit."""


class Overlap:
    """The overlapping calls of one task.

    Args:
        owner: The task.
        program: The nodes that run.
        inboxes: The inboxes of its records.
        in_flight: The running calls of the worker.

    Attributes:
        draining: Whether no further calls begin, because the worker ends or is paused.
    """

    def __init__(
        self,
        owner: Owner,
        program: Program,
        inboxes: Inboxes,
        in_flight: InFlight,
    ) -> None:
        self.draining: bool = False
        self._owner = owner
        self._program = program
        self._inboxes = inboxes
        self._in_flight = in_flight
        self._clock = in_flight.clock
        self._most = program.calls_max
        self._slots = {
            name: asyncio.Semaphore(bound)
            for name, bound in program.bounds.items()
            if bound < self._most
        }
        self._row: deque[_Place] = deque()
        self._last: dict[bytes, _Place] = {}
        self._ready: deque[_Place] = deque()
        self._later: list[tuple[float, int, _Place]] = []
        self._waiting: dict[tuple[TopicPartition, int], Waiting] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._running = 0
        self._queued = 0
        self._size_bytes = 0
        self._broken: BaseException | None = None

    # What the task asks ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether calls are running, including dropped ones that have not ended."""
        return bool(self._running or self._ending)

    @property
    def holds(self) -> bool:
        """Whether the row holds records."""
        return bool(self._row)

    def ready_s(self, now_s: float) -> float | None:
        """Return when ``step`` has work to do; None while it depends on running calls."""
        if self._broken is not None:
            return now_s
        if self._row and self._row[0].state in (_State.DONE, _State.FAILED):
            return now_s
        if self._may_begin(now_s) and (self._ready or self._next_inbox(now_s) is not None):
            return now_s
        until_s = self._later[0][0] if self._later else None
        if until_s is not None and until_s <= now_s and not self._may_begin(now_s):
            until_s = None  # It waits for the end of a call.
        until_ms = self._inboxes.waits_until_ms()
        if until_ms is not None:
            end_s = until_ms / 1000
            until_s = end_s if until_s is None else min(until_s, end_s)
        return until_s

    def retry_s(self) -> float | None:
        """Return when the next attempt at a failed record is due."""
        return self._later[0][0] if self._later else None

    def step(self, unit: Unit) -> None:
        """Move finished records into the unit, in order, and begin further calls.

        Raises:
            ProcessingError: A record failed and the policy is to stop. Only the records before it
                are in the unit.
            StateDirectoryError: State cannot be read; no record is to blame.
        """
        try:
            if self._broken is not None:
                raise self._broken
            self._merge(unit)
        except BaseException:
            self.draining = True  # The worker ends: further calls would be wasted.
            raise
        self.begin()

    def drop(self) -> None:
        """Drop all records of the row; they are read again, or belong to another worker.

        Attempts stay counted. Running calls are cancelled, and their effects are ignored.
        """
        for place in self._row:
            if place.state is _State.RUNNING and place.call is not None:
                self._ending.add(place.call)
                place.call.cancel()
            place.state = _State.DROPPED
            place.job.frame.drop()
        self._row.clear()
        self._last.clear()
        self._ready.clear()
        self._later.clear()
        self._running = self._size_bytes = 0
        self._broken = None
        self.draining = False

    # Beginning calls -------------------------------------------------------------------------

    def _may_begin(self, now_s: float) -> bool:
        # A record that is read again does not begin while a dropped call of its key still ends.
        return (
            self._running < self._most
            and not self.draining
            and not self._ending
            and self._broken is None
            and now_s >= self._owner.held_until_s
        )

    def _next_inbox(self, now_s: float) -> Inbox | None:
        if len(self._row) >= ROW_PER_CALL * self._most or self._size_bytes >= BYTES_MAX:
            return None
        return self._inboxes.next(int(now_s * 1000))

    def begin(self) -> None:
        """Begin as many calls as may overlap."""
        now_s = self._clock()
        while self._later and self._later[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._may_begin(now_s):
            if not self._ready and not self._take(now_s):
                return
            if self._ready:
                self._start(self._ready.popleft())

    def _take(self, now_s: float) -> bool:
        """Add the next record to the row; False if there is none."""
        inbox = self._next_inbox(now_s)
        if inbox is None:
            return False
        record = inbox.records[inbox.index]
        key = record.key
        # Records without a key have no order.
        front = None if key is None else self._last.get(key)
        after = None if front is None else front.job.frame
        job = Job(inbox, record, self._program.roots[record.topic], after=after)
        inbox.advance(1)
        place = _Place(job)
        self._row.append(place)
        if key is not None:
            self._last[key] = place
        refused = self._owner.doomed.get(Doomed(*place.where))
        if refused is not None:
            place.error, place.state = refused, _State.FAILED
        elif front is None or front.state is _State.DONE:
            self._queue(place)
        else:
            front.follower = place
        return True

    def _queue(self, place: _Place) -> None:
        """Let a record begin now, or when its next attempt is due."""
        waiting = self._waiting.get(place.where)
        if waiting is not None and waiting.not_before_s > self._clock():
            self._queued += 1
            heapq.heappush(self._later, (waiting.not_before_s, self._queued, place))
        else:
            self._ready.append(place)

    def _start(self, place: _Place) -> None:
        place.state = _State.RUNNING
        self._running += 1
        place.call = self._in_flight.start(self._make_calls(place), partial(self._ended, place))

    async def _make_calls(self, place: _Place) -> None:
        """Make the calls of a record, until all are made or one fails."""
        job, program = place.job, self._program
        try:
            while job.agenda and place.state is _State.RUNNING:
                place.attempt = job.attempt(self._waiting.get(place.where))
                slot = self._slots.get(job.agenda[-1][0].name)
                if slot is None:
                    await job.make_call(program, self._owner.stores, place.attempt)
                else:
                    async with slot:
                        await job.make_call(program, self._owner.stores, place.attempt)
                if place.attempt > 1 and place.state is _State.RUNNING:
                    self._waiting.pop(place.where, None)
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            place.error = error

    # Ends of calls ---------------------------------------------------------------------------

    def _ended(self, place: _Place, call: asyncio.Task[None]) -> None:
        """Note the end of a call; it runs in the loop, never within a step of the worker."""
        self._ending.discard(call)
        if not call.cancelled():
            self._broken = call.exception() or self._broken  # Only Ctrl-C and the like.
        elif place.state is _State.RUNNING:
            place.error = HandlerCancelledError("something cancelled the call of a handler")
        try:
            if place.state is _State.RUNNING:
                self._running -= 1
                self._note_end(place)
            self.begin()
        except Exception as error:  # noqa: BLE001 - raised by the worker's next step
            self._broken = error

    def _note_end(self, place: _Place) -> None:
        error, job = place.error, place.job
        if error is None:
            self._done(place)
            return
        if isinstance(error, ProcessingError | StateDirectoryError):
            self._broken = error  # The state is in doubt, for all records.
            return
        failures = job.agenda[-1][0].failures
        delay_ms = failures.retry_delay_ms(job.record, error, place.attempt)
        if delay_ms is None:
            place.state = _State.FAILED
            return
        not_before_s = round(self._clock() + delay_ms / 1000, 6)
        self._waiting[place.where] = Waiting(
            *place.where, job.calls, place.attempt, not_before_s if delay_ms else 0.0
        )
        place.state, place.error = _State.WAITING, None
        self._queue(place)

    def _done(self, place: _Place) -> None:
        place.state = _State.DONE
        place.size_bytes = sum(len(output[1] or b"") for output in place.job.frame.outputs)
        self._size_bytes += place.size_bytes
        follower, place.follower = place.follower, None
        if follower is not None:
            self._queue(follower)

    # The unit --------------------------------------------------------------------------------

    def _merge(self, unit: Unit) -> None:
        """Move finished records into the unit, up to the first unfinished one."""
        row = self._row
        while row and unit.room > 0:
            place = row[0]
            if place.state is _State.FAILED:
                self._give_up(place)
            if place.state is not _State.DONE:
                return
            row.popleft()
            key = place.job.record.key
            if key is not None and self._last.get(key) is place:
                del self._last[key]
            self._waiting.pop(place.where, None)
            self._size_bytes -= place.size_bytes
            place.job.frame.keep()
            self._owner.finished(place.job, unit)

    def _give_up(self, place: _Place) -> None:
        """It is the turn of a record that failed for good."""
        error, job = place.error, place.job
        assert error is not None
        place.error = None
        if isinstance(error, RecordError) and Doomed(*place.where) in self._owner.doomed:
            self._owner.give_up_outputs(job, error)
        else:
            self._owner.give_up(job, job.agenda[-1][0], error, place.attempt)
        if job.agenda:
            place.state = _State.WAITING
            self._queue(place)
        else:
            self._done(place)
