"""Goal: listeners mean what they mean in Kafka (KIP-103), and none is open by accident.

Method: settings in, listeners or the error out; nothing is bound.
"""

from __future__ import annotations

import pytest
from broker_state import SocketlessBroker

from onceflow.broker_lite.net.endpoint import Endpoint
from onceflow.broker_lite.security.listener_security import ListenerSecurity
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import (
    Listener,
    SecurityProtocol,
    check_openness,
    read_listeners,
)
from onceflow.sdk.errors import ConfigError


def read(**settings: object) -> tuple[Listener, ...]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return read_listeners(BrokerConfig.from_properties(named), "127.0.0.1", 9092)


def test_without_listeners_there_is_the_given_one() -> None:
    (only,) = read()
    assert (only.name, only.address, only.advertised) == (
        "PLAINTEXT", "127.0.0.1:9092", ("127.0.0.1", 9092)
    )  # fmt: skip


def test_each_listener_has_its_protocol_and_address() -> None:
    listeners = read(
        listeners="plaintext://127.0.0.1:1, CLIENTS://[::1]:2,SASL_PLAINTEXT://:3",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        advertised_listeners="CLIENTS://kafka.example:19092",
        sasl_enabled_mechanisms="PLAIN",
    )
    assert [(each.name, each.protocol.value, each.address) for each in listeners] == [
        ("PLAINTEXT", "PLAINTEXT", "127.0.0.1:1"),
        ("CLIENTS", "SASL_PLAINTEXT", "[::1]:2"),
        ("SASL_PLAINTEXT", "SASL_PLAINTEXT", "127.0.0.1:3"),
    ]
    assert [each.advertised for each in listeners] == [
        ("127.0.0.1", 1), ("kafka.example", 19092), ("", 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "each listener once"),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:1"}, "a port each"),
        ({"listeners": "CLIENTS://h:1"}, "CLIENTS:PROTOCOL"),
        ({"listener_security_protocol_map": "A:TLS"}, "NAME:PROTOCOL"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "clients can reach"),
        (
            {
                "listeners": "PLAINTEXT://h:1,SSL://h:2",
                "advertised_listeners": "OTHER://h:3,SSL://h:4",
            },
            "no listener OTHER",
        ),
    ],
)
def test_a_wrong_setting_names_its_remedy(settings: dict[str, object], remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        read(**settings)


def test_an_open_listener_needs_to_be_allowed() -> None:
    open_one = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "0.0.0.0", 9092)
    with pytest.raises(ConfigError, match="--allow-insecure-network"):
        check_openness([open_one], allowed=False)
    check_openness([open_one], allowed=True)


@pytest.mark.parametrize(
    ("protocol", "host"),
    [("PLAINTEXT", "127.0.0.1"), ("PLAINTEXT", "::1"), ("PLAINTEXT", "localhost"),
     ("SASL_PLAINTEXT", "0.0.0.0")],
)  # fmt: skip
def test_a_local_or_authenticated_listener_is_not_open(protocol: str, host: str) -> None:
    (listener,) = read_listeners(
        BrokerConfig.from_properties({"listeners": f"{protocol}://{host}:1"}), "", 0
    )
    check_openness([listener], allowed=False)


@pytest.mark.parametrize(
    ("protocol", "host", "mechanisms", "told"),
    [
        ("SASL_PLAINTEXT", "0.0.0.0", "PLAIN", ["passwords of PLAIN"]),
        ("SASL_PLAINTEXT", "10.1.2.3", "SCRAM-SHA-512,PLAIN", ["passwords of PLAIN"]),
        ("SASL_PLAINTEXT", "::", "PLAIN,OAUTHBEARER", ["passwords of PLAIN and tokens of OAUTH"]),
        ("SASL_PLAINTEXT", "10.1.2.3", "OAUTHBEARER", ["tokens of OAUTHBEARER"]),
        ("SASL_PLAINTEXT", "10.1.2.3", "SCRAM-SHA-256,SCRAM-SHA-512", []),
        ("SASL_PLAINTEXT", "127.0.0.1", "PLAIN", []),
        ("SASL_PLAINTEXT", "localhost", "PLAIN,OAUTHBEARER", []),
        ("PLAINTEXT", "0.0.0.0", "PLAIN", ["is open to everybody"]),
        ("PLAINTEXT", "127.0.0.1", "PLAIN", []),
    ],
)
def test_a_start_tells_which_secrets_travel_for_everybody_to_read(
    protocol: str, host: str, mechanisms: str, told: list[str]
) -> None:
    settings: dict[str, object] = {
        "listeners": f"{protocol}://[{host}]:9092" if ":" in host else f"{protocol}://{host}:9092",
        "sasl.enabled.mechanisms": mechanisms,
        "onceflow.sasl.plain.credentials": "alice:secret",
        "onceflow.sasl.oauthbearer.unsecured": True,
    }
    broker = SocketlessBroker(settings)
    (listener,) = read_listeners(broker.state.config, "", 0)
    remarks = Endpoint(listener, 1, ListenerSecurity(broker.state, listener)).remarks()
    assert len(remarks) == len(told)
    for remark, text in zip(remarks, told, strict=True):
        assert text in remark
        assert str(listener) in remark
