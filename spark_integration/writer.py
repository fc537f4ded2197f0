"""Writing: what a task does with its rows.

A task with few rows leaves them to whoever commits. One with many produces inside the transaction
that the driver opened. A second attempt of a task never writes: the first may still be alive, and
sequence numbers do not tell the two apart.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from onceflow.spark_integration.encoding import (
    RowEncoder,
    are_encoded,
    decoded,
    filled,
    records_in,
    sink_columns,
)
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import BatchWriteError, TaskReport, second_attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from onceflow.sdk import Admin, EncodedBatch, Producer, ProducerIdentity, TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")
ON_DRIVER: Final = -1
"""Stands for the stage of what the driver wrote itself."""
HELD_BYTES_MAX: Final = 2**18
"""Most bytes of rows that a task leaves to the commit."""


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
    report = report_of(context, identity)
    if report.attempt > 0:
        return replace(report, error=second_attempt(task, report.attempt))
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


def report_of(context: TaskContext, identity: ProducerIdentity) -> TaskReport:
    """The report of a task that has written nothing.

    Args:
        context: Of the task.
        identity: That of the driver's producer.
    """
    attempt = context.attemptNumber()
    return TaskReport(context.partitionId(), context.stageId(), identity, {}, attempt=attempt)


def write_or_leave(
    options: SinkOptions,
    identity: ProducerIdentity,
    batches: Iterable[pa.RecordBatch],
    encoder: RowEncoder | None,
) -> TaskReport:
    """Leave few rows to the commit, in finished batches; write more of them.

    A task that leaves its rows opens no client, so it costs little. Tasks may leave rows of one
    partition, and a second attempt may leave rows too.

    Args:
        options: The sink's options, with a name.
        identity: That of the driver's producer.
        batches: Arrow batches.
        encoder: Encodes rows; None for batches that ``route`` has encoded.
    """
    from onceflow.sdk import KafkaError

    context = TaskContext.get()
    assert context is not None, "called in a Spark task"
    rest, taken = filled(batches), list[Any]()
    rows = size = 0
    for batch in rest:
        taken.append(batch)
        rows += batch.num_rows if encoder is not None else records_in(batch)
        size += batch.nbytes
        if rows > options.driver_rows_max or size > HELD_BYTES_MAX:
            break
    else:
        report = report_of(context, identity)
        try:
            return replace(report, held=tuple(_finished(taken, encoder)))
        except KafkaError as error:
            return replace(report, error=error)

    def make(producer: Producer, admin: Admin, task: int) -> TaskWriter:
        if encoder is None:
            return BatchWriter(producer, admin, task)
        return RowWriter(producer, admin, task, encoder)

    return write_task(options, identity, itertools.chain(taken, rest), make)


def _finished(
    batches: list[pa.RecordBatch], encoder: RowEncoder | None
) -> list[tuple[str, EncodedBatch]]:
    if encoder is None:
        return [pair for batch in batches for pair in decoded(batch)]
    made = [pair for batch in batches for pair in encoder.encode(batch)]
    return made + encoder.finish()


def reports_of(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """Reports of the tasks that have ended; failed ones have none."""
    return [m for m in messages if isinstance(m, TaskReport)]
