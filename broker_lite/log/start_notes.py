"""Notes for the next start: epochs that were given out, and whether power was lost.

A power loss may cost unsynced writes of any file. A leader epoch must not be given out twice, so
the greatest one of all logs is noted durably before a batch carries it. Acknowledged writes can be
lost only together with the page cache, so the notes name the boot of the system in which the folder
was last written to.
"""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from onceflow.broker_lite.log.storage import Storage

START_NOTES_FILE = "start-notes.json"
LEADER_EPOCH_MAX = 2**31 - 1

_logger = logging.getLogger("onceflow.broker_lite.log")


class _Notes(NamedTuple):
    """The content of the file.

    Attributes:
        greatest_epoch: No log has begun a greater leader epoch.
        first_epoch: Leader epoch of new logs: that of the last start after a crash.
        session: Boot of the system in which the folder was last used; empty when unknown.
        durability: The setting with which it was written to.
    """

    greatest_epoch: int = 0
    first_epoch: int = 0
    session: str = ""
    durability: str = "kafka"


class StartNotes:
    """The notes of a data folder.

    Args:
        storage: The data folder.

    Attributes:
        found: Whether the file exists, so that the folder was used before.
        power_lost: Whether a start after a crash must assume that unsynced writes are lost, because
            the system was booted since then, or does not say.
    """

    __slots__ = ("_notes", "_session", "_storage", "found", "power_lost")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._session = storage.session()
        self.found: bool = False
        self._notes = self._read()
        same = self._session != "" and self._session == self._notes.session
        self.power_lost: bool = not same and self._notes.durability == "kafka"

    @property
    def greatest_epoch(self) -> int:
        """The greatest leader epoch that any log may have begun."""
        return self._notes.greatest_epoch

    @property
    def first_epoch(self) -> int:
        """Leader epoch that new logs begin with.

        An earlier log of the same name may be lost entirely, and clients may know its epochs.
        """
        return self._notes.first_epoch

    def begin_epoch(self, known_epoch: int) -> int:
        """Return an epoch that no log ever had, for a start after a crash.

        Args:
            known_epoch: The greatest epoch that any log knows.

        Raises:
            OSError: It could not be noted.
        """
        epoch = min(max(known_epoch, self._notes.greatest_epoch) + 1, LEADER_EPOCH_MAX)
        self._write(self._notes._replace(greatest_epoch=epoch, first_epoch=epoch))
        return epoch

    def cover(self, epoch: int) -> None:
        """Note an epoch before a log begins it.

        Raises:
            OSError: It could not be noted.
        """
        if epoch > self._notes.greatest_epoch:
            self._write(self._notes._replace(greatest_epoch=epoch))

    def settle(self, durability: str) -> None:
        """Note this boot and durability, after the repairs of an earlier power loss are done.

        Raises:
            OSError: It could not be noted; the next start repeats the repairs.
        """
        notes = self._notes._replace(session=self._session, durability=durability)
        if notes != self._notes:
            self._write(notes)
        self.power_lost = False

    def _write(self, notes: _Notes) -> None:
        data = json.dumps(notes._asdict(), indent=1, sort_keys=True, allow_nan=False) + "\n"
        self._storage.replace(START_NOTES_FILE, data.encode(), durable=True)
        self._notes = notes

    def _read(self) -> _Notes:
        data = self._storage.read_bytes(START_NOTES_FILE)
        if data is None:
            return _Notes()
        self.found = True
        try:
            found = json.loads(data)
            return _Notes(
                int(found["greatest_epoch"]),
                int(found["first_epoch"]),
                str(found["session"]),
                str(found["durability"]),
            )
        except (ValueError, KeyError, TypeError):
            _logger.warning("%s is damaged and counts as lost", START_NOTES_FILE)
            return _Notes()
