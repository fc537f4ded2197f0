"""Goal: dead letters are listed, shown and replayed exactly once from the command line.

Method: records with the headers that processors write; a replay that is cut short between send and
commit leaves nothing, and the next one sends everything once. The same tests run against Apache
Kafka with `make conformance`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import CommandLine
from consumer_worlds import fresh

from onceflow.broker_lite import Broker
from onceflow.processors.policies import dead_letter_headers
from onceflow.sdk import ConsumerRecord, Producer
from onceflow.sdk.sync.producer import Transaction


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


def fill(line: CommandLine) -> tuple[str, str]:
    """Three dead letters of a topic's partition 1; the last one failed twice.

    Returns:
        The dead-letter topic and the topic that they came from.
    """
    source, dead = fresh("orders"), fresh("dead")
    line.call("topics", "create", source, dead, "--partitions", "2")
    with Producer(bootstrap_servers=line.bootstrap) as producer:
        for offset in range(3):
            headers = [("trace", b"t%d" % offset)]
            if offset == 2:
                earlier = ConsumerRecord("first", 0, 99, headers=headers)
                headers = dead_letter_headers(earlier, KeyError("x"), 1, "earlier")
            failed = ConsumerRecord(source, 1, offset, 1000 + offset, headers=headers)
            told = dead_letter_headers(failed, ValueError(f"bad {offset}\nmore"), 3, "price")
            value = b"v%d" % offset
            producer.send(
                dead, value, key=b"k", headers=told, partition=0, timestamp_ms=1000 + offset
            ).result()
    return dead, source


def read(line: CommandLine, topic: str) -> list[dict[str, object]]:
    printed = line.call("consume", topic, "--json").stdout
    return [json.loads(each) for each in printed.splitlines()]


def test_letters_are_listed_and_shown(onceflow: CommandLine) -> None:
    dead, source = fill(onceflow)
    rows = onceflow.json("dlq", "list", dead)
    assert [each["source"] for each in rows] == [f"{source}:1@{n}" for n in range(3)]
    assert [each["message"] for each in rows] == ["bad 0", "bad 1", "bad 2"]
    assert {each["error"] for each in rows} == {"builtins.ValueError"}
    assert len(onceflow.json("dlq", "list", dead, "--max", "2")) == 2
    shown = onceflow.json("dlq", "show", f"{dead}:0", "1")
    assert (shown["value"], shown["headers"]) == ("v1", [["trace", "t1"]])
    assert "ValueError: bad 1" in shown["traceback"]
    assert "bad 1\nmore" in onceflow.call("dlq", "show", f"{dead}:0", "1").stdout
    onceflow.error("dlq", "show", f"{dead}:0", "3", status=3)


def test_a_dry_run_leaves_a_replay_under_way_alone(onceflow: CommandLine) -> None:
    """A transactional producer of the dry run would fence that of the replay."""
    dead, source = fill(onceflow)
    name = f"{dead}-replay"
    with (
        Producer(bootstrap_servers=onceflow.bootstrap, transactional_id=name) as other,
        other.transaction(),
    ):
        other.send(source, b"under way").result()
        plan = onceflow.json("dlq", "replay", dead, "--dry-run")
    assert plan["sent"] == [{"topic": source, "records": 3}]
    assert [each["value"] for each in read(onceflow, source)] == ["under way"]


def test_letters_go_back_once(onceflow: CommandLine) -> None:
    dead, source = fill(onceflow)
    plan = onceflow.json("dlq", "replay", dead, "--dry-run")
    assert plan["sent"] == [{"topic": source, "records": 3}]
    assert read(onceflow, source) == []
    onceflow.json("dlq", "replay", dead, "--max", "1")
    onceflow.json("dlq", "replay", dead)
    assert onceflow.json("dlq", "replay", dead)["sent"] == []
    found = read(onceflow, source)
    assert [(each["partition"], each["key"], each["value"]) for each in found] == [
        (1, "k", "v0"),
        (1, "k", "v1"),
        (1, "k", "v2"),
    ]
    assert [each["timestamp_ms"] for each in found] == [1000, 1001, 1002]
    assert found[0]["headers"] == [["trace", "t0"]]
    names = [name for name, _ in found[2]["headers"]]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) > 1, "the headers of the first failure stay"


def test_a_replay_that_dies_sends_nothing_and_the_next_one_everything(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = CommandLine(broker.bootstrap_servers)
    dead, source = fill(line)

    def die(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "send_offsets", die)
        with pytest.raises(OSError, match="disk"):
            line.call("dlq", "replay", dead)
    assert read(line, source) == []
    line.call("dlq", "replay", dead)
    assert [each["value"] for each in read(line, source)] == ["v0", "v1", "v2"]


def test_other_records_are_not_sent_by_guess(broker: Broker) -> None:
    line, topic, target = CommandLine(broker.bootstrap_servers), fresh("plain"), fresh("target")
    line.call("topics", "create", topic, target)
    line.call("produce", topic, input="not a dead letter\n")
    assert "--to TOPIC" in line.error("dlq", "replay", topic, status=1)
    line.call("dlq", "replay", topic, "--to", target)
    assert [each["value"] for each in read(line, target)] == ["not a dead letter"]
    line.error("dlq", "list", "nowhere", status=3)
