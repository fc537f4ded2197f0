"""A journal of requests: each with its answer and the times of both.

It keeps the newest entries, bounded in number and in bytes.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceflow.broker_lite.testing.request_parts import Part, parts
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.fault_rules import Fault

JOURNAL_ENTRIES_MAX = 100_000
"""Most entries; the oldest are dropped first."""

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of records in requests and answers; the oldest entries are dropped first."""

ENTRY_BYTES = 1_000
"""Estimated size of an entry without its records."""


@dataclass(slots=True, eq=False)
class JournalEntry:
    """One request that the broker received, and its answer.

    Attributes:
        number: Number of the request, counted from 1; a dropped entry leaves a gap.
        now_ms: When the broker received it, wall milliseconds of the broker's clock.
        connection_id: Id of the connection.
        client_id: The client's id for itself.
        principal: The authenticated user.
        node_id: Id of the node that received it.
        api_version: Version of the request.
        request: The request, an object of the class in ``onceflow.sdk.protocol.api`` that ``key``
            names. Its type is Any, as a test knows which requests it selected.
        fault: The fault that a rule applied, or None.
        answer: The answer, typed likewise; None until it is given, and for requests without one.
        answered_ms: When the broker answered; None until then.
        topics: Names, by id, of the topics that the request names by id.
    """

    number: int
    now_ms: int
    connection_id: int
    client_id: str | None
    principal: str
    node_id: int
    api_version: int
    request: Any
    fault: Fault | None = None
    answer: Any = None
    answered_ms: int | None = None
    topics: Mapping[uuid.UUID, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Kind of the request by Kafka's name, such as ``Produce``."""
        return type(self.request).__name__.removesuffix("Request")

    def parts(self) -> list[Part]:
        """Return the topics, partitions, groups and transactional ids that the request names."""
        return [
            part._replace(topic=self.topics.get(part.topic))
            if isinstance(part.topic, uuid.UUID)
            else part
            for part in parts(self.request, self.api_version)
        ]


class Journal:
    """The newest requests with their answers, oldest first.

    It is thread-safe: the broker's thread writes while the test's thread reads.

    Attributes:
        recording: Whether new requests are recorded.
        dropped: Number of entries dropped to make room.
    """

    def __init__(self) -> None:
        self.recording = False
        self.dropped: int = 0
        self._entries: deque[JournalEntry] = deque()
        self._bytes = 0
        self._last_number = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        with self._lock:
            return iter(list(self._entries))

    def __getitem__(self, index: int) -> JournalEntry:
        return self._entries[index]

    def next_number(self) -> int:
        """Return the number of a new entry."""
        self._last_number += 1
        return self._last_number

    def add(self, entry: JournalEntry) -> None:
        """Add a request.

        Args:
            entry: The request, not answered yet.
        """
        with self._lock:
            self._entries.append(entry)
            self._bytes += ENTRY_BYTES + _record_bytes(entry.request)
            self._make_room()

    def answered(self, entry: JournalEntry, answer: Response | None, now_ms: int) -> None:
        """Add the answer to a request.

        Args:
            entry: The request.
            answer: Its answer; None for acks=0.
            now_ms: The present time.
        """
        entry.answer = answer
        entry.answered_ms = now_ms
        if answer is None:
            return
        with self._lock:
            # The bytes of an entry that was dropped meanwhile are no longer counted.
            if self._entries and entry.number >= self._entries[0].number:
                self._bytes += _record_bytes(answer)
                self._make_room()

    def clear(self) -> None:
        """Drop all entries; the numbers of new ones continue."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def select(
        self,
        key: type[Request] | str | None = None,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        group_id: str | None = None,
        transactional_id: str | None = None,
        node_id: int | None = None,
        after: int = 0,
    ) -> list[JournalEntry]:
        """Return the entries that match all given arguments, oldest first.

        Args:
            key: Kind of the request, as class or by Kafka's name (``"Produce"``).
            client_id: The client's id.
            topic: A topic that the request names; a Fetch in a session may name none.
            partition: A partition that it names, of ``topic`` if that is given too.
            group_id: A group that it names.
            transactional_id: A transactional id that it names.
            node_id: Id of the node that received it.
            after: Only entries with a greater number.
        """
        name = key if key is None or isinstance(key, str) else key.__name__.removesuffix("Request")
        wanted = Part(topic, partition, group_id, transactional_id)
        return [
            entry
            for entry in self
            if entry.number > after
            and (name is None or entry.key == name)
            and (client_id is None or entry.client_id == client_id)
            and (node_id is None or entry.node_id == node_id)
            and (wanted == Part() or any(part_fits(wanted, part) for part in entry.parts()))
        ]

    def _make_room(self) -> None:
        entries = self._entries
        while len(entries) > JOURNAL_ENTRIES_MAX or (
            self._bytes > JOURNAL_BYTES_MAX and len(entries) > 1
        ):
            oldest = entries.popleft()
            self.dropped += 1
            self._bytes -= ENTRY_BYTES + _record_bytes(oldest.request)
            if oldest.answer is not None:
                self._bytes -= _record_bytes(oldest.answer)


def part_fits(wanted: Part, part: Part) -> bool:
    """Whether a part matches all fields of ``wanted`` that are not None."""
    return all(value is None or value == named for value, named in zip(wanted, part, strict=True))


def _record_bytes(message: Request | Response) -> int:
    """Bytes of record batches in a Produce request or a Fetch answer."""
    total = 0
    for topic in getattr(message, "topic_data", None) or ():
        total += sum(len(data.records or b"") for data in topic.partition_data)
    for topic in getattr(message, "responses", None) or ():
        for data in getattr(topic, "partitions", None) or ():
            total += len(getattr(data, "records", None) or b"")
    return total
