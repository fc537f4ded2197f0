"""The commands ``onceflow acls``: list, add and remove rules of who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import Row, json_option, print_json, print_rows
from onceflow.cli.values import require_consent

if TYPE_CHECKING:
    from onceflow.sdk import AclBinding, AclFilter

RESOURCES = ("topic", "group", "cluster", "transactional-id", "delegation-token", "user")
OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster-action"),
    *("describe-configs", "alter-configs", "idempotent-write", "create-tokens"),
    *("describe-tokens", "two-phase-commit"),
)
COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")


@click.group(cls=Group, epilog="Example: onceflow acls list --principal User:alice")
def acls() -> None:
    """List, add and remove rules of who may do what."""


def _constant(word: str) -> str:
    return word.upper().replace("-", "_")


def _word(constant: str) -> str:
    return constant.lower().replace("_", "-")


def _row(binding: AclBinding) -> Row:
    return {
        "principal": binding.principal,
        "permission": _word(binding.permission.name),
        "operation": _word(binding.operation.name),
        "resource": _word(binding.resource_type.name),
        "name": binding.resource_name,
        "pattern": _word(binding.pattern_type.name),
        "host": binding.host,
    }


def _show(rows: list[Row], as_json: bool, empty: str = "") -> None:
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, COLUMNS, empty)


def _filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which rules are meant; without any, all are."""
    for option in (
        click.option("--pattern", type=click.Choice(["any", "match", "literal", "prefixed"])),
        click.option("--host"),
        click.option("--permission", type=click.Choice(["allow", "deny"])),
        click.option("--operation", type=click.Choice(OPERATIONS)),
        click.option("--name", help="Name of the resource."),
        click.option("--resource", type=click.Choice(RESOURCES)),
        click.option("--principal", help="Such as User:alice."),
    ):
        function = option(function)
    return function


def _filter(**given: str | None) -> AclFilter:
    from onceflow.sdk import (
        AclFilter,
        AclOperation,
        AclPatternType,
        AclPermission,
        AclResourceType,
    )

    return AclFilter(
        AclResourceType[_constant(given["resource"] or "any")],
        given["name"],
        given["principal"],
        AclOperation[_constant(given["operation"] or "any")],
        AclPermission[_constant(given["permission"] or "any")],
        given["host"],
        AclPatternType[_constant(given["pattern"] or "any")],
    )


@acls.command("list", epilog="Example: onceflow acls list --resource topic --name orders")
@_filter_options
@json_option
@connected
def list_acls(connection: Connection, as_json: bool, **given: str | None) -> None:
    """List rules, all or those that the options describe.

    With --pattern match, NAME finds prefixed rules and those of "*" too.
    """
    with connection.admin() as admin:
        found = admin.describe_acls(_filter(**given))
    _show([_row(each) for each in sorted(found)], as_json, "there are no such rules")


@acls.command(
    "add", epilog="Example: onceflow acls add User:alice read write --resource topic --name orders"
)
@click.argument("principal")
@click.argument("operations", nargs=-1, required=True, type=click.Choice(OPERATIONS))
@click.option("--resource", type=click.Choice(RESOURCES), required=True)
@click.option("--name", help="Name of the resource; the cluster needs none.")
@click.option("--prefixed", is_flag=True, help="NAME is the beginning of names.")
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@click.option("--deny", is_flag=True, help="Forbid it, whatever other rules allow.")
@json_option
@connected
def add(
    connection: Connection,
    principal: str,
    operations: tuple[str, ...],
    resource: str,
    name: str | None,
    prefixed: bool,
    host: str,
    deny: bool,
    as_json: bool,
) -> None:
    """Allow a principal some operations on a resource, or deny them."""
    from onceflow.sdk import (
        AclBinding,
        AclOperation,
        AclPatternType,
        AclPermission,
        AclResourceType,
    )

    if ":" not in principal:
        raise click.BadParameter(f"{principal!r}: must be TYPE:NAME, such as User:{principal}")
    if name is None:
        if resource != "cluster":
            raise click.UsageError(f"--name: which {resource}? '*' for any")
        name = "kafka-cluster"
    bindings = [
        AclBinding(
            AclResourceType[_constant(resource)],
            name,
            principal,
            AclOperation[_constant(operation)],
            AclPermission.DENY if deny else AclPermission.ALLOW,
            host,
            AclPatternType.PREFIXED if prefixed else AclPatternType.LITERAL,
        )
        for operation in operations
    ]
    with connection.admin() as admin:
        admin.create_acls(bindings)
    _show([_row(each) for each in bindings], as_json)


@acls.command("remove", epilog="Example: onceflow acls remove --principal User:alice --yes")
@_filter_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def remove(connection: Connection, yes: bool, as_json: bool, **given: str | None) -> None:
    """Remove the rules that the options describe, and show them."""
    if not any(given.values()):
        raise click.UsageError("which rules: give --principal, --resource or another option")
    wanted = _filter(**given)
    with connection.admin() as admin:
        found = admin.describe_acls(wanted)
        if not found:
            raise Failure("there are no such rules\nNext: onceflow acls list shows them all", 3)
        listed = "\n".join("  " + " ".join(map(str, _row(each).values())) for each in sorted(found))
        require_consent(f"remove {len(found)} rules?\n{listed}\n", yes)
        (removed,) = admin.delete_acls([wanted]).values()
    _show([_row(each) for each in sorted(removed)], as_json)
