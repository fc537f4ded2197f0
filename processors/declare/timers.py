"""Declares functions that are called when timers are due."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from onceflow.processors.declare.functions import (
    Declaration,
    FunctionDeclaration,
    Lookups,
    check_topics,
    find_lookups,
    shown_type,
)
from onceflow.processors.declare.options import FunctionOptions, read_options
from onceflow.processors.declare.signatures import ArgumentKind, Signature, read_signature
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import Node, TimerNode
from onceflow.processors.graph.specs import check_name
from onceflow.processors.values import decoder_for

_TAKEN: Final = frozenset(
    {
        ArgumentKind.KEY,
        ArgumentKind.CONTEXT,
        ArgumentKind.STATE,
        ArgumentKind.TIMERS,
        ArgumentKind.TIMER,
        ArgumentKind.RESOURCE,
        ArgumentKind.TABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerDeclaration(Declaration):
    """A function that is called when timers of another one are due.

    Attributes:
        signature: The function and its parameters.
        owner: The function that sets the timers.
        lookups: The tables that it looks up.
    """

    signature: Signature
    owner: FunctionDeclaration
    lookups: Lookups

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return TimerNode(
            name=self.name,
            parents=(),
            lookups=(self.owner.name, *self.lookups.tables),
            global_lookups=self.lookups.global_tables,
            gives=shown_type(self.returns),
            signature=self.signature,
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=(),
            store=self.store,
            timers=f"{self.owner.name}.{timers_of(self.owner)}",
            borrowed=self.owner.specs(group),
        )


def timers_of(declared: Declaration) -> str | None:
    """Return the name of the parameter that sets timers, or None."""
    if not isinstance(declared, FunctionDeclaration):
        return None
    arguments = declared.signature.arguments
    return next((a.name for a in arguments if a.kind is ArgumentKind.TIMERS), None)


def declare_timer(
    function: Callable[..., object],
    known: Sequence[Declaration],
    owner: object,
    to: str | None,
    options: FunctionOptions,
    resources: Collection[object] = (),
) -> TimerDeclaration:
    """Make the declaration of a timer's function from its signature and options.

    Raises:
        DeclarationError: The owner sets no timers, has a function for them already, or a
            parameter cannot be filled.
    """
    common = read_options(function, options)
    called = common.name
    check_name("processor name", called)
    check_topics(called, (), to=to, dead_letter=common.dead_letter)
    found = next((declared for declared in known if declared.function is owner), None)
    if not isinstance(found, FunctionDeclaration) or timers_of(found) is None:
        raise DeclarationError(
            f"{called}: {owner!r} sets no timers in this application; give a declared "
            "function that has a parameter annotated Timers"
        )
    for other in known:
        if isinstance(other, TimerDeclaration) and other.owner is found:
            raise DeclarationError(
                f"{called}: timers of {found.name} call {other.name} already; let that one "
                "function distinguish them by the name of the Timer"
            )
    signature = read_signature(function, resources=resources)
    shared = {state.name: state for state in found.states}
    for argument in signature.arguments:
        shown = inspect.formatannotation(argument.annotation)
        if argument.kind not in _TAKEN:
            raise DeclarationError(
                f"{called}: {argument.name}: {shown}: a timer has no record; its function "
                "takes key, Timer, Timers, Context, rows of tables and the states of the "
                "function that set it"
            )
        if argument.kind in (ArgumentKind.STATE, ArgumentKind.TIMERS):
            wanted = next((a for a in found.signature.arguments if a.name == argument.name), None)
            if (
                argument.name not in shared
                or wanted is None
                or (wanted.annotation != argument.annotation)
            ):
                raise DeclarationError(
                    f"{called}: {argument.name}: {shown}: a timer's function has the states of "
                    f"{found.name}: {', '.join(shared)}; use one of these names and its "
                    "annotation"
                )
        if argument.kind is ArgumentKind.KEY:
            decoder_for(argument.annotation, common.format, f"key of {called}")
    return TimerDeclaration(
        name=called,
        topics=(),
        parent=None,
        output_topic=to,
        function=function,
        returns=signature.returns,
        format=common.format,
        policy=common.policy,
        states=(),
        store=found.store,
        signature=signature,
        owner=found,
        lookups=find_lookups(called, signature, known),
    )
