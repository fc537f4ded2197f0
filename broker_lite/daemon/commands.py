"""The command ``onceflow broker``: reads the command line, runs the daemon, sets the exit code.

It decides which addresses may be used without authentication. The exit code is 0 after a stop by
signal, 1 if the broker cannot start, 2 for a wrong command line, and 3 after a failed flush. The
options for tests need an ``Opener`` that the program passes as the command's ``obj``, so that this
module does not import ``testing``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from onceflow.broker_lite.daemon.console import plain_listener
from onceflow.broker_lite.daemon.daemon import DaemonOptions, Opener, PlainBroker, serve, shown
from onceflow.broker_lite.daemon.repeated_messages import RepeatedMessages
from onceflow.broker_lite.placement import NODES_MAX
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.kafka_settings import (
    KafkaSettings,
    adapt,
    read_environment,
    read_file,
)
from onceflow.broker_lite.settings.listeners import (
    Listener,
    check_openness,
    parse_address,
    read_listeners,
)
from onceflow.sdk.errors import ConfigError, KafkaError
from onceflow.sdk.event_loops import new_event_loop

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.commands")

_DISK_TROUBLES = {
    errno.ENOSPC: "make room on the disk of the --data folder, or give another; nothing is lost",
    errno.EDQUOT: "make room within the quota of the --data folder's owner; nothing is lost",
    errno.EIO: "the disk of the --data folder fails: see the system's log before all else",
    errno.EISDIR: "a folder stands where the broker keeps a file: move it out of the --data folder",
    errno.ENOTDIR: "a file stands where a folder is needed: move it, or give a --data folder",
}

EXIT_CANNOT_START = 1
DEFAULT_LISTEN = "127.0.0.1:9092"
FOR_TESTS = "--nodes, --control and --journal-file"


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: onceflow broker --data ./data --listen 127.0.0.1:9092 "
    "--set num.partitions=3 --set auto.create.topics.enable=false",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the data, created when missing. Without it everything is kept in memory.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help=f"Address to listen on, {DEFAULT_LISTEN} by default; port 0 takes any free one. For "
    "several, or with TLS, set listeners instead.",
)
@click.option(
    "--set",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker setting under Kafka's property name; may be given many times.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A server.properties file in Kafka's format. What Kafka needs and this broker does not is "
    "passed over; log.dirs is taken for --data.",
)
@click.option(
    "--env",
    "use_environment",
    is_flag=True,
    help="Take settings from variables too, as Kafka's image does: KAFKA_NUM_PARTITIONS is "
    "num.partitions. They override --config, and --set overrides them.",
)
@click.option(
    "--profile",
    metavar="RELEASE",
    help="Serve what this release of Kafka serves and no more, as 2.8 or 4.0.",
)
@click.option(
    "--nodes",
    default=1,
    type=click.IntRange(1, NODES_MAX),
    show_default=True,
    help="Nodes over one shared log, for tests of clients; further nodes take the next ports.",
)
@click.option(
    "--console",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Show the broker in the browser, at this port of 127.0.0.1; 0 takes any free one.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve /metrics for Prometheus there; 0 takes any free port.",
)
@click.option(
    "--serve-on",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address of the port for metrics; 0.0.0.0 for all.",
)
@click.option(
    "--opentelemetry",
    is_flag=True,
    help="Export the same metrics by OTLP, as the OTEL_* variables say.",
)
@click.option(
    "--control",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Open the control endpoint for tests on this port of 127.0.0.1: faults, clock, journal.",
)
@click.option(
    "--journal-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what goes over the connections to this file, which Wireshark opens.",
)
@click.option(
    "--ready-message",
    "ready_messages",
    multiple=True,
    metavar="TEXT",
    help="Print this line too once the broker is ready, for programs that wait for it.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the line of the ready broker as JSON, and log lines too.",
)
@click.option(
    "--allow-insecure-network",
    is_flag=True,
    help="Listen on other addresses than this machine's own without authentication.",
)
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What to log to the standard error output.",
)
@click.pass_context
def broker(
    context: click.Context,
    data: Path | None,
    listen: str | None,
    properties: tuple[str, ...],
    config_file: Path | None,
    use_environment: bool,
    profile: str | None,
    nodes: int,
    console: int | None,
    metrics_port: int | None,
    serve_on: str,
    opentelemetry: bool,
    control: int | None,
    journal_file: Path | None,
    ready_messages: tuple[str, ...],
    as_json: bool,
    allow_insecure_network: bool,
    log_level: str,
) -> None:
    """Run the bundled Kafka broker until SIGTERM or Ctrl-C."""
    root = logging.getLogger()
    if not root.handlers:  # a program that runs this in its process has its own
        _log(log_level, as_json)
        for handler in root.handlers:
            handler.addFilter(RepeatedMessages())
    try:
        settings, variables = _read_settings(config_file, use_environment, properties)
        values: dict[str, object] = {**settings.properties}
        if profile is not None:
            values["onceflow.profile"] = profile
        if allow_insecure_network:
            values["onceflow.allow.insecure.network"] = True
        config = _read_config(values, variables)
        if config.listeners and listen is not None:
            raise ConfigError("--listen", listen, "leave it out, because listeners is set")
        host, port = parse_address("--listen", listen or DEFAULT_LISTEN)
        listeners = read_listeners(config, host, port)
        check_openness(listeners, allowed=config.onceflow_allow_insecure_network)
        if console is not None:
            plain_listener(listeners)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    folder = data or (Path(settings.data) if settings.data is not None else None)
    options = DaemonOptions(
        folder,
        nodes,
        control,
        journal_file,
        ready_messages,
        console,
        as_json,
        metrics_port,
        serve_on,
        opentelemetry,
    )
    opener: Opener = PlainBroker.open
    if options.for_tests:
        if context.obj is None:
            raise click.UsageError(f"{FOR_TESTS} are served by the command onceflow broker only")
        if metrics_port is not None or opentelemetry:
            raise click.UsageError(f"{FOR_TESTS} do not go with --metrics-port or --opentelemetry")
        opener = context.obj
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(options, listeners, config, opener))
    except (KafkaError, OSError) as error:
        click.echo(f"onceflow broker cannot start: {_reason(error, listeners)}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None


def _log(level: str, as_json: bool) -> None:
    """Write log records to the standard error output."""
    if as_json:
        from onceflow.sdk.observe.json_logs import log_as_json

        log_as_json(logging.getLevelNamesMapping()[level.upper()])
    else:
        layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
        logging.basicConfig(level=level.upper(), format=layout)


class Given(NamedTuple):
    """Settings from file, environment and command line.

    Attributes:
        settings: The settings.
        variables: The environment variable of each property that came from one.
    """

    settings: KafkaSettings
    variables: dict[str, str]


def _read_settings(
    config_file: Path | None, use_environment: bool, entries: Iterable[str]
) -> Given:
    """Read settings from file, environment and command line; later ones win."""
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    if config_file is not None:
        found.update(read_file(config_file.read_text(encoding="utf-8")))
    if use_environment:
        for name, each in read_environment(os.environ).items():
            found[name] = each.value
            variables[name] = each.variable
    if "broker.id" in variables:
        variables["node.id"] = variables["broker.id"]
    try:
        settings = adapt(found)
    except ConfigError as error:
        raise _as_given(error, variables) from None
    if settings.passed_over:
        logger.warning("these settings have no effect: %s", ", ".join(settings.passed_over))
    own = _read_properties(entries)
    for name in own:
        variables.pop(name, None)
    return Given(settings._replace(properties={**settings.properties, **own}), variables)


def _read_config(values: Mapping[str, object], variables: Mapping[str, str]) -> BrokerConfig:
    """Check the settings.

    Raises:
        ConfigError: An unknown property, or a bad value.
    """
    try:
        return BrokerConfig.from_properties(values)
    except ConfigError as error:
        raise _as_given(error, variables) from None


def _as_given(error: ConfigError, variables: Mapping[str, str]) -> ConfigError:
    """Add the environment variable to an error about a property that it set."""
    variable = variables.get(error.field)
    if variable is None:
        return error
    return ConfigError(variable, error.value, f"{error.remedy} (property {error.field})")


def _reason(error: KafkaError | OSError, listeners: Sequence[Listener]) -> str:
    """Return why the broker does not start, and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    listen = ", ".join(shown(listener) for listener in listeners)
    if error.errno == errno.EADDRINUSE:
        return f"another process listens on {listen}: stop it, or give another --listen"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is not an address of this machine: give another --listen"
    if error.errno in _DISK_TROUBLES:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}; {_DISK_TROUBLES[error.errno]}"
    if error.filename is not None:
        return f"{error.strerror}: {error.filename}; give a --data folder that can be written to"
    return str(error)


def _read_properties(entries: Iterable[str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError("--set", entry, "give KEY=VALUE")
        properties[name.strip()] = value
    return properties
