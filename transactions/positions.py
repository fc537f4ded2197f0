"""Sets the positions of a session's consumer: after assignments, aborts and errors.

Records may be read again, but none may be skipped. So a partition whose position could not be found
stays on a list, and every poll waits until it has one. The session decides when to abort.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.clients import Records, SessionConsumer
from onceflow.transactions.colour import settle
from onceflow.transactions.offset_notes import note_of

logger: logging.Logger = logging.getLogger("onceflow.transactions.session")


class Positions:
    """Positions of partitions, and the partitions whose position is still unknown.

    Args:
        name: Name of the session, for the log.
        start_from: Where a partition without a committed offset begins.
        from_start: Topics whose partitions begin at their beginning, whatever ``start_from`` is.

    Attributes:
        starts: Start offsets of partitions that began at the end of their log and have no committed
            offset yet. The session commits these as soon as it can. Otherwise a stop before the
            first commit would skip the records that arrive until the next start.
    """

    def __init__(
        self, name: str, start_from: str, from_start: frozenset[str] = frozenset()
    ) -> None:
        self._from_start = from_start
        self._name = name
        self._start_from = start_from
        self._unplaced: dict[TopicPartition, int] = {}
        self._unstarted: set[TopicPartition] = set()
        self.starts: dict[TopicPartition, int] = {}
        self._notes: dict[TopicPartition, str | None] = {}
        self.begun: dict[TopicPartition, int] = {}

    def note(self, partition: TopicPartition) -> str | None:
        """Return the note beside the committed offset of a partition, if it is known."""
        return self._notes.get(partition)

    def is_placed(self, partition: TopicPartition) -> bool:
        """Whether the consumer's position of a partition is where reading goes on."""
        return partition not in self._unplaced and partition not in self._unstarted

    def noted(self, partition: TopicPartition, metadata: str) -> None:
        """Note the metadata of a committed offset."""
        self._notes[partition] = note_of(metadata)

    async def catch_up(self, consumer: SessionConsumer) -> None:
        """Find positions that could not be found before; called before each poll.

        Raises:
            KafkaError: The committed offsets still cannot be read.
        """
        if self._unplaced:
            committed = await settle(consumer.committed(list(self._unplaced)))
            await self._seek(consumer, self._unplaced, committed)
            self._unplaced.clear()
        if self._unstarted:
            await self._set_starts(consumer)

    async def assigned(
        self, consumer: SessionConsumer, partitions: Iterable[TopicPartition]
    ) -> None:
        """Set the start of partitions without a committed offset, once.

        Raises:
            KafkaError: The committed offsets cannot be read; ``catch_up`` tries again.
        """
        self._unstarted.update(partitions)
        if self._unstarted:
            await self._set_starts(consumer)

    async def begin_again(
        self, consumer: SessionConsumer, partitions: Collection[TopicPartition]
    ) -> None:
        """Go back to the committed offsets, or to where the partitions began.

        Args:
            consumer: The consumer.
            partitions: Those without uncommitted work.

        Raises:
            KafkaError: The committed offsets cannot be read.
        """
        # The callback that would have set their start was interrupted.
        self._unstarted.update(tp for tp in partitions if tp not in self._notes)
        waiting = self._unplaced.keys() | self._unstarted
        placed = sorted(tp for tp in partitions if tp not in waiting)
        committed = await settle(consumer.committed(placed)) if placed else {}
        offsets = {tp: found.offset for tp, found in committed.items() if found is not None}
        offsets |= {
            tp: self.starts[tp] for tp in placed if tp in self.starts.keys() - offsets.keys()
        }
        for partition, offset in offsets.items():
            await settle(consumer.seek(partition, offset))
        new = [tp for tp in placed if tp not in offsets]
        if new:
            await settle(consumer.seek_to_beginning(new))

    async def _set_starts(self, consumer: SessionConsumer) -> None:
        partitions = sorted(self._unstarted)
        committed = await settle(consumer.committed(partitions))
        new = []
        for partition in partitions:
            found = committed.get(partition)
            self._notes[partition] = None if found is None else note_of(found.metadata)
            if found is None:
                new.append(partition)
            else:
                self.begun[partition] = found.offset
        latest = self._start_from == "latest"
        at_end = [tp for tp in new if latest and tp.topic not in self._from_start]
        at_start = [tp for tp in new if tp not in at_end]
        if at_end:
            await settle(consumer.seek_to_end(at_end))
            for partition in at_end:
                self.starts[partition] = await settle(consumer.position(partition))
        if at_start:
            await settle(consumer.seek_to_beginning(at_start))
        self._unstarted.clear()

    async def rewind(
        self, consumer: SessionConsumer, firsts: dict[TopicPartition, int], *, is_unknown: bool
    ) -> None:
        """Read aborted input again, from the committed offsets.

        A partition without one goes back to the first offset of the aborted work, never through
        the reset policy: "latest" would skip the records.

        Args:
            consumer: The consumer.
            firsts: First offset of the aborted work by partition.
            is_unknown: Whether the work may have been committed. Then reading waits until the
                committed offsets can be read.
        """
        committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        self.misplaced(firsts)  # Until the end: a signal may interrupt this.
        try:
            committed = await settle(consumer.committed(list(firsts)))
        except KafkaError as error:
            if is_unknown:
                return
            logger.info(
                "session %s: committed offsets not available (%s); going back to the first "
                "offsets of the aborted work",
                self._name,
                error,
            )
        await self._seek(consumer, firsts, committed)
        self.placed(firsts)

    def misplaced(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Note partitions that must be read again, before their work is forgotten.

        Args:
            firsts: First offset of the work by partition, for those without a committed offset.
        """
        self._unplaced.update(firsts)

    def placed(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the positions of partitions are set."""
        for partition in partitions:
            self._unplaced.pop(partition, None)

    @staticmethod
    async def _seek(
        consumer: SessionConsumer,
        firsts: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    ) -> None:
        for partition, first in firsts.items():
            found = committed.get(partition)
            await settle(consumer.seek(partition, first if found is None else found.offset))

    @staticmethod
    async def put_back(consumer: SessionConsumer, records: Records) -> None:
        """Read polled records again that were not returned because of an error."""
        assigned = consumer.assignment()
        for partition, batch in records.items():
            if partition in assigned:
                await settle(consumer.seek(partition, batch[0].offset))

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that is revoked or lost."""
        self._unplaced.pop(partition, None)
        self._unstarted.discard(partition)
        self.starts.pop(partition, None)
        self._notes.pop(partition, None)
        self.begun.pop(partition, None)

    def clear(self) -> None:
        """Forget all partitions."""
        self._unplaced.clear()
        self._unstarted.clear()
        self.starts.clear()
        self._notes.clear()
        self.begun.clear()
