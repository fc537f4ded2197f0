"""Goal: rows become tuples in runs of the same columns, and none is changed or lost by that.

Method: examples, and random rows that are put together again.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceflow.transactions.sinks.columns import runs


def test_rows_of_the_same_columns_are_one_run_in_the_order_of_the_first() -> None:
    assert list(runs([{"a": 1, "b": 2}, {"b": 4, "a": 3}])) == [(("a", "b"), [(1, 2), (3, 4)])]
    assert list(runs([{"a": 1}, {"a": 2}])) == [(("a",), [(1,), (2,)])]
    assert list(runs([])) == []
    assert list(runs([{}])) == [((), [()])]


def test_other_columns_begin_another_run() -> None:
    rows = [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}, {"b": 6, "a": 5}]
    assert list(runs(rows)) == [(("a",), [(1,)]), (("b",), [(2,)]), (("a", "b"), [(3, 4), (5, 6)])]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)))
def test_every_row_comes_back(rows: list[dict[str, int]]) -> None:
    again = [
        dict(zip(columns, each, strict=True)) for columns, values in runs(rows) for each in values
    ]
    assert again == rows
