"""Blocking calls, written from ``sdk/aio/produce/producer.py``; do not edit, run ``make fix``.

The calls of the blocking producer beside sending.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.aio.produce.transaction_driver import TransactionDriver
from onceflow.sdk.core.produce.batch import DeliveryHandle
from onceflow.sdk.core.produce.encoding import EncodedBatch
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    PartitionInfo,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.settings.config import ProducerConfig
from onceflow.sdk.sync.delivery import Deliveries, Delivery
from onceflow.sdk.sync.portal import Portal

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ProducerMetrics


class ProducerCalls:
    """The calls of the blocking producer beside sending."""

    _config: ProducerConfig
    _engine: ProducerEngine[Delivery]
    _transactions: TransactionDriver[Delivery]
    _portal: Portal

    def send_batch(self, topic: str, batch: EncodedBatch) -> Deliveries:
        """Hand over a finished batch that a ``BatchEncoder`` made, here or in another process.

        It follows the earlier records of its partition. Producer id, epoch and sequence are
        set when it is sent, so one batch may be handed over only once.

        Args:
            topic: Topic name.
            batch: The batch.

        Returns:
            One delivery for all its records, without their timestamps.

        Raises:
            ConfigError: There is no such partition, the bytes are not a batch, or the producer has
                interceptors, which could not see the records.
            KafkaError: As ``send``.
        """
        made = self._portal.call(lambda: self._engine.send_batch(topic, batch))
        parts = {batch.partition: [(made, 0, batch.records_count)]}
        return Deliveries(parts, [batch.partition] * batch.records_count, -1)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record handed over so far has its outcome.

        Args:
            timeout_ms: Limit; default ``delivery_timeout_ms``, within which every outcome is
                known anyway.

        Raises:
            RequestTimedOutError: The limit passed; the records stay on their way.
            KafkaError: A record failed and its delivery was not awaited.
        """
        self._portal.call(lambda: self._engine.flush(timeout_ms))

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic.

        Args:
            topic: Topic name.
        """
        state = self._portal.call(lambda: self._engine.topic(topic))
        return set(range(state.partition_count))

    def partition_infos(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic, with leaders and replicas.

        Args:
            topic: Topic name.
        """
        self._portal.call(lambda: self._engine.topic(topic))
        return self._engine.pool.metadata.partition_infos(topic)

    @property
    def identity(self) -> ProducerIdentity | None:
        """The transactional id, producer id and epoch; None without transactions."""
        return self._engine.identity

    @property
    def config(self) -> ProducerConfig:
        """The settings."""
        return self._config

    def metrics(self) -> ProducerMetrics:
        """Return the figures of this producer; cheap, from any thread, and also after ``close``."""
        from onceflow.sdk.aio.snapshots import producer_metrics  # Late: most programs never ask.

        return producer_metrics(cast("ProducerEngine[DeliveryHandle]", self._engine))

    def init_transactions(self, timeout_ms: int | None = None) -> None:
        """Take over the transactional id; the constructor has done so already.

        Calling it on a producer in use raises the epoch. An open transaction must be committed or
        aborted first, and an end without an answer must be asked for again.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            ProducerFencedError: A newer producer has the transactional id; close this one.
            InvalidProducerIdMappingError: The coordinator has forgotten the id, and another
                producer may have used it since; close this one.
            KafkaError: The coordinator refuses or does not answer.
            IllegalStateError: A transaction is open, or this producer has no transactional id.
        """
        self._portal.call(lambda: self._transactions.init(timeout_ms))

    def begin_transaction(self) -> None:
        """Open a transaction. The broker begins it with the first record or offset.

        Raises:
            ProducerFencedError: A newer producer has the transactional id; close this one.
            IllegalStateError: One is open, the last commit has no answer yet (commit again), or
                this producer has no transactional id.
        """
        self._portal.check_usable()
        if not self._transactions.begin_now():
            self._portal.call(lambda: self._transactions.begin())

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction (KIP-447).

        Args:
            offsets: Next offset to read by partition.
            group_metadata: Taken from the consumer when the records were polled.
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            KafkaError: The member was replaced, a record was lost, or a coordinator refuses:
                abort then.
        """
        self._portal.call(
            lambda: self._transactions.send_offsets(offsets, group_metadata, timeout_ms)
        )

    def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Make the transaction visible.

        A commit whose answer did not come (also one that was cancelled or interrupted) must be
        called again until its outcome is known, as with Kafka's own client. It commits if the
        request was lost, and nothing else is allowed meanwhile. ``close`` asks again, too.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            CommitOutcomeUnknownError: No answer: it may be committed or not, never half.
            RequestTimedOutError: Records were not acknowledged in time, so no commit was asked
                for. The transaction is open still: commit again, or abort.
            ProducerFencedError: A newer producer has the id. If an earlier answer to this commit
                was lost, it may be committed or not.
            InvalidProducerIdMappingError: The coordinator has forgotten the id; close this one.
            TransactionAbortedError: The coordinator had aborted it.
            KafkaError: A record of it failed; abort it.
        """
        self._portal.call(lambda: self._transactions.commit(timeout_ms))

    def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Abort the transaction: drop its records, and clear the error that broke it.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            IllegalStateError: No transaction is open, or a commit was asked for and has no answer
                yet: commit again.
            KafkaError: The coordinator could not be reached. Call it again, or begin the next
                transaction, which aborts this one first.
        """
        self._portal.call(lambda: self._transactions.abort(timeout_ms))

    def note_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that other producers write to in this transaction.

        Args:
            partitions: What producers with ``joined_identity`` wrote to.
        """
        self._portal.check_usable()
        self._transactions.note_partitions(partitions)
