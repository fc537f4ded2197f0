"""Makes a declaration of a decorated function and its options, and nodes of declarations.

A decorator returns the function unchanged, so that it can be called and tested as before. Declaring
needs neither network nor files. The group, which names states, is known only when the topology is
built.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from onceflow.processors.context import Output
from onceflow.processors.declare.signatures import (
    ArgumentKind,
    Signature,
    lookup_of,
    read_signature,
    table_of,
)
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.nodes import (
    FunctionNode,
    Node,
    RekeyNode,
    SourceNode,
    source_name,
)
from onceflow.processors.graph.specs import (
    PARKED_STATE,
    FailurePolicy,
    ParkedRecord,
    StateDeclaration,
    StateKind,
    StateSpec,
    StoreKind,
    as_migrations,
    check_name,
    make_codec,
    state_spec,
)
from onceflow.processors.policies import DeadLetterLimits, OnError, Parking, Retries
from onceflow.processors.state.faces import ListState, MapState, State
from onceflow.processors.state.timed import timer_layout
from onceflow.processors.tables import GlobalTable
from onceflow.processors.values import Format, decoder_for
from onceflow.sdk.errors import InvalidTopicError
from onceflow.sdk.model.record_checks import check_topic_name

CONCURRENCY_MAX: Final = 10_000
"""Largest ``concurrency=``: each running call holds a record, a coroutine and its results."""

NO_LIMITS: Final = DeadLetterLimits()
"""The limits of dead letters where none are declared."""

E = TypeVar("E", bound=enum.Enum)
F = TypeVar("F", bound=Callable[..., object])
Source: TypeAlias = "str | Callable[..., object] | Sequence[str]"
"""A topic, several topics, or a function whose results are taken."""

_PLAIN_VALUES: Final = (bytes, str, int, float, bool, dict)
"""Types of single values that a handler returns; never an Output, and never several."""

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
"""Return types of functions that give several results."""

_KINDS: Final[Mapping[object, StateKind]] = {
    State: StateKind.VALUE,
    MapState: StateKind.MAP,
    ListState: StateKind.LIST,
}


class Lookups(NamedTuple):
    """Names of the tables that a function looks up.

    Attributes:
        tables: Tables, whose rows belong to the task.
        global_tables: Global tables, whose rows every worker has.
    """

    tables: tuple[str, ...] = ()
    global_tables: tuple[str, ...] = ()


NO_LOOKUPS: Final = Lookups()


@dataclass(frozen=True, slots=True)
class Rekey:
    """Another key for the records of a function.

    Attributes:
        key_of: Returns the key for a value.
        value_type: Type of the values.
    """

    key_of: Callable[..., object]
    value_type: object

    def node(self, declared: Declaration, parents: tuple[str, ...], group: str) -> RekeyNode:
        """Return the node before the function, which writes ``<group>-<function>-repartition``.

        Raises:
            DeclarationError: A name cannot be part of a topic name.
        """
        check_name("group id of processors with key=", group)
        check_name("processor name", declared.name)
        topic = f"{group}-{declared.name}-repartition"
        check_topics(f"key= of {declared.name}", (), to=topic)
        return RekeyNode(
            name=f"{declared.name}-repartition",
            parents=parents,
            takes=shown_type(self.value_type),
            gives=shown_type(self.value_type),
            format=declared.format,
            output_topic=topic,
            policy=declared.policy,
            own_states=(),
            store=declared.store,
            key_of=self.key_of,
            value_type=self.value_type,
        )


def make_rekey(called: str, key: object, signature: Signature) -> Rekey | None:
    """Check the ``key=`` of a declaration.

    Raises:
        DeclarationError: It is not a function, or the function has no parameter for the value.
    """
    if key is None:
        return None
    if not callable(key):
        raise DeclarationError(
            f"{called}: key={key!r}: must be a function of the value, such as "
            "lambda order: order.customer_id"
        )
    value = next((a for a in signature.arguments if a.kind is ArgumentKind.VALUE), None)
    if value is None:
        raise DeclarationError(
            f"{called}: key= needs a parameter for the value, whose type it reads; add one"
        )
    return Rekey(key, value.annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declaration of one function, with its options.

    Attributes:
        name: Name of the processor.
        topics: The topics that it reads; empty if it takes the results of another processor.
        parent: The processor whose results it takes in place of a topic.
        output_topic: Where returned values go, or None.
        function: The decorated function itself.
        returns: Annotated type of its results, or None.
        format: Format of structured values.
        policy: Its failure policy.
        states: Its states.
        store: Where committed state is kept.
        rekey: Gives records another key before the function gets them, or None.
    """

    name: str
    topics: tuple[str, ...]
    parent: str | None
    output_topic: str | None
    function: Callable[..., object]
    returns: object
    format: Format
    policy: FailurePolicy
    states: tuple[StateDeclaration, ...]
    store: StoreKind
    rekey: Rekey | None = None

    @property
    def takes_from(self) -> tuple[str, ...]:
        """The processors whose results it takes."""
        return () if self.parent is None else (self.parent,)

    @property
    def windowed(self) -> bool:
        """Whether its results belong to windows."""
        return False

    @property
    def results(self) -> list[object]:
        """The types of single results, if the annotation shows them."""
        return _results(self.returns)

    @property
    def always_gives(self) -> bool:
        """Whether each call returns a value, which needs a target."""
        return (typing.get_origin(self.returns) or self.returns) in _PLAIN_VALUES

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """Return the node of the topology.

        Args:
            parents: Names of the nodes whose results it takes.
            group: The consumer group, which names states.
        """
        raise NotImplementedError

    def specs(self, group: str) -> tuple[StateSpec, ...]:
        """Return its states as they are named in a group."""
        return tuple(state_spec(state, group, self.name) for state in self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDeclaration(Declaration):
    """A function that is called for each record.

    Attributes:
        signature: The function and its parameters.
        branches: Further output topics by name.
        lookups: The tables that it looks up.
        concurrency: How many of its calls may overlap in a task.
        parking: Bounds of parked records, or None.
    """

    signature: Signature
    concurrency: int = 1
    parking: Parking | None = None
    branches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lookups: Lookups = NO_LOOKUPS

    def node(self, parents: tuple[str, ...], group: str) -> Node:
        """The node of the topology; see ``Declaration.node``."""
        return FunctionNode(
            name=self.name,
            parents=parents,
            lookups=self.lookups.tables,
            global_lookups=self.lookups.global_tables,
            takes=taken_type(self.signature),
            gives=shown_type(self.returns),
            signature=self.signature,
            branches=self.branches,
            concurrency=self.concurrency,
            parking=self.parking,
            format=self.format,
            output_topic=self.output_topic,
            policy=self.policy,
            own_states=self.specs(group),
            store=self.store,
        )


def declare_function(
    function: Callable[..., object],
    *,
    known: Sequence[Declaration],
    source: Source,
    to: str | None,
    name: str | None = None,
    dead_letter: str | None = None,
    retries: int | Retries = 0,
    on_error: OnError | str | None = None,
    limits: DeadLetterLimits = NO_LIMITS,
    format: Format | str = Format.JSON,
    store: StoreKind | str = StoreKind.LMDB,
    migrations: object = None,
    key: Callable[..., object] | None = None,
    resources: Collection[object] = (),
    branches: object = None,
    concurrency: int = 1,
    park: bool | Parking = False,
) -> FunctionDeclaration:
    """Make the declaration of a function from its signature and options.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    called = name_of(function, name)
    topics, parent = find_source(called, source, known)
    check_topics(called, topics, to=to, dead_letter=dead_letter)
    signature = read_signature(function, resources=resources)
    _check_moments(called, signature, parent)
    layout = choice(Format, called, "format", format)
    for argument in signature.arguments:
        is_read = argument.kind is ArgumentKind.VALUE and parent is None
        if is_read or argument.kind is ArgumentKind.KEY:
            decoder_for(argument.annotation, layout, f"{argument.name} of {called}")
    if parent is not None:
        check_flow(parent, called, signature)
    policy = make_policy(called, retries, on_error, dead_letter, limits)
    parking = _parking(called, park, policy, topics, signature)
    return FunctionDeclaration(
        name=called,
        topics=topics,
        parent=None if parent is None else parent.name,
        output_topic=to,
        function=function,
        returns=signature.returns,
        signature=signature,
        format=layout,
        policy=policy,
        states=(*_states(called, signature, migrations), *_parked_state(parking)),
        parking=parking,
        store=choice(StoreKind, called, "store", store),
        rekey=make_rekey(called, key, signature),
        branches=_branches(called, topics, branches),
        lookups=find_lookups(called, signature, known),
        concurrency=_concurrency(called, signature, concurrency, parks=parking is not None),
    )


def _parking(
    called: str, given: object, policy: FailurePolicy, topics: Sequence[str], signature: Signature
) -> Parking | None:
    """Check the ``park=`` of a declaration.

    Raises:
        DeclarationError: It has another type, or the function's records cannot be parked.
    """
    if given is False:
        return None
    if given is not True and not isinstance(given, Parking):
        raise DeclarationError(f"{called}: park={given!r}: must be True, or Parking(...)")
    if not policy.retries.count_max:
        raise DeclarationError(
            f"{called}: park= parks records until their retry; give retries= too"
        )
    if not topics:
        raise DeclarationError(
            f"{called}: park= works for records of a topic, but this function takes "
            "results of another processor; let that one write to a topic, and read it "
            "here"
        )
    if any(argument.name == PARKED_STATE for argument in signature.arguments):
        raise DeclarationError(
            f"{called}: park= makes a state named {PARKED_STATE!r}; give the parameter another name"
        )
    return Parking() if given is True else given


def _parked_state(parking: Parking | None) -> list[StateDeclaration]:
    """Return the state of parked records, if there are any."""
    if parking is None:
        return []
    layout = timer_layout("parked records")
    return [StateDeclaration(PARKED_STATE, StateKind.TIMED, None, ParkedRecord, layout=layout)]


def _concurrency(called: str, signature: Signature, given: object, *, parks: bool) -> int:
    """Check the ``concurrency=`` of a declaration.

    Raises:
        DeclarationError: It is out of bounds, or calls of the function cannot overlap.
    """
    if type(given) is not int or not 1 <= given <= CONCURRENCY_MAX:
        raise DeclarationError(
            f"{called}: concurrency={given!r}: must be a whole number from 1 to {CONCURRENCY_MAX:,}"
        )
    if given > 1 and not signature.is_async:
        raise DeclarationError(
            f"{called}: concurrency={given}: only calls of async functions overlap; "
            "declare it with async def, take many records in one call with batch=, or "
            "run more workers"
        )
    if given > 1 and parks:
        raise DeclarationError(
            f"{called}: concurrency= and park= cannot be combined: with concurrency= a "
            "record that is tried again does not hold up other keys; leave out park="
        )
    if given > 1 and any(a.kind is ArgumentKind.TIMERS for a in signature.arguments):
        raise DeclarationError(
            f"{called}: concurrency={given}: timers need the records of all keys in "
            "order, so calls that set them cannot overlap; write to a topic here, and "
            "set timers in a function that reads it"
        )
    return given


def _branches(called: str, topics: Sequence[str], given: object) -> dict[str, str]:
    """Check the ``branches=`` of a declaration."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and isinstance(topic, str) for name, topic in given.items()
    ):
        raise DeclarationError(
            f"{called}: branches={given!r}: must be a dictionary of topics by branch "
            'name, such as dict(large="large-orders")'
        )
    for name, topic in given.items():
        check_topics(f"{called}: branch {name!r}", topics, to=topic)
    return dict(given)


def find_lookups(
    called: str, signature: Signature, known: Sequence[Declaration], *, many: bool = False
) -> Lookups:
    """Return the tables that a function looks up.

    Args:
        called: Name of the function.
        signature: Its parameters.
        known: Earlier declarations of the application.
        many: Whether a parameter gets a list of rows, one for each record.

    Raises:
        DeclarationError: A table is of another application, or its parameter does not allow None.
    """
    found: tuple[list[str], list[str]] = ([], [])
    for argument in signature.arguments:
        table = table_of(argument.annotation)
        if table is None:
            continue
        if not any(declared.function is table for declared in known):
            raise DeclarationError(
                f"{called}: {argument.name}: table {table.name!r} belongs to another "
                "application; declare it with table() or global_table() of this one"
            )
        if lookup_of(argument.annotation) and not any(
            other.kind is ArgumentKind.VALUE for other in signature.arguments
        ):
            raise DeclarationError(
                f"{called}: {argument.name}: by() needs a parameter for the value; add one, or "
                "look up by the record's key"
            )
        wanted = typing.get_args(argument.annotation)[0]
        if many:
            is_list = typing.get_origin(wanted) is list and typing.get_args(wanted)
            wanted = typing.get_args(wanted)[0] if is_list else None
        parts = typing.get_args(wanted)
        if types.NoneType not in parts or not all(
            part is types.NoneType or fits(table.value_type, part) for part in parts
        ):
            shown = inspect.formatannotation(table.value_type)
            form = f"list[{shown} | None]" if many else f"{shown} | None"
            raise DeclarationError(
                f"{called}: {argument.name}: write Annotated[{form}, ...]: table "
                f"{table.name} holds {shown}, and a key may have no row"
            )
        found[isinstance(table, GlobalTable)].append(table.name)
    return Lookups(*(tuple(dict.fromkeys(names)) for names in found))


def name_of(function: Callable[..., object], name: str | None) -> str:
    """Return the name of a processor.

    Raises:
        DeclarationError: It is empty.
    """
    called = str(getattr(function, "__name__", "processor")) if name is None else name
    if not isinstance(called, str) or not called:
        raise DeclarationError(f"name={name!r}: must be a string that is not empty")
    return called


def to_nodes(declarations: Sequence[Declaration], group: str) -> list[Node]:
    """Return the nodes of a topology: a source for each input topic, and the functions.

    Raises:
        DeclarationError: A state cannot be named within the group.
    """
    sources: dict[str, Node] = {}
    functions: list[Node] = []
    for declared in declarations:
        if isinstance(declared.function, GlobalTable):
            continue  # Each worker reads it, outside of the graph.
        for topic in declared.topics:
            sources.setdefault(topic, SourceNode(name=source_name(topic), topic=topic))
        parents = tuple(map(source_name, declared.topics))
        if declared.parent is not None:
            parents = (declared.parent,)
        if declared.rekey is not None:
            rekey = declared.rekey.node(declared, parents, group)
            topic = str(rekey.output_topic)
            parents = (source_name(topic),)
            functions += [rekey, SourceNode(name=parents[0], topic=topic)]
        functions.append(declared.node(parents, group))
    return [*sources.values(), *functions]


def find_source(
    called: str, source: object, known: Sequence[Declaration]
) -> tuple[tuple[str, ...], Declaration | None]:
    """Return the topics, or the declaration of the function whose results are taken.

    Raises:
        DeclarationError: The source is neither.
    """
    if isinstance(source, str):
        return (source,), None
    if isinstance(source, list | tuple) and source and all(isinstance(t, str) for t in source):
        if len(set(source)) < len(source):
            raise DeclarationError(f"{called}: topic={source!r} names a topic twice")
        return tuple(source), None
    if isinstance(source, GlobalTable):
        raise DeclarationError(
            f"{called}: topic={source!r}: a global table gives no records; read its "
            f"topic, {source.topic!r}"
        )
    parent = next((declared for declared in known if declared.function is source), None)
    if parent is None:
        raise DeclarationError(
            f"{called}: topic={source!r}: must be a topic, a list of topics, or a "
            "function that this application has declared already"
        )
    return (), parent


def check_topics(called: str, topics: Sequence[str], **targets: str | None) -> None:
    """Refuse topics that cannot be read or written as declared.

    Args:
        called: Name of the processor.
        topics: The topics that it reads.
        **targets: The topics that it writes, by parameter.

    Raises:
        DeclarationError: A name is not valid, or records would be processed again for ever.
    """
    for parameter, name in (*(("topic", topic) for topic in topics), *targets.items()):
        if name is not None:
            try:
                check_topic_name(name)
            except InvalidTopicError as error:
                raise DeclarationError(
                    f"{called}: {parameter}={name!r} is not a valid topic name: {error}"
                ) from error
    for parameter, what in (("dead_letter", "dead letters"), ("late", "late records")):
        if targets.get(parameter) in topics:
            raise DeclarationError(
                f"{called}: {what} in the input topic {targets[parameter]!r} would come again for "
                "ever"
            )
    if targets.get("to") in topics:
        raise DeclarationError(
            f"{called}: what it sends to its own input topic {targets['to']!r} would come again "
            "for ever; name another topic, or, where it ends by itself, leave out to= and return "
            f"Output(value, topic={targets['to']!r})"
        )


def make_policy(
    called: str,
    retries: int | Retries,
    on_error: OnError | str | None,
    dead_letter: str | None,
    limits: DeadLetterLimits,
) -> FailurePolicy:
    """Return the failure policy of a processor.

    Raises:
        DeclarationError: Its parts contradict each other.
    """
    if not isinstance(limits, DeadLetterLimits):
        raise DeclarationError(f"{called}: limits={limits!r}: must be DeadLetterLimits(...)")
    if on_error is None:
        end = OnError.STOP if dead_letter is None else OnError.DEAD_LETTER
    else:
        end = choice(OnError, called, "on_error", on_error)
    if (end is OnError.DEAD_LETTER) != (dead_letter is not None):
        raise DeclarationError(
            f"{called}: dead_letter={dead_letter!r} and on_error={end.value!r} "
            "contradict each other; a topic alone is enough: leave out on_error=, or "
            "name the topic with dead_letter="
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
    for argument in signature.arguments:
        if argument.kind is ArgumentKind.TIMERS:
            states[argument.name] = StateDeclaration(
                argument.name, StateKind.TIMED, None, int, layout=timer_layout()
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


def check_targets(declarations: Sequence[Declaration]) -> None:
    """Refuse a function whose values have no target.

    This needs all declarations, as another function may take the results.

    Raises:
        DeclarationError: A function returns values and has no target for them.
    """
    taken = {name for declared in declarations for name in declared.takes_from}
    for declared in declarations:
        lost = declared.output_topic is None and declared.name not in taken
        if lost and declared.always_gives:
            raise DeclarationError(
                f"{declared.name} returns {inspect.formatannotation(declared.returns)} but has no "
                "to= topic, and no other processor takes its results; declare one, or return "
                "None or Output(..., topic=...)"
            )


def _check_moments(called: str, signature: Signature, parent: Declaration | None) -> None:
    """Refuse parameters for a window or a due timer in functions that have none."""
    windowed = parent is not None and parent.windowed
    for argument in signature.arguments:
        if argument.kind is ArgumentKind.WINDOW and not windowed:
            raise DeclarationError(
                f"{called}: {argument.name}: Window: only results of an aggregate have a window; "
                "give the aggregate's function in place of the topic"
            )
        if argument.kind is ArgumentKind.TIMER:
            raise DeclarationError(
                f"{called}: {argument.name}: Timer: only functions of @app.timer get a "
                "Timer; to set timers, annotate the parameter with Timers"
            )
    if sum(argument.kind is ArgumentKind.TIMERS for argument in signature.arguments) > 1:
        raise DeclarationError(
            f"{called} has several parameters annotated Timers; use one, which holds timers by name"
        )


def check_flow(parent: Declaration, called: str, signature: Signature) -> None:
    """Refuse a function that cannot take the results of its parent.

    Raises:
        DeclarationError: The types do not fit.
    """
    wanted = next((a for a in signature.arguments if a.kind is ArgumentKind.VALUE), None)
    if wanted is None:
        return
    for given in parent.results:
        if not fits(given, wanted.annotation):
            raise DeclarationError(
                f"{called} takes {wanted.name}: {inspect.formatannotation(wanted.annotation)}, but "
                f"{parent.name} gives {inspect.formatannotation(given)}"
            )


def _results(returns: object) -> list[object]:
    """Return the types of single results, if the annotation shows them."""
    if returns in (None, types.NoneType, Output, object, typing.Any):
        return []
    origin, inner = typing.get_origin(returns), typing.get_args(returns)
    if origin in (typing.Union, types.UnionType):
        return [result for part in inner for result in _results(part)]
    if origin in _SEVERAL:
        return _results(inner[0]) if inner else []
    return [returns]


def fits(given: object, wanted: object) -> bool:
    """Whether a value of one type can be an argument for a parameter of another type."""
    if wanted in (inspect.Parameter.empty, object, typing.Any) or given == wanted:
        return True
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return any(fits(given, part) for part in typing.get_args(wanted))
    return isinstance(given, type) and isinstance(wanted, type) and issubclass(given, wanted)


def choice(kind: type[E], called: str, parameter: str, value: object) -> E:
    """Return the member of an enum that a parameter names.

    Raises:
        DeclarationError: The type has no such field.
    """
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(member.value) for member in kind)
        raise DeclarationError(f"{called}: {parameter}={value!r}: choose from {names}") from None


def taken_type(signature: Signature) -> str:
    """Return the type of a function's value, as text."""
    for argument in signature.arguments:
        if argument.kind is ArgumentKind.VALUE:
            return shown_type(argument.annotation)
    return ""


def shown_type(annotation: object) -> str:
    """Return a type as text; empty without an annotation."""
    if annotation in (None, inspect.Parameter.empty):
        return ""
    return inspect.formatannotation(annotation)
