"""Consumer: reading topics with blocking calls.

A thin face over the engine that the asyncio consumer uses too: a background loop does the work,
callbacks run in the caller's thread. Records are decoded some way ahead and handed out without
crossing threads; a call goes to the loop only when there is more to do.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, Unpack, cast, overload

from onceflow.sdk.aio.consume.consumer import (
    DEFAULT_CLOSE_TIMEOUT_MS,
    INTERRUPTED_CLOSE_TIMEOUT_MS,
    ITERATION_WAIT_MS,
    AsyncConsumer,
    K,
    V,
)
from onceflow.sdk.aio.consume.engine import Form, Polled, being_polled
from onceflow.sdk.aio.consume.listeners import Listeners, PendingCallback, RebalanceCallback
from onceflow.sdk.core.arguments import check_close, check_flag, record_limit
from onceflow.sdk.core.group.steps import RebalanceEvent
from onceflow.sdk.errors import IllegalStateError
from onceflow.sdk.model.columns import AnyColumns, RecordColumns
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.sdk.serde import Deserializer
from onceflow.sdk.settings.keywords import ConsumerKeywords, ReaderKeywords
from onceflow.sdk.sync.consumer_calls import ConsumerCalls
from onceflow.sdk.sync.portal import Portal

_Taken = TypeVar("_Taken", Polled, dict[TopicPartition, AnyColumns])

READ_AHEAD_RECORDS: Final = 5_000
"""How many records one crossing into the loop's thread decodes at most, if they are there."""

CLOSE_MARGIN_S: Final = 1.0
"""How much longer than its timeout closing may take to end the background loop."""


class Consumer(ConsumerCalls, Generic[KeyT_co, ValueT_co]):
    """Reads records from topics; see `onceflow.sdk.AsyncConsumer` for the rules and the types.

    Use it as ``with Consumer("topic", ...) as consumer`` and poll, or iterate. Calls are for one
    thread at a time, not always the same one, and a second poll beside the first is refused;
    `wakeup` is for any thread and for signal handlers.
    """

    @overload
    def __init__(
        self: Consumer[bytes | None, bytes | None],
        *topics: str,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, bytes | None],
        *topics: str,
        key_deserializer: Deserializer[K],
        value_deserializer: None = None,
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[bytes | None, V | None],
        *topics: str,
        key_deserializer: None = None,
        value_deserializer: Deserializer[V],
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, V | None],
        *topics: str,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **settings: Unpack[ReaderKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[object, object], *topics: str, **settings: Unpack[ConsumerKeywords]
    ) -> None: ...
    def __init__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> None:
        """Make a consumer and connect it.

        Args:
            *topics: Topics to subscribe to, as by `subscribe`.
            **settings: Fields of `onceflow.sdk.ConsumerConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
        """
        self._async = AsyncConsumer(*topics, **settings)
        self._engine = self._async.engine
        # The engine passes on what the deserializers return, of any type.
        self._next_record = cast(
            "Callable[[], ConsumerRecord[KeyT_co, ValueT_co] | None]", self._engine.cursor.next
        )
        self._closer: int | None = None
        self._calling_back = False
        self._polling = False
        self._filling = False
        self._portal = Portal("consumer", self._engine.pool.close)
        try:
            self._portal.call(self._async.start)
        except BaseException:
            self._portal.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an exception it is unknown which polled records were processed, so they are not
        # committed. Ctrl-C and other signals must end soon, also where brokers do not answer.
        interrupted = kind is not None and not issubclass(kind, Exception)
        timeout_ms = INTERRUPTED_CLOSE_TIMEOUT_MS if interrupted else DEFAULT_CLOSE_TIMEOUT_MS
        self.close(timeout_ms, commit=kind is None)

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

        Callbacks run within `poll`, in the thread that polls, and take a list of partitions; they
        may call this consumer. What they raise is raised by that poll, after the rebalance went
        on.

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
        Listeners(on_assigned, on_revoked, on_lost).check_blocking()
        self._portal.run(
            lambda: self._async.subscribe(
                topics,
                pattern=pattern,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_lost=on_lost,
            )
        )

    def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; `on_revoked` is called."""
        limit_ms = self.config.default_api_timeout_ms
        pending = self._portal.call(lambda: self._engine.begin_release(limit_ms, commit=True))
        try:
            _run_callback(pending)
        finally:
            self._portal.run(self._engine.end_release)

    # --- records ---

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Return records that have arrived. Joins the group and runs rebalance callbacks.

        Poll at least every ``max_poll_interval_ms``; otherwise this member leaves the group, and
        others get its partitions (a warning is logged at half of that time). Ctrl-C interrupts the
        wait.

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
        engine = self._engine
        if self._polling:
            raise self._second_poll()
        self._polling = True
        try:
            take = functools.partial(engine.cursor.take, limit)
            polled = {} if self._must_cross else self._hand_out(take)
            if not polled:
                self._fill(timeout_ms, limit)
                polled = self._hand_out(take)
        finally:
            self._polling = False
        return polled  # type: ignore[return-value] # A signal could come after a cast().

    def poll_columns(
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
        take = functools.partial(engine.cursor.take_columns, limit, values_only=values_only)
        if self._polling:
            raise self._second_poll()
        self._polling = True
        try:
            columns = {} if self._must_cross else self._hand_out(take)
            if not columns:
                self._fill(timeout_ms, limit, Form.VALUES if values_only else Form.COLUMNS)
                columns = self._hand_out(take)
        finally:
            self._polling = False
        return columns  # type: ignore[return-value] # As in poll().

    @property
    def _must_cross(self) -> bool:
        """Whether a call must cross into the loop: it has an event to handle, or may still be
        polling."""
        return self._filling or self._engine.needs_poll

    def _hand_out(self, take: Callable[[], _Taken]) -> _Taken:
        """Take from the cursor, through the interceptors; Ctrl-C in between loses no record."""
        engine = self._engine
        cursor = engine.cursor
        cursor.begin_taking()
        try:
            taken = take()
            if taken:
                engine.note_poll()
                engine.interception.on_records(taken)
            cursor.end_taking()
        except BaseException:
            cursor.take_back()
            raise
        return taken

    def _fill(self, timeout_ms: int, limit: int, form: Form = Form.RECORDS) -> None:
        """One poll that leaves its records in the cursor, so that Ctrl-C cannot lose them."""
        self._portal.check_usable()
        engine = self._engine
        deadline_ms = engine.pool.deadline_ms(timeout_ms)
        ahead = max(limit, READ_AHEAD_RECORDS)
        done: RebalanceEvent | None = None

        async def go_on() -> Polled | PendingCallback:
            return await engine.poll_step(deadline_ms, ahead, done, fill=True, form=form)

        while True:
            self._filling = True  # Stays, if Ctrl-C ends the wait: the loop continues for a moment.
            step = self._portal.call(go_on)
            self._filling = False
            if not isinstance(step, PendingCallback):
                return
            try:
                _run_callback(step)
            except BaseException:
                self._finish(step.event)
                raise
            done = step.event

    def _second_poll(self) -> IllegalStateError:
        """Return the error of a poll within another one, or raise that of a forked child."""
        self._portal.check_usable()
        return being_polled()

    def _finish(self, event: RebalanceEvent) -> None:
        self._portal.run(lambda: self._engine.finish_event(event))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord[KeyT_co, ValueT_co]:
        """Wait for the next record. Raises what `poll` raises."""
        engine = self._engine
        if self._polling:
            raise self._second_poll()
        self._polling = True
        try:
            record = None
            if not (self._filling or engine.needs_poll):  # As `_must_cross`, for each record.
                engine.note_poll()
                record = self._next_record()
            while record is None:
                self._fill(ITERATION_WAIT_MS, self.config.max_poll_records)
                record = self._next_record()
            if engine.intercepts:
                engine.interception.on_record(record)
        finally:
            self._polling = False
        return record

    def wakeup(self) -> None:
        """Let the running poll, or else the next one, return at once without records.

        May be called from any thread and from a signal handler.
        """
        self._portal.wake(self._engine.wakeup)

    # --- the end ---

    def close(
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
        if self._portal.is_closed or self._portal.is_foreign:
            # Interrupted before, or a forked child: the thread and the sockets are the parent's.
            self._portal.close()
            return
        check_close(timeout_ms, commit, leave_group)
        self._portal.check_thread()
        if self._calling_back or self._closer not in (None, threading.get_ident()):
            return  # It is under way.
        deadline_ms = self._engine.pool.deadline_ms(timeout_ms)
        try:
            self._closer = threading.get_ident()
            self._leave(deadline_ms, commit, leave_group)
        finally:
            self._portal.close()

    def _leave(self, deadline_ms: int, commit: bool, leave_group: bool | None) -> None:
        engine = self._engine
        limit_ms = deadline_ms - engine.pool.now_ms()
        try:
            pending = self._portal.call(lambda: engine.begin_release(limit_ms, commit=commit))
            self._calling_back = True
            _run_callback(pending)
        finally:
            self._calling_back = False
            left_ms = max(0, deadline_ms - engine.pool.now_ms())
            self._portal.call(
                lambda: engine.close(left_ms, leave_group),
                timeout_s=left_ms / 1000 + CLOSE_MARGIN_S,
            )


def _run_callback(pending: PendingCallback | None) -> None:
    if pending is not None:
        pending.callback(pending.partitions)
