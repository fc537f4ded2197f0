"""Reading: the driver's planning of micro-batches and the tasks' reading of their ranges.

A task reads one range of offsets of one partition and ends when its position has passed the end;
that position, not the last record, decides, since markers and aborted records hold offsets too.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onceflow.sdk.model.columns import RecordColumns
from onceflow.spark_integration.options import PartitionOffsets, SourceOptions
from onceflow.spark_integration.planning import (
    MARK,
    BatchDelay,
    DataLossError,
    OffsetRange,
    check_data_loss,
    limit_offsets,
    log_skipped,
    plan_ranges,
)
from onceflow.spark_integration.positions import STARTING, MissingPartitionsError, PositionFinder

if TYPE_CHECKING:
    from onceflow.sdk import Admin, TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")

ROWS_PER_BATCH_MAX = 10_000
"""Most rows of an Arrow batch that goes to Spark."""
OffsetDict = dict[str, Any]
"""Form of a position in the checkpoint: topic -> partition as text -> offset, and ``MARK``."""


class RangePartition(InputPartition):
    """One range of offsets, read by one Spark task."""

    def __init__(self, range_: OffsetRange) -> None:
        super().__init__(range_)
        self.range = range_


def to_dict(offsets: Mapping[TopicPartition, int]) -> OffsetDict:
    """Offsets in the form that Spark writes to the checkpoint."""
    nested: OffsetDict = {}
    for tp, offset in sorted(offsets.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return nested


def from_dict(nested: OffsetDict) -> PartitionOffsets:
    """Offsets from the form of the checkpoint."""
    from onceflow.sdk import TopicPartition

    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, numbers in nested.items()
        if topic != MARK
        for partition, offset in numbers.items()
    }


def _ids(position: OffsetDict) -> dict[str, str]:
    """Ids of topics when a position was planned; empty in checkpoints of older versions."""
    ids: dict[str, str] = position.get(MARK, {}).get("topics", {})
    return ids


def begin_of(start: OffsetDict, end: OffsetDict) -> PartitionOffsets:
    """First offsets of a micro-batch.

    Spark does not keep the first offsets of a query: when its first batch runs again, Spark asks
    for them again, and ``latest`` has another answer then. So each position holds the first one.

    Args:
        start: Where Spark says that the batch begins.
        end: Where it ends.
    """
    first: OffsetDict | None = end.get(MARK, {}).get("start")
    if first is None or first == start.get(MARK, {}).get("start"):
        return from_dict(start)
    return from_dict(first)


def _arrow_schema(options: SourceOptions) -> pa.Schema:
    form = options.value_format
    columns = [
        ("key", pa.binary()),
        ("value", pa.binary() if form is None else form.arrow_type),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if options.include_headers:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns.append(("headers", pa.list_(header)))
    return pa.schema(columns)


def _record_batch(
    found: RecordColumns[bytes | None, bytes | None], schema: pa.Schema, options: SourceOptions
) -> pa.RecordBatch:
    count = len(found)
    form = options.value_format
    times = pa.array(found.timestamps_ms, pa.int64())
    # A record without a timestamp (-1) becomes null.
    known = pc.if_else(pc.less(times, 0), pa.scalar(None, pa.int64()), pc.multiply(times, 1_000))
    columns = [
        pa.array(found.keys, pa.binary()),
        pa.array(found.values, pa.binary()) if form is None else form.decoded(found),
        pa.repeat(found.topic, count),
        pa.repeat(pa.scalar(found.partition, pa.int32()), count),
        pa.array(list(found.offsets), pa.int64()),
        known.cast(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(int(found.timestamp_type), pa.int32()), count),
    ]
    if options.include_headers:
        lists: list[list[dict[str, object]] | None] = [None] * count
        for number, headers in found.headers.items():
            lists[number] = [{"key": name, "value": value} for name, value in headers]
        columns.append(pa.array(lists, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _before(
    found: RecordColumns[bytes | None, bytes | None], end: int
) -> RecordColumns[bytes | None, bytes | None]:
    """Records in front of an offset."""
    count = bisect.bisect_left(found.offsets, end)
    if count == len(found):
        return found
    return RecordColumns(
        found.topic,
        found.partition,
        found.offsets[:count],
        found.values[:count],
        keys=found.keys[:count],
        timestamps_ms=found.timestamps_ms[:count],
        timestamp_type=found.timestamp_type,
        headers={number: headers for number, headers in found.headers.items() if number < count},
    )


def read_range(options: SourceOptions, range_: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Read one range, as Arrow batches.

    Raises:
        DataLossError: The range's first offset is gone and ``failOnDataLoss`` is set.
        TimeoutError: The position did not move for ``pollTimeoutMs``.
    """
    from onceflow.sdk import Consumer
    from onceflow.sdk.errors import NoOffsetForPartitionError

    tp = range_.topic_partition
    schema = _arrow_schema(options)
    # Without deserializers, as no option sets one.
    consumer = cast("Consumer[bytes | None, bytes | None]", Consumer(config=options.consumer))
    with consumer:
        consumer.assign([tp])
        consumer.seek(tp, range_.start)
        position, moved_at = range_.start, time.monotonic()
        while position < range_.end:
            try:
                polled = consumer.poll_columns(500, ROWS_PER_BATCH_MAX).get(tp)
                now_at = consumer.position(tp)
            except NoOffsetForPartitionError as error:
                if options.fail_on_data_loss:
                    raise DataLossError(
                        f"{tp}: offset {position} is gone; it expired or was deleted. Set "
                        "failOnDataLoss=false to go on without it."
                    ) from error
                begin = consumer.beginning_offsets([tp])[tp]
                # A log that begins earlier has ended before the position: the rest is not there.
                now_at = min(begin, range_.end) if begin > position else range_.end
                log_skipped(tp, position, now_at, "they were deleted while the batch was read")
                consumer.seek(tp, now_at)
                position, moved_at = now_at, time.monotonic()
                continue
            if polled is not None and (found := _before(polled, range_.end)):
                yield _record_batch(found, schema, options)
            if now_at != position:
                position, moved_at = now_at, time.monotonic()
            elif time.monotonic() - moved_at > options.poll_timeout_ms / 1000:
                raise TimeoutError(
                    f"{tp}: no progress from offset {position} towards {range_.end} within "
                    f"pollTimeoutMs={options.poll_timeout_ms}; is the broker reachable?"
                )


def _cut(
    options: SourceOptions, start: PartitionOffsets, end: PartitionOffsets
) -> list[RangePartition]:
    ranges = plan_ranges(start, end, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(range_) for range_ in ranges]


class OnceflowReader(DataSourceReader):
    """A bounded read: ``spark.read.format("onceflow")``.

    Args:
        options: The source's options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve both ends on the driver and cut them into ranges."""
        options = self._options
        from onceflow.sdk import Admin

        with Admin(config=options.admin) as admin:
            finder = PositionFinder(options, admin)
            partitions = finder.partitions()
            start = finder.resolve(options.starting, partitions, STARTING)
            end = finder.resolve(options.ending, partitions, "endingOffsets")
            earliest = finder.earliest(partitions)
        end = {tp: max(offset, start[tp]) for tp, offset in end.items()}
        start = check_data_loss(start, end, earliest, fail=options.fail_on_data_loss)
        return _cut(options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in a task; Spark names none when there was nothing to plan."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.range)


class OnceflowStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An unbounded read: ``spark.readStream.format("onceflow")``.

    Args:
        options: The source's options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Admin | None = None
        self._target: PartitionOffsets | None = None
        self._cluster_id: str | None = None
        least = options.min_offsets_per_trigger
        self._delay = None if least is None else BatchDelay(least, options.max_trigger_delay_ms)

    def _finder(self) -> PositionFinder:
        if self._client is None:
            from onceflow.sdk import Admin

            self._client = Admin(config=self._options.admin)
        return PositionFinder(self._options, self._client)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> OffsetDict:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        finder = self._finder()
        first = to_dict(finder.resolve(self._options.starting, finder.partitions(), STARTING))
        return self._marked(first, first, finder.topic_ids(first))

    def _marked(
        self, position: OffsetDict, first: OffsetDict | None, topic_ids: Mapping[str, str]
    ) -> OffsetDict:
        """Add the ids of cluster and topics, and the first position, for sink and restarts."""
        if self._cluster_id is None:
            self._cluster_id = self._finder().cluster_id()
        mark = {"cluster": self._cluster_id, "topics": dict(sorted(topic_ids.items()))}
        return {**position, MARK: mark | ({} if first is None else {"start": first})}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """``maxOffsetsPerTrigger``, or no limit."""
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: OffsetDict, limit: ReadLimit) -> OffsetDict:  # noqa: N802
        """How far the next micro-batch goes; partitions found meanwhile begin at their start."""
        known = from_dict(start)
        finder = self._finder()
        listed = finder.partitions()
        # Partitions that one metadata answer leaves out stay in the query: dropping them would
        # make them new, and all their records would be read again.
        gone = set(known).difference(listed)
        ids = {**_ids(start), **finder.topic_ids({tp.topic for tp in [*listed, *known]})}
        renewed = self._renewed(_ids(start), ids)
        fresh = finder.earliest(tp for tp in listed if tp not in known or tp.topic in renewed)
        begin = {**known, **fresh}
        latest = {**finder.latest(listed), **self._unlisted(finder, gone)}
        if self._target is not None:
            latest = {
                tp: min(offset, self._target.get(tp, begin[tp])) for tp, offset in latest.items()
            }
        # A query that ends where the topics ended must not end before that, so it does not wait.
        elif self._delay and self._delay.waits(begin, latest, int(time.monotonic() * 1000)):
            return start
        if isinstance(limit, ReadMaxRows):
            latest = limit_offsets(begin, latest, limit.max_rows)
        # A partition without an end keeps its place, in case that it comes back.
        position = to_dict({**known, **latest})
        return self._marked(position, start.get(MARK, {}).get("start"), ids)

    def _renewed(self, before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
        """Topics that were deleted and made again, so that offsets of before mean nothing.

        Raises:
            DataLossError: There is one, and ``failOnDataLoss`` is set.
        """
        renewed = {name for name, id_ in before.items() if now.get(name, id_) != id_}
        if renewed and self._options.fail_on_data_loss:
            raise DataLossError(
                f"topics were deleted and created again since the checkpoint was written: "
                f"{', '.join(sorted(renewed))}; the checkpoint's offsets belong to the deleted "
                "topics. Set failOnDataLoss=false to read the new topics from their beginning, or "
                "start a new checkpoint."
            )
        return renewed

    def _unlisted(self, finder: PositionFinder, gone: set[TopicPartition]) -> PartitionOffsets:
        """Ends of partitions that the query reads but metadata does not name."""
        from onceflow.sdk.errors import UnknownTopicOrPartitionError

        if not gone:
            return {}
        if not self._options.fail_on_data_loss:
            gone = finder.existing(gone)
        try:
            return finder.latest(gone)
        except (MissingPartitionsError, UnknownTopicOrPartitionError) as error:
            raise DataLossError(
                f"partitions are gone: {', '.join(map(str, sorted(gone)))}. Set "
                "failOnDataLoss=false to go on without them, or start a new checkpoint."
            ) from error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where the logs end now; the query ends there."""
        finder = self._finder()
        self._target = finder.latest(finder.partitions())

    def reportLatestOffset(self) -> OffsetDict:  # noqa: N802 - Spark's name
        """Where the logs end, for the query's progress report."""
        finder = self._finder()
        return to_dict(finder.latest(finder.partitions()))

    def partitions(self, start: OffsetDict, end: OffsetDict) -> Sequence[InputPartition]:
        """Cut a micro-batch into ranges; checks that its offsets are still there."""
        known, stop = begin_of(start, end), from_dict(end)
        finder = self._finder()
        if known == from_dict(start):
            known = self._without_renewed(known, _ids(start), _ids(end))
        stop = self._present(finder, known, stop, _ids(end))
        # An empty range needs nothing, so nothing of it can be lost.
        stop = {tp: offset for tp, offset in stop.items() if offset != known.get(tp)}
        earliest = finder.earliest(sorted(stop))
        begin = {tp: known.get(tp, earliest[tp]) for tp in stop}
        begin = check_data_loss(begin, stop, earliest, fail=self._options.fail_on_data_loss)
        return _cut(self._options, begin, stop)

    def _without_renewed(
        self, known: PartitionOffsets, before: Mapping[str, str], now: Mapping[str, str]
    ) -> PartitionOffsets:
        """First offsets without those of topics that the batch begins anew."""
        renewed = self._renewed(before, now)
        for tp in sorted(tp for tp in known if tp.topic in renewed):
            logger.warning(
                "failOnDataLoss=false: topic %s was deleted and made again; partition %d, read to "
                "offset %d before, is read from its beginning",
                tp.topic, tp.partition, known[tp],
            )  # fmt: skip
        return {tp: offset for tp, offset in known.items() if tp.topic not in renewed}

    def _present(
        self,
        finder: PositionFinder,
        known: PartitionOffsets,
        stop: PartitionOffsets,
        planned: Mapping[str, str],
    ) -> PartitionOffsets:
        """Ends of those partitions that are still what they were when the batch was planned.

        Raises:
            DataLossError: A topic was made again since, and ``failOnDataLoss`` is set.
        """
        now = finder.topic_ids({tp.topic for tp in stop})
        renewed = self._renewed(planned, now)
        if self._options.fail_on_data_loss:
            return stop
        present = {tp for tp in finder.existing(stop) if tp.topic not in renewed}
        for tp in sorted(set(stop) - present):
            log_skipped(tp, known.get(tp, 0), stop[tp], "their topic or partition was deleted")
        return {tp: offset for tp, offset in stop.items() if tp in present}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in a task; Spark names none when there was nothing to plan."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.range)

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
