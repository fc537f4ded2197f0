"""An immutable view of the cluster: brokers, topics, leaders and leader epochs.

It decides how an answer to Metadata changes the view. An older leader epoch replaces a newer one
only if many answers repeat it; a new topic id means a new topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from onceflow.sdk.model.partitions import PartitionInfo, TopicPartition
from onceflow.sdk.protocol.api.cluster import MetadataResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

STALE_ANSWERS_MAX = 20
"""How many answers in a row must name an older leader epoch before it is accepted. If only one
broker lags behind, another one answers with the newer epoch long before. If the cluster lost the
newer epoch in a power loss, no broker does, and the client would insist on it for ever."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and the address that it advertises.

    Attributes:
        node_id: Number of the broker.
        host: Advertised host.
        port: Advertised port.
        rack: Rack, or None.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} (node {self.node_id})"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as a broker described it.

    Attributes:
        partition: Partition number.
        leader_id: Node id of the leader, -1 if there is none.
        leader_epoch: Leader epoch, -1 if the broker is too old to send it.
        replicas: Node ids of the replicas.
        isr: Node ids of the replicas in sync.
        error_code: 0, or why the leader is missing.
        stale_answers: How many answers in a row named an older leader epoch than this.
    """

    partition: int
    leader_id: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error_code: int = 0
    stale_answers: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic as a broker described it.

    Attributes:
        name: Topic name.
        topic_id: The topic's id, all zero on brokers without topic ids.
        is_internal: Whether it is one of Kafka's own.
        error_code: 0, or why the topic is unusable.
        partitions: Partitions by number, in ascending order.
    """

    name: str
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    error_code: int = 0
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)

    @property
    def available(self) -> tuple[int, ...]:
        """Partitions that have a leader."""
        return tuple(p.partition for p in self.partitions.values() if p.leader_id >= 0)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The view of a cluster at one moment; a change makes a new object.

    Attributes:
        nodes: Brokers by node id.
        topics: Topics by name, also those with an error.
        controller_id: Node id of the controller, -1 if unknown.
        cluster_id: Id of the cluster or None.
        updated_at_ms: Time of the last answer, on the caller's clock; -1 for never.
    """

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None
    updated_at_ms: int = -1

    def topic(self, topic: str) -> TopicMetadata | None:
        """Return the topic if it is known and usable."""
        found = self.topics.get(topic)
        return found if found is not None and found.error_code == 0 else None

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        """Return the partition if it is known."""
        found = self.topic(partition.topic)
        return None if found is None else found.partitions.get(partition.partition)

    def leader(self, partition: TopicPartition) -> int | None:
        """Return the node id of the partition's leader; None if it is unknown or absent."""
        found = self.partition(partition)
        if found is None or found.leader_id < 0 or found.leader_id not in self.nodes:
            return None
        return found.leader_id

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the partition's leader epoch, -1 if unknown."""
        found = self.partition(partition)
        return -1 if found is None else found.leader_epoch

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions; None if the topic is unknown."""
        found = self.topic(topic)
        return None if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> UUID:
        """Return the topic's id, all zero if unknown."""
        found = self.topics.get(topic)
        return ZERO_UUID if found is None else found.topic_id

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with that id; None if unknown."""
        if topic_id != ZERO_UUID:
            for found in self.topics.values():
                if found.topic_id == topic_id:
                    return found.name
        return None

    def partition_infos(self, topic: str) -> list[PartitionInfo]:
        """Return the topic's partitions as public values; none if the topic is unknown."""
        found = self.topic(topic)
        if found is None:
            return []
        return [
            PartitionInfo(topic, p.partition, p.leader_id, p.replicas, p.isr)
            for p in found.partitions.values()
        ]

    def with_response(
        self, response: MetadataResponse, now_ms: int, *, all_topics: bool = False
    ) -> ClusterMetadata:
        """Return the view after an answer to Metadata.

        Args:
            response: The answer.
            now_ms: Time of the answer.
            all_topics: Whether the request was for all topics, so that missing ones do not exist.

        Returns:
            The new view. A partition whose leader epoch went back keeps its newer entry, unless
            the topic's id changed: then it is another topic under the same name.
        """
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics: dict[str, TopicMetadata] = {} if all_topics else dict(self.topics)
        for answer in response.topics:
            if answer.name is None:
                continue
            new = _read_topic(answer)
            topics[answer.name] = _newest(self.topics.get(answer.name), new)
        return ClusterMetadata(
            nodes=MappingProxyType(nodes),
            topics=MappingProxyType(topics),
            controller_id=response.controller_id,
            cluster_id=response.cluster_id,
            updated_at_ms=now_ms,
        )

    def without_topics(self, gone: Collection[str]) -> ClusterMetadata:
        """Return the view without some topics."""
        if not any(name in self.topics for name in gone):
            return self
        left = dict(self.topics)
        for name in gone:
            left.pop(name, None)
        return replace(self, topics=MappingProxyType(left))

    def with_leader(
        self, partition: TopicPartition, leader_id: int, leader_epoch: int, node: Node | None
    ) -> ClusterMetadata:
        """Return the view with a new leader that a broker named in a refusal (KIP-951).

        Args:
            partition: The partition.
            leader_id: Its new leader.
            leader_epoch: Its new leader epoch; an old or equal one changes nothing.
            node: Address of the leader, if the answer has it.

        Returns:
            The new view, or this one if nothing is new or the leader has no address.
        """
        known = self.partition(partition)
        nodes = self.nodes if node is None else {**self.nodes, node.node_id: node}
        if known is None or leader_epoch <= known.leader_epoch or leader_id not in nodes:
            return self
        topic = self.topics[partition.topic]
        changed = replace(known, leader_id=leader_id, leader_epoch=leader_epoch, error_code=0)
        partitions = {**topic.partitions, partition.partition: changed}
        topics = {**self.topics, topic.name: replace(topic, partitions=partitions)}
        return replace(self, nodes=MappingProxyType(dict(nodes)), topics=MappingProxyType(topics))


def _read_topic(answer: MetadataResponse.MetadataResponseTopic) -> TopicMetadata:
    partitions = {
        p.partition_index: PartitionMetadata(
            p.partition_index,
            p.leader_id if p.error_code != ErrorCode.LEADER_NOT_AVAILABLE else -1,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            p.error_code,
        )
        for p in sorted(answer.partitions, key=lambda p: p.partition_index)
    }
    return TopicMetadata(
        answer.name or "", answer.topic_id, answer.is_internal, answer.error_code, partitions
    )


def _newest(old: TopicMetadata | None, new: TopicMetadata) -> TopicMetadata:
    if old is None or new.error_code or old.topic_id != new.topic_id:
        return new
    partitions = {}
    for number, found in new.partitions.items():
        before = old.partitions.get(number)
        if (
            before is not None
            and -1 < found.leader_epoch < before.leader_epoch
            and before.stale_answers < STALE_ANSWERS_MAX
        ):
            found = replace(before, stale_answers=before.stale_answers + 1)
        partitions[number] = found
    return replace(new, partitions=partitions)
