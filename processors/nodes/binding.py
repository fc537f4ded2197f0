"""Fills the parameters of a function for one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from onceflow.processors.declare.signatures import Argument, ArgumentKind, lookup_of
from onceflow.processors.frame import Frame, Result
from onceflow.processors.graph.nodes import FunctionNode
from onceflow.processors.graph.specs import StateKind, StateSpec
from onceflow.processors.nodes.lookups import make_lookup
from onceflow.processors.nodes.own_key import check_own_key
from onceflow.processors.nodes.timer_rows import timer_of, timers_binder
from onceflow.processors.state.faces import BoundState, Face, bound_list, bound_map
from onceflow.processors.state.rows import BoundRows
from onceflow.processors.state.store import ValueStore
from onceflow.processors.values import decoder_for

if TYPE_CHECKING:
    from onceflow.processors.nodes.base import Stores, Surroundings

Binder = Callable[[Frame, "Stores"], object]


def make_binder(
    node: FunctionNode, argument: Argument, around: Surroundings, *, decoded: bool
) -> Binder:
    """Make the function that fills one parameter.

    Args:
        node: The function.
        argument: Its parameter.
        around: Objects of the worker that it uses.
        decoded: Whether items are objects from another function, and not bytes from a topic.
    """
    kind = argument.kind
    if kind is ArgumentKind.VALUE:
        if decoded:
            return lambda frame, stores: frame.item.value
        decode = decoder_for(argument.annotation, node.format, f"value of {node.name}")
        return lambda frame, stores: decode(cast("bytes | None", frame.item.value))
    if kind is ArgumentKind.KEY:
        decode_key = decoder_for(argument.annotation, node.format, f"key of {node.name}")
        return lambda frame, stores: decode_key(cast("bytes | None", frame.item.key))
    if kind is ArgumentKind.HEADERS:
        return lambda frame, stores: frame.item.headers
    if kind is ArgumentKind.WINDOW:
        return lambda frame, stores: cast(Result, frame.item).window
    if kind is ArgumentKind.RECORD:
        return lambda frame, stores: frame.record
    if kind is ArgumentKind.CONTEXT:
        return lambda frame, stores: frame.context
    if kind is ArgumentKind.TABLE:
        return _table_binder(node, argument, around, decoded=decoded)
    if kind is ArgumentKind.TIMERS:
        spec = next(s for s in node.bound_states if s.declaration.name == argument.name)
        return timers_binder(node.name, spec.name, around)
    if kind is ArgumentKind.RESOURCE:
        return lambda frame, stores: around.resources.get(argument.annotation)
    if kind is ArgumentKind.TIMER:
        return timer_of
    return _state_binder(node, argument)


def _table_binder(
    node: FunctionNode, argument: Argument, around: Surroundings, *, decoded: bool
) -> Binder:
    find = make_lookup(node.name, argument, around)
    if lookup_of(argument.annotation) is None:
        return lambda frame, stores: find(frame, stores, None)
    value = next(a for a in node.signature.arguments if a.kind is ArgumentKind.VALUE)
    value_of = make_binder(node, value, around, decoded=decoded)
    return lambda frame, stores: find(frame, stores, value_of(frame, stores))


def _state_binder(node: FunctionNode, argument: Argument) -> Binder:
    spec = next(state for state in node.bound_states if state.declaration.name == argument.name)
    make = _FACES[spec.declaration.kind](node, spec)

    def bind(frame: Frame, stores: Stores) -> Face:
        face = make(frame, stores, check_own_key(node.name, argument.name, frame))
        frame.faces.append(face)
        return face

    return bind


MakeFace = Callable[[Frame, "Stores", bytes], Face]


def _make_value(node: FunctionNode, spec: StateSpec) -> MakeFace:
    name, declared = spec.name, spec.declaration
    initial, decode_key = declared.initial, None
    if declared.key_type is not None:
        decode_key = decoder_for(declared.key_type, node.format, f"key of {node.name}")

    def make(frame: Frame, stores: Stores, key: bytes) -> Face:
        values = frame.values(cast(ValueStore, stores[name]))
        return BoundState(values, key, key if decode_key is None else decode_key(key), initial)

    return make


def _make_map(node: FunctionNode, spec: StateSpec) -> MakeFace:
    def make(frame: Frame, stores: Stores, key: bytes) -> Face:
        assert spec.packing is not None
        rows = frame.rows(stores[spec.name])
        return bound_map(BoundRows(rows, key, spec.packing, spec.codec))

    return make


def _make_list(node: FunctionNode, spec: StateSpec) -> MakeFace:
    def make(frame: Frame, stores: Stores, key: bytes) -> Face:
        assert spec.packing is not None
        rows = frame.rows(stores[spec.name])
        return bound_list(BoundRows(rows, key, spec.packing, spec.codec))

    return make


_FACES: dict[StateKind, Callable[[FunctionNode, StateSpec], MakeFace]] = {
    StateKind.VALUE: _make_value,
    StateKind.MAP: _make_map,
    StateKind.LIST: _make_list,
}
