"""The command ``onceflow run``: finds an application and runs it as one worker.

Decides how an application is named on the command line, and the exit status: 0 after an orderly
stop, 1 for a processing error, 2 for a wrong call, 130 after a forced shutdown.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.base import Command
from onceflow.cli.connect import SLOT_VARIABLE, Connection, connected
from onceflow.cli.json_logs import log_as_json
from onceflow.cli.output import print_rows
from onceflow.processors.app import App
from onceflow.processors.errors import ProcessingError
from onceflow.processors.report import RunReport
from onceflow.sdk.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    from onceflow.cli.worker_server import WorkerServer

TRACEBACK_FRAMES = 20
"""Innermost frames of a handler's error that are printed."""


def load_app(target: str) -> App:
    """Import the application that ``MODULE:NAME`` stands for.

    Raises:
        click.BadParameter: There is no such module, or no application in it.
    """
    module_name, _, attribute = target.partition(":")
    module_name = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise click.BadParameter(
            f"{target!r}: give MODULE:APP as an import would name it, in the directory it is in"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.BadParameter(_missing(module_name, str(error.name))) from error
    found = getattr(module, attribute or "app", None)
    if isinstance(found, App):
        return found
    names = [
        f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, App)
    ]
    remedy = f"it has {', '.join(names)}" if names else "make one: app = App(NAME, BOOTSTRAP)"
    raise click.BadParameter(f"{module_name} has no App named {attribute or 'app'!r}; {remedy}")


def _missing(wanted: str, missing: str) -> str:
    if missing == wanted or wanted.startswith(missing + "."):
        return f"no module {missing!r}; run it in its directory"
    return f"{wanted} imports {missing!r}, which is not installed"


@click.command(
    cls=Command,
    epilog="Example: onceflow run my_module:app --bootstrap localhost:9092",
)
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for state and process identity.",
)
@click.option(
    "--slot",
    envvar=SLOT_VARIABLE,
    help="Name of this process in the group, if its disk does not survive: in Kubernetes the "
    f"name or ordinal of its pod. [variable: {SLOT_VARIABLE}]",
)
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
@click.option(
    "--until-end",
    is_flag=True,
    help="Process what is in the inputs now, print a report, and exit.",
)
@click.option("--topology", is_flag=True, help="Print the processors and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Start, topology, error and log as lines of JSON."
)
@click.option("--verbose", "-v", is_flag=True, help="Log what happens, on standard error.")
@connected
def run(
    connection: Connection,
    target: str,
    state_dir: Path | None,
    slot: str | None,
    health_port: int | None,
    metrics_port: int | None,
    serve_on: str,
    until_end: bool,
    topology: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run a processor app as one worker; start more processes for more workers.

    MODULE is found as by an import, in this directory first; APP is "app" when it is left out.
    Settings of the file, the profile, ONCEFLOW_* variables and --bootstrap replace the App's own.

    With --until-end the worker takes the ends of all inputs at its start. It processes what is in
    front of them and what follows from that, commits, and prints what it did by partition.

    Exit status: 0 at the end, and after SIGINT or SIGTERM, 1 for an error, 130 when shutdown was
    forced.
    """
    app = load_app(target)
    try:
        changes = {
            "client": connection.settings if connection.is_given else None,
            "bootstrap_servers": connection.bootstrap,
            "state_dir": state_dir,
            "slot": slot,
        }
        app.configure(**{name: value for name, value in changes.items() if value is not None})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if topology:
        click.echo(app.topology().to_json() if as_json else app.topology().describe())
        return
    level = logging.INFO if verbose else logging.WARNING
    if as_json:
        log_as_json(level)
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    server = _server(app, serve_on, health_port, metrics_port)
    _tell_start(app, target, {} if server is None else server.addresses, as_json)
    try:
        report = app.run(until_end=until_end)
    except KafkaError as error:
        if isinstance(error, ProcessingError) and error.__cause__ is not None:
            trace = traceback.format_exception(error.__cause__, limit=-TRACEBACK_FRAMES)
            click.echo("".join(trace), err=True, nl=False)
        click.echo(f"onceflow run {target}: {type(error).__name__}: {error}", err=True)
        if as_json:
            _tell({"event": "failed", "error": type(error).__name__, "message": str(error)})
        raise SystemExit(1) from error
    finally:
        if server is not None:
            server.close()
    if until_end:
        _tell_report(report, as_json)


def _server(
    app: App, host: str, health_port: int | None, metrics_port: int | None
) -> WorkerServer | None:
    """Health and metrics, where they are asked for."""
    if health_port is None and metrics_port is None:
        return None
    from onceflow.cli.worker_server import WorkerServer

    return WorkerServer(app, host, health_port, metrics_port)


def _tell_start(app: App, target: str, serves: Mapping[str, str], as_json: bool) -> None:
    """Say what is about to run, and where health and metrics are."""
    reads = app.topology().input_topics
    brokers = [str(each) for each in app.settings.admin_config().addresses]
    if as_json:
        group = app.settings.group_of(app.name)
        start = {"event": "starting", "app": app.name, "group": group, "pid": os.getpid()}
        _tell({**start, "topics": reads, "brokers": brokers, **serves})
        return
    shown = f"{app.name} reads {', '.join(reads)} at {','.join(brokers)}"
    click.echo(f"onceflow run {target}: {shown}", err=True)
    for name, address in serves.items():
        click.echo(f"onceflow run {target}: {name} at {address}", err=True)


def _tell(event: dict[str, object]) -> None:
    """Print one line of JSON, at once."""
    click.echo(json.dumps(event, ensure_ascii=False, allow_nan=False))


def _tell_report(report: RunReport, as_json: bool) -> None:
    """Say what a bounded run did."""
    rows = [dataclasses.asdict(task) for task in report.tasks]
    if as_json:
        end = {"event": "ended", "reached_end": report.reached_end, "aborts": report.aborts}
        _tell({**end, "tasks": rows})
        return
    columns = ("name", "partition", "records", "outputs", "dead_letters", "commits")
    print_rows(rows, columns)
    click.echo(str(report), err=True)
