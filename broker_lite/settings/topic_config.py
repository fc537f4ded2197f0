"""Settings of single topics: names, bounds, the broker property each falls back to, validation.

It decides which value is in force for a topic and where it comes from (DescribeConfigs), and which
values CreateTopics and IncrementalAlterConfigs accept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.broker_lite.log.log_config import LogConfig, TopicConfig
from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS, BrokerConfig
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import ConfigSource
from onceflow.sdk.settings.declare import INT64_MAX, Setting, plain
from onceflow.sdk.settings.names import unknown_setting

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.topics")


TOPIC_SETTINGS: dict[str, Setting] = {each.name: each for each in TopicConfig.declared.values()}
"""Declarations of a topic's settings by name."""


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
        source: Whether for this broker or for all.
        overrides: Text by name.
    """

    source: ConfigSource
    overrides: Mapping[str, str]


def validate_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Check the settings of a topic that a client gave.

    Args:
        overrides: Text by name.

    Returns:
        The same, in the form in which they are stored.

    Raises:
        ConfigError: Unknown name, missing or bad value, or values that exclude each other.
    """
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        if name not in TOPIC_SETTINGS:
            raise unknown_setting(TopicConfig.kind, name, TOPIC_SETTINGS, TopicConfig.places())
        if text is None:
            raise ConfigError(name, text, "give a value, or leave the setting out")
        setting = TOPIC_SETTINGS[name]
        checked[name] = setting.render(setting.read(text)) or ""
    low = int(checked.get("min.compaction.lag.ms", "0"))
    high = int(checked.get("max.compaction.lag.ms", str(INT64_MAX)))
    if low > high:
        raise ConfigError(
            "min.compaction.lag.ms", low, f"give at most max.compaction.lag.ms ({high})"
        )
    return checked


def usable_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's settings in Apache Kafka that this broker has; log the others."""
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
    """Return the possible sources of a broker setting's value, the one in force first.

    Args:
        names: Broker properties, the one that wins first.
        config: Settings at the broker's start.
        layers: Settings that were changed at run time.
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
    # Kafka shows only the default of the first property, or none if that has none.
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
    """Return the possible sources of a topic setting's value, the one in force first.

    Args:
        name: Topic setting.
        overrides: Settings of the topic.
        config: Settings at the broker's start.
        layers: Settings of the broker that were changed at run time.
    """
    found = broker_synonyms(TOPIC_SETTINGS[name].aliases, config, layers)
    if name in overrides:
        found.insert(0, ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    return found


def effective_value(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> object:
    """Return the value in force for a topic setting, in its unit."""
    setting = TOPIC_SETTINGS[name]
    if name in overrides:
        return setting.read(overrides[name])
    if name == "retention.ms":
        return config.retention_ms
    if name == "segment.ms":
        return config.roll_ms
    if name == "segment.jitter.ms":
        return config.roll_jitter_ms
    if name == "flush.ms" and config.log_flush_interval_ms is None:
        return INT64_MAX
    return config.value(setting.aliases[0]) if setting.aliases else setting.default


def log_config(overrides: Mapping[str, str], config: BrokerConfig) -> LogConfig:
    """Return the settings in force for a topic's logs."""
    defaults = _default_log_config(config)
    own = {plain(name): TOPIC_SETTINGS[name].read(text) for name, text in overrides.items()}
    return defaults.replace(**own) if own else defaults


_LAST_DEFAULTS: dict[str, tuple[BrokerConfig, LogConfig]] = {}
"""The last computed defaults, with the settings of which they were made."""


def _default_log_config(config: BrokerConfig) -> LogConfig:
    """Return the settings of a topic without overrides; cached, as a start needs it per topic."""
    known = _LAST_DEFAULTS.get("config")
    if known is not None and known[0] is config:
        return known[1]
    values = {plain(name): effective_value(name, {}, config) for name in TOPIC_SETTINGS}
    values["producer_id_expiration_ms"] = config.producer_id_expiration_ms
    values["durability"] = config.onceflow_durability
    made = LogConfig.build(values)
    _LAST_DEFAULTS["config"] = (config, made)
    return made
