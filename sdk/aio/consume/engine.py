"""The engine of both consumer faces: the steps of a poll, commits, and closing.

The engine runs in one event loop and never calls the application. If a rebalance callback is due,
`poll_step` returns it. The face runs it (the asyncio face in the caller's task, the blocking face
in the caller's thread) and reports back. The core decides what a rebalance means and which records
and offsets come next.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from onceflow.sdk.aio import forks
from onceflow.sdk.aio.connection.lookups import Lookups
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.consume.fetch_runner import FetchRunner
from onceflow.sdk.aio.consume.listeners import Listeners, PendingCallback
from onceflow.sdk.aio.consume.topic_watch import TopicWatch
from onceflow.sdk.aio.group.offset_commits import OffsetCommits
from onceflow.sdk.aio.group.options import group_settings, re2_text
from onceflow.sdk.aio.group.runner import GroupRunner
from onceflow.sdk.aio.waker import Waker
from onceflow.sdk.core.arguments import (
    check_group_metadata,
    limit_of,
    partition_list,
    partition_of,
    topic_list,
)
from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.consume.record_cursor import RecordCursor
from onceflow.sdk.core.consume.subscription import PartitionState, Subscription
from onceflow.sdk.core.group.membership import Membership
from onceflow.sdk.core.group.steps import RebalanceEvent, RebalanceKind
from onceflow.sdk.core.interception import ConsumerInterception
from onceflow.sdk.errors import IllegalStateError, KafkaError, RequestTimedOutError
from onceflow.sdk.model.columns import AnyColumns
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    TopicPartition,
)
from onceflow.sdk.observe.meters import ConsumerCounters
from onceflow.sdk.settings.config import ConsumerConfig

logger: logging.Logger = logging.getLogger("onceflow.sdk.consumer")

Polled = dict[TopicPartition, list[AnyRecord]]
_Run = TypeVar("_Run", list[AnyRecord], AnyColumns)


class Form(enum.Enum):
    """How records are decoded for the cursor."""

    RECORDS = "records"
    COLUMNS = "columns"
    VALUES = "values"


REVOKE_COMMIT_LIMIT_MS: Final = 5_000
"""Longest wait for the automatic commit before a revocation."""


def being_polled() -> IllegalStateError:
    """Return the error for a poll during another one, by a second thread, task or callback."""
    return IllegalStateError(
        "this consumer is already being polled: poll from one thread or task at a time, and not "
        "within a callback"
    )


class ConsumerEngine:
    """One consumer without its face.

    Attributes:
        config: The settings.
        pool: Connections and metadata.
        subscription: Partitions and positions.
        cursor: Polled records that iteration has not returned yet.
        fetching: Fetches and offset requests.
        counters: Counts for metrics.
        interception: The application's interceptors.
        intercepts: Whether there are any.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self.pool: ConnectionPool = ConnectionPool(config)
        self.subscription: Subscription = Subscription(config.auto_offset_reset)
        self.cursor: RecordCursor = RecordCursor(self.subscription)
        self._waker = Waker()
        self._attention = True
        self._lookups = Lookups(self._waker.wake)
        self.fetching: FetchRunner = FetchRunner(
            self.pool,
            config,
            self.subscription,
            self._on_fetched,
            self._offset_reader,
            self._expelled,
        )
        self.counters: ConsumerCounters = self.fetching.counters
        self.interception: ConsumerInterception = ConsumerInterception(
            config.interceptors, self.counters
        )
        self.intercepts: bool = bool(config.interceptors)
        self._topics = TopicWatch(self.pool, config, self.subscription, self._on_metadata)
        self._group: GroupRunner | None = None
        self._commits: OffsetCommits | None = None
        if config.group_id is not None:
            self._group = GroupRunner(self.pool, group_settings(config), self._call_for_poll)
            self._commits = OffsetCommits(
                self.pool,
                config,
                self.subscription,
                self._group,
                self.counters,
                self.interception.on_commit,
            )
        self._listeners = Listeners()
        self._woken = False
        self._polling = False
        self._releasing = False
        self._late_failure: KafkaError | None = None

    async def start(self) -> None:
        """Reach the cluster; calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No bootstrap server answered.
        """
        if self.pool.is_started:
            self.pool.check_usable()
            return
        await self.pool.start()
        forks.watch(self)
        self._topics.start()
        if self._group is not None:
            self._group.start()

    def after_fork(self) -> None:
        """Drop the buffered records in a forked child, where polls are refused."""
        self._attention = True

    # --- what to read ---

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None, listeners: Listeners
    ) -> None:
        """Choose topics or a pattern; the next poll joins the group."""
        self.pool.check_open()
        if self._group is None:
            raise IllegalStateError(
                "subscribe() needs a group_id; without a group, assign() partitions"
            )
        names = topic_list(topics)
        if bool(names) == (pattern is not None):
            raise IllegalStateError("subscribe() needs either topics or a pattern")
        if pattern is not None:
            text = re2_text(pattern) if self._by_coordinator else ""
            self.subscription.subscribe_pattern(pattern)
            if self._by_coordinator:
                self._group.member.subscribe_regex(text)
            else:
                self._on_metadata(self.pool.metadata)
        elif self.subscription.subscribe(names):
            self._group.member.subscribe(self.subscription.topics)
        self._listeners = listeners
        self._topics.topics_changed()
        self._group.wake()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""
        self.pool.check_open()
        self.subscription.assign_manually(set(partition_list(partitions)))
        self._topics.topics_changed()
        if self.pool.is_started:
            self.fetching.pump()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Continue at an offset; see the consumer's method."""
        self.pool.check_open()
        self.subscription.seek(partition, offset, leader_epoch)
        self._positions_changed([partition])

    def reset(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        """Have positions looked up by time; None means all assigned partitions."""
        self.pool.check_open()
        given = self.subscription.assignment() if partitions is None else partitions
        chosen = partition_list(given)
        if partitions is None and not chosen:
            self.subscription.check_chosen()
            member = self._member()
            if member is not None and not member.is_member:
                raise IllegalStateError(
                    "no partition is assigned yet, so there is none to seek: poll() until the "
                    "group has assigned some, or seek in on_assigned"
                )
        for partition in chosen:
            self.subscription.request_reset(partition, timestamp)
        self._positions_changed(chosen)

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        """Pause or resume; what is buffered stays."""
        self.pool.check_open()
        states = [self.subscription.state(partition) for partition in partition_list(partitions)]
        for state in states:
            if paused:
                state.paused = True
            else:
                state.resume()
        self._waker.wake()
        self.fetching.pump()

    def _positions_changed(self, partitions: Iterable[TopicPartition]) -> None:
        self.fetching.fetcher.discard(partitions)
        self.fetching.pump()

    def _on_metadata(self, cluster: ClusterMetadata) -> None:
        if self._group is not None:
            member = self._group.member
            by_client = self.subscription.pattern is not None and not self._by_coordinator
            if by_client and self.subscription.match_topics(self._topics.matching_topics(cluster)):
                member.subscribe(self.subscription.topics)
            counts = {topic: cluster.partition_count(topic) for topic in member.watched_topics}
            member.on_partition_counts({t: n for t, n in counts.items() if n is not None})
            self._group.wake()
        if self.pool.is_started:
            self.fetching.pump()
        self._call_for_poll()

    def _on_fetched(self) -> None:
        if self.fetching.has_failure or self.subscription.failure() is not None:
            self._attention = True
        self._waker.wake()

    def _call_for_poll(self) -> None:
        self._attention = True
        self._waker.wake()

    # --- poll ---

    @property
    def needs_poll(self) -> bool:
        """Whether a poll must do more than return records: handle an event, an error or a commit.

        May be asked from any thread.
        """
        commits = self._commits
        return self._attention or self._woken or (commits is not None and commits.is_due())

    def note_poll(self) -> None:
        """Note that the application takes buffered records, like a poll. From any thread."""
        member = self._member()
        if member is not None:
            member.poll_ended(self.pool.now_ms())

    def wakeup(self) -> None:
        """Let the running poll, or the next one, return at once without records."""
        self._woken = True
        self._waker.wake()

    async def poll_step(
        self,
        deadline_ms: int,
        max_records: int,
        done: RebalanceEvent | None = None,
        *,
        fill: bool = False,
        form: Form = Form.RECORDS,
    ) -> Polled | PendingCallback:
        """Continue a poll until there are records, a callback is due, or the time is over.

        Args:
            deadline_ms: When to give up, on the pool's clock.
            max_records: Most records to return or to load.
            done: Event of the callback that the last step returned and that was run.
            fill: Leave the records in the cursor, with the positions before them, rather than
                return them; a cursor that still holds some is left as it is.
            form: How to decode what is left in the cursor.

        Returns:
            Records by partition, or the callback to be run.
        """
        self.pool.check_usable()
        if self._polling or self._releasing:
            raise being_polled()
        if done is None:  # A callback of the running poll may unsubscribe.
            self.subscription.check_chosen()
        self._polling = True
        member = self._member()
        if member is not None:
            member.poll_started(self.pool.now_ms())
        try:
            if done is not None:
                self.finish_event(done)
            return await self._poll_loop(deadline_ms, max_records, fill, form)
        finally:
            self._polling = False
            if member is not None and self.pool.is_started:
                member.poll_ended(self.pool.now_ms())

    async def _poll_loop(
        self, deadline_ms: int, max_records: int, fill: bool, form: Form
    ) -> Polled | PendingCallback:
        yielded = False
        while True:
            self._attention = False
            self._raise_failures()
            pending = await self._next_callback()
            if pending is not None:
                return pending
            if self._commits is not None:
                self._commits.start_if_due()
            records = self._take(max_records, fill, form)
            self.fetching.pump()
            if records or (fill and self.cursor.has_records):
                return records
            if self.fetching.has_failure:
                continue
            if self._woken:
                self._woken = False
                return {}
            left_ms = deadline_ms - self.pool.now_ms()
            if left_ms <= 0:
                if yielded:
                    return {}
                # A loop of polls without a timeout must let the background tasks run.
                yielded = True
                await asyncio.sleep(0)
                continue
            yielded = True
            if self._commits is not None:
                left_ms = min(left_ms, self._commits.due_in_ms())
            await self._waker.wait(left_ms)

    def _take(self, max_records: int, fill: bool, form: Form) -> Polled:
        now_ms = self.pool.now_ms()
        fetcher = self.fetching.fetcher
        if not fill:
            left_over = self.cursor.take(max_records)
            return left_over or self._taken(fetcher.take(max_records, now_ms), now_ms)
        if not self.cursor.has_records:
            if form is Form.RECORDS:
                self.cursor.load(self._taken(fetcher.take(max_records, now_ms), now_ms))
            else:
                values_only = form is Form.VALUES
                columns = fetcher.take_columns(max_records, now_ms, values_only=values_only)
                self.cursor.load(self._taken(columns, now_ms))
        return {}

    def _taken(
        self, records: dict[TopicPartition, _Run], now_ms: int
    ) -> dict[TopicPartition, _Run]:
        """Count the taken records, and start look-ups that deserializers need for the next ones."""
        fetcher = self.fetching.fetcher
        if fetcher.lookups:
            for partition, error in self._lookups.need(fetcher.lookups).items():
                fetcher.hold(partition, error, now_ms)
        if records:
            self.counters.records.add(sum(map(len, records.values())), now_ms)
            for partition, run in records.items():
                self.counters.topics.of(partition.topic).records.add(len(run), now_ms)
        return records

    def _raise_failures(self) -> None:
        if self._late_failure is not None:
            late, self._late_failure = self._late_failure, None
            raise late
        failure = self.fetching.take_failure() or self._topics.failure()
        if failure is None and self._group is not None and self.subscription.uses_group:
            failure = self._group.take_failure()
            if failure is not None and self._group.member.next_event() is not None:
                # First report the lost partitions to the application, then raise the reason.
                self._late_failure = failure
                failure = None
        if failure is None:
            failure = self.subscription.failure()
        if failure is not None:
            self._attention = True  # Raised by each poll until the cause is gone.
            # The same error object is raised by many polls; without this its traceback would grow.
            raise failure.with_traceback(None)

    # --- rebalances ---

    @property
    def _by_coordinator(self) -> bool:
        """Whether the coordinator assigns partitions and resolves patterns (KIP-848)."""
        return self.config.group_protocol == "consumer"

    def _member(self) -> Membership | None:
        if self._group is None or not self.subscription.uses_group:
            return None
        return self._group.member

    def _offset_reader(self) -> ConsumerGroupMetadata | None:
        """The membership to ask for committed offsets with, where the coordinator checks it
        (KIP-848)."""
        member = self._member() if self._by_coordinator else None
        return member.metadata() if member is not None and member.is_member else None

    def _expelled(self) -> None:
        """React to a coordinator that does not know this member: send a heartbeat at once."""
        if self._group is not None:
            self._group.member.expect_expulsion()
            self._group.wake()

    async def _next_callback(self) -> PendingCallback | None:
        """Carry out rebalance events up to the first one with a callback of the application."""
        member = self._member()
        while member is not None:
            event = member.next_event()
            assert self._group is not None
            self._group.wake()
            if event is None:
                return None
            shown = self._topics.shown(event)
            await self._begin_event(shown)
            pending = self._listeners.pending(event, shown)
            if pending is not None:
                return pending
            self.finish_event(event)
        return None

    async def _begin_event(self, event: RebalanceEvent) -> None:
        counters = self.counters
        if event.kind is RebalanceKind.ASSIGNED:
            counters.rebalances += 1
            counters.rebalanced_ms = self.pool.now_ms()
            self.subscription.assign_from_group(event.assignment)
            if self._by_coordinator and self.subscription.pattern is not None:
                self.subscription.note_topics({p.topic for p in event.assignment})
            self.fetching.pump()
            return
        if event.kind is RebalanceKind.LOST:
            counters.partitions_lost += len(event.partitions)
        else:
            counters.partitions_revoked += len(event.partitions)
        self.subscription.mark_revoking(event.partitions)
        if event.kind is RebalanceKind.REVOKED and self._commits is not None:
            await self._commits.commit_before_revoke(REVOKE_COMMIT_LIMIT_MS)
        logger.info("partitions %s: %s", event.kind.value, ", ".join(map(str, event.partitions)))

    def finish_event(self, event: RebalanceEvent) -> None:
        """Note that the application has handled an event, so that the rebalance continues."""
        if event.kind is not RebalanceKind.ASSIGNED:
            self.subscription.remove(event.partitions)
            self.fetching.fetcher.discard(event.partitions)
            if self._commits is not None:
                self._commits.forget(event.partitions)
        if self._group is not None:
            self._group.member.confirm_event(event)
            self._group.wake()

    # --- group and offsets ---

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None,
        timeout_ms: int | None,
    ) -> None:
        """Commit; see the consumer's method."""
        self.pool.check_usable()
        await self._require_commits("commit()").commit(offsets, timeout_ms)

    def commit_in_background(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> None:
        """Start a commit without waiting for it; see ``Consumer.commit_async``."""
        self.pool.check_usable()
        self._require_commits("commit_async()").commit_in_background(offsets)

    def _require_commits(self, what: str) -> OffsetCommits:
        if self._commits is None:
            raise IllegalStateError(f"{what} needs a group_id")
        return self._commits

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets; see the consumer's method."""
        self._require_commits("committed()")
        self.pool.check_usable()
        return await self.fetching.reader.committed(
            self.config.group_id or "",
            partition_list(partitions),
            require_stable=self.config.isolation is IsolationLevel.READ_COMMITTED,
            timeout_ms=timeout_ms,
        )

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Membership as of now; see the consumer's method."""
        commits = self._require_commits("group_metadata()")
        member = self._member()
        if member is not None and not member.is_member:
            raise IllegalStateError(
                f"this consumer is no member of group {self.config.group_id!r} at the moment; "
                "poll until it has partitions"
            )
        return commits.identity()

    async def ensure_membership(self, expected: ConsumerGroupMetadata | None) -> None:
        """Ask the coordinator for the membership; see the consumer's method."""
        if expected is not None:
            check_group_metadata(expected, "expected")
        self.pool.check_usable()
        self._require_commits("ensure_membership()")
        if self._group is not None and self.subscription.uses_group:
            await self._group.ensure_membership(expected)

    async def position(self, partition: TopicPartition, timeout_ms: int | None) -> int:
        """Next offset to be returned; see the consumer's method."""
        partition = partition_of(partition, "partition")
        self.pool.check_usable()
        limit_ms = limit_of(timeout_ms, self.config.default_api_timeout_ms)
        deadline_ms = self.pool.now_ms() + limit_ms
        while True:
            state = self.subscription.state(partition)
            if state.has_position:
                return state.position
            failure = state.failure or self.fetching.take_failure() or self._topics.failure()
            if failure is not None:
                raise failure.with_traceback(None)
            self.fetching.pump()
            left_ms = deadline_ms - self.pool.now_ms()
            if left_ms <= 0:
                raise RequestTimedOutError(
                    f"the position of {partition} was not known within {limit_ms} ms"
                    f"{self.pool.troubles()}"
                )
            await self._waker.wait(left_ms)

    def state(self, partition: TopicPartition) -> PartitionState:
        """State of an assigned partition."""
        return self.subscription.state(partition)

    # --- the end ---

    async def begin_release(self, timeout_ms: int, *, commit: bool) -> PendingCallback | None:
        """Commit, and return the callback for the partitions that are given up.

        Args:
            timeout_ms: Longest wait for the commit.
            commit: Whether the automatic commit is wanted at all.
        """
        if not self.pool.is_started or self._releasing:  # The callback itself may close again.
            return None
        member = self._member()
        lost = member is not None and not member.is_member
        if self._commits is not None and not lost and timeout_ms > 0:
            await self._commits.commit_before_revoke(timeout_ms, automatic=commit)
        held = self.subscription.assignment()
        self.subscription.mark_revoking(held)
        if member is None or not held:
            return None
        kind = RebalanceKind.LOST if lost else RebalanceKind.REVOKED
        callback = self._listeners.for_kind(kind)
        event = RebalanceEvent(kind, tuple(sorted(held)), frozenset())
        self._releasing = callback is not None
        return None if callback is None else PendingCallback(event, callback, sorted(held))

    def end_release(self) -> None:
        """Forget partitions and subscription; the member leaves its group."""
        self._releasing = False
        self.fetching.fetcher.discard(self.subscription.assignment())
        self.subscription.unsubscribe()
        self._listeners = Listeners()
        if self._group is not None:
            self._group.member.forget_owned()
            self._group.member.subscribe(frozenset())
            self._group.wake()

    async def close(self, timeout_ms: int, leave_group: bool | None = None) -> None:
        """Leave the group and close the connections; see the consumer's method.

        Every part is closed, even if the caller is cancelled while it waits for another part.
        """
        async with contextlib.AsyncExitStack() as parts:
            parts.callback(self.interception.close)
            parts.callback(self._waker.wake)
            parts.push_async_callback(self.pool.close)
            if self._group is not None and self.pool.is_started:
                parts.push_async_callback(self._group.close, timeout_ms, leave_group)
            parts.push_async_callback(self.fetching.close)
            parts.push_async_callback(self._lookups.close)
            parts.push_async_callback(self._topics.close)
            if self._commits is not None:
                parts.push_async_callback(self._commits.close)
