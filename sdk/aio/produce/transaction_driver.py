"""A producer's transactions over a running engine: begin, offsets, commit, abort, recovery.

It decides the order of steps at the end of a transaction: every record is acknowledged before
offsets and commit, and nothing is sent after an abort began. It decides which error the caller gets
if an end has no answer. The transaction manager has the states, ``transaction_flows`` the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.core.arguments import (
    check_group_metadata,
    limit_of,
    offsets_by_partition,
    partition_list,
    whole_ms,
)
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.core.produce.batch import DeliveryHandle
from onceflow.sdk.core.produce.transaction_flows import (
    FENCED,
    check_group,
    commit_offsets,
    end_transaction,
    init_producer_id,
)
from onceflow.sdk.core.produce.transaction_manager import (
    TransactionState,
    fenced_error,
    forgotten_error,
)
from onceflow.sdk.core.produce.transaction_reclaim import Owner, owner_of
from onceflow.sdk.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    FatalError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import EndTxnRequest

log: logging.Logger = logging.getLogger("onceflow.transactions")

D = TypeVar("D", bound=DeliveryHandle)
S = TransactionState
IMPLICIT_PRODUCE = 12
"""First Produce version that adds its partitions to the transaction (KIP-890)."""
EPOCH_END_TXN = 5
"""First EndTxn version whose answer has the next epoch (KIP-890)."""


class TransactionDriver(Generic[D]):
    """Transactions of one producer.

    Calls must come one after the other; a second one during the first raises IllegalStateError
    from the state table.
    """

    def __init__(self, engine: ProducerEngine[D]) -> None:
        self._engine = engine
        self._manager = engine.transactions
        self._pool = engine.pool
        self._backoff = engine.pool.backoff
        self._unanswered = False
        self._offsets_turn = asyncio.Lock()

    # life

    async def start(self) -> None:
        """Get the identity, or adopt the given one; without transactions do nothing.

        Raises:
            KafkaError: The coordinator refuses, or did not answer in time.
        """
        config = self._engine.config
        known = config.joined_identity or config.resumed_identity
        if known is not None:
            await self.adopt(known)
        elif config.transactional_id is not None:
            await self.init()

    async def close(self, timeout_ms: int) -> None:
        """Abort an open transaction or repeat an end without an answer, then close the engine.

        Args:
            timeout_ms: Limit for both.

        Raises:
            KafkaError: A record failed and its delivery was not awaited.
        """
        engine = self._engine
        if engine.loop is None:
            await engine.close(0)
            return
        deadline_ms = engine.now_ms() + whole_ms(timeout_ms)
        try:
            if self._manager.is_joined:
                await self._flush_quietly(deadline_ms)
            elif self._manager.state is S.COMMIT_UNANSWERED:
                await self._commit_quietly(timeout_ms)
            else:
                await self.abort_quietly(timeout_ms)
        finally:
            await engine.close(deadline_ms)
        failure = engine.gate.take_failure()
        if failure is None and self._manager.is_joined:
            failure = self._manager.error  # Raise it here: without a commit no later call would.
        if failure is not None:
            raise failure

    async def _flush_quietly(self, deadline_ms: int) -> None:
        try:
            await self._engine.wait_complete(deadline_ms)
        except KafkaError as error:
            log.warning("closing while records are being sent: %s", error)

    async def _commit_quietly(self, timeout_ms: int) -> None:
        """Repeat a commit without an answer, so that readers need not wait for the transaction's
        timeout. The caller of the commit got CommitOutcomeUnknownError already."""
        manager = self._manager
        try:
            await self.commit(timeout_ms)
        except KafkaError as error:
            log.warning("%s: closing after a commit: %s", manager.transactional_id, error)
        else:
            log.info("%s: the commit whose answer was lost has succeeded", manager.transactional_id)

    async def abort_quietly(self, timeout_ms: int | None = None) -> None:
        """Abort an open transaction without raising, because another error is being raised."""
        manager = self._manager
        if not manager.is_abortable:
            return
        try:
            await self.abort(timeout_ms)
        except KafkaError as error:
            log.warning("%s: open transaction not aborted: %s", manager.transactional_id, error)

    # identity

    async def init(self, timeout_ms: int | None = None) -> None:
        """Get the identity, fencing older producers of the transactional id.

        A second call raises the epoch, unless a newer producer has the id: then this one is fenced.
        If the producer was not used since the last call, it changes nothing. An open transaction
        must be committed or aborted first, and an end without an answer must be repeated.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            KafkaError: The coordinator refuses, or did not answer in time.
            IllegalStateError: A transaction is open, or another call goes on.
        """
        manager = self._manager
        if manager.transactional_id is None or manager.is_joined:
            raise IllegalStateError("init_transactions() needs a producer with transactional_id")
        limit_ms = self._limit_ms(timeout_ms)
        self._engine.check_usable()
        if manager.state is S.FATAL_ERROR and manager.error is not None:
            raise manager.error
        if manager.state not in (S.UNINITIALIZED, S.READY):
            raise manager.refusal("init_transactions()")
        if manager.state is S.READY and not manager.number and not manager.bump_required:
            return
        await self._renew(limit_ms)

    async def adopt(self, identity: ProducerIdentity) -> None:
        """Join an open transaction of another producer, under its identity."""
        self._engine.check_usable()
        version = await self._negotiate(identity.transactional_id, self._limit_ms(None))
        self._manager.adopt(identity, version, self._engine.now_ms())
        self._engine.accumulator.transaction = self._manager.number
        self._engine.gate.update()

    async def _initialize(self, limit_ms: int, current: ProducerIdentity | None) -> None:
        manager, config = self._manager, self._engine.config
        self._engine.check_usable()
        deadline_ms = self._engine.now_ms() + limit_ms
        manager.move(S.INITIALIZING)
        self._unanswered = True
        try:
            producer_id, producer_epoch = await self._pool.run(
                init_producer_id(
                    manager.transactional_id,
                    config.transaction_timeout_ms,
                    self._backoff,
                    current=current,
                ),
                timeout_ms=limit_ms,
            )
            version = await self._negotiate(
                manager.transactional_id or "", max(1, deadline_ms - self._engine.now_ms())
            )
        except FatalError as error:
            manager.fatal(error)
            self._engine.gate.update()
            raise
        except BaseException as error:
            self._unanswered = not isinstance(error, KafkaError) or error.retriable
            manager.move(S.UNINITIALIZED)
            raise
        self._unanswered = False
        manager.initialized(producer_id, producer_epoch, version)
        self._engine.gate.update()
        log.info(
            "%s: producer id %d, epoch %d, transactions version %d",
            manager.transactional_id,
            producer_id,
            producer_epoch,
            version,
        )

    async def _negotiate(self, transactional_id: str, limit_ms: int) -> int:
        """Return the version of the transaction protocol that the cluster speaks."""
        node_id = await self._pool.find_coordinator(
            transactional_id, CoordinatorType.TRANSACTION, timeout_ms=limit_ms
        )
        await self._pool.connect(node_id, "coordinator")
        versions = self._pool.versions(node_id)
        if versions is None or versions.transaction_version < 2:
            return 1
        new_enough = (versions.pick(ProduceRequest) or 0) >= IMPLICIT_PRODUCE and (
            versions.pick(EndTxnRequest) or 0
        ) >= EPOCH_END_TXN
        return 2 if new_enough else 1

    # begin

    async def begin(self) -> None:
        """Open a transaction.

        Raises:
            KafkaError: The producer is not ready, or (if it has to request its
                identity first) the coordinator refuses.
        """
        manager, engine = self._manager, self._engine
        engine.check_usable()
        if manager.transactional_id is None:
            raise IllegalStateError("transactions need a producer with transactional_id")
        if manager.is_joined:
            raise IllegalStateError(
                "another producer owns this transaction, which is open already, and ends it"
            )
        if manager.state is S.ABORT_UNANSWERED:
            await self.abort()
        if manager.state is S.UNINITIALIZED or (manager.state is S.READY and manager.bump_required):
            await self._renew(self._limit_ms(None))
        manager.begin(engine.now_ms())
        engine.accumulator.transaction = manager.number
        engine.gate.update()

    def begin_now(self) -> bool:
        """Open a transaction if that needs no broker; callable from any thread.

        Returns:
            Whether it is open; otherwise ``begin`` must be awaited.
        """
        manager, engine = self._manager, self._engine
        if (
            manager.state is not S.READY
            or manager.bump_required
            or not manager.is_transactional
            or engine.gate.is_closing
            or engine.loop is None
        ):
            return False
        manager.begin(engine.now_ms())
        engine.accumulator.transaction = manager.number
        engine.gate.update()
        return True

    async def _renew(self, limit_ms: int) -> None:
        """Get a first identity, or raise the epoch of the known one (KIP-360).

        The coordinator compares the given identity with its own, so that a producer that was
        replaced is fenced and does not take the id back. It also recognizes the repetition of a
        request whose answer was lost. But it gives a forgotten id to any producer. So this first
        asks whether the coordinator knows the id: a newer producer may have used it meanwhile.
        """
        manager = self._manager
        identity = manager.identity
        if identity is not None:
            owner = await self._pool.run(self._ask_owner(identity), timeout_ms=limit_ms)
            # After an InitProducerId without an answer the newer epoch may be our own.
            if owner is Owner.FORGOTTEN or (owner is Owner.TAKEN and not self._unanswered):
                raise self._replaced(identity, owner)
        await self._initialize(limit_ms, identity)

    # content

    def note_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions that other producers write to in the open transaction."""
        if self._manager.is_joined:
            raise IllegalStateError("note_partitions() belongs to the transaction's owner")
        noted = partition_list(partitions)
        self._manager.require(S.IN_TRANSACTION, what="note_partitions()")
        self._manager.note_partitions(noted)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        """Add offsets to the transaction, after every record was acknowledged.

        Args:
            offsets: Next offset to read by partition.
            group: The group and the member that read them.
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            KafkaError: A record was lost, or a coordinator refuses; the transaction must be
                aborted then.
        """
        manager, engine = self._manager, self._engine
        engine.check_usable()
        # Report a wrong argument as such, even if the transaction is broken.
        check_group_metadata(group)
        check_group(group)
        plain = offsets_by_partition(offsets)
        deadline_ms = self._deadline_ms(timeout_ms)
        manager.require(S.IN_TRANSACTION, what="send_offsets_to_transaction()")
        if not plain:
            return
        # One call at a time: a repetition of an earlier call would overwrite a later one's offsets.
        async with self._offsets_turn:
            await self._send_offsets(plain, group, deadline_ms)

    async def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        deadline_ms: int,
    ) -> None:
        manager, engine = self._manager, self._engine
        manager.require(S.IN_TRANSACTION, what="send_offsets_to_transaction()")
        identity = manager.identity
        assert identity is not None
        number = manager.number
        await engine.wait_complete(deadline_ms)
        engine.gate.raise_failure()
        manager.has_content = True
        try:
            await self._pool.run(
                commit_offsets(
                    identity,
                    offsets,
                    group,
                    self._backoff,
                    protocol_version=manager.protocol_version,
                ),
                timeout_ms=max(1, deadline_ms - engine.now_ms()),
            )
            manager.is_acknowledged = True
        except BaseException as error:
            # Some offsets may be part of the transaction already; only an abort removes them.
            if manager.number == number:
                manager.fail(_healed_by_abort(error))
                engine.gate.update()
            raise

    # the end

    async def commit(self, timeout_ms: int | None = None) -> None:
        """Commit the transaction.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            CommitOutcomeUnknownError: No answer came; call this again to learn the outcome.
            RequestTimedOutError: Records were not acknowledged in time. The transaction is still
                open, to be committed or aborted.
            KafkaError: The transaction is not committed and must be aborted.
        """
        manager, engine = self._manager, self._engine
        engine.check_usable()
        deadline_ms = self._deadline_ms(timeout_ms)
        if not manager.is_broken:
            manager.begin_end(committed=True)
            engine.gate.update()
            try:
                await engine.wait_complete(deadline_ms)
            except BaseException:
                manager.end_not_asked()
                engine.gate.update()
                raise
        if manager.error is not None:
            if isinstance(manager.error, InvalidProducerEpochError):
                await self._learn_who_raised_the_epoch(manager.error, deadline_ms)
            raise manager.error
        if manager.has_content:
            await self._end(deadline_ms, committed=True)
        else:
            manager.ended()
        engine.sender.counters.transactions_committed += 1
        engine.accumulator.transaction = 0

    async def abort(self, timeout_ms: int | None = None) -> None:
        """Abort the transaction.

        Unsent records are dropped; the call waits for those in flight.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            KafkaError: The coordinator could not be reached. Call again or begin the next
                transaction, which aborts this one first; else the coordinator aborts it after
                ``transaction_timeout_ms``.
        """
        manager, engine = self._manager, self._engine
        engine.check_usable()
        if manager.already_aborted and manager.state is S.UNINITIALIZED:
            manager.already_aborted = False  # The commit's error has said so.
            engine.sender.counters.transactions_aborted += 1
            return
        deadline_ms = self._deadline_ms(timeout_ms)
        manager.begin_end(committed=False)
        engine.gate.update()
        try:
            await self._drain(deadline_ms)
        except BaseException:
            manager.end_unanswered()
            raise
        if manager.has_content:
            await self._end(deadline_ms, committed=False)
        else:
            manager.ended()
        engine.sender.counters.transactions_aborted += 1
        engine.accumulator.transaction = 0

    async def _drain(self, deadline_ms: int) -> None:
        engine = self._engine
        engine.sender.purge(
            TransactionAbortedError("the transaction was aborted before the record was sent")
        )
        await engine.stop_registering()
        await engine.wait_idle(deadline_ms)

    async def _end(self, deadline_ms: int, *, committed: bool) -> None:
        manager, engine = self._manager, self._engine
        identity = manager.identity
        assert identity is not None
        flow = end_transaction(
            identity,
            self._backoff,
            committed=committed,
            protocol_version=manager.protocol_version,
            progress=manager.end,
        )
        try:
            producer_id, producer_epoch = await self._pool.run(
                flow, timeout_ms=max(1, deadline_ms - engine.now_ms())
            )
        except (*FENCED, InvalidTxnStateError) as error:
            # INVALID_TXN_STATE: the transaction has ended already, with the other outcome.
            await self._end_refused(identity, error, deadline_ms, committed=committed)
        except FatalError as error:
            was_asked = manager.end.may_have_arrived
            manager.fatal(error)
            if committed and was_asked:
                raise CommitOutcomeUnknownError(_UNKNOWN_FOR_GOOD.format(error)) from error
            raise
        except AbortableError as error:
            manager.fail(error) if committed else manager.end_unanswered()
            raise
        except BaseException as error:
            manager.end_unanswered()
            if committed and isinstance(error, KafkaError):
                raise CommitOutcomeUnknownError(_UNKNOWN.format(error)) from error
            raise
        else:
            manager.ended(producer_id, producer_epoch)
        finally:
            engine.gate.update()

    async def _end_refused(
        self, identity: ProducerIdentity, error: KafkaError, deadline_ms: int, *, committed: bool
    ) -> None:
        """Handle a refused epoch: a newer producer took over, or the transaction timed out."""
        manager = self._manager
        try:
            limit_ms = max(1, deadline_ms - self._engine.now_ms())
            owner = await self._pool.run(self._ask_owner(identity), timeout_ms=limit_ms)
        except BaseException as failure:
            manager.end_unanswered()
            if committed and isinstance(failure, KafkaError):
                raise CommitOutcomeUnknownError(_UNKNOWN.format(failure)) from error
            raise
        if committed and owner is Owner.COMMITTED and manager.is_acknowledged:
            # An earlier EndTxn has committed, and only its answer was lost.
            manager.ended_elsewhere(epoch_raised=True)
            return
        was_asked = manager.end.may_have_arrived
        if not self._is_ours(owner):
            refused = self._replaced(identity, owner)
            if committed and was_asked and owner is not Owner.TAKEN:
                raise CommitOutcomeUnknownError(_UNKNOWN_FOR_GOOD.format(error)) from refused
            raise refused from error
        why = self._why_aborted()
        manager.ended_elsewhere(epoch_raised=owner is Owner.ABORTED)
        if committed:
            manager.already_aborted = True
            raise TransactionAbortedError(why) from error

    async def _learn_who_raised_the_epoch(self, error: KafkaError, deadline_ms: int) -> None:
        """Find out why a record was refused for its epoch: a newer producer, or an abort by the
        coordinator."""
        identity = self._manager.identity
        assert identity is not None
        limit_ms = max(1, deadline_ms - self._engine.now_ms())
        try:
            owner = await self._pool.run(self._ask_owner(identity), timeout_ms=limit_ms)
        except KafkaError as failure:
            raise error from failure  # The abort asks again.
        if not self._is_ours(owner):
            raise self._replaced(identity, owner) from error
        raise TransactionAbortedError(self._why_aborted()) from error

    def _is_ours(self, owner: Owner) -> bool:
        """Whether it is certain that no other producer took over the id (KIP-588).

        An abort under the next epoch is by the coordinator if it knew our transaction: a newer
        producer would have to abort that one first, and would get the epoch after the next one. If
        it did not know ours, a newer producer may have aborted a transaction of its own. Under
        version 1 an EndTxn without an answer may have committed ours before a newer producer came.
        """
        manager = self._manager
        if owner is Owner.ABORTED:
            lost_end = manager.protocol_version == 1 and manager.end.may_have_arrived
            return manager.is_acknowledged and not lost_end
        return owner is Owner.OURS

    def _replaced(self, identity: ProducerIdentity, owner: Owner) -> KafkaError:
        """Fail this producer for good, since another one may own the id; return the error."""
        name = identity.transactional_id
        error = forgotten_error(name) if owner is Owner.FORGOTTEN else fenced_error(name)
        self._manager.fatal(error)
        self._engine.gate.update()
        return error

    def _ask_owner(self, identity: ProducerIdentity) -> Flow[Owner]:
        version = self._manager.protocol_version
        return owner_of(identity, self._backoff, protocol_version=version)

    def _why_aborted(self) -> str:
        limit_ms = self._engine.config.transaction_timeout_ms
        open_ms = self._engine.now_ms() - self._manager.began_ms
        why = (
            f"it was open for {open_ms} ms, longer than transaction_timeout_ms ({limit_ms})"
            if open_ms >= limit_ms
            else "its coordinator ended it"
        )
        return (
            f"the transaction was aborted by the coordinator: {why}; nothing of it is visible. "
            "Begin a new one and do its work again"
        )

    def _limit_ms(self, timeout_ms: int | None) -> int:
        return limit_of(timeout_ms, self._engine.config.max_block_ms)

    def _deadline_ms(self, timeout_ms: int | None) -> int:
        return self._engine.now_ms() + self._limit_ms(timeout_ms)


_UNKNOWN = (
    "no certain answer to the commit ({}): the transaction is committed or aborted as a whole. "
    "Call commit_transaction() again to learn which; it commits if the request was lost"
)
_UNKNOWN_FOR_GOOD = (
    "an answer to the commit was lost, and now the coordinator refuses it ({}): the transaction is "
    "committed or aborted as a whole. Make a new producer, then read what is committed to learn "
    "which"
)


def _healed_by_abort(error: BaseException) -> KafkaError:
    """Return the error of a transaction whose offsets could not be sent."""
    if isinstance(error, UnsupportedVersionError):  # Then nothing was sent.
        return TransactionAbortedError(str(error))
    if isinstance(error, KafkaError):
        return error
    return TransactionAbortedError("sending offsets was interrupted")
