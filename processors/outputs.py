"""Collects the outputs of finished records and sends them in runs of one topic.

Only records that succeeded put anything in here, so nothing has to be taken back when one fails.
What is collected is sent before each commit and after each batch that was read; an abort clears it.
A target that only the handler named, and that the brokers refuse, is the fault of the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from onceflow.processors.errors import UndeliverableOutputError
from onceflow.sdk.errors import (
    ConfigError,
    InvalidTopicError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.partitions import Headers
from onceflow.transactions.clients import SentRun

REFUSAL_KEPT_S = 60.0
"""How long a target that was refused is refused here at once, without another wait for it."""

_NO_SUCH_TOPIC = (InvalidTopicError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)


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
    """Outputs to one topic, in order.

    Attributes:
        declared: Whether the topic is part of a processor's declaration, so that its absence
            concerns every record and not the one that named it.
    """

    __slots__ = (
        "_clock",
        "_refusal",
        "_refused_s",
        "declared",
        "keys",
        "special",
        "timestamps_ms",
        "topic",
        "values",
    )

    def __init__(self, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.topic: str = topic
        self.declared: bool = False
        self._clock = clock
        self._refusal: Exception | None = None
        self._refused_s = 0.0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps_ms: list[int] = []
        self.special: dict[int, tuple[Headers, int | None]] = {}
        """Headers and partition of the few that are sent alone, by index."""

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Take one output; a negative timestamp is that of an input without one."""
        if headers or partition is not None or timestamp_ms < 0:
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

    def check(self) -> None:
        """Refuse an output at once if the brokers refused its topic a moment ago.

        Raises:
            UndeliverableOutputError: They did.
        """
        if self._refusal is not None:
            if self._clock() - self._refused_s < REFUSAL_KEPT_S:
                raise UndeliverableOutputError(
                    f"output topic {self.topic!r}: {self._refusal}"
                ) from self._refusal
            self._refusal = None

    def send(self, session: Sends) -> None:
        """Send all in order; plain runs go together, which is much faster.

        Raises:
            UndeliverableOutputError: A handler named a topic or partition that does not exist.
            KafkaError: Anything else that the producer refuses.
        """
        try:
            self._send(session)
        except ConfigError as error:
            raise UndeliverableOutputError(f"output to {self.topic!r}: {error}") from error
        except _NO_SUCH_TOPIC as error:
            if self.declared:
                raise
            self._refusal, self._refused_s = error, self._clock()
            raise UndeliverableOutputError(f"output topic {self.topic!r}: {error}") from error

    def _send(self, session: Sends) -> None:
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
                timestamp_ms = self.timestamps_ms[index]
                session.send(
                    self.topic,
                    self.values[index],
                    key=self.keys[index],
                    headers=headers,
                    partition=partition,
                    timestamp_ms=None if timestamp_ms < 0 else timestamp_ms,
                )
            start = index + 1


class OutputBuffer:
    """The lanes of a worker.

    Args:
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_lanes")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lanes: dict[str, Lane] = {}

    def lane(self, topic: str) -> Lane:
        """The lane of a topic; stays the same object for ever."""
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = Lane(topic, self._clock)
        return lane

    def declared(self, topic: str) -> Lane:
        """The lane of a topic that a processor declares."""
        lane = self.lane(topic)
        lane.declared = True
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
