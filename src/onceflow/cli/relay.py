"""The command ``onceflow relay``: sends the rows of an outbox until it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Final

import click

from onceflow.cli.base import Command, Failure
from onceflow.cli.connect import Connection, connected
from onceflow.cli.database import with_database
from onceflow.cli.relay_metrics import METRICS, PREFIX
from onceflow.cli.run import log_to_stderr
from onceflow.cli.served import Served
from onceflow.processors.errors import ForcedShutdown
from onceflow.processors.signals import EXIT_FORCED, ShutdownSignals
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.observe.answers import Routes

LIVE_S: Final = 300.0
"""Longest turn of the relay's loop: a batch waits for brokers and database at most so long."""
SHUTDOWN_MS: Final = 30_000
"""Time for the batch in hand after the first signal."""


@click.command(
    cls=Command,
    epilog="Example: onceflow relay --dsn postgresql:///shop --bootstrap localhost:9092",
)
@with_database
@click.option("--table", default="onceflow_outbox", show_default=True, help="The outbox's table.")
@click.option(
    "--name",
    default="outbox",
    show_default=True,
    help="Name of the relay: one for each outbox. It makes the transactional id and the topic of "
    "its notes, onceflow-outbox-NAME.",
)
@click.option("--make-table", is_flag=True, help="Make the table first, unless it is there.")
@click.option(
    "--batch-rows",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Most rows of one Kafka transaction.",
)
@click.option(
    "--poll-interval-ms",
    type=click.IntRange(1),
    default=1_000,
    show_default=True,
    help="How often to look for rows that no notification told of.",
)
@click.option(
    "--failover-ms",
    type=click.IntRange(1),
    default=30_000,
    show_default=True,
    help="Silence after which another relay of the name takes over.",
)
@click.option("--until-empty", is_flag=True, help="Exit when the table was empty.")
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    help="Serve /live and /ready there; 0 takes a free port.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve /metrics for Prometheus there; may be the same.",
)
@click.option(
    "--serve-on",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address of these ports; 0.0.0.0 for all.",
)
@click.option("--json", "as_json", is_flag=True, help="Start, end, error and log as lines of JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Log what happens, on standard error.")
@connected
def relay(
    connection: Connection,
    dsn: str,
    table: str,
    name: str,
    make_table: bool,
    batch_rows: int,
    poll_interval_ms: int,
    failover_ms: int,
    until_empty: bool,
    health_port: int | None,
    metrics_port: int | None,
    serve_on: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Send the rows of an outbox to topics, each once, in the order of their keys.

    Several relays of one name may run: one works, the others stand by and take over. /ready answers
    200 for both, /live as long as the relay's loop goes round.

    SIGINT and SIGTERM let the batch in hand end; a second signal, or 30 seconds, ends it at once,
    and the next relay finds out what was committed.

    Exit status: 0 at the end, and after SIGINT or SIGTERM, 1 for an error, 130 when the end was
    forced.
    """
    from onceflow.transactions.outbox import Outbox, OutboxRelay
    from onceflow.transactions.postgres_client import connected as connected_to

    log_to_stderr("info" if verbose else "warning", as_json=as_json)
    outbox = Outbox(table)
    if make_table:
        with connected_to(dsn, timeout_ms=10_000) as database:
            outbox.make(database)
    made = OutboxRelay(
        dsn,
        outbox,
        name=name,
        batch_rows=batch_rows,
        poll_interval_ms=poll_interval_ms,
        failover_ms=failover_ms,
        client=connection.settings,
    )
    with contextlib.ExitStack() as stack:
        server = _serve(made, name, serve_on, health_port, metrics_port)
        stack.callback(server.close)
        start: dict[str, object] = {"event": "starting", "relay": name, "pid": os.getpid()}
        _tell({**start, "table": table, **server.addresses}, as_json, name)
        try:
            with made, ShutdownSignals(lambda _: made.stop(), SHUTDOWN_MS):
                sent = made.run(until_empty=until_empty)
        except ForcedShutdown:
            raise SystemExit(EXIT_FORCED) from None
        except KafkaError as error:
            if as_json:
                kind = type(error).__name__
                _tell({"event": "failed", "error": kind, "message": str(error)}, as_json, name)
            raise
    _tell({"event": "ended", "sent": sent}, as_json, name)


def _tell(event: dict[str, object], as_json: bool, name: str) -> None:
    """Print one event: a line of JSON, or a sentence on standard error."""
    if as_json:
        click.echo(json.dumps(event, ensure_ascii=False, allow_nan=False))
    elif event["event"] == "starting":
        click.echo(f"onceflow relay {name}: sends the rows of {event['table']}", err=True)
        for what in ("health", "metrics"):
            if what in event:
                click.echo(f"onceflow relay {name}: {what} at {event[what]}", err=True)
    else:
        click.echo(f"onceflow relay {name}: {event['sent']} sent", err=True)


def _serve(
    relay: Any, name: str, host: str, health_port: int | None, metrics_port: int | None
) -> Served:
    """Serve health and metrics of a relay.

    Raises:
        Failure: A port cannot be had, or Prometheus' library is not installed.
    """
    figures = relay.figures

    def live() -> tuple[int, bytes]:
        age_s = time.monotonic() - figures.beat_s
        if age_s > LIVE_S:
            return 503, f"the relay's loop has stood still for {age_s:.0f} s\n".encode()
        return 200, b"live\n"

    def ready() -> tuple[int, bytes]:
        if figures.is_working:
            return live() if live()[0] != 200 else (200, b"works\n")
        if figures.is_standing_by:
            return 200, b"stands by: another relay of this name works\n"
        return 503, f"not connected yet: {figures.error or 'starting'}\n".encode()

    metrics: Routes = {}
    if metrics_port is not None:
        try:
            from onceflow.sdk.observe.table_prometheus import prometheus_page
        except ImportError as error:
            raise Failure(f"--metrics-port: {error}", 2) from error
        made = prometheus_page(PREFIX, METRICS, {"relay": name}, lambda: figures)
        metrics = {"/metrics": lambda: (200, made())}
    return Served(host, health_port, {"/live": live, "/ready": ready}, metrics_port, metrics)
