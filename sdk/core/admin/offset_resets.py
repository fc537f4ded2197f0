"""Resets of a group's committed offsets: checks of the arguments, and the plan.

It does no I/O: the admin client passes in the committed offsets and the ends of the logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceflow.sdk.core.admin.arguments import whole_number
from onceflow.sdk.errors import ConfigError, OffsetOutOfRangeError
from onceflow.sdk.model.admin_cluster import OffsetReset
from onceflow.sdk.model.partitions import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_PLACES = 'must be "earliest", "latest" or an offset'


@dataclass(frozen=True, slots=True)
class Reset:
    """What a user asked for; exactly one of the last three fields is set.

    Attributes:
        group: Name of the group.
        to: "earliest", "latest", or an offset.
        to_time_ms: Milliseconds since 1970.
        shift_by: Offsets to go on, or back if negative.

    Raises:
        ConfigError: A field has a value that cannot work, or not exactly one is given.
    """

    group: str
    to: str | int | None
    to_time_ms: int | None
    shift_by: int | None

    def __post_init__(self) -> None:
        to = self.to
        for name, number in (("to_time_ms", self.to_time_ms), ("shift_by", self.shift_by)):
            if number is not None:
                whole_number(name, number)
        if to is not None and (isinstance(to, bool) or not isinstance(to, str | int)):
            raise ConfigError("to", to, _PLACES)
        if isinstance(to, str) and to not in ("earliest", "latest"):
            raise ConfigError("to", to, _PLACES)
        given = [value for value in (to, self.to_time_ms, self.shift_by) if value is not None]
        if len(given) != 1:
            raise ConfigError("to", to, "give exactly one of to, to_time_ms and shift_by")
        # ListOffsets takes negative timestamps for words such as "latest".
        if self.to_time_ms is not None and self.to_time_ms < 0:
            raise ConfigError("to_time_ms", self.to_time_ms, "must be milliseconds since 1970")

    def wanted(
        self, given: list[TopicPartition] | None, committed: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions to reset: an empty list of them stays empty.

        Args:
            given: Partitions that the user named; None for all that have a committed offset.
            committed: Those that have one.

        Raises:
            ConfigError: None are given, and the group has committed nothing.
        """
        if given is not None:
            return list(dict.fromkeys(given))
        wanted = list(committed)
        if not wanted:
            raise ConfigError(
                "partitions",
                None,
                f"group {self.group!r} has committed nothing: check its name, or name the "
                "partitions",
            )
        return wanted

    def plan(
        self,
        wanted: Iterable[TopicPartition],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
        first: Mapping[TopicPartition, OffsetAndTimestamp],
        last: Mapping[TopicPartition, OffsetAndTimestamp],
        at_time: Mapping[TopicPartition, OffsetAndTimestamp],
    ) -> dict[TopicPartition, OffsetReset]:
        """Return the present and the new offset of each partition.

        Args:
            wanted: The partitions.
            committed: Offsets that the group has committed.
            first: Where the logs begin.
            last: Where they end.
            at_time: First records at or after ``to_time_ms``, if that is given.

        Raises:
            OffsetOutOfRangeError: ``shift_by`` for a partition without a committed offset.
        """
        plan: dict[TopicPartition, OffsetReset] = {}
        for partition in wanted:
            low, high = first[partition].offset, last[partition].offset
            known = committed.get(partition)
            current = None if known is None else known.offset
            if self.to_time_ms is not None:
                found = at_time[partition].offset
                place = high if found < 0 else found
            elif self.shift_by is not None:
                if current is None:
                    raise OffsetOutOfRangeError(
                        f"{partition} has no committed offset in group {self.group!r} to shift"
                    )
                place = current + self.shift_by
            else:
                place = {"earliest": low, "latest": high}.get(str(self.to), 0)
                place = self.to if isinstance(self.to, int) else place
            plan[partition] = OffsetReset(current, max(low, min(high, place)))
        return plan
