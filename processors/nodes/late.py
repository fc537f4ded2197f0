"""Late records: writes them to a topic in the same transaction, or drops them with a warning."""

from __future__ import annotations

import logging
from typing import cast

from onceflow.processors.frame import Frame
from onceflow.processors.nodes.base import Surroundings
from onceflow.processors.nodes.emitter import Emitter
from onceflow.processors.policies import ThrottledWarnings


class LateRecords:
    """Handles the late records of one node.

    Args:
        name: The node.
        topic: Where they go (``late=``); None drops them.
        around: Objects of the worker that it uses.
        emitter: Encodes values.
        logger: Logs dropped records.
    """

    def __init__(
        self,
        name: str,
        topic: str | None,
        around: Surroundings,
        emitter: Emitter,
        logger: logging.Logger,
    ) -> None:
        self._name = name
        self._emitter = emitter
        self._lane = None if topic is None else around.lanes.declared(topic)
        self._warnings = ThrottledWarnings(logger.warning, around.clock)

    def give(self, frame: Frame, time_ms: int, now_ms: int) -> None:
        """Write the record of a frame to the topic, or log that it is dropped.

        Args:
            frame: The frame of the call.
            time_ms: Event time of the record.
            now_ms: Stream time.
        """
        item, record = frame.item, frame.record
        if self._lane is not None:
            value = self._emitter.encode(item.value)
            key, headers = cast("bytes | None", item.key), tuple(item.headers)
            frame.outputs.append((self._lane, value, key, item.timestamp_ms, headers, None))
            return
        self._warnings.note(
            LookupError("late"),
            f"{self._name}: {record.topic}-{record.partition}@{record.offset} came late and was "
            f"dropped: event time {time_ms}, stream time {now_ms}; declare late= to keep such "
            "records, or a longer grace",
        )
