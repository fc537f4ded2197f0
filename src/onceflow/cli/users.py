"""The commands ``onceflow users``: list users with SCRAM passwords, set and remove passwords."""

from __future__ import annotations

import sys

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.values import require_consent

MECHANISMS = click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"])


@click.group(cls=Group, epilog="Example: onceflow users list")
def users() -> None:
    """List users with SCRAM passwords, set and remove passwords."""


@users.command("list", epilog="Example: onceflow users list")
@click.argument("names", metavar="[USER...]", nargs=-1)
@json_option
@connected
def list_users(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """List users with the mechanisms that they have passwords for."""
    with connection.admin() as admin:
        found = admin.describe_user_scram_credentials(names or None)
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, mechanisms in sorted(found.items())
        for mechanism, iterations in sorted(mechanisms.items())
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["user", "mechanism", "iterations"]
        print_rows(rows, columns, "no user has a SCRAM password")


@users.command("set", epilog="Example: onceflow users set alice < password.txt")
@click.argument("name", metavar="USER")
@click.option("--mechanism", type=MECHANISMS, default="SCRAM-SHA-512", show_default=True)
@click.option("--iterations", type=int, default=8192, show_default=True)
@json_option
@connected
def set_password(
    connection: Connection, name: str, mechanism: str, iterations: int, as_json: bool
) -> None:
    """Set a user's password: asked for twice, or the first line of standard input.

    Only a salted hash of it is sent.
    """
    from onceflow.sdk import ScramUpsertion

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Failure("the password is empty\nNext: write it to standard input", 2)
    with connection.admin() as admin:
        admin.alter_user_scram_credentials([ScramUpsertion(name, password, mechanism, iterations)])
    row = {"user": name, "mechanism": mechanism, "iterations": iterations}
    if as_json:
        print_json(row)
    else:
        print_rows([row], ["user", "mechanism", "iterations"])


@users.command("remove", epilog="Example: onceflow users remove alice --yes")
@click.argument("name", metavar="USER")
@click.option("--mechanism", type=MECHANISMS, default="SCRAM-SHA-512", show_default=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def remove(connection: Connection, name: str, mechanism: str, yes: bool, as_json: bool) -> None:
    """Remove a user's password for one mechanism."""
    from onceflow.sdk import ScramDeletion

    require_consent(f"remove the {mechanism} password of {name}?", yes)
    with connection.admin() as admin:
        admin.alter_user_scram_credentials(deletions=[ScramDeletion(name, mechanism)])
    row = {"user": name, "mechanism": mechanism, "result": "removed"}
    if as_json:
        print_json(row)
    else:
        print_rows([row], ["user", "mechanism", "result"])
