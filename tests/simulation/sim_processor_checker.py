"""Whether what an application left is what its input says: each record once, in order, counted.

The model is a dictionary over the committed input. It knows nothing of the product's code. Kinds
of applications in which event time decides have models of their own (``sim_check_time``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sim_checker import StoredRecord

Logs = Mapping[int, Sequence[StoredRecord]]
"""Records of a topic by partition number."""


def fails(value: bytes) -> bool:
    """Whether every attempt at a record fails."""
    return value.endswith(b"!")


def is_refused(value: bytes) -> bool:
    """Whether the brokers refuse the output of a record."""
    return value.endswith(b"#")


@dataclass
class Left:
    """What a run left.

    Attributes:
        inputs: Records of each input.
        outputs: Records of the output.
        letters: Dead letters.
        late: Late records.
        offsets: Committed offsets by topic and partition number.
        starts: Where the logs of the application's own topics begin, likewise.
        states: What the changelogs hold, decoded, by partition number; None where it is not looked
            at.
        times: Stream time by partition number, where the application has one.
        rows: Rows in the database of an application with a sink, in the order of their writes.
        problems: What was found.
    """

    inputs: Mapping[str, Logs]
    outputs: Logs
    letters: Logs
    late: Logs
    offsets: Mapping[tuple[str, int], int]
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    states: Mapping[int, Mapping[object, object]] | None = None
    times: Mapping[int, int] = field(default_factory=dict)
    rows: Sequence[Mapping[str, object]] = ()
    problems: list[str] = field(default_factory=list)

    def wrong(self, rule: str, text: str) -> None:
        """Note a violation."""
        self.problems.append(f"{rule}: {text}")

    def processed(self, topic: str, number: int) -> list[StoredRecord]:
        """Records of an input that are below the committed offset, and not aborted."""
        upto = self.offsets.get((topic, number), 0)
        return [r for r in self.inputs[topic][number] if r.visible and r.offset < upto]

    def ahead(self, topic: str) -> set[bytes]:
        """Values of an input that are above the committed offsets, or aborted."""
        return {
            record.value
            for number, records in self.inputs[topic].items()
            for record in records
            if not record.visible or record.offset >= self.offsets.get((topic, number), 0)
        }

    def check_places(self, values: Iterator[bytes] | Sequence[bytes]) -> None:
        """What came out came of records that are committed."""
        known = {r.value for logs in self.inputs.values() for rs in logs.values() for r in rs}
        ahead = set().union(*(self.ahead(topic) for topic in self.inputs))
        for value in {*values, *visible(self.letters), *visible(self.late)}:
            if value in ahead:
                self.wrong("ahead of offsets", f"{value!r} came out, {self.offsets=}")
            elif value not in known:
                self.wrong("out of nothing", repr(value))

    def check_state(
        self,
        number: int,
        wanted: Mapping[object, object],
        found: Mapping[object, object] | None = None,
    ) -> None:
        """Compare a changelog, or what it was made to, with the model."""
        if self.states is not None:
            found = self.states.get(number, {}) if found is None else found
            if dict(found) != dict(wanted):
                self.wrong("state differs", f"partition {number}: {found} is not {dict(wanted)}")


def visible(logs: Logs) -> list[bytes]:
    """Values of committed records."""
    return [record.value for records in logs.values() for record in records if record.visible]


class Came(NamedTuple):
    """An input record and the only output that it gave.

    Attributes:
        number: Partition of the input.
        record: The input record.
        place: Partition and offset of the output.
        key: Key of the output.
        shown: What the output says beside the input's value.
    """

    number: int
    record: StoredRecord
    place: tuple[int, int]
    key: bytes | None
    shown: bytes


def check_each(left: Left, topic: str, *, keyed: bool) -> list[Came]:
    """Each record of an input gave one output, or one dead letter.

    Args:
        left: What is left.
        topic: The input.
        keyed: Whether a record without a key is a dead letter.
    """
    outputs: dict[bytes, list[tuple[tuple[int, int], bytes | None, bytes]]] = defaultdict(list)
    for number, records in left.outputs.items():
        for record in records:
            if record.visible:
                value, _, shown = record.value.strip().rpartition(b":")
                outputs[value].append(((number, record.offset), record.key, shown))
    letters = Counter(visible(left.letters))
    left.check_places(list(outputs))
    came = []
    for number in left.inputs[topic]:
        for record in left.processed(topic, number):
            value, where = record.value, f"{record.value!r} of {topic}-{number}@{record.offset}"
            found, buried = outputs.get(value, []), letters[value]
            if fails(value) or is_refused(value) or (keyed and record.key is None):
                if buried != 1 or found:
                    left.wrong(
                        "dead letter", f"{where} gave {buried} letters and {len(found)} outputs"
                    )
                continue
            if buried:
                left.wrong("dead letter", f"{where} is sound and was given up")
            elif len(found) != 1:
                rule = "processed twice" if found else "not processed"
                left.wrong(rule, f"{where}: {found}")
            if found:
                came.append(Came(number, record, *found[0]))
    return came


def check_order(left: Left, came: Sequence[Came]) -> None:
    """Outputs of one key and input partition come in the order of the inputs."""
    last: dict[tuple[int, int, bytes], int] = {}
    for each in came:
        if each.key is None:
            continue
        lane = (each.number, each.place[0], each.key)
        if each.place[1] < last.get(lane, -1):
            left.wrong("output order", f"{each.record.value!r} came out before its predecessor")
        last[lane] = each.place[1]


def check_counts(left: Left, came: Sequence[Came]) -> dict[bytes, int]:
    """The outputs of a key are numbered in their order.

    Returns:
        How many there are of each key.
    """
    counts: dict[bytes, int] = defaultdict(int)
    for each in sorted(came, key=lambda each: each.place):
        assert each.key is not None
        counts[each.key] += 1
        if each.shown != b"%d" % counts[each.key]:
            number = counts[each.key]
            left.wrong(
                "wrong count", f"{each.record.value!r} is number {number}, not {each.shown!r}"
            )
    return counts


# Kinds ---------------------------------------------------------------------------------------


def check_copies(left: Left) -> None:
    """Each record gives itself."""
    check_order(left, check_each(left, "a", keyed=False))


def check_counted(left: Left) -> None:
    """Each record gives its number within its key."""
    came = check_each(left, "a", keyed=True)
    check_order(left, came)
    for number in left.inputs["a"]:
        own = [each for each in came if each.number == number]
        left.check_state(number, check_counts(left, own))


def check_repeated(left: Left) -> None:
    """Each record gave its number at least once, or a dead letter; nothing came of nothing.

    A unit that is done again gives all of it again, also by a worker that was taken for dead, which
    nothing fences. So there is no order, and no state can be told.
    """
    outputs: dict[bytes, int] = defaultdict(int)
    for value in visible(left.outputs):
        outputs[value.strip().rpartition(b":")[0]] += 1
    letters = Counter(visible(left.letters))
    logs = left.inputs["a"]
    known = {record.value for records in logs.values() for record in records if record.visible}
    for value in {*outputs, *letters} - known:
        left.wrong("out of nothing", repr(value))
    for number in logs:
        for record in left.processed("a", number):
            value, where = record.value, f"{record.value!r} of a-{number}@{record.offset}"
            lost = fails(value) or is_refused(value) or record.key is None
            if (letters[value] == 0, outputs[value] == 0) != (not lost, lost):
                rule = "dead letter" if lost or letters[value] else "not processed"
                left.wrong(
                    rule, f"{where} gave {letters[value]} letters and {outputs[value]} outputs"
                )


def check_stored(left: Left) -> None:
    """Each record gave one row, or dead letters: these are in no transaction with the offsets."""
    came: dict[object, int] = {}
    for place, row in enumerate(left.rows):
        if row["value"] in came:
            left.wrong("row twice", str(row))
        came[row["value"]] = place
    letters = Counter(visible(left.letters))
    wanted = set()
    for number in left.inputs["a"]:
        last: dict[bytes | None, int] = {}
        for record in left.processed("a", number):
            value, where = record.value, f"{record.value!r} of a-{number}@{record.offset}"
            lost = fails(value) or is_refused(value)
            wanted.add(value)
            if (letters[value] == 0, value in came) != (not lost, not lost):
                rule = "dead letter" if lost or letters[value] else "row missing"
                left.wrong(rule, f"{where} gave {letters[value]} letters, {value in came=}")
            if value in came and record.key is not None:
                if came[value] < last.get(record.key, -1):
                    left.wrong("row order", f"{value!r} was stored before its predecessor")
                last[record.key] = came[value]
    for value in {*came} - wanted:
        left.wrong("row out of nothing", f"{value!r}, {left.offsets=}")


def check_rekeyed(new_key: Callable[[bytes], bytes]) -> Callable[[Left], None]:
    """Each record gives its number within its new key, wherever it came from."""

    def check(left: Left) -> None:
        came = check_each(left, "a", keyed=False)
        for each in came:
            if each.key != new_key(each.record.value):
                left.wrong("wrong key", f"{each.record.value!r} came out under {each.key!r}")
        check_order(left, came)
        counts = check_counts(left, came)
        states = (left.states or {}).values()
        found = [(key, count) for state in states for key, count in state.items()]
        if sorted(map(repr, found)) != sorted(map(repr, counts.items())):
            left.wrong("state differs", f"{found} is not {dict(counts)}")
        for place, start in left.starts.items():
            if start > left.offsets.get(place, 0):
                left.wrong("purged too early", f"{place} begins at {start}, {left.offsets=}")

    return check
