"""Declares settings: name, type, bounds, default, Kafka property and text of each, once.

A class derived from :class:`Settings` lists its settings as attributes, each made by ``whole``,
``long``, ``number``, ``switch``, ``text``, ``secret``, ``words`` or ``instance``. From that one
declaration come the checks, the reading of text, the repr, the typed keyword arguments
(``tools/settings_keywords.py``) and the documentation (``tools/config_docs.py``). Clients,
sessions, applications, Spark's options, the broker and its topics all use it.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    ClassVar,
    Final,
    NoReturn,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
)

from onceflow.sdk.errors import ConfigError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
REQUIRED: Final = cast("str", object())
"""Default of a setting that must be given."""
FUNCTION: Final = cast("type", Callable)
"""For :func:`instance`: the value must be callable."""

# int() and float() would take 1_000 and the digits of other scripts.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

ValueT = TypeVar("ValueT")
NumberT = TypeVar("NumberT", bound=float | None)
TextT = TypeVar("TextT", bound=str | None)


def plain(name: str) -> str:
    """The one spelling of a name: ``linger.ms``, ``linger-ms`` and ``LINGER_MS`` are the same."""
    return name.strip().replace(".", "_").replace("-", "_").lower()


class Kind(enum.IntEnum):
    """Type of a setting, numbered as ``ConfigType`` in DescribeConfigs answers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_TEXTUAL: Final = (Kind.STRING, Kind.PASSWORD, Kind.CLASS)


@dataclass(slots=True, eq=False)
class Setting:
    """Declaration of one setting.

    Attributes:
        kind: Type of the value.
        default: Value when nothing is given; None means "not set".
        text: What it does, in a sentence or two.
        least: Least number, where there is one.
        most: Greatest number.
        choices: Allowed values, for a list those of its members; empty when free.
        accepts: Classes of further values that code may give.
        hint: Further advice for a refused value.
        kafka: Kafka's property; made of the attribute's name, empty where Kafka has none.
        aliases: Other clients' names for it; for a topic's setting, the broker's properties that
            set its default, the one that wins first.
        spellings: What words of a list are called in Java, and here.
        hidden: Whether the value must never be printed.
        name: Name in messages and files; made of the attribute's name when it is left out.
    """

    kind: Kind
    default: object
    text: str
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[object, ...] = ()
    accepts: tuple[type, ...] = ()
    hint: str = ""
    kafka: str | None = None
    aliases: tuple[str, ...] = ()
    spellings: Mapping[str, str] | None = None
    hidden: bool = False
    name: str = ""

    def read(self, value: object) -> object:
        """Turn a value of a file, a variable or a request into a checked one.

        Args:
            value: Text, or a value as code gives it.

        Raises:
            ConfigError: The value has the wrong type, or is out of bounds.
        """
        meant = self._from_text(value) if isinstance(value, str) else value
        if not self._allows(meant):
            self.refuse(value, self._advice(meant))
        return meant

    def _from_text(self, text: str) -> object:
        word = text.strip()
        unset = word == "" or (word.lower() in ("null", "none") and not self.hidden)
        if self.default is None and unset and self.kind in _TEXTUAL and word not in self.choices:
            return None
        if self.hidden:
            return text
        if self.kind is Kind.LIST:
            parts = [part.strip() for part in word.split(",") if part.strip()]
            spellings = self.spellings or {}
            return tuple(spellings.get(part.rpartition(".")[2], part) for part in parts)
        if self.kind is Kind.BOOLEAN and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if self.kind in (Kind.INT, Kind.LONG) and _WHOLE_NUMBER.fullmatch(word):
            return int(word)
        if self.kind is Kind.DOUBLE and _NUMBER.fullmatch(word):
            return float(word)
        if self.kind is Kind.CLASS:
            remedy = f"cannot be written as text; give {self.name}=... as a keyword argument"
            raise ConfigError(self.name, word, f"{remedy}; {self.hint}" if self.hint else remedy)
        return word

    def check(self, value: object) -> None:
        """Refuse a value that the setting does not allow.

        Raises:
            ConfigError: Wrong type, out of bounds, or none of the choices.
        """
        if not self._allows(value):
            self.refuse(value, self._advice(value))

    def _allows(self, value: object) -> bool:
        return (value is None and self.default is None) or self._fits(value)

    def _fits(self, value: object) -> bool:
        if self.kind is Kind.BOOLEAN or isinstance(value, bool):
            return self.kind is Kind.BOOLEAN and isinstance(value, bool)
        several = self.kind is Kind.LIST or isinstance(self.default, tuple)
        if several and (isinstance(value, str) or not isinstance(value, Sequence)):
            return False
        members = cast("Sequence[object]", value) if several else (value,)
        return all(self._fits_one(member) for member in members)

    def _fits_one(self, value: object) -> bool:
        if isinstance(value, self.accepts):
            return True
        if self.choices:
            return value in self.choices
        if self.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            number = (int, float) if self.kind is Kind.DOUBLE else int
            return isinstance(value, number) and self.least <= value <= self.most
        return self.kind is not Kind.CLASS and isinstance(value, str)

    def _advice(self, value: object) -> str:
        action = self.name.rpartition("_")[2].removesuffix("r")
        if FUNCTION in self.accepts and callable(getattr(value, action, None)):
            # A serde, or a serializer of another client.
            return f"must be its function, as {self.name}=X.{action}"
        return f"{self.wanted}; {self.hint}" if self.hint else self.wanted

    @property
    def wanted(self) -> str:
        """What a value must be, for messages and pages."""
        if self.kind is Kind.BOOLEAN:
            found = "true or false"
        elif self.choices:
            shown = ", ".join(repr(one) for one in self.choices if not isinstance(one, enum.Enum))
            found = f"a list out of {shown}" if self.kind is Kind.LIST else f"one of {shown}"
        elif self.kind is Kind.CLASS:
            names = ["a function" if one is FUNCTION else one.__name__ for one in self.accepts]
            found = "a list of " * isinstance(self.default, tuple) + " or ".join(names)
        elif self.kind is Kind.DOUBLE:
            found = f"a number from {self.least:g} to {self.most:g}"
        elif self.kind in (Kind.INT, Kind.LONG):
            found = f"a whole number from {int(self.least)} to {int(self.most)}"
        else:
            found = "a list of strings" if self.kind is Kind.LIST else "a string"
        return f"must be {found}{' or None' if self.default is None else ''}"

    def refuse(self, value: object, remedy: str) -> NoReturn:
        """Raise the error for a value, without showing a secret."""
        raise ConfigError(self.name, self._shown(value), remedy)

    def shown(self, value: object) -> str:
        """The value for a repr."""
        return "***" if self.hidden and value else repr(self._shown(value))

    def _shown(self, value: object) -> object:
        if self.hidden:
            return "***"
        if self.kind is not Kind.CLASS or isinstance(value, str | int | float | Settings | None):
            return value
        if isinstance(value, list | tuple):
            return [type(member).__name__ for member in value]
        return type(value).__name__  # the object may hold a secret

    def render(self, value: object) -> str | None:
        """Text of a value, as DescribeConfigs shows it."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


class Naming(TypedDict, total=False):
    """Names and advice that any declaration may have; see :class:`Setting`."""

    hidden: bool
    hint: str
    kafka: str
    aliases: tuple[str, ...]
    spellings: Mapping[str, str]
    name: str


class More(Naming, total=False):
    """What else a declaration may have."""

    choices: tuple[object, ...]
    accepts: tuple[type, ...]


def whole(
    default: NumberT, text: str, least: int = 0, most: int = INT32_MAX, **more: Unpack[More]
) -> NumberT:
    """A whole number; beyond 32 bits it is a LONG of Kafka."""
    kind = Kind.INT if most <= INT32_MAX else Kind.LONG
    return cast("NumberT", Setting(kind, default, text, least, most, **more))


def long(default: NumberT, text: str, least: int = 0, **more: Unpack[More]) -> NumberT:
    """A whole number of 64 bits."""
    return whole(default, text, least, INT64_MAX, **more)


def number(default: NumberT, text: str, least: float, most: float, **more: Unpack[More]) -> NumberT:
    """A number that may have a fraction."""
    return cast("NumberT", Setting(Kind.DOUBLE, default, text, least, most, **more))


def switch(default: bool, text: str, **more: Unpack[More]) -> bool:
    """True or false."""
    return cast("bool", Setting(Kind.BOOLEAN, default, text, **more))


def text(default: TextT, text: str, **more: Unpack[More]) -> TextT:
    """A string."""
    return cast("TextT", Setting(Kind.STRING, default, text, **more))


def secret(default: TextT, text: str, **more: Unpack[More]) -> TextT:
    """A string that is never printed."""
    more["hidden"] = True
    return cast("TextT", Setting(Kind.PASSWORD, default, text, **more))


def words(default: ValueT, text: str, **more: Unpack[More]) -> ValueT:
    """Strings in a sequence, which text separates by commas."""
    return cast("ValueT", Setting(Kind.LIST, default, text, **more))


def instance(default: ValueT, text: str, kind: type, **more: Unpack[Naming]) -> ValueT:
    """An object or a function, which only code can give; a sequence if the default is a tuple."""
    return cast("ValueT", Setting(Kind.CLASS, default, text, accepts=(kind,), **more))


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """A set of settings, which never change once it is made.

    It behaves as a frozen dataclass of keyword arguments. None is generated, because with the
    broker's hundred and fifty settings that took a tenth of the daemon's start.
    """

    declared: ClassVar[Mapping[str, Setting]] = {}
    """Declarations by attribute name, those of the bases first."""
    kind: ClassVar[str] = ""
    """What messages call these settings, such as "producer"; the class's name by default."""
    remedies: ClassVar[Mapping[str, str]] = {}
    """What to do instead of names that other clients know, by plain name."""

    _checked: ClassVar[bool] = True
    _positional: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls,
        *,
        checked: bool = True,
        dotted: bool = False,
        in_kafka: bool = True,
        kind: str = "",
        kw_only: bool = True,
    ) -> None:
        """Collect what a class declares.

        Args:
            checked: Whether values are checked; not where each was read by its declaration.
            dotted: Whether messages and files use Kafka's names: ``log_dirs`` is ``log.dirs``.
            in_kafka: Whether Kafka has properties for them.
            kind: See above.
            kw_only: Whether values are given by name only.
        """
        super().__init_subclass__()  # What is generic needs it.
        cls._positional = () if kw_only else tuple(vars(cls).get("__annotations__", {}))
        cls.kind = kind or cls.__name__
        cls._checked = checked
        own = {name: each for name, each in vars(cls).items() if isinstance(each, Setting)}
        inherited: dict[str, Setting] = {}
        for base in cls.__bases__:
            inherited.update(getattr(base, "declared", {}))
        cls.declared = {**inherited, **own}
        for name, setting in own.items():
            property_name = name.replace("_", ".")
            if setting.kafka is None:
                setting.kafka = property_name if in_kafka else ""
            setting.name = setting.name or (property_name if dotted else name)
            setattr(cls, name, setting.default)

    def __init__(self, *positional: object, **values: object) -> None:
        """Take values by attribute name; what is not named has its default.

        Raises:
            ConfigError: A name does not exist (the nearest one is named), a value is not allowed,
                or not beside another one.
        """
        if len(positional) > len(self._positional):
            raise TypeError(f"{type(self).__name__} takes its settings by name")
        declared = self.declared
        values = {**dict(zip(self._positional, positional, strict=False)), **values}
        self.check_names(values)
        state = {name: setting.default for name, setting in declared.items()}
        for name, value in values.items():
            if value is not state[name]:  # a default needs no check
                if self._checked:
                    declared[name].check(value)
                state[name] = value
        for name, value in state.items():
            if value is REQUIRED:
                raise ConfigError(name, None, f"{declared[name].wanted}; there is no default")
        vars(self).update(state)
        self._check()

    @classmethod
    def build(cls, values: Mapping[str, object]) -> Self:
        """Make settings of values whose names and types are only known when the program runs.

        Args:
            values: Values by attribute name.

        Raises:
            ConfigError: As the constructor.
        """
        return cls(**values)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Refuse names that are no settings of this class.

        Args:
            given: Names of settings.

        Raises:
            ConfigError: The first name that does not exist; the nearest one is named.
        """
        if not all(name in cls.declared for name in given):
            from onceflow.sdk.settings.names import reject_unknown  # Late: only for a mistake.

            reject_unknown(cls.kind, cls.declared, given, cls.places(), cls.remedies)

    def _check(self) -> None:
        """Refuse settings that do not fit together; each of them is good by itself.

        Raises:
            ConfigError: The first one that cannot work beside the others.
        """

    @classmethod
    def places(cls) -> Mapping[str, str]:
        """How a setting is written whose name is another one here, by its plain name."""
        return {
            plain_alias: name
            for name, setting in cls.declared.items()
            for plain_alias in map(plain, setting.aliases)
        }

    def values(self) -> dict[str, object]:
        """The values by attribute name."""
        return {name: getattr(self, name) for name in self.declared}

    def replace(self, **changes: object) -> Self:
        """The same settings with some changed.

        Raises:
            ConfigError: As the constructor.
        """
        return self.build({**self.values(), **changes})

    __replace__ = replace  # copy.replace() of Python 3.13

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; see replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; see replace()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings):
            return NotImplemented
        return type(other) is type(self) and other.values() == self.values()

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={setting.shown(getattr(self, name))}"
            for name, setting in self.declared.items()
            if getattr(self, name) != setting.default
        )
        return f"{type(self).__name__}({shown})"
