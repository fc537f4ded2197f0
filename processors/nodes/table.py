"""A table at work: it keeps the latest value of each key, and tells the nodes behind of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceflow.processors.frame import Frame, Result
from onceflow.processors.graph.nodes import TableNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.binding import check_own_key
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.state.store import ABSENT, ValueStore
from onceflow.processors.unit import Unit
from onceflow.processors.values import decoder_for
from onceflow.sdk.model.consumer_record import ConsumerRecord


class TableWork:
    """One table at work.

    Args:
        node: The table.
        around: What it works with.
        feeds: Whether other nodes take its changes.
    """

    is_async: bool = False
    takes_slices: bool = False

    def __init__(self, node: TableNode, around: Surroundings, *, feeds: bool) -> None:
        self.name: str = node.name
        dead = node.policy.dead_letter_topic
        letters = None if dead is None else around.lanes.declared(dead)
        self.failures: Failures = Failures(node.name, node.policy, letters, around.clock)
        self._feeds = feeds
        self._state = node.own_states[0].name
        self._decode = decoder_for(node.value_type, node.format, f"value of table {node.name}")

    def call(self, frame: Frame, stores: Stores) -> None:
        """Keep the value of a record; one without a value deletes its key."""
        store = cast(ValueStore, stores[self._state])
        key = check_own_key(self.name, "table", frame)
        data = cast("bytes | None", frame.item.value)
        value = None if data is None else self._decode(data)
        kept = ABSENT if data is None else store.codec.keep(value)
        frame.values(store).save(key, kept)
        if self._feeds:
            frame.results.append(Result(value, key, frame.item.timestamp_ms))

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """As ``call``; nothing is awaited."""
        self.call(frame, stores)

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Slices are not taken."""
        raise NotImplementedError
