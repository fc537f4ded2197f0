"""Goal: settings, brokers, ACLs, users and quotas are read and changed from the command line.

Method: each command with ``--json`` against a broker that keeps ACLs and binds nobody who has not
said who it is; the same tests run against Apache Kafka with `make conformance`. What Kafka's
controller has taken is asked for until the brokers show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import real_kafka
from command_line import CommandLine
from consumer_worlds import fresh

from onceflow.broker_lite import Broker

DEADLINE_S = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=real_kafka.ANYBODY_MAY) as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


def shown_soon(ask: Callable[[], Any], wanted: object) -> None:
    """Ask until the answer is the wanted one; brokers follow their controller a little later."""
    deadline = time.monotonic() + DEADLINE_S
    while (shown := ask()) != wanted:
        assert time.monotonic() < deadline, shown


def test_settings_of_a_topic(onceflow: CommandLine, tmp_path: Path) -> None:
    topic = fresh("topic")
    onceflow.call("topics", "create", topic)
    alter, describe = (("configs", word, "topic", topic) for word in ("alter", "describe"))
    file = tmp_path / "topic.properties"
    file.write_text("max.message.bytes=2048\n")
    onceflow.json(*alter, "--set", "retention.ms=60000", "--dry-run")

    def own() -> dict[str, str]:
        return {each["name"]: each["value"] for each in onceflow.json(*describe)}

    assert "retention.ms" not in own()
    onceflow.json(*alter, "--set", "retention.ms=60000", "--file", str(file))
    deadline = time.monotonic() + DEADLINE_S
    while own().get("retention.ms") != "60000":
        assert time.monotonic() < deadline
    assert own()["max.message.bytes"] == "2048"
    everything = {each["name"]: each for each in onceflow.json(*describe, "--all")}
    assert everything["cleanup.policy"]["default"] is True
    onceflow.json(*alter, "--unset", "retention.ms")
    while "retention.ms" in own():
        assert time.monotonic() < deadline


def test_brokers_features_quorum_and_disks(onceflow: CommandLine) -> None:
    cluster = onceflow.json("cluster", "describe")
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == onceflow.bootstrap
    assert cluster["cluster_id"]
    levels = {each["feature"]: each["level"] for each in onceflow.json("cluster", "features")}
    assert levels["transaction.version"] == 2
    quorum = onceflow.json("cluster", "quorum")
    assert [each["role"] for each in quorum["replicas"] if each["node"] == quorum["leader"]] == [
        "leader"
    ]
    disks = onceflow.json("cluster", "disks")
    assert [each["node"] for each in disks] == [node["node"]]


def test_rules_are_added_found_and_removed(onceflow: CommandLine) -> None:
    who, topic = f"User:{fresh('user')}", fresh("topic")
    ours = ("--principal", who)
    add = ("acls", "add", who, "read", "write", "--resource", "topic", "--name", topic)
    added = onceflow.json(*add, "--prefixed")
    onceflow.json("acls", "add", who, "describe", "--resource", "cluster", "--deny")
    shown_soon(lambda: len(onceflow.json("acls", "list", *ours)), 3)
    matching = ("--resource", "topic", "--name", f"{topic}-more", "--pattern", "match")
    found = onceflow.json("acls", "list", *ours, *matching)
    assert sorted(found, key=str) == sorted(added, key=str)
    assert found[0]["pattern"] == "prefixed"
    asked = onceflow.error("acls", "remove", *ours, status=6)
    assert topic in asked
    assert len(onceflow.json("acls", "remove", *ours, "--yes")) == 3
    shown_soon(lambda: onceflow.json("acls", "list", *ours), [])
    assert "no such rules" in onceflow.error("acls", "remove", *ours, "--yes", status=3)


def test_passwords_come_from_standard_input(onceflow: CommandLine) -> None:
    user = fresh("user")
    words = ("--mechanism", "SCRAM-SHA-256")
    result = onceflow.call("users", "set", user, *words, "--iterations", "5000", input="s3cret\n")
    assert "s3cret" not in result.output
    row = {"user": user, "mechanism": "SCRAM-SHA-256", "iterations": 5000}
    shown_soon(lambda: row in onceflow.json("users", "list"), True)
    onceflow.json("users", "remove", user, *words, "--yes")
    shown_soon(lambda: row in onceflow.json("users", "list"), False)
    onceflow.error("users", "list", user, status=3)


def test_quotas_are_set_and_removed(onceflow: CommandLine) -> None:
    client = ("--client-id", fresh("client"))
    onceflow.json("quotas", "set", "producer_byte_rate=1000", "consumer_byte_rate=2e3", *client)
    both = [
        {
            "entity": {"client-id": client[1]},
            "quotas": {"consumer_byte_rate": 2000.0, "producer_byte_rate": 1000.0},
        }
    ]
    shown_soon(lambda: onceflow.json("quotas", "list", *client), both)
    onceflow.json("quotas", "unset", "producer_byte_rate", "consumer_byte_rate", *client)
    shown_soon(lambda: onceflow.json("quotas", "list", *client), [])


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("configs", "alter", "topic", "t"), 2, "--set, --file or --unset"),
        (("configs", "alter", "broker", "1", "--set", "ssl.key.password=x"), 2, "--file"),
        (("configs", "alter", "tpic", "t"), 2, "topic"),
        (("configs", "describe", "topic", "nowhere"), 3, "topics list"),
        (("acls", "add", "alice", "read", "--resource", "topic", "--name", "t"), 2, "User:alice"),
        (("acls", "add", "User:alice", "read", "--resource", "topic"), 2, "--name: which topic"),
        (("acls", "remove", "--yes"), 2, "which rules"),
        (("quotas", "set", "producer_byte_rate=1"), 2, "--client-id"),
        (("quotas", "set", "producer_byte_rate=fast", "--user", "a"), 2, "must be a number"),
        (("quotas", "set", "producer_bite_rate=1", "--user", "a"), 1, "producer_bite_rate"),
        (("users", "set", "alice"), 2, "empty"),
        (("users", "remove", "alice"), 6, "--yes"),
    ],
)
def test_what_cannot_be_done_is_told(
    ours: CommandLine, words: tuple[str, ...], status: int, told: str
) -> None:
    assert told in ours.error(*words, status=status)


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "describe"),
        ("cluster", "features"),
        ("cluster", "quorum"),
        ("cluster", "disks"),
        ("configs", "describe", "broker", "1", "--all"),
    ],
    ids=" ".join,
)
def test_people_get_columns(ours: CommandLine, words: tuple[str, ...]) -> None:
    printed = ours.call(*words).stdout
    assert any(line == line.upper() and "  " in line for line in printed.splitlines())
