"""A log of numbered manifests in a folder, which decides which files are published.

Manifest N is published by ``os.link`` of a complete, synced file. The system refuses the link if
the number is taken, so only one writer can follow manifest N - 1: this fences the others. A
manifest may name a staged file. Before a writer publishes the next manifest it renames that file
into place, so only the latest manifest's file can still be in the staging folder. Manifests are
never deleted: a writer that slept would take the free number. Numbers have no gaps, so bisection
finds the latest one.

Folders below ``_onceflow`` (which Spark and others leave out) of the folder with the data::

    GROUP/manifests/N.json     entries of all partitions, and the file that N publishes
    GROUP/stage/N-UUID...      files that wait for their manifest, and manifests being written

Each name is synced with its folder before a later step depends on it, as after a power failure the
system may have a later step without an earlier one.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.serde import to_json
from onceflow.transactions.sinks.ledger import Entries, Entry

HIDDEN = "_onceflow"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One manifest: offsets, and the file that it publishes.

    Attributes:
        number: Its number; 0 is the state before the first one.
        entries: The entries of all partitions of the group.
        staged: Name of the file in the staging folder; empty without one.
        file: Name that it gets in the data folder.
    """

    number: int = 0
    entries: Entries = field(default_factory=dict)
    staged: str = ""
    file: str = ""

    def encoded(self) -> bytes:
        """Return the text of the file."""
        entries = [[*tp, e.owner, e.epoch, e.offset, e.topic_id] for tp, e in self.entries.items()]
        return to_json(
            {
                "number": self.number,
                "entries": sorted(entries),
                "staged": self.staged,
                "file": self.file,
            }
        )

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Return the manifest of a file.

        Raises:
            ConfigError: The file is damaged.
        """
        try:
            found = json.loads(path.read_bytes())
            entries = {
                TopicPartition(str(topic), int(partition)): Entry(owner, epoch, offset, topic_id)
                for topic, partition, owner, epoch, offset, topic_id in found["entries"]
            }
            return cls(int(found["number"]), entries, str(found["staged"]), str(found["file"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "folder", str(path), f"is not a manifest ({error}); bring it back from a copy"
            ) from error


def sync_folder(folder: Path) -> None:
    """Sync the names within a folder, so that they survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def name_of(group_id: str) -> str:
    """Return the name of a group's folder, which is unique and stays within its parent."""
    return quote(group_id, safe="").replace(".", "%2E")


class ManifestLog:
    """The manifests of one group and its staging folder.

    Args:
        folder: The data folder.
        name: Name of the group's folder (``name_of``).
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.data: Path = folder
        self._name = name
        self._manifests = folder / HIDDEN / name / "manifests"
        self._stage = folder / HIDDEN / name / "stage"
        self._latest = Manifest()

    def make(self) -> None:
        """Make the folders."""
        for folder in (self._manifests, self._stage):
            folder.mkdir(parents=True, exist_ok=True)
            for parent in (folder, *folder.parents[:3]):
                sync_folder(parent)

    def path(self, number: int) -> Path:
        """Return where a manifest is."""
        return self._manifests / f"{number:012d}.json"

    def file_name(self, number: int, suffix: str) -> str:
        """Return the name in the data folder of the file that a manifest publishes."""
        return f"part-{self._name}-{number:012d}{suffix}"

    def latest(self) -> Manifest:
        """Return the latest manifest; number 0 if there is none."""
        known, step = self._latest.number, 1
        while self.path(known + step).exists():
            known += step
            step *= 2
        while step > 1:
            step //= 2
            if self.path(known + step).exists():
                known += step
        if known != self._latest.number:
            self._latest = Manifest.read(self.path(known))
        return self._latest

    def stage(self, number: int, suffix: str, write: Callable[[BinaryIO], None]) -> str:
        """Write and sync a file that waits for a manifest; return its name.

        Args:
            number: The manifest that shall publish it.
            suffix: End of the name.
            write: Writes the content.
        """
        name = f"{number:012d}-{uuid.uuid4().hex}{suffix}"
        try:
            with (self._stage / name).open("xb") as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            self.drop(name)
            raise
        sync_folder(self._stage)
        return name

    def restage(self, name: str, number: int) -> str | None:
        """Give a staged file the number of another manifest; None if a claim has deleted it."""
        renumbered = f"{number:012d}-{name.partition('-')[2]}"
        try:
            (self._stage / name).rename(self._stage / renumbered)
        except FileNotFoundError:
            return None
        sync_folder(self._stage)
        return renumbered

    def drop(self, name: str) -> None:
        """Delete a staged file, if it is still there."""
        with contextlib.suppress(OSError):
            (self._stage / name).unlink()

    def publish(self, manifest: Manifest) -> bool:
        """Publish a manifest; return False if another writer took its number.

        Args:
            manifest: With the number after ``latest``, whose file is in place (``finish``).
        """
        name = self.stage(manifest.number, ".json", lambda out: _write(out, manifest.encoded()))
        try:
            os.link(self._stage / name, self.path(manifest.number))
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and the second one finds our own link
            # (open(2), O_EXCL).
            if (self._stage / name).stat().st_nlink == 1:
                return False
        finally:
            self.drop(name)
        sync_folder(self._manifests)
        self._latest = manifest
        return True

    def finish(self, manifest: Manifest) -> None:
        """Rename the file of a published manifest into place, if that is not done."""
        if manifest.file:
            with contextlib.suppress(FileNotFoundError):
                (self._stage / manifest.staged).rename(self.data / manifest.file)
            sync_folder(self.data)

    def clean(self, number: int) -> None:
        """Delete staged files of manifests up to a number: renamed ones, or never published ones.

        Args:
            number: A published manifest without a file.
        """
        for path in self._stage.iterdir():
            staged_for = path.name.partition("-")[0]
            if staged_for.isdecimal() and int(staged_for) <= number:
                self.drop(path.name)

    def opened(self, manifest: Manifest) -> BinaryIO | None:
        """Open the file of a published manifest, staged or renamed; None if it was deleted."""
        in_place = self.data / manifest.file
        for path in (in_place, self._stage / manifest.staged, in_place):
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")
        return None


def _write(out: BinaryIO, content: bytes) -> None:
    out.write(content)
