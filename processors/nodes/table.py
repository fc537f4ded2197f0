"""Runs a table: stores the latest value of each key, and gives changes to joins."""

from __future__ import annotations

from typing import cast

from onceflow.processors.frame import Change, Frame
from onceflow.processors.graph.nodes import TableNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.own_key import check_own_key
from onceflow.processors.nodes.plain import PlainWork
from onceflow.processors.state.store import ABSENT, ValueStore
from onceflow.processors.values import decoder_for


class TableWork(PlainWork):
    """Runs one table.

    Args:
        node: The table.
        around: Objects of the worker that it uses.
        feeds: Whether other nodes take its changes.
    """

    def __init__(self, node: TableNode, around: Surroundings, *, feeds: bool) -> None:
        super().__init__(node, around, feeds)
        self._feeds = feeds
        self._state = node.own_states[0].name
        self._decode = decoder_for(node.value_type, node.format, f"value of table {node.name}")

    def call(self, frame: Frame, stores: Stores) -> None:
        """Store the value of a record; a record without a value deletes its key."""
        store = cast(ValueStore, stores[self._state])
        key = check_own_key(self.name, "table", frame)
        data = cast("bytes | None", frame.item.value)
        value = None if data is None else self._decode(data)
        kept = ABSENT if data is None else store.codec.keep(value)
        values = frame.values(store)
        if self._feeds:
            existed = values.load(key) is not ABSENT
            change = Change(value, key, frame.item.timestamp_ms, self.name, existed)
            frame.results.append(change)
        values.save(key, kept)
