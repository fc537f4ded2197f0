"""What a disk may hold after a power loss: unflushed writes may be lost, whole or in part.

The model: changes of names (create, rename, remove) reach the disk in order, as a journal does it,
and at least up to the last one that the storage made durable. The bytes of a file reach it in any
order, sector by sector, unless they were flushed; a lost sector within a file is zeros.
"""

from __future__ import annotations

import random

from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.log.memory_storage import split_path
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage, Write

SECTOR_BYTES = 512


class _Inode:
    """A file without its name: what is on the disk, and what is on its way there."""

    def __init__(self, content: bytes = b"") -> None:
        self.safe = bytearray(content)
        self.pending: list[tuple[int, bytes]] = []

    def flush(self) -> None:
        for position, data in self.pending:
            _put(self.safe, position, data)
        self.pending.clear()

    def cut(self, size: int) -> None:
        del self.safe[size:]
        self.pending = [
            (position, data[: size - position])
            for position, data in self.pending
            if position < size
        ]

    def after_loss(self, chance: random.Random) -> bytearray:
        """The safe bytes, and of the others all, none, or some sectors."""
        content = bytearray(self.safe)
        share = chance.choice((0.0, 0.5, 1.0))
        for position, data in self.pending:
            for at in range(0, len(data), SECTOR_BYTES):
                if chance.random() < share:
                    _put(content, position + at, data[at : at + SECTOR_BYTES])
        return content


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content += bytes(position - len(content))
    content[position : position + len(data)] = data


_Names = dict[str, dict[str, _Inode]]


def disk_after_power_loss(
    storage: FailingStorage, count: int, chance: random.Random
) -> MemoryStorage:
    """What the disk may hold if the power fails after so many changes.

    Args:
        storage: The storage that recorded the changes.
        count: Changes that were made.
        chance: Decides what is lost.
    """
    durable = [number for number in range(count) if storage.writes[number].durable]
    named = chance.randint(durable[-1] + 1 if durable else 0, count)
    live: _Names = {
        directory: {name: _Inode(bytes(data)) for name, data in files.items()}
        for directory, files in storage.start.content.items()
    }
    kept = _copied(live)
    for number, write in enumerate(storage.writes[:count]):
        _apply(live, write)
        if number + 1 == named:
            kept = _copied(live)
    disk = MemoryStorage()
    disk.power_losses = storage.inner.power_losses + 1
    disk.content = {
        directory: {name: inode.after_loss(chance) for name, inode in files.items()}
        for directory, files in kept.items()
    }
    return disk


def _copied(names: _Names) -> _Names:
    return {directory: dict(files) for directory, files in names.items()}


def _apply(names: _Names, write: Write) -> None:
    directory, name = split_path(write.path)
    files = names.get(directory, {})
    target_directory, target = split_path(write.target)
    match write.change:
        case Change.CREATE:
            files.setdefault(name, _Inode())
        case Change.APPEND:
            files.setdefault(name, _Inode()).pending.append((write.position, write.data))
        case Change.TRUNCATE:
            files.setdefault(name, _Inode()).cut(write.position)
        case Change.FLUSH:
            if name in files:
                files[name].flush()
        case Change.REPLACE:
            files[name] = _Inode()
            files[name].pending.append((0, write.data))
            if write.durable:
                files[name].flush()
        case Change.RENAME:
            names[target_directory][target] = files.pop(name)
        case Change.REMOVE:
            files.pop(name, None)
        case Change.MAKE_DIRECTORY:
            names.setdefault(write.path, {})
        case Change.RENAME_DIRECTORY:
            names[write.target] = names.pop(write.path)
        case Change.REMOVE_DIRECTORY:
            names.pop(write.path, None)
