"""Committed state on disk, in one LMDB environment for each task.

LMDB gives atomic writes and lock-free reads. It is not synced at each commit: the changelog topic
is the truth. A file that may have lost writes to a crash of the machine (another boot id and not
closed cleanly), that is older than the changelog's tombstones, that is damaged, or that was copied
while in use is emptied when it is opened, and rebuilt. Opening also takes the task's lock, so that
a former owner of the partition and its successor never write together.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TextIO, cast

import lmdb
import msgspec

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.state.bytemap import Marks
from onceflow.processors.stores.key_folding import KeyFolding
from onceflow.sdk.serde import to_json

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

MAP_SIZE_START_BYTES = 64 * 1024 * 1024
MAP_SIZE_GROWTH = 2
MAP_SIZE_MAX_BYTES = 1 << 46

GATHERED_WRITES = 5_000
GATHERED_BYTES = 4 * 1024 * 1024
"""Committed writes that are held in memory before they reach the file together. A process that is
killed loses these, as it loses its last commit: the changelog is read again from the mark on."""

LAYOUT = 2
INFO_KEY: Final = b"\x00\x00info"
MARKS_KEY: Final = b"\x00\x00marks"
DATA_FILE = "data.mdb"
DAMAGED_FILE = "damaged"
"""Lies beside the data once reading them failed; the next opening empties the store."""

TOMBSTONE_AGE_MAX_MS = 24 * 3600 * 1000
"""Kafka's default ``delete.retention.ms``: after that, deletions are missing from a changelog."""


_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.DbsFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    msgspec.DecodeError,
    ValueError,
)
"""What opening a file says that is not, or not wholly, a store."""


class FileInfo(msgspec.Struct, frozen=True):
    """What is known about a file, kept within it."""

    layout: int
    boot_id: str
    closed_cleanly: bool
    file_id: str = ""
    """Device and inode, by which a copy of an open file is known."""


def boot_id() -> str:
    """Changes with every start of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def try_lock(path: Path) -> TextIO | None:
    """Take a lock file without waiting.

    Returns:
        The open file, which holds the lock until it is closed; None if somebody else has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def open_map(
    path: Path, now_ms: int, tombstone_age_max_ms: int = TOMBSTONE_AGE_MAX_MS
) -> LmdbMap | None:
    """Open a task's map, emptied first if it must not be trusted.

    Args:
        path: Directory of the task.
        now_ms: Wall-clock time.
        tombstone_age_max_ms: Age at which deletions may be missing from a changelog, the
            smallest ``delete.retention.ms`` of its topics.

    Returns:
        The map, or None while another process (a former owner) still holds it.

    Raises:
        StateDirectoryError: The directory cannot be used.
    """
    try:
        lock = try_lock(path.with_name(path.name + ".lock"))
    except OSError as error:
        raise StateDirectoryError(f"state directory {path}: {error}; set state_dir") from error
    if lock is None:
        return None
    try:
        found = _open_trusted(path, lock, now_ms, tombstone_age_max_ms)
        if found is None:
            shutil.rmtree(path, ignore_errors=True)
            found = LmdbMap(path, lock)
        found.begin_use(now_ms)
    except (OSError, lmdb.Error) as error:
        lock.close()
        raise StateDirectoryError(f"state {path}: {error}; set state_dir") from error
    except BaseException:
        lock.close()
        raise
    return found


def _open_trusted(
    path: Path, lock: TextIO, now_ms: int, tombstone_age_max_ms: int
) -> LmdbMap | None:
    """The map as it is, or None if it has to be rebuilt."""
    found: LmdbMap | None = None
    distrust: str | None = "it was found damaged"
    try:
        if not (path / DAMAGED_FILE).exists():
            found = LmdbMap(path, lock)
            distrust = found.reason_to_rebuild(now_ms, tombstone_age_max_ms)
            if distrust is None:
                return found
    except _DAMAGE as error:
        distrust = f"it is damaged: {error}"
    logger.warning("state %s: rebuilding from the changelog: %s", path, distrust)
    if found is not None:
        found.close_environment()
    return None


class LmdbMap:
    """The byte map of one task, in an LMDB environment of its own; made by ``open_map``."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.marks: Marks = Marks()
        self._path = path
        self._lock = lock
        self._gathered: dict[bytes, bytes | None] = {}
        self._writes_left = GATHERED_WRITES
        self._bytes_left = GATHERED_BYTES
        self._environment: lmdb.Environment = lmdb.open(
            os.fspath(path),
            map_size=MAP_SIZE_START_BYTES,
            sync=False,
            metasync=False,
            max_readers=8,
        )
        self._info: FileInfo | None = None
        try:
            self._check_length()
            self._keys = KeyFolding(self._environment.max_key_size())
            self._reader = self._environment.begin()
            self._load()
        except BaseException:
            self.close_environment()
            raise

    def _check_length(self) -> None:
        """Refuse a file that ends before its last page: reading there would kill the process."""
        wanted = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        found = (self._path / DATA_FILE).stat().st_size
        if found < wanted:
            raise lmdb.CorruptedError(f"{DATA_FILE} has {found} bytes and should have {wanted}")

    def _file_id(self) -> str:
        found = (self._path / DATA_FILE).stat()
        return f"{found.st_dev}-{found.st_ino}"

    def _load(self) -> None:
        raw = self._reader.get(INFO_KEY)
        if raw is not None:
            self._info = msgspec.json.decode(raw, type=FileInfo)
        raw = self._reader.get(MARKS_KEY)
        if raw is not None:
            self.marks = msgspec.msgpack.decode(raw, type=Marks)

    def reason_to_rebuild(self, now_ms: int, tombstone_age_max_ms: int) -> str | None:
        """Why the content must not be trusted, or None."""
        info = self._info
        if info is None:
            return "its layout is not known" if self._environment.stat()["entries"] else None
        if info.layout != LAYOUT:
            return f"layout {info.layout} is not {LAYOUT}"
        if not info.closed_cleanly and info.boot_id != boot_id():
            return "the machine went down while it was open"
        if not info.closed_cleanly and info.file_id and info.file_id != self._file_id():
            return "it was copied while it was open"
        if now_ms - self.marks.complete_ms > tombstone_age_max_ms:
            return "it is older than the changelog keeps deletions"
        return None

    def begin_use(self, now_ms: int) -> None:
        """Note that the map is open; opening an old one does not make it complete."""
        if self._info is None:
            self.apply({}, Marks(complete_ms=now_ms))
        self._write_info(FileInfo(LAYOUT, boot_id(), False, self._file_id()))

    def _write_info(self, info: FileInfo) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(INFO_KEY, to_json(info))
        self._info = info

    # Reading -------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        if key in self._gathered:
            return self._gathered[key]
        try:
            if len(key) > self._keys.plain_max:
                data = self._reader.get(self._keys.fold(key))
                return None if data is None else self._keys.value_of(data)
            found: bytes | None = self._reader.get(key)
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < end`` in order of their keys."""
        self._write_gathered()
        return self._range(start, end, reverse)

    def _range(
        self, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._keys.in_order(
                self._raw_range(start, end, reverse), start, end, reverse
            )
        except lmdb.Error as error:
            raise self._damaged(error) from error

    def _raw_range(
        self, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """A superset of the range by stored keys, in their order."""
        low, high = self._keys.bounds(start, end)
        cursor = self._reader.cursor()
        if reverse:
            above = high is not None and cursor.set_range(high)
            if not (cursor.prev() if above else cursor.last()):
                return
            for key, value in cursor.iterprev():
                if key < low:
                    return
                yield key, value
        elif cursor.set_range(low):
            for key, value in cursor.iternext():
                if high is not None and key >= high:
                    return
                yield key, value

    def _damaged(self, error: Exception) -> StateDirectoryError:
        self.note_damage()
        return StateDirectoryError(
            f"state {self._path}: {error}; the next start rebuilds it from the changelog"
        )

    def note_damage(self) -> None:
        """Have the next opening empty the map."""
        with contextlib.suppress(OSError):
            (self._path / DAMAGED_FILE).touch()

    # Writing -------------------------------------------------------------------------------

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values and marks in one atomic step.

        The writes of several commits reach the file together, with the marks of the last one: each
        is a whole number of pages, however few values it has. A range reads the file alone, so it
        writes them first; marks without values are written at once.
        """
        self._gathered.update(writes)
        self.marks = marks
        self._writes_left -= len(writes)
        self._bytes_left -= sum(map(len, filter(None, writes.values())))
        if not writes or self._writes_left <= 0 or self._bytes_left <= 0:
            self._write_gathered(marks_too=True)

    def _write_gathered(self, *, marks_too: bool = False) -> None:
        """Let what is gathered reach the file."""
        if not (self._gathered or marks_too):
            return
        puts, deletes = self._keys.folded(self._gathered)
        puts.append((MARKS_KEY, msgspec.msgpack.encode(self.marks)))
        puts.sort()  # Neighbours are written together.

        def write(transaction: lmdb.Transaction) -> None:
            for key in deletes:
                transaction.delete(key)
            transaction.cursor().putmulti(puts)

        self._change(write)
        self._gathered = {}
        self._writes_left, self._bytes_left = GATHERED_WRITES, GATHERED_BYTES

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write many values under one prefix, and marks, in one atomic step.

        Nothing is made for each value but its key: a restoration is bound by the processor.
        """
        longest = max(map(len, writes), default=0)
        if len(prefix) + longest > self._keys.plain_max or None in writes.values():
            self.apply({prefix + key: value for key, value in writes.items()}, marks)
            return
        self._write_gathered()
        values = cast("Mapping[bytes, bytes]", writes)
        keys = sorted(values)

        def write(transaction: lmdb.Transaction) -> None:
            stored = map(prefix.__add__, keys)
            transaction.cursor().putmulti(zip(stored, map(values.__getitem__, keys), strict=True))
            transaction.put(MARKS_KEY, msgspec.msgpack.encode(marks))

        self._change(write)
        self.marks = marks

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete everything under a prefix, and write marks."""
        self._write_gathered()

        def write(transaction: lmdb.Transaction) -> None:
            cursor = transaction.cursor()
            inside = cursor.set_range(prefix)
            while inside and bytes(cursor.key()).startswith(prefix):
                inside = cursor.delete()
            transaction.put(MARKS_KEY, msgspec.msgpack.encode(marks))

        self._change(write)
        self.marks = marks

    def _change(self, write: Callable[[lmdb.Transaction], None]) -> None:
        self._reader.abort()
        try:
            while True:
                try:
                    with self._environment.begin(write=True) as transaction:
                        write(transaction)
                    break
                except lmdb.MapFullError:
                    self._grow()
                except _DAMAGE as error:
                    raise self._damaged(error) from error
                except lmdb.Error as error:  # A full disk, mostly.
                    raise StateDirectoryError(f"state {self._path}: {error}") from error
        finally:
            self._renew()

    def _renew(self) -> None:
        """Read as of now from here on."""
        self._reader = self._environment.begin()

    def _grow(self) -> None:
        size = self._environment.info()["map_size"] * MAP_SIZE_GROWTH
        if size > MAP_SIZE_MAX_BYTES:
            raise StateDirectoryError(f"state {self._path} exceeds {MAP_SIZE_MAX_BYTES} bytes")
        logger.info("state %s: map grows to %d bytes", self._path, size)
        self._environment.set_mapsize(size)

    # The end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, note the clean end, release files and the lock."""
        try:
            if self._info is not None:
                self._write_gathered()
                self._environment.sync(True)
                self._reader.abort()
                self._write_info(msgspec.structs.replace(self._info, closed_cleanly=True))
                self._environment.sync(True)
        except lmdb.Error as error:
            raise StateDirectoryError(f"state {self._path}: {error}") from error
        finally:
            self.close_environment()
            self._lock.close()

    def close_environment(self) -> None:
        """Close LMDB and keep the lock."""
        self._environment.close()
