"""Results of appends and reads."""

from __future__ import annotations

from typing import NamedTuple

from onceflow.broker_lite.log.storage import Buffer


class AppendResult(NamedTuple):
    """Result of an append.

    Attributes:
        base_offset: Offset of its first record.
        last_offset: Offset of its last record.
        log_append_time_ms: The broker's timestamp, -1 if the topic keeps the client's. For a
            duplicate, as in Kafka, the greatest timestamp of the batch that it repeats.
        log_start_offset: First offset of the log.
        duplicate: Whether the log had the batch already, so that nothing was appended.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class ReadResult(NamedTuple):
    """Result of a read.

    Attributes:
        records: Whole batches; empty if there is nothing to read yet.
        high_watermark: End of what may be read.
        last_stable_offset: End of what a committed reader may read.
        log_start_offset: First offset of the log.
        aborted_transactions: Producer id and first offset of each aborted transaction that a
            committed reader must filter, by first offset; None for an uncommitted reader.
    """

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: list[tuple[int, int]] | None
