"""Tasks that look up a consumer's positions and fetch its data, on separate connections.

They carry out what the fetcher and the subscription ask for: fetches, committed offsets, offsets by
time, and the comparison with leader epochs. These two decide what an answer means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.consume.offset_reader import OffsetReader
from onceflow.sdk.core.consume.fetch_buffer import make_deserializer
from onceflow.sdk.core.consume.fetch_plan import FetchOutcome, FetchPlan, FetchSettings
from onceflow.sdk.core.consume.fetcher import Fetcher
from onceflow.sdk.core.consume.offset_lookup import CommittedOffset
from onceflow.sdk.core.consume.subscription import (
    DURATION_AGO,
    PartitionPhase,
    PartitionState,
    Subscription,
)
from onceflow.sdk.core.group.membership import EXPELLED
from onceflow.sdk.core.retry import Recovery, recovery_for
from onceflow.sdk.errors import (
    BrokerConnectionError,
    BrokerError,
    KafkaError,
    NoOffsetForPartitionError,
)
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, IsolationLevel, TopicPartition
from onceflow.sdk.observe.meters import ConsumerCounters
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.batch_reading import prepare_reading
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.settings.config import ConsumerConfig
from onceflow.sdk.settings.consumer_checks import reset_duration_ms

logger: logging.Logger = logging.getLogger("onceflow.sdk.fetcher")

FETCH_CONNECTION: Final = "fetch"
"""Name of the connection for fetches, which wait at the broker; it answers in order."""

_Stamps = dict[TopicPartition, int]


class FetchRunner:
    """Drives one consumer's fetcher.

    Attributes:
        fetcher: Decides what to fetch.
        reader: Sends requests for offsets.
        counters: Counts for metrics.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        config: ConsumerConfig,
        subscription: Subscription,
        on_change: Callable[[], None],
        reader: Callable[[], ConsumerGroupMetadata | None],
        on_expelled: Callable[[], None],
    ) -> None:
        """Make the fetcher; nothing is sent before `pump`.

        Args:
            pool: Connections and metadata.
            config: The consumer's settings.
            subscription: The partitions.
            on_change: Called when a poll may find something new.
            reader: Returns the member for OffsetFetch, if the coordinator checks it.
            on_expelled: Called if the coordinator does not know that member any more.
        """
        self._pool = pool
        self._config = config
        self._subscription = subscription
        self._on_change = on_change
        self._reader_identity = reader
        self._on_expelled = on_expelled
        self.reader: OffsetReader = OffsetReader(pool)
        self.fetcher: Fetcher = Fetcher(
            FetchSettings(
                isolation_level=config.isolation,
                min_bytes=config.fetch_min_bytes,
                max_wait_ms=config.fetch_max_wait_ms,
                max_bytes=config.fetch_max_bytes,
                partition_max_bytes=config.max_partition_fetch_bytes,
                check_crcs=config.check_crcs,
                rack=config.client_rack,
                retry_backoff_ms=config.retry_backoff_ms,
                retry_backoff_max_ms=config.retry_backoff_max_ms,
                preference_ms=config.metadata_max_age_ms,
                deserialize=make_deserializer(config.key_deserializer, config.value_deserializer),
            ),
            subscription,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[object] = set()
        self._failure: KafkaError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False
        self._is_prepared = False
        self.counters: ConsumerCounters = ConsumerCounters()

    @property
    def has_failure(self) -> bool:
        """Whether there is an error that a poll must raise."""
        return self._failure is not None or self.fetcher.unreadable.has_failure

    def take_failure(self) -> KafkaError | None:
        """Return the error that a poll must raise, once."""
        failure, self._failure = self._failure, None
        return failure or self.fetcher.unreadable.take_failure()

    def pump(self) -> None:
        """Start all work that may start now; cheap when there is none."""
        if self._closed:
            return
        now_ms = self._pool.now_ms()
        plans = self.fetcher.plan(self._pool.metadata, now_ms, self._fetch_version)
        for plan in plans:
            self._spawn(self._fetch(plan))
        for node_id in self.fetcher.unknown_nodes:
            self._spawn_once(("connect", node_id), partial(self._learn_version, node_id))
        if self.fetcher.leaders_missing:
            self._refresh_metadata()
        for phase, work in (
            (PartitionPhase.LOADING, self._load),
            (PartitionPhase.RESETTING, self._reset),
            (PartitionPhase.VALIDATING, self._validate),
        ):
            due = self._subscription.in_phase(phase, now_ms)
            if due:
                self._spawn_once(phase, partial(work, due))
        self._arm(now_ms)

    async def close(self) -> None:
        """Stop all tasks."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- tasks ---

    def _spawn_once(self, key: object, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Start work unless the same work is running."""
        if key not in self._under_way:
            self._under_way.add(key)
            self._spawn(work(), key)

    def _spawn(self, work: Coroutine[object, object, None], key: object = None) -> None:
        task = asyncio.get_running_loop().create_task(work, name="onceflow-consumer")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(key, done))

    def _on_done(self, key: object, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._under_way.discard(key)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, KafkaError):
            self._failure = error
        elif error is not None:
            # A bug in this library: the poll raises it instead of waiting for ever.
            logger.error("a consumer's task failed", exc_info=error)
            failure = KafkaError(f"internal error of the consumer: {error!r}")
            failure.__cause__ = error
            self._failure = failure
        self.pump()
        self._on_change()

    def _arm(self, now_ms: int) -> None:
        """Pump again when the next backoff of a partition or broker ends."""
        waits = [self.fetcher.next_retry_ms(now_ms)]
        waits += [s.retry_at_ms for s in self._subscription if s.retry_at_ms > now_ms]
        due_ms = min((wait for wait in waits if wait is not None), default=None)
        if due_ms is None or (self._timer is not None and now_ms < self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later((due_ms - now_ms + 1) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self.pump()
        self._on_change()  # Buffered data of a held partition may be tried again too.

    def _fetch_version(self, node_id: int) -> int | None:
        return self._pool.api_version(node_id, FetchRequest)

    async def _learn_version(self, node_id: int) -> None:
        try:
            await self._pool.connect(node_id, FETCH_CONNECTION)
        except KafkaError as error:
            logger.info("node %d cannot be reached for fetching: %s", node_id, error)
            self.fetcher.on_unreachable(node_id)
            await self._refresh_after_pause()

    def _refresh_metadata(self) -> None:
        self._spawn_once("metadata", self._refresh_after_pause)

    async def _refresh_after_pause(self) -> None:
        await asyncio.sleep(self._config.retry_backoff_ms / 1000)
        try:
            await self._pool.refresh_metadata()
        except KafkaError as error:
            logger.warning("the metadata could not be refreshed: %s", error)

    async def _fetch(self, plan: FetchPlan) -> None:
        sent_ms = self._pool.now_ms()
        if not self._is_prepared:
            self._is_prepared = True  # While the first answer is on its way.
            asyncio.get_running_loop().call_soon(prepare_reading)
        try:
            reply = await self._pool.request(
                plan.node_id,
                plan.request,
                max_version=plan.max_version,
                timeout_ms=self._config.request_timeout_ms,
                connection=FETCH_CONNECTION,
            )
            if not isinstance(reply, FetchResponse):
                raise BrokerConnectionError("the broker sent another response than a fetch's")
        except KafkaError as error:
            logger.info("fetch from node %d failed: %s", plan.node_id, error)
            self.counters.fetch_errors += 1
            outcome = self.fetcher.on_failure(plan, self._pool.now_ms())
            if recovery_for(error) is Recovery.NONE:
                outcome.failure = error
        except asyncio.CancelledError:
            self.fetcher.on_failure(plan, self._pool.now_ms())
            raise
        else:
            now_ms = self._pool.now_ms()
            self._count(reply, sent_ms, now_ms)
            outcome = self.fetcher.on_response(plan, reply, now_ms)
        self._apply(outcome)

    def _count(self, reply: FetchResponse, sent_ms: int, now_ms: int) -> None:
        size = sum(
            len(entry.records or b"") for topic in reply.responses for entry in topic.partitions
        )
        self.counters.fetch_bytes.add(size, now_ms)
        self.counters.latency_ms.add(now_ms - sent_ms, now_ms)
        self.counters.throttle_ms.add(reply.throttle_time_ms, now_ms)

    def _apply(self, outcome: FetchOutcome) -> None:
        if outcome.failure is not None:
            self._failure = outcome.failure
        for topic, size in outcome.topic_bytes.items():
            self.counters.topics.of(topic).fetch_bytes.add(size, self._pool.now_ms())
        metadata = self._pool.metadata
        for partition, (leader_id, leader_epoch) in outcome.leaders.items():
            metadata = metadata.with_leader(partition, leader_id, leader_epoch, None)
        self._pool.apply_metadata(metadata)
        if outcome.refresh_metadata:
            self._refresh_metadata()

    # --- positions ---

    def _still_in(
        self, phase: PartitionPhase, states: list[PartitionState]
    ) -> list[PartitionState]:
        """Return the partitions that are still in the phase: before the task's first step there may
        have been a seek, which the answer must not undo."""
        current = self._subscription.get
        return [s for s in states if s.phase is phase and current(s.topic_partition) is s]

    async def _load(self, states: list[PartitionState]) -> None:
        states = self._still_in(PartitionPhase.LOADING, states)
        stamps: _Stamps = {state.topic_partition: state.stamp for state in states}
        if not states:
            return
        group_id = self._config.group_id
        if group_id is None:
            answers: Mapping[TopicPartition, CommittedOffset] = {}
        else:
            try:
                answers = await self.reader.committed_once(
                    group_id,
                    list(stamps),
                    require_stable=self._config.isolation is IsolationLevel.READ_COMMITTED,
                    member=self._reader_identity(),
                )
            except KafkaError as error:
                if isinstance(error, BrokerError) and error.code in EXPELLED:
                    # The next heartbeat gets the same error, and these partitions will be lost.
                    self._on_expelled()
                    self._try_later(stamps, self._config.retry_backoff_ms)
                else:
                    self._hold_back(stamps, error, coordinator=True)
                return
        nothing = CommittedOffset(ErrorCode.NONE)
        for partition, stamp in stamps.items():
            answer = answers.get(partition, nothing)
            if answer.error_code != ErrorCode.NONE:
                refusal = error_for(answer.error_code, f"OffsetFetch of {partition}")
                self._hold_back({partition: stamp}, refusal, coordinator=True)
            elif answer.committed is not None:
                offset = answer.committed
                self._subscription.apply_position(
                    partition, stamp, offset.offset, offset.leader_epoch
                )
            elif self._subscription.is_current(partition, stamp):
                failure = NoOffsetForPartitionError(
                    f"{partition} has no committed offset{_in(group_id)}, and "
                    'auto_offset_reset is "none": seek to an offset'
                )
                self._subscription.reset_by_policy(self._subscription.state(partition), failure)

    async def _reset(self, states: list[PartitionState]) -> None:
        states = self._still_in(PartitionPhase.RESETTING, states)
        stamps: _Stamps = {state.topic_partition: state.stamp for state in states}
        moment = self._moment_to_begin()
        targets = {
            state.topic_partition: moment
            if state.reset_timestamp == DURATION_AGO
            else state.reset_timestamp
            for state in states
        }
        found, failed = await self.reader.list_once(targets, self._config.isolation)
        for partition, answer in found.items():
            # Without a record at or after the time, continue at the end, which is looked up next.
            if answer.offset < 0:
                if self._subscription.is_current(partition, stamps[partition]):
                    self._subscription.request_reset(partition, -1)
                continue
            if self._subscription.apply_position(partition, stamps[partition], answer.offset):
                logger.info("%s starts at offset %d", partition, answer.offset)
        self._on_failed(stamps, failed)

    def _moment_to_begin(self) -> int:
        """Return the time of ``by_duration``, by the wall clock, which stamps records."""
        duration_ms = reset_duration_ms(self._config.auto_offset_reset) or 0
        return max(0, int(time.time() * 1000) - duration_ms)

    async def _validate(self, states: list[PartitionState]) -> None:
        states = self._still_in(PartitionPhase.VALIDATING, states)
        stamps: _Stamps = {state.topic_partition: state.stamp for state in states}
        epochs = {state.topic_partition: state.fetch_epoch for state in states}
        cluster = self._pool.metadata
        found, failed = await self.reader.epoch_ends_once(epochs)
        for partition, answer in found.items():
            if self._subscription.is_current(partition, stamps[partition]):
                self._subscription.apply_epoch_end(
                    partition,
                    answer.leader_epoch,
                    answer.end_offset,
                    cluster.leader_epoch(partition),
                )
        self._on_failed(stamps, failed)

    def _on_failed(self, stamps: _Stamps, failed: Mapping[TopicPartition, KafkaError]) -> None:
        for partition, error in failed.items():
            self._hold_back({partition: stamps[partition]}, error)

    def _hold_back(self, stamps: _Stamps, error: KafkaError, *, coordinator: bool = False) -> None:
        """Try these partitions again later; raise a final error in the poll."""
        recovery = recovery_for(error, coordinator=coordinator)
        if recovery is Recovery.NONE:
            self._failure = error
        elif recovery is Recovery.REFRESH_METADATA:
            self._refresh_metadata()
        pause_ms = self._config.retry_backoff_ms
        if recovery is Recovery.NONE:
            pause_ms = self._config.retry_backoff_max_ms
        self._try_later(stamps, pause_ms)

    def _try_later(self, stamps: _Stamps, pause_ms: int) -> None:
        retry_at_ms = self._pool.now_ms() + pause_ms
        for partition, stamp in stamps.items():
            if self._subscription.is_current(partition, stamp):
                self._subscription.state(partition).retry_at_ms = retry_at_ms


def _in(group_id: str | None) -> str:
    return " (there is no group_id)" if group_id is None else f" in group {group_id!r}"
