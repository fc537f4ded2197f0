"""Blocking code in simulated processes: the product's blocking clients, and what calls them.

Such code has a real thread, but only one thread of a run goes on at a time: the world waits while
the thread works, and the thread waits while its call is carried out in the loop of its process. So
the order is the seed's to decide, and nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from sim_world import ProcessDiedError

from onceflow.sdk.errors import ClientClosedError, RequestTimedOutError
from onceflow.sdk.sync.producer import Producer

if TYPE_CHECKING:
    from sim_world import Process

T = TypeVar("T")


class _Thread:
    """A thread that runs between ``resume`` and its next wait.

    Attributes:
        process: Whose thread it is.
        asked: The call for whose end it waits.
        is_over: Whether its function has ended.
    """

    def __init__(self, process: Process, function: Callable[[], object]) -> None:
        self.process = process
        self.asked: Coroutine[Any, Any, object] | None = None
        self.is_over = False
        self._function = function
        self._value: object = None
        self._error: BaseException | None = None
        self._may_go, self._has_stopped = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._has_stopped.acquire()
        threading.Thread(target=self._run, name=f"sim-{process.name}", daemon=True).start()

    def resume(self, value: object = None, error: BaseException | None = None) -> None:
        """Let it go on with the outcome of its call until its next wait, or its end."""
        self._value, self._error = value, error
        self._may_go.release()
        self._has_stopped.acquire()

    def outcome(self) -> object:
        """What its function returned or raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._value

    def _run(self) -> None:
        self._may_go.acquire()
        _here.thread = self
        value: object = None
        error: BaseException | None = None
        try:
            value = self._function()
        except BaseException as raised:  # noqa: BLE001 - it belongs to the caller
            error = raised
        self._value, self._error, self.is_over = value, error, True
        self._has_stopped.release()

    def wait(self, asked: Coroutine[Any, Any, object]) -> object:
        """Have a coroutine run in the loop; called in the thread."""
        if not self.process.alive:
            asked.close()
            raise ProcessDiedError
        self.asked = asked
        self._has_stopped.release()
        self._may_go.acquire()
        return self.outcome()


_here = threading.local()


def process_here() -> Process:
    """The process whose blocking code this is."""
    return _here.thread.process


def wait(asked: Coroutine[Any, Any, T]) -> T:
    """Wait in blocking code for a coroutine, which runs in the loop of its process."""
    return _here.thread.wait(asked)


async def blocking(process: Process, function: Callable[[], T]) -> T:
    """Run blocking code of a process; its calls take turns with everything else."""
    thread = _Thread(process, function)
    thread.resume()
    while not thread.is_over:
        assert thread.asked is not None
        try:
            value = await thread.asked
        except GeneratorExit:
            thread.resume(error=ProcessDiedError())  # All further waits are refused: it ends.
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread
            thread.resume(error=error)
        else:
            thread.resume(value)
    return thread.outcome()  # type: ignore[return-value]


class Executors:
    """Threads of executors: each does what it is given in order, whoever still waits for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last: dict[int, asyncio.Future[None]] = {}

    def submit(self, executor: Executor, call: Callable[[], object]) -> asyncio.Future[Any]:
        """Run a call behind those before it; one that is cancelled before its turn is left out."""
        loop = self._process.loop
        answer, over = loop.create_future(), loop.create_future()
        before = self._last.get(id(executor))
        self._last[id(executor)] = over

        async def run() -> None:
            if before is not None:
                await before
            try:
                value = None if answer.cancelled() else await blocking(self._process, call)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(value)
            finally:
                over.set_result(None)

        loop.create_task(run(), name="executor")
        return answer


# Stand-ins for what waits in a real thread ------------------------------------------------------


class SimPortal:
    """Stands in for ``sdk.sync.portal.Portal``: the client's loop is that of the process."""

    def __init__(
        self, name: str, at_end: Callable[[], Coroutine[Any, Any, object]] | None = None
    ) -> None:
        self.name = name
        self.at_end = at_end
        self.is_closed = False
        self._process = process_here()
        self.loop = self._process.loop

    @property
    def is_foreign(self) -> bool:
        return not self._process.alive

    def check_usable(self) -> None:
        if self.is_closed:
            raise ClientClosedError(f"this {self.name} is closed; make a new one")

    def check_thread(self) -> None:
        pass

    def call(
        self, function: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None
    ) -> T:
        self.check_usable()

        async def run() -> T:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    return await function()
            except TimeoutError:
                if not limit.expired():
                    raise
                raise RequestTimedOutError(f"no result within {timeout_s} s") from None

        return wait(run())

    def run(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self.call(run)

    def wake(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon(callback)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.at_end is not None and self._process.alive:
                wait(_ended(self.at_end))


async def _ended(at_end: Callable[[], Coroutine[Any, Any, object]]) -> None:
    await at_end()


class WaitingProducer(Producer):
    """A blocking producer whose deliveries can be waited for in a simulation."""

    def send(self, *args: Any, **options: Any) -> Any:
        return _Waiting(super().send(*args, **options))


class _Waiting:
    def __init__(self, delivery: Any) -> None:
        self._delivery = delivery

    def result(self) -> Any:
        delivery = self._delivery
        delivery._mark_seen()
        if not delivery.done():
            wait(_acknowledged(delivery._batch))
        return delivery.result()


async def _acknowledged(batch: Any) -> None:
    done = asyncio.get_running_loop().create_future()
    batch.add_done_callback(lambda: done.done() or done.set_result(None))
    await done


class SimEvent:
    """Stands in for ``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def wait(self, timeout_s: float) -> bool:
        wait(self._wait(timeout_s))
        return self._is_set

    async def _wait(self, timeout_s: float) -> None:
        if not self._is_set:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await asyncio.wait([future], timeout=timeout_s)
            self._waiting.remove(future)


class SimThreading:
    """Stands in for the module ``threading`` where only events are used."""

    Event = SimEvent
