"""How the rows of a frame get to Kafka within a micro-batch's transaction, by three ways.

The driver collects a small batch and sends it. Rows without keys are sent by
the tasks that have them, each to partitions of its own. Others are encoded by the tasks that have
them, and the finished batches of each Kafka partition are shuffled to the one task that sends them.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

from onceflow.spark_integration.encoding import (
    SCHEMA,
    EncodingTask,
    RowEncoder,
    TooManyRowsError,
    decoded,
    filled,
    sink_columns,
)
from onceflow.spark_integration.routing import TASKS_PER_CORE, cores_of, tasks_for
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.transaction import BatchWriteError, OpenBatch, TaskReport
from onceflow.spark_integration.ways import Way
from onceflow.spark_integration.writer import (
    ON_DRIVER,
    BatchWriter,
    OwnPartitionsWriter,
    own_partitions,
    write_task,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceflow.sdk import Admin, EncodedBatch, Producer
    from onceflow.spark_integration.options import SinkOptions

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")
TASK_BYTES_MAX: Final = 2**20
"""Most bytes of rows of each task that the driver takes; with more, tasks write."""


@dataclass(frozen=True, slots=True)
class FrameWrite:
    """Writes one frame within an open transaction.

    Attributes:
        options: The sink's options, with the frame's topic.
        df: The sink's columns of the frame.
        opened: The transaction.
        columns: Where the rows hold what.
    """

    options: SinkOptions
    df: DataFrame
    opened: OpenBatch
    columns: SinkColumns

    @staticmethod
    def of(options: SinkOptions, df: DataFrame, opened: OpenBatch) -> FrameWrite:
        """Look at a frame's columns.

        Raises:
            ConfigError: One is missing or of a wrong type.
        """
        found = sink_columns(df.schema, options)
        kept = df.select(*[F.col(df.columns[position]) for position in found.positions()])
        return FrameWrite(options, kept, opened, sink_columns(kept.schema, options))

    def encoded(self, bytes_max: int | None = None) -> DataFrame:
        """The rows as finished batches, in columns of ``encoding.SCHEMA``."""
        shift = self.opened.plan.batch_id
        task = EncodingTask(self.options, self.columns, self._counts(), shift, bytes_max)
        return self.df.mapInArrow(task, SCHEMA)

    def collected(self) -> list[tuple[str, EncodedBatch]]:
        """The rows as topics and finished batches, encoded on the driver."""
        encoder = RowEncoder(self.options, self.columns, self._counts(), self.opened.plan.batch_id)
        made = []
        for rows in filled(self.df.toArrow().to_batches()):
            made += encoder.encode(rows)
        return made + encoder.finish()

    def write_by_tasks(self) -> list[TaskReport]:
        """Write by tasks and return their reports.

        Raises:
            BatchWriteError: Spark repeated the writing stage.
        """
        has_targets = self.columns.key is not None or self.columns.partition is not None
        if self.options.topic is None or has_targets:
            return self._write_encoded()
        return self._write_in_place(self.options.topic)

    def _counts(self) -> CountsLookup:
        return CountsLookup(self.options.admin, dict(self.opened.counts))

    def _write_encoded(self) -> list[TaskReport]:
        """Bring the batches of each partition into one task."""
        options, identity = self.options, self.opened.identity
        count = None if options.topic is None else self.opened.counts[options.topic]
        # One number for each pair of topic and partition, so that neighbours go to different tasks.
        shift = F.lit(0) if count is not None else F.pmod(F.hash(F.col("topic")), F.lit(2**20))
        tasks = tasks_for(self.df, count)
        routed = self.encoded().repartitionById(tasks, F.col("partition") + shift)

        def write(batches: Iterator[pa.RecordBatch]) -> TaskReport:
            return write_task(options, identity, batches, BatchWriter)

        return _reports(routed, write)

    def _write_in_place(self, topic: str) -> list[TaskReport]:
        """Let each task write to partitions of its own; coalescing needs no shuffle."""
        options, identity, columns = self.options, self.opened.identity, self.columns
        counts, shift = self._counts(), self.opened.plan.batch_id
        count = self.opened.counts[topic]
        tasks_max = min(count, TASKS_PER_CORE * cores_of(self.df))

        def make(producer: Producer, admin: Admin, task: int) -> OwnPartitionsWriter:
            encoder = RowEncoder(options, columns, counts, task)
            own = own_partitions(task, tasks_max, count, shift)
            return OwnPartitionsWriter(producer, admin, task, encoder, own)

        def write(batches: Iterator[pa.RecordBatch]) -> TaskReport:
            return write_task(options, identity, batches, make)

        return _reports(self.df.coalesce(tasks_max), write)


def write_from_tasks_or_driver(
    options: SinkOptions, writes: list[FrameWrite], way: Way
) -> list[TaskReport]:
    """Write frames by one of the ways; a bounded one goes on by tasks where there is too much.

    Args:
        options: The sink's options.
        writes: The frames.
        way: The way.

    Raises:
        BatchWriteError: Spark repeated the writing stage.
    """
    from onceflow.sdk.errors import KafkaError

    identity = writes[0].opened.identity
    if way is not Way.TASKS:
        try:
            found = [pair for one in writes for pair in _encoded(one, way)]
            return [TaskReport(0, ON_DRIVER, identity, {}, held=tuple(found))] if found else []
        except KafkaError as error:
            return [TaskReport(0, ON_DRIVER, identity, {}, error=error)]
        except TooManyRowsError:
            logger.info("the micro-batch is larger than expected; tasks write it")
    return [report for one in writes for report in one.write_by_tasks()]


def _encoded(write: FrameWrite, way: Way) -> Iterable[tuple[str, EncodedBatch]]:
    if way is Way.DRIVER:
        return write.collected()
    table = write.encoded(TASK_BYTES_MAX).toArrow()
    return [pair for part in table.to_batches() for pair in decoded(part)]


def _reports(
    df: DataFrame, write: Callable[[Iterator[pa.RecordBatch]], TaskReport]
) -> list[TaskReport]:
    """Run the tasks of one attempt and collect their reports."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(write(batches))]})

    found: list[Any] = df.mapInArrow(task, "report BINARY").collect()
    reports: list[TaskReport] = [pickle.loads(bytes(row.report)) for row in found]
    check_stage(df, {report.stage for report in reports})
    return reports


def check_stage(df: DataFrame, stages: set[int]) -> None:
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
