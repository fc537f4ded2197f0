"""Blocking calls, written from ``sdk/aio/admin/cluster.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject cluster.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin import ClusterDescription
from onceflow.sdk.model.admin_cluster import (
    FeatureMetadata,
    LogDirDescription,
    PartitionReassignment,
    QuorumDescription,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.sync.portal import Portal


class ClusterCalls:
    """The blocking admin client's calls of the subject cluster."""

    _async: AsyncAdmin
    _portal: Portal

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return id, brokers and controller of the cluster.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.describe_cluster(timeout_ms=timeout_ms))

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
