"""Converts rows to tuples, in runs with the same columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from onceflow.transactions.sinks.ledger import Row

Values = tuple[object, ...]


def runs(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Values]]]:
    """Yield columns and values of consecutive rows with the same columns.

    Rows may have their columns in different orders; the first row of a run decides the order.

    Args:
        rows: The rows of a batch.
    """
    start = 0
    while start < len(rows):
        columns = tuple(rows[start])
        values = _all_values(columns, rows) if not start else None
        if values is None:
            values = _values_of_run(columns, rows, start)
        yield columns, values
        start += len(values)


def _getter(columns: tuple[str, ...]) -> Callable[[Row], Values]:
    if len(columns) > 1:
        return itemgetter(*columns)
    return lambda row: tuple(row[name] for name in columns)


def _all_values(columns: tuple[str, ...], rows: Sequence[Row]) -> list[Values] | None:
    """Return the values of all rows, if they have the same columns; this usual case runs in C."""
    if set(map(len, rows)) != {len(columns)}:
        return None
    try:
        return list(map(_getter(columns), rows))
    except KeyError:
        return None


def _values_of_run(columns: tuple[str, ...], rows: Sequence[Row], start: int) -> list[Values]:
    get, found = _getter(columns), list[Values]()
    for number in range(start, len(rows)):
        row = rows[number]
        if row.keys() != set(columns):
            break
        found.append(get(row))
    return found
