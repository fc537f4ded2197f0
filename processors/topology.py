"""What an application consists of, as plain values: processors, their topics and their states.

Made by the decorators, read by everything else. Prints itself; knows no network and no files.
"""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass

from onceflow.processors.errors import DeclarationError
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.signatures import Signature
from onceflow.processors.values import Format, StateCodec

TOPIC_NAME_MAX = 249


class StoreKind(enum.Enum):
    """Where committed state is kept besides its changelog topic."""

    LMDB = "lmdb"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One named state of a processor.

    Attributes:
        name: Name of the parameter.
        key_type: Type of the record's key, None for bytes.
        value_type: Type of the values.
        codec: Their codec.
        changelog: Topic that every change is written to.
    """

    name: str
    key_type: object
    value_type: object
    codec: StateCodec
    changelog: str


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """One processor.

    Attributes:
        name: Name of the function; part of the names of its changelog topics.
        input_topic: Where its records come from.
        output_topic: Where returned values go, or None.
        signature: The handler and its parameters.
        format: Layout of structured values.
        retries: Further attempts.
        on_error: What follows the last attempt.
        dead_letter_topic: Target of dead letters, or None.
        dead_letter_limits: When there are too many of them.
        states: Its states.
        store: Where committed state is kept.
    """

    name: str
    input_topic: str
    output_topic: str | None
    signature: Signature
    format: Format
    retries: Retries
    on_error: OnError
    dead_letter_topic: str | None
    dead_letter_limits: DeadLetterLimits
    states: tuple[StateSpec, ...]
    store: StoreKind


@dataclass(frozen=True, slots=True)
class Topology:
    """All processors of an application."""

    app: str
    processors: tuple[ProcessorSpec, ...]

    @property
    def input_topics(self) -> list[str]:
        """Topics that are read, in order of declaration."""
        return [spec.input_topic for spec in self.processors]

    @property
    def output_topics(self) -> list[str]:
        """Declared targets, dead letters included, without repetition."""
        found: dict[str, None] = {}
        for spec in self.processors:
            for topic in (spec.output_topic, spec.dead_letter_topic):
                if topic is not None:
                    found[topic] = None
        return list(found)

    @property
    def is_async(self) -> bool:
        """Whether any handler needs an event loop."""
        return any(spec.signature.is_async for spec in self.processors)

    def describe(self) -> str:
        """The topology as text, one processor after the other."""
        lines = [f"application {self.app}"]
        for spec in self.processors:
            kind = "async processor" if spec.signature.is_async else "processor"
            lines.append(f"  {kind} {spec.name}")
            lines.append(f"    reads        {spec.input_topic}")
            lines.append(f"    writes       {spec.output_topic or '(only what names a topic)'}")
            for state in spec.states:
                value = _type_name(state.value_type)
                lines.append(
                    f"    state        {state.name}: {value} in {spec.store.value}, "
                    f"changelog {state.changelog}"
                )
            lines.append(f"    retries      {_describe_retries(spec.retries)}")
            lines.append(f"    then         {_describe_end(spec)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _describe_retries(retries: Retries) -> str:
    if retries.count_max == 0:
        return "none"
    return f"{retries.count_max}, {retries.backoff_ms} to {retries.backoff_max_ms} ms apart"


def _describe_end(spec: ProcessorSpec) -> str:
    if spec.on_error is OnError.DEAD_LETTER:
        return f"dead letter to {spec.dead_letter_topic}"
    return {OnError.STOP: "stop before the record", OnError.SKIP: "skip the record"}[spec.on_error]


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


def state_specs(app: str, processor: str, signature: Signature) -> tuple[StateSpec, ...]:
    """The states that a handler's signature declares.

    Raises:
        DeclarationError: A value type has no codec, or a name cannot be part of a topic's.
    """
    specs = []
    if signature.states():
        check_name("processor name", processor)
    for argument in signature.states():
        types = typing.get_args(argument.annotation)
        name = argument.name
        check_name("state name", name)
        changelog = f"{app}-{processor}-{name}-changelog"
        if len(changelog) > TOPIC_NAME_MAX:
            raise DeclarationError(
                f"changelog topic {changelog!r} has more than {TOPIC_NAME_MAX} characters; "
                "shorten the application's, the processor's or the state's name"
            )
        specs.append(
            StateSpec(
                name=name,
                key_type=types[0] if len(types) == 2 else None,
                value_type=types[-1],
                codec=StateCodec(types[-1], f"state {name!r} of {processor}"),
                changelog=changelog,
            )
        )
    return tuple(specs)


def check_topology(app: str, specs: Sequence[ProcessorSpec]) -> Topology:
    """Put processors together.

    Raises:
        DeclarationError: Two processors share a name or an input topic.
    """
    for attribute in ("name", "input_topic"):
        seen: set[str] = set()
        for spec in specs:
            value = getattr(spec, attribute)
            if value in seen:
                raise DeclarationError(
                    f"two processors of {app} have the {attribute.replace('_', ' ')} {value!r}; "
                    "call both functions from one processor, or use another App"
                )
            seen.add(value)
    return Topology(app, tuple(specs))
