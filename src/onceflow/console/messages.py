"""A page of a partition's messages: each with what became of its transaction, and the markers.

Before the last stable offset every transaction has ended, and the leader names the aborted ones.
After it, a transaction has ended if its marker follows; it is open if its producer has one open
there. Markers are looked for a bounded way ahead; where none is found and none is open, the page
says "unknown".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from onceflow.console.batches import BatchAdmin, Batches
from onceflow.console.shown import SHOWN_BYTES_MAX, shown
from onceflow.processors.policies import HEADER_PREFIX
from onceflow.sdk import TopicPartition
from onceflow.sdk.core.consume.aborted_transactions import AbortedTransactions
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.batch_header import BatchHeader, iter_batch_headers
from onceflow.sdk.protocol.batch_reading import decode_batch
from onceflow.sdk.protocol.control_batches import parse_control_batch

READ_BYTES: Final = 1_000_000
READS_MAX: Final = 16
"""Reads for one page. What they do not reach is on the next page, or unknown."""
MESSAGES_MAX: Final = 1_000

COMMITTED, ABORTED, OPEN, UNKNOWN = "committed", "aborted", "open", "unknown"


class Message(msgspec.Struct):
    """One line of the page.

    Attributes:
        offset: Its offset.
        timestamp_ms: Its timestamp, None where it has none.
        kind: "record"; "commit" or "abort" for a marker; "unreadable".
        transaction: "committed", "aborted", "open" or "unknown"; None outside of transactions.
        producer_id: Who wrote it, -1 without idempotence.
        producer_epoch: The producer's epoch.
        key: As `shown.shown` gives it.
        value: The same.
        headers: Names and values.
        error: Why it cannot be read.
        failure: Of a dead letter of a processor: what its headers tell of the failure, by name.
    """

    offset: int
    timestamp_ms: int | None = None
    kind: str = "record"
    transaction: str | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    key: dict[str, object] | None = None
    value: dict[str, object] | None = None
    headers: list[tuple[str, dict[str, object] | None]] = []
    error: str | None = None
    failure: dict[str, str] | None = None


class MessagePage(NamedTuple):
    """Messages of one partition.

    Attributes:
        messages: In the order of their offsets.
        next_offset: Where the next page begins.
        log_start_offset: First offset of the log.
        last_stable_offset: Where the first open transaction begins, or the high watermark.
        high_watermark: End of the log.
    """

    messages: list[Message]
    next_offset: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


async def read_page(
    admin: BatchAdmin, partition: TopicPartition, offset: int, limit: int
) -> MessagePage:
    """Return the messages from an offset on.

    Args:
        admin: Asks the leaders.
        partition: Which partition.
        offset: Where to begin; before the log's start it is the start.
        limit: Messages at most, up to 1,000.

    Raises:
        OffsetOutOfRangeError: The offset is beyond the end of the log.
    """
    page = _Page(min(limit, MESSAGES_MAX))
    answer = await admin.read_batches(partition, offset, max_bytes=READ_BYTES, read_committed=True)
    stable = answer.last_stable_offset
    next_offset = page.take(answer, offset, is_decided=True)
    for _ in range(READS_MAX):
        is_done = page.is_full and not page.undecided
        if is_done or page.is_broken or next_offset >= answer.high_watermark:
            break
        before_stable = next_offset < stable
        if page.is_full and before_stable:
            break
        answer = await admin.read_batches(
            partition, next_offset, max_bytes=READ_BYTES, read_committed=before_stable
        )
        after = page.take(answer, next_offset, is_decided=before_stable)
        if after == next_offset:
            break  # Nothing came, such as at the end of a log whose last batches were compacted.
        next_offset = after
    if page.undecided:
        producers = await admin.describe_producers([partition])
        page.decide(
            {
                state.producer_id: state.transaction_start_offset
                for state in producers[partition]
                if state.transaction_start_offset is not None
            }
        )
    return MessagePage(
        page.messages,
        page.next_offset if page.is_full else next_offset,
        answer.log_start_offset,
        stable,
        answer.high_watermark,
    )


class _Page:
    """Takes answers in the order of their offsets."""

    def __init__(self, limit: int) -> None:
        self.messages: list[Message] = []
        self.undecided: dict[int, list[Message]] = {}  # By producer id.
        self.next_offset = 0
        self.is_broken = False  # What follows cannot be read.
        self._limit = limit

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self._limit

    def take(self, answer: Batches, offset: int, *, is_decided: bool) -> int:
        """Take what is at or after an offset; returns where the next answer begins."""
        aborted = AbortedTransactions(answer.aborted)
        try:
            for position, header in iter_batch_headers(answer.data):
                self._take_batch(answer, position, header, offset, aborted, is_decided)
                offset = max(offset, header.next_offset)
        except KafkaError as error:  # What follows cannot be told apart into batches.
            self._add(None, Message(offset, kind="unreadable", error=str(error)))
            self.is_broken = True
        return offset

    def _take_batch(
        self,
        answer: Batches,
        position: int,
        header: BatchHeader,
        offset: int,
        aborted: AbortedTransactions,
        is_decided: bool,
    ) -> None:
        if header.is_control:
            self._take_marker(answer, position, header, offset, aborted)
            return
        fate = None
        if header.is_transactional and is_decided:
            is_hidden = aborted.hides(header.producer_id, header.base_offset)
            fate = ABORTED if is_hidden else COMMITTED
        elif header.is_transactional:
            fate = OPEN  # Until its marker is found.
        self._take_records(answer, position, header, offset, fate)

    def decide(self, open_from: dict[int, int]) -> None:
        """Tell open transactions, by producer id and first offset, from unknown ones."""
        for producer, messages in self.undecided.items():
            for message in messages:
                is_open = message.offset >= open_from.get(producer, message.offset + 1)
                message.transaction = OPEN if is_open else UNKNOWN

    def _take_marker(
        self,
        answer: Batches,
        position: int,
        header: BatchHeader,
        offset: int,
        aborted: AbortedTransactions,
    ) -> None:
        kind, error = "unreadable", None
        try:
            marker = parse_control_batch(answer.data, position)
            kind = "commit" if marker.is_commit else "abort" if marker.is_abort else "control"
        except KafkaError as problem:
            error = str(problem)
        if kind == "abort":
            aborted.end_with_abort(header.producer_id, header.base_offset)
        for message in self.undecided.pop(header.producer_id, []):
            message.transaction = {"commit": COMMITTED, "abort": ABORTED}.get(kind, UNKNOWN)
        if header.base_offset >= offset:
            self._add(header, Message(header.base_offset, header.max_timestamp, kind, error=error))

    def _take_records(
        self, answer: Batches, position: int, header: BatchHeader, offset: int, fate: str | None
    ) -> None:
        for message in _messages(answer, position, header):
            if message.offset < offset or self.is_full:
                continue
            message.transaction = fate
            self._add(header, message)
            if fate == OPEN:
                self.undecided.setdefault(header.producer_id, []).append(message)

    def _add(self, header: BatchHeader | None, message: Message) -> None:
        if self.is_full:
            return
        if header is not None:
            message.producer_id = header.producer_id
            message.producer_epoch = header.producer_epoch
        self.messages.append(message)
        self.next_offset = message.offset + 1


def _messages(answer: Batches, position: int, header: BatchHeader) -> Iterator[Message]:
    try:
        records = decode_batch(answer.data, position, header=header)
    except KafkaError as error:
        yield Message(header.base_offset, kind="unreadable", error=str(error))
        return
    for record in records:
        yield Message(
            record.offset,
            record.timestamp,
            key=shown(record.key),
            value=shown(record.value),
            headers=[(name, shown(value)) for name, value in record.headers],
            failure=_failure(record.headers),
        )


def _failure(headers: list[tuple[str, bytes | None]]) -> dict[str, str] | None:
    """What a dead letter tells of its failure; of one that failed twice, of the last one."""
    told = {
        name.removeprefix(HEADER_PREFIX): (value or b"")[:SHOWN_BYTES_MAX].decode(errors="replace")
        for name, value in headers
        if name.startswith(HEADER_PREFIX)
    }
    return told or None
