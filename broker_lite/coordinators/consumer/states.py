"""States of a consumer group (KIP-848) and of its members.

The group's state follows from its epochs and members; a member's state is stored with it, and
``reconciliation`` decides its changes.
"""

from __future__ import annotations

import enum


class ConsumerGroupState(enum.Enum):
    """State of a consumer group; the value is Kafka's name, as in ConsumerGroupDescribe."""

    EMPTY = "Empty"
    """It has no members."""
    ASSIGNING = "Assigning"
    """A change needs a new assignment, which is not made yet."""
    RECONCILING = "Reconciling"
    """Partitions are assigned, and some member does not have its target yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(enum.IntEnum):
    """How far a member is on the way to its target; the numbers are those in the log."""

    STABLE = 0
    """It has its target assignment."""
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions before it reaches the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still own."""
