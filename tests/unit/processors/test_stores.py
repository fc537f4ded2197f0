"""Goal: a byte map is ordered and atomic, and one on disk is rebuilt when it must not be trusted.

Method: maps against a plain model with random keys, also longer than LMDB takes; LMDB maps in a
temporary directory, opened again under changed circumstances; slots of worker processes beside
them, because both rest on lock files.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.identity import claim_slot
from onceflow.processors.state.bytemap import ByteMap, Marks, StoreMark
from onceflow.processors.stores import lmdb as lmdb_module
from onceflow.processors.stores.lmdb import LmdbMap, open_map
from onceflow.processors.stores.memory import MemoryMap

HOUR_MS = 3600 * 1000


def opened(path: Path, now_ms: int = 1_000) -> LmdbMap:
    found = open_map(path, now_ms)
    assert found is not None
    return found


def marks(offset: int) -> Marks:
    return Marks({"f.s": StoreMark(1, offset=offset)}, complete_ms=1_000)


def content(found: ByteMap) -> dict[bytes, bytes]:
    return dict(found.range(b"k", b"l"))


@pytest.fixture(params=["lmdb", "memory"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ByteMap]:
    found: ByteMap = opened(tmp_path / "0") if request.param == "lmdb" else MemoryMap()
    yield found
    found.close()


LENGTHS = [0, 1, 3, 5, 470, 477, 478, 479, 480, 500, 508, 509, 510, 511, 600, 700]


@pytest.mark.parametrize("seed", range(3))
def test_ranges_against_a_sorted_list(either: ByteMap, seed: int) -> None:
    """Keys of all lengths around LMDB's limit of 511 bytes, many with equal beginnings."""
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}

    def key() -> bytes:
        length = chance.choice(LENGTHS)
        head = bytes([chance.choice([97, 98])]) * max(0, length - 2)
        tail = bytes(chance.choice([0, 97, 98, 255]) for _ in range(min(2, length)))
        return b"\x00\x01" + head + tail

    for number in range(150):
        writes = {key(): chance.choice([None, b"%d" % number, b""]) for _ in range(6)}
        either.apply(writes, marks(number))
        for name, value in writes.items():
            model.pop(name, None)
            if value is not None:
                model[name] = value
        start, end = key(), chance.choice([None, key(), b"\x00\x02"])
        reverse = chance.random() < 0.5
        wanted = [
            entry
            for entry in sorted(model.items(), reverse=reverse)
            if entry[0] >= start and (end is None or entry[0] < end)
        ]
        assert list(either.range(start, end, reverse=reverse)) == wanted
        probe = key()
        assert either.get(probe) == model.get(probe)
    assert either.marks == marks(149)


@pytest.mark.parametrize("key", [b"a", b"l" * 600], ids=["plain", "long"])
@pytest.mark.parametrize("deletes", [False, True])
def test_filling_is_applying_under_a_prefix(either: ByteMap, key: bytes, deletes: bool) -> None:
    either.apply({b"kb": b"old", b"kgone": b"1", b"kept": b"1"}, marks(1))
    gone: dict[bytes, bytes | None] = {b"gone": None} if deletes else {}
    either.fill(b"k", {b"b": b"2", key: b"3", **gone}, marks(2))
    rest = {} if deletes else {b"kgone": b"1"}
    assert content(either) == {b"kb": b"2", b"k" + key: b"3", b"kept": b"1", **rest}
    assert either.marks == marks(2)


@pytest.mark.parametrize("value_bytes", [0, 100, 5_000])
def test_filling_against_a_dictionary(
    either: ByteMap, value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portions of more values than are read together, with long keys and with deletions, some of
    keys that are not there."""
    monkeypatch.setattr(lmdb_module, "PUT_RECORDS", 32)
    chance = random.Random(value_bytes)
    model: dict[bytes, bytes] = {}
    for number in (1, 31, 32, 33, 64, 200):
        keys = chance.sample(range(300), number)
        value = b"%d" % number * (value_bytes // 2)
        writes = {
            b"%d" % key * (200 if key == 7 else 1): None if chance.random() < 0.3 else value
            for key in keys
        }
        either.fill(b"k", writes, marks(number))
        for key, change in writes.items():
            model.pop(b"k" + key, None)
            if change is not None:
                model[b"k" + key] = change
        assert list(content(either).items()) == sorted(model.items())
        assert either.marks == marks(number)


def test_clearing_a_prefix_keeps_the_rest(either: ByteMap) -> None:
    keys = [b"k\x01", b"k\x01a", b"k\x01" + b"x" * 600, b"k\x02", b"k\x02a"]
    either.apply(dict.fromkeys(keys, b"v"), marks(1))
    either.clear(b"k\x01", marks(2))
    assert sorted(content(either)) == [b"k\x02", b"k\x02a"]
    assert either.marks == marks(2)


def test_values_and_marks_survive_closing(tmp_path: Path) -> None:
    found = opened(tmp_path / "0")
    found.apply({b"k1": b"1", b"k": b"empty"}, marks(10))
    found.close()
    found = opened(tmp_path / "0")
    assert content(found) == {b"k1": b"1", b"k": b"empty"}
    assert found.marks == marks(10)
    found.apply({b"k1": None, b"missing": None}, marks(11))
    assert found.get(b"k1") is None
    found.close()


def test_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_module, "MAP_SIZE_START_BYTES", 256 * 1024)
    found = opened(tmp_path / "0")
    for part in range(20):
        found.apply({b"k%d-%d" % (part, n): b"v" * 1_000 for n in range(100)}, marks(part))
    assert found.get(b"k19-99") == b"v" * 1_000
    assert found.marks == marks(19)
    found.close()


def test_second_owner_waits_for_the_first(tmp_path: Path) -> None:
    """Trap 47: never two writers, and no blocking wait."""
    first = opened(tmp_path / "0")
    assert open_map(tmp_path / "0", 0) is None
    first.close()
    opened(tmp_path / "0").close()


def test_map_that_is_older_than_tombstones_is_emptied(tmp_path: Path) -> None:
    """Trap 58; the age is the topic's ``delete.retention.ms``."""
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, marks(1))
    found.close()
    found = opened(tmp_path / "0", 1_000 + 23 * HOUR_MS)
    assert found.get(b"k") == b"1"
    found.close()
    found = opened(tmp_path / "0", 1_000 + 25 * HOUR_MS)
    assert found.get(b"k") is None
    found.close()
    found = opened(tmp_path / "0", 1_000 + 25 * HOUR_MS)
    found.apply({b"k": b"1"}, Marks(complete_ms=1_000 + 25 * HOUR_MS))
    found.close()
    kept = open_map(tmp_path / "0", 1_000 + 26 * HOUR_MS, 2 * HOUR_MS)
    assert kept is not None
    assert kept.get(b"k") == b"1"
    kept.close()
    emptied = open_map(tmp_path / "0", 1_000 + 28 * HOUR_MS, 2 * HOUR_MS)
    assert emptied is not None
    assert emptied.get(b"k") is None
    emptied.close()


def test_machine_that_went_down_empties_an_open_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map is not synced at each commit; the changelog is the truth."""
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, marks(1))
    found.apply({}, marks(1))  # To the file.
    close_as_killed(found)
    same_boot = opened(tmp_path / "0")
    assert same_boot.get(b"k") == b"1"
    close_as_killed(same_boot)
    monkeypatch.setattr(lmdb_module, "boot_id", lambda: "another boot")
    other_boot = opened(tmp_path / "0")
    assert other_boot.get(b"k") is None
    other_boot.close()


def test_slots_are_taken_from_below_and_come_back(tmp_path: Path) -> None:
    """Traps 9, 10: stable over restarts, never shared by live processes."""
    first, second = claim_slot(tmp_path, None), claim_slot(tmp_path, None)
    assert first.name.removesuffix("-0") == second.name.removesuffix("-1")
    first.release()
    again = claim_slot(tmp_path, None)
    assert again.name == first.name
    second.release()
    again.release()
    assert claim_slot(tmp_path, "pod-3").name == "pod-3"
    elsewhere = claim_slot(tmp_path / "other-host", None)
    assert elsewhere.name != first.name
    elsewhere.release()


def test_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match="set state_dir"):
        claim_slot(tmp_path / "file", None)
    with pytest.raises(StateDirectoryError, match="set state_dir"):
        open_map(tmp_path / "file" / "0", 0)


def close_as_killed(found: LmdbMap) -> None:
    """Leave it as a killed process does."""
    found.close_environment()
    found._lock.close()


def filled(path: Path) -> Path:
    """A closed map with many entries."""
    found = opened(path)
    for part in range(10):
        found.apply({b"k%d-%d" % (part, n): b"v" * 100 for n in range(100)}, marks(part))
    found.close()
    return path / lmdb_module.DATA_FILE


@pytest.mark.parametrize("kept", [0, 1, 4096, 8192, 12288, -4096], ids=lambda kept: f"{kept} bytes")
def test_truncated_file_is_rebuilt_and_kills_nobody(tmp_path: Path, kept: int) -> None:
    """Reading behind the end of a mapped file would be a SIGBUS."""
    data = filled(tmp_path / "0")
    os.truncate(data, kept if kept >= 0 else data.stat().st_size + kept)
    found = opened(tmp_path / "0")
    assert found.marks.stores == {}
    assert content(found) == {}
    found.close()


@pytest.mark.parametrize("other", [b"", b"no store", bytes(65_536), b"\xff" * 65_536])
def test_file_that_is_no_map_is_rebuilt(tmp_path: Path, other: bytes) -> None:
    filled(tmp_path / "0").write_bytes(other)
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, marks(1))
    assert found.get(b"k") == b"1"
    found.close()


def test_environment_of_another_layout_is_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with lmdb.open(str(tmp_path / "0")) as foreign, foreign.begin(write=True) as transaction:
        transaction.put(b"k", b"another program's")
    found = opened(tmp_path / "0")
    assert content(found) == {}
    found.close()


def test_damage_found_while_reading_is_no_fault_of_the_record(tmp_path: Path) -> None:
    """It ends the worker with the map's own error; the next start rebuilds the map."""
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, marks(1))
    found.apply({}, marks(1))  # To the file.

    class Broken:
        def get(self, *args: object, **more: object) -> bytes:
            raise lmdb.CorruptedError("page")

    reader = found._reader
    found._reader = Broken()  # type: ignore[assignment]
    with pytest.raises(StateDirectoryError, match="the next start rebuilds it"):
        found.get(b"k")
    found._reader = reader
    found.close()
    found = opened(tmp_path / "0")
    assert found.get(b"k") is None
    found.close()


def test_killed_process_loses_whole_commits_and_their_marks_together(tmp_path: Path) -> None:
    """What is in the file is what its marks say; the changelog brings the rest."""
    found = opened(tmp_path / "0")
    found.apply({b"gone": b"1", b"k": b"1"}, marks(1))
    assert [*found.range(b"a", b"z")] == [(b"gone", b"1"), (b"k", b"1")]
    found.apply({b"k": b"2", b"gone": None}, marks(2))
    found.apply({b"k" * 600: b"3"}, marks(3))
    assert (found.get(b"k"), found.get(b"gone"), found.get(b"k" * 600)) == (b"2", None, b"3")
    close_as_killed(found)
    found = opened(tmp_path / "0")
    assert (found.get(b"k"), found.get(b"gone"), found.get(b"k" * 600)) == (b"1", b"1", None)
    assert found.marks == marks(1)
    found.apply({b"k": b"2", b"gone": None}, marks(2))
    found.close()
    found = opened(tmp_path / "0")
    assert [*found.range(b"a", b"z")] == [(b"k", b"2")]
    assert found.marks == marks(2)
    found.close()


@pytest.mark.parametrize("by", ["count", "bytes"])
def test_gathered_writes_are_bounded(tmp_path: Path, by: str) -> None:
    """A replay after a kill is short: each write counts, also of a key that comes again."""
    found = opened(tmp_path / "0")
    writes, value = (lmdb_module.GATHERED_WRITES, b"1") if by == "count" else (4, bytes(1 << 20))
    for number in range(writes):
        found.apply({b"k": value}, marks(number))
    found.apply({b"k": b"last"}, marks(writes))
    close_as_killed(found)
    found = opened(tmp_path / "0")
    assert found.get(b"k") == value
    assert found.marks == marks(writes - 1)
    found.close()


def test_copy_of_an_open_map_is_not_trusted(tmp_path: Path) -> None:
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, marks(1))
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    found.close()
    copied = opened(tmp_path / "copy")
    assert copied.get(b"k") is None
    copied.close()
    shutil.copytree(tmp_path / "0", tmp_path / "later copy")
    closed = opened(tmp_path / "later copy")
    assert closed.get(b"k") == b"1"
    closed.close()


def test_opening_an_old_map_does_not_make_it_young(tmp_path: Path) -> None:
    """Trap 58: only a replay to the end brings the deletions that it missed."""
    found = opened(tmp_path / "0")
    found.apply({b"k": b"1"}, found.marks)
    close_as_killed(found)
    close_as_killed(opened(tmp_path / "0", now_ms=20 * HOUR_MS))  # Died before it was restored.
    found = opened(tmp_path / "0", now_ms=40 * HOUR_MS)
    assert found.get(b"k") is None
    found.apply({b"k": b"1"}, found.marks)
    found.apply({}, Marks(complete_ms=40 * HOUR_MS))
    close_as_killed(found)
    found = opened(tmp_path / "0", now_ms=60 * HOUR_MS)
    assert found.get(b"k") == b"1"
    found.close()


def test_full_disk_is_an_error_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(tmp_path / "0")

    def full(*args: object, **more: object) -> None:
        raise lmdb.DiskError("No space left on device")

    environment = found._environment

    class Full:
        begin = staticmethod(full)

    found._environment = Full()  # type: ignore[assignment]
    monkeypatch.setattr(found, "_renew", lambda: None)
    found.apply({b"k": b"1"}, marks(1))
    with pytest.raises(StateDirectoryError, match="No space left"):
        found.range(b"", None)
    found._environment = environment
    monkeypatch.setattr(found, "_write_info", full)
    with pytest.raises(StateDirectoryError, match="No space left"):
        found.close()
    again = opened(tmp_path / "0")  # The lock is free.
    assert again.get(b"k") == b"1"  # Committed, and written as soon as there was room.
    again.close()


def test_empty_host_id_is_written_anew(tmp_path: Path) -> None:
    """Else every host that lost power at that moment would have the same name."""
    (tmp_path / "host-id").write_text("")
    slot = claim_slot(tmp_path, None)
    assert not slot.name.startswith("-")
    slot.release()
