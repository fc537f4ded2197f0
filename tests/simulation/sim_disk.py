"""The disk of a simulated broker: what was written is there, or not, as a real one has it.

A process that dies leaves what it wrote, the last write perhaps in part (the page cache outlives
it). A machine that loses power leaves what was synced, and any part of the rest. A full disk takes
a part of a write and refuses the rest.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sim_world import Process, ProcessDiedError, World

from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.log.disk_jobs import Job
from onceflow.broker_lite.log.memory_storage import split_path
from onceflow.broker_lite.log.storage import Volume


class Disk:
    """One data folder, over all restarts.

    Attributes:
        content: What the next process finds.
        full: While True, writes that need room fail.
        fail_in_syncs: Refuse the so-manieth sync from now, once; None for never.
        fail_in_writes: Refuse the so-manieth write from now, once; None for never.
        die_in_writes: Kill the process within the so-manieth write from now; None for never.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.content = MemoryStorage()
        self.full = False
        self.fail_in_syncs: int | None = None
        self.die_in_writes: int | None = None
        self.fail_in_writes: int | None = None
        self.writes = 0
        self.random = world.stream("disk")
        self._synced: dict[str, int] = {}

    def mount(self, process: Process) -> SimStorage:
        """The folder as one process sees it."""
        self.content.close()
        return SimStorage(self, process)

    def write(self, process: Process, apply: Callable[[], None], torn: Callable[[int], None],
              size: int) -> None:  # fmt: skip
        """Carry out one change, or a part of it.

        Args:
            process: Who writes.
            apply: Does all of it.
            torn: Does the first so many bytes of it.
            size: Its size in bytes; 0 for what can only happen as a whole.

        Raises:
            OSError: The disk is full.
            ProcessDiedError: The process ends within this write.
        """
        if not process.alive:
            raise ProcessDiedError
        self.writes += 1
        if self.die_in_writes is not None:
            if self.die_in_writes <= 0:
                self.die_in_writes = None
                part = self.random.randrange(size + 2)
                if part > size:
                    apply()
                elif part:
                    torn(part)
                process.die()
                raise ProcessDiedError
            self.die_in_writes -= 1
        fails = False
        if self.fail_in_writes is not None and size:
            self.fail_in_writes -= 1
            if fails := self.fail_in_writes < 0:
                self.fail_in_writes = None
        if (self.full or fails) and size:
            torn(self.random.randrange(size))
            raise OSError(errno.ENOSPC, "no space left on device")
        apply()

    def size(self, path: str) -> int:
        """Bytes of a file, 0 without one."""
        directory, name = split_path(path)
        return len(self.content.content.get(directory, {}).get(name, b""))

    def sync(self, process: Process, path: str, size: int | None = None) -> None:
        """Make a file safe.

        Args:
            process: Who asks.
            path: The file.
            size: How much of it; what is appended while a sync goes on may be left out by it.
        """
        if not process.alive:
            raise ProcessDiedError
        if self.fail_in_syncs is not None:
            self.fail_in_syncs -= 1
            if self.fail_in_syncs < 0:
                self.fail_in_syncs = None
                raise OSError(errno.EIO, "input/output error")
        directory, name = split_path(path)
        data = self.content.content.get(directory, {}).get(name)
        if data is not None:
            safe = len(data) if size is None else min(size, len(data))
            self._synced[path] = max(safe, min(self._synced.get(path, 0), len(data)))

    def forget(self, path: str) -> None:
        """A file is gone or new."""
        self._synced.pop(path, None)

    def cut(self, path: str, size: int) -> None:
        """A file was cut."""
        if path in self._synced:
            self._synced[path] = min(size, self._synced[path])

    def renamed(self, old: str, new: str) -> None:
        """A file or a folder has another name."""
        for path in list(self._synced):
            if path == old or path.startswith(old + "/"):
                self._synced[new + path[len(old) :]] = self._synced.pop(path)

    def lose_power(self) -> None:
        """Forget any part of what was appended since each file's last sync."""
        for directory, files in self.content.content.items():
            for name, data in files.items():
                path = f"{directory}/{name}" if directory else name
                safe = self._synced.get(path, 0)
                if len(data) > safe:
                    del data[safe + self.random.randrange(len(data) - safe + 1) :]


class _SimFile:
    """A file of one process: remembers its size as a process does."""

    __slots__ = ("_path", "_storage", "size")

    def __init__(self, storage: SimStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.size = storage.inner.open(path).size

    def create(self) -> None:
        directory, name = split_path(self._path)
        if name not in self._storage.inner.files(directory):
            self._storage.change(lambda: self._storage.inner.open(self._path).create())

    def _put(self, data: bytes) -> None:
        directory, name = split_path(self._path)
        folder = self._storage.inner.folder(directory)
        content = folder.setdefault(name, bytearray())
        content[self.size : self.size + len(data)] = data

    def append(self, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        self._storage.change(lambda: self._put(data), lambda n: self._put(data[:n]), len(data))
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        self._storage.check()
        length = min(length, self.size - position)
        return self._storage.inner.open(self._path).read(position, length)

    def truncate(self, size: int) -> None:
        def cut() -> None:
            self._storage.inner.open(self._path).truncate(size)
            self._storage.disk.cut(self._path, size)

        self._storage.change(cut)
        self.size = size

    def flush(self) -> None:
        self._storage.disk.sync(self._storage.process, self._path)

    def close(self) -> None:
        pass


class SimStorage:
    """The broker's storage interface over a simulated disk, for one process.

    Attributes:
        flushing: How many background flushes are on their way, by folder.
        busy_until_us: When the jobs that were begun so far are done.
    """

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process
        self.inner = disk.content
        self.flushing: Counter[str] = Counter()
        self.busy_until_us = 0

    def check(self) -> None:
        """A dead process does nothing any more."""
        if not self.process.alive:
            raise ProcessDiedError

    def change(
        self,
        apply: Callable[[], None],
        torn: Callable[[int], None] = lambda size: None,
        size: int = 0,
    ) -> None:
        """One change of the folder."""
        self.disk.write(self.process, apply, torn, size)

    def volume(self) -> Volume:
        return self.inner.volume()

    def lock(self) -> None:
        self.inner.lock()

    def names(self, directory: str) -> set[str]:
        self.check()
        return self.inner.names(directory)

    def directories(self) -> list[str]:
        self.check()
        return self.inner.directories()

    def files(self, directory: str) -> dict[str, int]:
        self.check()
        return self.inner.files(directory)

    def make_directory(self, directory: str) -> None:
        if directory not in self.inner.content:
            self.change(lambda: self.inner.make_directory(directory))

    def rename_directory(self, old: str, new: str) -> None:
        def rename() -> None:
            self.inner.rename_directory(old, new)
            self.disk.renamed(old, new)

        self.change(rename)

    def remove_directory(self, directory: str) -> None:
        def remove() -> None:
            for name in self.inner.files(directory):
                self.disk.forget(f"{directory}/{name}")
            self.inner.remove_directory(directory)

        self.change(remove)

    def open(self, path: str) -> Any:
        self.check()
        return _SimFile(self, path)

    def read_bytes(self, path: str) -> bytes | None:
        self.check()
        return self.inner.read_bytes(path)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        def put() -> None:
            self.inner.replace(path, data)
            # Written beside and renamed: what a journalling file system keeps as a whole.
            self.disk._synced[path] = len(data)

        def torn(size: int) -> None:
            self.inner.replace(f"{path}.tmp", data[:size])

        self.change(put, torn, len(data))

    def aside(self) -> Any:
        return self

    def begin(self, work: Callable[[], Any]) -> Job[Any]:
        """Another thread does it: at some time, after what was begun before."""
        job = Job(work)
        delay_us = self.disk.random.choice((0, 300, 3_000, 20_000))
        now_us = self.process.world.now_us
        self.busy_until_us = max(self.busy_until_us, now_us + delay_us)
        run = lambda: self.process.call(job.run)  # noqa: E731
        self.process.world.at(self.busy_until_us, run)
        return job

    def rename(self, old: str, new: str) -> None:
        directory, name = split_path(old)
        if name not in self.inner.names(directory):
            raise FileNotFoundError(old)

        def rename() -> None:
            self.inner.rename(old, new)
            self.disk.forget(new)
            self.disk.renamed(old, new)

        self.change(rename)

    def remove(self, path: str) -> None:
        def remove() -> None:
            self.inner.remove(path)
            self.disk.forget(path)

        self.change(remove)

    def flush_directory(self, directory: str) -> None:
        self.check()

    def flush_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.disk.sync(self.process, path)

    def flush_later(
        self,
        paths: Sequence[str],
        done: Callable[[], None],
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        wanted = {path: self.disk.size(path) for path in paths}
        folders = {split_path(path)[0] for path in paths}
        self.flushing.update(folders)

        def sync() -> None:
            self.flushing.subtract(folders)
            try:
                for path, size in wanted.items():
                    self.disk.sync(self.process, path, size)
            except OSError as error:
                if failed is not None:
                    failed(error)
            else:
                done()

        # Another thread does it: some time passes, in which the broker goes on.
        delay_us = self.disk.random.choice((300, 3_000, 20_000))
        self.process.world.after(delay_us, lambda: self.process.call(sync))

    def close(self) -> None:
        self.inner.close()
