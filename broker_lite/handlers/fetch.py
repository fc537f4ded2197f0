"""Fetch: sends stored batches to consumers, at once or when there are enough (long poll).

It decides up to where a consumer may see each partition, how the byte limits are shared, and when a
parked request is answered. Batches are sent as they are stored; nothing is decoded here.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from onceflow.broker_lite.fetch_sessions import (
    FETCH_TOPIC_ID_MIN_VERSION,
    FetchPlan,
    PartitionKey,
)
from onceflow.broker_lite.guards.access import Access
from onceflow.broker_lite.handlers.offsets import ANY_EPOCH, check_leader_epoch
from onceflow.broker_lite.log import ReadError
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.batch_header import iter_batch_headers
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from onceflow.broker_lite.log import PartitionLog
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.topics import Topic

FetchPartition = FetchRequest.FetchPartition
PartitionData = FetchResponse.PartitionData

ZSTD_MIN_VERSION = 10
"""First version whose clients get records of a topic with ``compression.type=zstd`` (KIP-110)."""


UNSENT_BYTES_MAX = 128 * 1024 * 1024
"""Most memory of answers to slow readers. Beyond it a Fetch gets only its first batch, so that
clients that send requests and do not read the answers cannot fill the memory."""

COUNTED_AT_ONCE_BYTES = 1_048_576
"""Most bytes of one read that counts whether ``min_bytes`` are available."""


@handles(FetchRequest)
def fetch(
    state: Services, context: RequestContext, request: FetchRequest, now_ms: int
) -> FetchResponse | Deferred[FetchResponse]:
    """Answer if ``min_bytes`` are available, else park the request for up to ``max_wait_ms``."""
    plan = state.fetch_sessions.plan(request, context.api_version, now_ms)
    if plan.error:
        return FetchResponse(error_code=plan.error, session_id=0, responses=[])
    attempt = _FetchAttempt(state, context, request, plan)
    if attempt.is_satisfied():
        return attempt.answer(now_ms)
    deferred: Deferred[FetchResponse] = Deferred()

    def try_complete(now_ms: int) -> bool:
        return attempt.is_satisfied() and deferred.complete(attempt.answer(now_ms))

    def expire(now_ms: int) -> None:
        deferred.complete(attempt.answer(now_ms))

    parked = state.purgatory.park(
        attempt.keys(), now_ms + request.max_wait_ms, try_complete, expire
    )
    deferred.on_disconnect = parked.cancel
    return deferred


class _Source:
    """One partition of a request in progress.

    Attributes:
        key: As the request names it.
        asked: The partition's part of the request.
        topic: The topic, None if unknown.
        log: The log, None if unknown.
        counted_to: Offset up to which available bytes have been counted.
        available: Available bytes counted so far, at most the partition's limit.
    """

    __slots__ = ("asked", "available", "counted_to", "key", "log", "topic")

    def __init__(
        self,
        key: PartitionKey,
        asked: FetchPartition,
        topic: Topic | None,
        log: PartitionLog | None,
    ) -> None:
        self.key = key
        self.asked = asked
        self.topic = topic
        self.log = log
        self.counted_to = asked.fetch_offset
        self.available = 0


class _FetchAttempt:
    """A Fetch request, from its arrival to its answer."""

    __slots__ = (
        "_access",
        "_committed_only",
        "_context",
        "_knows_zstd",
        "_plan",
        "_request",
        "_sources",
        "_state",
        "_uses_topic_ids",
    )

    def __init__(
        self, state: Services, context: RequestContext, request: FetchRequest, plan: FetchPlan
    ) -> None:
        api_version = context.api_version
        self._state = state
        self._context = context
        # Checked when it is read, since ACLs may change during a session or a parked request.
        self._access = None if state.authorizer is None else Access(state, context)
        self._request = request
        self._plan = plan
        self._uses_topic_ids = api_version >= FETCH_TOPIC_ID_MIN_VERSION
        self._knows_zstd = api_version >= ZSTD_MIN_VERSION
        self._committed_only = request.isolation_level == IsolationLevel.READ_COMMITTED
        self._sources = [self._source(key, asked) for key, asked in plan.partitions]

    def _source(self, key: PartitionKey, asked: FetchPartition) -> _Source:
        name = key[0]
        topics = self._state.topics
        topic = topics.get_by_id(name) if isinstance(name, uuid.UUID) else topics.get(name)
        if topic is None or not 0 <= asked.partition < len(topic.partitions):
            return _Source(key, asked, None, None)
        return _Source(key, asked, topic, topic.partitions[asked.partition])

    def keys(self) -> list[tuple[uuid.UUID, int]]:
        """Return the keys to watch in the purgatory."""
        return [
            (source.topic.topic_id, source.asked.partition)
            for source in self._sources
            if source.topic is not None
        ]

    def is_satisfied(self) -> bool:
        """Whether to answer the request now (trap 21)."""
        request = self._request
        if request.max_wait_ms <= 0 or not self._sources:
            return True
        wanted = request.min_bytes
        if wanted <= 0:
            return True
        available = 0
        for source in self._sources:
            log = source.log
            if log is None or source.topic is None or source.topic.deleted:
                return True
            if self._refusal(source, log) or self._diverging(source, log) is not None:
                return True
            end = log.last_stable_offset if self._committed_only else log.high_watermark
            if source.counted_to < end:
                if wanted == 1:
                    return True
                try:
                    self._count(source, log, end, wanted - available)
                except ReadError:
                    return True
            available += source.available
            if available >= wanted:
                return True
        return False

    def _count(self, source: _Source, log: PartitionLog, end: int, wanted: int) -> None:
        """Count the bytes that became readable since the last check, up to the wanted number."""
        most = min(self._request.max_bytes, self._state.config.fetch_max_bytes)
        limit = min(source.asked.partition_max_bytes, most)
        while source.available < min(limit, wanted) and source.counted_to < end:
            # A read ends with its segment at the latest; small reads need little memory.
            size = min(limit - source.available, COUNTED_AT_ONCE_BYTES)
            records = log.read(source.counted_to, size).records
            next_offset = source.counted_to
            for _, header in iter_batch_headers(records):
                next_offset = header.next_offset
            if next_offset <= source.counted_to:
                break
            source.available = min(limit, source.available + len(records))
            source.counted_to = next_offset

    def _refusal(self, source: _Source, log: PartitionLog) -> ErrorCode:
        asked = source.asked
        access, topic = self._access, source.topic
        if access and topic and not access.topic(AclOperation.READ, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        node_id = self._context.connection.node_id
        placement = self._state.placement
        if topic is not None and not placement.leads(node_id, topic.name, asked.partition):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = check_leader_epoch(log, asked.current_leader_epoch)
        if code:
            return code
        diverging = self._diverging(source, log)
        if diverging is not None and diverging.epoch < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE  # The client's last epoch is unknown here.
        if diverging is not None:
            return ErrorCode.NONE  # A reader beyond the end gets the place of divergence too.
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if not self._knows_zstd and topic is not None and topic.config.compression_type == "zstd":
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.NONE

    def _diverging(self, source: _Source, log: PartitionLog) -> FetchResponse.EpochEndOffset | None:
        """Return where the reader's log diverges from ours, by its last fetched epoch (KIP-595)."""
        asked = source.asked
        if asked.last_fetched_epoch == ANY_EPOCH:
            return None
        epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
        if epoch == asked.last_fetched_epoch and end_offset >= asked.fetch_offset:
            return None
        return FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)

    def answer(self, now_ms: int) -> FetchResponse:
        """Read as much as fits and build the answer."""
        request = self._request
        room = max(0, UNSENT_BYTES_MAX - self._state.unsent_bytes)
        left = min(request.max_bytes, self._state.config.fetch_max_bytes, room)
        quotas = self._state.quotas
        if quotas.active and (allowed := quotas.fetch_room(self._context)) is not None:
            left = min(left, allowed)
        at_least_one = True
        total = 0
        answers: list[tuple[PartitionKey, PartitionData]] = []
        for source in self._sources:
            data = self._read(source, left, at_least_one)
            size = len(data.records or b"")
            total += size
            if size:
                at_least_one = False
                left = max(0, left - size)
            answers.append((source.key, data))
        sessions = self._state.fetch_sessions
        plan = self._plan
        throttle_ms = 0
        if quotas.active:
            throttle_ms, sends = quotas.fetched(self._context, total, now_ms)
            if not sends:
                return _throttled(plan, throttle_ms)
        if plan.session is not None:
            session_id = plan.session.session_id
            answers = sessions.select(plan, answers)
        elif plan.wants_session:
            session_id = sessions.open(plan, answers, self._uses_topic_ids, now_ms)
        else:
            session_id = 0
        return FetchResponse(
            error_code=0,
            session_id=session_id,
            responses=self._by_topic(answers),
            throttle_time_ms=throttle_ms,
        )

    def _by_topic(
        self, answers: list[tuple[PartitionKey, PartitionData]]
    ) -> list[FetchResponse.FetchableTopicResponse]:
        by_topic: dict[str | uuid.UUID, list[PartitionData]] = {}
        for (name, _), data in answers:
            by_topic.setdefault(name, []).append(data)
        return [
            FetchResponse.FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, uuid.UUID) else ZERO_UUID,
                partitions=partitions,
            )
            for name, partitions in by_topic.items()
        ]

    def _read(self, source: _Source, left: int, at_least_one: bool) -> PartitionData:
        asked = source.asked
        log = source.log
        if log is None or source.topic is None or source.topic.deleted:
            name = source.key[0]
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if isinstance(name, uuid.UUID) and self._state.topics.get_by_id(name) is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            shown = name if isinstance(name, str) else source.topic and source.topic.name
            if self._access and shown and not self._access.topic(AclOperation.READ, shown):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refused(asked.partition, code, aborted=[])
        refusal = self._refusal(source, log)
        if refusal:
            return _refused(asked.partition, refusal)
        diverging = self._diverging(source, log)
        if diverging is not None:
            data = self._data(asked.partition, log, b"", None)
            data.diverging_epoch = diverging
            return data
        end = log.last_stable_offset if self._committed_only else log.high_watermark
        limit = min(left, asked.partition_max_bytes)
        if asked.fetch_offset >= end or (limit <= 0 and not at_least_one):
            return self._data(asked.partition, log, b"", [] if self._committed_only else None)
        try:
            result = log.read(
                asked.fetch_offset,
                limit,
                isolation_level=(
                    IsolationLevel.READ_COMMITTED
                    if self._committed_only
                    else IsolationLevel.READ_UNCOMMITTED
                ),
                minimum_one_batch=at_least_one,
            )
        except ReadError as error:
            return _refused(asked.partition, error.code)
        aborted = None  # Even if the first batch does not fit: there is nothing to filter.
        if self._committed_only and result.records:
            aborted = [
                FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in result.aborted_transactions or ()
            ]
        return self._data(asked.partition, log, result.records, aborted)

    def _data(
        self,
        partition: int,
        log: PartitionLog,
        records: bytes | bytearray | memoryview,
        aborted: list[FetchResponse.AbortedTransaction] | None,
    ) -> PartitionData:
        return PartitionData(
            partition_index=partition,
            error_code=0,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=records,
        )


def _throttled(plan: FetchPlan, throttle_ms: int) -> FetchResponse:
    """Return an empty answer, after which the client must wait and ask again (KIP-219)."""
    return FetchResponse(
        error_code=0,
        session_id=0 if plan.session is None else plan.session.session_id,
        responses=[],
        throttle_time_ms=throttle_ms,
    )


def _refused(
    partition: int,
    code: ErrorCode,
    aborted: list[FetchResponse.AbortedTransaction] | None = None,
) -> PartitionData:
    """Return an entry without offsets and with empty records, never null ones (trap 19)."""
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=aborted,
        records=b"",
    )
