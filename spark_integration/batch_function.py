"""Exactly-once output from ``foreachBatch``, with routing and bounded retries done for the user.

The same transaction as the data source sink's (``transaction.py``), driven from the driver's own
process: a failed batch attempt is aborted and run again under a new epoch.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import tenacity
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkAttributeError, PySparkException

from onceflow.sdk.errors import ConfigError, FatalError, KafkaError, RecordError
from onceflow.sdk.settings.sources import ClientSource
from onceflow.spark_integration import transaction
from onceflow.spark_integration.checkpoint import Checkpoint
from onceflow.spark_integration.frames import FrameWrite, write_from_tasks_or_driver
from onceflow.spark_integration.metrics import PublishMetrics
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.supervisor import is_final
from onceflow.spark_integration.transaction import BatchWriteError
from onceflow.spark_integration.ways import SeenBatch, way_of

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


def refuse_connect(df: DataFrame) -> None:
    """Raise where Spark does not tell about stages and stopped queries.

    Raises:
        ConfigError: The micro-batch belongs to a session of Spark Connect.
    """
    try:
        _ = df.sparkSession.sparkContext
    except PySparkAttributeError:
        raise ConfigError(
            "foreach_batch",
            "a session of Spark Connect",
            'use writeStream.format("onceflow") there, with route(), or a session without Connect: '
            "foreach_batch must see whether Spark repeats a stage, which Connect does not tell. "
            "Nothing was written",
        ) from None


class BatchPublisher:
    """Publishes micro-batches exactly once; ``foreach_batch`` makes one.

    Give the object itself to ``foreachBatch``, or call it, or ``many``, once in your own function.
    Two of them in one function need a ``name`` each.

    Attributes:
        metrics: What was published so far.
    """

    def __init__(
        self,
        transform: Callable[[DataFrame, int], DataFrame] | None,
        options: SinkOptions,
        attempts_max: int,
    ) -> None:
        self._transform = transform
        self._options = options
        self._attempts_max = max(1, attempts_max)
        self._seen: SeenBatch | None = None
        self.metrics: PublishMetrics = PublishMetrics()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Publish a micro-batch.

        Args:
            df: The micro-batch.
            batch_id: Its number.

        Raises:
            ConfigError: An option is wrong, the checkpoint is not one that may go on, or this
                batch was published under the same name before.
            BatchWriteError: Nothing was published.
        """
        transform = self._transform
        rows = functools.cache(lambda: transform(df, batch_id) if transform else df)
        self._publish([df], batch_id, lambda: {self._options.topic: rows()})

    def many(self, frames: Mapping[str, DataFrame], batch_id: int) -> None:
        """Publish several frames in one transaction: all of them become visible, or none.

        Spark computes each frame by itself. Call ``persist()`` on the micro-batch that they come
        from, and ``unpersist()`` afterwards, so that it is computed once.

        Args:
            frames: Rows by topic. The function that ``foreach_batch`` was given is not called.
            batch_id: Number of the micro-batch.

        Raises:
            ConfigError: As when it is called for one frame; or the option ``topic`` is set, or a
                frame has a column ``topic``.
            BatchWriteError: Nothing was published.
        """
        if self._options.topic is not None:
            raise ConfigError("topic", self._options.topic, "leave it out: many() names topics")
        if not frames:
            raise ConfigError("frames", "{}", "give at least one frame by its topic")
        for topic, df in frames.items():
            if "topic" in df.columns:
                raise ConfigError("column topic", topic, "leave it out: many() names topics")
        self._publish(list(frames.values()), batch_id, lambda: frames, topics=list(frames))

    def _publish(
        self,
        given: list[DataFrame],
        batch_id: int,
        frames: Callable[[], Mapping[Any, DataFrame]],
        topics: Sequence[str] = (),
    ) -> None:
        """Publish once, with retries.

        Args:
            given: What the user's function was given.
            batch_id: Number of the micro-batch.
            frames: Makes the rows to write, by topic; by None where rows name their topics.
            topics: Topics of the rows, where the option does not say.
        """
        refuse_connect(given[0])
        refuse_speculation(given[0])
        checkpoint, options = transaction.named(self._options)
        run = _Run.of(given[0], checkpoint, options, batch_id)
        retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts_max),
            wait=tenacity.wait_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0, 0.2),
            retry=tenacity.retry_if_exception(_may_pass),
            before_sleep=_log_retry,
            sleep=lambda seconds: _pause(seconds, given[0], batch_id),
            reraise=True,
        )
        names = topics if options.topic is None else [options.topic]
        retry(self._publish_once, options, names, given, frames, batch_id)
        run.note_done()

    def _publish_once(
        self,
        options: SinkOptions,
        topics: Sequence[str],
        given: list[DataFrame],
        frames: Callable[[], Mapping[Any, DataFrame]],
        batch_id: int,
    ) -> None:
        opened = transaction.begin(options, batch_id, topics)
        if opened.is_published:
            logger.info("batch %s was published before; it is computed and not written", batch_id)
            for df in given:  # A stateful query needs the state of this batch.
                df.write.format("noop").mode("overwrite").save()
            self.metrics.skipped_batches += 1
            self.metrics.last_batch_id = batch_id
            return
        try:
            writes = [
                FrameWrite.of(replace(options, topic=topic), df, opened)
                for topic, df in frames().items()
            ]
            offsets = opened.plan.offsets_count
            way = way_of(offsets, self._seen, options.driver_rows_max)
            reports = write_from_tasks_or_driver(options, writes, way)
            rows = transaction.check_reports(reports)
            # Only the driver leaves batches here, and no task of this attempt has run then.
            left = replace(transaction.left_by(reports, rows), fences=False)
        except Exception:
            self.metrics.aborted_attempts += 1
            transaction.abort_unless_fenced(lambda: transaction.abort(options, opened.identity))
            raise
        try:
            transaction.commit(options, opened, rows, left)
        except Exception:
            self.metrics.aborted_attempts += 1
            raise
        size = left.bytes + sum(report.bytes for report in reports)
        count = sum(left.rows.values()) + sum(rows.values())
        self._seen = SeenBatch(offsets, count, size)
        self.metrics.last_batch_id = batch_id
        self.metrics.transactions += 1
        self.metrics.rows += count
        self.metrics.bytes += size


_DONE: Final[dict[tuple[str, str], int]] = {}
"""Last batch that was published in this process, by run of the query and sink's name."""
_DONE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a query, from its start to its end, and the batch that it publishes."""

    key: tuple[str, str]
    batch_id: int

    @staticmethod
    def of(df: DataFrame, checkpoint: Checkpoint, options: SinkOptions, batch_id: int) -> _Run:
        """Look at the run that a micro-batch belongs to.

        Raises:
            ConfigError: The checkpoint is another query's, or the batch was published in this run
                under the same name: a second sink would share the first one's progress and be
                skipped.
        """
        context = df.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        if query_id is not None and query_id != checkpoint.query_id():
            raise ConfigError(
                "checkpointLocation",
                checkpoint.location,
                f"it belongs to query {checkpoint.query_id()}, but query {query_id} runs; give the "
                "location that writeStream has",
            )
        run = _Run(
            (str(context.getLocalProperty("spark.jobGroup.id")), str(options.name)), batch_id
        )
        if _DONE.get(run.key) == batch_id:
            raise ConfigError(
                "name",
                options.name,
                f"batch {batch_id} was published under this name already. Give each foreach_batch "
                "a `name`, or publish all frames in one transaction: "
                'publish.many({"a": df1, "b": df2}, batch_id)',
            )
        return run

    def note_done(self) -> None:
        """Remember that the batch is published."""
        while len(_DONE) >= _DONE_MAX:
            del _DONE[next(iter(_DONE))]
        _DONE[self.key] = self.batch_id


def foreach_batch(
    transform: Callable[[DataFrame, int], DataFrame] | None = None,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    client: ClientSource | None = None,
    **options: str,
) -> BatchPublisher:
    """Make a function for ``df.writeStream.foreachBatch`` that publishes each batch exactly once.

    Args:
        transform: Given each micro-batch and its number, gives the rows to write (columns
            ``value`` and optionally ``key``, ``topic``, ``partition``, ``headers``,
            ``timestamp``); by default the micro-batch itself. Called once a batch; its rows may
            be computed again when the batch is tried again.
        attempts_max: How often a batch is tried before the query fails. A query that was stopped
            does not try again.
        client: Settings of all clients: ``ClientSettings``, a dictionary of Kafka's names, or the
            path of a file, read on the driver. They travel to the tasks, so they must be
            picklable.
        options: The sink's options, which win over them; since names like
            ``kafka.bootstrap.servers`` are no Python names, give them as
            ``**{"kafka.bootstrap.servers": "..."}``. ``checkpointLocation`` must be the query's.

    Returns:
        A function of (micro-batch, batch id); its method ``many`` takes several frames.

    Raises:
        ConfigError: An option is unknown or missing.
    """
    checked = SinkOptions.parse(options, client)
    if checked.checkpoint_location is None:
        raise ConfigError("checkpointLocation", "", "give the query's checkpoint location")
    return BatchPublisher(transform, checked, attempts_max)


_FINAL_CAUSES: Final = ("java.lang.InterruptedException", "SPARK_JOB_CANCELLED", "cancelled job")
"""What Spark says when a query was stopped or its job was cancelled."""


def _may_pass(error: BaseException) -> bool:
    """Whether the same batch may succeed when it is tried again.

    Not what the user's own code raised on the driver, nor a wrong option, plan or row; not being
    fenced, since a newer driver runs the query then; and not a job that was cancelled, since the
    query was stopped.
    """
    if isinstance(error, BatchWriteError) and error.__cause__ is not None:
        return _may_pass(error.__cause__)
    if isinstance(error, ConfigError | RecordError | FatalError | AnalysisException):
        return False
    if isinstance(error, PySparkException | Py4JJavaError):
        return not is_final(error) and not any(cause in str(error) for cause in _FINAL_CAUSES)
    return isinstance(error, KafkaError | BatchWriteError)


def _pause(seconds: float, df: DataFrame, batch_id: int) -> None:
    """Wait before the next attempt.

    Raises:
        BatchWriteError: The query was stopped meanwhile.
    """
    time.sleep(seconds)
    if _is_stopped(df):
        raise BatchWriteError(
            f"the query was stopped, so batch {batch_id} is not tried again; nothing was published"
        )


def _is_stopped(df: DataFrame) -> bool:
    """Whether the query of a micro-batch was stopped.

    A batch that the driver writes runs no job that Spark could cancel. The sessions of a query and
    of its starter share the list of active queries only in the JVM.
    """
    context = df.sparkSession.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return False
    session: Any = df.sparkSession
    jvm: Any = context._jvm
    active = session._jsparkSession.sharedState().activeStreamingQueries()
    query = active.get(jvm.java.util.UUID.fromString(query_id))
    return query is None or not query.isActive()


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("batch attempt %d failed, trying again: %s", state.attempt_number, error)
