"""A data folder in memory that fails, tears writes or stops on demand, for crash tests.

It records every change of the folder, and returns what would be on the disk after any number of
them, also with the next one half done.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from onceflow.broker_lite.log.disk_jobs import Job
from onceflow.broker_lite.log.memory_storage import MemoryStorage, split_path
from onceflow.broker_lite.log.storage import Buffer, Files, LogFile, Volume

T = TypeVar("T")


class Change(enum.Enum):
    """Kinds of changes of a data folder."""

    CREATE = "create"
    APPEND = "append"
    TRUNCATE = "truncate"
    FLUSH = "flush"
    FLUSH_DIRECTORY = "flush directory"
    REPLACE = "replace"
    RENAME = "rename"
    REMOVE = "remove"
    MAKE_DIRECTORY = "make directory"
    RENAME_DIRECTORY = "rename directory"
    REMOVE_DIRECTORY = "remove directory"
    FAILED = "failed"


class Write(NamedTuple):
    """One change.

    Attributes:
        change: Its kind.
        path: File or folder.
        data: Bytes to write.
        position: Position in the file, for appends and cuts.
        target: New name of a file or folder.
        durable: Whether the change itself is on the disk when it returns; for an append, whether
            the file exists on the disk.
    """

    change: Change
    path: str
    data: bytes = b""
    position: int = 0
    target: str = ""
    durable: bool = False


_MADE_DURABLE = frozenset(
    (
        Change.CREATE,
        Change.APPEND,
        Change.REPLACE,
        Change.RENAME,
        Change.MAKE_DIRECTORY,
        Change.RENAME_DIRECTORY,
    )
)
"""Changes of names that a durable storage syncs at once."""


class StorageStoppedError(OSError):
    """The storage stopped, as in a power loss; every call fails."""


class _FailingFile:
    __slots__ = ("_path", "_storage", "size")

    def __init__(self, storage: FailingStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.size = storage.inner.open(path).size

    def create(self) -> None:
        directory, name = split_path(self._path)
        if name not in self._storage.inner.files(directory):
            self._storage.apply(Write(Change.CREATE, self._path))

    def append(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        self._storage.apply(Write(Change.APPEND, self._path, data, self.size))
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        self._storage.check_running()
        length = min(length, self.size - position)
        return self._storage.inner.open(self._path).read(position, length)

    def truncate(self, size: int) -> None:
        self._storage.apply(Write(Change.TRUNCATE, self._path, position=size))
        self.size = size

    def flush(self) -> None:
        self._storage.apply(Write(Change.FLUSH, self._path))

    def close(self) -> None:
        pass


class FailingStorage:
    """A folder in memory whose changes are numbered from 0 and can be made to fail.

    Args:
        inner: Initial content; the storage changes it.
        durable: As of :class:`~onceflow.broker_lite.log.storage.RealStorage`.

    Attributes:
        inner: The present content.
        start: The initial content.
        writes: All attempted changes, in order.
    """

    def __init__(self, inner: MemoryStorage | None = None, *, durable: bool = False) -> None:
        self.inner: MemoryStorage = inner or MemoryStorage()
        self.writes: list[Write] = []
        self.start: MemoryStorage = _copied(self.inner)
        self._durable = durable
        self._failures: dict[int, tuple[int, int]] = {}
        self._stop_at: int | None = None
        self._stopped = False

    def fail_write(self, number: int, *, written_bytes: int = 0, code: int = errno.ENOSPC) -> None:
        """Make one change fail, by default with "no space left on device".

        Args:
            number: Number of the change.
            written_bytes: Bytes that reach the file nevertheless.
            code: The error's ``errno``.
        """
        self._failures[number] = written_bytes, code

    def stop_at(self, number: int, *, written_bytes: int = 0) -> None:
        """Stop in the middle of a change; it and all later calls fail.

        Args:
            number: Number of the change.
            written_bytes: Bytes of it that reach the disk.
        """
        self._stop_at = number
        self._failures[number] = written_bytes, errno.EIO

    def check_running(self) -> None:
        """Raise if the storage has stopped.

        Raises:
            StorageStoppedError: The storage stopped.
        """
        if self._stopped:
            raise StorageStoppedError(errno.EIO, "the storage stopped")

    def apply(self, write: Write) -> None:
        """Make one change, or fail as requested."""
        self.check_running()
        number = len(self.writes)
        failure = self._failures.pop(number, None)
        if self._durable and write.change in _MADE_DURABLE:
            write = write._replace(durable=True)
        if failure is not None:
            written_bytes, code = failure
            _apply_torn(self.inner, write, written_bytes)
            if number == self._stop_at:
                self._stopped = True
                self.check_running()
            # A replay must not make this change: it did not happen.
            self.writes.append(_torn(write, written_bytes))
            raise OSError(code, os.strerror(code).lower(), write.path)
        self.writes.append(write)
        _apply(self.inner, write)

    def disk_after(self, count: int, *, torn_bytes: int | None = None) -> MemoryStorage:
        """Return what the disk holds if the machine stops after a number of changes.

        Args:
            count: Number of complete changes.
            torn_bytes: Bytes of the next change that are on the disk too; None leaves it out.
        """
        disk = _copied(self.start)
        for write in self.writes[:count]:
            _apply(disk, write)
        if torn_bytes is not None and count < len(self.writes):
            _apply_torn(disk, self.writes[count], torn_bytes)
        return disk

    def lost_power_after(self, count: int, keep: Callable[[int], int]) -> MemoryStorage:
        """Return what the disk holds after a power loss.

        Bytes appended to a file since its last sync may be lost from any byte on.

        Args:
            count: Number of changes before the power loss.
            keep: Returns how many of a file's unsynced bytes survive.
        """
        disk = self.disk_after(count)
        synced: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for write in self.writes[:count]:
            if write.change is Change.APPEND:
                sizes[write.path] = write.position + len(write.data)
            elif write.change is Change.TRUNCATE:
                sizes[write.path] = write.position
                synced[write.path] = min(synced.get(write.path, 0), write.position)
            elif write.change is Change.FLUSH:
                synced[write.path] = sizes.get(write.path, 0)
        for path, size in sizes.items():
            directory, name = split_path(path)
            content = disk.content.get(directory, {}).get(name)
            if content is not None:
                safe = synced.get(path, 0)
                del content[safe + keep(size - safe) :]
        disk.power_losses += 1
        return disk

    def volume(self) -> Volume:
        self.check_running()
        return self.inner.volume()

    def session(self) -> str:
        self.check_running()
        return self.inner.session()

    def lock(self) -> None:
        self.check_running()
        self.inner.lock()

    def directories(self) -> list[str]:
        self.check_running()
        return self.inner.directories()

    def files(self, directory: str) -> dict[str, int]:
        self.check_running()
        return self.inner.files(directory)

    def names(self, directory: str) -> set[str]:
        self.check_running()
        return self.inner.names(directory)

    def make_directory(self, directory: str) -> None:
        self.apply(Write(Change.MAKE_DIRECTORY, directory))

    def rename_directory(self, old: str, new: str) -> None:
        self.apply(Write(Change.RENAME_DIRECTORY, old, target=new))

    def remove_directory(self, directory: str) -> None:
        self.apply(Write(Change.REMOVE_DIRECTORY, directory))

    def open(self, path: str) -> LogFile:
        self.check_running()
        return _FailingFile(self, path)

    def aside(self) -> Files:
        return self

    def begin(self, work: Callable[[], T]) -> Job[T]:
        job = Job(work)
        job.run()
        return job

    def read_bytes(self, path: str) -> bytes | None:
        self.check_running()
        return self.inner.read_bytes(path)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        self.apply(Write(Change.REPLACE, path, data, durable=durable))

    def rename(self, old: str, new: str) -> None:
        directory, name = split_path(old)
        if name not in self.names(directory):
            raise FileNotFoundError(old)
        self.apply(Write(Change.RENAME, old, target=new))

    def remove(self, path: str) -> None:
        self.apply(Write(Change.REMOVE, path))

    def flush_directory(self, directory: str) -> None:
        self.apply(Write(Change.FLUSH_DIRECTORY, directory, durable=True))

    def flush_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.apply(Write(Change.FLUSH, path))
        for directory in dict.fromkeys(split_path(path)[0] for path in paths):
            self.flush_directory(directory)

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        try:
            self.flush_files(paths)
        except StorageStoppedError:
            raise
        except OSError as error:
            if failed is not None:
                failed(error)
        else:
            done()

    def close(self) -> None:
        self.inner.close()


def _copied(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage()
    copy.power_losses = storage.power_losses
    copy.content = {
        directory: {name: bytearray(data) for name, data in files.items()}
        for directory, files in storage.content.items()
    }
    return copy


def _apply(disk: MemoryStorage, write: Write) -> None:
    """Do a change."""
    match write.change:
        case Change.CREATE:
            disk.open(write.path).create()
        case Change.APPEND:
            # A write replaces the bytes that a failed one left at its position, and no more.
            disk.open(write.path).create()
            directory, name = split_path(write.path)
            end = write.position + len(write.data)
            disk.content[directory][name][write.position : end] = write.data
        case Change.TRUNCATE:
            disk.open(write.path).truncate(write.position)
        case Change.REPLACE:
            disk.replace(write.path, write.data)
        case Change.RENAME:
            disk.rename(write.path, write.target)
        case Change.REMOVE:
            disk.remove(write.path)
        case Change.MAKE_DIRECTORY:
            disk.make_directory(write.path)
        case Change.RENAME_DIRECTORY:
            disk.rename_directory(write.path, write.target)
        case Change.REMOVE_DIRECTORY:
            disk.remove_directory(write.path)
        case Change.FLUSH | Change.FLUSH_DIRECTORY | Change.FAILED:
            pass


def _torn(write: Write, written_bytes: int) -> Write:
    """The part of a change that happens when it is interrupted."""
    if write.change is Change.APPEND:
        return write._replace(data=write.data[:written_bytes])
    if write.change is Change.REPLACE:
        return write._replace(path=f"{write.path}.tmp", data=write.data[:written_bytes])
    return Write(Change.FAILED, write.path)


def _apply_torn(disk: MemoryStorage, write: Write, written_bytes: int) -> None:
    _apply(disk, _torn(write, written_bytes))
