"""A TCP relay on loopback that loses, delays, cuts, swallows or forges what passes through it.

It stands between a client and a broker, knows requests by their API key, and decides nothing by
itself: each rule says which requests it is about and what happens to them. Answers that name the
broker's address are rewritten, so that clients stay on the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from onceflow.broker_lite.testing.request_parts import error_answer
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import (
    FrameSplitter,
    decode_request_header,
    decode_response_header,
    encode_response,
)
from onceflow.sdk.protocol.schema import Request, Response

T = TypeVar("T")
FRAME_BYTES_MAX = 2**31 - 1
READ_BYTES = 262_144
CALL_SECONDS_MAX = 60.0
NAMES_AN_ADDRESS = {
    request.api_key for request in (MetadataRequest, FindCoordinatorRequest, DescribeClusterRequest)
}


class Action(enum.Enum):
    """What happens to a request that a rule is about."""

    DROP_REPLY = "it is passed on, its answer is withheld and the connection is cut"
    DELAY = "it is passed on, its answer comes later"
    CUT = "the connection is cut, nothing is passed on"
    SWALLOW = "it goes nowhere, and its connection stays open and mute"
    ANSWER = "an error is answered, nothing is passed on"
    EDIT = "it is passed on, its answer is changed"


class Seen(NamedTuple):
    """One request that came to the relay."""

    at_s: float
    connection: int
    api_key: int
    api_version: int


@dataclass(slots=True, eq=False)
class Rule:
    """One rule; made by :meth:`Proxy.add`.

    Attributes:
        api_key: Requests it is about; None for all.
        action: What happens to them.
        every: Which of them: each n-th.
        left: How many more, None without end.
        delay_ms: How much later (DELAY), or how long until the cut (DROP_REPLY).
        error: Code for ANSWER.
        edit: Changes the answer for EDIT.
        hits: How many it met.
    """

    api_key: int | None
    action: Action
    every: int
    left: int | None
    delay_ms: int
    error: ErrorCode
    edit: Callable[[Response], Response] | None
    hits: int = 0
    counted: int = 0

    def fits(self, api_key: int) -> bool:
        """Whether this request meets the rule; counts it."""
        if self.left == 0 or self.api_key not in (None, api_key):
            return False
        self.counted += 1
        if self.counted % self.every:
            return False
        self.hits += 1
        if self.left is not None:
            self.left -= 1
        return True


@dataclass(slots=True, eq=False)
class _Slot:
    """Place of one answer in the order of its connection."""

    api_key: int
    api_version: int
    rule: Rule | None
    frame: asyncio.Future[bytes] = field(default_factory=asyncio.Future)


class _Link:
    """One connection of a client and its other half to the broker."""

    def __init__(
        self,
        proxy: Proxy,
        number: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy = proxy
        self.number = number
        self.client_reader, self.client_writer = client
        self.upstream_reader, self.upstream_writer = upstream
        self.mute = False
        self._slots: asyncio.Queue[_Slot] = asyncio.Queue()
        self._waiting: dict[int, _Slot] = {}

    async def run(self) -> None:
        """Relay until either side is gone."""
        tasks = [
            asyncio.ensure_future(part())
            for part in (self._take_requests, self._take_answers, self._write_answers)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        """Drop both halves at once."""
        self.client_writer.transport.abort()
        self.upstream_writer.transport.abort()

    async def _take_requests(self) -> None:
        splitter = FrameSplitter(FRAME_BYTES_MAX)
        while data := await self.client_reader.read(READ_BYTES):
            for frame in splitter.feed(data):
                if self.mute:
                    continue
                if not self._take(bytes(frame)):
                    return
            await self.upstream_writer.drain()

    def _take(self, frame: bytes) -> bool:
        """Decide on one request; False cuts the connection."""
        header = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        self.proxy.seen.append(Seen(time.monotonic(), self.number, key, version))
        rule = self.proxy.rule_for(key)
        action = rule.action if rule is not None else None
        if action is Action.CUT:
            return False
        if action is Action.SWALLOW:
            self.mute = True
            return True
        if key == ProduceRequest.api_key:
            request, _ = API[key].request_type.decode(frame, version, header.end)
            if isinstance(request, ProduceRequest) and request.acks == 0:
                self._pass_on(frame)
                return True
        slot = _Slot(key, version, rule)
        self._slots.put_nowait(slot)
        if rule is not None and action is Action.ANSWER:
            request, _ = API[key].request_type.decode(frame, version, header.end)
            assert isinstance(request, Request)
            forged = error_answer(request, version, rule.error)
            slot.frame.set_result(_framed(forged, version, header.correlation_id))
        else:
            self._waiting[header.correlation_id] = slot
            self._pass_on(frame)
        return True

    def _pass_on(self, frame: bytes) -> None:
        self.upstream_writer.write(len(frame).to_bytes(4, "big") + frame)

    async def _take_answers(self) -> None:
        splitter = FrameSplitter(FRAME_BYTES_MAX)
        while data := await self.upstream_reader.read(READ_BYTES):
            for frame in splitter.feed(data):
                slot = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
                if slot is None or self.mute:
                    continue
                slot.frame.set_result(self._changed(slot, bytes(frame)))

    def _changed(self, slot: _Slot, frame: bytes) -> bytes:
        edit = slot.rule.edit if slot.rule is not None else None
        if edit is None and slot.api_key not in NAMES_AN_ADDRESS:
            return len(frame).to_bytes(4, "big") + frame
        correlation_id, end = decode_response_header(frame, slot.api_key, slot.api_version)
        response, _ = API[slot.api_key].response_type.decode(frame, slot.api_version, end)
        if edit is not None:
            response = edit(response)
        self.proxy.rewrite(response, slot.api_version)
        return _framed(response, slot.api_version, correlation_id)

    async def _write_answers(self) -> None:
        while True:
            slot = await self._slots.get()
            frame = await slot.frame
            rule = slot.rule
            if rule is not None and rule.action in (Action.DROP_REPLY, Action.DELAY):
                await _pause(rule.delay_ms)
                if rule.action is Action.DROP_REPLY:
                    return
            if not self.mute:
                self.client_writer.write(frame)
                await self.client_writer.drain()


class Proxy:
    """The relay, on an event loop of its own in one thread.

    Args:
        target: ``HOST:PORT`` of the broker.
        port: Port to listen on, 0 for any free one.
        rewrites: Whether answers tell this relay's address instead of the broker's.

    Attributes:
        seen: Requests in the order in which they came.
    """

    def __init__(self, target: str, *, port: int = 0, rewrites: bool = True) -> None:
        self.target = target
        self.seen: list[Seen] = []
        self._port = port
        self._rewrites = rewrites
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port that the relay listens on."""
        return self._port

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._links)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._call(self._stop())
        finally:
            self._end_loop()

    def add(
        self,
        request: type[Request] | None,
        action: Action,
        *,
        every: int = 1,
        times: int | None = None,
        delay_ms: int = 0,
        error: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
        edit: Callable[[Response], Response] | None = None,
    ) -> Rule:
        """Make a rule; the first that fits a request is applied.

        Args:
            request: Kind of request; None for all.
            action: What happens.
            every: Each n-th of them.
            times: How many at most.
            delay_ms: How much later the answer comes, or the cut.
            error: Code for ANSWER.
            edit: Changes the answer, for EDIT.
        """
        key = None if request is None else request.api_key
        rule = Rule(key, action, every, times, delay_ms, error, edit)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Drop every rule."""
        self._rules.clear()

    def rule_for(self, api_key: int) -> Rule | None:
        """The rule that this request meets."""
        return next((rule for rule in list(self._rules) if rule.fits(api_key)), None)

    def count(self, request: type[Request]) -> int:
        """How many requests of a kind came."""
        return sum(seen.api_key == request.api_key for seen in self.seen)

    def cut_all(self) -> None:
        """Cut every open connection."""
        self._call(self._each(_Link.cut))

    def swallow_all(self) -> None:
        """Make every open connection mute in both directions; new ones work."""
        self._call(self._each(lambda link: setattr(link, "mute", True)))

    def rewrite(self, response: Response, api_version: int) -> None:
        """Tell this relay's address where an answer tells the broker's."""
        if not self._rewrites:
            return
        match response:
            case MetadataResponse() | DescribeClusterResponse():
                for broker in response.brokers:
                    broker.host, broker.port = "127.0.0.1", self._port
            case FindCoordinatorResponse() if api_version >= 4:
                for coordinator in response.coordinators:
                    if coordinator.error_code == ErrorCode.NONE:
                        coordinator.host, coordinator.port = "127.0.0.1", self._port
            case FindCoordinatorResponse() if response.error_code == ErrorCode.NONE:
                response.host, response.port = "127.0.0.1", self._port

    # --- on the loop

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS_MAX)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _each(self, action: Callable[[_Link], object]) -> None:
        for link in list(self._links):
            action(link)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            upstream = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, next(self._numbers), (reader, writer), upstream)
        self._links.add(link)
        try:
            with contextlib.suppress(ConnectionError):
                await link.run()
        finally:
            link.cut()
            self._links.discard(link)


def _framed(response: Response, api_version: int, correlation_id: int) -> bytes:
    return b"".join(
        encode_response(response, api_version=api_version, correlation_id=correlation_id)
    )


async def _pause(delay_ms: int) -> None:
    loop = asyncio.get_running_loop()
    due: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(delay_ms / 1000, due.set_result, None)
    try:
        await due
    finally:
        timer.cancel()  # The connection may be cut while it waits.
