"""From a request frame to the handler's answer, and what the broker says it serves.

A handler declares its request and version range with :func:`handles`; nothing else lists them, so
the ApiVersions answer cannot promise what is not there. This module decides which handler a frame
reaches and which frames cost the peer its connection. It knows no sockets.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import decode_request_header
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState
    from onceflow.broker_lite.log.shared_flush import SharedFlush
    from onceflow.broker_lite.net.connection import ClientConnection
    from onceflow.broker_lite.security.exchanges import SaslExchange
    from onceflow.broker_lite.security.listener_security import ListenerSecurity
    from onceflow.sdk.protocol.primitives import Buffer

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.dispatch")

API_VERSIONS_KEY = 18
SASL_KEYS = (17, 36)
SASL_HANDSHAKE_KEY = SASL_KEYS[0]
OPEN_KEYS = (API_VERSIONS_KEY, *SASL_KEYS)
"""What an unauthenticated connection may ask where authentication is required (trap 70)."""

HANDLER_MODULES = (
    "acls",
    "admin",
    "cluster",
    "configs",
    "consumer_groups",
    "features",
    "fetch",
    "group_offsets",
    "groups",
    "offsets",
    "produce",
    "producers",
    "quotas",
    "replicas",
    "scram_users",
    "security",
    "topic_partitions",
    "transactions",
)
"""Modules of ``onceflow.broker_lite.handlers`` that register handlers when imported."""


MAX_REQUEST_VALUES = 100_000
"""How many values (fields of array elements, at least four for each) one request may hold.

Each thing that a request names costs its handler some microseconds, and all connections share one
thread: this bounds how long one request holds up the others, to about a tenth of a second. It is
enough for a request about every partition of the largest topic that can be made (10,000; a
partition of Fetch has 8 fields), and for 25,000 names or numbers."""


SHOWN_WHEN_SAFE_KEYS = frozenset((1, 2, 3, 10, 12, *OPEN_KEYS))
"""Requests whose answers need not wait for a flush (durability ``group``): Fetch and ListOffsets
end at the high watermark, which waits itself; Metadata, FindCoordinator, Heartbeat and what comes
before authentication tell of nothing that is appended."""


class CloseConnection(Exception):
    """A handler's way to say: send nothing, close this connection. The text goes to the log."""


@dataclass(slots=True)
class SaslProgress:
    """How far a connection's authentication by SASL is.

    Attributes:
        exchange: The exchange that goes on, None outside of one.
        mechanism: Mechanism of the exchange, or of the last one that was completed.
        is_mechanism_changed: True when a client wants to authenticate again by another mechanism.
        user: Who the client was shown to be; None before.
        began_again_ms: When the client last began to authenticate again.
    """

    exchange: SaslExchange | None = None
    mechanism: str = ""
    is_mechanism_changed: bool = False
    user: str | None = None
    began_again_ms: int | None = None


class ConnectionState:
    """What the broker remembers of one connection.

    Attributes:
        client_id: As the client named itself last, possibly None.
        connection_id: Unique in this process.
        client_host: Address of the peer, in Kafka's form with a leading slash.
        local_address: Host and port that the peer reached.
        listener: Name of the listener that took the connection.
        node_id: The node that it belongs to.
        principal: Who speaks, ``User:ANONYMOUS`` without authentication.
        security: How the listener authenticates its clients; None for a connection without one.
        sasl: What is known of the connection's authentication by SASL.
        must_authenticate: True while only ApiVersions and the SASL requests are allowed.
        raw_tokens: True while frames are tokens without Kafka's headers (SaslHandshake 0).
        session_expires_ms: From when on only an authentication is allowed; None for never.
        failed: True when the connection is to be closed after what was answered.
    """

    __slots__ = (
        "client_host",
        "client_id",
        "connection_id",
        "failed",
        "listener",
        "local_address",
        "must_authenticate",
        "node_id",
        "principal",
        "raw_tokens",
        "sasl",
        "security",
        "session_expires_ms",
    )

    def __init__(
        self,
        connection_id: int,
        client_host: str,
        listener: str,
        *,
        node_id: int = 1,
        local_address: tuple[str, int] = ("127.0.0.1", 0),
        must_authenticate: bool = False,
        security: ListenerSecurity | None = None,
    ) -> None:
        self.client_id: str | None = None
        self.connection_id: int = connection_id
        self.client_host: str = client_host
        self.listener: str = listener
        self.node_id: int = node_id
        self.local_address: tuple[str, int] = local_address
        self.principal: str = "User:ANONYMOUS"
        self.security: ListenerSecurity | None = security
        self.sasl: SaslProgress = SaslProgress()
        self.must_authenticate: bool = must_authenticate
        self.raw_tokens: bool = False
        self.session_expires_ms: int | None = None
        self.failed: bool = False


class RequestContext(NamedTuple):
    """Who asked, and in which version.

    Attributes:
        api_version: Version of the request, which is the version of the answer.
        client_id: As the client named itself, possibly None.
        correlation_id: Repeated in the answer.
        connection_id: Unique in this process.
        client_host: Address of the peer, in Kafka's form with a leading slash.
        principal: Who speaks.
        listener: Name of the listener that took the connection.
        connection: What is remembered of the connection.
    """

    api_version: int
    client_id: str | None
    correlation_id: int
    connection_id: int
    client_host: str
    principal: str
    listener: str
    connection: ConnectionState


RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)

Handler: TypeAlias = Callable[
    ["BrokerState", RequestContext, RequestT, int],
    "ResponseT | Deferred[ResponseT] | Deferred[ResponseT | None] | None",
]


@dataclass(frozen=True, slots=True)
class Registration:
    """One served request.

    Attributes:
        request_type: Class of the request.
        min_version: Lowest version that is served.
        max_version: Highest version that is served and advertised.
        advertised_min_version: Lowest version in the ApiVersions answer.
        handler: The function that answers.
    """

    request_type: type[Request]
    min_version: int
    max_version: int
    advertised_min_version: int
    handler: Callable[[BrokerState, RequestContext, Request, int], object]


class Served(NamedTuple):
    """What has to be known of a served request before its handler is imported.

    Attributes:
        module: Module of ``onceflow.broker_lite.handlers``.
        min_version: Lowest version that is advertised.
        max_version: Highest version that is served.
    """

    module: str
    min_version: int
    max_version: int


def _served(registration: Registration) -> Served:
    return Served(
        registration.handler.__module__.rpartition(".")[2],
        registration.advertised_min_version,
        registration.max_version,
    )


class HandlerRegistry:
    """Served requests by api key."""

    __slots__ = ("_by_key", "_lazily")

    def __init__(self, lazily: Mapping[int, Served] | None = None) -> None:
        """Make one.

        Args:
            lazily: What is served, where handlers are imported at the first request of their kind.
        """
        self._by_key: dict[int, Registration] = {}
        self._lazily: Mapping[int, Served] = lazily or {}

    def handles(
        self,
        request_type: type[RequestT],
        *,
        versions: tuple[int, int] | None = None,
        advertised_min_version: int | None = None,
    ) -> Callable[[Handler[RequestT, ResponseT]], Handler[RequestT, ResponseT]]:
        """Register the decorated function as the handler of ``request_type``.

        Args:
            request_type: Class of the request.
            versions: Lowest and highest version served; all declared ones by default.
            advertised_min_version: Lowest version to advertise where that differs (trap 66).

        Raises:
            ValueError: When the request has a handler already, or a version is not declared.
        """
        declared_min, declared_max = request_type.versions
        min_version, max_version = versions or (declared_min, declared_max)
        if not declared_min <= min_version <= max_version <= declared_max:
            raise ValueError(
                f"{request_type.__name__} declares versions {declared_min}-{declared_max}, "
                f"not {min_version}-{max_version}"
            )

        def register(handler: Handler[RequestT, ResponseT]) -> Handler[RequestT, ResponseT]:
            api_key = request_type.api_key
            if api_key in self._by_key:
                raise ValueError(f"{request_type.__name__} has two handlers")
            self._by_key[api_key] = Registration(
                request_type,
                min_version,
                max_version,
                min_version if advertised_min_version is None else advertised_min_version,
                handler,  # type: ignore[arg-type] # looked up by its own request's key only
            )
            return handler

        return register

    def get(self, api_key: int) -> Registration | None:
        """The registration of a key, or None when it is not served."""
        found = self._by_key.get(api_key)
        if found is None and api_key in self._lazily:
            load_handlers((self._lazily[api_key].module,))
            found = self._by_key[api_key] = REGISTRY._by_key[api_key]
        return found

    def served(self) -> dict[int, Served]:
        """What ApiVersions tells, by api key; imports nothing."""
        if self._lazily:
            return dict(self._lazily)
        return {each.request_type.api_key: _served(each) for each in self.registrations()}

    def limited_to(self, versions: Mapping[int, tuple[int, int]]) -> HandlerRegistry:
        """The same, of which only certain kinds and versions are served.

        Args:
            versions: Lowest and highest version by api key; other kinds are left out.
        """
        limited = HandlerRegistry()
        for registration in self.registrations():
            api_key = registration.request_type.api_key
            low, high = versions.get(api_key, (0, -1))
            min_version = max(registration.min_version, low)
            max_version = min(registration.max_version, high)
            if min_version <= max_version:
                limited._by_key[api_key] = replace(
                    registration,
                    min_version=min_version,
                    max_version=max_version,
                    advertised_min_version=max(registration.advertised_min_version, low),
                )
        return limited

    def registrations(self) -> list[Registration]:
        """Every registration, by api key."""
        for api_key in self._lazily:
            self.get(api_key)
        return [self._by_key[api_key] for api_key in sorted(self._by_key)]


REGISTRY = HandlerRegistry()
"""Handlers of this broker; filled by :func:`load_handlers`."""

handles: Final = REGISTRY.handles


def load_handlers(modules: Iterable[str] = HANDLER_MODULES) -> HandlerRegistry:
    """Import the handler modules, which register themselves, and return the registry."""
    for module in modules:
        importlib.import_module(f"onceflow.broker_lite.handlers.{module}")
    return REGISTRY


def lazy_handlers() -> HandlerRegistry:
    """All handlers, each imported at the first request of its kind: a start is to be short."""
    from onceflow.broker_lite.served_requests import SERVED

    return HandlerRegistry({api_key: Served(*entry) for api_key, entry in SERVED.items()})


class Interceptor(Protocol):
    """Stands between the dispatcher and the handlers; tests put faults and journals there."""

    def handle(
        self,
        registration: Registration,
        state: BrokerState,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        """Call the registration's handler or not, and give what the server takes for its result.

        Raises:
            CloseConnection: The connection is to be closed without an answer.
        """
        ...


class RawToken(NamedTuple):
    """An answer without Kafka's header, on a connection that began with SaslHandshake 0."""

    token: bytes


class WireTap(Protocol):
    """Sees the bytes of one connection; tests put captures and broken answers there."""

    def received(self, data: bytes) -> None:
        """The peer sent something."""
        ...

    def takes(self, parts: list[Buffer], correlation_id: int) -> bool:
        """Whether an answer is not to be sent by the connection: the tap does what there is."""
        ...

    def closed(self) -> None:
        """The connection is gone."""
        ...


class WireTaps(Protocol):
    """Makes the taps of a broker's connections."""

    def opened(
        self, connection: ClientConnection, state: ConnectionState, peer: tuple[str, int]
    ) -> WireTap:
        """Watch a new connection."""
        ...

    def refuses(self, node_id: int) -> bool:
        """Whether a new connection of a node is to be reset."""
        ...


class PendingAnswer(NamedTuple):
    """What dispatching gave: how to encode the answer, and the answer or its deferral.

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


def dispatch(
    state: BrokerState,
    connection: ConnectionState,
    frame: bytes | memoryview,
    now_ms: int,
) -> PendingAnswer:
    """Decode one request frame and run its handler.

    Args:
        state: The broker.
        connection: Where the frame came from.
        frame: A whole request without its length prefix.
        now_ms: Wall milliseconds.

    Raises:
        RemoteProtocolError: The frame is malformed, or its key or version is not served: the
            connection is to be closed (trap 62).
        CloseConnection: The handler wants the connection closed.
    """
    if connection.raw_tokens:
        from onceflow.broker_lite.handlers.security import take_raw_token

        return PendingAnswer(0, 0, take_raw_token(connection, bytes(frame), now_ms))
    header = decode_request_header(frame)
    registration = state.registry.get(header.api_key)
    if registration is None:
        raise RemoteProtocolError(f"api key {header.api_key} is not served")
    _check_standing(connection, header.api_key, now_ms)
    api_version = header.api_version
    if not registration.min_version <= api_version <= registration.max_version:
        if header.api_key == API_VERSIONS_KEY and api_version > registration.max_version:
            return PendingAnswer(0, header.correlation_id, _too_new_api_versions(registration))
        raise RemoteProtocolError(
            f"{registration.request_type.__name__} version {api_version} is not served "
            f"({registration.min_version}-{registration.max_version} are)"
        )
    request, _ = registration.request_type.decode(
        frame, api_version, header.end, max_values=MAX_REQUEST_VALUES
    )
    connection.client_id = header.client_id
    context = RequestContext(
        api_version,
        header.client_id,
        header.correlation_id,
        connection.connection_id,
        connection.client_host,
        connection.principal,
        connection.listener,
        connection,
    )
    if state.authorizer is not None:
        from onceflow.broker_lite.security.access import guarded

        registration = guarded(registration)
    interceptor = state.interceptor
    began_ns = state.work_clock_ns() if state.quotas.active else 0
    if interceptor is None:
        result = serve(registration, state, context, request, now_ms)
    else:
        result = interceptor.handle(registration, state, context, request, now_ms)
    flush = state.log_manager.shared_flush
    if flush is not None and result is not None and header.api_key not in SHOWN_WHEN_SAFE_KEYS:
        result = _held(flush, result)
    throttle_ms = 0
    if state.quotas.active:
        spent_ns = state.work_clock_ns() - began_ns
        throttle_ms = state.quotas.charge(context, header.api_key, len(frame), spent_ns, now_ms)
        _tell(result, throttle_ms)
    return PendingAnswer(api_version, header.correlation_id, result, throttle_ms)  # type: ignore[arg-type]


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


def serve(
    registration: Registration,
    state: BrokerState,
    context: RequestContext,
    request: Request,
    now_ms: int,
) -> object:
    """Let the handler answer, on the node that was asked."""
    if state.router is None:
        return registration.handler(state, context, request, now_ms)
    return state.router.handle(registration, context, request, now_ms)


def _check_standing(connection: ConnectionState, api_key: int, now_ms: int) -> None:
    """Hold a client to the requests that its authentication allows.

    Raises:
        CloseConnection: This is none of them.
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
                api_key=API_VERSIONS_KEY,
                min_version=registration.min_version,
                max_version=registration.max_version,
            )
        ],
    )
