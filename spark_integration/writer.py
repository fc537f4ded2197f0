"""Writing: what a task does with its rows, and the sink's face towards Spark.

A task produces inside the transaction that the driver opened. A second attempt of a task never
writes: the first may still be alive, and sequence numbers do not tell the two apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from onceflow.spark_integration import transaction
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import BatchWriteError, OpenBatch, TaskReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from onceflow.sdk import Admin, Producer, ProducerIdentity, TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


class TaskRowWriter:
    """Sends one task's rows through a joined producer and counts them by partition.

    Args:
        producer: A producer that joined the driver's transaction.
        admin: Client that asks brokers who wrote to a partition.
        columns: Where the rows hold what.
        topic: Topic of every row, or None when the rows name theirs.
        task: Number of the task; rows without a key go to a partition chosen by it.
    """

    def __init__(
        self,
        producer: Producer,
        admin: Admin,
        columns: SinkColumns,
        topic: str | None,
        task: int,
    ) -> None:
        self._producer = producer
        self._admin = admin
        self._columns = columns
        self._topic = topic
        self._task = task
        self._partition_counts: dict[str, int] = {}
        self.rows: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch.

        Raises:
            ConfigError: A row has no topic, or names a partition that does not exist.
            BatchWriteError: Somebody else writes to a partition.
        """
        at = self._columns
        rows_by_target: dict[TopicPartition, list[int]] = {}
        for row, target in enumerate(self._targets(batch)):
            rows_by_target.setdefault(target, []).append(row)
        for target, rows in rows_by_target.items():
            part = batch if len(rows) == batch.num_rows else batch.take(rows)
            if target not in self.rows:
                self._claim(target)
            self._producer.send_many(
                target.topic,
                _bytes(part, at.value),
                None if at.key is None else _bytes(part, at.key),
                partition=target.partition,
                timestamps_ms=None if at.timestamp is None else _milliseconds(part, at.timestamp),
                headers=None if at.headers is None else _headers(part, at.headers),
            )
            self.rows[target] = self.rows.get(target, 0) + len(rows)

    def _targets(self, batch: pa.RecordBatch) -> Iterator[TopicPartition]:
        """Topic and partition of each row."""
        from onceflow.sdk import TopicPartition, murmur2_partition
        from onceflow.sdk.errors import ConfigError

        at = self._columns
        size = batch.num_rows
        topics = [self._topic] * size if at.topic is None else batch.column(at.topic).to_pylist()
        partitions = (
            [None] * size if at.partition is None else batch.column(at.partition).to_pylist()
        )
        keys = [None] * size if at.key is None or None not in partitions else _bytes(batch, at.key)
        known: dict[tuple[str, int], TopicPartition] = {}
        for topic, partition, key in zip(topics, partitions, keys, strict=True):
            if topic is None:
                raise ConfigError("column topic", None, "give every row a topic")
            if partition is None:
                count = self._count(topic)
                partition = self._task % count if key is None else murmur2_partition(key, count)
            yield known.setdefault((topic, partition), TopicPartition(topic, partition))

    def _count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = len(self._producer.partitions_for(topic))
        return self._partition_counts[topic]

    def _claim(self, target: TopicPartition) -> None:
        """Make sure that nobody wrote to a partition in this transaction before.

        A stage that Spark runs again starts its tasks with attempt number 0 once more, and what
        they send under used sequence numbers would be taken for repetitions and dropped.
        """
        from onceflow.sdk.errors import ConfigError

        if target.partition not in self._producer.partitions_for(target.topic):
            raise ConfigError(
                "column partition", target.partition, f"topic {target.topic} has no such partition"
            )
        identity = self._producer.identity
        assert identity is not None, "a joined producer has the identity that it joined"
        for other in self._admin.describe_producers([target])[target]:
            same = (other.producer_id, other.producer_epoch) == identity[1:]
            if same and other.last_sequence >= 0:
                raise BatchWriteError(
                    f"another task, or an earlier attempt of task {self._task}, wrote to {target} "
                    "in this batch. Rows of one Kafka partition must be in one task: send them "
                    "through onceflow.spark_integration.route(), or use foreach_batch"
                )


def _bytes(batch: pa.RecordBatch, position: int) -> list[bytes | None]:
    """A column of text or bytes, as bytes; text is UTF-8 in Arrow already."""
    column = batch.column(position)
    values: list[bytes | None] = column.cast("large_binary").to_pylist()
    return values


def _milliseconds(batch: pa.RecordBatch, position: int) -> list[int]:
    """A column of timestamps; null is now."""
    microseconds = batch.column(position).cast("int64").to_pylist()
    now_ms = int(time.time() * 1000)
    return [now_ms if us is None else us // 1000 for us in microseconds]


def _headers(batch: pa.RecordBatch, position: int) -> list[list[tuple[str, bytes | None]]]:
    return [
        [(header["key"], header["value"]) for header in headers or ()]
        for headers in batch.column(position).to_pylist()
    ]


def write_task(
    options: SinkOptions,
    columns: SinkColumns,
    identity: ProducerIdentity,
    batches: Iterable[pa.RecordBatch],
) -> TaskReport:
    """Write one task's rows and report the partitions that they went to.

    What goes wrong while writing is reported, not raised: a raised error would make Spark start
    the task again, which must not write, and hide the cause behind that refusal.
    """
    from onceflow.sdk import Admin, KafkaError, Producer

    context = TaskContext.get()
    assert context is not None, "called in a Spark task"
    task = context.partitionId()
    report = TaskReport(task, context.stageId(), identity, {})
    if context.attemptNumber() > 0:
        return replace(report, error=_second_attempt(task, context.attemptNumber()))
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return report
    try:
        joined = options.joined(identity)
        with Producer(config=joined) as producer, Admin(config=options.admin) as admin:
            writer = TaskRowWriter(producer, admin, columns, options.topic, task)
            writer.write(first)
            for batch in filled:
                writer.write(batch)
            producer.flush()
    except (KafkaError, BatchWriteError) as error:
        return replace(report, error=error)
    return replace(report, rows=writer.rows)


def _second_attempt(task: int, attempt: int) -> BatchWriteError:
    return BatchWriteError(
        f"Spark started task {task} again (attempt {attempt}) after a failure. Its first attempt "
        "may still be writing, so the batch has to run again as a whole: foreach_batch does so by "
        "itself; with the data source sink, restart the query from its checkpoint"
    )


class OnceflowStreamWriter(DataSourceStreamArrowWriter):
    """The exactly-once sink: ``df.writeStream.format("onceflow")``.

    Spark makes one of these in a planning process, pickles it to the tasks, and makes another in
    a third process for ``commit`` and ``abort``. The transaction is opened where the writer is
    pickled for the tasks, since any other place would run twice and fence its own tasks.

    Args:
        options: The sink's options.
        schema: Columns of the rows.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = SinkColumns.of(schema, options.topic, is_strict=options.strict_columns)
        self._open: OpenBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._open is None:
            self._open = transaction.begin(self._options)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, or only compute them when the batch was published before.

        They are computed all the same because a stateful query needs the state of this batch.
        """
        assert self._open is not None, "pickled with an open transaction"
        context = TaskContext.get()
        assert context is not None, "called in a Spark task"
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert batch_id is not None, "set by Spark for streaming tasks"
        if int(batch_id) != self._open.plan.batch_id:
            raise BatchWriteError(
                f"Spark runs batch {batch_id}, but the checkpoint's last one is "
                f"{self._open.plan.batch_id}: checkpointLocation must be the query's own"
            )
        if self._open.is_published:
            for _ in iterator:
                pass
            report = TaskReport(context.partitionId(), context.stageId(), self._open.identity, {})
        else:
            report = write_task(self._options, self._columns, self._open.identity, iterator)
        return replace(report, opened=self._open)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """End the batch's transaction with the source offsets in it.

        When it raises, Spark calls ``abort``.
        """
        reports = _reports(messages)
        rows = transaction.check_reports(reports)
        if len({report.identity for report in reports}) > 1:
            raise BatchWriteError("tasks of one batch wrote under several identities")
        # A batch without tasks has no transaction yet that can carry the offsets.
        opened = reports[0].opened if reports else transaction.begin(self._options, batchId)
        assert opened is not None, "write() adds it"
        if opened.is_published:
            logger.info("batch %d was published before; skipped", batchId)
            return
        transaction.commit(self._options, opened, rows)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Fence the batch's tasks; nothing of the batch becomes visible.

        Nothing is raised: Spark would show that instead of what went wrong before. What cannot be
        aborted now is ended by the query's next start, or by the transaction's timeout.
        """
        from onceflow.sdk import KafkaError

        known = {report.identity for report in _reports(messages)}
        identity = known.pop() if len(known) == 1 else None
        try:
            transaction.abort(self._options, identity)
        except KafkaError as error:
            logger.warning("batch %d is not published, its abort failed: %s", batchId, error)


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """Reports of the tasks that have ended; failed ones have none."""
    return [m for m in messages if isinstance(m, TaskReport)]
