"""Declares functions whose results are rows of a sink."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from onceflow.processors.declare.batches import BatchDeclaration, declare_batch
from onceflow.processors.declare.functions import (
    Declaration,
    FunctionDeclaration,
    Source,
    declare_function,
    shown_type,
    taken_type,
)
from onceflow.processors.declare.options import FunctionOptions
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import BatchStoringNode, Node, StoringNode
from onceflow.transactions.sinks import CopiedSink, Sink

_CALLS = ("open", "claim", "stored", "write", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDeclaration(FunctionDeclaration):
    """A function whose results are rows.

    Attributes:
        sink: Stores the rows.
    """

    sink: Sink

    @property
    def always_gives(self) -> bool:
        """False, as the sink takes its results."""
        return False

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return StoringNode(
            name=self.name,
            parents=parents,
            lookups=self.lookups.tables,
            global_lookups=self.lookups.global_tables,
            takes=taken_type(self.signature),
            gives=shown_type(self.returns),
            signature=self.signature,
            concurrency=self.concurrency,
            format=self.format,
            output_topic=None,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
            sink=self.sink,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSinkDeclaration(BatchDeclaration):
    """A function over many records whose results are rows.

    Attributes:
        sink: Stores the rows.
    """

    sink: Sink

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return BatchStoringNode(
            name=self.name,
            parents=parents,
            lookups=self.lookups.tables,
            global_lookups=self.lookups.global_tables,
            takes=self.takes,
            gives=shown_type(self.returns),
            function=self.function,
            size=self.size,
            parts=self.parts,
            format=self.format,
            output_topic=None,
            policy=self.policy,
            own_states=(),
            store=self.store,
            sink=self.sink,
        )


def declare_sink(
    function: Callable[..., object],
    known: Sequence[Declaration],
    source: Source,
    sink: object,
    *,
    concurrency: int,
    resources: Collection[object],
    options: FunctionOptions,
) -> SinkDeclaration:
    """Make the declaration of a function with a sink.

    Raises:
        DeclarationError: The declaration contradicts itself, the sink is none, or the function
            gives no rows.
    """
    found = declare_function(
        function,
        known=known,
        source=source,
        to=None,
        concurrency=concurrency,
        resources=resources,
        **options,
    )
    for kind in found.results:
        if not _is_row(kind):
            raise DeclarationError(
                f"{found.name} returns {inspect.formatannotation(kind)}: a row is a dictionary by "
                "column name, a dataclass or a msgspec.Struct; return one, a list of them, or None"
            )
    return SinkDeclaration(**_fields(found), sink=_sink(found, sink))


def declare_batch_sink(
    function: Callable[..., object],
    known: Sequence[Declaration],
    source: Source,
    sink: object,
    *,
    batch: int,
    options: FunctionOptions,
) -> BatchSinkDeclaration:
    """Make the declaration of a function over many records with a sink.

    Raises:
        DeclarationError: The declaration contradicts itself, the sink is none, or the function
            gives no rows.
    """
    found = declare_batch(function, known, source, batch=batch, to=None, options=options)
    for kind in found.results:
        several = typing.get_args(kind) if typing.get_origin(kind) is list else (kind,)
        if not all(_is_row(each) or _is_arrow(each) for each in several):
            raise DeclarationError(
                f"{found.name} returns {inspect.formatannotation(found.returns)}: return a list "
                "with one entry for each record (a row, a list of rows, or None), Arrow data with "
                "one row for each, or None"
            )
    return BatchSinkDeclaration(**_fields(found), sink=_sink(found, sink))


def _fields(found: Declaration) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}


def _is_arrow(kind: object) -> bool:
    return getattr(kind, "__module__", "").startswith("pyarrow")


def _is_row(kind: object) -> bool:
    origin = typing.get_origin(kind) or kind
    if not isinstance(origin, type):
        return True
    return (
        issubclass(origin, collections.abc.Mapping | msgspec.Struct)
        or dataclasses.is_dataclass(origin)
        or typing.is_typeddict(origin)
    )


def _sink(found: Declaration, sink: object) -> Sink:
    """Return the sink; one that needs a table and names none gets the topic's name.

    Raises:
        DeclarationError: It is not a sink, or has no table.
    """
    missing = [name for name in _CALLS if not callable(getattr(sink, name, None))]
    if missing or isinstance(sink, type):
        raise DeclarationError(
            f"{found.name}: {sink!r:.100}: must be a sink, such as Postgres(dsn) or "
            "JsonLines(folder)"
        )
    if inspect.iscoroutinefunction(getattr(sink, "write", None)):
        raise DeclarationError(
            f"{found.name}: {type(sink).__name__} is an asyncio sink; give one whose calls block"
        )
    if isinstance(sink, CopiedSink) and sink.needs_table:
        if len(found.topics) != 1:
            raise DeclarationError(
                f"{found.name}: the sink names no table; give it one, such as Postgres(dsn, "
                '"orders")'
            )
        return sink.copy(found.topics[0])
    return cast("Sink", sink)
