"""What commands print: one JSON document with ``--json``, else columns for people.

Columns are aligned and never cut, so that a name can be copied. The rows of both forms are the
same values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, object]


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flag ``--json``; it gets ``as_json``.

    Args:
        function: The command's function.
    """
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
    return option(function)


def print_json(value: object) -> None:
    """Print one JSON document.

    Args:
        value: Dictionaries, lists, texts, numbers.
    """
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_rows(rows: Sequence[Row], columns: Sequence[str], empty: str = "") -> None:
    """Print rows as aligned columns under headings.

    Args:
        rows: Values by name of the column.
        columns: Which ones, from left to right.
        empty: What to say on standard error when there are no rows.
    """
    if not rows:
        if empty:
            click.echo(empty, err=True)
        return
    lines = [[name.upper().replace("_", " ") for name in columns]]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={inner}" for name, inner in value.items()) or "-"
    return str(value)
