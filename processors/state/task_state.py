"""All state of one task: its stores over its map, and the check that they match the offsets.

State would silently be lost or counted twice if offsets, changelogs and stores no longer belong
together: after a changelog was deleted, offsets were set back, a function was renamed or a type was
changed. The note beside the committed offsets and the marks in the map say what the state must be.
A difference stops the task before it processes a record, unless ``on_state_gap`` says "continue".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from onceflow.processors.errors import StateMismatchError
from onceflow.processors.graph.specs import StateKind, StateSpec
from onceflow.processors.lanes import Run
from onceflow.processors.notes import StateNote, TaskNote, short_id, states_hash, type_hash
from onceflow.processors.state.bytemap import ByteMap, Marks, StoreMark
from onceflow.processors.state.keys import after
from onceflow.processors.state.store import Store, ValueStore
from onceflow.processors.state.timed import NO_TIME_MS, TimedStore

logger: logging.Logger = logging.getLogger("onceflow.processors.state")


@dataclass(frozen=True, slots=True)
class StateRules:
    """To what the state of all tasks must correspond.

    Attributes:
        group: The consumer group.
        partitions: Partition count of the inputs.
        topic_ids: Topic id of each changelog, empty if the brokers have no topic ids.
        goes_on: Whether to log a difference instead of raising (``on_state_gap="continue"``).
        dropped: States that were removed on purpose (``dropped_states``).
        repeats: Whether changes reach the changelogs without the offsets that they belong to
            (at-least-once), so that a crash leaves them there in front of the first commit.
    """

    group: str
    partitions: int
    topic_ids: Mapping[str, str]
    goes_on: bool = False
    dropped: frozenset[str] = frozenset()
    repeats: bool = False


class TaskState:
    """The stores of one task.

    Args:
        specs: Its states.
        partition: Partition number of the task, and of its changelogs.
        rules: To what the state must correspond.

    Attributes:
        stores: The open stores by ``function.state``; empty until ``use``.
    """

    def __init__(self, specs: Sequence[StateSpec], partition: int, rules: StateRules) -> None:
        self.stores: dict[str, Store] = {}
        self._specs = {spec.name: spec for spec in specs}
        self._partition = partition
        self._rules = rules
        self._map: ByteMap | None = None
        self._note: TaskNote | None = None
        self._sent: dict[str, Run] = {}
        self._ends: dict[str, int] = {}
        self._commits = 0

    def __repr__(self) -> str:
        return f"TaskState({', '.join(self._specs)}, partition {self._partition})"

    # Opening -------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int | None:
        """Size of the map on disk; None without an open map, or where it is not on disk."""
        return None if self._map is None else self._map.disk_bytes

    def use_note(self, note: TaskNote | None) -> None:
        """Compare the names and types in the last commit's note with the declared ones.

        Raises:
            StateMismatchError: They differ.
        """
        self._note = note
        if note is None:
            return
        self._commits = note.n
        if note.d:
            digest = states_hash({name: type_hash(s.text) for name, s in self._specs.items()})
            if digest != note.d:
                self._differs(
                    "states",
                    f"the states had other names or types at the last commit ({note.d}, now "
                    f"{digest})",
                    "declare them as they were",
                )
            return
        for name, state in note.s.items():
            if name in self._rules.dropped:
                continue
            spec = self._specs.get(name)
            if spec is None:
                self._differs(
                    name,
                    "the last commit had this state, and no function declares it now",
                    "give the function or the state its former name (name=); if you removed the "
                    f"state on purpose, set dropped_states=[{name!r}]",
                )
            elif state.type not in {type_hash(text) for text in (spec.text, *spec.earlier)}:
                self._differs(
                    name,
                    f"its stored values do not have the declared type {spec.text}",
                    "declare the former type, or a Migration from it",
                )

    def use(self, opened: ByteMap) -> None:
        """Open the stores in a map.

        Raises:
            StateMismatchError: The map's marks differ from the declared states.
        """
        marks = self._check_marks(opened.marks)
        stores = dict(marks.stores)
        # No prefix is used twice, as values of a former state may still be under it.
        number = max((mark.number for mark in opened.marks.stores.values()), default=0)
        for name, spec in self._specs.items():
            topic_id = self._rules.topic_ids.get(spec.changelog, "")
            known = stores.get(name)
            if known is None:
                number += 1
                stores[name] = StoreMark(number, spec.changelog, topic_id, None, spec.text)
            else:
                stores[name] = replace(known, text=spec.text)
            self.stores[name] = _open_store(spec, stores[name].number, opened)
        self._map = opened
        rules = self._rules
        opened.apply(
            {}, replace(marks, stores=stores, group=rules.group, partitions=rules.partitions)
        )

    def _check_marks(self, marks: Marks) -> Marks:
        rules = self._rules
        if marks.group and marks.group != rules.group:
            self._differs(
                "group",
                f"the stored state belongs to group {marks.group!r}, not to {rules.group!r}",
                "set another state_dir, or the former group_id",
            )
        if marks.partitions and marks.partitions != rules.partitions:
            self._differs(
                "partitions",
                f"the inputs had {marks.partitions} partitions, now {rules.partitions}: keys move "
                "to partitions without their state",
                "restore the partition count, or give the application a new name",
            )
        stores = dict(marks.stores)
        for name, mark in marks.stores.items():
            spec = self._specs.get(name)
            if spec is not None and mark.text not in ("", spec.text, *spec.earlier):
                self._differs(
                    name,
                    f"its stored values have the type {mark.text}, declared is {spec.text}",
                    "declare the former type, or a Migration from it",
                )
                del stores[name]  # to continue, restore it from the changelog under a new prefix
        return replace(marks, stores=stores)

    # Changelogs ----------------------------------------------------------------------------

    def changelogs(self) -> dict[str, str]:
        """Return the changelog topics by state."""
        return {name: spec.changelog for name, spec in self._specs.items()}

    def begin_restoring(self, name: str, start: int, end: int) -> int:
        """Compare a state with its changelog; return the offset from which to restore.

        Args:
            name: The state.
            start: Log start offset of its changelog partition.
            end: High watermark.

        Raises:
            StateMismatchError: They do not belong together.
        """
        spec, mark = self._specs[name], self._marks.stores[name]
        topic_id = self._rules.topic_ids.get(spec.changelog, "")
        noted = None if self._note is None else self._note.s.get(name)
        wrong = _gap(mark, noted, topic_id, start, end)
        if wrong is not None:
            self._differs(
                name,
                f"{wrong} (changelog {spec.changelog}-{self._partition}, offsets {start} to {end})",
                "restore the changelog topic, or start without state under a new application name",
            )
            self.wipe(name)
            mark = self._marks.stores[name]
        return start if mark.offset is None else mark.offset

    def restored(self, name: str, writes: Mapping[bytes, bytes | None], offset: int) -> None:
        """Write changes from a changelog to the map, with the offset up to which they reach."""
        store = self.stores[name]
        prefix = store.prefix
        if isinstance(store, TimedStore):
            writes = store.with_index(writes)
        marks = self._marks
        mark = replace(
            marks.stores[name],
            offset=offset,
            topic_id=self._rules.topic_ids.get(self._specs[name].changelog, ""),
        )
        self._open_map.fill(prefix, writes, replace(marks, stores={**marks.stores, name: mark}))

    def wipe(self, name: str) -> None:
        """Delete the values of a state and its restored offset."""
        marks = self._marks
        mark = replace(marks.stores[name], offset=None, topic_id="")
        self._open_map.clear(
            self.stores[name].prefix, replace(marks, stores={**marks.stores, name: mark})
        )

    def complete(self, wall_ms: int) -> None:
        """Compare the restored state with the last commit, after all changelogs were read.

        Raises:
            StateMismatchError: A state has values, but the committed offsets do not mention it.
        """
        note = self._note
        if not self._rules.repeats and (note is None or not note.d):
            for name in self._specs:
                if (note is None or name not in note.s) and self._has_values(name):
                    self._differs(
                        name,
                        "it has values, but the note beside the group's committed offset does not "
                        "mention it: offsets were reset or expired, or a commit was made without "
                        "this state",
                        "delete the changelog topic and the state directory to start without "
                        "state, or commit the offset to which the state belongs",
                    )
        self.note_complete(wall_ms)

    def _has_values(self, name: str) -> bool:
        prefix = self.stores[name].prefix
        return next(iter(self._open_map.range(prefix, after(prefix))), None) is not None

    def note_complete(self, wall_ms: int) -> None:
        """Mark that the map now holds all committed values, and none that was deleted."""
        if self._map is not None:
            self._map.apply({}, replace(self._map.marks, complete_ms=wall_ms))

    # The unit ------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Approximate size of the uncommitted writes."""
        return sum(store.size_bytes for store in self.stores.values())

    def collect(self) -> list[Run]:
        """Return the changes of the open unit as changelog records."""
        runs = []
        for name, store in self.stores.items():
            changes = store.collect()
            if changes and store.logged:
                run = Run(
                    self._specs[name].changelog,
                    list(changes.values()),
                    list(changes),
                    partition=self._partition,
                )
                self._sent[name] = run
                runs.append(run)
        return runs

    def note(self) -> TaskNote:
        """Return the note for this commit, after the brokers have acknowledged the changes."""
        times = [s.time_ms for s in self.stores.values() if isinstance(s, TimedStore)]
        stream_time_ms = max(times, default=NO_TIME_MS)
        for name, run in self._sent.items():
            assert run.sent is not None
            self._ends[name] = run.sent.last().offset + 1
        self._commits += 1
        states = {}
        for name, spec in self._specs.items():
            end = self._ends.get(name)
            if end is None:
                end = self._marks.stores[name].offset or 0
            topic_id = short_id(self._rules.topic_ids.get(spec.changelog, ""))
            states[name] = StateNote(end, topic_id, type_hash(spec.text))
        return TaskNote(s=states, t=stream_time_ms, n=self._commits)

    def committed(self) -> None:
        """After the commit, write values and changelog offsets to the map in one step."""
        writes: dict[bytes, bytes | None] = {}
        marks = self._marks
        stores = dict(marks.stores)
        for name, store in self.stores.items():
            if store.writes:
                stored = map(store.prefix.__add__, store.writes)
                writes.update(zip(stored, store.writes.values(), strict=True))
            if name in self._ends:
                stores[name] = replace(stores[name], offset=self._ends[name])
        if writes:
            self._open_map.apply(writes, replace(marks, stores=stores))
        for store in self.stores.values():
            store.committed()
        self._sent.clear()
        self._ends.clear()

    def aborted(self) -> None:
        """After an abort, drop the unit's writes."""
        for store in self.stores.values():
            store.drop()
        self._sent.clear()
        self._ends.clear()

    def note_damage(self) -> None:
        """Have the next start rebuild the map, as a value is damaged."""
        if self._map is not None:
            self._map.note_damage()

    @property
    def offset_sum(self) -> int:
        """Offsets of the changelogs that the open map holds, together; 0 without one."""
        marks = () if self._map is None else self._map.marks.stores.values()
        return sum(mark.offset or 0 for mark in marks)

    def hand_over(self) -> ByteMap:
        """Return the open map, for the state of the same task in another part of the worker."""
        self.aborted()
        opened, self._map = self._open_map, None
        self.stores = {}
        return opened

    def close(self) -> None:
        """Drop uncommitted writes and close the map."""
        self.aborted()
        opened, self._map = self._map, None
        self.stores = {}
        if opened is not None:
            opened.close()

    # Differences ---------------------------------------------------------------------------

    @property
    def _open_map(self) -> ByteMap:
        assert self._map is not None, "the map is not open"
        return self._map

    @property
    def _marks(self) -> Marks:
        return self._open_map.marks

    def _differs(self, name: str, what: str, remedy: str) -> None:
        text = f"state {name}, partition {self._partition}, group {self._rules.group}: {what}"
        if not self._rules.goes_on:
            raise StateMismatchError(
                f'{text}. Either {remedy}, or set on_state_gap="continue" for one start to use '
                "the state that is left"
            )
        logger.warning("%s; continuing, as on_state_gap is set", text)


def _open_store(spec: StateSpec, number: int, opened: ByteMap) -> Store:
    if spec.declaration.kind is StateKind.VALUE:
        return ValueStore(spec.name, number, opened, spec.codec)
    layout = spec.declaration.layout
    if layout is not None:
        return TimedStore(spec.name, number, opened, spec.codec, layout.due_of)
    return Store(spec.name, number, opened)


def _gap(
    mark: StoreMark, noted: StateNote | None, topic_id: str, start: int, end: int
) -> str | None:
    """Return why a store and its changelog do not belong together, or None."""
    if mark.offset is not None:
        if mark.topic_id and topic_id and mark.topic_id != topic_id:
            return "its changelog topic was deleted and made again since the state was stored"
        if mark.offset > end:
            return f"it is stored up to offset {mark.offset}, but its changelog lost records"
        if mark.offset < start:
            return f"it is stored up to offset {mark.offset}, but later records were deleted"
    elif start > 0:
        return "the first records of its changelog were deleted"
    if noted is not None:
        if noted.topic and topic_id and noted.topic != short_id(topic_id):
            return "its changelog topic was deleted and made again since the last commit"
        if noted.end > end:
            return f"the last commit reached offset {noted.end}, but its changelog lost records"
    return None
