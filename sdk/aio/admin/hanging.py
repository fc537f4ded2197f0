"""Transactions that hang: which ones do, and which one a user may abort (KIP-664).

The rule is that of ``kafka-transactions.sh find-hanging``. This module gathers what leaders and
coordinators know; ``core.admin.transactions`` compares the two.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from onceflow.sdk.core.admin import transactions as admin_transactions
from onceflow.sdk.errors import (
    IllegalStateError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.admin import HangingTransaction, TransactionDescription
from onceflow.sdk.model.partitions import TopicPartition

if TYPE_CHECKING:
    from onceflow.sdk.aio.admin.transactions import AsyncTransactionCalls

PARTITIONS_ASKED_MAX: Final = 500
"""Most partitions in one DescribeProducers request, to bound the work of a broker."""
TOPIC_GONE_TRIES: Final = 3
"""How often a search of all topics is repeated when a topic is deleted meanwhile."""


class HangingTransactions:
    """Looks for transactions that no coordinator is going to end.

    Args:
        admin: Asks the brokers.
    """

    def __init__(self, admin: AsyncTransactionCalls) -> None:
        self._admin = admin

    async def search(
        self,
        names: Iterable[str] | None,
        single: Iterable[TopicPartition] | None,
        node_id: int | None,
        longest_ms: int,
        timeout_ms: int | None,
    ) -> list[HangingTransaction]:
        """Find them; see ``AsyncAdmin.find_hanging_transactions``, which checks the arguments."""
        is_everywhere = names is None and single is None
        for tries_left in reversed(range(TOPIC_GONE_TRIES)):
            try:
                wanted = await self._look_into(names, single, node_id, timeout_ms)
                candidates = await self._open_for_long(wanted, node_id, longest_ms, timeout_ms)
                break
            except UnknownTopicOrPartitionError:
                if not is_everywhere or not tries_left:
                    raise
        known = await self._known_to_coordinators(
            {candidate.producer.producer_id for candidate in candidates}, timeout_ms
        )
        return sorted(c for c in candidates if admin_transactions.coordinated(c, known) is None)

    async def to_abort(
        self,
        partition: TopicPartition,
        start_offset: int | None,
        producer_id: int | None,
        *,
        force: bool,
        timeout_ms: int | None,
    ) -> HangingTransaction:
        """Find the open transaction that a user wants to abort, and refuse a live one.

        Args:
            partition: Where it is open.
            start_offset: Where it begins there.
            producer_id: Whose it is; one of the two is given.
            force: Skip the question to the coordinator.
            timeout_ms: Limit of each question.

        Raises:
            IllegalStateError: No such transaction is open, or its coordinator knows it.
        """
        hanging = await self._open_in(partition, start_offset, producer_id, timeout_ms)
        if not force:
            known = await self._known_to_coordinators([hanging.producer.producer_id], timeout_ms)
            live = admin_transactions.coordinated(hanging, known)
            if live is not None:
                raise IllegalStateError(
                    f"the transaction in {partition} is not hanging: its coordinator knows it as "
                    f"{live.transactional_id!r}, {live.state}. Let its producer end it, call "
                    f"fence_producers([{live.transactional_id!r}]), or give force=True, which "
                    "takes its records here away from a later commit"
                )
            # Its end may have come before the coordinator was asked, and the next one begun.
            start = hanging.producer.transaction_start_offset
            again = await self._open_in(partition, start, hanging.producer.producer_id, timeout_ms)
            if again.producer.producer_epoch != hanging.producer.producer_epoch:
                raise IllegalStateError(f"the transaction in {partition} has ended meanwhile")
        return hanging

    async def _look_into(
        self,
        names: Iterable[str] | None,
        single: Iterable[TopicPartition] | None,
        node_id: int | None,
        timeout_ms: int | None,
    ) -> list[TopicPartition]:
        """The partitions that a search names, without those that a broker has no replica of."""
        if names is None and single is None:
            names = await self._admin.list_topics(timeout_ms=timeout_ms)
        found = set(single or ())
        described = await self._admin.describe_topics(names or (), timeout_ms=timeout_ms)
        found.update(
            TopicPartition(topic.name, info.partition)
            for topic in described.values()
            for info in topic.partitions
            if node_id is None or node_id in info.replicas
        )
        return sorted(found)

    async def _open_for_long(
        self,
        partitions: Sequence[TopicPartition],
        node_id: int | None,
        longest_ms: int,
        timeout_ms: int | None,
    ) -> list[HangingTransaction]:
        found: list[HangingTransaction] = []
        for begin in range(0, len(partitions), PARTITIONS_ASKED_MAX):
            producers = await self._admin.describe_producers(
                partitions[begin : begin + PARTITIONS_ASKED_MAX],
                node_id=node_id,
                timeout_ms=timeout_ms,
            )
            before_ms = int(time.time() * 1000) - longest_ms
            found += admin_transactions.open_for_long(producers, before_ms)
        return found

    async def _known_to_coordinators(
        self, producer_ids: Collection[int], timeout_ms: int | None
    ) -> list[TransactionDescription]:
        """The transactions of some producers, as their coordinators know them."""
        if not producer_ids:
            return []  # An empty list would ask for all of the cluster.
        listed = await self._admin.list_transactions(
            producer_ids=producer_ids, timeout_ms=timeout_ms
        )
        found: list[TransactionDescription] = []
        for listing in listed:
            name = listing.transactional_id
            with contextlib.suppress(TransactionalIdNotFoundError):  # It has expired meanwhile.
                found += (
                    await self._admin.describe_transactions([name], timeout_ms=timeout_ms)
                ).values()
        return found

    async def _open_in(
        self,
        partition: TopicPartition,
        start_offset: int | None,
        producer_id: int | None,
        timeout_ms: int | None,
    ) -> HangingTransaction:
        """The open transaction that begins there, or is of that producer."""
        producers = await self._admin.describe_producers([partition], timeout_ms=timeout_ms)
        for producer in producers[partition]:
            if (
                producer.transaction_start_offset is not None
                and start_offset in (None, producer.transaction_start_offset)
                and producer_id in (None, producer.producer_id)
            ):
                return HangingTransaction(partition, producer)
        raise IllegalStateError(f"no open transaction in {partition} matches")
