"""Checks the options that all declarations of functions have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from onceflow.processors.declare.functions import NO_LIMITS, choice, make_policy, name_of
from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph.specs import FailurePolicy, StoreKind
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.state.codec import Migration
from onceflow.processors.values import Format
from onceflow.sdk.settings.declare import plain
from onceflow.sdk.settings.names import did_you_mean


class FunctionOptions(TypedDict, total=False):
    """Options of aggregates, joins and tables; ``App.processor`` has the same.

    Keys:
        name: Name of the function in the application, its own by default; names the changelogs.
        dead_letter: Topic of records whose last attempt failed.
        retries: Further attempts at a failed record: a number, or ``Retries``.
        on_error: What follows the last attempt: ``stop`` (default) or ``skip``.
        limits: How many dead letters are too many.
        format: ``json`` or ``msgpack`` for structured values.
        store: ``lmdb`` or ``memory`` for committed state.
        migrations: By name of a state whose type has changed: a ``Migration`` from each earlier
            type.
    """

    name: str | None
    dead_letter: str | None
    retries: int | Retries
    on_error: OnError | str | None
    limits: DeadLetterLimits
    format: Format | str
    store: StoreKind | str
    migrations: Mapping[str, Migration | Sequence[Migration]] | None


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options.

    Attributes:
        name: Name of the function in the application.
        policy: Its failure policy.
        dead_letter: Topic of dead letters, or None.
        format: Format of structured values.
        store: Where committed state is kept.
        migrations: The given migrations, not checked yet.
    """

    name: str
    policy: FailurePolicy
    dead_letter: str | None
    format: Format
    store: StoreKind
    migrations: object


def check_known(decorator: Callable[..., object], given: Mapping[str, object]) -> None:
    """Refuse options that a method of ``App`` does not have, before it declares anything.

    Args:
        decorator: The method, whose own keyword arguments are suggested too.
        given: Its ``**options``.

    Raises:
        DeclarationError: One is unknown; the message suggests the nearest.
    """
    shared = tuple(FunctionOptions.__annotations__)
    for name in given:
        if name in shared:
            continue
        parameters = inspect.signature(decorator).parameters.values()
        own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        known = [*own, *shared]
        if name == "concurrency":
            raise DeclarationError(
                f"concurrency={given[name]!r}: {decorator.__name__} needs the records of all "
                "keys in order, so its calls cannot overlap; declare it on an async "
                "@app.processor that writes to a topic, and read that topic here"
            )
        remedy = did_you_mean(name, {plain(each): each for each in known})
        raise DeclarationError(
            f"{name}={given[name]!r}: {decorator.__name__} has no such option; "
            f"{remedy or 'choose from ' + ', '.join(known)}"
        )


def read_options(function: Callable[..., object], given: FunctionOptions) -> Options:
    """Check the options of a declaration.

    Raises:
        DeclarationError: One cannot work.
    """
    called = name_of(function, given.get("name"))
    dead_letter = given.get("dead_letter")
    return Options(
        called,
        make_policy(
            called,
            given.get("retries", 0),
            given.get("on_error"),
            dead_letter,
            given.get("limits", NO_LIMITS),
        ),
        dead_letter,
        choice(Format, called, "format", given.get("format", Format.JSON)),
        choice(StoreKind, called, "store", given.get("store", StoreKind.LMDB)),
        given.get("migrations"),
    )
