"""The metrics of a broker: their table, and the export to Prometheus and OpenTelemetry.

A scrape runs in a separate thread. It gets all values in one call on the broker's loop, so that
they are from the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.observe.tables import Labels, Metric, Values, alone

if TYPE_CHECKING:
    from onceflow.broker_lite.net.serving import Serving

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.metrics")

PREFIX: Final = "onceflow_broker_"
OPEN_STATES: Final = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"))
TAKEN_LIMIT_S: Final = 10.0
"""How long a scrape waits for the broker's loop."""

T = TypeVar("T")


class PartitionMeasured(NamedTuple):
    """One partition.

    Attributes:
        size_bytes: Its log on the disk.
        log_start_offset: First readable offset.
        last_stable_offset: End of the log for read_committed consumers.
        high_watermark: End of the log for read_uncommitted consumers.
    """

    size_bytes: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class Measured(NamedTuple):
    """The values of the metrics at one moment.

    Attributes:
        connections: Open connections.
        requests: Requests that were handled, by name.
        received_bytes: Bytes of requests.
        answered_bytes: Bytes of answers.
        unsent_bytes: Bytes of answers that their peers have not read yet.
        parked: Requests that wait for records, members or time.
        partitions: By topic and partition number as text.
        groups: Groups by state.
        transactions: Transactional ids by state.
        oldest_open_ms: Age of the oldest open transaction; 0 without one.
        failed: Whether the disk failed.
    """

    connections: int
    requests: Values
    received_bytes: int
    answered_bytes: int
    unsent_bytes: int
    parked: int
    partitions: dict[Labels, PartitionMeasured]
    groups: Values
    transactions: Values
    oldest_open_ms: int
    failed: bool


def measure(serving: Serving) -> Measured:
    """Read the values of the metrics; only on the broker's loop.

    Args:
        serving: The broker.
    """
    state, now_ms = serving.state, serving.server.clock()
    requests: dict[Labels, float] = {}
    for api_key, count in state.request_counts.items():
        if count and (registration := state.registry.get(api_key)) is not None:
            requests[(registration.request_type.__name__.removesuffix("Request"),)] = count
    partitions: dict[Labels, PartitionMeasured] = {
        (topic.name, str(number)): PartitionMeasured(
            log.size_bytes, log.log_start_offset, log.last_stable_offset, log.high_watermark
        )
        for topic in state.topics
        for number, log in enumerate(topic.partitions)
    }
    groups: Counter[Labels] = Counter()
    transactions: Counter[Labels] = Counter()
    oldest_open_ms = 0
    if state.has_coordinators:
        groups.update((group.group_state,) for group in state.groups.admin.list_groups())
        for entry in state.transactions.list_transactions((), (), -1, None, now_ms).entries:
            transactions[(entry.state.label,)] += 1
            if entry.state.label in OPEN_STATES and entry.start_ms >= 0:
                oldest_open_ms = max(oldest_open_ms, now_ms - entry.start_ms)
    return Measured(
        serving.server.connection_count,
        requests,
        state.received_bytes,
        state.answered_bytes,
        state.unsent_bytes,
        len(state.purgatory),
        partitions,
        groups,
        transactions,
        oldest_open_ms,
        serving.failure is not None,
    )


def _of_partitions(read: Callable[[PartitionMeasured], int]) -> Callable[[Measured], Values]:
    def values(measured: Measured) -> Values:
        return {labels: read(found) for labels, found in measured.partitions.items()}

    return values


_BY_PARTITION = ("topic", "partition")

METRICS: Final[tuple[Metric[Measured], ...]] = (
    Metric(
        "connections",
        "gauge",
        "connections",
        (),
        "Open connections of clients.",
        lambda measured: alone(measured.connections),
    ),
    Metric(
        "requests_total",
        "counter",
        "requests",
        ("request",),
        "Requests that were handled, by their name in the protocol.",
        lambda measured: measured.requests,
    ),
    Metric(
        "received_bytes_total",
        "counter",
        "bytes",
        (),
        "Bytes of requests, decrypted.",
        lambda measured: alone(measured.received_bytes),
    ),
    Metric(
        "answered_bytes_total",
        "counter",
        "bytes",
        (),
        "Bytes of answers, before they are encrypted.",
        lambda measured: alone(measured.answered_bytes),
    ),
    Metric(
        "unsent_bytes",
        "gauge",
        "bytes",
        (),
        "Answers in memory that their peers have yet to take.",
        lambda measured: alone(measured.unsent_bytes),
    ),
    Metric(
        "parked_requests",
        "gauge",
        "requests",
        (),
        "Requests that wait for records, for members or for time.",
        lambda measured: alone(measured.parked),
    ),
    Metric(
        "log_size_bytes",
        "gauge",
        "bytes",
        _BY_PARTITION,
        "Size of the log of a partition.",
        _of_partitions(lambda found: found.size_bytes),
    ),
    Metric(
        "log_start_offset",
        "gauge",
        "offsets",
        _BY_PARTITION,
        "First readable offset.",
        _of_partitions(lambda found: found.log_start_offset),
    ),
    Metric(
        "high_watermark",
        "gauge",
        "offsets",
        _BY_PARTITION,
        "End of what readers see.",
        _of_partitions(lambda found: found.high_watermark),
    ),
    Metric(
        "last_stable_offset_lag",
        "gauge",
        "offsets",
        _BY_PARTITION,
        "Offsets that an open transaction hides from readers of committed records.",
        _of_partitions(lambda found: found.high_watermark - found.last_stable_offset),
    ),
    Metric(
        "groups",
        "gauge",
        "groups",
        ("state",),
        "Groups of consumers by state.",
        lambda measured: measured.groups,
    ),
    Metric(
        "transactional_ids",
        "gauge",
        "ids",
        ("state",),
        "Transactional ids by the state of their transaction.",
        lambda measured: measured.transactions,
    ),
    Metric(
        "oldest_open_transaction_seconds",
        "gauge",
        "seconds",
        (),
        "Age of the oldest open transaction; 0 without one.",
        lambda measured: alone(measured.oldest_open_ms / 1000),
    ),
    Metric(
        "disk_failed",
        "gauge",
        "0 or 1",
        (),
        "Whether a flush or write failed; the broker ends then.",
        lambda measured: alone(measured.failed),
    ),
)
"""All metrics of a broker."""


@contextlib.asynccontextmanager
async def served(
    serving: Serving | None, port: int | None, host: str, telemetry: bool
) -> AsyncIterator[str | None]:
    """Serve the metrics during the ``async with`` block.

    Args:
        serving: The broker; None if there is nothing to measure.
        port: Port of ``/metrics``; 0 takes a free one, None none.
        host: Address of that port.
        telemetry: Whether to export through OpenTelemetry too.

    Yields:
        The address of ``/metrics``; None without a port.

    Raises:
        ConfigError: A library is not installed.
        OSError: The port cannot be used.
    """
    if serving is None or (port is None and not telemetry):
        yield None
        return
    from onceflow.sdk.observe.answers import AnswerServer

    loop = asyncio.get_running_loop()

    async def take() -> Measured:
        return measure(serving)

    def measured() -> Measured:
        return asyncio.run_coroutine_threadsafe(take(), loop).result(TAKEN_LIMIT_S)

    end = _telemetry(measured) if telemetry else None
    server = None if port is None else AnswerServer("metrics", host, port, _page(measured), logger)
    try:
        yield None if server is None else server.address
    finally:
        # In a thread, because the last scrapes still need this loop.
        if server is not None:
            await asyncio.to_thread(server.close)
        if end is not None:
            await asyncio.to_thread(end)


def _page(measured: Callable[[], Measured]) -> dict[str, Callable[[], tuple[int, bytes]]]:
    try:
        from onceflow.sdk.observe.table_prometheus import prometheus_page
    except ImportError as error:
        raise ConfigError("--metrics-port", "", str(error)) from error
    page = prometheus_page(PREFIX, METRICS, {}, measured)
    return {"/metrics": lambda: (200, page())}


def _telemetry(measured: Callable[[], Measured]) -> Callable[[], None] | None:
    try:
        from onceflow.sdk.observe.table_opentelemetry import TableInstruments, use_otlp

        end = use_otlp("onceflow-broker")
    except ImportError as error:
        raise ConfigError("--opentelemetry", True, str(error)) from error
    TableInstruments(PREFIX, METRICS, [({}, measured)])
    return end
