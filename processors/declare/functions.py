"""Turns a decorated function and its options into a declaration, and declarations into nodes.

The function itself is returned unchanged, so that it can be called and tested like any other. A
declaration needs neither network nor files; the group, which names states, is known only when the
topology is built.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from onceflow.processors.context import Output
from onceflow.processors.declare.signatures import ArgumentKind, Signature, read_signature
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import FunctionNode, Node, SourceNode, source_name
from onceflow.processors.graph.specs import (
    FailurePolicy,
    StateDeclaration,
    StateKind,
    StoreKind,
    as_migrations,
    check_name,
    make_codec,
    state_spec,
)
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.state.faces import ListState, MapState, State
from onceflow.processors.values import Format, decoder_for
from onceflow.sdk.errors import InvalidTopicError
from onceflow.sdk.model.record_checks import check_topic_name

E = TypeVar("E", bound=enum.Enum)
F = TypeVar("F", bound=Callable[..., object])

_PLAIN_VALUES: Final = (bytes, str, int, float, bool, dict)
"""What a handler returns as a value; never an Output, and never several."""

_SEVERAL: Final = frozenset(
    {
        list,
        collections.abc.Iterable,
        collections.abc.Iterator,
        collections.abc.Generator,
        collections.abc.AsyncIterator,
        collections.abc.AsyncGenerator,
        collections.abc.Sequence,
    }
)
"""What a function returns that gives several results."""

_KINDS: Final[Mapping[object, StateKind]] = {
    State: StateKind.VALUE,
    MapState: StateKind.MAP,
    ListState: StateKind.LIST,
}


@dataclass(frozen=True, slots=True)
class FunctionDeclaration:
    """A function with its options.

    Attributes:
        name: Name of the processor.
        topics: The topics that it reads; empty for one that takes the results of another.
        parent: The processor whose results it takes in place of a topic.
        output_topic: Where returned values go, or None.
        signature: The function and its parameters.
        format: Layout of structured values.
        policy: What is done about a record that it fails on.
        states: Its states.
        store: Where committed state is kept.
    """

    name: str
    topics: tuple[str, ...]
    parent: str | None
    output_topic: str | None
    signature: Signature
    format: Format
    policy: FailurePolicy
    states: tuple[StateDeclaration, ...]
    store: StoreKind


def declare_function(
    function: Callable[..., object],
    *,
    known: Sequence[FunctionDeclaration],
    source: str | Callable[..., object] | Sequence[str],
    to: str | None,
    name: str | None,
    dead_letter: str | None,
    retries: int | Retries,
    on_error: OnError | str | None,
    limits: DeadLetterLimits,
    format: Format | str,
    store: StoreKind | str,
    migrations: object,
) -> FunctionDeclaration:
    """Read a function's signature and put its declaration together.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    called = str(getattr(function, "__name__", "processor")) if name is None else name
    if not isinstance(called, str) or not called:
        raise DeclarationError(f"name={name!r} must be a text that is not empty")
    topics, parent = _source(called, source, known)
    _check_topics(called, topics, to, dead_letter)
    if not isinstance(limits, DeadLetterLimits):
        raise DeclarationError(f"{called}: limits={limits!r} must be DeadLetterLimits")
    signature = read_signature(function)
    layout = _choice(Format, called, "format", format)
    for argument in signature.arguments:
        is_read = argument.kind is ArgumentKind.VALUE and parent is None
        if is_read or argument.kind is ArgumentKind.KEY:
            decoder_for(argument.annotation, layout, f"{argument.name} of {called}")
    if parent is not None:
        _check_flow(parent, called, signature)
    return FunctionDeclaration(
        name=called,
        topics=topics,
        parent=None if parent is None else parent.name,
        output_topic=to,
        signature=signature,
        format=layout,
        policy=_policy(called, retries, on_error, dead_letter, limits),
        states=_states(called, signature, migrations),
        store=_choice(StoreKind, called, "store", store),
    )


def to_nodes(declarations: Sequence[FunctionDeclaration], group: str) -> list[Node]:
    """The nodes of a topology: a source for each topic that is read, and the functions.

    Raises:
        DeclarationError: A state cannot be named within the group.
    """
    sources: dict[str, Node] = {}
    functions: list[Node] = []
    for declared in declarations:
        for topic in declared.topics:
            sources.setdefault(topic, SourceNode(name=source_name(topic), topic=topic))
        parents = tuple(map(source_name, declared.topics))
        functions.append(
            FunctionNode(
                name=declared.name,
                parents=parents if declared.parent is None else (declared.parent,),
                takes=_takes(declared.signature),
                gives=_shown(declared.signature.returns),
                signature=declared.signature,
                format=declared.format,
                output_topic=declared.output_topic,
                policy=declared.policy,
                own_states=tuple(
                    state_spec(state, group, declared.name) for state in declared.states
                ),
                store=declared.store,
            )
        )
    return [*sources.values(), *functions]


def _source(
    called: str, source: object, known: Sequence[FunctionDeclaration]
) -> tuple[tuple[str, ...], FunctionDeclaration | None]:
    """The topics, or the function whose results are taken."""
    if isinstance(source, str):
        return (source,), None
    if isinstance(source, list | tuple) and source and all(isinstance(t, str) for t in source):
        if len(set(source)) < len(source):
            raise DeclarationError(f"{called}: topic={source!r} names a topic twice")
        return tuple(source), None
    parent = next((declared for declared in known if declared.signature.function is source), None)
    if parent is None:
        raise DeclarationError(
            f"{called}: topic={source!r} names no topic, and is no function that is a processor "
            "of this application already"
        )
    return (), parent


def _check_topics(
    called: str, topics: Sequence[str], to: str | None, dead_letter: str | None
) -> None:
    named = [("topic", topic) for topic in topics]
    for parameter, name in (*named, ("to", to), ("dead_letter", dead_letter)):
        if name is not None:
            try:
                check_topic_name(name)
            except InvalidTopicError as error:
                raise DeclarationError(
                    f"{called}: {parameter}={name!r} names no topic: {error}"
                ) from error
    if dead_letter in topics:
        raise DeclarationError(
            f"{called}: dead letters in the input topic {dead_letter!r} would come again for ever"
        )
    if to in topics:
        raise DeclarationError(
            f"{called}: what it sends to its own input topic {to!r} would come again for "
            "ever; name another topic, or, where it ends by itself, leave out to= and return "
            f"Output(value, topic={to!r})"
        )


def _policy(
    called: str,
    retries: int | Retries,
    on_error: OnError | str | None,
    dead_letter: str | None,
    limits: DeadLetterLimits,
) -> FailurePolicy:
    if on_error is None:
        end = OnError.STOP if dead_letter is None else OnError.DEAD_LETTER
    else:
        end = _choice(OnError, called, "on_error", on_error)
    if (end is OnError.DEAD_LETTER) != (dead_letter is not None):
        raise DeclarationError(
            f"{called}: dead_letter={dead_letter!r} and on_error={end.value!r} contradict "
            "each other; give the topic alone"
        )
    return FailurePolicy(
        retries if isinstance(retries, Retries) else Retries(retries), end, dead_letter, limits
    )


def _states(called: str, signature: Signature, migrations: object) -> tuple[StateDeclaration, ...]:
    states: dict[str, StateDeclaration] = {}
    for argument in signature.states():
        kind = _KINDS[typing.get_origin(argument.annotation)]
        types = typing.get_args(argument.annotation)
        initial = None
        if isinstance(argument.default, State):
            initial = argument.default.get()
        states[argument.name] = StateDeclaration(
            argument.name, kind, types[0] if len(types) == 2 else None, types[-1], initial
        )
    declared = as_migrations(migrations, states, called)
    found = [
        dataclasses.replace(state, migrations=declared.get(name, ()))
        for name, state in states.items()
    ]
    for state in found:
        check_name("processor name", called)
        check_name("state name", state.name)
        codec = make_codec(state, called)
        if state.initial is not None:
            codec.keep(state.initial)
    return tuple(found)


def check_targets(declarations: Sequence[FunctionDeclaration]) -> None:
    """Refuse values that every call would return and that have nowhere to go.

    Only when all functions are known it is known whose results another one takes.

    Raises:
        DeclarationError: A function returns values and has no target for them.
    """
    taken = {declared.parent for declared in declarations}
    for declared in declarations:
        returns = declared.signature.returns
        lost = declared.output_topic is None and declared.name not in taken
        if lost and (typing.get_origin(returns) or returns) in _PLAIN_VALUES:
            raise DeclarationError(
                f"{declared.name} returns {inspect.formatannotation(returns)} but has no to= "
                "topic, and no other processor takes its results; declare one, or return None or "
                "Output(..., topic=...)"
            )


def _check_flow(parent: FunctionDeclaration, called: str, signature: Signature) -> None:
    """Refuse a function that cannot take what the one before it gives."""
    wanted = next((a for a in signature.arguments if a.kind is ArgumentKind.VALUE), None)
    if wanted is None:
        return
    for given in _results(parent.signature.returns):
        if not _fits(given, wanted.annotation):
            raise DeclarationError(
                f"{called} takes {wanted.name}: {inspect.formatannotation(wanted.annotation)}, but "
                f"{parent.name} gives {inspect.formatannotation(given)}"
            )


def _results(returns: object) -> list[object]:
    """The types of single results, as far as the annotation tells."""
    if returns in (None, types.NoneType, Output, object, typing.Any):
        return []
    origin, inner = typing.get_origin(returns), typing.get_args(returns)
    if origin in (typing.Union, types.UnionType):
        return [result for part in inner for result in _results(part)]
    if origin in _SEVERAL:
        return _results(inner[0]) if inner else []
    return [returns]


def _fits(given: object, wanted: object) -> bool:
    if wanted in (inspect.Parameter.empty, object, typing.Any) or given == wanted:
        return True
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return any(_fits(given, part) for part in typing.get_args(wanted))
    return isinstance(given, type) and isinstance(wanted, type) and issubclass(given, wanted)


def _choice(kind: type[E], called: str, parameter: str, value: object) -> E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(member.value) for member in kind)
        raise DeclarationError(f"{called}: {parameter}={value!r}: choose from {names}") from None


def _takes(signature: Signature) -> str:
    for argument in signature.arguments:
        if argument.kind is ArgumentKind.VALUE:
            return _shown(argument.annotation)
    return ""


def _shown(annotation: object) -> str:
    if annotation in (None, inspect.Parameter.empty):
        return ""
    return inspect.formatannotation(annotation)
