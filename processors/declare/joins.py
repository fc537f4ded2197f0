"""Declares joins of two streams, of two tables, or of a stream and a table."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from onceflow.processors.clock import TimeOf, Timing
from onceflow.processors.declare.functions import (
    Declaration,
    FunctionDeclaration,
    check_flow,
    check_topics,
    choice,
    find_lookups,
    find_source,
    fits,
    shown_type,
)
from onceflow.processors.declare.options import FunctionOptions, Options, read_options
from onceflow.processors.declare.signatures import (
    Argument,
    ArgumentKind,
    Signature,
    read_signature,
)
from onceflow.processors.declare.windows import make_timing
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import (
    JoinKind,
    JoinNode,
    Node,
    TableJoinNode,
    source_name,
)
from onceflow.processors.graph.specs import (
    TABLE_STATE,
    StateDeclaration,
    StateKind,
    check_name,
)
from onceflow.processors.state.keys import unpack_int
from onceflow.processors.state.timed import BY_STREAM, ROW, TimedLayout
from onceflow.processors.tables import GlobalLookup, GlobalTable, Table
from onceflow.processors.values import decoder_for
from onceflow.processors.windows import whole_ms

BUFFER_STATE = "buffer"
"""Name of the state of every join of streams."""


class Kind(enum.Enum):
    """Whether a join gives results without a partner."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"


_ALONE = {
    Kind.INNER: JoinKind(left=False, right=False),
    Kind.LEFT: JoinKind(left=True, right=False),
    Kind.OUTER: JoinKind(left=True, right=True),
}


@dataclass(frozen=True, slots=True)
class Joining:
    """The arguments of ``App.join``, without the options that all functions have."""

    left: object
    right: object
    within: timedelta | None
    grace: timedelta | None
    kind: Kind | str
    to: str | None
    time: TimeOf | None
    idle: timedelta | None
    late: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinDeclaration(Declaration):
    """A join of two streams with its options.

    Attributes:
        sides: The left and the right stream: a topic, or a processor.
        arguments: The parameters of its function.
        kind: Which records give a result without a partner.
        within_ms: Longest time between partners.
        grace_ms: How long partners may come late.
        timing: How it takes the time of records.
        late_topic: Where late records go, or None.
    """

    sides: tuple[str | Declaration, str | Declaration]
    arguments: tuple[Argument, ...]
    kind: JoinKind
    within_ms: int
    grace_ms: int
    timing: Timing
    late_topic: str | None

    @property
    def takes_from(self) -> tuple[str, ...]:
        """The processors whose results it takes."""
        return tuple(side.name for side in self.sides if isinstance(side, Declaration))

    @property
    def always_gives(self) -> bool:
        """Whether its annotation says that it returns values."""
        return self.returns not in (None, types.NoneType)

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        left, right = self.sides
        names = (_node_name(left), _node_name(right))
        return JoinNode(
            name=self.name,
            parents=names,
            gives=shown_type(self.returns),
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
            function=self.function,
            arguments=self.arguments,
            kind_of=self.kind,
            sides=names,
            topics=(
                left if isinstance(left, str) else None,
                right if isinstance(right, str) else None,
            ),
            within_ms=self.within_ms,
            grace_ms=self.grace_ms,
            timing=self.timing,
            late_topic=self.late_topic,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinDeclaration(Declaration):
    """A join of two tables with its options.

    Attributes:
        arguments: The parameters of its function.
        kind: Which rows give a result without a partner.
        tables: Names of both.
    """

    arguments: tuple[Argument, ...]
    kind: JoinKind
    tables: tuple[str, str]

    @property
    def always_gives(self) -> bool:
        """Whether its annotation says that it returns values."""
        return self.returns not in (None, types.NoneType)

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return TableJoinNode(
            name=self.name,
            parents=self.tables,
            gives=shown_type(self.returns),
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=(),
            store=self.store,
            function=self.function,
            arguments=self.arguments,
            kind_of=self.kind,
            sides=(f"{self.tables[0]}.{TABLE_STATE}", f"{self.tables[1]}.{TABLE_STATE}"),
        )


def declare_join(
    function: Callable[..., object],
    known: Sequence[Declaration],
    joining: Joining,
    options: FunctionOptions,
) -> Declaration:
    """Make the declaration of a join from its signature and options.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    common = read_options(function, options)
    called = common.name
    check_name("processor name", called)
    kind = choice(Kind, called, "kind", joining.kind)
    signature = _signature(called, function, kind)
    left, right = joining.left, joining.right
    is_all = isinstance(right, GlobalLookup | GlobalTable)
    if isinstance(left, GlobalLookup | GlobalTable) or (
        isinstance(left, Table) and (is_all or not isinstance(right, Table))
    ):
        raise DeclarationError(
            f"{called}: left={left!r}: to join a stream with a table, give the stream as "
            "left and the table as right; a global table cannot be joined with a table"
        )
    if is_all or (isinstance(right, Table) and not isinstance(left, Table)):
        return _with_table(called, function, signature, known, joining, common, kind)
    if isinstance(left, Table):
        return _tables(called, function, signature, known, joining, common, _ALONE[kind])
    sides = (_stream(called, "left", left, known), _stream(called, "right", right, known))
    if sides[0] == sides[1]:
        raise DeclarationError(
            f"{called}: left and right are both {left!r}; to join a stream with itself, "
            "declare a processor that returns its records, and give that as one side"
        )
    topics = tuple(side for side in sides if isinstance(side, str))
    check_topics(called, topics, to=joining.to, late=joining.late, dead_letter=common.dead_letter)
    if joining.within is None:
        raise DeclarationError(
            f"{called}: within= is missing; give the longest time between partners, such "
            "as minutes(10)"
        )
    for argument in signature.arguments:
        decoder_for(argument.annotation, common.format, f"{argument.name} of {called}")
    values = [a for a in signature.arguments if a.kind is not ArgumentKind.KEY]
    for argument, side in zip(values, sides, strict=True):
        _check_given(called, argument, side)
    within_ms = whole_ms(f"{called}: within", joining.within)
    grace_ms = whole_ms(f"{called}: grace", joining.grace or timedelta(0))
    return JoinDeclaration(
        name=called,
        topics=topics,
        parent=None,
        output_topic=joining.to,
        function=function,
        returns=signature.returns,
        format=common.format,
        policy=common.policy,
        states=(_buffer(within_ms, grace_ms),),
        store=common.store,
        sides=sides,
        arguments=signature.arguments,
        kind=_ALONE[kind],
        within_ms=within_ms,
        grace_ms=grace_ms,
        timing=make_timing(called, joining.time, joining.idle),
        late_topic=joining.late,
    )


def _node_name(side: str | Declaration) -> str:
    return source_name(side) if isinstance(side, str) else side.name


def _stream(
    called: str, name: str, given: object, known: Sequence[Declaration]
) -> str | Declaration:
    """Return one side of a join of streams.

    Raises:
        DeclarationError: It is neither a topic nor a declared processor.
    """
    if isinstance(given, str):
        return given
    found = next((declared for declared in known if declared.function is given), None)
    if found is None:
        raise DeclarationError(
            f"{called}: {name}={given!r}: must be a topic, or a function that this "
            "application has declared already; a table can be joined with a stream or a "
            "table"
        )
    return found


def _check_given(called: str, argument: Argument, side: str | Declaration) -> None:
    """Refuse a parameter that cannot take the results of a side.

    Raises:
        DeclarationError: Its type does not fit, or it has no annotation, which is needed to read
            values from the buffer.
    """
    if isinstance(side, str):
        return
    wanted = argument.annotation
    if wanted in (inspect.Parameter.empty, object, typing.Any):
        raise DeclarationError(
            f"{called}: annotate {argument.name} with the type that {side.name} gives, "
            "since its values are stored until partners come"
        )
    for given in side.results:
        if not fits(given, wanted):
            raise DeclarationError(
                f"{called} takes {argument.name}: {inspect.formatannotation(wanted)}, but "
                f"{side.name} gives {inspect.formatannotation(given)}"
            )


def _with_table(
    called: str,
    function: Callable[..., object],
    signature: Signature,
    known: Sequence[Declaration],
    joining: Joining,
    common: Options,
    kind: Kind,
) -> FunctionDeclaration:
    """Declare a join of a stream with a table, as a function that looks the table up."""
    if kind is Kind.OUTER:
        raise DeclarationError(
            f"{called}: kind='outer': a join with a table gives a result for each record "
            "and none for a row; write 'left'"
        )
    _refuse_times(called, joining)
    topics, parent = find_source(called, joining.left, known)
    check_topics(called, topics, to=joining.to, dead_letter=common.dead_letter)
    row = next(a for a in signature.arguments if a.kind is ArgumentKind.ACCUMULATOR)
    wanted = typing.Annotated[typing.Optional[row.annotation], joining.right]  # type: ignore[name-defined]  # noqa: UP045
    arguments = tuple(
        replace(a, kind=ArgumentKind.TABLE, annotation=wanted) if a is row else a
        for a in signature.arguments
    )
    if kind is Kind.INNER:
        function_called = _only_with(row, arguments, function)
    else:
        function_called = function
    looking = Signature(function_called, arguments, False, signature.returns)
    for argument in arguments:
        is_read = argument.kind is ArgumentKind.VALUE and parent is None
        if is_read or argument.kind is ArgumentKind.KEY:
            decoder_for(argument.annotation, common.format, f"{argument.name} of {called}")
    if parent is not None:
        check_flow(parent, called, looking)
    return FunctionDeclaration(
        name=called,
        topics=topics,
        parent=None if parent is None else parent.name,
        output_topic=joining.to,
        function=function,
        returns=signature.returns,
        format=common.format,
        policy=common.policy,
        states=(),
        store=common.store,
        signature=looking,
        lookups=find_lookups(called, looking, known),
    )


def _only_with(
    row: Argument, arguments: Sequence[Argument], function: Callable[..., object]
) -> Callable[..., object]:
    """Return the function of an inner join, which gives no result without a row."""
    names = [argument.name for argument in arguments if not argument.keyword_only]

    def call(*given: object, **named: object) -> object:
        found = named[row.name] if row.keyword_only else given[names.index(row.name)]
        return None if found is None else function(*given, **named)

    return call


def _refuse_times(called: str, joining: Joining) -> None:
    """Refuse options that only joins of two streams have.

    Raises:
        DeclarationError: One of them is given.
    """
    for parameter in ("within", "grace", "time", "idle", "late"):
        if getattr(joining, parameter) is not None:
            raise DeclarationError(
                f"{called}: {parameter}= is for joins of two streams; a join with a table "
                "has no windows: leave it out"
            )


def _buffer(within_ms: int, grace_ms: int) -> StateDeclaration:
    """Return the state of records that wait for partners."""

    def due_of(key: bytes) -> tuple[bytes, int] | None:
        if key[:1] != ROW:
            return None
        return BY_STREAM, unpack_int(key[-16:-8]) + within_ms + grace_ms + 1

    layout = TimedLayout(f"join within {within_ms} grace {grace_ms}: {{}}", due_of)
    kept = tuple[bool, bytes | None]
    return StateDeclaration(BUFFER_STATE, StateKind.TIMED, None, kept, layout=layout)


def _tables(
    called: str,
    function: Callable[..., object],
    signature: Signature,
    known: Sequence[Declaration],
    joining: Joining,
    common: Options,
    kind: JoinKind,
) -> TableJoinDeclaration:
    names = []
    for table in (joining.left, joining.right):
        assert isinstance(table, Table)
        if not any(declared.function is table for declared in known):
            raise DeclarationError(
                f"{called}: table {table.name!r} belongs to another application; declare it "
                "with table() of this one"
            )
        names.append(table.name)
    if names[0] == names[1]:
        raise DeclarationError(
            f"{called}: left and right are both table {names[0]!r}; join two different tables"
        )
    _refuse_times(called, joining)
    check_topics(called, (), to=joining.to, dead_letter=common.dead_letter)
    return TableJoinDeclaration(
        name=called,
        topics=(),
        parent=names[0],
        output_topic=joining.to,
        function=function,
        returns=signature.returns,
        format=common.format,
        policy=common.policy,
        states=(),
        store=common.store,
        arguments=signature.arguments,
        kind=kind,
        tables=(names[0], names[1]),
    )


def _signature(called: str, function: Callable[..., object], kind: Kind) -> Signature:
    signature = read_signature(function, pair="a join takes a value of each side")
    if signature.is_async:
        raise DeclarationError(
            f"{called} is async; a join must be a plain function: write def in place of async def"
        )
    values = []
    for argument in signature.arguments:
        if argument.kind in (ArgumentKind.VALUE, ArgumentKind.ACCUMULATOR):
            values.append(argument)
        elif argument.kind is not ArgumentKind.KEY:
            raise DeclarationError(
                f"{called}: {argument.name}: "
                f"{inspect.formatannotation(argument.annotation)}: a join's function takes "
                "the two values and key only"
            )
    alone = _ALONE[kind]
    for argument, may_miss in zip(values, (alone.right, alone.left), strict=True):
        if may_miss and types.NoneType not in typing.get_args(argument.annotation):
            shown = inspect.formatannotation(argument.annotation)
            raise DeclarationError(
                f"{called}: {argument.name}: {shown}: kind={kind.value!r} also gives results "
                f"without it; write {shown} | None"
            )
    return signature
