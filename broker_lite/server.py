"""Listener and connections: bytes in, frames to the dispatcher, answers out in request order.

The only module of the broker with sockets and a clock. It decides how much of a peer's input is
taken in (request size, bytes waiting, number of connections, idle time) and when a connection is
closed; what a request means is the dispatcher's and the handlers' business.

One request per connection is in processing at a time: a parked Fetch or JoinGroup holds back what
follows on the same connection (trap 64). That also bounds memory, as nothing is read ahead of a
parked request beyond a fixed number of bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onceflow.broker_lite.dispatch import CloseConnection, ConnectionState, dispatch
from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import FrameSplitter, encode_response
from onceflow.sdk.protocol.schema import Response

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState

logger = logging.getLogger("onceflow.broker_lite.server")

WAITING_BYTES_MAX = 1_048_576
"""Bytes of whole requests that may wait behind a parked one before reading pauses."""

WAITING_REQUESTS_MAX = 128
"""The same as a number of requests."""

REQUESTS_PER_TURN_MAX = 64
"""Requests of one connection that are handled before the others get a turn."""

WRITEV_PARTS_MAX = 256
"""Most parts handed to the kernel in one call; the limit of the system is 1,024 or more."""

BACKLOG = 128


@runtime_checkable
class VirtualTime(Protocol):
    """A clock that is moved by hand: the server arms no alarms and is told of each move."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every move."""
        ...

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``."""
        ...


class SystemClock:
    """Wall milliseconds that never go back: read once, then moved by the monotonic clock."""

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_deferred",
        "_fd",
        "_paused_reading",
        "_paused_writing",
        "_pump_scheduled",
        "_server",
        "_splitter",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "last_active_ms",
        "state",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._splitter = FrameSplitter(server.broker.config.socket_request_max_bytes)
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._deferred: Deferred[Response] | None = None
        self._paused_reading = False
        self._paused_writing = False
        self._pump_scheduled = False
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self.last_active_ms = 0
        self.state: ConnectionState | None = None

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server = self._server
        if not server.admit(self):
            logger.warning("connection refused: max.connections=%d reached",
                           server.broker.config.max_connections)  # fmt: skip
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        client_host = f"/{peer[0]}" if isinstance(peer, tuple) else "/unknown"
        local = transport.get_extra_info("sockname")
        self.state = ConnectionState(
            server.next_connection_id(),
            client_host,
            server.listener_name,
            local_address=(local[0], local[1]) if isinstance(local, tuple) else ("127.0.0.1", 0),
            must_authenticate=server.must_authenticate,
        )
        self.last_active_ms = server.clock()
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("ssl_object") is None:
                self._fd = plain_socket.fileno()

    def data_received(self, data: bytes) -> None:
        server = self._server
        if self.state is None or self._transport is None:
            return
        try:
            frames = self._splitter.feed(data)
        except RemoteProtocolError as error:
            self._close_for(error)
            return
        if not frames:
            return
        waiting = self._waiting
        for frame in frames:
            waiting.append(frame)
            self._waiting_bytes += len(frame)
        if self._deferred is None and not self._pump_scheduled:
            self._pump()
            server.after_event()
        if not self._paused_reading and (
            self._waiting_bytes > WAITING_BYTES_MAX or len(waiting) > WAITING_REQUESTS_MAX
        ):
            self._paused_reading = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._schedule_pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fd = -1
        self._transport = None
        self._waiting.clear()
        deferred, self._deferred = self._deferred, None
        server = self._server
        server.forget(self)
        if deferred is not None:
            deferred.disconnect()
            server.after_event()

    # --- requests

    @property
    def busy(self) -> bool:
        """True while a request is parked or waits to be handled."""
        return self._deferred is not None or bool(self._waiting)

    def close(self) -> None:
        """Close after what was written; nothing more is handled."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        """Handle what waits, until a request parks, the peer stops reading, or the turn is over."""
        server = self._server
        waiting = self._waiting
        turns = REQUESTS_PER_TURN_MAX
        while waiting and self._deferred is None and not self._paused_writing:
            if not turns:
                self._schedule_pump()
                break
            turns -= 1
            frame = waiting.popleft()
            self._waiting_bytes -= len(frame)
            server.handling = True
            try:
                if not self._handle(frame, server.clock()):
                    return
                # Whoever this request woke is looked at before the next one is handled.
                server.settle()
            finally:
                server.handling = False
        if (
            self._paused_reading
            and self._transport is not None
            and not self._transport.is_closing()
            and self._waiting_bytes <= WAITING_BYTES_MAX // 2
            and len(waiting) <= WAITING_REQUESTS_MAX // 2
        ):
            self._paused_reading = False
            self._transport.resume_reading()

    def _handle(self, frame: bytes | memoryview, now_ms: int) -> bool:
        """Handle one request; False when the connection is being closed."""
        connection = self.state
        transport = self._transport
        if connection is None or transport is None or transport.is_closing():
            self._waiting.clear()
            return False
        self.last_active_ms = now_ms
        try:
            answer = dispatch(self._server.broker, connection, frame, now_ms)
        except (RemoteProtocolError, CloseConnection) as error:
            self._close_for(error)
            return False
        except Exception:  # A fault of ours costs this connection, never the broker.
            logger.exception("connection %d: request failed", connection.connection_id)
            self.close()
            return False
        result = answer.result
        if isinstance(result, Deferred):
            self._deferred = result
            result.add_done_callback(
                partial(self._answer_deferred, answer.api_version, answer.correlation_id)
            )
            return True
        if result is None:
            return True
        return self._write(result, answer.api_version, answer.correlation_id)

    def _answer_deferred(self, api_version: int, correlation_id: int, response: Response) -> None:
        self._deferred = None
        if self._transport is None or self._transport.is_closing():
            return
        self.last_active_ms = self._server.clock()
        if self._write(response, api_version, correlation_id) and self._waiting:
            self._schedule_pump()

    def _write(self, response: Response, api_version: int, correlation_id: int) -> bool:
        transport = self._transport
        if transport is None:
            return False
        try:
            parts = encode_response(
                response, api_version=api_version, correlation_id=correlation_id
            )
        except Exception:  # An answer that cannot be encoded is a fault of ours.
            logger.exception(
                "%s version %d cannot be encoded", type(response).__name__, api_version
            )
            self.close()
            return False
        if self._fd < 0 or len(parts) > WRITEV_PARTS_MAX or transport.get_write_buffer_size():
            transport.writelines(parts)
            return True
        # Straight to the kernel without joining: a Fetch answer is mostly whole stored batches.
        try:
            sent = os.writev(self._fd, parts)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            transport.abort()
            return False
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
            else:
                transport.write(memoryview(part)[sent:] if sent else part)
                sent = 0
        return True

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and self._waiting:
            self._pump_scheduled = True
            self._server.loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._pump_scheduled = False
        if self._deferred is None:
            self._pump()
            self._server.after_event()

    def _close_for(self, error: Exception) -> None:
        state = self.state
        logger.info(
            "connection %s from %s closed: %s",
            state.connection_id if state else "-",
            state.client_host if state else "-",
            error,
        )
        self.close()


class Server:
    """One listener on one event loop.

    Attributes:
        broker: The state that handlers share.
        clock: Wall milliseconds.
        loop: The event loop that everything runs on.
        listener_name: Name of the listener, as in Kafka's ``listeners``.
        must_authenticate: True when connections start unauthenticated.
        handling: True while a request is handled; what it wakes is settled right after.
    """

    def __init__(self, broker: BrokerState, clock: Callable[[], int]) -> None:
        self.broker = broker
        self.clock = clock
        self.must_authenticate = bool(broker.config.sasl_enabled_mechanisms)
        self.listener_name = "SASL_PLAINTEXT" if self.must_authenticate else "PLAINTEXT"
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._listener: asyncio.Server | None = None
        self._connections: set[ClientConnection] = set()
        self._last_connection_id = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._settle_scheduled = False
        self.handling = False
        self._stopped = False
        self._virtual = isinstance(clock, VirtualTime)

    async def start(self, host: str, port: int) -> int:
        """Bind and listen.

        Args:
            host: Address or name to bind.
            port: Port, 0 for any free one.

        Returns:
            The bound port.

        Raises:
            OSError: The address cannot be bound.
        """
        self._listener = await self.loop.create_server(
            lambda: ClientConnection(self), host, port, backlog=BACKLOG, start_serving=False
        )
        bound_port = int(self._listener.sockets[0].getsockname()[1])
        self.broker.purgatory.on_wake = self._schedule_settle
        if isinstance(self.clock, VirtualTime):
            self.clock.subscribe(self.run_timers)
        if self.broker.config.connections_max_idle_ms >= 0:
            self._schedule_idle_check(self.clock())
        await self._listener.start_serving()
        self._arm()
        return bound_port

    async def stop(self, *, abort: bool = False) -> None:
        """Close the listener and every connection.

        Args:
            abort: Drop what was not sent yet.
        """
        self._stopped = True
        if self._listener is not None:
            self._listener.close()
        if self._alarm is not None:
            self._alarm.cancel()
        if isinstance(self.clock, VirtualTime):
            self.clock.unsubscribe(self.run_timers)
        self.broker.purgatory.on_wake = None
        for connection in list(self._connections):
            if abort:
                connection.abort()
            else:
                connection.close()
        # Transports tell their protocols of the end in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self._connections.clear()

    # --- for connections

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new connection into account, unless there are too many."""
        if self._stopped or len(self._connections) >= self.broker.config.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)

    def next_connection_id(self) -> int:
        """A new id for a connection."""
        self._last_connection_id += 1
        return self._last_connection_id

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def settle(self) -> None:
        """Look at what the last request woke."""
        if self.broker.purgatory.unsettled:
            self.broker.settle(self.clock())

    def after_event(self) -> None:
        """Finish an event: look at what was woken and move the alarm."""
        self.settle()
        self._arm()

    # --- timers

    def run_timers(self) -> None:
        """Run what is due by now."""
        if self._stopped:
            return
        now_ms = self.clock()
        self.broker.timers.run_due(now_ms)
        self.broker.settle(now_ms)
        self._arm()

    def _arm(self) -> None:
        if self._virtual or self._stopped:
            return
        deadline_ms = self.broker.timers.next_deadline_ms()
        alarm = self._alarm
        if deadline_ms is None:
            return
        if alarm is not None:
            # An alarm that is too early only costs a look; moving it each time costs more.
            if self._alarm_ms <= deadline_ms:
                return
            alarm.cancel()
        self._alarm_ms = deadline_ms
        delay = (deadline_ms - self.clock()) / 1000 + 0.001
        self._alarm = self.loop.call_later(max(0.0, delay), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.run_timers()

    def _schedule_settle(self) -> None:
        if not self._settle_scheduled and not self.handling:
            self._settle_scheduled = True
            self.loop.call_soon(self._settle_later)

    def _settle_later(self) -> None:
        self._settle_scheduled = False
        if not self._stopped:
            self.after_event()

    def _schedule_idle_check(self, now_ms: int) -> None:
        idle_ms = self.broker.config.connections_max_idle_ms
        oldest_ms = min(
            (connection.last_active_ms for connection in self._connections if not connection.busy),
            default=now_ms,
        )
        self.broker.timers.schedule(max(now_ms + 1, oldest_ms + idle_ms), self._close_idle)

    def _close_idle(self, now_ms: int) -> None:
        idle_ms = self.broker.config.connections_max_idle_ms
        for connection in list(self._connections):
            if not connection.busy and now_ms - connection.last_active_ms >= idle_ms:
                logger.info("connection closed: idle for %d ms", idle_ms)
                connection.close()
        self._schedule_idle_check(now_ms)
