"""What a start after a crash makes of the coordinators' state: nothing that was lost is believed.

A process that dies leaves everything it wrote. When the machine loses power with durability
``kafka``, any file may have lost its end, each another one: a transaction may be known to its
coordinator and its records gone, or the contrary; an epoch may have been given to somebody whom no
log remembers. What was acknowledged before may be gone then, but what is acknowledged from now on
holds. So identities of before end, and so do transactions that were not decided.
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
    """Bring groups and transactions, as they were read, to where nothing is given out twice.

    Args:
        state: The broker; its coordinators have read their topics and finished nothing yet.
        now_ms: Wall milliseconds.

    Raises:
        OSError: The disk does not take what has to be written. Nobody may be served before it does.
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
    """End identities that may have been given twice, and transactions that nobody can end.

    Where the power was lost, every identity may have been: the epoch after it was given to somebody
    else, and no log says so. Otherwise those are lost of which some log knows a later epoch.
    """
    transactions, power_lost = state.transactions, state.log_manager.power_lost
    epochs = _known_producer_epochs(state)

    def is_lost(entry: TransactionEntry) -> bool:
        return power_lost or epochs.get(entry.producer_id, -1) > entry.producer_epoch

    transactions.end_identities(is_lost, now_ms, keep_commits=not power_lost)
    abort_hanging(state, now_ms)


def _known_producer_epochs(state: LoadedParts) -> dict[int, int]:
    """The greatest epoch of each producer that any log remembers."""
    epochs: dict[int, int] = {}
    for topic in state.topics:
        for log in topic.partitions:
            for producer in log.producers():
                known = epochs.get(producer.producer_id, -1)
                epochs[producer.producer_id] = max(known, producer.producer_epoch)
    return epochs


def abort_hanging(state: LoadedParts, now_ms: int) -> None:
    """End the open transactions that the transaction coordinator does not know.

    A power loss may keep the records of a transaction and lose that it was begun. Nobody could end
    it: it would hold back readers, and become part of the next transaction of its producer. The
    marker raises the epoch: a producer that lives and sends the same records again, because it
    had no answer, would be told under its old one that they are there, and they are aborted.

    Raises:
        OSError: The disk does not take a marker.
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
                    "%s: the open transaction of producer %d is known to nobody and is aborted",
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
                    logger.error("%s: it cannot be aborted: %s", partition, error)


def _mend_groups(state: LoadedParts, now_ms: int) -> None:
    """Let no generation come twice, and no offset stand behind the end of its log.

    A consumer that does not name leader epochs would skip what is written up to there later. One
    that does is told that the log lost its end.
    """
    power_lost, topics = state.log_manager.power_lost, state.topics
    admin = state.groups.admin
    if power_lost:
        admin.skip_generations(now_ms)

    def end_of(partition: TopicPartition) -> int | None:
        log = topics.partition(partition.topic, partition.partition)
        return log.log_end_offset if log is not None and (power_lost or log.cut) else None

    admin.cut_offsets(end_of, now_ms)
