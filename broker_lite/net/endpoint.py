"""A listener of a node while it is open.

It holds what connections and the server both know of it and decides nothing.
"""

from __future__ import annotations

import asyncio

from onceflow.broker_lite.security.listener_security import ListenerSecurity
from onceflow.broker_lite.settings.listeners import Listener


class Endpoint:
    """A listener of a node while it is open.

    Attributes:
        listener: The listener, with the port that it got.
        node_id: The node that it belongs to.
        security: How it authenticates its clients.
    """

    __slots__ = ("acceptor", "listener", "node_id", "security")

    def __init__(self, listener: Listener, node_id: int, security: ListenerSecurity) -> None:
        self.listener: Listener = listener
        self.node_id: int = node_id
        self.security: ListenerSecurity = security
        self.acceptor: asyncio.Server | None = None

    def close(self) -> None:
        """Accept nothing more; connections stay."""
        if self.acceptor is not None:
            self.acceptor.close()
