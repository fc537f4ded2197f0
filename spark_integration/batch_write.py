"""A write without a stream, ``df.write.format("onceflow")``: one transaction, repeatable by an id.

The group ``<name>.<topic>.<writeId>`` holds an offset that is committed with the rows. A write that
finds it was published before. A task with few rows leaves them, encoded, to the commit; one with
many sends them, so that rows of one Kafka partition must be in one such task (``route``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from onceflow.spark_integration import transaction
from onceflow.spark_integration.encoding import RowEncoder
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.topics import CountsLookup, topic_counts
from onceflow.spark_integration.writer import columns_of, report_of, reports_of, write_or_leave

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from onceflow.sdk import ProducerIdentity

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """A transaction that was opened for a write.

    Attributes:
        options: The options with the name of this write.
        identity: Identity for the tasks.
        is_published: Whether a write with this id is visible already.
        counts: Partitions of the topic, where one is named.
    """

    options: SinkOptions
    identity: ProducerIdentity
    is_published: bool
    counts: dict[str, int]

    @staticmethod
    def begin(given: SinkOptions) -> OpenWrite:
        """Fence what is left of an earlier attempt with this id, and learn what it published.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            ConfigError: The transaction timeout is above what the broker allows.
        """
        from onceflow.sdk import Admin

        options = given.of_write()
        with Admin(config=options.admin) as admin:
            counts = topic_counts(admin, [] if options.topic is None else [options.topic])
            identity = transaction.new_epoch(options)
            published = False
            if options.write_id is not None and not options.publish_again:
                group_id = str(options.name)
                published = bool(admin.list_group_offsets(group_id, require_stable=True))
        return OpenWrite(options, identity, published, counts)


class OnceflowWriter(DataSourceArrowWriter):
    """A write without a stream: ``df.write.format("onceflow").mode("append")``.

    As with the streaming sink, the transaction is opened where the writer is pickled for tasks.

    Args:
        options: The sink's options.
        schema: Columns of the rows.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema, options)
        self._open: OpenWrite | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._open is None:
            self._open = OpenWrite.begin(self._options)
        return self.__dict__

    @property
    def _opened(self) -> OpenWrite:
        assert self._open is not None, "pickled with an open transaction"
        return self._open

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows, or encode them where they are few."""
        context = TaskContext.get()
        assert context is not None, "called in a Spark task"
        opened = self._opened
        if opened.is_published:
            return report_of(context, opened.identity)
        encoder = self._encoder(context.partitionId())
        return write_or_leave(opened.options, opened.identity, iterator, encoder)

    def _encoder(self, task: int) -> RowEncoder | None:
        """What encodes rows; None where ``route`` has done so."""
        if self._columns is None:
            return None
        options = self._opened.options
        counts = CountsLookup(options.admin, dict(self._opened.counts))
        return RowEncoder(options, self._columns, counts, task, moves_on=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send what tasks left, and end the transaction; when it raises, Spark calls ``abort``."""
        from onceflow.sdk import OffsetAndMetadata, TopicPartition

        opened, options = self._opened, self._opened.options
        if opened.is_published:
            logger.info("write %s was published before; skipped", options.write_id)
            return
        reports = reports_of(messages)
        rows = transaction.check_reports(reports)
        left = transaction.left_by(reports, rows)
        written = rows.keys() | left.rows.keys()
        topic = options.topic or min(written, default=TopicPartition("", 0)).topic
        groups = {}
        if options.write_id is not None and topic:
            mark = OffsetAndMetadata(0, options.write_id)
            groups[str(options.name)] = {TopicPartition(topic, 0): mark}
        if written or groups:
            transaction.end(options, opened.identity, rows, groups, str(options.name), left)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Fence the tasks; nothing becomes visible.

        Nothing is raised: Spark would show that instead of what went wrong before.
        """
        from onceflow.sdk import KafkaError

        try:
            transaction.abort_as(self._opened.options, self._opened.identity)
        except KafkaError as error:
            logger.warning("nothing is published, but the abort failed: %s", error)
