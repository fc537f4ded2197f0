"""The bytes that a connection has yet to send, in order.

It decides how bytes get to the kernel: small answers are joined into one write, stored batches in
large ones are passed without a copy, and with TLS pieces are encrypted as the peer reads. It counts
the bytes that wait for slow readers.
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
"""Bytes of an answer that are encrypted at a time, as the peer reads them."""

JOINED_BYTES_MAX = 16_384
"""Waiting bytes up to this size are joined: copying them costs less than passing each part to the
kernel or to TLS."""

WRITEV_PARTS_MAX = 256
"""Most parts that one call passes to the kernel; the system's limit is 1,024 or more."""

REFILL_BYTES = 65_536
"""Bytes that the transport gets of an answer that the kernel did not take whole. When it has sent
them, the rest goes to the kernel again, so that a large answer is never copied into a buffer."""


class Counter(Protocol):
    """Counts the bytes that wait to be sent.

    Attributes:
        unsent_bytes: Bytes of answers of all connections that their peers have not read yet.
        answered_bytes: Bytes of all answers so far.
    """

    unsent_bytes: int
    answered_bytes: int


class Outgoing:
    """The waiting bytes of one connection.

    Args:
        broker: Has the counts of all connections.

    Attributes:
        paused: True while the transport's buffer is full; it gets no bytes then.
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
        """Begin to send.

        Args:
            transport: The connection's transport.
            fd: Handle of its socket, for direct writes; -1 if these are not possible.
            tls: Encrypts the bytes; None without TLS.
        """
        self._transport = transport
        self._fd = fd
        self._tls = tls

    def __bool__(self) -> bool:
        return bool(self._parts)

    def queue(self, parts: list[Buffer]) -> None:
        """Keep bytes for the next :meth:`flush`, after those that wait."""
        self._parts.extend(parts)
        size = 0
        for part in parts:
            size += len(part)
        self.waiting_bytes += size
        self._broker.answered_bytes += size

    def flush(self) -> None:
        """Send waiting bytes, as far as the peer takes them.

        Raises:
            TlsFailed: Encryption failed; the connection must be aborted.
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
        """Drop the waiting bytes."""
        self._parts.clear()
        self.waiting_bytes = 0
        self._count()

    def close(self) -> None:
        """Drop everything after the connection was lost."""
        self._fd = -1
        self._transport = None
        self.drop()

    def _count(self) -> None:
        """Keep the broker's count of bytes that wait for slow readers up to date."""
        self._broker.unsent_bytes += self.waiting_bytes - self._counted
        self._counted = self.waiting_bytes

    def _flush_to_kernel(self, transport: asyncio.Transport) -> None:
        """Pass parts to the kernel without joining: a Fetch answer is mostly stored batches.

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
            # The kernel's buffer is full. The transport buffers these bytes, calls `pause_writing`,
            # and later `resume_writing`.
            self.paused = True
            self.waiting_bytes -= len(rest)
            transport.write(rest)
            if transport.get_write_buffer_size():
                return
            self.paused = False

    def _flush_through(self, transport: asyncio.Transport) -> None:
        """Give the transport what it takes, encrypted if the connection has TLS."""
        outgoing, tls = self._parts, self._tls
        while outgoing and not self.paused:
            part = outgoing.popleft()
            if len(part) > TLS_WRITE_BYTES:
                outgoing.appendleft(memoryview(part)[TLS_WRITE_BYTES:])
                part = memoryview(part)[:TLS_WRITE_BYTES]
            self.waiting_bytes -= len(part)
            transport.write(part if tls is None else tls.encrypt(part))
