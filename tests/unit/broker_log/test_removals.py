"""Goal: a file that is set aside replaces none that waits; its name is free again later.

Method: files in memory that are set aside under one name several times, removed at given times.
"""

from __future__ import annotations

from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.log.removals import Removals

FOLDER, PATH = "t-0", "t-0/00.log"


def set_aside(storage: MemoryStorage, removals: Removals, content: bytes, due_ms: int) -> None:
    storage.make_directory(FOLDER)
    storage.replace(PATH, content)
    removals.set_aside(FOLDER, [PATH, "t-0/not there"], due_ms)


def contents(storage: MemoryStorage) -> dict[str, bytes]:
    found = {name: storage.read_bytes(f"{FOLDER}/{name}") for name in storage.files(FOLDER)}
    return {name: content for name, content in found.items() if content is not None}


def test_files_of_one_name_wait_beside_each_other() -> None:
    storage = MemoryStorage()
    removals = Removals(storage)
    for number in range(3):
        set_aside(storage, removals, b"%d" % number, due_ms=100 + number)
    assert contents(storage) == {
        "00.log.deleted": b"0",
        "00.log.1.deleted": b"1",
        "00.log.2.deleted": b"2",
    }


def test_only_names_of_what_was_removed_are_free_again() -> None:
    storage = MemoryStorage()
    removals = Removals(storage)
    set_aside(storage, removals, b"early", due_ms=100)
    set_aside(storage, removals, b"late", due_ms=200)
    removals.run_due(100)
    assert contents(storage) == {"00.log.1.deleted": b"late"}
    set_aside(storage, removals, b"new", due_ms=300)
    set_aside(storage, removals, b"newer", due_ms=400)
    assert contents(storage) == {
        "00.log.deleted": b"new",
        "00.log.1.deleted": b"late",
        "00.log.2.deleted": b"newer",
    }
    removals.run_due(400)
    assert contents(storage) == {}
    set_aside(storage, removals, b"last", due_ms=500)
    assert contents(storage) == {"00.log.deleted": b"last"}


def test_what_waits_in_a_renamed_folder_is_forgotten() -> None:
    storage = MemoryStorage()
    removals = Removals(storage)
    set_aside(storage, removals, b"old", due_ms=100)
    storage.rename_directory(FOLDER, "away")
    removals.forget_folder(FOLDER)
    set_aside(storage, removals, b"new", due_ms=100)
    assert contents(storage) == {"00.log.deleted": b"new"}
    removals.run_due(100)
    assert contents(storage) == {}
    assert storage.read_bytes("away/00.log.deleted") == b"old"
