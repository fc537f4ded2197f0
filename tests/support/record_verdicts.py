"""Records that a broker refuses before it looks at them one by one, and by which producer they are.

Each case is what a Produce request holds for one partition, and the code that Apache Kafka 4.4
answers in version 9. The conformance tests ask Kafka for it; the broker's own tests ask the broker.
"""

from __future__ import annotations

import struct
import zlib

from record_bytes import batch, record

from onceflow.sdk.protocol.error_codes import ErrorCode

NONE, INVALID, CORRUPT = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


def cases(now_ms: int) -> dict[str, tuple[bytes, ErrorCode]]:
    """Bytes and code by a name that says what is wrong with them.

    Args:
        now_ms: Timestamp of the records.
    """
    good = batch(record(0), 1, base_timestamp=now_ms, max_timestamp=now_ms)
    found: dict[str, tuple[bytes, ErrorCode]] = {}
    for magic in (0, 1):
        for size in (0, 1, 20, 200):
            data = old_format(bytes(size), magic, now_ms)
            found[f"format {magic}, value of {size} bytes"] = (data, INVALID)
        short = old_format(b"x", magic, now_ms)
        found[f"format {magic}, two records"] = (short * 2, INVALID)
        found[f"format {magic}, cut"] = (short[:-1], INVALID)
    for size in (1, 16, 17, 40, 60, 61):
        found[f"the first {size} bytes"] = (good[:size], INVALID)
    for length in (-1, 0, 13):
        for magic in (0, 1, 2, 3):
            for size in (17, 40, 61):
                data = announcing(good, length, magic)[:size]
                found[f"length {length}, format {magic}, {size} bytes"] = (data, CORRUPT)
    for size in (17, 61):
        data = announcing(good, 60, 3)[:size]
        found[f"length 60, format 3, {size} bytes"] = (data, CORRUPT)
    for number, epoch in enumerate((-2, -3, -32768)):
        found[f"epoch {epoch}"] = (idempotent(now_ms, 900 + number, epoch), FENCED)
    for number, epoch in enumerate((-1, 0)):
        found[f"epoch {epoch}"] = (idempotent(now_ms, 800 + number, epoch), NONE)
    found["epoch -3 without a producer id"] = (idempotent(now_ms, -5, -3), NONE)
    return found


def old_format(value: bytes, magic: int, now_ms: int) -> bytes:
    """One record of a format before version 2, which has no batch header."""
    time_field = struct.pack(">q", now_ms) if magic else b""
    body = bytes([magic, 0]) + time_field + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def announcing(good: bytes, length: int, magic: int) -> bytes:
    """A batch whose length field and format version are as given."""
    return good[:8] + struct.pack(">i", length) + good[12:16] + bytes([magic]) + good[17:]


def idempotent(now_ms: int, producer_id: int, producer_epoch: int) -> bytes:
    """The first batch of a producer."""
    return batch(
        record(0),
        1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0,
    )
