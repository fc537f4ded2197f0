"""One client's connection: bytes in, frames to the dispatcher, answers out in request order.

Decides how much of a peer's input is taken in and when reading, handling or the connection itself
stops. One request is in processing at a time: a parked Fetch or JoinGroup holds back what follows
on the same connection (trap 64). That also bounds memory, as nothing is read ahead of a parked
request beyond a fixed number of bytes. What a request means is the dispatcher's business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from onceflow.broker_lite.dispatch import CloseConnection, ConnectionState, dispatch
from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import FrameSplitter, encode_response
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.schema import Response

if TYPE_CHECKING:
    from onceflow.broker_lite.server import Endpoint, Server

logger = logging.getLogger("onceflow.broker_lite.server")

WAITING_BYTES_MAX = 1_048_576
"""Bytes of whole requests that may wait behind a parked one before reading pauses."""

WAITING_REQUESTS_MAX = 128
"""The same as a number of requests."""

REQUESTS_PER_TURN_MAX = 64
"""Requests of one connection that are handled before the others get a turn."""

UNAUTHENTICATED_REQUEST_MAX_BYTES = 524_288
"""Largest request of a peer that has yet to say who it is, where that is asked: as Kafka's
``sasl.server.max.receive.size``."""

WRITEV_PARTS_MAX = 256
"""Most parts handed to the kernel in one call; the limit of the system is 1,024 or more."""

REFILL_BYTES = 65_536
"""What the transport gets of an answer that the kernel did not take whole. When it is through,
the rest is offered to the kernel again, so that a large answer is never copied into a buffer."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_closing",
        "_deferred",
        "_endpoint",
        "_fd",
        "_outgoing",
        "_paused_reading",
        "_paused_writing",
        "_pump_scheduled",
        "_server",
        "_splitter",
        "_transport",
        "_unsent_bytes",
        "_waiting",
        "_waiting_bytes",
        "last_active_ms",
        "state",
    )

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self._server = server
        self._endpoint = endpoint
        self._splitter = FrameSplitter(server.broker.config.socket_request_max_bytes)
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._outgoing: deque[Buffer] = deque()
        self._unsent_bytes = 0
        self._deferred: Deferred[Response] | None = None
        self._closing = False
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
            self._endpoint.listener.name,
            node_id=self._endpoint.node_id,
            local_address=(local[0], local[1]) if isinstance(local, tuple) else ("127.0.0.1", 0),
            must_authenticate=self._endpoint.listener.protocol.uses_sasl,
        )
        if self.state.must_authenticate:
            self._limit_requests()
        self.last_active_ms = server.clock()
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("ssl_object") is None:
                self._fd = plain_socket.fileno()
                # The transport tells at once when it had to buffer, and when that is through.
                transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        server = self._server
        if self.state is None or self._transport is None or self._closing:
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
        transport = self._transport
        if transport is None:
            return
        if self._outgoing:
            self._flush_outgoing(transport)
            self._count_unsent()
        if self._closing and not self._outgoing:
            transport.close()
        elif not self._paused_writing:
            self._schedule_pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fd = -1
        self._transport = None
        self._waiting.clear()
        self._outgoing.clear()
        self._count_unsent()
        self._closing = True
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
        """Close after what was answered is sent; nothing more is handled."""
        self._waiting.clear()
        self._closing = True
        if self._transport is not None and not self._outgoing:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._waiting.clear()
        self._outgoing.clear()
        self._closing = True
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
        if connection is None or transport is None or self._closing or transport.is_closing():
            self._waiting.clear()
            return False
        self.last_active_ms = now_ms
        must_authenticate = connection.must_authenticate
        try:
            answer = dispatch(self._server.broker, connection, frame, now_ms)
        except (RemoteProtocolError, CloseConnection) as error:
            self._close_for(error)
            return False
        except Exception:  # A fault of ours costs this connection, never the broker.
            logger.exception("connection %d: request failed", connection.connection_id)
            self.close()
            return False
        if connection.must_authenticate != must_authenticate:
            self._limit_requests()
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

    def _limit_requests(self) -> None:
        """Hold the peer to the size of request that its standing allows."""
        limit = self._server.broker.config.socket_request_max_bytes
        if self.state is not None and self.state.must_authenticate:
            limit = min(limit, UNAUTHENTICATED_REQUEST_MAX_BYTES)
        self._splitter.limit(limit)

    def _answer_deferred(self, api_version: int, correlation_id: int, response: Response) -> None:
        self._deferred = None
        if self._transport is None or self._closing or self._transport.is_closing():
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
        if self._fd < 0:
            transport.writelines(parts)
            return True
        self._outgoing.extend(parts)
        self._flush_outgoing(transport)
        if self._outgoing:
            self._count_unsent()
        return True

    def _count_unsent(self) -> None:
        """Keep the broker's count of bytes that wait for slow readers up to date."""
        unsent = sum(map(len, self._outgoing))
        self._server.broker.unsent_bytes += unsent - self._unsent_bytes
        self._unsent_bytes = unsent

    def _flush_outgoing(self, transport: asyncio.Transport) -> None:
        """Hand the kernel what it takes without joining: a Fetch answer is mostly stored batches.

        Only called while the transport's own buffer is empty, so that bytes stay in order.
        """
        outgoing = self._outgoing
        while outgoing:
            parts = [outgoing[index] for index in range(min(len(outgoing), WRITEV_PARTS_MAX))]
            try:
                sent = os.writev(self._fd, parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                transport.abort()
                return
            for part in parts:
                size = len(part)
                if sent < size:
                    break
                sent -= size
                outgoing.popleft()
            else:
                continue
            rest = memoryview(outgoing.popleft())[sent:]
            if len(rest) > REFILL_BYTES:
                outgoing.appendleft(rest[REFILL_BYTES:])
                rest = rest[:REFILL_BYTES]
            # The kernel is full. What the transport buffers now makes it call `pause_writing`,
            # and `resume_writing` once there is room again.
            self._paused_writing = True
            transport.write(rest)
            if transport.get_write_buffer_size():
                return
            self._paused_writing = False

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
