"""Whether what an application left is what its input says: each record once, in order, counted.

The model is a dictionary of counts over the committed input. It knows nothing of the product's code
but how a stored count looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sim_checker import StoredRecord

Logs = Mapping[str, list[StoredRecord]]


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
        counts: Whether the application counts by key.
        inputs: Records of the input by partition.
        outputs: Records of the output.
        letters: Dead letters.
        offsets: Committed offsets by partition of the input.
        states: Count by key in the changelogs, by partition; None where it is not looked at.
    """

    counts: bool
    inputs: Logs
    outputs: Logs
    letters: Logs
    offsets: Mapping[str, int]
    states: Mapping[str, Mapping[bytes, int]] | None = None
    problems: list[str] = field(default_factory=list)


def check(left: Left) -> list[str]:
    """Every violation, in words."""
    outputs: dict[bytes, list[tuple[str, int, bytes]]] = defaultdict(list)
    for partition, records in left.outputs.items():
        for record in records:
            if record.visible:
                value, _, count = record.value.rpartition(b":")
                outputs[value].append((partition, record.offset, count))
    letters: dict[bytes, int] = defaultdict(int)
    for records in left.letters.values():
        for record in records:
            letters[record.value] += record.visible
    known: set[bytes] = set()
    for partition, records in left.inputs.items():
        known.update(record.value for record in records)
        _check_partition(left, partition, records, outputs, letters)
    for value in {*outputs, *letters} - known:
        left.problems.append(f"out of nothing: {value!r}")
    return left.problems


def _check_partition(
    left: Left,
    partition: str,
    records: list[StoredRecord],
    outputs: Mapping[bytes, list[tuple[str, int, bytes]]],
    letters: Mapping[bytes, int],
) -> None:
    wrong = left.problems.append
    upto = left.offsets.get(partition, 0)
    counts: dict[bytes, int] = defaultdict(int)
    last: dict[tuple[str, bytes | None], int] = {}
    for record in records:
        value, where = record.value, f"{record.value!r} of {partition}@{record.offset}"
        found, buried = outputs.get(value, []), letters.get(value, 0)
        if not record.visible or record.offset >= upto:
            if found or buried:
                wrong(f"ahead of offsets: {where} came out, {upto=}")
            continue
        is_letter = fails(value) or is_refused(value) or (left.counts and record.key is None)
        if is_letter:
            if buried != 1 or found:
                wrong(f"dead letter: {where} gave {buried} letters and {len(found)} outputs")
            continue
        if buried:
            wrong(f"dead letter: {where} is sound and was given up")
        elif len(found) != 1:
            wrong(f"{'processed twice' if found else 'not processed'}: {where}: {found}")
        if not found:
            continue
        place, offset, count = found[0]
        if left.counts:
            assert record.key is not None
            counts[record.key] += 1
            if count != b"%d" % counts[record.key]:
                wrong(f"wrong count: {where} is number {counts[record.key]}, not {count!r}")
        if record.key is not None and offset < last.get((place, record.key), -1):
            wrong(f"output order: {where} came out before its predecessor")
        last[place, record.key] = offset
    if left.states is not None and dict(left.states.get(partition, {})) != dict(counts):
        wrong(f"state differs: {partition}: {left.states.get(partition)} is not {dict(counts)}")
