"""Declares tables and global tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceflow.processors.declare.functions import (
    NO_LIMITS,
    Declaration,
    check_topics,
    choice,
    make_policy,
    shown_type,
)
from onceflow.processors.declare.options import FunctionOptions, read_options
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import Node, TableNode
from onceflow.processors.graph.specs import (
    TABLE_STATE,
    StateDeclaration,
    StateKind,
    StoreKind,
    check_name,
    make_codec,
)
from onceflow.processors.tables import GlobalTable, K, Table, V
from onceflow.processors.values import Format, decoder_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDeclaration(Declaration):
    """A table with its options."""

    @property
    def always_gives(self) -> bool:
        """False, as a table needs no target."""
        return False

    @property
    def results(self) -> list[object]:
        """Each change gives the new value."""
        return [self.returns]

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return TableNode(
            name=self.name,
            parents=parents,
            takes=shown_type(self.returns),
            gives=shown_type(self.returns),
            format=self.format,
            output_topic=None,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
            value_type=self.returns,
        )


def declare_table(
    topic: str,
    value_type: type[V],
    key_type: type[K],
    known: Sequence[Declaration],
    options: FunctionOptions,
) -> TableDeclaration:
    """Make the declaration of a table, whose function is the table itself.

    Raises:
        DeclarationError: The topic cannot be read, it has a table already, or a type has no codec.
    """
    name = options.get("name") or topic
    table = Table(name, topic, value_type, key_type)
    common = read_options(table, {**options, "name": name})
    if not isinstance(topic, str):
        raise DeclarationError(f"table of topic={topic!r}: must be the name of a topic")
    check_name("table name", name)
    check_topics(name, (topic,), dead_letter=common.dead_letter)
    for declared in known:
        if isinstance(declared, TableDeclaration) and topic in declared.topics:
            raise DeclarationError(
                f"table {name}: topic {topic!r} is table {declared.name} already; use that one"
            )
    decoder_for(value_type, common.format, f"value of table {name}")
    decoder_for(key_type, common.format, f"key of table {name}")
    state = StateDeclaration(TABLE_STATE, StateKind.VALUE, None, value_type)
    make_codec(state, name)
    return TableDeclaration(
        name=name,
        topics=(topic,),
        parent=None,
        output_topic=None,
        function=table,
        returns=value_type,
        format=common.format,
        policy=common.policy,
        states=(state,),
        store=common.store,
    )


def declare_global_table(
    topic: str,
    value_type: type[V],
    key_type: type[K],
    known: Sequence[Declaration],
    name: str | None,
    format: Format | str,
) -> Declaration:
    """Make the declaration of a global table, whose function is the table itself.

    Raises:
        DeclarationError: The topic cannot be read, it has a table already, or a type has no codec.
    """
    called = topic if name is None else name
    if not isinstance(topic, str):
        raise DeclarationError(f"global table of topic={topic!r}: must be the name of a topic")
    check_name("table name", called)
    check_topics(called, (topic,))
    layout = choice(Format, called, "format", format)
    for declared in known:
        if isinstance(declared.function, Table) and topic in (
            declared.function.topic,
            *declared.topics,
        ):
            raise DeclarationError(
                f"global table {called}: topic {topic!r} is table {declared.name} already; use "
                "that one"
            )
        if declared.name == called:
            raise DeclarationError(
                f"global table {called}: another function or table has this name; give name="
            )
    decoder_for(value_type, layout, f"value of global table {called}")
    decoder_for(key_type, layout, f"key of global table {called}")
    return TableDeclaration(
        name=called,
        topics=(topic,),
        parent=None,
        output_topic=None,
        function=GlobalTable(called, topic, value_type, key_type, layout),
        returns=value_type,
        format=layout,
        policy=make_policy(called, 0, None, None, NO_LIMITS),
        states=(),
        store=StoreKind.MEMORY,
    )
