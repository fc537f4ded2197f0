"""Runs functions: one call for one item, all or nothing.

A call fills the parameters, calls the function, and encodes its results before it keeps any of
them. A function that is the only one of its topic may take whole slices of records straight into
the unit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import cast

from onceflow.processors.context import Context
from onceflow.processors.declare.signatures import ArgumentKind
from onceflow.processors.errors import (
    HandlerCancelledError,
)
from onceflow.processors.frame import Frame
from onceflow.processors.graph.nodes import FunctionNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.binding import make_binder
from onceflow.processors.nodes.emitter import check_size
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.nodes.own_key import without_key
from onceflow.processors.nodes.results import PLAIN, Results
from onceflow.processors.state.faces import BoundState
from onceflow.processors.state.store import ValueStore
from onceflow.processors.unit import Unit
from onceflow.processors.values import Decoder, decoder_for
from onceflow.sdk.model.consumer_record import ConsumerRecord


class FunctionWork:
    """Runs one function.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
        feeds: Whether other functions take its results.
    """

    def __init__(
        self,
        node: FunctionNode,
        around: Surroundings,
        *,
        feeds: bool = False,
    ) -> None:
        lanes = around.lanes
        self.name: str = node.name
        self.node: FunctionNode = node
        self.is_async: bool = node.needs_loop
        dead = node.policy.dead_letter_topic
        self.failures: Failures = Failures(
            node.name, node.policy, None if dead is None else lanes.declared(dead), around.clock
        )
        self._function = node.signature.function
        self._results = Results(
            node,
            lanes,
            feeds=feeds,
            record_bytes_max=around.record_bytes_max,
            branches=node.branches,
        )
        arguments = node.signature.arguments
        decoded = not all(parent.startswith("topic ") for parent in node.parents)
        binders = {a.name: make_binder(node, a, around, decoded=decoded) for a in arguments}
        self._binders = [binders[a.name] for a in arguments if not a.keyword_only]
        self._named = {a.name: binders[a.name] for a in arguments if a.keyword_only}
        self._wants_context = any(a.kind is ArgumentKind.CONTEXT for a in arguments)
        self._slices = None if decoded or feeds or self.is_async else self._slice_form()

    # One call ------------------------------------------------------------------------------

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process an item with a blocking function; its errors pass through."""
        if self._wants_context:
            frame.context = Context(frame.record, frame.attempt, self.name)
        self._results.put(frame, self._invoke(frame, stores))

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Process an item with any function; its errors pass through."""
        if self._wants_context:
            frame.context = Context(frame.record, frame.attempt, self.name)
        try:
            result = self._invoke(frame, stores)
            if isinstance(result, Awaitable):
                result = await result
            if isinstance(result, AsyncIterator):
                result = [item async for item in result]
            self._results.put(frame, result)
        except asyncio.CancelledError as error:
            worker = asyncio.current_task()
            if worker is None or worker.cancelling():
                raise
            # The policy applies to it, as to other errors of the handler.
            raise HandlerCancelledError(
                f"{self.name}: something cancelled what the handler awaited; catch "
                "asyncio.CancelledError there"
            ) from error

    def _invoke(self, frame: Frame, stores: Stores) -> object:
        if self._named:
            named = {name: bind(frame, stores) for name, bind in self._named.items()}
            return self._function(*[bind(frame, stores) for bind in self._binders], **named)
        return self._function(*[bind(frame, stores) for bind in self._binders])

    # Slices --------------------------------------------------------------------------------

    @property
    def takes_slices(self) -> bool:
        """Whether ``run_slice`` may be used."""
        return self._slices is not None

    def _slice_form(self) -> _SliceForm | None:
        """Return how slices are taken, if the function takes only a value, or value and state."""
        arguments = self.node.signature.arguments
        if self._named or self._wants_context:
            return None
        kinds = [argument.kind for argument in arguments]
        if sorted(kind.value for kind in kinds) not in (["value"], ["state", "value"]):
            return None
        value = arguments[kinds.index(ArgumentKind.VALUE)]
        decode = decoder_for(value.annotation, self.node.format, f"value of {self.name}")
        if ArgumentKind.STATE not in kinds:
            return _SliceForm(decode)
        name = arguments[kinds.index(ArgumentKind.STATE)].name
        state = next(state for state in self.node.states if state.declaration.name == name)
        if state.declaration.kind.value != "State" or state.declaration.key_type is not None:
            return None
        state_first = kinds[0] is ArgumentKind.STATE
        return _SliceForm(decode, state.name, state_first, state.declaration.initial)

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Process records straight into the unit; see ``WorkNode.run_slice``."""
        form = self._slices
        assert form is not None
        if form.state is None:
            index, error = self._run_plain(records, start, stop, unit)
        else:
            store = cast(ValueStore, stores[form.state])
            index, error = self._run_state(records, start, stop, unit, store)
        if self.failures.counts and index > start:
            self.failures.good(records[start].partition, index - start)
        return index, error

    def _run_plain(
        self, records: Sequence[ConsumerRecord], start: int, stop: int, unit: Unit
    ) -> tuple[int, Exception | None]:
        form, results, clock = self._slices, self._results, unit.clock
        assert form is not None
        decode, function, lane = form.decode, self._function, results.lane
        encode, limit = results.encode, results.bytes_max
        index = start
        try:
            for index in range(start, stop):
                record = records[index]
                key = record.key
                result = function(decode(record.value))
                if lane is not None and type(result) in PLAIN:
                    data = result if type(result) is bytes else encode(result)
                    if len(data) + (len(key) if key else 0) > limit:  # type: ignore[arg-type]
                        check_size(self.name, data, key, limit)
                    lane.values.append(data)
                    lane.keys.append(key)
                    lane.timestamps_ms.append(record.timestamp_ms)
                elif result is not None:
                    frame = Frame(record, record)
                    self._results.put(frame, result)
                    frame.keep()
                if clock() >= unit.due_s:
                    return index + 1, None
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            return index, error
        return stop, None

    def _run_state(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        unit: Unit,
        store: ValueStore,
    ) -> tuple[int, Exception | None]:
        form, results, clock = self._slices, self._results, unit.clock
        assert form is not None
        decode, function, lane = form.decode, self._function, results.lane
        encode, limit = results.encode, results.bytes_max
        state_first, initial, bytes_max = form.state_first, form.initial, unit.bytes_max
        state: BoundState | None = None
        index = start
        try:
            for index in range(start, stop):
                record = records[index]
                key = record.key
                if key is None:
                    raise without_key(self.name, form.state)
                state = BoundState(store, key, key, initial)
                value = decode(record.value)
                result = function(state, value) if state_first else function(value, state)
                if lane is not None and type(result) in PLAIN:
                    data = result if type(result) is bytes else encode(result)
                    if len(data) + len(key) > limit:  # type: ignore[arg-type]
                        check_size(self.name, data, key, limit)
                    state._finish(True)
                    lane.values.append(data)
                    lane.keys.append(key)
                    lane.timestamps_ms.append(record.timestamp_ms)
                else:
                    frame = Frame(record, record)
                    self._results.put(frame, result)
                    state._finish(True)
                    frame.keep()
                if clock() >= unit.due_s or store.size_bytes >= bytes_max:
                    return index + 1, None
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            if state is not None:
                state._finish(False)
            return index, error
        return stop, None


class _SliceForm:
    """How ``run_slice`` calls a function.

    Args:
        decode: Decoder of values.
        state: Its state, or None.
        state_first: Whether the state is its first parameter.
        initial: Value of keys without one.
    """

    __slots__ = ("decode", "initial", "state", "state_first")

    def __init__(
        self,
        decode: Decoder,
        state: str | None = None,
        state_first: bool = False,
        initial: object = None,
    ) -> None:
        self.decode: Decoder = decode
        self.state: str | None = state
        self.state_first: bool = state_first
        self.initial: object = initial
