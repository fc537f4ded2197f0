"""Goal: the outbox's relay and what two-phase commits left in doubt are run and ended by command.

Method: the command's own process beside a schema of PostgreSQL and our broker or Apache Kafka: it
sends rows, answers health and metrics, obeys signals, stands by for another relay and takes over.
Sessions that were killed within a two-phase commit are listed and finished by `onceflow txns`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from command_line import CommandLine
from consumer_worlds import BROKERS, fresh, make_topic, running_broker
from postgres_server import PostgresServer, execute, rows_of
from processor_processes import Workers, fill, read_all, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.transactions.outbox import Outbox
from onceflow.transactions.two_phase import TwoPhaseSession, list_in_doubt

DEADLINE_S = 60


class Relay:
    """One process of the command, with the events that it prints."""

    def __init__(self, address: str, dsn: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onceflow", "relay", "--json", *options],
            stdout=subprocess.PIPE,
            env={**os.environ, "ONCEFLOW_DSN": dsn, "ONCEFLOW_BOOTSTRAP_SERVERS": address},
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(line)

    def event(self, name: str) -> dict[str, object]:
        end = time.monotonic() + DEADLINE_S
        while True:
            event = json.loads(self._lines.get(timeout=max(0.0, end - time.monotonic())))
            if event.get("event") == name:
                assert isinstance(event, dict)
                return event

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def get(address: object, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.schema()


@pytest.fixture
def relays(address: str, dsn: str) -> Iterator[list[Relay]]:
    """Relays that a test starts; none is left behind."""
    started: list[Relay] = []
    yield started
    for relay in started:
        if relay.process.poll() is None:
            relay.process.kill()
            relay.process.wait(30)


def put(dsn: str, topic: str, values: Sequence[bytes]) -> None:
    with psycopg.connect(dsn) as connection:
        for value in values:
            Outbox().put(connection, topic, value, key=b"k")


def values(address: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_all(address, topic)]


def test_a_relay_sends_tells_of_itself_and_stops_at_a_signal(
    address: str, dsn: str, relays: list[Relay]
) -> None:
    topic, name = make_topic(address), fresh("relay")
    ports = ("--health-port", "0", "--metrics-port", "0")
    relay = Relay(address, dsn, "--name", name, "--make-table", *ports)
    relays.append(relay)
    start = relay.event("starting")
    health, metrics = start["health"], start["metrics"]
    wait_for(lambda: get(health, "/ready")[0] == 200, "the relay works")
    assert get(health, "/live") == (200, "live\n")
    put(dsn, topic, [b"1", b"2"])
    wait_for(lambda: values(address, topic) == [b"1", b"2"], "both rows")
    label = f'{{relay="{name}"}}'
    wait_for(lambda: f"onceflow_relay_rows_total{label} 2.0" in get(metrics, "/metrics")[1], "rows")
    assert f"onceflow_relay_working{label} 1.0" in get(metrics, "/metrics")[1]
    relay.process.send_signal(signal.SIGTERM)
    assert relay.event("ended")["sent"] == 2
    assert relay.process.wait(DEADLINE_S) == 0


def test_a_second_relay_stands_by_and_takes_over(
    address: str, dsn: str, relays: list[Relay]
) -> None:
    topic, name = make_topic(address), fresh("relay")
    options = ("--name", name, "--make-table", "--health-port", "0", "--poll-interval-ms", "50")
    ready = []
    for state in ("works", "stands by"):
        relays.append(Relay(address, dsn, *options))
        ready.append(relays[-1].event("starting")["health"])
        wait_for(lambda: get(ready[-1], "/ready")[1].startswith(state), state)  # noqa: B023
    put(dsn, topic, [b"1"])
    wait_for(lambda: values(address, topic) == [b"1"], "the first row")
    relays[0].process.kill()
    wait_for(lambda: get(ready[1], "/ready")[1] == "works\n", "it takes over")
    put(dsn, topic, [b"2"])
    wait_for(lambda: values(address, topic) == [b"1", b"2"], "the second row")
    assert relays[1].end(signal.SIGINT) == 0


def test_a_bounded_run_ends_and_a_row_that_cannot_be_sent_fails_it(address: str, dsn: str) -> None:
    topic, name = make_topic(address), fresh("relay")
    onceflow = CommandLine(address)
    with psycopg.connect(dsn) as connection:
        Outbox().make(connection)
    put(dsn, topic, [b"1"])
    environ = {"ONCEFLOW_DSN": dsn}
    ran = onceflow.call("relay", "--until-empty", "--name", name, environ=environ)
    assert "1 sent" in ran.stderr
    put(dsn, topic, [b"x" * 2_000_000])
    failed = onceflow.call(
        "relay", "--until-empty", "--name", name, "--json", environ=environ, status=None
    )
    assert failed.exit_code == 1
    events = [json.loads(line) for line in failed.stdout.splitlines() if line.startswith("{")]
    told = [event for event in events if event.get("event") == "failed"]
    assert [event["error"] for event in told] == ["OutboxRowError"]
    assert "outbox row" in failed.stderr
    assert values(address, topic) == [b"1"]


def test_a_password_on_the_command_line_is_refused() -> None:
    onceflow = CommandLine("unused:1")
    for command in (("relay",), ("txns", "in-doubt"), ("txns", "resolve", "--all")):
        told = onceflow.error(*command, "--dsn", "host=h password=secret", status=2)
        assert "PGPASSWORD" in told
        assert "secret" not in told
    told = onceflow.error("txns", "in-doubt", "--dsn", "host=127.0.0.1 port=1 user=x", status=4)
    assert "the database cannot be used" in told


# In doubt ------------------------------------------------------------------------------------

LEFT = """
import os, signal, sys
from onceflow.transactions.two_phase import TwoPhaseSession

bootstrap, dsn, topic, slot, moment = sys.argv[1:6]

def observe(found):
    if found == moment:
        os.kill(os.getpid(), signal.SIGKILL)

with TwoPhaseSession(
    dsn, topics=[topic], bootstrap_servers=bootstrap, group_id=topic, slot=slot, observer=observe,
) as session:
    while True:
        for records in session.poll(100, 10).values():
            for record in records:
                session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))
                session.send(topic + "-out", record.value)
                session.commit()
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def left(workers: Workers, address: str, dsn: str, topic: str, moment: str) -> None:
    """A session that died at a moment of its commit."""
    member = workers.start(LEFT, address, dsn, topic, "7", moment)
    assert member.process.wait(DEADLINE_S) == -signal.SIGKILL, member.output()


@pytest.mark.parametrize(("moment", "decided"), [("before decide", False), ("before finish", True)])
@pytest.mark.parametrize("by", ["id", "all"])
def test_what_is_in_doubt_is_listed_and_finished(
    address: str, dsn: str, workers: Workers, moment: str, decided: bool, by: str
) -> None:
    onceflow, topic = CommandLine(address), make_topic(address)
    execute(dsn, "CREATE TABLE rows (id integer PRIMARY KEY)")
    fill(address, topic, [b"1"])
    left(workers, address, dsn, topic, moment)
    name = f"{topic}-7"

    def in_doubt() -> list[dict[str, object]]:
        listed = onceflow.json("txns", "in-doubt", "--dsn", dsn)
        return [each for each in listed if each["transactional_id"] == name]

    (found,) = in_doubt()
    assert found["decision"] == ("commit" if decided else None)
    shown = onceflow.call("txns", "in-doubt", "--dsn", dsn)
    assert str(found["gid"]) in shown.stdout
    assert "onceflow txns resolve" in shown.stderr
    assert in_doubt() == [found]  # It was only looked at.
    which = [name] if by == "id" else ["--all"]
    done = onceflow.json("txns", "resolve", *which, "--dsn", dsn)
    wanted = {
        "transactional_id": name,
        "gid": found["gid"],
        "done": "committed" if decided else "rolled back",
    }
    assert wanted in done
    assert in_doubt() == []
    assert [row for (row,) in rows_of(dsn, "SELECT id FROM rows")] == [1] * decided
    assert values(address, f"{topic}-out") == [b"1"] * decided
    assert "nothing was in doubt" in onceflow.call("txns", "resolve", name, "--dsn", dsn).stderr


def test_an_id_that_the_brokers_have_forgotten_can_be_given(
    dsn: str, workers: Workers, tmp_path: Path
) -> None:
    """A transaction whose id is not known is listed without one, and left alone by --all."""
    execute(dsn, "CREATE TABLE rows (id integer PRIMARY KEY)")
    cluster = {"onceflow.cluster.id": "MkU3OEVBNTcwNTJENDM2Qk"}
    with Broker(settings=cluster) as broker:
        topic = make_topic(broker.bootstrap_servers)
        fill(broker.bootstrap_servers, topic, [b"1"])
        left(workers, broker.bootstrap_servers, dsn, topic, "before decide")
    with Broker(settings=cluster) as other:  # as after the retention of transactional ids
        onceflow, name = CommandLine(other.bootstrap_servers), f"{topic}-7"
        listed = list_in_doubt(dsn, client={"bootstrap.servers": other.bootstrap_servers})
        (unknown,) = [each for each in listed if each.transactional_id is None]
        onceflow.call("txns", "resolve", "--all", "--dsn", dsn)
        listed = onceflow.json("txns", "in-doubt", "--dsn", dsn, "--id", name)
        assert [each["gid"] for each in listed if each["transactional_id"] == name] == [unknown.gid]
        (done,) = onceflow.json("txns", "resolve", name, "--dsn", dsn)
        assert (done["gid"], done["done"]) == (unknown.gid, "rolled back")


def test_a_live_session_that_is_resolved_does_its_work_again(address: str, dsn: str) -> None:
    """Between prepare and decide: its rows are rolled back, it is fenced, and both sides follow."""
    onceflow, topic = CommandLine(address), make_topic(address)
    execute(dsn, "CREATE TABLE rows (id integer PRIMARY KEY)")
    fill(address, topic, [b"1"])
    moments: list[str] = []

    def observe(found: str) -> None:
        if found == "before note" and not moments:
            moments.append(found)
            (done,) = onceflow.json("txns", "resolve", f"{topic}-0", "--dsn", dsn)
            moments.append(done["done"])

    with TwoPhaseSession(
        dsn, topics=[topic], bootstrap_servers=address, group_id=topic, observer=observe
    ) as session:

        def work() -> bool:
            for records in session.poll(200).values():
                for record in records:
                    value = int(record.value or b"0")
                    session.connection.execute("INSERT INTO rows VALUES (%s)", (value,))
                    session.send(f"{topic}-out", record.value)
                    return session.commit()
            return False

        wait_for(work, "the work is done again")
    assert moments == ["before note", "rolled back"]
    assert [row for (row,) in rows_of(dsn, "SELECT id FROM rows")] == [1]
    assert values(address, f"{topic}-out") == [b"1"]
