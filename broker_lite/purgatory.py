"""Answers that wait: deferred values, timers, and operations parked until a key is woken.

Callers pass ``now_ms`` (wall milliseconds) and ask when the next timer is due. This module decides
when an operation runs again; the callers decide what it does. It never sleeps, polls, or reads a
clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar, cast

T = TypeVar("T")

_COMPACT_MIN_CANCELLED = 64
"""Cancelled timers are removed from the heap if there are this many, and more than half."""


class Deferred(Generic[T]):
    """An answer that comes later; a handler returns it and completes it once.

    The connection handles no other request meanwhile (trap 64). If the peer disconnects first, the
    server calls :meth:`disconnect`, and ``on_disconnect`` lets the owner forget the parked request
    (trap 71).

    Attributes:
        completed: True after a value was given or the peer disconnected.
        on_disconnect: Called at most once, if the peer disconnects before the value was given.
    """

    __slots__ = ("_callbacks", "_value", "completed", "on_disconnect")

    def __init__(self, on_disconnect: Callable[[], None] | None = None) -> None:
        self.completed: bool = False
        self.on_disconnect = on_disconnect
        self._value: T | None = None
        self._callbacks: list[Callable[[T], object]] | None = None

    def complete(self, value: T) -> bool:
        """Give the answer and run the callbacks.

        Args:
            value: The answer.

        Returns:
            False if the answer was given before or the peer has disconnected; then nothing happens.
        """
        if self.completed:
            return False
        self.completed = True
        self._value = value
        self.on_disconnect = None
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(value)
        return True

    def add_done_callback(self, callback: Callable[[T], object]) -> None:
        """Call ``callback(value)`` when the answer is given; at once if it is already."""
        if not self.completed:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
        elif self._callbacks is None:
            # After a disconnect `_callbacks` is an empty list, as no callback must run any more.
            callback(cast("T", self._value))

    def disconnect(self) -> None:
        """Drop the callbacks and run ``on_disconnect``, because the peer disconnected."""
        if self.completed:
            return
        self.completed = True
        self._callbacks = []
        hook, self.on_disconnect = self.on_disconnect, None
        if hook is not None:
            hook()


class Timer:
    """One scheduled callback, made by :meth:`Timers.schedule`.

    Attributes:
        at_ms: When it is due, wall milliseconds.
    """

    __slots__ = ("_owner", "at_ms", "callback")

    def __init__(self, owner: Timers, at_ms: int, callback: Callable[[int], None]) -> None:
        self._owner = owner
        self.at_ms: int = at_ms
        self.callback: Callable[[int], None] | None = callback

    @property
    def active(self) -> bool:
        """True until the timer ran or was cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Do not run it; without effect if it ran or was cancelled before."""
        if self.callback is not None:
            self.callback = None
            self._owner._note_cancelled()


class Timers:
    """Callbacks in order of their time, equal times in order of scheduling.

    Attributes:
        on_earlier: Called when a new timer is due before all others, so that the driver of the
            timers (one event-loop handle in the server) can set its alarm again.
        ahead_ms: How far the times here are ahead of the system's clock after that was set back.
            Retention and expiry use the system's clock.
    """

    __slots__ = ("_cancelled", "_heap", "_order", "ahead_ms", "on_earlier")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0
        self._cancelled = 0
        self.ahead_ms: int = 0
        self.on_earlier: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, at_ms: int, callback: Callable[[int], None]) -> Timer:
        """Run ``callback(now_ms)`` at the first :meth:`run_due` at or after ``at_ms``.

        Args:
            at_ms: Wall milliseconds; a time in the past is due at once.
            callback: Gets the ``now_ms`` of the run.
        """
        self._order += 1
        timer = Timer(self, at_ms, callback)
        heapq.heappush(self._heap, (at_ms, self._order, timer))
        if self._heap[0][2] is timer and self.on_earlier is not None:
            self.on_earlier()
        return timer

    def run_due(self, now_ms: int) -> int:
        """Run every timer due by ``now_ms``, also those scheduled meanwhile for that time.

        Returns:
            How many ran.
        """
        heap = self._heap
        count = 0
        while heap and heap[0][0] <= now_ms:
            timer = heapq.heappop(heap)[2]
            callback = timer.callback
            if callback is None:
                self._cancelled -= 1
                continue
            timer.callback = None
            count += 1
            callback(now_ms)
        return count

    def shift(self, duration_ms: int) -> None:
        """Delay all timers, after the clock jumped forward."""
        for _, _, timer in self._heap:
            timer.at_ms += duration_ms
        # Change the list in place, as `run_due` may iterate over it. The order stays.
        self._heap[:] = [(at_ms + duration_ms, order, each) for at_ms, order, each in self._heap]

    def next_deadline_ms(self) -> int | None:
        """Return when the next active timer is due, or None if there is none."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def _note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled >= _COMPACT_MIN_CANCELLED and self._cancelled * 2 > len(self._heap):
            # Change the list in place, as `run_due` may iterate over it.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0


class ParkedOperation:
    """An operation that waits for one of its keys to be woken, or for its deadline.

    Made by :meth:`Purgatory.park`; ``cancel`` removes it without running it.
    """

    __slots__ = ("_keys", "_on_expire", "_purgatory", "_timer", "_try_complete", "active")

    def __init__(
        self,
        purgatory: Purgatory,
        keys: tuple[Hashable, ...],
        try_complete: Callable[[int], bool],
        on_expire: Callable[[int], None],
    ) -> None:
        self._purgatory = purgatory
        self._keys = keys
        self._try_complete = try_complete
        self._on_expire = on_expire
        self._timer: Timer | None = None
        self.active: bool = True

    def cancel(self) -> None:
        """Remove it; without effect if it completed, expired or was cancelled before."""
        if not self.active:
            return
        self.active = False
        if self._timer is not None:
            self._timer.cancel()
        self._purgatory._unwatch(self, self._keys)

    def _expire(self, now_ms: int) -> None:
        if self.active:
            self.cancel()
            self._on_expire(now_ms)

    def _check(self, now_ms: int) -> None:
        if self.active and self._try_complete(now_ms):
            self.cancel()


class Purgatory:
    """Parked operations by the keys they watch.

    ``wake`` only notes the key. :meth:`settle`, which the server calls after every request and
    timer run, runs the operations. So a request that changes a hundred partitions runs each waiting
    operation once, after all of its effects are visible.

    Attributes:
        on_wake: Called when the first operation is woken since the last :meth:`settle`.
    """

    __slots__ = ("_timers", "_watchers", "_woken", "on_wake")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._watchers: dict[Hashable, dict[ParkedOperation, None]] = {}
        self._woken: dict[ParkedOperation, None] = {}
        self.on_wake: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len({id(parked) for watchers in self._watchers.values() for parked in watchers})

    def park(
        self,
        keys: Iterable[Hashable],
        deadline_ms: int,
        try_complete: Callable[[int], bool],
        on_expire: Callable[[int], None],
    ) -> ParkedOperation:
        """Park an operation until one of ``keys`` is woken or ``deadline_ms`` is over.

        Args:
            keys: The keys to watch.
            deadline_ms: Wall milliseconds at which ``on_expire(now_ms)`` runs instead.
            try_complete: ``try_complete(now_ms)`` runs after a wake; True if it is done. It is not
                called by this method: check before you park.
            on_expire: Runs once at the deadline, if it is not done before.
        """
        parked = ParkedOperation(self, tuple(dict.fromkeys(keys)), try_complete, on_expire)
        for key in parked._keys:
            self._watchers.setdefault(key, {})[parked] = None
        parked._timer = self._timers.schedule(deadline_ms, parked._expire)
        return parked

    def watched(self, key: Hashable) -> bool:
        """Whether some operation waits for ``key``."""
        return key in self._watchers

    def wake(self, key: Hashable) -> None:
        """Let the next :meth:`settle` run the operations that watch ``key``."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        first = not self._woken
        self._woken.update(watchers)
        if first and self.on_wake is not None:
            self.on_wake()

    @property
    def unsettled(self) -> bool:
        """Whether a woken operation has not run yet."""
        return bool(self._woken)

    def settle(self, now_ms: int) -> None:
        """Run every woken operation, also those woken meanwhile.

        An operation that raises is removed: call again to run the others.
        """
        woken = self._woken
        while woken:
            parked = next(iter(woken))
            del woken[parked]
            parked._check(now_ms)

    def _unwatch(self, parked: ParkedOperation, keys: tuple[Hashable, ...]) -> None:
        for key in keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(parked, None)
                if not watchers:
                    del self._watchers[key]
