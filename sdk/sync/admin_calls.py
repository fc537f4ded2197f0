"""Blocking calls, written from ``sdk/aio/admin/admin.py``; do not edit, run ``make fix``.

The calls of the blocking admin client.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal
from uuid import UUID

from onceflow.sdk.aio.admin.admin import AsyncAdmin, Resource
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
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.sync.portal import Portal


class AdminCalls:
    """The calls of the blocking admin client."""

    _async: AsyncAdmin
    _portal: Portal

    @property
    def config(self) -> AdminConfig:
        """The settings, defaults included."""
        return self._async.config

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

        Afterwards records with a key may go to another partition than before.

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
        """Return the names of all topics that this client may see, sorted.

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
        """Return partitions, leaders and id of topics.

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
        return self._portal.call(lambda: self._async.delete_records(before, timeout_ms=timeout_ms))

    def describe_configs(
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
        self._portal.call(
            lambda: self._async.alter_configs(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def list_groups(
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
        return self._portal.call(
            lambda: self._async.list_groups(states=states, types=types, timeout_ms=timeout_ms)
        )

    def describe_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """Return state and members of groups of both protocols; an unknown group is Dead.

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

    def list_group_offsets(
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
        return self._portal.call(
            lambda: self._async.list_group_offsets(
                group, partitions, require_stable=require_stable, timeout_ms=timeout_ms
            )
        )

    def alter_group_offsets(
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
        self._portal.call(
            lambda: self._async.alter_group_offsets(group, offsets, timeout_ms=timeout_ms)
        )

    def list_offsets(
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
        return self._portal.call(
            lambda: self._async.list_offsets(
                targets, isolation_level=isolation_level, timeout_ms=timeout_ms
            )
        )

    def delete_group_offsets(
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
        self._portal.call(
            lambda: self._async.delete_group_offsets(group, partitions, timeout_ms=timeout_ms)
        )

    def reset_group_offsets(
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
        return self._portal.call(
            lambda: self._async.reset_group_offsets(
                group,
                partitions,
                to=to,
                to_time_ms=to_time_ms,
                shift_by=shift_by,
                dry_run=dry_run,
                timeout_ms=timeout_ms,
            )
        )

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

    def describe_acls(
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
        return self._portal.call(lambda: self._async.describe_acls(wanted, timeout_ms=timeout_ms))

    def create_acls(self, bindings: Iterable[AclBinding], *, timeout_ms: int | None = None) -> None:
        """Add ACLs; existing ones are not an error.

        Args:
            bindings: The ACLs to add.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: An ACL has ANY where one thing must be named.
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        self._portal.call(lambda: self._async.create_acls(bindings, timeout_ms=timeout_ms))

    def delete_acls(
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
        return self._portal.call(lambda: self._async.delete_acls(filters, timeout_ms=timeout_ms))

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of users with SCRAM passwords (KIP-554).

        Args:
            users: Which ones; None for all.
            timeout_ms: Limit.

        Raises:
            ResourceNotFoundError: One has no password.
        """
        return self._portal.call(
            lambda: self._async.describe_user_scram_credentials(users, timeout_ms=timeout_ms)
        )

    def alter_user_scram_credentials(
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
        self._portal.call(
            lambda: self._async.alter_user_scram_credentials(
                upsertions, deletions, timeout_ms=timeout_ms
            )
        )

    def describe_client_quotas(
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
        return self._portal.call(
            lambda: self._async.describe_client_quotas(
                components, strict=strict, timeout_ms=timeout_ms
            )
        )

    def alter_client_quotas(
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
        self._portal.call(
            lambda: self._async.alter_client_quotas(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.describe_cluster(timeout_ms=timeout_ms))

    def list_config_resources(
        self, types: Collection[ResourceType] = (), *, timeout_ms: int | None = None
    ) -> list[ConfigResource]:
        """Return the resources that have settings (KIP-1142), of some types or of all.

        Args:
            types: Kinds of resources; empty for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.list_config_resources(types, timeout_ms=timeout_ms)
        )

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return log folders of brokers, with sizes of replicas and free space (KIP-113).

        Args:
            brokers: Node ids; None for all.
            timeout_ms: Limit.

        Returns:
            Folders by path, by node id.
        """
        return self._portal.call(
            lambda: self._async.describe_log_dirs(brokers, timeout_ms=timeout_ms)
        )

    def alter_replica_log_dirs(
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
        self._portal.call(
            lambda: self._async.alter_replica_log_dirs(broker, folders, timeout_ms=timeout_ms)
        )

    def elect_leaders(
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
        self._portal.call(
            lambda: self._async.elect_leaders(
                partitions, election_type=election_type, timeout_ms=timeout_ms
            )
        )

    def alter_partition_reassignments(
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
        self._portal.call(
            lambda: self._async.alter_partition_reassignments(replicas, timeout_ms=timeout_ms)
        )

    def list_partition_reassignments(
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
        return self._portal.call(
            lambda: self._async.list_partition_reassignments(partitions, timeout_ms=timeout_ms)
        )

    def describe_features(self, *, timeout_ms: int | None = None) -> FeatureMetadata:
        """Return the features that the cluster supports, and the finalized levels (KIP-584).

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.describe_features(timeout_ms=timeout_ms))

    def update_features(
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
        self._portal.call(
            lambda: self._async.update_features(
                levels,
                upgrade_type=upgrade_type,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
            )
        )

    def describe_metadata_quorum(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """Return the quorum of controllers, and the log end offset of each (KIP-595).

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.describe_metadata_quorum(timeout_ms=timeout_ms)
        )

    def unregister_broker(self, broker: int, *, timeout_ms: int | None = None) -> None:
        """Unregister a broker that is gone for good.

        Args:
            broker: Node id.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            BrokerIdNotRegisteredError: There is no such broker.
        """
        self._portal.call(lambda: self._async.unregister_broker(broker, timeout_ms=timeout_ms))
