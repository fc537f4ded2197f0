"""Partition logs for consumer tests: batches of records and markers, and the answers to fetches.

A `LogBuilder` writes what producers and the transaction coordinator would have written, and keeps
beside it which records a read_committed reader must see; `fetch_answer` is what a broker's leader
answers. Bytes come from the record batch builder of the SDK, which has golden vectors of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.compression import Codec
from onceflow.sdk.protocol.records import (
    control_batch,
    encode_batch,
    parse_batch_header,
    patch_base_offset,
)

TIMESTAMP_MS = 1_600_000_000_000


@dataclass
class LogBuilder:
    """A partition's log.

    Attributes:
        batches: Base offset and bytes, in order.
        values: Offset and value of every record.
        aborted: Producer id, first offset and marker offset of each aborted transaction.
        hidden: Offsets of records of aborted transactions.
        open_since: First offset of each producer's open transaction.
    """

    next_offset: int = 0
    leader_epoch: int = 0
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    values: dict[int, bytes] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    open_since: dict[int, int] = field(default_factory=dict)
    _open_offsets: dict[int, list[int]] = field(default_factory=dict)

    def records(
        self,
        *values: bytes,
        producer_id: int = -1,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
    ) -> list[int]:
        """Append a batch; returns the offsets of its records."""
        batch = bytearray(
            encode_batch(
                [(TIMESTAMP_MS, b"k", value, []) for value in values],
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=0 if producer_id >= 0 else -1,
                transactional=transactional,
            )
        )
        patch_base_offset(batch, self.next_offset, self.leader_epoch)
        self.batches.append((self.next_offset, bytes(batch)))
        offsets = list(range(self.next_offset, self.next_offset + len(values)))
        self.values.update(zip(offsets, values, strict=True))
        if transactional:
            self.open_since.setdefault(producer_id, self.next_offset)
            self._open_offsets.setdefault(producer_id, []).extend(offsets)
        self.next_offset += len(values)
        return offsets

    def end(self, producer_id: int, *, committed: bool) -> int:
        """Append a marker; returns its offset."""
        marker = control_batch(
            producer_id,
            0,
            0,
            committed,
            base_offset=self.next_offset,
            timestamp_ms=TIMESTAMP_MS,
            leader_epoch=self.leader_epoch,
        )
        self.batches.append((self.next_offset, bytes(marker)))
        written = self._open_offsets.pop(producer_id, [])
        first_offset = self.open_since.pop(producer_id, None)
        if not committed and first_offset is not None:
            self.aborted.append((producer_id, first_offset, self.next_offset))
            self.hidden.update(written)
        self.next_offset += 1
        return self.next_offset - 1

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, else the end."""
        return min(self.open_since.values(), default=self.next_offset)

    def visible(self, first: int, end: int, *, read_committed: bool) -> list[tuple[int, bytes]]:
        """What a reader must get from a range of offsets."""
        return [
            (offset, value)
            for offset, value in self.values.items()
            if first <= offset < end and not (read_committed and offset in self.hidden)
        ]

    def fetch_answer(
        self,
        fetch_offset: int,
        *,
        read_committed: bool = True,
        batch_count: int | None = None,
        partition: int = 0,
        reverse_aborted: bool = False,
    ) -> FetchResponse.PartitionData:
        """What the leader answers: whole batches from the one that holds the offset."""
        end = self.last_stable_offset if read_committed else self.next_offset
        chosen = []
        upper = fetch_offset
        for base_offset, batch in self.batches:
            header = parse_batch_header(batch)
            if header.next_offset <= fetch_offset or base_offset >= end:
                continue
            if batch_count is not None and len(chosen) >= batch_count:
                break
            chosen.append(batch)
            upper = header.next_offset
        aborted = None
        if read_committed:
            aborted = [
                FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first, last in self.aborted
                if last >= fetch_offset and first < upper
            ]
            if reverse_aborted:
                aborted.reverse()
        return FetchResponse.PartitionData(
            partition_index=partition,
            high_watermark=self.next_offset,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=0,
            aborted_transactions=aborted,
            records=b"".join(chosen),
        )
