"""Fetch sessions: a request to a broker names only what changed since the last one (KIP-227).

One session per broker. It decides which partitions a request must name, which it must forget, and
when to start over. The fetcher decides what the partitions' answers mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import INITIAL_SESSION_EPOCH
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

_EPOCH_LIMIT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """What a fetch requests of one partition.

    Attributes:
        topic_id: The topic's id; all zero on brokers without topic ids.
        fetch_offset: First offset wanted.
        leader_epoch: Leader epoch the consumer knows of, -1 to skip the broker's check.
        partition_max_bytes: Most bytes wanted of this partition.
    """

    topic_id: UUID
    fetch_offset: int
    leader_epoch: int
    partition_max_bytes: int


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session's part of a fetch request.

    Attributes:
        session_id: 0 if there is no session yet.
        session_epoch: Number of the request within the session.
        named: Partitions that the request names.
        forgotten: Partitions that the broker must drop from the session, with their topic ids.
    """

    session_id: int
    session_epoch: int
    named: Mapping[TopicPartition, FetchTarget]
    forgotten: Mapping[TopicPartition, UUID] = field(default_factory=dict)


class FetchSession:
    """The client's side of a session with one broker."""

    def __init__(self) -> None:
        self.session_id: int = 0
        self._epoch = INITIAL_SESSION_EPOCH
        self._partitions: dict[TopicPartition, FetchTarget] = {}

    def repeats(self, partition: TopicPartition, target: FetchTarget) -> bool:
        """Whether the last request had the same target, so that the broker answers only changes."""
        return self._partitions.get(partition) == target

    def request(self, wanted: Mapping[TopicPartition, FetchTarget]) -> SessionRequest:
        """Return the session's part of a request for exactly these partitions.

        Args:
            wanted: All partitions that the answer may hold, in the order of preference.

        Returns:
            The partitions to name and to forget. The session then expects that the request is
            sent; if it fails, `restart` must be called.
        """
        if self._epoch == INITIAL_SESSION_EPOCH:
            self._partitions = dict(wanted)
            return SessionRequest(self.session_id, INITIAL_SESSION_EPOCH, wanted)
        known = self._partitions
        forgotten = {
            partition: target.topic_id
            for partition, target in known.items()
            if partition not in wanted or wanted[partition].topic_id != target.topic_id
        }
        named = {
            partition: target
            for partition, target in wanted.items()
            if known.get(partition) != target
        }
        # A changed partition goes to the end, as on the broker.
        kept = {p: t for p, t in known.items() if p in wanted and p not in named}
        self._partitions = kept | named
        return SessionRequest(self.session_id, self._epoch, named, forgotten)

    def on_answer(self, error_code: int, session_id: int) -> bool:
        """Handle the first fields of an answer.

        Args:
            error_code: Error code of the whole answer.
            session_id: Session id of the answer, 0 if the broker keeps no session.

        Returns:
            Whether the partitions of the answer may be used.
        """
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.restart()
            return False
        if self._epoch == INITIAL_SESSION_EPOCH:
            self.session_id = session_id
            if session_id == 0:
                return True  # The broker has no slot for a session: continue with full requests.
        elif session_id != self.session_id:
            self.session_id = 0
            self.restart()
            return True
        self._epoch = 1 if self._epoch == _EPOCH_LIMIT else self._epoch + 1
        return True

    def restart(self) -> None:
        """Begin a new session with the next request, which also closes the old one."""
        self._epoch = INITIAL_SESSION_EPOCH
        self._partitions = {}


def fetch_topics(
    named: Mapping[TopicPartition, FetchTarget], by_id: bool
) -> list[FetchRequest.FetchTopic]:
    """Return the partitions that a fetch request names, by topic id or by name."""
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for partition, target in named.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = FetchRequest.FetchTopic(partitions=[])
            if by_id:
                topic.topic_id = target.topic_id
            else:
                topic.topic = partition.topic
            topics[partition.topic] = topic
        topic.partitions.append(
            FetchRequest.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=target.leader_epoch,
                fetch_offset=target.fetch_offset,
                partition_max_bytes=target.partition_max_bytes,
            )
        )
    return list(topics.values())


def forgotten_topics(
    forgotten: Mapping[TopicPartition, UUID], by_id: bool
) -> list[FetchRequest.ForgottenTopic]:
    """Return the partitions that a fetch request forgets."""
    # A topic that was deleted and created again has two ids, so entries are kept by id.
    topics: dict[tuple[str, UUID], FetchRequest.ForgottenTopic] = {}
    for partition, topic_id in forgotten.items():
        topic = topics.get((partition.topic, topic_id))
        if topic is None:
            topic = FetchRequest.ForgottenTopic(partitions=[])
            if by_id:
                topic.topic_id = topic_id
            else:
                topic.topic = partition.topic
            topics[partition.topic, topic_id] = topic
        topic.partitions.append(partition.partition)
    return list(topics.values())
