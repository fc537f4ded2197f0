"""The offsets of a session's commits, with their metadata.

A commit may name only offsets of polled, uncommitted records: other offsets would lose records, or
publish outputs of records that another member owns. The metadata holds a token, which shows later
whether a commit without an answer was carried out, and the caller's note.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from onceflow.sdk.errors import CommitFailedError, ConfigError, IllegalStateError, KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.clients import SessionConsumer
from onceflow.transactions.colour import settle
from onceflow.transactions.listener import Offsets
from onceflow.transactions.offset_notes import encode
from onceflow.transactions.positions import Positions
from onceflow.transactions.progress import UncommittedWork

MarkedOffsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class CommitOffsets:
    """The offsets of a session's commits.

    Args:
        polled: Polled records that are not committed.
        positions: Where reading of the partitions began.
    """

    def __init__(self, polled: UncommittedWork, positions: Positions) -> None:
        self._polled = polled
        self._positions = positions
        self._committed: dict[TopicPartition, int] = {}
        self._token_prefix = uuid.uuid4().hex[:12]
        self._commits = 0

    def check(
        self, offsets: Offsets | None, in_hand: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Refuse offsets that must not be committed; None (all that was polled) is always allowed.

        Args:
            offsets: Next offset by partition.
            in_hand: Offset behind what a loop over single records was given so far, by partition;
                None if all that was polled was handed out.

        Raises:
            CommitFailedError: A partition has no uncommitted work. The caller worked on records
                of an earlier assignment, whose outputs must not become visible.
            IllegalStateError: Records that were not handed out would be lost.
            ConfigError: These are no offsets by partition.
        """
        gone = []
        for partition, given in _entries(offsets):
            offset = given if isinstance(given, int) else given.offset
            progress = self._polled.get(partition)
            if offset == self.place(partition):
                continue  # Nothing of it is processed, and markers may lie in front of the rest.
            if progress is None:
                gone.append(str(partition))
                continue
            last = progress.next if in_hand is None else in_hand.get(partition, progress.first)
            if not progress.first <= offset <= min(last, progress.next):
                raise IllegalStateError(
                    f"cannot commit offset {offset} of {partition}: its uncommitted records allow "
                    f"offsets from {progress.first} to {min(last, progress.next)}"
                )
        if gone:
            raise CommitFailedError(
                f"these partitions have no uncommitted work: {', '.join(sorted(gone))}"
            )

    def place(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of a partition; None if none is known."""
        return self._committed.get(partition, self._positions.begun.get(partition))

    async def mark(
        self, consumer: SessionConsumer, offsets: Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to send, each with the token of this commit and its note.

        Args:
            consumer: Returns the positions.
            offsets: Next offset by partition; None for all polled records.
        """
        self._commits += 1
        token = f"{self._token_prefix}:{self._commits}"
        marked: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, progress in self._polled.items():
            note, epoch = "", -1
            if offsets is None:
                upto = max(progress.next, await _position(consumer, partition))
            else:
                given = offsets.get(partition, progress.first)
                if isinstance(given, OffsetAndMetadata):
                    given, note, epoch = given
                upto = given
                if upto == progress.next:
                    upto = max(upto, await _position(consumer, partition))
            # Markers after the last record may have a later leader epoch. With the record's epoch
            # the next reader would conclude that the log was truncated below the offset (KIP-320).
            if upto > progress.next:
                epoch = -1
            elif epoch < 0:
                epoch = progress.leader_epoch
            named_again = partition in (offsets or ()) and upto == self.place(partition)
            if named_again:
                epoch = -1  # The known epoch is that of records outside of this commit.
            if named_again or upto > progress.first:
                marked[partition] = OffsetAndMetadata(upto, encode(token, note), epoch)
        for partition, again in ({} if offsets is None else offsets).items():
            if partition not in self._polled and isinstance(again, OffsetAndMetadata):
                # The same offset with another note: the outputs belong to no record.
                marked[partition] = OffsetAndMetadata(again.offset, encode(token, again.metadata))
        for partition, offset in self._positions.starts.items():
            marked.setdefault(partition, OffsetAndMetadata(offset, encode(token, "")))
        return marked

    async def mark_ends(
        self, consumer: SessionConsumer, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return those of the ends that are not committed, as offsets to send.

        Of what lies in front of an end, only polled records are known here: the caller has done
        and committed them.

        Args:
            consumer: Returns the positions.
            ends: Offset by partition, behind which nothing is to be committed.
        """
        self._commits += 1
        token = f"{self._token_prefix}:{self._commits}"
        marked: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, end in ends.items():
            progress, place = self._polled.get(partition), self.place(partition)
            if not self._positions.is_placed(partition) or (place is not None and place >= end):
                continue  # Aborted records may be in front of its position, or nothing is to do.
            read = await _position(consumer, partition) if progress is None else progress.next
            if read >= end:
                note = self._positions.note(partition) or ""
                marked[partition] = OffsetAndMetadata(end, encode(token, note))
        return marked

    def committed(self, marked: MarkedOffsets) -> None:
        """Note committed offsets; work after them stays uncommitted."""
        self._polled.committed(marked)
        for partition, entry in marked.items():
            self._positions.starts.pop(partition, None)
            self._committed[partition] = entry.offset
            self._positions.noted(partition, entry.metadata)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that is revoked or lost."""
        self._polled.pop(partition, None)
        self._committed.pop(partition, None)

    def clear(self) -> None:
        """Forget all partitions."""
        self._polled.clear()
        self._committed.clear()


def _entries(
    offsets: Offsets | None,
) -> Iterable[tuple[TopicPartition, int | OffsetAndMetadata]]:
    """Return the given offsets by partition.

    Raises:
        ConfigError: They are of another kind.
    """
    if offsets is None:
        return ()
    remedy = "must map each TopicPartition to a whole number or an OffsetAndMetadata"
    if not isinstance(offsets, Mapping):
        raise ConfigError("offsets", offsets, remedy)
    for partition, given in offsets.items():
        if not isinstance(partition, TopicPartition) or isinstance(given, bool):
            raise ConfigError("offsets", {partition: given}, remedy)
        if not isinstance(given, int | OffsetAndMetadata):
            raise ConfigError("offsets", {partition: given}, remedy)
    return offsets.items()


async def _position(consumer: SessionConsumer, partition: TopicPartition) -> int:
    """Return the next offset to read, after markers and aborted records."""
    try:
        return await settle(consumer.position(partition))
    except KafkaError:
        return -1  # Not assigned any more; the ownership check refuses it.
