"""The streaming sink, ``df.writeStream.format("onceflow")``: one transaction for each micro-batch.

A task with few rows leaves them, encoded, to the commit; one with many sends them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from onceflow.spark_integration import transaction
from onceflow.spark_integration.encoding import RowEncoder
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.transaction import BatchWriteError, OpenBatch
from onceflow.spark_integration.writer import columns_of, report_of, reports_of, write_or_leave

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


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
            topic = self._options.topic
            self._open = transaction.begin(self._options, topics=[] if topic is None else [topic])
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
            report = report_of(context, self._open.identity)
        else:
            encoder = self._encoder(context.partitionId())
            report = write_or_leave(self._options, self._open.identity, iterator, encoder)
        return replace(report, opened=self._open)

    def _encoder(self, task: int) -> RowEncoder | None:
        """What encodes rows; None where ``route`` has done so."""
        assert self._open is not None, "pickled with an open transaction"
        if self._columns is None:
            return None
        counts = CountsLookup(self._options.admin, dict(self._open.counts))
        # Tasks do not know of each other: one that moved on would meet another one's partition.
        return RowEncoder(self._options, self._columns, counts, task, moves_on=False)

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
        left = transaction.left_by(reports, rows)
        transaction.commit(self._options, opened, rows, left)

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
