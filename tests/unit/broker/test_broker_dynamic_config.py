"""Goal: a setting that is changed at run time is in force at once, survives, and can be taken back.

Method: requests to a broker without sockets; then the same storage under another broker.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from admin_answers import (
    APPEND,
    BROKER_TYPE,
    DELETE,
    GROUP_TYPE,
    SET,
    TOPIC_TYPE,
    changed,
    create,
    described,
)
from broker_state import SocketlessBroker

from onceflow.broker_lite.cluster_metadata import ClusterMetadata
from onceflow.broker_lite.log import DataFolderError, MemoryStorage
from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.dynamic_config import DYNAMIC_SETTINGS, dynamic_setting
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.admin import (
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from onceflow.sdk.protocol.api.admin_cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse

DYNAMIC, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5
INVALID_CONFIG = 40
INVALID_REQUEST = 42
MIN_INSYNC = "min.insync.replicas"


def change(
    broker: SocketlessBroker, kind: int, name: str, key: str, value: str | None, how: int = SET
) -> int:
    if value is None:
        how = DELETE
    response = broker.ask(changed(kind, name, (key, how, value), check=False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


def shown(broker: SocketlessBroker, kind: int, name: str, key: str) -> tuple[str | None, list[int]]:
    """The value, and where it may come from."""
    response = broker.ask(described(kind, name, key), 4)
    assert isinstance(response, DescribeConfigsResponse)
    (config,) = response.results[0].configs
    return config.value, [synonym.source for synonym in config.synonyms]


def shown_keys(broker: SocketlessBroker, name: str, key: str) -> list[str]:
    response = broker.ask(described(BROKER_TYPE, name, key), 4)
    assert isinstance(response, DescribeConfigsResponse)
    return [config.name for config in response.results[0].configs]


def retention(broker: SocketlessBroker) -> int:
    log = broker.state.topics.partition("t", 0)
    assert log is not None
    return log.config.retention_ms


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def broker(storage: MemoryStorage) -> SocketlessBroker:
    made = SocketlessBroker({"log.retention.hours": 1}, storage)
    made.ask(create("t"), 7)
    return made


def test_logs_follow_at_once_and_the_narrower_one_wins(broker: SocketlessBroker) -> None:
    key = "log.retention.ms"
    assert retention(broker) == 3_600_000
    assert change(broker, BROKER_TYPE, "", key, "1000") == 0
    assert retention(broker) == 1000
    assert change(broker, BROKER_TYPE, "1", key, "2000") == 0
    assert retention(broker) == 2000
    assert shown(broker, BROKER_TYPE, "1", key) == ("2000", [DYNAMIC, DYNAMIC_DEFAULT])
    assert shown(broker, TOPIC_TYPE, "t", "retention.ms") == (
        "2000",
        [DYNAMIC, DYNAMIC_DEFAULT, STATIC],
    )
    assert change(broker, TOPIC_TYPE, "t", "retention.ms", "3000") == 0
    assert retention(broker) == 3000
    for kind, name, setting, left in (
        (TOPIC_TYPE, "t", "retention.ms", 2000),
        (BROKER_TYPE, "1", key, 1000),
        (BROKER_TYPE, "", key, 3_600_000),
    ):
        assert change(broker, kind, name, setting, None) == 0
        assert retention(broker) == left


def test_topics_made_later_follow_too(broker: SocketlessBroker) -> None:
    assert change(broker, BROKER_TYPE, "1", "log.segment.bytes", "2000000") == 0
    broker.ask(create("later"), 7)
    log = broker.state.topics.partition("later", 0)
    assert log is not None
    assert log.config.segment_bytes == 2_000_000


def test_a_restart_finds_what_was_changed(broker: SocketlessBroker, storage: MemoryStorage) -> None:
    assert change(broker, BROKER_TYPE, "1", "log.retention.ms", "2000") == 0
    assert change(broker, BROKER_TYPE, "", "max.connections", "7") == 0
    broker.close()
    again = SocketlessBroker({"log.retention.hours": 1}, storage)
    assert retention(again) == 2000
    assert again.state.config.max_connections == 7
    again.close()


def test_lists_grow_from_the_default_that_is_in_force(broker: SocketlessBroker) -> None:
    assert change(broker, BROKER_TYPE, "1", "log.cleanup.policy", "compact", APPEND) == 0
    assert shown(broker, BROKER_TYPE, "1", "log.cleanup.policy")[0] == "delete,compact"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max.connections.per.ip.overrides", "nonsense"),
        ("log.retention.ms", "-2"),
        ("queued.max.requests", "8"),
    ],
)
def test_a_bad_change_changes_nothing(broker: SocketlessBroker, key: str, value: str) -> None:
    before = broker.state.config
    assert change(broker, BROKER_TYPE, "1", key, value) == 42
    assert broker.state.config == before


def test_a_bad_value_at_the_start_is_not_taken_for_one_of_run_time() -> None:
    """The remedy is at the command line, not in the data folder."""
    with pytest.raises(ConfigError, match=r"^max\.connections\.per\.ip\.overrides='host:3': give"):
        SocketlessBroker({"max.connections.per.ip.overrides": "host:3"})


@pytest.mark.parametrize("key", sorted(IDLE_DYNAMIC_SETTINGS))
def test_what_only_apache_kafka_has_a_use_for_is_kept_and_removed(
    storage: MemoryStorage, key: str
) -> None:
    """Tools that move partitions, tune threads or describe clusters in files set it."""
    setting = IDLE_DYNAMIC_SETTINGS[key]
    text = setting.render(setting.default)
    places = (("1", DYNAMIC), ("", DYNAMIC_DEFAULT))
    broker = SocketlessBroker(storage=storage)
    for name, _ in places:
        assert change(broker, BROKER_TYPE, name, key, text) == 0
    broker.close()
    again = SocketlessBroker(storage=storage)
    for name, source in places:
        assert shown(again, BROKER_TYPE, name, key) == (text, [source])
        assert change(again, BROKER_TYPE, name, key, None) == 0
    assert shown_keys(again, "1", key) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.cleaner.threads", "x"),
        ("num.io.threads", "0"),
        ("sasl.login.refresh.window.factor", "1.1"),
        ("unclean.leader.election.enable", "maybe"),
    ],
)
def test_what_has_no_effect_is_still_checked(
    broker: SocketlessBroker, key: str, value: str
) -> None:
    assert change(broker, BROKER_TYPE, "1", key, value) == INVALID_REQUEST


def test_a_setting_that_kafka_does_not_know_is_refused_by_name(broker: SocketlessBroker) -> None:
    assert change(broker, BROKER_TYPE, "1", "num.io.thread", "2") == INVALID_REQUEST


def test_a_change_that_cannot_be_kept_is_not_made() -> None:
    storage = FailingStorage()
    broker = SocketlessBroker(storage=storage)
    storage.fail_write(len(storage.writes))
    assert change(broker, BROKER_TYPE, "1", "log.retention.ms", "2000") == 56
    assert broker.state.config.log_retention_ms is None


def test_a_kept_setting_that_makes_no_sense_stops_the_start(storage: MemoryStorage) -> None:
    ClusterMetadata(storage).save("broker-configs", {"1": {"log.retention.ms": "x"}})
    with pytest.raises(DataFolderError, match=r"log\.retention\.ms"):
        SocketlessBroker(storage=storage)


def test_every_dynamic_setting_that_is_served_can_be_set_to_its_default(
    broker: SocketlessBroker,
) -> None:
    served = [name for name in sorted(DYNAMIC_SETTINGS) if dynamic_setting(name) is not None]
    assert len(served) > 20
    for name in served:
        setting = BROKER_SETTINGS[name]
        text = setting.render(setting.default)
        if text is not None and name != MIN_INSYNC:
            assert change(broker, BROKER_TYPE, "1", name, text) == 0, name
            assert shown(broker, BROKER_TYPE, "1", name)[1][0] == DYNAMIC, name


def test_a_setting_that_is_given_its_default_is_one_of_the_start() -> None:
    broker = SocketlessBroker({"num.partitions": 1, "log.retention.hours": "168"})
    assert shown(broker, BROKER_TYPE, "1", "num.partitions") == ("1", [STATIC, DEFAULT])
    assert shown(broker, BROKER_TYPE, "1", "log.retention.hours") == ("168", [STATIC, DEFAULT])
    assert shown(broker, BROKER_TYPE, "1", "fetch.max.bytes")[1] == [DEFAULT]


def test_where_the_broker_listens_is_one_of_the_start(broker: SocketlessBroker) -> None:
    for key in ("listeners", "advertised.listeners"):
        assert shown(broker, BROKER_TYPE, "1", key) == ("PLAINTEXT://127.0.0.1:9092", [STATIC])
    told = replace(broker.state.listeners[1, "PLAINTEXT"], advertised_host="::1")
    broker.state.listeners[1, "PLAINTEXT"] = told
    assert shown(broker, BROKER_TYPE, "1", "advertised.listeners")[0] == "PLAINTEXT://[::1]:9092"


# --- min.insync.replicas (KIP-966)


def refusal(broker: SocketlessBroker, name: str, value: str | None) -> str:
    how = SET if value is not None else DELETE
    response = broker.ask(changed(BROKER_TYPE, name, (MIN_INSYNC, how, value), check=False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == INVALID_CONFIG
    return response.responses[0].error_message or ""


def test_min_insync_replicas_is_the_clusters_and_the_topics(broker: SocketlessBroker) -> None:
    both = [DYNAMIC_DEFAULT, DEFAULT]
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("1", both)
    assert shown(broker, BROKER_TYPE, "1", MIN_INSYNC) == ("1", both)
    assert shown(broker, BROKER_TYPE, "", MIN_INSYNC) == ("1", [DYNAMIC_DEFAULT])
    assert "cannot be removed" in refusal(broker, "", None)
    assert "Broker-level" in refusal(broker, "1", "2")
    assert change(broker, BROKER_TYPE, "", MIN_INSYNC, "3") == 0
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("3", both)
    assert change(broker, TOPIC_TYPE, "t", MIN_INSYNC, "2") == 0
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("2", [1, *both])


def test_min_insync_replicas_of_the_start_is_the_clusters(storage: MemoryStorage) -> None:
    broker = SocketlessBroker({MIN_INSYNC: 2}, storage)
    broker.ask(create("t"), 7)
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("2", [DYNAMIC_DEFAULT, STATIC, DEFAULT])
    # Another setting of the cluster keeps it as it is.
    assert change(broker, BROKER_TYPE, "", "log.retention.ms", "2000") == 0
    broker.close()
    again = SocketlessBroker({}, storage)
    assert shown(again, TOPIC_TYPE, "t", MIN_INSYNC) == ("2", [DYNAMIC_DEFAULT, DEFAULT])


def test_without_the_feature_min_insync_replicas_is_as_other_settings(
    storage: MemoryStorage,
) -> None:
    broker = SocketlessBroker({}, storage)
    broker.ask(create("t"), 7)
    lowered = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature="eligible.leader.replicas.version", max_version_level=0, upgrade_type=2
            )
        ]
    )
    assert broker.ask(lowered, 1) == UpdateFeaturesResponse(
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature="eligible.leader.replicas.version"
            )
        ]
    )
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("1", [DEFAULT])
    assert change(broker, BROKER_TYPE, "1", MIN_INSYNC, "2") == 0
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("2", [DYNAMIC, DEFAULT])
    broker.close()
    again = SocketlessBroker({}, storage)
    assert shown(again, TOPIC_TYPE, "t", MIN_INSYNC) == ("2", [DYNAMIC, DEFAULT])
    assert again.state.config.min_insync_replicas == 2


@pytest.mark.parametrize("profile", ["2.8", "3.9", "4.0"])
def test_releases_before_the_feature_do_without_it(profile: str) -> None:
    broker = SocketlessBroker({"onceflow.profile": profile})
    broker.ask(create("t"), 5)
    assert shown(broker, TOPIC_TYPE, "t", MIN_INSYNC) == ("1", [DEFAULT])


# --- features


def features(broker: SocketlessBroker) -> tuple[dict[str, int], int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = broker.ask(request, 4)
    assert isinstance(response, ApiVersionsResponse)
    levels = {f.name: f.max_version_level for f in response.finalized_features}
    return levels, response.finalized_features_epoch


def set_feature(broker: SocketlessBroker, level: int, upgrade_type: int, version: int = 2) -> int:
    key = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version",
        max_version_level=level,
        allow_downgrade=version == 0 and upgrade_type > 1,
        upgrade_type=1 if version == 0 else upgrade_type,
    )
    response = broker.ask(UpdateFeaturesRequest(feature_updates=[key]), version)
    assert isinstance(response, UpdateFeaturesResponse)
    return response.error_code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_levels_go_down_only_when_that_is_meant_and_survive(
    broker: SocketlessBroker, storage: MemoryStorage, version: int
) -> None:
    levels, epoch = features(broker)
    assert levels["transaction.version"] == 2
    assert set_feature(broker, 1, 1, version) == 95
    assert features(broker) == (levels, epoch)
    assert set_feature(broker, 1, 2, version) == 0
    assert features(broker)[0]["transaction.version"] == 1
    assert features(broker)[1] > epoch
    assert broker.state.transactions._settings.transaction_version == 1
    broker.close()
    again = SocketlessBroker(storage=storage)
    assert features(again)[0]["transaction.version"] == 1
    assert again.state.transactions._settings.transaction_version == 1
    assert set_feature(again, 0, 2, version) == 0
    assert "transaction.version" not in features(again)[0]
    again.close()


def test_a_level_of_a_later_broker_stops_the_start(storage: MemoryStorage) -> None:
    kept = {"epoch": 3, "levels": {"transaction.version": 9}}
    ClusterMetadata(storage).save("features", kept)  # type: ignore[arg-type]
    with pytest.raises(DataFolderError, match="later broker"):
        SocketlessBroker(storage=storage)


def test_groups_without_settings_have_none(broker: SocketlessBroker) -> None:
    assert change(broker, GROUP_TYPE, "g", "nope", "1") == 40


def test_a_setting_of_a_group_is_held_within_the_bounds_of_today(storage: MemoryStorage) -> None:
    name = "consumer.session.timeout.ms"
    first = SocketlessBroker(storage=storage)
    assert change(first, GROUP_TYPE, "long", name, "60000") == 0
    assert change(first, GROUP_TYPE, "short", name, "46000") == 0
    first.close()
    bounds = {
        "group.consumer.min.session.timeout.ms": 50_000,
        "group.consumer.session.timeout.ms": 52_000,
        "group.consumer.max.session.timeout.ms": 55_000,
    }
    again = SocketlessBroker(bounds, storage).state.dynamic_config
    found = [again.group_value(group, name) for group in ("long", "short", "none")]
    assert found == [55_000, 50_000, 52_000]


def test_a_change_that_is_only_checked_is_checked_as_a_whole(broker: SocketlessBroker) -> None:
    setting = ("max.connections.per.ip.overrides", SET, "nonsense")
    response = broker.ask(changed(BROKER_TYPE, "1", setting, check=True), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 42
