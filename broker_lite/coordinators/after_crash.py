"""Repairs the coordinators' state at a start after a crash.

After a process died, all its writes are there. After a power loss with durability ``kafka``, each
file may have lost its end: the coordinator may know a transaction whose records are lost, or the
log may hold records of a transaction that the coordinator lost; a producer may use an epoch that no
log holds. Acknowledged data may be lost then, but data acknowledged from now on must be safe. So
the start ends all earlier producer ids, and aborts all undecided transactions.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.state_log import StateLogError, TransactionMarker
from onceflow.broker_lite.coordinators.transactions.states import MAX_PRODUCER_EPOCH
from onceflow.broker_lite.log import AppendError
from onceflow.sdk.model.partitions import TopicPartition

if TYPE_CHECKING:
    from onceflow.broker_lite.coordinators.build import LoadedParts
    from onceflow.broker_lite.coordinators.transactions.states import TransactionEntry

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators")


def mend(state: LoadedParts, now_ms: int) -> None:
    """Repair groups and transactions, so that no epoch and no generation is given out twice.

    Args:
        state: The broker; its coordinators have read their topics, but finished no transaction.
        now_ms: Wall milliseconds.

    Raises:
        OSError: The repair could not be written; the broker must not serve requests.
    """
    try:
        _mend_transactions(state, now_ms)
        _mend_groups(state, now_ms)
    except StateLogError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        raise OSError(str(error)) if cause is None else cause from error


def _mend_transactions(state: LoadedParts, now_ms: int) -> None:
    """End producer ids whose epoch may be in use twice, and transactions that have no coordinator.

    After a power loss that may be any producer id: the log may have lost a later epoch that a
    producer already uses. Otherwise it is only those of which a log has a later epoch.
    """
    transactions, power_lost = state.transactions, state.log_manager.power_lost
    epochs = _known_producer_epochs(state)

    def is_lost(entry: TransactionEntry) -> bool:
        return power_lost or epochs.get(entry.producer_id, -1) > entry.producer_epoch

    transactions.end_identities(is_lost, now_ms, keep_commits=not power_lost)
    abort_hanging(state, now_ms)


def _known_producer_epochs(state: LoadedParts) -> dict[int, int]:
    """Return the greatest epoch of each producer id in any log."""
    epochs: dict[int, int] = {}
    for topic in state.topics:
        for log in topic.partitions:
            for producer in log.producers():
                known = epochs.get(producer.producer_id, -1)
                epochs[producer.producer_id] = max(known, producer.producer_epoch)
    return epochs


def abort_hanging(state: LoadedParts, now_ms: int) -> None:
    """Abort the open transactions that the transaction coordinator does not know.

    A power loss may keep the records of a transaction and lose its begin. No client could end such
    a transaction: it would hold back readers, and its records would join the next transaction of
    its producer. The marker raises the epoch. Otherwise a producer that repeats records without an
    answer would get the answer that they are stored, although they are aborted.

    Raises:
        OSError: A marker could not be written.
    """
    for topic in state.topics:
        for index, log in enumerate(topic.partitions):
            partition = TopicPartition(topic.name, index)
            for producer in log.producers():
                if producer.current_transaction_start_offset < 0 or state.transactions.holds(
                    producer.producer_id, producer.producer_epoch, partition
                ):
                    continue
                logger.warning(
                    "%s: aborting a transaction of producer %d that the coordinator does not know",
                    partition,
                    producer.producer_id,
                )
                marker = TransactionMarker(
                    producer.producer_id,
                    min(producer.producer_epoch + 1, MAX_PRODUCER_EPOCH),
                    committed=False,
                    coordinator_epoch=max(0, producer.coordinator_epoch),
                )
                try:
                    state.transactions.markers.append(partition, log, marker, now_ms)
                except AppendError as error:
                    if isinstance(error.__cause__, OSError):
                        raise error.__cause__ from None
                    logger.error("%s: the transaction cannot be aborted: %s", partition, error)


def _mend_groups(state: LoadedParts, now_ms: int) -> None:
    """Raise generations, and move committed offsets beyond the end of a log back to it.

    Otherwise a consumer without leader epochs would skip records that are later written up to its
    offset. A consumer with leader epochs gets an error that the log lost its end.
    """
    power_lost, topics = state.log_manager.power_lost, state.topics
    admin = state.groups.admin
    if power_lost:
        admin.skip_generations(now_ms)

    def end_of(partition: TopicPartition) -> int | None:
        log = topics.partition(partition.topic, partition.partition)
        return log.log_end_offset if log is not None and (power_lost or log.cut) else None

    admin.cut_offsets(end_of, now_ms)
