"""Writes docs/configuration.md with all settings, and the tables of options in docs/spark.md.

``python tools/config_docs.py`` writes them; ``--check`` only reports whether they are up to date.
Names, defaults and sentences come from the configuration classes, so that they match the code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.topic_config import TOPIC_SETTINGS
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.processors import DeadLetterLimits, Retries
from onceflow.processors.settings import AppSettings
from onceflow.sdk import ClientSettings
from onceflow.sdk.schema_registry import SchemaRegistryConfig
from onceflow.sdk.settings.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
)
from onceflow.sdk.settings.declare import REQUIRED, Kind, Setting, Settings
from onceflow.spark_integration.options import SinkSettings, SourceSettings
from onceflow.transactions.config import SessionConfig, SessionSettings

DOCS = Path(__file__).resolve().parents[1] / "docs"
TARGET = DOCS / "configuration.md"
SPARK = DOCS / "spark.md"
FOREVER = 2**31 - 1
HEAD = """# Configuration

This page lists every setting with its default. A setting that Kafka has too has Kafka's name and
meaning, and Kafka's default unless the row says otherwise. A wrong name or value raises
`ConfigError` before any request is sent; the error names the setting, the value and the remedy.
`tools/config_docs.py` writes this page.

- [Clients](#clients) · [Security](#security) · [Producer](#producer) · [Consumer](#consumer)
- [Schema registry](#schema-registry) · [Session](#session) · [Processors](#processors)
- [Broker](#broker) · [Topics](#topics)
- Spark: [spark.md](spark.md) lists the options; `kafka.` before a client's property is one too.
"""
CLIENTS = """
## Clients

Give them as keyword arguments to `Producer`, `Consumer`, `Admin` and the `Async` classes, or as
`config=`: a configuration object or a dictionary of Kafka's dotted names. Keyword arguments
override `config=`. `ProducerConfig.load(file=, environ=, properties=, **settings)` and the same
call of the other classes read several places; of default, file, environment, properties and keyword
arguments, the later one wins. `from_properties`, `from_env` and `from_file` read one place.

`ClientSettings` holds settings for all clients of a program. `ClientSettings.load(...)` reads the
same places; `client.producer()`, `.consumer()` and `.admin()` return configurations. Sessions and
applications take it (or a dictionary, or a file's path) as `client=`.

| place | form |
| --- | --- |
| properties | `bootstrap.servers`, `sasl.jaas.config` ...: the Java client's names, or ours |
| one kind of client | `producer.client.id`, likewise `consumer.` and `admin.` |
| environment | `ONCEFLOW_LINGER_MS`; `ONCEFLOW_PRODUCER_LINGER_MS` for producers only |
| `*.toml` | `[client]`, `[security]`, `[producer]`, `[consumer]`, `[admin]`; dotted names or ours |
| any other file | Java's properties |

Several clients may share a file. One warning of the logger `onceflow.sdk.settings` lists the names
that belong to another client or have no effect here (`client.dns.lookup`). Names of librdkafka and
others that mean something else here raise an error that names the replacement. No repr and no error
shows passwords or tokens.

"""
SECURITY = """
## Security

Fields of `onceflow.sdk.SecurityConfig`, which clients take as `security=`.

"""
PRODUCER = "\n## Producer\n\nKeyword arguments of `Producer` and `AsyncProducer`.\n\n"
CONSUMER = "\n## Consumer\n\nKeyword arguments of `Consumer` and `AsyncConsumer`.\n\n"
SCHEMA_REGISTRY = """
## Schema registry

Keyword arguments of `onceflow.sdk.schema_registry.SchemaRegistry` and `AsyncSchemaRegistry`.
[serialization.md](serialization.md) describes the arguments of serdes.

"""
SESSION = """
## Session

Keyword arguments of `onceflow.transactions.SessionConfig`, and of `TransactionSession` itself.
They also take settings of clients (`linger_ms=20`), which go to the clients that have them;
`consumer_settings` and `producer_settings` are dictionaries for one kind of client. A session
requires what exactly-once needs: read_committed, no automatic commits, idempotence. At the start it
checks the time limits against each other: `commit_interval_ms` < `transaction_timeout_ms` <=
`session_timeout_ms` <= `max_poll_interval_ms`, and `revoke_budget_ms` < `max_poll_interval_ms`.

"""
CHANGED = "\nSettings of clients that have other defaults in a session:\n\n"
PROCESSORS = """
## Processors

Keyword arguments of `onceflow.processors.App`, beside those of clients and sessions, which an
application passes on: `App("shout", client="cloud.properties", linger_ms=20)`. The options
`--config`, `--profile`, `--bootstrap`, `--state-dir` and `--slot` of `onceflow run` and
`ONCEFLOW_*` variables override some of them ([command line](command-line.md#connecting)).

"""
RETRIES = "\n`retries=Retries(...)` of a processor:\n\n"
LIMITS = "\n`limits=DeadLetterLimits(...)` of a processor:\n\n"
BROKER = """
## Broker

Set them by `onceflow broker --set NAME=VALUE`, or in process by `Broker(settings={NAME: VALUE})`.
[kafka-differences.md](kafka-differences.md#different-defaults) lists the defaults that differ. The
broker refuses a setting of Kafka that is not listed here, as it would have no effect.

"""
TOPICS = """
## Topics

Set them when you create a topic, or later by any admin client. The broker's setting in the last
column is the default.

| setting | default | meaning | broker's setting |
| --- | --- | --- | --- |
"""
TABLE = "| setting | default | meaning |\n| --- | --- | --- |\n"


def cell(text: str) -> str:
    """Text as Markdown within a table."""
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


def default_text(value: object) -> str:
    """A default as the reader would write it, large numbers with separators."""
    if value is REQUIRED:
        return "required"
    if isinstance(value, SecurityConfig):
        return "plain text"
    if value in ((), ClientSettings()):
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple) and all(inspect.isclass(entry) for entry in value):
        return ", ".join(f"`{entry.__name__}`" for entry in value)
    if isinstance(value, Path):
        return f"`{value}`"
    return "none" if value is None else f"`{value!r}`".replace("'", '"')


def class_table(owner: type[Settings], leave_out: type[Settings] = Settings) -> str:
    """One row for each setting, in the order of the declaration."""
    return TABLE + "".join(
        f"| `{name}` | {default_text(setting.default)} | {cell(meaning(setting))} |\n"
        for name, setting in owner.declared.items()
        if name not in leave_out.declared
    )


def session_defaults() -> str:
    """One row for each setting of a client that has another default in a session."""
    session = SessionConfig(topics=["t"], group_id="GROUP", slot="SLOT")
    rows = []
    for clients in (session.producer, session.consumer):
        for name, setting in clients.declared.items():
            value = getattr(clients, name)
            if value != setting.default and name != "group_id":
                rows.append(
                    f"| `{name}` | {default_text(value)} | {default_text(setting.default)} |\n"
                )
    return "| setting | in a session | else |\n| --- | --- | --- |\n" + "".join(rows)


def meaning(setting: Setting) -> str:
    """What a setting does, with Kafka's name of it and what it may be."""
    return (f"`{setting.kafka}`: " if setting.kafka else "") + setting.text + choices(setting)


def choices(setting: Setting) -> str:
    """The allowed words."""
    words = [str(word) for word in setting.choices if isinstance(word, str) and word]
    told = all(f"`{word}`" in setting.text for word in words)
    some = "Some" if setting.kind is Kind.LIST else "One"
    return "" if told else f" {some} of {', '.join(words)}."


def setting_default(setting: Setting) -> str:
    """The default of a broker's or topic's setting."""
    value = setting.default
    if value in (None, "", ()):
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
        rows.append(f"| `{name}` | {default} | {cell(setting.text + choices(setting))} |\n")
    return TABLE + "".join(rows)


def topic_rows() -> str:
    """One row for each topic setting."""
    return "".join(
        f"| `{name}` | {setting_default(setting)} | {cell(setting.text + choices(setting))} | "
        f"{', '.join(f'`{synonym}`' for synonym in setting.aliases)} |\n"
        for name, setting in TOPIC_SETTINGS.items()
    )


def page() -> str:
    """The whole page."""
    assert AdminConfig.declared == ClientConfig.declared, "Admin has no section"
    parts = [
        (CLIENTS, class_table(ClientConfig)),
        (SECURITY, class_table(SecurityConfig)),
        (PRODUCER, class_table(ProducerConfig, ClientConfig)),
        (CONSUMER, class_table(ConsumerConfig, ClientConfig)),
        (SCHEMA_REGISTRY, class_table(SchemaRegistryConfig)),
        (SESSION, class_table(SessionConfig)),
        (CHANGED, session_defaults()),
        (PROCESSORS, class_table(AppSettings, SessionSettings)),
        (RETRIES, class_table(Retries)),
        (LIMITS, class_table(DeadLetterLimits)),
        (BROKER, broker_table(BROKER_SETTINGS)),
        (TOPICS, topic_rows()),
    ]
    return HEAD + "".join(intro + table for intro, table in parts)


def spark_page(text: str) -> str:
    """The page about Spark with the tables of options as they are declared."""
    for side, owner in (("source", SourceSettings), ("sink", SinkSettings)):
        rows = "".join(
            f"| `{setting.name}` | {default_text(setting.default)} | {cell(meaning(setting))} |\n"
            for setting in owner.declared.values()
        )
        head, begin, rest = text.partition(f"<!-- {side} options -->\n")
        table = TABLE.replace("setting", "option", 1) + rows
        text = head + begin + table + rest[rest.index("<!-- end -->") :]
    return text


def main() -> None:
    """Write or check."""
    for path, text in ((TARGET, page()), (SPARK, spark_page(SPARK.read_text()))):
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is out of date: run python tools/config_docs.py")


if __name__ == "__main__":
    main()
