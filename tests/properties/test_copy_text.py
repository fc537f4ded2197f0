"""Goal: rows that we encode for COPY are the bytes of psycopg, and PostgreSQL reads them.

Method: random columns of each plain type, with and without None, against psycopg's formatter (bytes
have several forms: a table reads them back); other types and mixtures are left to psycopg.
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Sequence
from decimal import Decimal

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import PostgresServer, execute, rows_of
from psycopg._copy_base import TextFormatter
from psycopg.adapt import Transformer

from onceflow.transactions.sinks import Batch, Move, Postgres, copy_text
from onceflow.transactions.sinks.testing import FIRST

TEXTS = st.text(
    st.one_of(
        st.sampled_from("\b\t\n\v\f\r\\.N\x01\x7f\x85\u2028\U0001f600"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    )
)
KINDS: Sequence[st.SearchStrategy[object]] = (
    st.integers(),
    st.floats(),
    st.booleans(),
    TEXTS,
    st.none(),
)


@st.composite
def columns(draw: st.DrawFn) -> list[list[object]]:
    count = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    return [
        draw(st.lists(st.one_of(kind, st.none()), min_size=count, max_size=count))
        if draw(st.booleans())
        else draw(st.lists(kind, min_size=count, max_size=count))
        for kind in kinds
    ]


def by_psycopg(given: Sequence[Sequence[object]]) -> bytes:
    formatter = TextFormatter(Transformer())
    written = [bytes(formatter.write_row(row)) for row in zip(*given, strict=True)]
    return b"".join(written) + bytes(formatter.end())


@given(columns())
def test_the_bytes_are_those_of_psycopg(given: list[list[object]]) -> None:
    blocks = copy_text.lines(given)
    assert blocks is not None
    assert b"".join(blocks) == by_psycopg(given)


def test_many_rows_come_in_blocks_of_whole_lines() -> None:
    given: list[list[object]] = [list(range(2_500)), ["x"] * 2_500]
    blocks = list(copy_text.lines(given) or [])
    assert [block.count(b"\n") for block in blocks] == [1_000, 1_000, 500]
    assert b"".join(blocks) == by_psycopg(given)


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    pass


@pytest.mark.parametrize(
    "value",
    [Decimal(1), Level.LOW, Name("x"), [1], "a\0b", bytearray(b"x"), True],
    ids=lambda value: type(value).__name__,
)
def test_what_only_psycopg_can_encode_is_left_to_it(value: object) -> None:
    assert copy_text.lines([[1], [value]]) is None or value is True
    assert copy_text.lines([[1, value]]) is None


def test_the_database_reads_back_what_was_written(postgres: PostgresServer) -> None:
    dsn = postgres.schema()
    execute(dsn, "CREATE TABLE all_kinds (i numeric, f float8, b boolean, t text, y bytea)")
    texts = ["", "\\N", "\\.", "a\tb\nc\rd\\e", "\b\v\f", "é\U0001f600", None]
    count = len(texts)
    numbers = [0, -1, 2**63, -(2**70), 7, 8, None]
    floats = [0.1, -0.0, 1e300, math.inf, -math.inf, 5e-324, None]
    flags = [True, False, None, True, True, True, False]
    raw = [b"", b"\\", bytes(range(256)), b"\n\t", b"x", b"'", None]
    rows = [
        {"i": numbers[n], "f": floats[n], "b": flags[n], "t": texts[n], "y": raw[n]}
        for n in range(count)
    ]
    sink = Postgres(dsn, "all_kinds")
    sink.open("g")
    with contextlib.closing(sink):
        entry = sink.claim([FIRST], "a")[FIRST]
        sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, rows))
    found = rows_of(dsn, "SELECT i, f, b, t, y FROM all_kinds")
    assert [list(row) for row in found] == [list(row.values()) for row in rows]


def test_a_dumper_of_the_program_is_used(postgres: PostgresServer) -> None:
    """One that is registered for all connections."""
    dsn = postgres.schema()
    execute(dsn, "CREATE TABLE flags (t text)")

    class YesNo(psycopg.adapt.Dumper):
        def dump(self, obj: bool) -> bytes:
            return b"yes" if obj else b"no"

    before = psycopg.adapters.get_dumper(bool, psycopg.adapt.PyFormat.TEXT)
    psycopg.adapters.register_dumper(bool, YesNo)
    try:
        sink = Postgres(dsn, "flags")
        sink.open("g")
        with contextlib.closing(sink):
            entry = sink.claim([FIRST], "a")[FIRST]
            sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 1)}, [{"t": True}]))
    finally:
        psycopg.adapters.register_dumper(bool, before)
    assert rows_of(dsn, "SELECT t FROM flags") == [("yes",)]
