"""Reads the stores of a stopped worker: nothing is changed, rebuilt or noted.

``lmdb`` opens a store for a worker, which marks it as in use and empties one that it distrusts. For
a look from outside this module takes the task's lock, so that no worker opens the store meanwhile,
and reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import msgspec

from onceflow.processors.errors import StateCorruptedError, StateDirectoryError
from onceflow.processors.state.bytemap import Marks, prefix_of
from onceflow.processors.state.codec import plain_value
from onceflow.processors.state.keys import after, key_packing, split, unpack_int
from onceflow.processors.stores.key_folding import KeyFolding
from onceflow.processors.stores.lmdb import DATA_FILE, MARKS_KEY, try_lock

LOCK_SUFFIX: Final = ".lock"
MAP_KEYS: Final = {"int": int, "float": float, "str": str, "bytes": bytes}
_LIST: Final = "list of "
_ARROW: Final = " -> "


class Place(NamedTuple):
    """Where the state of a task lies.

    Attributes:
        app: Name of the application.
        group: Its group.
        part: Name of the sub-topology.
        partition: Partition number.
        path: Directory.
    """

    app: str
    group: str
    part: str
    partition: int
    path: Path


class Entry(NamedTuple):
    """One value of a store.

    Attributes:
        key: Key of the record.
        inner: Key within a map, position in a list; None for a single value.
        value: The value, without its types; the stored bytes where they are no value.
        is_raw: Whether these are the stored bytes.
    """

    key: bytes
    inner: object
    value: object
    is_raw: bool


def places(state_dir: Path) -> Iterator[Place]:
    """Find the state of all applications.

    Args:
        state_dir: Directory for state, of the applications' settings.
    """
    for path in sorted(state_dir.glob(f"*/state/*/*/*/{DATA_FILE}")):
        app, _, group, part, number = path.parent.relative_to(state_dir).parts
        if number.isascii() and number.isdigit():
            yield Place(app, group, part, int(number), path.parent)


class StoredMap:
    """The map of a task, open for reading; use it as a context.

    Args:
        path: Directory of the task.

    Raises:
        StateDirectoryError: A worker has it open, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lock = try_lock(path.with_name(path.name + LOCK_SUFFIX))
        if lock is None:
            raise StateDirectoryError(f"state {path} is in use by a worker; stop the worker first")
        self._lock = lock
        try:
            self._environment = lmdb.open(os.fspath(path), readonly=True, lock=False)
        except (OSError, lmdb.Error) as error:
            lock.close()
            raise StateDirectoryError(f"state {path}: {error}") from error
        try:
            info, stat = self._environment.info(), self._environment.stat()
            self.disk_bytes: int = (info["last_pgno"] + 1) * stat["psize"]
            if (path / DATA_FILE).stat().st_size < self.disk_bytes:
                raise StateDirectoryError(f"state {path}: the file is cut off")
            self._keys = KeyFolding(self._environment.max_key_size())
            self._reader = self._environment.begin()
            raw = self._reader.get(MARKS_KEY)
            self.marks: Marks = Marks() if raw is None else msgspec.msgpack.decode(raw, type=Marks)
        except (lmdb.Error, msgspec.DecodeError) as error:
            self.close()
            raise StateDirectoryError(f"state {path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StoredMap:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let a worker have it."""
        self._environment.close()
        self._lock.close()

    def entries(self, store: str) -> Iterator[Entry]:
        """Read a store, in the order of its keys.

        Args:
            store: Its name, ``function.state``.

        Raises:
            StateDirectoryError: The store does not exist or is damaged.
        """
        mark = self.marks.stores.get(store)
        if mark is None:
            known = ", ".join(self.marks.stores) or "none"
            raise StateDirectoryError(f"state {self._path} has no store {store!r}; it has {known}")
        prefix = prefix_of(mark.number)
        low, high = self._keys.bounds(prefix, after(prefix))
        try:
            cursor = self._reader.cursor()
            found = cursor.set_range(low)
            raw = cursor.iternext() if found else iter(())
            inside = _until(raw, high)
            for key, data in self._keys.in_order(inside, prefix, after(prefix), False):
                yield entry(mark.text, key[len(prefix) :], data)
        except lmdb.Error as error:
            raise StateDirectoryError(f"state {self._path}: {error}") from error


def _until(
    entries: Iterator[tuple[bytes, bytes]], end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    for key, data in entries:
        if end is not None and key >= end:
            return
        yield key, data


def entry(text: str, key: bytes, data: bytes) -> Entry:
    """Return what a key and a value stand for, in a map or in a changelog.

    Args:
        text: Structure of keys and values, as the store's mark has it.
        key: The key within the store.
        data: The stored bytes.
    """
    whole = key
    inner: object = None
    kind, arrow, _ = text.partition(_ARROW)
    try:
        if arrow and kind in MAP_KEYS:
            key, rest = split(key)
            inner = key_packing(MAP_KEYS[kind], "map")[1](rest)
        elif text.startswith(_LIST):
            key, rest = split(key)
            inner = unpack_int(rest)
    except (IndexError, ValueError):
        return Entry(key, None, data, True)  # A row that tells of the others, such as a length.
    try:
        return Entry(key, inner, plain_value(whole, data), False)
    except StateCorruptedError:
        return Entry(key, inner, data, True)
