"""Numbers and names to which Kafka's protocol gives a meaning, for every side that uses them."""

from __future__ import annotations

import enum
from typing import Final

BROKER_DEFAULT: Final = -1
"""Partition count or replication factor that CreateTopics leaves to the broker."""

NO_OFFSET: Final = -1
"""Offset of what has none."""

LATEST_TIMESTAMP: Final = -1
"""Asks ListOffsets for the end of the log (as far as the isolation level lets one see)."""
EARLIEST_TIMESTAMP: Final = -2
"""Asks for the start of the log."""
MAX_TIMESTAMP: Final = -3
"""Asks for the record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""Asks for the first offset on the broker's own disk (KIP-405)."""
LATEST_TIERED_TIMESTAMP: Final = -5
"""Asks for the last offset in tiered storage (KIP-1005)."""
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6
"""Asks for the first offset that tiered storage lacks (KIP-1023)."""

INITIAL_SESSION_EPOCH: Final = 0
"""Epoch of a Fetch that opens a session (KIP-227)."""
FINAL_SESSION_EPOCH: Final = -1
"""Epoch of a Fetch that closes its session, or wants none."""

JOIN_EPOCH: Final = 0
"""Member epoch of a heartbeat that joins a consumer group (KIP-848)."""
LEAVE_EPOCH: Final = -1
"""Member epoch of a heartbeat that leaves for good."""
LEAVE_STATIC_EPOCH: Final = -2
"""Member epoch of the heartbeat of a static member that will be back."""

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""Protocol type of classic groups whose members are consumers."""
SUBSCRIPTION_VERSION: Final = 3
"""Newest version of what consumers write into JoinGroup and SyncGroup."""

API_VERSIONS_KEY: Final = 18
"""API key of the request that may be sent before its version is known."""
METADATA_TOPIC: Final = "__cluster_metadata"
"""Topic of the controllers' log."""
TRANSACTION_VERSION: Final = "transaction.version"
"""Feature whose level says how transactions are spoken (KIP-890)."""
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""Mechanisms that clients and the bundled broker speak."""


class ConfigSource(enum.IntEnum):
    """Where a setting's value comes from, as DescribeConfigs numbers it."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class QuotaMatch(enum.IntEnum):
    """How a component of a filter of quotas selects entities."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class ScramMechanism(enum.IntEnum):
    """Mechanisms with passwords at the broker, as requests number them."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def label(self) -> str:
        """The mechanism's name."""
        return self.name.replace("_", "-")
