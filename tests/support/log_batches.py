"""Batches for tests of the log, and a reader that filters transactions as a client must.

The reader follows the consumer's rules alone (KIP-98): it takes the aborted list of each answer
and the markers in the data, and knows nothing of the log's inner state.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog, Storage
from onceflow.broker_lite.log.removals import Removals
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.protocol.records import (
    decode_batch,
    encode_batch,
    iter_batch_headers,
    parse_control_batch,
)

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)


def batch(
    *values: bytes | None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    step_ms: int = 0,
    key: bytes | None = b"k",
    codec: int = 0,
) -> bytes:
    """One batch as a client sends it; record i has the timestamp ``timestamp_ms + i * step_ms``."""
    return bytes(
        encode_batch(
            [(timestamp_ms + i * step_ms, key, value, []) for i, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            codec=codec,
        )
    )


def idempotent(
    sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0, transactional: bool = False
) -> bytes:
    """A batch of an idempotent producer."""
    return batch(
        *values,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def open_log(
    storage: Storage | None = None,
    config: LogConfig | None = None,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    replicated: bool = False,
    removals: Removals | None = None,
) -> PartitionLog:
    """A log in memory, or on the storage given."""
    return PartitionLog(
        MemoryStorage() if storage is None else storage,
        PARTITION,
        config or LogConfig(),
        now_ms=NOW_MS,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        replicated=replicated,
        removals=removals,
    )


def read_all(
    log: PartitionLog,
    start: int | None = None,
    *,
    max_bytes: int = 1 << 20,
    isolation_level: int = IsolationLevel.READ_UNCOMMITTED,
) -> list[tuple[int, bytes | None]]:
    """Offsets and values that a consumer sees from an offset to the end of what it may read."""
    position = log.log_start_offset if start is None else start
    first_position = position
    seen: list[tuple[int, bytes | None]] = []
    while True:
        result = log.read(position, max_bytes, isolation_level=isolation_level)
        if len(result.records) == 0:
            return seen
        visible, position = visible_records(result.records, result.aborted_transactions)
        seen.extend(entry for entry in visible if entry[0] >= first_position)


def visible_records(
    records: bytes | bytearray | memoryview, aborted: Sequence[tuple[int, int]] | None
) -> tuple[list[tuple[int, bytes | None]], int]:
    """What a consumer hands to its user from one answer, and the position it goes on at."""
    pending = [(first_offset, producer_id) for producer_id, first_offset in aborted or ()]
    assert pending == sorted(pending), "the aborted list must be sorted by first offset"
    heapq.heapify(pending)
    aborting: set[int] = set()
    seen: list[tuple[int, bytes | None]] = []
    position = 0
    end = 0
    for at, header in iter_batch_headers(records):
        end = at + header.size_bytes
        position = header.next_offset
        while pending and pending[0][0] <= header.last_offset:
            aborting.add(heapq.heappop(pending)[1])
        if header.is_control:
            if parse_control_batch(records, at).is_abort:
                aborting.discard(header.producer_id)
            continue
        if aborted is not None and header.is_transactional and header.producer_id in aborting:
            continue
        seen.extend(
            (record.offset, None if record.value is None else bytes(record.value))
            for record in decode_batch(records, at)
        )
    assert end == len(records), "an answer must end at a batch border"
    return seen, position
