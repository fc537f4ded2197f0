"""Gives every worker process a name that survives its restart: the slot of its transactional id.

A restarted worker must come back under the id of its predecessor, because only InitProducerId with
that id ends the predecessor's transaction at once. Two live workers must never share one. Lock
files in the state directory give both: the lowest free number is taken, the system frees it when a
process dies. A random id in the directory keeps hosts apart.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.stores.lmdb import try_lock

SLOTS_MAX = 1_024


@dataclass(slots=True)
class Slot:
    """A claimed slot; the lock is held until ``release``."""

    name: str
    lock: TextIO | None

    def release(self) -> None:
        """Let another process have it."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def claim_slot(directory: Path, given: str | None) -> Slot:
    """Find this process's slot.

    Args:
        directory: Directory of the application.
        given: The user's own choice, taken as it is.

    Returns:
        The slot.

    Raises:
        StateDirectoryError: The directory cannot be written, or too many processes run.
    """
    if given is not None:
        return Slot(given, None)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        host = _host_id(directory / "host-id")
        for number in itertools.count():
            if number == SLOTS_MAX:
                raise StateDirectoryError(f"{directory}: all {SLOTS_MAX} slots are taken")
            lock = try_lock(directory / f"slot-{number}.lock")
            if lock is not None:
                return Slot(f"{host}-{number}", lock)
    except OSError as error:
        raise StateDirectoryError(
            f"{directory}: {error}; set state_dir to a writable directory, or give a slot"
        ) from error
    raise AssertionError("count() does not end")


def _host_id(path: Path) -> str:
    """Read the directory's id, or write one; the first of several writers wins."""
    if path.exists() and not path.read_text("ascii").strip():
        # A power loss at the wrong moment. Without an id, all such hosts would share one name.
        path.unlink(missing_ok=True)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    draft.write_text(uuid.uuid4().hex[:8], "ascii")
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()
