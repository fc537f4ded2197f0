"""Lag of every group over time: samples in memory, bounded in number and in groups."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

SAMPLES_MAX: Final = 720
"""An hour at a sample every 5 seconds."""
GROUPS_MAX: Final = 500
"""Groups that are remembered; the one without news for the longest time goes first."""


class LagHistory:
    """Samples of the lag of groups."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()

    def add(self, now_ms: int, lags: Mapping[str, int]) -> None:
        """Keep one sample.

        Args:
            now_ms: Wall milliseconds.
            lags: Records behind, by group.
        """
        for group, lag in lags.items():
            samples = self._samples.get(group)
            if samples is None:
                samples = self._samples[group] = deque(maxlen=SAMPLES_MAX)
            samples.append((now_ms, lag))
            self._samples.move_to_end(group)
        while len(self._samples) > GROUPS_MAX:
            self._samples.popitem(last=False)

    def of(self, group: str) -> list[tuple[int, int]]:
        """Return time and lag of each sample, oldest first.

        Args:
            group: Which group; one that is not known has none.
        """
        return list(self._samples.get(group, ()))
