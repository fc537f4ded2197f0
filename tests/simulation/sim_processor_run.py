"""A simulated run with applications: set up, verdict of the whole, and that of the application."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import sim_ending
from sim_broker import raw_batches
from sim_check_inputs import check_found, check_joined, check_looked_up, check_merged
from sim_check_time import FixedWindows, Sessions, Windows, check_windows
from sim_checker import StoredRecord
from sim_processor_checker import (
    Left,
    check_copies,
    check_counted,
    check_rekeyed,
    check_repeated,
    check_stored,
)
from sim_processors import ApplicationWorker, KeyedProducer
from sim_run import Result, Simulation, simulate
from sim_shapes import (
    DEAD,
    EVERY_MS,
    GAP_MS,
    GROUP,
    KINDS,
    LATE,
    OUTPUT,
    PARKED,
    REPARTITION,
    WINDOW_MS,
    WITHIN_MS,
    ProcessorSetup,
    Shape,
    draw,
    new_key,
)
from sim_stores import Stores, shown_too_early

from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.timed import split_window_row
from onceflow.processors.worker import purging

PURGED_S = 0.3
"""How often repartition topics are purged, in place of the half minute that no run lasts."""

FILLED_US = 60_000_000
"""Virtual time within which all input has to be there, where the application starts behind it."""

States = Mapping[int, Mapping[object, object]]


def _counts(key: bytes, value: bytes) -> tuple[object, object]:
    return key, ValueCodec(int, "look").decode(key, value)


def _windows(row: bytes, value: bytes) -> tuple[object, object]:
    return split_window_row(row), ValueCodec(list[str], "look").decode(row, value)


def _row(key: bytes, value: bytes) -> tuple[object, object]:
    return key, ValueCodec(bytes, "look").decode(key, value)


def _waiting(row: bytes, value: bytes) -> tuple[object, object]:
    matched, data = ValueCodec(tuple[bool, bytes | None], "look").decode(row, value)  # type: ignore[misc]
    return data, matched


STATES: Mapping[str, tuple[str, Callable[[bytes, bytes], tuple[object, object]]]] = {
    "count": ("step-seen", _counts),
    "parked": ("step-seen", _counts),
    "repeats": ("step-seen", _counts),
    "rekey": ("step-seen", _counts),
    "merge": ("step-seen", _counts),
    "table": ("rows-table", _row),
    "join": ("step-buffer", _waiting),
    "window": ("step-windows", _windows),
}
"""By kind: the state that is looked at, and what a row of it says."""


_MODELS: Mapping[str, Callable[[int], Windows]] = {
    "tumbling": lambda grace_ms: FixedWindows(WINDOW_MS, WINDOW_MS, grace_ms),
    "hopping": lambda grace_ms: FixedWindows(WINDOW_MS, EVERY_MS, grace_ms),
    "session": lambda grace_ms: Sessions(GAP_MS, grace_ms),
}


def check_of(shape: Shape) -> Callable[[Left], None]:
    """What an application has to have done."""
    return {
        "copy": check_copies,
        "count": check_counted,
        "chain": check_counted,
        "parked": check_counted,
        "repeats": check_counted if shape.is_quiet else check_repeated,
        "rekey": check_rekeyed(new_key),
        "window": check_windows(_MODELS[shape.windows](shape.grace_ms)),
        "merge": check_merged(shape.filled),
        "table": check_looked_up(shape.filled),
        "global": check_found(shape.filled),
        "sink": check_stored,
        "join": check_joined(WITHIN_MS, shape.grace_ms, shape.join),
    }[shape.kind]


class ProcessorSimulation(Simulation):
    """A run whose workers are those of an application.

    Attributes:
        shape: The application.
        faults_began: Whether the time of faults has begun.
        repeating: Whether a worker has begun with at-least-once.
    """

    shape: Shape
    faults_began = False
    repeating = False

    def __init__(self, seed: object, setup: ProcessorSetup, *args: Any) -> None:
        super().__init__(seed, setup, *args)
        if setup.database is not None:
            self.stores = Stores(self, setup.database)

    def is_at_end(self, group: str) -> bool:
        if self.stores is None or group != GROUP:
            return super().is_at_end(group)
        return sim_ending.is_at_end(self, self.stores.stored_offsets(group), "a")

    def inputs_of(self, group: str) -> tuple[str, ...]:
        return self.shape.topics if group == GROUP else super().inputs_of(group)

    def drained(self, group: str) -> bool:
        """Also whether no record waits in its key's row for another attempt."""
        return super().drained(group) and not (
            group == GROUP and self.shape.kind == "parked" and self._parked()
        )

    def _parked(self) -> bool:
        for records in self._records(PARKED).values():
            if any({record.key: record.value for record in records if record.visible}.values()):
                return True
        return False

    def input_ends(self) -> dict[str, int]:
        """Where the inputs of the application end for committed readers; empty if unknown."""
        state = self.broker.state
        if state is None or self.may_lose_records:
            return {}
        return {
            f"{topic}-{number}": log.last_stable_offset
            for topic in self.shape.topics
            if (found := state.topics.get(topic)) is not None
            for number, log in enumerate(found.partitions)
        }

    def uncommitted(self, ends: Mapping[str, int]) -> list[bytes]:
        """Visible records in front of these ends that the application has not committed.

        None are told while the broker has yet to write the marker of a commit.
        """
        offsets = None if self._is_pending() else sim_ending.committed_offsets(self, GROUP)
        if self.stores is not None:
            offsets = self.stores.stored_offsets(GROUP)
        return [
            record.value
            for place, end in ends.items()
            if offsets is not None
            for record in sim_ending.stored_records(raw_batches(self.broker.disk, place))
            if record.visible and offsets.get(place, 0) <= record.offset < end
        ]

    def _is_pending(self) -> bool:
        state = self.broker.state
        group = None if state is None else state.groups._table.find(GROUP)
        return group is None or bool(group.offsets.pending)

    def make_workers(self) -> None:
        shape = cast(ProcessorSetup, self.setup).shape
        assert shape is not None
        self.shape = shape
        units = self.setup.units
        own = {
            "input": lambda i: KeyedProducer(self, f"input{i}", units, "a", shape.marks),
            "input of b": lambda i: KeyedProducer(self, f"other{i}", units, "b", shape.marks),
            "application": lambda i: ApplicationWorker(self, f"app{i}", shape),
        }
        for kind, make in own.items():
            self.workers += [make(i) for i in range(self.setup.workers.pop(kind, 0))]
        super().make_workers()

    def fill(self) -> None:
        writers = [w for w in self.workers if not isinstance(w, ApplicationWorker)]
        if self.shape.filled:
            for writer in writers:
                writer.start()
            self.world.run(lambda: all(w.finished for w in writers), self.world.now_us + FILLED_US)
            self.world.run(lambda: sim_ending.is_settled(self), self.world.now_us + FILLED_US)
        self.faults_began = True

    def _create_topics(self) -> None:
        state, process = self.broker.state, self.broker.process
        assert state is not None
        assert process is not None
        for name in (OUTPUT, DEAD, LATE):
            state.topics.create(name, 2, {}, process.wall_ms())
        super()._create_topics()

    # What is left --------------------------------------------------------------------------

    def judge(self) -> list[str]:
        left = self.look()
        check_of(self.shape)(left)
        if self.stores is not None:
            left.problems += [*self.stores.end(), *shown_too_early(self, GROUP)]
        return left.problems

    def _records(self, topic: str) -> dict[int, list[StoredRecord]]:
        state = self.broker.state
        assert state is not None
        found = state.topics.get(topic)
        return {
            number: sim_ending.stored_records(raw_batches(self.broker.disk, f"{topic}-{number}"))
            for number in range(0 if found is None else len(found.partitions))
        }

    def look(self) -> Left:
        """What the application left."""
        found: list[dict[str, int]] = []

        def ask() -> bool:
            offsets = sim_ending.committed_offsets(self, GROUP)
            found.extend([] if offsets is None else [offsets])
            return bool(found)

        self.world.run(ask, self.world.now_us + 60_000_000)
        offsets: dict[tuple[str, int], int] = {}
        for place, offset in found[-1].items():
            topic, _, number = place.rpartition("-")
            offsets[topic, int(number)] = offset
        if self.stores is not None:
            offsets = self.stores.ledger(GROUP)
        states, times = self._states()
        return Left(
            {topic: self._records(topic) for topic in self.shape.inputs},
            self._records(OUTPUT),
            self._records(DEAD),
            self._records(LATE),
            offsets,
            self._starts(),
            states,
            times,
            [] if self.stores is None else self.stores.rows(),
        )

    def _starts(self) -> dict[tuple[str, int], int]:
        state = self.broker.state
        assert state is not None
        found = state.topics.get(REPARTITION)
        logs = [] if found is None else found.partitions
        return {(REPARTITION, n): log.log_start_offset for n, log in enumerate(logs)}

    def _states(self) -> tuple[States | None, dict[int, int]]:
        """The rows of the changelogs, and stream time."""
        if self.shape.kind not in STATES:
            return None, {}
        name, read = STATES[self.shape.kind]
        states: dict[int, dict[object, object]] = {}
        times: dict[int, int] = {}
        for number, records in self._records(f"{GROUP}-{name}-changelog").items():
            rows = {record.key: record.value for record in records if record.visible}
            time = rows.pop(b"t", None)
            if time is not None:
                times[number] = cast(int, ValueCodec(int, "stream time").decode(b"t", time))
            kept = [(key, value) for key, value in rows.items() if key is not None and value]
            states[number] = dict(read(key, value) for key, value in kept)
        return states, times


@contextlib.contextmanager
def _purged_often() -> Iterator[None]:
    kept, purging.PURGED_S = purging.PURGED_S, PURGED_S
    try:
        yield
    finally:
        purging.PURGED_S = kept


def simulate_processors(
    seed: object,
    kinds: tuple[str, ...] = KINDS,
    focus: Callable[[ProcessorSetup], None] = lambda setup: None,
) -> Result:
    """One run with an application of one of these kinds; see ``simulate``.

    Args:
        seed: Anything that has a repr.
        kinds: Kinds to draw from.
        focus: Changes what was drawn.
    """
    setup = draw(seed, kinds)
    focus(setup)
    with _purged_often():
        return simulate(seed, setup, kind=ProcessorSimulation)
