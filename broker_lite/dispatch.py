"""Dispatches a request frame to its handler.

It decides which frames close the connection, which requests an unauthenticated client may send, and
which answers wait for the disk. ``registry`` has the handlers; ``net`` the sockets.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import HandlerRegistry, Registration
from onceflow.broker_lite.request_context import (
    CloseConnection,
    ConnectionState,
    RawToken,
    RequestContext,
)
from onceflow.broker_lite.services import Services
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import API_VERSIONS, decode_request_header
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.log.shared_flush import SharedFlush

_CORRELATION_ID = struct.Struct(">i")

SASL_KEYS = (17, 36)
SASL_HANDSHAKE_KEY = SASL_KEYS[0]
OPEN_KEYS = (API_VERSIONS, *SASL_KEYS)
"""Requests that a connection may send before a required authentication (trap 70)."""

MAX_REQUEST_VALUES = 100_000
"""How many values (fields of array elements, at least four for each) one request may hold.

Each item of a request costs its handler some microseconds, and all connections share one thread. So
this limits the time for which one request delays the others to about a tenth of a second. It is
enough for a request about every partition of the largest possible topic (10,000; a partition of
Fetch has 8 fields), and for 25,000 names or numbers. A request with more closes the connection."""


SHOWN_WHEN_SAFE_KEYS = frozenset((1, 2, 3, 10, 12, *OPEN_KEYS))
"""Requests whose answers need not wait for a flush (durability ``group``). Fetch and ListOffsets
end at the high watermark, which itself follows the flushes. The answers to the others depend on no
appended record."""


class Interceptor(Protocol):
    """Called between the dispatcher and the handlers; tests put faults and journals there."""

    def handle(
        self,
        registration: Registration,
        state: Services,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        """Call the registration's handler or not, and return the result for the server.

        Raises:
            CloseConnection: The connection must be closed without an answer.
        """
        ...


class Dispatching(Services, Protocol):
    """The broker as the dispatcher sees it."""

    @property
    def registry(self) -> HandlerRegistry:
        """The served requests."""
        ...

    @property
    def interceptor(self) -> Interceptor | None:
        """Called before the handlers in tests; None otherwise."""
        ...

    @property
    def request_counts(self) -> dict[int, int]:
        """Handled requests by api key, with an entry for each served one."""
        ...

    def work_clock_ns(self) -> int:
        """Time spent on requests, for ``request_percentage``."""
        ...


class PendingAnswer(NamedTuple):
    """Result of dispatching: how to encode the answer, and the answer or its deferral.

    Attributes:
        api_version: Version to encode in.
        correlation_id: For the response header.
        result: The answer, a deferred one, or None when the request gets none. A deferred None
            asks for the connection to be closed: nothing true can be answered.
        throttle_ms: How long the peer is to wait where there is no answer that says so.
    """

    api_version: int
    correlation_id: int
    result: Response | Deferred[Response] | Deferred[Response | None] | RawToken | None
    throttle_ms: int = 0


class KnownHeader(NamedTuple):
    """The header of a request, and what it leads to.

    Attributes:
        kind: Its first four bytes, which are key and version.
        rest: Its bytes from the client id on.
        end: Where the message begins.
        registration: The handler.
        context: Who asks, and in which version.
    """

    kind: bytes
    rest: bytes
    end: int
    registration: Registration
    context: RequestContext


class Dispatcher:
    """Brings the requests of one connection to their handlers.

    A client's requests mostly differ in the correlation id and the message alone, so the last
    header is kept with what was found for it.

    Args:
        state: The broker.
        connection: What is remembered of the connection.
    """

    __slots__ = ("_connection", "_known", "_state")

    def __init__(self, state: Dispatching, connection: ConnectionState) -> None:
        self._state = state
        self._connection = connection
        self._known: KnownHeader | None = None

    def dispatch(self, frame: bytes | memoryview, now_ms: int) -> PendingAnswer:
        """Decode one request frame and run its handler.

        Args:
            frame: A whole request without its length prefix.
            now_ms: Wall milliseconds.

        Raises:
            RemoteProtocolError: The frame is malformed, or its key or version is not served: the
                connection is to be closed (trap 62).
            CloseConnection: The handler wants the connection closed.
        """
        state, connection = self._state, self._connection
        if connection.raw_tokens:
            from onceflow.broker_lite.handlers.security import take_raw_token

            return PendingAnswer(0, 0, take_raw_token(connection, bytes(frame), now_ms))
        known = self._known
        if (
            known is None
            or frame[:4] != known.kind
            or frame[8 : known.end] != known.rest
            or known.context.principal is not connection.principal
            or connection.must_authenticate
            or connection.session_expires_ms is not None
        ):
            found = self._read_header(frame, now_ms)
            if isinstance(found, PendingAnswer):
                return found
            known = self._known = found
        _, _, end, registration, context = known
        api_version = context.api_version
        correlation_id: int = _CORRELATION_ID.unpack_from(frame, 4)[0]
        request, _ = registration.request_type.decode(
            frame, api_version, end, max_values=MAX_REQUEST_VALUES
        )
        connection.client_id = context.client_id
        connection.correlation_id = correlation_id
        state.request_counts[request.api_key] += 1
        interceptor = state.interceptor
        began_ns = state.work_clock_ns() if state.quotas.active else 0
        if interceptor is None:
            result = registration.handler(state, context, request, now_ms)
        else:
            result = interceptor.handle(registration, state, context, request, now_ms)
        flush = state.log_manager.shared_flush
        if flush is not None and result is not None and request.api_key not in SHOWN_WHEN_SAFE_KEYS:
            result = _held(flush, result)
        throttle_ms = 0
        if state.quotas.active:
            spent_ns = state.work_clock_ns() - began_ns
            size = len(frame)
            throttle_ms = state.quotas.charge(context, request.api_key, size, spent_ns, now_ms)
            _tell(result, throttle_ms)
        return PendingAnswer(api_version, correlation_id, result, throttle_ms)  # type: ignore[arg-type]

    def _read_header(self, frame: bytes | memoryview, now_ms: int) -> KnownHeader | PendingAnswer:
        """Find the handler of a request, or the answer that needs none.

        Raises:
            RemoteProtocolError: The header is malformed, or its key or version is not served.
            CloseConnection: The client may not ask this now.
        """
        state, connection = self._state, self._connection
        header = decode_request_header(frame)
        registration = state.registry.get(header.api_key)
        if registration is None:
            raise RemoteProtocolError(f"api key {header.api_key} is not served")
        _check_standing(connection, header.api_key, now_ms)
        api_version = header.api_version
        if not registration.min_version <= api_version <= registration.max_version:
            if header.api_key == API_VERSIONS and api_version > registration.max_version:
                return PendingAnswer(0, header.correlation_id, _too_new_api_versions(registration))
            raise RemoteProtocolError(
                f"{registration.request_type.__name__} version {api_version} is not served "
                f"({registration.min_version}-{registration.max_version} are)"
            )
        if state.authorizer is not None:
            from onceflow.broker_lite.guards.access import guarded

            registration = guarded(registration)
        context = RequestContext(
            api_version,
            header.client_id,
            connection.connection_id,
            connection.client_host,
            connection.principal,
            connection.listener,
            connection,
        )
        kind, rest = bytes(frame[:4]), bytes(frame[8 : header.end])
        return KnownHeader(kind, rest, header.end, registration, context)


def _tell(result: object, throttle_ms: int) -> None:
    """Have an answer say how long its peer is to wait, if it does not say more already."""
    if not throttle_ms:
        return
    if isinstance(result, Deferred):
        result.add_done_callback(partial(_tell, throttle_ms=throttle_ms))
    elif hasattr(result, "throttle_time_ms"):
        result.throttle_time_ms = max(result.throttle_time_ms, throttle_ms)


def _held(flush: SharedFlush, result: object) -> object:
    """An answer that waits until everything it may rest on is on the disk.

    That is more than what this request appended: a repeated batch or EndTxn is answered from what
    another request wrote. The same holds for an answer that was parked.
    """
    if not flush.pending and not isinstance(result, Deferred):
        return result
    held: Deferred[Response | None] = Deferred()

    def hold(response: Response | None) -> None:
        def tell(safe: bool) -> None:
            held.complete(response if safe else None)

        flush.when_safe(tell)

    if isinstance(result, Deferred):
        held.on_disconnect = result.disconnect
        result.add_done_callback(hold)
    else:
        hold(cast("Response", result))
    return held


def _check_standing(connection: ConnectionState, api_key: int, now_ms: int) -> None:
    """Hold a client to the requests that its authentication allows.

    Raises:
        CloseConnection: The request is not among them.
    """
    if connection.must_authenticate:
        if api_key not in OPEN_KEYS:
            raise CloseConnection(f"api key {api_key} before authentication")
    elif (
        connection.session_expires_ms is not None
        and now_ms > connection.session_expires_ms
        and api_key != SASL_HANDSHAKE_KEY
    ):
        raise CloseConnection("the session has ended and was not renewed")


def _too_new_api_versions(registration: Registration) -> Response:
    """KIP-511: version 0 form, error 35, and the one range that lets the client step down."""
    from onceflow.sdk.protocol.api.cluster import ApiVersionsResponse

    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=API_VERSIONS,
                min_version=registration.min_version,
                max_version=registration.max_version,
            )
        ],
    )
