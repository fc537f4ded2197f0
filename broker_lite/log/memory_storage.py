"""The data folder in memory: the twin of real files for tests, simulations and throw-away brokers.

It keeps exactly what :class:`~onceflow.broker_lite.log.storage.RealStorage` would keep, and
nothing survives the object. It decides nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onceflow.broker_lite.log.disk_jobs import Job
from onceflow.broker_lite.log.log_errors import StorageLockedError
from onceflow.broker_lite.log.storage import Buffer, Files, LogFile, Volume

T = TypeVar("T")


class _MemoryFile:
    """Bytes of one file, which appears in its folder at the first write."""

    __slots__ = ("_directory", "_name", "_storage", "content")

    def __init__(self, storage: MemoryStorage, directory: str, name: str) -> None:
        self._storage = storage
        self._directory = directory
        self._name = name
        existing = storage.content.get(directory, {}).get(name)
        self.content = bytearray() if existing is None else existing

    @property
    def size(self) -> int:
        return len(self.content)

    def create(self) -> None:
        self._storage.folder(self._directory).setdefault(self._name, self.content)

    def append(self, parts: Sequence[Buffer]) -> None:
        content = self.content
        if not content:
            self.create()
        for part in parts:
            content += part

    def read(self, position: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with memoryview(self.content) as view:
            return bytes(view[position : position + length])

    def truncate(self, size: int) -> None:
        self.create()
        del self.content[size:]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryStorage:
    """A data folder that lives in memory.

    Attributes:
        content: Bytes by folder and file name; the root is the folder ``""``.
        power_losses: How often a test has dropped what was not synced.
    """

    def __init__(self) -> None:
        self.power_losses: int = 0
        self.content: dict[str, dict[str, bytearray]] = {"": {}}
        self._locked = False

    def folder(self, directory: str) -> dict[str, bytearray]:
        """Files of a folder.

        Raises:
            FileNotFoundError: No such folder.
        """
        try:
            return self.content[directory]
        except KeyError:
            raise FileNotFoundError(directory) from None

    def volume(self) -> Volume:
        return Volume("memory", -1, -1)

    def session(self) -> str:
        return f"memory {self.power_losses}"

    def lock(self) -> None:
        if self._locked:
            raise StorageLockedError("memory")
        self._locked = True

    def directories(self) -> list[str]:
        return sorted(name for name in self.content if name)

    def files(self, directory: str) -> dict[str, int]:
        return {name: len(data) for name, data in self.content.get(directory, {}).items()}

    def names(self, directory: str) -> set[str]:
        return set(self.content.get(directory, ()))

    def make_directory(self, directory: str) -> None:
        self.content.setdefault(directory, {})

    def rename_directory(self, old: str, new: str) -> None:
        self.content[new] = self.folder(old)
        del self.content[old]

    def remove_directory(self, directory: str) -> None:
        self.folder(directory)
        del self.content[directory]

    def open(self, path: str) -> LogFile:
        directory, name = split_path(path)
        return _MemoryFile(self, directory, name)

    def aside(self) -> Files:
        return self

    def begin(self, work: Callable[[], T]) -> Job[T]:
        job = Job(work)
        job.run()
        return job

    def read_bytes(self, path: str) -> bytes | None:
        directory, name = split_path(path)
        data = self.content.get(directory, {}).get(name)
        return None if data is None else bytes(data)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        directory, name = split_path(path)
        self.folder(directory)[name] = bytearray(data)

    def rename(self, old: str, new: str) -> None:
        directory, name = split_path(old)
        target_directory, target = split_path(new)
        files = self.folder(directory)
        if name not in files:
            raise FileNotFoundError(old)
        self.folder(target_directory)[target] = files.pop(name)

    def remove(self, path: str) -> None:
        directory, name = split_path(path)
        self.content.get(directory, {}).pop(name, None)

    def flush_directory(self, directory: str) -> None:
        pass

    def flush_files(self, paths: Sequence[str]) -> None:
        pass

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        done()

    def close(self) -> None:
        self._locked = False


def split_path(path: str) -> tuple[str, str]:
    """Folder and name; the folder is empty for files in the root."""
    directory, _, name = path.rpartition("/")
    return directory, name
