"""A number of each group or topic over time: samples in memory, bounded in number and in names."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

SAMPLES_MAX: Final = 720
"""An hour at a sample every 5 seconds."""
NAMES_MAX: Final = 500
"""Names that are remembered; the one without news for the longest time goes first."""
RATE_MS: Final = 30_000
"""A rate is that of the last half minute."""


class History:
    """Samples by name."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()

    def add(self, now_ms: int, numbers: Mapping[str, int]) -> None:
        """Keep one sample.

        Args:
            now_ms: Wall milliseconds.
            numbers: What was seen, by name.
        """
        for name, number in numbers.items():
            samples = self._samples.get(name)
            if samples is None:
                samples = self._samples[name] = deque(maxlen=SAMPLES_MAX)
            samples.append((now_ms, number))
            self._samples.move_to_end(name)
        while len(self._samples) > NAMES_MAX:
            self._samples.popitem(last=False)

    def of(self, name: str) -> list[tuple[int, int]]:
        """Return time and number of each sample, oldest first.

        Args:
            name: Which one; one that is not known has none.
        """
        return list(self._samples.get(name, ()))

    def rate(self, name: str) -> float | None:
        """Return how much the number grew a second, of late; None before there are two samples.

        Args:
            name: Which one.
        """
        samples = self._samples.get(name)
        if samples is None or len(samples) < 2:
            return None
        end_ms, end = samples[-1]
        begin_ms, begin = next(each for each in samples if each[0] >= end_ms - RATE_MS)
        if begin_ms >= end_ms:
            begin_ms, begin = samples[-2]  # The samples are further apart.
        # A topic that was made anew begins at 0 again.
        return max(0, end - begin) * 1000 / max(1, end_ms - begin_ms)
