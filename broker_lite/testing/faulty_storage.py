"""A data folder whose writes a test can make fail; it calls a check before each change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from onceflow.broker_lite.log import Storage
from onceflow.broker_lite.log.storage import Buffer, Files, LogFile

Check = Callable[[str | None, "int | None"], None]
"""``check(topic, partition)`` raises OSError for a write that is to fail; both are None for files
that belong to no partition."""

_PARTITION = re.compile(r"(.+)-(\d+)(?:\.[0-9a-f]+-delete)?")


class _FaultyFile:
    """A file that calls the check before each write."""

    __slots__ = ("_check", "_inner", "_owner")

    def __init__(self, inner: LogFile, check: Check, path: str) -> None:
        self._inner = inner
        self._check = check
        self._owner = owner(path)

    @property
    def size(self) -> int:
        return self._inner.size

    def create(self) -> None:
        self._check(*self._owner)
        self._inner.create()

    def append(self, parts: Sequence[Buffer]) -> None:
        self._check(*self._owner)
        self._inner.append(parts)

    def truncate(self, size: int) -> None:
        self._check(*self._owner)
        self._inner.truncate(size)

    def flush(self) -> None:
        self._check(*self._owner)
        self._inner.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)  # Reads pass unchanged.


def with_faults(inner: Storage, check: Check) -> Storage:
    """Wrap a data folder, so that it calls a check before each write.

    Args:
        inner: The folder.
        check: Called before each write.
    """
    # What is not named there is passed on, which types cannot say.
    return cast("Storage", _FaultyStorage(inner, check))


class _FaultyStorage:
    """A data folder that calls the check before each write."""

    def __init__(self, inner: Storage, check: Check) -> None:
        self._inner = inner
        self._check = check

    def open(self, path: str) -> LogFile:
        return cast("LogFile", _FaultyFile(self._inner.open(path), self._check, path))

    def aside(self) -> Files:
        return cast("Files", _FaultyStorage(cast("Storage", self._inner.aside()), self._check))

    def make_directory(self, directory: str) -> None:
        self._check(*owner(directory + "/"))
        self._inner.make_directory(directory)

    def rename_directory(self, old: str, new: str) -> None:
        self._check(*owner(old + "/"))
        self._inner.rename_directory(old, new)

    def remove_directory(self, directory: str) -> None:
        self._check(*owner(directory + "/"))
        self._inner.remove_directory(directory)

    def flush_directory(self, directory: str) -> None:
        self._check(*owner(directory + "/"))
        self._inner.flush_directory(directory)

    def flush_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._check(*owner(path))
        self._inner.flush_files(paths)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        self._check(*owner(path))
        self._inner.replace(path, data, durable=durable)

    def rename(self, old: str, new: str) -> None:
        self._check(*owner(old))
        self._inner.rename(old, new)

    def remove(self, path: str) -> None:
        self._check(*owner(path))
        self._inner.remove(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def owner(path: str) -> tuple[str | None, int | None]:
    """Return topic and partition of a path in the data folder; None for files of neither."""
    directory, _, _ = path.rpartition("/")
    found = _PARTITION.fullmatch(directory)
    return (found[1], int(found[2])) if found else (None, None)
