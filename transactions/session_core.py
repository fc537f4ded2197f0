"""The rules of a consume-transform-produce session, for blocking and asyncio clients.

A session has one consumer and one producer. Polled records, sent records and committed offsets form
one unit, which ends in commit or abort. This module decides when a commit is allowed, what an error
means for the open transaction (by the table in ``abort_reasons``), and where reading continues. It
neither processes records nor keeps state; a ``SessionListener`` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from onceflow.sdk.errors import (
    ClientClosedError,
    CommitFailedError,
    CommitOutcomeUnknownError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidTransactionTimeoutError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.transactions import timeouts
from onceflow.transactions.abort_reasons import AbortReason, Reaction, Verdict, judge
from onceflow.transactions.clients import Records, SessionConsumer, SessionProducer
from onceflow.transactions.colour import settle
from onceflow.transactions.commit_offsets import CommitOffsets, MarkedOffsets
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.errors import TransactionalIdInUseError
from onceflow.transactions.fencing import FenceWatch
from onceflow.transactions.interruption import Interruption
from onceflow.transactions.listener import (
    Abort,
    Offsets,
    PollResult,
    SessionClients,
    SessionListener,
)
from onceflow.transactions.log_facts import unit_facts
from onceflow.transactions.membership import present_membership
from onceflow.transactions.offset_notes import token_of
from onceflow.transactions.one_thread import OneThread
from onceflow.transactions.positions import Positions
from onceflow.transactions.progress import UncommittedWork

logger: logging.Logger = logging.getLogger("onceflow.transactions.session")

# After these errors of EndTxn the outcome is certain; the first means that only the committed
# offsets show it. After any other error the offsets must be read too: a fence may answer a second
# attempt although the first one was carried out.
_DEFINITE = (
    CommitOutcomeUnknownError,
    TransactionAbortableError,
    TransactionAbortedError,
    DeliveryTimeoutError,
    RecordError,
)

_UNKNOWN_OUTCOMES = (AbortReason.OUTCOME_UNKNOWN, AbortReason.INTERRUPTED)
"""Reasons after which only the committed offsets show whether the work was committed."""


class SessionCore:
    """State and rules of one session. The faces forward to it."""

    def __init__(
        self,
        config: AnySessionConfig,
        clients: SessionClients,
        listener: SessionListener,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.config = config
        self.in_transaction: bool = False
        self.has_begun: bool = False  # Not while another thread or task opens the transaction.
        self.last_abort: Abort | None = None
        self._name = config.own_transactional_id
        self._one_thread = OneThread(self._name)
        self._clients = clients
        self._listener = listener
        self._clock = clock or time.monotonic
        self._producer: SessionProducer | None = None
        self._consumer: SessionConsumer | None = None
        self._positions = Positions(
            self._name, config.start_from, frozenset(config.topics_from_start)
        )
        self._polled = UncommittedWork()
        self._commit_offsets = CommitOffsets(self._polled, self._positions)
        self._snapshot: ConsumerGroupMetadata | None = None
        self._epochs_rise = config.consumer.group_protocol == "consumer"
        self._work_since_s = 0.0
        self._begun_s = 0.0
        self._identity: ProducerIdentity | None = None
        self._failure: KafkaError | None = None
        self._in_callback = False
        self._interruption = Interruption()
        self._in_hand: dict[TopicPartition, int] | None = None
        self._is_noted = True
        self._callback_error: Exception | None = None
        self._fenced_by: Exception | None = None
        self._fences = FenceWatch(config.fence_window_ms / 1000)
        self._start_fences = FenceWatch(config.fence_window_ms / 1000)
        self._takeovers = FenceWatch(config.fence_window_ms / 1000, limit=3)
        self._closed = False
        self._process_id = os.getpid()

    # Life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Initialise the producer, which aborts an open transaction of its id, then join the group.

        Raises:
            ConfigError: The transaction timeout is longer than the broker allows.
        """
        logger.info("session %s: %s", self._name, timeouts.describe(self.config))
        try:
            await self._complete_clients()
        except BaseException:
            await self._drop_producer()
            raise

    async def _complete_clients(self) -> None:
        """Make the missing clients, at the start or after one was dropped."""
        if self._closed:
            raise self._lacks("clients")
        if self._fenced_by is not None:
            await self._replace_both(self._fenced_by)
        if self._producer is None:
            self._producer = await self._new_producer()
        if self._consumer is None:
            self._consumer = await settle(self._clients.consumer(self.config, self))

    async def _new_producer(self) -> SessionProducer:
        """Make a producer, which fences an earlier one with the same id.

        Another process whose InitProducerId comes at the same time may fence this producer before
        it has sent anything. Then nothing is lost, and the producer is made again.
        """
        while True:
            try:
                return await settle(self._clients.producer(self.config))
            except InvalidTransactionTimeoutError as error:
                raise timeouts.too_long_for_broker(self.config) from error
            except ProducerFencedError as error:
                if self._start_fences.fenced(self._clock()):
                    raise self._shared_id(error) from error
                logger.warning("session %s: fenced while it began: %s", self._name, error)

    async def _drop_producer(self, timeout_ms: int = 0) -> None:
        """Close the producer, and only log its errors, which were handled or do not matter now."""
        producer, self._producer = self._producer, None
        self.in_transaction = False
        if producer is not None:
            try:
                await settle(producer.close(timeout_ms=timeout_ms))
            except KafkaError as error:
                logger.debug("session %s: closing the producer: %s", self._name, error)

    async def close(self, timeout_ms: int, *, leave_group: bool = True) -> None:
        """Abort the open transaction, leave the group if asked to, and close both clients."""
        self._closed = True
        if os.getpid() != self._process_id:
            return  # A forked child: clients and transaction are the parent's.
        deadline = self._clock() + timeout_ms / 1000
        try:
            if self.in_transaction:
                left_ms = self._left_ms(deadline) // 2
                await settle(self.producer.abort_transaction(timeout_ms=left_ms))
        except KafkaError as error:
            logger.warning(
                "session %s: abort at close failed, the coordinator will do it: %s",
                self._name,
                error,
            )
        finally:  # Also after a cancellation: no client stays open.
            await self._close_clients(deadline, leave_group)

    async def _close_clients(self, deadline: float, leave_group: bool) -> None:
        self._polled.clear()
        self.in_transaction = False
        consumer, self._consumer = self._consumer, None
        try:
            if consumer is not None:
                left_ms = self._left_ms(deadline)
                await settle(consumer.close(timeout_ms=left_ms, leave_group=leave_group))
        finally:
            await self._drop_producer(self._left_ms(deadline))

    def _left_ms(self, deadline: float) -> int:
        return max(0, int((deadline - self._clock()) * 1000))

    def _check_process(self) -> None:
        """Refuse to work in a forked child: clients made here would fence the parent's.

        Raises:
            IllegalStateError: This process is a fork of the one that made the session.
        """
        if os.getpid() != self._process_id:
            raise IllegalStateError(
                f"session {self._name} was made before a fork; its clients belong to the parent "
                "process: make a session with its own slot in this process"
            )

    def _lacks(self, what: str) -> ClientClosedError:
        lack = f"has no {what}; poll() makes one"
        remedy = "is closed; make a new one" if self._closed else lack
        return ClientClosedError(f"session {self._name} {remedy}")

    @property
    def producer(self) -> SessionProducer:
        """The present producer, which a fence or a lost commit replaces."""
        if self._producer is None:
            raise self._lacks("producer")
        return self._producer

    @property
    def consumer(self) -> SessionConsumer:
        """The present consumer, which a fence replaces."""
        if self._consumer is None:
            raise self._lacks("consumer")
        return self._consumer

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the session owns at the moment."""
        return frozenset(self.consumer.assignment())

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""
        self.consumer.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""
        self.consumer.resume(partitions)

    def wakeup(self) -> None:
        """Make a waiting poll return; without a consumer, do nothing."""
        if self._consumer is not None:
            self._consumer.wakeup()

    # Reading -------------------------------------------------------------------------------

    async def poll_result(
        self, timeout_ms: int, max_records: int | None
    ) -> PollResult[object, object]:
        """Take records; rebalances happen in here, with their commits and aborts.

        The records count as handed out when the face calls ``handed_out`` or ``one_by_one``.
        """
        self._check_process()
        with self._one_thread.within("poll"):
            return await self._poll_result(timeout_ms, max_records)

    async def _poll_result(
        self, timeout_ms: int, max_records: int | None
    ) -> PollResult[object, object]:
        await self._complete_clients()
        await self._after_interruption()
        await self._take_back()
        await self._positions.catch_up(self.consumer)
        await self._commit_starts()
        self._in_hand, self._is_noted = self._polled.ends(), False
        input_error: KafkaError | None = None
        records: Records = {}
        try:
            records = await settle(
                self.consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
            )
        except asyncio.CancelledError:  # The consumer keeps what it would have returned.
            self._in_hand, self._is_noted = None, True
            raise
        except KafkaError as error:
            input_error = error
            if isinstance(error, OffsetOutOfRangeError | NoOffsetForPartitionError):
                error.add_note(
                    "The offset to read is not in the log any more (retention, or a new topic of "
                    "the same name). Processing stopped rather than skip a gap; set "
                    "auto_offset_reset to go on."
                )
        if self._callback_error is not None:
            unit_error, self._callback_error = self._callback_error, None
            if self._consumer is not None:
                await self._positions.put_back(self._consumer, records)
            self._is_noted = True
            return PollResult(unit_error=unit_error)
        if self._fenced_by is not None:
            return PollResult()
        if records and not self._polled and not self.in_transaction:
            self._work_since_s = self._clock()
        self._polled.polled(records)
        self._is_noted = True
        # The callbacks of this poll ended the work on revoked and lost partitions, so all open work
        # is of partitions that were owned throughout. A newer membership must not commit it, so
        # keep the present one until the next poll (KIP-447).
        self._snapshot = self._membership()
        return PollResult(records, input_error)

    def handed_out(self) -> None:
        """The application gets all that the last poll took: the face returns it."""
        self._in_hand = None

    def _nothing_handed_out(self) -> None:
        """Forget how far the application got: the work is aborted and read again.

        An abort within a poll's callback comes before the poll's records. Of these nothing is
        handed out yet, although they may lie where the application was before.
        """
        self._in_hand = None if self._is_noted else {}

    def one_by_one(self, records: Records) -> Iterator[ConsumerRecord[object, object]]:
        """Yield what the last poll took; what was not yielded is not committed.

        It ends early when the open work was aborted or another poll was made meanwhile: the rest
        is read again.
        """
        handed = self._in_hand
        for partition, batch in records.items():
            for record in batch:
                if handed is None or self._in_hand is not handed:
                    return
                handed[partition] = record.offset + 1
                yield record
        if self._in_hand is handed:
            self._in_hand = None

    async def _take_back(self) -> None:
        """Read again what a poll took and the application never got.

        A signal's handler ended the poll before it returned, or the application left a loop over
        single records.
        """
        handed = self._in_hand
        if handed is None:
            return
        places = {
            partition: handed.get(partition, progress.first)
            for partition, progress in self._polled.items()
            if not self._is_noted or handed.get(partition, progress.first) < progress.next
        }
        if not self._is_noted:  # What the consumer took is not known.
            others = self.consumer.assignment() - places.keys()
            await self._positions.begin_again(self.consumer, others)
        assigned = self.consumer.assignment()
        for partition, offset in places.items():
            if partition in assigned:
                await settle(self.consumer.seek(partition, offset))
            if partition in self._polled:
                self._polled.cut(partition, offset)
        self._in_hand, self._is_noted = None, True

    def _handed_offsets(self) -> Offsets | None:
        """What was handed out, to be committed; None for all that was polled."""
        handed = self._in_hand
        if handed is None:
            return None
        return {
            partition: min(handed.get(partition, progress.first), progress.next)
            for partition, progress in self._polled.items()
        }

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop fetched records of a partition that no poll has returned, and fetch them again."""
        position = await settle(self.consumer.position(partition))
        await settle(self.consumer.seek(partition, position))

    async def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Read polled, uncommitted records of partitions again."""
        firsts = {tp: self._polled[tp].first for tp in partitions if tp in self._polled}
        with self._noting_interruption(), self._one_thread.within("put_back"):
            self._positions.misplaced(firsts)
            for partition, first in firsts.items():
                self._polled.pop(partition, None)
                await settle(self.consumer.seek(partition, first))
            self._positions.placed(firsts)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return."""
        return await settle(self.consumer.position(partition))

    def at_end(self, partition: TopicPartition) -> bool:
        """Return whether a partition was read to its end, by the broker's last answer."""
        return self.consumer.lag(partition) == 0

    async def check_membership(self) -> None:
        """Ask the coordinator whether this is still a member of the group; raise if not."""
        await settle(self.consumer.ensure_membership())

    def _membership(self) -> ConsumerGroupMetadata | None:
        """Return the present membership; None if the consumer is not a member."""
        with contextlib.suppress(IllegalStateError):
            return self.consumer.group_metadata()
        return None

    def note(self, partition: TopicPartition) -> str | None:
        """Return the caller's note beside the committed offset of a partition, if it is known.

        Returns:
            None if nothing is committed, or if another program committed.
        """
        return self._positions.note(partition)

    def place(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an assigned partition; None if none is known."""
        return self._commit_offsets.place(partition)

    @property
    def commit_due(self) -> bool:
        """Whether the uncommitted work is older than the commit interval."""
        if not self._polled and not self.in_transaction:
            return False
        return (self._clock() - self._work_since_s) * 1000 >= self.config.commit_interval_ms

    # Writing -------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Open a transaction, unless one is open; called by the first send or commit."""
        if not self.in_transaction:
            self._check_process()
            if self._producer is None:
                await self._complete_clients()
            self.has_begun = False
            self.in_transaction = True  # Set first: an interruption must not hide an open one.
            try:
                with self._noting_interruption():
                    await settle(self.producer.begin_transaction())
            except Exception:
                self.in_transaction = False
                raise
            self.has_begun = True
            self._begun_s = self._clock()
            self._identity = self.producer.identity
            if not self._polled:
                self._work_since_s = self._clock()

    def note_failure(self, error: KafkaError) -> None:
        """Note a failed send, so that the next commit aborts; the caller handles errors of a
        single record."""
        if self._failure is None and not isinstance(error, RecordError):
            self._failure = error

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait for the acknowledgements of all sent records.

        Raises:
            KafkaError: A record was not delivered; the next commit becomes an abort.
        """
        if self.in_transaction:
            try:
                await settle(self.producer.flush(timeout_ms=timeout_ms))
            except KafkaError as error:
                self.note_failure(error)
                raise

    # Committing ----------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None) -> bool:
        """Commit outputs and offsets, or abort.

        Args:
            offsets: Next offset by partition; None means all polled records.

        Returns:
            True if committed, False if it had to become an abort (see ``last_abort``).
        """
        self._check_process()
        self._one_thread.check("commit")
        if await self._after_interruption():
            return False
        with self._noting_interruption(), self._one_thread.within("commit"):
            return await self._commit(offsets)

    async def _commit(self, offsets: Offsets | None) -> bool:
        try:
            self._commit_offsets.check(offsets, self._in_hand)
        except CommitFailedError as error:
            await self._abort(Verdict(AbortReason.PARTITIONS_LOST, Reaction.ABORT), error)
            return False
        if not self._is_noted:  # The consumer's positions are behind what was handed out.
            await self._take_back()
        elif offsets is None:
            offsets = self._handed_offsets()
        marked = await self._commit_offsets.mark(self.consumer, offsets)
        if not marked and not self.in_transaction:
            return True
        return await self._commit_marked(marked)

    async def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Commit ends in front of which only markers and aborted records are left.

        Returns:
            True if committed, or if nothing was to be; False if it became an abort.
        """
        self._check_process()
        self._one_thread.check("reach")
        if await self._after_interruption():
            return False
        if self.in_transaction or not self._is_noted:
            return True  # Work is open; the next call finds it ended.
        with self._noting_interruption(), self._one_thread.within("reach"):
            marked = await self._commit_offsets.mark_ends(self.consumer, ends)
            return not marked or await self._commit_marked(marked)

    async def _commit_marked(self, marked: MarkedOffsets) -> bool:
        try:
            await self._try_commit(marked, None)
        except CommitOutcomeUnknownError as error:
            if not await self._outcome_is_commit(marked, error):
                return False
        except KafkaError as error:
            verdict = judge(error)
            await self._abort(verdict, error)
            if verdict.reaction is Reaction.RAISE:
                raise
            return False
        self._note_committed(marked)
        return True

    async def _commit_starts(self) -> None:
        """Commit the start offsets of partitions, unless a commit of open work will do it.

        This needs a transaction: a plain commit of the group could overtake a later one.
        """
        if not self._positions.starts or self._polled or self.in_transaction:
            return
        with self._noting_interruption():
            self._snapshot = self._membership()
            await self._commit_marked(await self._commit_offsets.mark(self.consumer, {}))

    async def _try_commit(self, offsets: MarkedOffsets, deadline: float | None) -> None:
        """Flush, add the offsets, commit; each step within what is left until the deadline."""

        def left_ms() -> int | None:
            return None if deadline is None else self._left_ms(deadline)

        if self._failure is not None:
            raise self._failure.with_traceback(None)
        snapshot = self._check_ownership(offsets)
        await self.begin()
        producer = self.producer
        await settle(producer.flush(timeout_ms=left_ms()))
        if offsets:
            await settle(
                producer.send_offsets_to_transaction(offsets, snapshot, timeout_ms=left_ms())
            )
            # A member that is expelled before EndTxn would publish records that its successor
            # processes again. This heartbeat shortens the time in which that can happen.
            await settle(self.consumer.ensure_membership())
            self._check_ownership(offsets)
        try:
            try:
                await settle(producer.commit_transaction(timeout_ms=left_ms()))
            except CommitOutcomeUnknownError as error:
                if left_ms() == 0:
                    raise
                # If the request was lost, asking again commits and saves doing the work again.
                logger.warning("session %s: %s; asking again", self._name, error)
                await settle(producer.commit_transaction(timeout_ms=left_ms()))
        except _DEFINITE:
            raise
        except KafkaError as error:
            raise CommitOutcomeUnknownError(f"the commit failed with: {error}") from error

    def _check_ownership(self, offsets: Iterable[TopicPartition]) -> ConsumerGroupMetadata:
        """Check that the partitions are assigned to us; the broker checks only the membership."""
        snapshot = present_membership(
            self._snapshot, self._membership(), epochs_rise=self._epochs_rise
        )
        self._snapshot = snapshot
        if not self._in_callback:  # Within it, revoked partitions are still ours.
            gone = set(offsets) - set(self.consumer.assignment())
            if gone:
                names = ", ".join(sorted(map(str, gone)))
                raise CommitFailedError(f"partitions are not assigned any more: {names}")
        return snapshot

    def _note_committed(self, offsets: MarkedOffsets) -> None:
        self.in_transaction = False
        if logger.isEnabledFor(logging.DEBUG):
            facts = unit_facts(self._name, self._identity, self._snapshot, self._polled, offsets)
            logger.debug("session %s: committed %s", self._name, facts["offsets"], extra=facts)
        self._commit_offsets.committed(offsets)
        self._work_since_s = self._clock()
        self._listener.committed()

    async def _outcome_is_commit(
        self,
        offsets: MarkedOffsets,
        error: CommitOutcomeUnknownError,
        leaving: Sequence[TopicPartition] = (),
    ) -> bool:
        """Find out whether a commit without an answer was carried out.

        The InitProducerId of a new producer makes the coordinator finish or abort the transaction.
        Then the committed offsets carry this commit's token, or the transaction was aborted.
        """
        logger.warning("session %s: %s; reading the committed offsets", self._name, error)
        verdict = Verdict(AbortReason.OUTCOME_UNKNOWN, Reaction.REINITIALISE)
        if isinstance(error.__cause__, Exception):
            verdict = judge(error.__cause__)
        fenced = verdict.reaction is Reaction.REPLACE
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        try:
            if not fenced:
                await self._replace_producer(verdict, error)
            if offsets:
                found = await settle(self.consumer.committed(list(offsets)))
        except TransactionalIdInUseError:
            raise
        except KafkaError as lookup_error:
            await self._note_aborted(Abort(AbortReason.OUTCOME_UNKNOWN, error), leaving)
            raise error from lookup_error
        if not offsets:  # Without offsets nothing shows the outcome.
            await self._note_aborted(Abort(AbortReason.OUTCOME_UNKNOWN, error), leaving)
            raise error
        tokens = {token_of(entry.metadata) for entry in found.values() if entry is not None}
        committed = any(token_of(wanted.metadata) in tokens for wanted in offsets.values())
        outcome = "committed" if committed else "aborted"
        logger.warning("session %s: the transaction was %s", self._name, outcome)
        if fenced:
            await self._replace(error)
        elif not committed:
            await self._note_aborted(Abort(verdict.reason, error), leaving)
        return committed

    # Aborting ------------------------------------------------------------------------------

    async def abort(self, cause: KafkaError | None = None) -> None:
        """Drop outputs and go back to the committed offsets; without open work, do nothing.

        Args:
            cause: Error of a send or flush. The session reacts as to the same error of a
                commit, and may replace its clients.

        Raises:
            KafkaError: The cause, if going on would not help.
        """
        self._check_process()
        self._one_thread.check("abort")
        if await self._after_interruption() and cause is None:
            return
        with self._noting_interruption(), self._one_thread.within("abort"):
            if cause is None:
                if self.in_transaction or self._polled:
                    await self._abort(Verdict(AbortReason.REQUESTED, Reaction.ABORT), None)
                return
            verdict = judge(cause)
            await self._abort(verdict, cause)
            if verdict.reaction is Reaction.RAISE:
                raise cause

    def _noting_interruption(self) -> contextlib.AbstractContextManager[None]:
        """Note that a cancellation or a signal ended a commit, an abort or a callback early."""
        return self._interruption.noted(has_work=self.in_transaction or bool(self._polled))

    async def _after_interruption(self) -> bool:
        """End the work that an interrupted call left open, before anything else.

        The open transaction may hold outputs of records whose partitions were revoked since; a
        commit would publish them without their offsets. Or its commit was sent already. In both
        cases a new producer ends it, and reading continues at the committed offsets.

        Returns:
            Whether any work was open.
        """
        if not self._interruption.happened:
            return False
        # The interrupted call itself may have ended the work, but its caller does not know how.
        was_open = self._interruption.had_work or self.in_transaction or bool(self._polled)
        if was_open:
            if self._consumer is None or self._fenced_by is not None:
                await self._complete_clients()
            await self._abort(Verdict(AbortReason.INTERRUPTED, Reaction.ABORT), None)
        self._interruption.clear()
        return was_open

    async def _abort(
        self,
        verdict: Verdict,
        cause: Exception | None,
        leaving: Sequence[TopicPartition] = (),
    ) -> None:
        """Abort the transaction and rewind; replace clients if the verdict says so."""
        reaction = verdict.reaction
        if reaction in (Reaction.ABORT, Reaction.RAISE) and self.in_transaction:
            try:
                await settle(self.producer.abort_transaction())
            except KafkaError as error:
                logger.info(
                    "session %s: abort failed (%s); a new producer ends the transaction",
                    self._name,
                    error,
                )
                fenced = judge(error).reaction is Reaction.REPLACE
                reaction = Reaction.REPLACE if fenced else Reaction.REINITIALISE
        if reaction is Reaction.REPLACE:
            await self._replace(cause)
            return
        try:
            if reaction is Reaction.REINITIALISE:
                await self._replace_producer(verdict, cause)
        except Exception:
            await self._note_aborted(Abort(verdict.reason, cause), leaving)
            raise
        # Not after an interruption: the old producer's transaction may still be open.
        await self._note_aborted(Abort(verdict.reason, cause), leaving)

    async def _note_aborted(self, abort: Abort, leaving: Sequence[TopicPartition] = ()) -> None:
        log = logger.debug if abort.reason is AbortReason.REQUESTED else logger.warning
        ends = {tp: progress.next for tp, progress in self._polled.items()}
        told = unit_facts(self._name, self._identity, self._snapshot, self._polled, ends)
        facts = {**told, "reason": abort.reason.name.lower()}
        log("session %s: aborted: %s", self._name, abort, extra=facts)
        self.in_transaction = False
        self._failure = None
        self.last_abort = abort
        self._listener.aborted(abort)
        await self._rewind(leaving, is_unknown=abort.reason in _UNKNOWN_OUTCOMES)

    async def _rewind(self, leaving: Sequence[TopicPartition], *, is_unknown: bool) -> None:
        assigned = set(self.consumer.assignment()).difference(leaving)
        touched = {
            partition: progress.first
            for partition, progress in self._polled.items()
            if partition in assigned
        }
        # First: an interruption must not leave a partition behind its aborted records.
        self._positions.misplaced(touched)
        self._polled.clear()
        self._nothing_handed_out()
        if touched:
            await self._positions.rewind(self.consumer, touched, is_unknown=is_unknown)

    async def _replace_producer(self, verdict: Verdict, cause: Exception | None) -> None:
        """Make a new producer, whose InitProducerId ends the open transaction (KIP-98).

        A partition's leader sends the same error after a newer producer took the id and after the
        coordinator timed the transaction out (KIP-588). Before the transaction timeout the former
        is likely, but not certain. So it takes one more such error than plain fences to conclude
        that an id is shared.
        """
        age_ms = (self._clock() - self._begun_s) * 1000
        taken = (
            verdict.reason is AbortReason.INVALID_EPOCH
            and self.in_transaction
            and age_ms < self.config.producer.transaction_timeout_ms
        )
        await self._drop_producer()
        if taken and self._takeovers.fenced(self._clock()):
            raise self._shared_id(cause)
        await self._complete_clients()

    def _shared_id(self, cause: Exception | None) -> TransactionalIdInUseError:
        """Close the session and return the error; fencing the other process would never end."""
        self._closed = True
        error = TransactionalIdInUseError(
            f"transactional id {self._name!r} is shared by another live process: taken over again "
            f"and again within {self.config.fence_window_ms} ms; give each process its own slot"
        )
        error.__cause__ = cause
        return error

    async def _replace(self, cause: Exception | None) -> None:
        """Replace both clients after a fence; within a consumer's callback leave it to the next
        poll."""
        if self._in_callback:
            self._fenced_by = cause or CommitFailedError("fenced")
            self._polled.clear()
            await self._drop_producer()
        else:
            await self._replace_both(cause)

    async def _replace_both(self, cause: Exception | None) -> None:
        """Replace consumer and producer: after a fence membership and epoch are in doubt."""
        logger.warning("session %s: fenced: %s", self._name, cause)
        # Set until the end: an interruption must not leave a member that no call polls or closes.
        self._fenced_by = cause or CommitFailedError("fenced")
        consumer = self.consumer
        self._commit_offsets.clear()
        self._nothing_handed_out()
        self._positions.clear()
        self._failure = None
        self._snapshot = None
        self.last_abort = Abort(AbortReason.FENCED, cause)
        await self._drop_producer()
        self._listener.aborted(self.last_abort)
        await settle(self._listener.released(sorted(consumer.assignment()), True))
        try:
            await settle(consumer.close(timeout_ms=self.config.revoke_budget_ms))
        except KafkaError as error:
            logger.debug("session %s: closing the fenced consumer: %s", self._name, error)
        self._consumer = self._fenced_by = None
        if self._fences.fenced(self._clock()):
            raise self._shared_id(cause)
        await self._complete_clients()

    # Rebalances ----------------------------------------------------------------------------

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Set the positions at which new partitions begin."""
        with self._callback():
            try:
                await self._positions.assigned(self.consumer, partitions)
                await self._commit_starts()
            finally:
                self._listener.assigned(partitions)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit all processed records before the partitions are revoked, or abort.

        This commits also the work of kept partitions, as their outputs are in the same
        transaction. The group waits until this returns.
        """
        with self._callback():
            try:
                await self._settle_before_leaving(partitions)
            finally:
                await self._forget(partitions, lost=False)

    async def _settle_before_leaving(self, partitions: Sequence[TopicPartition]) -> None:
        if self._consumer is None:
            return  # The session is being closed, and the open transaction is aborted.
        # Also without polled records: the listener may hold outputs of no record.
        deadline = self._clock() + self.config.revoke_budget_ms / 1000
        # A revocation shows that the partitions were ours until now, even if a cooperative
        # rebalance has already brought the next generation.
        self._snapshot = self._membership()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            wanted = await settle(self._listener.progress())
            self._commit_offsets.check(wanted)
            offsets = await self._commit_offsets.mark(self.consumer, wanted)
            if not offsets and not self.in_transaction:
                return
            await self._try_commit(offsets, deadline)
        except CommitOutcomeUnknownError as error:
            if not await self._outcome_is_commit(offsets, error, leaving=partitions):
                return
        except Exception as error:
            verdict = judge(error)
            if self._left_ms(deadline) == 0:
                verdict = Verdict(AbortReason.REBALANCE, verdict.reaction)
            await self._abort(verdict, error, leaving=partitions)
            if verdict.reaction is Reaction.RAISE:
                raise
            return
        self._note_committed(offsets)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Abort, as other members may own the partitions already."""
        with self._callback():
            try:
                if self.in_transaction or self._polled:
                    verdict = Verdict(AbortReason.PARTITIONS_LOST, Reaction.ABORT)
                    await self._abort(verdict, None, leaving=partitions)
            finally:
                await self._forget(partitions, lost=True)

    async def _forget(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        for partition in partitions:
            self._commit_offsets.forget(partition)
            self._positions.forget(partition)
        await settle(self._listener.released(partitions, lost))

    @contextlib.contextmanager
    def _callback(self) -> Iterator[None]:
        """Keep an error of a rebalance callback; the poll that runs the callback raises it."""
        self._in_callback = True
        try:
            with self._noting_interruption():
                yield
        except Exception as error:  # noqa: BLE001 - raised by poll
            if self._callback_error is None:
                self._callback_error = error
            else:
                logger.error("session %s: also failed: %s", self._name, error)
        finally:
            self._in_callback = False
