"""Startup and shutdown functions, and the objects that they open and close.

A startup function returns an object, such as a client or a model; functions of the application get
it by its type. Shutdown functions get it by its type too, and run also after an error.
"""

from __future__ import annotations

import inspect
import logging
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onceflow.processors.errors import DeclarationError
from onceflow.transactions.colour import settle

logger: logging.Logger = logging.getLogger("onceflow.processors")

_NOT_GIVEN = frozenset(
    {inspect.Parameter.empty, object, bytes, str, int, float, bool, dict, list, tuple, set}
)
"""No type, or a type of values: a parameter with one of these gets the record's value."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A startup or shutdown function.

    Attributes:
        name: Its name, for messages.
        function: The function.
        takes: Type of each parameter.
        gives: Type of its result; None for no result, and for each shutdown function.
        at_start: Whether it runs before the first record.
        is_async: Whether it is awaited.
    """

    name: str
    function: Callable[..., object]
    takes: Mapping[str, object]
    gives: object
    at_start: bool
    is_async: bool


def declare_hook(function: Callable[..., object], known: Sequence[Hook], *, at_start: bool) -> Hook:
    """Read the signature of a startup or shutdown function.

    Raises:
        DeclarationError: A parameter or the result has no type, or one that cannot identify a
            resource.
    """
    name = getattr(function, "__name__", "hook")
    given = {hook.gives for hook in known if hook.gives is not None}
    hints = typing.get_type_hints(function)
    takes = {}
    for parameter in inspect.signature(function).parameters:
        kind = hints.get(parameter)
        if kind not in given:
            shown = ", ".join(inspect.formatannotation(known_type) for known_type in given)
            raise DeclarationError(
                f"{name}: {parameter}: no startup function that is declared before gives "
                f"{inspect.formatannotation(kind)}; there are: {shown or 'none'}"
            )
        takes[parameter] = kind
    gives = hints.get("return", inspect.Parameter.empty) if at_start else None
    if gives is types.NoneType:
        gives = None
    if gives is not None and (not isinstance(gives, type) or gives in _NOT_GIVEN):
        raise DeclarationError(
            f"{name} gives {inspect.formatannotation(gives)}: functions get a resource "
            "by its class, so annotate the return type with a class of your own or of a "
            "library, or with None"
        )
    if gives in given:
        raise DeclarationError(
            f"{name}: another startup function gives {inspect.formatannotation(gives)} already"
        )
    return Hook(name, function, takes, gives, at_start, inspect.iscoroutinefunction(function))


class Resources:
    """The results of startup functions, by type.

    Args:
        hooks: Startup and shutdown functions, in order of declaration.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = hooks
        self._values: dict[object, object] = {}

    def get(self, kind: object) -> object:
        """Return the object of a type.

        Args:
            kind: The type.
        """
        return self._values[kind]

    async def open(self) -> None:
        """Run the startup functions, in order."""
        for hook in self._hooks:
            if hook.at_start:
                value = await self._run(hook)
                if hook.gives is not None:
                    self._values[hook.gives] = value

    async def close(self) -> None:
        """Run the shutdown functions whose objects exist, the last one first."""
        for hook in reversed(self._hooks):
            if not hook.at_start and all(kind in self._values for kind in hook.takes.values()):
                try:
                    await self._run(hook)
                except Exception:
                    logger.exception("shutdown function %s failed", hook.name)

    async def _run(self, hook: Hook) -> object:
        arguments = {name: self._values[kind] for name, kind in hook.takes.items()}
        return await settle(hook.function(**arguments))
