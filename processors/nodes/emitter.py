"""Puts results of windows, joins and timers into a frame: to a topic and to other functions."""

from __future__ import annotations

from onceflow.processors.errors import DeclarationError
from onceflow.processors.frame import Frame, Result
from onceflow.processors.lanes import Lane
from onceflow.processors.values import Encoder
from onceflow.processors.windows import Window
from onceflow.sdk.errors import RecordTooLargeError


class Emitter:
    """Puts the results of one node into frames.

    Args:
        name: The node, for messages.
        lane: Lane of its output topic, or None.
        encode: Encoder of values.
        feeds: Whether other functions take its results.
        record_bytes_max: Largest key and value of an output together.
    """

    __slots__ = ("_bytes_max", "_feeds", "_lane", "_name", "encode")

    def __init__(
        self,
        name: str,
        lane: Lane | None,
        encode: Encoder,
        feeds: bool,
        record_bytes_max: int,
    ) -> None:
        self.encode: Encoder = encode
        self._name = name
        self._lane = lane
        self._feeds = feeds
        self._bytes_max = record_bytes_max

    def give(
        self,
        frame: Frame,
        value: object,
        key: bytes | None,
        timestamp_ms: int,
        window: Window | None = None,
    ) -> None:
        """Put a result into a frame; None means that there is none.

        Raises:
            RecordTooLargeError: The producer would refuse it for its size.
        """
        if value is None:
            return
        if self._feeds:
            frame.results.append(Result(value, key, timestamp_ms, window=window))
        if self._lane is not None:
            data = self.encode(value)
            check_size(self._name, data, key, self._bytes_max)
            frame.outputs.append((self._lane, data, key, timestamp_ms, (), None))
        elif not self._feeds:
            raise DeclarationError(f"{self._name} gave a result but has no to= topic; declare one")

    def change(self, frame: Frame, value: object, key: bytes, timestamp_ms: int) -> None:
        """Put a change of a table into a frame; None deletes the key.

        Raises:
            RecordTooLargeError: The producer would refuse it for its size.
        """
        if value is not None:
            self.give(frame, value, key, timestamp_ms)
        elif self._lane is not None:
            frame.outputs.append((self._lane, None, key, timestamp_ms, (), None))


def check_size(name: str, data: bytes | None, key: bytes | None, limit: int) -> None:
    """Refuse an output that the producer would refuse for its size.

    Raises:
        RecordTooLargeError: It is larger than the limit.
    """
    size = (len(data) if data else 0) + (len(key) if key else 0)
    if size > limit:
        raise RecordTooLargeError(
            f"an output of {name} has {size} bytes, the limit is {limit}; raise max_request_size "
            "and the topic's max.message.bytes"
        )
