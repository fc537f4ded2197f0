"""Exactly-once output from ``foreachBatch``, with routing and bounded retries done for the user.

The same transaction as the data source sink's (``transaction.py``), driven from the driver's own
process: a failed batch attempt is aborted and run again under a new epoch.
"""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import tenacity
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from onceflow.sdk.errors import ConfigError, FatalError, KafkaError, RecordError
from onceflow.sdk.settings.sources import ClientSource
from onceflow.spark_integration import transaction
from onceflow.spark_integration.checkpoint import query_id
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.routing import counts_by, route
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import BatchWriteError, TaskReport
from onceflow.spark_integration.writer import write_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")

ATTEMPTS_MAX = 5
"""How often a micro-batch is tried, where nothing else is set."""


def refuse_speculation(df: DataFrame) -> None:
    """Raise when Spark may run two copies of a task at once.

    Raises:
        ConfigError: ``spark.speculation`` is on.
    """
    if str(df.sparkSession.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation", "true", "turn it off: two copies of a task would write twice"
        )


def foreach_batch(
    transform: Callable[[DataFrame, int], DataFrame] | None = None,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    client: ClientSource | None = None,
    **options: str,
) -> Callable[[DataFrame, int], None]:
    """Make a function for ``df.writeStream.foreachBatch`` that publishes each batch exactly once.

    Args:
        transform: Given each micro-batch and its number, gives the rows to write (columns
            ``value`` and optionally ``key``, ``topic``, ``partition``, ``headers``,
            ``timestamp``); by default the micro-batch itself. Called once a batch; its rows may
            be computed again when the batch is tried again.
        attempts_max: How often a batch is tried before the query fails.
        client: Settings of all clients: ``ClientSettings``, a dictionary of Kafka's names, or the
            path of a file, read on the driver. They travel to the tasks, so they must be
            picklable.
        options: The sink's options, which win over them; since names like
            ``kafka.bootstrap.servers`` are no Python names, give them as
            ``**{"kafka.bootstrap.servers": "..."}``. ``checkpointLocation`` must be the query's.

    Returns:
        A function of (micro-batch, batch id).

    Raises:
        ConfigError: An option is unknown or missing.
    """
    checked = SinkOptions.parse(options, client)
    if checked.checkpoint_location is None:
        raise ConfigError("checkpointLocation", "", "give the query's checkpoint location")
    location = checked.checkpoint_location

    def publish(df: DataFrame, batch_id: int) -> None:
        refuse_speculation(df)
        rows = functools.cache(lambda: transform(df, batch_id) if transform else df)
        retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(max(1, attempts_max)),
            wait=tenacity.wait_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0, 0.2),
            retry=tenacity.retry_if_exception(_may_pass),
            before_sleep=_log_retry,
            reraise=True,
        )
        counts = functools.cache(lambda: _topic_counts(checked))
        retry(_publish_once, checked, query_id(location), rows, counts, batch_id)

    return publish


def _may_pass(error: BaseException) -> bool:
    """Whether the same batch may succeed when it is tried again.

    Not what the user's own code raised on the driver, nor a wrong option, plan or row; and not
    being fenced: a newer driver runs the query then, and this one must not fight it.
    """
    if isinstance(error, BatchWriteError) and error.__cause__ is not None:
        return _may_pass(error.__cause__)
    if isinstance(error, ConfigError | RecordError | FatalError | AnalysisException):
        return False
    return isinstance(error, KafkaError | BatchWriteError | PySparkException | Py4JJavaError)


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("batch attempt %d failed, trying again: %s", state.attempt_number, error)


def _topic_counts(options: SinkOptions) -> dict[str, int]:
    return counts_by(options.admin, None if options.topic is None else [options.topic])


def _publish_once(
    options: SinkOptions,
    query: str,
    rows: Callable[[], DataFrame],
    counts: Callable[[], dict[str, int]],
    batch_id: int,
) -> None:
    opened = transaction.begin(options, query)
    if opened.is_published(batch_id):
        transaction.check_skipped(options, batch_id)
        logger.info("batch %d of query %s was published before; skipped", batch_id, query)
        return
    try:
        written = transaction.check_reports(_write(options, rows(), counts(), opened))
    except Exception:
        transaction.abort_unless_fenced(lambda: transaction.abort(options, opened.identity))
        raise
    transaction.commit(options, opened.identity, query, batch_id, written)


def _write(
    options: SinkOptions,
    df: DataFrame,
    counts: dict[str, int],
    opened: transaction.OpenBatch,
) -> list[TaskReport]:
    """Run the tasks of one attempt and collect their reports."""
    routed = route(df, counts, topic=options.topic)
    columns = SinkColumns.of(routed.schema, options.topic)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = write_task(options, columns, opened, batches)
        yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]})

    found: list[Any] = routed.mapInArrow(task, "report BINARY").collect()
    reports: list[TaskReport] = [pickle.loads(bytes(row.report)) for row in found]
    _check_stage(df, {report.stage for report in reports})
    return reports


def _check_stage(df: DataFrame, stages: set[int]) -> None:
    """Make sure that Spark ran the writing stage only once.

    Tasks of a repeated stage start at attempt 0 again, so they cannot tell by themselves; what is
    left of the first run may have written between their rows.

    Raises:
        BatchWriteError: The stage was repeated.
    """
    tracker = df.sparkSession.sparkContext.statusTracker()
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is not None and info.currentAttemptId > 0:
            raise BatchWriteError(
                f"Spark repeated stage {stage}, which writes the batch (attempt "
                f"{info.currentAttemptId}); nothing was published, the batch has to run again"
            )
