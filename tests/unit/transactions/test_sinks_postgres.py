"""Goal: the PostgreSQL sink stores rows and offsets together, and tells what it cannot store.

Method: the conformance kit on a schema of its own for each test, rows read over a second
connection; then a process that is killed at each step, rows and tables that do not fit, and a
server that waits for locks, refuses, stops answering or crashes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import psycopg
import pytest
from postgres_server import PostgresServer, execute, postgres_server, rows_of, unavailable_reason
from psycopg.types.json import Jsonb

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions.outbox import Inbox, Outbox
from onceflow.transactions.sinks import (
    Batch,
    Move,
    Postgres,
    SinkFencedError,
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
    postgres,
)
from onceflow.transactions.sinks.testing import FIRST, SECOND, SinkConformance

TABLE = "CREATE TABLE rows (id integer PRIMARY KEY, text text NOT NULL)"

KILLED = """
import os, signal, sys
from onceflow.transactions.sinks import Batch, Move, Postgres
from onceflow.transactions.sinks.testing import FIRST

dsn, moment, key = sys.argv[1:]
armed = False  # at the second claim, or behind it
at_claim = moment.startswith("claim: ")

def observe(found):
    if armed and found == moment.removeprefix("claim: "):
        os.kill(os.getpid(), signal.SIGKILL)

sink = Postgres(dsn, "rows", key=[key] if key else (), observer=observe)
sink.open("g")
sink.claim([FIRST], "first")
armed = at_claim
entry = sink.claim([FIRST], "a")[FIRST]
armed = True
rows = [{"id": number, "text": "x"} for number in range(600)]  # So that they are appended.
sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 5)}, rows))
"""


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    dsn = postgres.schema()
    execute(dsn, TABLE)
    return dsn


def found(dsn: str) -> list[dict[str, object]]:
    return [
        {"id": number, "text": text}
        for number, text in rows_of(dsn, "SELECT id, text FROM rows ORDER BY id")
    ]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["insert", "upsert"])
class TestPostgres(SinkConformance):
    @pytest.fixture(autouse=True)
    def _target(self, dsn: str, key: Sequence[str]) -> None:
        self.dsn, self.key = dsn, key

    def make(self, observer=None) -> Postgres:  # type: ignore[no-untyped-def]
        return Postgres(self.dsn, "rows", key=self.key, observer=observer)

    def rows(self) -> Sequence[dict[str, object]]:
        return found(self.dsn)


STEPS = ("begin", "offsets read", "rows", "offsets", "commit")
WHEN = ("before", "after")


@pytest.mark.parametrize(
    ("key", "moment"),
    [(key, f"{when} {s}") for s in STEPS for when in WHEN for key in ("", "id")]
    + [("id", f"{when} append") for when in WHEN],
)
def test_a_killed_process_leaves_all_or_nothing(dsn: str, moment: str, key: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, dsn, moment, key], check=False)
    assert done.returncode == -signal.SIGKILL
    sink = Postgres(dsn, "rows")
    sink.open("g")
    stored = moment == "after commit"
    assert sink.claim([FIRST], "b")[FIRST].offset == (5 if stored else None)
    assert len(found(dsn)) == (600 if stored else 0)
    sink.close()


@pytest.mark.parametrize("moment", [f"{w} {s}" for s in ("begin", "commit") for w in WHEN])
def test_a_process_that_is_killed_within_a_claim_has_claimed_or_not(dsn: str, moment: str) -> None:
    program = [sys.executable, "-c", KILLED, dsn, f"claim: {moment}", "id"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    sink = Postgres(dsn, "rows")
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "b")[FIRST]
        assert (entry.epoch, entry.offset) == (3 if moment == "after commit" else 2, None)
        sink.write(Batch("b", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}]))


def written(dsn: str, key: Sequence[str], *rows: dict[str, object], table: str = "rows") -> None:
    sink = Postgres(dsn, table, key=key)
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        upto = (entry.offset or 0) + 1
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, upto)}, rows))


def test_with_a_key_the_last_row_wins(dsn: str) -> None:
    execute(dsn, "ALTER TABLE rows ADD COLUMN colour text DEFAULT 'grey'")
    written(
        dsn,
        ["id"],
        {"id": 1, "text": "a"},
        {"id": 1, "text": "b"},
        {"id": 1, "text": "b", "colour": "red"},
        {"text": "c", "id": 1},
        {"id": 2, "text": "d"},
    )
    written(dsn, ["id"], {"id": 2, "text": "e"})
    shown = rows_of(dsn, "SELECT id, text, colour FROM rows ORDER BY id")
    assert shown == [(1, "c", "red"), (2, "e", "grey")]


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("bigint", [1, 2, 3], [(1, 0), (2, 1), (3, 2)]),
        ("bigint", [1, 2, 1], [(2, 1), (1, 2)]),
        ("bigint", ["1", "01"], [(1, 1)]),  # one number, two texts
        ("real", [16_777_216, 16_777_217], [(16_777_216.0, 1)]),  # too near for the column
        ("text", [1, 2], [("1", 0), ("2", 1)]),
    ],
)
def test_the_last_row_of_a_key_wins_whether_or_not_the_server_has_to_sort(
    dsn: str, kind: str, values: list[object], wanted: list[tuple[object, ...]]
) -> None:
    execute(dsn, f"CREATE TABLE keyed (k {kind} PRIMARY KEY, n integer)")
    told = [{"k": value, "n": number} for number, value in enumerate(values)]
    for _ in range(2):
        written(dsn, ["k"], *told, table="keyed")
        assert rows_of(dsn, "SELECT k, n FROM keyed ORDER BY n") == wanted


def test_a_key_of_two_integers_counts_as_a_whole(dsn: str) -> None:
    execute(dsn, "CREATE TABLE pairs (a integer, b smallint, n integer, PRIMARY KEY (b, a))")
    rows = [{"n": n, "a": a, "b": b} for n, (a, b) in enumerate([(1, 1), (1, 2), (2, 1), (1, 1)])]
    written(dsn, ["a", "b"], *rows[:3], table="pairs")
    written(dsn, ["a", "b"], *rows, table="pairs")
    shown = rows_of(dsn, "SELECT a, b, n FROM pairs ORDER BY n")
    assert shown == [(1, 2, 1), (2, 1, 2), (1, 1, 3)]


def test_the_database_says_which_keys_are_equal(dsn: str) -> None:
    """A collation for which "A" and "a" are one key would refuse two of them in one statement."""
    execute(
        dsn,
        "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2',"
        " deterministic = false);"
        "CREATE TABLE names (name text COLLATE folded PRIMARY KEY, seen integer)",
    )
    written(dsn, ["name"], {"name": "A", "seen": 1}, {"name": "a", "seen": 2}, table="names")
    assert rows_of(dsn, "SELECT seen FROM names") == [(2,)]


def numbered(first: int, count: int = 600, text: str = "new") -> list[dict[str, object]]:
    """Enough rows to be copied straight into the table, if their keys are new."""
    return [{"id": first + number, "text": text} for number in range(count)]


def texts(dsn: str) -> dict[int, str]:
    return {int(str(n)): str(t) for n, t in rows_of(dsn, "SELECT id, text FROM rows")}


def test_rows_above_the_stored_keys_go_straight_into_the_table(dsn: str) -> None:
    seen: list[str] = []
    sink = Postgres(dsn, "rows", key=["id"], observer=seen.append)
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        batches = [
            (numbered(0), True),
            (numbered(600), True),
            (numbered(1199, text="again"), False),  # the first one is stored
            (numbered(1800) + numbered(1800, 1, "last"), False),  # twice in the batch
            (numbered(3000, 10), False),  # few
            (numbered(3010), True),
        ]
        stored = entry.offset
        for number, (rows, appended) in enumerate(batches):
            del seen[:]
            sink.write(Batch("a", {FIRST: Move(entry.epoch, stored, number + 1)}, rows))
            stored = number + 1
            assert ("after append" in seen) is appended, number
    wanted = dict.fromkeys(range(3610), "new") | dict.fromkeys(range(1199, 1799), "again")
    wanted = {n: t for n, t in wanted.items() if n < 1799 or 1800 <= n < 2400 or n >= 3000}
    assert texts(dsn) == {**wanted, 1800: "last"}


def test_a_key_that_another_transaction_inserts_meanwhile_is_overwritten(dsn: str) -> None:
    """The greatest key does not show it; COPY waits for its end, and fails."""
    sink = Postgres(dsn, "rows", key=["id"])
    sink.open("g")
    with contextlib.closing(sink), psycopg.connect(dsn) as other:
        entry = sink.claim([FIRST], "a")[FIRST]
        other.execute("INSERT INTO rows VALUES (300, 'theirs')")
        batch = Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, numbered(0))
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(sink.write, batch)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            waits += " AND query LIKE 'COPY %'"
            end = time.monotonic() + 30
            while rows_of(dsn, waits) == [(0,)]:
                assert time.monotonic() < end
            other.commit()
            writing.result()
    assert texts(dsn) == dict.fromkeys(range(600), "new")


def test_rows_that_copy_may_not_insert_go_by_way_of_the_stage(
    postgres: PostgresServer, dsn: str
) -> None:
    """Row-level security refuses COPY, and takes INSERT."""
    schema = dsn.rpartition("=")[2].rstrip("'")
    execute(
        dsn,
        f"CREATE ROLE guarded_{schema} LOGIN; GRANT ALL ON SCHEMA {schema} TO guarded_{schema};"
        f"GRANT ALL ON rows TO guarded_{schema}; ALTER TABLE rows ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY anything ON rows USING (true) WITH CHECK (true)",
    )
    own = dsn.replace("user=onceflow", f"user=guarded_{schema}")
    seen: list[str] = []
    sink = Postgres(own, "rows", key=["id"], observer=seen.append)
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, numbered(0)))
        assert "before append" in seen
        assert "after append" not in seen
        del seen[:]
        sink.write(Batch("a", {FIRST: Move(entry.epoch, 1, 2)}, numbered(600)))
        assert "before append" not in seen, "it is not tried again"
    assert texts(dsn) == dict.fromkeys(range(1200), "new")


def test_one_row_of_many_that_does_not_fit_stores_nothing(dsn: str) -> None:
    rows = numbered(0)
    rows[400] = {"id": 400, "text": None}
    with pytest.raises(SinkRowError, match="null value"):
        written(dsn, ["id"], *rows)
    assert texts(dsn) == {}


def test_values_of_many_types_and_a_table_with_its_schema(dsn: str) -> None:
    execute(
        dsn,
        'CREATE SCHEMA IF NOT EXISTS "Shop"; DROP TABLE IF EXISTS "Shop".many;'
        'CREATE TABLE "Shop".many (id bigint PRIMARY KEY, "a ""b" numeric, c jsonb, d bytea,'
        " e integer[], f text)",
    )
    row = {"id": 2**40, 'a "b': Decimal("1.50"), "c": Jsonb({"x": [1]}), "d": b"\0\xff"}
    try:
        written(dsn, ["id"], {**row, "e": [1, 2], "f": "tab\tline\n\\."}, table="Shop.many")
        shown = rows_of(dsn, 'SELECT * FROM "Shop".many')
        assert shown == [(2**40, Decimal("1.50"), {"x": [1]}, b"\0\xff", [1, 2], "tab\tline\n\\.")]
        assert rows_of(dsn, 'SELECT next_offset FROM "Shop".onceflow_offsets') == [(1,)]
    finally:
        execute(dsn, 'DROP SCHEMA "Shop" CASCADE')


@pytest.mark.parametrize("key", [(), ("id",)], ids=["insert", "upsert"])
@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": 2, "colour": "red"}, "colour"),
        ({"id": 2, "text": None}, "null value"),
        ({"id": "two", "text": "x"}, "invalid input syntax"),
        ({"id": 2**70, "text": "large"}, "out of range"),
        ({"id": 2, "text": "nul \0"}, "NUL"),
        ({"id": 2, "text": "surrogate \ud800"}, "surrogates"),
        ({"id": 2, "text": {"a": 1}}, "Jsonb"),
        ({}, "lacks"),
    ],
)
def test_a_row_that_does_not_fit_stores_nothing(
    dsn: str, row: dict[str, object], told: str, key: Sequence[str]
) -> None:
    with pytest.raises(SinkRowError, match=told):
        written(dsn, key, {"id": 1, "text": "good"}, row)
    assert found(dsn) == []
    written(dsn, key, {"id": 1, "text": "good"})
    assert found(dsn) == [{"id": 1, "text": "good"}]


def test_a_row_without_its_key_or_that_is_there_already_stores_nothing(dsn: str) -> None:
    with pytest.raises(SinkRowError, match="lacks id"):
        written(dsn, ["id"], {"text": "no key"})
    written(dsn, [], {"id": 1, "text": "first"})
    with pytest.raises(SinkRowError, match="duplicate key"):
        written(dsn, [], {"id": 2, "text": "second"}, {"id": 1, "text": "again"})
    assert found(dsn) == [{"id": 1, "text": "first"}]


def test_a_constraint_that_is_checked_at_commit_stores_nothing(dsn: str) -> None:
    execute(dsn, "ALTER TABLE rows ADD UNIQUE (text) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(SinkRowError, match=r"duplicate key.*at COMMIT"):
        written(dsn, [], {"id": 1, "text": "x"}, {"id": 2, "text": "x"})
    assert found(dsn) == []
    written(dsn, [], {"id": 1, "text": "x"})


def test_what_cannot_work_is_told_when_it_is_made_or_opened(
    postgres: PostgresServer, dsn: str
) -> None:
    with pytest.raises(ConfigError, match=r"dsn.*postgresql://") as refused:
        Postgres("host=localhost password=secret user", "rows")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="sequence"):
        Postgres(dsn, "rows", key="id")
    with pytest.raises(ConfigError, match=r"timeout_ms.*positive"):
        Postgres(dsn, "rows", timeout_ms=0)
    for name in ("", "a.b.c", "a."):
        with pytest.raises(ConfigError, match=r"table.*shop\.orders"):
            Postgres(dsn, name)
    with pytest.raises(ConfigError, match="no such table"):
        Postgres(dsn, "orders").open("g")
    for key in ("name", "text"):
        with pytest.raises(ConfigError, match="unique index"):
            Postgres(dsn, "rows", key=[key]).open("g")
    with pytest.raises(SinkUnavailableError, match="connection"):
        Postgres("host=127.0.0.1 port=1 user=x dbname=y", "rows").open("g")


def test_a_role_without_rights_is_told(postgres: PostgresServer, dsn: str) -> None:
    schema = dsn.rpartition("=")[2].rstrip("'")
    execute(
        dsn,
        f"CREATE ROLE visitor_{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO visitor_{schema};"
        f"GRANT INSERT ON rows TO visitor_{schema}",
    )
    visitor = dsn.replace("user=onceflow", f"user=visitor_{schema}")
    with pytest.raises(ConfigError, match=r"permission denied.*rights"):
        Postgres(visitor, "rows").open("g")
    execute(dsn, f"DROP OWNED BY visitor_{schema}; DROP ROLE visitor_{schema}")


def test_a_role_that_may_make_no_tables_uses_those_that_exist(dsn: str) -> None:
    schema = dsn.rpartition("=")[2].rstrip("'")
    with contextlib.closing(Postgres(dsn, "rows", inbox=Inbox("g"), outbox=Outbox())) as owner:
        owner.open("g")
    execute(
        dsn,
        f"CREATE ROLE writer_{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO writer_{schema};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO writer_{schema}",
    )
    writer = dsn.replace("user=onceflow", f"user=writer_{schema}")
    with contextlib.closing(Postgres(writer, "rows", inbox=Inbox("g"), outbox=Outbox())) as sink:
        sink.open("g")
        assert sink.claim([FIRST], "a")[FIRST].offset is None
    execute(dsn, f"DROP OWNED BY writer_{schema}; DROP ROLE writer_{schema}")


def test_with_an_inbox_a_message_that_was_sent_twice_has_its_rows_once(dsn: str) -> None:
    """Within a batch, over batches, and not for a batch that was refused."""

    def record(offset: int, *headers: tuple[str, bytes]) -> ConsumerRecord[None, None]:
        return ConsumerRecord(*FIRST, offset, 0, headers=headers)

    sink = Postgres(dsn, "rows", inbox=Inbox("g"))
    sink.open("g")
    with contextlib.closing(sink):
        epoch = sink.claim([FIRST], "a")[FIRST].epoch
        one, two, again = (("message-id", b"1"),), (("message-id", b"2"),), (("message-id", b"1"),)
        records = [record(0, *one), record(0, *one), record(1, *two), record(2, *again)]
        rows = [{"id": number, "text": "x"} for number in range(4)]
        with pytest.raises(SinkRowError, match="null value"):
            sink.write(
                Batch("a", {FIRST: Move(epoch, None, 3)}, [{"id": None, "text": "x"}], records[:1])
            )
        sink.write(Batch("a", {FIRST: Move(epoch, None, 3)}, rows, records))
        assert [row["id"] for row in found(dsn)] == [0, 1, 2]
        sink.write(
            Batch("a", {FIRST: Move(epoch, 3, 4)}, [{"id": 9, "text": "x"}], [record(3, *two)])
        )
        assert [row["id"] for row in found(dsn)] == [0, 1, 2]
        assert sink.stored([FIRST])[FIRST].offset == 4
        move = {FIRST: Move(epoch, 4, 5)}
        with pytest.raises(SinkRowError, match="of=record"):
            sink.write(Batch("a", move, rows[:1]))
        with pytest.raises(SinkRowError, match=r"message-id.*offset 7"):
            sink.write(Batch("a", move, rows[:1], [record(7)]))


def test_two_sessions_make_the_ledger_at_once(dsn: str) -> None:
    program = (
        "import sys; from onceflow.transactions.sinks import Postgres\n"
        "sink = Postgres(sys.argv[1], 'rows'); sys.stdin.readline(); sink.open('g'); sink.close()"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, dsn], stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait(60) for process in running] == [0, 0, 0]


def test_a_call_that_was_given_up_is_told_from_a_server_that_closed(dsn: str) -> None:
    """libpq has one text for both; it sent those who read it to a server that was well."""
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE rows")
        with pytest.raises(SinkUnavailableError, match=r"connection was cut \(limit 200 ms\)"):
            Postgres(dsn, "rows", timeout_ms=200).open("g")
    sink = Postgres(dsn, "rows")
    sink.open("g")
    with contextlib.closing(sink):
        assert sink._connection is not None
        pid = sink._connection.info.backend_pid
        execute(dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
        with pytest.raises(SinkUnavailableError, match=r"terminating connection|closed the conn"):
            sink.stored([FIRST])


def opened(dsn: str, timeout_ms: int) -> Postgres:
    """A sink with a short limit, which opening it need not keep: that takes what it takes."""
    sink = Postgres(dsn, "rows", timeout_ms=60_000)
    sink.open("g")
    sink._timeout_ms = timeout_ms
    return sink


@pytest.mark.parametrize("own_limit", [True, False])
def test_a_write_waits_for_locks_within_its_limit(dsn: str, own_limit: bool) -> None:
    claimer = Postgres(dsn, "rows", timeout_ms=60_000)
    claimer.open("g")
    sink = opened(dsn, 100 if own_limit else 60_000)
    with (
        contextlib.closing(claimer),
        contextlib.closing(sink),
        psycopg.connect(dsn) as other,
    ):
        entry = claimer.claim([FIRST], "a")[FIRST]
        batch = Batch("a", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}])
        other.execute("LOCK TABLE rows")
        with pytest.raises(SinkUnavailableError, match=r"limit 100 ms.*timeout_ms"):
            sink.write(batch, None if own_limit else 100)
        other.rollback()
        assert found(dsn) == []
        claimer.write(batch)
    assert found(dsn) == [{"id": 1, "text": "x"}]


def test_a_write_after_a_claim_that_found_no_server_is_told_so(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Postgres(dsn, "rows")
    sink.open("g")
    entry = sink.claim([FIRST], "a")[FIRST]
    batch = Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, [{"id": 1, "text": "x"}])

    def refused(dsn: str, timeout_ms: int) -> None:
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as away:
        away.setattr(postgres, "connected", refused)
        with pytest.raises(SinkUnavailableError, match="refused"):
            sink.claim([SECOND], "a")
    with pytest.raises(SinkUnavailableError, match="could not connect"):
        sink.write(batch)
    sink.claim([SECOND], "a")
    sink.write(batch)
    sink.close()
    for call in (lambda: sink.write(batch), lambda: sink.claim([FIRST], "a")):
        with pytest.raises(IllegalStateError, match="not open"):
            call()


def test_a_claim_waits_for_the_write_that_holds_the_offsets(dsn: str) -> None:
    """The claim must see what a write stored that was under way when it came."""
    moments: list[str] = []

    def observe(moment: str) -> None:
        if moment == "before commit":
            claimer = opened(dsn, 200)
            with pytest.raises(SinkUnavailableError):
                claimer.claim([SECOND, FIRST], "b")
            claimer.close()
            moments.append(moment)

    sink = Postgres(dsn, "rows", observer=observe)
    other = Postgres(dsn, "rows")
    sink.open("g")
    other.open("g")
    with contextlib.closing(sink), contextlib.closing(other):
        moves = {tp: Move(e.epoch, None, 9) for tp, e in other.claim([FIRST], "a").items()}
        sink.write(Batch("a", moves, [{"id": 1, "text": "x"}]))
        assert moments == ["before commit"]
        claimed = other.claim([SECOND, FIRST], "b")
        assert (claimed[FIRST].offset, claimed[FIRST].epoch) == (9, 2)


@pytest.mark.parametrize("moment", ["before rows", "before commit"])
def test_a_server_that_stops_answering_is_given_up(moment: str) -> None:
    """Its own timeout says nothing then: the connection is cut."""
    if reason := unavailable_reason():
        pytest.skip(f"PostgreSQL cannot run here: {reason}")
    with postgres_server() as server:
        dsn = server.schema()
        execute(dsn, TABLE)
        stopped: list[int] = []

        def observe(found: str) -> None:
            if found == moment and armed:
                assert sink._connection is not None
                stopped.append(sink._connection.info.backend_pid)
                os.kill(stopped[0], signal.SIGSTOP)

        armed = False
        sink = Postgres(dsn, "rows", timeout_ms=60_000, observer=observe)
        sink.open("g")
        other = opened(dsn, 1_000)
        with contextlib.closing(sink), contextlib.closing(other):
            entry = sink.claim([FIRST], "a")[FIRST]
            armed = True
            batch = Batch("a", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}])
            kind = SinkUnavailableError if moment == "before rows" else SinkOutcomeUnknownError
            try:
                with pytest.raises(kind, match="no answer in time; the connection was cut"):
                    sink.write(batch, 300)
                armed = False
                with pytest.raises(SinkUnavailableError):
                    other.claim([FIRST], "b")  # its predecessor's transaction holds the offsets
            finally:
                os.kill(stopped[0], signal.SIGCONT)
            claimed = sink.claim([FIRST], "b")[FIRST]
            sent = moment == "before commit"  # the server reads it when it wakes up
            assert claimed.offset in ((None, 1) if sent else (None,))
            assert len(found(dsn)) == (claimed.offset or 0)


def test_a_crashed_server_has_all_or_nothing() -> None:
    if reason := unavailable_reason():
        pytest.skip(f"PostgreSQL cannot run here: {reason}")
    with postgres_server() as server:
        dsn = server.schema()
        execute(dsn, TABLE)
        sink = Postgres(dsn, "rows", key=["id"])
        sink.open("g")
        entry = sink.claim([FIRST], "a")[FIRST]
        batch = Batch("a", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}])
        sink.write(batch)
        server.stop(signal.SIGQUIT)
        with pytest.raises(SinkUnavailableError):
            sink.write(Batch("a", {FIRST: Move(entry.epoch, 1, 2)}))
        with pytest.raises(SinkUnavailableError):
            sink.claim([FIRST], "a")
        port = server.port
        server.start()
        after = Postgres(dsn.replace(f"port={port}", f"port={server.port}"), "rows")
        after.open("g")
        assert after.claim([FIRST], "b")[FIRST].offset == 1
        with pytest.raises(SinkFencedError):
            after.write(Batch("a", {FIRST: Move(entry.epoch, 1, 2)}))
        after.close()
        sink.close()
