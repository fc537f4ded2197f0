"""Control batches: the markers by which a transaction ends in each of its partitions (KIP-98).

It has only the layout. The broker's coordinator writes markers, and `core.consume.fetch_buffer`
reads them.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
    LENGTH_END,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack_batch,
    parse_batch_header,
)
from onceflow.sdk.protocol.batch_reading import decode_batch
from onceflow.sdk.protocol.primitives import Buffer


class ControlType(enum.IntEnum):
    """Kinds of control records that concern clients and brokers of data (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """Content of a control batch.

    Attributes:
        type: 0 abort, 1 commit; larger numbers belong to Kafka's own metadata log.
        coordinator_epoch: Epoch of the transaction coordinator, -1 for other types.
    """

    type: int
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        """Whether the marker commits the producer's open transaction."""
        return self.type == ControlType.COMMIT

    @property
    def is_abort(self) -> bool:
        """Whether the marker aborts the producer's open transaction."""
        return self.type == ControlType.ABORT


CONTROL_BATCH_SIZE = 78
_CONTROL_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
# One record: length 16, no attributes, both deltas 0, key of 4 bytes, value of 6, no headers.
_MARKER = struct.Struct(">bbbbbhhbhib")


def control_batch(
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    committed: bool,
    *,
    base_offset: int = 0,
    timestamp_ms: int,
    leader_epoch: int = -1,
) -> bytearray:
    """Build the marker that ends a transaction in one partition: exactly 78 bytes.

    Args:
        producer_id: Producer whose transaction ends.
        producer_epoch: Its epoch (the bumped one under transaction version 2, KIP-890).
        coordinator_epoch: Epoch of the coordinator that decided.
        committed: True to commit, False to abort.
        base_offset: Offset that the marker takes in the log.
        timestamp_ms: Time of the decision.
        leader_epoch: Leader epoch of the partition.
    """
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    body = _MARKER.pack(32, 0, 0, 0, 8, 0, kind, 12, 0, coordinator_epoch, 0)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=CONTROL_BATCH_SIZE - LENGTH_END,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        records_count=1,
    )
    return pack_batch(header, body)


def parse_control_batch(data: Buffer, position: int = 0) -> ControlRecord:
    """Read the control batch at `position`.

    Raises:
        InvalidBatchError: It is not one, or it is malformed.
    """
    header = parse_batch_header(data, position)
    if not header.is_control:
        raise InvalidBatchError(f"the batch at offset {header.base_offset} is not a control batch")
    for record in decode_batch(data, position, header=header):
        key, value = record.key, record.value
        if key is None or len(key) < _CONTROL_KEY.size:
            break
        kind = _CONTROL_KEY.unpack_from(key)[1]
        if kind > ControlType.COMMIT:
            return ControlRecord(kind, -1)
        if value is None or len(value) < _MARKER_VALUE.size:
            break
        return ControlRecord(kind, _MARKER_VALUE.unpack_from(value)[1])
    raise InvalidBatchError(f"the control batch at offset {header.base_offset} is malformed")
