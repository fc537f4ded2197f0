"""Settings that change while the broker runs: of brokers, of groups, and of client metrics.

It decides which of the broker's settings may change and which value is in force: that of this
broker, else the cluster's default, else the one at the broker's start. The cluster metadata stores
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from onceflow.broker_lite.log import DataFolderError
from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS, BrokerConfig
from onceflow.broker_lite.settings.connection_overrides import parse_overrides
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.broker_lite.settings.topic_config import ConfigLayer
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import ConfigSource
from onceflow.sdk.settings.declare import Kind, Setting, plain
from onceflow.sdk.settings.names import unknown_setting

if TYPE_CHECKING:
    from onceflow.broker_lite.cluster_metadata import ClusterMetadata, Json

CLUSTER_DEFAULT = ""
"""Name of the broker resource that stands for all brokers."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"

DYNAMIC_SETTINGS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "group.consumer.assignment.interval.ms",
        "log.cleaner.backoff.ms",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "max.decompressed.message.bytes",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)
"""Settings of this broker that Kafka lets change at run time."""

CLIENT_METRICS_SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            Kind.LIST, (), "Prefixes of the metrics that clients push; * for all.", name="metrics"
        ),
        Setting(Kind.INT, 300_000, "Time between two pushes.", 100, 3_600_000, name="interval.ms"),
        Setting(Kind.LIST, (), "Which clients push, as NAME=PATTERN by commas.", name="match"),
    )
}
"""Settings of client metrics subscriptions (KIP-714); they are stored, without effect."""

CLIENT_METRICS_SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

GROUP_SYNONYMS = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
}
"""Settings of groups (KIP-848), and the broker setting of each default."""

Overrides = dict[str, str]


def group_settings(config: BrokerConfig) -> dict[str, Setting]:
    """Settings of groups that this broker serves, within the bounds that it sets."""
    found = {}
    for each in config.consumer_bounds():
        name = f"consumer.{each.name}"
        found[name] = dataclasses.replace(
            BROKER_SETTINGS[GROUP_SYNONYMS[name]],
            name=name,
            least=each.minimum,
            most=each.maximum,
        )
    return found


class DynamicConfig:
    """Every setting that was changed at run time.

    Args:
        metadata: Stores changes.
        static: What the broker was started with.
        node_id: This broker.

    Attributes:
        current: Settings of the broker in force.
        static: What the broker was started with.
        on_change: Called with `current` after a change of the broker's settings.
        has_cluster_min_insync: Whether ``min.insync.replicas`` is a setting of the cluster, which
            then always has one, and not of a single broker (KIP-966).

    Raises:
        DataFolderError: A stored setting cannot be used in this broker; names the setting.
    """

    __slots__ = (
        "_brokers",
        "_client_metrics",
        "_groups",
        "_metadata",
        "_node",
        "current",
        "has_cluster_min_insync",
        "on_change",
        "static",
    )  # fmt: skip

    def __init__(self, metadata: ClusterMetadata, static: BrokerConfig, node_id: int) -> None:
        self._metadata = metadata
        self._node = str(node_id)
        self.static: BrokerConfig = static
        self.has_cluster_min_insync: bool = False
        self.on_change: list[Callable[[BrokerConfig], None]] = []
        self._brokers = _kept(metadata, "broker-configs")
        self._groups = _kept(metadata, "group-configs")
        self._client_metrics = _kept(metadata, "client-metrics-configs")
        try:
            self.current: BrokerConfig = self._effective(self._brokers)
        except ConfigError as error:
            if not any(self._brokers.values()):
                raise  # It came with the start, and is to be mended there.
            raise DataFolderError(
                f"a setting that was changed at run time cannot be used: {error}; start with the "
                "broker that it was made for, and remove it with kafka-configs --delete-config"
            ) from None

    # --- brokers

    def layers(self) -> list[ConfigLayer]:
        """Settings of this broker and of all brokers, the one that wins first."""
        return [
            ConfigLayer(ConfigSource.DYNAMIC_BROKER_CONFIG, self.broker(self._node)),
            ConfigLayer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.broker(CLUSTER_DEFAULT)),
        ]

    def broker(self, name: str) -> Overrides:
        """Return the settings of a broker, or for the empty name those of all."""
        found = dict(self._brokers.get(name, {}))
        if self.has_cluster_min_insync and name == CLUSTER_DEFAULT:
            found.setdefault(MIN_INSYNC_REPLICAS, str(self.static.min_insync_replicas))
        elif self.has_cluster_min_insync:
            found.pop(MIN_INSYNC_REPLICAS, None)
        return found

    def set_cluster_min_insync(self, has: bool) -> None:
        """Make ``min.insync.replicas`` a setting of the cluster, or an ordinary one."""
        self.has_cluster_min_insync = has
        self._put_in_force(self._effective(self._brokers))

    def check_broker(self, name: str, overrides: Mapping[str, str]) -> Overrides:
        """Check settings of a broker.

        Returns:
            The same in the form in which they are stored.

        Raises:
            ConfigError: A setting that does not exist or cannot change, or a bad value.
        """
        checked = {}
        for setting_name, text in overrides.items():
            setting = dynamic_setting(setting_name)
            if setting is None:
                if setting_name in BROKER_SETTINGS:
                    raise ConfigError(setting_name, text, "it can only be set at the start")
                known = [*BROKER_SETTINGS, *IDLE_DYNAMIC_SETTINGS]
                raise unknown_setting(BrokerConfig.kind, setting_name, known)
            checked[setting_name] = setting.render(setting.read(text)) or ""
        self._effective({**self._brokers, name: checked})
        return checked

    def set_broker(self, name: str, overrides: Overrides) -> None:
        """Store checked settings of a broker, and put them in force.

        Raises:
            OSError: They cannot be kept; nothing changes.
        """
        brokers = _with(self._brokers, name, overrides)
        current = self._effective(brokers)
        self._metadata.save("broker-configs", cast("dict[str, Json]", brokers))
        self._brokers = brokers
        self._put_in_force(current)

    def _put_in_force(self, config: BrokerConfig) -> None:
        self.current = config
        for callback in self.on_change:
            callback(config)

    def _effective(self, brokers: Mapping[str, Overrides]) -> BrokerConfig:
        values: dict[str, object] = {}
        for name in (CLUSTER_DEFAULT, self._node):
            for setting_name, text in brokers.get(name, {}).items():
                if (
                    self.has_cluster_min_insync
                    and setting_name == MIN_INSYNC_REPLICAS
                    and name != CLUSTER_DEFAULT
                ):
                    continue
                if setting_name in BROKER_SETTINGS:
                    values[plain(setting_name)] = BROKER_SETTINGS[setting_name].read(text)
        config = self.static.replace(**values)
        parse_overrides(config.max_connections_per_ip_overrides)
        return config

    # --- groups

    def group_names(self) -> list[str]:
        """Return the groups with settings."""
        return sorted(self._groups)

    def group(self, group_id: str) -> Overrides:
        """Return the settings of a group."""
        return dict(self._groups.get(group_id, {}))

    def set_group(self, group_id: str, overrides: Overrides) -> None:
        """Store checked settings of a group.

        Raises:
            OSError: They cannot be kept; nothing changes.
        """
        groups = _with(self._groups, group_id, overrides)
        self._metadata.save("group-configs", cast("dict[str, Json]", groups))
        self._groups = groups

    def group_value(self, group_id: str, name: str) -> int:
        """Return the value in force for a group.

        Args:
            group_id: The group.
            name: One of `GROUP_SYNONYMS`.

        Returns:
            The group's own value, limited to the broker's present bounds, else the broker's.
        """
        text = self._groups.get(group_id, {}).get(name)
        if text is None:
            return cast("int", self.current.value(GROUP_SYNONYMS[name]))
        setting = group_settings(self.current)[name]
        low, high = setting.least, setting.most
        return int(max(low, min(high, int(text))))

    # --- client metrics

    def client_metrics_names(self) -> list[str]:
        """Names of the subscriptions."""
        return sorted(self._client_metrics)

    def client_metrics(self, name: str) -> Overrides:
        """Return the settings of a subscription."""
        return dict(self._client_metrics.get(name, {}))

    def set_client_metrics(self, name: str, overrides: Overrides) -> None:
        """Store checked settings of a subscription; no settings remove it.

        Raises:
            OSError: They cannot be kept; nothing changes.
        """
        subscriptions = _with(self._client_metrics, name, overrides)
        self._metadata.save("client-metrics-configs", cast("dict[str, Json]", subscriptions))
        self._client_metrics = subscriptions


def dynamic_setting(name: str) -> Setting | None:
    """Return the declaration of a broker setting that may change at run time, or None."""
    if name in DYNAMIC_SETTINGS:
        return BROKER_SETTINGS.get(name)
    return IDLE_DYNAMIC_SETTINGS.get(name)


def _with(all_: Mapping[str, Overrides], name: str, overrides: Overrides) -> dict[str, Overrides]:
    changed = {kept: values for kept, values in all_.items() if kept != name}
    if overrides:
        changed[name] = dict(overrides)
    return changed


def _kept(metadata: ClusterMetadata, section: str) -> dict[str, Overrides]:
    found = {}
    for name, values in metadata.section(section).items():
        if not isinstance(values, dict):
            raise DataFolderError(f"section {section} of the cluster metadata holds no settings")
        found[name] = {setting: str(text) for setting, text in values.items()}
    return found
