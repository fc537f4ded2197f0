"""Declares aggregates over windows."""

from __future__ import annotations

import copy
import enum
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from onceflow.processors.aggregates import Fold, Ready
from onceflow.processors.clock import TimeOf, Timing
from onceflow.processors.declare.functions import (
    Declaration,
    Lookups,
    Source,
    check_flow,
    check_topics,
    choice,
    find_lookups,
    find_source,
    make_rekey,
    shown_type,
    taken_type,
)
from onceflow.processors.declare.options import FunctionOptions, read_options
from onceflow.processors.declare.signatures import (
    Argument,
    ArgumentKind,
    Signature,
    read_signature,
)
from onceflow.processors.errors import DeclarationError, StateValueError
from onceflow.processors.graph.nodes import AggregateNode, Node
from onceflow.processors.graph.specs import (
    StateDeclaration,
    StateKind,
    as_migrations,
    check_name,
    make_codec,
)
from onceflow.processors.state.timed import window_layout
from onceflow.processors.values import decoder_for
from onceflow.processors.windows import (
    AnyWindow,
    Frames,
    Hopping,
    Session,
    Tumbling,
    frames_of,
    whole_ms,
)

STATE_NAME = "windows"
"""Name of the state of every aggregate."""

_TAKEN = frozenset(
    {
        ArgumentKind.VALUE,
        ArgumentKind.ACCUMULATOR,
        ArgumentKind.KEY,
        ArgumentKind.HEADERS,
        ArgumentKind.WINDOW,
        ArgumentKind.TABLE,
    }
)


_PAIR = "a fold takes a value and an accumulator, or give fold= a ready aggregate, such as Sum()"


class Emit(enum.Enum):
    """When an aggregate gives results."""

    CLOSE = "close"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Windowing:
    """The arguments of ``App.aggregate``, without the options that all functions have."""

    window: AnyWindow
    to: str | None
    fold: Ready | None
    merge: Callable[..., object] | None
    time: TimeOf | None
    idle: timedelta | None
    late: str | None
    emit: Emit | str
    key: Callable[..., object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateDeclaration(Declaration):
    """A fold with its options.

    Attributes:
        fold: How values become accumulators.
        timing: Where records stand in time.
        frames: The arithmetic of its windows.
        late_topic: Where late records go, or None.
        on_update: Whether each record gives a result.
        takes: Type of the values, as text.
        lookups: The tables that it looks up.
    """

    fold: Fold
    timing: Timing
    frames: Frames
    late_topic: str | None
    on_update: bool
    takes: str
    lookups: Lookups

    @property
    def windowed(self) -> bool:
        """True, as its results belong to windows."""
        return True

    @property
    def results(self) -> list[object]:
        """The type of its results; a list is one result."""
        if typing.get_origin(self.returns) in (typing.Union, types.UnionType):
            return [kind for kind in typing.get_args(self.returns) if kind is not types.NoneType]
        return [self.returns]

    @property
    def always_gives(self) -> bool:
        """True, as each window gives a result."""
        return True

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return AggregateNode(
            name=self.name,
            parents=parents,
            lookups=self.lookups.tables,
            global_lookups=self.lookups.global_tables,
            takes=self.takes,
            gives=shown_type(self.returns),
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
            fold=self.fold,
            timing=self.timing,
            frames=self.frames,
            late_topic=self.late_topic,
            on_update=self.on_update,
        )


def declare_aggregate(
    function: Callable[..., object],
    known: Sequence[Declaration],
    source: Source,
    windowing: Windowing,
    options: FunctionOptions,
) -> AggregateDeclaration:
    """Make the declaration of an aggregate from its signature and options.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    common = read_options(function, options)
    called, ready, window = common.name, windowing.fold, windowing.window
    check_name("processor name", called)
    topics, parent = find_source(called, source, known)
    check_topics(
        called, topics, to=windowing.to, late=windowing.late, dead_letter=common.dead_letter
    )
    if not isinstance(window, Tumbling | Hopping | Session):
        raise DeclarationError(
            f"{called}: window={window!r}: must be Tumbling(...), Hopping(...) or Session(...)"
        )
    signature = _signature(called, function, ready)
    fold = _make_fold(called, signature, ready, windowing.merge, window)
    for argument in signature.arguments:
        if argument.kind in (ArgumentKind.VALUE, ArgumentKind.KEY):
            decoder_for(argument.annotation, common.format, f"{argument.name} of {called}")
    if parent is not None:
        check_flow(parent, called, signature)
    frames = frames_of(window)
    state = _state(called, signature, fold, frames, common.migrations)
    return AggregateDeclaration(
        name=called,
        topics=topics,
        parent=None if parent is None else parent.name,
        output_topic=windowing.to,
        function=function,
        returns=state.value_type if ready is None else ready._gives or state.value_type,
        format=common.format,
        policy=common.policy,
        states=(state,),
        store=common.store,
        fold=fold,
        timing=make_timing(called, windowing.time, windowing.idle),
        frames=frames,
        late_topic=windowing.late,
        on_update=choice(Emit, called, "emit", windowing.emit) is Emit.UPDATE,
        takes=taken_type(signature),
        rekey=make_rekey(called, windowing.key, signature),
        lookups=find_lookups(called, signature, known),
    )


def make_timing(called: str, time: TimeOf | None, idle: timedelta | None) -> Timing:
    """Where the records of a function stand in time.

    Raises:
        DeclarationError: ``time`` is not a function, or ``idle`` is not a duration.
    """
    if time is not None and not callable(time):
        raise DeclarationError(
            f"{called}: time={time!r}: must be a function of the value, such as "
            "lambda payment: payment.paid_at"
        )
    return Timing(time, None if idle is None else whole_ms(f"{called}: idle", idle, 1))


def _signature(called: str, function: Callable[..., object], fold: Ready | None) -> Signature:
    if fold is not None and not isinstance(fold, Ready):
        raise DeclarationError(
            f"{called}: fold={fold!r}: must be a ready aggregate, such as Sum() or Count()"
        )
    signature = read_signature(function, pair=_PAIR if fold is None else None)
    if signature.is_async:
        raise DeclarationError(
            f"{called} is async; an aggregate must be a plain function: write def in "
            "place of async def"
        )
    for argument in signature.arguments:
        if argument.kind not in _TAKEN:
            raise DeclarationError(
                f"{called}: {argument.name}: "
                f"{inspect.formatannotation(argument.annotation)}: an aggregate has no state "
                "but its accumulator; it takes a value, key, headers, Window and rows of "
                "tables"
            )
        if argument.keyword_only:
            raise DeclarationError(
                f"{called}: {argument.name}: an aggregate takes no keyword-only parameters; "
                "leave out *"
            )
    if not any(argument.kind is ArgumentKind.VALUE for argument in signature.arguments):
        raise DeclarationError(f"{called} takes no value; add a parameter for the value")
    return signature


def _make_fold(
    called: str,
    signature: Signature,
    ready: Ready | None,
    merge: Callable[..., object] | None,
    window: AnyWindow,
) -> Fold:
    if merge is not None and not callable(merge):
        raise DeclarationError(f"{called}: merge={merge!r}: must be a function of two accumulators")
    if merge is not None and not (ready is None and isinstance(window, Session)):
        raise DeclarationError(
            f"{called}: merge= is for Session windows, as only sessions are joined; leave it out"
        )
    if ready is None and merge is None and isinstance(window, Session):
        raise DeclarationError(
            f"{called}: a record between two sessions joins them: give merge= a function that "
            "makes one accumulator of two, or fold= a ready aggregate"
        )
    initial = None
    if ready is None:
        initial = copy.deepcopy(_accumulator(signature).default)
        if initial is inspect.Parameter.empty:
            raise DeclarationError(
                f"{called}: the accumulator {_accumulator(signature).name!r} needs a default, "
                "with which each window begins"
            )
    return Fold(signature.function, signature.arguments, ready, initial, merge)


def _accumulator(signature: Signature) -> Argument:
    return next(a for a in signature.arguments if a.kind is ArgumentKind.ACCUMULATOR)


def _state(
    called: str, signature: Signature, fold: Fold, frames: Frames, migrations: object
) -> StateDeclaration:
    """The windows of an aggregate as a state."""
    returns = signature.returns
    if fold.ready is not None:
        if returns in (None, inspect.Parameter.empty):
            raise DeclarationError(
                f"{called}: annotate what it returns, since that type is kept in its windows"
            )
        value_type = fold.ready._kept(returns)
    else:
        value_type = _accumulator(signature).annotation
        if value_type is inspect.Parameter.empty:
            raise DeclarationError(
                f"{called}: annotate the accumulator {_accumulator(signature).name!r}, since that "
                "type is kept in its windows"
            )
    state = StateDeclaration(
        STATE_NAME,
        StateKind.TIMED,
        None,
        value_type,
        layout=window_layout(frames.shape, frames.closes_ms),
    )
    found = as_migrations(migrations, {STATE_NAME: state}, called)
    state = replace(state, migrations=found.get(STATE_NAME, ()))
    codec = make_codec(state, called)
    if fold.ready is None:
        try:
            codec.keep(fold.initial)
        except StateValueError as error:
            raise DeclarationError(f"{called}: the accumulator's default: {error}") from error
    return state
