"""Goal: rows become tuples in runs of the same columns, and none is changed or lost by that.

Method: examples, and random rows that are put together again.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceflow.transactions.sinks.columns import by_column, by_row, runs


def test_rows_of_the_same_columns_are_one_run_in_the_order_of_the_first() -> None:
    assert list(runs([{"a": 1, "b": 2}, {"b": 4, "a": 3}], by_row)) == [
        (("a", "b"), [(1, 2), (3, 4)])
    ]
    assert list(runs([{"a": 1}, {"a": 2}], by_row)) == [(("a",), [(1,), (2,)])]
    assert list(runs([], by_row)) == []
    assert list(runs([{}], by_row)) == [((), [()])]


def test_values_are_taken_by_column_too() -> None:
    rows = [{"a": 1, "b": 2}, {"b": 4, "a": 3}, {"c": 5}, {}]
    wanted = [(("a", "b"), [[1, 3], [2, 4]]), (("c",), [[5]]), ((), [])]
    assert list(runs(rows, by_column)) == wanted


def test_other_columns_begin_another_run() -> None:
    rows = [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}, {"b": 6, "a": 5}]
    assert list(runs(rows, by_row)) == [
        (("a",), [(1,)]),
        (("b",), [(2,)]),
        (("a", "b"), [(3, 4), (5, 6)]),
    ]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)))
def test_every_row_comes_back(rows: list[dict[str, int]]) -> None:
    again = [
        dict(zip(columns, each, strict=True))
        for columns, values in runs(rows, by_row)
        for each in values
    ]
    assert again == rows
