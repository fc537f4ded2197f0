"""Goal: with an outbox, dead letters are part of the sink's transaction: each is there once.

Method: real worker, ledger and PostgreSQL sink over the in-memory cluster. Workers die at each step
of a write and run again, other owners come, rows are refused. Then rows and letters together are
the input, each record in one of them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from postgres_server import PostgresServer, execute, rows_of
from processor_worlds import World

from onceflow.processors import App, DeadLetterLimits
from onceflow.transactions.outbox import Outbox
from onceflow.transactions.sinks import Batch, Http, Letter, Move, Postgres, Sqlite
from onceflow.transactions.sinks.testing import FIRST

COUNT = 12
BAD = {"3", "4", "10"}
STEPS = ("begin", "offsets read", "rows", "letters", "offsets", "commit")


class Died(BaseException):
    """Stands for the death of the process."""


class Rig:
    """A world, a schema of PostgreSQL, and applications that write to it."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.world = World(directory, "in", partitions=2)
        self.dsn = dsn
        self.dies_at = ""
        execute(dsn, "CREATE TABLE rows (place text PRIMARY KEY, CHECK (place <> '10'))")
        for number in range(COUNT):
            self.world.cluster.put("in", b"%d" % number, partition=number % 2)

    def observe(self, moment: str) -> None:
        # The first two transactions claim, and store where reading begins.
        if moment == self.dies_at and self.rows_seen:
            self.dies_at = ""
            raise Died
        self.rows_seen |= moment == "before offsets read"

    rows_seen = False

    def run(self) -> None:
        app = App("rows", commit_interval_ms=10, commit_records=4)
        sink = Postgres(self.dsn, "rows", outbox=Outbox("letters"), observer=self.observe)

        @app.sink("in", sink, dead_letter="bad-rows", limits=DeadLetterLimits(ratio_max=1.0))
        def store(value: str) -> dict[str, object]:
            if value in ("3", "4"):
                raise ValueError(f"no {value}")
            return {"place": value}

        self.world.run(app)

    def expect(self) -> None:
        stored = {str(place) for (place,) in rows_of(self.dsn, "SELECT place FROM rows")}
        letters = rows_of(self.dsn, "SELECT topic, convert_from(value, 'UTF8') FROM letters")
        assert stored == {str(number) for number in range(COUNT)} - BAD
        assert sorted(letters) == sorted(("bad-rows", place) for place in BAD)
        assert self.world.cluster.values("bad-rows") == [], "the relay sends them"
        assert "plain producer" not in self.world.cluster.calls


@pytest.fixture
def rig(tmp_path: Path, postgres: PostgresServer) -> Rig:
    return Rig(tmp_path, postgres.schema())


def test_letters_are_stored_with_what_failed(rig: Rig) -> None:
    rig.run()
    rig.expect()
    found = rows_of(
        rig.dsn, "SELECT header_names, header_values FROM letters WHERE value = '\\x33'"
    )
    names, values = found[0]
    headers = dict(zip(names, values, strict=True))  # type: ignore[call-overload]
    assert b"no 3" in b" ".join(headers.values())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_each_step_leaves_each_letter_once(rig: Rig, step: str, when: str) -> None:
    rig.dies_at = f"{when} {step}"
    with pytest.raises(Died):
        rig.run()
    rig.run()
    rig.expect()


def test_letters_of_requests_lie_with_their_offsets(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres.schema()
    with_outbox = Postgres(dsn, outbox=Outbox("letters"))
    sink = Http("http://127.0.0.1:1/", with_outbox)
    assert sink.keeps_letters
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        letters = [Letter("bad-rows", b"k", None, [("h", None)], 7)]
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, letters=letters))
    text = "SELECT topic, key, value, header_names, header_values, timestamp_ms FROM letters"
    assert rows_of(dsn, text) == [("bad-rows", b"k", None, ["h"], [None], 7)]
    assert not Http("http://127.0.0.1:1/", Sqlite(tmp_path / "offsets.db")).keeps_letters
