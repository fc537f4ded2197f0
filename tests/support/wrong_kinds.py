"""Values of every kind, and which of them a declared type takes.

For tests that give each argument of a call what does not belong there.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from onceflow.sdk import OffsetAndMetadata, TopicPartition

PART = TopicPartition("t", 0)


def zoo() -> dict[str, object]:
    """Values by a name for them."""
    plain = {
        "None": None,
        "True": True,
        "a number": 5,
        "a float": 2.5,
        "a text": "text",
        "bytes": b"bytes",
        "an object": object(),
        "a class": str,
        "a function": zoo,
        "a partition": PART,
        "an offset": OffsetAndMetadata(5),
    }
    keys = [each for name, each in plain.items() if name not in ("an object", "a float")]
    return (
        plain
        | {f"a list of {name}": [each] for name, each in plain.items()}
        | {f"{each!r} to {name}": {each: other} for each in keys for name, other in plain.items()}
        | {f"text to a list of {name}": {"t": [each]} for name, each in plain.items()}
        | {f"a partition to a list of {name}": {PART: [each]} for name, each in plain.items()}
        | {f"text to text to {name}": {"t": {"t": each}} for name, each in plain.items()}
        | {f"a pair of mappings to {name}": [({"user": x}, {"t": x})] for name, x in plain.items()}
        | {"a list in a list": [[]], "a mapping in a list": [{}], "a list of pairs": [("a", "b")]}
        | {"a list of triples": [("a", "b", "c")]}
    )  # fmt: skip


def fits(value: object, hint: object) -> bool:
    """Whether a value is of a declared type.

    Bytes are no list of numbers, and a text is one name and no list of its letters.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in typing.get_args(hint))
    if origin is typing.Literal:
        return any(value is each or value == each for each in typing.get_args(hint))
    if origin is None:
        return _is_instance(value, hint)
    parts = typing.get_args(hint)
    if origin is tuple and parts[-1:] != (...,):
        return (
            isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
        )
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, parts[0]) and fits(each, parts[1]) for key, each in value.items()
        )
    if origin in (Iterable, Sequence, Collection, tuple, list):
        if isinstance(value, str | bytes) or not isinstance(value, origin):
            return origin is not Sequence and fits(value, parts[0]) and isinstance(value, str)
        return all(fits(each, parts[0]) for each in value)
    if origin is re.Pattern:
        return isinstance(value, re.Pattern)
    if origin is Callable:
        return callable(value)
    raise AssertionError(f"no rule for {hint!r}")


def _is_instance(value: object, hint: object) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int and isinstance(value, bool):
        return False
    return isinstance(value, hint)  # type: ignore[arg-type]


def arguments_of(call: Callable[..., object]) -> dict[str, object]:
    """Declared types of a call's arguments, by name."""
    hints = typing.get_type_hints(call, vars(typing.cast("typing.Any", inspect.getmodule(call))))
    return {name: hints[name] for name in inspect.signature(call).parameters if name != "self"}
