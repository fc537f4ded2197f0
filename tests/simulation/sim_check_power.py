"""What has to hold although the power failed under the default durability, and what need not.

What was not synced may be gone then, of each file another part. Two things are certain: what was
synced before, and what clients ask for afterwards. Everything else that was acknowledged before may
be gone, but is nowhere changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sim_history import History


class _Loss(NamedTuple):
    """One power loss.

    Attributes:
        place: Where it stands in the history.
        flushed: By partition, the offset below which batches were known to be on the disk.
    """

    place: int
    flushed: Mapping[str, int]


class PowerLosses:
    """The power losses of a run that may have cost something.

    Args:
        history: What happened.

    Attributes:
        last: Place of the last one, -1 without any. What clients ask for later is certain.
        ends: By partition, the end of its log at the start after it.
    """

    def __init__(self, history: History) -> None:
        self._losses = [_Loss(place, event.details[0]) for place, event in history.of("power loss")]  # type: ignore[arg-type]
        self.last: int = self._losses[-1].place if self._losses else -1
        self.ends: dict[str, int] = {}
        for place, event in history.of("recovered"):
            details: Any = event.details
            if place > self.last:
                self.ends = {partition: end for partition, (end, _, _) in details[0].items()}
                break

    def keys_after(self, history: History) -> list[tuple[int, Mapping[bytes | None, int]]]:
        """Of each loss its place, and what the start after it found of the compacted topic."""
        found = []
        for number, loss in enumerate(self._losses):
            later = self._losses[number + 1 : number + 2]
            for place, event in history.of("keys"):
                if place > loss.place and not (later and place > later[0].place):
                    found.append((loss.place, event.details[1]))
                    break
        return found  # type: ignore[return-value]

    def is_certain(self, place: int, partition: str, offset: int) -> bool:
        """Whether a record that was sent then, and acknowledged there, is on record for good."""
        return all(
            place > loss.place or offset < loss.flushed.get(partition, 0) for loss in self._losses
        )

    def end_after(self, partition: str) -> int:
        """End of a log after the last loss: what lay behind it is gone."""
        return self.ends.get(partition, 0)


def check_epochs(history: History) -> list[str]:
    """Every violation of the rule that a start after a crash begins an epoch that nobody had.

    An epoch that a full disk did not take may be forgotten; it is told as not kept.
    """
    problems: list[str] = []
    greatest: dict[tuple[str, str], int] = {}
    for _, event in history.of("leader", "recovered"):
        details: Any = event.details
        if event.what == "leader":
            partition, _, epoch, _, topic_id, kept = details
            if kept:
                before = greatest.get((partition, topic_id), -1)
                greatest[partition, topic_id] = max(before, epoch)
            continue
        for partition, (_, epoch, topic_id) in details[0].items():
            before = greatest.get((partition, topic_id), -1)
            if epoch <= before:
                problems.append(
                    f"leader epoch: {partition} starts with {epoch} after {before} was there"
                )
            greatest[partition, topic_id] = max(before, epoch)
    return problems
