"""The command ``onceflow broker``: reads the command line, runs the daemon, tells the outcome.

Decides which addresses may be listened on without authentication and what each failure's exit code
is: 0 after a stop by signal, 1 when the broker cannot start, 2 for a wrong command line, 3 when the
disk refused a flush.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import random
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from onceflow.broker_lite.config import BrokerConfig
from onceflow.broker_lite.listeners import (
    Listener,
    check_openness,
    parse_address,
    read_listeners,
)
from onceflow.sdk.errors import ConfigError, KafkaError

EXIT_CANNOT_START = 1
EXIT_DISK_FAILED = 3
DEFAULT_LISTEN = "127.0.0.1:9092"

GC_THRESHOLD = 50_000
"""New container objects before the youngest generation is collected. A request makes dozens and
frees them by reference count, so that the usual 700 only costs time."""

MALLOC_SETTINGS = ((-3, 8 << 20), (-1, 32 << 20), (-2, 4 << 20))
"""Options of glibc's ``mallopt``: blocks from 8 MiB on are mapped singly, up to 32 MiB of free
memory are kept, 4 MiB are taken at a time. Requests and unpacked batches of a megabyte are then
made from memory that the process has, and the kernel need not clear pages for each: a third less
processor time with large batches, measured with 1 KB records."""


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
def broker(
    data: Path | None,
    listen: str | None,
    properties: tuple[str, ...],
    allow_insecure_network: bool,
    log_level: str,
) -> None:
    """Run the bundled Kafka broker until it is told to stop (SIGTERM or Ctrl-C)."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        values = _read_properties(properties)
        if allow_insecure_network:
            values["onceflow.allow.insecure.network"] = True
        config = BrokerConfig.from_properties(values)
        if config.listeners and listen is not None:
            raise ConfigError("--listen", listen, "leave it out where listeners is set")
        host, port = parse_address("--listen", listen or DEFAULT_LISTEN)
        listeners = read_listeners(config, host, port)
        check_openness(listeners, allowed=config.onceflow_allow_insecure_network)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        asyncio.run(_serve(data, listeners, config))
    except (KafkaError, OSError) as error:
        click.echo(f"onceflow broker cannot start: {_reason(error, listeners)}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None


def _reason(error: KafkaError | OSError, listeners: Sequence[Listener]) -> str:
    """Why the broker does not start, and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    listen = ", ".join(_shown(listener) for listener in listeners)
    if error.errno == errno.EADDRINUSE:
        return f"somebody listens on {listen} already: stop that, or give another --listen"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is no address of this machine: give another --listen"
    if error.filename is not None:
        return f"{error.strerror}: {error.filename}; give a --data folder that can be written to"
    return str(error)


def _keep_freed_memory() -> None:
    """Tell the C library to reuse memory of the size of requests; without effect elsewhere."""
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_SETTINGS:
            mallopt(option, value)
    except (ImportError, OSError, AttributeError):
        return  # Another C library; only speed is lost.


def _read_properties(entries: Iterable[str]) -> dict[str, object]:
    properties: dict[str, object] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError("--set", entry, "give KEY=VALUE")
        properties[name.strip()] = value
    return properties


def _shown(listener: Listener) -> str:
    return str(listener).partition("://")[2]


async def _serve(data: Path | None, listeners: Sequence[Listener], config: BrokerConfig) -> None:
    """Run until a signal says stop."""
    from onceflow.broker_lite.broker import open_broker
    from onceflow.broker_lite.log import MemoryStorage, RealStorage
    from onceflow.broker_lite.server import Server, SystemClock

    _keep_freed_memory()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    clock = SystemClock()
    storage = MemoryStorage() if data is None else RealStorage(data, durable=config.durable)
    state = open_broker(storage, config, random.Random(), clock())
    clean = False
    try:
        server = Server(state, clock)
        bound = await server.start(listeners)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)

        def disk_failed(error: OSError) -> None:
            loop.call_soon_threadsafe(stopping.set)

        state.log_manager.on_failure = disk_failed
        gc.collect()
        gc.freeze()
        ready = ",".join(_shown(each) if len(bound) == 1 else str(each) for each in bound)
        click.echo(
            f"onceflow broker ready on {ready} "
            f"data={data if data is not None else 'memory'} "
            f"durability={config.onceflow_durability} "
            f"cluster={state.cluster_id} pid={os.getpid()}"
        )
        await stopping.wait()
        await server.stop()
        clean = state.log_manager.failure is None
    finally:
        state.close(clock(), clean=clean)
    if state.log_manager.failure is not None:
        click.echo(
            f"onceflow broker stopped: a flush of {data} failed ({state.log_manager.failure}); "
            "mend the disk and start again: what was acknowledged is checked then",
            err=True,
        )
        raise SystemExit(EXIT_DISK_FAILED)
