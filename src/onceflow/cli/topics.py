"""The commands ``onceflow topics``: list, create, describe, alter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.base import Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import Row, json_option, print_json, print_rows
from onceflow.cli.values import pairs, require_consent

if TYPE_CHECKING:
    from onceflow.sdk import Admin, TopicDescription


@click.group(cls=Group, epilog="Example: onceflow topics list")
def topics() -> None:
    """List, create, describe, alter and delete topics."""


@topics.command("list", epilog="Example: onceflow topics list --json")
@click.option("--internal", is_flag=True, help="Also topics of the brokers themselves.")
@json_option
@connected
def list_topics(connection: Connection, internal: bool, as_json: bool) -> None:
    """List topics with their numbers of partitions and replicas."""
    with connection.admin() as admin:
        names = admin.list_topics(include_internal=internal)
        found = admin.describe_topics(names) if names else {}
    rows = [
        {
            "topic": name,
            "partitions": topic.partition_count,
            "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
            "internal": topic.is_internal,
        }
        for name, topic in sorted(found.items())
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["topic", "partitions", "replicas"], "there are no topics")


@topics.command(
    "create",
    epilog="Example: onceflow topics create orders --partitions 6 --set retention.ms=86400000",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", type=click.IntRange(1), help="Default: the brokers' own.")
@click.option("--replicas", type=click.IntRange(1), help="Default: the brokers' own.")
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="A topic setting.")
@click.option("--if-not-exists", is_flag=True, help="Leave topics that exist as they are.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@json_option
@connected
def create(
    connection: Connection,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    changes: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create topics and wait until the brokers show them."""
    from onceflow.sdk import NewTopic
    from onceflow.sdk.errors import TopicAlreadyExistsError

    configs = pairs(changes, "--set")
    rows: list[Row] = []
    with connection.admin() as admin:
        for name in names:
            topic = NewTopic(name, partitions or -1, replicas or -1, configs)
            try:
                admin.create_topics([topic], validate_only=dry_run)
            except TopicAlreadyExistsError:
                if not if_not_exists:
                    raise
                rows.append({"topic": name, "result": "exists"})
            else:
                rows.append({"topic": name, "result": "could be created" if dry_run else "created"})
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["topic", "result"])


@topics.command("describe", epilog="Example: onceflow topics describe orders")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@json_option
@connected
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show partitions with leaders and offsets, and the settings that were changed.

    STABLE is the last stable offset: readers of committed records get no further. Where it stays
    behind END, a transaction is open.
    """
    with connection.admin() as admin:
        described = [_described(admin, each) for each in admin.describe_topics(names).values()]
    if as_json:
        print_json(described)
        return
    for topic in described:
        click.echo(f"{topic['topic']}  id {topic['id']}")
        for name, value in topic["settings"].items():
            click.echo(f"  {name}={value}")
        print_rows(
            topic["partitions"],
            ["partition", "leader", "replicas", "isr", "start", "stable", "end"],
        )


def _described(admin: Admin, topic: TopicDescription) -> dict[str, Any]:
    """One topic: its settings that differ from the defaults, and the offsets of its partitions."""
    from onceflow.sdk import IsolationLevel, TopicPartition

    where = [TopicPartition(topic.name, each.partition) for each in topic.partitions]
    start = admin.list_offsets(dict.fromkeys(where, "earliest"))
    latest = dict.fromkeys(where, "latest")
    stable = admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
    end = admin.list_offsets(latest)
    configs = admin.describe_configs([topic.name])[topic.name]
    return {
        "topic": topic.name,
        "id": str(topic.topic_id),
        "internal": topic.is_internal,
        "settings": {
            name: entry.value for name, entry in sorted(configs.items()) if not entry.is_default
        },
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "start": start[place].offset,
                "stable": stable[place].offset,
                "end": end[place].offset,
            }
            for place, each in zip(where, topic.partitions, strict=True)
        ],
    }


@topics.command("alter", epilog="Example: onceflow topics alter orders --partitions 12")
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(1), help="New total; it can only rise.")
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="A topic setting.")
@click.option("--unset", metavar="NAME", multiple=True, help="A setting back to its default.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@json_option
@connected
def alter(
    connection: Connection,
    name: str,
    partitions: int | None,
    changes: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings of a topic, or raise its number of partitions.

    With more partitions, records with a key may go to another partition than before.
    """
    wanted: dict[str, str | None] = {**pairs(changes, "--set"), **dict.fromkeys(unset)}
    if not wanted and partitions is None:
        raise click.UsageError("nothing to change: give --set, --unset or --partitions")
    with connection.admin() as admin:
        if wanted:  # Checked before the partitions, which cannot be taken back.
            admin.alter_configs({name: wanted}, validate_only=True)
        if partitions is not None:
            admin.create_partitions({name: partitions}, validate_only=dry_run)
        if wanted and not dry_run:
            admin.alter_configs({name: wanted})
    result: dict[str, object] = {"topic": name, "settings": wanted, "dry_run": dry_run}
    if partitions is not None:
        result["partitions"] = partitions
    if as_json:
        print_json(result)
    else:
        click.echo(f"{name}: {'could be altered' if dry_run else 'altered'}")


@topics.command("delete", epilog="Example: onceflow topics delete orders --yes")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def delete(connection: Connection, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete topics with all their records."""
    with connection.admin() as admin:
        admin.describe_topics(names)  # An unknown name ends it before anything is deleted.
        require_consent(f"delete {', '.join(names)} with all records?", yes)
        admin.delete_topics(names)
    rows = [{"topic": name, "result": "deleted"} for name in names]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["topic", "result"])
