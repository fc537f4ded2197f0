"""Record batches made by hand, byte by byte, so that tests can break every rule of the format.

Nothing here uses the code under test except the header's type, which only carries the values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c


def varint(value: int) -> bytes:
    """A zigzag number of seven bits a byte."""
    raw = (value << 1) ^ (value >> 63)
    raw &= (1 << 64) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def field(value: bytes | None) -> bytes:
    """A nullable byte string behind its length."""
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    offset_delta: int = 0,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"value",
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    length: int | None = None,
) -> bytes:
    """One record; `length` and `header_count` may lie."""
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
    body += varint(len(headers) if header_count is None else header_count)
    for name, content in headers:
        body += field(name) + field(content)
    return varint(len(body) if length is None else length) + body


def batch(
    records: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    batch_length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """A batch around already (compressed) records; every header field may lie."""
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    tail += records
    checksum = crc32c.crc32c(tail) if crc is None else crc
    length = 9 + len(tail) if batch_length is None else batch_length
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, checksum) + tail
