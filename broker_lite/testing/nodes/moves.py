"""Finds partitions and coordinators by name, and describes nodes as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.testing.nodes.shared_placement import SharedPlacement
    from onceflow.broker_lite.topics import Topic


def known_topic(state: Services, name: str, partition: int) -> Topic:
    """Return a topic; raise KeyError if the topic or the partition does not exist."""
    topic = state.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        raise KeyError(f"unknown partition {name}-{partition}")
    return topic


def coordinator_of(
    state: Services, group_id: str | None, transactional_id: str | None, now_ms: int
) -> tuple[Topic, int]:
    """Return the partition whose leader coordinates a group or transactional id.

    Raises:
        ValueError: Neither or both are given.
    """
    if (group_id is None) == (transactional_id is None):
        raise ValueError(
            f"group_id={group_id!r}, transactional_id={transactional_id!r}: give one of the two"
        )
    name = OFFSETS_TOPIC if group_id is not None else TRANSACTION_TOPIC
    topic = state.topics.ensure_internal(name, now_ms)
    return topic, coordinator_partition(group_id or transactional_id or "", len(topic.partitions))


def describe_nodes(state: Services, placement: SharedPlacement) -> dict[str, object]:
    """Return for each node id whether the node runs, its rack, and the partitions it leads."""
    led: dict[int, list[str]] = {node_id: [] for node_id in placement.nodes}
    if not placement.single:
        for topic in state.topics:
            for index in range(len(topic.partitions)):
                leader = placement.leader(topic.name, index)
                if leader in led and not topic.internal:
                    led[leader].append(f"{topic.name}-{index}")
    return {
        str(node.node_id): {"running": node.running, "rack": node.rack, "leads": led[node.node_id]}
        for node in placement.nodes.values()
    }
