"""The 61 bytes that begin a record batch (format version 2): reading, checking, rewriting.

Decides nothing about the records behind the header; `records` reads and writes those. Offsets and
the leader epoch lie before the checksummed part, so a broker may set them in place; everything
from the attributes on needs a new checksum.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import NamedTuple, cast

from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer

HEADER_SIZE = 61
LENGTH_END = 12
"""Where the part begins that `batch_length` counts."""
MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 0x7FFFFFFF

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _PRODUCER_AT = 17, 21, 35, 43
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """All header fields of one batch, by Kafka's names.

    Attributes:
        base_offset: Offset of the first record.
        batch_length: Bytes after this field; the whole batch has 12 more.
        partition_leader_epoch: Set by the broker, outside the checksum.
        magic: Format version, always 2.
        crc: CRC-32C over everything from the attributes to the end.
        attributes: Codec, timestamp type and kind of batch, as bits.
        last_offset_delta: Offset of the last record minus the base offset, gaps included.
        base_timestamp: Timestamp that the records' own count from (or the delete horizon).
        max_timestamp: Largest timestamp of the records, -1 for none.
        producer_id: Idempotent producer, -1 for none.
        producer_epoch: Its epoch, -1 for none.
        base_sequence: Sequence of the first record, -1 for none.
        records_count: Number of records that are present.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        """Offset of the last record (of the last one ever, if compaction removed it)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where a reader goes on after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, which wraps to 0 after 2^31 - 1; -1 for none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """Number of the compression codec."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps."""
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record (a transaction marker) and no user's data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones and markers (KIP-534), if set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, which goes on at 0 after 2^31 - 1."""
    return (sequence + increment) & MAX_SEQUENCE


def parse_batch_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Read the header that begins at `position`; the batch behind it may be cut.

    Raises:
        InvalidBatchError: Fewer than 61 bytes, another format version, or an impossible length.
    """
    if len(data) - position < HEADER_SIZE or position < 0:
        raise InvalidBatchError("a record batch ends within its header", ErrorCode.CORRUPT_MESSAGE)
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise InvalidBatchError(
            f"record format version {header.magic} is not supported; Kafka writes version 2",
            ErrorCode.INVALID_RECORD if header.magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE,
        )
    if header.batch_length < HEADER_SIZE - LENGTH_END:
        raise InvalidBatchError(
            f"a record batch of {header.batch_length} bytes cannot hold its own header",
            ErrorCode.CORRUPT_MESSAGE,
        )
    return header


def iter_batch_headers(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the batches in `data`, as (position, header); a batch cut at the end is left out.

    Raises:
        InvalidBatchError: Bytes that cannot be a batch.
    """
    end = len(data)
    while end - position >= HEADER_SIZE:
        header = parse_batch_header(data, position)
        next_position = position + header.batch_length + LENGTH_END
        if next_position > end:
            return
        yield position, header
        position = next_position


@functools.cache
def _crc32c() -> Callable[[Buffer], int]:
    # Its package asks importlib.metadata for its version and loads a command line while it is
    # imported, which takes longer than everything here: only the function is loaded, and only by
    # processes that meet a batch.
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:
        from crc32c import crc32c

        return cast("Callable[[Buffer], int]", crc32c)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Callable[[Buffer], int]", module.crc32c)


def crc32c(data: Buffer) -> int:
    """CRC-32C of bytes."""
    return _crc32c()(data)


def compute_crc(data: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C of the checksummed part of the batch at `position`."""
    return _crc32c()(memoryview(data)[position + _ATTRIBUTES_AT : position + size_bytes])


def check_crc(data: Buffer, position: int, header: BatchHeader) -> None:
    """Compare a batch with its checksum.

    Raises:
        InvalidBatchError: They differ, or the batch is cut; the code is CORRUPT_MESSAGE.
    """
    size = header.batch_length + LENGTH_END
    if position + size > len(data):
        raise InvalidBatchError("a record batch is cut off", ErrorCode.CORRUPT_MESSAGE)
    if compute_crc(data, position, size) != header.crc:
        raise InvalidBatchError(
            f"the batch at offset {header.base_offset} does not match its checksum",
            ErrorCode.CORRUPT_MESSAGE,
        )


def patch_base_offset(
    batch: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0
) -> None:
    """Give a batch its place in the log; neither field is checksummed."""
    _OFFSET.pack_into(batch, position, base_offset)
    _EPOCH.pack_into(batch, position + LENGTH_END, leader_epoch)


def set_timestamps(
    batch: bytearray | memoryview,
    timestamp_type: TimestampType,
    max_timestamp_ms: int,
    position: int = 0,
) -> None:
    """Set timestamp type and largest timestamp, as the topic decides them, with a new checksum.

    With `LOG_APPEND_TIME` every record reads as `max_timestamp_ms` from then on.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, position + _ATTRIBUTES_AT)
    attributes &= ~LOG_APPEND_TIME_BIT
    if timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(batch, position + _ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(batch, position + _MAX_TIMESTAMP_AT, max_timestamp_ms)
    _write_crc(batch, position)


def set_log_append_time(
    batch: bytearray | memoryview, timestamp_ms: int, position: int = 0
) -> None:
    """Make the broker's time the time of every record (`message.timestamp.type`)."""
    set_timestamps(batch, TimestampType.LOG_APPEND_TIME, timestamp_ms, position)


def set_producer_state(
    batch: bytearray | memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool | None = None,
    position: int = 0,
) -> None:
    """Set who produced a batch and under which sequence, with a new checksum.

    A producer uses it on a finished batch after its epoch was bumped (KIP-360).

    Args:
        batch: Bytes that hold the batch.
        producer_id: Idempotent producer's id.
        producer_epoch: Its epoch.
        base_sequence: Sequence of the first record.
        transactional: Whether the batch belongs to a transaction; None leaves it as it is.
        position: Where the batch begins.
    """
    if transactional is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(batch, position + _ATTRIBUTES_AT)
        attributes &= ~TRANSACTIONAL_BIT
        if transactional:
            attributes |= TRANSACTIONAL_BIT
        _ATTRIBUTES.pack_into(batch, position + _ATTRIBUTES_AT, attributes)
    _PRODUCER.pack_into(batch, position + _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _write_crc(batch, position)


def pack_batch(header: BatchHeader, body: Buffer) -> bytearray:
    """Join a header and its (compressed) records; length and checksum are computed."""
    size = HEADER_SIZE + len(body)
    batch = bytearray(_HEADER.pack(*header._replace(batch_length=size - LENGTH_END)))
    batch += body  # the one way to fill it that copies once
    _write_crc(batch, 0)
    return batch


def _write_crc(batch: bytearray | memoryview, position: int) -> None:
    size = int.from_bytes(batch[position + 8 : position + LENGTH_END], "big") + LENGTH_END
    _CRC.pack_into(batch, position + _CRC_AT, compute_crc(batch, position, size))
