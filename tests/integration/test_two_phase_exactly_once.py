"""Goal: a Kafka transaction and one of PostgreSQL commit together, whatever is killed or lost.

Method: the in-process broker and a schema of PostgreSQL for each test; a session that inserts a row
and sends a record for each input is killed at each step, loses its connection and its answers, is
fenced, and shares its group. At the end inputs, rows and records are the same, and nothing is
prepared.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from interruptions import POINTS_MAX, InterruptAt
from postgres_server import PostgresServer, execute, rows_of
from processor_processes import Workers, fill, read_all, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault, FaultRule
from onceflow.sdk import Admin, Producer
from onceflow.sdk.errors import (
    BufferExhaustedError,
    CommitOutcomeUnknownError,
    ConfigError,
    IllegalStateError,
)
from onceflow.sdk.model.admin import ClusterDescription
from onceflow.sdk.serde import JSON
from onceflow.transactions import Abort, AbortReason
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.two_phase import (
    ParticipantError,
    TwoPhaseSession,
    list_in_doubt,
    resolve_in_doubt,
)
from onceflow.transactions.two_phase import session as two_phase_session

MEMBER = """
import os, signal, sys
from onceflow.transactions import Abort, AbortReason
from onceflow.transactions.two_phase import TwoPhaseSession

bootstrap, dsn, slot, moment = sys.argv[1:5]
work = 0

def observe(found):
    if found == moment and (work or found.endswith("resolve")):
        os.kill(os.getpid(), signal.SIGKILL)

with TwoPhaseSession(
    dsn, topics=["in"], bootstrap_servers=bootstrap, group_id="g", slot=slot, observer=observe,
    session_timeout_ms=2_000, transaction_timeout_ms=2_000, max_poll_interval_ms=6_000,
    revoke_budget_ms=1_000, consumer_settings={"heartbeat_interval_ms": 200},
) as session:
    while True:
        for records in session.poll(100, 10).values():
            for record in records:
                session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))
                session.send("out", record.value)
                work += 1
        session.commit()
"""

REBALANCED = """
import os, signal, sys
from onceflow.transactions.two_phase import TwoPhaseSession

bootstrap, dsn, moment = sys.argv[1:4]

def observe(found):
    if found == moment:
        os.kill(os.getpid(), signal.SIGKILL)

with TwoPhaseSession(
    dsn, topics=["in"], bootstrap_servers=bootstrap, group_id="g", slot="0", observer=observe,
    session_timeout_ms=2_000, transaction_timeout_ms=2_000, max_poll_interval_ms=6_000,
    revoke_budget_ms=1_000, consumer_settings={"heartbeat_interval_ms": 200},
) as session:
    while True:  # Nothing but a rebalance commits here.
        for records in session.poll(100, 10).values():
            for record in records:
                session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))
                session.send("out", record.value)
                print("worked", flush=True)
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=2)
        yield broker


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    dsn = postgres.schema()
    execute(dsn, "CREATE TABLE rows (id integer PRIMARY KEY)")
    return dsn


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


def sent(broker: Broker) -> list[int]:
    found = read_all(broker.bootstrap_servers, "out")
    return sorted(int(record.value or b"") for record in found)


def rows(dsn: str) -> list[int]:
    return [int(str(number)) for (number,) in rows_of(dsn, "SELECT id FROM rows ORDER BY id")]


def prepared(dsn: str) -> list[str]:
    return [str(gid) for (gid,) in rows_of(dsn, "SELECT gid FROM pg_prepared_xacts")]


def session_of(broker: Broker, dsn: str, **settings: object) -> TwoPhaseSession[object, object]:
    return TwoPhaseSession(
        dsn,
        topics=["in"],
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        **settings,  # type: ignore[arg-type]
    )


def take(session: TwoPhaseSession[object, object], count: int) -> None:
    """Poll until this many records came; insert a row and send a record for each."""
    end = time.monotonic() + 60
    while count > 0:
        assert time.monotonic() < end, f"{count} records did not come"
        for records in session.poll(200).values():
            for record in records:
                session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))  # type: ignore[call-overload]
                session.send("out", record.value)
                count -= 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of coroutines.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("then", ["commit", "poll"])
def test_what_an_interrupted_poll_took_is_read_again(broker: Broker, dsn: str, then: str) -> None:
    """A signal comes at each point in turn of a poll that has records at hand."""
    asked, settings = 0, {"fetch_max_wait_ms": 10}
    with session_of(broker, dsn, consumer_settings=settings) as session:
        for point in range(POINTS_MAX):
            fill(broker.bootstrap_servers, "in", numbers(1, asked))
            asked += 1
            interrupt = InterruptAt(point)
            polled = interrupt.run(lambda: session.poll(5_000))
            if polled is None and then == "commit":
                session.commit()
            for records in (polled or {}).values():
                for record in records:
                    session.connection.execute("INSERT INTO rows VALUES (%s)", (int(record.value),))  # type: ignore[call-overload]
                    session.send("out", record.value)
            if polled is None:
                take(session, asked - len(rows(dsn)))
            assert session.commit()
            assert rows(dsn) == list(range(asked)), point
            if not interrupt.happened:
                break
    assert not interrupt.happened, "every point was tried"
    assert point > 20
    assert sent(broker) == list(range(asked))


def test_rows_outputs_and_offsets_commit_together(broker: Broker, dsn: str) -> None:
    fill(broker.bootstrap_servers, "in", numbers(10))
    with session_of(broker, dsn) as session:
        take(session, 10)
        assert (rows(dsn), sent(broker)) == ([], [])
        assert session.commit()
        assert rows(dsn) == sent(broker) == list(range(10))
        fill(broker.bootstrap_servers, "in", numbers(5, 10))
        take(session, 5)
        session.abort()
        take(session, 5)
        assert session.commit()
        assert session.commit()  # nothing was done
    assert rows(dsn) == sent(broker) == list(range(15))
    assert prepared(dsn) == []


def test_a_commit_asks_the_database_twice_and_an_abort_too(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is three round trips; a statement that only fails would be a fourth."""
    asked: list[str] = []
    execute = psycopg.Connection.execute

    def note(self: object, text: object, *arguments: object, **options: object) -> object:
        made = text if isinstance(text, str) else text.as_string(None)  # type: ignore[attr-defined]
        asked.append(" ".join(made.split()[:2]))
        return execute(self, text, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(psycopg.Connection, "execute", note)
    fill(broker.bootstrap_servers, "in", numbers(4))
    with session_of(broker, dsn) as session:
        take(session, 4)
        del asked[:]
        assert session.commit()
        assert asked == ["PREPARE TRANSACTION", "COMMIT PREPARED"]
        fill(broker.bootstrap_servers, "in", numbers(1, 4))
        take(session, 1)
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="g-0").close()
        del asked[:]
        assert session.commit() is False
        assert asked == ["PREPARE TRANSACTION", "ROLLBACK PREPARED"]
        take(session, 1)
        assert session.commit()
    assert rows(dsn) == sent(broker) == list(range(5))


def test_what_is_not_committed_is_undone_on_both_sides(broker: Broker, dsn: str) -> None:
    fill(broker.bootstrap_servers, "in", numbers(10))
    with session_of(broker, dsn) as session:
        take(session, 10)
    assert (rows(dsn), sent(broker)) == ([], [])
    with session_of(broker, dsn) as session:
        take(session, 10)
        assert session.commit()
    assert rows(dsn) == sent(broker) == list(range(10))


STEPS = ("prepare", "note", "decide", "finish")


@pytest.mark.parametrize("moment", [f"{when} {s}" for s in STEPS for when in ("before", "after")])
def test_a_killed_process_leaves_both_or_neither(
    broker: Broker, dsn: str, workers: Workers, moment: str
) -> None:
    fill(broker.bootstrap_servers, "in", numbers(40))
    for _ in range(2):
        member = workers.start(MEMBER, broker.bootstrap_servers, dsn, "0", moment)
        assert member.process.wait(60) == -signal.SIGKILL, member.output()
    workers.start(MEMBER, broker.bootstrap_servers, dsn, "0", "never")
    wait_for(lambda: len(rows(dsn)) >= 40 and len(sent(broker)) >= 40, "all is done")
    wait_for(lambda: prepared(dsn) == [], "nothing is in doubt")
    assert rows(dsn) == sent(broker) == list(range(40))


def test_members_of_a_group_commit_within_its_rebalances(
    broker: Broker, dsn: str, workers: Workers
) -> None:
    values = numbers(200)
    fill(broker.bootstrap_servers, "in", values)
    first = session_of(broker, dsn)
    try:
        take(first, 1)
        workers.start(MEMBER, broker.bootstrap_servers, dsn, "1", "never")
        end = time.monotonic() + 60
        while len(first.poll(50, 1)) < 0 or len(first._session.assignment()) != 1:
            assert time.monotonic() < end
            # Whatever is polled here and not worked on would be committed by the rebalance.
            first.abort()
    finally:
        first.close()
    wait_for(lambda: len(rows(dsn)) >= 200 and len(sent(broker)) >= 200, "all is done")
    assert rows(dsn) == sent(broker) == list(range(200))


@pytest.mark.parametrize("left", ["before decide", "before finish"])
@pytest.mark.parametrize("moment", ["before resolve", "after resolve"])
def test_a_process_that_is_killed_while_it_finishes_what_is_in_doubt(
    broker: Broker, dsn: str, workers: Workers, left: str, moment: str
) -> None:
    fill(broker.bootstrap_servers, "in", numbers(20))
    for killed_at in (left, moment):
        member = workers.start(MEMBER, broker.bootstrap_servers, dsn, "0", killed_at)
        assert member.process.wait(60) == -signal.SIGKILL, member.output()
    workers.start(MEMBER, broker.bootstrap_servers, dsn, "0", "never")
    wait_for(lambda: len(rows(dsn)) >= 20 and len(sent(broker)) >= 20, "all is done")
    wait_for(lambda: prepared(dsn) == [], "nothing is in doubt")
    assert rows(dsn) == sent(broker) == list(range(20))


@pytest.mark.parametrize(
    "moment", [f"{when} {s}" for s in STEPS if s != "decide" for when in ("before", "after")]
)
def test_a_process_that_is_killed_within_a_rebalance_leaves_both_or_neither(
    broker: Broker, dsn: str, workers: Workers, moment: str
) -> None:
    """The decision is the session's there, between note and finish."""
    fill(broker.bootstrap_servers, "in", numbers(40))
    first = workers.start(REBALANCED, broker.bootstrap_servers, dsn, moment)
    wait_for(lambda: "worked" in first.output(), "the first member has work in hand")
    second = workers.start(MEMBER, broker.bootstrap_servers, dsn, "1", "never")
    assert first.process.wait(60) == -signal.SIGKILL, first.output()
    # What is prepared holds the locks of its rows, for which the second member waits.
    resolve_in_doubt(dsn, "g-0", client={"bootstrap.servers": broker.bootstrap_servers})
    wait_for(lambda: len(sent(broker)) >= 40, "the second member does the rest")
    wait_for(lambda: len(rows(dsn)) >= 40, "the database has all")
    second.stop()
    assert prepared(dsn) == []
    assert rows(dsn) == sent(broker) == list(range(40))


def test_a_note_that_finds_no_room_undoes_both_sides(broker: Broker, dsn: str) -> None:
    """A refusal that is no fence: the producer and its epoch stay, and the work is done again."""
    held: list[FaultRule] = []

    def observe(found: str) -> None:
        if found == "before note" and not held:
            held.append(broker.faults.add("Produce", Fault.HOLD, topic="out", times=None))
            for size in (100_000, 1_000, 1):
                with contextlib.suppress(BufferExhaustedError):
                    while True:
                        session.send("out", b"x" * size)
        elif found == "before decide":
            broker.faults.clear()

    fill(broker.bootstrap_servers, "in", numbers(3))
    with session_of(
        broker, dsn, observer=observe, buffer_memory=2**20, buffer_full="raise"
    ) as session:
        take(session, 3)
        assert session.commit() is False
        assert isinstance(getattr(session.last_abort, "cause", None), BufferExhaustedError)
        assert prepared(dsn) == []
        assert (rows(dsn), sent(broker)) == ([], [])
        take(session, 3)
        assert session.commit()
    assert held
    assert rows(dsn) == sent(broker) == [0, 1, 2]


def test_a_note_that_is_refused_within_a_rebalance_undoes_both_sides(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.bootstrap_servers, "in", numbers(3))
    with session_of(broker, dsn) as session:
        take(session, 3)
        send = session._session.send

        def refuse(topic: str, *arguments: object, **options: object) -> object:
            if topic == "onceflow-decisions":
                raise BufferExhaustedError("full")
            return send(topic, *arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as broken:
            broken.setattr(session._session, "send", refuse)
            partitions = sorted(session._session.assignment())
            run_blocking(session._session._core.on_revoked(partitions))
            run_blocking(session._session._core.on_assigned(partitions))
        assert (rows(dsn), sent(broker)) == ([], [])
        take(session, 3)
        assert session.commit()
    assert rows(dsn) == sent(broker) == [0, 1, 2]
    assert prepared(dsn) == []


@pytest.mark.parametrize("moment", ["before prepare", "after prepare", "before finish"])
def test_a_lost_connection_to_the_database(broker: Broker, dsn: str, moment: str) -> None:
    cut: list[int] = []

    def observe(found: str) -> None:
        if found == moment and not cut:
            for connection in (session._work, session._finisher):
                assert connection is not None
                cut.append(connection.info.backend_pid)
                execute(dsn, f"SELECT pg_terminate_backend({cut[-1]}, 10000)")

    fill(broker.bootstrap_servers, "in", numbers(10))
    with session_of(broker, dsn, observer=observe) as session:
        take(session, 10)
        if moment == "before prepare":
            with pytest.raises(ParticipantError, match="both sides were aborted"):
                session.commit()
            take(session, 10)
        assert session.commit()
        assert session.poll(200) == {}
        assert cut
        assert rows(dsn) == sent(broker) == list(range(10))
    assert prepared(dsn) == []


@pytest.mark.parametrize("moment", ["after prepare", "before decide", "before finish"])
def test_a_signal_within_a_commit_leaves_both_or_neither(
    broker: Broker, dsn: str, moment: str
) -> None:
    signals = [KeyboardInterrupt()]

    def observe(found: str) -> None:
        if found == moment and signals:
            raise signals.pop()

    fill(broker.bootstrap_servers, "in", numbers(3))
    with session_of(broker, dsn, observer=observe) as session:
        take(session, 3)
        with pytest.raises(KeyboardInterrupt):
            session.commit()
        if moment != "before finish":
            session.abort()
            take(session, 3)
            assert session.commit()
        assert session.poll(200) == {}
        assert rows(dsn) == sent(broker) == [0, 1, 2]
    assert prepared(dsn) == []


def test_a_statement_that_failed_undoes_both_sides_though_the_program_goes_on(
    broker: Broker, dsn: str
) -> None:
    """PostgreSQL answers ROLLBACK to PREPARE TRANSACTION then, and no error."""
    fill(broker.bootstrap_servers, "in", numbers(3))
    with session_of(broker, dsn) as session:
        take(session, 3)
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.connection.execute("SELECT * FROM nothing")
        with pytest.raises(ParticipantError, match=r"answered ROLLBACK.*both sides were aborted"):
            session.commit()
        assert (rows(dsn), sent(broker)) == ([], [])
        take(session, 3)
        assert session.commit()
    assert rows(dsn) == sent(broker) == [0, 1, 2]


def test_rows_that_went_with_their_connection_are_not_passed_over(broker: Broker, dsn: str) -> None:
    fill(broker.bootstrap_servers, "in", numbers(3))
    with session_of(broker, dsn) as session:
        take(session, 3)
        work = session.connection
        execute(dsn, f"SELECT pg_terminate_backend({work.info.backend_pid}, 10000)")
        with pytest.raises(psycopg.OperationalError):
            work.execute("SELECT 1")
        with pytest.raises(ParticipantError, match="was lost"):
            _ = session.connection
        with pytest.raises(ParticipantError, match="was lost"):
            session.commit()
        take(session, 3)
        assert session.commit()
    assert rows(dsn) == sent(broker) == [0, 1, 2]


def test_a_row_that_the_database_refuses_at_the_end_undoes_both(broker: Broker, dsn: str) -> None:
    execute(dsn, "ALTER TABLE rows ADD COLUMN x integer UNIQUE DEFERRABLE INITIALLY DEFERRED")
    fill(broker.bootstrap_servers, "in", numbers(1))
    with session_of(broker, dsn) as session:
        take(session, 1)
        session.connection.execute("INSERT INTO rows VALUES (100, 1), (101, 1)")
        with pytest.raises(ParticipantError, match=r"duplicate key.*both sides were aborted"):
            session.commit()
        take(session, 1)
        assert session.commit()
    assert rows(dsn) == sent(broker) == [0]


@pytest.mark.parametrize("happened", [True, False])
def test_a_decision_without_an_answer_is_read_from_the_log(
    broker: Broker, dsn: str, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.bootstrap_servers, "in", numbers(10))
    with session_of(broker, dsn) as session:
        take(session, 10)
        commit = session._session.commit

        def lost(*_: object) -> bool:
            """As the session does when it could not find out."""
            if happened:
                commit()
            else:
                session._session.abort()
            session.aborted(Abort(AbortReason.OUTCOME_UNKNOWN))
            raise CommitOutcomeUnknownError("no answer")

        with monkeypatch.context() as broken:
            broken.setattr(session._session, "commit", lost)
            broken.setattr(session, "committed", lambda: None)
            with pytest.raises(CommitOutcomeUnknownError):
                session.commit()
        assert len(prepared(dsn)) == 1
        with pytest.raises(IllegalStateError, match=r"poll\(\) first"):
            session.commit()
        if happened:
            assert session.poll(200) == {}
        else:
            take(session, 10)
            assert session.commit()
        assert rows(dsn) == sent(broker) == list(range(10))
    assert prepared(dsn) == []


def test_a_fenced_process_undoes_both_sides(broker: Broker, dsn: str) -> None:
    fill(broker.bootstrap_servers, "in", numbers(10))
    with session_of(broker, dsn) as session:
        take(session, 10)
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="g-0").close()
        assert session.commit() is False
        take(session, 10)
        assert session.commit()
    assert rows(dsn) == sent(broker) == list(range(10))
    assert prepared(dsn) == []


def test_a_process_leaves_alone_what_its_successor_has_prepared(broker: Broker, dsn: str) -> None:
    """The successor's decision may still be a commit, which would then lose its rows."""
    fill(broker.bootstrap_servers, "in", numbers(5))
    with session_of(broker, dsn) as session:
        take(session, 5)
        session._prepare()
        own, theirs = session._prepared, session._decisions.new_gid()
        with psycopg.connect(dsn, autocommit=True) as successor:
            successor.execute("BEGIN; INSERT INTO rows VALUES (99)")
            successor.execute(f"PREPARE TRANSACTION '{theirs}'")
            session.aborted(Abort(AbortReason.FENCED, None))
            assert session.progress() == {}  # Nothing is prepared until the outcome is known.
            assert sorted(prepared(dsn)) == sorted([own, theirs])
            session._session.poll()
            session._resolve_unsure()
            assert prepared(dsn) == [theirs]
            successor.execute(f"COMMIT PREPARED '{theirs}'")
    assert rows(dsn) == [99]


@pytest.mark.parametrize("lost", ["SHOW", "pg_prepared_xacts"])
def test_a_database_that_goes_away_during_the_start_is_told(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    class Connection(psycopg.Connection[tuple[object, ...]]):
        def execute(self, query, *args, **options):  # type: ignore[no-untyped-def]
            if lost in str(query):
                self.close()
            return super().execute(query, *args, **options)

    monkeypatch.setattr(
        two_phase_session, "connected", lambda dsn, **_: Connection.connect(dsn, autocommit=True)
    )
    with pytest.raises(ParticipantError, match="cannot be reached"):
        session_of(broker, dsn)


@pytest.mark.parametrize("moment", ["before decide", "before finish"])
def test_what_a_process_left_that_does_not_come_back_is_finished_by_command(
    broker: Broker, dsn: str, workers: Workers, moment: str
) -> None:
    fill(broker.bootstrap_servers, "in", numbers(10))
    member = workers.start(MEMBER, broker.bootstrap_servers, dsn, "7", moment)
    assert member.process.wait(60) == -signal.SIGKILL
    (gid,) = prepared(dsn)
    client = {"bootstrap.servers": broker.bootstrap_servers}
    done = resolve_in_doubt(dsn, "g-7", client=client)
    assert done == {gid: moment == "before finish"}
    assert resolve_in_doubt(dsn, "g-7", client=client) == {}
    assert prepared(dsn) == []
    assert rows(dsn) == sent(broker)


@pytest.mark.parametrize("by", ["start", "command"])
@pytest.mark.parametrize("moment", ["before decide", "before finish"])
def test_two_clusters_over_one_database_finish_their_own_transactions(
    broker: Broker, dsn: str, workers: Workers, moment: str, by: str
) -> None:
    """Same group and slot on both; the other cluster's decision log does not know the name."""
    fill(broker.bootstrap_servers, "in", numbers(3))
    member = workers.start(MEMBER, broker.bootstrap_servers, dsn, "0", moment)
    assert member.process.wait(60) == -signal.SIGKILL, member.output()
    left = prepared(dsn)
    assert len(left) == 1
    with Broker() as other:
        client = {"bootstrap.servers": other.bootstrap_servers}
        if by == "start":
            other.create_topic("in")
            session_of(other, dsn).close()
        else:
            assert resolve_in_doubt(dsn, "g-0", client=client) == {}
        (found,) = list_in_doubt(dsn, client=client, transactional_ids=["g-0"])
        assert (found.gid, found.transactional_id, found.decided) == (left[0], None, False)
    assert prepared(dsn) == left
    client = {"bootstrap.servers": broker.bootstrap_servers}
    decided = moment == "before finish"
    (found,) = list_in_doubt(dsn, client=client)
    assert (found.transactional_id, found.decided) == ("g-0", decided)
    assert resolve_in_doubt(dsn, "g-0", client=client) == {left[0]: decided}
    assert rows(dsn) == sent(broker)


def test_a_cluster_without_an_id_is_refused(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = ClusterDescription("", 0, ())
    monkeypatch.setattr(Admin, "describe_cluster", lambda _: nameless)
    with pytest.raises(ConfigError, match=r"bootstrap_servers.*no id"):
        session_of(broker, dsn)


def test_what_cannot_work_is_told(broker: Broker, dsn: str) -> None:
    with pytest.raises(ConfigError, match=r"value_serializer.*encode"):
        session_of(broker, dsn, value_serializer=JSON.serialize)
    with pytest.raises(ParticipantError, match="cannot be reached"):
        session_of(broker, "host=127.0.0.1 port=1 user=x dbname=y")
