"""Goal: an application with a sink stores each record's rows once, in processes that are killed.

Method: worker processes of one application over our broker and Apache Kafka, in groups of both
protocols, with every sink. They are killed while they work, share partitions and give them up,
sleep past their session, and run by the command `onceflow run`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from consumer_worlds import BROKERS, fresh, make_topic
from postgres_server import PostgresServer, execute, rows_of
from processor_processes import (
    Workers,
    committed_offsets,
    committed_values,
    ends,
    fill,
    wait_for,
    workers_in,
)

from onceflow.broker_lite import Broker
from onceflow.transactions.outbox import Outbox, OutboxRelay
from onceflow.transactions.sinks import read_json_lines, read_parquet

PROGRAM = """
import os, signal, sys, time
from onceflow.processors import App
from onceflow.transactions import sinks

bootstrap, place, directory, group, topic, slot, protocol, pause = sys.argv[1:9]
nap = f"{directory}-nap-{slot}"
app = App(
    "app", bootstrap, state_dir=directory, slot=slot, commit_interval_ms=50, commit_records=20,
    max_poll_records=20, revoke_budget_ms=1_000, max_poll_interval_ms=10_000,
    transaction_timeout_ms=5_000,
    consumer_settings={"group_id": group, "group_protocol": protocol, **({} if protocol ==
        "consumer" else {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 300})},
)

@app.sink(topic, SINK, dead_letter=topic + "-letters")
def store(value: str) -> dict[str, object]:
    if value == "bad":
        raise ValueError(value)
    print("takes", flush=True)
    if os.path.exists(nap):  # Not within a transaction, which would hold SQLite's lock.
        os.remove(nap)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(float(pause))
    return {"text": value}

app.run()
"""


@dataclass
class Target:
    """Where workers write.

    Attributes:
        sink: The expression that makes the sink of ``place``.
        place: Path or address.
        stored: What a reader sees.
    """

    sink: str
    place: str
    stored: Callable[[], list[str]]


class Receiver(BaseHTTPRequestHandler):
    """A server that does the work of a key once."""

    taken: dict[str, str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.taken.setdefault(self.headers["Idempotency-Key"], body["text"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, dict[str, str]]]:
    taken: dict[str, str] = {}
    handler = type("Handler", (Receiver,), {"taken": taken})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", taken
        server.shutdown()


@pytest.fixture(params=["sqlite", "postgres", "lines", "parquet", "http"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    folder = tmp_path / "files"
    folder.mkdir()
    if request.param == "lines":
        yield Target(
            "sinks.JsonLines(place)",
            str(folder),
            lambda: [str(row["text"]) for row in read_json_lines(folder)],
        )
    elif request.param == "parquet":
        make = "__import__('pyarrow').schema([('text', __import__('pyarrow').string())])"
        yield Target(
            f"sinks.Parquet(place, {make})",
            str(folder),
            lambda: (
                read_parquet(folder).column("text").to_pylist()
                if list(folder.glob("*.parquet"))
                else []
            ),
        )
    elif request.param == "sqlite":
        yield sqlite_target(tmp_path)
    elif request.param == "http":
        with receiver() as (url, taken):
            offsets = tmp_path / "offsets.db"
            sink = f"sinks.Http(place, sinks.Sqlite({str(offsets)!r}))"
            yield Target(sink, url, lambda: list(taken.values()))
    else:
        dsn = request.getfixturevalue("postgres").schema()
        execute(dsn, "CREATE TABLE rows (text text NOT NULL)")
        yield Target(
            "sinks.Postgres(place, 'rows')",
            dsn,
            lambda: [str(text) for (text,) in rows_of(dsn, "SELECT text FROM rows")],
        )


def sqlite_target(tmp_path: Path) -> Target:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (text TEXT NOT NULL)")

    def stored() -> list[str]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return [text for (text,) in connection.execute("SELECT text FROM rows")]

    return Target("sinks.Sqlite(place, 'rows')", str(path), stored)


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap_servers
        return
    settings = {
        "group.min.session.timeout.ms": 100,
        "group.consumer.session.timeout.ms": 3_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.heartbeat.interval.ms": 300,
    }
    with Broker(settings=settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def values(start: int, count: int = 150) -> list[str]:
    return [f"{number}" for number in range(start, start + count)]


def put(address: str, topic: str, texts: list[str]) -> None:
    fill(address, topic, [text.encode() for text in texts], [text.encode() for text in texts])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.slow)])
def test_kills_at_any_moment_store_each_row_once(
    address: str, protocol: str, target: Target, workers: Workers, tmp_path: Path
) -> None:
    topic, group = make_topic(address, 3), fresh("sink")
    program = PROGRAM.replace("SINK", target.sink)
    arguments = (address, target.place, str(tmp_path / "disk"), group, topic, "0", protocol)
    sent: list[str] = []
    for _ in range(3):
        sent += values(len(sent))
        put(address, topic, sent[-150:])
        worker = workers.start(program, *arguments, "0.001")
        wait_for(lambda: len(target.stored()) >= len(sent) - 100, "rows are stored")  # noqa: B023
        worker.kill()
    worker = workers.start(program, *arguments, "0")
    wait_for(lambda: len(target.stored()) >= len(sent), "all rows")
    assert worker.stop() == 0, worker.output()
    assert sorted(target.stored()) == sorted(sent)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.slow)])
def test_workers_come_go_and_sleep(
    address: str, protocol: str, workers: Workers, tmp_path: Path
) -> None:
    """Partitions move to a second worker, away from one that sleeps, and back."""
    target = sqlite_target(tmp_path)
    topic, group = make_topic(address, 4), fresh("sink")
    program = PROGRAM.replace("SINK", target.sink)

    def arguments(slot: int) -> tuple[str, ...]:
        disk = str(tmp_path / "disk")
        return (address, target.place, disk, group, topic, str(slot), protocol, "0.002")

    sent = values(0)
    put(address, topic, sent)
    first = workers.start(program, *arguments(0))
    wait_for(lambda: len(target.stored()) >= 20, "the first worker stores rows")
    second = workers.start(program, *arguments(1))
    more = iter(range(150, 10_000, 50))

    nap = tmp_path / "disk-nap-1"
    nap.touch()

    def sleeps() -> bool:
        sent.extend(values(next(more), 50))
        put(address, topic, sent[-50:])
        return not nap.exists()

    wait_for(sleeps, "the second worker takes records, and sleeps")
    wait_for(lambda: len(target.stored()) >= len(sent), "the first one does all")
    second.signal(signal.SIGCONT)
    sent += values(next(more), 50)
    put(address, topic, sent[-50:])
    wait_for(lambda: len(target.stored()) >= len(sent), "all rows")
    assert first.stop() == 0, first.output()
    sent += values(next(more), 50)
    put(address, topic, sent[-50:])
    wait_for(lambda: len(target.stored()) >= len(sent), "the second one goes on alone")
    assert sorted(target.stored()) == sorted(sent)


@pytest.mark.timeout(240)
def test_dead_letters_of_an_outbox_reach_their_topic_once(
    address: str, postgres: PostgresServer, workers: Workers, tmp_path: Path
) -> None:
    """The worker is killed, and the relay sends what its transactions have stored."""
    dsn, topic, group = postgres.schema(), make_topic(address, 3), fresh("sink")
    execute(dsn, "CREATE TABLE rows (text text NOT NULL)")
    outbox = "__import__('onceflow.transactions.outbox').transactions.outbox.Outbox('letters')"
    program = PROGRAM.replace("SINK", f"sinks.Postgres(place, 'rows', outbox={outbox})")
    program = program.replace('if value == "bad"', "if int(value) % 10 == 0")

    def stored() -> list[str]:
        return [str(text) for (text,) in rows_of(dsn, "SELECT text FROM rows")]

    sent: list[str] = []
    arguments = (address, dsn, str(tmp_path / "disk"), group, topic, "0", "classic")
    for pause in ("0.001", "0.001", "0"):
        sent += values(len(sent))
        put(address, topic, sent[-150:])
        worker = workers.start(program, *arguments, pause)
        done = len(sent) * 9 // 10
        wait_for(lambda: len(stored()) >= done - (90 if pause != "0" else 0), "rows")  # noqa: B023
        if pause != "0":
            worker.kill()
    wait_for(
        lambda: rows_of(dsn, "SELECT count(*) FROM letters") == [(len(sent) // 10,)], "letters"
    )
    assert worker.stop() == 0, worker.output()
    with OutboxRelay(dsn, Outbox("letters"), bootstrap_servers=address) as relay:
        assert relay.run(until_empty=True) == len(sent) // 10
    good = [text for text in sent if int(text) % 10]
    assert sorted(stored()) == sorted(good)
    letters: list[bytes] = []

    def arrived() -> bool:
        """Apache Kafka answers a commit before its markers are written."""
        letters[:] = committed_values(address, f"{topic}-letters")
        return len(letters) >= len(sent) // 10

    wait_for(arrived, "letters")
    assert sorted(data.decode() for data in letters) == sorted(set(sent) - set(good))


def test_the_command_runs_it_to_the_end_and_shows_dead_letters_and_lag(
    address: str, tmp_path: Path
) -> None:
    target = sqlite_target(tmp_path)
    topic, group = make_topic(address, 2), fresh("sink")
    put(address, topic, [*values(0, 20), "bad"])
    path = tmp_path / "rows_app.py"
    text = PROGRAM.replace("SINK", target.sink).replace("app.run()\n", "")
    given = [address, target.place, str(tmp_path / "disk"), group, topic, "0", "classic", "0"]
    path.write_text(text.replace("sys.argv[1:9]", repr(given)))
    ran = subprocess.run(
        [sys.executable, "-m", "onceflow", "run", "rows_app:app", "--until-end"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sorted(target.stored()) == sorted(values(0, 20))
    assert ends(address, topic, 2)[0] == committed_offsets(address, group, topic, 2)
    assert committed_values(address, f"{topic}-letters") == [b"bad"]
