"""Writes tables of facts from the code into pages: what is served, and every limit.

``python tools/tables_docs.py`` writes between the marks in docs/kafka-differences.md and
docs/design.md; ``--check`` only tells whether the pages are up to date. A limit is a constant with
MAX among the words of its name and a text below it; the first sentence of that text is its row.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onceflow.broker_lite.registry import load_handlers
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.processors.settings import AppSettings
from onceflow.sdk.settings.config import ConsumerConfig, ProducerConfig
from onceflow.sdk.settings.declare import Settings

ROOT = Path(__file__).resolve().parents[1]
AREAS = ("sdk", "broker_lite", "transactions", "processors", "spark_integration")
DESIGN = ROOT / "docs" / "design.md"
DIFFERENCES = ROOT / "docs" / "kafka-differences.md"

SETTINGS: tuple[tuple[type[Settings], Sequence[str]], ...] = (
    (ProducerConfig, ("buffer_memory", "max_request_size", "max_response_bytes")),
    (ConsumerConfig, ("fetch_max_bytes", "max_partition_fetch_bytes", "max_poll_records")),
    (BrokerConfig, ("socket_request_max_bytes", "queued_max_request_bytes", "max_connections")),
    (AppSettings, ("aborts_max", "commit_records")),
)
"""Settings that bound memory or work."""

BOUNDS = (
    "broker_lite/dispatch.py::MAX_REQUEST_VALUES",
    "sdk/protocol/record_validation.py::MAX_RECORDS",
    "sdk/protocol/record_validation.py::MAX_UNPACKED_BYTES",
    "broker_lite/handlers/cluster.py::MADE_PARTITIONS_MAX",
    "broker_lite/handlers/fetch.py::UNSENT_BYTES_MAX",
    "broker_lite/log/storage.py::OPEN_FILES_MAX",
    "broker_lite/security/authorizer.py::ACLS_MAX",
    "broker_lite/security/scram_users.py::USERS_MAX",
)
"""Limits that a client of the broker can meet, and Apache Kafka does not have."""

NO_LIMITS = {"CLASSIC_TRANSACTIONS_MAX", "TOPIC_NAMES_MAX", "MAX_TIMESTAMP", "MAX_PRODUCER_EPOCH"}
"""Versions and special values, which only have MAX in their names."""


class Limit(NamedTuple):
    """One constant.

    Attributes:
        place: Path and name.
        value: The number, with its unit.
        text: What stands below it.
    """

    place: str
    value: str
    text: str


def limits() -> Iterator[Limit]:
    """Every limit of the product, but for those of tests."""
    paths = sorted(path for area in AREAS for path in (ROOT / area).rglob("*.py"))
    for path in paths:
        here = str(path.relative_to(ROOT))
        if "/testing" in here:
            continue
        body = ast.parse(path.read_text()).body
        for node, after in itertools.pairwise(body):
            name, value = _constant(node)
            text = _text(after)
            if "MAX" in name.split("_") and name not in NO_LIMITS and value is not None and text:
                yield Limit(f"{here}::{name}", shown(name, value), text)


def _constant(node: ast.stmt) -> tuple[str, float | None]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        target, value = node.target, node.value
    else:
        return "", None
    kinds = (ast.Constant, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop)
    if not all(isinstance(part, kinds) for part in ast.walk(value)):
        return target.id, None
    number = eval(compile(ast.Expression(value), "limit", "eval"))  # Only numbers are in it.
    return target.id, number if isinstance(number, int | float) else None


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        found = re.sub(r"\s+", " ", str(node.value.value))
        return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", found).replace("``", "`").replace("|", "\\|")
    return ""


def first_sentence(text: str) -> str:
    """The first sentence."""
    found = re.match(r".*?\.(?= [A-Z]|$)", text)
    return found[0] if found else text


def shown(name: str, value: float) -> str:
    """A number as pages show it, with the unit that its name tells."""
    words = name.split("_")
    if "BYTES" in words:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{int(value) // size} {unit}"
        return f"{value:,} bytes"
    units = [unit for word, unit in (("MS", "ms"), ("S", "s"), ("SECONDS", "s")) if word in words]
    return " ".join([f"{value:,}", *units])


def limits_table() -> str:
    """Settings that bound something, then the constants."""
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for settings, names in SETTINGS:
        for name in names:
            setting = settings.declared[name]
            value = f"{setting.default:,}"
            rows.append(f"| `{setting.name}` ({settings.kind}) | {value} | {setting.text} |")
    rows += ["", "| limit | constant | of | |", "| --- | --- | --- | --- |"]
    for limit in limits():
        module, _, name = limit.place.partition("::")
        rows.append(f"| {limit.value} | `{name}` | `{module}` | {first_sentence(limit.text)} |")
    return "\n".join(rows)


def bounds_table() -> str:
    """Bounds of the broker that Apache Kafka does not have."""
    found = {limit.place: limit for limit in limits()}
    rows = [
        f"| {found[place].value} | `{place.rpartition(':')[2]}` | {found[place].text} |"
        for place in BOUNDS
    ]
    return "\n".join(["| bound | name | |", "| --- | --- | --- |", *rows])


def served_table() -> str:
    """Requests that the broker's handlers serve, with their versions."""
    rows = ["| key | request | versions |", "| --- | --- | --- |"]
    for served in load_handlers().registrations():
        kind = served.request_type
        versions = _range(served.min_version, served.max_version)
        if served.advertised_min_version < served.min_version:
            advertised = _range(served.advertised_min_version, served.min_version - 1)
            versions += f" ({advertised} advertised)"
        name = kind.__name__.removesuffix("Request")
        rows.append(f"| {kind.api_key} | {name} | {versions} |")
    return "\n".join(rows)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def pages() -> dict[Path, str]:
    """The pages with their tables written anew.

    Raises:
        ValueError: The marks of a table are missing.
    """
    found = {}
    for path, tables in (
        (DESIGN, {"limits": limits_table()}),
        (DIFFERENCES, {"served": served_table(), "bounds": bounds_table()}),
    ):
        text = path.read_text()
        for name, table in tables.items():
            marks = rf"(<!-- begin {name} [^>]*-->\n)(?:.*?)(<!-- end {name} -->)"
            parts = re.split(marks, text, flags=re.S)
            if len(parts) != 4:
                raise ValueError(f"{path} needs the marks of {name} exactly once")
            before, begin, end, after = parts
            text = f"{before}{begin}\n{table}\n\n{end}{after}"
        found[path] = text
    return found


def main() -> None:
    """Write or check."""
    for path, text in pages().items():
        if path.read_text() != text:
            if "--check" in sys.argv:
                sys.exit(f"{path} is out of date: run make fix")
            path.write_text(text)


if __name__ == "__main__":
    main()
