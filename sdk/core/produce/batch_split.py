"""Splits a batch that a broker refused as too large into two (KIP-126).

Records keep their order, bytes and timestamps. The batch that was split knows to which half a
delivery belongs. The sender decides when to split.
"""

from __future__ import annotations

from onceflow.sdk.core.produce.batch import ProducerBatch
from onceflow.sdk.protocol.records import MAX_SEQUENCE, decode_batch


def split_batch(
    batch: ProducerBatch, codec: int, level: int | None = None
) -> list[tuple[int, ProducerBatch]]:
    """Distribute the records of a built batch over two new ones.

    Args:
        batch: A built batch of at least two records.
        codec: Compression of the new batches.
        level: Its level, None for the default.

    Returns:
        Index of the first record, and the sealed batch, twice.
    """
    assert batch.data is not None
    assert batch.count > 1
    records = decode_batch(batch.data, verify_crc=False)
    middle = len(records) // 2
    children = []
    for number, (start, stop) in enumerate(((0, middle), (middle, len(records)))):
        child = ProducerBatch(
            batch.topic,
            batch.partition,
            batch_size=MAX_SEQUENCE,
            codec=codec,
            level=level,
            created_ms=batch.created_ms,
            order=(*batch.order, number),
            transaction=batch.transaction,
        )
        for record in records[start:stop]:
            timestamp_ms = -1 if record.timestamp is None else record.timestamp
            child.write(timestamp_ms, record.key, record.value, list(record.headers))
        assert child.builder is not None
        child.reserved = child.builder.size_bytes
        child.producer_id, child.producer_epoch = batch.producer_id, batch.producer_epoch
        children.append((start, child))
    return children
