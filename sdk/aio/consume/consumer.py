"""AsyncConsumer: reading topics with asyncio, alone or as a member of a group.

This module is the API. The engine, which both faces share, decides what happens within a poll; the
core decides what a rebalance or an offset means.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from onceflow.sdk.aio.consume.engine import ConsumerEngine, Form, Polled, being_polled
from onceflow.sdk.aio.consume.listeners import (
    Listeners,
    PendingCallback,
    RebalanceCallback,
    run_callback,
)
from onceflow.sdk.core.arguments import (
    check_close,
    check_flag,
    check_text,
    compile_pattern,
    limit_of,
    offset_of,
    partition_list,
    record_limit,
    times_by_partition,
    topic_list,
)
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.sdk.model.special_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.serde import Deserializer
from onceflow.sdk.settings.config import ConsumerConfig
from onceflow.sdk.settings.keywords import ConsumerKeywords, ReaderKeywords

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ConsumerMetrics

K = TypeVar("K")
V = TypeVar("V")

DEFAULT_CLOSE_TIMEOUT_MS: Final = 30_000

INTERRUPTED_CLOSE_TIMEOUT_MS: Final = 500
"""How long leaving the ``with`` block may take after Ctrl-C, a cancellation or a forced exit."""

ITERATION_WAIT_MS: Final = 1_000
"""How long one poll of an iteration waits; iteration itself never ends."""


class AsyncConsumer(Generic[KeyT_co, ValueT_co]):
    """Reads records from topics.

    Its parameters are the types of keys and values, which follow from the deserializers:
    ``bytes | None`` without one, and ``T | None`` with one that gives ``T``, as a null is not
    deserialized. With ``config=`` they are ``object``.

    Use it as ``async with AsyncConsumer("topic", ...) as consumer`` and poll, or iterate with
    ``async for``. One task polls; other tasks may call `wakeup`, `commit` and the offset queries.

    Delivery: with ``isolation_level="read_committed"`` (the default here) records of open and
    aborted transactions are not seen. Positions are committed by `commit`, by the automatic
    commit, or within a producer's transaction. A record counts as processed when the poll after
    the one that returned it begins.
    """

    @overload
    def __init__(
        self: AsyncConsumer[bytes | None, bytes | None],
        *topics: str,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[K | None, bytes | None],
        *topics: str,
        key_deserializer: Deserializer[K],
        value_deserializer: None = None,
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[bytes | None, V | None],
        *topics: str,
        key_deserializer: None = None,
        value_deserializer: Deserializer[V],
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[K | None, V | None],
        *topics: str,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[object, object], *topics: str, **settings: Unpack[ConsumerKeywords]
    ) -> None: ...
    def __init__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> None:
        """Make a consumer; nothing is sent before `start`.

        Args:
            *topics: Topics to subscribe to, as by `subscribe`.
            **settings: Fields of `onceflow.sdk.ConsumerConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
        """
        names = topic_list(topics)
        self._engine = ConsumerEngine(ConsumerConfig.from_settings(settings))
        # The engine passes on what the deserializers return, of any type.
        self._next_record = cast(
            "Callable[[], ConsumerRecord[KeyT_co, ValueT_co] | None]", self._engine.cursor.next
        )
        self._closed = False
        self._polling = False
        if names:
            self.subscribe(names)

    @property
    def engine(self) -> ConsumerEngine:
        """The engine, for the blocking face; not part of the public API."""
        return self._engine

    @property
    def config(self) -> ConsumerConfig:
        """The settings, defaults included."""
        return self._engine.config

    async def start(self) -> None:
        """Connect to the cluster. Calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
            IllegalStateError: It was started in another event loop.
        """
        await self._engine.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an exception it is unknown which polled records were processed, so they are not
        # committed. Ctrl-C and cancellation must end soon, also where brokers do not answer.
        interrupted = kind is not None and not issubclass(kind, Exception)
        timeout_ms = INTERRUPTED_CLOSE_TIMEOUT_MS if interrupted else DEFAULT_CLOSE_TIMEOUT_MS
        await self.close(timeout_ms, commit=kind is None)

    # --- what to read ---

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe to topics: the group assigns their partitions. The next poll joins it.

        Callbacks run within `poll` and take a list of partitions; they may be coroutine
        functions. Their exceptions are raised by that poll, after the rebalance has continued.

        Args:
            topics: Topic names.
            pattern: Regular expression that must match whole names; instead of `topics`.
            on_assigned: New partitions; called after each rebalance, also without any.
            on_revoked: Partitions that are about to be given up; they may still be committed.
            on_lost: Partitions that were lost without warning; they may belong to others already,
                so nothing of them may be committed.

        Raises:
            IllegalStateError: No group_id, partitions were assigned by hand, or neither or both
                of topics and pattern were given.
        """
        compiled = compile_pattern(pattern)
        listeners = Listeners(on_assigned, on_revoked, on_lost)
        self._engine.subscribe(topics, compiled, listeners)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's rebalances.

        Positions start at the group's committed offsets if there is a group_id, else at
        ``auto_offset_reset``.

        Args:
            partitions: Which ones, in place of those of the last call.

        Raises:
            IllegalStateError: Topics are subscribed.
        """
        self._engine.assign(partitions)

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; `on_revoked` is called."""
        self._engine.pool.check_open()
        pending = await self._engine.begin_release(self.config.default_api_timeout_ms, commit=True)
        try:
            await run_callback(pending)
        finally:
            self._engine.end_release()

    def subscription(self) -> set[str]:
        """Topics that are subscribed, or that the pattern matches at present."""
        subscription = self._engine.subscription
        return set(subscription.topics) if subscription.uses_group else set()

    def assignment(self) -> set[TopicPartition]:
        """Partitions that belong to this consumer now."""
        return self._engine.subscription.assignment()

    # --- records ---

    async def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Return records that have arrived. Joins the group and runs rebalance callbacks.

        Poll at least every ``max_poll_interval_ms``; otherwise this member leaves the group, and
        others get its partitions (a warning is logged at half of that time).

        Args:
            timeout_ms: Longest wait for the first record; 0 returns what has arrived.
            max_records: Most records to return, default ``max_poll_records``.

        Returns:
            Records by partition, in offset order; empty when time is up or `wakeup` was called.

        Raises:
            NoOffsetForPartitionError: A partition has no usable offset and ``auto_offset_reset``
                is "none"; raised by every poll until a seek.
            FencedInstanceIdError: Another consumer runs with the same group_instance_id; final.
            RecordError: A batch is damaged, or a deserializer refused a record
                (SerializationError). Its partition waits and is tried again after a pause, with
                an error for each try, while others continue. ``place`` names topic, partition and
                offset; seek past it to continue without it.
            IllegalStateError: Nothing was chosen to be read, or another poll is running.
            KafkaError: Another error of the background work that a retry does not mend.
        """
        limit = record_limit(max_records, self.config.max_poll_records)
        polled = await self._poll(timeout_ms, limit, fill=False)
        self._engine.interception.on_records(polled)
        return cast("dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]", polled)

    async def poll_columns(
        self, timeout_ms: int = 0, max_records: int | None = None, *, values_only: bool = False
    ) -> dict[TopicPartition, RecordColumns[KeyT_co, ValueT_co]]:
        """Return records as `poll`, but as columns: far cheaper for work on whole batches.

        Args:
            timeout_ms: Longest wait for the first record; 0 returns what has arrived.
            max_records: Most records to return, default ``max_poll_records``.
            values_only: Whether offsets and values are enough; keys, timestamps and headers are
                then not even decoded.

        Returns:
            Columns by partition. Interceptors see them as records that cannot be changed.

        Raises:
            KafkaError: As `poll`.
        """
        limit = record_limit(max_records, self.config.max_poll_records)
        check_flag("values_only", values_only)
        engine = self._engine
        form = Form.VALUES if values_only else Form.COLUMNS
        await self._poll(timeout_ms, limit, fill=True, form=form)
        columns = engine.cursor.take_columns(limit, values_only=values_only)
        engine.interception.on_records(columns)
        return cast("dict[TopicPartition, RecordColumns[KeyT_co, ValueT_co]]", columns)

    async def _poll(
        self, timeout_ms: int, max_records: int, *, fill: bool, form: Form = Form.RECORDS
    ) -> Polled:
        engine = self._engine
        deadline_ms = engine.pool.deadline_ms(timeout_ms)
        engine.pool.check_usable()
        if self._polling:
            raise being_polled()
        done = None
        self._polling = True
        try:
            while True:
                step = await engine.poll_step(deadline_ms, max_records, done, fill=fill, form=form)
                if not isinstance(step, PendingCallback):
                    return step
                try:
                    await run_callback(step)
                except BaseException:
                    engine.finish_event(step.event)
                    raise
                done = step.event
        finally:
            self._polling = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[KeyT_co, ValueT_co]:
        """Wait for the next record. Raises what `poll` raises."""
        engine = self._engine
        while True:
            if not engine.needs_poll:
                record = self._next_record()
                if record is not None:
                    engine.note_poll()
                    if engine.intercepts:
                        engine.interception.on_record(record)
                    return record
            await self._poll(ITERATION_WAIT_MS, self.config.max_poll_records, fill=True)
            record = self._next_record()
            if record is not None:
                if engine.intercepts:
                    engine.interception.on_record(record)
                return record

    def wakeup(self) -> None:
        """Let the running poll, or else the next one, return at once without records.

        May be called from any thread and from a signal handler.
        """
        self._engine.pool.run_from_anywhere(self._engine.wakeup)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; what was fetched is kept.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: One of them is not assigned.
        """
        self._engine.set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: One of them is not assigned.
        """
        self._engine.set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        """Partitions that are paused."""
        return {state.topic_partition for state in self._engine.subscription if state.paused}

    # --- positions ---

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record; it steps over transaction markers.

        Args:
            partition: An assigned partition.
            timeout_ms: Longest wait for the position, default ``default_api_timeout_ms``.

        Raises:
            IllegalStateError: The partition is not assigned.
            NoOffsetForPartitionError: There is none, and ``auto_offset_reset`` is "none".
            RequestTimedOutError: It was not known in time.
        """
        return await self._engine.position(partition, timeout_ms)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at an offset; records fetched before are dropped.

        Args:
            partition: An assigned partition.
            offset: Offset of the next record, with its leader epoch if known.

        Raises:
            IllegalStateError: The partition is not assigned.
            ConfigError: The offset is negative, or not a whole number.
        """
        if isinstance(offset, OffsetAndMetadata):
            self._engine.seek(partition, offset.offset, offset.leader_epoch)
        else:
            self._engine.seek(partition, offset_of(offset), -1)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the first record of partitions.

        Args:
            partitions: Assigned ones; None means all.

        Raises:
            IllegalStateError: One is not assigned, or none is yet.
        """
        self._engine.reset(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the end: under read_committed, at the first open transaction.

        Args:
            partitions: Assigned ones; None means all.

        Raises:
            IllegalStateError: One is not assigned, or none is yet.
        """
        self._engine.reset(partitions, LATEST_TIMESTAMP)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets to the group.

        Args:
            offsets: Offset of the next record to be processed, by partition; None commits the
                positions of all partitions, that is everything that polls returned.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            CommitFailedError: The group expelled this member; other members own the partitions.
            RebalanceInProgressError: The group is rebalancing; poll, then commit.
            RequestTimedOutError: Time ran out; the offsets may or may not be stored.
            IllegalStateError: There is no group_id.
        """
        await self._engine.commit(offsets, timeout_ms)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit without waiting; a failure is logged, and the next commit makes up for it.

        Args:
            offsets: As for `commit`; None takes the positions as of now.

        Raises:
            CommitFailedError: A partition does not belong to this consumer.
            IllegalStateError: There is no group_id.
        """
        self._engine.commit_in_background(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group committed; None where there is none.

        Under read_committed it waits for transactions that are about to commit offsets (KIP-447).

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            RequestTimedOutError: There was no stable answer in time.
            IllegalStateError: There is no group_id.
        """
        return await self._engine.committed(partitions, timeout_ms)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset that exists, by partition.

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._ends(partitions, EARLIEST_TIMESTAMP, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset at which reading ends now, by partition.

        Under read_committed that is the last stable offset, else the high watermark.

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._ends(partitions, LATEST_TIMESTAMP, timeout_ms)

    async def _ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        engine = self._engine
        targets = dict.fromkeys(partition_list(partitions), timestamp)
        limit_of(timeout_ms, 0)
        engine.pool.check_usable()
        found = await engine.fetching.reader.list_offsets(
            targets, self.config.isolation, timeout_ms
        )
        return {partition: answer.offset for partition, answer in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record at or after a time, by partition; None where there is none.

        Args:
            timestamps_ms: Milliseconds since 1970 by partition.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A time is negative, or not a whole number.
        """
        engine = self._engine
        targets = times_by_partition(timestamps_ms)
        limit_of(timeout_ms, 0)
        engine.pool.check_usable()
        found = await engine.fetching.reader.list_offsets(
            targets, self.config.isolation, timeout_ms
        )
        return {
            partition: None
            if answer.offset < 0
            else OffsetAndTimestamp(answer.offset, answer.timestamp_ms, answer.leader_epoch)
            for partition, answer in found.items()
        }

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets lie between position and end, as of the last fetch.

        Args:
            partition: An assigned partition.

        Returns:
            The distance in offsets (not records: markers count), None while it is unknown: before
            the first fetch, and before the next one when the partition was paused at its end.
        """
        return self._engine.state(partition).lag(self.config.isolation)

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Return the id of the topic that the partition's position belongs to (KIP-516).

        A topic that is deleted and made again under its name has another id.

        Args:
            partition: An assigned partition.

        Returns:
            None where brokers have no topic ids, and after a seek until records came from there.
        """
        found = self._engine.state(partition).topic_id
        return None if found == ZERO_UUID else found

    def current_lag(self, partition: TopicPartition) -> int | None:
        """See ``AsyncConsumer.lag``; this is the Java client's name for it (KIP-695).

        Args:
            partition: An assigned partition.
        """
        return self.lag(partition)

    def metrics(self) -> ConsumerMetrics:
        """Return the figures of this consumer; cheap, from any thread, and also after `close`."""
        from onceflow.sdk.aio.snapshots import consumer_metrics  # Late: most programs never ask.

        return consumer_metrics(self._engine)

    # --- cluster and group ---

    async def partitions_for_topic(
        self, topic: str, *, timeout_ms: int | None = None
    ) -> set[int] | None:
        """Return the partition numbers of a topic; None if it does not exist.

        Args:
            topic: Topic name.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        check_text("topic", topic)
        limit_of(timeout_ms, 0)
        engine = self._engine
        engine.pool.check_usable()
        found = engine.pool.metadata.topic(topic)
        if found is None:
            metadata = await engine.pool.refresh_metadata([topic], timeout_ms=timeout_ms)
            found = metadata.topic(topic)
        return None if found is None else set(found.partitions)

    async def topics(self, *, timeout_ms: int | None = None) -> set[str]:
        """Return all topics that this client may see, without internal ones.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        engine = self._engine
        engine.pool.check_usable()
        metadata = await engine.pool.refresh_metadata(all_topics=True, timeout_ms=timeout_ms)
        return {
            name
            for name, topic in metadata.topics.items()
            if topic.error_code == 0 and not topic.is_internal
        }

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the present membership, for ``send_offsets_to_transaction`` (KIP-447).

        Take it when a batch is polled, not when it is committed, so that a rebalance in between
        makes the commit fail.

        Raises:
            IllegalStateError: There is no group_id, or this consumer is not a member now.
        """
        return self._engine.group_metadata()

    async def ensure_membership(self, expected: ConsumerGroupMetadata | None = None) -> None:
        """Ask the coordinator, by an extra heartbeat, whether this consumer is still a member.

        A rebalance in progress is fine: until it polls, this member keeps its partitions.

        Args:
            expected: Membership under which work was done, to be compared with the present one.

        Raises:
            CommitFailedError: The group expelled this member, or the membership differs.
            FencedInstanceIdError: Another consumer runs with the same group_instance_id.
            KafkaError: The coordinator could not be asked.
        """
        await self._engine.ensure_membership(expected)

    # --- the end ---

    async def stop(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """The same as ``close``.

        Args:
            timeout_ms: As for ``close``.
        """
        await self.close(timeout_ms)

    async def close(
        self,
        timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS,
        *,
        commit: bool = True,
        leave_group: bool | None = None,
    ) -> None:
        """Commit, call `on_revoked`, leave the group and close. Calling it again does nothing.

        Args:
            timeout_ms: Longest wait for the brokers.
            commit: False leaves out the automatic commit.
            leave_group: Whether the coordinator shall give the partitions to others at once; None
                as Kafka does: static members (group_instance_id) keep theirs until their session
                times out, so that they can come back; others leave (KIP-1092).

        Raises:
            BaseException: What the callback raised; the consumer is closed nevertheless.
        """
        engine = self._engine
        if self._closed or engine.pool.is_foreign:  # A forked child: the sockets are the parent's.
            self._closed = True
            return
        engine.pool.check_loop()
        check_close(timeout_ms, commit, leave_group)
        deadline_ms = engine.pool.deadline_ms(timeout_ms) if engine.pool.is_started else 0
        self._closed = True
        try:
            pending = await engine.begin_release(timeout_ms, commit=commit)
            await run_callback(pending)
        except asyncio.CancelledError:
            deadline_ms = min(deadline_ms, engine.pool.now_ms() + INTERRUPTED_CLOSE_TIMEOUT_MS)
            raise
        finally:
            left_ms = max(0, deadline_ms - engine.pool.now_ms()) if engine.pool.is_started else 0
            await engine.close(left_ms, leave_group)
