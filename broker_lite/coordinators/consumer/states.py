"""States of a consumer group (KIP-848) and of its members.

The group's state follows from its epochs and members; a member's state is stored with it, and
``reconciliation`` decides its changes.
"""

from __future__ import annotations

import enum


class ConsumerGroupState(enum.Enum):
    """State of a consumer group; the value is Kafka's name, as in ConsumerGroupDescribe."""

    EMPTY = "Empty"
    """Nobody is in it."""
    ASSIGNING = "Assigning"
    """Something changed that was not divided yet."""
    RECONCILING = "Reconciling"
    """It was divided, and some member is not there yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(enum.IntEnum):
    """Where a member stands on its way to its target, numbered as stored."""

    STABLE = 0
    """It has what it shall have."""
    UNREVOKED_PARTITIONS = 1
    """It has to give something up before it goes on."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still own."""
