"""The commands ``onceflow groups``: list, describe with lag, reset, remove members, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.values import partition_of, require_consent, time_ms

if TYPE_CHECKING:
    from onceflow.sdk import Admin, GroupDescription, TopicPartition


@click.group(cls=Group, epilog="Example: onceflow groups describe billing")
def groups() -> None:
    """Show groups and their lag, reset their offsets, remove members."""


@groups.command("list", epilog="Example: onceflow groups list --state Stable")
@click.option("--state", "states", multiple=True, help="Only groups in this state.")
@json_option
@connected
def list_groups(connection: Connection, states: tuple[str, ...], as_json: bool) -> None:
    """List groups with their states."""
    with connection.admin() as admin:
        found = admin.list_groups(states=states)
    rows = [
        {
            "group": each.group_id,
            "state": each.state,
            "type": each.type,
            "protocol_type": each.protocol_type,
        }
        for each in sorted(found)
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["group", "state", "type"], "there are no groups")


@groups.command("describe", epilog="Example: onceflow groups describe billing --json")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@json_option
@connected
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show members, committed offsets and lag.

    LAG is in records up to the end of the partition, those of open transactions included.
    """
    with connection.admin() as admin:
        found = [_described(admin, each) for each in admin.describe_groups(names).values()]
    if as_json:
        print_json(found)
        return
    for group in found:
        click.echo(f"{group['group']}  {group['state']}  {group['type']}  lag {group['lag']}")
        print_rows(
            group["partitions"],
            ["topic", "partition", "committed", "end", "lag", "member", "client_id", "host"],
            "nothing is committed",
        )


def _described(admin: Admin, group: GroupDescription) -> dict[str, Any]:
    """One group: who reads which partition, and how far the committed offset is behind its end.

    Raises:
        Failure: There is no such group.
    """
    committed = admin.list_group_offsets(group.group_id)
    if group.state == "Dead" and not committed:
        raise Failure(
            f"there is no group {group.group_id!r}\nNext: onceflow groups list shows the groups", 3
        )
    owners = {place: member for member in group.members for place in member.assignment}
    places = sorted(owners.keys() | committed.keys())
    end = admin.list_offsets(dict.fromkeys(places, "latest")) if places else {}
    rows: list[dict[str, object]] = []
    for place in places:
        offset = committed[place].offset if place in committed else None
        member = owners.get(place)
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": end[place].offset,
                "lag": None if offset is None else max(0, end[place].offset - offset),
                "member": member and member.member_id,
                "client_id": member and member.client_id,
                "host": member and member.client_host,
            }
        )
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "protocol": group.protocol_name,
        "lag": sum(lag for row in rows if isinstance(lag := row["lag"], int)),
        "members": [
            {
                "member": each.member_id,
                "instance": each.group_instance_id,
                "client_id": each.client_id,
                "host": each.client_host,
                "partitions": [f"{p.topic}:{p.partition}" for p in sorted(each.assignment)],
            }
            for each in group.members
        ],
        "partitions": rows,
    }


@groups.command("reset", epilog="Example: onceflow groups reset billing --to-time 2h --dry-run")
@click.argument("name", metavar="GROUP")
@click.option("--to", metavar="earliest|latest|OFFSET", help="Start, end, or an offset.")
@click.option("--to-time", metavar="TIME", help="2026-01-31T12:00Z, milliseconds, or 2h for ago.")
@click.option("--shift-by", type=int, help="Records forward, or back if negative.")
@click.option("--topic", "wanted", metavar="TOPIC[:PARTITION]", multiple=True, help="Only these.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets.")
@json_option
@connected
def reset(
    connection: Connection,
    name: str,
    to: str | None,
    to_time: str | None,
    shift_by: int | None,
    wanted: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change the committed offsets of a group that has no members."""
    if sum(each is not None for each in (to, to_time, shift_by)) != 1:
        raise click.UsageError("give one of --to, --to-time and --shift-by")
    target = int(to) if to is not None and to.isascii() and to.isdigit() else to
    at_ms = None if to_time is None else time_ms(to_time)
    with connection.admin() as admin:
        plan = admin.reset_group_offsets(
            name,
            _partitions(admin, wanted) if wanted else None,
            to=target,
            to_time_ms=at_ms,
            shift_by=shift_by,
            dry_run=dry_run,
        )
    rows = [
        {"topic": p.topic, "partition": p.partition, "current": step.current, "new": step.new}
        for p, step in sorted(plan.items())
    ]
    if as_json:
        print_json({"group": name, "dry_run": dry_run, "partitions": rows})
        return
    print_rows(rows, ["topic", "partition", "current", "new"])
    click.echo(f"{name}: {'nothing was changed (--dry-run)' if dry_run else 'reset'}", err=True)


def _partitions(admin: Admin, wanted: tuple[str, ...]) -> list[TopicPartition]:
    """Partitions of ``TOPIC`` and ``TOPIC:PARTITION`` texts."""
    from onceflow.sdk import TopicPartition

    single = [partition_of(text) for text in wanted if ":" in text]
    names = [text for text in wanted if ":" not in text]
    for name, topic in (admin.describe_topics(names) if names else {}).items():
        single += [TopicPartition(name, each.partition) for each in topic.partitions]
    return single


@groups.command(
    "remove-member", epilog="Example: onceflow groups remove-member billing --instance billing-3"
)
@click.argument("name", metavar="GROUP")
@click.argument("members", metavar="[MEMBER]...", nargs=-1)
@click.option("--instance", "instances", metavar="ID", multiple=True, help="A static member.")
@click.option("--all", "everyone", is_flag=True, help="All members.")
@click.option("--reason", help="What the coordinator's log says.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def remove_member(
    connection: Connection,
    name: str,
    members: tuple[str, ...],
    instances: tuple[str, ...],
    everyone: bool,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Make members leave a group, so that the others take over their partitions.

    MEMBER is a member id, as "groups describe" shows it. A member that still runs joins again.
    """
    if everyone == bool(members or instances):
        raise click.UsageError("name members by MEMBER or --instance, or give --all")
    whom = "all members" if everyone else ", ".join([*members, *instances])
    require_consent(f"remove {whom} from {name}?", yes)
    from onceflow.sdk.errors import UnknownMemberIdError

    with connection.admin() as admin:
        try:
            gone = admin.remove_members_from_consumer_group(
                name,
                None if everyone else members,
                instance_ids=None if everyone else instances,
                reason=reason,
            )
        except UnknownMemberIdError as error:
            step = f"onceflow groups describe {name} shows the members"
            raise Failure(f"{error}\nNext: {step}", 3) from error
    rows = [{"group": name, "member": each, "result": "removed"} for each in gone]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["group", "member", "result"], f"{name} has no members")


@groups.command("delete", epilog="Example: onceflow groups delete billing --yes")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def delete(connection: Connection, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete groups without members, with their committed offsets."""
    require_consent(f"delete {', '.join(names)} with their committed offsets?", yes)
    with connection.admin() as admin:
        admin.delete_groups(names)
    rows = [{"group": name, "result": "deleted"} for name in names]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["group", "result"])
