"""Base of work nodes that take one item at a time and await nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.processors.frame import Frame
from onceflow.processors.graph.nodes import WorkingNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.emitter import Emitter
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.unit import Unit
from onceflow.processors.values import encoder_for
from onceflow.sdk.model.consumer_record import ConsumerRecord


class PlainWork:
    """Base of work nodes; a subclass implements ``call``.

    Args:
        node: The node.
        around: Objects of the worker that it uses.
        feeds: Whether other nodes take its results.

    Attributes:
        name: Its name in the topology.
        failures: Its failure policy at run time.
        emitter: Puts its results into frames.
    """

    is_async: bool = False
    takes_slices: bool = False

    def __init__(self, node: WorkingNode, around: Surroundings, feeds: bool) -> None:
        self.name: str = node.name
        lanes, dead = around.lanes, node.policy.dead_letter_topic
        letters = None if dead is None else lanes.declared(dead)
        self.failures: Failures = Failures(node.name, node.policy, letters, around.clock)
        lane = None if node.output_topic is None else lanes.declared(node.output_topic)
        encode = encoder_for(node.format)
        self.emitter: Emitter = Emitter(node.name, lane, encode, feeds, around.record_bytes_max)

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process an item; see ``WorkNode.call``."""
        raise NotImplementedError

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Do as ``call``; nothing is awaited."""
        self.call(frame, stores)

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Not supported."""
        raise NotImplementedError
