"""Encodes the results of a function into its frame.

Everything is encoded and checked here, so that a bad output fails its own record and not the unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from onceflow.processors.context import Inherit, Output
from onceflow.processors.errors import DeclarationError, UndeliverableOutputError
from onceflow.processors.frame import Encoded, Frame, Item, Result
from onceflow.processors.graph.nodes import WorkingNode
from onceflow.processors.lanes import Lane, Lanes
from onceflow.processors.nodes.emitter import check_size
from onceflow.processors.values import Encoder, encoder_for
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.record_checks import check_timestamp, check_topic_name, to_headers

NO_BRANCHES: Mapping[str, str] = {}

PLAIN = frozenset({bytes, str, int, float, bool, dict})
"""Types of values that are one output each, to the declared topic."""


def _check_output(output: Output) -> None:
    """Refuse an output that the producer would refuse, so that only its record fails."""
    to_headers(output.headers)
    partition = output.partition
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise UndeliverableOutputError(
            f"partition={partition!r}: must be a whole number, 0 or more"
        )
    if output.timestamp_ms is not None:
        check_timestamp(output.timestamp_ms)


class Results:
    """Puts the results of one function into frames.

    Args:
        node: The function.
        lanes: Where outputs of the unit are collected.
        feeds: Whether other functions take its results.
        record_bytes_max: Largest key and value of an output together.
        branches: Further topics by name.

    Attributes:
        lane: Lane of its output topic, or None.
        encode: Encoder of values and keys.
        bytes_max: Largest key and value of an output together.
    """

    __slots__ = ("_branches", "_feeds", "_lanes", "_name", "bytes_max", "encode", "lane")

    def __init__(
        self,
        node: WorkingNode,
        lanes: Lanes,
        *,
        feeds: bool,
        record_bytes_max: int,
        branches: Mapping[str, str] = NO_BRANCHES,
    ) -> None:
        self.lane: Lane | None = lanes.declared(node.output_topic) if node.output_topic else None
        self.encode: Encoder = encoder_for(node.format)
        self.bytes_max: int = record_bytes_max
        self._branches = {name: lanes.declared(topic) for name, topic in branches.items()}
        self._name = node.name
        self._lanes = lanes
        self._feeds = feeds

    def put_all(self, records: Sequence[ConsumerRecord], rows: Sequence[object]) -> bool:
        """Put one plain value for each record straight into the unit, all or nothing.

        Returns:
            False if any result is not a plain value: then ``put`` must do it.

        Raises:
            SerializationError: A value cannot be encoded.
        """
        lane = self.lane
        kinds = set(map(type, rows))
        if lane is None or not kinds <= PLAIN:
            return False
        data: Sequence[bytes | None] = (
            cast("Sequence[bytes]", rows) if kinds == {bytes} else list(map(self.encode, rows))
        )
        keys = [record.key for record in records]
        most = max(map(len, filter(None, data)), default=0)
        if most + max(map(len, filter(None, keys)), default=0) > self.bytes_max:
            for value, key in zip(data, keys, strict=True):
                check_size(self._name, value, key, self.bytes_max)
        lane.values += data
        lane.keys += keys
        lane.timestamps_ms += [record.timestamp_ms for record in records]
        return True

    def put(self, frame: Frame, result: object) -> None:
        """Put all results of a call into its frame, encoded."""
        items: list[object]
        if result is None:
            items = []
        elif isinstance(result, list | Iterator):
            items = list(result)
        else:
            items = [result]
        if frame.context is not None:
            for output in frame.context._finish():
                frame.outputs.append(self._encode_output(frame.item, output))
        for item in items:
            if isinstance(item, Output):
                self._add_output(frame, item)
            elif item is not None:
                self._add_plain(frame, item)

    def _add_plain(self, frame: Frame, value: object) -> None:
        item = frame.item
        key = cast("bytes | None", item.key)
        if self._feeds:
            frame.results.append(Result(value, key, item.timestamp_ms))
        lane = self.lane
        if lane is not None:
            data = self.encode(value)
            check_size(self._name, data, key, self.bytes_max)
            frame.outputs.append((lane, data, key, item.timestamp_ms, (), None))
        elif not self._feeds:
            raise DeclarationError(
                f"{self._name} returned {type(value).__name__} but has no to= topic; "
                "declare one, or return Output(..., topic=...)"
            )

    def _add_output(self, frame: Frame, output: Output) -> None:
        if output.topic is None and output.branch is None and self._feeds:
            _check_output(output)
            item = frame.item
            time_ms = item.timestamp_ms if output.timestamp_ms is None else output.timestamp_ms
            key = self._key_of(item, output)
            frame.results.append(Result(output.value, key, time_ms, to_headers(output.headers)))
            if self.lane is None:
                return
        frame.outputs.append(self._encode_output(frame.item, output))

    def _key_of(self, item: Item, output: Output) -> bytes | None:
        if output.key is Inherit.KEY:
            return cast("bytes | None", item.key)
        return self.encode(output.key)

    def _branch(self, output: Output) -> Lane:
        lane = self._branches.get(str(output.branch))
        if lane is None or output.topic is not None:
            shown = ", ".join(self._branches) or "none"
            raise DeclarationError(
                f"{self._name} gave an Output with branch={output.branch!r} and "
                f"topic={output.topic!r}: give one of them; declared branches: {shown}"
            )
        return lane

    def _encode_output(self, item: Item, output: Output) -> Encoded:
        if output.branch is not None:
            lane: Lane | None = self._branch(output)
        elif output.topic is not None:
            check_topic_name(output.topic)
            lane = self._lanes.lane(output.topic)
        else:
            lane = self.lane
        if lane is None:
            raise DeclarationError(
                f"{self._name} gave an Output without a topic and has no to= topic"
            )
        lane.check()
        _check_output(output)
        data = self.encode(output.value)
        key = self._key_of(item, output)
        check_size(self._name, data, key, self.bytes_max)
        time_ms = item.timestamp_ms if output.timestamp_ms is None else output.timestamp_ms
        return lane, data, key, time_ms, output.headers, output.partition
