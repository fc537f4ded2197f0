"""Settings from elsewhere than keyword arguments: Kafka's dotted names, files, the environment.

It decides how a text becomes a value, which name means which field, and what wins when several
places name a setting: keyword arguments, then properties, then the environment, then the file,
then the default. Which values are allowed is decided by the configurations themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.checks import NamedSettings, reject_unknown
from onceflow.sdk.settings.foreign_names import (
    ASSIGNOR_CLASSES,
    NAMED_PARTITIONER,
    NOT_OFFERED,
    PASSED_OVER,
    SECURITY_ALIASES,
)
from onceflow.sdk.settings.security import check_mechanism

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger: logging.Logger = logging.getLogger("onceflow.sdk.settings")

T = TypeVar("T")
PREFIX: Final = "ONCEFLOW_"
"""How names in the environment begin, unless told otherwise."""
_SECTIONS: Final = ("client", "security", "producer", "consumer", "admin")
_CODE: Final = ("Function", "Partitioner", "Identity", "SSLContext", "Interceptor")
"""Endings of annotations whose values cannot be written as text."""
_JAAS: Final = re.compile(
    r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""", re.S
)
_JAAS_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.S)
_JAAS_LETTERS: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


class Loadable(NamedSettings):
    """A frozen configuration that can be read from several places."""

    __slots__ = ()

    @classmethod
    def _kind(cls) -> str:
        return _kind(cls)

    @classmethod
    def _elsewhere(cls) -> Mapping[str, str]:
        security = _security_class(cls)
        return {i.name: f"security={security.__name__}({i.name}=...)" for i in fields(security)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Self:
        """Build the configuration from keyword arguments.

        Args:
            settings: Values by setting name; ``config`` may hold a configuration of this kind, or
                Kafka's dotted names, which the others override.

        Raises:
            ConfigError: A name does not exist (the nearest one is named), a value is out of
                range, or two settings contradict each other.
        """
        given = dict(settings)
        base = given.pop("config", None)
        cls.check_names(given)
        if base is None:
            return _build(cls, given)
        if isinstance(base, cls):
            return cast("Self", dataclasses.replace(cast("DataclassInstance", base), **given))
        if isinstance(base, Mapping):
            return cls.from_properties(cast("Mapping[str, object]", base), **given)
        raise ConfigError("config", base, f"give a {cls.__name__}, or a dictionary of settings")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **settings: object) -> Self:
        """Build the configuration from Kafka's dotted names, as ``bootstrap.servers``.

        Settings that belong to another kind of client (``acks`` for a consumer), or that have no
        effect here (``client.dns.lookup``), are ignored with one warning that lists them.

        Args:
            properties: Values by Kafka's name or ours; texts are read as numbers and switches
                where the setting is one. Security settings stand among them.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: As ``from_settings``; what to use in place of a setting of Kafka's other
                clients is part of the message.
        """
        return _load(cls, settings, properties=properties)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        prefix: str = PREFIX,
        **settings: object,
    ) -> Self:
        """Build the configuration from the environment, as ``ONCEFLOW_BOOTSTRAP_SERVERS``.

        ``ONCEFLOW_PRODUCER_LINGER_MS`` (or ``CONSUMER``, ``ADMIN``) is for that client only and
        wins over the name without. Settings of another kind of client are passed over.

        Args:
            environ: Variables; None reads those of the process.
            prefix: How the names begin; must not be empty.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: As ``from_settings``.
        """
        found = os.environ if environ is None else environ
        return _load(cls, settings, environ=found, prefix=prefix)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **settings: object) -> Self:
        """Build the configuration from a file, ``*.toml`` or Java's properties.

        In TOML the tables ``[client]`` and ``[security]`` are for all clients, ``[producer]``,
        ``[consumer]`` and ``[admin]`` for one kind. What ``from_properties`` ignores is ignored.

        Args:
            path: The file.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: The file cannot be read; or as ``from_settings``.
        """
        return _load(cls, settings, file=path)

    @classmethod
    def load(
        cls,
        *,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: str = PREFIX,
        properties: Mapping[str, object] | None = None,
        **settings: object,
    ) -> Self:
        """Build the configuration from several places at once.

        What stands further to the right wins: default, file, environment, properties, keyword
        arguments.

        Args:
            file: As for ``from_file``.
            environ: As for ``from_env``, but None reads nothing.
            prefix: As for ``from_env``.
            properties: As for ``from_properties``.
            **settings: Keyword arguments.

        Raises:
            ConfigError: As ``from_settings``; names the place of a wrong setting.
        """
        return _load(
            cls, settings, file=file, environ=environ, prefix=prefix, properties=properties
        )


C = TypeVar("C", bound=Loadable)


def _load(
    cls: type[C],
    settings: Mapping[str, object],
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    prefix: str = PREFIX,
    properties: Mapping[str, object] | None = None,
) -> C:
    cls.check_names(settings)
    reader = _Reader(cls)
    if file is not None:
        reader.read_file(Path(file))
    for name, given in (("environ", environ), ("properties", properties)):
        if given is not None and not isinstance(given, Mapping):
            example = ", such as os.environ" if name == "environ" else ""
            raise ConfigError(name, given, f"give a dictionary{example}")
    if environ is not None:
        reader.read_environment(environ, prefix)
    if properties is not None:
        reader.read(properties, "")
    if reader.passed_over:
        logger.warning(
            "settings of a%s %s that are not used: %s",
            "n" if _kind(cls)[0] in "aeiou" else "",
            _kind(cls),
            ", ".join(f"{name} ({why})" for name, why in reader.passed_over.items()),
        )
    if reader.security and "security" not in settings:
        reader.client["security"] = _build(reader.security_class, reader.security)
    return _build(cls, {**reader.client, **settings})


def _build(cls: type[T], settings: Mapping[str, object]) -> T:
    return cast("Callable[..., T]", cls)(**settings)


def _kind(cls: type[object]) -> str:
    return cls.__name__.removesuffix("Config").lower()


def _security_class(cls: type[Any]) -> type[Any]:
    holder = next(item for item in fields(cls) if item.name == "security")
    return cast("type[Any]", holder.default_factory)


@dataclass
class _Reader:
    """Settings found so far; what is read later wins.

    Attributes:
        cls: The configuration that is being made.
        client: Values by field.
        security: Values of its security, by field.
        passed_over: Names that this client ignores, and why.
    """

    cls: type[Any]
    client: dict[str, object] = field(default_factory=dict)
    security: dict[str, object] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kinds = {item.name: str(item.type) for item in fields(self.cls)}
        self.security_class = _security_class(self.cls)
        self._security_kinds = {i.name: str(i.type) for i in fields(self.security_class)}

    # places

    def read_file(self, path: Path) -> None:
        """Take what a file holds."""
        where = f" (in {path})"
        try:
            if path.suffix == ".toml":
                import tomllib  # Late: few programs have such a file.

                tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
                self._read_tables(tables, where)
            else:
                self.read(dict(parse_properties(path.read_text(encoding="utf-8-sig"))), where)
        except OSError as error:
            raise ConfigError("file", str(path), f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("file", str(path), f"cannot be read: {error}") from error

    def _read_tables(self, tables: Mapping[str, object], where: str) -> None:
        for name in tables:
            if name in _SECTIONS and not isinstance(tables[name], Mapping):
                raise ConfigError(name, tables[name], f"write it as a table [{name}]{where}")
            if isinstance(tables[name], Mapping):
                self._check_section(name, where)
        plain = {name: value for name, value in tables.items() if name not in _SECTIONS}
        self.read(dict(_flat(plain)), where)
        for section in ("client", "security", _kind(self.cls)):
            content = tables.get(section)
            if isinstance(content, Mapping):
                found = dict(_flat(content))
                if section == "security":  # [security] protocol = ... is security.protocol too
                    found = {f"security.{n}" if n == "protocol" else n: v for n, v in found.items()}
                self.read(found, f"{where} [{section}]")

    def _check_section(self, name: str, where: str) -> None:
        """Refuse a table that is none of ours, and is no beginning of a dotted name either."""
        known = [*self._kinds, *self._security_kinds, *NOT_OFFERED, *SECURITY_ALIASES]
        if name in _SECTIONS or any(each.startswith(f"{name}_") for each in known):
            return
        near = difflib.get_close_matches(name, _SECTIONS, n=1)
        remedy = f"did you mean [{near[0]}]?" if near else f"use [{'], ['.join(_SECTIONS)}]"
        raise ConfigError(f"[{name}]", "...", f"there is no such table; {remedy}{where}")

    def read_environment(self, environ: Mapping[str, str], prefix: str) -> None:
        """Take the variables that are meant for this client."""
        if not prefix:
            raise ConfigError("prefix", prefix, "give the beginning of the names")
        common: dict[str, object] = {}
        own: dict[str, object] = {}
        others = {_kind(cls): {i.name for i in fields(cls)} for cls in _family(self.cls)}
        for variable in sorted(environ):
            if not variable.startswith(prefix):
                continue
            name = variable[len(prefix) :].lower()
            section, _, rest = name.partition("_")
            if section in others and section != "client" and rest:
                if section == _kind(self.cls):
                    own[rest] = environ[variable]
                continue
            foreign = any(name in known for known in others.values())
            if foreign and name not in self._kinds:
                continue
            common[name] = environ[variable]
        self.read(common, f" (in the environment, with {prefix} before it)")
        self.read(own, f" (in the environment, with {prefix}{_kind(self.cls).upper()}_ before it)")

    def read(self, properties: Mapping[str, object], where: str) -> None:
        """Take names and values of one place.

        Args:
            properties: Values by Kafka's name or ours.
            where: The place, for messages.
        """
        _check_mechanism_of(properties, where)
        seen: dict[str, tuple[str, object]] = {}
        for name, value in properties.items():
            for target, converted in self._settings_of(name, value, where):
                before = seen.setdefault(target, (name, converted))
                if before[1] != converted:
                    raise ConfigError(
                        name, "***", f"contradicts {before[0]}; give one of the two{where}"
                    )
                if target in self._security_kinds:
                    self.security[target] = converted
                else:
                    self.client[target] = converted

    # one setting

    def _settings_of(self, name: str, value: object, where: str) -> Iterator[tuple[str, object]]:
        plain = name.strip().lower().replace(".", "_").replace("-", "_")
        if plain in self._kinds and (plain != "security" or not isinstance(value, str)):
            yield plain, _convert(name, value, self._kinds[plain], where)
            return
        if plain == "sasl_jaas_config":
            yield from _read_jaas(name, value, where)
            return
        if plain == "ssl_endpoint_identification_algorithm":
            yield "ssl_check_hostname", str(value).lower() not in ("", "none")
            return
        if plain in ("ssl_truststore_type", "ssl_keystore_type"):
            if str(value).upper() != "PEM":
                raise ConfigError(name, value, f"stores are read as PEM; convert it{where}")
            return
        for target in (plain, *SECURITY_ALIASES.get(plain, ())):
            if target in self._security_kinds:
                yield target, _convert(name, value, self._security_kinds[target], where, hide=True)
                return
        why = self._reason_to_pass_over(plain)
        if why:
            self.passed_over[name] = f"{why}{where}"
            return
        try:
            reject_unknown(_kind(self.cls), [*self._kinds, *self._security_kinds], [name])
        except ConfigError as error:
            raise ConfigError(name, "...", error.remedy + where) from None

    def _reason_to_pass_over(self, plain: str) -> str:
        """Why this client may ignore a setting; empty if it may not."""
        owner = next((_kind(c) for c in _family(self.cls) if plain in _names(c)), None)
        owner = PASSED_OVER.get(plain) if owner is None else owner
        if owner is None or owner == _kind(self.cls):
            return ""
        return f"a setting of a {owner}" if owner else NOT_OFFERED[plain]


def _check_mechanism_of(properties: Mapping[str, object], where: str) -> None:
    """Refuse an unknown mechanism first: what else is set for it cannot be understood either."""
    for name, value in properties.items():
        if name.strip().lower().replace("_", ".") in ("sasl.mechanism", "sasl.mechanisms"):
            try:
                check_mechanism(value.strip() if isinstance(value, str) else value)
            except ConfigError as error:
                raise ConfigError(name, value, error.remedy + where) from None


def _names(cls: type[Any]) -> set[str]:
    return {item.name for item in fields(cls)}


def _family(cls: type[Any]) -> list[type[Any]]:
    """The configurations of all kinds of clients, their common one first."""
    common = next(base for base in cls.__mro__ if Loadable in base.__bases__)
    return [common, *common.__subclasses__()]


def _convert(
    name: str, value: object, annotation: str, where: str, *, hide: bool = False
) -> object:
    """A value of the kind that a field has. Values that are no text are left to its checks."""
    if not isinstance(value, str):
        return value
    kind = annotation.removesuffix(" | None")
    optional = kind != annotation
    text = value.strip()
    shown = "***" if hide else value
    if kind == "Partitioner":
        raise ConfigError(name, shown, f"{NAMED_PARTITIONER}{where}")
    if kind.endswith(_CODE) or any(word in kind for word in _CODE):
        raise ConfigError(
            name, shown, f"it cannot be written as text; give it as a keyword argument{where}"
        )
    if optional and text.lower() in ("", "null", "none") and kind != "CompressionType":
        return None
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            raise ConfigError(name, shown, f"give a whole number{where}") from None
    if kind == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(name, shown, f"write true or false{where}")
    if kind.startswith("Sequence"):
        parts = [part.strip().rpartition(".")[2] for part in text.split(",") if part.strip()]
        return tuple(ASSIGNOR_CLASSES.get(part, part) for part in parts)
    return value if hide else text


def _read_jaas(name: str, value: object, where: str) -> Iterator[tuple[str, object]]:
    quoted = ((m[1], m[2] or m[3] or "") for m in _JAAS.finditer(str(value)))
    found = {key: _JAAS_ESCAPE.sub(_meant, text) for key, text in quoted}
    if set(found) != {"username", "password"}:
        raise ConfigError(name, "***", f'it must hold username="..." and password="..."{where}')
    yield "sasl_username", found["username"]
    yield "sasl_password", found["password"]


def _meant(escape: re.Match[str]) -> str:
    """What an escape of a JAAS text stands for, by the rules of Java's StreamTokenizer."""
    if escape[1]:
        return chr(int(escape[1], 8))
    return _JAAS_LETTERS.get(escape[2], escape[2])


def _flat(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """The entries of nested tables by dotted names."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, object]", value), f"{before}{name}.")
        else:
            yield before + name, value


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a file in the form of Java's ``Properties``.

    Args:
        text: Its lines: ``name=value``, ``name: value`` or ``name value``; comments begin with
            ``#`` or ``!``; a backslash at the end goes on with the next line.

    Raises:
        ValueError: An escape is cut off.
    """
    logical = ""
    for raw in [*re.split(r"\r\n|\r|\n", text), ""]:
        line = raw.lstrip() if logical else raw.strip(" \t\f")
        if not logical and line[:1] in ("#", "!"):
            continue
        logical += line
        backslashes = len(logical) - len(logical.rstrip("\\"))
        if backslashes % 2:
            logical = logical[:-1]
            continue
        if logical:
            match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", logical, re.S)
            assert match is not None
            yield _unescape(match[1]), _unescape(match[2])
        logical = ""


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ValueError(f"{match[0]} is no escape; four hexadecimal digits follow a \\u")
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text, flags=re.S)
