"""Removes unused files and folders: renames them at once, deletes them later in jobs.

Deleting a large file takes a long time, and Kafka leaves a delay in which a mistake can be undone
(``file.delete.delay.ms``). The log decides which files are unused. After a stop or a crash, the
next start deletes the renamed files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from onceflow.broker_lite.log.storage import Storage

DELETED_SUFFIX = ".deleted"
"""Suffix of a file that waits to be deleted."""

_logger = logging.getLogger("onceflow.broker_lite.log")


class _Waiting(NamedTuple):
    """Files or folders that wait to be deleted.

    Attributes:
        due_ms: Time from which they may be deleted.
        paths: Files of one folder, or folders.
    """

    due_ms: int
    paths: tuple[str, ...]


class Removals:
    """The files and folders of a data folder that wait to be deleted.

    Args:
        storage: The data folder.
    """

    __slots__ = ("_files", "_folders", "_storage", "_taken")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files: dict[str, list[_Waiting]] = {}
        self._taken: dict[str, set[str]] = {}  # Names of waiting files, by folder.
        self._folders: list[_Waiting] = []

    def set_aside(self, directory: str, paths: Iterable[str], due_ms: int) -> None:
        """Rename closed files of one folder, and delete them later.

        Args:
            directory: Their folder.
            paths: Files; missing ones are skipped.
            due_ms: Time from which they may be deleted.

        Raises:
            OSError: Some of them are not renamed.
        """
        taken = self._taken.setdefault(directory, set())
        renamed = []
        for path in paths:
            target, number = path + DELETED_SUFFIX, 0
            while target in taken:
                # A rename to an existing name would delete that file at once.
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
        """Delete a folder later that is not a partition any more."""
        self._folders.append(_Waiting(due_ms, (directory,)))

    def forget_folder(self, directory: str) -> None:
        """Forget the waiting files of a folder that was renamed as a whole."""
        self._files.pop(directory, None)
        self._taken.pop(directory, None)

    def run_due(self, now_ms: int) -> None:
        """Begin to delete what is due."""
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
    """Return those that are due, and those that are not."""
    due = [each for each in waiting if each.due_ms <= now_ms]
    return due, [each for each in waiting if each.due_ms > now_ms] if due else waiting


def remove_later(
    storage: Storage, paths: Iterable[str], remove: Callable[[str], None] | None = None
) -> None:
    """Begin to delete unused files; the next start tries again what cannot be deleted.

    Args:
        storage: The data folder.
        paths: Files or folders to delete.
        remove: Deletes one path; by default a file.
    """
    storage.begin(partial(_remove, tuple(paths), remove or storage.remove))


def _remove(paths: tuple[str, ...], remove: Callable[[str], None]) -> None:
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            _logger.warning("%s cannot be deleted; the next start tries again: %s", path, error)
