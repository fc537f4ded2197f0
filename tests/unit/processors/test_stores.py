"""Goal: a store on disk is atomic, grows, and is rebuilt when it must not be trusted.

Method: LMDB stores in a temporary directory, opened again under changed circumstances; slots of
worker processes beside them, because both rest on lock files.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import lmdb
import pytest

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.identity import claim_slot
from onceflow.processors.stores import lmdb as lmdb_module
from onceflow.processors.stores.base import StoreIdentity
from onceflow.processors.stores.lmdb import LmdbTaskStore, open_store

IDENTITY = StoreIdentity({"s": "topic-id-1"}, 3)


def opened(path: Path, identity: StoreIdentity = IDENTITY, now_ms: int = 1_000) -> LmdbTaskStore:
    store = open_store(path, ["s", "t"], identity, now_ms)
    assert store is not None
    return store


def test_values_and_offset_survive_closing(tmp_path: Path) -> None:
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1", b"": b"empty"}, "t": {b"k": b"2"}}, {"s": 10})
    assert (store.get("s", b"k"), store.get("t", b"k")) == (b"1", b"2")
    store.close()
    store = opened(tmp_path / "0")
    assert (store.get("s", b"k"), store.get("s", b""), store.offset("s")) == (b"1", b"empty", 10)
    assert dict(store.items("s")) == {b"k": b"1", b"": b"empty"}
    store.apply({"s": {b"k": None, b"missing": None}}, {"s": 11})
    assert store.get("s", b"k") is None
    store.close()


def test_long_keys_are_kept_by_hash(tmp_path: Path) -> None:
    """LMDB's keys end at 511 bytes, Kafka's do not."""
    store = opened(tmp_path / "0")
    keys = [b"x" * 510, b"x" * 511, b"x" * 5_000]
    store.apply({"s": {key: b"%d" % len(key) for key in keys}}, {})
    assert [store.get("s", key) for key in keys] == [b"510", b"511", b"5000"]
    store.close()


def test_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_module, "MAP_SIZE_START_BYTES", 256 * 1024)
    store = opened(tmp_path / "0")
    for part in range(20):
        changes = {b"%d-%d" % (part, n): b"v" * 1_000 for n in range(100)}
        store.apply({"s": changes}, {"s": part})
    assert store.get("s", b"19-99") == b"v" * 1_000
    assert store.offset("s") == 19
    store.close()


def test_wiping_one_state_keeps_the_other(tmp_path: Path) -> None:
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}, "t": {b"k": b"2"}}, {"s": 1, "t": 2})
    store.wipe("s")
    assert (store.get("s", b"k"), store.offset("s")) == (None, None)
    assert (store.get("t", b"k"), store.offset("t")) == (b"2", 2)
    store.close()


def test_second_owner_waits_for_the_first(tmp_path: Path) -> None:
    """Trap 47: never two writers, and no blocking wait."""
    first = opened(tmp_path / "0")
    assert open_store(tmp_path / "0", ["s", "t"], IDENTITY, 0) is None
    first.close()
    opened(tmp_path / "0").close()


@pytest.mark.parametrize(
    ("changed", "now_ms"),
    [
        (dataclasses.replace(IDENTITY, partitions=4), 2_000),
        (dataclasses.replace(IDENTITY, changelogs={"s": "topic-id-2"}), 2_000),
        (IDENTITY, 1_000 + 25 * 3600 * 1000),
    ],
    ids=["partition count", "changelog made anew", "older than tombstones"],
)
def test_store_that_does_not_fit_is_emptied(
    tmp_path: Path, changed: StoreIdentity, now_ms: int
) -> None:
    """Traps 31, 58, 64."""
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    store.close()
    store = opened(tmp_path / "0", changed, now_ms)
    assert (store.get("s", b"k"), store.offset("s")) == (None, None)
    store.close()


def test_machine_that_went_down_empties_an_open_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is not synced at each commit; the changelog is the truth."""
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    store.close_environment()  # As a killed process leaves it.
    store._lock.close()
    same_boot = opened(tmp_path / "0")
    assert same_boot.get("s", b"k") == b"1"
    same_boot.close_environment()
    same_boot._lock.close()
    monkeypatch.setattr(lmdb_module, "boot_id", lambda: "another boot")
    other_boot = opened(tmp_path / "0")
    assert other_boot.get("s", b"k") is None
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
        open_store(tmp_path / "file" / "0", ["s"], IDENTITY, 0)


def close_as_killed(store: LmdbTaskStore) -> None:
    """Leave it as a killed process does."""
    store.close_environment()
    store._lock.close()


def filled(path: Path) -> Path:
    """A closed store with many entries."""
    store = opened(path)
    for part in range(10):
        changes = {b"%d-%d" % (part, n): b"v" * 100 for n in range(100)}
        store.apply({"s": changes}, {"s": part})
    store.close()
    return path / lmdb_module.DATA_FILE


@pytest.mark.parametrize("kept", [0, 1, 4096, 8192, 12288, -4096], ids=lambda kept: f"{kept} bytes")
def test_truncated_file_is_rebuilt_and_kills_nobody(tmp_path: Path, kept: int) -> None:
    """Reading behind the end of a mapped file would be a SIGBUS."""
    data = filled(tmp_path / "0")
    os.truncate(data, kept if kept >= 0 else data.stat().st_size + kept)
    store = opened(tmp_path / "0")
    assert store.offset("s") is None
    assert list(store.items("s")) == []
    store.close()


@pytest.mark.parametrize("content", [b"", b"no store", bytes(65_536), b"\xff" * 65_536])
def test_file_that_is_no_store_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path / "0").write_bytes(content)
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    assert store.get("s", b"k") == b"1"
    store.close()


def test_damage_found_while_reading_is_no_fault_of_the_record(tmp_path: Path) -> None:
    """It ends the worker with the store's own error; the next start rebuilds the store."""
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})

    class Broken:
        def get(self, *args: object, **more: object) -> bytes:
            raise lmdb.CorruptedError("page")

    reader = store._reader
    store._reader = Broken()
    with pytest.raises(StateDirectoryError, match="the next start rebuilds it"):
        store.get("s", b"k")
    store._reader = reader
    store.close()
    store = opened(tmp_path / "0")
    assert store.get("s", b"k") is None
    store.close()


def test_copy_of_an_open_store_is_not_trusted(tmp_path: Path) -> None:
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    store.close()
    copied = opened(tmp_path / "copy")
    assert copied.get("s", b"k") is None
    copied.close()
    shutil.copytree(tmp_path / "0", tmp_path / "later copy")
    closed = opened(tmp_path / "later copy")
    assert closed.get("s", b"k") == b"1"
    closed.close()


def test_opening_an_old_store_does_not_make_it_young(tmp_path: Path) -> None:
    """Trap 58: only a replay to the end brings the deletions that it missed."""
    hour_ms = 3600 * 1000
    store = opened(tmp_path / "0")
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    close_as_killed(store)
    close_as_killed(opened(tmp_path / "0", now_ms=20 * hour_ms))  # Died before it was restored.
    store = opened(tmp_path / "0", now_ms=40 * hour_ms)
    assert store.get("s", b"k") is None
    store.apply({"s": {b"k": b"1"}}, {"s": 1})
    store.note_complete(40 * hour_ms)
    close_as_killed(store)
    store = opened(tmp_path / "0", now_ms=60 * hour_ms)
    assert store.get("s", b"k") == b"1"
    store.close()


def test_full_disk_is_an_error_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "0")

    def full(*args: object) -> None:
        raise lmdb.DiskError("No space left on device")

    monkeypatch.setattr(store, "_write", full)
    with pytest.raises(StateDirectoryError, match="No space left"):
        store.apply({"s": {b"k": b"1"}}, {"s": 1})
    monkeypatch.undo()
    monkeypatch.setattr(store, "_write_info", full)
    with pytest.raises(StateDirectoryError, match="No space left"):
        store.close()
    monkeypatch.undo()
    again = opened(tmp_path / "0")  # The lock is free.
    assert again.offset("s") is None
    again.close()


def test_empty_host_id_is_written_anew(tmp_path: Path) -> None:
    """Else every host that lost power at that moment would have the same name."""
    (tmp_path / "host-id").write_text("")
    slot = claim_slot(tmp_path, None)
    assert not slot.name.startswith("-")
    slot.release()
