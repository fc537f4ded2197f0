"""A listener of a node while it is open.

Connections and the server share it. It also makes the warnings about a listener at a start.
"""

from __future__ import annotations

import asyncio

from onceflow.broker_lite.security.listener_security import ListenerSecurity
from onceflow.broker_lite.settings.listeners import Listener, is_loopback

SENT_AS_THEY_ARE = {"PLAIN": "passwords of PLAIN", "OAUTHBEARER": "tokens of OAUTHBEARER"}
"""Mechanisms that send the secret itself."""


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

    def remarks(self) -> list[str]:
        """Return warnings for the log, one sentence for each danger."""
        listener, found = self.listener, []
        if listener.is_open:
            found.append(f"{listener} is open to everybody who can reach this machine")
        secrets = [name for name in self.security.mechanisms if name in SENT_AS_THEY_ARE]
        if secrets and not (listener.protocol.uses_tls or is_loopback(listener.host)):
            found.append(
                f"{listener} takes {' and '.join(SENT_AS_THEY_ARE[name] for name in secrets)} "
                "without encryption, and everybody on the way can read them: use SASL_SSL, or "
                "SCRAM-SHA-512 in place of PLAIN"
            )
        return found

    async def close(self) -> None:
        """Accept nothing more; connections stay.

        First, connections that were just accepted get their transports. asyncio makes these in the
        next turn of the loop. If the listener is closed before, they stay open and are never
        closed.
        """
        if self.acceptor is None:
            return
        loop = asyncio.get_running_loop()
        for listening in self.acceptor.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        self.acceptor.close()
