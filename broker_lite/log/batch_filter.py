"""Makes a batch with fewer records from a batch: compaction replaces one by the other.

A batch keeps its first and last offset and its sequence numbers (KIP-98), and each remaining record
its offset. ``compaction`` decides which records remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.log.storage import Buffer
from onceflow.sdk.protocol.batch_header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    pack_batch,
)
from onceflow.sdk.protocol.compression import compress
from onceflow.sdk.protocol.record_kernel import RecordWriter

if TYPE_CHECKING:
    from onceflow.sdk.protocol.batch_reading import RawRecord

_BATCH_BYTES_MAX = 2**31 - 1


def empty_batch(header: BatchHeader) -> Buffer:
    """Return the header without records, which keeps the producer's sequence or the log's end."""
    return pack_batch(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
            base_timestamp=header.max_timestamp,
            records_count=0,
        ),
        b"",
    )


def smaller_batch(
    header: BatchHeader, records: Sequence[RawRecord], delete_horizon_ms: int | None
) -> Buffer:
    """Return the batch with only some of its records.

    Args:
        header: Header of the batch as it was.
        records: The records that remain, at least one.
        delete_horizon_ms: When its tombstones or marker may be removed (KIP-534); None if not set.
    """
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    writer = RecordWriter(_BATCH_BYTES_MAX)
    # Timestamps count from the first record. An extra one sets the base and is cut off afterwards.
    body_start = writer.write(0, base_timestamp, None, None, None)
    greatest = NO_TIMESTAMP
    for record in records:
        timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
        greatest = max(greatest, timestamp)
        offset_delta = record.offset - header.base_offset
        writer.write(offset_delta, timestamp, record.key, record.value, record.headers)
    body: Buffer = memoryview(writer.take())[body_start:]
    if header.codec:
        body = compress(header.codec, body)
    if header.attributes & LOG_APPEND_TIME_BIT:
        greatest = header.max_timestamp
    return pack_batch(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=greatest,
            records_count=len(records),
        ),
        body,
    )
