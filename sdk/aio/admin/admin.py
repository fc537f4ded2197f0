"""AsyncAdmin: topics, groups, offsets, settings and transactions of a cluster, with asyncio.

This module is the API. ``cluster_asker`` decides which broker to ask and what to repeat; the core
makes the requests.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, Never, Self, Unpack
from uuid import UUID

from onceflow.sdk.aio.admin.hanging import HangingTransactions
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC, ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.consume.offset_reader import OffsetReader
from onceflow.sdk.core.admin import cluster as admin_cluster
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin import security as admin_security
from onceflow.sdk.core.admin import topics as admin_topics
from onceflow.sdk.core.admin import transactions as admin_transactions
from onceflow.sdk.core.admin.arguments import (
    check_settings,
    folders_by_partition,
    instances,
    isolation_of,
    name_list,
    new_topics,
    number_list,
    numbers_by_name,
    numbers_by_partition,
    replicas_by_partition,
    resource,
    times_or_words,
    whole_number,
)
from onceflow.sdk.core.admin.offset_resets import Reset
from onceflow.sdk.core.admin.security_arguments import (
    check_deletion,
    check_rule,
    check_upsertion,
    quota_changes,
    quota_components,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_choice,
    check_flag,
    check_text,
    limit_of,
    offsets_by_partition,
    partition_list,
    partition_of,
    refuse_positional,
)
from onceflow.sdk.core.connection.handshake import SOFTWARE_NAME
from onceflow.sdk.core.flow import Coordinator, Flow
from onceflow.sdk.errors import (
    ConfigError,
    IllegalStateError,
    UnknownMemberIdError,
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
from onceflow.sdk.model.admin_cluster import (
    AclBinding,
    AclFilter,
    AnyName,
    ClientQuota,
    FeatureMetadata,
    LogDirDescription,
    OffsetReset,
    PartitionReassignment,
    QuorumDescription,
    ScramDeletion,
    ScramUpsertion,
)
from onceflow.sdk.model.partitions import (
    IsolationLevel,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.protocol.api.admin import DeleteTopicsRequest
from onceflow.sdk.protocol.api.admin_cluster import UpgradeType
from onceflow.sdk.protocol.api.admin_replicas import ElectionType
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.settings.keywords import AdminKeywords

OFFSET_SPECS: Final = {"latest": -1, "earliest": -2, "max_timestamp": -3}
"""Words for ListOffsets besides timestamps (KIP-734 for the last one)."""
SALT_BYTES: Final = 16
UPGRADES: Final = {
    "upgrade": UpgradeType.UPGRADE,
    "safe_downgrade": UpgradeType.SAFE_DOWNGRADE,
    "unsafe_downgrade": UpgradeType.UNSAFE_DOWNGRADE,
}
ELECTIONS: Final = {"preferred": ElectionType.PREFERRED, "unclean": ElectionType.UNCLEAN}

Resource = str | ConfigResource
"""A topic's name, or any resource."""


class AsyncAdmin:
    """Administers a cluster.

    Use it as ``async with AsyncAdmin(bootstrap_servers=...) as admin``. Every call takes
    ``timeout_ms`` (default ``default_api_timeout_ms``) and retries retriable errors until then. If
    a call is about several items and some fail, the others are still done; then the first failure
    is raised as the broker's error (a subclass of `BrokerError`) with the name of its item, and the
    other failures are its notes.
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

        Afterwards records with a key may go to another partition than before.

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
        """Return the names of all topics that this client may see, sorted.

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
        """Return partitions, leaders and id of topics.

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
        """Delete records from the start of partitions.

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
        """Return all settings of topics, brokers or groups.

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
            remedy = "must be a list of topic names, or of ConfigResource(type, name)"
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
        """Change some settings and leave the others unchanged (KIP-339).

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
        """Group resources by the broker to ask: a broker's settings by itself, others by any."""
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
        """Return all groups of the cluster.

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
        """Return state and members of groups of both protocols; an unknown group is Dead.

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

    # --- offsets: of logs, and of groups ---

    async def list_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group.

        Args:
            group: Group name.
            partitions: Which ones; None for all that have one.
            require_stable: Wait for transactions that are about to commit offsets (KIP-447).
            timeout_ms: Limit.

        Returns:
            Offsets by partition; partitions without one are left out.
        """
        check_text("group", group)
        wanted = None if partitions is None else partition_list(partitions)
        check_flag("require_stable", require_stable)
        self._asker.check(timeout_ms)
        found = await self._reader.committed(
            group, wanted, require_stable=require_stable, timeout_ms=timeout_ms
        )
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Store offsets for a group that has no members.

        Args:
            group: Group name.
            offsets: Offset of the next record by partition.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownMemberIdError: The group has members.
            BrokerError: Another refusal.
        """
        check_text("group", group)
        wanted = offsets_by_partition(offsets)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, None]:
            flow = admin_groups.alter_group_offsets(group, {p: wanted[p] for p in left})
            return await self._pool.run(flow, timeout_ms=left_ms)

        coordinator = Coordinator(group, CoordinatorType.GROUP)
        await self._asker.complete(
            wanted, ask, timeout_ms, final=NO_SUCH_TOPIC, coordinator=lambda _: coordinator
        )

    async def list_offsets(
        self,
        targets: Mapping[TopicPartition, str | int],
        *,
        isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return offsets of partitions by time.

        Args:
            targets: "earliest", "latest", "max_timestamp", or milliseconds since 1970, by
                partition.
            isolation_level: Whether "latest" is the high watermark (read_uncommitted, the
                default here) or the last stable offset.
            timeout_ms: Limit.

        Returns:
            Offset by partition; -1 where no record is that late.

        Raises:
            ConfigError: A word is unknown, or the isolation level is.
            BrokerError: A leader refused.
        """
        level = isolation_of(isolation_level)
        wanted = times_or_words(targets, OFFSET_SPECS)
        self._asker.check(timeout_ms)
        found = await self._reader.list_offsets(wanted, level, timeout_ms)
        return {
            partition: OffsetAndTimestamp(answer.offset, answer.timestamp_ms, answer.leader_epoch)
            for partition, answer in found.items()
        }

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete committed offsets of a group, of partitions that it does not read (KIP-496).

        Args:
            group: Group name.
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            GroupSubscribedToTopicError: A member of the group reads the topic.
            GroupIdNotFoundError: There is no such group.
        """
        check_text("group", group)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, None]:
            flow = admin_groups.delete_group_offsets(group, left)
            return await self._pool.run(flow, timeout_ms=left_ms)

        coordinator = Coordinator(group, CoordinatorType.GROUP)
        await self._asker.complete(
            dict.fromkeys(partition_list(partitions)),
            ask,
            timeout_ms,
            final=NO_SUCH_TOPIC,
            coordinator=lambda _: coordinator,
        )

    async def reset_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        to: str | int | None = None,
        to_time_ms: int | None = None,
        shift_by: int | None = None,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetReset]:
        """Change the committed offsets of a group that has no members.

        Set exactly one of ``to``, ``to_time_ms`` and ``shift_by``. Offsets outside of a log become
        its start or its end.

        Args:
            group: Group name.
            partitions: Which ones; None for all that have a committed offset.
            to: "earliest", "latest", or an offset.
            to_time_ms: First record at or after this time, in milliseconds since 1970; the end
                where there is none.
            shift_by: Number of offsets to go forward, or back if negative.
            dry_run: Only return the plan; fails where the reset would fail.
            timeout_ms: Limit of each step.

        Returns:
            The plan, which is carried out unless ``dry_run``.

        Raises:
            ConfigError: Not exactly one target is set, a word is unknown, a time is negative, or no
                partitions are named and the group has committed nothing.
            OffsetOutOfRangeError: ``shift_by`` for a partition without a committed offset.
            UnknownMemberIdError: The group has members.
        """
        check_text("group", group)
        check_flag("dry_run", dry_run)
        reset = Reset(group, to, to_time_ms, shift_by)
        given = None if partitions is None else partition_list(partitions)
        committed = await self.list_group_offsets(group, given, timeout_ms=timeout_ms)
        wanted = reset.wanted(given, committed)
        first = await self.list_offsets(dict.fromkeys(wanted, "earliest"), timeout_ms=timeout_ms)
        last = await self.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=timeout_ms)
        at_time: dict[TopicPartition, OffsetAndTimestamp] = {}
        if to_time_ms is not None:
            times = dict.fromkeys(wanted, to_time_ms)
            at_time = await self.list_offsets(times, timeout_ms=timeout_ms)
        plan = reset.plan(wanted, committed, first, last, at_time)
        if dry_run:
            await self._refuse_members(group, timeout_ms)
        elif plan:
            offsets = {partition: line.new for partition, line in plan.items()}
            await self.alter_group_offsets(group, offsets, timeout_ms=timeout_ms)
        return plan

    async def _refuse_members(self, group: str, timeout_ms: int | None) -> None:
        """Raise for a group with members, as the broker does when its offsets are altered."""
        found = await self._asker.ask_coordinators(
            [group], CoordinatorType.GROUP, admin_groups.describe_group, timeout_ms
        )
        if found[group].members:
            raise UnknownMemberIdError(f"group {group!r} has members; stop them first")

    # --- producers and transactions ---

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

    # --- ACLs, users and quotas ---

    async def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Return the ACLs that a filter matches; all without a filter.

        Args:
            wanted: The filter; None for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        asked = AclFilter() if wanted is None else wanted
        if not isinstance(asked, AclFilter):
            raise ConfigError("wanted", wanted, "must be an AclFilter, or None for all rules")
        check_rule("wanted", asked)
        return await self._asker.ask_controller_once(
            lambda _, target: admin_security.describe_acls(asked, target), timeout_ms
        )

    async def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout_ms: int | None = None
    ) -> None:
        """Add ACLs; existing ones are not an error.

        Args:
            bindings: The ACLs to add.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: An ACL has ANY where one thing must be named.
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        check = partial(check_rule, "bindings")
        wanted = instances("bindings", bindings, AclBinding, check)
        await self._asker.ask_controller(
            wanted, lambda left, _, target: admin_security.create_acls(left, target), timeout_ms
        )

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout_ms: int | None = None
    ) -> dict[AclFilter, list[AclBinding]]:
        """Delete every ACL that one of the filters matches, and return what was deleted.

        Args:
            filters: Each deletes every ACL that it matches.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        return await self._asker.ask_controller(
            instances("filters", filters, AclFilter, partial(check_rule, "filters")),
            lambda left, _, target: admin_security.delete_acls(left, target),
            timeout_ms,
        )

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of users with SCRAM passwords (KIP-554).

        Args:
            users: Which ones; None for all.
            timeout_ms: Limit.

        Raises:
            ResourceNotFoundError: One has no password.
        """
        if users is None:
            found = await self._asker.ask_controller_once(
                lambda _, target: admin_security.describe_scram_users(None, target), timeout_ms
            )
            return {user: infos for user, infos in found.items() if isinstance(infos, dict)}
        return await self._asker.ask_controller(
            name_list("users", users),
            lambda left, _, target: admin_security.describe_scram_users(left, target),
            timeout_ms,
        )

    async def alter_user_scram_credentials(
        self,
        upsertions: Sequence[ScramUpsertion] = (),
        deletions: Sequence[ScramDeletion] = (),
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set and delete SCRAM passwords of users (KIP-554).

        Args:
            upsertions: Passwords to set, by user and mechanism.
            deletions: Mechanisms to take from users.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A mechanism, a number of iterations or a password that cannot work.
            ResourceNotFoundError: A password to remove is not there.
            BrokerError: Another refusal.
        """
        removed = instances("deletions", deletions, ScramDeletion, check_deletion)
        salted = [
            wish._replace(salt=secrets.token_bytes(SALT_BYTES)) if wish.salt is None else wish
            for wish in instances(
                "upsertions", upsertions, ScramUpsertion, check_upsertion, is_secret=True
            )
        ]
        users = [wish.user for wish in salted] + [deletion.user for deletion in removed]
        await self._asker.ask_controller(
            dict.fromkeys(users),
            lambda left, _, target: admin_security.alter_scram_users(
                [wish for wish in salted if wish.user in left],
                [deletion for deletion in removed if deletion.user in left],
                target,
            ),
            timeout_ms,
        )

    async def describe_client_quotas(
        self,
        components: Mapping[str, str | AnyName | None] | None = None,
        *,
        strict: bool = False,
        timeout_ms: int | None = None,
    ) -> list[ClientQuota]:
        """Quotas of entities (KIP-546).

        Args:
            components: What parts of an entity must be, by "user", "client-id" or "ip": a name,
                None for the default, or `AnyName.ANY`; all entities without any.
            strict: Leave out entities that have other parts too.
            timeout_ms: Limit.

        Raises:
            ConfigError: There is no such type of entity.
            BrokerError: A refusal.
        """
        wanted = quota_components(components)
        check_flag("strict", strict)
        return await self._asker.ask_controller_once(
            lambda _, target: admin_security.describe_quotas(wanted, strict, target), timeout_ms
        )

    async def alter_client_quotas(
        self,
        changes: Iterable[tuple[Mapping[str, str | None], Mapping[str, float | None]]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set quotas of entities (KIP-546).

        Args:
            changes: Pairs of an entity, as in `ClientQuota.entity`, and its new quotas by Kafka's
                name; None removes one.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            ConfigError: There is no such type of entity.
            InvalidRequestError: A quota or value does not exist.
        """
        wanted = quota_changes(changes)
        check_flag("validate_only", validate_only)
        await self._asker.ask_controller(
            wanted,
            lambda left, _, target: admin_security.alter_quotas(
                {entity: wanted[entity] for entity in left}, validate_only, target
            ),
            timeout_ms,
        )

    # --- replicas, folders, features, controllers ---

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        self._asker.check(timeout_ms)
        return await self._pool.run(admin_topics.describe_cluster(), timeout_ms=timeout_ms)

    async def list_config_resources(
        self, types: Collection[ResourceType] = (), *, timeout_ms: int | None = None
    ) -> list[ConfigResource]:
        """Return the resources that have settings (KIP-1142), of some types or of all.

        Args:
            types: Kinds of resources; empty for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        wanted = instances("types", types, ResourceType)
        found = await self._asker.ask_controller_once(
            lambda _, target: admin_cluster.list_config_resources(wanted, target), timeout_ms
        )
        return sorted(found)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return log folders of brokers, with sizes of replicas and free space (KIP-113).

        Args:
            brokers: Node ids; None for all.
            timeout_ms: Limit.

        Returns:
            Folders by path, by node id.
        """
        asked = None if brokers is None else number_list("brokers", brokers)
        self._asker.check(timeout_ms)
        if asked is None:
            view = await self._pool.refresh_metadata((), timeout_ms=timeout_ms)
            asked = list(view.nodes)

        async def ask(left: list[int], left_ms: int) -> Outcomes[int, dict[str, LogDirDescription]]:
            found: Outcomes[int, dict[str, LogDirDescription]] = {}
            for node_id in left:
                flow = admin_cluster.describe_log_dirs(node_id)
                found[node_id] = await self._pool.run(flow, timeout_ms=left_ms)
            return found

        return await self._asker.complete(asked, ask, timeout_ms)

    async def alter_replica_log_dirs(
        self,
        broker: int,
        folders: Mapping[TopicPartition, str],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Move replicas of a broker to other log folders of the same broker (KIP-113).

        Args:
            broker: Node id.
            folders: Path by partition, as `describe_log_dirs` names them.
            timeout_ms: Limit.

        Raises:
            LogDirNotFoundError: There is no such folder.
            BrokerError: Another refusal.
        """
        broker = whole_number("broker", broker)
        wanted = folders_by_partition(folders)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, None]:
            flow = admin_cluster.alter_log_dirs(broker, {p: wanted[p] for p in left})
            return await self._pool.run(flow, timeout_ms=left_ms)

        await self._asker.complete(wanted, ask, timeout_ms, final=NO_SUCH_TOPIC)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election_type: Literal["preferred", "unclean"] = "preferred",
        timeout_ms: int | None = None,
    ) -> None:
        """Elect leaders (KIP-460); a replica that leads already is not an error.

        Args:
            partitions: Which ones; None for all that need it.
            election_type: The preferred replica, or with loss of records any that is alive.
            timeout_ms: Limit.

        Raises:
            ConfigError: The election type is unknown.
            PreferredLeaderNotAvailableError: A preferred replica is not alive.
            BrokerError: Another refusal.
        """
        check_choice("election_type", election_type, ELECTIONS)
        kind = ELECTIONS[election_type]
        if partitions is None:
            found = await self._asker.ask_controller_once(
                lambda left_ms, target: admin_cluster.elect_leaders(None, kind, left_ms, target),
                timeout_ms,
            )
            for error in found.values():
                if error is not None:
                    raise error
            return
        await self._asker.ask_controller(
            dict.fromkeys(partition_list(partitions)),
            lambda left, left_ms, target: admin_cluster.elect_leaders(left, kind, left_ms, target),
            timeout_ms,
            final=NO_SUCH_TOPIC,
        )

    async def alter_partition_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Reassign replicas of partitions (KIP-455); the move goes on after the call.

        Args:
            replicas: Node ids by partition, the preferred leader first; None cancels.
            timeout_ms: Limit.

        Raises:
            InvalidReplicaAssignmentError: A node is not there, or is named twice.
            NoReassignmentInProgressError: There is nothing to cancel.
        """
        wanted = replicas_by_partition(replicas)
        await self._asker.ask_controller(
            wanted,
            lambda left, left_ms, target: admin_cluster.alter_reassignments(
                {partition: wanted[partition] for partition in left}, left_ms, target
            ),
            timeout_ms,
            final=NO_SUCH_TOPIC,
        )

    async def list_partition_reassignments(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return reassignments in progress, of some partitions or of all (KIP-455).

        Args:
            partitions: Which ones; None for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        wanted = None if partitions is None else partition_list(partitions)
        return await self._asker.ask_controller_once(
            lambda left_ms, target: admin_cluster.list_reassignments(wanted, left_ms, target),
            timeout_ms,
        )

    async def describe_features(self, *, timeout_ms: int | None = None) -> FeatureMetadata:
        """Return the features that the cluster supports, and the finalized levels (KIP-584).

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._asker.ask_controller_once(
            lambda _, target: admin_cluster.describe_features((SOFTWARE_NAME, "1"), target),
            timeout_ms,
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: Literal["upgrade", "safe_downgrade", "unsafe_downgrade"] = "upgrade",
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set levels of features, all or none (KIP-584).

        Args:
            levels: Level by name; 0 ends a feature.
            upgrade_type: Whether a level may be lowered, and whether with loss of metadata.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            ConfigError: The upgrade type is unknown.
            InvalidUpdateVersionError: A level is not supported.
        """
        wanted = numbers_by_name("levels", levels, "{'metadata.version': 20}")
        check_choice("upgrade_type", upgrade_type, UPGRADES)
        check_flag("validate_only", validate_only)
        kind = UPGRADES[upgrade_type]
        await self._asker.ask_controller_once(
            lambda left_ms, target: admin_cluster.update_features(
                wanted, kind, validate_only, left_ms, target
            ),
            timeout_ms,
        )

    async def describe_metadata_quorum(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """Return the quorum of controllers, and the log end offset of each (KIP-595).

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._asker.ask_controller_once(
            lambda _, target: admin_cluster.describe_quorum(target), timeout_ms
        )

    async def unregister_broker(self, broker: int, *, timeout_ms: int | None = None) -> None:
        """Unregister a broker that is gone for good.

        Args:
            broker: Node id.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            BrokerIdNotRegisteredError: There is no such broker.
        """
        node_id = whole_number("broker", broker)
        await self._asker.ask_controller_once(
            lambda _, target: admin_cluster.unregister_broker(node_id, target), timeout_ms
        )
