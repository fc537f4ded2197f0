"""Plain models of applications whose tasks have two inputs.

Where all input was there before the application started, the smallest timestamp goes first, of the
two records that are next (KIP-695), so that the order of all records is known. Otherwise the models
say what holds in every order.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from sim_check_time import check_all
from sim_checker import StoredRecord
from sim_processor_checker import (
    Came,
    Left,
    check_counts,
    check_each,
    check_order,
    visible,
)


def in_order(left: Left, number: int) -> Iterator[tuple[str, StoredRecord]]:
    """Processed records of both inputs in the order in which a task takes them."""
    inputs = [[(t, r) for r in left.processed(t, number)] for t in ("a", "b")]
    # It compares the next one of each: records of one input keep their order.
    return heapq.merge(*inputs, key=lambda each: each[1].timestamp_ms)


def check_merged(filled: bool) -> Callable[[Left], None]:
    """Each record of two inputs gives its number within its key."""

    def check(left: Left) -> None:
        came = {topic: check_each(left, topic, keyed=True) for topic in ("a", "b")}
        for topic in came:
            check_order(left, came[topic])
        for number in left.inputs["a"]:
            own = [each for topic in came for each in came[topic] if each.number == number]
            left.check_state(number, check_counts(left, own))
            if filled:
                _check_places(left, number, {each.record.value: each for each in own})

    return check


def _check_places(left: Left, number: int, came: dict[bytes, Came]) -> None:
    """Outputs of one key come in the order of the timestamps of both inputs."""
    last: dict[bytes | None, Came] = {}
    for _, record in in_order(left, number):
        each = came.get(record.value)
        if each is None:
            continue
        before = last.get(each.key)
        if before is not None and each.place < before.place:
            left.wrong(
                "input order",
                f"{record.value!r} of {record.timestamp_ms} was taken before "
                f"{before.record.value!r} of {before.record.timestamp_ms}",
            )
        last[each.key] = each


def check_looked_up(filled: bool) -> Callable[[Left], None]:
    """Each record gives a row of its key: the last one, or one no older than the record before."""

    def check(left: Left) -> None:
        came = check_each(left, "a", keyed=False)
        check_order(left, came)
        keyless = Counter(
            record.value
            for number in left.inputs["b"]
            for record in left.processed("b", number)
            if record.key is None
        )
        buried = Counter(visible(left.letters))
        for value, count in keyless.items():
            if buried[value] != count:
                left.wrong("dead letter", f"{value!r} of b has no key: {buried[value]} letters")
        for number in left.inputs["b"]:
            rows: dict[bytes, list[StoredRecord]] = defaultdict(list)
            for record in left.processed("b", number):
                if record.key is not None:
                    rows[record.key].append(record)
            left.check_state(number, {key: found[-1].value for key, found in rows.items()})
            _check_rows(left, [each for each in came if each.number == number], rows, filled)

    return check


def _check_rows(
    left: Left, came: list[Came], rows: dict[bytes, list[StoredRecord]], filled: bool
) -> None:
    seen: dict[bytes | None, int] = {}
    for each in came:
        key = each.record.key
        values = [] if key is None else [row.value for row in rows.get(key, [])]
        place = -1 if each.shown == b"-" else _place(values, each.shown)
        if place is None:
            left.wrong("wrong row", f"{each.record.value!r} met {each.shown!r}: none of {key!r}")
            continue
        if filled and place != len(values) - 1:
            # A task reads its table to its end before its first record.
            left.wrong("wrong row", f"{each.record.value!r} met {each.shown!r}, not {values[-1]!r}")
        if place < seen.get(key, -1):
            left.wrong("wrong row", f"{each.record.value!r} met {each.shown!r}, older than before")
        seen[key] = place


def _place(values: list[bytes], value: bytes) -> int | None:
    return values.index(value) if value in values else None


def check_found(filled: bool) -> Callable[[Left], None]:
    """Each record gives a committed row of its key; the last one, where all were there before."""

    def check(left: Left) -> None:
        came = check_each(left, "a", keyed=False)
        check_order(left, came)
        rows: dict[bytes | None, list[bytes]] = defaultdict(list)
        for records in left.inputs["b"].values():
            for record in records:
                if record.visible and record.key is not None:
                    rows[record.key].append(record.value)
        for each in came:
            found = rows.get(each.record.key, [])
            wanted = found[-1:] if filled else found
            if each.shown not in wanted and not (each.shown == b"-" and not (filled and found)):
                left.wrong("wrong row", f"{each.record.value!r} met {each.shown!r}, not {wanted}")

    return check


# Joins of streams ----------------------------------------------------------------------------


def check_joined(within_ms: int, grace_ms: int, kind: str) -> Callable[[Left], None]:
    """Partners give one result each, and what stays alone one when no partner can come."""

    def check(left: Left) -> None:
        results = Counter(visible(left.outputs))
        parts = [part for pair in results for part in pair.split(b"|") if part != b"-"]
        left.check_places(parts)
        model = _Join(within_ms + grace_ms, within_ms, kind)
        for number in left.inputs["a"]:
            model.begin()
            for topic, record in in_order(left, number):
                model.take(topic, record)
            # What the last record closed may be stored still: it goes before the next one.
            stored = {} if left.states is None else left.states.get(number, {})
            model.close([each for each in model.due() if each.record.value not in stored])
            waiting = {each.record.value: each.matched for each in model.waiting}
            left.check_state(number, waiting)
            if left.times.get(number, -1) != model.now_ms:
                left.wrong("stream time", f"partition {number}: {left.times=} {model.now_ms=}")
        check_all(left, "wrong join", results, model.results)
        check_all(left, "late", Counter(visible(left.late)), model.late)
        check_all(left, "dead letter", Counter(visible(left.letters)), model.letters)

    return check


class _Waiting:
    """A record in the buffer."""

    def __init__(self, topic: str, record: StoredRecord) -> None:
        self.topic, self.record, self.matched = topic, record, False


class _Join:
    """Buffers of all partitions; ``begin`` starts with the next one."""

    def __init__(self, life_ms: int, within_ms: int, kind: str) -> None:
        self.life_ms, self.within_ms, self.kind = life_ms, within_ms, kind
        self.results = Counter[bytes]()
        self.late = Counter[bytes]()
        self.letters = Counter[bytes]()
        self.begin()

    def begin(self) -> None:
        self.now_ms = -1
        self.waiting: list[_Waiting] = []

    def due(self) -> list[_Waiting]:
        return [w for w in self.waiting if w.record.timestamp_ms + self.life_ms < self.now_ms]

    def close(self, gone: list[_Waiting]) -> None:
        for each in gone:
            self.waiting.remove(each)
            is_left = each.topic == "a"
            if not each.matched and (self.kind == "outer" or (self.kind == "left" and is_left)):
                value = each.record.value
                self.results[value + b"|-" if is_left else b"-|" + value] += 1

    def take(self, topic: str, record: StoredRecord) -> None:
        self.close(self.due())
        if record.key is None:
            self.letters[record.value] += 1
            return
        self.now_ms = max(self.now_ms, record.timestamp_ms)
        if record.timestamp_ms + self.life_ms < self.now_ms:
            self.late[record.value] += 1
            return
        own = _Waiting(topic, record)
        over = self.due()
        for other in self.waiting:
            apart_ms = abs(other.record.timestamp_ms - record.timestamp_ms)
            is_partner = other.topic != topic and other.record.key == record.key
            if is_partner and apart_ms <= self.within_ms and other not in over:
                own.matched = other.matched = True
                pair = (own, other) if topic == "a" else (other, own)
                self.results[b"|".join(each.record.value for each in pair)] += 1
        self.waiting.append(own)
