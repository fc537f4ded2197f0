"""Windows in plain Python, to compare the library with: no store, no layers, no restoring."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[str, int, int]
"""Key, event time, value."""


@dataclass
class Expected:
    """What a run over some rows of one partition gives.

    Attributes:
        closed: Key, start, end and values of each window that closed.
        open: The windows that are left.
        late: Rows that no window took.
    """

    closed: collections.Counter[tuple[str, int, int, tuple[int, ...]]] = field(
        default_factory=collections.Counter
    )
    open: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def close(self, upto: int, after_end: int) -> None:
        """Close what ends early enough."""
        for key, start, end in [w for w in self.open if w[2] + after_end <= upto]:
            self.closed[(key, start, end, tuple(sorted(self.open.pop((key, start, end)))))] += 1


def fixed(rows: Sequence[Row], size: int, every: int, grace: int) -> Expected:
    """Tumbling and hopping windows."""
    found, now = Expected(), -1
    for key, time, value in rows:
        now = max(now, time)
        starts = [s for s in range(0, time + 1, every) if s <= time < s + size]
        taken = [s for s in starts if s + size + grace > now]
        for start in taken:
            found.open.setdefault((key, start, start + size), []).append(value)
        if not taken:
            found.late.append((key, time, value))
        found.close(now, grace)
    return found


def sessions(rows: Sequence[Row], gap: int, grace: int) -> Expected:
    """Sessions; start and end are the times of the first and the last record."""
    found, now = Expected(), -1
    for key, time, value in rows:
        now = max(now, time)
        near = [w for w in found.open if w[0] == key and w[1] - gap <= time <= w[2] + gap]
        if not near and time + gap + grace < now:
            found.late.append((key, time, value))
        else:
            start = min([time, *(w[1] for w in near)])
            end = max([time, *(w[2] for w in near)])
            values = [v for w in near for v in found.open.pop(w)]
            found.open[(key, start, end)] = [*values, value]
        found.close(now, gap + grace + 1)
    return found
