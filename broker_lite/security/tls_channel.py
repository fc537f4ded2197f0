"""One encrypted connection as a machine: bytes of the peer in, plain bytes out, and the other way.

TLS is done here rather than by the event loop's own transport, so that a connection counts from the
moment it is accepted, its opening is bounded by the broker's clock, and a large answer is encrypted
piece by piece as the peer takes it. No sockets, no clock.
"""

from __future__ import annotations

import contextlib
import ssl

READ_BYTES = 65_536


class TlsFailed(Exception):
    """The peer does not speak TLS, or not as it is asked to; the text is for the log."""


class TlsChannel:
    """The server's side of one TLS connection.

    Attributes:
        established: Whether the handshake is done.
        peer_closed: Whether the peer said that nothing more comes.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "established", "peer_closed")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established: bool = False
        self.peer_closed: bool = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the peer.

        Args:
            data: What arrived.

        Returns:
            What it means; empty while the handshake goes on. `take` what is to be sent.

        Raises:
            TlsFailed: The connection is to be closed, after sending what `take` gives.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
            while True:
                part = self._object.read(READ_BYTES)
                if not part:
                    self.peer_closed = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.peer_closed = True
        except ssl.SSLError as error:
            raise TlsFailed(getattr(error, "reason", None) or str(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """What to send so that the peer reads ``data``.

        Raises:
            TlsFailed: The connection is broken.
        """
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsFailed(getattr(error, "reason", None) or str(error)) from None
        return self.take()

    def take(self) -> bytes:
        """What is to be sent now, possibly nothing."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The last bytes to send: a peer can tell this end from a cut."""
        if self.established:
            # The peer need not answer before the connection goes.
            with contextlib.suppress(ssl.SSLError, ValueError):
                self._object.unwrap()
        return self.take()

    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer showed, verified, in DER form; None without one."""
        return self._object.getpeercert(binary_form=True) if self.established else None

    @property
    def protocol(self) -> str:
        """Version of TLS, for logs."""
        return self._object.version() or "?"
