"""Committed state on disk, in one LMDB environment for each task.

LMDB has atomic writes and lock-free reads. A commit does not sync it, as the changelog topic is the
durable copy. At its opening, a file is emptied and then rebuilt from the changelog in these cases:
the machine crashed while it was open (another boot id, not closed cleanly), it is older than the
changelog keeps tombstones, it is damaged, or it was copied while in use. To open it, a process must
lock the task, so that the partition's former and present owner never write at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Committed writes that stay in memory until they are written to the file together. A killed
process loses them; the next start reads the changelog again from the offset in the file's marks."""

PUT_RECORDS = 256
"""Values that are read together before they are written: few enough for the processor's cache."""

LAYOUT = 2
INFO_KEY: Final = b"\x00\x00info"
MARKS_KEY: Final = b"\x00\x00marks"
DATA_FILE = "data.mdb"
DAMAGED_FILE = "damaged"
"""Marks a damaged store: the next opening empties it."""

TOMBSTONE_AGE_MAX_MS = 24 * 3600 * 1000
"""Kafka's default ``delete.retention.ms``, after which a changelog may lack tombstones."""


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
"""Errors from opening a file that is damaged or not a store."""


class FileInfo(msgspec.Struct, frozen=True):
    """Facts about a file, stored within it."""

    layout: int
    boot_id: str
    closed_cleanly: bool
    file_id: str = ""
    """Device and inode, which differ in a copy of the file."""


def boot_id() -> str:
    """Return an id that changes with each boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def try_lock(path: Path) -> TextIO | None:
    """Lock a file without waiting.

    Returns:
        The open file, which is locked until it is closed; None if another process has locked it.
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
    """Open a task's map, and empty it first if it cannot be trusted.

    Args:
        path: Directory of the task.
        now_ms: Wall-clock time.
        tombstone_age_max_ms: Age at which tombstones may be gone: the smallest
            ``delete.retention.ms`` of the changelogs.

    Returns:
        The map; None while another process (the former owner) has locked it.

    Raises:
        StateDirectoryError: The directory cannot be used.
    """
    try:
        lock = try_lock(path.with_name(path.name + ".lock"))
    except OSError as error:
        raise StateDirectoryError(
            f"state directory {path}: {error}; set state_dir to a directory that can be written"
        ) from error
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
        raise StateDirectoryError(
            f"state {path}: {error}; set state_dir to a directory that can be written"
        ) from error
    except BaseException:
        lock.close()
        raise
    return found


def _open_trusted(
    path: Path, lock: TextIO, now_ms: int, tombstone_age_max_ms: int
) -> LmdbMap | None:
    """Open the map; return None if it must be rebuilt."""
    found: LmdbMap | None = None
    distrust: str | None = "an earlier process found damage"
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
    """The byte map of one task in its own LMDB environment; ``open_map`` makes it."""

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
        """Refuse a file that ends before its last page: a read there would kill the process."""
        wanted = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        found = (self._path / DATA_FILE).stat().st_size
        if found < wanted:
            raise lmdb.CorruptedError(f"{DATA_FILE} has {found} bytes instead of {wanted}")

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
        """Return why the content cannot be trusted, or None."""
        info = self._info
        if info is None:
            return "its layout is unknown" if self._environment.stat()["entries"] else None
        if info.layout != LAYOUT:
            return f"its layout is {info.layout}, not {LAYOUT}"
        if not info.closed_cleanly and info.boot_id != boot_id():
            return "the machine stopped while it was open"
        if not info.closed_cleanly and info.file_id and info.file_id != self._file_id():
            return "it was copied while it was open"
        if now_ms - self.marks.complete_ms > tombstone_age_max_ms:
            return "it is older than the changelog keeps tombstones"
        return None

    def begin_use(self, now_ms: int) -> None:
        """Mark the map as open; only a new map is complete."""
        if self._info is None:
            self.apply({}, Marks(complete_ms=now_ms))
        self._write_info(FileInfo(LAYOUT, boot_id(), False, self._file_id()))

    def _write_info(self, info: FileInfo) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(INFO_KEY, to_json(info))
        self._info = info

    @property
    def disk_bytes(self) -> int | None:
        """Bytes of all pages that were ever used; LMDB gives none back to the disk."""
        used: int = self._environment.info()["last_pgno"] + 1
        size: int = self._environment.stat()["psize"]
        return used * size

    # Reading -------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
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
        """Yield entries with ``start <= key < end`` in order of their keys."""
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
        """Yield a superset of the range in the order of the stored keys."""
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

        LMDB writes whole pages, however few the values are. So the writes of several commits reach
        the file together, with the marks of the last one. A range reads only the file, so it first
        writes them. Marks without values are written at once.
        """
        self._gathered.update(writes)
        self.marks = marks
        self._writes_left -= len(writes)
        self._bytes_left -= sum(map(len, filter(None, writes.values())))
        if not writes or self._writes_left <= 0 or self._bytes_left <= 0:
            self._write_gathered(marks_too=True)

    def _write_gathered(self, *, marks_too: bool = False) -> None:
        """Write the gathered values to the file."""
        if not (self._gathered or marks_too):
            return

        keys = sorted(self._gathered)

        def write(transaction: lmdb.Transaction) -> None:
            self._put(transaction, b"", keys, self._gathered)
            transaction.put(MARKS_KEY, msgspec.msgpack.encode(self.marks))

        self._change(write)
        self._gathered = {}
        self._writes_left, self._bytes_left = GATHERED_WRITES, GATHERED_BYTES

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write many values under one prefix, and marks, in one atomic step."""
        self._write_gathered()
        keys = sorted(writes)

        def write(transaction: lmdb.Transaction) -> None:
            self._put(transaction, prefix, keys, writes)
            transaction.put(MARKS_KEY, msgspec.msgpack.encode(marks))

        self._change(write)
        self.marks = marks

    def _put(
        self,
        transaction: lmdb.Transaction,
        prefix: bytes,
        keys: Sequence[bytes],
        writes: Mapping[bytes, bytes | None],
    ) -> None:
        """Write values under a prefix, in the order of their keys, as neighbours share pages.

        It makes no object for a value but its key, as the CPU limits the speed. Values lie in
        memory in the order of their arrival. LMDB would wait for each of them in turn, so a few
        hundred at a time are first read together, which the processor overlaps.
        """
        cursor = transaction.cursor()
        plain_max = self._keys.plain_max - len(prefix)
        for start in range(0, len(keys), PUT_RECORDS):
            chunk = keys[start : start + PUT_RECORDS]
            values = list(map(writes.__getitem__, chunk))
            stored = map(prefix.__add__, chunk)
            if None in values or max(map(len, chunk)) > plain_max:
                puts, deletes = self._keys.folded(zip(stored, values, strict=True))
                for key in deletes:
                    transaction.delete(key)
                cursor.putmulti(puts)
            else:
                plain = cast("list[bytes]", values)
                b"".join(plain)  # Only to read them.
                cursor.putmulti(zip(stored, plain, strict=True))

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete all entries under a prefix, and write marks."""
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
                except lmdb.Error as error:  # most often a full disk
                    raise StateDirectoryError(f"state {self._path}: {error}") from error
        finally:
            self._renew()

    def _renew(self) -> None:
        """Begin a read transaction, which sees the last write."""
        self._reader = self._environment.begin()

    def _grow(self) -> None:
        size = self._environment.info()["map_size"] * MAP_SIZE_GROWTH
        if size > MAP_SIZE_MAX_BYTES:
            raise StateDirectoryError(f"state {self._path} exceeds {MAP_SIZE_MAX_BYTES} bytes")
        logger.info("state %s: map grows to %d bytes", self._path, size)
        self._environment.set_mapsize(size)

    # The end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, mark the file as closed cleanly, close it and unlock the task."""
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
