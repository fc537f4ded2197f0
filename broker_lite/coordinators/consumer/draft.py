"""Drafts of changes to a consumer group, which are written to the log in one batch.

Each step of a change sees the results of earlier steps. The change takes effect only after the log
has taken the batch; if the log refuses it, the group is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.broker_lite.coordinators.consumer.group import ConsumerGroup, GroupChange
from onceflow.broker_lite.coordinators.consumer.member import ConsumerMember
from onceflow.broker_lite.coordinators.state_log import KeyValue


class GroupDraft:
    """One group and the changes to be made to it.

    Attributes:
        origin: The group as it is, or an empty one for a new group.
        group: The group with the changes; the origin itself while there are none.
        before: Records to write before the changes, such as the tombstone of a classic group.
        changes: The changes to write, in order.
        on_written: Called with the time after the batch is written; None for nothing to do.
    """

    __slots__ = ("before", "changes", "group", "on_written", "origin")

    def __init__(self, origin: ConsumerGroup) -> None:
        self.origin: ConsumerGroup = origin
        self.group: ConsumerGroup = origin
        self.before: list[KeyValue] = []
        self.changes: list[GroupChange] = []
        self.on_written: Callable[[int], None] | None = None

    def add(self, *changes: GroupChange) -> None:
        """Add changes to the draft; the group itself does not change yet."""
        for change in changes:
            if self.group is self.origin:
                self.group = self.origin.copy()
            self.group.apply(change)
            self.changes.append(change)

    def member(self, member_id: str) -> ConsumerMember:
        """Return a member with the draft's changes."""
        return self.group.members[member_id]

    @property
    def changed(self) -> bool:
        """True when there is anything to write."""
        return bool(self.changes or self.before)
