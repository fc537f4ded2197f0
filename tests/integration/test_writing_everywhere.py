"""Goal: sinks, two-phase commit and the outbox's relay keep their promises on Apache Kafka as on
our broker, and in groups of both protocols.

Method: one process after the other under one static member id is killed at every step of its
commits, each time with further records, and the last one does the rest. At the end inputs, rows and
records are the same, and nothing is left in doubt.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from consumer_worlds import BROKERS, fresh, make_topic
from postgres_server import PostgresServer, execute, rows_of
from processor_processes import Workers, fill, read_all, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.transactions.outbox import Outbox

BEGIN = """
import os, signal, sys
bootstrap, place, topic, protocol, moment = sys.argv[1:6]
worked = False

def observe(found):
    if found == moment and worked:
        os.kill(os.getpid(), signal.SIGKILL)

consumer = {"group_protocol": protocol, "group_instance_id": "one"}
if protocol == "classic":
    consumer |= {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 300}
settings = dict(
    topics=[topic], bootstrap_servers=bootstrap, group_id=topic, consumer_settings=consumer,
    transaction_timeout_ms=5_000, max_poll_interval_ms=20_000, revoke_budget_ms=1_000,
)
"""

TWO_PHASE = (
    BEGIN
    + """
from onceflow.transactions.two_phase import TwoPhaseSession

with TwoPhaseSession(place, observer=observe, **settings) as session:
    while True:
        for records in session.poll(100, 10).values():
            for record in records:
                session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))
                session.send(topic + "-out", record.value)
                worked = True
        session.commit()
"""
)

SINK = (
    BEGIN
    + """
from onceflow.transactions import sinks

with sinks.SinkSession(SINK, **settings) as session:
    while True:
        for records in session.poll(100, 10).values():
            for record in records:
                session.write({"id": int(record.value)}, of=record)
                worked = True
        session.commit()
"""
)

RELAY = (
    BEGIN
    + """
from onceflow.transactions.outbox import OutboxRelay

worked = True
with OutboxRelay(
    place, bootstrap_servers=bootstrap, name=topic, observer=observe, poll_interval_ms=50,
    batch_rows=10,
) as relay:
    relay.run()
"""
)


STEPS = ("begin", "offsets read", "rows", "offsets", "commit")


def moments(*steps: str) -> list[str]:
    return [f"{when} {step}" for step in steps for when in ("before", "after")]


@dataclass(frozen=True)
class Place:
    """A broker, and a protocol of groups there.

    Attributes:
        address: Its address.
        protocol: Protocol of the group.
        is_slow: Whether a killed member keeps its instance id for 45 s: in the consumer protocol
            on Apache Kafka, whose shortest session is so long (KIP-848).
    """

    address: str
    protocol: str
    is_slow: bool


SHORT = {
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 200,
}


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap_servers
        return
    with Broker(settings=SHORT) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(params=["classic", pytest.param("consumer", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, address: str) -> Place:
    protocol = str(request.param)
    real = "apache_kafka" in request.fixturenames or "apache-kafka" in request.node.name
    return Place(address, protocol, real and protocol == "consumer")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    dsn = postgres.schema()
    execute(dsn, "CREATE TABLE rows (id integer PRIMARY KEY)")
    return dsn


def killed_at_each(
    workers: Workers,
    program: str,
    arguments: tuple[str, ...],
    steps: list[str],
    feed: Callable[[list[int]], None],
    done: Callable[[], list[int]],
) -> None:
    """Kill a process at each step, then let one do the rest; each time with 15 more numbers."""
    sent: list[int] = []
    for moment in [*steps, "never"]:
        more = list(range(len(sent), len(sent) + 15))
        feed(more)
        sent += more
        worker = workers.start(program, *arguments, moment)
        if moment != "never":
            assert worker.process.wait(100) == -signal.SIGKILL, worker.output()
    wait_for(lambda: len(done()) >= len(sent), "all is done")
    assert worker.stop() != -signal.SIGKILL
    assert done() == sent, worker.output()


def numbers(address: str, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in read_all(address, topic))


def rows(dsn: str) -> list[int]:
    return [int(str(number)) for (number,) in rows_of(dsn, "SELECT id FROM rows ORDER BY id")]


def fed(address: str, topic: str) -> Callable[[list[int]], None]:
    return lambda more: fill(address, topic, [b"%d" % number for number in more])


@pytest.mark.timeout(400)
def test_two_phase_commit_is_killed_at_each_step(place: Place, dsn: str, workers: Workers) -> None:
    topic = make_topic(place.address, 2)
    killed_at_each(
        workers,
        TWO_PHASE,
        (place.address, dsn, topic, place.protocol),
        moments("decide") if place.is_slow else moments("prepare", "note", "decide", "finish"),
        fed(place.address, topic),
        lambda: rows(dsn),
    )
    assert numbers(place.address, f"{topic}-out") == rows(dsn)
    own = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    assert rows_of(dsn, f"{own} AND gid LIKE 'onceflow-%' AND prepared > now()") == [(0,)]


@pytest.mark.timeout(400)
def test_a_postgres_sink_is_killed_at_each_step(place: Place, dsn: str, workers: Workers) -> None:
    topic = make_topic(place.address, 2)
    killed_at_each(
        workers,
        SINK.replace("SINK", "sinks.Postgres(place, 'rows', observer=observe)"),
        (place.address, dsn, topic, place.protocol),
        moments("commit") if place.is_slow else moments(*STEPS),
        fed(place.address, topic),
        lambda: rows(dsn),
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_sqlite_sink_is_killed_at_each_step(
    place: Place, workers: Workers, tmp_path: Path
) -> None:
    topic, path = make_topic(place.address, 2), tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")

    def stored() -> list[int]:
        with contextlib.closing(sqlite3.connect(path)) as database:
            return [number for (number,) in database.execute("SELECT id FROM rows ORDER BY id")]

    killed_at_each(
        workers,
        SINK.replace("SINK", "sinks.Sqlite(place, 'rows', observer=observe)"),
        (place.address, str(path), topic, place.protocol),
        moments("commit") if place.is_slow else moments(*STEPS),
        fed(place.address, topic),
        stored,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["lines", "parquet"])
def test_a_sink_of_files_is_killed_at_each_step(
    place: Place, kind: str, workers: Workers, tmp_path: Path
) -> None:
    from onceflow.transactions.sinks import read_json_lines, read_parquet

    topic, folder = make_topic(place.address, 2), tmp_path / "files"
    folder.mkdir()
    make = "sinks.JsonLines(place, observer=observe)"
    if kind == "parquet":
        schema = "__import__('pyarrow').schema([('id', __import__('pyarrow').int64())])"
        make = f"sinks.Parquet(place, {schema}, observer=observe)"

    def stored() -> list[int]:
        if kind == "lines":
            return sorted(int(str(row["id"])) for row in read_json_lines(folder))
        return sorted(read_parquet(folder).column("id").to_pylist())

    killed_at_each(
        workers,
        SINK.replace("SINK", make),
        (place.address, str(folder), topic, place.protocol),
        moments("commit") if place.is_slow else moments("offsets read", "rows", "commit", "rename"),
        fed(place.address, topic),
        stored,
    )


@pytest.mark.timeout(400)
def test_a_relay_is_killed_at_each_step(address: str, dsn: str, workers: Workers) -> None:
    topic = make_topic(address, 2)
    with psycopg.connect(dsn) as connection:
        Outbox().make(connection)

    def put(more: list[int]) -> None:
        with psycopg.connect(dsn) as connection:
            for number in more:
                Outbox().put(connection, topic, b"%d" % number, key=b"%d" % (number % 3))

    killed_at_each(
        workers,
        RELAY,
        (address, dsn, topic, fresh("unused")),
        moments("read", "send", "commit", "delete"),
        put,
        lambda: numbers(address, topic),
    )
    for key in range(3):
        mine = [int(r.value or b"") for r in read_all(address, topic) if r.key == b"%d" % key]
        assert mine == sorted(mine)
