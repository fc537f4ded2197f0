"""Collects the outputs of finished records and sends them in runs of one topic.

Only records that succeeded put anything in here, so nothing has to be taken back when one fails.
What is collected is sent before each commit and after each batch that was read; an abort clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onceflow.sdk.model import Headers, RecordMetadata


class SentRun(Protocol):
    """Tells where the records of a run were stored, once they are acknowledged."""

    def result(self, timeout: float | None = None) -> Sequence[RecordMetadata]: ...


class Sends(Protocol):
    """The part of a session that takes outputs."""

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object: ...

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> SentRun: ...


class Lane:
    """Outputs to one topic, in order."""

    __slots__ = ("keys", "special", "timestamps_ms", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps_ms: list[int] = []
        self.special: dict[int, tuple[Headers, int | None]] = {}
        """Headers and partition of the few that have any, by index."""

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Take one output."""
        if headers or partition is not None:
            self.special[len(self.values)] = (headers, partition)
        self.values.append(value)
        self.keys.append(key)
        self.timestamps_ms.append(timestamp_ms)

    def clear(self) -> None:
        """Forget all."""
        self.values.clear()
        self.keys.clear()
        self.timestamps_ms.clear()
        self.special.clear()

    def send(self, session: Sends) -> None:
        """Send all in order; plain runs go together, which is much faster."""
        start = 0
        for index in (*self.special, len(self.values)):
            if index > start:
                session.send_many(
                    self.topic,
                    self.values[start:index],
                    self.keys[start:index],
                    timestamps_ms=self.timestamps_ms[start:index],
                )
            if index < len(self.values):
                headers, partition = self.special[index]
                session.send(
                    self.topic,
                    self.values[index],
                    key=self.keys[index],
                    headers=headers,
                    partition=partition,
                    timestamp_ms=self.timestamps_ms[index],
                )
            start = index + 1


class OutputBuffer:
    """The lanes of a worker."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def lane(self, topic: str) -> Lane:
        """The lane of a topic; stays the same object for ever."""
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = Lane(topic)
        return lane

    def push(self, session: Sends) -> None:
        """Send what is collected."""
        for lane in self._lanes.values():
            if lane.values:
                lane.send(session)
                lane.clear()

    def clear(self) -> None:
        """Forget what is collected: its transaction is aborted."""
        for lane in self._lanes.values():
            lane.clear()
