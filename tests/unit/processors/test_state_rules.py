"""Goal: state that does not belong to the committed offsets stops a worker, or is migrated as told.

Method: workers over the in-memory cluster, started one after the other under changed declarations,
groups, disks, topics and offsets; what each has to say, and that it processed nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from processor_worlds import FakeChangelogReader, World

from onceflow.processors import (
    App,
    DeclarationError,
    ListState,
    MapState,
    Migration,
    State,
    StateCorruptedError,
    StateMismatchError,
    StoreKind,
)
from onceflow.processors.changelog import RECORD_BYTES
from onceflow.processors.errors import SlotInUseError
from onceflow.processors.graph.specs import StateDeclaration, StateKind, state_spec
from onceflow.processors.notes import (
    NOTE_BYTES_MAX,
    StateNote,
    TaskNote,
    decode_note,
    encode_note,
    latest,
    states_hash,
    type_hash,
)
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.state.bytemap import Marks
from onceflow.processors.state.task_state import StateRules, TaskState
from onceflow.processors.stores.lmdb import open_map
from onceflow.processors.stores.memory import MemoryMap
from onceflow.sdk.errors import CommitFailedError, FencedInstanceIdError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition

IN0 = TopicPartition("in", 0)


@dataclasses.dataclass
class Total:
    count: int
    last: str = ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, "in")
    world.cluster.put("in", b"a", b"b", key=b"k")
    return world


def app_of(function: Callable[..., object], **settings: object) -> App:
    options = {
        name: settings.pop(name) for name in ("name", "store", "migrations") if name in settings
    }
    app = App("counts", **settings)  # type: ignore[arg-type]
    app.processor("in", to="out", **options)(function)  # type: ignore[arg-type]
    return app


def count(value: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return f"{value}{seen.get()}"


def more(world: World) -> None:
    world.cluster.put("in", b"c", key=b"k")


def stops(world: World, app: App, message: str) -> None:
    """It ends with the message, has processed nothing, and does so again."""
    outputs, offset = list(world.cluster.values("out")), world.cluster.offset("in")
    for _ in range(2):
        with pytest.raises(StateMismatchError, match=message):
            world.run(app)
    assert (world.cluster.values("out"), world.cluster.offset("in")) == (outputs, offset)


# Names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", ["same disk", "another disk"])
def test_renamed_function_stops(world: World, disk: str) -> None:
    world.run(app_of(count))
    if disk == "another disk":
        world.state_dir = world.state_dir / "elsewhere"
    more(world)
    stops(
        world,
        app_of(count, name="renamed"),
        r"state count\.seen.*no function declares it now.*give .* its former name",
    )
    world.run(app_of(count))
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3"]


def test_state_that_is_gone_on_purpose_is_declared(world: World) -> None:
    world.run(app_of(count))
    more(world)
    world.run(app_of(count, name="renamed", dropped_states=["count.seen"]))
    assert world.cluster.values("out") == [b"a1", b"b2", b"c1"]


def test_state_that_comes_back_after_it_was_left_out_stops(world: World) -> None:
    """It has missed records in between."""
    world.run(app_of(count))
    more(world)

    def plain(value: str) -> str:
        return value

    world.run(app_of(plain, name="count", dropped_states=["count.seen"]))
    more(world)
    stops(world, app_of(count), r"state count\.seen.*does not mention it")


def test_new_state_of_a_known_function_begins_empty(world: World) -> None:
    def plain(value: str) -> str:
        return value

    world.run(app_of(plain, name="count"))
    more(world)
    world.run(app_of(count))
    assert world.cluster.values("out") == [b"a", b"b", b"c1"]


def test_another_group_has_state_of_its_own(world: World) -> None:
    """It begins with the input, and counts by itself."""
    world.run(app_of(count))
    other = World(world.state_dir, "in")
    other.topics, other.configs = world.topics, world.configs
    other.cluster.logs = world.cluster.logs  # Another group of the same cluster.
    other.run(app_of(count, group_id="other"))
    assert world.cluster.values("out") == [b"a1", b"b2", b"a1", b"b2"]
    assert "other-count-seen-changelog" in other.topics


def test_group_that_cannot_name_topics_is_refused_when_there_is_state() -> None:
    with pytest.raises(DeclarationError, match="group id of processors with state 'a/b'"):
        app_of(count, group_id="a/b")
    app_of(lambda value: None, name="plain", group_id="a/b")


def test_map_of_another_group_is_not_taken(world: World) -> None:
    """A directory that was moved by hand."""
    world.run(app_of(count))
    states = world.state_dir / "counts" / "state"
    (states / "other").mkdir()
    (states / "counts" / "in").rename(states / "other" / "in")
    world.cluster.committed.clear()
    stops(world, app_of(count, group_id="other"), "belongs to group 'counts'")


# Offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [None, "", "by another tool"])
def test_offsets_that_were_set_from_outside_stop(world: World, metadata: str | None) -> None:
    """Reset or expired offsets would have everything counted a second time."""
    world.run(app_of(count))
    if metadata is None:
        world.cluster.committed.clear()
    else:
        world.cluster.committed[IN0] = OffsetAndMetadata(1, metadata)
    message = "offsets were reset or expired"
    stops(world, app_of(count), message)
    world.state_dir = world.state_dir / "elsewhere"
    stops(world, app_of(count), message)
    world.run(app_of(count, on_state_gap="continue"))
    assert world.cluster.values("out")[-1] == b"b4" if metadata is None else b"b3"


def test_difference_that_a_successor_explains_is_no_mismatch(world: World) -> None:
    """It went on with offsets and state after they were looked at here: begin again, or end."""
    world.run(app_of(count))
    known = dict(world.cluster.committed)

    def successor() -> None:
        world.cluster.committed.update(known)
        raise CommitFailedError("the group went on")

    world.cluster.committed.clear()
    world.cluster.do("ensure_membership", successor)
    world.cluster.put("in", b"c", key=b"k")
    world.run(app_of(count))
    assert world.cluster.values("out")[-1] == b"c3"
    world.cluster.committed.clear()
    world.cluster.fail("ensure_membership", FencedInstanceIdError())
    with pytest.raises(SlotInUseError):
        world.run(app_of(count))


# Types ---------------------------------------------------------------------------------------


def total(value: str, seen: State[Total]) -> str:
    found = seen.get(Total(0))
    seen.set(Total(found.count + 1, value))
    return f"{value}{found.count + 1}"


@pytest.mark.parametrize("disk", ["same disk", "another disk"])
def test_changed_type_is_refused_or_migrated(world: World, disk: str) -> None:
    world.run(app_of(count))
    if disk == "another disk":
        world.state_dir = world.state_dir / "elsewhere"
    more(world)
    stops(world, app_of(total, name="count"), r"type.*object\{count: int, last: str\}.*Migration")
    stops(
        world,
        app_of(total, name="count", migrations={"seen": Migration(str)}),
        "Migration",
    )
    migrations = {"seen": [Migration(str), Migration(int, lambda n: Total(n))]}  # type: ignore[arg-type]
    world.run(app_of(total, name="count", migrations=migrations))
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3"]
    more(world)
    world.run(app_of(total, name="count", migrations=migrations))
    world.cluster.put("in", b"d", key=b"k")
    world.run(app_of(total, name="count"))  # All values of this key are of the new type.
    assert world.cluster.values("out")[-2:] == [b"c4", b"d5"]


@pytest.mark.parametrize("disk", ["same disk", "another disk"])
def test_a_new_version_of_the_same_type_is_migrated_or_refused(world: World, disk: str) -> None:
    world.run(app_of(count))

    def tens(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 10)
        return f"{value}{seen.get()}"

    if disk == "another disk":
        world.state_dir = world.state_dir / "elsewhere"
    migrations = {"seen": Migration(int, lambda n: n * 10, version=1)}  # type: ignore[operator]
    more(world)
    world.run(app_of(tens, name="count", migrations=migrations))
    assert world.cluster.values("out") == [b"a1", b"b2", b"c30"]
    more(world)
    stops(world, app_of(count), r"int \(version 2\)|declared type int|type.*Migration")
    world.run(app_of(tens, name="count", migrations=migrations))
    assert world.cluster.values("out")[-1] == b"c40"


def test_type_that_only_moved_is_the_same_type(world: World) -> None:
    world.run(app_of(total, name="count"))
    more(world)
    moved = dataclasses.make_dataclass("Moved", [("last", str), ("count", int)])

    def again(value, seen):  # type: ignore[no-untyped-def]
        return f"{value}{seen.get().count}"

    again.__annotations__ = {"value": str, "seen": State[moved], "return": str}
    world.run(app_of(again, name="count"))
    assert world.cluster.values("out")[-1] == b"c2"


def test_another_type_of_a_maps_own_keys_is_refused(world: World) -> None:
    def by_text(value: str, seen: MapState[str, int]) -> None:
        seen[value] = 1

    def by_number(value: str, seen: MapState[int, int]) -> None:
        seen[1] = 1

    world.run(app_of(by_text, name="f"))
    more(world)
    stops(world, app_of(by_number, name="f"), r"state f\.seen.*int -> int")


def test_wrong_migrations_are_refused_when_declared() -> None:
    for migrations, message in (
        ({"other": Migration(int)}, "name the state 'other'; its states are: seen"),
        ({"seen": int}, "must be a Migration, or several"),
        ([Migration(int)], "must be a mapping by state"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app_of(count, migrations=migrations)
    with pytest.raises(DeclarationError, match="must be a function, or None"):
        Migration(int, 5)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="versions are counted from 1"):
        Migration(int, version=0)
    with pytest.raises(DeclarationError, match="cannot decode"):
        app_of(count, migrations={"seen": Migration(complex | Total)})


# Damage --------------------------------------------------------------------------------------


def test_flipped_bit_on_the_disk_stops_and_is_repaired_from_the_changelog(world: World) -> None:
    world.run(app_of(count))
    (data,) = world.state_dir.rglob("data.mdb")
    map = open_map(data.parent, world.now_ms)
    assert map is not None
    ((key, value),) = map.range(b"\x00\x01", b"\x00\x02")
    map.apply({key: value[:-1] + bytes([value[-1] ^ 8])}, map.marks)
    map.close()
    more(world)
    with pytest.raises(StateCorruptedError, match=r"'seen' of count, key b'k'.*damaged"):
        world.run(app_of(count))
    assert world.cluster.offset("in") == 2
    world.run(app_of(count))
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3"]


@pytest.mark.parametrize("store", StoreKind)
def test_maps_and_lists_come_back_from_their_changelogs(world: World, store: StoreKind) -> None:
    def gather(value: str, by: MapState[str, int], all: ListState[str]) -> str:
        by[value] = by.get(value, 0) + 1
        all.append(value)
        if len(all) > 2:
            all.pop_first()
        return f"{dict(by)}{list(all)}"

    world.run(app_of(gather, store=store))
    world.state_dir = world.state_dir / "elsewhere"
    more(world)
    world.run(app_of(gather, store=store))
    assert world.cluster.values("out")[-1] == b"{'a': 1, 'b': 1, 'c': 1}['b', 'c']"
    assert {topic for topic in world.topics if "changelog" in topic} == {
        "counts-gather-by-changelog",
        "counts-gather-all-changelog",
    }


def test_restoration_that_was_cut_off_reads_only_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.processors.changelog.COLLECTED_BYTES", 1)
    monkeypatch.setattr(FakeChangelogReader, "records_max", 2)
    for number in range(6):
        world.cluster.put("in", b"x", key=b"k%d" % number)
    world.run(app_of(count))
    world.state_dir = world.state_dir / "elsewhere"
    applied: list[int] = []
    whole = TaskState.restored

    def dies(state: TaskState, name: str, writes: dict[bytes, bytes | None], offset: int) -> None:
        whole(state, name, writes, offset)
        applied.append(len(writes))
        if len(applied) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(TaskState, "restored", dies)
    with pytest.raises(KeyboardInterrupt):
        world.run(app_of(count))
    assert applied == [2, 2]
    applied.append(0)  # It does not die again.
    more(world)
    world.run(app_of(count))
    assert world.cluster.values("out")[-1] == b"c3"
    assert sum(applied) == 7  # Keys: each was applied once, over both starts.


def test_changes_of_all_changelogs_together_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changelogs of 32 and 8 changes: neither is read whole before the first write."""

    def two(value: str, small: ListState[str], large: ListState[str]) -> None:
        large.append(value)
        if len(large) % 4 == 0:
            small.append(value)

    for _ in range(30):
        world.cluster.put("in", b"x", key=b"k")
    world.run(app_of(two))
    world.state_dir = world.state_dir / "elsewhere"
    monkeypatch.setattr("onceflow.processors.changelog.COLLECTED_BYTES", 10 * RECORD_BYTES)
    monkeypatch.setattr(FakeChangelogReader, "records_max", 3)
    written: list[tuple[str, int]] = []
    whole = TaskState.restored

    def restored(
        state: TaskState, name: str, writes: dict[bytes, bytes | None], offset: int
    ) -> None:
        written.append((name.split(".")[1], len(writes)))
        whole(state, name, writes, offset)

    monkeypatch.setattr(TaskState, "restored", restored)
    world.run(app_of(two))
    assert written[0] in {("large", 6), ("small", 6)}  # Of the twelve that were read then.
    assert sum(count for name, count in written if name == "large") == 32
    assert sum(count for name, count in written if name == "small") == 8
    assert max(count for _, count in written) < 10 + 3


def test_portions_grow_with_what_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        world.cluster.put("in", b"x", key=b"k%d" % number)
    world.run(app_of(count))
    world.state_dir = world.state_dir / "elsewhere"
    monkeypatch.setattr("onceflow.processors.changelog.PORTION_RECORDS", 4)
    monkeypatch.setattr(FakeChangelogReader, "records_max", 2)
    written: list[int] = []
    whole = TaskState.restored

    def restored(
        state: TaskState, name: str, writes: dict[bytes, bytes | None], offset: int
    ) -> None:
        written.append(len(writes))
        whole(state, name, writes, offset)

    monkeypatch.setattr(TaskState, "restored", restored)
    world.run(app_of(count))
    assert written == [4, 4, 4, 4, 4, 6, 6, 8, 10, 11]  # One key has two changes.


# The rules alone -----------------------------------------------------------------------------


def state_of(kind: object = int, partition: int = 0) -> TaskState:
    spec = state_spec(StateDeclaration("s", StateKind.VALUE, None, kind), "g", "f")
    return TaskState([spec], partition, StateRules("g", 3, {spec.changelog: "id"}))


def test_prefix_of_a_former_state_is_not_given_again() -> None:
    found = MemoryMap()
    state = state_of()
    state.use(found)
    first = found.marks.stores["f.s"].number
    other = state_spec(StateDeclaration("t", StateKind.VALUE, None, int), "g", "f")
    TaskState([other], 0, StateRules("g", 3, {})).use(found)
    assert {mark.number for mark in found.marks.stores.values()} == {first, first + 1}


def test_partition_count_of_the_stored_state_has_to_stay() -> None:
    found = MemoryMap()
    found.marks = Marks(group="g", partitions=2)
    with pytest.raises(StateMismatchError, match="had 2 partitions, now 3"):
        state_of().use(found)


def test_notes_are_bounded_and_foreign_ones_read_as_absent() -> None:
    states = {f"function_{n}.state": StateNote(n, "12345678", "abcdef01") for n in range(10)}
    note = TaskNote(states, t=5, n=7)
    assert decode_note(encode_note(note)) == note
    many = {f"function_{n}.state": StateNote(10**12, "12345678", "abcdef01") for n in range(500)}
    text = encode_note(TaskNote(many, t=5, n=7))
    assert len(text) <= NOTE_BYTES_MAX
    short = decode_note(text)
    digest = states_hash(dict.fromkeys(many, "abcdef01"))
    assert short == TaskNote(d=digest, t=5, n=7)
    for foreign in (None, "", "x", "[]", '{"s": 5}', '{"t": "x"}'):
        assert decode_note(foreign) is None
    assert latest([None, note, TaskNote(n=9), TaskNote(n=8)]) == TaskNote(n=9)
    assert latest([None]) is None


def test_note_without_names_still_tells_that_they_changed() -> None:
    state = state_of()
    state.use_note(TaskNote(d=states_hash({"f.s": type_hash("int")})))
    with pytest.raises(StateMismatchError, match="the states had other names or types"):
        state.use_note(TaskNote(d="something else"))


@pytest.mark.parametrize("ids", [("", "b"), ("a", ""), ("", "")])
def test_brokers_without_topic_ids_compare_offsets_alone(
    world: World, ids: tuple[str, str]
) -> None:
    world.run(app_of(count))
    name = "counts-count-seen-changelog"
    before, after = ids
    world.topics[name] = TopicFacts(1, before)
    (data,) = world.state_dir.rglob("data.mdb")
    data.unlink()
    world.cluster.committed.update(
        {
            tp: entry._replace(metadata=entry.metadata.replace("id2", before))
            for tp, entry in world.cluster.committed.items()
        }
    )
    world.topics[name] = TopicFacts(1, after)
    more(world)
    world.run(app_of(count))
    assert world.cluster.values("out")[-1] == b"c3"
