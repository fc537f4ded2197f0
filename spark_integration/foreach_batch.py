"""Exactly-once output from ``foreachBatch``, with routing and bounded retries done for the user.

The same transaction as the data source sink's (``transaction.py``), driven from the driver's own
process: a failed batch attempt is aborted and run again under a new epoch.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import tenacity

from onceflow.sdk.errors import ConfigError, KafkaError
from onceflow.spark_integration import transaction
from onceflow.spark_integration.checkpoint import query_id
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.routing import partition_counts, route
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import BatchWriteError, TaskReport
from onceflow.spark_integration.writer import write_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("onceflow.spark_integration")

ATTEMPTS_MAX = 5


def refuse_speculation(df: DataFrame) -> None:
    """Raise when Spark may run two copies of a task at once.

    Raises:
        ConfigError: ``spark.speculation`` is on.
    """
    if df.sparkSession.conf.get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation", "true", "turn it off: two copies of a task would write twice"
        )


def foreach_batch(
    transform: Callable[[DataFrame, int], DataFrame] | None = None,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    **options: str,
) -> Callable[[DataFrame, int], None]:
    """Make a function for ``df.writeStream.foreachBatch`` that publishes each batch exactly once.

    Args:
        transform: Given each micro-batch and its number, gives the rows to write (columns
            ``value`` and optionally ``key``, ``topic``, ``partition``, ``headers``,
            ``timestamp``); by default the micro-batch itself.
        attempts_max: How often a batch is tried before the query fails.
        options: The sink's options; since names like ``kafka.bootstrap.servers`` are no Python
            names, give them as ``**{"kafka.bootstrap.servers": "..."}``. ``checkpointLocation``
            must be the query's.

    Returns:
        A function of (micro-batch, batch id).

    Raises:
        ConfigError: An option is unknown or missing.
    """
    checked = SinkOptions.parse(options)
    if checked.checkpoint_location is None:
        raise ConfigError("checkpointLocation", "", "give the query's checkpoint location")

    def publish(df: DataFrame, batch_id: int) -> None:
        refuse_speculation(df)
        retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts_max),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=10),
            retry=tenacity.retry_if_not_exception_type(ConfigError),
            before_sleep=_log_retry,
            reraise=True,
        )
        retry(_publish_once, checked, transform, df, batch_id)

    return publish


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("batch attempt %d failed, trying again: %s", state.attempt_number, error)


def _publish_once(
    options: SinkOptions,
    transform: Callable[[DataFrame, int], DataFrame] | None,
    df: DataFrame,
    batch_id: int,
) -> None:
    assert options.checkpoint_location is not None
    query = query_id(options.checkpoint_location)
    opened = transaction.begin(options, query)
    if opened.is_published(batch_id):
        logger.info("batch %d of query %s was published before; skipped", batch_id, query)
        return
    try:
        reports = _write(options, transform(df, batch_id) if transform else df, opened)
        rows = transaction.check_reports(reports)
    except Exception:
        _abort_quietly(options)
        raise
    transaction.commit(options, opened.identity, query, batch_id, rows)


def _abort_quietly(options: SinkOptions) -> None:
    """Abort after a failure without hiding it; a later attempt fences this one anyhow."""
    try:
        transaction.abort(options)
    except KafkaError as error:
        logger.warning("could not abort the batch at once: %s", error)


def _write(options: SinkOptions, df: DataFrame, opened: transaction.OpenBatch) -> list[TaskReport]:
    """Run the tasks of one attempt and collect their reports."""
    SinkColumns.of(df.schema, options.topic)
    if options.topic is not None:
        topics = [options.topic]
    else:
        topics = [row[0] for row in df.select("topic").distinct().collect()]
        if None in topics:
            raise BatchWriteError("column topic is null in a row; nothing was published")
    if not topics:
        return []
    routed = route(df, partition_counts(options.client, topics), topic=options.topic)
    columns = SinkColumns.of(routed.schema, options.topic)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = write_task(options, columns, opened, batches)
        yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]})

    found: list[Any] = routed.mapInArrow(task, "report BINARY").collect()
    return [pickle.loads(bytes(row.report)) for row in found]
