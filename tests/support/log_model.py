"""A partition as a list: what a correct log must answer, computed the slow and obvious way.

Every rule is a scan over all entries, so that it can be compared with the definition by eye. The
driver makes seeded random steps on a log and on the model alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from log_batches import NOW_MS, idempotent

from onceflow.broker_lite.log import PartitionLog
from onceflow.sdk.protocol.records import encode_batch


@dataclass(slots=True)
class ModelTransaction:
    """A transaction of one producer on this partition."""

    producer_id: int
    first_offset: int
    marker_offset: int = -1
    aborted: bool = False

    @property
    def open(self) -> bool:
        return self.marker_offset < 0


@dataclass(slots=True)
class ModelEntry:
    """One offset: a value, or None for a marker."""

    value: bytes | None
    transaction: ModelTransaction | None = None


@dataclass(slots=True)
class ModelProducer:
    """A producer's side of things."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    transaction: ModelTransaction | None = None
    sent: list[tuple[bytes, int]] = field(default_factory=list)


class ModelLog:
    """The entries from offset 0 on, and the transactions among them."""

    def __init__(self) -> None:
        self.entries: list[ModelEntry] = []
        self.transactions: list[ModelTransaction] = []
        self.borders = [0]

    def extend(self, entries: list[ModelEntry]) -> None:
        """Take over one batch."""
        self.entries += entries
        self.borders.append(len(self.entries))

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    def last_stable_offset(self, end_offset: int | None = None) -> int:
        """The first offset of the oldest transaction that is open at an end, or that end."""
        end = self.end_offset if end_offset is None else end_offset
        firsts = [
            transaction.first_offset
            for transaction in self.transactions
            if transaction.first_offset < end
            and (transaction.open or transaction.marker_offset >= end)
        ]
        return min(firsts, default=end)

    def uncommitted_view(self, start: int) -> list[tuple[int, bytes | None]]:
        return [
            (offset, entry.value)
            for offset, entry in enumerate(self.entries)
            if offset >= start and entry.value is not None
        ]

    def committed_view(
        self, start: int, end_offset: int | None = None
    ) -> list[tuple[int, bytes | None]]:
        """What a committed reader sees of a log that ends at an offset."""
        stable = self.last_stable_offset(end_offset)
        return [
            (offset, entry.value)
            for offset, entry in enumerate(self.entries[:stable])
            if offset >= start
            and entry.value is not None
            and not (entry.transaction is not None and entry.transaction.aborted)
        ]

    def aborted_overlapping(self, start: int, end: int) -> list[tuple[int, int]]:
        """Aborted transactions that have data or their marker at or after start, before end."""
        found = [
            (transaction.first_offset, transaction.producer_id)
            for transaction in self.transactions
            if transaction.aborted
            and transaction.marker_offset >= start
            and transaction.first_offset < end
        ]
        return [(producer_id, first_offset) for first_offset, producer_id in sorted(found)]


class ModelDriver:
    """Random steps of plain, idempotent and transactional producers on a log and its model.

    Args:
        seed: Decides every step.
        producers: How many of them.
    """

    def __init__(self, seed: int, producers: int = 4) -> None:
        self.random = random.Random(seed)
        self.model = ModelLog()
        self.producers = [ModelProducer(100 + number) for number in range(producers)]
        self._count = 0

    def step(self, log: PartitionLog) -> None:
        """Do one random thing."""
        choice = self.random.random()
        producer = self.random.choice(self.producers)
        if choice < 0.15:
            self.append_plain(log)
        elif choice < 0.22:
            self.repeat(log, producer)
        elif producer.transaction is not None and choice < 0.55:
            self.end(log, producer)
        else:
            self.append(log, producer, transactional=self.random.random() < 0.8)

    def _values(self) -> list[bytes]:
        values = []
        for _ in range(self.random.choice((1, 1, 2, 5, 12))):
            self._count += 1
            values.append(b"%d-" % self._count + b"x" * self.random.choice((0, 10, 300)))
        return values

    def append_plain(self, log: PartitionLog) -> None:
        values = self._values()
        data = encode_batch([(NOW_MS, b"k", value, []) for value in values])
        result = log.append(bytes(data), now_ms=NOW_MS)
        assert result.base_offset == self.model.end_offset
        self.model.extend([ModelEntry(value) for value in values])

    def append(self, log: PartitionLog, producer: ModelProducer, *, transactional: bool) -> None:
        transactional = transactional or producer.transaction is not None
        values = self._values()
        data = idempotent(
            producer.sequence,
            *values,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            transactional=transactional,
        )
        base_offset = self.model.end_offset
        if transactional and producer.transaction is None:
            producer.transaction = ModelTransaction(producer.producer_id, base_offset)
            self.model.transactions.append(producer.transaction)
        result = log.append(data, now_ms=NOW_MS)
        assert (result.base_offset, result.duplicate) == (base_offset, False)
        self.model.extend([ModelEntry(value, producer.transaction) for value in values])
        producer.sequence += len(values)
        producer.sent = [*producer.sent, (data, base_offset)][-5:]

    def repeat(self, log: PartitionLog, producer: ModelProducer) -> None:
        """Send one of the last five batches again; nothing may change."""
        if producer.sent:
            data, base_offset = self.random.choice(producer.sent)
            result = log.append(data, now_ms=NOW_MS + 5)
            assert (result.base_offset, result.duplicate) == (base_offset, True)
            assert log.log_end_offset == self.model.end_offset

    def end(self, log: PartitionLog, producer: ModelProducer) -> None:
        """Commit or abort, in the manner of transactions version 1 or 2."""
        assert producer.transaction is not None
        committed = self.random.random() < 0.5
        if self.random.random() < 0.5:
            producer.epoch += 1
            producer.sequence = 0
            producer.sent = []
        offset = self.model.end_offset
        result = log.append_control(producer.producer_id, producer.epoch, 1, committed, NOW_MS)
        assert result.base_offset == offset
        self.model.extend([ModelEntry(None)])
        producer.transaction.marker_offset = offset
        producer.transaction.aborted = not committed
        producer.transaction = None
