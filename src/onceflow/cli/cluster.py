"""The commands ``onceflow cluster``: brokers, features, quorum of controllers, disks."""

from __future__ import annotations

import click

from onceflow.cli.base import Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows


@click.group(cls=Group, epilog="Example: onceflow cluster describe")
def cluster() -> None:
    """Show brokers, features, the quorum and disks."""


@cluster.command("describe", epilog="Example: onceflow cluster describe --json")
@json_option
@connected
def describe(connection: Connection, as_json: bool) -> None:
    """Show the cluster's id and its brokers."""
    with connection.admin() as admin:
        found = admin.describe_cluster()
    rows = [
        {
            "node": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "controller": each.node_id == found.controller_id,
        }
        for each in sorted(found.nodes)
    ]
    if as_json:
        print_json({"cluster_id": found.cluster_id, "brokers": rows})
    else:
        click.echo(f"cluster {found.cluster_id}")
        print_rows(rows, ["node", "host", "port", "rack", "controller"])


@cluster.command("features", epilog="Example: onceflow cluster features")
@json_option
@connected
def features(connection: Connection, as_json: bool) -> None:
    """Show features with the level in force and the levels that the brokers support."""
    with connection.admin() as admin:
        found = admin.describe_features()
    rows = []
    for name in sorted(found.supported.keys() | found.finalized.keys()):
        low, high = found.supported.get(name, (None, None))
        rows.append(
            {"feature": name, "level": found.finalized.get(name), "lowest": low, "highest": high}
        )
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["feature", "level", "lowest", "highest"], "no broker tells its features")


@cluster.command("quorum", epilog="Example: onceflow cluster quorum")
@json_option
@connected
def quorum(connection: Connection, as_json: bool) -> None:
    """Show the quorum of controllers, and how far each is behind the leader."""
    with connection.admin() as admin:
        found = admin.describe_metadata_quorum()
    ends = {each.node_id: each.log_end_offset for each in (*found.voters, *found.observers)}
    head = ends.get(found.leader_id, found.high_watermark)
    rows = [
        {
            "node": each.node_id,
            "role": "leader" if each.node_id == found.leader_id else role,
            "log_end_offset": each.log_end_offset,
            "lag": max(0, head - each.log_end_offset),
            "last_caught_up_timestamp_ms": each.last_caught_up_timestamp_ms,
        }
        for role, replicas in (("voter", found.voters), ("observer", found.observers))
        for each in replicas
    ]
    if as_json:
        print_json({"leader": found.leader_id, "epoch": found.leader_epoch, "replicas": rows})
    else:
        click.echo(f"leader {found.leader_id}, epoch {found.leader_epoch}")
        print_rows(rows, ["node", "role", "log_end_offset", "lag"])


@cluster.command("disks", epilog="Example: onceflow cluster disks --json")
@json_option
@connected
def disks(connection: Connection, as_json: bool) -> None:
    """Show the log folders of brokers, in bytes: size of replicas, size and rest of the volume."""
    with connection.admin() as admin:
        found = admin.describe_log_dirs()
    rows = [
        {
            "node": node,
            "folder": path,
            "replicas": len(folder.replicas),
            "used_bytes": sum(each.size_bytes for each in folder.replicas.values()),
            "volume_bytes": folder.total_bytes if folder.total_bytes >= 0 else None,
            "free_bytes": folder.usable_bytes if folder.usable_bytes >= 0 else None,
            "error_code": folder.error_code,
        }
        for node, folders in sorted(found.items())
        for path, folder in sorted(folders.items())
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["node", "folder", "replicas", "used_bytes", "volume_bytes", "free_bytes"]
        print_rows(rows, [*columns, "error_code"])
