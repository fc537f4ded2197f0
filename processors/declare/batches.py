"""Declares functions over many records (``batch=``).

Such a function takes the values of a run of records as a list, ``list[T]``, or as an Arrow record
batch or array. Parameters named ``key`` and ``headers`` get lists too; those of tables get a list
of rows, one for each record. State, contexts and single records are refused, as they belong to one
record.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onceflow.processors.batches import Field, Form, Part
from onceflow.processors.declare.functions import (
    Declaration,
    Lookups,
    Source,
    check_topics,
    find_lookups,
    find_source,
    shown_type,
    taken_type,
)
from onceflow.processors.declare.options import FunctionOptions, read_options
from onceflow.processors.declare.signatures import (
    ArgumentKind,
    Signature,
    lookup_of,
    read_signature,
)
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import BatchNode, Node
from onceflow.processors.values import Format, decoder_for

BATCH_MAX = 1_000_000
"""Largest ``batch=``."""

_FIELDS = {
    ArgumentKind.VALUE: Field.VALUE,
    ArgumentKind.KEY: Field.KEY,
    ArgumentKind.HEADERS: Field.HEADERS,
}

_ARROW = {
    "RecordBatch": Form.RECORD_BATCH,
    "Array": Form.ARRAY,
    "BinaryArray": Form.ARRAY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeclaration(Declaration):
    """A function over many records.

    Attributes:
        size: Most records in one call.
        parts: What each parameter gets.
        takes: Type of its argument, as text.
        lookups: The tables that it looks up.
    """

    size: int
    parts: tuple[Part, ...]
    takes: str
    lookups: Lookups

    @property
    def always_gives(self) -> bool:
        """False, as only the results of a call show whether it gives any."""
        return False

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return BatchNode(
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
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=(),
            store=self.store,
        )


def check_alone(**options: object) -> None:
    """Refuse options for functions of single records.

    Raises:
        DeclarationError: One of them is given.
    """
    for name, value in options.items():
        if value is not None:
            raise DeclarationError(
                f"{name}= and batch= cannot be combined: {name}= works on single records. "
                f"Let a function with {name}= write to a topic, and read that in batches"
            )


def declare_batch(
    function: Callable[..., object],
    known: Sequence[Declaration],
    source: Source,
    *,
    batch: int,
    to: str | None,
    options: FunctionOptions,
) -> BatchDeclaration:
    """Make the declaration of a batch function from its signature and options.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    read = read_options(function, options)
    called = read.name
    topics, parent = find_source(called, source, known)
    if parent is not None:
        raise DeclarationError(
            f"{called}: batch= takes records of a topic, but {parent.name} gives single "
            f"results; let {parent.name} write to a topic, and read it here"
        )
    check_topics(called, topics, to=to, dead_letter=read.dead_letter)
    signature = read_signature(function)
    return BatchDeclaration(
        name=called,
        topics=topics,
        parent=None,
        output_topic=to,
        function=function,
        returns=signature.returns,
        format=read.format,
        policy=read.policy,
        states=(),
        store=read.store,
        size=_check_size(called, batch),
        parts=_read_parts(called, signature, read.format),
        takes=taken_type(signature),
        lookups=find_lookups(called, signature, known, many=True),
    )


def _check_size(called: str, batch: object) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= BATCH_MAX:
        raise DeclarationError(
            f"{called}: batch={batch!r}: must be a whole number from 1 to {BATCH_MAX}"
        )
    return batch


def _read_parts(called: str, signature: Signature, format: Format) -> tuple[Part, ...]:
    """Return what each parameter of a batch function gets."""
    if signature.is_async:
        raise DeclarationError(
            f"{called}: batch= needs a plain function, as only one batch is processed at "
            "a time; write def in place of async def"
        )
    parts = tuple(
        Part(Field.ROW, argument=argument)
        if argument.kind is ArgumentKind.TABLE
        else _part(called, argument.name, argument.kind, argument.annotation, format)
        for argument in signature.arguments
    )
    columns = any(part.field is Field.VALUE and part.form is not Form.LIST for part in parts)
    for part in parts:
        argument = part.argument
        if argument is not None and columns and lookup_of(argument.annotation) is not None:
            raise DeclarationError(
                f"{called}: {argument.name}: by() needs each value as an object, not "
                "columns; annotate the values with list[...]"
            )
    return parts


def _part(called: str, name: str, kind: ArgumentKind, annotation: object, format: Format) -> Part:
    field = _FIELDS.get(kind)
    if field is None:
        raise DeclarationError(
            f"{called}: {name} belongs to a single record, but batch= passes many; take "
            "list[...] or pyarrow.RecordBatch, key, headers and rows of tables, or "
            "leave out batch="
        )
    if field is Field.HEADERS:
        return Part(field)
    schema = None
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, schema, *_ = typing.get_args(annotation)
    form = _ARROW.get(getattr(annotation, "__name__", ""))
    if form is not None and getattr(annotation, "__module__", "").startswith("pyarrow"):
        if field is Field.KEY and form is Form.RECORD_BATCH:
            raise DeclarationError(
                f"{called}: {name}: a key has no columns; annotate it with list[...] or "
                "pyarrow.Array"
            )
        return Part(field, form, None, schema)
    if typing.get_origin(annotation) is not list or not typing.get_args(annotation):
        raise DeclarationError(
            f"{called}: batch= passes {name} as a list: annotate it with list[...], "
            "pyarrow.RecordBatch or pyarrow.Array"
        )
    (item,) = typing.get_args(annotation)
    return Part(field, Form.LIST, decoder_for(item, format, f"{field.value} of {called}"))
