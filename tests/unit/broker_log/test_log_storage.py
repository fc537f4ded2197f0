"""Goal: the real and the in-memory folder behave alike, and handles stay few.

Method: the same calls on both storages, results compared; on the real one also the number of open
handles and the syncing thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onceflow.broker_lite.log import MemoryStorage, RealStorage, Storage
from onceflow.broker_lite.testing.failing_storage import FailingStorage


@pytest.fixture(params=["real", "memory", "failing"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "real":
        return RealStorage(tmp_path / "data")
    return MemoryStorage() if request.param == "memory" else FailingStorage()


def test_files_grow_are_read_anywhere_and_cut(storage: Storage) -> None:
    storage.make_directory("d")
    file = storage.open("d/f")
    assert (file.size, file.read(0, 10)) == (0, b"")
    assert storage.files("d") == {}
    file.append([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]])
    assert (file.size, file.read(0, 100), file.read(2, 2)) == (6, b"abcdef", b"cd")
    assert file.read(5, 10) == b"f"
    assert file.read(6, 10) == file.read(99, 10) == b""
    file.truncate(3)
    file.append([b"Z"])
    file.flush()
    file.close()
    assert file.read(0, 10) == b"abcZ"
    assert storage.files("d") == {"f": 4}
    assert storage.open("d/f").size == 4
    storage.close()


def test_an_empty_file_can_be_made_and_filled_through_any_handle(storage: Storage) -> None:
    storage.make_directory("d")
    storage.open("d/f").create()
    assert storage.files("d") == {"f": 0}
    storage.open("d/f").append([b"abc"])
    assert storage.read_bytes("d/f") == b"abc"
    storage.close()


def test_folders_are_listed_renamed_and_removed(storage: Storage) -> None:
    storage.make_directory("b-0")
    storage.make_directory("a-0")
    storage.make_directory("a-0")
    storage.open("a-0/f").append([b"x"])
    storage.replace("in-root", b"1")
    assert storage.directories() == ["a-0", "b-0"]
    storage.rename_directory("a-0", "c-delete")
    assert storage.directories() == ["b-0", "c-delete"]
    assert storage.read_bytes("c-delete/f") == b"x"
    storage.remove_directory("c-delete")
    assert storage.directories() == ["b-0"]
    assert storage.files("c-delete") == {}
    with pytest.raises(FileNotFoundError):
        storage.remove_directory("c-delete")
    storage.close()


def test_whole_files_are_replaced_and_removed(storage: Storage) -> None:
    assert storage.read_bytes("f") is None
    storage.replace("f", b"one")
    storage.replace("f", b"two", durable=True)
    assert storage.read_bytes("f") == b"two"
    storage.remove("f")
    storage.remove("f")
    assert storage.read_bytes("f") is None
    storage.close()


def test_files_are_synced_in_the_background(storage: Storage) -> None:
    storage.make_directory("d")
    storage.open("d/f").append([b"x"])
    done = threading.Event()
    storage.flush_later(["d/f", "d/never-made"], done.set)
    assert done.wait(30)
    storage.close()


def test_no_more_handles_are_open_than_allowed(tmp_path: Path) -> None:
    storage = RealStorage(tmp_path, open_files_max=8)
    storage.make_directory("d")
    files = [storage.open(f"d/{number}") for number in range(50)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append([b"%d" % ((number + turn) % 10)])
            assert storage.open_handles <= 8
    before = len(os.listdir("/proc/self/fd"))
    for number, file in enumerate(files):
        expected = b"".join(b"%d" % ((number + turn) % 10) for turn in range(3))
        assert file.read(0, 10) == expected
    assert len(os.listdir("/proc/self/fd")) <= before
    storage.close()
    assert storage.open_handles == 0


def test_a_file_in_steady_use_keeps_its_handle(tmp_path: Path) -> None:
    storage = RealStorage(tmp_path, open_files_max=4)
    storage.make_directory("d")
    busy = storage.open("d/busy")
    busy.append([b"x"])
    handle = busy._fd  # type: ignore[attr-defined]
    for number in range(30):
        storage.open(f"d/{number}").append([b"y"])
        busy.append([b"x"])
    assert busy._fd == handle  # type: ignore[attr-defined]
    storage.close()


def test_bytes_of_a_failed_write_do_not_count() -> None:
    storage = FailingStorage()
    storage.make_directory("d")
    file = storage.open("d/f")
    file.append([b"abc"])
    storage.fail_write(len(storage.writes), written_bytes=2)
    with pytest.raises(OSError, match="no space left"):
        file.append([b"defg"])
    assert (file.size, file.read(0, 10)) == (3, b"abc")
    assert storage.inner.read_bytes("d/f") == b"abcde"
    file.append([b"X"])
    assert storage.inner.read_bytes("d/f") == b"abcXe"
    assert file.read(0, 10) == b"abcX"


def test_a_storage_that_nobody_closed_lets_the_process_end(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from onceflow.broker_lite.log import RealStorage\n"
        "storage = RealStorage(sys.argv[1])\n"
        "storage.flush_later(['nothing'], lambda: print('done', flush=True))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
