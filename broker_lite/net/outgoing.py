"""What a connection has yet to send: answers on their way to one peer, in order.

It decides how bytes get to the kernel: small answers joined in one write, large ones without
joining what is stored, encrypted piece by piece where the connection is. It counts what slow
readers leave in memory. What is sent and when is the connection's business.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from onceflow.sdk.protocol.primitives import Buffer

if TYPE_CHECKING:
    from onceflow.broker_lite.security.tls_channel import TlsChannel

TLS_WRITE_BYTES = 65_536
"""How much of an answer is encrypted at a time, as the peer takes it."""

JOINED_BYTES_MAX = 16_384
"""What waits is joined up to this size: to copy so little is cheaper than to hand the kernel, or
TLS, each part by itself."""

WRITEV_PARTS_MAX = 256
"""Most parts handed to the kernel in one call; the limit of the system is 1,024 or more."""

REFILL_BYTES = 65_536
"""What the transport gets of an answer that the kernel did not take whole. When it is through,
the rest is offered to the kernel again, so that a large answer is never copied into a buffer."""


class Counter(Protocol):
    """Knows how much waits to be sent.

    Attributes:
        unsent_bytes: Answers in memory that their peers have yet to take, of all connections.
        answered_bytes: All answers so far.
    """

    unsent_bytes: int
    answered_bytes: int


class Outgoing:
    """The bytes that wait.

    Args:
        broker: Told how many there are, of all connections together.

    Attributes:
        paused: True while the transport has as much as it takes; nothing is given to it then.
        waiting_bytes: How many bytes wait.
    """

    __slots__ = (
        "_broker",
        "_counted",
        "_fd",
        "_parts",
        "_tls",
        "_transport",
        "paused",
        "waiting_bytes",
    )

    def __init__(self, broker: Counter) -> None:
        self._broker = broker
        self._parts: deque[Buffer] = deque()
        self._counted = 0
        self._fd = -1
        self._tls: TlsChannel | None = None
        self._transport: asyncio.Transport | None = None
        self.paused: bool = False
        self.waiting_bytes: int = 0

    def open(self, transport: asyncio.Transport, fd: int, tls: TlsChannel | None) -> None:
        """Begin.

        Args:
            transport: Of the connection.
            fd: Its socket, which answers are written to directly; -1 where they cannot be.
            tls: Encrypts what is sent, if anything does.
        """
        self._transport = transport
        self._fd = fd
        self._tls = tls

    def __bool__(self) -> bool:
        return bool(self._parts)

    def queue(self, parts: list[Buffer]) -> None:
        """Keep bytes for the next :meth:`flush`, after what waits."""
        self._parts.extend(parts)
        size = 0
        for part in parts:
            size += len(part)
        self.waiting_bytes += size
        self._broker.answered_bytes += size

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it.

        Raises:
            TlsFailed: It cannot be encrypted; the connection is to be aborted.
        """
        transport = self._transport
        if self._parts and not self.paused and transport is not None:
            if len(self._parts) > 1 and self.waiting_bytes <= JOINED_BYTES_MAX:
                joined = b"".join(self._parts)
                self._parts.clear()
                self._parts.append(joined)
            if self._fd < 0:
                self._flush_through(transport)
            else:
                self._flush_to_kernel(transport)
        if self._counted != self.waiting_bytes:
            self._count()

    def drop(self) -> None:
        """Forget what waits."""
        self._parts.clear()
        self.waiting_bytes = 0
        self._count()

    def close(self) -> None:
        """Forget everything: the connection is gone."""
        self._fd = -1
        self._transport = None
        self.drop()

    def _count(self) -> None:
        """Keep the broker's count of bytes that wait for slow readers up to date."""
        self._broker.unsent_bytes += self.waiting_bytes - self._counted
        self._counted = self.waiting_bytes

    def _flush_to_kernel(self, transport: asyncio.Transport) -> None:
        """Hand the kernel what it takes without joining: a Fetch answer is mostly stored batches.

        Only called while the transport's own buffer is empty, so that bytes stay in order.
        """
        outgoing = self._parts
        while outgoing:
            parts = list(islice(outgoing, WRITEV_PARTS_MAX))
            try:
                sent = os.writev(self._fd, parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                transport.abort()
                return
            self.waiting_bytes -= sent
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
            self.paused = True
            self.waiting_bytes -= len(rest)
            transport.write(rest)
            if transport.get_write_buffer_size():
                return
            self.paused = False

    def _flush_through(self, transport: asyncio.Transport) -> None:
        """Give the transport what it takes, encrypted where the connection is."""
        outgoing, tls = self._parts, self._tls
        while outgoing and not self.paused:
            part = outgoing.popleft()
            if len(part) > TLS_WRITE_BYTES:
                outgoing.appendleft(memoryview(part)[TLS_WRITE_BYTES:])
                part = memoryview(part)[:TLS_WRITE_BYTES]
            self.waiting_bytes -= len(part)
            transport.write(part if tls is None else tls.encrypt(part))
