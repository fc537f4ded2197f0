"""Plain values that describe functions, states and failure policies.

Declarations make them, the topology keeps them, and the nodes that process records read them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from onceflow.processors.errors import DeclarationError
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.state.codec import Migration, ValueCodec
from onceflow.processors.state.keys import Packer, Unpacker, key_packing
from onceflow.processors.state.timed import TimedLayout
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.topic_names import TOPIC_NAME_MAX

TABLE_STATE = "table"
"""Name of the state of every table."""


PARKED_STATE = "parked"
"""Name of the state of parked records."""


class ParkedRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record that waits for its next attempt, or for earlier ones of its key.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its offset.
        timestamp_ms: Its timestamp.
        value: Its value.
        headers: Its headers.
        attempt: Attempts so far.
        parked_ms: Wall clock when it was parked.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    attempt: int
    parked_ms: int

    def record(self, key: bytes) -> ConsumerRecord:
        """Return the record.

        Args:
            key: Its key.
        """
        return ConsumerRecord(
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            key=key,
            value=self.value,
            headers=tuple(self.headers),
        )


class StoreKind(enum.Enum):
    """Where committed state is kept, besides its changelog topic."""

    LMDB = "lmdb"
    MEMORY = "memory"


class StateKind(enum.Enum):
    """Kinds of states.

    A further kind needs a member here, a face in ``state.faces`` and its maker in
    ``nodes.binding``.
    """

    VALUE = "State"
    MAP = "MapState"
    LIST = "ListState"
    TIMED = "rows that fall due"


@dataclass(frozen=True, slots=True)
class StateDeclaration:
    """A state as a function's signature declares it.

    Attributes:
        name: Name of the parameter.
        kind: Its kind.
        key_type: Type of the record's key, None for bytes; for a map, type of its own keys.
        value_type: Type of the values.
        initial: Value of keys without one.
        migrations: For stored values of earlier types.
        layout: Layout of a store whose rows fall due, or None.
    """

    name: str
    kind: StateKind
    key_type: object
    value_type: object
    initial: object = None
    migrations: Sequence[Migration] = ()
    layout: TimedLayout | None = None


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of a function in a group.

    Attributes:
        name: Its name within the group, ``function.state``.
        declaration: Its declaration.
        codec: Codec of the values.
        packing: Encoder and decoder of the own keys of a map or list; None for other states.
        changelog: Its changelog topic.
        text: Structure of keys and values; stored state with another one is refused.
        earlier: Structures that declared migrations read.
    """

    name: str
    declaration: StateDeclaration
    codec: ValueCodec
    packing: tuple[Packer, Unpacker] | None
    changelog: str
    text: str
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The failure policy of a function.

    Attributes:
        retries: Further attempts.
        on_error: What follows the last attempt.
        dead_letter_topic: Topic of dead letters, or None.
        limits: How many dead letters are too many.
    """

    retries: Retries = field(default_factory=Retries)
    on_error: OnError = OnError.STOP
    dead_letter_topic: str | None = None
    limits: DeadLetterLimits = field(default_factory=DeadLetterLimits)


def check_name(what: str, name: object) -> None:
    """Refuse a name that cannot be part of the names of topics and directories.

    Raises:
        DeclarationError: It has other characters, or too many.
    """
    if (
        not isinstance(name, str)
        or not re.fullmatch(r"[a-zA-Z0-9._-]{1,100}", name)
        or name in (".", "..")
    ):
        raise DeclarationError(
            f"{what} {name!r} becomes part of topic names and directories: use 1 to 100 "
            "characters of [a-zA-Z0-9._-]"
        )


def make_codec(declaration: StateDeclaration, function: str) -> ValueCodec:
    """Return the codec of a state's values.

    Raises:
        DeclarationError: A type has no codec.
    """
    what = f"state {declaration.name!r} of {function}"
    return ValueCodec(declaration.value_type, what, declaration.migrations)


def state_spec(declaration: StateDeclaration, group: str, function: str) -> StateSpec:
    """Return a declared state with its names in a group.

    Raises:
        DeclarationError: A name cannot be part of a topic name, or a type has no codec.
    """
    check_name("group id of processors with state", group)
    check_name("processor name", function)
    check_name("state name", declaration.name)
    what = f"state {declaration.name!r} of {function}"
    codec = make_codec(declaration, function)
    packing, shape = None, "{}"
    if declaration.kind is StateKind.MAP:
        packing = key_packing(declaration.key_type, what)
        shape = f"{declaration.key_type.__name__} -> {{}}"  # type: ignore[attr-defined]
    elif declaration.kind is StateKind.LIST:
        packing = key_packing(int, what)
        shape = "list of {}"
    elif declaration.layout is not None:
        shape = declaration.layout.shape
    changelog = f"{group}-{function}-{declaration.name}-changelog"
    if len(changelog) > TOPIC_NAME_MAX:
        raise DeclarationError(
            f"changelog topic {changelog!r} has more than {TOPIC_NAME_MAX} characters; "
            "shorten the group's, the processor's or the state's name"
        )
    return StateSpec(
        f"{function}.{declaration.name}",
        declaration,
        codec,
        packing,
        changelog,
        shape.replace("{}", codec.text),
        tuple(shape.replace("{}", text) for text in codec.earlier),
    )


def as_migrations(
    given: object, states: Mapping[str, StateDeclaration], function: str
) -> dict[str, tuple[Migration, ...]]:
    """Check the ``migrations=`` of a declaration.

    Args:
        given: By state: a ``Migration`` or a sequence of them.
        states: The function's states.
        function: Its name, for messages.

    Raises:
        DeclarationError: It has another type, or names an unknown state.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{function}: migrations={given!r}: must be a mapping by state")
    found: dict[str, tuple[Migration, ...]] = {}
    for name, entry in given.items():
        if name not in states:
            known = ", ".join(states) or "none"
            raise DeclarationError(
                f"{function}: migrations name the state {name!r}; its states are: {known}"
            )
        several = (entry,) if isinstance(entry, Migration) else entry
        if not isinstance(several, Sequence) or not all(
            isinstance(migration, Migration) for migration in several
        ):
            raise DeclarationError(
                f"{function}: migrations[{name!r}]={entry!r}: must be a Migration, or several"
            )
        found[name] = tuple(several)
    return found
