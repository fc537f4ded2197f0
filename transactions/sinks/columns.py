"""Takes the values out of rows, in runs of rows with the same columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from onceflow.transactions.sinks.ledger import Row

Values = tuple[object, ...]
T = TypeVar("T")


def runs(
    rows: Sequence[Row], take: Callable[[tuple[str, ...], Sequence[Row]], T]
) -> Iterator[tuple[tuple[str, ...], T]]:
    """Yield columns and values of consecutive rows with the same columns.

    Rows may have their columns in different orders; the first row of a run decides the order.

    Args:
        rows: The rows of a batch.
        take: Returns the values of rows with the given columns: ``by_row`` or ``by_column``.
    """
    columns = tuple(rows[0]) if rows else ()
    found: list[T] = []
    if set(map(len, rows)) == {len(columns)}:
        try:
            found.append(take(columns, rows))  # The usual case: one run, checked in C.
        except KeyError:
            found.clear()
    if found:
        yield columns, found[0]
        return
    start = 0
    while start < len(rows):
        columns = tuple(rows[start])
        end = _end_of_run(columns, rows, start)
        yield columns, take(columns, rows[start:end])
        start = end


def _end_of_run(columns: tuple[str, ...], rows: Sequence[Row], start: int) -> int:
    names = set(columns)
    others = (n for n in range(start, len(rows)) if rows[n].keys() != names)
    return next(others, len(rows))


def by_row(columns: tuple[str, ...], rows: Sequence[Row]) -> list[Values]:
    """Return a tuple of values for each row.

    Raises:
        KeyError: A row lacks a column.
    """
    if len(columns) > 1:
        return list(map(itemgetter(*columns), rows))
    return [tuple(row[name] for name in columns) for row in rows]


def by_column(columns: tuple[str, ...], rows: Sequence[Row]) -> list[list[object]]:
    """Return a list of values for each column.

    Raises:
        KeyError: A row lacks a column.
    """
    return [list(map(itemgetter(name), rows)) for name in columns]
