"""Positions after a topic was deleted and created again: they belong to a topic id (KIP-516).

Somebody deleted the topic and made another one under its name; offset 7 of the old one says nothing
about the new one. This module finds the partitions of such topics and has their positions found
again: the committed offset (brokers drop those of a deleted topic), else ``auto.offset.reset``.
"""

from __future__ import annotations

import logging
from typing import Final

from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

logger: Final = logging.getLogger("onceflow.sdk.consumer")


def forget_old_positions(subscription: Subscription, cluster: ClusterMetadata) -> None:
    """Have the positions found again that belong to another topic of the same name.

    What is buffered under them is dropped, by its stamp. A topic that is missing for now, or whose
    id the broker does not know, changes nothing; nor does it for a position that the user set and
    no fetch confirmed yet, because it may have been meant for the new topic.

    Args:
        subscription: Whose partitions to look at; their topic ids are brought up to date.
        cluster: The topics as they are now.
    """
    warned: set[str] = set()
    for state in subscription:
        name, former = state.topic_partition.topic, state.topic_id
        topic = cluster.topic(name)
        if former is None or topic is None or topic.topic_id is former:
            continue
        if topic.topic_id == ZERO_UUID:
            continue
        state.topic_id = topic.topic_id
        if former in (ZERO_UUID, topic.topic_id):
            continue
        if name not in warned:
            warned.add(name)
            logger.warning(
                "topic %s was deleted and created again; its positions are looked up again, with "
                "auto.offset.reset=%s where nothing is committed",
                name,
                subscription.auto_offset_reset,
            )
        subscription.find_again(state)


def gone(subscription: Subscription, cluster: ClusterMetadata) -> list[TopicPartition]:
    """Partitions of topics that had an id and are missing now.

    A commit names its topics: the offset of a topic that is gone would be refused, or be taken for
    one of the next topic of that name.
    """
    missing = []
    for state in subscription:
        topic = cluster.topics.get(state.topic_partition.topic)
        if state.topic_id in (None, ZERO_UUID):
            continue
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing.append(state.topic_partition)
    return missing
