"""Outputs of the open unit, collected by topic and sent in runs.

Only successful records add outputs, so a failed record need not remove any. Outputs are sent after
each round of records and before each commit; an abort drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onceflow.processors.errors import UndeliverableOutputError
from onceflow.sdk.model.partitions import Headers
from onceflow.transactions.clients import SentRun

REFUSAL_KEPT_S = 60.0
"""How long outputs to a topic that the brokers refused are refused at once, without a request."""


@dataclass(slots=True)
class Run:
    """Records of one topic that are sent with one call.

    Attributes:
        topic: The topic.
        values: Values; None is a tombstone.
        keys: Keys of the values.
        timestamps_ms: Their timestamps; None takes the time of sending.
        partition: One partition for all, or None for the partitioner's choice.
        headers: Headers; a run with headers has one record.
        declared: Whether the topic is part of the topology. If it is missing, the worker ends, and
            not only the record that named it fails.
        sent: Returns where the records were stored; None until they were sent.
    """

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    timestamps_ms: Sequence[int] | None = None
    partition: int | None = None
    headers: Headers = ()
    declared: bool = True
    sent: SentRun | None = field(default=None, repr=False)


class Lane:
    """Outputs to one topic, in order.

    Args:
        topic: The topic.
        clock: Monotonic seconds.

    Attributes:
        declared: Whether the topic is part of the topology.
        values: Values that are not sent yet.
        keys: Their keys.
        timestamps_ms: Their timestamps.
        special: Headers and partition, by index, of the outputs that have any.
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

    def __init__(self, topic: str, clock: Callable[[], float]) -> None:
        self.topic: str = topic
        self.declared: bool = False
        self._clock = clock
        self._refusal: Exception | None = None
        self._refused_s = 0.0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps_ms: list[int] = []
        self.special: dict[int, tuple[Headers, int | None]] = {}

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Add an output; a negative timestamp means that the input has none."""
        if headers or partition is not None:
            self.special[len(self.values)] = (headers, partition)
        self.values.append(value)
        self.keys.append(key)
        self.timestamps_ms.append(timestamp_ms)

    def check(self) -> None:
        """Refuse an output at once if the brokers refused its topic a moment ago.

        Raises:
            UndeliverableOutputError: The brokers refused it.
        """
        if self._refusal is not None:
            if self._clock() - self._refused_s < REFUSAL_KEPT_S:
                raise UndeliverableOutputError(
                    f"output topic {self.topic!r}: {self._refusal}"
                ) from self._refusal
            self._refusal = None

    def refused(self, error: Exception) -> None:
        """Note that the topic does not exist, or may not be written."""
        self._refusal, self._refused_s = error, self._clock()

    def take(self) -> list[Run]:
        """Remove and return the outputs, as runs in order."""
        if not self.values:
            return []
        values, keys, times = self.values, self.keys, self.timestamps_ms
        special, self.special = self.special, {}
        self.values, self.keys, self.timestamps_ms = [], [], []
        if min(times) < 0:  # The producer refuses -1: these get the time of sending.
            bare = {index: ((), None) for index, time_ms in enumerate(times) if time_ms < 0}
            special = dict(sorted({**bare, **special}.items()))
        if not special:
            return [Run(self.topic, values, keys, times, declared=self.declared)]
        runs, start = [], 0
        for index in (*special, len(values)):
            if index > start:
                part = slice(start, index)
                runs.append(
                    Run(self.topic, values[part], keys[part], times[part], declared=self.declared)
                )
            if index < len(values):
                headers, partition = special[index]
                runs.append(
                    Run(
                        self.topic,
                        [values[index]],
                        [keys[index]],
                        None if times[index] < 0 else [times[index]],
                        partition,
                        headers,
                        self.declared,
                    )
                )
            start = index + 1
        return runs

    def clear(self) -> None:
        """Drop all outputs."""
        self.values, self.keys, self.timestamps_ms = [], [], []
        self.special.clear()


class Lanes:
    """The lanes of a worker.

    Args:
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_lanes")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lanes: dict[str, Lane] = {}

    def lane(self, topic: str) -> Lane:
        """Return the lane of a topic, always the same object."""
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = Lane(topic, self._clock)
        return lane

    def declared(self, topic: str) -> Lane:
        """Return the lane of a topic that is part of the topology."""
        lane = self.lane(topic)
        lane.declared = True
        return lane

    def keep(self, lane: Lane) -> None:
        """Take a lane of another kind, which is cleared with the others."""
        self._lanes[lane.topic] = lane

    def take(self) -> list[Run]:
        """Remove and return all outputs."""
        return [run for lane in self._lanes.values() for run in lane.take()]

    @property
    def size(self) -> int:
        """Number of outputs that are not sent yet."""
        return sum(len(lane.values) for lane in self._lanes.values())

    def clear(self) -> None:
        """Drop all outputs, as their unit is aborted."""
        for lane in self._lanes.values():
            lane.clear()
