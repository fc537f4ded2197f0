"""Plain models of applications in which event time decides: no store, no layers, no restoring."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable

from sim_processor_checker import Left, fails, visible

Window = tuple[bytes | None, int, int]
"""Key, start and end; the end of a session is the time of its last record."""


def check_windows(model: Windows) -> Callable[[Left], None]:
    """Each window gives the values of its records once, when stream time has closed it."""

    def check(left: Left) -> None:
        results: dict[tuple[bytes | None, int], list[list[str]]] = {}
        for records in left.outputs.values():
            for record in records:
                if record.visible:
                    values = sorted(json.loads(record.value))
                    results.setdefault((record.key, record.timestamp_ms), []).append(values)
        left.check_places([v.encode() for found in results.values() for vs in found for v in vs])
        for number in left.inputs["a"]:
            model.begin()
            for record in left.processed("a", number):
                model.take(record.key, record.timestamp_ms, record.value)
            # Windows that the last record closed may be stored still: they go before the next one.
            rows = {} if left.states is None else left.states.get(number, {})
            stored = {window: sorted(values) for window, values in rows.items()}  # type: ignore[call-overload]
            model.close(window for window in model.due() if window not in stored)
            left.check_state(
                number, {w: sorted(values) for w, values in model.open.items()}, stored
            )
            if left.times.get(number, -1) != model.now_ms:
                left.wrong(
                    "stream time", f"partition {number}: {left.times.get(number)} {model.now_ms=}"
                )
        for place in {*results, *model.closed}:
            found, wanted = results.get(place, []), model.closed.get(place)
            if found != ([] if wanted is None else [wanted]):
                left.wrong("wrong window", f"{place}: {found} is not {wanted}")
        check_all(left, "late", Counter(visible(left.late)), model.late)
        check_all(left, "dead letter", Counter(visible(left.letters)), model.letters)

    return check


class Windows:
    """Windows of all partitions; ``begin`` starts with the next one."""

    def __init__(self) -> None:
        self.closed: dict[tuple[bytes | None, int], list[str]] = {}
        self.late = Counter[bytes]()
        self.letters = Counter[bytes]()
        self.begin()

    def begin(self) -> None:
        self.now_ms = -1
        self.open: dict[Window, list[str]] = {}

    def closes_ms(self, end_ms: int) -> int:
        """Stream time at which a window is closed."""
        raise NotImplementedError

    def windows_of(self, key: bytes, time_ms: int) -> list[Window]:
        """The windows that a record belongs to, those included that are closed."""
        raise NotImplementedError

    def put(self, window: Window, value: str) -> None:
        """Take a record into a window that is open."""
        self.open.setdefault(window, []).append(value)

    def result_ms(self, end_ms: int) -> int:
        """Timestamp of a window's result."""
        return end_ms

    def due(self) -> list[Window]:
        return [window for window in self.open if self.closes_ms(window[2]) <= self.now_ms]

    def close(self, windows: Iterable[Window]) -> None:
        for window in list(windows):
            key, _, end_ms = window
            self.closed[key, self.result_ms(end_ms)] = sorted(self.open.pop(window))

    def take(self, key: bytes | None, time_ms: int, value: bytes) -> None:
        self.close(self.due())
        if key is None:
            self.letters[value] += 1
            return
        now_ms = max(self.now_ms, time_ms)
        taken = [w for w in self.windows_of(key, time_ms) if self.closes_ms(w[2]) > now_ms]
        if not taken:
            self.late[value] += 1
        elif fails(value):
            self.letters[value] += 1
        else:
            self.now_ms = now_ms
            for window in taken:
                self.put(window, value.decode())


class FixedWindows(Windows):
    """Tumbling and hopping windows."""

    def __init__(self, size_ms: int, every_ms: int, grace_ms: int) -> None:
        super().__init__()
        self.size_ms, self.every_ms, self.grace_ms = size_ms, every_ms, grace_ms

    def closes_ms(self, end_ms: int) -> int:
        return end_ms + self.grace_ms

    def windows_of(self, key: bytes, time_ms: int) -> list[Window]:
        first = (time_ms - self.size_ms) // self.every_ms + 1
        starts = range(first * self.every_ms, time_ms + 1, self.every_ms)
        return [(key, start_ms, start_ms + self.size_ms) for start_ms in starts]

    def result_ms(self, end_ms: int) -> int:
        return end_ms - 1


class Sessions(Windows):
    """Sessions: records of one key that are at most a gap apart share one."""

    def __init__(self, gap_ms: int, grace_ms: int) -> None:
        super().__init__()
        self.gap_ms, self.grace_ms = gap_ms, grace_ms

    def closes_ms(self, end_ms: int) -> int:
        return end_ms + self.gap_ms + self.grace_ms + 1

    def _near(self, key: bytes | None, time_ms: int) -> list[Window]:
        gap_ms = self.gap_ms
        return [w for w in self.open if w[0] == key and w[1] - gap_ms <= time_ms <= w[2] + gap_ms]

    def windows_of(self, key: bytes, time_ms: int) -> list[Window]:
        near = [(key, time_ms, time_ms), *self._near(key, time_ms)]
        return [(key, min(w[1] for w in near), max(w[2] for w in near))]

    def put(self, window: Window, value: str) -> None:
        key, start_ms, end_ms = window
        joined = [w for w in self.open if w[0] == key and start_ms <= w[1] and w[2] <= end_ms]
        values = [each for w in joined for each in self.open.pop(w)]
        self.open[window] = [*values, value]


def check_all(left: Left, rule: str, found: Counter[bytes], wanted: Counter[bytes]) -> None:
    """Compare what came out, in any order."""
    if found != wanted:
        left.wrong(rule, f"missing {dict(wanted - found)}, too many {dict(found - wanted)}")
