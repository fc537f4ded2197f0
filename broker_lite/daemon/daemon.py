"""The daemon: opens the broker, says that it is ready, and runs until a signal says stop.

It decides how the process is set up and what the one line says that others wait for. With one of
the means for tests (several nodes, a control endpoint, a capture) it runs the same broker through
the door that tests use.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from onceflow.broker_lite.daemon import early_stop
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import Listener

EXIT_DISK_FAILED = 3

GC_THRESHOLD = 50_000
"""New container objects before the youngest generation is collected. A request makes dozens and
frees them by reference count, so that the usual 700 only costs time."""

MALLOC_SETTINGS = ((-3, 8 << 20), (-1, 32 << 20), (-2, 4 << 20))
"""Options of glibc's ``mallopt``: blocks from 8 MiB on are mapped singly, up to 32 MiB of free
memory are kept, 4 MiB are taken at a time. Requests and unpacked batches of a megabyte are then
made from memory that the process has, and the kernel need not clear pages for each: a third less
processor time with large batches, measured with 1 KB records."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What the command line says beside the broker's settings.

    Attributes:
        data: Folder for the data; None keeps everything in memory.
        nodes: How many nodes.
        control: Port for the control endpoint, None for no endpoint.
        journal_file: File for what goes over the connections, or None.
        ready_messages: Lines to print once the broker is ready, after its own.
    """

    data: Path | None = None
    nodes: int = 1
    control: int | None = None
    journal_file: Path | None = None
    ready_messages: tuple[str, ...] = ()

    @property
    def for_tests(self) -> bool:
        """Whether something is asked for that only tests need."""
        return self.nodes > 1 or self.control is not None or self.journal_file is not None


def shown(listener: Listener) -> str:
    """``HOST:PORT`` of a listener."""
    return str(listener).partition("://")[2]


async def serve(
    options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
) -> None:
    """Run until a signal says stop.

    Raises:
        OSError: An address or the data folder cannot be had.
        KafkaError: The settings or the folder do not fit.
        SystemExit: The disk failed meanwhile.
    """
    _keep_freed_memory()
    _allow_open_files()
    gc.disable()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    if options.for_tests:
        await _serve_for_tests(options, listeners, config)
    else:
        await _serve_plain(options, listeners, config)


async def _serve_plain(
    options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
) -> None:
    from onceflow.broker_lite.broker import open_broker
    from onceflow.broker_lite.log import MemoryStorage, RealStorage
    from onceflow.broker_lite.net.server import Server, SystemClock

    stopping = _stop_on_signals()
    if stopping.is_set():
        _tell_not_started()
        return
    data = options.data
    clock = SystemClock()
    storage = MemoryStorage() if data is None else RealStorage(data, durable=config.durable)
    state = open_broker(storage, config, random.Random(), clock())
    clean = False
    try:
        server = Server(state, clock)
        bound = await server.start(listeners)
        loop = asyncio.get_running_loop()

        def disk_failed(error: OSError) -> None:
            loop.call_soon_threadsafe(stopping.set)

        state.log_manager.on_failure = disk_failed
        if state.log_manager.failure is not None:
            stopping.set()
        _settle_memory()
        ready = ",".join(shown(each) if len(bound) == 1 else str(each) for each in bound)
        _tell_ready(options, config, ready, state.cluster_id)
        await stopping.wait()
        await server.stop()
        clean = state.log_manager.failure is None
    finally:
        state.close(clock(), clean=clean)
    _end_if_disk_failed(data, state.log_manager.failure)


async def _serve_for_tests(
    options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
) -> None:
    from onceflow.broker_lite.testing.in_process import Broker

    stopping = _stop_on_signals()
    if stopping.is_set():
        _tell_not_started()
        return
    first = listeners[0]
    broker = Broker(
        options.data,
        host=first.host,
        port=first.port,
        settings=config,
        nodes=options.nodes,
        control=options.control,
        journal_file=options.journal_file,
    )
    async with broker:
        _settle_memory()
        ready = broker.bootstrap_servers
        if len(listeners) > 1:
            ready = ",".join(
                f"{listener.name}://{address}"
                for listener in listeners
                for address in broker.bootstrap_servers_of(listener.name).split(",")
            )
        _tell_ready(options, config, ready, broker.state.cluster_id)
        if options.control is not None:
            click.echo(f"onceflow control ready on {broker.control_url}")
        broker.disk.when_failed(stopping.set)
        await stopping.wait()
    _end_if_disk_failed(options.data, broker.disk.failure)


def _end_if_disk_failed(data: Path | None, failure: OSError | None) -> None:
    if failure is None:
        return
    click.echo(
        f"onceflow broker stopped: the disk with {data or 'the data'} failed ({failure}); "
        "mend it and start again: what was acknowledged is checked then",
        err=True,
    )
    raise SystemExit(EXIT_DISK_FAILED)


def _tell_ready(options: DaemonOptions, config: BrokerConfig, where: str, cluster_id: str) -> None:
    click.echo(
        f"onceflow broker ready on {where} "
        f"data={options.data if options.data is not None else 'memory'} "
        f"durability={config.onceflow_durability} "
        f"cluster={cluster_id} pid={os.getpid()}"
    )
    for message in options.ready_messages:
        click.echo(message)


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in early_stop.SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    if early_stop.asked():
        stopping.set()
    return stopping


def _tell_not_started() -> None:
    click.echo("onceflow broker stopped before it had started, as it was told to")


def _settle_memory() -> None:
    """What is there now stays: the collector need not look at it, now or ever."""
    gc.freeze()
    gc.enable()


def _allow_open_files() -> None:
    """Take what the system allows: each connection and each log in use is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Tell the C library to reuse memory of the size of requests; without effect elsewhere."""
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_SETTINGS:
            mallopt(option, value)
    except (ImportError, OSError, AttributeError):
        return  # Another C library; only speed is lost.
