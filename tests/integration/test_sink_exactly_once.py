"""Goal: a session with a sink stores the rows of each record once, whatever is lost or replaced.

Method: the in-process broker and an SQLite file; sessions die, lose answers, are replaced in the
sink by another owner, share a group with another session, and the group's offsets are changed
behind them. In processes of their own and with every sink, they sleep past their session timeout
and are killed.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from postgres_server import execute, rows_of
from processor_processes import Worker, Workers, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import CommitFailedError, IllegalStateError
from onceflow.transactions.sinks import (
    SinkFencedError,
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkSession,
    SinkTopicReplacedError,
    Sqlite,
    read_json_lines,
)

DEADLINE_S = 30
IN = TopicPartition("in", 0)
MEMBER = """
import sys, time
from onceflow.transactions import sinks

bootstrap, path, slot, pause = sys.argv[1:5]
with sinks.SinkSession(
    SINK, topics=["in"], bootstrap_servers=bootstrap, group_id="g", slot=slot,
    session_timeout_ms=2_000, transaction_timeout_ms=2_000, max_poll_interval_ms=6_000,
    revoke_budget_ms=1_000, consumer_settings={"heartbeat_interval_ms": 200},
) as session:
    while True:
        batches = session.poll(100, 20)
        for records in batches.values():
            for record in records:
                session.write({"text": record.value.decode()}, of=record)
        if batches:
            print("processed", flush=True)
            time.sleep(float(pause))
            done = session.commit()
            print("committed" if done else f"dropped {session.last_abort}", flush=True)
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        broker.create_topic("in", partitions=1)
        yield broker


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (text TEXT NOT NULL)")
    return path


def fill(broker: Broker, *values: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in values:
            producer.send("in", value.encode())


def session_of(broker: Broker, sink: Sqlite, **settings: object) -> SinkSession:
    return SinkSession(
        sink, topics=["in"], bootstrap_servers=broker.bootstrap_servers, group_id="g", **settings
    )


def take(session: SinkSession, count: int) -> list[str]:
    """Poll until this many records came, and write a row for each."""
    taken: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"only {taken} came"
        for records in session.poll(100).values():
            for record in records:
                taken.append((record.value or b"").decode())
                session.write({"text": taken[-1]}, of=record)
    return taken


def stored(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM rows ORDER BY rowid")]


def test_reading_goes_on_at_the_sinks_offsets_and_not_at_the_groups(
    broker: Broker, path: Path
) -> None:
    fill(broker, "a", "b")
    with session_of(broker, Sqlite(path, "rows")) as session:
        take(session, 2)
        assert session.commit()
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
    ) as other:
        assert other.committed([IN])[IN] is not None  # for the lag
        other.assign([IN])
        other.commit({IN: 0})
    fill(broker, "c")
    with session_of(broker, Sqlite(path, "rows")) as session:
        assert take(session, 1) == ["c"]
        assert session.commit()
    assert stored(path) == ["a", "b", "c"]


def test_a_topic_that_was_made_again_is_not_read_on_from_the_old_offset(
    broker: Broker, path: Path
) -> None:
    fill(broker, "a", "b")
    with session_of(broker, Sqlite(path, "rows")) as session:
        take(session, 2)
        assert session.commit()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics(["in"])
    broker.create_topic("in", partitions=1)
    fill(broker, "c", "d", "e")
    with (
        session_of(broker, Sqlite(path, "rows")) as session,
        pytest.raises(SinkTopicReplacedError, match=r"in-0.*made again.*delete what the sink"),
    ):
        take(session, 1)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM onceflow_offsets WHERE topic = 'in'")
        connection.commit()
    with session_of(broker, Sqlite(path, "rows")) as session:
        assert take(session, 3) == ["c", "d", "e"]
        assert session.commit()
    assert stored(path) == ["a", "b", "c", "d", "e"]


def test_a_session_of_another_cluster_under_the_same_group_is_refused(
    broker: Broker, path: Path
) -> None:
    """Its topic has the same name and other records; the first one goes on."""
    fill(broker, "a", "b")
    with session_of(broker, Sqlite(path, "rows")) as session, Broker() as other:
        take(session, 1)
        assert session.commit()
        other.create_topic("in", partitions=1)
        fill(other, "x", "y", "z")
        with (
            session_of(other, Sqlite(path, "rows")) as stranger,
            pytest.raises(SinkTopicReplacedError, match=r"another cluster.*another group_id"),
        ):
            take(stranger, 1)
        fill(broker, "c")
        take(session, 1)
        assert session.commit()
    assert stored(path) == ["a", "b", "c"]


def test_a_topic_that_is_made_again_while_a_session_reads_is_told_at_once(
    broker: Broker, path: Path
) -> None:
    fill(broker, "a", "b")
    with session_of(
        broker, Sqlite(path, "rows"), auto_offset_reset="earliest", metadata_max_age_ms=100
    ) as session:
        take(session, 2)
        assert session.commit()
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.delete_topics(["in"])
        broker.create_topic("in", partitions=1)
        fill(broker, "c", "d", "e")
        for _ in range(2):
            with pytest.raises(SinkTopicReplacedError, match=r"in-0.*made again.*delete what the"):
                take(session, 1)
    assert stored(path) == ["a", "b"]


def test_two_live_sessions_share_partitions_and_store_each_row_once(
    broker: Broker, path: Path
) -> None:
    """A second member comes while the first holds uncommitted rows, and goes while it does."""
    broker.create_topic("two", partitions=2)
    values = [f"{number}" for number in range(40)]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            producer.send("two", value.encode(), partition=number % 2)
    settings = {"topics": ["two"], "group_id": "g"}
    one = SinkSession(
        Sqlite(path, "rows"), bootstrap_servers=broker.bootstrap_servers, slot="0", **settings
    )
    two = SinkSession(
        Sqlite(path, "rows"), bootstrap_servers=broker.bootstrap_servers, slot="1", **settings
    )
    with contextlib.closing(one):
        deadline = time.monotonic() + DEADLINE_S
        while len(one.assignment()) < 2:
            assert time.monotonic() < deadline
            step(one, 5)
        while not two.assignment():
            assert time.monotonic() < deadline
            step(one, 5)
            step(two, 5)
        assert stored(path), "the first member's rows were not committed within the rebalance"
        assert len(one.assignment()) == len(two.assignment()) == 1
        step(two, 5)
        two.close()  # with uncommitted rows, which the other member reads again
        while sorted(stored(path), key=int) != values:
            assert time.monotonic() < deadline, stored(path)
            step(one, 5)
            one.commit()


def step(session: SinkSession, count: int) -> None:
    for records in session.poll(50, count).values():
        for record in records:
            session.write({"text": (record.value or b"").decode()}, of=record)


@dataclass
class Target:
    """Where members of their own processes write.

    Attributes:
        sink: The expression that makes the sink of ``path``.
        path: Path or address.
        stored: What a reader sees.
    """

    sink: str
    path: str
    stored: Callable[[], list[str]]

    def start(self, workers: Workers, broker: Broker, slot: int, pause: float) -> Worker:
        program = MEMBER.replace("SINK", self.sink)
        arguments = (broker.bootstrap_servers, self.path, str(slot), str(pause))
        return workers.start(program, *arguments)


@pytest.fixture(params=["sqlite", "postgres", "files"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "files":
        folder = tmp_path / "files"
        folder.mkdir()
        return Target(
            "sinks.JsonLines(path)",
            str(folder),
            lambda: [str(row["text"]) for row in read_json_lines(folder)],
        )
    if request.param == "sqlite":
        path = request.getfixturevalue("path")
        return Target("sinks.Sqlite(path, 'rows')", str(path), lambda: stored(path))
    dsn = request.getfixturevalue("postgres").schema()
    execute(dsn, "CREATE TABLE rows (text text NOT NULL)")
    return Target(
        "sinks.Postgres(path, 'rows')",
        dsn,
        lambda: [str(text) for (text,) in rows_of(dsn, "SELECT text FROM rows")],
    )


def test_a_zombie_that_wakes_up_stores_nothing(
    broker: Broker, target: Target, workers: Workers
) -> None:
    """Stopped past its session timeout with rows in hand; another member stores them."""
    first = [f"{number}" for number in range(40)]
    fill(broker, *first)
    zombie = target.start(workers, broker, 0, 2)
    wait_for(lambda: "processed" in zombie.output(), "first batch")
    zombie.signal(signal.SIGSTOP)
    target.start(workers, broker, 1, 0)
    wait_for(lambda: len(target.stored()) == 40, "the other member did all")
    zombie.signal(signal.SIGCONT)
    wait_for(lambda: "was replaced" in zombie.output(), "the zombie was refused")
    more = [f"more {number}" for number in range(20)]
    fill(broker, *more)
    wait_for(lambda: len(target.stored()) >= 60, "work goes on")
    assert sorted(target.stored()) == sorted(first + more)


def test_kills_at_any_moment_store_each_row_once(
    broker: Broker, target: Target, workers: Workers
) -> None:
    values = [f"{number}" for number in range(400)]
    fill(broker, *values)
    slot = 0
    for goal in (1, 100, 200):
        member = target.start(workers, broker, slot, 0.01)
        wait_for(lambda: len(target.stored()) >= goal, f"{goal} rows")  # noqa: B023 - at once
        member.kill()
    target.start(workers, broker, slot, 0)
    wait_for(lambda: len(target.stored()) >= len(values), "all rows")
    assert sorted(target.stored()) == sorted(values)


def test_what_was_not_committed_is_read_again(broker: Broker, path: Path) -> None:
    fill(broker, "a", "b")
    with session_of(broker, Sqlite(path, "rows")) as session:
        take(session, 2)
    assert stored(path) == []
    with session_of(broker, Sqlite(path, "rows")) as session:
        take(session, 2)
        session.abort()
        assert take(session, 2) == ["a", "b"]
        assert session.commit()
    assert stored(path) == ["a", "b"]


@pytest.mark.parametrize(("moment", "committed"), [("before", False), ("after", True)])
def test_a_lost_answer_neither_loses_nor_doubles(
    broker: Broker, path: Path, moment: str, committed: bool
) -> None:
    fill(broker, "a", "b")
    failures: list[str] = []

    def observe(found: str) -> None:
        if failures and found == failures[0]:
            failures.clear()
            raise OSError("connection reset")

    with session_of(broker, Sqlite(path, "rows", observer=observe)) as session:
        take(session, 2)
        failures.append(f"{moment} commit")
        assert session.commit() is committed
        if not committed:
            assert isinstance(session.last_abort, SinkOutcomeUnknownError)
            assert take(session, 2) == ["a", "b"]
            assert session.commit()
        fill(broker, "c")
        assert take(session, 1) == ["c"]
        assert session.commit()
    assert stored(path) == ["a", "b", "c"]


def test_a_replaced_owner_writes_nothing_and_goes_on_behind_its_successor(
    broker: Broker, path: Path
) -> None:
    fill(broker, "a", "b")
    other = Sqlite(path, "rows")
    with session_of(broker, Sqlite(path, "rows")) as session, contextlib.closing(other):
        take(session, 2)
        other.open("g")
        other.claim([IN], "successor")
        assert session.commit() is False
        assert isinstance(session.last_abort, SinkFencedError)
        assert stored(path) == []
        # The group still names this session the owner, so that it claims the partition again.
        assert take(session, 2) == ["a", "b"]
        assert session.commit()
    assert stored(path) == ["a", "b"]


def test_a_row_that_cannot_be_stored_is_raised_and_its_work_read_again(
    broker: Broker, path: Path
) -> None:
    fill(broker, "a")
    with session_of(broker, Sqlite(path, "rows")) as session:
        take(session, 1)
        session.write({"colour": "red"})
        with pytest.raises(SinkRowError, match="colour"):
            session.commit()
        assert take(session, 1) == ["a"]
        assert session.commit()
    assert stored(path) == ["a"]


def test_start_from_latest_keeps_its_start(broker: Broker, path: Path) -> None:
    fill(broker, "old")
    with session_of(broker, Sqlite(path, "rows"), start_from="latest") as session:
        deadline = time.monotonic() + DEADLINE_S
        while not session.assignment():
            assert time.monotonic() < deadline
            session.poll(100)
    fill(broker, "between")
    with session_of(broker, Sqlite(path, "rows"), start_from="latest") as session:
        assert take(session, 1) == ["between"]


def test_rows_belong_to_open_work(broker: Broker, path: Path) -> None:
    fill(broker, "a", "b")
    with session_of(broker, Sqlite(path, "rows")) as session:
        with pytest.raises(IllegalStateError, match="poll"):
            session.write({"text": "early"})
        (record,) = next(iter(_polled(session).values()))
        assert session.commit()
        (second,) = next(iter(_polled(session).values()))
        with pytest.raises(CommitFailedError, match="offset 0"):
            session.write({"text": "late"}, of=record)
        session.write({"text": "right"}, of=second)
        assert session.commit()
    assert stored(path) == ["right"]
    with pytest.raises(IllegalStateError, match="closed"):
        session.poll()


def _polled(session: SinkSession) -> dict:  # type: ignore[type-arg]
    deadline = time.monotonic() + DEADLINE_S
    while not (records := session.poll(100, 1)):
        assert time.monotonic() < deadline
    return records
