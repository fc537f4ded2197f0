"""All state of one task: its stores over its map, and what they have to correspond to.

State is lost or doubled in silence when offsets, changelogs and stores stop belonging together:
a changelog was deleted, offsets were set back, a function was renamed, a type was changed. What was
committed says what there should be (the note beside the offsets, the marks in the map), and a
difference stops the task before it processes anything, unless ``on_gap`` says to go on.
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
    """What the state of all tasks has to correspond to.

    Attributes:
        group: The consumer group.
        partitions: Partition count of the inputs.
        topic_ids: Incarnation of each changelog topic, empty where the brokers have no ids.
        goes_on: Whether a difference is logged and not an error (``on_state_gap="continue"``).
        dropped: States that are gone on purpose (``dropped_states``).
    """

    group: str
    partitions: int
    topic_ids: Mapping[str, str]
    goes_on: bool = False
    dropped: frozenset[str] = frozenset()


class TaskState:
    """The stores of one task.

    Args:
        specs: Its states.
        partition: Partition number of the task, and of its changelogs.
        rules: What the state has to correspond to.

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

    def use_note(self, note: TaskNote | None) -> None:
        """Take what the last commit left behind, and compare its names and types.

        Raises:
            StateMismatchError: They differ from what is declared.
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
                    f"the last commit had other names or types of states ({note.d}, now {digest})",
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
                    "the last commit had this state and no function declares it now",
                    "give the function or the state its former name (name=); if the state is gone "
                    f"on purpose, declare dropped_states=[{name!r}]",
                )
            elif state.type not in {type_hash(text) for text in (spec.text, *spec.earlier)}:
                self._differs(
                    name,
                    f"the type of its stored values is not {spec.text}, as it is declared now",
                    "declare the type as it was, or a Migration from it",
                )

    def use(self, opened: ByteMap) -> None:
        """Take an open map.

        Raises:
            StateMismatchError: Its marks differ from what is declared.
        """
        marks = self._check_marks(opened.marks)
        stores = dict(marks.stores)
        # A prefix is never given twice, as there may be values of a former state under it.
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
                f"the stored state belongs to group {marks.group!r}, this is {rules.group!r}",
                "use another state_dir, or the former group_id",
            )
        if marks.partitions and marks.partitions != rules.partitions:
            self._differs(
                "partitions",
                f"the inputs had {marks.partitions} partitions, now {rules.partitions}: keys would "
                "meet the state of others",
                "restore the partition count, or give the application a new name",
            )
        stores = dict(marks.stores)
        for name, mark in marks.stores.items():
            spec = self._specs.get(name)
            if spec is not None and mark.text not in ("", spec.text, *spec.earlier):
                self._differs(
                    name,
                    f"its stored values are of type {mark.text}, it is declared as {spec.text}",
                    "declare the type as it was, or a Migration from it",
                )
                del stores[name]  # Going on means: as the changelog has it, under a new prefix.
        return replace(marks, stores=stores)

    # Changelogs ----------------------------------------------------------------------------

    def changelogs(self) -> dict[str, str]:
        """Changelog topic by state, of the states that have one."""
        return {name: spec.changelog for name, spec in self._specs.items()}

    def begin_restoring(self, name: str, start: int, end: int) -> int:
        """Compare a state with its changelog.

        Args:
            name: The state.
            start: Log start offset of its changelog partition.
            end: High watermark.

        Returns:
            The offset from which the changelog has to be read.

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
                "restore the changelog topic; or start from nothing with a new application name",
            )
            self.wipe(name)
            mark = self._marks.stores[name]
        return start if mark.offset is None else mark.offset

    def restored(self, name: str, writes: Mapping[bytes, bytes | None], offset: int) -> None:
        """Changes of a changelog reach the map, with the offset up to which they go."""
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
        """Forget the values of a state and how far they went."""
        marks = self._marks
        mark = replace(marks.stores[name], offset=None, topic_id="")
        self._open_map.clear(
            self.stores[name].prefix, replace(marks, stores={**marks.stores, name: mark})
        )

    def complete(self, wall_ms: int) -> None:
        """All changelogs are read to their end: compare what there is with the last commit.

        Raises:
            StateMismatchError: There is state that the committed offsets know nothing of.
        """
        note = self._note
        if note is None or not note.d:
            for name in self._specs:
                if (note is None or name not in note.s) and self._has_values(name):
                    self._differs(
                        name,
                        "it has values, but the group's committed offset knows nothing of them: "
                        "offsets were reset or expired, or the state was left out for a while",
                        "delete the changelog topic and the state directory to begin with both, or "
                        "commit the offset that the state belongs to",
                    )
        self.note_complete(wall_ms)

    def _has_values(self, name: str) -> bool:
        prefix = self.stores[name].prefix
        return next(iter(self._open_map.range(prefix, after(prefix))), None) is not None

    def note_complete(self, wall_ms: int) -> None:
        """The map holds everything that is committed, deletions included, as of now."""
        if self._map is not None:
            self._map.apply({}, replace(self._map.marks, complete_ms=wall_ms))

    # The unit ------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Of what is written and not committed, roughly."""
        return sum(store.size_bytes for store in self.stores.values())

    def collect(self) -> list[Run]:
        """What the open unit changed, as records of the changelogs."""
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
        """What to write beside the offsets of this commit; the changes are acknowledged."""
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
        """The unit is committed: values and changelog offsets reach the map in one step."""
        writes: dict[bytes, bytes | None] = {}
        marks = self._marks
        stores = dict(marks.stores)
        for name, store in self.stores.items():
            if store.writes:
                prefix = store.prefix
                for key, value in store.writes.items():
                    writes[prefix + key] = value
            if name in self._ends:
                stores[name] = replace(stores[name], offset=self._ends[name])
        if writes:
            self._open_map.apply(writes, replace(marks, stores=stores))
        for store in self.stores.values():
            store.committed()
        self._sent.clear()
        self._ends.clear()

    def aborted(self) -> None:
        """The unit is aborted: its writes are void."""
        for store in self.stores.values():
            store.drop()
        self._sent.clear()
        self._ends.clear()

    def note_damage(self) -> None:
        """A value is not what was written: the next start rebuilds the map."""
        if self._map is not None:
            self._map.note_damage()

    def close(self) -> None:
        """Release the map; uncommitted writes are dropped."""
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
                f'{text}. Either {remedy}, or set on_state_gap="continue" for one start to go on '
                "with what there is"
            )
        logger.warning("%s; going on, as on_state_gap says", text)


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
    """Why a store and its changelog do not belong together, or None."""
    if mark.offset is not None:
        if mark.topic_id and topic_id and mark.topic_id != topic_id:
            return "its changelog topic was deleted and made again since the state was stored"
        if mark.offset > end:
            return f"it is stored up to offset {mark.offset}, and its changelog lost records"
        if mark.offset < start:
            return f"it is stored up to offset {mark.offset}, and records behind that were deleted"
    elif start > 0:
        return "the first records of its changelog were deleted"
    if noted is not None:
        if noted.topic and topic_id and noted.topic != short_id(topic_id):
            return "its changelog topic was deleted and made again since the last commit"
        if noted.end > end:
            return f"the last commit reached offset {noted.end}, and its changelog lost records"
    return None
