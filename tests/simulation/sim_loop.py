"""An asyncio event loop for one simulated process: virtual time, simulated sockets.

It keeps asyncio's promises (callbacks in order, no timer early) and uses its freedoms: a timer may
be late, and what other processes do comes in between anywhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim_network import Network
    from sim_threads import Executors
    from sim_world import Process

LAYERS_MAX = 500
"""Clean-ups within clean-ups that a dead process's coroutines may have."""

LATE_US_MAX = 400
"""How late a timer usually is at most."""


class _Handle:
    """A callback that waits for its turn."""

    __slots__ = ("_args", "_callback", "_context", "_loop", "_when", "is_cancelled")

    def __init__(
        self,
        loop: ProcessLoop,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._context = context if context is not None else contextvars.copy_context()
        self._when = when
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        if self.is_cancelled or not self._loop.process.alive:
            return
        try:
            self._context.run(self._callback, *self._args)
        except Exception as error:  # noqa: BLE001 - as asyncio's handles do
            self._loop.process.fault(f"callback {self._callback!r}: {error!r}")

    def ring(self) -> None:
        """The timer is due."""
        if not self.is_cancelled:
            self._loop.process.call(self.run)


def _close_layers(coroutine: Any) -> None:
    """Close a coroutine from the inside out; clean-up that would like to wait is closed as well."""
    for _ in range(LAYERS_MAX):
        if coroutine is None or getattr(coroutine, "cr_frame", None) is None:
            return
        inner = coroutine
        while getattr(awaited := getattr(inner, "cr_await", None), "cr_frame", None) is not None:
            inner = awaited
        try:
            inner.close()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            continue


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Attributes:
        process: Whose loop it is.
        network: Where its sockets lead; set by the network.
        tasks: Tasks that are not done.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.network: Network | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._late = process.world.stream(f"late/{process.name}")
        self._outer: asyncio.AbstractEventLoop | None = None
        self._executors: Executors | None = None

    # --- for the world

    def enter(self) -> None:
        """Become the running loop."""
        self._outer = events._get_running_loop()
        events._set_running_loop(self)

    def leave(self) -> None:
        """Stop being it."""
        events._set_running_loop(self._outer)

    def abandon(self) -> None:
        """The process is dead: its tasks never run again, and nobody is to complain of that."""
        for task in self.tasks:
            task._log_destroy_pending = False

    def bury(self) -> None:
        """Close the coroutines that a death left, so that nothing of them waits for a collector."""
        self.enter()
        try:
            while self.tasks:  # Clean-up may start more; those never began, so they start none.
                tasks, self.tasks = list(self.tasks), {}
                for task in tasks:
                    task._log_destroy_pending = False
                    _close_layers(task.get_coro())
        finally:
            self.leave()

    # --- asyncio's loop

    def time(self) -> float:
        return self.process.world.now_us / 1e6

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = _Handle(self, callback, args, context)
        self.process.call(handle.run)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = _Handle(self, callback, args, context, when)
        late_us = self._late.randrange(LATE_US_MAX)
        self.process.world.at(int(when * 1e6) + 1 + late_us, handle.ring)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.process.alive

    def is_closed(self) -> bool:
        return not self.process.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.alive:
            error = context.get("exception")
            self.process.fault(f"{context.get('message')}: {error!r}")

    # --- sockets

    def _net(self) -> Network:
        assert self.network is not None
        return self.network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await self._net().connect(self.process, sock, address)

    async def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        return self._net().adopt(self.process, options["sock"], protocol_factory)

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        host, port = args[0], args[1]
        return self._net().listen(self.process, host, port, protocol_factory)

    def remove_reader(self, fd: Any) -> bool:
        return False  # Connections are adopted in the turn in which they arrive.

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        assert executor is not None, f"{func!r} would run in the loop's own threads"
        if self._executors is None:
            from sim_threads import Executors

            self._executors = Executors(self.process)
        return self._executors.submit(executor, lambda: func(*args))
