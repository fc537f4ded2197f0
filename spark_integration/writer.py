"""Writing: what a task does with its rows, and the sink's face towards Spark.

A task produces inside the transaction that the driver opened. A second attempt of a task never
writes: the first may still be alive, and sequence numbers do not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from onceflow.spark_integration import transaction
from onceflow.spark_integration.checkpoint import query_id
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import BatchWriteError, OpenBatch, TaskReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from onceflow.sdk import Producer, TopicPartition


class TaskRowWriter:
    """Sends one task's rows through a joined producer and counts them by partition.

    Args:
        producer: A producer that joined the driver's transaction.
        columns: Where the rows hold what.
        topic: Topic of every row, or None when the rows name theirs.
        task: Number of the task; rows without a key go to a partition chosen by it.
    """

    def __init__(
        self, producer: Producer, columns: SinkColumns, topic: str | None, task: int
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._topic = topic
        self._task = task
        self._partition_counts: dict[str, int] = {}
        self.rows: dict[TopicPartition, int] = {}

    def _count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = len(self._producer.partitions_for(topic))
        return self._partition_counts[topic]

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch.

        Raises:
            BatchWriteError: A row has no topic, or names a partition that does not exist.
        """
        from onceflow.sdk import TopicPartition, murmur2_partition

        at = self._columns
        size = batch.num_rows

        def column(position: int | None) -> list[Any]:
            return [None] * size if position is None else batch.column(position).to_pylist()

        topics = [self._topic] * size if self._topic is not None else column(at.topic)
        rows = zip(
            topics,
            map(_encoded, column(at.key)),
            map(_encoded, column(at.value)),
            column(at.partition),
            column(at.headers),
            column(at.timestamp),
            strict=True,
        )
        for topic, key, value, partition, headers, timestamp in rows:
            if topic is None:
                raise BatchWriteError("column topic is null in a row; nothing was published")
            if partition is None:
                count = self._count(topic)
                partition = murmur2_partition(key, count) if key is not None else self._task % count
            self._producer.send(
                topic,
                value,
                key=key,
                headers=[(h["key"], _encoded(h["value"])) for h in headers or ()],
                partition=partition,
                timestamp_ms=None if timestamp is None else round(timestamp.timestamp() * 1000),
            )
            tp = TopicPartition(topic, partition)
            self.rows[tp] = self.rows.get(tp, 0) + 1


def _encoded(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def write_task(
    options: SinkOptions,
    columns: SinkColumns,
    open_batch: OpenBatch,
    batches: Iterable[pa.RecordBatch],
) -> TaskReport:
    """Write one task's rows and report the partitions that they went to.

    Raises:
        BatchWriteError: This is not the first attempt of the task, or a row cannot be written.
    """
    from onceflow.sdk import Producer

    context = TaskContext.get()
    assert context is not None, "called in a Spark task"
    if context.attemptNumber() > 0:
        raise BatchWriteError(
            f"task {context.partitionId()} was started again (attempt {context.attemptNumber()}). "
            "Its first attempt may still be writing, so nothing of this batch is published; the "
            "batch has to run again as a whole. Restart the query from its checkpoint."
        )
    settings = {k: v for k, v in options.client.items() if k != "transaction_timeout_ms"}
    task = context.partitionId()
    with Producer(joined_identity=open_batch.identity, **settings) as producer:
        writer = TaskRowWriter(producer, columns, options.topic, task)
        for batch in batches:
            writer.write(batch)
        producer.flush()
    return TaskReport(task, open_batch.identity, writer.rows)


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
        self._columns = SinkColumns.of(schema, options.topic)
        self._open: OpenBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._open is None:
            self._open = transaction.begin(self._options, self._query_id())
        return self.__dict__

    def _query_id(self) -> str:
        assert self._options.checkpoint_location is not None, "checked by the options"
        return query_id(self._options.checkpoint_location)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, or skip them when the batch was published before."""
        assert self._open is not None, "pickled with an open transaction"
        context = TaskContext.get()
        assert context is not None, "called in a Spark task"
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert batch_id is not None, "set by Spark for streaming tasks"
        if self._open.is_published(int(batch_id)):
            return TaskReport(context.partitionId(), None, {})
        return write_task(self._options, self._columns, self._open, iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """End the batch's transaction with the source offsets in it."""
        reports = [m for m in messages if isinstance(m, TaskReport)]
        identities = {r.identity for r in reports}
        if identities == {None}:
            return  # Published before the restart that led here.
        try:
            rows = transaction.check_reports(reports)
            if len(identities) > 1:
                raise BatchWriteError("tasks of one batch wrote under several identities")
        except BatchWriteError:
            transaction.abort(self._options)
            raise
        query = self._query_id()
        if identities:
            identity = identities.pop()
        else:  # A batch without tasks: there is no transaction yet to carry the offsets.
            opened = transaction.begin(self._options, query)
            if opened.is_published(batchId):
                return
            identity = opened.identity
        assert identity is not None
        transaction.commit(self._options, identity, query, batchId, rows)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Fence the batch's tasks; nothing of the batch becomes visible."""
        transaction.abort(self._options)
