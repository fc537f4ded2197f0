"""Settings of groups and of their offsets, under Kafka's property names.

They are fields of ``BrokerConfig``; ``coordinators`` uses them.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.broker_lite.log.log_config import PARTITIONS_MAX
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import INT32_MAX, Settings, long, text, whole, words

SERVER_ASSIGNORS = ("uniform", "range")
MIGRATION_POLICIES = ("disabled", "downgrade", "upgrade", "bidirectional")
REBALANCE_PROTOCOLS = ("classic", "consumer")


class Bounded(NamedTuple):
    """A setting of consumer groups.

    Attributes:
        name: Kafka's name after ``group.consumer.``; after ``consumer.`` for a single group.
        value: The broker's value.
        minimum: Least value, ``group.consumer.min.NAME``.
        maximum: Greatest value, ``group.consumer.max.NAME``.
    """

    name: str
    value: int
    minimum: int
    maximum: int


class GroupProperties(Settings, dotted=True, kind="broker"):
    """See each field's declaration for property, bounds and meaning."""

    # --- both protocols
    group_initial_rebalance_delay_ms: int = whole(3000, "Wait for more members of an empty group.")
    group_min_session_timeout_ms: int = whole(6000, "Least session timeout a member may ask for.")
    group_max_session_timeout_ms: int = whole(
        1_800_000, "Greatest session timeout a member may ask for."
    )
    group_max_size: int = whole(INT32_MAX, "Most members of a group.", 1)
    offset_metadata_max_bytes: int = whole(4096, "Longest text beside a committed offset.")
    offsets_retention_minutes: int = whole(
        10_080,
        "How long committed offsets are kept while their group has no members.",
        1,
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, "Time between two looks for expired offsets.", 1
    )
    offsets_topic_num_partitions: int = whole(
        50, "Partitions of __consumer_offsets.", 1, PARTITIONS_MAX
    )
    offsets_topic_segment_bytes: int = whole(
        104_857_600, "Segment size of __consumer_offsets.", 1_048_576
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = words(
        ("classic", "consumer"),
        "Protocols that groups may speak; without consumer, KIP-848 is refused.",
        choices=REBALANCE_PROTOCOLS,
    )

    # --- consumer protocol
    group_consumer_assignors: tuple[str, ...] = words(
        ("uniform", "range"),
        "Assignors that members of consumer groups may ask for; the first is the default.",
        choices=SERVER_ASSIGNORS,
    )
    group_consumer_assignment_interval_ms: int = whole(
        1_000, "Least time between two divisions of a consumer group's partitions."
    )
    group_consumer_min_assignment_interval_ms: int = whole(
        0, "Least value of consumer.assignment.interval.ms of a group."
    )
    group_consumer_max_assignment_interval_ms: int = whole(
        15_000, "Greatest value of consumer.assignment.interval.ms of a group."
    )
    group_consumer_heartbeat_interval_ms: int = whole(
        5_000, "Time between heartbeats of a consumer group's member.", 1
    )
    group_consumer_min_heartbeat_interval_ms: int = whole(
        5_000, "Least value of consumer.heartbeat.interval.ms of a group.", 1
    )
    group_consumer_max_heartbeat_interval_ms: int = whole(
        15_000, "Greatest value of consumer.heartbeat.interval.ms of a group.", 1
    )
    group_consumer_session_timeout_ms: int = whole(
        45_000, "How long members of consumer groups may be silent.", 1
    )
    group_consumer_min_session_timeout_ms: int = whole(
        45_000, "Least value of consumer.session.timeout.ms of a group.", 1
    )
    group_consumer_max_session_timeout_ms: int = whole(
        60_000, "Greatest value of consumer.session.timeout.ms of a group.", 1
    )
    group_consumer_max_size: int = whole(INT32_MAX, "Most members of a consumer group.", 1)
    group_consumer_migration_policy: str = text(
        "bidirectional",
        "Which groups may change their protocol while they have members.",
        choices=MIGRATION_POLICIES,
    )

    def consumer_bounds(self) -> tuple[Bounded, ...]:
        """Settings of consumer groups that may be set for a single group, within bounds."""
        return (
            Bounded(
                "session.timeout.ms",
                self.group_consumer_session_timeout_ms,
                self.group_consumer_min_session_timeout_ms,
                self.group_consumer_max_session_timeout_ms,
            ),
            Bounded(
                "heartbeat.interval.ms",
                self.group_consumer_heartbeat_interval_ms,
                self.group_consumer_min_heartbeat_interval_ms,
                self.group_consumer_max_heartbeat_interval_ms,
            ),
            Bounded(
                "assignment.interval.ms",
                self.group_consumer_assignment_interval_ms,
                self.group_consumer_min_assignment_interval_ms,
                self.group_consumer_max_assignment_interval_ms,
            ),
        )

    def _check(self) -> None:
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms",
                self.group_min_session_timeout_ms,
                f"give at most group.max.session.timeout.ms ({self.group_max_session_timeout_ms})",
            )
        for name, value, low, high in self.consumer_bounds():
            if not low <= value <= high:
                raise ConfigError(
                    f"group.consumer.{name}",
                    value,
                    f"give a value from group.consumer.min.{name} ({low}) to "
                    f"group.consumer.max.{name} ({high})",
                )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigError(
                "group.consumer.heartbeat.interval.ms",
                self.group_consumer_heartbeat_interval_ms,
                "give less than group.consumer.session.timeout.ms "
                f"({self.group_consumer_session_timeout_ms})",
            )
        if not self.group_consumer_assignors:
            raise ConfigError("group.consumer.assignors", "", "name at least one assignor")
        if "classic" not in self.group_coordinator_rebalance_protocols:
            raise ConfigError(
                "group.coordinator.rebalance.protocols",
                self.group_coordinator_rebalance_protocols,
                "classic cannot be left out",
            )
