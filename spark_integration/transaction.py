"""The one transaction of a micro-batch: begun and ended by the driver, shared by all its tasks.

The driver takes a new producer epoch for every attempt of a batch, which fences whatever is left
of earlier attempts and aborts what they left open. Tasks produce under that identity. The driver
then adds the source offsets and the batch's number and ends the transaction, so outputs, offsets
and progress become visible together or not at all (KIP-98; design in ``docs/spark.md``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from onceflow.sdk import (
    Admin,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Producer,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    FatalError,
    InvalidTransactionTimeoutError,
    KafkaError,
)
from onceflow.sdk.model.admin import ConfigResource, ResourceType
from onceflow.sdk.serde import to_json
from onceflow.spark_integration.checkpoint import source_offsets
from onceflow.spark_integration.options import SinkOptions

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


class BatchWriteError(Exception):
    """A micro-batch was not published; nothing of it is visible. The message says why."""


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        task: Number of the task within the batch.
        stage: Id of the Spark stage that the task belongs to.
        identity: Identity under which it wrote, None when it skipped a published batch.
        rows: Rows written, by partition.
        error: Why it could not write; the batch must be aborted then.
    """

    task: int
    stage: int
    identity: ProducerIdentity | None
    rows: dict[TopicPartition, int]
    error: KafkaError | BatchWriteError | None = None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A transaction that the driver opened for a batch attempt.

    Attributes:
        identity: Identity for the tasks.
        query_id: Id of the streaming query, from its checkpoint.
        published_batch_id: Last batch of this query that was published, -1 for none.
    """

    identity: ProducerIdentity
    query_id: str
    published_batch_id: int

    def is_published(self, batch_id: int) -> bool:
        """Whether a batch is already visible, so that writing it again would repeat it."""
        return batch_id <= self.published_batch_id


def published_batch_id(options: SinkOptions, query_id: str) -> int:
    """The last batch that a query published, -1 for none; waits for pending offsets."""
    with Admin(config=options.admin) as admin:
        stored = admin.list_group_offsets(options.progress_group_id, require_stable=True)
    batches = [-1]
    for entry in stored.values():
        try:
            progress = json.loads(entry.metadata)
            if progress["query"] == query_id:
                batches.append(int(progress["batch"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                "groupId",
                options.group_id,
                f"group {options.progress_group_id} holds commits that are not of this sink; "
                "choose another groupId",
            ) from error
    return max(batches)


def check_skipped(options: SinkOptions, batch_id: int) -> None:
    """Make sure that a batch that is taken for published is the one that was.

    A checkpoint that was set back, to a copy for instance, plans its batches anew under numbers
    that were used before.

    Raises:
        ConfigError: The batch covers source offsets that were never published.
    """
    planned = _offsets(options, batch_id)
    with Admin(config=options.admin) as admin:
        stored = admin.list_group_offsets(options.group_id, require_stable=True)
    ahead = [
        f"{tp}: planned to {offset}, published to {stored[tp].offset if tp in stored else 'none'}"
        for tp, offset in sorted(planned.items())
        if offset > (stored[tp].offset if tp in stored else 0)
    ]
    if ahead:
        raise ConfigError(
            "checkpointLocation",
            options.checkpoint_location,
            f"batch {batch_id} was published before, but with other source offsets "
            f"({'; '.join(ahead)}): the checkpoint is older than what was published. Start a new "
            f"one with startingOffsets=committed and groupId={options.group_id}; nothing is lost "
            "or repeated then",
        )


def begin(options: SinkOptions, query_id: str) -> OpenBatch:
    """Take a new epoch for a batch attempt and learn what was published before.

    Raises:
        ConfigError: The transaction timeout is above what the broker allows; names both.
    """
    owner = options.owner()
    try:
        with Producer(config=owner) as producer:
            identity = producer.identity
    except InvalidTransactionTimeoutError as error:
        raise ConfigError(
            "kafka.transaction.timeout.ms",
            owner.transaction_timeout_ms,
            f"the brokers' transaction.max.timeout.ms is {_timeout_limit(options)}: stay below, "
            "or raise it there. A micro-batch has to end within this time",
        ) from error
    assert identity is not None, "a transactional producer has an identity after its start"
    return OpenBatch(identity, query_id, published_batch_id(options, query_id))


def _timeout_limit(options: SinkOptions) -> str:
    """What the brokers allow, as far as this user may ask."""
    try:
        with Admin(config=options.admin) as admin:
            node = admin.describe_cluster().nodes[0]
            resource = ConfigResource(ResourceType.BROKER, str(node.node_id))
            entries = admin.describe_configs([resource])[resource]
            return str(entries["transaction.max.timeout.ms"].value)
    except (KafkaError, LookupError):
        return "lower (900000 unless it was changed)"


def abort(options: SinkOptions, identity: ProducerIdentity | None = None) -> None:
    """Fence the batch's tasks and abort what they wrote.

    Args:
        options: The sink's options.
        identity: Whose transaction it is, where known; a newer driver's is left alone then.

    Raises:
        ProducerFencedError: A newer driver has taken over.
    """
    with Producer(config=options.owner(identity)) as producer:
        if identity is None:
            return  # Its start has ended whatever was open.
        producer.abort_transaction()
        # Under transaction version 1 the abort leaves the epoch as it is, and a task of this
        # attempt that still lives could write into the next transaction: raise it.
        producer.begin_transaction()


def abort_unless_fenced(abort: Callable[[], None]) -> None:
    """Abort after a failure without hiding it; the next attempt ends this one anyhow.

    Raises:
        FatalError: A newer driver has taken over; this one must not go on.
    """
    try:
        abort()
    except FatalError:
        raise
    except KafkaError as error:
        logger.warning("could not abort the batch at once: %s", error)


def check_reports(reports: Iterable[TaskReport]) -> dict[TopicPartition, int]:
    """Rows by partition of all tasks together.

    Raises:
        BatchWriteError: A task could not write (its error is the cause), or two tasks wrote to one
            partition. Their sequence numbers collide then, and the broker takes the second one's
            records for repetitions, so the batch must not be published.
    """
    owner: dict[TopicPartition, int] = {}
    rows: dict[TopicPartition, int] = {}
    for report in reports:
        if report.error is not None:
            raise BatchWriteError(
                f"task {report.task} could not write, so nothing was published: {report.error}"
            ) from report.error
        for tp, count in report.rows.items():
            if owner.setdefault(tp, report.task) != report.task:
                raise BatchWriteError(
                    f"tasks {owner[tp]} and {report.task} both wrote to {tp}; nothing was "
                    "published. Every Kafka partition must be written by one task: send the rows "
                    "through onceflow.spark_integration.route() first, or use foreach_batch."
                )
            rows[tp] = rows.get(tp, 0) + count
    return rows


def _offsets(options: SinkOptions, batch_id: int) -> dict[TopicPartition, int]:
    assert options.checkpoint_location is not None, "checked when the options were read"
    return source_offsets(options.checkpoint_location, batch_id)


def commit(
    options: SinkOptions,
    identity: ProducerIdentity,
    query_id: str,
    batch_id: int,
    rows: Mapping[TopicPartition, int],
) -> None:
    """Add offsets and progress to the open transaction and end it.

    Raises:
        BatchWriteError: The transaction was not committed; nothing of the batch is visible.
        ProducerFencedError: A newer driver has taken over; it knows what became of the batch.
        CommitOutcomeUnknownError: No answer to the commit came, twice. The next attempt reads the
            progress entry, which was part of the transaction.
        KafkaError: Another refusal; nothing of the batch is visible.
    """
    note = to_json({"query": query_id, "batch": batch_id}).decode()
    sources = _offsets(options, batch_id)
    anchor = min([*rows, *sources], default=None)
    if anchor is None:
        return  # Nothing written and nothing read: running it again would change nothing.
    with Producer(config=options.owner(identity)) as producer:
        try:
            producer.note_partitions(list(rows))
            if sources:
                producer.send_offsets_to_transaction(
                    {tp: OffsetAndMetadata(offset, note) for tp, offset in sources.items()},
                    ConsumerGroupMetadata(options.group_id),
                )
            producer.send_offsets_to_transaction(
                {TopicPartition(anchor.topic, 0): OffsetAndMetadata(batch_id, note)},
                ConsumerGroupMetadata(options.progress_group_id),
            )
            try:
                producer.commit_transaction()
            except CommitOutcomeUnknownError as error:
                logger.warning("batch %d: %s; asking again", batch_id, error)
                producer.commit_transaction()
        except CommitOutcomeUnknownError:
            raise
        except KafkaError:
            # A refused epoch may mean that the transaction ran out of time, or that a newer
            # driver has taken over; only the end of the transaction tells (and raises then).
            abort_unless_fenced(producer.abort_transaction)
            raise
