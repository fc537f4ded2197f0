"""Files and folders that are out of use: set aside by their names at once, removed later in jobs.

To remove a large file takes the disk a long time, and Kafka leaves a while in which a mistake can
be undone (``file.delete.delay.ms``). It decides what a file is called meanwhile and when it goes;
what goes is decided by the log. What a stop or a crash leaves, the next start removes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from onceflow.broker_lite.log.storage import Storage

DELETED_SUFFIX = ".deleted"
"""Ending of a file that waits to be removed."""

_logger = logging.getLogger("onceflow.broker_lite.log")


class _Waiting(NamedTuple):
    """What is removed when.

    Attributes:
        due_ms: From when on it may go.
        paths: Files of one folder, or folders.
    """

    due_ms: int
    paths: tuple[str, ...]


class Removals:
    """What waits to be removed from a data folder.

    Args:
        storage: The data folder.
    """

    __slots__ = ("_files", "_folders", "_storage", "_taken")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files: dict[str, list[_Waiting]] = {}
        self._taken: dict[str, set[str]] = {}  # The names of what waits, by folder.
        self._folders: list[_Waiting] = []

    def set_aside(self, directory: str, paths: Iterable[str], due_ms: int) -> None:
        """Rename files of one folder, which are closed, and have them removed later.

        Args:
            directory: Their folder.
            paths: Files; those that are not there are passed over.
            due_ms: From when on they may be removed.

        Raises:
            OSError: Some of them are as they were.
        """
        taken = self._taken.setdefault(directory, set())
        renamed = []
        for path in paths:
            target, number = path + DELETED_SUFFIX, 0
            while target in taken:
                # To replace a file is to remove it, which is what must not be done here.
                number += 1
                target = f"{path}.{number}{DELETED_SUFFIX}"
            try:
                self._storage.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
            taken.add(target)
        if renamed:
            self._files.setdefault(directory, []).append(_Waiting(due_ms, tuple(renamed)))

    def remove_folder(self, directory: str, due_ms: int) -> None:
        """Have a folder removed later that is no partition any more."""
        self._folders.append(_Waiting(due_ms, (directory,)))

    def forget_folder(self, directory: str) -> None:
        """A folder was renamed: what waits in it goes with it."""
        self._files.pop(directory, None)
        self._taken.pop(directory, None)

    def run_due(self, now_ms: int) -> None:
        """Begin to remove what is due."""
        for directory in list(self._files):
            due, later = _parted(self._files.pop(directory), now_ms)
            if later:
                self._files[directory] = later
                self._taken[directory].difference_update(*(each.paths for each in due))
            else:
                del self._taken[directory]
            for each in due:
                remove_later(self._storage, each.paths)
        due, self._folders = _parted(self._folders, now_ms)
        for each in due:
            remove_later(self._storage, each.paths, self._storage.remove_directory)


def _parted(waiting: list[_Waiting], now_ms: int) -> tuple[list[_Waiting], list[_Waiting]]:
    """What is due, and what is not."""
    due = [each for each in waiting if each.due_ms <= now_ms]
    return due, [each for each in waiting if each.due_ms > now_ms] if due else waiting


def remove_later(
    storage: Storage, paths: Iterable[str], remove: Callable[[str], None] | None = None
) -> None:
    """Begin to remove files that nobody uses; what cannot be removed is left to the next start.

    Args:
        storage: The data folder.
        paths: What is removed.
        remove: How; files by default.
    """
    storage.begin(partial(_remove, tuple(paths), remove or storage.remove))


def _remove(paths: tuple[str, ...], remove: Callable[[str], None]) -> None:
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            _logger.warning("%s is left to the next start: %s", path, error)
