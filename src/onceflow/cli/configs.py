"""The commands ``onceflow configs``: describe and alter settings of topics, brokers and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.values import pairs

if TYPE_CHECKING:
    from onceflow.sdk import ConfigResource

SECRETS = ("password", "secret", "jaas")
"""Parts of names whose values are not taken from the command line."""
KINDS = ("topic", "broker", "broker-logger", "client-metrics", "group")


@click.group(cls=Group, epilog="Example: onceflow configs describe broker 1")
def configs() -> None:
    """Show and change settings of topics, brokers, groups."""


def _resource(kind: str, name: str) -> ConfigResource:
    """The resource that two words name."""
    from onceflow.sdk import ConfigResource, ResourceType

    return ConfigResource(ResourceType[kind.upper().replace("-", "_")], name)


@configs.command("describe", epilog="Example: onceflow configs describe topic orders --all")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Also what has its default.")
@json_option
@connected
def describe(connection: Connection, kind: str, name: str, everything: bool, as_json: bool) -> None:
    """Show settings that were changed; NAME is a topic, a node id, a group.

    Brokers never send the values of passwords.
    """
    resource = _resource(kind, name)
    with connection.admin() as admin:
        found = admin.describe_configs([resource])[resource]
    rows = [
        {
            "name": each.name,
            "value": each.value,
            "default": each.is_default,
            "read_only": each.is_read_only,
            "sensitive": each.is_sensitive,
        }
        for _, each in sorted(found.items())
        if everything or not each.is_default
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["name", "value", *(["default", "read_only"] if everything else ["read_only"])]
        print_rows(rows, columns, "nothing was changed; --all shows the defaults")


def _values_of(file: Path) -> dict[str, str]:
    """Names and values of a properties file.

    Raises:
        Failure: It cannot be read.
    """
    from onceflow.sdk.settings.properties import parse_properties

    try:
        return dict(parse_properties(file.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError) as error:
        raise Failure(f"--file {file}: cannot be read: {error}", 2) from error


@configs.command(
    "alter", epilog="Example: onceflow configs alter broker 1 --set log.cleaner.threads=2"
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="A new value.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="New values in Java's properties; for those with passwords.",
)
@click.option("--unset", metavar="NAME", multiple=True, help="A setting back to its default.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@json_option
@connected
def alter(
    connection: Connection,
    kind: str,
    name: str,
    changes: tuple[str, ...],
    file: Path | None,
    unset: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change some settings and leave the others; NAME is a topic, a node id, a group."""
    given = pairs(changes, "--set")
    for setting in given:
        if any(word in setting.lower() for word in SECRETS):
            raise click.UsageError(
                f"--set {setting}=...: other users of this machine can read arguments; write it "
                "to a file that only you can read, and give --file"
            )
    from_file = _values_of(file) if file is not None else {}
    wanted: dict[str, str | None] = {**from_file, **given, **dict.fromkeys(unset)}
    if not wanted:
        raise click.UsageError("nothing to change: give --set, --file or --unset")
    with connection.admin() as admin:
        admin.alter_configs({_resource(kind, name): wanted}, validate_only=dry_run)
    if as_json:
        print_json({"kind": kind, "name": name, "settings": sorted(wanted), "dry_run": dry_run})
    else:
        click.echo(f"{kind} {name}: {'could be altered' if dry_run else 'altered'}")
