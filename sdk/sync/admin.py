"""Admin: topics, groups, offsets, settings and transactions of a cluster, with blocking calls.

A thin face over the asyncio admin client, which runs in one background loop per client. Nothing is
decided here but how a call crosses into that loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Never, Self, Unpack
from uuid import UUID

from onceflow.sdk.aio.admin.admin import AsyncAdmin, Resource
from onceflow.sdk.core.arguments import refuse_positional
from onceflow.sdk.model.admin import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    ProducerState,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from onceflow.sdk.model.partitions import (
    NewTopic,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.settings.keywords import AdminKeywords
from onceflow.sdk.sync.admin_cluster import ClusterCalls
from onceflow.sdk.sync.admin_offsets import GroupOffsetCalls
from onceflow.sdk.sync.admin_security import SecurityCalls
from onceflow.sdk.sync.portal import Portal

CLOSE_LIMIT_S: Final = 5.0
"""Longest wait for the connections to close."""


class Admin(GroupOffsetCalls, SecurityCalls, ClusterCalls):
    """Administers a cluster; see `onceflow.sdk.AsyncAdmin` for the rules.

    Use it as ``with Admin(bootstrap_servers=...) as admin``. Calls may come from any thread.
    """

    def __init__(self, *given: Never, **settings: Unpack[AdminKeywords]) -> None:
        """Make an admin client and connect it.

        Args:
            **settings: Fields of `onceflow.sdk.AdminConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
        """
        refuse_positional(given)
        self._async = AsyncAdmin(**settings)
        self._portal = Portal("admin client", self._async.close)
        try:
            self._portal.call(self._async.start)
        except BaseException:
            self._portal.close()
            raise

    @property
    def config(self) -> AdminConfig:
        """The settings, defaults included."""
        return self._async.config

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        if self._portal.is_closed or self._portal.is_foreign:
            # Interrupted before, or a forked child: the thread and the sockets are the parent's.
            self._portal.close()
            return
        self._portal.check_thread()
        try:
            self._portal.call(self._async.close, timeout_s=CLOSE_LIMIT_S)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- topics ---

    def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, UUID]:
        """Create topics and wait until the brokers show them.

        Args:
            topics: What to create; a name alone takes the broker's defaults.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Returns:
            Id by topic.

        Raises:
            TopicAlreadyExistsError: One exists.
            InvalidTopicError: A name is not allowed.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.create_topics(
                topics, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_topics(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with all their records.

        Args:
            topics: Topic names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """
        self._portal.call(lambda: self._async.delete_topics(topics, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise topics to new totals of partitions, and wait until the brokers show them.

        Mind that keys go to other partitions afterwards.

        Args:
            totals: New number of partitions by topic; never lower than before.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            InvalidPartitionsError: A total is not above the present one.
            BrokerError: Another refusal.
        """
        self._portal.call(
            lambda: self._async.create_partitions(
                totals, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> list[str]:
        """Names of all topics that this client may see, in order.

        Args:
            include_internal: Also those of the broker itself, such as ``__consumer_offsets``.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.list_topics(
                include_internal=include_internal, timeout_ms=timeout_ms
            )
        )

    def describe_topics(
        self, topics: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TopicDescription]:
        """Partitions, leaders and id of topics.

        Args:
            topics: Topic names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """
        return self._portal.call(lambda: self._async.describe_topics(topics, timeout_ms=timeout_ms))

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the beginnings of partitions.

        Args:
            before: First offset to keep, by partition; -1 deletes up to the high watermark.
            timeout_ms: Limit.

        Returns:
            Where each log starts now.

        Raises:
            OffsetOutOfRangeError: An offset is beyond the high watermark.
            BrokerError: Another refusal.
        """
        return self._portal.call(lambda: self._async.delete_records(before, timeout_ms=timeout_ms))

    # --- settings ---

    def describe_configs(
        self, resources: Iterable[Resource], *, timeout_ms: int | None = None
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        """All settings of topics, brokers or groups.

        Args:
            resources: Topic names, or resources of any type.
            timeout_ms: Limit.

        Returns:
            Settings by name, by resource as it was given.

        Raises:
            UnknownTopicOrPartitionError: A topic does not exist.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.describe_configs(resources, timeout_ms=timeout_ms)
        )

    def alter_configs(
        self,
        changes: Mapping[Resource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change single settings and leave the others as they are (KIP-339).

        Args:
            changes: New values by setting, by topic name or resource; None returns to the
                default.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            InvalidConfigError: A setting or value does not exist.
            BrokerError: Another refusal.
        """
        self._portal.call(
            lambda: self._async.alter_configs(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    # --- groups ---

    def list_groups(
        self,
        *,
        states: Collection[str] = (),
        types: Collection[str] = (),
        timeout_ms: int | None = None,
    ) -> list[GroupListing]:
        """All groups of the cluster.

        Args:
            states: Only groups in these states, by Kafka's names; empty for all.
            types: Only groups of these types ("classic", "consumer"); empty for all.
            timeout_ms: Limit.
        """
        return self._portal.call(
            lambda: self._async.list_groups(states=states, types=types, timeout_ms=timeout_ms)
        )

    def describe_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """State and members of groups of either protocol; an unknown one is in the state Dead.

        Args:
            groups: Group names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.describe_groups(groups, timeout_ms=timeout_ms))

    def delete_groups(self, groups: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete groups with their committed offsets.

        Args:
            groups: Names of groups without members.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            NonEmptyGroupError: One has members.
            GroupIdNotFoundError: One does not exist.
        """
        self._portal.call(lambda: self._async.delete_groups(groups, timeout_ms=timeout_ms))

    # --- producers and transactions ---

    def describe_producers(
        self,
        partitions: Iterable[TopicPartition],
        *,
        node_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Producers that partitions' leaders know, with their open transactions (KIP-664).

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
        """States of transactional ids (KIP-664).

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
        """All transactional ids of the cluster (KIP-664).

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
        """Transactions that are open in partitions and that no coordinator is going to end.

        Readers of committed records wait at them for ever, without an error. The rule is that of
        ``kafka-transactions.sh find-hanging`` (KIP-664): nothing was written for longer than any
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
            What hangs, by partition. A transactional id that this user may not describe looks as
            if its coordinator did not know it.

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

        The marker goes past the transaction coordinator. So the coordinator is asked first, and a
        transaction that it is going to end itself is refused: its producer would commit without an
        error, and without what it wrote here.

        Args:
            partition: Where the transaction hangs.
            start_offset: Where it begins there, as `find_hanging_transactions` tells.
            producer_id: Whose it is; one of the two must be given.
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
        """Fence the producers of transactional ids, and abort what they left open (KIP-664).

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

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.describe_cluster(timeout_ms=timeout_ms))
