"""Goal: a wrong setting is refused at once, by name, with what to write instead.

Method: each rule of the configurations once, and the constructors' types against the fields.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.processors.settings import AppSettings
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import IsolationLevel, ProducerIdentity
from onceflow.sdk.schema_registry.config import SchemaRegistryConfig
from onceflow.sdk.settings.addresses import Address, parse_bootstrap_servers
from onceflow.sdk.settings.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
)
from onceflow.transactions import SessionConfig

ME = ProducerIdentity("x", 1, 0)
PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "u",
    "sasl_password": "p",
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1", [Address("a", 1)]),
        ("a:1, b:2 ,,", [Address("a", 1), Address("b", 2)]),
        (["a:1", " b:2", "a:1"], [Address("a", 1), Address("b", 2)]),
        ("a", [Address("a", 9092)]),
        ("[::1]:9093", [Address("::1", 9093)]),
        ("::1", [Address("::1", 9092)]),
        ("PLAINTEXT://a:5", [Address("a", 5)]),
    ],
)
def test_bootstrap_servers_are_read_in_every_usual_form(
    given: str | list[str], expected: list[Address]
) -> None:
    assert list(parse_bootstrap_servers(given)) == expected


@pytest.mark.parametrize("given", ["", " , ", [], "a:x", ":9092", "a:0", "a:70000", "[::1"])
def test_bootstrap_servers_that_are_none_are_refused(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        ClientConfig(bootstrap_servers=given)


def test_an_ipv6_address_is_printed_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("linger_mss", "did you mean linger_ms"),
        ("linger.ms", "write linger_ms"),
        ("retries", "delivery_timeout_ms"),
        ("security_protocol", "SecurityConfig"),
        ("sasl_user", r"security=SecurityConfig\(sasl_username=...\)"),
        ("ssl_ca_location", r"security=SecurityConfig\(ssl_cafile=...\)"),
        ("quite_another_thing", r"a producer has no such setting; see docs/configuration\.md"),
        ("rebalance_timeout_ms", "max_poll_interval_ms"),
        ("ssl_password", r"SecurityConfig\(ssl_key_password=...\)"),
        ("ssl_ciphers", r"SecurityConfig\(ssl_context=...\)"),
        ("schema.registry.url", "SchemaRegistry"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        ProducerConfig.from_settings({name: 5})
    with pytest.raises(ConfigError, match=hint):
        ProducerConfig(**{name: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "name", "hint"),
    [
        (SecurityConfig, "sasl_user", "did you mean sasl_username"),
        (SecurityConfig, "ssl_ca_location", "write ssl_cafile"),
        (ConsumerConfig, "group", "group_id"),
        (AdminConfig, "clientid", "client_id"),
        (SchemaRegistryConfig, "timeout", "timeout_ms"),
        (SessionConfig, "comit_interval_ms", "did you mean commit_interval_ms"),
        (SessionConfig, "lingerms", "a session has no such setting; did you mean linger_ms"),
        (AppSettings, "sasl_username", r"security=SecurityConfig\(sasl_username"),
        (AppSettings, "slots", "did you mean slot"),
    ],
)
def test_every_configuration_explains_a_name_that_it_does_not_have(
    settings: Callable[..., object], name: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        settings(**{name: "secret"})
    assert caught.value.field == name
    assert "secret" not in str(caught.value)


def test_messages_are_english_and_choices_can_be_written() -> None:
    with pytest.raises(ConfigError, match="an admin has no such setting"):
        AdminConfig.from_settings({"group_id": "g"})
    with pytest.raises(ConfigError, match=r"must be one of 'read_committed', 'read_uncommitted'$"):
        ConsumerConfig(isolation_level="committed")


def test_configurations_can_be_copied_and_pickled() -> None:
    config = ProducerConfig(linger_ms=7, security=SecurityConfig(security_protocol="SSL"))
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert config.replace(linger_ms=8).security == config.security


def test_security_that_is_none_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="SecurityConfig") as caught:
        ProducerConfig(security={"sasl_password": "hunter2"})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "field", "hint"),
    [
        ({"acks": 1}, "acks", "enable_idempotence=False"),
        ({"acks": 0}, "acks", "enable_idempotence=False"),
        ({"acks": 2}, "acks", "must be one of"),
        ({"linger_ms": -1}, "linger_ms", "from 0"),
        ({"linger_ms": 1.5}, "linger_ms", "whole number"),
        ({"batch_size": True}, "batch_size", "whole number"),
        ({"compression_type": "brotli"}, "compression_type", "zstd"),
        ({"max_in_flight_requests_per_connection": 6}, "max_in_flight", "at most 5"),
        ({"delivery_timeout_ms": 1_000}, "delivery_timeout_ms", "linger_ms"),
        ({"buffer_memory": 1_000}, "buffer_memory", "max_request_size"),
        ({"transactional_id": ""}, "transactional_id", "name or None"),
        ({"transactional_id": "x", "enable_idempotence": False}, "enable_idempotence", "need"),
        ({"transactional_id": "x", "joined_identity": ME}, "joined_identity", "either owns"),
        ({"transactional_id": "y", "resumed_identity": ME}, "transactional_id", "belongs to"),
        ({"resumed_identity": ME, "joined_identity": ME}, "joined_identity", "not both"),
        ({"partitioner": 3}, "partitioner", "function"),
        ({"retry_backoff_ms": 5_000}, "retry_backoff_ms", "must not exceed"),
    ],
)
def test_a_wrong_producer_setting_names_the_remedy(
    settings: dict[str, object], field: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        ProducerConfig.from_settings(settings)
    assert caught.value.field.startswith(field)


def test_without_idempotence_weaker_acks_are_taken() -> None:
    for acks, number in (("all", -1), (-1, -1), (1, 1), ("0", 0)):
        config = ProducerConfig(acks=acks, enable_idempotence=False)
        assert config.wire_acks == number


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset"),
        ({"group_protocol": "consumer", "session_timeout_ms": 1_000}, "session_timeout_ms"),
        ({"isolation_level": "committed"}, "isolation_level"),
        ({"group_id": ""}, "group_id"),
        ({"group_instance_id": "a"}, "group_instance_id"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms"),
        ({"partition_assignment_strategy": "range"}, "partition_assignment_strategy"),
        ({"partition_assignment_strategy": []}, "partition_assignment_strategy"),
        ({"fetch_max_wait_ms": 30_000}, "fetch_max_wait_ms"),
    ],
)
def test_a_wrong_consumer_setting_is_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.from_settings(settings)
    assert caught.value.field == field


def test_the_isolation_level_is_taken_as_text_or_enum() -> None:
    assert ConsumerConfig().isolation is IsolationLevel.READ_COMMITTED
    config = ConsumerConfig(isolation_level=IsolationLevel.READ_UNCOMMITTED)
    assert config.isolation is IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_mechanism"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl_username"),
        ({"sasl_username": "u"}, "security_protocol"),
        ({"ssl_cafile": "ca.pem"}, "security_protocol"),
        ({"ssl_keyfile": "k.pem"}, "security_protocol"),
        ({"ssl_truststore_certificates": "x"}, "security_protocol"),
        ({"security_protocol": "SSL", "ssl_keystore_key": "x"}, "ssl_keystore_key"),
        ({"sasl_password": "p"}, "security_protocol"),
        ({"sasl_oauth_token_provider": str}, "security_protocol"),
        ({"security_protocol": "SSL", "sasl_username": "u"}, "security_protocol"),
        ({"security_protocol": "SSL", "ssl_keyfile": "k.pem"}, "ssl_keyfile"),
        ({"security_protocol": "SSL", "ssl_key_password": "x"}, "ssl_key_password"),
        (PLAIN | {"sasl_oauth_token_provider": str}, "sasl_oauth_token_provider"),
        (PLAIN | {"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
        (
            PLAIN | {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": str},
            "sasl_username",
        ),
    ],
)
def test_security_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        SecurityConfig(**settings)
    assert caught.value.field == field


def test_a_password_is_never_printed() -> None:
    security = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="hunter2",
    )
    assert "hunter2" not in repr(security)
    assert "hunter2" not in repr(ProducerConfig(security=security))
