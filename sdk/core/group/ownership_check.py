"""Finds partitions without an owner in a classic group that a static member came back to.

In a cooperative rebalance a partition that changes its owner has none until the former owner has
given it up and joined again (KIP-429). If that owner is a static member that dies in between and
comes back within its session, it gets its old assignment without a rebalance (KIP-345). Then no
member would ask for the second round, and no member would read the partition until the next
rebalance. The simulation found this; Apache Kafka's coordinator and its Java client have the same
fault. Therefore a member that came back checks the group once.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.sdk.core.group.consumer_protocol import decode_assignment, decode_subscription
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.groups import DescribeGroupsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode


class GroupCheck:
    """The members of a stable group, with their topics and partitions.

    Attributes:
        topics: Topics that some member subscribes to.
    """

    def __init__(self, topics: frozenset[str], owned: frozenset[TopicPartition]) -> None:
        self.topics = topics
        self._owned = owned

    @classmethod
    def of(cls, response: DescribeGroupsResponse) -> GroupCheck | None:
        """Read the description of a group.

        Args:
            response: The coordinator's answer.

        Returns:
            The group; None if the answer has none, or if the group is rebalancing anyway.
        """
        group = response.groups[0] if response.groups else None
        if group is None or group.error_code != ErrorCode.NONE or group.group_state != "Stable":
            return None
        topics: set[str] = set()
        owned: set[TopicPartition] = set()
        try:
            for member in group.members:
                subscription = decode_subscription(
                    member.member_id, member.group_instance_id, member.member_metadata
                )
                topics.update(subscription.topics)
                owned.update(decode_assignment(member.member_assignment))
        except RemoteProtocolError:
            return None
        return cls(frozenset(topics), frozenset(owned))

    def unowned(self, partition_counts: Mapping[str, int]) -> list[TopicPartition]:
        """Return the partitions of the group's topics that no member owns.

        Args:
            partition_counts: Partition counts of the existing topics.
        """
        return [
            partition
            for topic in sorted(self.topics & partition_counts.keys())
            for number in range(partition_counts[topic])
            if (partition := TopicPartition(topic, number)) not in self._owned
        ]
