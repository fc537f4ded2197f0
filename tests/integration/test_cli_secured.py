"""Goal: commands reach a cluster that demands TLS, SASL and ACLs, by every place for settings.

Method: one broker that takes SCRAM over TLS only; the same settings stand in a properties file, in
TOML, in a profile and in variables. Wrong passwords, untrusted certificates and missing rights have
their exit status and show no password. Read, write and run go through as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_line import CommandLine
from secured_broker import as_root, grant, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def broker(world: TlsWorld) -> Iterator[Broker]:
    with secured_broker(world) as running:
        root = as_root(running, world)
        with Admin(config=root.admin()) as admin:
            admin.create_topics(["allowed", "forbidden"])
        grant(
            root,
            [
                ("TOPIC", "allowed", "LITERAL", ("READ", "WRITE")),
                ("GROUP", "readers", "LITERAL", ("READ",)),
            ],
        )
        yield running


@pytest.fixture
def line(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers_of("SASL_SSL"))


def lines(world: TlsWorld, **changes: str) -> dict[str, str]:
    found = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "app",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(world.authority),
    }
    return {**found, **{name.replace("_", "."): value for name, value in changes.items()}}


def properties(folder: Path, settings: Mapping[str, str]) -> str:
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def listed(text: str) -> list[str]:
    return [each["topic"] for each in json.loads(text)]


def test_every_place_for_settings(line: CommandLine, world: TlsWorld, tmp_path: Path) -> None:
    words = ("topics", "list", "--json")
    settings = lines(world)
    file = properties(tmp_path, settings)
    assert listed(line.call(*words, "--config", file).stdout) == ["allowed"]
    toml = tmp_path / "onceflow" / "cloud.toml"
    toml.parent.mkdir()
    toml.write_text(
        "[security]\nprotocol = 'SASL_SSL'\nsasl_mechanism = 'SCRAM-SHA-256'\n"
        f"sasl_username = 'app'\nsasl_password = '{PASSWORD}'\nssl_cafile = '{world.authority}'\n"
    )
    assert listed(line.call(*words, "--config", str(toml)).stdout) == ["allowed"]
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert listed(line.call(*words, "--profile", "cloud", environ=home).stdout) == ["allowed"]
    variables = {
        "ONCEFLOW_SECURITY_PROTOCOL": "SASL_SSL",
        "ONCEFLOW_SASL_MECHANISM": "SCRAM-SHA-256",
        "ONCEFLOW_SASL_USERNAME": "app",
        "ONCEFLOW_SASL_PASSWORD": PASSWORD,
        "ONCEFLOW_SSL_CAFILE": str(world.authority),
    }
    assert listed(line.call(*words, environ=variables).stdout) == ["allowed"]


def test_records_are_sent_and_read(line: CommandLine, world: TlsWorld, tmp_path: Path) -> None:
    config = ("--config", properties(tmp_path, lines(world)))
    line.call("produce", "allowed", *config, input="one\ntwo\n")
    assert line.call("consume", "allowed", *config).stdout == "one\ntwo\n"
    words = ("consume", "allowed", "--group", "readers", "--max", "2", *config)
    assert line.call(*words).stdout == "one\ntwo\n"
    assert "lag 0" in line.call("groups", "describe", "readers", *config).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "describe", "forbidden"),
        ("consume", "forbidden"),
        ("dlq", "list", "forbidden"),
        ("groups", "describe", "others"),
        ("acls", "list"),
        ("configs", "describe", "topic", "allowed"),
        ("txns", "describe", "app-0"),
    ],
    ids=" ".join,
)
def test_missing_rights_have_their_status(
    line: CommandLine, world: TlsWorld, tmp_path: Path, words: tuple[str, ...]
) -> None:
    result = line.call(*words, "--config", properties(tmp_path, lines(world)), status=5)
    assert "ACL" in result.stderr


def test_what_is_sent_to_a_forbidden_topic(
    line: CommandLine, world: TlsWorld, tmp_path: Path
) -> None:
    config = ("--config", properties(tmp_path, lines(world)))
    told = line.call("produce", "forbidden", *config, input="x\n", status=5).stderr
    assert "forbidden" in told


def test_a_wrong_password_is_named_and_not_shown(
    line: CommandLine, world: TlsWorld, tmp_path: Path
) -> None:
    file = properties(tmp_path, lines(world, sasl_password="not-it"))
    told = line.call("topics", "list", "--config", file, status=5).stderr
    assert "not-it" not in told
    assert "security settings" in told


def test_a_certificate_that_is_not_trusted(
    line: CommandLine, world: TlsWorld, tmp_path: Path
) -> None:
    other = TlsWorld(tmp_path / "other")
    file = properties(tmp_path, lines(world, ssl_ca_location=str(other.authority)))
    told = line.call("topics", "list", "--config", file, status=5).stderr
    assert PASSWORD not in told
    assert "certificate" in told
