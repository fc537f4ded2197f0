"""The command ``onceflow broker``: reads the command line, runs the daemon, tells the outcome.

Decides which addresses may be listened on without authentication and what each failure's exit code
is: 0 after a stop by signal, 1 when the broker cannot start, 2 for a wrong command line.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

import click

from onceflow.broker_lite.config import BrokerConfig
from onceflow.sdk.errors import ConfigError, KafkaError

EXIT_CANNOT_START = 1

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
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 takes any free one.",
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
    listen: str,
    properties: tuple[str, ...],
    allow_insecure_network: bool,
    log_level: str,
) -> None:
    """Run the bundled Kafka broker until it is told to stop (SIGTERM or Ctrl-C)."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    from onceflow.broker_lite.broker import parse_address

    try:
        host, port = parse_address("--listen", listen)
        config = BrokerConfig.from_properties(_read_properties(properties))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if not (allow_insecure_network or config.sasl_enabled_mechanisms or _is_loopback(host)):
        raise click.UsageError(
            f"{host or 'every address'} can be reached from other machines, and this broker asks "
            "nobody who they are: give --allow-insecure-network if that network is trusted, "
            "or set sasl.enabled.mechanisms=PLAIN and onceflow.sasl.plain.credentials."
        )
    try:
        asyncio.run(_serve(data, host, port, config))
    except (KafkaError, OSError) as error:
        click.echo(f"onceflow broker cannot start: {_reason(error, listen)}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None


def _reason(error: KafkaError | OSError, listen: str) -> str:
    """Why the broker does not start, and what to do."""
    if not isinstance(error, OSError):
        return str(error)
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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve(data: Path | None, host: str, port: int, config: BrokerConfig) -> None:
    """Run until a signal says stop."""
    from onceflow.broker_lite.broker import open_broker
    from onceflow.broker_lite.log import MemoryStorage, RealStorage
    from onceflow.broker_lite.server import Server, SystemClock

    _keep_freed_memory()
    clock = SystemClock()
    storage = MemoryStorage() if data is None else RealStorage(data)
    state = open_broker(storage, config, random.Random(), clock())
    clean = False
    try:
        server = Server(state, clock)
        bound_port = await server.start(host, port)
        state.advertise(host, bound_port)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        shown_host = f"[{host}]" if ":" in host else host
        click.echo(
            f"onceflow broker ready on {shown_host}:{bound_port} "
            f"data={data if data is not None else 'memory'} "
            f"cluster={state.cluster_id} pid={os.getpid()}"
        )
        await stopping.wait()
        await server.stop()
        clean = True
    finally:
        state.close(clock(), clean=clean)
