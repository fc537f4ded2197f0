"""One socket to a broker: bytes in and out, and the futures of waiting callers.

``core.connection.connection`` decides what the bytes mean and when the peer counts as dead. This
module moves bytes, sets one timer, and fails every waiter when the socket is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from onceflow import __version__
from onceflow.sdk.aio.connection.authentication import Authenticator, renewal_delay_ms
from onceflow.sdk.aio.connection.sockets import connect_socket, describe, speaks_tls
from onceflow.sdk.core.connection.connection import Connection
from onceflow.sdk.core.connection.handshake import (
    BEFORE_NEGOTIATION,
    SPEAKS_TLS,
    BrokerVersions,
    foreign_protocol,
    negotiate_versions,
)
from onceflow.sdk.core.flow import Flow, Send, T
from onceflow.sdk.errors import (
    BrokerConnectionError,
    KafkaError,
    RemoteProtocolError,
    RequestTimedOutError,
    SslAuthenticationError,
)
from onceflow.sdk.observe.meters import Traffic
from onceflow.sdk.protocol.schema import Request, Response
from onceflow.sdk.settings.config import ClientConfig

log: logging.Logger = logging.getLogger("onceflow.connection")


def loop_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the loop's clock in whole milliseconds."""
    return int(loop.time() * 1000)


class AnswerCallback:
    """A callback that gets an answer at once; a future would take another turn of the loop."""

    __slots__ = ("_is_done", "_then")

    def __init__(self, then: Callable[[Response | None, KafkaError | None], None]) -> None:
        """Keep the callback.

        Args:
            then: Called once, in the loop's thread, with the response or with the error.
        """
        self._then = then
        self._is_done = False

    def done(self) -> bool:
        """Whether the callback was called."""
        return self._is_done

    def cancelled(self) -> bool:
        """Return False; part of a future's interface."""
        return False

    def set_result(self, response: Response) -> None:
        """Pass the answer to the callback."""
        self._tell(response, None)

    def set_exception(self, error: KafkaError) -> None:
        """Pass the error to the callback."""
        self._tell(None, error)

    def exception(self) -> None:
        """Return None; part of a future's interface."""

    def _tell(self, response: Response | None, error: KafkaError | None) -> None:
        self._is_done = True
        try:
            self._then(response, error)
        except Exception:  # A bug in one caller must not end the connection of others.
            log.exception("a response could not be processed")


class _Held(NamedTuple):
    """A request that waits to be sent."""

    request: Request
    version: int
    timeout_ms: int
    expects_answer: bool
    future: asyncio.Future[Response] | AnswerCallback


class BrokerConnection(asyncio.Protocol):
    """A connected, negotiated socket.

    Attributes:
        name: Address for messages and logs.
        versions: Versions that the broker offers.
    """

    def __init__(
        self,
        name: str,
        config: ClientConfig,
        loop: asyncio.AbstractEventLoop,
        on_closed: Callable[[BrokerConnection], None] | None = None,
        traffic: Traffic | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.name = name
        self.versions: BrokerVersions = BEFORE_NEGOTIATION
        self._config = config
        self._authenticator = Authenticator(config) if authenticator is None else authenticator
        self._loop = loop
        self._machine = Connection(config.client_id, config.max_response_bytes, loop_ms(loop))
        self._waiters: deque[asyncio.Future[Response] | AnswerCallback] = deque()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._error: KafkaError | None = None
        self._on_closed = on_closed
        self._traffic = Traffic() if traffic is None else traffic
        self._closed = loop.create_future()
        self._held: deque[_Held] | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None and self._transport is not None

    @property
    def is_unanswered(self) -> bool:
        """Whether the peer accepted the connection and has sent nothing yet."""
        return self.versions is BEFORE_NEGOTIATION and self._transport is not None

    @property
    def in_flight_count(self) -> int:
        """Requests that wait to be sent or answered."""
        return self._machine.in_flight_count + len(self._held or ())

    @property
    def muted_until_ms(self) -> int:
        """Time until which the broker throttles this client (KIP-219)."""
        return self._machine.muted_until_ms

    @property
    def last_used_ms(self) -> int:
        """When something was last sent or received."""
        return self._machine.last_used_ms

    def send(
        self,
        request: Request,
        *,
        timeout_ms: int | None = None,
        max_version: int | None = None,
        expects_answer: bool = True,
    ) -> asyncio.Future[Response]:
        """Write a request now and return a future of its answer.

        Args:
            request: The request.
            timeout_ms: Limit for the answer; default ``request_timeout_ms``.
            max_version: Highest version to speak.
            expects_answer: False if the broker never answers; then the future gets no result.

        Returns:
            A future of the response; it fails with BrokerConnectionError or RequestTimedOutError.

        Raises:
            UnsupportedVersionError: Client and broker have no common version.
            BrokerConnectionError: The connection is closed.
        """
        future: asyncio.Future[Response] = self._loop.create_future()
        self.ask(
            request,
            future,
            timeout_ms=timeout_ms,
            max_version=max_version,
            expects_answer=expects_answer,
        )
        return future

    def ask(
        self,
        request: Request,
        waiter: asyncio.Future[Response] | AnswerCallback,
        *,
        timeout_ms: int | None = None,
        max_version: int | None = None,
        expects_answer: bool = True,
    ) -> None:
        """Write a request now; see ``send``.

        Args:
            request: The request.
            waiter: Future or callback that gets the answer or the error.
            timeout_ms: Limit for the answer; default ``request_timeout_ms``.
            max_version: Highest version to speak.
            expects_answer: False where the broker never answers; the waiter then gets nothing.

        Raises:
            UnsupportedVersionError: Client and broker have no common version.
            BrokerConnectionError: The connection is closed.
        """
        if self._error is not None or self._transport is None:
            raise BrokerConnectionError(f"the connection to {self.name} is closed")
        version = self.versions.require(type(request), max_version)
        limit = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        held = _Held(request, version, limit, expects_answer, waiter)
        if self._held is None:
            self._write(held)
        else:
            self._held.append(held)

    def _write(self, held: _Held) -> None:
        """Write a request to the socket."""
        transport = self._transport
        assert transport is not None
        now_ms = loop_ms(self._loop)
        _, parts = self._machine.send(
            held.request,
            held.version,
            now_ms,
            held.timeout_ms,
            expects_answer=held.expects_answer,
        )
        if held.expects_answer:
            self._waiters.append(held.future)
            self._arm(now_ms + held.timeout_ms)
        transport.writelines(parts)
        self._traffic.sent.add(sum(map(len, parts)), now_ms)

    async def handshake(self) -> None:
        """Negotiate versions and authenticate.

        Raises:
            KafkaError: The broker refused, or the connection broke.
        """
        self.versions = await self._drive(negotiate_versions(__version__))
        if self._config.security.uses_sasl:
            self._authenticated(await self._drive(await self._authenticator.begin()))

    def _authenticated(self, lifetime_ms: int) -> None:
        """Schedule the next authentication before the session ends (KIP-368)."""
        if lifetime_ms > 0 and self._error is None:
            delay_ms = renewal_delay_ms(lifetime_ms)
            self._renewal = self._loop.call_later(delay_ms / 1000, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._error is None:
            self._renewing = self._loop.create_task(self._authenticate_again())

    async def _authenticate_again(self) -> None:
        """Authenticate again on an open connection; requests sent meanwhile wait.

        A broker accepts no other request during the authentication. It answers
        earlier requests first, however long that takes.
        """
        try:
            flow = await self._authenticator.begin()
            self._held = deque()
            last_ms = self._machine.last_deadline_ms() or 0
            left_ms = max(0, last_ms - loop_ms(self._loop))
            lifetime_ms = await self._drive(flow, left_ms + self._config.request_timeout_ms)
        except KafkaError as error:
            log.warning("%s: authenticating again failed: %s", self.name, error)
            self._fail(error)
            return
        except Exception as error:  # A bug in this library: fail the requests that are held back.
            log.exception("%s: authenticating again failed", self.name)
            self._fail(BrokerConnectionError(f"{self.name}: authenticating again: {error!r}"))
            return
        held, self._held = self._held, None
        log.debug("%s: authenticated again", self.name)
        self._authenticated(lifetime_ms)
        for each in held or ():
            try:
                if self._error is not None:
                    raise self._error
                if not each.future.cancelled():
                    self._write(each)
            except KafkaError as error:
                if not each.future.done():
                    each.future.set_exception(error)
                    each.future.exception()

    async def _drive(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            step = next(flow)
            while isinstance(step, Send):
                step = flow.send(await self._ask_now(step, limit_ms))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise RemoteProtocolError("a handshake only sends requests")

    async def _ask_now(self, step: Send, limit_ms: int) -> Response:
        """Send a request before those that are held back."""
        if self._error is not None:
            raise self._error
        version = self.versions.require(type(step.request), step.max_version)
        future: asyncio.Future[Response] = self._loop.create_future()
        self._write(_Held(step.request, version, limit_ms, True, future))
        return await future

    def close(self) -> None:
        """Close without waiting; waiters fail."""
        self._fail(BrokerConnectionError(f"the connection to {self.name} was closed"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._closed)
        if self._renewing is not None:
            await asyncio.wait([self._renewing])

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a connected socket."""
        self._traffic.opened += 1
        # uvloop's transport is not derived from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the broker."""
        now_ms = loop_ms(self._loop)
        self._traffic.received.add(len(data), now_ms)
        try:
            answers = self._machine.receive(data, now_ms)
        except RemoteProtocolError as error:
            self._on_invalid(data, error)
            return
        for answer in answers:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(answer.response)

    def _on_invalid(self, data: bytes, error: RemoteProtocolError) -> None:
        """Close after bytes that are not a response."""
        if self.versions is BEFORE_NEGOTIATION:
            peer = foreign_protocol(data)
            why = peer or f"it sent an invalid response, {error}; is it a Kafka broker?"
            self._fail(RemoteProtocolError(f"{self.name}: {why}"))
            return
        log.warning("%s sent an invalid response: %s", self.name, error)
        # The waiters get the error of a broken connection, not a protocol error: a request such as
        # a commit may have been carried out.
        self._fail(BrokerConnectionError(f"{self.name} sent an invalid response: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiters after the socket was closed."""
        self._traffic.closed += 1
        if isinstance(exc, ssl.SSLError):
            self._fail(tls_error(self.name, exc))
        else:
            reason = f": {exc}" if exc else " by the broker"
            if self.versions is BEFORE_NEGOTIATION:
                protocol = self._config.security.security_protocol
                reason += f" before it answered anything; does its port speak {protocol}?"
            self._fail(BrokerConnectionError(f"the connection to {self.name} was closed{reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    # timer and failure

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if deadline_ms >= self._timer_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - loop_ms(self._loop))
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        overdue = self._machine.overdue(loop_ms(self._loop))
        if overdue is not None:
            log.warning("%s: %s; closing the connection", self.name, overdue)
            self._fail(RequestTimedOutError(f"{self.name}: {overdue}"))
            return
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(deadline_ms + 1)

    def _fail(self, error: KafkaError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._renewal.cancel()
        if self._renewing is not None and self._renewing is not asyncio.current_task(self._loop):
            self._renewing.cancel()
        waiters, self._waiters = self._waiters, deque()
        waiters.extend(each.future for each in self._held or ())
        self._held = None
        if self._transport is None:
            if not self._closed.done():
                self._closed.set_result(None)
        else:
            # abort, not close: a half-open peer never takes the bytes that are still buffered.
            self._transport.abort()
        if self._on_closed is not None:
            self._on_closed(self)
        if waiters and isinstance(error, BrokerConnectionError):
            error.may_have_arrived = True
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
                # The waiting task may have ended: mark the error as retrieved, so that asyncio does
                # not log it.
                waiter.exception()


async def open_connection(
    host: str,
    port: int,
    name: str,
    config: ClientConfig,
    on_closed: Callable[[BrokerConnection], None] | None = None,
    traffic: Traffic | None = None,
    context: ssl.SSLContext | None = None,
    authenticator: Authenticator | None = None,
    *,
    is_new: bool = False,
) -> BrokerConnection:
    """Connect, begin TLS, negotiate versions and authenticate.

    Args:
        host: Name or address; every address of a name is tried, both families.
        port: TCP port.
        name: Name of the peer in messages.
        config: Timeouts, security and client id.
        on_closed: Called once when the connection is closed.
        traffic: Counts of bytes and requests; None to count nothing.
        context: TLS context of the client, None to make one from its settings.
        authenticator: The client's, None to make one from its settings.
        is_new: Whether this address has never worked before. If it closes a plain connection
            without an answer, this tries whether it speaks TLS, so that the error can say so.

    Returns:
        A connection that is ready for requests.

    Raises:
        BrokerConnectionError: It could not be made in time.
        RemoteProtocolError: The address speaks another protocol.
        KafkaError: The broker refused the handshake.
    """
    loop = asyncio.get_running_loop()
    connection = BrokerConnection(name, config, loop, on_closed, traffic, authenticator)
    if context is None:
        context = config.security.make_ssl_context()
    try:
        async with asyncio.timeout(config.socket_connection_setup_timeout_ms / 1000):
            await _attach(connection, host, port, config, context)
            await connection.handshake()
    except TimeoutError as error:
        connection.close()
        limit_ms = config.socket_connection_setup_timeout_ms
        raise BrokerConnectionError(f"{name}: no connection within {limit_ms} ms") from error
    except ssl.SSLError as error:
        connection.close()
        raise tls_error(name, error) from error
    except OSError as error:
        connection.close()
        why = describe(error)
        if context is not None and isinstance(error, ConnectionError):
            why = f"{why} during the TLS handshake; does its port speak TLS?"
        raise BrokerConnectionError(f"{name}: {why}") from error
    except BrokerConnectionError:
        connection.close()
        may_be_tls = is_new and connection.is_unanswered and context is None
        if may_be_tls and await speaks_tls(loop, host, port, config):
            raise RemoteProtocolError(f"{name}: {SPEAKS_TLS}") from None
        raise
    except BaseException:
        connection.close()
        raise
    log.debug("connected to %s", name)
    return connection


async def _attach(
    connection: BrokerConnection,
    host: str,
    port: int,
    config: ClientConfig,
    context: ssl.SSLContext | None,
) -> None:
    """Give a connection its socket, with TLS if there is a context."""
    loop = asyncio.get_running_loop()
    sock = await connect_socket(loop, host, port, config)
    try:
        await loop.create_connection(
            lambda: connection,
            sock=sock,
            ssl=context,
            server_hostname=tls_name(host) if context is not None else None,
        )
    except BaseException:
        sock.close()
        raise


def tls_name(host: str) -> str:
    """Return the name that a certificate must have: without the final dot of DNS (RFC 6066)."""
    return host.rstrip(".") or host


def tls_error(name: str, error: ssl.SSLError) -> KafkaError:
    """Return the error for a TLS failure: a wrong setting, or a closed connection."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return BrokerConnectionError(
            f"{name}: the broker closed the connection during the TLS handshake"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return SslAuthenticationError(
            f"{name}: its certificate is not trusted: {error.verify_message}; check ssl_cafile and "
            "the host names in the certificate"
        )
    reason = (error.reason or "unknown").replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        return SslAuthenticationError(
            f"{name}: it does not speak TLS ({reason}); check the port and security_protocol"
        )
    return SslAuthenticationError(
        f"{name}: TLS failed: {reason}; check ssl_certfile, which the broker may ask for, and "
        "ssl_cafile"
    )
