"""AsyncAdmin: topics, groups, offsets, settings and transactions of a cluster, with asyncio.

This is the API. Whom to ask, and what is asked again, is decided by ``cluster_asker``; what the
requests look like, by the core.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Never, Self, Unpack
from uuid import UUID

from onceflow.sdk.aio.admin.cluster import ClusterCalls
from onceflow.sdk.aio.admin.offsets import GroupOffsetCalls
from onceflow.sdk.aio.admin.security import SecurityCalls
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC, ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.consume.offset_reader import OffsetReader
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin import topics as admin_topics
from onceflow.sdk.core.admin import transactions as admin_transactions
from onceflow.sdk.core.admin.arguments import (
    check_settings,
    name_list,
    new_topics,
    number_list,
    numbers_by_name,
    numbers_by_partition,
    resource,
    whole_number,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_flag,
    limit_of,
    partition_list,
    partition_of,
    refuse_positional,
)
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.errors import (
    ConfigError,
    IllegalStateError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.admin import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    ProducerState,
    ResourceType,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from onceflow.sdk.model.partitions import (
    NewTopic,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.protocol.api.admin import DeleteTopicsRequest
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.settings.keywords import AdminKeywords

PARTITIONS_ASKED_MAX = 500
"""Partitions of one question for producers, so that none is a burden to a broker."""
TOPIC_GONE_TRIES = 3
"""How often all topics are looked into anew because one of them was deleted meanwhile."""

Resource = str | ConfigResource
"""A topic's name, or any resource."""


class AsyncAdmin(GroupOffsetCalls, SecurityCalls, ClusterCalls):
    """Administers a cluster.

    Use it as ``async with AsyncAdmin(bootstrap_servers=...) as admin``. Every call takes
    ``timeout_ms`` (default ``default_api_timeout_ms``) and repeats what may succeed later until
    then. Where a call names several things and some fail, the others are done nevertheless; then
    the first failure is raised as the broker's error (a subclass of `BrokerError`) with the name
    of its item, and the further ones are its notes.
    """

    def __init__(self, *given: Never, **settings: Unpack[AdminKeywords]) -> None:
        """Make an admin client; nothing is sent before `start`.

        Args:
            **settings: Fields of `onceflow.sdk.AdminConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
        """
        refuse_positional(given)
        self._config = AdminConfig.from_settings(settings)
        self._pool = ConnectionPool(self._config)
        self._reader = OffsetReader(self._pool)
        self._asker = ClusterAsker(self._pool)

    @property
    def config(self) -> AdminConfig:
        """The settings, defaults included."""
        return self._config

    async def start(self) -> None:
        """Connect to the cluster. Calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
        """
        await self._pool.start()

    async def stop(self) -> None:
        """The same as ``close``."""
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- topics ---

    async def create_topics(
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
        by_name = new_topics(topics)
        check_flag("validate_only", validate_only)

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, UUID]:
            flow = admin_topics.create_topics(
                [by_name[name] for name in names],
                left_ms,
                validate_only=validate_only,
                target=await self._asker.controller(),
            )
            return await self._pool.run(flow, timeout_ms=left_ms)

        created = await self._asker.complete(by_name, ask, timeout_ms)
        if not validate_only:
            await self._asker.wait_visible(dict.fromkeys(created, 1))
        return created

    async def delete_topics(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with all their records.

        Args:
            topics: Topic names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, None]:
            node_id = await self._asker.controller()
            await self._pool.connect(node_id, "default")
            version = self._pool.api_version(node_id, DeleteTopicsRequest) or 0
            flow = admin_topics.delete_topics(names, left_ms, by_state=version >= 6, target=node_id)
            return await self._pool.run(flow, timeout_ms=left_ms)

        await self._asker.complete(
            name_list("topics", topics), ask, timeout_ms, final=NO_SUCH_TOPIC
        )

    async def create_partitions(
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
        totals = numbers_by_name("totals", totals, "{'orders': 6}")
        check_flag("validate_only", validate_only)

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, None]:
            flow = admin_topics.create_partitions(
                {name: totals[name] for name in names},
                left_ms,
                validate_only=validate_only,
                target=await self._asker.controller(),
            )
            return await self._pool.run(flow, timeout_ms=left_ms)

        await self._asker.complete(totals, ask, timeout_ms, final=NO_SUCH_TOPIC)
        if not validate_only:
            await self._asker.wait_visible(totals)

    async def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> list[str]:
        """Names of all topics that this client may see, in order.

        Args:
            include_internal: Also those of the broker itself, such as ``__consumer_offsets``.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        check_flag("include_internal", include_internal)
        self._asker.check(timeout_ms)
        view = await self._pool.refresh_metadata(all_topics=True, timeout_ms=timeout_ms)
        return sorted(
            name
            for name, topic in view.topics.items()
            if topic.error_code == 0 and (include_internal or not topic.is_internal)
        )

    async def describe_topics(
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

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, TopicDescription]:
            try:
                view = await self._pool.refresh_metadata(names, timeout_ms=left_ms)
            finally:
                self._pool.forget_topics(names)
            found: Outcomes[str, TopicDescription] = {}
            for name in names:
                topic = view.topics.get(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                if topic is None or code:
                    found[name] = error_for(code, f"topic {name!r}")
                    continue
                infos = tuple(view.partition_infos(name))
                found[name] = TopicDescription(name, topic.topic_id, infos, topic.is_internal)
            return found

        return await self._asker.complete(
            name_list("topics", topics), ask, timeout_ms, final=NO_SUCH_TOPIC
        )

    async def delete_records(
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
        before = numbers_by_partition("before", before)

        def flow(
            node_id: int, part: list[TopicPartition], left_ms: int
        ) -> Flow[Outcomes[TopicPartition, int]]:
            return admin_topics.delete_records(node_id, {p: before[p] for p in part}, left_ms)

        return await self._asker.ask_leaders(before, flow, timeout_ms)

    # --- settings ---

    async def describe_configs(
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
        if isinstance(resources, str | ConfigResource):
            resources = [resources]
        if isinstance(resources, bytes) or not isinstance(resources, Iterable):
            remedy = "give a list of topic names, or of ConfigResource(type, name)"
            raise ConfigError("resources", resources, remedy)
        given = {resource("resources", each): each for each in resources}

        async def ask(
            left: list[ConfigResource], left_ms: int
        ) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
            found: Outcomes[ConfigResource, dict[str, ConfigEntry]] = {}
            for target, part in (await self._by_target(left)).items():
                flow = admin_topics.describe_configs(part, target=target)
                found |= await self._pool.run(flow, timeout_ms=left_ms)
            return found

        found = await self._asker.complete(given, ask, timeout_ms, final=NO_SUCH_TOPIC)
        return {given[of]: entries for of, entries in found.items()}

    async def alter_configs(
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
        if not isinstance(changes, Mapping):
            remedy = "give a dictionary, as {'orders': {'retention.ms': '3600000'}}"
            raise ConfigError("changes", changes, remedy)
        wanted = {resource("changes", of): settings for of, settings in changes.items()}
        for of, settings in wanted.items():
            check_settings("changes", of.name, settings)
        check_flag("validate_only", validate_only)

        async def ask(left: list[ConfigResource], left_ms: int) -> Outcomes[ConfigResource, None]:
            found: Outcomes[ConfigResource, None] = {}
            for target, part in (await self._by_target(left)).items():
                flow = admin_topics.alter_configs(
                    {of: wanted[of] for of in part},
                    validate_only=validate_only,
                    target=target,
                )
                found |= await self._pool.run(flow, timeout_ms=left_ms)
            return found

        await self._asker.complete(wanted, ask, timeout_ms, final=NO_SUCH_TOPIC)

    async def _by_target(
        self, resources: Iterable[ConfigResource]
    ) -> dict[int, list[ConfigResource]]:
        """A broker's own settings are that broker's to tell; any other goes to any broker."""
        targets: dict[int, list[ConfigResource]] = {}
        for of in resources:
            own = of.type is ResourceType.BROKER and of.name.isdigit()
            node_id = int(of.name) if own else await self._asker.controller()
            targets.setdefault(node_id, []).append(of)
        return targets

    # --- groups ---

    async def list_groups(
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
        states, types = name_list("states", states), name_list("types", types)
        found = await self._asker.ask_brokers(
            lambda node_id: admin_groups.list_groups(node_id, states, types), timeout_ms
        )
        return sorted(listing for part in found for listing in part)

    async def describe_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """State and members of groups of either protocol; an unknown one is in the state Dead.

        Args:
            groups: Group names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._asker.ask_coordinators(
            name_list("groups", groups),
            CoordinatorType.GROUP,
            admin_groups.describe_group,
            timeout_ms,
        )

    async def delete_groups(self, groups: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete groups with their committed offsets.

        Args:
            groups: Names of groups without members.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            NonEmptyGroupError: One has members.
            GroupIdNotFoundError: One does not exist.
        """
        await self._asker.ask_coordinators(
            name_list("groups", groups),
            CoordinatorType.GROUP,
            admin_groups.delete_group,
            timeout_ms,
        )

    # --- producers and transactions ---

    async def describe_producers(
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
        """States of transactional ids (KIP-664).

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
        """All transactional ids of the cluster (KIP-664).

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
        names = None if topics is None else name_list("topics", topics)
        single = None if partitions is None else partition_list(partitions)
        node_id = None if node_id is None else whole_number("node_id", node_id)
        longest_ms = whole_number("max_transaction_timeout_ms", max_transaction_timeout_ms)
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

    async def _look_into(
        self,
        names: Iterable[str] | None,
        single: Iterable[TopicPartition] | None,
        node_id: int | None,
        timeout_ms: int | None,
    ) -> list[TopicPartition]:
        """The partitions that a search names, without those that a broker has no replica of."""
        if names is None and single is None:
            names = await self.list_topics(timeout_ms=timeout_ms)
        found = set(single or ())
        described = await self.describe_topics(names or (), timeout_ms=timeout_ms)
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
            producers = await self.describe_producers(
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
        listed = await self.list_transactions(producer_ids=producer_ids, timeout_ms=timeout_ms)
        found: list[TransactionDescription] = []
        for listing in listed:
            name = listing.transactional_id
            with contextlib.suppress(TransactionalIdNotFoundError):  # It has expired meanwhile.
                found += (await self.describe_transactions([name], timeout_ms=timeout_ms)).values()
        return found

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
        where = partition_of(partition, "partition")
        if start_offset is not None:
            start_offset = whole_number("start_offset", start_offset)
        if producer_id is not None:
            producer_id = whole_number("producer_id", producer_id)
        check_flag("force", force)
        limit_of(timeout_ms, 0)
        if start_offset is None and producer_id is None:
            raise IllegalStateError("abort_transaction() needs start_offset or producer_id")
        hanging = await self._open_in(where, start_offset, producer_id, timeout_ms)
        if not force:
            known = await self._known_to_coordinators([hanging.producer.producer_id], timeout_ms)
            live = admin_transactions.coordinated(hanging, known)
            if live is not None:
                raise IllegalStateError(
                    f"the transaction in {where} is not hanging: its coordinator knows it as "
                    f"{live.transactional_id!r}, {live.state}. Let its producer end it, call "
                    f"fence_producers([{live.transactional_id!r}]), or give force=True, which "
                    "takes its records here away from a later commit"
                )
            # Its end may have come before the coordinator was asked, and the next one begun.
            start = hanging.producer.transaction_start_offset
            again = await self._open_in(where, start, hanging.producer.producer_id, timeout_ms)
            if again.producer.producer_epoch != hanging.producer.producer_epoch:
                raise IllegalStateError(f"the transaction in {where} has ended meanwhile")

        def flow(
            leader: int, _: list[TopicPartition], __: int
        ) -> Flow[Outcomes[TopicPartition, None]]:
            return admin_transactions.write_abort_marker(leader, where, hanging.producer)

        await self._asker.ask_leaders([where], flow, timeout_ms)
        return hanging.producer

    async def _open_in(
        self,
        partition: TopicPartition,
        start_offset: int | None,
        producer_id: int | None,
        timeout_ms: int | None,
    ) -> HangingTransaction:
        """The open transaction that begins there, or is of that producer."""
        producers = await self.describe_producers([partition], timeout_ms=timeout_ms)
        for producer in producers[partition]:
            if (
                producer.transaction_start_offset is not None
                and start_offset in (None, producer.transaction_start_offset)
                and producer_id in (None, producer.producer_id)
            ):
                return HangingTransaction(partition, producer)
        raise IllegalStateError(f"no open transaction in {partition} matches")

    async def fence_producers(
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
        limit_ms = limit_of(timeout_ms, self._config.default_api_timeout_ms)
        return await self._asker.ask_coordinators(
            name_list("transactional_ids", transactional_ids),
            CoordinatorType.TRANSACTION,
            lambda key: admin_transactions.fence_producer(key, limit_ms, self._pool.backoff),
            timeout_ms,
        )

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        self._asker.check(timeout_ms)
        return await self._pool.run(admin_topics.describe_cluster(), timeout_ms=timeout_ms)
