"""Decides what to fetch next, what an answer means, and which records the application gets.

The fetcher reads ahead: while the application works on its records, the next answer is on its way.
Fetched data carries the stamp of its partition at the request. If the partition has another stamp
by now, the data is dropped, so the application never gets records of a revoked or moved partition.
The fetcher sends nothing and waits for nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.consume.aborted_transactions import AbortedTransactions
from onceflow.sdk.core.consume.fetch_buffer import (
    FetchedData,
    take_columns,
    take_records,
    take_values,
)
from onceflow.sdk.core.consume.fetch_plan import FetchOutcome, FetchPlan, FetchSettings
from onceflow.sdk.core.consume.fetch_session import (
    FetchSession,
    FetchTarget,
    fetch_topics,
    forgotten_topics,
)
from onceflow.sdk.core.consume.subscription import PartitionPhase, PartitionState, Subscription
from onceflow.sdk.core.consume.topic_change import forget_old_positions
from onceflow.sdk.core.consume.unreadable import Unreadable
from onceflow.sdk.errors import (
    KafkaError,
    LocalProtocolError,
    NoOffsetForPartitionError,
    RecordError,
    SerializationError,
)
from onceflow.sdk.model.columns import AnyColumns
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for, is_retriable
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.serde import LookupNeeded

logger: logging.Logger = logging.getLogger("onceflow.sdk.fetcher")

TOPIC_IDS_FROM: Final = 13
"""First version of Fetch that names topics by id (KIP-516)."""

_NEEDS_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_WORTH_WAITING: Final = frozenset(
    {ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR}
)


_Run = TypeVar("_Run", list[AnyRecord], AnyColumns)
_Take = Callable[[FetchedData, int, "_Run | None"], "_Run | None"]


@dataclass(slots=True)
class _NodeState:
    session: FetchSession = field(default_factory=FetchSession)
    by_id: bool = False
    in_flight: bool = False
    ahead_from_ms: int = 0
    retry_at_ms: int = 0
    failures: int = 0


class Fetcher:
    """The fetcher of one consumer; see the module's text.

    Attributes:
        leaders_missing: Whether the last plan left out partitions whose leader is unknown.
        unknown_nodes: Brokers that the last plan left out until their version is known.
        unreadable: Partitions that cannot be read, with the errors for a poll.
        lookups: Look-ups that deserializers need for a partition's next record, at the last take.
    """

    def __init__(self, settings: FetchSettings, subscription: Subscription) -> None:
        self._settings = settings
        self._subscription = subscription
        self._buffers: dict[TopicPartition, deque[FetchedData]] = {}
        self._buffered_bytes = 0
        self._nodes: dict[int, _NodeState] = {}
        self.unreadable: Unreadable = Unreadable(
            subscription, settings.retry_backoff_ms, settings.retry_backoff_max_ms
        )
        self.leaders_missing: bool = False
        self.unknown_nodes: set[int] = set()
        self.lookups: dict[TopicPartition, LookupNeeded] = {}

    # --- requests ---

    def plan(
        self,
        cluster: ClusterMetadata,
        now_ms: int,
        version_of: Callable[[int], int | None],
    ) -> list[FetchPlan]:
        """Return the requests to send now, at most one to a broker; each needs a report.

        Args:
            cluster: Leaders and topic ids.
            now_ms: The caller's clock.
            version_of: Returns the version of Fetch for a node, None if unknown.

        Returns:
            The plans. Afterwards `leaders_missing` says whether partitions with an unknown leader
            were left out. `unknown_nodes` lists brokers that were left out because their version
            is unknown, which decides whether topics are named or given by id.
        """
        forget_old_positions(self._subscription, cluster)
        self._drop_stale()
        self.leaders_missing = False
        self.unknown_nodes = set()
        # Buffered records of paused partitions do not count, or the others would not be fetched.
        waiting_bytes = 0
        troubled = bool(self.unreadable)
        for state in self._subscription:
            if state.deliverable and not (troubled and self.unreadable.holds(state, now_ms)):
                waiting_bytes += self._buffered(state.topic_partition)
            else:  # It may stay for long, and must not keep the memory of the whole answer.
                for data in self._buffers.get(state.topic_partition, ()):
                    data.let_go()
        if waiting_bytes >= self._settings.max_bytes:
            return []
        by_node: dict[int, list[PartitionState]] = {}
        for state in self._subscription:
            if not state.fetchable(now_ms):
                continue
            if troubled and self.unreadable.holds(state, now_ms):
                continue
            node_id = self._node_for(state, cluster, now_ms)
            if node_id is None:
                self.leaders_missing = True
            elif not self._needs_validation(state, cluster):
                by_node.setdefault(node_id, []).append(state)
        plans = []
        for node_id, states in by_node.items():
            version = version_of(node_id)
            if version is None:
                self.unknown_nodes.add(node_id)
                continue
            plan = self._plan_node(node_id, states, cluster, now_ms, version)
            if plan is not None:
                plans.append(plan)
        return plans

    def _node_for(self, state: PartitionState, cluster: ClusterMetadata, now_ms: int) -> int | None:
        preferred = state.preferred_replica
        if preferred is not None:
            if now_ms < state.preferred_until_ms and preferred in cluster.nodes:
                return preferred
            state.preferred_replica = None
        return cluster.leader(state.topic_partition)

    def _needs_validation(self, state: PartitionState, cluster: ClusterMetadata) -> bool:
        """Hold a partition whose leader changed since its position was validated (KIP-320)."""
        leader_epoch = cluster.leader_epoch(state.topic_partition)
        if leader_epoch < 0 or leader_epoch == state.validated_epoch:
            return False
        if state.fetch_epoch < 0 or state.fetch_epoch >= leader_epoch:
            state.validated_epoch = leader_epoch
            return False
        self._subscription.begin_validation(state)
        return True

    def _plan_node(
        self,
        node_id: int,
        states: list[PartitionState],
        cluster: ClusterMetadata,
        now_ms: int,
        version: int,
    ) -> FetchPlan | None:
        node = self._nodes.setdefault(node_id, _NodeState())
        if node.in_flight or now_ms < node.retry_at_ms:
            return None
        # While the application works on one answer, the broker prepares the next.
        most = self._settings.partition_max_bytes
        wanted = [s for s in states if self._buffered(s.topic_partition) <= most]
        # Some partitions are left out because the application has not taken their records yet. A
        # long poll for the others would make those wait behind it; so the others are fetched
        # without waiting, and seldom if they have no records.
        ahead = len(wanted) < len(states)
        if not wanted or (ahead and now_ms < node.ahead_from_ms):
            return None
        plan = self._make_plan(node_id, node, wanted, cluster, version, ahead)
        node.in_flight = True
        return plan

    def _make_plan(
        self,
        node_id: int,
        node: _NodeState,
        states: list[PartitionState],
        cluster: ClusterMetadata,
        version: int,
        ahead: bool,
    ) -> FetchPlan:
        settings = self._settings
        targets = {
            state.topic_partition: FetchTarget(
                cluster.topic_id(state.topic_partition.topic),
                state.fetch_offset,
                cluster.leader_epoch(state.topic_partition),
                settings.partition_max_bytes,
            )
            for state in states
        }
        by_id = version >= TOPIC_IDS_FROM and all(
            target.topic_id != ZERO_UUID for target in targets.values()
        )
        if by_id != node.by_id:  # A session uses topic names or topic ids, not both.
            node.session.restart()
            node.by_id = by_id
        for state in states:
            partition = state.topic_partition
            if state.high_watermark < 0 and node.session.repeats(partition, targets[partition]):
                # The partition went and came back between two requests, or an answer was dropped.
                # The broker sent its high watermark then, and repeats it only when it changes.
                node.session.restart()
                break
        session = node.session.request(targets)
        request = FetchRequest(
            max_wait_ms=0 if ahead else settings.max_wait_ms,
            min_bytes=0 if ahead else settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation_level,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=fetch_topics(session.named, by_id),
            forgotten_topics_data=forgotten_topics(session.forgotten, by_id),
            rack_id=settings.rack,
        )
        asked = {s.topic_partition: (s.stamp, s.fetch_offset) for s in states}
        names = {target.topic_id: partition.topic for partition, target in targets.items()}
        max_version = None if by_id else TOPIC_IDS_FROM - 1
        return FetchPlan(node_id, request, max_version, asked, names, ahead)

    # --- answers ---

    def on_response(self, plan: FetchPlan, response: FetchResponse, now_ms: int) -> FetchOutcome:
        """Handle the answer to a plan."""
        outcome = FetchOutcome()
        node = self._nodes[plan.node_id]
        node.in_flight = False
        if not node.session.on_answer(response.error_code, response.session_id):
            self._on_refusal(node, response.error_code, outcome, now_ms)
            return outcome
        node.failures = 0
        before = self._buffered_bytes
        topic_ids = {name: topic_id for topic_id, name in plan.topic_names.items()}
        for topic in response.responses:
            name = topic.topic or plan.topic_names.get(topic.topic_id)
            if name is None:
                continue
            for answer in topic.partitions:
                partition = TopicPartition(name, answer.partition_index)
                state = self._subscription.get(partition)
                stamp, fetch_offset = plan.asked.get(partition, (-1, -1))
                # The partition was revoked or got another position: drop the answer.
                if state is None or state.stamp != stamp or state.fetch_offset != fetch_offset:
                    continue
                if answer.error_code == ErrorCode.NONE:
                    if self.unreadable:
                        self.unreadable.answered(partition)
                    state.topic_id = topic_ids.get(name, state.topic_id)
                    self._on_data(state, answer, outcome, now_ms)
                else:
                    self._on_error(state, answer, outcome, now_ms)
        if plan.ahead and self._buffered_bytes == before:
            node.ahead_from_ms = now_ms + self._settings.max_wait_ms
        else:
            node.ahead_from_ms = 0
        return outcome

    def on_failure(self, plan: FetchPlan, now_ms: int) -> FetchOutcome:
        """Handle a plan whose request was not answered."""
        node = self._nodes[plan.node_id]
        node.in_flight = False
        node.session.restart()
        self._back_off(node, now_ms)
        self.on_unreachable(plan.node_id)
        return FetchOutcome(refresh_metadata=True)

    def on_unreachable(self, node_id: int) -> None:
        """Go back to the leader in partitions that prefer a node which cannot be reached."""
        for state in self._subscription:
            if state.preferred_replica == node_id:
                state.preferred_replica = None

    def _on_refusal(self, node: _NodeState, code: int, outcome: FetchOutcome, now_ms: int) -> None:
        if code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            return  # The next request begins a new session at once.
        self._back_off(node, now_ms)
        if code in (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, *_NEEDS_METADATA):
            outcome.refresh_metadata = True
        elif code not in _WORTH_WAITING and not is_retriable(code):
            outcome.failure = error_for(code, "Fetch")

    def _back_off(self, node: _NodeState, now_ms: int) -> None:
        node.retry_at_ms = now_ms + min(self._settings.retry_backoff_ms << node.failures, 1_000)
        node.failures = min(node.failures + 1, 10)

    def _on_data(
        self,
        state: PartitionState,
        answer: FetchResponse.PartitionData,
        outcome: FetchOutcome,
        now_ms: int,
    ) -> None:
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        if answer.log_start_offset >= 0:
            state.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0:
            state.preferred_replica = answer.preferred_read_replica
            state.preferred_until_ms = now_ms + self._settings.preference_ms
        if not answer.records:
            return
        topic = state.topic_partition.topic
        outcome.topic_bytes[topic] = outcome.topic_bytes.get(topic, 0) + len(answer.records)
        aborted = None
        if self._settings.isolation_level is IsolationLevel.READ_COMMITTED:
            aborted = AbortedTransactions(
                (entry.producer_id, entry.first_offset)
                for entry in answer.aborted_transactions or ()
            )
        try:
            data = FetchedData(
                state.topic_partition,
                state.stamp,
                state.fetch_offset,
                answer.records,
                aborted,
                check_crcs=self._settings.check_crcs,
                deserialize=self._settings.deserialize,
            )
        except RecordError as error:
            # Records before the damage are buffered or taken already, and stay.
            self._on_damage(state, state.fetch_offset, error, None, now_ms)
            return
        state.fetch_offset = data.next_offset
        state.fetch_epoch = data.leader_epoch
        self._buffers.setdefault(state.topic_partition, deque()).append(data)
        self._buffered_bytes += data.size_bytes

    def _on_error(
        self,
        state: PartitionState,
        answer: FetchResponse.PartitionData,
        outcome: FetchOutcome,
        now_ms: int,
    ) -> None:
        code = answer.error_code
        partition = state.topic_partition
        state.retry_at_ms = now_ms + self._settings.retry_backoff_ms
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(state)
        elif code in _NEEDS_METADATA:
            logger.info("fetch of %s: %s", partition, ErrorCode(code).name)
            outcome.refresh_metadata = True
            state.preferred_replica = None
            leader = answer.current_leader
            if leader is not None and leader.leader_id >= 0:
                outcome.leaders[partition] = (leader.leader_id, leader.leader_epoch)
        elif code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            # The leader lags behind the metadata, or the metadata is old: refresh it.
            logger.info("fetch of %s: %s", partition, ErrorCode(code).name)
            outcome.refresh_metadata = True
        elif code in _WORTH_WAITING or (is_retriable(code) and code != ErrorCode.CORRUPT_MESSAGE):
            logger.info("fetch of %s: %s", partition, ErrorCode(code).name)
        else:
            offset, damaged = state.fetch_offset, code == ErrorCode.CORRUPT_MESSAGE
            remedy = "; seek past it to go on without the batch" if damaged else ""
            failure = error_for(code, f"cannot read {partition} at offset {offset}{remedy}")
            state.retry_at_ms = self.unreadable.note(
                state, offset, failure, now_ms, may_pass=damaged
            )

    def _on_out_of_range(self, state: PartitionState) -> None:
        if state.preferred_replica is not None:
            # A follower may lag behind: ask the leader.
            state.preferred_replica = None
            return
        if state.fetch_offset != state.position:
            return  # Deliver buffered records first; then ask the leader again.
        logger.warning(
            "offset %d of %s is out of range; auto.offset.reset=%s",
            state.position,
            state.topic_partition,
            self._subscription.auto_offset_reset,
        )
        failure = NoOffsetForPartitionError(
            f"offset {state.position} of {state.topic_partition} is out of range, and "
            'auto_offset_reset is "none": seek to an offset that exists'
        )
        failure.place = (*state.topic_partition, state.position)
        self._subscription.reset_by_policy(state, failure)

    # --- records for the application ---

    def take(self, max_records: int, now_ms: int) -> dict[TopicPartition, list[AnyRecord]]:
        """Return records for the application, and move the positions after them.

        A run of records comes from one batch and is returned without a copy, if the limit allows.

        A partition that cannot be read is left out. `unreadable` has the reason, and `lookups` the
        look-ups that its deserializer waits for.

        Args:
            max_records: Most records wanted, over all partitions.
            now_ms: The caller's clock.

        Returns:
            Records by partition, in offset order; no empty lists.
        """
        return self._take(max_records, now_ms, take_records)

    def take_columns(
        self, max_records: int, now_ms: int, *, values_only: bool
    ) -> dict[TopicPartition, AnyColumns]:
        """As `take`, field by field; see `FetchedData.take_columns`."""
        if values_only:
            return self._take(max_records, now_ms, take_values)
        return self._take(max_records, now_ms, take_columns)

    def _take(self, max_records: int, now_ms: int, take: _Take[_Run]) -> dict[TopicPartition, _Run]:
        began: dict[TopicPartition, tuple[int, int]] = {}
        try:
            return self._take_in_turn(max_records, now_ms, take, began)
        except BaseException:
            # Ctrl-C, or a deserializer that ends the program. The records taken so far are lost, so
            # a commit during the exit must not cover them.
            for partition, (position, leader_epoch) in began.items():
                self._subscription.seek(partition, position, leader_epoch)
            raise

    def _take_in_turn(
        self,
        max_records: int,
        now_ms: int,
        take: _Take[_Run],
        began: dict[TopicPartition, tuple[int, int]],
    ) -> dict[TopicPartition, _Run]:
        """Take records of each partition in turn; note the positions before."""
        taken: dict[TopicPartition, _Run] = {}
        left = max_records
        troubled = bool(self.unreadable)
        self.lookups.clear()
        for partition in list(self._buffers):
            state = self._subscription.get(partition)
            buffer = self._buffers[partition]
            if state is None or not buffer:
                self._discard(partition)
                continue
            if not state.deliverable or (troubled and self.unreadable.holds(state, now_ms)):
                continue
            began[partition] = (state.position, state.position_epoch)
            try:
                records = self._take_from(state, buffer, left, take)
            except LookupNeeded as needed:
                self.lookups[partition] = needed
                continue
            except (SerializationError, LocalProtocolError) as error:
                self.hold(partition, error, now_ms)
                continue
            except KafkaError as error:
                behind = buffer[0].next_batch_offset
                self._discard(partition)
                state.fetch_offset, state.fetch_epoch = state.position, state.position_epoch
                self._on_damage(state, state.position, error, behind, now_ms)
                continue
            if troubled:
                self.unreadable.passed(state)
            if records:
                taken[partition] = records
                left -= len(records)
                # Others come first next time; otherwise a partition that is refilled starves them.
                self._buffers[partition] = self._buffers.pop(partition)
            if left <= 0:
                break
        return taken

    def _take_from(
        self, state: PartitionState, buffer: deque[FetchedData], limit: int, take: _Take[_Run]
    ) -> _Run | None:
        found: _Run | None = None
        while buffer:
            data = buffer[0]
            if data.stamp != state.stamp:
                self._buffered_bytes -= data.size_bytes
                buffer.popleft()
                continue
            size, before = data.size_bytes, 0 if found is None else len(found)
            try:
                joined = take(data, limit - before, found)
            except (KafkaError, LookupNeeded):
                if found:
                    return found
                raise
            finally:
                # Hidden batches move the position too, although they return nothing.
                self._buffered_bytes += data.size_bytes - size
                if data.position > state.position:
                    state.position = data.position
                    state.position_epoch = data.position_epoch
            found = joined
            if data.exhausted:
                buffer.popleft()
            elif found is None or len(found) == before:
                break
        return found

    def hold(self, partition: TopicPartition, error: KafkaError, now_ms: int) -> None:
        """Hold a partition for a while, because its next record cannot be deserialized.

        Args:
            partition: Which one.
            error: Why.
            now_ms: The caller's clock.
        """
        state = self._subscription.get(partition)
        if state is not None:
            self.unreadable.note(state, state.position, error, now_ms)

    def _on_damage(
        self,
        state: PartitionState,
        offset: int,
        error: KafkaError,
        behind: int | None,
        now_ms: int,
    ) -> None:
        """Handle bytes that cannot be read: fetch them from the leader again after a pause."""
        partition = state.topic_partition
        past = "past it" if behind is None else f"to {behind}"
        error.args = (
            f"cannot read {partition} at offset {offset}: {error}. It is asked for again; if that "
            f"does not help, seek {past} to go on without the batch",
            *error.args[1:],
        )
        state.preferred_replica = None
        state.retry_at_ms = self.unreadable.note(state, offset, error, now_ms, may_pass=True)

    @property
    def has_data(self) -> bool:
        """Whether `take` would find buffered data now."""
        for partition, buffer in self._buffers.items():
            state = self._subscription.get(partition)
            if buffer and state is not None and state.deliverable:
                return True
        return False

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fetched and not taken yet."""
        return self._buffered_bytes

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the buffered data of these partitions."""
        for partition in partitions:
            self._discard(partition)

    def _discard(self, partition: TopicPartition) -> None:
        for data in self._buffers.pop(partition, ()):
            self._buffered_bytes -= data.size_bytes

    def _buffered(self, partition: TopicPartition) -> int:
        return sum(data.size_bytes for data in self._buffers.get(partition, ()))

    def _drop_stale(self) -> None:
        for partition, buffer in list(self._buffers.items()):
            state = self._subscription.get(partition)
            if not buffer or state is None or buffer[-1].stamp != state.stamp:
                self._discard(partition)

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Return when a held partition or broker may be asked again; None for none."""
        waits = [
            due_ms
            for node in self._nodes.values()
            for due_ms in (node.retry_at_ms, node.ahead_from_ms)
            if due_ms > now_ms
        ]
        waits += [
            state.retry_at_ms
            for state in self._subscription
            if state.phase is PartitionPhase.READY and state.retry_at_ms > now_ms
        ]
        waits += self.unreadable.next_tries_ms(now_ms)
        return min(waits, default=None)
