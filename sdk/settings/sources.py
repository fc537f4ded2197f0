"""Settings of all clients of a program: from keyword arguments, Kafka's names, files, environment.

It decides how a text becomes a value, which name means which setting, and which one wins if several
places name it. The configurations themselves check the values.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias, Unpack, cast

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.config import (
    PREFIX,
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
)
from onceflow.sdk.settings.declare import Setting, Settings, plain
from onceflow.sdk.settings.foreign_names import NOT_OFFERED, PASSED_OVER
from onceflow.sdk.settings.names import did_you_mean, reject_unknown
from onceflow.sdk.settings.properties import parse_properties
from onceflow.sdk.settings.security import SecurityConfig, check_mechanism

if TYPE_CHECKING:
    from onceflow.sdk.settings.keywords import ClientKeywords

logger: logging.Logger = logging.getLogger("onceflow.sdk.settings")
ENGINE_VARIABLES: Final = frozenset({"ONCEFLOW_UVLOOP", "ONCEFLOW_COMPILE"})
"""Variables of the library and its build, which are not settings."""

ClientSource: TypeAlias = (
    "ClientSettings | ClientConfig | Mapping[str, object] | str | os.PathLike[str]"
)
"""What ``client=`` takes: settings, one client's configuration, Kafka's names, or a file."""

NONE: Final = MappingProxyType[str, object]({})
KINDS: Final[Mapping[str, type[ClientConfig]]] = MappingProxyType(
    {cls.kind: cls for cls in (ClientConfig, ProducerConfig, ConsumerConfig, AdminConfig)}
)
_SECTIONS: Final = ("client", "security", "producer", "consumer", "admin")
_JAAS: Final = re.compile(
    r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""", re.S
)
_JAAS_TOKEN: Final = re.compile(r"""\btokenauth\s*=\s*["']?true""", re.I)
_JAAS_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.S)
_JAAS_LETTERS: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


class _Found(NamedTuple):
    """One setting as it was found.

    Attributes:
        name: Its name as it was written.
        value: Its value; text if it comes from a file or a variable.
        where: The place, for messages.
        checked: Whether the value is that of a keyword argument, which is never read as text.
        shared: Whether it stands in a file or dictionary among settings of other clients.
    """

    name: str
    value: object
    where: str = ""
    checked: bool = False
    shared: bool = False

    def read(self, setting: Setting) -> object:
        """The value as a setting has it.

        Raises:
            ConfigError: The text is not such a value; names the place.
        """
        if self.checked:
            return self.value
        try:
            return setting.read(self.value) if isinstance(self.value, str) else self.value
        except ConfigError as error:
            problem = ConfigError(self.name, error.value, error.remedy + self.where)
        raise problem  # outside of the other one, which may hold what is not to be shown


class ClientSettings:
    """Settings that a program gives to every client it makes, each to those that have it.

    ::

        client = ClientSettings.load(file="cloud.properties", environ=os.environ)
        producer = Producer(config=client.producer(linger_ms=20))
        App("shout", client=client)

    Args:
        producer: Settings of producers only, by name; they win over the others.
        consumer: Settings of consumers only.
        admin: Settings of admin clients only.
        **settings: Settings of any client, such as ``bootstrap_servers`` and ``security``.

    Raises:
        ConfigError: A name does not exist (the nearest one is named), or a value is refused.
    """

    def __init__(
        self,
        *,
        producer: Mapping[str, object] = NONE,
        consumer: Mapping[str, object] = NONE,
        admin: Mapping[str, object] = NONE,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        self._given: dict[str, dict[str, _Found]] = {section: {} for section in KINDS}
        self._passed_over: dict[str, tuple[str, str]] = {}  # owner and place, by the written name
        own = {"producer": producer, "consumer": consumer, "admin": admin}
        for section, found in {"client": cast("Mapping[str, object]", settings), **own}.items():
            self.check_names(found, section)
            for name, value in found.items():
                _declared(section)[name].check(value)
                self._given[section][name] = _Found(name, value, checked=True)

    @staticmethod
    def check_names(given: Iterable[str], kind: str, further: Iterable[str] = ()) -> None:
        """Refuse names that are no settings of any client.

        Args:
            given: Names of settings.
            kind: What has them, for the message; or the one kind of client that shall have them.
            further: Names that exist besides.

        Raises:
            ConfigError: The first name that does not exist; the nearest one is named.
        """
        known = {*_declared(kind if kind in KINDS else "client"), *further}
        if not all(name in known for name in given):
            reject_unknown(kind, known, given, ClientConfig.places(), NOT_OFFERED)

    @classmethod
    def of(cls, source: ClientSource | None) -> ClientSettings:
        """Settings from anything that ``client=`` takes.

        Args:
            source: Settings, one client's configuration, Kafka's names, a file's path, or None.

        Raises:
            ConfigError: It is something else, or holds what cannot work.
        """
        if source is None:
            return cls()
        if isinstance(source, ClientSettings):
            return source
        if isinstance(source, ClientConfig):
            found = cls()
            for name, value in vars(source).items():
                if value != source.declared[name].default:
                    common = name in ClientConfig.declared
                    section = "client" if common else source.kind
                    found._given[section][name] = _Found(name, value, checked=True)
            return found
        if isinstance(source, Mapping) and all(isinstance(name, str) for name in source):
            found = cls.load(properties=source)
        elif isinstance(source, str | os.PathLike):
            found = cls.load(file=source)
        else:
            remedy = "must be ClientSettings, a dictionary of settings, or a file's path"
            raise ConfigError("client", source, remedy)
        found.warn_for()
        return found

    @classmethod
    def load(
        cls,
        *,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: str = PREFIX,
        properties: Mapping[str, object] | None = None,
        **settings: Unpack[ClientKeywords],
    ) -> Self:
        """Read several places; what stands further to the right wins.

        Args:
            file: ``*.toml`` or Java's properties; sections are as for ``ProducerConfig.from_file``.
            environ: Variables such as ``ONCEFLOW_LINGER_MS`` or ``ONCEFLOW_PRODUCER_LINGER_MS``;
                None reads nothing. A name that is close to a setting's is an error; one that is
                not belongs to another program and is passed over with a warning.
            prefix: How their names begin.
            properties: Values by Kafka's name or ours; ``producer.linger.ms`` is for producers.
            **settings: Keyword arguments.

        Raises:
            ConfigError: A file cannot be read, a name does not exist, or a value cannot be read;
                names the place.
        """
        found = cls()
        if file is not None:
            found._read_file(Path(file))
        for name, given in (("environ", environ), ("properties", properties)):
            good = given is None or (
                isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
            )
            if not good:
                example = ", such as os.environ" if name == "environ" else " of names and values"
                raise ConfigError(name, given, f"must be a dictionary{example}")
        if environ is not None:
            found._read_environment(environ, prefix)
        if properties is not None:
            found._read_names(properties, "")
        for section, further in cls(**settings)._given.items():
            found._given[section].update(further)
        return found

    def updated(
        self, settings: Mapping[str, object] = NONE, **sections: Mapping[str, object]
    ) -> ClientSettings:
        """The same with further settings, which win.

        Args:
            settings: Settings of any client by name.
            **sections: Settings of one kind of client, by ``producer``, ``consumer``, ``admin``.

        Raises:
            ConfigError: As the constructor.
        """
        return self.merged(
            ClientSettings(**sections, **settings)  # type: ignore[arg-type] # checked there
        )

    def merged(self, other: ClientSettings) -> ClientSettings:
        """The same with the settings of another one, which win.

        Args:
            other: Further settings.
        """
        found = ClientSettings()
        found._passed_over = {**self._passed_over, **other._passed_over}
        for section, values in found._given.items():
            values.update({**self._given[section], **other._given[section]})
        return found

    def producer(self, **settings: object) -> ProducerConfig:
        """The configuration of a producer; keyword arguments win."""
        return ProducerConfig.build(self.values("producer", settings))

    def consumer(self, **settings: object) -> ConsumerConfig:
        """The configuration of a consumer; keyword arguments win."""
        return ConsumerConfig.build(self.values("consumer", settings))

    def reader(self, **settings: object) -> ConsumerConfig:
        """The configuration of a consumer outside of any group; keyword arguments win.

        What concerns a group, and interceptors, are left out: they are for the consumer of the
        program's input.
        """
        kept = self.values("consumer")
        for name in ("interceptors", *(name for name in kept if name.startswith("group_"))):
            kept.pop(name, None)
        return ConsumerConfig.build({**kept, "enable_auto_commit": False, **settings})

    def admin(self, **settings: object) -> AdminConfig:
        """The configuration of an admin client; keyword arguments win."""
        return AdminConfig.build(self.values("admin", settings))

    def values(self, kind: str, settings: Mapping[str, object] = NONE) -> dict[str, object]:
        """What was given for a kind of client, by setting.

        Args:
            kind: ``client``, ``producer``, ``consumer`` or ``admin``.
            settings: Further settings, which win.

        Raises:
            ConfigError: The settings of its security do not fit together.
        """
        for name, (owner, where) in self._passed_over.items():
            if owner == kind:
                raise ConfigError(name, "...", NOT_OFFERED[plain(name)] + where)
        merged = {**self._given["client"], **self._given[kind]}
        found = {**_read(merged, KINDS[kind], settings), **settings}
        if "security" not in found and (single := _read(merged, SecurityConfig)):
            found["security"] = SecurityConfig.build(single)
        return found

    def warn_for(self, kind: str | None = None) -> None:
        """Log one warning that lists what was found among other settings and is not used.

        Args:
            kind: The only kind of client that is made; None when all are.
        """
        idle = {
            name: (f"a setting of a {owner}" if owner else NOT_OFFERED[plain(name)]) + where
            for name, (owner, where) in self._passed_over.items()
        }
        if kind is not None:
            used = KINDS[kind].declared.keys() | SecurityConfig.declared.keys()
            for target, found in self._given["client"].items():
                if found.shared and target not in used:
                    idle[found.name] = f"a setting of a {_owner(target)}{found.where}"
        if idle:
            logger.warning(
                "settings of %s that are not used: %s",
                "clients" if kind is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}",
                ", ".join(f"{name} ({why})" for name, why in idle.items()),
            )

    def _values(self) -> dict[str, dict[str, object]]:
        return {
            section: {target: found.value for target, found in values.items()}
            for section, values in self._given.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSettings) and other._values() == self._values()

    def __repr__(self) -> str:
        shown = {section: sorted(values) for section, values in self._given.items() if values}
        return f"ClientSettings(of {shown})"  # the values may hold passwords

    # places

    def _read_file(self, path: Path) -> None:
        where = f" (in {path})"
        try:
            text = path.read_text(encoding="utf-8-sig")
            if path.suffix == ".toml":
                import tomllib  # Late: few programs have such a file.

                self._read_tables(tomllib.loads(text), where)
            else:
                self._read_names(dict(parse_properties(text)), where)
        except OSError as error:
            raise ConfigError("file", str(path), f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("file", str(path), f"cannot be read: {error}") from error

    def _read_tables(self, tables: Mapping[str, object], where: str) -> None:
        for name, content in tables.items():
            if name in _SECTIONS and not isinstance(content, Mapping):
                raise ConfigError(name, content, f"write it as a table [{name}]{where}")
            if isinstance(content, Mapping):
                _check_section(name, where)
        plain_names = {name: value for name, value in tables.items() if name not in _SECTIONS}
        self._read_names(dict(_flat(plain_names)), where)
        for section in _SECTIONS:
            content = tables.get(section)
            if isinstance(content, Mapping):
                found = dict(_flat(content))
                if section == "security":  # [security] protocol = ... is security.protocol too
                    found = {f"security.{n}" if n == "protocol" else n: v for n, v in found.items()}
                target = "client" if section == "security" else section
                self._read(found, f"{where} [{section}]", target)

    def _read_environment(self, environ: Mapping[str, str], prefix: str) -> None:
        if not prefix:
            raise ConfigError("prefix", prefix, "must be the beginning of the names")
        found: dict[str, dict[str, object]] = {section: {} for section in KINDS}
        foreign = []
        for variable in sorted(environ):
            if variable.startswith(prefix) and variable not in ENGINE_VARIABLES:
                name = variable[len(prefix) :].lower()
                section, _, rest = name.partition("_")
                if section not in KINDS or section == "client" or not rest:
                    section, rest = "client", name
                if _is_foreign(section, rest):
                    foreign.append(variable)
                else:
                    found[section][rest] = environ[variable]
        if foreign:
            logger.warning("environment: no setting has these names: %s", ", ".join(foreign))
        for section, values in found.items():
            shown = prefix if section == "client" else f"{prefix}{section.upper()}_"
            self._read(values, f" (in the environment, with {shown} before it)", section)

    def _read_names(self, properties: Mapping[str, object], where: str) -> None:
        """Kafka's names or ours; as in Kafka Streams, ``consumer.`` before one is for its kind."""
        common: dict[str, object] = {}
        for name, value in properties.items():
            section, _, rest = name.partition(".")
            if rest and section in KINDS and section != "client":
                self._read({rest: value}, where, section)
            else:
                common[name] = value
        self._read(common, where, "client", shared=True)

    def _read(
        self, found: Mapping[str, object], where: str, section: str, *, shared: bool = False
    ) -> None:
        """Take names and values of one place.

        Args:
            found: Values by Kafka's name or ours.
            where: The place, for messages.
            section: For whom they are: ``client`` for all.
            shared: See ``_Found``.
        """
        for name in found:  # first: what else is set for an unknown one is not understood either
            if plain(name) in ("sasl_mechanism", "sasl_mechanisms"):
                _check_mechanism(name, found[name], where)
        seen: dict[str, _Found] = {}
        for name, value in found.items():
            for target, meant in self._settings_of(name, value, where, section):
                here = _Found(name, meant, where, checked=meant is not value, shared=shared)
                before = seen.setdefault(target, here)
                if str(before.value) != str(meant):
                    raise ConfigError(
                        name, "***", f"contradicts {before.name}; give one of the two{where}"
                    )
                self._given[section][target] = here

    def _settings_of(
        self, name: str, value: object, where: str, section: str
    ) -> Iterator[tuple[str, object]]:
        """Settings that a name stands for, and their values; another value is read already."""
        asked = plain(name)
        if asked == "sasl_jaas_config":
            yield from _read_jaas(name, value, where)
        elif asked == "ssl_endpoint_identification_algorithm":
            yield "ssl_check_hostname", str(value).lower() not in ("", "none")
        elif asked in ("ssl_truststore_type", "ssl_keystore_type"):
            if str(value).upper() != "PEM":
                raise ConfigError(name, value, f"stores are read as PEM; convert it{where}")
        elif asked in _names(section):
            yield _names(section)[asked], value
        elif asked in PASSED_OVER:
            self._passed_over[name] = PASSED_OVER[asked], where
        else:
            owner = _owner(asked)
            if owner is not None:
                raise ConfigError(name, "...", f"it is a setting of a {owner}{where}")
            try:
                known = _names(section).values()
                reject_unknown(section, known, [name], remedies=NOT_OFFERED)
            except ConfigError as error:
                raise ConfigError(name, "...", error.remedy + where) from None


def _read(
    found: Mapping[str, _Found], settings: type[Settings], without: Container[str] = ()
) -> dict[str, object]:
    """The values of those settings that a class has."""
    return {
        target: each.read(settings.declared[target])
        for target, each in found.items()
        if target in settings.declared and target not in without
    }


def _owner(asked: str) -> str | None:
    """The first kind of client that alone has a setting."""
    return next((kind for kind in KINDS if kind != "client" and asked in _names(kind)), None)


def _is_foreign(section: str, name: str) -> bool:
    """Whether a variable is another program's: neither a setting nor close to one.

    Kubernetes, for one, gives each container variables that begin with the names of services.
    """
    asked = plain(name)
    known = {**_names(section), **dict.fromkeys([*PASSED_OVER, *NOT_OFFERED], "")}
    ours = asked in known or asked.startswith(("sasl_", "ssl_")) or _owner(asked) is not None
    return not ours and not did_you_mean(name, known)


def _check_mechanism(name: str, value: object, where: str) -> None:
    try:
        check_mechanism(value.strip() if isinstance(value, str) else value)
    except ConfigError as error:
        raise ConfigError(name, value, error.remedy + where) from None


def _readers(section: str) -> list[str]:
    """Kinds of clients that a section is for."""
    return list(KINDS) if section == "client" else [section]


@cache
def _declared(section: str) -> Mapping[str, Setting]:
    """Settings that keyword arguments of a section may name."""
    found = {
        name: setting
        for kind in _readers(section)
        for name, setting in KINDS[kind].declared.items()
    }
    if section == "client":
        del found["interceptors"]  # those of producers are no interceptors of consumers
    return found


@cache
def _names(section: str) -> dict[str, str]:
    """Settings that a section may hold, by every spelling of their names."""
    found: dict[str, str] = {}
    holders: list[type[Settings]] = [*(KINDS[kind] for kind in _readers(section)), SecurityConfig]
    for cls in holders:
        for target, setting in cls.declared.items():
            for name in (target, setting.kafka or target, *setting.aliases):
                found.setdefault(plain(name), target)
    return found


def _check_section(name: str, where: str) -> None:
    """Refuse an unknown table that is not the beginning of a dotted name either."""
    known = [*_names("client"), *NOT_OFFERED]
    if name in _SECTIONS or any(each.startswith(f"{name}_") for each in known):
        return
    near = difflib.get_close_matches(name, _SECTIONS, n=1)
    remedy = f"did you mean [{near[0]}]?" if near else f"use [{'], ['.join(_SECTIONS)}]"
    raise ConfigError(f"[{name}]", "...", f"there is no such table; {remedy}{where}")


def _read_jaas(name: str, value: object, where: str) -> Iterator[tuple[str, object]]:
    quoted = ((m[1], m[2] or m[3] or "") for m in _JAAS.finditer(str(value)))
    found = {key: _JAAS_ESCAPE.sub(_meant, text) for key, text in quoted}
    if _JAAS_TOKEN.search(str(value)):
        remedy = "tokenauth=true: delegation tokens are not supported; give a user and a password"
        raise ConfigError(name, "***", f"{remedy}{where}")
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
