"""Logs of every kind of batch at random, and what a consumer must see of them.

Bytes are made by `record_bytes`, not by the code under test; beside them stands the plain list of
the records that a reader may see. Whoever uses a log gives the source of randomness.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from record_bytes import batch, record, varint

from onceflow.sdk.protocol.compression import Codec, compress

CODECS = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
BASE_TIMES = (0, 1_700_000_000_000, 2**62, -1, 2**63 - 1, -(2**63), -5)
TIME_STEPS = (0, 1, -1, 1_000, -(2**40), 2**62, 2**63 - 1, -(2**63))
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 8, 16, 32, 64


class Visible(NamedTuple):
    """One record as a consumer must get it."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


class Stored(NamedTuple):
    """One batch of a log; a broken one can be asked for, but not read."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes
    broken: bool
    producer_id: int


@dataclass
class MixedLog:
    """A partition's log, grown by `grow`.

    Attributes:
        chance: Where all choices come from.
        next_offset: Its end.
        broken_part: Share of batches that cannot be read.
        batches: In order.
        visible: What a read_committed reader sees, broken batches left out.
        aborted: Producer id, first offset and marker offset of each aborted transaction.
    """

    chance: random.Random
    next_offset: int = 0
    broken_part: float = 0.0
    leader_epoch: int = 0
    batches: list[Stored] = field(default_factory=list)
    visible: list[Visible] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    _open: dict[int, tuple[int, list[Visible]]] = field(default_factory=dict)

    def grow(self, count: int) -> None:
        """Add batches, and end every transaction that is open then."""
        for _ in range(count):
            if self.chance.random() < 0.1:
                self.leader_epoch += self.chance.randint(1, 3)
            if self._open and self.chance.random() < 0.3:
                self._end(self.chance.choice(list(self._open)))
            else:
                self._records()
        for producer_id in list(self._open):
            self._end(producer_id)
        self.visible.sort()

    def _end(self, producer_id: int) -> None:
        committed = self.chance.random() < 0.5
        first_offset, records = self._open.pop(producer_id)
        if committed:
            self.visible += records
        else:
            self.aborted.append((producer_id, first_offset, self.next_offset))
            self.batches = [  # Nobody reads what is hidden.
                stored._replace(broken=False)
                if stored.producer_id == producer_id and stored.base_offset >= first_offset
                else stored
                for stored in self.batches
            ]
        key = b"\x00\x00\x00" + bytes([int(committed)])
        body = record(0, key=key, value=b"\x00\x00\x00\x00\x00\x00")
        self._store(body, 1, 1, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)

    def _records(self) -> None:
        chance = self.chance
        span = chance.choice((1, 1, 2, 3, 5, 9, 40))
        deltas: Sequence[int] = range(span)
        if chance.random() < 0.3:  # Compaction was here.
            deltas = [delta for delta in deltas if chance.random() < 0.6]
        codec = chance.choice(CODECS) if deltas else Codec.NONE
        attributes = (
            int(codec)
            | chance.choice((0, 0, LOG_APPEND_TIME))
            | chance.choice((0, 0, 0, DELETE_HORIZON))
        )
        producer_id = -1
        if chance.random() < 0.4:
            producer_id = chance.randint(1, 3)
            attributes |= TRANSACTIONAL
        base_time, largest = chance.choice(BASE_TIMES), chance.choice(BASE_TIMES)
        parts, seen = [], []
        for delta in deltas:
            part, visible = self._record(delta, base_time, largest, attributes)
            parts.append(part)
            seen.append(visible)
        broken = bool(seen) and chance.random() < self.broken_part
        base_offset = self.next_offset
        self._store(
            bytes(compress(codec, b"".join(parts))),
            len(seen),
            span,
            attributes=attributes,
            producer_id=producer_id,
            base_timestamp=base_time,
            max_timestamp=largest,
            broken=broken,
        )
        if producer_id < 0:
            self.visible += [] if broken else seen
        else:
            kept = self._open.setdefault(producer_id, (base_offset, []))[1]
            kept += [] if broken else seen

    def _record(
        self, delta: int, base_time: int, largest: int, attributes: int
    ) -> tuple[bytes, Visible]:
        chance = self.chance
        step = chance.choice(TIME_STEPS)
        key, value = self._content(), self._content()
        names = ("", "name", "é" * chance.randint(0, 40))
        headers: list[tuple[str, bytes | None]] = []
        if chance.random() < 0.2:
            headers = [(chance.choice(names), self._content()) for _ in range(chance.randint(1, 3))]
        data = record(
            delta,
            timestamp_delta=step,
            key=key,
            value=value,
            headers=[(name.encode(), content) for name, content in headers],
        )
        if chance.random() < 0.1:  # A record's attributes mean nothing.
            at = len(varint(_length(data)))
            data = data[:at] + bytes([chance.randint(0, 255)]) + data[at + 1 :]
        stamp = (base_time + step + 2**63) % 2**64 - 2**63
        kind = int(bool(attributes & LOG_APPEND_TIME))
        return data, Visible(
            self.next_offset + delta,
            largest if kind else stamp,
            kind,
            key,
            value,
            tuple(headers),
            self.leader_epoch,
        )

    def _content(self) -> bytes | None:
        size = self.chance.choice((-1, 0, 1, 5, 5, 63, 64, 127, 200, 9_000))
        if size == 9_000 and self.chance.random() < 0.8:
            size = 7
        return None if size < 0 else self.chance.randbytes(size)

    def _store(
        self, body: bytes, count: int, span: int, *, broken: bool = False, **fields: int
    ) -> None:
        if broken and self.chance.random() < 0.5:
            fields["crc"] = 1
        elif broken:  # A record more than there is.
            count += 1
        data = batch(
            body,
            count,
            base_offset=self.next_offset,
            leader_epoch=self.leader_epoch,
            last_offset_delta=span - 1,
            **fields,  # type: ignore[arg-type]
        )
        following = self.next_offset + span
        self.batches.append(
            Stored(
                self.next_offset,
                following,
                self.leader_epoch,
                data,
                broken,
                fields["producer_id"],
            )
        )
        self.next_offset = following

    def read(self, offset: int, most_bytes: int) -> tuple[bytes, list[tuple[int, int]]]:
        """What a broker answers: whole batches from the one with the offset on, and then a part.

        Returns:
            The bytes, and the producer ids and first offsets of aborted transactions in them.
        """
        found, end = b"", offset
        for stored in self.batches:
            if stored.next_offset <= offset:
                continue
            if found and len(found) + len(stored.data) > most_bytes:
                found += stored.data[: self.chance.randint(0, len(stored.data) - 1)]
                break
            found += stored.data
            end = stored.next_offset
        entries = [
            (producer_id, first)
            for producer_id, first, marker in self.aborted
            if marker >= offset and first < end
        ]
        self.chance.shuffle(entries)
        return found, entries


def _length(data: bytes) -> int:
    raw = shift = 0
    for byte in data:
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return (raw >> 1) ^ -(raw & 1)
