"""The state of a connection, and the context of one request.

The connection makes them, the handlers of SASL change them, and every other handler only reads
them. ``net`` has the sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from onceflow.broker_lite.security.exchanges import SaslExchange


class CloseConnection(Exception):
    """Raised by a handler to close the connection without an answer; the text is logged."""


class RawToken(NamedTuple):
    """An answer without Kafka's header, on a connection that began with SaslHandshake 0."""

    token: bytes

    def __repr__(self) -> str:
        return f"RawToken({len(self.token)} bytes)"


class Authentication(Protocol):
    """How a listener authenticates its clients, as far as handlers need it.

    Attributes:
        mechanisms: SASL mechanisms, in the order of the setting; empty without SASL.
    """

    mechanisms: tuple[str, ...]

    def begin(self, mechanism: str) -> SaslExchange:
        """Begin an exchange of one of the mechanisms."""
        ...

    def session_lifetime_ms(
        self, mechanism: str, expires_ms: int | None, now_ms: int
    ) -> int | None:
        """Return the lifetime of an authentication; None for no limit (KIP-368)."""
        ...


@dataclass(slots=True)
class SaslProgress:
    """State of a connection's authentication by SASL.

    Attributes:
        exchange: The current exchange, or None.
        mechanism: Mechanism of the current exchange, or of the last completed one.
        is_mechanism_changed: Whether a client began to authenticate again by another mechanism.
        user: The authenticated user; None before.
        began_again_ms: When the client last began to authenticate again.
    """

    exchange: SaslExchange | None = None
    mechanism: str = ""
    is_mechanism_changed: bool = False
    user: str | None = None
    began_again_ms: int | None = None


class ConnectionState:
    """State of one connection.

    Attributes:
        client_id: The client id of the last request, possibly None.
        correlation_id: Number of the last request, which its answer repeats.
        connection_id: Unique in this process.
        client_host: Address of the peer, in Kafka's form with a leading slash.
        local_address: Host and port that the peer reached.
        listener: Name of the listener that took the connection.
        node_id: The node that it belongs to.
        principal: The client's principal, ``User:ANONYMOUS`` without authentication.
        security: How the listener authenticates its clients; None for a connection without one.
        sasl: State of the authentication by SASL.
        must_authenticate: True while only ApiVersions and the SASL requests are allowed.
        raw_tokens: True while frames are tokens without Kafka's headers (SaslHandshake 0).
        session_expires_ms: Time from which only an authentication is allowed; None for never.
        failed: Whether to close the connection after the present answer.
    """

    __slots__ = (
        "client_host",
        "client_id",
        "connection_id",
        "correlation_id",
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
        security: Authentication | None = None,
    ) -> None:
        self.client_id: str | None = None
        self.correlation_id: int = 0
        self.connection_id: int = connection_id
        self.client_host: str = client_host
        self.listener: str = listener
        self.node_id: int = node_id
        self.local_address: tuple[str, int] = local_address
        self.principal: str = "User:ANONYMOUS"
        self.security: Authentication | None = security
        self.sasl: SaslProgress = SaslProgress()
        self.must_authenticate: bool = must_authenticate
        self.raw_tokens: bool = False
        self.session_expires_ms: int | None = None
        self.failed: bool = False


class RequestContext(NamedTuple):
    """Client and version of one request.

    Attributes:
        api_version: Version of the request, which is the version of the answer.
        client_id: The client id of the request, possibly None.
        connection_id: Unique in this process.
        client_host: Address of the peer, in Kafka's form with a leading slash.
        principal: The client's principal.
        listener: Name of the listener that took the connection.
        connection: State of the connection.
    """

    api_version: int
    client_id: str | None
    connection_id: int
    client_host: str
    principal: str
    listener: str
    connection: ConnectionState
