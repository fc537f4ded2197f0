"""The rules of a session whose sink stores the offsets.

Reading begins at the sink's stored offsets and never at the group's: those are committed afterwards
so that tools can show the lag. A partition is claimed in the sink before the first of its records
is handed out. After a lost answer, a fence or an interrupted write the partitions are claimed
again, and the stored offsets tell what was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onceflow.sdk.errors import (
    CommitFailedError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.abort_reasons import AbortReason, judge
from onceflow.transactions.clients import Records
from onceflow.transactions.colour import settle
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.fencing import FenceWatch
from onceflow.transactions.interruption import Interruption
from onceflow.transactions.listener import Abort, NoListener, Offsets, PollResult, SessionListener
from onceflow.transactions.one_thread import OneThread
from onceflow.transactions.progress import UncommittedWork
from onceflow.transactions.sinks.errors import (
    SinkFencedError,
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkSharedError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import Batch, Entry, Letter, Move, Row, replaced
from onceflow.transactions.sinks.sink import AsyncSink, Sink, SinkClients, SinkConsumer

logger: logging.Logger = logging.getLogger("onceflow.transactions.sinks")


_SHOWN_EVERY_S = 1.0
"""How often the group learns of the stored offsets, which only tools look at."""


class SinkSessionCore:
    """State and rules of one session with a sink.

    Args:
        config: Settings of the session.
        clients: Makes the consumer.
        sink: Where rows and offsets go; the session opens and closes it.
        clock: Monotonic seconds; ``time.monotonic`` by default.
        listener: Code that processes the records in tasks; by default the caller of ``poll`` does,
            and a commit covers all that was polled.
    """

    def __init__(
        self,
        config: AnySessionConfig,
        clients: SinkClients,
        sink: Sink | AsyncSink,
        clock: Callable[[], float] | None = None,
        listener: SessionListener | None = None,
    ) -> None:
        self.config = config
        self.owner: str = f"{config.consumer.group_id}-{config.slot}-{uuid.uuid4()}"
        self.last_abort: Exception | None = None
        self._clients = clients
        self._sink = sink
        self._clock = clock or time.monotonic
        self._listener = listener or NoListener()
        self._consumer: SinkConsumer | None = None
        self._claims: dict[TopicPartition, Entry] = {}
        self._unclaimed: set[TopicPartition] = set()
        self._work = UncommittedWork()
        self._rows: list[Row] = []
        self._records: list[AnyRecord | None] = []
        self._letters: list[Letter] = []
        self._keeps_records = bool(getattr(sink, "needs_records", False))
        self.keeps_letters: bool = bool(getattr(sink, "keeps_letters", False))
        self._committing = False
        self._one_thread = OneThread(self.owner)
        self._is_handed_out = True
        self._interruption = Interruption()
        self._work_since_s = 0.0
        self._fences = FenceWatch(config.fence_window_ms / 1000, limit=3)
        self._unshown: dict[TopicPartition, int] = {}
        self._shown_s = float("-inf")
        self._callback_error: Exception | None = None
        self._process_id = os.getpid()

    async def start(self) -> None:
        """Open the sink, then make the consumer."""
        await settle(self._sink.open(str(self.config.consumer.group_id)))
        try:
            self._consumer = await settle(self._clients.consumer(self.config, self))
        except BaseException:
            await settle(self._sink.close())
            raise

    @property
    def consumer(self) -> SinkConsumer:
        """The consumer of an open session.

        Raises:
            IllegalStateError: The session is closed, or this process is a fork of its owner.
        """
        if os.getpid() != self._process_id:
            raise IllegalStateError(
                f"session {self.owner} was made before a fork; make a session in this process"
            )
        if self._consumer is None:
            raise IllegalStateError(f"session {self.owner} is closed; make a new one")
        return self._consumer

    async def close(self, timeout_ms: int, *, leave_group: bool | None = None) -> None:
        """Drop what is not committed, leave the group, close consumer and sink."""
        if os.getpid() != self._process_id:
            return  # A forked child: consumer and sink are the parent's.
        self._drop()
        consumer, self._consumer = self._consumer, None
        try:
            if consumer is not None:
                self._show(consumer)
                await settle(consumer.close(timeout_ms=timeout_ms, leave_group=leave_group))
        finally:
            await settle(self._sink.close())

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the session owns at the moment."""
        return frozenset(self.consumer.assignment())

    def wakeup(self) -> None:
        """Make a waiting poll return."""
        self.consumer.wakeup()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""
        self.consumer.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""
        self.consumer.resume(partitions)

    # Reading -------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int, max_records: int | None) -> Records:
        """Take records; raise the error that ``poll_result`` returns."""
        result = await self.poll_result(timeout_ms, max_records)
        if result.input_error is not None:
            raise result.input_error
        return result.records

    async def poll_result(
        self, timeout_ms: int, max_records: int | None
    ) -> PollResult[object, object]:
        """Take records of claimed partitions; rebalances happen in here.

        An error of reading is returned, one of the sink or of a claim is raised. The records count
        as handed out when the face calls ``handed_out``.

        Raises:
            IllegalStateError: Another thread is within a call.
        """
        consumer = self.consumer  # Raises in a fork and after close.
        with self._one_thread.within("poll"):
            return await self._poll_result(consumer, timeout_ms, max_records)

    async def _poll_result(
        self, consumer: SinkConsumer, timeout_ms: int, max_records: int | None
    ) -> PollResult[object, object]:
        self._after_interruption()
        if self._unshown and self._clock() - self._shown_s >= _SHOWN_EVERY_S:
            self._show(consumer)
        if await self._may_claim():
            await self._claim()
        self._is_handed_out = False
        try:
            records = await settle(consumer.poll(timeout_ms=timeout_ms, max_records=max_records))
        except asyncio.CancelledError:  # The consumer keeps what it would have returned.
            self._is_handed_out = True
            raise
        except KafkaError as error:
            self._is_handed_out = True
            # A partition whose claim failed has no position, which the consumer tells too.
            self._raise_callback_error()
            if isinstance(error, NoOffsetForPartitionError | OffsetOutOfRangeError):
                await self._find_replaced()
            if isinstance(error, NoOffsetForPartitionError) and self._unclaimed:
                return PollResult()  # A claim sets the position; the next poll tries again.
            return PollResult(input_error=error)
        if self._callback_error is None:
            self._callback_error = self._replaced(records)
        if self._callback_error is not None:
            await self._put_back(records)
            self._is_handed_out = True
            self._raise_callback_error()
        # A claim seeks, so that these are fetched again once their partition is claimed.
        records = {tp: batch for tp, batch in records.items() if tp in self._claims}
        if records and not self._work:
            self._work_since_s = self._clock()
        self._work.polled(records)
        return PollResult(records)

    def handed_out(self) -> None:
        """The application gets what the last poll took."""
        self._is_handed_out = True

    def _after_interruption(self) -> bool:
        """Claim again after a call that a signal or a cancellation ended early.

        What a poll took, or how far a commit got, is not known; the stored offsets tell.

        Returns:
            Whether work was dropped, or ended in a way that its caller does not know.
        """
        if self._is_handed_out and not self._interruption.happened:
            return False
        had_work = self._interruption.had_work or bool(self._work)
        # All that is assigned: the callback that would have noted a partition may be what ended.
        self._unclaimed = set(self.consumer.assignment())
        self._claims.clear()
        self._abort(CommitFailedError("a call was interrupted; what is not stored is read again"))
        self._is_handed_out = True
        self._interruption.clear()
        return had_work

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop what was fetched of a partition and not handed out, and fetch it again."""
        position = await settle(self.consumer.position(partition))
        await settle(self.consumer.seek(partition, position))

    async def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Give back what was polled of partitions and not committed: it is read again."""
        firsts = {tp: self._work[tp].first for tp in partitions if tp in self._work}
        with self._noting_interruption(), self._one_thread.within("put_back"):
            for partition, first in firsts.items():
                self._work.pop(partition, None)
                await settle(self.consumer.seek(partition, first))

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that a poll would give."""
        return await settle(self.consumer.position(partition))

    def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end, as far as the last answer tells."""
        return self.consumer.lag(partition) == 0

    def place(self, partition: TopicPartition) -> int | None:
        """The stored offset of a claimed partition; None where none is known."""
        claim = self._claims.get(partition)
        return None if claim is None else claim.offset

    async def check_membership(self) -> None:
        """Ask the coordinator whether the membership still holds; raises when it does not."""
        await settle(self.consumer.ensure_membership())

    def _raise_callback_error(self) -> None:
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error

    def _replaced(self, partitions: Iterable[TopicPartition]) -> Exception | None:
        """Return the error for a partition whose position belongs to a topic made again.

        The consumer learns of it with its metadata, looks the position up again, and would go on
        with the records of the new topic.
        """
        for partition in partitions:
            claim = self._claims.get(partition)
            if claim is not None and not self._is_same_topic(partition, claim):
                return replaced(partition, claim, str(self.consumer.topic_id(partition)))
        return None

    def _is_same_topic(self, partition: TopicPartition, claim: Entry) -> bool:
        present = self.consumer.topic_id(partition)
        return not claim.topic_id or present is None or str(present) == claim.topic_id

    async def _find_replaced(self) -> None:
        """Tell a position that is gone with its topic from one that retention took.

        Raises:
            SinkTopicReplacedError: A claimed topic has another id now.
        """
        topics = sorted({partition.topic for partition in self._claims})
        topic_ids = await settle(self._clients.topic_ids(self.config, topics))
        for partition, claim in sorted(self._claims.items()):
            topic_id = topic_ids.get(partition.topic, "")
            if topic_id and claim.topic_id not in ("", topic_id):
                raise replaced(partition, claim, topic_id)

    async def _may_claim(self) -> bool:
        """Whether the group still counts on this member, asked before a claim after an abort.

        A member that was replaced without knowing it would take partitions from their owner.
        """
        if self._unclaimed:
            try:
                await settle(self.consumer.ensure_membership())
            except KafkaError as error:
                logger.info("session %s: claims wait for the group: %s", self.owner, error)
                return False
        return True

    async def _put_back(self, records: Records) -> None:
        assigned = self.consumer.assignment()
        for partition, batch in records.items():
            if partition in assigned and partition in self._claims:
                await settle(self.consumer.seek(partition, batch[0].offset))

    async def _claim(self) -> None:
        """Claim what is assigned and not claimed, and go to the stored offsets."""
        partitions = sorted(self._unclaimed)
        if not partitions:
            return
        claimed = await self._claim_in_sink(partitions)
        new = [tp for tp in partitions if claimed[tp].offset is None]
        for partition in partitions:
            offset = claimed[partition].offset
            if offset is not None:
                await settle(self.consumer.seek(partition, offset))
        if new:
            try:
                await self._start(new, claimed)
            except (SinkFencedError, SinkOutcomeUnknownError) as error:
                logger.info("session %s: the next poll claims again: %s", self.owner, error)
                self._count_fence(error)
                return
        self._claims.update(claimed)
        self._unclaimed.difference_update(partitions)

    async def _claim_in_sink(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Entry]:
        """Claim partitions of topics that are still those whose offsets are stored.

        Raises:
            SinkUnavailableError: The sink cannot be reached, or its answer was lost; a claim that
                nobody knows of does no harm, the next one follows it.
        """
        topics = sorted({partition.topic for partition in partitions})
        topic_ids = await settle(self._clients.topic_ids(self.config, topics))
        try:
            return dict(await settle(self._sink.claim(partitions, self.owner, topic_ids)))
        except SinkOutcomeUnknownError as error:
            raise SinkUnavailableError(f"a claim got no answer: {error}") from error

    async def _start(
        self, new: Sequence[TopicPartition], claimed: dict[TopicPartition, Entry]
    ) -> None:
        """Store where partitions without a stored offset begin.

        Records that arrive between a stop before the first commit and the next start would be
        passed over otherwise ("latest"), or the beginning would move with retention in silence.
        """
        at_end = self.config.start_from == "latest"
        early = set(self.config.topics_from_start)
        late = [tp for tp in new if at_end and tp.topic not in early]
        first = [tp for tp in new if tp not in late]
        if late:
            await settle(self.consumer.seek_to_end(late))
        if first:
            await settle(self.consumer.seek_to_beginning(first))
        moves = {}
        for partition in new:
            position = await settle(self.consumer.position(partition))
            moves[partition] = Move(claimed[partition].epoch, None, position)
        await settle(self._sink.write(Batch(self.owner, moves)))
        for partition, move in moves.items():
            claimed[partition] = replace(claimed[partition], offset=move.next)

    # Writing -------------------------------------------------------------------------------

    def write(self, row: Row, *, of: AnyRecord | None = None) -> None:
        """Keep a row for the next commit.

        Raises:
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: The record belongs to work that was aborted or committed.
        """
        self._check_open()
        if of is not None:
            self._check_part_of_work(of)
        self._rows.append(row)
        if self._keeps_records:
            self._records.append(of)

    def write_many(self, rows: Sequence[Row], *, of: Sequence[AnyRecord] | None = None) -> None:
        """Keep rows for the next commit, at less cost than one by one.

        Raises:
            ConfigError: There are more or fewer records than rows, or they are not in order.
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: A record belongs to work that was aborted or committed.
        """
        self._check_open()
        if of is not None:
            self._check_records(rows, of)
        if self._keeps_records:
            self._records.extend(of or [None] * len(rows))
        self._rows.extend(rows)

    def _check_records(self, rows: Sequence[Row], of: Sequence[AnyRecord]) -> None:
        if len(of) != len(rows):
            raise ConfigError("of", len(of), f"must hold one record for each of {len(rows)} rows")
        if not of:
            return
        offsets = [record.offset for record in of]
        if len({(r.topic, r.partition) for r in of}) > 1 or offsets != sorted(offsets):
            remedy = "must be records of one partition in their order, as poll() returns them"
            raise ConfigError("of", f"{of[0].topic}-{of[0].partition}, ...", remedy)
        self._check_part_of_work(of[0])
        self._check_part_of_work(of[-1])

    def _check_open(self) -> None:
        """Refuse rows that no batch would hold.

        Raises:
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
        """
        self._check_not_committing("write")
        if not self._work:
            raise IllegalStateError(
                "write() belongs to records that were polled; call poll() first"
            )

    def _check_part_of_work(self, record: AnyRecord) -> None:
        progress = self._work.get(TopicPartition(record.topic, record.partition))
        if progress is None or not progress.first <= record.offset < progress.next:
            raise CommitFailedError(
                f"{record.topic}-{record.partition} offset {record.offset} is not part of the open "
                "work: it was committed, or aborted and will be read again"
            )

    def _check_not_committing(self, call: str) -> None:
        """Refuse what another task asks for while a commit waits: the row would be lost.

        Raises:
            IllegalStateError: A commit is under way.
        """
        if self._committing:
            raise IllegalStateError(
                f"{call}() within a commit: one task at a time may use a session; wait for commit()"
            )

    @property
    def commit_due(self) -> bool:
        """Whether the uncommitted work is older than the commit interval."""
        age_ms = (self._clock() - self._work_since_s) * 1000
        return bool(self._work) and age_ms >= self.config.commit_interval_ms

    def put(self, rows: Sequence[Row], records: Sequence[AnyRecord]) -> None:
        """Keep rows of records in hand for the next commit, without a check of either."""
        self._rows.extend(rows)
        if self._keeps_records:
            self._records.extend(records)

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep dead letters of records in hand for the next commit."""
        assert self.keeps_letters
        self._letters.extend(letters)

    async def commit(self, offsets: Offsets | None = None, *, rebalancing: bool = False) -> bool:
        """Write rows and offsets in the sink's transaction.

        Args:
            offsets: Next offset by partition; None means all that was polled.
            rebalancing: Other members wait for this commit: it gets ``revoke_budget_ms``, and an
                unknown outcome is left to the next claim.

        Returns:
            True if committed; False if the work was dropped and is read again.
        """
        self._one_thread.check("commit")
        if not rebalancing and self._after_interruption():
            return False
        if not self._work:
            return True
        self._check_not_committing("commit")
        self._committing = True
        try:
            with self._noting_interruption(), self._one_thread.within("commit"):
                return await self._commit(offsets, rebalancing)
        finally:
            self._committing = False

    async def _commit(self, offsets: Offsets | None, rebalancing: bool) -> bool:
        consumer = self.consumer
        moves = await self._moves(offsets)
        batch = Batch(
            self.owner, moves, tuple(self._rows), tuple(self._records), tuple(self._letters)
        )
        try:
            limit_ms = self.config.revoke_budget_ms if rebalancing else None
            await settle(self._sink.write(batch, limit_ms))
        except SinkFencedError as error:
            self._abort(error)
            self._count_fence(error)
            return False
        except SinkOutcomeUnknownError as error:
            if rebalancing:
                self._abort(error)
                return False
            return await self._resolve(batch, error)
        except BaseException as error:
            # Also an interruption: only a new claim can tell how far the sink got.
            self._abort(error)
            raise
        self._committed(batch, consumer)
        return True

    def _count_fence(self, error: Exception) -> None:
        if self._fences.fenced(self._clock()):
            raise SinkSharedError(
                f"fenced again and again within {self.config.fence_window_ms} ms: {error}. Give "
                "each program its own group_id"
            ) from error

    async def _moves(self, offsets: Offsets | None) -> dict[TopicPartition, Move]:
        """How far the batch moves each partition.

        Raises:
            CommitFailedError: An offset is of a partition that is not claimed.
        """
        moves = {}
        for partition in self._work if offsets is None else offsets:
            claim, progress = self._claims.get(partition), self._work.get(partition)
            if claim is None or progress is None:
                raise CommitFailedError(f"{partition} holds no work of this session")
            upto = progress.next if offsets is None else _number(offsets[partition])
            if upto > progress.next:
                raise CommitFailedError(f"{partition}: offset {upto} was not polled yet")
            # A position is behind markers and aborted records too. It is only known without
            # waiting, and it counts if no other topic has taken the name since.
            if upto == progress.next:
                with contextlib.suppress(KafkaError):
                    position = await settle(self.consumer.position(partition, timeout_ms=0))
                    if self._is_same_topic(partition, claim):
                        upto = max(upto, position)
            moves[partition] = Move(claim.epoch, claim.offset, upto)
        return moves

    def _committed(self, batch: Batch, consumer: SinkConsumer) -> None:
        for partition, move in batch.moves.items():
            self._claims[partition] = replace(self._claims[partition], offset=move.next)
        self._work.committed({tp: OffsetAndMetadata(m.next) for tp, m in batch.moves.items()})
        self._drop_rows()
        self._work_since_s = self._clock()
        self.last_abort = None
        self._unshown.update({tp: move.next for tp, move in batch.moves.items()})
        if self._clock() - self._shown_s >= _SHOWN_EVERY_S:
            self._show(consumer)
        self._listener.committed()

    def show_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Show the group ends in front of which no record is left.

        Args:
            ends: Offset by partition.
        """
        for partition, end in ends.items():
            progress = self._work.get(partition)
            if partition in self._claims and (progress is None or progress.next >= end):
                self._unshown[partition] = end
        self._show(self.consumer)

    def _show(self, consumer: SinkConsumer) -> None:
        """Commit to the group what is stored, for tools that show the lag."""
        owned = consumer.assignment()
        offsets = {tp: offset for tp, offset in self._unshown.items() if tp in owned}
        self._unshown.clear()
        self._shown_s = self._clock()
        if offsets:
            try:
                consumer.commit_async(offsets)
            except KafkaError as error:
                logger.info(
                    "session %s: the group's offsets are not updated: %s", self.owner, error
                )

    async def _resolve(self, batch: Batch, error: SinkOutcomeUnknownError) -> bool:
        """Claim again and compare offsets: the sink stored all of the batch or nothing."""
        logger.warning("session %s: %s; claiming again", self.owner, error)
        before = {tp: self._claims[tp] for tp in self._work}
        self._unclaim()
        claimed: Mapping[TopicPartition, Entry] = {}
        if await self._may_claim():
            try:
                claimed = await self._claim_in_sink(sorted(before))
            except SinkUnavailableError as unavailable:
                logger.warning("session %s: the next poll claims: %s", self.owner, unavailable)
        wanted = {tp: entry.offset for tp, entry in before.items()}
        wanted.update({tp: move.next for tp, move in batch.moves.items()})
        # A higher epoch says that somebody claimed in between; the next poll reads from wherever
        # they got.
        if any(
            tp not in claimed or claimed[tp].epoch != before[tp].epoch + 1 for tp in before
        ) or any(claimed[tp].offset != offset for tp, offset in wanted.items()):
            self._abort(error)
            return False
        self._unclaimed.difference_update(claimed)
        self._claims.update(claimed)
        self._committed(batch, self.consumer)
        return True

    def abort(self, cause: Exception | None = None) -> None:
        """Drop the uncommitted work; the next poll reads it again from the stored offsets."""
        self._check_not_committing("abort")
        with self._noting_interruption(), self._one_thread.within("abort"):
            if self._work:
                self._abort(cause)

    def _abort(self, error: BaseException | None) -> None:
        self.last_abort = error if isinstance(error, Exception) else None
        self._unclaim()
        self._drop()
        self._listener.aborted(Abort(_reason_of(error), self.last_abort))

    def _unclaim(self) -> None:
        """Have the partitions in work claimed again, and read again from what is stored."""
        touched = set(self._work)
        for partition in touched:
            self._claims.pop(partition, None)
        self._unclaimed |= touched

    def _drop(self) -> None:
        self._work.clear()
        self._drop_rows()

    def _drop_rows(self) -> None:
        self._rows.clear()
        self._records.clear()
        self._letters.clear()

    # Rebalances ----------------------------------------------------------------------------

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Claim new partitions and set their positions."""
        with self._callback():
            try:
                self._unclaimed.update(partitions)
                await self._claim()
            finally:
                self._listener.assigned(partitions)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit all that is processed before partitions are given up."""
        with self._callback():
            try:
                if self._work and self._consumer is not None:
                    await self._commit_before_leaving()
            except SinkUnavailableError as error:
                logger.warning("session %s: the next owner reads again: %s", self.owner, error)
            finally:
                if self._consumer is not None:
                    self._show(self._consumer)
                await self._forget(partitions, lost=False)

    async def _commit_before_leaving(self) -> None:
        try:
            offsets = await settle(self._listener.progress())
        except Exception as error:
            self._abort(error)
            raise
        if offsets is None or offsets:
            await self.commit(offsets, rebalancing=True)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop the work: other members may own the partitions already."""
        with self._callback():
            if self._work:
                self._abort(CommitFailedError("partitions were lost to other members"))
            await self._forget(partitions, lost=True)

    async def _forget(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        for partition in partitions:
            self._claims.pop(partition, None)
            self._unclaimed.discard(partition)
            self._work.pop(partition, None)
            self._unshown.pop(partition, None)
        await settle(self._listener.released(partitions, lost))

    @contextlib.contextmanager
    def _callback(self) -> Iterator[None]:
        """Keep an error of a rebalance callback, for the poll that runs the callback to raise."""
        try:
            with self._noting_interruption():
                yield
        except Exception as error:  # noqa: BLE001 - raised by poll
            if self._callback_error is None:
                self._callback_error = error
            else:
                logger.error("session %s: also failed: %s", self.owner, error)

    def _noting_interruption(self) -> contextlib.AbstractContextManager[None]:
        """Note that a signal or a cancellation ended a commit, an abort or a callback early."""
        return self._interruption.noted(has_work=bool(self._work))


def _number(offset: int | OffsetAndMetadata) -> int:
    return offset if isinstance(offset, int) else offset.offset


def _reason_of(error: BaseException | None) -> AbortReason:
    """Why the work was dropped, for a listener that counts it."""
    if error is None:
        return AbortReason.REQUESTED
    if not isinstance(error, Exception):
        return AbortReason.INTERRUPTED
    return _REASONS.get(type(error)) or judge(error).reason


_REASONS: Mapping[type[Exception], AbortReason] = {
    SinkFencedError: AbortReason.FENCED,
    SinkOutcomeUnknownError: AbortReason.OUTCOME_UNKNOWN,
    SinkUnavailableError: AbortReason.SINK_UNAVAILABLE,
    SinkRowError: AbortReason.DELIVERY_FAILED,
}
