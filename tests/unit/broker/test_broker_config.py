"""Goal: settings have Kafka's names, types, bounds and defaults, and errors that say what to do.

Method: read properties into `BrokerConfig`, and topic settings through their table.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS, BrokerConfig
from onceflow.broker_lite.settings.topic_config import (
    TOPIC_SETTINGS,
    effective_value,
    log_config,
    synonyms,
    validate_overrides,
)
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import ConfigSource


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig()
    assert config.socket_request_max_bytes == 104_857_600
    assert config.message_max_bytes == 1_048_588
    assert config.connections_max_idle_ms == 600_000
    assert config.fetch_max_bytes == 57_671_680
    assert config.group_initial_rebalance_delay_ms == 3_000
    assert config.transaction_max_timeout_ms == 900_000
    assert config.offsets_topic_num_partitions == 50
    assert config.retention_ms == 7 * 24 * 3_600_000
    assert config.auto_create_topics_enable


def test_every_field_is_its_property_with_underscores() -> None:
    for name, setting in BROKER_SETTINGS.items():
        assert BrokerConfig().value(name) == setting.default


def test_every_default_is_allowed_by_its_own_bounds() -> None:
    for setting in BROKER_SETTINGS.values():
        text = setting.render(setting.default)
        if text:
            assert setting.read(text) == setting.default


def test_in_process_defaults_are_settings() -> None:
    config = BrokerConfig.from_properties({}, defaults=IN_PROCESS_DEFAULTS)
    assert config.group_initial_rebalance_delay_ms == 0


def test_unknown_property_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions\?"):
        BrokerConfig.from_properties({"num.partition": 3})


def test_property_without_effect_here_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        BrokerConfig.from_properties({"zookeeper.connect": "localhost"})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("num.partitions", "many", "whole number"),
        ("num.partitions", "1_0", "whole number"),
        ("num.partitions", 0, "from 1 to 10000"),
        ("socket.request.max.bytes", 2**31, "to 2147483647"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.message.timestamp.type", "Wall", "'CreateTime', 'LogAppendTime'"),
        ("log.cleanup.policy", "delete,shred", "'compact', 'delete'"),
        ("log.cleaner.min.cleanable.ratio", "nan", "number"),
        ("log.segment.bytes", 14, "from 1048576"),
        ("default.replication.factor", 3, "from 1 to 1"),
    ],
)
def test_bad_value_is_refused_with_property_value_and_remedy(
    name: str, value: object, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({name: value})
    assert name in str(caught.value)
    assert str(value) in str(caught.value)
    assert remedy in str(caught.value)


def test_session_timeout_bounds_must_fit_together() -> None:
    with pytest.raises(ConfigError, match=r"group\.min\.session\.timeout\.ms"):
        BrokerConfig.from_properties(
            {"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 5}
        )


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.minutes": 2, "log.retention.ms": 5}, 5),
        ({"log.retention.hours": -1}, -1),
    ],
)
def test_finer_unit_of_retention_wins(properties: dict[str, int], retention_ms: int) -> None:
    config = BrokerConfig.from_properties(properties)
    assert config.retention_ms == retention_ms
    assert effective_value("retention.ms", {}, config) == retention_ms


def test_topic_settings_have_kafkas_names_and_their_broker_properties_exist() -> None:
    assert {"cleanup.policy", "retention.ms", "segment.bytes", "max.message.bytes"} <= set(
        TOPIC_SETTINGS
    )
    for setting in TOPIC_SETTINGS.values():
        for name in setting.aliases:
            assert name in BROKER_SETTINGS


def test_topic_override_wins_over_broker_and_default() -> None:
    config = BrokerConfig.from_properties({"message.max.bytes": 2000})
    places = synonyms("max.message.bytes", {"max.message.bytes": "1000"}, config)
    assert [(place.name, place.value, place.source) for place in places] == [
        ("max.message.bytes", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("message.max.bytes", "2000", ConfigSource.STATIC_BROKER_CONFIG),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
    ]
    assert effective_value("max.message.bytes", {"max.message.bytes": "1000"}, config) == 1000
    assert effective_value("max.message.bytes", {}, config) == 2000


def test_log_config_carries_what_is_in_force() -> None:
    config = BrokerConfig.from_properties({"log.roll.hours": 2, "producer.id.expiration.ms": 9})
    settings = log_config({"cleanup.policy": "compact", "segment.bytes": "2000000"}, config)
    assert settings.cleanup_policy == ("compact",)
    assert settings.segment_bytes == 2_000_000
    assert settings.segment_ms == 7_200_000
    assert settings.producer_id_expiration_ms == 9


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"segment.byte": "1"}, "did you mean segment.bytes"),
        ({"log.segment.bytes": "2000000"}, "write segment_bytes"),
        ({"segment.bytes": "1000"}, "from 1048576"),
        ({"retention.ms": None}, "give a value"),
        ({"retention.ms": "-2"}, "from -1"),
        ({"cleanup.policy": "shred"}, "'compact', 'delete'"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "at most"),
    ],
)
def test_bad_topic_setting_is_refused(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_overrides(overrides)
