"""Writes docs/configuration.md: every setting of clients, sessions, processors and the broker.

``python tools/config_docs.py`` writes the page, ``--check`` only tells whether it is up to date.
Names, defaults and sentences come from the configuration classes themselves, so that none of them
can drift from the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS, IN_PROCESS_DEFAULTS
from onceflow.broker_lite.settings.setting import Kind, Setting
from onceflow.broker_lite.settings.topic_config import TOPIC_SETTINGS
from onceflow.processors import DeadLetterLimits, Retries
from onceflow.processors.settings import AppSettings
from onceflow.sdk.schema_registry import SchemaRegistryConfig
from onceflow.sdk.settings.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
)
from onceflow.transactions import SessionConfig

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
FOREVER = 2**31 - 1
HEAD = """# Configuration

Every setting with its default. Where Kafka has the setting, it has Kafka's name and meaning; the
default is Kafka's too unless the row says otherwise. A wrong name or value raises `ConfigError`,
which names the setting, the value and the remedy, before anything is sent. Written by
`tools/config_docs.py`.

- [Clients](#clients) · [Security](#security) · [Producer](#producer) · [Consumer](#consumer)
- [Schema registry](#schema-registry) · [Session](#session) · [Processors](#processors)
- [Broker](#broker) · [Topics](#topics)
- Spark: options are in [spark.md](spark.md).
"""
CLIENTS = """
## Clients

Given as keyword arguments to `Producer`, `Consumer`, `Admin` and their `Async` twins, or as
`config=`, a configuration or a dictionary of Kafka's dotted names, which the others override.
`ProducerConfig.load(file=, environ=, properties=, **settings)` reads several places, as the others
do; what stands further to the right wins: default, file, environment, properties, keyword
arguments. There are `from_properties`, `from_env` and `from_file` too.

| place | form |
| --- | --- |
| properties | `bootstrap.servers`, `sasl.jaas.config` ...: the Java client's names, or ours |
| environment | `ONCEFLOW_LINGER_MS`; `ONCEFLOW_PRODUCER_LINGER_MS` for producers only |
| `*.toml` | `[client]`, `[security]`, `[producer]`, `[consumer]`, `[admin]`; dotted names or ours |
| any other file | Java's properties |

Names of librdkafka and others that mean nothing here are refused with what to write instead. A
file or dictionary may be made for several kinds of clients, as those that hosting services hand
out: settings that belong to another kind (`acks` for a consumer, `schema.registry.url`), and those
that have no effect here (`client.dns.lookup`), are ignored with one warning that lists them.
Passwords and tokens never appear in a repr or an error.

"""
SECURITY = """
## Security

Fields of `onceflow.sdk.SecurityConfig`, given to a client as `security=`.

"""
PRODUCER = "\n## Producer\n\nKeyword arguments of `Producer` and `AsyncProducer`.\n\n"
CONSUMER = "\n## Consumer\n\nKeyword arguments of `Consumer` and `AsyncConsumer`.\n\n"
SCHEMA_REGISTRY = """
## Schema registry

Keyword arguments of `onceflow.sdk.schema_registry.SchemaRegistry` and `AsyncSchemaRegistry`; what
serdes can be told is in [serialization.md](serialization.md).

"""
SESSION = """
## Session

Fields of `onceflow.transactions.SessionConfig`. A session sets what exactly-once needs in its
clients itself: isolation level, no automatic commits, idempotence, the transactional id. Their
other settings go through `consumer_settings` and `producer_settings`. The limits of time must fit
together, which is checked at the start: `commit_interval_ms` < `transaction_timeout_ms` <=
`session_timeout_ms` <= `max_poll_interval_ms`, and `revoke_budget_ms` < `max_poll_interval_ms`.

"""
PROCESSORS = """
## Processors

Keyword arguments of `onceflow.processors.App`. `onceflow run` replaces some of them by its options
`--bootstrap`, `--state-dir` and `--slot`.

"""
RETRIES = "\n`retries=Retries(...)` of a processor:\n\n"
LIMITS = "\n`limits=DeadLetterLimits(...)` of a processor:\n\n"
BROKER = """
## Broker

`onceflow broker --set NAME=VALUE`, or `Broker(settings={NAME: VALUE})` in process; what differs
between the two is in [kafka-differences.md](kafka-differences.md#different-by-default). A setting
of Kafka that is not listed here has no effect in this broker and is refused by name.

"""
TOPICS = """
## Topics

Given when a topic is created, or changed later by any admin client. The broker's setting in the
last column is the default for topics that say nothing.

| setting | default | meaning | broker's setting |
| --- | --- | --- | --- |
"""
TABLE = "| setting | default | meaning |\n| --- | --- | --- |\n"
REPEATED_DEFAULT = re.compile(
    r"""^(``[\w.]+``)(?P<unit>\ in\ bytes)?,?\ (?:default\ )?
    (?:"[^"]*"|[\d,]+\d|\d|True|False|None|PLAINTEXT|on)(?=[:;.,]|\ \(KIP|$)""",
    re.X,
)


def cell(text: str) -> str:
    """Text as Markdown within a table."""
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


def default_text(item: dataclasses.Field[object]) -> str:
    """The default of a field as the reader would write it."""
    if item.default_factory is not dataclasses.MISSING:
        value: object = item.default_factory()
        if dataclasses.is_dataclass(value):
            return "plain text" if isinstance(value, SecurityConfig) else type(value).__name__
        return "none" if not value else f"`{value!r}`"
    if item.default is dataclasses.MISSING:
        return "required"
    return number_text(item.default)


def number_text(value: object) -> str:
    """A value, large numbers with separators."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple) and all(inspect.isclass(entry) for entry in value):
        return ", ".join(f"`{entry.__name__}`" for entry in value)
    if isinstance(value, Path):
        return f"`{value}`"
    return "none" if value is None else f"`{value!r}`".replace("'", '"')


def attribute_texts(owner: type[object]) -> dict[str, str]:
    """What the docstring of a class says of each attribute, as one line each."""
    doc = inspect.getdoc(owner) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", doc, re.M)
    assert section, f"{owner.__name__} has no Attributes in its docstring"
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section[1], re.M)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def class_table(owner: type[Any], leave_out: type[Any] | None = None) -> str:
    """One row for each field, in the order of the declaration.

    Raises:
        ValueError: A field has no text.
    """
    texts = attribute_texts(owner)
    known = {item.name for item in dataclasses.fields(leave_out)} if leave_out else set()
    rows = []
    for item in dataclasses.fields(owner):
        if item.name in known:
            continue
        if item.name not in texts:
            raise ValueError(f"{owner.__name__}.{item.name} has no text in the class's docstring")
        text = REPEATED_DEFAULT.sub(lambda m: m[1] + (m["unit"] or ""), texts[item.name])
        rows.append(f"| `{item.name}` | {default_text(item)} | {cell(text)} |\n")
    return TABLE + "".join(rows)


def bounds(setting: Setting) -> str:
    """Choices and least value in words, empty when there are none to tell."""
    if setting.choices:
        return f" One of {', '.join(setting.choices)}."
    return ""


def setting_default(setting: Setting) -> str:
    """The default of a broker's or topic's setting."""
    value = setting.default
    if value in (None, ""):
        return "none"
    if isinstance(value, int) and value >= FOREVER and setting.kind in (Kind.LONG, Kind.INT):
        return "no limit"
    rendered = setting.render(value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else rendered


def broker_table(settings: Mapping[str, Setting]) -> str:
    """One row for each broker setting, and what an in-process broker has instead."""
    rows = []
    for name, setting in settings.items():
        default = setting_default(setting)
        if name in IN_PROCESS_DEFAULTS:
            default += f" ({IN_PROCESS_DEFAULTS[name]} in process)"
        text = cell(setting.documentation + bounds(setting))
        rows.append(f"| `{name}` | {default} | {text} |\n")
    return TABLE + "".join(rows)


def topic_rows() -> str:
    """One row for each topic setting."""
    return "".join(
        f"| `{name}` | {setting_default(entry.setting)} | "
        f"{cell(entry.setting.documentation + bounds(entry.setting))} | "
        f"{', '.join(f'`{synonym}`' for synonym in entry.synonyms)} |\n"
        for name, entry in TOPIC_SETTINGS.items()
    )


def page() -> str:
    """The whole page."""
    own = [item.name for item in dataclasses.fields(AdminConfig)]
    assert own == [item.name for item in dataclasses.fields(ClientConfig)], "Admin has no section"
    parts = [
        (CLIENTS, class_table(ClientConfig)),
        (SECURITY, class_table(SecurityConfig)),
        (PRODUCER, class_table(ProducerConfig, ClientConfig)),
        (CONSUMER, class_table(ConsumerConfig, ClientConfig)),
        (SCHEMA_REGISTRY, class_table(SchemaRegistryConfig)),
        (SESSION, class_table(SessionConfig)),
        (PROCESSORS, class_table(AppSettings)),
        (RETRIES, class_table(Retries)),
        (LIMITS, class_table(DeadLetterLimits)),
        (BROKER, broker_table(BROKER_SETTINGS)),
        (TOPICS, topic_rows()),
    ]
    return HEAD + "".join(intro + table for intro, table in parts)


def main() -> None:
    """Write or check."""
    text = page()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit("docs/configuration.md is out of date: run python tools/config_docs.py")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
