"""What is declared of a function and of its states, as plain values.

Made by the decorators, kept by the topology, read by everything else. Nothing here runs.
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
from onceflow.processors.state.type_text import type_text
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.topic_names import TOPIC_NAME_MAX

TABLE_STATE = "table"
"""Name of the state of every table."""


PARKED_STATE = "parked"
"""Name of the state of parked records."""


class ParkedRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record that waits for its next attempt, or for those of its key in front of it.

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
        """The record itself.

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
    """Where committed state is kept besides its changelog topic."""

    LMDB = "lmdb"
    MEMORY = "memory"


class StateKind(enum.Enum):
    """Which face a state has.

    An extension adds a member here, a builder in ``nodes.binding`` and, where its changelog is not
    compacted, a policy in ``provisioning``.
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
        kind: Its face.
        key_type: Type that the record's key is decoded as, None for bytes; type of the own keys
            of a map.
        value_type: Type of the values.
        initial: Value of keys that have none.
        migrations: For stored values of earlier types.
        layout: Of a store whose rows fall due.
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
    """One state of a function, with its place.

    Attributes:
        name: ``function.state``: names it within its group.
        declaration: What was declared.
        codec: Codec of the values.
        packing: How a map's own keys become bytes; None for the others.
        changelog: Topic that every change is written to.
        text: Structure of keys and values; a stored one that differs is refused.
        earlier: Structures that a declared migration reads.
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
    """What is done about a record that a function fails on.

    Attributes:
        retries: Further attempts.
        on_error: What follows the last attempt.
        dead_letter_topic: Target of dead letters, or None.
        limits: When there are too many of them.
    """

    retries: Retries = field(default_factory=Retries)
    on_error: OnError = OnError.STOP
    dead_letter_topic: str | None = None
    limits: DeadLetterLimits = field(default_factory=DeadLetterLimits)


def check_name(what: str, name: object) -> None:
    """Refuse a name that cannot be part of a topic's name and of a directory's.

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
    """The codec of a state's values.

    Raises:
        DeclarationError: A type has no codec.
    """
    what = f"state {declaration.name!r} of {function}"
    return ValueCodec(declaration.value_type, what, declaration.migrations)


def state_spec(declaration: StateDeclaration, group: str, function: str) -> StateSpec:
    """Give a declared state its place in a group.

    Raises:
        DeclarationError: A name cannot be part of a topic's, or a type has no codec.
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
        tuple(
            shape.replace("{}", type_text(migration.from_type, what))
            for migration in declaration.migrations
        ),
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
        DeclarationError: It is none of these, or names an unknown state.
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
