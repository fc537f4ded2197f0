"""Results of admin clients beyond topics and groups: ACLs, users, quotas, folders, features.

These are plain values; the modules of ``core.admin`` make them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from onceflow.sdk.model.acl_enums import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from onceflow.sdk.model.partitions import TopicPartition

__all__ = [
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "AnyName",
    "ClientQuota",
    "FeatureMetadata",
    "LogDirDescription",
    "OffsetReset",
    "PartitionReassignment",
    "QuorumDescription",
    "QuorumReplica",
    "ReplicaInfo",
    "ScramDeletion",
    "ScramUpsertion",
]


class AclBinding(NamedTuple):
    """One rule: who may do what with which resource.

    Attributes:
        resource_type: What the rule is about.
        resource_name: Its name, or the beginning of it; "*" for any.
        principal: Principal, such as "User:alice"; "User:*" for all.
        operation: What.
        permission: Whether it is allowed.
        host: From which address; "*" for any.
        pattern_type: How the name is compared.
    """

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern_type: AclPatternType = AclPatternType.LITERAL


class AclFilter(NamedTuple):
    """Which rules are meant; None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern_type: AclPatternType = AclPatternType.ANY


class ScramUpsertion(NamedTuple):
    """A password that a user is to have.

    Attributes:
        user: Whose.
        password: It; only a salted hash of it is sent, and it is never printed.
        mechanism: "SCRAM-SHA-256" or "SCRAM-SHA-512".
        iterations: How slow guessing is made; 4096 at least.
        salt: 16 random bytes by default.
    """

    user: str
    password: str
    mechanism: str = "SCRAM-SHA-512"
    iterations: int = 8192
    salt: bytes | None = None

    def __repr__(self) -> str:
        return (
            f"ScramUpsertion(user={self.user!r}, password='***', mechanism={self.mechanism!r}, "
            f"iterations={self.iterations!r})"
        )


class ScramDeletion(NamedTuple):
    """A password that a user is not to have any more."""

    user: str
    mechanism: str = "SCRAM-SHA-512"


class AnyName(enum.Enum):
    """Stands for every name in a filter of quotas, the default among them."""

    ANY = "any"


class ClientQuota(NamedTuple):
    """Quotas of one entity.

    Attributes:
        entity: Names by type ("user", "client-id", "ip"); None is the default of its type.
        quotas: Values by Kafka's name, such as ``producer_byte_rate``.
    """

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


class ReplicaInfo(NamedTuple):
    """A replica in a folder.

    Attributes:
        size_bytes: Its size.
        offset_lag: By how many records it is behind the leader.
        is_future: Whether it is being moved here.
    """

    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """A folder of a broker.

    Attributes:
        replicas: What is in it.
        total_bytes: Size of its volume, -1 if unknown.
        usable_bytes: Free bytes of it, -1 if unknown.
        error_code: Kafka's code when the folder cannot be used, else 0.
    """

    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int
    usable_bytes: int
    error_code: int = 0


class FeatureMetadata(NamedTuple):
    """Features of a cluster.

    Attributes:
        finalized: Level in force by name.
        supported: Lowest and highest level that the broker knows, by name.
        epoch: Raised by each change; -1 if unknown.
    """

    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]
    epoch: int


class PartitionReassignment(NamedTuple):
    """A partition whose replicas are being changed: all, those that come, those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuorumReplica(NamedTuple):
    """A node that keeps the metadata log; times are milliseconds since 1970, -1 if unknown."""

    node_id: int
    log_end_offset: int
    last_fetch_timestamp_ms: int
    last_caught_up_timestamp_ms: int


class QuorumDescription(NamedTuple):
    """The controllers of a cluster."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class OffsetReset(NamedTuple):
    """One line of a plan: where a group stands, and where it is put.

    Attributes:
        current: Committed offset, None without one.
        new: Offset to commit.
    """

    current: int | None
    new: int
