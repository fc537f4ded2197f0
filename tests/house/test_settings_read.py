"""Goal: no setting of the broker is documented, taken, and read by nobody.

Method: every declared setting of brokers, topics and groups is looked for in the broker's sources,
as an attribute of the settings or by its name in a call. A setting that is only taken because
clients and tools send it says so in its documentation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import house_rules

from onceflow.broker_lite.log import LogConfig
from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.dynamic_config import (
    THROTTLE_SETTINGS,
)
from onceflow.broker_lite.settings.topic_config import TOPIC_SETTINGS
from onceflow.sdk.settings.declare import Setting, plain

ACCEPTED_ONLY = "Accepted for compatibility"
"""How the documentation of a setting begins that has no effect here, and says so."""

DECLARING = {
    *("whole", "long", "number", "switch", "text", "secret", "words", "instance"),
    *("topic_default", "Setting"),
}


class Reads(ast.NodeVisitor):
    """What a source reads: attributes by name, and texts in calls that declare nothing."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.texts: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in DECLARING:
            return
        for argument in node.args:
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
    for setting in THROTTLE_SETTINGS.values():
        if not taken_only(setting):
            yield setting.name


def taken_only(setting: Setting) -> bool:
    return setting.text.startswith(ACCEPTED_ONLY)


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
