"""Blocking calls, written from ``sdk/aio/admin/transactions.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject transactions.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from onceflow.sdk.model.partitions import ProducerIdentity, TopicPartition
from onceflow.sdk.sync.portal import Portal


class TransactionCalls:
    """The blocking admin client's calls of the subject transactions."""

    _async: AsyncAdmin
    _portal: Portal

    def describe_producers(
        self,
        partitions: Iterable[TopicPartition],
        *,
        node_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Return the producers that partition leaders know, with open transactions (KIP-664).

        Args:
            partitions: Which ones.
            node_id: Broker to ask about its replicas; None asks the leaders.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.describe_producers(
                partitions, node_id=node_id, timeout_ms=timeout_ms
            )
        )

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """Return the states of transactional ids (KIP-664).

        Args:
            transactional_ids: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            TransactionalIdNotFoundError: One is not known to its coordinator.
        """
        return self._portal.call(
            lambda: self._async.describe_transactions(transactional_ids, timeout_ms=timeout_ms)
        )

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return all transactional ids of the cluster (KIP-664).

        Args:
            states: Only those in these states, by Kafka's names; empty for all.
            producer_ids: Only those of these producers; empty for all.
            timeout_ms: Limit.
        """
        return self._portal.call(
            lambda: self._async.list_transactions(
                states=states, producer_ids=producer_ids, timeout_ms=timeout_ms
            )
        )

    def find_hanging_transactions(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        node_id: int | None = None,
        max_transaction_timeout_ms: int = 900_000,
        timeout_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """Find transactions that are open in partitions and that no coordinator will end.

        Readers of committed records wait behind them for ever, without an error. The rule is that
        of ``kafka-transactions.sh find-hanging`` (KIP-664): nothing was written for longer than any
        transaction may last, and the coordinator does not know the producer, or its transaction
        does not cover the partition. `abort_transaction` ends one.

        Args:
            topics: Topics to look into. Without topics and partitions, all that are not internal.
            partitions: Single partitions to look into.
            node_id: Broker to ask about its replicas; None asks the leaders of all partitions.
            max_transaction_timeout_ms: The brokers' ``transaction.max.timeout.ms``; Kafka's
                default is 15 minutes.
            timeout_ms: Limit of each question, default ``default_api_timeout_ms``.

        Returns:
            The hanging transactions, by partition. A transactional id that this user may not
            describe counts as unknown to its coordinator.

        Raises:
            UnknownTopicOrPartitionError: A topic or partition that was named does not exist.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.find_hanging_transactions(
                topics,
                partitions=partitions,
                node_id=node_id,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
                timeout_ms=timeout_ms,
            )
        )

    def abort_transaction(
        self,
        partition: TopicPartition,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        force: bool = False,
        timeout_ms: int | None = None,
    ) -> ProducerState:
        """End a hanging transaction in one partition by an abort marker (KIP-664).

        The marker bypasses the transaction coordinator. So this call asks the coordinator first and
        refuses a transaction that the coordinator will end: its producer would commit without an
        error, and without its records in this partition.

        Args:
            partition: Where the transaction hangs.
            start_offset: Where it begins there, from `find_hanging_transactions`.
            producer_id: Its producer; one of the two must be set.
            force: End it although its coordinator knows it. `fence_producers` is the safe way to
                end a live transaction.
            timeout_ms: Limit of each question, default ``default_api_timeout_ms``.

        Returns:
            The producer whose transaction was ended.

        Raises:
            IllegalStateError: There is no such open transaction, or its coordinator knows it.
            BrokerError: The leader or a coordinator refused.
        """
        return self._portal.call(
            lambda: self._async.abort_transaction(
                partition,
                start_offset=start_offset,
                producer_id=producer_id,
                force=force,
                timeout_ms=timeout_ms,
            )
        )

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, ProducerIdentity]:
        """Fence the producers of transactional ids, and abort their open transactions (KIP-664).

        Args:
            transactional_ids: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            The new identity by transactional id.

        Raises:
            BrokerError: A refusal.
        """
        return self._portal.call(
            lambda: self._async.fence_producers(transactional_ids, timeout_ms=timeout_ms)
        )
