"""The one transaction of a micro-batch: begun and ended by the driver, shared by all its tasks.

The driver takes a new producer epoch for every attempt of a batch, which fences whatever is left
of earlier attempts and aborts what they left open. Tasks produce under that identity. The driver
then adds the source offsets and the batch's number and ends the transaction, so outputs, offsets
and progress become visible together or not at all (KIP-98; design in ``docs/spark.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from onceflow.sdk import (
    Admin,
    ConsumerGroupMetadata,
    EncodedBatch,
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
    OutOfOrderSequenceNumberError,
)
from onceflow.sdk.model.admin import ConfigResource, ResourceType
from onceflow.sdk.serde import to_json
from onceflow.spark_integration.checkpoint import BatchPlan, Checkpoint, SourceRange, least
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.progress import (
    Progress,
    Published,
    check_starts,
    is_ahead,
    is_replay,
)
from onceflow.spark_integration.topics import existing_counts, topic_counts

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


class BatchWriteError(Exception):
    """A micro-batch was not published; nothing of it is visible. The message says why."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A transaction that the driver opened for a batch attempt.

    Attributes:
        identity: Identity for the tasks.
        query_id: Id of the streaming query, from its checkpoint.
        plan: The batch.
        is_published: Whether this batch is visible already, so that writing would repeat it.
        offsets: Ends of the sources that the sink's cluster holds.
        progress: What was published before.
        trace_group_id: Group that notes which query uses the checkpoint's location, None when
            that is noted or the sink has a name.
        counts: Partitions of the topics that were asked for.
    """

    identity: ProducerIdentity
    query_id: str
    plan: BatchPlan
    is_published: bool
    offsets: dict[TopicPartition, int]
    progress: Progress
    trace_group_id: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        task: Number of the task within the batch.
        stage: Id of the Spark stage that the task belongs to.
        identity: Identity under which it wrote.
        rows: Rows written, by partition.
        bytes: Size of the batches that hold them.
        error: Why it could not write; the batch must be aborted then.
        opened: The batch, where the report goes to another process than the one that opened it.
        held: Topics and finished batches that the task leaves to whoever commits.
        attempt: Which attempt of the task it was; 0 for the first.
    """

    task: int
    stage: int
    identity: ProducerIdentity
    rows: dict[TopicPartition, int]
    bytes: int = 0
    error: KafkaError | BatchWriteError | None = None
    opened: OpenBatch | None = None
    held: tuple[tuple[str, EncodedBatch], ...] = ()
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """Batches that are sent by whoever commits.

    Attributes:
        batches: Topics and finished batches.
        fences: Whether a task that is not known to have written could have done so. The commit
            then aborts what was written and takes a new epoch before it sends.
    """

    batches: Sequence[tuple[str, EncodedBatch]] = ()
    fences: bool = False

    @property
    def rows(self) -> dict[TopicPartition, int]:
        """Rows by partition."""
        counted: dict[TopicPartition, int] = {}
        for topic, batch in self.batches:
            target = TopicPartition(topic, batch.partition)
            counted[target] = counted.get(target, 0) + batch.records_count
        return counted

    @property
    def bytes(self) -> int:
        """Size of the batches."""
        return sum(len(batch.data) for _, batch in self.batches)


_NOTHING: Final = Left()


def left_by(reports: Iterable[TaskReport], rows: Mapping[TopicPartition, int]) -> Left:
    """What tasks leave to the commit.

    Where no task wrote, the commit fences all of them, so that an earlier attempt of a task, or of
    the whole stage, cannot add to the batch. Where others wrote it cannot.

    Args:
        reports: Reports of all tasks.
        rows: Rows that tasks wrote, by partition.

    Raises:
        BatchWriteError: A partition was also written to by a task, so that sequence numbers
            would collide; or a task ran twice, and its first attempt may have written.
    """
    known = list(reports)
    again = [report for report in known if report.attempt > 0]
    batches = [pair for report in known for pair in report.held]
    left = Left(batches, fences=not rows and bool(batches or again))
    if not rows:
        return left
    for report in again:
        raise second_attempt(report.task, report.attempt)
    both = sorted(left.rows.keys() & rows.keys())
    if both:
        raise BatchWriteError(
            f"several tasks have rows of {both[0]}, and one of them has too many to leave them to "
            "the commit; nothing was published. Send the rows through "
            "onceflow.spark_integration.route() first, or use foreach_batch"
        )
    return left


def second_attempt(task: int, attempt: int) -> BatchWriteError:
    """Why a task that runs again must not write.

    Args:
        task: Number of the task.
        attempt: Number of the attempt, above 0.
    """
    return BatchWriteError(
        f"Spark started task {task} again (attempt {attempt}) after a failure. Its first attempt "
        "may still be writing, so the batch has to run again as a whole: foreach_batch does so by "
        "itself; with the data source sink, restart the query from its checkpoint"
    )


def named(options: SinkOptions) -> tuple[Checkpoint, SinkOptions]:
    """The query's checkpoint, and the options with the query's name.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    assert options.checkpoint_location is not None, "checked when the options were read"
    checkpoint = Checkpoint(options.checkpoint_location)
    return checkpoint, options.of_query(checkpoint.query_id())


def begin(given: SinkOptions, batch_id: int | None = None, topics: Iterable[str] = ()) -> OpenBatch:
    """Take a new epoch for a batch attempt and learn what was published before.

    Args:
        given: The sink's options.
        batch_id: The batch; by default the last one that the checkpoint plans.
        topics: Topics that the batch is written to, as far as they are known.

    Raises:
        UnknownTopicOrPartitionError: One of the topics does not exist.
        ConfigError: The transaction timeout is above what the broker allows, or the batch is not
            one that may follow what was published; the message says why and what to do.
        CheckpointError: The checkpoint cannot be read.
    """
    checkpoint, options = named(given)
    query_id, sink = checkpoint.query_id(), options.topic or ""
    plan = checkpoint.plan(batch_id)
    with Admin(config=options.admin) as admin:
        # A copy of the checkpoint that is behind must not fence the query that is ahead. What is
        # read here may miss a commit that is not complete; the read below waits for it.
        counts = topic_counts(admin, topics)
        seen = _progress(admin, options, stable=False).last(query_id, sink)
        if is_ahead(seen, plan):
            is_replay(seen, plan, checkpoint, options.source_group_id)
        identity = new_epoch(options)
        progress = _progress(admin, options, stable=True)
        last = progress.last(query_id, sink)
        if is_replay(last, plan, checkpoint, options.source_group_id):
            return OpenBatch(identity, query_id, plan, True, {}, progress)
        own = _own_sources(admin, plan)
        trace = None
        if last is None:
            trace = _check_first(admin, options, plan, own, progress)
        elif not progress.is_newest(query_id, sink):
            _check_starts(admin, options, options.source_group_id, own)
    offsets = least(source.ends for source in own)
    return OpenBatch(identity, query_id, plan, False, offsets, progress, trace, counts)


def _progress(admin: Admin, options: SinkOptions, *, stable: bool) -> Progress:
    group = options.progress_group_id
    return Progress.read(admin.list_group_offsets(group, require_stable=stable), group)


def new_epoch(options: SinkOptions) -> ProducerIdentity:
    """Fence what is left of earlier attempts and abort what they left open."""
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
    return identity


def _own_sources(admin: Admin, plan: BatchPlan) -> list[SourceRange]:
    """The sources that read the sink's own cluster, without partitions that are gone.

    A source that does not name its cluster (Spark's own) counts as one of this cluster where its
    partitions exist here and its end lies within their logs.
    """
    if not plan.sources:
        return []
    cluster_id = admin.describe_cluster().cluster_id
    near = [source for source in plan.sources if source.cluster_id in (cluster_id, None)]
    here = _existing(admin, {tp for source in near for tp in source.ends})
    unnamed = {tp for source in near if source.cluster_id is None for tp in source.ends}
    logs = admin.list_offsets(dict.fromkeys(unnamed & here, "latest"))
    reached = least(source.ends for source in near)
    here -= {tp for tp, log in logs.items() if reached[tp] > log.offset}

    def kept(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: offset for tp, offset in offsets.items() if tp in here}

    return [replace(s, starts=kept(s.starts), ends=kept(s.ends)) for s in near]


def _existing(admin: Admin, partitions: set[TopicPartition]) -> set[TopicPartition]:
    """Those of the partitions that the cluster has."""
    counts = existing_counts(admin, {tp.topic for tp in partitions})
    return {tp for tp in partitions if tp.partition < counts.get(tp.topic, 0)}


def _check_starts(
    admin: Admin, options: SinkOptions, group_id: str, own: list[SourceRange]
) -> None:
    check_starts(
        least(source.starts for source in own),
        admin.list_group_offsets(group_id, require_stable=True),
        location=str(options.checkpoint_location),
        group_id=group_id,
    )


def _check_first(
    admin: Admin,
    options: SinkOptions,
    plan: BatchPlan,
    own: list[SourceRange],
    progress: Progress,
) -> str | None:
    """Compare a query's first batch with what earlier queries published.

    Those are the ones that used the sink's name, and the one that used the checkpoint's location
    where the sink has no name: its checkpoint was lost and begun again.

    Returns:
        The group for the note that this query uses the location, None when it needs none.

    Raises:
        ConfigError: The batch would publish again what an earlier query published.
    """
    groups = {options.source_group_id}
    earlier = {
        entry.query for entry in progress.entries if entry.sink in (options.topic or "", None)
    }
    trace = options.trace_group_id if options.is_named_by_query else None
    if trace is not None:
        for kept in admin.list_group_offsets(trace, require_stable=True).values():
            earlier.add(kept.metadata)
            groups.add(options.of_query(kept.metadata).source_group_id)
    if options.publish_again:
        return trace
    for group_id in sorted(groups):
        _check_starts(admin, options, group_id, own)
    if earlier and not plan.sources:
        raise ConfigError(
            "checkpointLocation",
            options.checkpoint_location,
            f"query {min(earlier)} published to this sink before, and the sources of this new "
            "checkpoint do not tell what. Restore the old checkpoint; or set publishAgain=true, or "
            "another `name`, when these rows are to be published",
        )
    return trace


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
    abort_as(named(options)[1], identity)


def abort_as(options: SinkOptions, identity: ProducerIdentity | None) -> None:
    """As ``abort``, with options that have a name."""
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
            told = f"task {report.task} could not write, so nothing was published: {report.error}"
            if isinstance(report.error, OutOfOrderSequenceNumberError):
                told += (
                    ". If several tasks have rows of one Kafka partition, send them through "
                    "onceflow.spark_integration.route() first, or use foreach_batch"
                )
            raise BatchWriteError(told) from report.error
        for tp, count in report.rows.items():
            if owner.setdefault(tp, report.task) != report.task:
                raise BatchWriteError(
                    f"tasks {owner[tp]} and {report.task} both wrote to {tp}; nothing was "
                    "published. Every Kafka partition must be written by one task: send the rows "
                    "through onceflow.spark_integration.route() first, or use foreach_batch."
                )
            rows[tp] = rows.get(tp, 0) + count
    return rows


def _place(options: SinkOptions, opened: OpenBatch, rows: Iterable[TopicPartition]) -> str | None:
    """Topic of the entry that holds the progress: one of the sink's cluster."""
    if opened.progress.place is not None:
        return opened.progress.place.topic
    if options.topic is not None:
        return options.topic
    return min([*rows, *opened.offsets], default=TopicPartition("", 0)).topic or None


def commit(
    given: SinkOptions,
    opened: OpenBatch,
    rows: Mapping[TopicPartition, int],
    left: Left = _NOTHING,
) -> None:
    """Send what was left, add offsets and progress to the open transaction and end it.

    Args:
        given: The sink's options.
        opened: The batch.
        rows: Rows that tasks wrote, by partition.
        left: What is still to be sent.

    Raises:
        BatchWriteError: The transaction was not committed; nothing of the batch is visible.
        ProducerFencedError: A newer driver has taken over; it knows what became of the batch.
        CommitOutcomeUnknownError: No answer to the commit came, twice. The next attempt reads the
            progress entry, which was part of the transaction.
        KafkaError: Another refusal; nothing of the batch is visible.
    """
    options, plan = given.of_query(opened.query_id), opened.plan
    topic = _place(options, opened, [*rows, *left.rows])
    if topic is None:
        return  # Nothing written and nothing read: running it again would change nothing.
    published = Published(opened.query_id, options.topic or "", plan.batch_id, plan.digest)
    notes = {options.progress_group_id: opened.progress.note(published)}
    if opened.trace_group_id is not None:
        notes[opened.trace_group_id] = opened.query_id
    groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    if opened.offsets:
        note = to_json({"query": opened.query_id, "batch": plan.batch_id}).decode()
        groups[options.source_group_id] = {
            tp: OffsetAndMetadata(end, note) for tp, end in opened.offsets.items()
        }
    for group_id, text in notes.items():
        entry = OffsetAndMetadata(plan.batch_id, text)
        groups[group_id] = {TopicPartition(topic, 0): entry}
    end(options, opened.identity, rows, groups, f"batch {plan.batch_id}", left)


def end(
    options: SinkOptions,
    identity: ProducerIdentity,
    rows: Iterable[TopicPartition],
    groups: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
    what: str,
    left: Left = _NOTHING,
) -> None:
    """Send what was left, add groups' offsets to the open transaction and commit it.

    Args:
        options: The sink's options, with a name.
        identity: Whose transaction it is.
        rows: Partitions that tasks wrote to.
        groups: Offsets by group.
        what: What is committed, for the log.
        left: What is still to be sent.

    Raises:
        KafkaError: As ``commit``.
    """
    with Producer(config=options.owner(identity)) as producer:
        try:
            _send(producer, left)
            producer.note_partitions(list(rows))
            for group_id, offsets in groups.items():
                producer.send_offsets_to_transaction(dict(offsets), ConsumerGroupMetadata(group_id))
            try:
                producer.commit_transaction()
            except CommitOutcomeUnknownError as error:
                logger.warning("%s: %s; asking again", what, error)
                producer.commit_transaction()
        except CommitOutcomeUnknownError:
            raise
        except (KafkaError, BatchWriteError):
            # A refused epoch may mean that the transaction ran out of time, or that a newer
            # driver has taken over; only the end of the transaction tells (and raises then).
            abort_unless_fenced(producer.abort_transaction)
            raise


def _send(producer: Producer, left: Left) -> None:
    """Send batches within the producer's transaction and wait until they are written.

    Raises:
        FatalError: A newer driver has taken over.
        BatchWriteError: They could not be written.
    """
    if left.fences:
        producer.abort_transaction()
        producer.begin_transaction()
    if not left.batches:
        return
    try:
        for topic, batch in left.batches:
            producer.send_batch(topic, batch)
        producer.flush()
    except FatalError:
        raise
    except KafkaError as error:
        told = f"rows could not be written, so nothing was published: {error}"
        raise BatchWriteError(told) from error
