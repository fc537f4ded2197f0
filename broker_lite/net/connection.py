"""One client's connection: receives bytes, dispatches frames, sends answers in order.

Decides how much of a peer's input is read, and when reading, handling or the connection stops. It
handles one request at a time: a parked Fetch or JoinGroup delays later requests of the connection
(trap 64). This also bounds memory, since only a fixed number of bytes is read behind a parked
request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from onceflow.broker_lite.dispatch import Dispatcher, Dispatching
from onceflow.broker_lite.net.outgoing import Outgoing
from onceflow.broker_lite.net.transport_reset import reset
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import CloseConnection, ConnectionState, RawToken
from onceflow.broker_lite.security.tls_channel import TlsChannel, TlsFailed
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import FrameSplitter, encode_response
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.schema import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceflow.broker_lite.net.endpoint import Endpoint
    from onceflow.broker_lite.net.request_pool import RequestPool
    from onceflow.broker_lite.net.taps import WireTap, WireTaps
    from onceflow.broker_lite.purgatory import Timer

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.server")

WAITING_BYTES_MAX = 1_048_576
"""Bytes of whole requests that may wait behind a parked one before reading pauses."""

WAITING_REQUESTS_MAX = 128
"""Most whole requests that may wait behind a parked one before reading pauses."""

REQUESTS_PER_TURN_MAX = 64
"""Most requests of one connection that are handled before others get their turn. Until its client
is authenticated it is one, so that such connections do not delay the others."""

TURN_MS_MAX = 5
"""Longest turn, for requests that take long: after this time no further one is handled."""

TURN_ANSWER_BYTES_MAX = 65_536
"""Answers of a turn are sent in one write, or earlier if they have more bytes than this. It bounds
their memory; a peer that does not read them ends the turn."""


class ServedBroker(Dispatching, Protocol):
    """The broker as a connection sees it."""

    unsent_bytes: int
    received_bytes: int
    answered_bytes: int


class Host(Protocol):
    """The server as a connection sees it.

    Attributes:
        clock: Wall milliseconds.
        loop: The event loop that everything runs on.
        pool: Room for requests in memory; None without a limit.
        taps: See the bytes of connections in tests; None otherwise.
        handling: True while a request is handled; operations that it wakes run directly after.
    """

    clock: Callable[[], int]
    loop: asyncio.AbstractEventLoop
    pool: RequestPool | None
    taps: WireTaps | None
    handling: bool

    @property
    def broker(self) -> ServedBroker:
        """The broker that answers."""
        ...

    def admit(
        self, connection: ClientConnection, endpoint: Endpoint, sock: socket.socket | None
    ) -> bool:
        """Count a new connection; return False if there are too many."""
        ...

    def hold_off(self, connection: ClientConnection) -> Timer | None:
        """Return the timer that closes this connection, if its address opens them too fast."""
        ...

    def forget(self, connection: ClientConnection, endpoint: Endpoint) -> None:
        """Forget an admitted connection that was closed."""
        ...

    def next_connection_id(self) -> int:
        """Return a new id for a connection."""
        ...

    def settle(self) -> None:
        """Run the operations that the last request woke."""
        ...

    def after_event(self) -> None:
        """Finish an event: run woken operations and set the alarm."""
        ...

    def arm(self) -> None:
        """Set the alarm to the earliest timer."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_closing",
        "_corked",
        "_deferred",
        "_dispatcher",
        "_endpoint",
        "_held_bytes",
        "_isolated",
        "_muted",
        "_opening",
        "_outgoing",
        "_paused_reading",
        "_pump_scheduled",
        "_server",
        "_splitter",
        "_starved",
        "_tap",
        "_tls",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "address",
        "last_active_ms",
        "state",
    )

    def __init__(self, server: Host, endpoint: Endpoint) -> None:
        self._server = server
        self._endpoint = endpoint
        self._splitter = FrameSplitter(server.broker.config.socket_request_max_bytes)
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._outgoing = Outgoing(server.broker)
        self._deferred: Deferred[Response] | Deferred[Response | None] | None = None
        self._dispatcher: Dispatcher | None = None
        self._closing = False
        self._corked = False
        self._isolated = False
        self._muted: Timer | None = None
        self._paused_reading = False
        self._pump_scheduled = False
        self._tap: WireTap | None = None
        self._transport: asyncio.Transport | None = None
        self._tls: TlsChannel | None = None
        self._opening: Timer | None = None
        self._held_bytes = 0
        self._starved = False
        self.address: str = ""
        self.last_active_ms: int = 0
        self.state: ConnectionState | None = None

    # --- asyncio.Protocol

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        transport = self._transport = cast("asyncio.Transport", made)
        server, endpoint = self._server, self._endpoint
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else "unknown"
        taps = server.taps
        if taps is not None and taps.refuses(endpoint.node_id):
            reset(transport)
            return
        plain_socket = transport.get_extra_info("socket")
        if not server.admit(self, endpoint, plain_socket):
            transport.abort()
            return
        local = transport.get_extra_info("sockname")
        security = endpoint.security
        self.state = ConnectionState(
            server.next_connection_id(),
            f"/{self.address}",
            endpoint.listener.name,
            node_id=endpoint.node_id,
            local_address=(local[0], local[1]) if isinstance(local, tuple) else ("127.0.0.1", 0),
            must_authenticate=bool(security.mechanisms),
            security=security,
        )
        self._dispatcher = Dispatcher(server.broker, self.state)
        if self.state.must_authenticate:
            self._limit_requests()
        self.last_active_ms = server.clock()
        self._opening = server.hold_off(self)
        if self._opening is not None:
            transport.pause_reading()
            return
        if taps is not None:
            address = (peer[0], peer[1]) if isinstance(peer, tuple) else ("", 0)
            self._tap = taps.opened(self, self.state, address)
        if plain_socket is not None:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security.tls_context is not None:
            self._tls = TlsChannel(security.tls_context)
            limit_ms = server.broker.config.onceflow_ssl_handshake_timeout_ms
            self._opening = server.broker.timers.schedule(
                self.last_active_ms + limit_ms, self._give_up_opening
            )
            server.arm()
        direct = plain_socket is not None and self._tls is None
        self._outgoing.open(transport, plain_socket.fileno() if direct else -1, self._tls)
        if direct:
            # `pause_writing` is called as soon as the transport buffers, `resume_writing` after.
            transport.set_write_buffer_limits(high=0)

    def _give_up_opening(self, now_ms: int) -> None:
        logger.info("connection from %s closed: its TLS handshake takes too long", self.address)
        self.abort()

    def _decrypt(self, tls: TlsChannel, transport: asyncio.Transport, data: bytes) -> bytes:
        """Return the decrypted bytes; empty during the handshake and after it failed."""
        established = tls.established
        try:
            plain = tls.receive(data)
            if tls.established and not established:
                self._open(tls)
        except (TlsFailed, ValueError) as error:
            if answer := tls.take():
                transport.write(answer)
            self._close_for(error)
            return b""
        if answer := tls.take():
            transport.write(answer)
        return plain

    def _open(self, tls: TlsChannel) -> None:
        """Name the client by its certificate, after the TLS handshake.

        Raises:
            NoMatchingRule: No rule maps the certificate's name to a user.
            ValueError: The certificate cannot be read.
        """
        if self._opening is not None:
            self._opening.cancel()
        state = self.state
        if state is not None and not state.must_authenticate:
            state.principal = self._endpoint.security.principal_of(tls.peer_certificate())

    def data_received(self, data: bytes) -> None:
        if self.state is None or self._transport is None or self._closing:
            return
        tls = self._tls
        if tls is None:
            self._take_in(data, self._transport)
            return
        if plain := self._decrypt(tls, self._transport, data):
            self._take_in(plain, self._transport)
        if tls.peer_closed:
            self.close()

    def _take_in(self, data: bytes, transport: asyncio.Transport) -> None:
        """Handle the whole requests that have arrived, and keep the rest."""
        server = self._server
        server.broker.received_bytes += len(data)
        if self._tap is not None:
            self._tap.received(data)
        try:
            frames = self._splitter.feed(data)
        except RemoteProtocolError as error:
            self._close_for(error)
            return
        if not frames:
            if server.pool is not None:
                self._hold(server.pool)
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
            transport.pause_reading()
        if server.pool is not None:
            self._hold(server.pool)

    def _hold(self, pool: RequestPool) -> None:
        """Reserve room for the requests in memory; pause reading if there is none."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        held = self._waiting_bytes + self._splitter.frame_bytes
        more = held - self._held_bytes
        if more <= 0:
            self._held_bytes = held
            if self._starved:
                pool.forget(self)
                self._starved = False
                if not self._paused_reading:
                    transport.resume_reading()
            pool.give_back(-more)
        elif self._starved:
            return
        elif pool.take(self, more, self._feed_again):
            self._held_bytes = held
        else:
            self._starved = True
            transport.pause_reading()

    def _feed_again(self) -> None:
        """Continue reading, after room for requests became free."""
        self._starved = False
        pool, transport = self._server.pool, self._transport
        if pool is None or transport is None or transport.is_closing():
            return
        self._hold(pool)
        if not (self._starved or self._paused_reading):
            transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._outgoing.paused = True

    def resume_writing(self) -> None:
        self.last_active_ms = self._server.clock()
        if self._transport is None:
            return
        self._outgoing.paused = False
        self._flush()
        if not self._outgoing.paused:
            self._schedule_pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._outgoing.close()
        self._closing = True
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.closed()
        deferred, self._deferred = self._deferred, None
        server = self._server
        if self.state is not None:
            server.forget(self, self._endpoint)
        if self._opening is not None:
            self._opening.cancel()
        if self._muted is not None:
            self._muted.cancel()
        if server.pool is not None:
            server.pool.forget(self)
            held, self._held_bytes = self._held_bytes, 0
            server.pool.give_back(held)
        if deferred is not None:
            deferred.disconnect()
            server.after_event()

    # --- requests

    @property
    def file_handle(self) -> int:
        """Handle of the socket, -1 without one."""
        if self._transport is None:
            return -1
        sock = self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def busy(self) -> bool:
        """True while a request waits, is parked or throttled, unless the peer takes no answers."""
        waits = self._deferred is not None or bool(self._waiting) or self._muted is not None
        return waits and not self._outgoing.paused

    def expire(self) -> None:
        """Close an idle connection; at once if its peer does not read."""
        if self._outgoing.paused or self._closing:
            self.abort()
        else:
            self.close()

    def close(self) -> None:
        """Close after the present answers are sent; handle no further request."""
        self._waiting.clear()
        self._closing = True
        if not self._outgoing:
            self._end()

    def _end(self) -> None:
        """Close the connection, after everything was sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is not None and (farewell := self._tls.close()):
            transport.write(farewell)
        transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._waiting.clear()
        self._outgoing.drop()
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def isolate(self) -> None:
        """Read and handle nothing until :meth:`rejoin`; for tests of network partitions."""
        self._isolated = True
        if self._transport is not None and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()

    def rejoin(self) -> None:
        """Continue after :meth:`isolate`."""
        self._isolated = False
        if self._transport is not None and not self._transport.is_closing():
            self._paused_reading = False
            if not self._starved:
                self._transport.resume_reading()
            self._schedule_pump()

    def mute(self, throttle_ms: int) -> None:
        """Handle no request for the throttle time of the last answer (KIP-219)."""
        if self._muted is not None:
            self._muted.cancel()
        server = self._server
        self._muted = server.broker.timers.schedule(server.clock() + throttle_ms, self._unmute)

    def _unmute(self, now_ms: int) -> None:
        self._muted = None
        self._schedule_pump()

    def _pump(self) -> None:
        """Take a turn: handle waiting requests in order, and send all answers in one write.

        It ends when a request parks, when the peer stops reading, or at the limits of a turn.
        """
        server, waiting, outgoing = self._server, self._waiting, self._outgoing
        is_stranger = self.state is not None and self.state.must_authenticate
        turns = 1 if is_stranger else REQUESTS_PER_TURN_MAX
        ends_ms = server.clock() + TURN_MS_MAX
        server.handling = self._corked = True
        try:
            while (
                waiting
                and self._deferred is None
                and self._muted is None
                and not outgoing.paused
                and not self._isolated
            ):
                now_ms = server.clock()
                if not turns or now_ms >= ends_ms:
                    self._schedule_pump()
                    break
                turns -= 1
                frame = waiting.popleft()
                self._waiting_bytes -= len(frame)
                if not self._handle(frame, now_ms):
                    return
                # Run the operations that this request woke before the next request is handled.
                server.settle()
                if outgoing.waiting_bytes > TURN_ANSWER_BYTES_MAX:
                    self._flush()
        finally:
            server.handling = self._corked = False
            self._flush()
        self._read_on()

    def _read_on(self) -> None:
        """Continue reading if it was paused and enough waiting requests are handled."""
        if (
            self._paused_reading
            and not self._isolated
            and self._transport is not None
            and not self._transport.is_closing()
            and self._waiting_bytes <= WAITING_BYTES_MAX // 2
            and len(self._waiting) <= WAITING_REQUESTS_MAX // 2
        ):
            self._paused_reading = False
            if not self._starved:
                self._transport.resume_reading()
        if self._server.pool is not None:
            self._hold(self._server.pool)

    def _handle(self, frame: bytes | memoryview, now_ms: int) -> bool:
        """Handle one request; False when the connection is being closed."""
        connection, dispatcher, transport = self.state, self._dispatcher, self._transport
        if (
            connection is None
            or dispatcher is None
            or transport is None
            or self._closing
            or transport.is_closing()
        ):
            self._waiting.clear()
            return False
        self.last_active_ms = now_ms
        must_authenticate = connection.must_authenticate
        try:
            answer = dispatcher.dispatch(frame, now_ms)
        except (RemoteProtocolError, CloseConnection) as error:
            self._close_for(error)
            return False
        except Exception:  # A bug closes this connection, and does not stop the broker.
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
            if answer.throttle_ms:
                self.mute(answer.throttle_ms)
            return True
        return self._write(result, answer.api_version, answer.correlation_id)

    def _limit_requests(self) -> None:
        """Bound the size of requests, more tightly before authentication."""
        config = self._server.broker.config
        limit = config.socket_request_max_bytes
        if self.state is not None and self.state.must_authenticate:
            limit = min(limit, config.sasl_server_max_receive_size)
        self._splitter.limit(limit)

    def _answer_deferred(
        self, api_version: int, correlation_id: int, response: Response | None
    ) -> None:
        self._deferred = None
        if response is None:
            self.close()
            return
        if self._transport is None or self._closing or self._transport.is_closing():
            return
        self.last_active_ms = self._server.clock()
        if self._write(response, api_version, correlation_id) and not self._corked:
            self._schedule_pump()

    def _write(self, response: Response | RawToken, api_version: int, correlation_id: int) -> bool:
        """Answer; False when the connection is being closed."""
        transport = self._transport
        if transport is None:
            return False
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms:
            self.mute(throttle_ms)
        try:
            if isinstance(response, RawToken):
                parts: list[Buffer] = [len(response.token).to_bytes(4, "big"), response.token]
            else:
                parts = encode_response(
                    response, api_version=api_version, correlation_id=correlation_id
                )
        except Exception:  # A bug in a handler made an answer that cannot be encoded.
            logger.exception(
                "%s version %d cannot be encoded", type(response).__name__, api_version
            )
            self.close()
            return False
        if self._tap is None or not self._tap.takes(parts, correlation_id):
            self.send(parts)
        if self.state is not None and self.state.failed:
            self.close()
            return False
        return True

    def send(self, parts: list[Buffer]) -> None:
        """Send bytes as they are, after those that wait."""
        if self._transport is None:
            return
        self._outgoing.queue(parts)
        if not self._corked:
            self._flush()

    def _flush(self) -> None:
        """Send waiting bytes; then close the connection if that was asked for."""
        try:
            self._outgoing.flush()
        except TlsFailed:
            self.abort()
            return
        if self._closing and not self._outgoing:
            self._end()

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
