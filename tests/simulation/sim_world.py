"""Virtual time, processes and one queue of events: everything of a simulated run that is not
product code hangs here.

A run is a function of its seed. Within a process callbacks run in asyncio's order; between
processes, and between timers that are nearly due together, the seed decides. Random numbers come
from named streams, so that a change in one place leaves the draws of the others alone.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sim_history import History

if TYPE_CHECKING:
    from sim_loop import ProcessLoop

EPOCH_US = 1_700_000_000_000_000
"""Wall time at the start of every run, in microseconds."""

STEP_US = 3
"""Virtual microseconds that one callback takes, so that a busy loop moves time too."""


TURNS_MAX = 150_000
"""Bound on one wait, some ten times what whole runs take: whoever spins is stuck as well."""


class StuckError(Exception):
    """The run did not come to its end within the virtual time it was given."""


class ProcessDiedError(BaseException):
    """Raised through product code whose process ends in the middle of a call."""


class Process:
    """One simulated operating-system process.

    Attributes:
        name: Unique in the run.
        loop: Its event loop.
        alive: False from the moment it was killed.
        paused_until_us: Not scheduled before (as under SIGSTOP).
        wall_offset_us: How far its wall clock is off.
        on_death: Called once when it is killed.
    """

    def __init__(self, world: World, name: str) -> None:
        from sim_loop import ProcessLoop

        self.world = world
        self.name = name
        self.alive = True
        self.paused_until_us = 0
        self.wall_offset_us = 0
        self.ready: deque[Callable[[], None]] = deque()
        self.on_death: list[Callable[[], None]] = []
        self.faults: list[str] = []
        self.loop: ProcessLoop = ProcessLoop(self)

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback in this process, soon."""
        if self.alive:
            self.ready.append(callback)

    def wall_ms(self) -> int:
        """Its wall clock in milliseconds."""
        return (EPOCH_US + self.world.now_us + self.wall_offset_us) // 1000

    def die(self) -> None:
        """End at once: nothing of it runs any more."""
        if self.alive:
            self.alive = False
            self.ready.clear()
            self.world.note(self.name, "killed")
            self.loop.abandon()
            for callback in self.on_death:
                callback()

    def fault(self, what: str) -> None:
        """Something of the product went wrong that never should."""
        if not self.alive:
            return  # Clean-up of what a death left behind.
        self.faults.append(what)
        self.world.note(self.name, "fault", what)


class World:
    """Time and processes of one run.

    Attributes:
        seed: Of the run.
        now_us: Virtual microseconds since its start.
        history: What happened.
        processes: Those that were started, dead ones included.
    """

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.now_us = 0
        self.history = History()
        self.processes: list[Process] = []
        self.current: Process | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._schedule = self.stream("schedule")

    def stream(self, name: str) -> random.Random:
        """A source of random numbers of its own for each name."""
        return random.Random(f"{self.seed}/{name}")

    def note(self, who: str, what: str, *details: object) -> None:
        """Add a line to the history."""
        self.history.add(self.now_us, who, what, details)

    def start(self, name: str) -> Process:
        """A new process."""
        process = Process(self, name)
        self.processes.append(process)
        return process

    def at(self, when_us: int, callback: Callable[[], None]) -> None:
        """Run a callback, outside of every process, at a time."""
        self._sequence += 1
        heapq.heappush(self._events, (max(when_us, self.now_us), self._sequence, callback))

    def after(self, delay_us: float, callback: Callable[[], None]) -> None:
        """The same, after a delay."""
        self.at(self.now_us + int(delay_us), callback)

    def run(self, done: Callable[[], bool], until_us: int) -> None:
        """Go on until ``done()``.

        Raises:
            StuckError: Time ran out first, or nothing is left to happen.
        """
        pick = self._schedule.randrange
        turns = 0
        while not done():
            turns += 1
            if turns > TURNS_MAX:
                raise StuckError(f"still busy after {turns} turns")
            if self.now_us > until_us:
                raise StuckError(f"not done at {self.now_us / 1e6:.3f} s")
            events = self._events
            if events and events[0][0] <= self.now_us:
                heapq.heappop(events)[2]()
                continue
            now_us = self.now_us
            runnable = [
                process
                for process in self.processes
                if process.ready and process.paused_until_us <= now_us
            ]
            if runnable:
                process = runnable[pick(len(runnable))] if len(runnable) > 1 else runnable[0]
                self._run_some(process, 1 + pick(4))
                continue
            wake_us = [p.paused_until_us for p in self.processes if p.ready]
            if events:
                wake_us.append(events[0][0])
            if not wake_us:
                raise StuckError("nothing is left to happen")
            self.now_us = max(self.now_us, min(wake_us))

    def _run_some(self, process: Process, count: int) -> None:
        ready = process.ready
        self.current = process
        process.loop.enter()
        try:
            while count and ready:
                count -= 1
                self.now_us += STEP_US
                ready.popleft()()
        except ProcessDiedError:
            process.die()
        finally:
            process.loop.leave()
            self.current = None
