"""Asks brokers for offsets: once, or until every partition is answered.

It decides which broker to ask and what to repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from typing import TypeVar

from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.core.arguments import limit_of
from onceflow.sdk.core.consume import offset_lookup
from onceflow.sdk.core.consume.offset_lookup import CommittedOffset, EpochEnd, FoundOffset
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.core.retry import Recovery, recovery_for, recovery_for_code
from onceflow.sdk.errors import (
    KafkaError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.group_offsets import OffsetFetchRequest
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

logger: logging.Logger = logging.getLogger("onceflow.sdk.offsets")

T = TypeVar("T")

MISSING_TOPIC_TRIES = 4
"""How often to look for a missing topic, which may just have been created."""

UNSTABLE_LOG_INTERVAL_MS = 5_000
"""Interval of the log line about a wait for another producer's open transaction."""


class OffsetReader:
    """Asks leaders and coordinators about offsets."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._unstable_logged_ms: int | None = None

    # --- by time ---

    async def list_once(
        self, targets: Mapping[TopicPartition, int], isolation_level: IsolationLevel
    ) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
        """Ask each leader once.

        Args:
            targets: Timestamp by partition, or one of ListOffsets' negative codes.
            isolation_level: Decides which end "latest" means.

        Returns:
            What was found, and what went wrong; every partition is in one of the two.
        """
        cluster = self._pool.metadata

        def flow(
            node_id: int, partitions: list[TopicPartition]
        ) -> Flow[dict[TopicPartition, FoundOffset]]:
            wanted = {partition: targets[partition] for partition in partitions}
            return offset_lookup.list_offsets(node_id, wanted, cluster, isolation_level)

        known, missing = offset_lookup.by_leader(cluster, targets)
        found: dict[TopicPartition, FoundOffset] = {}
        failed: dict[TopicPartition, KafkaError] = {p: _no_leader(p) for p in missing}
        replies = await asyncio.gather(
            *(self._ask(flow(node_id, partitions)) for node_id, partitions in known.items())
        )
        for partitions, reply in zip(known.values(), replies, strict=True):
            if isinstance(reply, KafkaError):
                failed.update(dict.fromkeys(partitions, reply))
                continue
            for partition, answer in reply.items():
                if answer.error_code == ErrorCode.NONE:
                    found[partition] = answer
                else:
                    failed[partition] = error_for(answer.error_code, f"ListOffsets of {partition}")
        return found, failed

    async def epoch_ends_once(
        self, epochs: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, EpochEnd], dict[TopicPartition, KafkaError]]:
        """Ask each leader once where leader epochs end; see `list_once`."""
        cluster = self._pool.metadata
        known, missing = offset_lookup.by_leader(cluster, epochs)
        found: dict[TopicPartition, EpochEnd] = {}
        failed: dict[TopicPartition, KafkaError] = {p: _no_leader(p) for p in missing}
        for node_id, partitions in known.items():
            wanted = {partition: epochs[partition] for partition in partitions}
            reply = await self._ask(offset_lookup.epoch_ends(node_id, wanted, cluster))
            if isinstance(reply, KafkaError):
                failed.update(dict.fromkeys(partitions, reply))
                continue
            for partition, answer in reply.items():
                if answer.error_code == ErrorCode.NONE:
                    found[partition] = answer
                else:
                    failed[partition] = error_for(
                        answer.error_code, f"OffsetForLeaderEpoch of {partition}"
                    )
        return found, failed

    def _raise_if_missing(self, partition: TopicPartition) -> None:
        """Raise for a topic that was looked for several times and does not exist."""
        topic = self._pool.metadata.topics.get(partition.topic)
        if topic is not None and topic.error_code:
            raise error_for(topic.error_code, f"topic {partition.topic!r}")
        if topic is not None and partition.partition not in topic.partitions:
            raise UnknownTopicOrPartitionError(f"{partition} does not exist")

    async def _ask(self, flow: Flow[T]) -> T | KafkaError:
        try:
            return await self._pool.run(flow)
        except KafkaError as error:
            return error

    async def list_offsets(
        self,
        targets: Mapping[TopicPartition, int],
        isolation_level: IsolationLevel,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, FoundOffset]:
        """Ask until every partition is answered.

        Args:
            targets: Timestamp by partition, or one of ListOffsets' negative codes.
            isolation_level: Decides which end "latest" means.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            An answer for every partition.

        Raises:
            KafkaError: What a partition's last answer was when time ran out, or an error that
                does not pass; it names the partition.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        topics = {partition.topic for partition in targets}
        if any(self._pool.metadata.partition(partition) is None for partition in targets):
            await self._pool.refresh_metadata(topics, timeout_ms=timeout_ms)
        answers: dict[TopicPartition, FoundOffset] = {}
        open_targets = dict(targets)
        failures = 0
        while open_targets:
            async with self._bounded(deadline_ms, f"ListOffsets of {len(open_targets)} partitions"):
                found, failed = await self.list_once(open_targets, isolation_level)
            answers |= found
            open_targets = {partition: targets[partition] for partition in failed}
            if not failed:
                break
            failures += 1
            refresh = False
            for partition, error in failed.items():
                recovery = recovery_for(error)
                refresh = refresh or recovery is Recovery.REFRESH_METADATA
                if recovery is Recovery.NONE:
                    raise error
                if failures >= MISSING_TOPIC_TRIES:
                    self._raise_if_missing(partition)
            await self._pause(failures, deadline_ms, next(iter(failed.values())))
            if refresh:
                await self._pool.refresh_metadata(topics, timeout_ms=timeout_ms)
        return answers

    # --- committed ---

    async def committed_once(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool,
        member: ConsumerGroupMetadata | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Ask the coordinator once.

        Args:
            group_id: The group.
            partitions: Which ones; None asks for all.
            require_stable: Refuse partitions with a transactional commit in progress.
            member: Who asks, where the group's coordinator shall refuse a stale member (KIP-848).

        Returns:
            Answers by partition, errors of single partitions among them.

        Raises:
            KafkaError: There is no answer at all. A coordinator that is the wrong one is
                forgotten, so that the next call looks for it again.
        """
        try:
            node_id = await self._pool.find_coordinator(group_id, CoordinatorType.GROUP)
            await self._pool.connect(node_id, "coordinator")
            version = self._pool.api_version(node_id, OffsetFetchRequest) or 0
            batched = version >= offset_lookup.BATCHED_GROUPS_FROM
            # Older brokers (before 2.5) cannot be asked to wait; they are asked for what they know.
            require_stable = require_stable and version >= offset_lookup.STABLE_FROM
            code, answers = await self._pool.run(
                offset_lookup.fetch_committed(
                    group_id,
                    partitions,
                    require_stable=require_stable,
                    batched=batched,
                    member=member,
                )
            )
            if code != ErrorCode.NONE:
                raise error_for(code, f"OffsetFetch of group {group_id!r}")
        except KafkaError as error:
            if recovery_for(error, coordinator=True) is Recovery.FIND_COORDINATOR:
                self._pool.forget_coordinator(group_id, CoordinatorType.GROUP)
            raise
        if any(a.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT for a in answers.values()):
            self._log_unstable(group_id)
        return answers

    async def committed(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Ask until every partition is answered.

        Args:
            group_id: The group.
            partitions: Which ones; None asks for all that the group committed.
            require_stable: Wait for transactional commits in progress; the coordinator ends them
                after the producer's transaction timeout at the latest.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            Committed offset by partition, None where there is none.

        Raises:
            KafkaError: What the last answer was when time ran out, or an error that does not pass.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        result: dict[TopicPartition, OffsetAndMetadata | None] = {}
        open_partitions = partitions
        failures = 0
        while True:
            failed: KafkaError | None = None
            again: list[TopicPartition] = []
            try:
                async with self._bounded(deadline_ms, f"OffsetFetch of group {group_id!r}"):
                    answers = await self.committed_once(
                        group_id, open_partitions, require_stable=require_stable
                    )
            except KafkaError as error:
                if recovery_for(error, coordinator=True) is Recovery.NONE:
                    raise
                failed = error
            else:
                for partition in open_partitions if open_partitions is not None else answers:
                    answer = answers.get(partition, CommittedOffset(ErrorCode.NONE))
                    if answer.error_code == ErrorCode.NONE:
                        result[partition] = answer.committed
                        continue
                    failed = error_for(answer.error_code, f"OffsetFetch of {partition}")
                    if recovery_for_code(answer.error_code) is Recovery.NONE:
                        raise failed
                    again.append(partition)
                open_partitions = again
            if failed is None:
                return result
            failures += 1
            await self._pause(failures, deadline_ms, failed)

    def _log_unstable(self, group_id: str) -> None:
        now_ms = self._pool.now_ms()
        last_ms = self._unstable_logged_ms
        if last_ms is None or now_ms - last_ms >= UNSTABLE_LOG_INTERVAL_MS:
            self._unstable_logged_ms = now_ms
            logger.info(
                "group %s: offsets are part of a transaction that is still open; waiting for its "
                "end, which comes at the latest after the producer's transaction.timeout.ms",
                group_id,
            )

    # --- time ---

    def _deadline_ms(self, timeout_ms: int | None) -> int:
        limit_ms = limit_of(timeout_ms, self._pool.config.default_api_timeout_ms)
        return self._pool.now_ms() + limit_ms

    @contextlib.asynccontextmanager
    async def _bounded(self, deadline_ms: int, what: str) -> AsyncIterator[None]:
        """End a request when time is up, also when its broker stays silent."""
        left_ms = max(1, deadline_ms - self._pool.now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                yield
        except TimeoutError:
            raise RequestTimedOutError(f"{what} was not answered in time") from None

    async def _pause(self, failures: int, deadline_ms: int, error: KafkaError) -> None:
        delay_ms = self._pool.backoff.delay_ms(failures)
        if self._pool.now_ms() + delay_ms >= deadline_ms:
            raise RequestTimedOutError(f"gave up: {error}") from error
        await asyncio.sleep(delay_ms / 1000)


def _no_leader(partition: TopicPartition) -> KafkaError:
    return LeaderNotAvailableError(f"{partition} has no known leader")
