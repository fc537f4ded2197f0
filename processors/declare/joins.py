"""Turns joins of two streams or two tables into declarations."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from onceflow.processors.clock import TimeOf, Timing
from onceflow.processors.declare.functions import (
    Declaration,
    check_topics,
    choice,
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
from onceflow.processors.graph.nodes import JoinKind, JoinNode, Node, TableJoinNode
from onceflow.processors.graph.specs import (
    TABLE_STATE,
    StateDeclaration,
    StateKind,
    check_name,
)
from onceflow.processors.state.keys import unpack_int
from onceflow.processors.state.timed import BY_STREAM, ROW, TimedLayout
from onceflow.processors.tables import GlobalTable, Table
from onceflow.processors.values import decoder_for
from onceflow.processors.windows import whole_ms

BUFFER_STATE = "buffer"
"""Name of the state of every join of streams."""

AnyTable = Table[typing.Any, typing.Any]


class Kind(enum.Enum):
    """Which results a join gives."""

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
    """The arguments of ``App.join`` that it alone has, as given."""

    left: str | AnyTable
    right: str | AnyTable
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
        arguments: What its function takes.
        kind: Which records give a result without a partner.
        within_ms: Longest time between partners.
        grace_ms: How long partners may come late.
        timing: Where records stand in time.
        late_topic: Where late records go, or None.
    """

    arguments: tuple[Argument, ...]
    kind: JoinKind
    within_ms: int
    grace_ms: int
    timing: Timing
    late_topic: str | None

    @property
    def always_gives(self) -> bool:
        """Unless it is annotated to give nothing."""
        return self.returns not in (None, types.NoneType)

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        left, right = self.topics
        return JoinNode(
            name=self.name,
            parents=parents,
            gives=shown_type(self.returns),
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
            function=self.function,
            arguments=self.arguments,
            kind_of=self.kind,
            left=left,
            right=right,
            within_ms=self.within_ms,
            grace_ms=self.grace_ms,
            timing=self.timing,
            late_topic=self.late_topic,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinDeclaration(Declaration):
    """A join of two tables with its options.

    Attributes:
        arguments: What its function takes.
        kind: Which rows give a result without a partner.
        tables: Names of both.
    """

    arguments: tuple[Argument, ...]
    kind: JoinKind
    tables: tuple[str, str]

    @property
    def always_gives(self) -> bool:
        """Unless it is annotated to give nothing."""
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
    """Read a join's signature and put its declaration together.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    common = read_options(function, options)
    called = common.name
    check_name("processor name", called)
    kind = choice(Kind, called, "kind", joining.kind)
    for side, source in (("left", joining.left), ("right", joining.right)):
        if isinstance(source, GlobalTable):
            raise DeclarationError(
                f"{called}: {side}={source!r}: a processor joins with a global table: annotate a "
                "parameter with Annotated[... | None, table.by(key)]"
            )
    signature = _signature(called, function, kind)
    if isinstance(joining.left, Table) and isinstance(joining.right, Table):
        return _tables(called, function, signature, known, joining, common, _ALONE[kind])
    for side, source in (("left", joining.left), ("right", joining.right)):
        if not isinstance(source, str):
            raise DeclarationError(
                f"{called}: {side}={source!r}: join two topics, or two tables; a function looks up "
                "a table by Annotated[... | None, table]"
            )
    topics = (str(joining.left), str(joining.right))
    if topics[0] == topics[1]:
        raise DeclarationError(
            f"{called}: left and right are both {topics[0]!r}; fold one stream with @app.aggregate"
        )
    check_topics(called, topics, to=joining.to, late=joining.late, dead_letter=common.dead_letter)
    if joining.within is None:
        raise DeclarationError(f"{called}: within= is missing: how far apart partners may be")
    for argument in signature.arguments:
        decoder_for(argument.annotation, common.format, f"{argument.name} of {called}")
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
        arguments=signature.arguments,
        kind=_ALONE[kind],
        within_ms=within_ms,
        grace_ms=grace_ms,
        timing=make_timing(called, joining.time, joining.idle),
        late_topic=joining.late,
    )


def _buffer(within_ms: int, grace_ms: int) -> StateDeclaration:
    """The records that wait for partners."""

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
            raise DeclarationError(f"{called}: table {table.name!r} is not one of this application")
        names.append(table.name)
    if names[0] == names[1]:
        raise DeclarationError(f"{called}: left and right are both table {names[0]!r}")
    for parameter in ("within", "grace", "time", "idle", "late"):
        if getattr(joining, parameter) is not None:
            raise DeclarationError(
                f"{called}: {parameter}= is of joins of streams; tables have no windows, leave "
                "it out"
            )
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
        raise DeclarationError(f"{called} is async; a join must be a plain function")
    values = []
    for argument in signature.arguments:
        if argument.kind in (ArgumentKind.VALUE, ArgumentKind.ACCUMULATOR):
            values.append(argument)
        elif argument.kind is not ArgumentKind.KEY:
            raise DeclarationError(
                f"{called}: {argument.name}: "
                f"{inspect.formatannotation(argument.annotation)}: a join takes both values and key"
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
