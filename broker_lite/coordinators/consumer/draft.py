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
    """One group and the changes that shall be made to it.

    Attributes:
        origin: The group as it is, or the empty one of which the draft makes a group.
        group: The group as it will be; the origin itself while nothing changes.
        before: Records that go in front of the changes, such as the end of a classic group.
        changes: What will be written, in order.
        on_written: Called with the time once it is written; None for nothing to do.
    """

    __slots__ = ("before", "changes", "group", "on_written", "origin")

    def __init__(self, origin: ConsumerGroup) -> None:
        self.origin: ConsumerGroup = origin
        self.group: ConsumerGroup = origin
        self.before: list[KeyValue] = []
        self.changes: list[GroupChange] = []
        self.on_written: Callable[[int], None] | None = None

    def add(self, *changes: GroupChange) -> None:
        """Make changes, so far in the draft only."""
        for change in changes:
            if self.group is self.origin:
                self.group = self.origin.copy()
            self.group.apply(change)
            self.changes.append(change)

    def member(self, member_id: str) -> ConsumerMember:
        """A member as it will be."""
        return self.group.members[member_id]

    @property
    def changed(self) -> bool:
        """True when there is anything to write."""
        return bool(self.changes or self.before)
