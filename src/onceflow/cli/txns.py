"""The commands ``onceflow txns``: list, describe, find hanging ones, fence, abort, and finish what
two-phase commits have left in doubt."""

from __future__ import annotations

import time

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.database import with_database
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.values import partition_of


@click.group(cls=Group, epilog="Example: onceflow txns list --state Ongoing")
def txns() -> None:
    """Show transactions, find hanging ones, fence producers."""


@txns.command("list", epilog="Example: onceflow txns list --state Ongoing")
@click.option("--state", "states", multiple=True, help="Only in this state, such as Ongoing.")
@click.option("--producer-id", "producers", type=int, multiple=True, help="Only of this producer.")
@json_option
@connected
def list_txns(
    connection: Connection, states: tuple[str, ...], producers: tuple[int, ...], as_json: bool
) -> None:
    """List transactional ids with the states of their transactions."""
    with connection.admin() as admin:
        found = admin.list_transactions(states=states, producer_ids=producers)
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
        }
        for each in sorted(found)
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["transactional_id", "state", "producer_id"]
        print_rows(rows, columns, "there are no transactions")


@txns.command("describe", epilog="Example: onceflow txns describe billing-0")
@click.argument("ids", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_option
@connected
def describe(connection: Connection, ids: tuple[str, ...], as_json: bool) -> None:
    """Show state, producer, age and partitions of transactional ids.

    AGE is that of the open transaction, in milliseconds, by the clock of this machine.
    """
    with connection.admin() as admin:
        found = admin.describe_transactions(ids)
    now_ms = int(time.time() * 1000)
    rows = []
    for each in found.values():
        started = each.transaction_start_time_ms
        rows.append(
            {
                "transactional_id": each.transactional_id,
                "state": each.state,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "timeout_ms": each.transaction_timeout_ms,
                "start_time_ms": started,
                "age_ms": None if started is None else max(0, now_ms - started),
                "partitions": [f"{p.topic}:{p.partition}" for p in sorted(each.partitions)],
            }
        )
    if as_json:
        print_json(rows)
    else:
        columns = ["transactional_id", "state", "producer_id", "producer_epoch", "timeout_ms"]
        print_rows(rows, [*columns, "age_ms", "partitions"])


@txns.command("find-hanging", epilog="Example: onceflow txns find-hanging orders")
@click.argument("topics", metavar="[TOPIC...]", nargs=-1)
@click.option(
    "--max-timeout-ms",
    type=click.IntRange(0),
    default=900_000,
    help="The brokers' transaction.max.timeout.ms; default 15 minutes.",
)
@json_option
@connected
def find_hanging(
    connection: Connection, topics: tuple[str, ...], max_timeout_ms: int, as_json: bool
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Readers of committed records wait behind them. Without topics, all are looked into.
    """
    with connection.admin() as admin:
        found = admin.find_hanging_transactions(
            topics or None, max_transaction_timeout_ms=max_timeout_ms
        )
    rows = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "start_offset": each.producer.transaction_start_offset,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "last_timestamp_ms": each.producer.last_timestamp_ms,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
        return
    columns = ["topic", "partition", "start_offset", "producer_id", "producer_epoch"]
    print_rows(rows, columns, "no transaction hangs")
    if rows:
        where = f"{rows[0]['topic']}:{rows[0]['partition']}"
        step = f"onceflow txns abort {where} --start-offset {rows[0]['start_offset']}"
        click.echo(f"Next: {step}", err=True)


@txns.command("fence", epilog="Example: onceflow txns fence billing-0")
@click.argument("ids", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_option
@connected
def fence(connection: Connection, ids: tuple[str, ...], as_json: bool) -> None:
    """End producers safely: abort their open transactions, and refuse what they send later."""
    with connection.admin() as admin:
        found = admin.fence_producers(ids)
    rows = [
        {
            "transactional_id": name,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
        }
        for name, each in found.items()
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["transactional_id", "producer_id", "producer_epoch"])


@txns.command("abort", epilog="Example: onceflow txns abort orders:0 --start-offset 1234")
@click.argument("place", metavar="TOPIC:PARTITION")
@click.option("--start-offset", type=click.IntRange(0), help="Where it begins, of find-hanging.")
@click.option("--producer-id", type=click.IntRange(0), help="Its producer.")
@click.option("--force", is_flag=True, help="Also if it is alive: a later commit loses records.")
@json_option
@connected
def abort(
    connection: Connection,
    place: str,
    start_offset: int | None,
    producer_id: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """End a hanging transaction in one partition.

    A transaction that its coordinator will end is refused: txns fence ends it safely.
    """
    from onceflow.sdk.errors import IllegalStateError

    if start_offset is None and producer_id is None:
        raise click.UsageError("which one: give --start-offset or --producer-id")
    with connection.admin() as admin:
        try:
            ended = admin.abort_transaction(
                partition_of(place), start_offset=start_offset, producer_id=producer_id, force=force
            )
        except IllegalStateError as error:
            step = "onceflow txns fence TRANSACTIONAL_ID ends a live one; txns find-hanging lists"
            raise Failure(f"{error}\nNext: {step} those that hang", 6) from error
    shown = {
        "partition": place,
        "producer_id": ended.producer_id,
        "producer_epoch": ended.producer_epoch,
        "start_offset": ended.transaction_start_offset,
    }
    if as_json:
        print_json(shown)
    else:
        print_rows([shown], ["partition", "producer_id", "producer_epoch", "start_offset"])


@txns.command("in-doubt", epilog="Example: onceflow txns in-doubt --dsn postgresql:///shop")
@with_database
@click.option("--id", "ids", multiple=True, help="A transactional id that brokers have forgotten.")
@json_option
@connected
def in_doubt(connection: Connection, ids: tuple[str, ...], dsn: str, as_json: bool) -> None:
    """List what two-phase commits have prepared in a database and not finished.

    It holds its locks until its session starts again, or txns resolve finishes it. DECISION is
    commit where the decision log names it; else its process may live and still commit. Only the
    transactions of the database in the address are listed.
    """
    from onceflow.transactions.two_phase import list_in_doubt

    found = list_in_doubt(dsn, client=connection.settings, transactional_ids=ids)
    rows = [
        {
            "gid": each.gid,
            "transactional_id": each.transactional_id,
            "prepared_at": each.prepared_at.isoformat(timespec="milliseconds"),
            "owner": each.owner,
            "decision": "commit" if each.decided else None,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
        return
    columns = ["gid", "transactional_id", "prepared_at", "owner", "decision"]
    print_rows(rows, columns, "nothing is in doubt")
    if rows:
        known = sorted({str(row["transactional_id"]) for row in rows if row["transactional_id"]})
        step = f"onceflow txns resolve {known[0]}" if known else "onceflow txns in-doubt --id ID"
        click.echo(f"Next: {step}", err=True)


@txns.command("resolve", epilog="Example: onceflow txns resolve bank-0 --dsn postgresql:///shop")
@click.argument("ids", metavar="[TRANSACTIONAL_ID...]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that txns in-doubt lists with an id.")
@with_database
@json_option
@connected
def resolve(
    connection: Connection, ids: tuple[str, ...], every: bool, dsn: str, as_json: bool
) -> None:
    """Finish what two-phase commits have prepared, as the decision log says.

    The transactional id is fenced first, so that the decision is final: a process that lives under
    it undoes its open work and does it again. What is decided is committed, the rest rolled back.
    """
    from onceflow.transactions.two_phase import list_in_doubt, resolve_in_doubt

    if every == bool(ids):
        raise click.UsageError("which ones: give TRANSACTIONAL_ID, or --all")
    if every:
        listed = list_in_doubt(dsn, client=connection.settings)
        ids = tuple(sorted({each.transactional_id for each in listed if each.transactional_id}))
    rows = [
        {"transactional_id": name, "gid": gid, "done": "committed" if done else "rolled back"}
        for name in ids
        for gid, done in resolve_in_doubt(dsn, name, client=connection.settings).items()
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["transactional_id", "gid", "done"], "nothing was in doubt")
