"""Fetch sessions (KIP-227): the partitions of a consumer, which need not repeat them.

It decides which partitions a Fetch reads, which of them an incremental answer contains, and which
session a new one replaces. It reads no logs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceflow.sdk.model.special_values import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from random import Random

FetchPartition = FetchRequest.FetchPartition
PartitionData = FetchResponse.PartitionData

PartitionKey = tuple["str | uuid.UUID", int]
"""Topic name, or topic id from version 13 on, and partition."""

NO_SESSION = 0
SESSION_MIN_VERSION = 7
FETCH_TOPIC_ID_MIN_VERSION = 13
EPOCH_MAX = 2**31 - 1
EMPTY_LAG = -1


class SessionPartition:
    """One partition as the session knows it.

    Attributes:
        asked: The newest request for it.
        high_watermark: As last reported; -1 if it must be reported in any case.
        log_start_offset: As last reported.
    """

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked: FetchPartition = asked
        self.high_watermark: int = EMPTY_LAG
        self.log_start_offset: int = EMPTY_LAG

    def must_report(self, data: PartitionData) -> bool:
        """Whether an incremental answer contains this partition; note the reported values."""
        report = bool(data.records) or data.error_code != 0 or data.diverging_epoch is not None
        if self.high_watermark != data.high_watermark:
            self.high_watermark = data.high_watermark
            report = True
        if self.log_start_offset != data.log_start_offset:
            self.log_start_offset = data.log_start_offset
            report = True
        if data.error_code != 0:
            # So that the end of an error is reported although the watermark is the same.
            self.high_watermark = EMPTY_LAG
        return report


class FetchSession:
    """One session of one consumer.

    Attributes:
        session_id: Random and positive.
        epoch: Epoch that the next request must carry.
        uses_topic_ids: Whether its requests name topics by id.
        last_used_ms: Wall milliseconds of the newest request.
        partitions: The partitions, in the order in which the next answer is filled.
    """

    __slots__ = ("epoch", "last_used_ms", "partitions", "session_id", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id: int = session_id
        self.epoch: int = INITIAL_SESSION_EPOCH + 1
        self.uses_topic_ids: bool = uses_topic_ids
        self.last_used_ms: int = now_ms
        self.partitions: dict[PartitionKey, SessionPartition] = {}

    def update(self, request: FetchRequest) -> None:
        """Add changed and new partitions, and remove forgotten ones."""
        for key, asked in requested_partitions(request, self.uses_topic_ids):
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(asked)
            else:
                known.asked = asked
        for forgotten in request.forgotten_topics_data:
            topic = forgotten.topic_id if self.uses_topic_ids else forgotten.topic
            for partition in forgotten.partitions:
                self.partitions.pop((topic, partition), None)

    def advance(self) -> None:
        """Expect the next epoch; 1 follows the greatest one."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class FetchPlan:
    """What one Fetch request reads.

    Attributes:
        error: Refusal of the whole request, or NONE.
        session: The session, or None.
        partitions: The partitions, in the order in which the answer is filled.
        incremental: Whether the answer leaves out unchanged partitions.
        wants_session: Whether to make a session with the answer.
    """

    __slots__ = ("error", "incremental", "partitions", "session", "wants_session")

    def __init__(
        self,
        partitions: list[tuple[PartitionKey, FetchPartition]],
        *,
        error: ErrorCode = ErrorCode.NONE,
        session: FetchSession | None = None,
        wants_session: bool = False,
    ) -> None:
        self.error: ErrorCode = error
        self.session: FetchSession | None = session
        self.partitions: list[tuple[PartitionKey, FetchPartition]] = partitions
        self.incremental: bool = session is not None
        self.wants_session: bool = wants_session


def requested_partitions(
    request: FetchRequest, uses_topic_ids: bool
) -> Iterable[tuple[PartitionKey, FetchPartition]]:
    """Yield every partition of a request with its key."""
    for topic in request.topics:
        name = topic.topic_id if uses_topic_ids else topic.topic
        for asked in topic.partitions:
            yield (name, asked.partition), asked


class FetchSessions:
    """The session cache of the broker.

    Args:
        slots: Most sessions (``max.incremental.fetch.session.cache.slots``).
        eviction_ms: Idle time after which a new session may replace one
            (``min.incremental.fetch.session.eviction.ms``).
        random: Source of session ids.
    """

    __slots__ = ("_eviction_ms", "_random", "_sessions", "_slots")

    def __init__(self, slots: int, eviction_ms: int, random: Random) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._random = random
        # In the order of their last use.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self, session_id: int) -> list[PartitionKey]:
        """Return the partitions of a session; none for an unknown one."""
        session = self._sessions.get(session_id)
        return [] if session is None else list(session.partitions)

    def plan(self, request: FetchRequest, api_version: int, now_ms: int) -> FetchPlan:
        """Return what a request reads, and advance its session (trap 28)."""
        uses_topic_ids = api_version >= FETCH_TOPIC_ID_MIN_VERSION
        if api_version < SESSION_MIN_VERSION or request.session_epoch in (
            INITIAL_SESSION_EPOCH,
            FINAL_SESSION_EPOCH,
        ):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            return FetchPlan(
                # A partition that is named twice is read once, as last named.
                list(dict(requested_partitions(request, uses_topic_ids)).items()),
                wants_session=api_version >= SESSION_MIN_VERSION
                and request.session_epoch == INITIAL_SESSION_EPOCH,
            )
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchPlan([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchPlan([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(request)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchPlan([])
        session.advance()
        self._touch(session, now_ms)
        return FetchPlan(
            [(key, known.asked) for key, known in session.partitions.items()], session=session
        )

    def select(
        self, plan: FetchPlan, answers: list[tuple[PartitionKey, PartitionData]]
    ) -> list[tuple[PartitionKey, PartitionData]]:
        """Return the partitions of an incremental answer; those with data move to the end."""
        session = plan.session
        if session is None:
            return answers
        partitions = session.partitions
        selected = []
        for key, data in answers:
            known = partitions.get(key)
            if known is None:
                continue
            if known.must_report(data):
                selected.append((key, data))
                if data.records:
                    # Trap 29: a busy partition must not starve those after it.
                    del partitions[key]
                    partitions[key] = known
        return selected

    def open(
        self,
        plan: FetchPlan,
        answers: list[tuple[PartitionKey, PartitionData]],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> int:
        """Make a session for the partitions of a full request, if there is room.

        Returns:
            The session id, or 0 if every slot is in use.
        """
        if not self._make_room(now_ms):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.getrandbits(31)
        session = FetchSession(session_id, uses_topic_ids, now_ms)
        for key, asked in plan.partitions:
            session.partitions[key] = SessionPartition(asked)
        for key, data in answers:
            session.partitions[key].must_report(data)
        self._sessions[session_id] = session
        return session_id

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms <= self._eviction_ms:
            return False
        del self._sessions[oldest.session_id]
        return True

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
