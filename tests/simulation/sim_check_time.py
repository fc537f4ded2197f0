"""Plain models of applications in which event time decides: no store, no layers, no restoring."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from sim_processor_checker import Left, fails, visible


def check_windows(size_ms: int, grace_ms: int) -> Callable[[Left], None]:
    """Each window gives the values of its records once, when stream time has closed it."""

    def check(left: Left) -> None:
        results: dict[tuple[bytes | None, int], list[list[str]]] = {}
        for records in left.outputs.values():
            for record in records:
                if record.visible:
                    window = (record.key, record.timestamp_ms + 1 - size_ms)
                    results.setdefault(window, []).append(json.loads(record.value))
        left.check_places([v.encode() for found in results.values() for vs in found for v in vs])
        model = _Windows(size_ms, grace_ms)
        for number in left.inputs["a"]:
            model.begin()
            for record in left.processed("a", number):
                model.take(record.key, record.timestamp_ms, record.value)
            # Windows that the last record closed may be stored still: they go before the next one.
            stored = {} if left.states is None else left.states.get(number, {})
            waiting = [window for window in model.due() if window in stored]
            model.close([window for window in model.due() if window not in waiting])
            left.check_state(number, model.open)
            if left.times.get(number, -1) != model.now_ms:
                left.wrong(
                    "stream time", f"partition {number}: {left.times.get(number)} {model.now_ms=}"
                )
        for window in {*results, *model.closed}:
            found, wanted = results.get(window, []), model.closed.get(window)
            if found != ([] if wanted is None else [wanted]):
                left.wrong("wrong window", f"{window}: {found} is not {wanted}")
        check_all(left, "late", Counter(visible(left.late)), model.late)
        check_all(left, "dead letter", Counter(visible(left.letters)), model.letters)

    return check


class _Windows:
    """Windows of all partitions; ``begin`` starts with the next one."""

    def __init__(self, size_ms: int, grace_ms: int) -> None:
        self.size_ms, self.grace_ms = size_ms, grace_ms
        self.closed: dict[tuple[bytes | None, int], list[str]] = {}
        self.late = Counter[bytes]()
        self.letters = Counter[bytes]()
        self.begin()

    def begin(self) -> None:
        self.now_ms = -1
        self.open: dict[tuple[bytes | None, int], list[str]] = {}

    def due(self) -> list[tuple[bytes | None, int]]:
        return [w for w in self.open if w[1] + self.size_ms + self.grace_ms <= self.now_ms]

    def close(self, windows: list[tuple[bytes | None, int]]) -> None:
        for window in windows:
            self.closed[window] = self.open.pop(window)

    def take(self, key: bytes | None, time_ms: int, value: bytes) -> None:
        self.close(self.due())
        window = (key, time_ms - time_ms % self.size_ms)
        if key is None:
            self.letters[value] += 1
        elif window[1] + self.size_ms + self.grace_ms <= self.now_ms:
            self.late[value] += 1
        elif fails(value):
            self.letters[value] += 1
        else:
            self.now_ms = max(self.now_ms, time_ms)
            self.open.setdefault(window, []).append(value.decode())


def check_all(left: Left, rule: str, found: Counter[bytes], wanted: Counter[bytes]) -> None:
    if found != wanted:
        left.wrong(rule, f"missing {dict(wanted - found)}, too many {dict(found - wanted)}")
