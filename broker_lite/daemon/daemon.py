"""The daemon: opens the broker, prints that it is ready, and runs until a signal.

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
"""New container objects before a collection of the youngest generation. A request makes dozens and
frees them by reference count, so that more collections would only take time."""

MALLOC_SETTINGS = ((-3, 8 << 20), (-1, 32 << 20), (-2, 4 << 20))
"""Options of glibc's ``mallopt``: blocks from 8 MiB on are mapped singly, up to 32 MiB of free
memory are kept, and memory grows by 4 MiB. Then requests and unpacked batches of a megabyte use
memory that the process has already, and the kernel need not clear pages for each. With large
batches of 1 KB records this saved a third of the processor time."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Options of the command line beside the broker's settings.

    Attributes:
        data: Folder for the data; None keeps everything in memory.
        nodes: How many nodes.
        control: Port for the control endpoint, None for no endpoint.
        journal_file: File for the bytes of all connections, or None.
        ready_messages: Lines to print after the line that says that the broker is ready.
        console: Port for the console's pages, None for no console.
        as_json: Whether this line is JSON.
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
        """Whether an option is set that only tests need."""
        return self.nodes > 1 or self.control is not None or self.journal_file is not None


def shown(listener: Listener) -> str:
    """Return ``HOST:PORT`` of a listener."""
    return str(listener).partition("://")[2]


class OpenBroker(Protocol):
    """A broker that is open."""

    @property
    def serving(self) -> Serving | None:
        """The source of metrics; None without metrics."""
        ...

    @property
    def addresses(self) -> str:
        """Its addresses, for the ready line."""
        ...

    @property
    def cluster_id(self) -> str:
        """Base64 form of a random uuid."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Further lines to print when it is ready."""
        ...

    @property
    def failure(self) -> OSError | None:
        """Why the disk failed, or None."""
        ...

    def when_disk_failed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the running loop when the disk has failed."""
        ...

    async def stop(self) -> None:
        """Stop cleanly."""
        ...


Opener: TypeAlias = Callable[
    [DaemonOptions, Sequence[Listener], BrokerConfig], Awaitable[OpenBroker]
]
"""Opens the broker that the daemon runs."""


class PlainBroker:
    """The broker of a daemon without options for tests.

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
    """Run until a signal.

    Args:
        options: Options of the command line.
        listeners: Where to listen.
        config: Settings.
        opener: Opens the broker.

    Raises:
        OSError: An address or the data folder cannot be used.
        KafkaError: The settings or the folder cannot be used.
        SystemExit: The disk failed.
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
    """Exclude all present objects, which stay, from garbage collection."""
    gc.freeze()
    gc.enable()


def _allow_open_files() -> None:
    """Raise the limit of open files to the hard limit: connections and logs need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Let glibc keep and reuse memory of the size of requests."""
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_SETTINGS:
            mallopt(option, value)
    except (ImportError, OSError, AttributeError):
        return  # Another C library: the broker works without this, only slower.
