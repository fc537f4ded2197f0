"""Goal: each row of the runbook is true: its symptom shows as told, and its remedy works.

Method: the symptom is planted on the in-process broker, and what the row tells to look at and to do
is looked at and done. Rows that have a test elsewhere name it; a row without a test fails.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack
from urllib.request import urlopen

import pytest
from command_line import CommandLine
from processor_processes import wait_for
from running_apps import running

from onceflow.broker_lite import Broker
from onceflow.cli.worker_server import WorkerServer
from onceflow.processors import App, Retries, SlotInUseError, State
from onceflow.processors.errors import StateMismatchError
from onceflow.processors.keywords import AppKeywords
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import ProducerFencedError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operating.md"

TRIED = {
    "Readers stand still, the producer writes": "test_an_open_transaction_holds_readers",
    "Lag grows, workers are ready": "test_a_slow_function",
    "Lag grows on one partition only": "test_a_record_that_waits_for_its_retry",
    "A worker is not ready": "test_cli_worker_health.py::"
    "test_answers_for_workers_that_are_not_well",
    '"slot ... is used by another live worker"': "test_two_workers_of_one_slot",
    "Producers are fenced again and again": "test_producers_of_one_transactional_id",
    "Units are aborted again and again": "test_a_function_that_blocks_for_too_long",
    "`StateMismatchError`": "test_state_that_does_not_fit",
    "Dead letters come in": "test_dead_letters",
    '"no broker answered"': "test_no_broker",
    "`RightsMissingError`": "test_application_rights.py::test_it_says_what_is_missing",
    "Disk of the bundled broker is full": "test_broker_disk_failure.py::"
    "test_the_daemon_ends_with_status_3",
}
"""By symptom: the test that plants it, here or in another file of this folder."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with Broker(settings=settings) as running:
        running.create_topic("in", partitions=2)
        yield running


@pytest.fixture
def line(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


def send(broker: Broker, *values: bytes, partition: int = 0) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in values:
            producer.send("in", value, key=b"k", partition=partition).result(30)


def application(broker: Broker, folder: Path, **settings: Unpack[AppKeywords]) -> App:
    given: AppKeywords = {"slot": "0", "commit_interval_ms": 10, **settings}
    return App("app", broker.bootstrap_servers, state_dir=folder, **given)


@contextlib.contextmanager
def served(app: App) -> Iterator[Any]:
    """Health and metrics of an application, as `onceflow run` serves them; gives a reader."""
    server = WorkerServer(app, "127.0.0.1", 0, 0)

    def read(path: str) -> str:
        address = server.addresses["metrics" if path == "/metrics" else "health"]
        with urlopen(address + path, timeout=10) as answer:
            return str(answer.read().decode())

    try:
        yield read
    finally:
        server.close()


def metric(page: str, name: str, **labels: str) -> float:
    """Sum of a metric's values with these labels."""
    found = re.findall(rf"^onceflow_worker_{name}(\{{[^}}]*\}})? (\S+)$", page, re.M)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for text, value in found if all(each in text for each in wanted))


def test_each_row_is_tried() -> None:
    table = PAGE.read_text().partition("## Runbook")[2]
    symptoms = re.findall(r"^\| ([^|]+) \|(?=.*\|$)", table, re.M)[2:]
    assert symptoms == list(TRIED)
    for name in TRIED.values():
        file, _, test = name.rpartition("::")
        source = Path(__file__).with_name(file) if file else Path(__file__)
        assert f"def {test}(" in source.read_text(), name


def test_an_open_transaction_holds_readers(broker: Broker, line: CommandLine) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="till") as producer:
        producer.begin_transaction()
        producer.send("in", b"open", partition=0).result(30)
        send(broker, b"behind")
        assert line.call("consume", "in").stdout == ""
        (listed,) = line.json("txns", "list", "--state", "Ongoing")
        (shown,) = line.json("txns", "describe", listed["transactional_id"])
        assert shown["age_ms"] >= 0
        assert line.json("txns", "find-hanging") == []
        line.call("txns", "fence", "till")
        wait_for(lambda: line.call("consume", "in").stdout == "behind\n", "readers go on")
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()


def test_a_slow_function(broker: Broker, tmp_path: Path) -> None:
    app, gate = application(broker, tmp_path), threading.Event()

    @app.processor("in")
    def slow(value: int) -> None:
        gate.wait(0.1)

    send(broker, *[b"%d" % number for number in range(300)])
    with served(app) as read, running(app) as ended:
        wait_for(lambda: metric(read("/metrics"), "lag_records") >= 2, "there is lag")
        assert read("/ready") == "ready\n"
        page = read("/metrics")
        assert "onceflow_worker_commit_seconds_count" in page
        assert "onceflow_worker_function_failures_total" in page
        gate.set()
        wait_for(lambda: metric(read("/metrics"), "lag_records") == 0, "the lag is gone")
        assert ended == []


def test_a_record_that_waits_for_its_retry(
    broker: Broker, line: CommandLine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mended = threading.Event()
    app = application(broker, tmp_path)

    @app.processor("in", retries=Retries(1_000, backoff_ms=20, backoff_max_ms=20))
    def fragile(value: str) -> None:
        if value == "bad" and not mended.is_set():
            raise ValueError("not yet")

    send(broker, b"good", b"bad", b"later", partition=1)
    send(broker, b"good", b"good")

    def lags() -> dict[int, int]:
        found = line.call("groups", "describe", "app", "--json", status=None)
        if found.exit_code:
            return {}  # It has not been joined yet.
        (group,) = json.loads(found.stdout)
        return {each["partition"]: each["lag"] for each in group["partitions"]}

    with running(app), caplog.at_level(logging.INFO, "onceflow.processors"):
        wait_for(lambda: lags() == {0: 0, 1: 2}, "only one partition has lag")
        wait_for(lambda: "attempt 3 at in-1@1 failed" in caplog.text, "the log names the record")
        shown = line.call("consume", "in", "--partition", "1", "--from", "1", "--max", "1")
        assert shown.stdout == "bad\n"
        mended.set()
        wait_for(lambda: lags() == {0: 0, 1: 0}, "nothing waits")


def test_two_workers_of_one_slot(broker: Broker, tmp_path: Path) -> None:
    apps = [application(broker, tmp_path / name) for name in ("one", "two")]
    for app in apps:

        @app.processor("in", to="out")
        def same(value: bytes) -> bytes:
            return value

    first, second = apps
    with running(first) as ended:
        wait_for(lambda: members(broker) == 1, "the first works")
        send(broker, b"1")
        with running(second) as other:  # Which of them gives way is a race.
            wait_for(lambda: bool(ended or other), "one notices the other")
            (error,) = [*ended, *other]
            assert isinstance(error, SlotInUseError)
            assert "slot '0' of application app is used by another live worker" in str(error)


def members(broker: Broker) -> int:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        group = admin.describe_groups(["app"])["app"]
    return len(group.members) if group.state == "Stable" else 0


def test_producers_of_one_transactional_id(broker: Broker, line: CommandLine) -> None:
    settings: Any = {"bootstrap_servers": broker.bootstrap_servers, "transactional_id": "till"}
    for _ in range(3):
        with Producer(**settings) as older:
            older.begin_transaction()
            older.send("in", b"x").result(30)
            with Producer(**settings) as newer:
                with pytest.raises(ProducerFencedError):
                    older.commit_transaction()
                with newer.transaction():
                    newer.send("in", b"y")
    found = json.loads(line.call("doctor", "--json", status=1).stdout)["findings"]
    shared = [each for each in found if each["check"] == "shared-transactional-id"]
    assert [each["where"] for each in shared] == ["transactional id till"]


def test_a_function_that_blocks_for_too_long(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    app = application(
        broker,
        tmp_path,
        transaction_timeout_ms=1_000,
        session_timeout_ms=1_000,
        heartbeat_interval_ms=100,
        max_poll_interval_ms=1_000,
        revoke_budget_ms=100,
    )

    @app.processor("in", to="out")
    def long(value: bytes) -> bytes:
        gate.wait(60)
        return value

    with served(app) as read, running(app) as ended:
        send(broker, b"1")
        wait_for(lambda: metric(read("/metrics"), "records_polled_total") == 1, "it is at work")
        wait_for(lambda: members(broker) == 0, "the group has gone on without it")
        gate.set()
        wait_for(lambda: metric(read("/metrics"), "records_committed_total") == 1, "it goes on")
        page = read("/metrics")
        reasons = {
            reason: metric(page, "units_aborted_total", reason=reason)
            for reason in ("stale_membership", "partitions_lost")
        }
        assert sum(reasons.values()) >= 1
        assert "aborted: " in caplog.text
        assert ended == []


def test_state_that_does_not_fit(broker: Broker, line: CommandLine, tmp_path: Path) -> None:
    def counting(**settings: Unpack[AppKeywords]) -> App:
        app = application(broker, tmp_path, **settings)

        @app.processor("in", to="out")
        def count(value: bytes, seen: State[int]) -> int:
            seen.set(seen.get(0) + 1)
            return seen.get(0)

        return app

    send(broker, b"1", b"2")
    counting().run(until_end=True)
    line.call("groups", "reset", "app", "--to", "earliest")
    with pytest.raises(
        StateMismatchError, match=r"state .*count.*, partition 0, group app"
    ) as told:
        counting().run(until_end=True)
    assert "on_state_gap" in str(told.value)
    line.call("state", "reset", "app", "--state-dir", str(tmp_path), "--everything", "--yes")
    assert counting().run(until_end=True).records == 2


def test_dead_letters(broker: Broker, line: CommandLine, tmp_path: Path) -> None:
    app = application(broker, tmp_path)

    @app.processor("in", dead_letter="failed")
    def number(value: int) -> None:
        pass

    send(broker, b"many")
    app.run(until_end=True)
    (letter,) = line.json("dlq", "list", "failed")
    assert "does not fit int" in str(letter)
    line.call("dlq", "replay", "failed")
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        place = TopicPartition("in", 0)
        assert consumer.end_offsets([place])[place] >= 2


def test_no_broker() -> None:
    said = CommandLine("127.0.0.1:1").error("cluster", "describe", status=4)
    assert "no broker answered" in said.lower()
    assert "127.0.0.1:1" in said
    assert "refused" in said.lower()
