"""Reads a handler's signature: what each parameter gets, and which states it declares.

A parameter annotated ``ConsumerRecord``, ``Context``, ``Window``, ``State[...]``, ``MapState[...]``
or ``ListState[...]`` gets such an object; one named ``key`` or ``headers`` gets these; the
remaining one gets the value, decoded by its annotation.

A new kind of argument is a member of ``ArgumentKind``, a rule in ``_kind`` and a binder in
``nodes.binding``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from onceflow.processors.context import Context
from onceflow.processors.errors import DeclarationError
from onceflow.processors.state.faces import ListState, MapState, State
from onceflow.processors.tables import GlobalLookup, Table
from onceflow.processors.timers import Timer, Timers
from onceflow.processors.windows import Window
from onceflow.sdk.model.consumer_record import ConsumerRecord

Handler = Callable[..., object]

_FACES: Mapping[object, tuple[tuple[int, ...], str]] = {
    State: ((1, 2), "State[value] or State[key, value]"),
    MapState: ((2,), "MapState[key, value]"),
    ListState: ((1,), "ListState[value]"),
}
"""By state: how many types its annotation may have, and how to write it."""


class ArgumentKind(enum.Enum):
    """What a parameter of a handler gets."""

    VALUE = "value"
    KEY = "key"
    HEADERS = "headers"
    RECORD = "record"
    CONTEXT = "context"
    STATE = "state"
    WINDOW = "window"
    ACCUMULATOR = "accumulator"
    TABLE = "table"
    TIMERS = "timers"
    TIMER = "timer"
    RESOURCE = "resource"


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a handler."""

    name: str
    kind: ArgumentKind
    annotation: object
    keyword_only: bool = False
    default: object = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler and its parameters.

    Attributes:
        function: The decorated function itself.
        arguments: Its parameters in order.
        is_async: Whether it is a coroutine function or an asynchronous generator.
        returns: Annotated type of its results; None without an annotation.
    """

    function: Handler
    arguments: tuple[Argument, ...]
    is_async: bool
    returns: object = None

    def states(self) -> list[Argument]:
        """Return the parameters that are states."""
        return [a for a in self.arguments if a.kind is ArgumentKind.STATE]


def read_signature(
    function: Handler, *, pair: str | None = None, resources: Collection[object] = ()
) -> Signature:
    """Inspect a handler.

    Args:
        function: The decorated function.
        pair: Why it must take two values, for messages; None if it takes one.
        resources: Types of the startup functions' results.

    Raises:
        DeclarationError: A parameter cannot be filled.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"{name}: annotation cannot be resolved: {error}; define the type at the top of the "
            "module, or leave out `from __future__ import annotations`"
        ) from error
    arguments: list[Argument] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DeclarationError(
                f"{name}: *{parameter.name} cannot be filled; name every parameter"
            )
        annotation = hints.get(parameter.name, inspect.Parameter.empty)
        kind = _kind(parameter.name, annotation)
        if isinstance(annotation, type) and annotation in resources:
            kind = ArgumentKind.RESOURCE
        has_default = parameter.default is not parameter.empty
        if has_default and kind is not ArgumentKind.STATE:
            if parameter.kind is parameter.KEYWORD_ONLY:
                continue  # A parameter of the user's own, with its default.
        elif has_default and not isinstance(parameter.default, typing.get_origin(annotation)):
            raise DeclarationError(
                f"{name}: the default of state {parameter.name!r} is {parameter.default!r}; "
                f"write {typing.get_origin(annotation).__name__}(...) or leave it out"
            )
        arguments.append(
            Argument(
                parameter.name,
                kind,
                annotation,
                parameter.kind is parameter.KEYWORD_ONLY,
                parameter.default,
            )
        )
    values = [a.name for a in arguments if a.kind is ArgumentKind.VALUE]
    if pair is not None:
        if len(values) != 2:
            raise DeclarationError(f"{name}: {pair}; this takes {', '.join(values) or 'neither'}")
        arguments = [
            dataclasses.replace(a, kind=ArgumentKind.ACCUMULATOR) if a.name == values[1] else a
            for a in arguments
        ]
    elif len(values) > 1:
        raise DeclarationError(
            f"{name}: which of {', '.join(values)} gets the record's value? Annotate the others "
            "(ConsumerRecord, Context, State[...], what an @app.startup above gives) or name them "
            "key or headers"
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return Signature(function, tuple(arguments), is_async, hints.get("return"))


def table_of(annotation: object) -> Table[object, object] | None:
    """Return the table of a parameter annotated ``Annotated[V | None, table]``, or None."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    for mark in typing.get_args(annotation)[1:]:
        if isinstance(mark, Table):
            return mark
        if isinstance(mark, GlobalLookup):
            return mark.table
    return None


def lookup_of(annotation: object) -> GlobalLookup | None:
    """Return the lookup of an annotation ``Annotated[V | None, table.by(key)]``, or None."""
    marks = typing.get_args(annotation)[1:]
    return next((mark for mark in marks if isinstance(mark, GlobalLookup)), None)


def _kind(name: str, annotation: object) -> ArgumentKind:
    if ConsumerRecord in (annotation, typing.get_origin(annotation)):
        return ArgumentKind.RECORD
    if annotation is Context:
        return ArgumentKind.CONTEXT
    if annotation is Timers:
        return ArgumentKind.TIMERS
    if annotation is Timer:
        return ArgumentKind.TIMER
    if annotation is Window:
        return ArgumentKind.WINDOW
    if any(annotation is face for face in _FACES):
        raise DeclarationError(
            f"{name}: write {annotation.__name__}[...] with the type of the value"  # type: ignore[attr-defined]
        )
    if table_of(annotation) is not None:
        return ArgumentKind.TABLE
    origin = typing.get_origin(annotation)
    if origin is not None and origin in _FACES:
        counts, shown = _FACES[origin]
        if len(typing.get_args(annotation)) not in counts:
            raise DeclarationError(f"{name}: write {shown}")
        return ArgumentKind.STATE
    if name == "key":
        return ArgumentKind.KEY
    if name == "headers":
        return ArgumentKind.HEADERS
    return ArgumentKind.VALUE
