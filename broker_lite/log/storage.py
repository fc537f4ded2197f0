"""The broker's files: the interface that the logs use, and its implementation on a disk.

This is the only module of the broker that touches files. It decides how bytes reach a file, how
many handles are open at once and when the disk is asked to sync. It does not interpret
bytes. Paths are relative to the data folder: ``name`` in the root, ``folder/name`` below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from onceflow.broker_lite.log.disk_jobs import Job, Worker
from onceflow.broker_lite.log.log_errors import StorageLockedError

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview
"""Bytes that are passed on as they are."""

OPEN_FILES_MAX = 8192
"""Most handles that :class:`RealStorage` keeps open, and at most half of what the process may. The
least used file is closed, and opened again when it is needed."""

ASIDE_FILES_MAX = 16
"""Most handles that jobs keep open beside those."""

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
"""A file of Linux whose content changes with each boot."""

LOCK_FILE = ".lock"

PRIVATE_SUFFIX = ".json"
"""Suffix of files that only the broker's own user may read: keys of users, ACLs, settings. Files in
Kafka's own formats have the permissions that Kafka gives them."""

_READ_AT_ONCE_BYTES = 1024 * 1024

_logger = logging.getLogger("onceflow.broker_lite.log")


class LogFile(Protocol):
    """A file that grows at its end, is read anywhere and may be cut.

    The first :meth:`append` or :meth:`create` makes the file. ``size`` counts only successful
    writes; the next append overwrites the bytes that a failed write left.
    """

    @property
    def size(self) -> int:
        """Bytes in the file."""
        ...

    def create(self) -> None:
        """Make the file if it does not exist."""
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write the parts one after the other at the end.

        Raises:
            OSError: Nothing counts as written.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``position``, fewer at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file."""
        ...

    def flush(self) -> None:
        """Return when the content would survive a power loss."""
        ...

    def close(self) -> None:
        """Close the handle; the next use opens it again."""
        ...


class Volume(NamedTuple):
    """The place of a data folder, and its free space.

    Attributes:
        folder: Its absolute path; ``memory`` if it is in memory.
        total_bytes: Size of the file system, -1 if there is none.
        usable_bytes: Free bytes of it, -1 if there is none.
        handles_max: File handles that its logs may hold at a time.
    """

    folder: str
    total_bytes: int
    usable_bytes: int
    handles_max: int = 0


class Files(Protocol):
    """Opens files: the storage itself, or separate handles (:meth:`Storage.aside`)."""

    def open(self, path: str) -> LogFile:
        """A file to read and append to. Nothing is made on the disk yet."""
        ...


class Storage(Protocol):
    """One data folder: files in its root and in one level of folders.

    One thread uses it. From another one, or in a job, only these may be called: ``open`` of what
    :meth:`aside` returns, ``flush_files``, ``flush_directory``, ``remove``, ``remove_directory``.
    """

    def volume(self) -> Volume:
        """Return the place and the free space of the folder.

        Raises:
            OSError: The file system does not answer.
        """
        ...

    def session(self) -> str:
        """Return an id of the system's boot, with which the page cache began; empty if unknown."""
        ...

    def lock(self) -> None:
        """Lock the folder for this broker.

        Raises:
            StorageLockedError: Another broker has the lock.
        """
        ...

    def directories(self) -> list[str]:
        """Names of the folders, sorted."""
        ...

    def files(self, directory: str) -> dict[str, int]:
        """Names and sizes of a folder's files."""
        ...

    def names(self, directory: str) -> set[str]:
        """Names of a folder's files; empty if there is no such folder."""
        ...

    def make_directory(self, directory: str) -> None:
        """Make a folder, if it does not exist."""
        ...

    def rename_directory(self, old: str, new: str) -> None:
        """Rename a folder and everything in it; files that are open are closed first."""
        ...

    def remove_directory(self, directory: str) -> None:
        """Remove a folder and everything in it, all of it closed."""
        ...

    def open(self, path: str) -> LogFile:
        """A file to read and append to. Nothing is made on the disk yet."""
        ...

    def aside(self) -> Files:
        """Return files with separate handles, for a job or another thread."""
        ...

    def begin(self, work: Callable[[], T]) -> Job[T]:
        """Begin work that waits for the disk, perhaps in another thread.

        Jobs run one after the other, in the order in which they were begun.
        """
        ...

    def read_bytes(self, path: str) -> bytes | None:
        """Return a whole file, or None if it does not exist."""
        ...

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole file so that readers see the old or the new content, never a mixture.

        Args:
            path: The file.
            data: New content.
            durable: Return only when it would survive a power loss.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a closed file; an existing file of the new name is replaced.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def flush_directory(self, directory: str) -> None:
        """Return when the names of a folder's files would survive a power loss."""
        ...

    def flush_files(self, paths: Sequence[str]) -> None:
        """Return when files and their names would survive a power loss.

        Args:
            paths: Files; one that was removed meanwhile is skipped.
        """
        ...

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        """Sync files and their folders in the background.

        Args:
            paths: Files; one that was removed meanwhile is skipped.
            done: Called when all are on the disk, perhaps in another thread; not called on failure.
            failed: Called instead on failure, perhaps in another thread.
        """
        ...

    def close(self) -> None:
        """Close every handle and release the lock."""
        ...


class _RealFile:
    """A file by its path, with a handle that may be closed and reopened at any time."""

    __slots__ = ("_fd", "_new", "_pool", "path", "recently_used", "size")

    def __init__(self, path: str, pool: _HandlePool) -> None:
        self.path = path
        self._pool = pool
        self._fd = -1
        self.recently_used = False
        try:
            self.size = os.stat(path).st_size
            self._new = False
        except FileNotFoundError:
            self.size = 0
            self._new = True

    def _open(self, flags: int = os.O_CREAT) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        self._fd = fd
        self._pool.admit(self)
        if self._new:
            self._new = False
            if self._pool.durable:
                _sync_path(os.path.dirname(self.path))
        return fd

    def create(self) -> None:
        if self._fd < 0:
            self._open()

    def append(self, parts: Sequence[Buffer]) -> None:
        fd = self._fd
        if fd < 0:
            fd = self._open()
        self.recently_used = True
        position = self.size
        total = 0
        for part in parts:
            total += len(part)
        written = os.pwritev(fd, parts, position)
        if written != total:
            self._append_rest(fd, b"".join(parts), written)
        self.size = position + total

    def _append_rest(self, fd: int, data: bytes, written: int) -> None:
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(fd, view[written:], self.size + written)

    def read(self, position: int, length: int) -> bytes:
        fd = self._fd
        if fd < 0:
            if position >= self.size:
                return b""
            fd = self._open(0)
        self.recently_used = True
        length = min(length, self.size - position)
        if length <= 0:
            return b""
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        while done < length:
            data = os.pread(fd, length - done, position + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        if self._fd < 0:
            self._open()
        os.ftruncate(self._fd, size)
        self.size = size

    def flush(self) -> None:
        if self._fd < 0:
            self._open()
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._pool.forget(self)
            self.release()

    def release(self) -> None:
        """Close the handle, after the pool has removed the file."""
        fd, self._fd = self._fd, -1
        os.close(fd)


class _HandlePool:
    """Bounds the open handles: the least recently used ones are closed (second chance)."""

    def __init__(self, limit: int, *, durable: bool) -> None:
        self.limit: int = limit
        self.durable = durable
        # In the order of opening or of the second chance; below, by folder.
        self._open: dict[_RealFile, None] = {}
        self._by_folder: dict[str, set[_RealFile]] = {}

    def admit(self, file: _RealFile) -> None:
        file.recently_used = True
        while len(self._open) >= self.limit:
            oldest = next(iter(self._open))
            if oldest.recently_used:
                oldest.recently_used = False
                del self._open[oldest]
                self._open[oldest] = None
            else:
                self.forget(oldest)
                oldest.release()
        self._open[file] = None
        self._by_folder.setdefault(os.path.dirname(file.path), set()).add(file)

    def forget(self, file: _RealFile) -> None:
        self._open.pop(file, None)
        folder = os.path.dirname(file.path)
        files = self._by_folder.get(folder)
        if files is not None:
            files.discard(file)
            if not files:
                del self._by_folder[folder]

    def close_folder(self, folder: str) -> None:
        """Close every file of a folder."""
        for file in list(self._by_folder.get(folder, ())):
            file.close()

    def close_all(self) -> None:
        """Close every file."""
        for file in list(self._open):
            file.close()

    def __len__(self) -> int:
        return len(self._open)


def _sync_path(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class RealStorage:
    """Files under a folder on disk.

    Jobs and flushes in the background have a thread each.

    Args:
        root: The data folder; made if it is missing.
        open_files_max: Handles kept open at once; None takes half of what the process may have
            (``ulimit -n``), up to 8,192.
        durable: Sync every new, replaced or renamed file and folder before the call returns.
            ``flush`` and ``flush_later`` sync appended bytes.
        in_background: Run jobs in a thread; otherwise :meth:`begin` returns when the job is done.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        open_files_max: int | None = None,
        durable: bool = False,
        in_background: bool = True,
    ) -> None:
        # A relative path would change with the working directory of the process.
        self.root: str = os.path.abspath(root)
        os.makedirs(self.root, exist_ok=True)
        self._durable = durable
        if open_files_max is None:
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            open_files_max = max(1, min(OPEN_FILES_MAX, allowed // 2))
        self._pool = _HandlePool(open_files_max, durable=durable)
        self._in_background = in_background
        self._flusher = Worker("onceflow-log-flush")
        self._upkeep = Worker("onceflow-log-upkeep")
        self._lock_fd = -1

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}"

    @property
    def open_handles(self) -> int:
        """Handles that are open now."""
        return len(self._pool)

    @property
    def lock_handle(self) -> int:
        """Handle that holds the lock, -1 without one."""
        return self._lock_fd

    def volume(self) -> Volume:
        found = os.statvfs(self.root)
        return Volume(
            os.path.abspath(self.root),
            found.f_blocks * found.f_frsize,
            found.f_bavail * found.f_frsize,
            self._pool.limit,
        )

    def session(self) -> str:
        try:
            return Path(BOOT_ID_FILE).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def lock(self) -> None:
        # flock also keeps a second broker of this process out; Kafka itself uses lockf.
        fd = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StorageLockedError(self.root) from None
        self._lock_fd = fd
        self._keep_private()

    def _keep_private(self) -> None:
        """Remove the permissions of group and others from existing private files."""
        for name in os.listdir(self.root):
            if name.endswith(PRIVATE_SUFFIX):
                with contextlib.suppress(OSError):  # Another owner decides on its permissions.
                    os.chmod(os.path.join(self.root, name), 0o600)

    def directories(self) -> list[str]:
        with os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def files(self, directory: str) -> dict[str, int]:
        try:
            with os.scandir(self._path(directory)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}

    def names(self, directory: str) -> set[str]:
        try:
            return set(os.listdir(self._path(directory)))
        except FileNotFoundError:
            return set()

    def make_directory(self, directory: str) -> None:
        try:
            os.mkdir(self._path(directory))
        except FileExistsError:
            return
        if self._durable:
            _sync_path(self.root)

    def rename_directory(self, old: str, new: str) -> None:
        self._pool.close_folder(self._path(old))
        os.rename(self._path(old), self._path(new))
        if self._durable:
            _sync_path(self.root)

    def remove_directory(self, directory: str) -> None:
        shutil.rmtree(self._path(directory), ignore_errors=False)

    def open(self, path: str) -> LogFile:
        return _RealFile(self._path(path), self._pool)

    def aside(self) -> Files:
        return _AsideFiles(self.root)

    def begin(self, work: Callable[[], T]) -> Job[T]:
        job = Job(work)
        if self._in_background:
            self._upkeep.submit(job.run)
        else:
            job.run()
        return job

    def read_bytes(self, path: str) -> bytes | None:
        try:
            fd = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Faster than a file object: a start reads several small files of each partition.
            data = os.read(fd, _READ_AT_ONCE_BYTES)
            if len(data) < _READ_AT_ONCE_BYTES:
                return data
            parts = [data]
            while data:
                data = os.read(fd, _READ_AT_ONCE_BYTES)
                parts.append(data)
            return b"".join(parts)
        except OSError as error:  # `os.read` does not add the path, as for a folder of that name.
            error.filename = self._path(path)
            raise
        finally:
            os.close(fd)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        target = self._path(path)
        temporary = target + ".tmp"
        durable = durable or self._durable
        private = path.endswith(PRIVATE_SUFFIX)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
        with open(fd, "wb") as file:
            if private:  # A crash may have left a file with other permissions.
                os.fchmod(fd, 0o600)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
        if durable:
            _sync_path(os.path.dirname(target))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._path(old), self._path(new))
        if self._durable:
            _sync_path(os.path.dirname(self._path(new)))

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def flush_directory(self, directory: str) -> None:
        _sync_path(self._path(directory))

    def flush_files(self, paths: Iterable[str]) -> None:
        found = [self._path(path) for path in paths]
        # A new file survives a power loss only if its folder is synced too.
        for path in (*found, *dict.fromkeys(map(os.path.dirname, found))):
            _sync_path(path)

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        flushed = tuple(paths)

        def flush() -> None:
            try:
                self.flush_files(flushed)
            except OSError as error:
                _logger.error("files could not be synced to the disk: %s", error)
                if failed is not None:
                    failed(error)
            else:
                done()

        self._flusher.submit(flush)

    def close(self) -> None:
        self._flusher.close()
        self._upkeep.close()
        self._pool.close_all()
        if self._lock_fd >= 0:
            # Closing is not enough: a forked process may still hold a copy of the handle.
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            os.close(self._lock_fd)
            self._lock_fd = -1


class _AsideFiles:
    """Files of a data folder with separate handles, for one thread at a time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pool = _HandlePool(ASIDE_FILES_MAX, durable=False)

    def open(self, path: str) -> LogFile:
        return _RealFile(f"{self._root}/{path}", self._pool)
