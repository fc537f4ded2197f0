"""Runs re-keying (``key=``): writes records with another key to a repartition topic."""

from __future__ import annotations

from typing import cast

from onceflow.processors.errors import StateKeyError
from onceflow.processors.frame import Frame
from onceflow.processors.graph.nodes import RekeyNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.emitter import check_size
from onceflow.processors.nodes.plain import PlainWork
from onceflow.processors.values import decoder_for, encoder_for


class RekeyWork(PlainWork):
    """Runs one change of keys.

    Args:
        node: What is declared.
        around: Objects of the worker that it uses.
    """

    def __init__(self, node: RekeyNode, around: Surroundings) -> None:
        super().__init__(node, around, feeds=False)
        assert node.output_topic is not None
        self._lane = around.lanes.declared(node.output_topic)
        self._key_of = node.key_of
        self._bytes_max = around.record_bytes_max
        self._encode = encoder_for(node.format)
        decoded = not all(parent.startswith("topic ") for parent in node.parents)
        what = f"value of {node.name}"
        self._decode = None if decoded else decoder_for(node.value_type, node.format, what)

    def call(self, frame: Frame, stores: Stores) -> None:
        """Write a record under its new key; value, headers and timestamp stay."""
        item = frame.item
        value = item.value
        if self._decode is not None:
            value = self._decode(cast("bytes | None", value))
        key = self._encode(self._key_of(value))
        if key is None:
            raise StateKeyError(
                f"{self.name}: key= gave None; return a key, or filter such records out in "
                "another processor first"
            )
        data = self._encode(item.value)
        check_size(self.name, data, key, self._bytes_max)
        frame.outputs.append((self._lane, data, key, item.timestamp_ms, tuple(item.headers), None))
