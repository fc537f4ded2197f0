"""The rules of offsets that a sink stores: who may write, and from which offset.

A sink keeps one ``Entry`` for each group and partition. ``claim`` makes the caller its owner under
the next epoch, as InitProducerId does for a producer (KIP-98). ``advance`` moves the offset, and
refuses an owner that was replaced and a batch that does not begin at the stored offset. A sink
reads the entries, calls one of the two, and stores the result, all in one transaction of its own.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.sinks.errors import (
    SinkFencedError,
    SinkOffsetsMovedError,
    SinkTopicReplacedError,
)

Row: TypeAlias = Mapping[str, object]
"""One row by column name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A sink's entry for one partition.

    Attributes:
        owner: The session that claimed the partition last.
        epoch: Number of the claim; the first one is 1.
        offset: Offset of the next record to read; None before the first commit.
        topic_id: Id of the topic that the offset belongs to (KIP-516); empty if not known.
    """

    owner: str
    epoch: int
    offset: int | None = None
    topic_id: str = ""


Entries: TypeAlias = Mapping[TopicPartition, Entry]
NO_IDS: Mapping[str, str] = {}
_NOTHING = Entry("", 0)


@dataclass(frozen=True, slots=True)
class Move:
    """How far a batch moves one partition.

    Attributes:
        epoch: Epoch of the writer's claim.
        first: Stored offset at which the batch begins; None if none is stored.
        next: Offset to store.
    """

    epoch: int
    first: int | None
    next: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter that a sink stores beside rows, for a relay that sends it to its topic.

    Attributes:
        topic: The topic of dead letters.
        key: Key of the failed record.
        value: Value of the failed record.
        headers: Names and values: those of the failed record, and what failed.
        timestamp_ms: Timestamp; None for that of sending.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows and offsets that a sink stores together, or not at all.

    Attributes:
        owner: The writer, as given to ``Sink.claim``.
        moves: Offsets by partition.
        rows: Rows in the order of ``write``.
        records: The record of each row, or None if it was not given; empty for sinks that do not
            need records (``Sink``).
        letters: Dead letters; empty for sinks that do not keep any (``Sink``).
    """

    owner: str
    moves: Mapping[TopicPartition, Move]
    rows: Sequence[Row] = ()
    records: Sequence[AnyRecord | None] = ()
    letters: Sequence[Letter] = ()


def claim(
    entries: Entries,
    partitions: Iterable[TopicPartition],
    owner: str,
    topic_ids: Mapping[str, str] = NO_IDS,
) -> dict[TopicPartition, Entry]:
    """Return the entries after a session has claimed partitions.

    Args:
        entries: Stored entries of these partitions.
        partitions: What is claimed.
        owner: Who claims it: a name that no other session has.
        topic_ids: Present ids of the topics, as far as the brokers have any.

    Raises:
        SinkTopicReplacedError: A topic was deleted and made again since its offset was stored.
    """
    claimed = {}
    for partition in partitions:
        found = entries.get(partition, _NOTHING)
        topic_id = topic_ids.get(partition.topic) or found.topic_id
        if found.topic_id and topic_id != found.topic_id:
            raise replaced(partition, found, topic_id)
        claimed[partition] = Entry(owner, found.epoch + 1, found.offset, topic_id)
    return claimed


def replaced(partition: TopicPartition, entry: Entry, topic_id: str) -> SinkTopicReplacedError:
    """Return the error for a topic that has another id than the stored one."""
    return SinkTopicReplacedError(
        f"{partition}: topic {partition.topic} has the id {topic_id}, and the sink stores offset "
        f"{entry.offset} of one with the id {entry.topic_id}. It was deleted and made again, or a "
        "session of another cluster has the same group_id. No record was read. To read a new topic "
        "from its start, stop the group's sessions and delete what the sink stores of the topic's "
        "offsets; for another cluster, choose another group_id"
    )


def advance(entries: Entries, batch: Batch) -> dict[TopicPartition, Entry]:
    """Return the entries after a batch.

    Args:
        entries: Stored entries of the batch's partitions.
        batch: What is about to be written.

    Raises:
        SinkFencedError: Another claim came after the writer's.
        SinkOffsetsMovedError: The batch does not begin at the stored offset, or goes back.
    """
    advanced = {}
    for partition, move in batch.moves.items():
        found = entries.get(partition)
        if found is None or (found.owner, found.epoch) != (batch.owner, move.epoch):
            present = "nobody" if found is None else f"{found.owner!r} in epoch {found.epoch}"
            raise SinkFencedError(
                f"{partition}: owner {batch.owner!r} in epoch {move.epoch} was replaced; the sink "
                f"now names {present}. Nothing of the batch was written"
            )
        if found.offset != move.first or (move.first is not None and move.next < move.first):
            raise SinkOffsetsMovedError(
                f"{partition}: the sink stores offset {found.offset}, and the batch goes from "
                f"{move.first} to {move.next}. Nothing of it was written; stop the session before "
                "changing stored offsets"
            )
        advanced[partition] = replace(found, offset=move.next)
    return advanced
