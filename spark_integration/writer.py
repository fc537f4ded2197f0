"""Writing: what a task does with its rows, and the sink's face towards Spark.

A task produces inside the transaction that the driver opened. A second attempt of a task never
writes: the first may still be alive, and sequence numbers do not tell the two apart.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from onceflow.spark_integration import transaction
from onceflow.spark_integration.encoding import (
    RowEncoder,
    are_encoded,
    decoded,
    filled,
    sink_columns,
)
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.transaction import BatchWriteError, OpenBatch, TaskReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from onceflow.sdk import Admin, EncodedBatch, Producer, ProducerIdentity, TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")
ON_DRIVER: Final = -1
"""Stands for the stage of what the driver wrote itself."""


class TaskWriter(ABC):
    """Sends what one task has through a joined producer and counts the rows by partition.

    Args:
        producer: A producer that joined the driver's transaction.
        admin: Client that asks brokers who wrote to a partition.
        task: Number of the task.
    """

    def __init__(self, producer: Producer, admin: Admin, task: int) -> None:
        self._producer = producer
        self._admin = admin
        self._task = task
        self.rows: dict[TopicPartition, int] = {}
        self.bytes: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch.

        Raises:
            ConfigError: A row has no topic, or names a partition that does not exist.
            BatchWriteError: Somebody else writes to a partition.
        """
        for topic, made in self._made_of(batch):
            self._send(topic, made)

    def finish(self) -> None:
        """Hand over what was held back."""
        for topic, made in self._rest():
            self._send(topic, made)

    @abstractmethod
    def _made_of(self, batch: pa.RecordBatch) -> Iterable[tuple[str, EncodedBatch]]:
        """Topic and batch of what can be sent."""

    def _rest(self) -> Iterable[tuple[str, EncodedBatch]]:
        """Topic and batch of what was held back."""
        return ()

    def _send(self, topic: str, batch: EncodedBatch) -> None:
        """Hand over a finished batch."""
        from onceflow.sdk import TopicPartition

        target = TopicPartition(topic, batch.partition)
        self._claim(target)
        self._producer.send_batch(topic, batch)
        self.rows[target] = self.rows.get(target, 0) + batch.records_count
        self.bytes += len(batch.data)

    def _claim(self, target: TopicPartition) -> None:
        """Make sure that nobody wrote to a partition in this transaction before.

        A stage that Spark runs again starts its tasks with attempt number 0 once more, and what
        they send under used sequence numbers would be taken for repetitions and dropped.
        """
        from onceflow.sdk.errors import ConfigError

        if target in self.rows:
            return
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


class RowWriter(TaskWriter):
    """Writes rows as they are; each goes where it says, or its key.

    Args:
        producer: As in `TaskWriter`.
        admin: As in `TaskWriter`.
        task: As in `TaskWriter`.
        encoder: Makes batches of them.
    """

    def __init__(self, producer: Producer, admin: Admin, task: int, encoder: RowEncoder) -> None:
        super().__init__(producer, admin, task)
        self._encoder = encoder

    def _made_of(self, batch: pa.RecordBatch) -> Iterable[tuple[str, EncodedBatch]]:
        return self._encoder.encode(batch)

    def _rest(self) -> Iterable[tuple[str, EncodedBatch]]:
        return self._encoder.finish()


class OwnPartitionsWriter(RowWriter):
    """Writes rows without keys to partitions that belong to this task alone.

    Args:
        producer: As in `TaskWriter`.
        admin: As in `TaskWriter`.
        task: As in `TaskWriter`.
        encoder: Makes batches of them.
        partitions: The task's partitions.
    """

    def __init__(
        self,
        producer: Producer,
        admin: Admin,
        task: int,
        encoder: RowEncoder,
        partitions: Sequence[int],
    ) -> None:
        super().__init__(producer, admin, task, encoder)
        self._partitions = itertools.cycle(partitions)

    def _made_of(self, batch: pa.RecordBatch) -> Iterable[tuple[str, EncodedBatch]]:
        return self._encoder.encode(batch, next(self._partitions))


class BatchWriter(TaskWriter):
    """Writes batches that other tasks encoded."""

    def _made_of(self, batch: pa.RecordBatch) -> Iterable[tuple[str, EncodedBatch]]:
        return decoded(batch)


def columns_of(schema: StructType, options: SinkOptions) -> SinkColumns | None:
    """Where rows hold what the sink writes; None for batches that ``route`` has encoded.

    Args:
        schema: Columns of the frame.
        options: The sink's options.

    Raises:
        ConfigError: A column is missing or of a wrong type, or batches were encoded by other
            options.
    """
    if are_encoded(schema, options):
        return None
    return sink_columns(schema, options)


def own_partitions(task: int, tasks_max: int, count: int, shift: int) -> list[int]:
    """Partitions that belong to one of several tasks alone.

    Args:
        task: Number of the task, below ``tasks_max``.
        tasks_max: Most tasks that there are, at most ``count``.
        count: Partitions of the topic.
        shift: Moves all of them, so that batches with few tasks do not always fill the same ones.
    """
    return [(number + shift) % count for number in range(task, count, tasks_max)]


def write_task(
    options: SinkOptions,
    identity: ProducerIdentity,
    batches: Iterable[pa.RecordBatch],
    make: Callable[[Producer, Admin, int], TaskWriter],
) -> TaskReport:
    """Write what one task has and report the partitions that it went to.

    What goes wrong while writing is reported, not raised: a raised error would make Spark start
    the task again, which must not write, and hide the cause behind that refusal.

    Args:
        options: The sink's options.
        identity: That of the driver's producer.
        batches: Arrow batches.
        make: Makes the writer of producer, admin client and number of the task.
    """
    from onceflow.sdk import Admin, KafkaError, Producer

    context = TaskContext.get()
    assert context is not None, "called in a Spark task"
    task = context.partitionId()
    report = TaskReport(task, context.stageId(), identity, {})
    if context.attemptNumber() > 0:
        return replace(report, error=_second_attempt(task, context.attemptNumber()))
    rest = filled(batches)
    first = next(rest, None)
    if first is None:
        return report
    try:
        joined = options.joined(identity)
        with Producer(config=joined) as producer, Admin(config=options.admin) as admin:
            writer = make(producer, admin, task)
            writer.write(first)
            for batch in rest:
                writer.write(batch)
            writer.finish()
            producer.flush()
    except (KafkaError, BatchWriteError) as error:
        return replace(report, error=error)
    return replace(report, rows=writer.rows, bytes=writer.bytes)


def write_from_driver(
    options: SinkOptions, identity: ProducerIdentity, batches: Iterable[tuple[str, EncodedBatch]]
) -> TaskReport:
    """Write a small micro-batch on the driver, where no task can write beside.

    Args:
        options: The sink's options.
        identity: That of the driver's producer.
        batches: Topic and batch.

    Raises:
        KafkaError: The rows could not be written.
    """
    from onceflow.sdk import Producer, TopicPartition

    rows: dict[TopicPartition, int] = {}
    size = 0
    with Producer(config=options.joined(identity)) as producer:
        for topic, batch in batches:
            size += len(batch.data)
            producer.send_batch(topic, batch)
            target = TopicPartition(topic, batch.partition)
            rows[target] = rows.get(target, 0) + batch.records_count
        producer.flush()
    return TaskReport(0, ON_DRIVER, identity, rows, size)


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
        self._columns = columns_of(schema, options)
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
            report = write_task(self._options, self._open.identity, iterator, self._writer)
        return replace(report, opened=self._open)

    def _writer(self, producer: Producer, admin: Admin, task: int) -> TaskWriter:
        if self._columns is None:
            return BatchWriter(producer, admin, task)
        counts = CountsLookup(self._options.admin)
        # Tasks do not know of each other: one that moved on would meet another one's partition.
        encoder = RowEncoder(self._options, self._columns, counts, task, moves_on=False)
        return RowWriter(producer, admin, task, encoder)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """End the batch's transaction with the source offsets in it.

        When it raises, Spark calls ``abort``.
        """
        reports = reports_of(messages)
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

        known = {report.identity for report in reports_of(messages)}
        identity = known.pop() if len(known) == 1 else None
        try:
            transaction.abort(self._options, identity)
        except KafkaError as error:
            logger.warning("batch %d is not published, its abort failed: %s", batchId, error)


def reports_of(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """Reports of the tasks that have ended; failed ones have none."""
    return [m for m in messages if isinstance(m, TaskReport)]
