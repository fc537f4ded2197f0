"""Goal: the SQLite sink stores rows and offsets together, and tells what it cannot store.

Method: the conformance kit on a file of its own for each test, rows read over a second connection;
then a process that is killed at each step, and rows and tables that do not fit.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.transactions.sinks import (
    Batch,
    Move,
    SinkFencedError,
    SinkRowError,
    SinkUnavailableError,
    Sqlite,
)
from onceflow.transactions.sinks.testing import FIRST, SECOND, SinkConformance

TABLE = "CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"

KILLED = """
import os, signal, sys
from onceflow.transactions.sinks import Batch, Move, Sqlite
from onceflow.transactions.sinks.testing import FIRST

path, moment = sys.argv[1:]
armed = False  # at the second claim, or behind it
at_claim = moment.startswith("claim: ")

def observe(found):
    if armed and found == moment.removeprefix("claim: "):
        os.kill(os.getpid(), signal.SIGKILL)

sink = Sqlite(path, "rows", observer=observe)
sink.open("g")
sink.claim([FIRST], "first")
armed = at_claim
entry = sink.claim([FIRST], "a")[FIRST]
armed = True
sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 5)}, [{"id": 1, "text": "x"}]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
    return path


def rows_of(path: Path) -> list[dict[str, object]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT id, text FROM rows ORDER BY id").fetchall()
    return [{"id": number, "text": text} for number, text in found]


class TestSqlite(SinkConformance):
    @pytest.fixture(autouse=True)
    def _target(self, path: Path) -> None:
        self.path = path

    def make(self, observer=None) -> Sqlite:  # type: ignore[no-untyped-def]
        return Sqlite(self.path, "rows", observer=observer)

    def rows(self) -> Sequence[dict[str, object]]:
        return rows_of(self.path)


def test_a_write_after_a_claim_that_could_not_open_the_file_is_told_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sqlite(path, "rows")
    sink.open("g")
    entry = sink.claim([FIRST], "a")[FIRST]
    batch = Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, [{"id": 1, "text": "x"}])

    def locked(self: Sqlite) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as away:
        away.setattr(Sqlite, "_connection_to_table", locked)
        with pytest.raises(SinkUnavailableError, match="unable to open"):
            sink.claim([SECOND], "a")
    with pytest.raises(SinkUnavailableError, match="could not open"):
        sink.write(batch)
    sink.claim([SECOND], "a")
    sink.write(batch)
    sink.close()
    for call in (lambda: sink.write(batch), lambda: sink.claim([FIRST], "a")):
        with pytest.raises(IllegalStateError, match="not open"):
            call()


STEPS = ("begin", "offsets read", "rows", "offsets", "commit")
WHEN = ("before", "after")


@pytest.mark.parametrize("moment", [f"{when} {s}" for s in STEPS for when in ("before", "after")])
def test_a_killed_process_leaves_all_or_nothing(path: Path, moment: str) -> None:
    stored = moment == "after commit"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), moment], check=False)
    assert done.returncode == -signal.SIGKILL
    sink = Sqlite(path, "rows")
    sink.open("g")
    assert sink.claim([FIRST], "b")[FIRST].offset == (5 if stored else None)
    assert len(rows_of(path)) == (1 if stored else 0)
    sink.close()


@pytest.mark.parametrize("moment", [f"{w} {s}" for s in ("begin", "commit") for w in WHEN])
def test_a_process_that_is_killed_within_a_claim_has_claimed_or_not(
    path: Path, moment: str
) -> None:
    program = [sys.executable, "-c", KILLED, str(path), f"claim: {moment}"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    sink = Sqlite(path, "rows")
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "b")[FIRST]
        assert (entry.epoch, entry.offset) == (3 if moment == "after commit" else 2, None)
        sink.write(Batch("b", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}]))


def written(path: Path, key: Sequence[str], *rows: dict[str, object]) -> None:
    sink = Sqlite(path, "rows", key=key)
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        upto = (entry.offset or 0) + 1
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, upto)}, rows))


def test_with_a_key_the_last_row_wins(path: Path) -> None:
    written(path, ["id"], {"id": 1, "text": "a"}, {"text": "b", "id": 1}, {"id": 2, "text": "c"})
    written(path, ["id"], {"id": 2, "text": "d"})
    assert rows_of(path) == [{"id": 1, "text": "b"}, {"id": 2, "text": "d"}]


@pytest.mark.parametrize("count", [1, 49, 50, 51, 149, 200])
def test_many_rows_go_by_statements_of_several(path: Path, count: int) -> None:
    """Also where a key comes again within a statement, and in a later one."""
    rows = [{"id": number % 40, "text": f"{number}"} for number in range(count)]
    written(path, ["id"], *rows)
    wanted = {row["id"]: row for row in rows}
    assert rows_of(path) == [wanted[number] for number in sorted(wanted)]


def test_one_bad_row_among_many_stores_nothing(path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": n, "text": "x"} for n in range(120)]
    for bad in (0, 60, 119):
        told = [*rows[:bad], {"id": bad, "text": None}, *rows[bad + 1 :]]
        with pytest.raises(SinkRowError, match="NOT NULL"):
            written(path, ["id"], *told)
        assert rows_of(path) == []


def test_rows_of_many_columns_stay_within_the_values_of_a_statement(path: Path) -> None:
    names = [f"c{number}" for number in range(1_500)]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE wide ({', '.join(names)})")
    sink = Sqlite(path, "wide")
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        rows = [dict.fromkeys(names, number) for number in range(60)]
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, rows))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT c0, c1499 FROM wide ORDER BY rowid").fetchall()
    assert found == [(number, number) for number in range(60)]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": 2, "colour": "red"}, "colour"),
        ({"id": 2, "text": None}, "NOT NULL"),
        ({"id": 2**70, "text": "large"}, "too large"),
        ({"id": 2, "text": "surrogate \ud800"}, "surrogates"),
        ({"text": "no key"}, "lacks id"),
        ({}, "lacks"),
    ],
)
def test_a_row_that_does_not_fit_stores_nothing(
    path: Path, row: dict[str, object], told: str
) -> None:
    with pytest.raises(SinkRowError, match=told):
        written(path, ["id"], {"id": 1, "text": "good"}, row)
    assert rows_of(path) == []
    written(path, ["id"], {"id": 1, "text": "good"})
    assert rows_of(path) == [{"id": 1, "text": "good"}]


def test_a_file_that_others_hold_is_told_within_the_limit(path: Path) -> None:
    claimer, sink = Sqlite(path, "rows", timeout_ms=60_000), Sqlite(path, "rows", timeout_ms=20)
    claimer.open("g")
    sink.open("g")
    with (
        contextlib.closing(claimer),
        contextlib.closing(sink),
        contextlib.closing(sqlite3.connect(path)) as other,
    ):
        entry = claimer.claim([FIRST], "a")[FIRST]
        batch = Batch("a", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}])
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailableError, match=r"locked.*timeout_ms"):
            sink.write(batch)
        with pytest.raises(SinkUnavailableError, match="locked"):
            sink.claim([FIRST], "a")
        other.execute("ROLLBACK")
        with pytest.raises(SinkFencedError):
            claimer.write(replace(batch, owner="b"))
        claimer.write(batch)
    assert rows_of(path) == [{"id": 1, "text": "x"}]


ENDLESS = """
CREATE TRIGGER endless BEFORE INSERT ON rows WHEN NEW.text = 'endless' BEGIN
    SELECT max(n) FROM (
        WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted)
        SELECT n FROM counted
    );
END
"""


@pytest.mark.parametrize("own_limit", [True, False])
def test_a_write_that_takes_too_long_stores_nothing(path: Path, own_limit: bool) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(ENDLESS)
    claimer = Sqlite(path, "rows", timeout_ms=60_000)
    claimer.open("g")
    sink = Sqlite(path, "rows", timeout_ms=20 if own_limit else 60_000)
    sink.open("g")
    with contextlib.closing(claimer), contextlib.closing(sink):
        entry = claimer.claim([FIRST], "a")[FIRST]
        rows = [{"id": 1, "text": "x"}, {"id": 2, "text": "endless"}]
        move = Move(entry.epoch, None, 1)
        with pytest.raises(SinkUnavailableError, match="interrupted"):
            sink.write(Batch("a", {FIRST: move}, rows), None if own_limit else 20)
        assert rows_of(path) == []
        claimer.write(Batch("a", {FIRST: move}, rows[:1]))
    assert rows_of(path) == [{"id": 1, "text": "x"}]


def test_what_cannot_work_is_told_when_it_is_opened(path: Path) -> None:
    with pytest.raises(ConfigError, match="no such table"):
        Sqlite(path, "orders").open("g")
    with pytest.raises(ConfigError, match="no such column"):
        Sqlite(path, "rows", key=["name"]).open("g")
    with pytest.raises(ConfigError, match="unique index"):
        Sqlite(path, "rows", key=["text"]).open("g")
    with pytest.raises(ConfigError, match="memory"):
        Sqlite(":memory:", "rows")
    with pytest.raises(ConfigError, match=r"timeout_ms.*positive"):
        Sqlite(path, "rows", timeout_ms=0)
    with pytest.raises(SinkUnavailableError, match="unable to open"):
        Sqlite(path / "nowhere", "rows").open("g")
    with pytest.raises(ConfigError, match="sequence"):
        Sqlite(path, "rows", key="id")
