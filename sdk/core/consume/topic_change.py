"""Resets positions after a topic was deleted and created again (KIP-516).

A position belongs to a topic id: offset 7 of the deleted topic has no meaning in a new one of the
same name. This module finds the partitions of such topics. Their positions are looked up again: the
committed offset (brokers drop those of a deleted topic), else ``auto.offset.reset``.
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
    """Look up positions again that belong to an earlier topic of the same name.

    Their buffered records are dropped. A topic that is missing at present, or without an id,
    changes nothing. A position that a seek has set and no fetch has confirmed stays too, because it
    may be meant for the new topic.

    Args:
        subscription: The partitions to look at; their topic ids are updated.
        cluster: The present topics.
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
    """Return the partitions of topics that had an id and are missing now.

    A commit must leave them out: the coordinator would refuse their offsets, or store them for a
    new topic of that name.
    """
    missing = []
    for state in subscription:
        topic = cluster.topics.get(state.topic_partition.topic)
        if state.topic_id in (None, ZERO_UUID):
            continue
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing.append(state.topic_partition)
    return missing
