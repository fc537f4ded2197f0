"""Finds rows of tables for parameters: by the record's key, or in global tables by any key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from onceflow.processors.declare.signatures import Argument, lookup_of, table_of
from onceflow.processors.frame import Frame
from onceflow.processors.graph.specs import TABLE_STATE
from onceflow.processors.nodes.own_key import check_own_key
from onceflow.processors.state.store import ABSENT, ValueStore
from onceflow.processors.tables import AnyGlobalTable, GlobalTable
from onceflow.processors.values import encoder_for

if TYPE_CHECKING:
    from onceflow.processors.nodes.base import Stores, Surroundings

Find: TypeAlias = "Callable[[Frame, Stores, object], object]"
"""Returns a row, or None, for a frame with the record's key, the task's stores, and the value."""


def make_lookup(called: str, argument: Argument, around: Surroundings) -> Find:
    """Make the function that finds the row for one parameter.

    Args:
        called: Name of the function.
        argument: Its parameter.
        around: Objects of the worker that it uses.
    """
    table = table_of(argument.annotation)
    assert table is not None
    if isinstance(table, GlobalTable):
        return _of_all(argument, table, around)
    state = f"{table.name}.{TABLE_STATE}"

    def find(frame: Frame, stores: Stores, value: object) -> object:
        if frame.item.key is None:
            return None  # A table has no row without a key.
        store = cast(ValueStore, stores[state])
        kept = frame.values(store).load(check_own_key(called, argument.name, frame))
        return None if kept is ABSENT else store.codec.open(kept)

    return find


def _of_all(argument: Argument, table: AnyGlobalTable, around: Surroundings) -> Find:
    """Look up a global table, of which every worker has all rows, by any key."""
    rows, encode = around.global_rows, encoder_for(table.format)
    lookup = lookup_of(argument.annotation)
    if lookup is None:
        return lambda frame, stores, value: rows.get(table.topic, encode(frame.item.key))
    key_of = lookup.key
    return lambda frame, stores, value: rows.get(table.topic, encode(key_of(value)))
