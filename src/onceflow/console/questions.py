"""What the pages ask a cluster, as plain values for JSON: topics, groups, transactions.

One function a page. Each asks few questions, whose number does not grow with what is shown, except
for one question a group that has committed offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.console.batches import BatchAdmin
from onceflow.sdk import ConfigResource, ResourceType, TopicPartition
from onceflow.sdk.errors import (
    KafkaError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)

Row = dict[str, object]

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of transactions that are not over; brokers before KIP-890 know fewer of them."""
AT_ONCE: Final = 16
"""Groups or transactional ids that are asked about at the same time."""


async def overview(admin: BatchAdmin) -> Row:
    """The cluster, and how much of everything there is."""
    cluster, names, groups, listed = await asyncio.gather(
        admin.describe_cluster(),
        admin.list_topics(),
        admin.list_groups(),
        admin.list_transactions(states=["Ongoing"]),
    )
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in cluster.nodes
        ],
        "topics": len(names),
        "groups": len(groups),
        "open_transactions": len(listed),
    }


async def topics(admin: BatchAdmin) -> list[Row]:
    """All topics with their size in records and what keeps readers waiting."""
    names = await admin.list_topics(include_internal=True)
    described = await admin.describe_topics(names)
    ends = await _ends(
        admin,
        (
            TopicPartition(topic.name, info.partition)
            for topic in described.values()
            for info in topic.partitions
            if info.leader >= 0
        ),
    )
    rows: list[Row] = []
    for topic in sorted(described.values()):
        known = [
            ends[place]
            for info in topic.partitions
            if (place := TopicPartition(topic.name, info.partition)) in ends
        ]
        rows.append(
            {
                "topic": topic.name,
                "topic_id": str(topic.topic_id),
                "partitions": topic.partition_count,
                "replicas": max((len(info.replicas) for info in topic.partitions), default=0),
                "under_replicated": sum(
                    len(info.isr) < len(info.replicas) for info in topic.partitions
                ),
                "without_leader": sum(info.leader < 0 for info in topic.partitions),
                "offsets": sum(end.high - end.start for end in known),
                "behind_open_transactions": sum(end.high - end.stable for end in known),
                "is_internal": topic.is_internal or topic.name.startswith("__"),
            }
        )
    return rows


async def topic_ends(admin: BatchAdmin) -> dict[str, int]:
    """The sum of the ends of each topic's partitions: what grows with each record."""
    names = await admin.list_topics(include_internal=True)
    described = await admin.describe_topics(names)
    places = [
        TopicPartition(topic.name, info.partition)
        for topic in described.values()
        for info in topic.partitions
        if info.leader >= 0
    ]
    if not places:
        return {}
    found = await admin.list_offsets(dict.fromkeys(places, "latest"))
    sums: dict[str, int] = {}
    for place, end in found.items():
        sums[place.topic] = sums.get(place.topic, 0) + end.offset
    return sums


async def topic(admin: BatchAdmin, name: str) -> Row:
    """One topic: partitions, producers with open transactions, settings that were set.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic.
    """
    described = (await admin.describe_topics([name]))[name]
    parts = described.partitions
    led = [
        TopicPartition(name, info.partition) for info in described.partitions if info.leader >= 0
    ]
    resource = ConfigResource(ResourceType.TOPIC, name)
    ends, producers, settings = await asyncio.gather(
        _ends(admin, led),
        admin.describe_producers(led),
        admin.describe_configs([resource]),
    )
    rows: list[Row] = []
    for info in parts:
        place = TopicPartition(name, info.partition)
        end = ends.get(place)
        rows.append(
            {
                "partition": info.partition,
                "leader": info.leader,
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "start": None if end is None else end.start,
                "stable": None if end is None else end.stable,
                "end": None if end is None else end.high,
                "open_transactions": [
                    {
                        "producer_id": state.producer_id,
                        "producer_epoch": state.producer_epoch,
                        "first_offset": state.transaction_start_offset,
                        "last_timestamp_ms": state.last_timestamp_ms,
                    }
                    for state in producers.get(place, [])
                    if state.transaction_start_offset is not None
                ],
            }
        )
    return {
        "topic": name,
        "topic_id": str(described.topic_id),
        "partitions": rows,
        "settings": [
            {"name": entry.name, "value": entry.value, "is_default": entry.is_default}
            for _, entry in sorted(settings[resource].items())
        ],
    }


async def groups(admin: BatchAdmin) -> list[Row]:
    """All groups with their lag."""
    listed = sorted(await admin.list_groups())
    lags = await group_lags(admin, [each.group_id for each in listed])
    return [
        {
            "group": each.group_id,
            "state": each.state,
            "type": each.type,
            "protocol_type": each.protocol_type,
            "lag": None if lags[each.group_id] is None else sum(_known(lags[each.group_id])),
        }
        for each in listed
    ]


async def group(admin: BatchAdmin, name: str) -> Row:
    """One group: members, and the committed offset and lag of each partition."""
    described, committed = await asyncio.gather(
        admin.describe_groups([name]), admin.list_group_offsets(name)
    )
    found = described[name]
    owners = {place: member for member in found.members for place in member.assignment}
    places = sorted(committed.keys() | owners.keys())
    ends = await _ends(admin, places)
    rows: list[Row] = []
    for place in places:
        offset = committed[place].offset if place in committed else None
        end, member = ends.get(place), owners.get(place)
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": None if end is None else end.high,
                "lag": None if end is None or offset is None else max(0, end.high - offset),
                "client_id": None if member is None else member.client_id,
                "host": None if member is None else member.client_host,
                "instance_id": None if member is None else member.group_instance_id,
            }
        )
    return {
        "group": name,
        "state": found.state,
        "members": len(found.members),
        "partitions": rows,
    }


async def group_lags(
    admin: BatchAdmin, names: Iterable[str]
) -> dict[str, dict[TopicPartition, int | None] | None]:
    """Lag of groups by partition; None for a group that could not be asked.

    Args:
        admin: Asks the coordinators.
        names: The groups.
    """
    turn = asyncio.Semaphore(AT_ONCE)

    async def committed(name: str) -> dict[TopicPartition, int] | None:
        async with turn:
            try:
                found = await admin.list_group_offsets(name)
            except KafkaError:
                return None
            return {place: offset.offset for place, offset in found.items()}

    names = list(names)
    offsets = dict(zip(names, await asyncio.gather(*map(committed, names)), strict=True))
    ends = await _ends(admin, {place for each in offsets.values() for place in each or ()})
    return {
        name: None
        if each is None
        else {
            place: max(0, ends[place].high - offset) if place in ends else None
            for place, offset in each.items()
        }
        for name, each in offsets.items()
    }


async def transactions(admin: BatchAdmin, now_ms: int | None = None) -> list[Row]:
    """Transactional ids; those with a transaction that is not over come with its partitions.

    Args:
        admin: Asks the coordinators.
        now_ms: Time for the ages; the clock's by default.
    """
    listed = sorted(await admin.list_transactions())
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    turn = asyncio.Semaphore(AT_ONCE)

    async def row(name: str, state: str, producer_id: int) -> Row:
        found: Row = {"transactional_id": name, "state": state, "producer_id": producer_id}
        if state not in OPEN_STATES:
            return found
        async with turn:
            try:
                described = (await admin.describe_transactions([name]))[name]
            except TransactionalIdNotFoundError:  # It has expired meanwhile.
                return found
        started_ms = described.transaction_start_time_ms
        return found | {
            "state": described.state,
            "producer_epoch": described.producer_epoch,
            "timeout_ms": described.transaction_timeout_ms,
            "age_ms": None if started_ms is None else max(0, now_ms - started_ms),
            "partitions": [
                {"topic": place.topic, "partition": place.partition}
                for place in sorted(described.partitions)
            ],
        }

    rows = await asyncio.gather(
        *(row(each.transactional_id, each.state, each.producer_id) for each in listed)
    )
    return sorted(rows, key=lambda each: (each["state"] not in OPEN_STATES, str(each)))


class _End:
    """First offset, last stable offset and high watermark of a partition."""

    __slots__ = ("high", "stable", "start")

    def __init__(self, start: int, stable: int, high: int) -> None:
        self.start = start
        self.stable = stable
        self.high = high


async def _ends(
    admin: BatchAdmin, places: Iterable[TopicPartition]
) -> Mapping[TopicPartition, _End]:
    """Offsets of the partitions that can be asked; those of a deleted topic are left out."""
    wanted = list(places)
    if not wanted:
        return {}
    try:
        return await _all_ends(admin, wanted)
    except UnknownTopicOrPartitionError:
        there = set(await admin.list_topics(include_internal=True))
        wanted = [place for place in wanted if place.topic in there]
        try:
            return await _all_ends(admin, wanted) if wanted else {}
        except UnknownTopicOrPartitionError:
            return {}  # Another one has gone meanwhile; the next look shows it.


async def _all_ends(
    admin: BatchAdmin, wanted: list[TopicPartition]
) -> Mapping[TopicPartition, _End]:
    starts, stables, highs = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(wanted, "earliest")),
        admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level="read_committed"),
        admin.list_offsets(dict.fromkeys(wanted, "latest")),
    )
    return {
        place: _End(starts[place].offset, stables[place].offset, highs[place].offset)
        for place in wanted
    }


def _known(lags: Mapping[TopicPartition, int | None] | None) -> list[int]:
    return [lag for lag in (lags or {}).values() if lag is not None]
