"""Writes the bytes of a broker's connections to a capture file for Wireshark and tshark.

The file is a classic pcap. Each connection is a TCP stream with generated frames around the bytes
that client and broker sent, in order, with the times of the broker's clock. Retransmissions and
windows of the real network are not in it. The bytes of TLS connections are not encrypted.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import struct
from pathlib import Path

from onceflow.sdk.protocol.primitives import Buffer

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.testing")

CAPTURE_BYTES_MAX = 1 << 30
"""Size at which a capture ends."""

SEGMENT_BYTES_MAX = 32_768
"""Most bytes in one generated TCP segment."""

_FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1)
_PACKET = struct.Struct("<IIII")
_TCP = struct.Struct(">HHIIBBHHH")
_CLIENT_MAC = bytes.fromhex("020000000001")
_BROKER_MAC = bytes.fromhex("020000000002")
_FIN, _SYN, _PUSH, _ACK = 0x01, 0x02, 0x08, 0x10
_WINDOW = 65_535


class _Stream:
    """One connection: addresses, ports and the next sequence numbers of both sides."""

    __slots__ = ("client", "client_next", "server", "server_next")

    def __init__(self, client: tuple[bytes, int], server: tuple[bytes, int]) -> None:
        self.client = client
        self.server = server
        self.client_next = 1
        self.server_next = 1


class Capture:
    """A capture file; each event is written when its method returns.

    Only the process's user may read the file, as clients may send passwords.

    Args:
        path: The file; an existing one is replaced.
        max_bytes: Size at which the capture ends.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: str | Path, max_bytes: int = CAPTURE_BYTES_MAX) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(fd, 0o600)  # the file may exist with another mode
        self._file = open(fd, "wb", buffering=0)  # noqa: SIM115 - lives as long as the broker
        self._max_bytes = max_bytes
        self._size = 0
        self._streams: dict[int, _Stream] = {}
        self._write(_FILE_HEADER)

    def opened(
        self, connection_id: int, peer: tuple[str, int], local: tuple[str, int], now_ms: int
    ) -> None:
        """Write the packets that open a connection."""
        stream = _Stream(_address(peer), _address(local))
        self._streams[connection_id] = stream
        stream.client_next = stream.server_next = 0
        packets = self._packet(stream, True, b"", _SYN, now_ms)
        stream.client_next = 1
        packets += self._packet(stream, False, b"", _SYN | _ACK, now_ms)
        stream.server_next = 1
        self._write(packets + self._packet(stream, True, b"", _ACK, now_ms))

    def received(self, connection_id: int, data: Buffer, now_ms: int) -> None:
        """Write bytes that the client sent."""
        self._data(connection_id, True, data, now_ms)

    def sent(self, connection_id: int, data: Buffer, now_ms: int) -> None:
        """Write bytes that the broker sent."""
        self._data(connection_id, False, data, now_ms)

    def closed(self, connection_id: int, now_ms: int) -> None:
        """Write the packet that closes a connection."""
        stream = self._streams.pop(connection_id, None)
        if stream is not None:
            self._write(self._packet(stream, False, b"", _FIN | _ACK, now_ms))

    def close(self) -> None:
        """End the capture and close the file."""
        self._file.close()

    def _data(self, connection_id: int, from_client: bool, data: Buffer, now_ms: int) -> None:
        stream = self._streams.get(connection_id)
        if stream is None or self._file.closed:
            return
        view = memoryview(data)
        packets = []
        for start in range(0, len(view), SEGMENT_BYTES_MAX):
            piece = bytes(view[start : start + SEGMENT_BYTES_MAX])
            packets.append(self._packet(stream, from_client, piece, _PUSH | _ACK, now_ms))
            if from_client:
                stream.client_next = (stream.client_next + len(piece)) & 0xFFFFFFFF
            else:
                stream.server_next = (stream.server_next + len(piece)) & 0xFFFFFFFF
        self._write(b"".join(packets))

    def _packet(
        self, stream: _Stream, from_client: bool, data: bytes, flags: int, now_ms: int
    ) -> bytes:
        if from_client:
            (source, source_port), (target, target_port) = stream.client, stream.server
            sequence, acknowledged = stream.client_next, stream.server_next
            macs = _BROKER_MAC + _CLIENT_MAC
        else:
            (source, source_port), (target, target_port) = stream.server, stream.client
            sequence, acknowledged = stream.server_next, stream.client_next
            macs = _CLIENT_MAC + _BROKER_MAC
        # Checksum 0 means that the network card computes it, as in captures of real hosts.
        tcp = _TCP.pack(
            source_port, target_port, sequence, acknowledged if flags & _ACK else 0,
            5 << 4, flags, _WINDOW, 0, 0,
        )  # fmt: skip
        frame = macs + _ip(source, target, len(tcp) + len(data)) + tcp + data
        seconds, milliseconds = divmod(now_ms, 1000)
        return (
            _PACKET.pack(seconds & 0xFFFFFFFF, milliseconds * 1000, len(frame), len(frame)) + frame
        )

    def _write(self, data: bytes) -> None:
        if self._file.closed:
            return
        if self._size + len(data) > self._max_bytes:
            logger.warning("%s has %d bytes: the capture ends", self._file.name, self._size)
            self._file.close()
            return
        try:
            self._file.write(data)
        except OSError as error:
            # The broker must answer clients even if the capture cannot be written.
            logger.error("%s cannot be written: %s; the capture ends", self._file.name, error)
            self._file.close()
            return
        self._size += len(data)


def _address(address: tuple[str, int]) -> tuple[bytes, int]:
    host = address[0].removeprefix("/").partition("%")[0]
    try:
        return ipaddress.ip_address(host).packed, address[1]
    except ValueError:
        return bytes(4), address[1]


def _ip(source: bytes, target: bytes, size: int) -> bytes:
    """Return the Ethernet type field and the IP header for ``size`` bytes of TCP."""
    if len(source) != 4 or len(target) != 4:
        return (
            b"\x86\xdd"
            + struct.pack(">IHBB", 6 << 28, size, 6, 64)
            + source.rjust(16, b"\0")
            + target.rjust(16, b"\0")
        )
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0x4000, 64, 6, 0) + source + target
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return b"\x08\x00" + header[:10] + struct.pack(">H", checksum) + header[12:]
