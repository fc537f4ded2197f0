"""Answers that have to wait: deferred values, timers, and operations parked until a key is woken.

Everything here is a plain machine on an injected clock: callers pass ``now_ms`` (wall milliseconds)
and ask when the next timer is due. It decides *when* something is looked at again; the callers
decide what is done then. It never sleeps, polls, or reads a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar, cast

T = TypeVar("T")

_COMPACT_MIN_CANCELLED = 64
"""Cancelled timers are swept from the heap when they are this many and more than half of it."""


class Deferred(Generic[T]):
    """An answer that comes later; a handler returns it and completes it once.

    The connection that waits for the answer is blocked meanwhile (trap 64). When the peer goes away
    first, the server calls :meth:`disconnect`, and the owner's ``on_disconnect`` hook runs so that
    whatever was parked is forgotten (trap 71).

    Attributes:
        completed: True once a value was given or the peer went away.
        on_disconnect: Called at most once, when the peer goes away before the value was given.
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
            False when the answer was given before or the peer has gone; then nothing happens.
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
        """Call ``callback(value)`` once the answer is there; at once if it already is."""
        if not self.completed:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
        elif self._callbacks is None:
            # `_callbacks` is an empty list after a disconnect: no callback is to run any more.
            callback(cast("T", self._value))

    def disconnect(self) -> None:
        """The peer went away: drop the callbacks and run ``on_disconnect``."""
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
        """Do not run; without effect when it ran or was cancelled before."""
        if self.callback is not None:
            self.callback = None
            self._owner._note_cancelled()


class Timers:
    """Callbacks in order of their time, equal times in order of scheduling.

    Attributes:
        on_earlier: Called when a new timer is due before all others, so that the driver of the
            timers (one event-loop handle in the server) can move its alarm.
        ahead_ms: How far the times here are ahead of the system's clock, which was set back: what
            is removed by its age is removed by that one.
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
        # In place: `run_due` may be walking this very list. The order stays.
        self._heap[:] = [(at_ms + duration_ms, order, each) for at_ms, order, each in self._heap]

    def next_deadline_ms(self) -> int | None:
        """When the next active timer is due, or None when there is none."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def _note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled >= _COMPACT_MIN_CANCELLED and self._cancelled * 2 > len(self._heap):
            # In place: `run_due` may be walking this very list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0


class ParkedOperation:
    """Something that waits for one of its keys to be woken, or for its deadline.

    Made by :meth:`Purgatory.park`; ``cancel`` takes it out without a last look.
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
        """Forget it; without effect when it completed, expired or was cancelled before."""
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

    ``wake`` only notes the key; the operations are looked at in :meth:`settle`, which the server
    calls after every request and timer run. So one request that touches a hundred partitions has
    each waiting operation looked at once, after all of its effects are visible.

    Attributes:
        on_wake: Called when something is to be settled that was not before.
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
        """Wait for one of ``keys`` or for ``deadline_ms``.

        Args:
            keys: What to watch.
            deadline_ms: Wall milliseconds at which ``on_expire(now_ms)`` runs instead.
            try_complete: ``try_complete(now_ms)`` after a wake; True when it is done. It is not
                called by this method: look yourself before you park.
            on_expire: Runs once, at the deadline, when not done before.
        """
        parked = ParkedOperation(self, tuple(dict.fromkeys(keys)), try_complete, on_expire)
        for key in parked._keys:
            self._watchers.setdefault(key, {})[parked] = None
        parked._timer = self._timers.schedule(deadline_ms, parked._expire)
        return parked

    def watched(self, key: Hashable) -> bool:
        """True when some operation waits for ``key``."""
        return key in self._watchers

    def wake(self, key: Hashable) -> None:
        """Have the operations that watch ``key`` looked at in the next :meth:`settle`."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        first = not self._woken
        self._woken.update(watchers)
        if first and self.on_wake is not None:
            self.on_wake()

    @property
    def unsettled(self) -> bool:
        """True when a woken operation waits to be looked at."""
        return bool(self._woken)

    def settle(self, now_ms: int) -> None:
        """Look at every woken operation, also at those woken meanwhile.

        An operation that raises is out of the way: call again to look at the others.
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
