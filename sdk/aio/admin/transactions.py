"""AsyncAdmin's calls for producers and transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceflow.sdk.aio.admin.hanging import HangingTransactions
from onceflow.sdk.aio.admin.topics import AsyncTopicCalls
from onceflow.sdk.core.admin import transactions as admin_transactions
from onceflow.sdk.core.admin.arguments import (
    name_list,
    number_list,
    whole_number,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_flag,
    limit_of,
    partition_list,
    partition_of,
)
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.errors import IllegalStateError
from onceflow.sdk.model.admin import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from onceflow.sdk.model.partitions import (
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType


class AsyncTransactionCalls(AsyncTopicCalls):
    """Producers and transactions."""

    async def describe_producers(
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
        wanted = partition_list(partitions)
        if node_id is None:

            def flow(
                leader: int, part: list[TopicPartition], _: int
            ) -> Flow[Outcomes[TopicPartition, list[ProducerState]]]:
                return admin_transactions.describe_producers(leader, part)

            return await self._asker.ask_leaders(wanted, flow, timeout_ms)
        replica = whole_number("node_id", node_id)

        async def ask(
            left: list[TopicPartition], left_ms: int
        ) -> Outcomes[TopicPartition, list[ProducerState]]:
            flow = admin_transactions.describe_producers(replica, left)
            return await self._pool.run(flow, timeout_ms=left_ms)

        return await self._asker.complete(wanted, ask, timeout_ms)

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """Return the states of transactional ids (KIP-664).

        Args:
            transactional_ids: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            TransactionalIdNotFoundError: One is not known to its coordinator.
        """
        return await self._asker.ask_coordinators(
            name_list("transactional_ids", transactional_ids),
            CoordinatorType.TRANSACTION,
            admin_transactions.describe_transaction,
            timeout_ms,
        )

    async def list_transactions(
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
        states = name_list("states", states)
        producer_ids = number_list("producer_ids", producer_ids)
        found = await self._asker.ask_brokers(
            lambda node_id: admin_transactions.list_transactions(node_id, states, producer_ids),
            timeout_ms,
        )
        return sorted(listing for part in found for listing in part)

    async def find_hanging_transactions(
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
        names = None if topics is None else name_list("topics", topics)
        single = None if partitions is None else partition_list(partitions)
        node_id = None if node_id is None else whole_number("node_id", node_id)
        longest_ms = whole_number("max_transaction_timeout_ms", max_transaction_timeout_ms)
        return await HangingTransactions(self).search(
            names, single, node_id, longest_ms, timeout_ms
        )

    async def abort_transaction(
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
        where = partition_of(partition, "partition")
        if start_offset is not None:
            start_offset = whole_number("start_offset", start_offset)
        if producer_id is not None:
            producer_id = whole_number("producer_id", producer_id)
        check_flag("force", force)
        limit_of(timeout_ms, 0)
        if start_offset is None and producer_id is None:
            raise IllegalStateError("abort_transaction() needs start_offset or producer_id")
        hanging = await HangingTransactions(self).to_abort(
            where, start_offset, producer_id, force=force, timeout_ms=timeout_ms
        )

        def flow(
            leader: int, _: list[TopicPartition], __: int
        ) -> Flow[Outcomes[TopicPartition, None]]:
            return admin_transactions.write_abort_marker(leader, where, hanging.producer)

        await self._asker.ask_leaders([where], flow, timeout_ms)
        return hanging.producer

    async def fence_producers(
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
        limit_ms = limit_of(timeout_ms, self._config.default_api_timeout_ms)
        return await self._asker.ask_coordinators(
            name_list("transactional_ids", transactional_ids),
            CoordinatorType.TRANSACTION,
            lambda key: admin_transactions.fence_producer(key, limit_ms, self._pool.backoff),
            timeout_ms,
        )
