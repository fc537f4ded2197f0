"""AsyncAdmin's calls for brokers, replicas, log folders, features and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC
from onceflow.sdk.core.admin import cluster as admin_cluster
from onceflow.sdk.core.admin import topics as admin_topics
from onceflow.sdk.core.admin.arguments import (
    folders_by_partition,
    number_list,
    numbers_by_name,
    replicas_by_partition,
    whole_number,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_choice,
    check_flag,
    partition_list,
)
from onceflow.sdk.core.connection.handshake import SOFTWARE_NAME
from onceflow.sdk.model.admin import ClusterDescription
from onceflow.sdk.model.admin_cluster import (
    FeatureMetadata,
    LogDirDescription,
    PartitionReassignment,
    QuorumDescription,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.admin_cluster import UpgradeType
from onceflow.sdk.protocol.api.admin_replicas import ElectionType

UPGRADES: Final = {
    "upgrade": UpgradeType.UPGRADE,
    "safe_downgrade": UpgradeType.SAFE_DOWNGRADE,
    "unsafe_downgrade": UpgradeType.UNSAFE_DOWNGRADE,
}
ELECTIONS: Final = {"preferred": ElectionType.PREFERRED, "unclean": ElectionType.UNCLEAN}


class AsyncClusterCalls(AsyncAdminBase):
    """Brokers, replicas, log folders, features and controllers."""

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        self._asker.check(timeout_ms)
        return await self._pool.run(admin_topics.describe_cluster(), timeout_ms=timeout_ms)

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
