"""A function at work: it is called for one item, all of it or nothing.

Arguments are bound, the function is called, and what it gave is encoded before anything is kept:
that is the savepoint of the call. Where a function is the only one of its task it takes whole
slices of records, straight into the unit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import cast

from onceflow.processors.context import Context, Inherit, Output
from onceflow.processors.declare.signatures import ArgumentKind
from onceflow.processors.errors import (
    DeclarationError,
    HandlerCancelledError,
    UndeliverableOutputError,
)
from onceflow.processors.frame import Encoded, Frame, Item, Result
from onceflow.processors.graph.nodes import FunctionNode
from onceflow.processors.lanes import Lane, Lanes
from onceflow.processors.nodes.base import Stores
from onceflow.processors.nodes.binding import make_binder, without_key
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.state.faces import BoundState
from onceflow.processors.state.store import ValueStore
from onceflow.processors.unit import Unit
from onceflow.processors.values import Decoder, decoder_for, encoder_for
from onceflow.sdk.errors import RecordTooLargeError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.record_checks import check_timestamp, check_topic_name, to_headers

_PLAIN = frozenset({bytes, str, int, float, bool, dict})

RECORD_BYTES_MAX = 1_000_000
"""Largest key and value of an output together, where nothing else is set."""


def _check_output(output: Output) -> None:
    """Refuse what the producer would refuse, while it still is this record's failure alone."""
    to_headers(output.headers)
    partition = output.partition
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise UndeliverableOutputError(f"partition={partition!r}: must be a number from 0 on")
    if output.timestamp_ms is not None:
        check_timestamp(output.timestamp_ms)


class FunctionWork:
    """One function at work.

    Args:
        node: The function.
        lanes: Where outputs of the unit are collected.
        feeds: Whether other functions take its results.
        record_bytes_max: Largest key and value of an output together.
        clock: Monotonic seconds, for the pace of warnings.
    """

    def __init__(
        self,
        node: FunctionNode,
        lanes: Lanes,
        *,
        feeds: bool = False,
        record_bytes_max: int = RECORD_BYTES_MAX,
        clock: Callable[[], float],
    ) -> None:
        self.name: str = node.name
        self.node: FunctionNode = node
        self.is_async: bool = node.needs_loop
        dead = node.policy.dead_letter_topic
        self.failures: Failures = Failures(
            node.name, node.policy, None if dead is None else lanes.declared(dead), clock
        )
        self._function = node.signature.function
        self._lanes = lanes
        self._feeds = feeds
        self._bytes_max = record_bytes_max
        self._lane = lanes.declared(node.output_topic) if node.output_topic else None
        self._encode = encoder_for(node.format)
        arguments = node.signature.arguments
        decoded = not all(parent.startswith("topic ") for parent in node.parents)
        self._binders = [
            make_binder(node, a, decoded=decoded) for a in arguments if not a.keyword_only
        ]
        self._named = {
            a.name: make_binder(node, a, decoded=decoded) for a in arguments if a.keyword_only
        }
        self._wants_context = any(a.kind is ArgumentKind.CONTEXT for a in arguments)
        self._slices = None if decoded or feeds or self.is_async else self._slice_form()

    # One call ------------------------------------------------------------------------------

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process an item with a blocking function; raises what the function raises."""
        if self._wants_context:
            frame.context = Context(frame.record, frame.attempt, self.name)
        self._encode_result(frame, self._invoke(frame, stores))

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Process an item with any function; raises what the function raises."""
        if self._wants_context:
            frame.context = Context(frame.record, frame.attempt, self.name)
        try:
            result = self._invoke(frame, stores)
            if isinstance(result, Awaitable):
                result = await result
            if isinstance(result, AsyncIterator):
                result = [item async for item in result]
            self._encode_result(frame, result)
        except asyncio.CancelledError as error:
            worker = asyncio.current_task()
            if worker is None or worker.cancelling():
                raise
            # As an exception of the handler it follows the policy, like any other.
            raise HandlerCancelledError(
                f"{self.name}: something that the handler awaited was cancelled"
            ) from error

    def _invoke(self, frame: Frame, stores: Stores) -> object:
        if self._named:
            named = {name: bind(frame, stores) for name, bind in self._named.items()}
            return self._function(*[bind(frame, stores) for bind in self._binders], **named)
        return self._function(*[bind(frame, stores) for bind in self._binders])

    # What it gave --------------------------------------------------------------------------

    def _encode_result(self, frame: Frame, result: object) -> None:
        """Put everything that the function gave into the frame, as bytes."""
        items: list[object]
        if result is None:
            items = []
        elif isinstance(result, list | Iterator):
            items = list(result)
        else:
            items = [result]
        if frame.context is not None:
            for output in frame.context._finish():
                frame.outputs.append(self._encode_output(frame.item, output))
        for item in items:
            if isinstance(item, Output):
                self._add_output(frame, item)
            elif item is not None:
                self._add_plain(frame, item)

    def _add_plain(self, frame: Frame, value: object) -> None:
        item = frame.item
        key = cast("bytes | None", item.key)
        if self._feeds:
            frame.results.append(Result(value, key, item.timestamp_ms))
        lane = self._lane
        if lane is not None:
            data = self._encode(value)
            self._check_size(data, key)
            frame.outputs.append((lane, data, key, item.timestamp_ms, (), None))
        elif not self._feeds:
            raise DeclarationError(
                f"{self.name} returned {type(value).__name__} but has no to= topic; "
                "declare one, or return Output(..., topic=...)"
            )

    def _add_output(self, frame: Frame, output: Output) -> None:
        if output.topic is None and self._feeds:
            _check_output(output)
            item = frame.item
            time_ms = item.timestamp_ms if output.timestamp_ms is None else output.timestamp_ms
            key = self._key_of(item, output)
            frame.results.append(Result(output.value, key, time_ms, to_headers(output.headers)))
            if self._lane is None:
                return
        frame.outputs.append(self._encode_output(frame.item, output))

    def _key_of(self, item: Item, output: Output) -> bytes | None:
        if output.key is Inherit.KEY:
            return cast("bytes | None", item.key)
        return self._encode(output.key)

    def _encode_output(self, item: Item, output: Output) -> Encoded:
        if output.topic is not None:
            check_topic_name(output.topic)
            lane: Lane | None = self._lanes.lane(output.topic)
        else:
            lane = self._lane
        if lane is None:
            raise DeclarationError(
                f"{self.name} gave an Output without a topic and has no to= topic"
            )
        lane.check()
        _check_output(output)
        data = self._encode(output.value)
        key = self._key_of(item, output)
        self._check_size(data, key)
        time_ms = item.timestamp_ms if output.timestamp_ms is None else output.timestamp_ms
        return lane, data, key, time_ms, output.headers, output.partition

    def _check_size(self, data: bytes | None, key: bytes | None) -> None:
        size = (len(data) if data else 0) + (len(key) if key else 0)
        if size > self._bytes_max:
            raise RecordTooLargeError(
                f"an output of {self.name} has {size} bytes, the limit is {self._bytes_max}; "
                "raise max_request_size and the topic's max.message.bytes"
            )

    # Slices --------------------------------------------------------------------------------

    @property
    def takes_slices(self) -> bool:
        """Whether whole slices can be taken."""
        return self._slices is not None

    def _slice_form(self) -> _SliceForm | None:
        """How slices are taken: for a function of the value, or of the value and one state."""
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
        (state,) = self.node.states
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
        form, lane, clock = self._slices, self._lane, unit.clock
        assert form is not None
        decode, function, encode, limit = form.decode, self._function, self._encode, self._bytes_max
        index = start
        try:
            for index in range(start, stop):
                record = records[index]
                key = record.key
                result = function(decode(record.value))
                if lane is not None and type(result) in _PLAIN:
                    data = result if type(result) is bytes else encode(result)
                    if len(data) + (len(key) if key else 0) > limit:  # type: ignore[arg-type]
                        self._check_size(data, key)
                    lane.values.append(data)
                    lane.keys.append(key)
                    lane.timestamps_ms.append(record.timestamp_ms)
                elif result is not None:
                    frame = Frame(record, record)
                    self._encode_result(frame, result)
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
        form, lane, clock = self._slices, self._lane, unit.clock
        assert form is not None
        decode, function, encode, limit = form.decode, self._function, self._encode, self._bytes_max
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
                if lane is not None and type(result) in _PLAIN:
                    data = result if type(result) is bytes else encode(result)
                    if len(data) + len(key) > limit:  # type: ignore[arg-type]
                        self._check_size(data, key)
                    state._finish(True)
                    lane.values.append(data)
                    lane.keys.append(key)
                    lane.timestamps_ms.append(record.timestamp_ms)
                else:
                    frame = Frame(record, record)
                    self._encode_result(frame, result)
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
    """How a function takes slices.

    Args:
        decode: Decoder of values.
        state: Its state, or None.
        state_first: Whether the state is its first parameter.
        initial: Value of keys that have none.
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
