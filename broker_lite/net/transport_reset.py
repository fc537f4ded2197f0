"""Ends a connection so that the peer sees a reset, as if this machine had died."""

from __future__ import annotations

import asyncio
import socket
import struct

LINGER_NOT = struct.pack("ii", 1, 0)
"""``SO_LINGER`` switched on with no time: closing drops what was not sent and resets."""


def reset(transport: asyncio.Transport) -> None:
    """Close a connection without an orderly end."""
    plain_socket = transport.get_extra_info("socket")
    if plain_socket is not None:
        plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    transport.abort()
