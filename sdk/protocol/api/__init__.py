"""The table of all request kinds by API key.

`API` imports the module that declares a message at the message's first use, so that importing this
package is cheap. The broker serves only a part of the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from onceflow.sdk.protocol.schema import Request, Response

_MODULES: Final[Mapping[int, tuple[str, str]]] = {
    0: ("produce", "Produce"),
    1: ("fetch", "Fetch"),
    2: ("offsets", "ListOffsets"),
    3: ("cluster", "Metadata"),
    8: ("group_offsets", "OffsetCommit"),
    9: ("group_offsets", "OffsetFetch"),
    10: ("cluster", "FindCoordinator"),
    11: ("groups", "JoinGroup"),
    12: ("groups", "Heartbeat"),
    13: ("groups", "LeaveGroup"),
    14: ("groups", "SyncGroup"),
    15: ("groups", "DescribeGroups"),
    16: ("groups", "ListGroups"),
    17: ("security", "SaslHandshake"),
    18: ("cluster", "ApiVersions"),
    19: ("admin", "CreateTopics"),
    20: ("admin", "DeleteTopics"),
    21: ("offsets", "DeleteRecords"),
    22: ("transactions", "InitProducerId"),
    23: ("offsets", "OffsetForLeaderEpoch"),
    24: ("transactions", "AddPartitionsToTxn"),
    25: ("transactions", "AddOffsetsToTxn"),
    26: ("transactions", "EndTxn"),
    27: ("transactions", "WriteTxnMarkers"),
    28: ("group_offsets", "TxnOffsetCommit"),
    29: ("security_admin", "DescribeAcls"),
    30: ("security_admin", "CreateAcls"),
    31: ("security_admin", "DeleteAcls"),
    32: ("admin", "DescribeConfigs"),
    33: ("admin_configs", "AlterConfigs"),
    34: ("admin_replicas", "AlterReplicaLogDirs"),
    35: ("admin_replicas", "DescribeLogDirs"),
    36: ("security", "SaslAuthenticate"),
    37: ("admin", "CreatePartitions"),
    42: ("groups", "DeleteGroups"),
    43: ("admin_replicas", "ElectLeaders"),
    44: ("admin", "IncrementalAlterConfigs"),
    45: ("admin_replicas", "AlterPartitionReassignments"),
    46: ("admin_replicas", "ListPartitionReassignments"),
    47: ("group_offsets", "OffsetDelete"),
    48: ("admin_quotas", "DescribeClientQuotas"),
    49: ("admin_quotas", "AlterClientQuotas"),
    50: ("security_admin", "DescribeUserScramCredentials"),
    51: ("security_admin", "AlterUserScramCredentials"),
    55: ("admin_cluster", "DescribeQuorum"),
    57: ("admin_cluster", "UpdateFeatures"),
    60: ("cluster", "DescribeCluster"),
    61: ("transactions", "DescribeProducers"),
    64: ("admin_cluster", "UnregisterBroker"),
    65: ("transactions", "DescribeTransactions"),
    66: ("transactions", "ListTransactions"),
    68: ("consumer_groups", "ConsumerGroupHeartbeat"),
    69: ("consumer_groups", "ConsumerGroupDescribe"),
    74: ("admin_configs", "ListConfigResources"),
    75: ("admin_replicas", "DescribeTopicPartitions"),
}


class ApiEntry(NamedTuple):
    """Request and response of one API key."""

    request_type: type[Request]
    response_type: type[Response]


class _Registry(Mapping[int, ApiEntry]):
    def __init__(self) -> None:
        self._loaded: dict[int, ApiEntry] = {}

    def __getitem__(self, api_key: int) -> ApiEntry:
        entry = self._loaded.get(api_key)
        if entry is None:
            module_name, name = _MODULES[api_key]
            module = importlib.import_module(f"onceflow.sdk.protocol.api.{module_name}")
            entry = ApiEntry(getattr(module, f"{name}Request"), getattr(module, f"{name}Response"))
            self._loaded[api_key] = entry
        return entry

    def __iter__(self) -> Iterator[int]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


API: Final[Mapping[int, ApiEntry]] = _Registry()
"""Request and response type by `api_key`."""

__all__ = ["API", "ApiEntry"]
