"""Claims a worker's slot, the part of its transactional id that stays the same over a restart.

A restarted worker must use the id of the killed one, as only InitProducerId with that id aborts the
killed one's transaction at once. Two live workers must never share an id. Lock files in the state
directory ensure both: a worker locks the lowest free number, and the operating system unlocks it
when the process dies. A random id in the directory distinguishes hosts.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from onceflow.processors.errors import SlotInUseError, StateDirectoryError
from onceflow.processors.stores.lmdb import try_lock

SLOTS_MAX = 1_024


@dataclass(slots=True)
class Slot:
    """A claimed slot, locked until ``release``."""

    name: str
    lock: TextIO | None

    def release(self) -> None:
        """Unlock the slot for another process."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def slot_in_use(app: str, slot: Slot | None) -> SlotInUseError:
    """Return the error of a worker that another one with its slot has replaced.

    Args:
        app: Name of the application.
        slot: The worker's slot, if it has claimed one.
    """
    name = "?" if slot is None else slot.name
    return SlotInUseError(
        f"slot {name!r} of application {app} is used by another live worker, which has taken "
        "over; give each process a slot of its own, or leave slot= out"
    )


def claim_slot(directory: Path, given: str | None) -> Slot:
    """Claim a slot for this process.

    Args:
        directory: Directory of the application.
        given: The setting ``slot``, which is used without a lock; None claims a free number.

    Raises:
        StateDirectoryError: The directory cannot be written, or too many processes run.
    """
    if given is not None:
        return Slot(given, None)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        host = host_id(directory)
        for number in itertools.count():
            if number == SLOTS_MAX:
                raise StateDirectoryError(
                    f"{directory}: {SLOTS_MAX} live processes use it; set slot to a name of this "
                    "process, or set another state_dir"
                )
            lock = try_lock(directory / f"slot-{number}.lock")
            if lock is not None:
                return Slot(f"{host}-{number}", lock)
    except OSError as error:
        raise StateDirectoryError(
            f"{directory}: {error}; set state_dir to a writable directory, or set slot"
        ) from error
    raise AssertionError("count() does not end")


def host_id(directory: Path) -> str:
    """Read the id of a directory, or write one; of several processes the first one writes it.

    Args:
        directory: Directory of the application.
    """
    path = directory / "host-id"
    if path.exists() and not path.read_text("ascii").strip():
        # A power loss can leave an empty file; all such hosts would share the empty id.
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
