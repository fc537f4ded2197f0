"""Committed state on disk, in one LMDB environment for each task.

LMDB gives atomic writes and lock-free reads. It is not synced at each commit: the changelog topic
is the truth, and a store that may have lost writes to a crash of the machine (another boot id and
not closed cleanly) is emptied at opening, as is one older than the changelog's tombstones, one
that belongs to other topics, and one whose file is damaged or was copied while in use. Opening
also takes the task's lock, so that a former owner of the partition and its successor never write
together.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import lmdb
import msgspec

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.stores.base import StoreIdentity, Writes
from onceflow.sdk.serde import to_json

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

MAP_SIZE_START_BYTES = 64 * 1024 * 1024
MAP_SIZE_GROWTH = 2
MAP_SIZE_MAX_BYTES = 1 << 46
KEY_BYTES_MAX = 510
"""LMDB's limit of 511 less one byte that tells plain keys from hashed ones."""

LAYOUT = 1
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


class StoreInfo(msgspec.Struct, frozen=True):
    """What is known about a store on disk, kept within it."""

    layout: int
    boot_id: str
    closed_cleanly: bool
    synced_ms: int
    """When it was last known to be complete: restored, or committed to."""
    changelogs: dict[str, str]
    partitions: int
    file_id: str = ""
    """Device and inode of the data file, by which a copy of an open store is known."""


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


def open_store(
    path: Path,
    states: list[str],
    identity: StoreIdentity,
    now_ms: int,
    tombstone_age_max_ms: int = TOMBSTONE_AGE_MAX_MS,
) -> LmdbTaskStore | None:
    """Open a task's store, emptied first if it must not be trusted.

    Args:
        path: Directory of the task.
        states: Names of its states.
        identity: The topics that it has to belong to.
        now_ms: Wall-clock time.
        tombstone_age_max_ms: Age at which deletions may be missing from the changelog.

    Returns:
        The store, or None while another process (a former owner) still holds it.

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
        store = _open_trusted(path, states, lock, identity, now_ms, tombstone_age_max_ms)
        if store is None:
            shutil.rmtree(path, ignore_errors=True)
            store = LmdbTaskStore(path, states, lock)
            store.begin_use(identity, now_ms)
    except (OSError, lmdb.Error) as error:
        lock.close()
        raise StateDirectoryError(f"state {path}: {error}; set state_dir") from error
    except BaseException:
        lock.close()
        raise
    return store


def _open_trusted(
    path: Path,
    states: list[str],
    lock: TextIO,
    identity: StoreIdentity,
    now_ms: int,
    tombstone_age_max_ms: int,
) -> LmdbTaskStore | None:
    """The store as it is, or None if it has to be rebuilt."""
    store: LmdbTaskStore | None = None
    distrust: str | None = "it was found damaged"
    try:
        if not (path / DAMAGED_FILE).exists():
            store = LmdbTaskStore(path, states, lock)
            distrust = store.reason_to_rebuild(identity, now_ms, tombstone_age_max_ms)
            if distrust is None:
                store.begin_use(identity, now_ms)
                return store
    except _DAMAGE as error:
        distrust = f"it is damaged: {error}"
    logger.warning("state %s: rebuilding from the changelog: %s", path, distrust)
    if store is not None:
        store.close_environment()
    return None


class LmdbTaskStore:
    """An LMDB environment with one database for each state; made by ``open_store``."""

    def __init__(self, path: Path, states: list[str], lock: TextIO) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = lock
        self._environment: lmdb.Environment = lmdb.open(
            os.fspath(path),
            map_size=MAP_SIZE_START_BYTES,
            max_dbs=len(states) + 1,
            sync=False,
            metasync=False,
            max_readers=8,
        )
        self._info: StoreInfo | None = None
        self._offsets: dict[str, int] = {}
        try:
            self._check_length()
            self._meta = self._environment.open_db(b"meta")
            self._databases = {
                state: self._environment.open_db(b"state." + state.encode()) for state in states
            }
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
        raw = self._reader.get(b"info", db=self._meta)
        if raw is not None:
            self._info = msgspec.json.decode(raw, type=StoreInfo)
        for state in self._databases:
            offset = self._reader.get(b"offset." + state.encode(), db=self._meta)
            if offset is not None:
                self._offsets[state] = int(offset)

    def reason_to_rebuild(
        self, identity: StoreIdentity, now_ms: int, tombstone_age_max_ms: int
    ) -> str | None:
        """Why the content must not be trusted, or None."""
        info = self._info
        if info is None:
            return None
        if info.layout != LAYOUT:
            return f"layout {info.layout} is not {LAYOUT}"
        if not info.closed_cleanly and info.boot_id != boot_id():
            return "the machine went down while it was open"
        if not info.closed_cleanly and info.file_id and info.file_id != self._file_id():
            return "it was copied while it was open"
        if now_ms - info.synced_ms > tombstone_age_max_ms:
            return "it is older than the changelog keeps deletions"
        if info.partitions != identity.partitions:
            return f"the input had {info.partitions} partitions, now {identity.partitions}"
        for state, topic_id in identity.changelogs.items():
            if topic_id and info.changelogs.get(state, topic_id) != topic_id:
                return f"the changelog topic of state {state!r} was made anew"
        return None

    def begin_use(self, identity: StoreIdentity, now_ms: int) -> None:
        """Note that the store is open, and for which topics."""
        info = StoreInfo(
            layout=LAYOUT,
            boot_id=boot_id(),
            closed_cleanly=False,
            # Opening does not make it complete: deletions may still be missing.
            synced_ms=now_ms if self._info is None else self._info.synced_ms,
            file_id=self._file_id(),
            changelogs=dict(identity.changelogs),
            partitions=identity.partitions,
        )
        self._write_info(info)

    def _write_info(self, info: StoreInfo) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(b"info", to_json(info), db=self._meta)
        self._info = info

    def get(self, state: str, key: bytes) -> bytes | None:
        """The committed value, or None."""
        try:
            found: bytes | None = self._reader.get(_stored_key(key), db=self._databases[state])
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def _damaged(self, error: Exception) -> StateDirectoryError:
        with contextlib.suppress(OSError):
            (self._path / DAMAGED_FILE).touch()
        return StateDirectoryError(
            f"state {self._path}: {error}; the next start rebuilds it from the changelog"
        )

    def apply(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        """Write values and changelog offsets in one atomic step, growing the map if need be."""
        self._reader.abort()
        try:
            while True:
                try:
                    self._write(writes, offsets)
                    break
                except lmdb.MapFullError:
                    self._grow()
                except _DAMAGE as error:
                    raise self._damaged(error) from error
                except lmdb.Error as error:  # A full disk, mostly.
                    raise StateDirectoryError(f"state {self._path}: {error}") from error
        finally:
            self._reader = self._environment.begin()
        self._offsets.update(offsets)

    def _write(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        with self._environment.begin(write=True) as transaction:
            for state, changes in writes.items():
                database = self._databases[state]
                for key, value in changes.items():
                    stored = _stored_key(key)
                    if value is None:
                        transaction.delete(stored, db=database)
                    else:
                        transaction.put(stored, value, db=database)
            for state, offset in offsets.items():
                transaction.put(b"offset." + state.encode(), b"%d" % offset, db=self._meta)

    def _grow(self) -> None:
        size = self._environment.info()["map_size"] * MAP_SIZE_GROWTH
        if size > MAP_SIZE_MAX_BYTES:
            raise StateDirectoryError(f"state {self._path} exceeds {MAP_SIZE_MAX_BYTES} bytes")
        logger.info("state %s: map grows to %d bytes", self._path, size)
        self._environment.set_mapsize(size)

    def offset(self, state: str) -> int | None:
        """Changelog offset up to which the state is complete, or None for an empty store."""
        return self._offsets.get(state)

    def items(self, state: str) -> Iterator[tuple[bytes, bytes]]:
        """All committed entries; keys longer than ``KEY_BYTES_MAX`` come as their hash."""
        for key, value in self._reader.cursor(db=self._databases[state]):
            yield bytes(key[1:]), bytes(value)

    def wipe(self, state: str) -> None:
        """Forget the values and the offset of one state."""
        self._reader.abort()
        try:
            with self._environment.begin(write=True) as transaction:
                transaction.drop(self._databases[state], delete=False)
                transaction.delete(b"offset." + state.encode(), db=self._meta)
        finally:
            self._reader = self._environment.begin()
        self._offsets.pop(state, None)

    def note_complete(self, now_ms: int) -> None:
        """The store holds everything that was committed up to now, deletions included."""
        if self._info is not None:
            self._write_info(msgspec.structs.replace(self._info, synced_ms=now_ms))

    def close(self) -> None:
        """Sync, note the clean end, release files and the lock."""
        try:
            if self._info is not None:
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


def _stored_key(key: bytes) -> bytes:
    """LMDB wants keys of 1 to 511 bytes; Kafka's may be empty or longer."""
    if len(key) <= KEY_BYTES_MAX:
        return b"k" + key
    return b"h" + hashlib.blake2b(key, digest_size=32).digest()
