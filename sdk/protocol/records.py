"""Record batches, format version 2 (KIP-98): the names of several modules in one place.

`batch_header` has the header, `batch_building` writes batches, `batch_reading` reads them,
`control_batches` has transaction markers, and `record_validation` checks a producer's batch before
it enters a log.
"""

from __future__ import annotations

from onceflow.sdk.protocol.batch_building import RecordBatchBuilder, RecordTuple, encode_batch
from onceflow.sdk.protocol.batch_errors import InvalidBatchError, RecordIssue
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    increment_sequence,
    iter_batch_headers,
    parse_batch_header,
    patch_base_offset,
    set_log_append_time,
    set_producer_state,
    set_timestamps,
)
from onceflow.sdk.protocol.batch_reading import (
    consumer_columns,
    consumer_records,
    decode_batch,
    decode_values,
    extend_columns,
    first_record_at_or_after,
    max_timestamp_record,
)
from onceflow.sdk.protocol.compression import Codec
from onceflow.sdk.protocol.control_batches import (
    ControlRecord,
    ControlType,
    control_batch,
    parse_control_batch,
)
from onceflow.sdk.protocol.record_validation import ValidBatch, validate_batch

__all__ = [
    "HEADER_SIZE",
    "MAX_SEQUENCE",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Codec",
    "ControlRecord",
    "ControlType",
    "InvalidBatchError",
    "RecordBatchBuilder",
    "RecordIssue",
    "RecordTuple",
    "ValidBatch",
    "check_crc",
    "consumer_columns",
    "consumer_records",
    "control_batch",
    "decode_batch",
    "decode_values",
    "encode_batch",
    "extend_columns",
    "first_record_at_or_after",
    "increment_sequence",
    "iter_batch_headers",
    "max_timestamp_record",
    "parse_batch_header",
    "parse_control_batch",
    "patch_base_offset",
    "set_log_append_time",
    "set_producer_state",
    "set_timestamps",
    "validate_batch",
]
