"""The command ``onceflow run``: finds an application and runs it, as one worker or several.

Decides how an application is named on the command line, and the exit status: 0 after an orderly
stop, 1 for a processing error, 2 for a wrong call, 130 after a forced shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from onceflow.cli.base import Command
from onceflow.cli.connect import SLOT_VARIABLE, Connection, connected
from onceflow.cli.output import print_rows
from onceflow.cli.run_on_spark import refuse_options
from onceflow.processors.app import App
from onceflow.processors.errors import ProcessingError
from onceflow.processors.report import RunReport, TaskReport, merged
from onceflow.processors.threads import WorkerThreads
from onceflow.processors.worker.replacing import Replacements
from onceflow.sdk.errors import ConfigError, KafkaError
from onceflow.sdk.observe.json_logs import log_as_json

if TYPE_CHECKING:
    from onceflow.cli.gathered import Workers
    from onceflow.cli.lifeline import Lifeline
    from onceflow.cli.supervisor import Supervisor

WORKERS_MAX = 256
TRACEBACK_FRAMES = 20
"""Innermost frames of a handler's error that are printed."""


def load_app(target: str) -> App:
    """Import the application that ``MODULE:NAME`` stands for.

    Raises:
        click.BadParameter: There is no such module, or no application in it.
    """
    module_name, attribute = module_of(target), target.partition(":")[2]
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


def module_of(target: str) -> str:
    """Return the name of the module in ``MODULE:NAME``."""
    path = target.partition(":")[0]
    return path.removeprefix("./").removesuffix(".py").replace("/", ".")


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
    "--opentelemetry",
    is_flag=True,
    help="Export the same metrics through OpenTelemetry: by the provider that the program has, "
    "else by OTLP as the OTEL_* variables say.",
)
@click.option(
    "--query-port",
    type=click.IntRange(0, 65_535),
    help="Answer queries of committed state there; 0 takes a free port. Several workers take this "
    "one and those that follow.",
)
@click.option(
    "--query-on",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address of that port.",
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
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Workers of this command, each a process with a slot of its own.",
)
@click.option("--threads", is_flag=True, help="Workers are threads of one process instead.")
@click.option(
    "--reload",
    "reloads",
    is_flag=True,
    help="For development: start the worker again when a *.py file here has changed.",
)
@click.option(
    "--engine",
    type=click.Choice(["onceflow", "spark"]),
    default="onceflow",
    show_default=True,
    help="Run as a worker, or as a Spark query (needs onceflow[spark]).",
)
@click.option(
    "--checkpoint",
    metavar="LOCATION",
    help="With Spark: where it keeps offsets and state; by default a folder under "
    "spark.sql.streaming.checkpointLocation.",
)
@click.option("--master", metavar="URL", help="With Spark: its master, such as local[4].")
@click.option("--topology", is_flag=True, help="Print the processors and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Start, topology, error and log as lines of JSON."
)
@click.option("--verbose", "-v", is_flag=True, help="As --log-level info.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What to log, on standard error; debug has a line for each commit.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Log lines as text, or as JSON with group, member, generation, producer and offsets; "
    "JSON by default with --json.",
)
@click.option("--lifeline", type=int, hidden=True)
@click.option("--member", is_flag=True, hidden=True)
@connected
def run(
    connection: Connection,
    target: str,
    state_dir: Path | None,
    slot: str | None,
    health_port: int | None,
    metrics_port: int | None,
    opentelemetry: bool,
    query_port: int | None,
    query_on: str,
    serve_on: str,
    until_end: bool,
    workers: int,
    threads: bool,
    reloads: bool,
    engine: str,
    checkpoint: str | None,
    master: str | None,
    topology: bool,
    as_json: bool,
    verbose: bool,
    log_level: str,
    log_format: str | None,
    lifeline: int | None,
    member: bool,
) -> None:
    """Run a processor app; several workers share its partitions, also those of other commands.

    MODULE is found as by an import, in this directory first; APP is "app" when it is left out.
    Settings of the file, the profile, ONCEFLOW_* variables and --bootstrap replace the App's own.

    With --workers the ports answer for all workers together: live or ready if each is, and metrics
    with a label "worker". A worker that is killed is started again, up to replacements_max times
    within replacement_window_ms; one that ends by an error ends the others too. --slot NAME makes
    the slots NAME-0, NAME-1 and so on.

    With --until-end the worker takes the ends of all inputs at its start. It processes what is in
    front of them and what follows from that, commits, and prints what it did by partition.

    With --engine spark the same functions run as a Spark query, with the master and settings of
    Spark's own configuration; the app's module is shipped to Spark's workers.

    Exit status: 0 at the end, and after SIGINT or SIGTERM, 1 for an error, 130 when shutdown was
    forced.
    """
    if threads and workers == 1:
        raise click.UsageError("--threads: there is one worker; give --workers 2 or more")
    refuse_options(engine, click.get_current_context().params)
    level = "info" if verbose and log_level != "debug" else log_level
    log_to_stderr(level, as_json=log_format == "json" or (as_json and log_format is None))
    if reloads:
        if workers > 1:
            raise click.UsageError(f"--reload and --workers {workers}: it is for one worker")
        from onceflow.cli.reload import run_reloading

        raise SystemExit(run_reloading(_command(reloads=None)))
    app = _configured(load_app(target), connection, state_dir, slot)
    if topology:
        click.echo(app.topology().to_json() if as_json else app.topology().describe())
        return
    if engine == "spark":
        _run_on_spark(app, target, checkpoint, master, until_end=until_end, as_json=as_json)
        return
    queries = None if query_port is None else (query_on, query_port)
    serving = Serving(serve_on, health_port, metrics_port, queries)
    if workers > 1 and not threads:
        raise SystemExit(_run_processes(app, target, workers, serving, until_end, as_json))
    _run_alone(app, target, workers, serving, until_end, lifeline, member, as_json, opentelemetry)


def _run_alone(
    app: App,
    target: str,
    workers: int,
    serving: Serving,
    until_end: bool,
    lifeline: int | None,
    member: bool,
    as_json: bool,
    telemetry: bool,
) -> None:
    """Run the workers within this process.

    Raises:
        SystemExit: One of them failed.
    """
    with contextlib.ExitStack() as stack:
        told = _lifeline(lifeline, member)
        try:
            several = WorkerThreads(app, workers) if workers > 1 else None
            if telemetry:
                _export([app] if several is None else several.apps, stack)
            report = _run_here(app, several, target, serving, until_end, told, as_json, stack)
        except KafkaError as error:
            _tell_failure(target, error, as_json)
            raise SystemExit(1) from error
    if until_end and not member:
        _tell_report(report, as_json)


def _lifeline(handle: int | None, member: bool) -> Lifeline | None:
    """What ends this process with the one that started it; a member also tells it things."""
    if handle is None:
        return None
    from onceflow.cli.lifeline import Lifeline

    line = Lifeline(handle)
    return line if member else None


def _export(apps: Sequence[App], stack: contextlib.ExitStack) -> None:
    """Export the metrics of the workers of this process through OpenTelemetry."""
    from onceflow.cli.worker_server import export_telemetry

    stack.callback(export_telemetry(apps))


def _configured(app: App, connection: Connection, state_dir: Path | None, slot: str | None) -> App:
    """The application with the settings of the command line.

    Raises:
        click.UsageError: They cannot work.
    """
    changes: dict[str, object] = {"bootstrap_servers": connection.bootstrap}
    changes |= {"state_dir": state_dir, "slot": slot}
    try:
        changes["client"] = connection.settings if connection.is_given else None
        app.configure(**{name: value for name, value in changes.items() if value is not None})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return app


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Log to standard error, as text or as lines of JSON.

    Args:
        level: The lowest level that is written, by its name.
        as_json: Whether as JSON.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    others = max(number, logging.INFO)  # Libraries tell too much at debug.
    if as_json:
        log_as_json(others)
    else:
        logging.basicConfig(level=others, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("onceflow").setLevel(number)


class Serving(NamedTuple):
    """Where health and metrics are asked for.

    Attributes:
        host: Address to listen on.
        health_port: Port of the health answers, or None.
        metrics_port: Port of the metrics, or None.
        queries: Address and port of the first worker's queries, or None.
    """

    host: str
    health_port: int | None
    metrics_port: int | None
    queries: tuple[str, int] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anything is."""
        return (self.health_port, self.metrics_port) != (None, None)

    def inside(self) -> Serving:
        """Where a worker answers those who gather the answers of all."""
        health, metrics = (None if port is None else 0 for port in self[1:3])
        return Serving("127.0.0.1", health, metrics, self.queries)

    def query_port_of(self, number: int) -> int | None:
        """The port of the queries of one of several workers."""
        port = None if self.queries is None else self.queries[1]
        return port + number if port else port

    def of(self, app: App, stack: contextlib.ExitStack, number: int = 0) -> dict[str, str]:
        """Serve for one worker; return the addresses."""
        found: dict[str, str] = {}
        if self.is_wanted:
            from onceflow.cli.worker_server import WorkerServer

            server = WorkerServer(app, *self[:3])
            stack.callback(server.close)
            found |= server.addresses
        port = self.query_port_of(number)
        if self.queries is not None and port is not None:
            from onceflow.cli.query_server import QueryServer

            answering = QueryServer(app, self.queries[0], port)
            stack.callback(answering.close)
            found["queries"] = f"http://{answering.address}"
        return found

    def gathered(self, workers: Workers, stack: contextlib.ExitStack) -> dict[str, str]:
        """Serve for several workers; return the addresses."""
        if not self.is_wanted:
            return {}
        from onceflow.cli.gathered import Gathered

        server = Gathered(workers, *self[:3])
        stack.callback(server.close)
        return server.addresses


def _run_here(
    app: App,
    several: WorkerThreads | None,
    target: str,
    serving: Serving,
    until_end: bool,
    line: Lifeline | None,
    as_json: bool,
    stack: contextlib.ExitStack,
) -> RunReport:
    """Run the workers of this process: one in this thread, or several in threads."""
    if several is not None:
        inside = serving.inside()
        own = {n: inside.of(each, stack, n) for n, each in enumerate(several.apps)}
        workers = len(several.apps)
        _tell_start(app, target, serving.gathered(lambda: own, stack), as_json, workers)
        for number, addresses in own.items():
            _tell_queries(target, number, addresses, as_json)
        return several.run(until_end=until_end)
    addresses = serving.of(app, stack)
    if line is None:
        _tell_start(app, target, addresses, as_json)
        return app.run(until_end=until_end)
    line.tell({"event": "serving", "addresses": addresses})
    report = app.run(until_end=until_end)
    if until_end:
        line.tell({"event": "ended", **dataclasses.asdict(report)})
    return report


def _run_processes(
    app: App,
    target: str,
    workers: int,
    serving: Serving,
    until_end: bool,
    as_json: bool,
) -> int:
    """Run the workers as processes; return the exit status."""
    from onceflow.cli.supervisor import Supervisor

    inside, slot = serving.inside(), app.settings.slot
    changed: dict[str, object] = {
        "serve_on": inside.host,
        "health_port": inside.health_port,
        "workers": None,
    }
    changed |= {"metrics_port": inside.metrics_port, "member": True}
    commands = [
        _command(
            **changed,
            slot=None if slot is None else f"{slot}-{number}",
            query_port=serving.query_port_of(number),
        )
        for number in range(workers)
    ]
    bounds = Replacements(app.settings.replace(uncaught_error="replace"), time.monotonic)

    def serves(number: int, addresses: Mapping[str, str]) -> None:
        _tell_queries(target, number, addresses, as_json)

    supervisor = Supervisor(commands, bounds.allow, app.settings.shutdown_timeout_ms, serves)

    def addresses() -> dict[int, Mapping[str, str] | None]:
        found = dict(supervisor.workers)
        return {
            number: found[number].addresses or None if number in found else None
            for number in range(workers)
        }

    with contextlib.ExitStack() as stack:
        _tell_start(app, target, serving.gathered(addresses, stack), as_json, workers)
        status = asyncio.run(supervisor.run())
    if until_end and not status:
        _tell_report(_of_processes(supervisor, workers), as_json)
    return status


def _run_on_spark(
    app: App,
    target: str,
    checkpoint: str | None,
    master: str | None,
    *,
    until_end: bool,
    as_json: bool,
) -> None:
    """Run the application as a Spark query.

    Raises:
        SystemExit: It failed.
    """
    from onceflow.cli.run_on_spark import run_on_spark
    from onceflow.spark_integration import QueryFailedError

    _tell_start(app, target, {}, as_json)
    try:
        done = run_on_spark(app, module_of(target), checkpoint, master, until_end=until_end)
    except (KafkaError, QueryFailedError) as error:
        _tell_failure(target, error, as_json)
        raise SystemExit(1) from error
    if as_json:
        _tell({"event": "ended", **done})
    else:
        shown = f"{done['rows']} outputs in {done['transactions']} transactions"
        click.echo(f"onceflow run {target}: {shown}", err=True)


def _of_processes(supervisor: Supervisor, workers: int) -> RunReport:
    """One report of all processes; what a killed one did before its end is not in it."""
    found = [
        RunReport(
            [TaskReport(**each) for each in told["tasks"]], told["reached_end"], told["aborts"]
        )
        for told in supervisor.reports
    ]
    reached = len(found) >= workers and all(report.reached_end for report in found)
    return dataclasses.replace(merged(found), reached_end=reached)


def _command(**changed: object) -> list[str]:
    """The words that start this command again in another process.

    Args:
        **changed: Options that differ, by the names of their parameters; None leaves one out.
    """
    context = click.get_current_context()
    words = [sys.executable, "-m", "onceflow", "run", context.params["target"]]
    for option in context.command.params:
        value = changed.get(option.name, context.params[option.name])
        if not isinstance(option, click.Option) or value is None or value is False:
            continue
        name = option.opts[0]
        words += [name] if option.is_flag else [name, str(value)]
    return words


def _tell_failure(target: str, error: Exception, as_json: bool) -> None:
    if isinstance(error, ProcessingError) and error.__cause__ is not None:
        trace = traceback.format_exception(error.__cause__, limit=-TRACEBACK_FRAMES)
        click.echo("".join(trace), err=True, nl=False)
    click.echo(f"onceflow run {target}: {type(error).__name__}: {error}", err=True)
    if as_json:
        _tell({"event": "failed", "error": type(error).__name__, "message": str(error)})


def _tell_start(
    app: App, target: str, serves: Mapping[str, str], as_json: bool, workers: int = 1
) -> None:
    """Say what is about to run, and where health and metrics are."""
    reads = app.topology().input_topics
    brokers = [str(each) for each in app.settings.admin_config().addresses]
    if as_json:
        group = app.settings.group_of(app.name)
        start = {"event": "starting", "app": app.name, "group": group, "pid": os.getpid()}
        several = {"workers": workers} if workers > 1 else {}
        _tell({**start, "topics": reads, "brokers": brokers, **several, **serves})
        return
    shown = f"{app.name} reads {', '.join(reads)} at {','.join(brokers)}"
    if workers > 1:
        shown += f", {workers} workers"
    click.echo(f"onceflow run {target}: {shown}", err=True)
    for name, address in serves.items():
        click.echo(f"onceflow run {target}: {name} at {address}", err=True)


def _tell_queries(target: str, number: int, addresses: Mapping[str, str], as_json: bool) -> None:
    """Say where one of several workers answers queries, if it does."""
    address = addresses.get("queries")
    if address is None:
        return
    if as_json:
        _tell({"event": "serving", "worker": number, "queries": address})
    else:
        click.echo(f"onceflow run {target}: queries of worker {number} at {address}", err=True)


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
