"""Checks a batch before it is appended, and changes it as the topic's settings demand.

The rules are those of Kafka's LogValidator: layout, size, checksum, records, keys on compacted
topics, timestamps, codec. ``producer_state`` checks producers and sequence numbers;
``partition_log`` decides on offsets.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import AppendError
from onceflow.broker_lite.log.segment import BatchPlace
from onceflow.broker_lite.log.storage import Buffer
from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    pack_batch,
    parse_batch_header,
    set_log_append_time,
    set_timestamps,
)
from onceflow.sdk.protocol.compression import (
    Codec,
    CodecUnavailableError,
    DecompressionError,
    compress,
    decompress,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import validate_batch
from onceflow.sdk.settings.declare import INT64_MAX

KEEP_CODEC = "producer"
"""Value of ``compression.type`` that leaves batches as the client compressed them."""

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_PLACE_FIELDS = struct.Struct(">qii")  # base offset, batch length, partition leader epoch


class IncomingBatch(NamedTuple):
    """A batch that may be appended.

    Attributes:
        header: Its header; base offset and leader epoch are not set yet.
        data: Its bytes.
        log_append_time_ms: The timestamp that the broker set, -1 if it left the client's.
    """

    header: BatchHeader
    data: Buffer
    log_append_time_ms: int


def client_batch(
    records: Buffer, config: LogConfig, now_ms: int, header: BatchHeader | None = None
) -> IncomingBatch:
    """Check a client's batch.

    Args:
        records: The records field of a Produce request: exactly one batch (KIP-98).
        config: The topic's settings.
        now_ms: The broker's clock.
        header: Header of the batch, if the caller has read it.

    Raises:
        AppendError: With the code and the message that Kafka answers.
    """
    try:
        if len(records) >= HEADER_SIZE:
            _check_size(len(records), config)
        header, max_timestamp_ms = validate_batch(
            records,
            require_keys=config.compacts,
            max_record_bytes=config.max_decompressed_message_bytes,
            timestamp_range=_timestamp_range(config, now_ms),
            header=header,
        )
    except InvalidBatchError as error:
        raise AppendError(error.code, str(error), error.record_issues) from None
    if config.compression_type != KEEP_CODEC:
        records = _recompressed(header, records, config)
    if config.log_append_time:
        if header.attributes & LOG_APPEND_TIME_BIT:
            raise AppendError(
                ErrorCode.INVALID_TIMESTAMP, "only the broker may mark a batch with LogAppendTime"
            )
        return _stamped(records, now_ms)
    if header.attributes & LOG_APPEND_TIME_BIT or max_timestamp_ms != header.max_timestamp:
        corrected = bytearray(records)
        set_timestamps(corrected, TimestampType.CREATE_TIME, max_timestamp_ms)
        return IncomingBatch(parse_batch_header(corrected), corrected, NO_TIMESTAMP)
    if config.compression_type != KEEP_CODEC:
        header = parse_batch_header(records)
    return IncomingBatch(header, records, NO_TIMESTAMP)


def own_batches(records: Buffer, config: LogConfig, now_ms: int) -> list[IncomingBatch]:
    """Check the batches that a coordinator of this broker appends: one or several.

    Raises:
        AppendError: The batches are cut, or too large for the topic.
    """
    view = memoryview(records)
    batches = []
    position = 0
    try:
        while position < len(view):
            header = parse_batch_header(view, position)
            end = position + header.batch_length + LENGTH_END
            if end > len(view):
                raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the last batch is cut")
            _check_size(end - position, config)
            batch = view[position:end]
            if config.log_append_time:
                batches.append(_stamped(batch, now_ms))
            else:
                batches.append(IncomingBatch(header, batch, NO_TIMESTAMP))
            position = end
    except InvalidBatchError as error:
        raise AppendError(error.code, str(error), error.record_issues) from None
    if not batches:
        raise AppendError(ErrorCode.INVALID_RECORD, "there is no batch to append")
    return batches


def place_batches(
    batches: list[IncomingBatch], base_offset: int, leader_epoch: int
) -> tuple[list[Buffer], list[BatchPlace]]:
    """Give batches their place in the log, without copying them.

    Args:
        batches: The batches in order.
        base_offset: Offset of the first record.
        leader_epoch: Epoch to write them under.

    Returns:
        Parts to write, and for each batch the fields for the indexes.
    """
    parts: list[Buffer] = []
    places = []
    for header, data, _ in batches:
        parts.append(_PLACE_FIELDS.pack(base_offset, header.batch_length, leader_epoch))
        parts.append(memoryview(data)[_PLACE_FIELDS.size :])
        base_offset += header.last_offset_delta + 1
        size = header.batch_length + LENGTH_END
        places.append(BatchPlace(size, base_offset - 1, header.max_timestamp))
    return parts, places


def _check_size(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    if size > config.segment_bytes:
        raise AppendError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size} bytes; segment.bytes is {config.segment_bytes}",
        )


def _timestamp_range(config: LogConfig, now_ms: int) -> tuple[int, int] | None:
    """Return the range of client timestamps that a topic with CreateTime allows."""
    if config.log_append_time:
        return None
    # Both limits may be Long.MAX_VALUE, which Kafka's default was before 4.0.
    return (
        max(now_ms - config.message_timestamp_before_max_ms, -INT64_MAX),
        min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX),
    )


def _recompressed(header: BatchHeader, data: Buffer, config: LogConfig) -> Buffer:
    """Return the batch in the topic's codec (``compression.type``), unchanged if it has that."""
    codec = _CODECS[config.compression_type]
    if header.codec == codec:
        return data
    body: Buffer = memoryview(data)[HEADER_SIZE:]
    try:
        if header.codec != Codec.NONE:
            body = decompress(header.codec, body)
        if codec != Codec.NONE:
            body = compress(codec, body, config.compression_level)
    except DecompressionError as error:
        raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from None
    except CodecUnavailableError as error:
        raise AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from None
    attributes = (header.attributes & ~CODEC_MASK) | codec
    batch = pack_batch(header._replace(attributes=attributes), body)
    _check_size(len(batch), config)
    return batch


def _stamped(data: Buffer, now_ms: int) -> IncomingBatch:
    """Return a copy of the batch with the broker's time."""
    stamped = bytearray(data)
    set_log_append_time(stamped, now_ms)
    return IncomingBatch(parse_batch_header(stamped), stamped, now_ms)
