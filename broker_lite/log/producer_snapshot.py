"""Producer state on disk: Kafka's ``.snapshot`` files and our ``.producers5`` beside them.

Kafka's file keeps only the last batch of each producer. ``.producers5``, which Kafka ignores, keeps
the last five and the time of the last append, so that a retry is recognized after a restart as
before it. These functions convert state to bytes and back; a damaged file raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from onceflow.broker_lite.log.producer_state import (
    REMEMBERED_BATCHES,
    ProducerEntry,
    RememberedBatch,
)
from onceflow.sdk.model.special_values import NO_OFFSET
from onceflow.sdk.protocol.batch_header import NO_SEQUENCE, crc32c

SNAPSHOT_SUFFIX = ".snapshot"
WINDOW_SUFFIX = ".producers5"

_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_WINDOW_ENTRY = struct.Struct(">qhqb")
_WINDOW_BATCH = struct.Struct(">iqiq")
_VERSION = 1


def render_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return Kafka's snapshot, version 1: the last batch of each producer."""
    rows = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else NO_OFFSET,
                last.offset_delta if last else 0,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    return _sealed(_COUNT.pack(len(rows)) + b"".join(rows))


def parse_snapshot(data: bytes, now_ms: int) -> list[ProducerEntry]:
    """Return the producers in Kafka's snapshot.

    Args:
        data: Content of the file.
        now_ms: Used as the time of each producer's last append, which is not in the file.

    Raises:
        ValueError: The file is damaged or of another version.
    """
    body = _unsealed(data)
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise ValueError("producer snapshot of a wrong length")
    entries = []
    for row in _ENTRY.iter_unpack(body[_COUNT.size :]):
        (producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first) = row
        batches = [RememberedBatch(sequence, offset, delta, timestamp)] if offset >= 0 else []
        entries.append(
            ProducerEntry(
                producer_id,
                epoch,
                coordinator_epoch=coordinator_epoch,
                last_timestamp_ms=timestamp,
                last_append_ms=now_ms,
                transaction_first_offset=first,
                batches=batches,
            )
        )
    return entries


def render_window(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of ``.producers5``: the known batches of each producer."""
    parts = []
    count = 0
    for entry in entries:
        count += 1
        parts.append(
            _WINDOW_ENTRY.pack(
                entry.producer_id, entry.producer_epoch, entry.last_append_ms, len(entry.batches)
            )
        )
        parts.extend(_WINDOW_BATCH.pack(*batch) for batch in entry.batches)
    return _sealed(_COUNT.pack(count) + b"".join(parts))


def apply_window(entries: Iterable[ProducerEntry], data: bytes) -> None:
    """Add the batches in ``.producers5`` to producers from Kafka's snapshot.

    This is done only if both files agree on a producer's epoch and last batch, so a folder that
    Kafka has written to in between is taken as Kafka left it.

    Raises:
        ValueError: The file is damaged or of another version.
    """
    body = _unsealed(data)
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    windows = {}
    try:
        for _ in range(count):
            producer_id, epoch, last_append_ms, kept = _WINDOW_ENTRY.unpack_from(body, at)
            at += _WINDOW_ENTRY.size
            if not 0 <= kept <= REMEMBERED_BATCHES:
                raise ValueError("producer window with a wrong number of batches")
            batches = []
            for _ in range(kept):
                batches.append(RememberedBatch(*_WINDOW_BATCH.unpack_from(body, at)))
                at += _WINDOW_BATCH.size
            windows[producer_id] = (epoch, last_append_ms, batches)
    except struct.error as error:
        raise ValueError("producer window cut short") from error
    for entry in entries:
        epoch, last_append_ms, batches = windows.get(entry.producer_id, (None, 0, []))
        # After a marker, Kafka's file has no timestamp of the batch: do not compare that.
        last = [batch[:3] for batch in batches[-1:]]
        if epoch == entry.producer_epoch and last == [batch[:3] for batch in entry.batches]:
            entry.last_append_ms = last_append_ms
            entry.batches.clear()
            entry.batches.extend(batches)


def _sealed(body: bytes) -> bytes:
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def _unsealed(data: bytes) -> bytes:
    if len(data) < _HEADER.size + _COUNT.size:
        raise ValueError("producer snapshot cut short")
    version, crc = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if version != _VERSION:
        raise ValueError(f"producer snapshot of version {version}")
    if crc != crc32c(body):
        raise ValueError("producer snapshot with a wrong checksum")
    return body
