"""Settings of single topics: names, bounds, the broker property each falls back to, validation.

It decides which value is in force for a topic and where it comes from (DescribeConfigs), and which
values CreateTopics and IncrementalAlterConfigs accept. What a setting does is the log's business.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.broker_lite.log import LogConfig
from onceflow.broker_lite.settings.broker_config import (
    BROKER_SETTINGS,
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    TIMESTAMP_TYPES,
    BrokerConfig,
)
from onceflow.broker_lite.settings.setting import (
    LONG_MAX,
    Kind,
    Setting,
    Value,
    field_name,
    unknown_setting,
)
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.record_validation import RECORD_BYTES_MAX

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.topics")


class ConfigSource(enum.IntEnum):
    """Where a value comes from, numbered as in DescribeConfigs answers."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A topic setting and the broker properties it falls back to.

    Attributes:
        setting: Name, type, default and bounds.
        synonyms: Broker properties that set the default, the one that wins first; empty when the
            topic setting stands alone.
    """

    setting: Setting
    synonyms: tuple[str, ...] = ()


def _topic(
    name: str,
    kind: Kind,
    default: Value,
    documentation: str,
    *synonyms: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> TopicSetting:
    return TopicSetting(
        Setting(name, kind, default, documentation, minimum, maximum, choices), synonyms
    )


TOPIC_SETTINGS: dict[str, TopicSetting] = {
    entry.setting.name: entry
    for entry in (
        _topic(
            "cleanup.policy",
            Kind.LIST,
            "delete",
            "What happens to old segments: delete, compact, or both.",
            "log.cleanup.policy",
            choices=CLEANUP_POLICIES,
        ),
        _topic(
            "compression.gzip.level",
            Kind.INT,
            -1,
            "Level of gzip where batches are recompressed; -1 for the library's own.",
            "compression.gzip.level",
            minimum=-1,
            maximum=9,
        ),
        _topic(
            "compression.lz4.level",
            Kind.INT,
            9,
            "Level of lz4 where batches are recompressed; 9 is Kafka's name for the fast one.",
            "compression.lz4.level",
            minimum=1,
            maximum=17,
        ),
        _topic(
            "compression.zstd.level",
            Kind.INT,
            3,
            "Level of zstd where batches are recompressed.",
            "compression.zstd.level",
            minimum=-131_072,
            maximum=22,
        ),
        _topic(
            "compression.type",
            Kind.STRING,
            "producer",
            "Codec of stored batches; producer keeps the client's.",
            "compression.type",
            choices=COMPRESSION_TYPES,
        ),
        _topic(
            "delete.retention.ms",
            Kind.LONG,
            86_400_000,
            "How long tombstones of a compacted topic are kept.",
            "log.cleaner.delete.retention.ms",
            minimum=0,
        ),
        _topic(
            "file.delete.delay.ms",
            Kind.LONG,
            60_000,
            "Time from marking a file deleted to removing it.",
            "log.segment.delete.delay.ms",
            minimum=0,
        ),
        _topic(
            "flush.messages",
            Kind.LONG,
            LONG_MAX,
            "Records after which the log is flushed to the disk.",
            "log.flush.interval.messages",
            minimum=1,
        ),
        _topic(
            "flush.ms",
            Kind.LONG,
            LONG_MAX,
            "Milliseconds after which the log is flushed to the disk.",
            "log.flush.interval.ms",
            minimum=0,
        ),
        _topic(
            "follower.replication.throttled.replicas",
            Kind.LIST,
            "",
            "Accepted for compatibility; one node replicates nothing.",
        ),
        _topic(
            "index.interval.bytes",
            Kind.INT,
            4096,
            "Bytes of log between two index entries.",
            "log.index.interval.bytes",
            minimum=0,
        ),
        _topic(
            "leader.replication.throttled.replicas",
            Kind.LIST,
            "",
            "Accepted for compatibility; one node replicates nothing.",
        ),
        _topic(
            "max.compaction.lag.ms",
            Kind.LONG,
            LONG_MAX,
            "Latest time until a record is compacted.",
            "log.cleaner.max.compaction.lag.ms",
            minimum=1,
        ),
        _topic(
            "max.decompressed.message.bytes",
            Kind.INT,
            RECORD_BYTES_MAX,
            "Largest record of a compressed batch, unpacked.",
            "max.decompressed.message.bytes",
            minimum=1,
            maximum=RECORD_BYTES_MAX,
        ),
        _topic(
            "max.message.bytes",
            Kind.INT,
            1_048_588,
            "Largest record batch, after compression.",
            "message.max.bytes",
            minimum=0,
        ),
        _topic(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            3_600_000,
            "How far ahead of the broker's clock a client's timestamp may be.",
            "log.message.timestamp.after.max.ms",
            minimum=0,
        ),
        _topic(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            LONG_MAX,
            "How far behind the broker's clock a client's timestamp may be.",
            "log.message.timestamp.before.max.ms",
            minimum=0,
        ),
        _topic(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "Whose clock a record's timestamp shows.",
            "log.message.timestamp.type",
            choices=TIMESTAMP_TYPES,
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            0.5,
            "Share of dirty bytes from which the log is compacted.",
            "log.cleaner.min.cleanable.ratio",
            minimum=0,
            maximum=1,
        ),
        _topic(
            "min.compaction.lag.ms",
            Kind.LONG,
            0,
            "How long a record stays uncompacted.",
            "log.cleaner.min.compaction.lag.ms",
            minimum=0,
        ),
        _topic(
            "min.insync.replicas",
            Kind.INT,
            1,
            "In-sync replicas that acks=all needs; one node has 1.",
            "min.insync.replicas",
            minimum=1,
        ),
        _topic(
            "preallocate",
            Kind.BOOLEAN,
            False,
            "Accepted for compatibility; files grow as they are written.",
            "log.preallocate",
        ),
        _topic(
            "retention.bytes",
            Kind.LONG,
            -1,
            "Size of a partition from which old segments go; -1 for none.",
            "log.retention.bytes",
            minimum=-1,
        ),
        _topic(
            "retention.ms",
            Kind.LONG,
            604_800_000,
            "Age from which segments go; -1 for never.",
            "log.retention.ms",
            "log.retention.minutes",
            "log.retention.hours",
            minimum=-1,
        ),
        _topic(
            "segment.bytes",
            Kind.INT,
            1_073_741_824,
            "Size of a full segment.",
            "log.segment.bytes",
            minimum=1_048_576,
        ),
        _topic(
            "segment.index.bytes",
            Kind.INT,
            10_485_760,
            "Largest index file of a segment.",
            "log.index.size.max.bytes",
            minimum=4,
        ),
        _topic(
            "segment.jitter.ms",
            Kind.LONG,
            0,
            "Greatest random time taken off segment.ms.",
            "log.roll.jitter.ms",
            "log.roll.jitter.hours",
            minimum=0,
        ),
        _topic(
            "segment.ms",
            Kind.LONG,
            604_800_000,
            "Age of a full segment.",
            "log.roll.ms",
            "log.roll.hours",
            minimum=1,
        ),
        _topic(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            False,
            "Accepted for compatibility; one node elects nobody.",
        ),
    )
}
"""Every topic setting by name."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One of the places a value may come from.

    Attributes:
        name: Property at that place.
        value: Its value as text, or None.
        source: The place.
    """

    name: str
    value: str | None
    source: ConfigSource


class ConfigLayer(NamedTuple):
    """Settings of the broker that were changed at run time.

    Attributes:
        source: For whom.
        overrides: Text by name.
    """

    source: ConfigSource
    overrides: Mapping[str, str]


def validate_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Check the settings of a topic as a client gave them.

    Args:
        overrides: Text by name.

    Returns:
        The same, in the form in which they are stored.

    Raises:
        ConfigError: Unknown name, missing or bad value, or values that exclude each other.
    """
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        entry = TOPIC_SETTINGS.get(name)
        if entry is None:
            raise unknown_setting(name, TOPIC_SETTINGS)
        if text is None:
            raise ConfigError(name, text, "give a value, or leave the setting out")
        checked[name] = entry.setting.render(entry.setting.parse(text)) or ""
    low = int(checked.get("min.compaction.lag.ms", "0"))
    high = int(checked.get("max.compaction.lag.ms", str(LONG_MAX)))
    if low > high:
        raise ConfigError(
            "min.compaction.lag.ms", low, f"give at most max.compaction.lag.ms ({high})"
        )
    return checked


def usable_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Those of a topic's settings in Apache Kafka that can be used here; the others are told."""
    usable = {}
    for name, text in overrides.items():
        try:
            usable.update(validate_overrides({name: text}))
        except ConfigError as error:
            logger.warning("a setting of a topic is left out: %s", error)
    return usable


def broker_synonyms(
    names: Sequence[str], config: BrokerConfig, layers: Sequence[ConfigLayer] = ()
) -> list[ConfigSynonym]:
    """Where the value of one of some broker settings may come from, the one in force first.

    Args:
        names: Broker properties, the one that wins first.
        config: What the broker was started with.
        layers: What was changed at run time.
    """
    found = [
        ConfigSynonym(name, layer.overrides[name], layer.source)
        for layer in layers
        for name in names
        if name in layer.overrides
    ]
    for name in names:
        setting = BROKER_SETTINGS[name]
        value = config.value(name)
        if name in config.given or value != setting.default:
            found.append(
                ConfigSynonym(name, setting.render(value), ConfigSource.STATIC_BROKER_CONFIG)
            )
    # Kafka tells the default of the first property only, and none where that has none.
    for name in names[:1]:
        setting = BROKER_SETTINGS[name]
        if setting.default is not None:
            found.append(
                ConfigSynonym(name, setting.render(setting.default), ConfigSource.DEFAULT_CONFIG)
            )
    return found


def synonyms(
    name: str,
    overrides: Mapping[str, str],
    config: BrokerConfig,
    layers: Sequence[ConfigLayer] = (),
) -> list[ConfigSynonym]:
    """Where the value of a topic setting may come from, the one in force first.

    Args:
        name: Topic setting.
        overrides: What was set for the topic.
        config: What the broker was started with.
        layers: What was changed of the broker's settings at run time.
    """
    found = broker_synonyms(TOPIC_SETTINGS[name].synonyms, config, layers)
    if name in overrides:
        found.insert(0, ConfigSynonym(name, overrides[name], ConfigSource.TOPIC_CONFIG))
    return found


def effective_value(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> Value:
    """The value in force for a topic setting, in the unit of that setting."""
    entry = TOPIC_SETTINGS[name]
    if name in overrides:
        return entry.setting.parse(overrides[name])
    if name == "retention.ms":
        return config.retention_ms
    if name == "segment.ms":
        return config.roll_ms
    if name == "segment.jitter.ms":
        return config.roll_jitter_ms
    if name == "flush.ms" and config.log_flush_interval_ms is None:
        return LONG_MAX
    if entry.synonyms:
        return config.value(entry.synonyms[0])
    return entry.setting.default


_LOG_CONFIG_FIELDS = frozenset(field.name for field in dataclasses.fields(LogConfig))


def log_config(overrides: Mapping[str, str], config: BrokerConfig) -> LogConfig:
    """The settings in force for a topic's logs."""
    defaults = _default_log_config(config)
    own = {
        field_name(name): TOPIC_SETTINGS[name].setting.parse(text)
        for name, text in overrides.items()
        if field_name(name) in _LOG_CONFIG_FIELDS
    }
    return dataclasses.replace(defaults, **own) if own else defaults  # type: ignore[arg-type]


_LAST_DEFAULTS: dict[str, tuple[BrokerConfig, LogConfig]] = {}
"""The defaults that were made last, with the settings that they were made of."""


def _default_log_config(config: BrokerConfig) -> LogConfig:
    """Those of a topic without settings of its own; a start asks for each topic."""
    known = _LAST_DEFAULTS.get("config")
    if known is not None and known[0] is config:
        return known[1]
    values = {
        field_name(name): effective_value(name, {}, config)
        for name in TOPIC_SETTINGS
        if field_name(name) in _LOG_CONFIG_FIELDS
    }
    values["producer_id_expiration_ms"] = config.producer_id_expiration_ms
    values["durability"] = config.onceflow_durability
    made = LogConfig(**values)  # type: ignore[arg-type] # each parsed by its declaration
    _LAST_DEFAULTS["config"] = (config, made)
    return made
