"""Goal: no setting is documented and taken, while nothing reads it.

Method: every declared setting of brokers, topics and groups is looked for in the broker's sources,
as an attribute of the settings or by its name in a call. Every setting of clients, registries,
sessions, applications and Spark is looked for in all other sources, as an attribute of something
that is named as settings are. A setting that is only taken because clients and tools send it says
so in its documentation.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

import house_rules

from onceflow.broker_lite.log import LogConfig
from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.broker_lite.settings.topic_config import TOPIC_SETTINGS
from onceflow.sdk.settings.declare import Setting, Settings, plain, whole

ACCEPTED_ONLY = "Accepted for compatibility"
"""How the documentation of a setting begins that has no effect here, and says so."""

DECLARED_IN = (
    *("sdk.settings.config", "sdk.settings.security", "sdk.schema_registry.config"),
    *("transactions.config", "processors.settings", "processors.policies"),
    *("spark_integration.client_options", "spark_integration.options"),
)
"""Modules that declare the settings of what is no broker."""

NAMES_OF_SETTINGS = {
    *("config", "settings", "options", "security", "limits", "retries", "found", "self"),
}
"""What sources call an object that holds settings, but for a leading underscore."""

DECLARING = {
    *("whole", "long", "number", "switch", "text", "secret", "words", "instance"),
    *("topic_default", "Setting"),
}


class Reads(ast.NodeVisitor):
    """What a source reads: attributes by name, and texts in calls that declare nothing.

    Attributes:
        attributes: Of anything.
        of_settings: Of what is named as settings are.
        texts: Arguments of calls.
        patterns: Names that ``getattr`` is given, with blanks that the program fills.
    """

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.of_settings: set[str] = set()
        self.texts: set[str] = set()
        self.patterns: list[str] = []

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if owner.lstrip("_") in NAMES_OF_SETTINGS:
                self.of_settings.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in DECLARING:
            return
        for argument in node.args:
            if name == "getattr" and isinstance(argument, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in argument.values]
                self.patterns.append(
                    "".join(re.escape(p) if isinstance(p, str) else r"\w+" for p in parts)
                )
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self.texts.add(argument.value)
        self.generic_visit(node)


def what_the_broker_reads() -> Reads:
    reads = Reads()
    for path in house_rules.source_files():
        if house_rules.name_of(path).startswith("broker_lite/"):
            reads.visit(ast.parse(path.read_text()))
    return reads


def topic_fields() -> dict[str, str]:
    """The field of a log's settings by topic setting, as far as logs have one."""
    fields = LogConfig.declared
    return {name: plain(name) for name in TOPIC_SETTINGS if plain(name) in fields}


def unread() -> Iterator[str]:
    reads = what_the_broker_reads()

    def is_read(name: str, field: str) -> bool:
        return field in reads.attributes or name in reads.texts

    fields = topic_fields()
    for name, entry in TOPIC_SETTINGS.items():
        found = name in fields and is_read(name, fields[name])
        if not found and not taken_only(entry):
            yield name
    read_by_topics = {
        synonym
        for name, entry in TOPIC_SETTINGS.items()
        if name in fields and is_read(name, fields[name])
        for synonym in entry.aliases
    }
    for name, setting in BROKER_SETTINGS.items():
        found = name in read_by_topics or is_read(name, plain(name))
        if not found and not taken_only(setting):
            yield name
    for setting in IDLE_DYNAMIC_SETTINGS.values():
        if not taken_only(setting):
            yield setting.name


def taken_only(setting: Setting) -> bool:
    return setting.text.startswith(ACCEPTED_ONLY)


def kinds_of_settings(of: type[Settings]) -> Iterator[type[Settings]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds_of_settings(kind)


def what_all_but_the_broker_read() -> Reads:
    reads = Reads()
    for path in house_rules.source_files():
        if not house_rules.name_of(path).startswith("broker_lite/"):
            reads.visit(ast.parse(path.read_text()))
    return reads


def unread_of(kind: type[Settings], reads: Reads) -> Iterator[str]:
    for name in kind.declared:
        by_pattern = any(re.fullmatch(pattern, name) for pattern in reads.patterns)
        if name not in reads.of_settings and not by_pattern:
            yield f"{kind.__name__}.{name}"


def test_every_setting_of_clients_sessions_and_applications_is_read() -> None:
    for module in DECLARED_IN:
        importlib.import_module(f"onceflow.{module}")
    reads = what_all_but_the_broker_read()
    kinds = [
        kind
        for kind in kinds_of_settings(Settings)
        if kind.__module__.removeprefix("onceflow.") in DECLARED_IN
    ]
    names = {kind.__name__ for kind in kinds}
    assert {"ProducerConfig", "SecurityConfig", "AppSettings", "SinkSettings"} <= names
    assert [name for kind in kinds for name in unread_of(kind, reads)] == []


def test_a_setting_that_nothing_reads_is_found() -> None:
    class Some(Settings):
        read_ms: int = whole(1, "It is read.")
        starting_at: int = whole(1, "It is read by a name that is made.")
        unread_ms: int = whole(1, "Nothing reads it.")

    reads = Reads()
    reads.visit(
        ast.parse(
            "self._config.read_ms\ngetattr(config, f'{side}_at')\n"
            "answer.unread_ms\nconfig.unread_ms = 1\n"
        )
    )
    assert list(unread_of(Some, reads)) == ["Some.unread_ms"]


def test_every_declared_setting_is_read() -> None:
    assert list(unread()) == []


def test_a_declaration_is_not_a_read() -> None:
    reads = Reads()
    reads.visit(
        ast.parse(
            "a: int = whole(1, 'only.declared')\n"
            "b = config.value('asked.by.name')\n"
            "c = config.asked_as_attribute\n"
            "config.only_set = 1\n"
        )
    )
    assert reads.texts == {"asked.by.name"}
    assert {"asked_as_attribute"} <= reads.attributes
    assert not {"only_declared", "only_set"} & reads.attributes
