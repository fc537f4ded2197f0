"""Goal: a start names the settings that were given and do nothing, with what would make them work.

Method: sets of settings, and what is said about each; nothing is said where each has its effect.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.idle_settings import without_effect
from onceflow.broker_lite.settings.listeners import read_listeners

SASL = {"listeners": "SASL_SSL://127.0.0.1:9092"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def remarks(settings: dict[str, object]) -> list[str]:
    config = BrokerConfig.from_properties(settings)
    return without_effect(config, read_listeners(config, "127.0.0.1", 9092))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"ssl.keystore.location": "key.pem", "ssl.client.auth": "required"},
            ["ssl.keystore.location", "ssl.client.auth", "SSL or SASL_SSL"],
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "sasl.enabled.mechanisms": "PLAIN",
                "onceflow.sasl.plain.credentials": "a:secret",
            },
            ["sasl.enabled.mechanisms", "onceflow.sasl.plain.credentials", "SASL_PLAINTEXT"],
        ),
        ({"super.users": "User:a"}, ["super.users", f"authorizer.class.name={AUTHORIZER}"]),
        (
            {"onceflow.end.txn.marker.delay.ms": 5},
            ["onceflow.end.txn.marker.delay.ms", "onceflow.end.txn.early.answer=true"],
        ),
    ],
)
def test_what_does_nothing_is_named_with_its_remedy(
    settings: dict[str, object], said: list[str]
) -> None:
    (remark,) = remarks(settings)
    for words in said:
        assert words in remark
    assert "secret" not in remark


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num.partitions": 3},
        {**SASL, "sasl.enabled.mechanisms": "PLAIN", "ssl.client.auth": "required"},
        {"super.users": "User:a", "authorizer.class.name": AUTHORIZER},
        {"listener.name.plaintext.max.connections": 5},
        {"onceflow.end.txn.marker.delay.ms": 5, "onceflow.end.txn.early.answer": True},
    ],
)
def test_nothing_is_said_about_settings_that_work(settings: dict[str, object]) -> None:
    assert remarks(settings) == []
