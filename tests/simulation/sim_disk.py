"""The disk of a simulated broker: what was written is there, or not, as a real one has it.

A process that dies leaves what it wrote, the last write perhaps in part (the page cache outlives
it). A machine that loses power leaves what was synced, and any part of the rest: of each folder's
changes of names the first so-many, as a journal keeps them, and of a file's unsynced bytes any, in
sectors, with zeros where later ones came first. A full disk takes a part of a write and refuses the
rest.
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

SECTOR_BYTES = 512

Names = dict[str, Any]
"""Files by name; in the root, folders as well, with a slash behind the name."""


class Disk:
    """One data folder, over all restarts.

    Attributes:
        content: What the next process finds while the page cache lives.
        sync_us: How long a sync takes, one of these.
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
        self.sync_us: tuple[int, ...] = (300, 3_000, 20_000)
        # What a power loss leaves: synced bytes by file, names by folder, and the changes of names
        # that may be lost. Files and folders are told apart by the objects that hold them.
        self._files: dict[int, tuple[bytearray, int]] = {}
        self._names: dict[int, tuple[dict[str, bytearray], Names]] = {}
        self._changes: dict[int, list[Callable[[Names], object]]] = {}
        self.sync_all()

    def mount(self, process: Process, *, durable: bool) -> SimStorage:
        """The folder as one process sees it."""
        self.content.close()
        return SimStorage(self, process, durable=durable)

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

    # --- what is safe

    def folder(self, directory: str) -> dict[str, bytearray]:
        """Files of a folder, none where there is no folder."""
        return self.content.content.get(directory, {})

    def note_change(self, directory: str, change: Callable[[Names], object]) -> None:
        """A name in a folder came, went or was changed; a power loss may undo that.

        Args:
            directory: The folder.
            change: Does the same to the names that are on the disk.
        """
        files = self.folder(directory)
        self._names.setdefault(id(files), (files, {}))
        self._changes.setdefault(id(files), []).append(change)

    def sync_names(self, directory: str) -> None:
        """The names in a folder are safe."""
        files = self.folder(directory)
        _, names = self._names.setdefault(id(files), (files, {}))
        for change in self._changes.pop(id(files), ()):
            change(names)

    def sync(self, process: Process, path: str, size: int | None = None) -> None:
        """Make the bytes of a file safe.

        Args:
            process: Who asks.
            path: The file.
            size: How much of it; what is appended while a sync goes on may be left out by it.
        """
        if not process.alive:
            raise ProcessDiedError
        self._count_sync()
        directory, name = split_path(path)
        data = self.folder(directory).get(name)
        if data is not None:
            self.sync_bytes(data, size)

    def _count_sync(self) -> None:
        if self.fail_in_syncs is not None:
            self.fail_in_syncs -= 1
            if self.fail_in_syncs < 0:
                self.fail_in_syncs = None
                raise OSError(errno.EIO, "input/output error")

    def sync_new(self, data: bytearray) -> None:
        """Make the bytes of a file safe that has no name yet."""
        self._count_sync()
        self.sync_bytes(data)

    def sync_bytes(self, data: bytearray, size: int | None = None) -> None:
        """The bytes of a file are safe, or so many of them."""
        safe = len(data) if size is None else min(size, len(data))
        self._files[id(data)] = data, max(safe, min(self._safe_bytes(data), len(data)))

    def _safe_bytes(self, data: bytearray) -> int:
        return self._files.get(id(data), (data, 0))[1]

    def size(self, path: str) -> int:
        """Bytes of a file, 0 without one."""
        directory, name = split_path(path)
        return len(self.folder(directory).get(name, b""))

    def cut(self, path: str, size: int) -> None:
        """A file was cut."""
        directory, name = split_path(path)
        data = self.folder(directory)[name]
        self._files[id(data)] = data, min(size, self._safe_bytes(data))

    def sync_all(self) -> None:
        """Everything is safe: some time went by in which nothing happened."""
        folders = self.content.content
        self._changes.clear()
        self._names = {id(files): (files, dict(files)) for files in folders.values()}
        root = self._names[id(folders[""])][1]
        root.update({f"{name}/": files for name, files in folders.items() if name})
        self._files = {
            id(data): (data, len(data)) for files in folders.values() for data in files.values()
        }

    def lose_power(self) -> None:
        """Forget any part of what was not synced."""
        names = self._names_left(self.folder(""))
        left = {"": {}} | {
            name[:-1]: self._names_left(files) for name, files in names.items() if name[-1] == "/"
        }
        left[""] = {name: data for name, data in names.items() if name[-1] != "/"}
        self.content.content = {
            directory: {name: self._bytes_left(data) for name, data in files.items()}
            for directory, files in left.items()
        }
        self.content.power_losses += 1
        self.sync_all()

    def _names_left(self, files: dict[str, bytearray]) -> Names:
        """The names of a folder, with some of the changes that were not synced."""
        _, names = self._names.get(id(files), (files, {}))
        changes = self._changes.get(id(files), [])
        found = dict(names)
        for change in changes[: self.random.randrange(len(changes) + 1)]:
            change(found)
        return found

    def _bytes_left(self, data: bytearray) -> bytearray:
        """The bytes of a file, with some of those that were not synced."""
        safe = self._safe_bytes(data)
        if len(data) <= safe:
            return bytearray(data)
        found = bytearray(data[: safe + self.random.randrange(len(data) - safe + 1)])
        if self.random.random() < 0.3:
            for at in range(safe, len(found), SECTOR_BYTES):
                if self.random.random() < 0.3:
                    end = min(at + SECTOR_BYTES, len(found))
                    found[at:end] = bytes(end - at)
        return found


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
            self._storage.change(lambda: self._put(b""))

    def _put(self, data: bytes) -> None:
        directory, name = split_path(self._path)
        files = self._storage.inner.folder(directory)
        if name not in files:
            self._storage.name_file(self._path, bytearray())
        files[name][self.size : self.size + len(data)] = data

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
            self._put(b"")
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

    Args:
        disk: The disk.
        process: The process.
        durable: As of the storage on real files: new names are safe at once.

    Attributes:
        flushing: How many background flushes are on their way, by folder.
        busy_until_us: When the jobs that were begun so far are done.
    """

    def __init__(self, disk: Disk, process: Process, *, durable: bool) -> None:
        self.disk = disk
        self.process = process
        self.durable = durable
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

    def name_file(self, path: str, data: bytearray) -> None:
        """Give a file a name, in the place of another one that has it."""
        directory, name = split_path(path)
        self.inner.folder(directory)[name] = data
        self.note(directory, lambda names: names.__setitem__(name, data))

    def note(self, directory: str, change: Callable[[Names], object]) -> None:
        """A name changed."""
        self.disk.note_change(directory, change)
        if self.durable:
            self.disk.sync_names(directory)

    def volume(self) -> Volume:
        return self.inner.volume()

    def session(self) -> str:
        return self.inner.session()

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
        def make() -> None:
            self.inner.make_directory(directory)
            files = self.inner.folder(directory)
            self.note("", lambda names: names.__setitem__(f"{directory}/", files))

        if directory not in self.inner.content:
            self.change(make)

    def rename_directory(self, old: str, new: str) -> None:
        def rename() -> None:
            self.inner.rename_directory(old, new)
            self.note("", lambda names: names.__setitem__(f"{new}/", names.pop(f"{old}/")))

        self.change(rename)

    def remove_directory(self, directory: str) -> None:
        def remove() -> None:
            self.inner.remove_directory(directory)
            self.disk.note_change("", lambda names: names.pop(f"{directory}/", None))

        self.change(remove)

    def open(self, path: str) -> Any:
        self.check()
        return _SimFile(self, path)

    def aside(self) -> Any:
        return self

    def begin(self, work: Callable[[], Any]) -> Job[Any]:
        """Another thread does it: at some time, after what was begun before."""
        job = Job(work)
        delay_us = self.disk.random.choice((0, 300, 3_000, 20_000))
        now_us = self.process.world.now_us
        self.busy_until_us = max(self.busy_until_us, now_us + delay_us)
        self.process.world.at(self.busy_until_us, lambda: self.process.call(job.run))
        return job

    def read_bytes(self, path: str) -> bytes | None:
        self.check()
        return self.inner.read_bytes(path)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        directory, _ = split_path(path)

        def put() -> None:
            new = bytearray(data)
            if durable or self.durable:
                self.disk.sync_new(new)
            self.name_file(path, new)
            if durable or self.durable:
                self.disk.sync_names(directory)

        def torn(size: int) -> None:
            self.name_file(f"{path}.tmp", bytearray(data[:size]))

        self.change(put, torn, len(data))

    def rename(self, old: str, new: str) -> None:
        directory, name = split_path(old)
        _, target = split_path(new)
        if name not in self.inner.names(directory):
            raise FileNotFoundError(old)

        def rename() -> None:
            self.inner.rename(old, new)
            self.note(directory, lambda names: names.__setitem__(target, names.pop(name)))

        self.change(rename)

    def remove(self, path: str) -> None:
        directory, name = split_path(path)

        def remove() -> None:
            self.inner.remove(path)
            self.disk.note_change(directory, lambda names: names.pop(name, None))

        self.change(remove)

    def flush_directory(self, directory: str) -> None:
        self.check()
        self.disk.sync_names(directory)

    def flush_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.disk.sync(self.process, path)
        for directory in {split_path(path)[0] for path in paths}:
            self.disk.sync_names(directory)

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
                for folder in folders:
                    self.disk.sync_names(folder)
            except OSError as error:
                if failed is not None:
                    failed(error)
            else:
                done()

        # Another thread does it: some time passes, in which the broker goes on.
        delay_us = self.disk.random.choice(self.disk.sync_us)
        self.process.world.after(delay_us, lambda: self.process.call(sync))

    def close(self) -> None:
        self.inner.close()
