"""Goal: no password, key or token is printed: not in a repr, not in an error, not in a log line.

Method: each value class of the product that has a field named like a secret must leave it out of
its repr. Then secrets are given in right, wrong and misspelt places, as a program may do, and the
repr, the error and what was logged are searched for them.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import onceflow
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.sdk import (
    ClientCredentials,
    OAuthToken,
    Producer,
    ProducerConfig,
    ScramUpsertion,
    SecurityConfig,
)
from onceflow.sdk.errors import ConfigError, KafkaError
from onceflow.sdk.protocol.schema import Message
from onceflow.sdk.protocol.scram import keys_of
from onceflow.sdk.schema_registry import SchemaRegistry
from onceflow.sdk.settings.declare import Settings

SECRET = "hunter2-secret"
PLAIN = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "me"}
NAMED_LIKE_A_SECRET = re.compile(
    r"password|secret|stored_key|server_key|private_key|user_info|jaas|_token$|^token$|auth_bytes"
)
NO_SECRETS = {
    "delegation_token_authenticated",  # Whether there is one.
    "commit_token",
}


def value_classes() -> Iterator[type]:
    """Dataclasses, named tuples and settings of the product with a field named like a secret."""
    for module in pkgutil.walk_packages(onceflow.__path__, "onceflow."):
        if module.name.endswith("__main__"):
            continue
        for item in vars(importlib.import_module(module.name)).values():
            if isinstance(item, type) and item.__module__ == module.name and secrets_of(item):
                yield item


def secrets_of(kind: type) -> list[str]:
    """Names of the fields of a class that are named like secrets."""
    if dataclasses.is_dataclass(kind):
        names: list[str] = [item.name for item in dataclasses.fields(kind)]
    elif issubclass(kind, Settings):
        names = list(kind.declared)
    elif issubclass(kind, Message):
        names = [name for name, field in kind.fields().items() if field.struct_type is None]
    else:
        found: object = getattr(kind, "_fields", ())
        names = list(found) if isinstance(found, tuple) else []
    return [n for n in names if NAMED_LIKE_A_SECRET.search(n) and n not in NO_SECRETS]


@pytest.mark.spark
def test_value_classes_leave_secrets_out_of_their_repr() -> None:
    found = list(value_classes())
    assert {ScramUpsertion, SecurityConfig, ClientCredentials} <= set(found)
    assert [kind for kind in found if SECRET in repr(value_with_secrets(kind))] == []


def value_with_secrets(kind: Any) -> object:
    """A value whose secret fields hold the secret, and the others nothing."""
    secrets = secrets_of(kind)
    if issubclass(kind, Message):
        return kind(**dict.fromkeys(secrets, SECRET.encode()))
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [SECRET if name in secrets else None for name in kind._fields])
    value = object.__new__(kind)
    if issubclass(kind, Settings):
        usual = {name: setting.default for name, setting in kind.declared.items()}
        vars(value).update(usual | dict.fromkeys(secrets_of(kind), SECRET))
        return value
    for item in dataclasses.fields(kind):
        default = "https://h" if item.default is dataclasses.MISSING else item.default
        object.__setattr__(value, item.name, SECRET if item.name in secrets else default)
    return value


def of_properties(**given: str) -> Callable[[], object]:
    """Reading properties; `_` in a name stands for a dot."""
    named = {name.replace("_", "."): value for name, value in given.items()}
    return lambda: ProducerConfig.from_properties({"bootstrap.servers": "a:1", **named})


CASES: dict[str, Callable[[], object]] = {
    "right": lambda: SecurityConfig(**PLAIN, sasl_password=SECRET),
    "bytes": lambda: SecurityConfig(**PLAIN, sasl_password=SECRET.encode()),
    "without encryption": lambda: SecurityConfig(sasl_username="me", sasl_password=SECRET),
    "misspelt": lambda: SecurityConfig(sasl_pasword=SECRET),
    "no text": lambda: SecurityConfig(**PLAIN, sasl_password=SECRET + "\ud800"),
    "at the top": lambda: ProducerConfig.from_settings({"sasl_password": SECRET}),
    "misspelt at the top": lambda: ProducerConfig.from_settings({"sasl_pasword": SECRET}),
    "mapping": lambda: Producer(bootstrap_servers="a:1", security={"sasl_password": SECRET}),
    "address": lambda: Producer(bootstrap_servers=f"me:{SECRET}@127.0.0.1:1"),
    "properties": of_properties(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password=SECRET,
    ),
    "jaas": of_properties(sasl_jaas_config=f'Module required username="me" pasword="{SECRET}";'),
    "misspelt jaas": of_properties(sasl_jaas_confg=f'Module username="me" password="{SECRET}"'),
    "store": of_properties(ssl_truststore_password=SECRET),
    "token": lambda: OAuthToken(SECRET),
    "token with a break": lambda: OAuthToken(SECRET + "\n"),
    "token instead of its provider": lambda: SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=SECRET,
    ),
    "credentials": lambda: ClientCredentials("https://login.example/token", "me", SECRET),
    "token URL": lambda: ClientCredentials(f"https://me:{SECRET}@login.example", "me", "x"),
    "plain token URL": lambda: ClientCredentials(f"http://me:{SECRET}@login.example", "me", "x"),
    "SCRAM user": lambda: ScramUpsertion("me", SECRET),
    "SCRAM keys": lambda: keys_of("SCRAM-SHA-256", SECRET.encode(), b"salt", 4096),
    "registry URL": lambda: SchemaRegistry(f"https://me:{SECRET}@registry.example"),
    "wrong registry URL": lambda: SchemaRegistry(f"ftp://me:{SECRET}@registry.example"),
    "registry user": lambda: SchemaRegistry("https://h", basic_auth_user_info=SECRET),
    "broker's key": lambda: BrokerConfig.from_properties({"ssl.key.password": SECRET}),
    "broker's misspelt key": lambda: BrokerConfig.from_properties({"ssl.key.pasword": SECRET}),
    "broker's users": lambda: BrokerConfig.from_properties(
        {"listener.name.x.plain.sasl.jaas.config": f'Module required user_me="{SECRET}";'}
    ),
    "broker's misspelt users": lambda: BrokerConfig.from_properties(
        {"listener.name.x.plain.sasl.jaas.confg": f'Module required user_me="{SECRET}";'}
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_secret_is_told_nowhere(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    try:
        shown = repr(CASES[case]())
    except (KafkaError, ConfigError, TypeError) as error:
        shown = f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"
    assert SECRET not in shown
    assert SECRET not in caplog.text
