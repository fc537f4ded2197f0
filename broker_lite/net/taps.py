"""Places where tests see and change the bytes of connections.

A connection tells its tap what it received, and asks it before an answer is sent. Without taps
none of this runs. What a tap does is decided by ``testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from onceflow.broker_lite.request_context import ConnectionState
    from onceflow.sdk.protocol.primitives import Buffer


class TappedConnection(Protocol):
    """What a tap may do with its connection."""

    def send(self, parts: list[Buffer]) -> None:
        """Send bytes as they are, after what waits to be sent."""
        ...

    def close(self) -> None:
        """Close after what was answered is sent; nothing more is handled."""
        ...

    def isolate(self) -> None:
        """Take nothing in and handle nothing until :meth:`rejoin`."""
        ...

    def rejoin(self) -> None:
        """Go on after :meth:`isolate`."""
        ...


class WireTap(Protocol):
    """Sees the bytes of one connection."""

    def received(self, data: bytes) -> None:
        """Note what the peer sent."""
        ...

    def takes(self, parts: list[Buffer], correlation_id: int) -> bool:
        """Return True if the tap sends or drops this answer itself."""
        ...

    def closed(self) -> None:
        """Note that the connection was closed."""
        ...


class WireTaps(Protocol):
    """Makes the taps of a broker's connections."""

    def opened(
        self, connection: TappedConnection, state: ConnectionState, peer: tuple[str, int]
    ) -> WireTap:
        """Watch a new connection."""
        ...

    def refuses(self, node_id: int) -> bool:
        """Return True if a new connection of a node must be reset."""
        ...
