"""The commands ``onceflow quotas``: list, set and unset quotas of users, clients and addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onceflow.cli.base import Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.values import pairs

DEFAULT = "<default>"


@click.group(cls=Group, epilog="Example: onceflow quotas list")
def quotas() -> None:
    """Show and change quotas of users, clients and addresses."""


def _entity_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, of in (("ip", "An address"), ("client-id", "A client id"), ("user", "A user")):
        option = click.option(f"--{name}", help=f'{of}; "{DEFAULT}" for all without their own.')
        function = option(function)
    return function


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    """The parts of an entity that were named; None is the default of its type."""
    given = {"user": user, "client-id": client_id, "ip": ip}
    return {
        kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None
    }


@quotas.command("list", epilog="Example: onceflow quotas list --user alice")
@_entity_options
@json_option
@connected
def list_quotas(
    connection: Connection, user: str | None, client_id: str | None, ip: str | None, as_json: bool
) -> None:
    """List quotas, of all or of those entities that have the given parts."""
    with connection.admin() as admin:
        found = admin.describe_client_quotas(_entity(user, client_id, ip) or None)
    rows = [
        {
            "entity": {
                kind: DEFAULT if name is None else name
                for kind, name in sorted(each.entity.items())
            },
            "quotas": dict(sorted(each.quotas.items())),
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["entity", "quotas"], "there are no quotas")


@quotas.command(
    "set", epilog="Example: onceflow quotas set producer_byte_rate=1000000 --client-id reports"
)
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@_entity_options
@json_option
@connected
def set_quotas(
    connection: Connection,
    changes: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    as_json: bool,
) -> None:
    """Set quotas, such as producer_byte_rate, consumer_byte_rate and request_percentage."""
    values: dict[str, float | None] = {}
    for name, text in pairs(changes, "quota").items():
        try:
            values[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{name}={text!r}: must be a number") from None
    _alter(connection, _entity(user, client_id, ip), values, as_json)


@quotas.command("unset", epilog="Example: onceflow quotas unset producer_byte_rate --user alice")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_entity_options
@json_option
@connected
def unset_quotas(
    connection: Connection,
    names: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    as_json: bool,
) -> None:
    """Remove quotas."""
    _alter(connection, _entity(user, client_id, ip), dict.fromkeys(names), as_json)


def _alter(
    connection: Connection,
    entity: dict[str, str | None],
    values: dict[str, float | None],
    as_json: bool,
) -> None:
    if not entity:
        raise click.UsageError("whose: give --user, --client-id or --ip")
    with connection.admin() as admin:
        admin.alter_client_quotas([(entity, values)])
    shown = {kind: DEFAULT if name is None else name for kind, name in entity.items()}
    row = {"entity": shown, "quotas": values}
    if as_json:
        print_json(row)
    else:
        print_rows([row], ["entity", "quotas"])
