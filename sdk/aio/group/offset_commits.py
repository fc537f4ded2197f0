"""Offset commits of one consumer: on request, automatic, and before revocations.

It decides which offsets a commit stores, under which membership, when the automatic commit runs,
and what is repeated. One request is in flight at a time. `CommitOrder` decides what a repetition
may still store. The group member and the subscription know which partitions the consumer owns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from onceflow.sdk.aio.connection.pool import COORDINATOR, ConnectionPool
from onceflow.sdk.aio.connection.transport import BrokerConnection
from onceflow.sdk.aio.group.runner import GroupRunner
from onceflow.sdk.core.arguments import limit_of, offsets_by_partition
from onceflow.sdk.core.consume import offset_lookup
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.core.consume.topic_change import forget_old_positions, gone
from onceflow.sdk.core.group.commit_order import CommitOrder, PendingCommit
from onceflow.sdk.core.group.membership import EXPELLED
from onceflow.sdk.core.retry import Recovery, recovery_for, recovery_for_code
from onceflow.sdk.errors import CommitFailedError, KafkaError, RequestTimedOutError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from onceflow.sdk.observe.meters import ConsumerCounters
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.settings.config import ConsumerConfig

logger: logging.Logger = logging.getLogger("onceflow.sdk.consumer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_Stored = tuple[UUID | None, OffsetAndMetadata]
GivenOffsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class OffsetCommits:
    """Commits of a consumer that has a group id."""

    def __init__(
        self,
        pool: ConnectionPool,
        config: ConsumerConfig,
        subscription: Subscription,
        group: GroupRunner,
        counters: ConsumerCounters,
        on_commit: Callable[[Offsets], None],
    ) -> None:
        """Make the object; nothing is sent yet.

        Args:
            pool: Connections.
            config: The consumer's settings.
            subscription: Positions.
            group: Membership.
            counters: Where to count commits.
            on_commit: Called with the committed offsets.
        """
        self._counters = counters
        self._on_commit = on_commit
        self._pool = pool
        self._config = config
        self._subscription = subscription
        self._group = group
        self._group_id = config.group_id or ""
        self._due_ms: int | None = None
        self._automatic: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._stored: dict[TopicPartition, _Stored] = {}
        self._order = CommitOrder(subscription.get)
        self._turn = asyncio.Lock()
        self._ended = asyncio.Event()

    def identity(self) -> ConsumerGroupMetadata:
        """Return the membership for commits; an empty one for partitions assigned by hand."""
        if self._subscription.uses_group:
            return self._group.member.metadata()
        return ConsumerGroupMetadata(self._group_id)

    def _present_identity(self) -> ConsumerGroupMetadata:
        if self._expelled:
            raise CommitFailedError(
                f"this consumer is no member of group {self._group_id!r} any more, and its "
                "partitions may belong to others; poll to join again, then process again what "
                "was not committed"
            )
        return self.identity()

    @property
    def _expelled(self) -> bool:
        return self._subscription.uses_group and not self._group.member.is_member

    # --- automatic ---

    def is_due(self) -> bool:
        """Whether a poll must start the automatic commit. From any thread."""
        due_ms = self._due_ms
        return due_ms is not None and self._pool.now_ms() >= due_ms

    def due_in_ms(self) -> int:
        """Return the milliseconds until the next automatic commit."""
        if self._due_ms is None:
            return self._config.auto_commit_interval_ms
        return max(1, self._due_ms - self._pool.now_ms())

    def start_if_due(self) -> None:
        """Commit the records that earlier polls returned, if it is time; log a failure."""
        if not self._config.enable_auto_commit:
            return
        now_ms = self._pool.now_ms()
        if self._due_ms is None:
            self._due_ms = now_ms + self._config.auto_commit_interval_ms
        elif now_ms >= self._due_ms:
            self._due_ms = now_ms + self._config.auto_commit_interval_ms
            if self._automatic is None or self._automatic.done():
                self._automatic = self._start()

    async def commit_before_revoke(self, limit_ms: int, *, automatic: bool = True) -> None:
        """Finish commits in flight and commit all positions, while the member owns the partitions.

        Args:
            limit_ms: Longest wait.
            automatic: Whether the automatic commit is wanted, if the settings have one.
        """
        last = self._start() if automatic and self._config.enable_auto_commit else None
        tasks = [*self._background, *(t for t in (self._automatic, last) if t is not None)]
        unfinished = {task for task in tasks if not task.done()}
        if unfinished:
            _, unfinished = await asyncio.wait(unfinished, timeout=limit_ms / 1000)
        if last in unfinished and last is not None:
            last.cancel()

    def _start(self) -> asyncio.Task[None] | None:
        positions = self._positions()
        for partition in gone(self._subscription, self._pool.metadata):
            positions.pop(partition, None)
        changed = {p: o for p, o in positions.items() if self._stored.get(p) != self._entry(p, o)}
        if not changed or self._expelled:
            return None
        return asyncio.get_running_loop().create_task(
            self._commit_and_log(changed, self._config.auto_commit_interval_ms),
            name="onceflow-auto-commit",
        )

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all positions, without those of a topic that was deleted and created again:
        commits name topics, not topic ids."""
        forget_old_positions(self._subscription, self._pool.metadata)
        return self._subscription.positions()

    def _entry(self, partition: TopicPartition, offset: OffsetAndMetadata) -> _Stored:
        state = self._subscription.get(partition)
        return None if state is None else state.topic_id, offset

    async def _commit_and_log(self, offsets: Offsets, timeout_ms: int | None) -> None:
        try:
            await self._commit(offsets, timeout_ms)
        except KafkaError as error:
            logger.warning("group %s: a commit in the background failed: %s", self._group_id, error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that were given up, for which other members commit from now on."""
        for partition in partitions:
            self._stored.pop(partition, None)

    async def close(self) -> None:
        """Cancel commits that still run."""
        tasks = [*self._background, *([self._automatic] if self._automatic else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- on request ---

    async def commit(self, offsets: GivenOffsets | None, timeout_ms: int | None) -> None:
        """Commit the given offsets, or all positions; see the consumer's method."""
        limit_of(timeout_ms, 0)
        await self._commit(self._chosen(offsets), timeout_ms)

    def commit_in_background(self, offsets: GivenOffsets | None) -> None:
        """Commit without waiting; see the blocking consumer's method."""
        task = asyncio.get_running_loop().create_task(
            self._commit_and_log(self._chosen(offsets), None), name="onceflow-commit"
        )
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _chosen(self, offsets: GivenOffsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._positions()
        chosen = offsets_by_partition(offsets)
        if self._subscription.uses_group:
            foreign = sorted(chosen.keys() - self._subscription.assignment())
            if foreign:
                raise CommitFailedError(
                    f"{', '.join(map(str, foreign))} is not assigned to this consumer, and what "
                    "another member commits must not be overwritten; poll() until the group has "
                    "assigned it, or commit without a subscription, after assign([...])"
                )
        return chosen

    async def _commit(self, offsets: Offsets, timeout_ms: int | None) -> None:
        if not offsets:
            return
        begun_ms = self._pool.now_ms()
        commit = self._order.begin(offsets)
        failure: KafkaError | None = RequestTimedOutError(
            "the caller of a later commit of the same partitions gave up"
        )
        try:
            await self._commit_in_turn(commit, timeout_ms)
            failure = None
        except KafkaError as error:
            failure = error
            if isinstance(error, CommitFailedError) and self._subscription.uses_group:
                self._group.member.expect_expulsion()
                self._group.wake()
            raise
        finally:
            self._counters.commit_errors += failure is not None
            self._order.end(commit, failure)
            self._ended.set()
            self._ended = asyncio.Event()
        now_ms = self._pool.now_ms()
        self._counters.commit_ms.add(now_ms - begun_ms, now_ms)

    async def _commit_in_turn(self, commit: PendingCommit, timeout_ms: int | None) -> None:
        """Commit offsets, and repeat the commit after retriable failures.

        Raises:
            CommitFailedError: The group expelled this member.
            RequestTimedOutError: Time ran out; the offsets may or may not be stored.
            KafkaError: The coordinator refused the commit; the error names the partition.
        """
        limit_ms = limit_of(timeout_ms, self._pool.config.default_api_timeout_ms)
        deadline_ms = self._pool.now_ms() + limit_ms
        failures = 0
        while True:
            try:
                async with asyncio.timeout(max(1, deadline_ms - self._pool.now_ms()) / 1000):
                    failed = await self._try_once(commit)
                    if failed is None:
                        await self._await_later_ones(commit)
                        return
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the coordinator of group {self._group_id!r} did not answer an offset commit "
                    f"within {limit_ms} ms{self._pool.troubles()}"
                ) from None
            recovery = recovery_for(failed, coordinator=True)
            if isinstance(failed, CommitFailedError) or recovery is Recovery.NONE:
                raise failed
            if recovery is Recovery.FIND_COORDINATOR:
                self._pool.forget_coordinator(self._group_id, CoordinatorType.GROUP)
            failures += 1
            delay_ms = self._pool.backoff.delay_ms(failures)
            if self._pool.now_ms() + delay_ms >= deadline_ms:
                raise RequestTimedOutError(
                    f"offsets of group {self._group_id!r} were not committed within {limit_ms} ms: "
                    f"{failed}"
                ) from failed
            await asyncio.sleep(delay_ms / 1000)

    async def _try_once(self, commit: PendingCommit) -> KafkaError | None:
        """Send the remaining offsets of a commit; return the error of those not stored."""
        # One request at a time, in the order of the calls. Otherwise two that wait for the same
        # connection could be sent in any order.
        async with self._turn:
            try:
                self._present_identity()
                channel = await self._coordinator()
                # No other task runs from here until the request is written.
                offsets = self._order.take(commit)
                if not offsets:
                    return None
                # Use the present membership: the epoch may have risen meanwhile
                # (STALE_MEMBER_EPOCH, KIP-848) although the member has always owned the partitions.
                request = offset_lookup.commit_request(self._present_identity(), offsets)
                reply = await channel.send(request, max_version=offset_lookup.NAMES_UNTIL)
                codes = offset_lookup.read_commit_codes(reply)
            except KafkaError as error:
                return error
            stored = {p: o for p, o in offsets.items() if codes.get(p) == ErrorCode.NONE}
            self._order.stored(commit, stored)
            self._note_stored(stored)
        return _worst_commit_error(self._group_id, codes)

    async def _coordinator(self) -> BrokerConnection:
        """Return a connection to the coordinator on which a request can be written at once."""
        node_id = await self._pool.find_coordinator(self._group_id, CoordinatorType.GROUP)
        return await self._pool.ready(node_id, COORDINATOR)

    async def _await_later_ones(self, commit: PendingCommit) -> None:
        """Wait for the later commits that replaced this one, and raise their failure."""
        for later in commit.replaced_by:
            while not later.is_over:
                await self._ended.wait()
            if later.failure is not None:
                raise later.failure.with_traceback(None)
        if commit.lost:
            raise CommitFailedError(
                f"offsets of {', '.join(map(str, sorted(commit.lost)))} in group "
                f"{self._group_id!r} were not committed: the partitions were given up before the "
                "coordinator could store them, and may belong to others; their records come again"
            )

    def _note_stored(self, offsets: Offsets) -> None:
        if offsets:
            self._on_commit(offsets)
            held = self._subscription.assignment()
            self._stored.update({p: self._entry(p, o) for p, o in offsets.items() if p in held})


def _worst_commit_error(group_id: str, codes: Mapping[TopicPartition, int]) -> KafkaError | None:
    """Return the error of the whole commit: a final one before retriable ones."""
    worst: KafkaError | None = None
    for partition, code in codes.items():
        if code == ErrorCode.NONE:
            continue
        if code in EXPELLED:
            return CommitFailedError(
                f"offsets of group {group_id!r} were not committed: the group has expelled "
                f"this member ({ErrorCode(code).name}), and other members own its partitions now. "
                "Poll more often, lower max.poll.records or raise max.poll.interval.ms"
            )
        error = error_for(code, f"commit of {partition} in group {group_id!r}")
        if recovery_for_code(code) is Recovery.NONE or code == ErrorCode.REBALANCE_IN_PROGRESS:
            return error
        worst = error
    return worst
