"""The daemon: opens the broker, says that it is ready, and runs until a signal says stop.

It decides how the process is set up and prints the line that says the broker is ready. The caller
may pass the function that opens the broker: ``testing`` opens brokers with several nodes, a control
endpoint or a capture.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import resource
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import click

from onceflow.broker_lite.daemon import console, early_stop
from onceflow.broker_lite.daemon.metrics import served
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import Listener

if TYPE_CHECKING:
    from onceflow.broker_lite.net.serving import Serving

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
        console: Port for the console's pages, None for no console.
        as_json: Whether the line that says so is JSON.
        metrics_port: Port for Prometheus' page, None for no page.
        metrics_host: Address of that port.
        telemetry: Whether metrics are exported through OpenTelemetry.
    """

    data: Path | None = None
    nodes: int = 1
    control: int | None = None
    journal_file: Path | None = None
    ready_messages: tuple[str, ...] = ()
    console: int | None = None
    as_json: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    telemetry: bool = False

    @property
    def for_tests(self) -> bool:
        """Whether something is asked for that only tests need."""
        return self.nodes > 1 or self.control is not None or self.journal_file is not None


def shown(listener: Listener) -> str:
    """``HOST:PORT`` of a listener."""
    return str(listener).partition("://")[2]


class OpenBroker(Protocol):
    """A broker that answers."""

    @property
    def serving(self) -> Serving | None:
        """What metrics are taken of; None where none are."""
        ...

    @property
    def addresses(self) -> str:
        """Where it listens, for the line that says so."""
        ...

    @property
    def cluster_id(self) -> str:
        """Base64 form of a random uuid."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Further lines to print once it is ready."""
        ...

    @property
    def failure(self) -> OSError | None:
        """Why the disk failed; None while all is well."""
        ...

    def when_disk_failed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the running loop once the disk failed."""
        ...

    async def stop(self) -> None:
        """Stop in order."""
        ...


Opener: TypeAlias = Callable[
    [DaemonOptions, Sequence[Listener], BrokerConfig], Awaitable[OpenBroker]
]
"""Opens the broker that the daemon runs."""


class PlainBroker:
    """The broker of a daemon that is not for tests.

    Args:
        serving: The broker.
    """

    remarks: Sequence[str] = ()

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def serving(self) -> Serving | None:
        """See `OpenBroker`."""
        return self._serving

    @classmethod
    async def open(
        cls, options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
    ) -> PlainBroker:
        """See `Opener`."""
        from onceflow.broker_lite.clock import SystemClock
        from onceflow.broker_lite.log import MemoryStorage, RealStorage
        from onceflow.broker_lite.net.serving import Serving

        data = options.data
        storage = MemoryStorage() if data is None else RealStorage(data, durable=config.durable)
        return cls(await Serving.open(storage, config, listeners, SystemClock(), random.Random()))

    @property
    def addresses(self) -> str:
        """See `OpenBroker`."""
        bound = self._serving.listeners
        return ",".join(shown(each) if len(bound) == 1 else str(each) for each in bound)

    @property
    def cluster_id(self) -> str:
        """See `OpenBroker`."""
        return self._serving.state.cluster_id

    @property
    def failure(self) -> OSError | None:
        """See `OpenBroker`."""
        return self._serving.failure

    def when_disk_failed(self, callback: Callable[[], None]) -> None:
        """See `OpenBroker`."""
        self._serving.when_disk_failed(callback)

    async def stop(self) -> None:
        """See `OpenBroker`."""
        await self._serving.stop()


async def serve(
    options: DaemonOptions,
    listeners: Sequence[Listener],
    config: BrokerConfig,
    opener: Opener = PlainBroker.open,
) -> None:
    """Run until a signal says stop.

    Args:
        options: What the command line says.
        listeners: Where to listen.
        config: Settings.
        opener: Opens the broker.

    Raises:
        OSError: An address or the data folder cannot be had.
        KafkaError: The settings or the folder do not fit.
        SystemExit: The disk failed meanwhile.
    """
    _keep_freed_memory()
    _allow_open_files()
    gc.disable()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    stopping = _stop_on_signals()
    if stopping.is_set():
        click.echo("onceflow broker stopped before it had started, as it was told to")
        return
    plain = None if options.console is None else console.plain_listener(listeners)
    broker = await opener(options, listeners, config)
    try:
        broker.when_disk_failed(stopping.set)
        _settle_memory()
        metrics = (options.metrics_port, options.metrics_host, options.telemetry)
        async with served(broker.serving, *metrics) as address:
            _tell_ready(options, config, broker, address)
            async with console.beside(options.console, plain, broker.addresses):
                await stopping.wait()
    finally:
        await broker.stop()
    _end_if_disk_failed(options.data, broker.failure)


def _end_if_disk_failed(data: Path | None, failure: OSError | None) -> None:
    if failure is None:
        return
    click.echo(
        f"onceflow broker stopped: the disk with {data or 'the data'} failed ({failure}); "
        "mend it and start again: what was acknowledged is checked then",
        err=True,
    )
    raise SystemExit(EXIT_DISK_FAILED)


def _tell_ready(
    options: DaemonOptions, config: BrokerConfig, broker: OpenBroker, metrics: str | None
) -> None:
    data = None if options.data is None else str(options.data)
    ready = {
        "event": "ready",
        "addresses": broker.addresses.split(","),
        "data": data,
        "durability": config.onceflow_durability,
        "cluster_id": broker.cluster_id,
        "pid": os.getpid(),
        **({} if metrics is None else {"metrics": metrics}),
    }
    click.echo(
        json.dumps(ready, ensure_ascii=False, allow_nan=False)
        if options.as_json
        else f"onceflow broker ready on {broker.addresses} data={data or 'memory'} "
        f"durability={config.onceflow_durability} cluster={broker.cluster_id} pid={os.getpid()}"
        + ("" if metrics is None else f" metrics={metrics}/metrics")
    )
    for message in (*options.ready_messages, *broker.remarks):
        click.echo(message)


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in early_stop.SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    if early_stop.asked():
        stopping.set()
    return stopping


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
