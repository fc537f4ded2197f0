"""How one broker or topic setting is declared: its name, type, bounds and default."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from onceflow.sdk.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

PARTITIONS_MAX = 10_000
"""Most partitions of one topic, and most that one request may make."""

Value = bool | int | float | str | None
"""A parsed setting; lists stay text, separated by commas."""

ValueT = TypeVar("ValueT", bool, int, float, str, int | None)
DeclaredT = TypeVar("DeclaredT", bound="Declared")


class Kind(enum.IntEnum):
    """Type of a setting, numbered as ``ConfigType`` in DescribeConfigs answers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of one setting.

    Attributes:
        name: Kafka property.
        kind: Type of the value.
        default: Value when nothing is set; None means "not set".
        documentation: One sentence.
        minimum: Least allowed number, or None.
        maximum: Greatest allowed number, or None.
        choices: Allowed words, for a list those of its members; empty when free.
    """

    name: str
    kind: Kind
    default: Value
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> Value:
        """Turn text into a checked value.

        Raises:
            ConfigError: The text is no such value, or out of bounds.
        """
        if self.kind in (Kind.STRING, Kind.PASSWORD):
            return self._checked_words([text], text) if self.choices else text
        text = text.strip()
        if self.kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._error(text, "give true or false")
            return text.lower() == "true"
        if self.kind is Kind.LIST:
            words = [word.strip() for word in text.split(",") if word.strip()]
            return self._checked_words(words, ",".join(words))
        try:
            if "_" in text:
                raise ValueError  # Python's own form of a number, which Kafka does not know.
            number = float(text) if self.kind is Kind.DOUBLE else int(text)
        except ValueError:
            form = "a number" if self.kind is Kind.DOUBLE else "a whole number"
            raise self._error(text, f"give {form}") from None
        return self._checked_number(number, text)

    def render(self, value: Value) -> str | None:
        """Text of a value, as DescribeConfigs shows it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def _checked_words(self, words: list[str], text: str) -> str:
        if self.choices:
            for word in words:
                if word not in self.choices:
                    allowed = ", ".join(filter(None, self.choices))
                    raise self._error(text, f"allowed are {allowed}")
        return text

    def _checked_number(self, number: float, text: str) -> float:
        low = self.minimum
        high = self.maximum
        if self.kind is Kind.INT:
            low = -INT_MAX - 1 if low is None else low
            high = INT_MAX if high is None else high
        elif self.kind is Kind.LONG:
            low = -LONG_MAX - 1 if low is None else low
            high = LONG_MAX if high is None else high
        if low is not None and number < low:
            raise self._error(text, f"give at least {low}")
        if high is not None and number > high:
            raise self._error(text, f"give at most {high}")
        if number != number:
            raise self._error(text, "give a number")
        return number

    def _error(self, text: str, remedy: str) -> ConfigError:
        return ConfigError(self.name, text, remedy)


def declare(
    name: str,
    kind: Kind,
    default: ValueT,
    documentation: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> ValueT:
    """A field of a :class:`Declared`; as a value it is its default."""
    setting = Setting(name, kind, default, documentation, minimum, maximum, choices)
    return cast("ValueT", setting)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Declared:
    """A set of settings: what its class declares are its attributes, which never change.

    It is what a frozen dataclass would be, without the code that one has made for it: with some
    hundred and fifty fields that took a tenth of the daemon's start.
    """

    declared: ClassVar[dict[str, Setting]] = {}
    """Declarations by attribute name, those of the bases first."""

    def __init_subclass__(cls) -> None:
        own = {name: each for name, each in vars(cls).items() if isinstance(each, Setting)}
        cls.declared = {**cls.declared, **own}
        for name, setting in own.items():
            setattr(cls, name, setting.default)

    def __init__(self, **values: Any) -> None:
        """Take values by attribute name; what is not named has its default.

        Raises:
            TypeError: There is no such attribute.
            ConfigError: The values do not fit.
        """
        fields = self.fields()
        for name in values:
            if name not in fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
        vars(self).update(fields, **values)
        self.check()

    @classmethod
    def fields(cls) -> dict[str, object]:
        """Default values by attribute name."""
        return {name: setting.default for name, setting in cls.declared.items()}

    def check(self) -> None:
        """Refuse values that do not fit.

        Raises:
            ConfigError: A value is not allowed, or not with another one.
        """
        for name, setting in self.declared.items():
            value = getattr(self, name)
            if value is not None:
                setting.parse(cast("str", setting.render(value)))

    def replaced(self: DeclaredT, **values: object) -> DeclaredT:
        """The same with some other values, by attribute name."""
        return type(self)(**{**vars(self), **values})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is not to be changed; see replaced()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is not to be changed; see replaced()")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        # A password must not reach a log, nor what a listener has of its own, where one may be.
        shown = ", ".join(
            f"{name}={getattr(self, name)!r}"
            for name, setting in self.declared.items()
            if setting.kind is not Kind.PASSWORD
        )
        return f"{type(self).__name__}({shown})"


def declare_int(name: str, default: int, documentation: str, minimum: int = 0) -> int:
    """A 32-bit setting."""
    return declare(name, Kind.INT, default, documentation, minimum=minimum)


def declare_long(name: str, default: int, documentation: str, minimum: int = 0) -> int:
    """A 64-bit setting."""
    return declare(name, Kind.LONG, default, documentation, minimum=minimum)


def declare_optional_long(name: str, documentation: str) -> int | None:
    """A 64-bit setting that may be left unset."""
    return declare(name, Kind.LONG, cast("int | None", None), documentation, minimum=-1)


def field_name(name: str) -> str:
    """``log.segment.bytes`` to ``log_segment_bytes``."""
    return name.replace(".", "_").replace("-", "_")


def unknown_setting(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is no setting, with the nearest one that is.

    It does not hold the value, which may be a password under a misspelt name.
    """
    import difflib  # Only a mistake needs it.

    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    remedy = f"did you mean {nearest[0]}?" if nearest else "there is no such setting; leave it out"
    return ConfigError(name, "...", remedy)
