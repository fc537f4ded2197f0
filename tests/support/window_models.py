"""Windows in plain Python, to compare the library with: no store, no layers, no restoring."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[str, int, int]
"""Key, event time, value."""


def joined(
    rows: Sequence[tuple[str, str, int, int]], within: int, grace: int, kind: str
) -> tuple[collections.Counter[tuple[str, int | None, int | None, int]], list[int]]:
    """A join of rows of side, key, time, value.

    Returns:
        Key, left value, right value and time of each result; and the values of late rows.
    """
    found = collections.Counter[tuple[str, int | None, int | None, int]]()
    late: list[int] = []
    waiting: list[tuple[str, str, int, int, list[bool]]] = []
    now = -1

    def alone(row: tuple[str, str, int, int, list[bool]]) -> None:
        side, key, time, value, matched = row
        if not matched[0] and (kind == "outer" or (kind == "left" and side == "left")):
            pair = (value, None) if side == "left" else (None, value)
            found[(key, *pair, time)] += 1

    for side, key, time, value in rows:
        now = max(now, time)
        if time + within + grace < now:
            late.append(value)
        else:
            own = [False]
            for other, other_key, other_time, other_value, matched in waiting:
                is_partner = other != side and other_key == key
                over = other_time + within + grace < now
                if is_partner and abs(other_time - time) <= within and not over:
                    own[0] = matched[0] = True
                    pair = (value, other_value) if side == "left" else (other_value, value)
                    found[(key, *pair, max(time, other_time))] += 1
            waiting.append((side, key, time, value, own))
        for row in [row for row in waiting if row[2] + within + grace < now]:
            alone(row)
            waiting.remove(row)
    return found, late


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
