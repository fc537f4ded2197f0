"""Goal: records are sent and read from the command line without loss, on our broker and on Kafka.

Method: what `produce` takes from files and standard input is what `consume` prints, byte for byte;
transactions that are open, aborted and committed lie in one partition; a group goes on where it
was. The same tests run against Apache Kafka with `make conformance`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import CommandLine
from consumer_worlds import fresh, write_in_transaction

from onceflow.broker_lite import Broker
from onceflow.cli import main
from onceflow.sdk import Producer


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic with two partitions on the cluster that the test uses."""
    which = "ours" if "ours" in request.fixturenames else "onceflow"
    name = fresh("topic")
    request.getfixturevalue(which).call("topics", "create", name, "--partitions", "2")
    return name


def read(line: CommandLine, *arguments: str) -> list[dict[str, object]]:
    printed = line.call("consume", *arguments, "--json").stdout
    return [json.loads(each) for each in printed.splitlines()]


def test_lines_of_a_file_come_back(onceflow: CommandLine, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.txt"
    file.write_bytes(b"a:one\r\nb:two\na:three")
    options = ("--key-delimiter", ":", "--header", "source=import", "--partition", "1")
    sent = onceflow.json("produce", topic, str(file), *options)
    assert sent == {"topic": topic, "records": 3, "partitions": {"1": 3}}
    printed = onceflow.call("consume", topic, "--format", "{partition} {offset} {key}\\t{value}")
    assert printed.stdout == "1 0 a\tone\n1 1 b\ttwo\n1 2 a\tthree\n"
    assert read(onceflow, topic)[0]["headers"] == [["source", "import"]]
    assert onceflow.call("consume", topic, "--partition", "0").stdout == ""


def test_a_printed_record_is_one_that_can_be_sent(onceflow: CommandLine, topic: str) -> None:
    binary = {"base64": "/wD+"}
    records = [
        {"key": "k", "value": "grüß dich", "headers": [["a", "1"], ["a", None], ["b", binary]]},
        {"key": binary, "value": binary, "headers": []},
        {"key": None, "value": None, "headers": [], "timestamp_ms": 1_700_000_000_000},
        {"key": "", "value": "", "headers": []},
    ]
    given = "".join(json.dumps({**each, "partition": 0}) + "\n" for each in records)
    onceflow.call("produce", topic, "--format", "json", input=given)
    first = onceflow.call("consume", topic, "--json").stdout
    onceflow.call("produce", topic, "--format", "json", input=first)
    shown = read(onceflow, topic)
    assert [each["offset"] for each in shown] == list(range(8))
    for each, wanted in zip(shown, [*records, *records], strict=True):
        assert {name: each[name] for name in wanted} == wanted


def test_bytes_go_through_a_template_as_they_are(ours: CommandLine, topic: str) -> None:
    ours.call("produce", topic, input=b"\xff\x00\xfe\n")
    assert ours.call("consume", topic).stdout_bytes == b"\xff\x00\xfe\n"


def test_a_file_is_one_value(ours: CommandLine, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(b"line\nline\n\x00")
    ours.call("produce", topic, str(file), "--format", "file", "--key", "p")
    (shown,) = read(ours, topic)
    assert (shown["key"], shown["value"]) == ("p", "line\nline\n\x00")


def test_open_and_aborted_records_are_left_out(onceflow: CommandLine, topic: str) -> None:
    write_in_transaction(onceflow.bootstrap, topic, ["aborted"], commit=False)
    write_in_transaction(onceflow.bootstrap, topic, ["committed"], commit=True)
    with Producer(bootstrap_servers=onceflow.bootstrap, transactional_id=fresh("t")) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        assert onceflow.call("consume", topic).stdout == "committed\n"
        shown = onceflow.call("consume", topic, "--uncommitted").stdout
        assert shown == "aborted\ncommitted\nopen\n"
        producer.abort_transaction()


def test_a_transaction_sends_all_or_nothing(onceflow: CommandLine, topic: str) -> None:
    produce = ("produce", topic, "--format", "json", "--transactional-id", fresh("id"))
    good = b'{"value": "1", "partition": 0}\n'
    told = onceflow.call(*produce, input=good + b"{}\n", status=2).stderr
    assert "standard input, line 2" in told
    assert onceflow.call("consume", topic).stdout == ""
    onceflow.call(*produce, input=good * 3)
    assert onceflow.call("consume", topic).stdout == "1\n1\n1\n"


def test_reading_begins_where_it_is_told_and_stops_at_the_limit(
    onceflow: CommandLine, topic: str
) -> None:
    lines = "".join(
        json.dumps({"value": str(n), "partition": 0, "timestamp_ms": 1_000_000 * n}) + "\n"
        for n in range(1, 6)
    )
    onceflow.call("produce", topic, "--format", "json", input=lines)
    consume = ("consume", topic, "--partition", "0")
    assert onceflow.call(*consume, "--from", "3").stdout == "4\n5\n"
    assert onceflow.call(*consume, "--from", "@2000001").stdout == "3\n4\n5\n"
    assert onceflow.call(*consume, "--from", "1970-01-01T00:33:20Z", "--max", "1").stdout == "2\n"
    assert onceflow.call(*consume, "--from", "1h").stdout == ""
    assert onceflow.call(*consume, "--from", "latest").stdout == ""


def test_a_group_goes_on_where_it_was(onceflow: CommandLine, topic: str) -> None:
    group = fresh("group")
    onceflow.call("produce", topic, "--partition", "0", input="1\n2\n3\n")
    consume = ("consume", topic, "--group", group)
    assert onceflow.call(*consume, "--max", "2").stdout == "1\n2\n"
    assert onceflow.call(*consume).stdout == "3\n"
    assert onceflow.json("groups", "describe", group)[0]["lag"] == 0


def test_interrupted_before_its_command_is_imported_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Status 1 would tell a supervisor that the command was refused or failed."""

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    for words in (["run", "shop:app"], ["topics", "list"]):
        assert CliRunner().invoke(main, words).exit_code == 130


def test_follow_goes_on_until_it_is_interrupted(ours: CommandLine, topic: str) -> None:
    command = [sys.executable, "-m", "onceflow", "consume", topic, "--follow"]
    command += ["--bootstrap", ours.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        for value in ("first", "second"):
            ours.call("produce", topic, input=value)
            assert process.stdout.readline() == value.encode() + b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


@pytest.mark.parametrize(
    ("words", "given", "status", "told"),
    [
        (("produce", "{}", "--format", "json"), "no\n", 2, "line 1: not JSON"),
        (("produce", "{}", "--format", "json"), '{"value": 1}\n', 2, "must be text, null"),
        (("produce", "{}", "--format", "json"), '{"value": "1", "kee": "2"}\n', 2, "'kee'"),
        (("produce", "{}", "--format", "json"), '{"value": {"base64": "?"}}\n', 2, "base64"),
        (("produce", "{}", "--format", "json"), '{"value": "", "headers": {}}\n', 2, "pairs"),
        (("produce", "{}", "--format", "json"), '{"value": "", "partition": -1}\n', 2, "from 0"),
        (("produce", "{}", "--key-delimiter", ":"), "nothing\n", 2, "no key delimiter ':'"),
        (("produce", "{}", "--header", "nothing"), "", 2, "NAME=VALUE"),
        (("consume", "nowhere-at-all"), "", 3, "topics list"),
        (("consume", "nowhere-at-all", "--group", "g"), "", 3, "topics list"),
        (("consume", "{}", "--partition", "7"), "", 3, "no partition 7"),
        (("consume", "{}", "--from", "soon"), "", 2, "15m"),
        (("consume", "{}", "--format", "{kee}"), "", 2, "{key}"),
        (("consume", "{}", "--format", "{key"), "", 2, "--format"),
        (("consume", "{}", "--group", "g", "--from", "15m"), "", 2, "groups reset"),
    ],
)
def test_what_cannot_be_done_is_told(
    ours: CommandLine, topic: str, words: tuple[str, ...], given: str, status: int, told: str
) -> None:
    arguments = [topic if each == "{}" else each for each in words]
    assert told in ours.call(*arguments, input=given, status=status).stderr
