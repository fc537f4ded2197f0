"""Sinks that write each batch as a file into a folder, published with its offsets.

The sink stages and syncs a file, publishes it with the offsets by a manifest
(``manifests.ManifestLog``), and renames it into the folder. Programs that list the folder see only
published files, each once. Between the last two steps the latest file is missing, until its writer
or the next claim or write renames it.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from onceflow.sdk.errors import ConfigError, IllegalStateError, SerializationError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.serde import to_json
from onceflow.transactions.sinks import ledger
from onceflow.transactions.sinks.errors import (
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries, Row
from onceflow.transactions.sinks.manifests import HIDDEN, Manifest, ManifestLog, name_of
from onceflow.transactions.sinks.sink import Observer, Steps

logger: logging.Logger = logging.getLogger("onceflow.transactions.sinks")


class FileSink(ABC):
    """Base of the file sinks; derive from it for another format.

    Args:
        folder: Where the files go; it must exist. Any number of processes and hosts may write to
            it, if its file system has atomic hard links and renames.
        timeout_ms: Limit of each claim and write, checked between steps; a single call of the
            file system may take longer.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The folder does not exist, or the timeout is not positive.
    """

    suffix: str = ""
    needs_table: bool = False

    def __init__(
        self, folder: str | Path, *, timeout_ms: int = 5_000, observer: Observer | None = None
    ) -> None:
        if timeout_ms <= 0:
            raise ConfigError("timeout_ms", timeout_ms, "must be positive; 5000 is the default")
        self._folder = Path(folder)
        self._timeout_ms = timeout_ms
        self._steps = Steps(observer)
        self._log: ManifestLog | None = None

    def copy(self, table: str | None = None) -> Self:
        """Return an unopened sink like this one.

        Args:
            table: Not used: a folder is no table.
        """
        made = copy.copy(self)
        made._log = None
        return made

    @abstractmethod
    def encode(self, rows: Sequence[Row], out: BinaryIO) -> None:
        """Write a batch as one file.

        Args:
            rows: At least one row.
            out: The file.

        Raises:
            SinkRowError: A row cannot be written.
        """

    def open(self, group_id: str) -> None:
        """Make the folders for manifests and staged files.

        Args:
            group_id: The consumer group.

        Raises:
            ConfigError: The folder does not exist, or cannot be written to.
        """
        if not self._folder.is_dir():
            raise ConfigError("folder", str(self._folder), "is not a folder; make it")
        log = ManifestLog(self._folder, name_of(group_id))
        try:
            log.make()
        except OSError as error:
            raise ConfigError("folder", str(self._folder), f"cannot be written: {error}") from error
        self._log = log

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``."""
        log, end = self._opened(), self._end(None)
        try:
            while True:
                with self._steps("claim read"):
                    latest = log.latest()
                    claimed = ledger.claim(latest.entries, partitions, owner, topic_ids)
                    log.finish(latest)
                new = Manifest(latest.number + 1, {**latest.entries, **claimed})
                with self._steps("claim"):
                    is_published = log.publish(new)
                if is_published:
                    log.clean(new.number)
                    return claimed
                self._check_time(end)
        except OSError as error:
            raise self._unavailable(error) from error

    def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``."""
        entries = self._opened().latest().entries
        return {tp: entries[tp] for tp in partitions if tp in entries}

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``."""
        log, end = self._opened(), self._end(timeout_ms)
        staged = ""
        try:
            while True:
                with self._steps("offsets read"):
                    latest = log.latest()
                    advanced = ledger.advance(latest.entries, batch)
                with self._steps("rows"):
                    staged = self._stage(log, latest.number + 1, staged, batch.rows)
                    log.finish(latest)
                self._check_time(end)
                number = latest.number + 1
                file = log.file_name(number, self.suffix) if staged else ""
                new = Manifest(number, {**latest.entries, **advanced}, staged, file)
                if self._publish(log, new):
                    break
        except OSError as error:
            log.drop(staged)
            raise self._unavailable(error) from error
        except SinkOutcomeUnknownError:
            raise  # The staged file may be published, so it must stay.
        except Exception:
            log.drop(staged)
            raise
        try:
            with self._steps("rename"):
                log.finish(new)
        except OSError as error:
            logger.warning("%s: the next writer puts %s in place: %s", self._folder, file, error)

    def _stage(self, log: ManifestLog, number: int, staged: str, rows: Sequence[Row]) -> str:
        """Stage the rows for a manifest; reuse a file staged for one that lost its number."""
        if not rows:
            return ""
        kept = log.restage(staged, number) if staged else None
        return kept or log.stage(number, self.suffix, lambda out: self.encode(rows, out))

    def _publish(self, log: ManifestLog, manifest: Manifest) -> bool:
        try:
            with self._steps("commit"):
                return log.publish(manifest)
        except OSError as error:
            raise SinkOutcomeUnknownError(
                f"{self._folder}: manifest {manifest.number} may be published or not: {error}"
            ) from error

    def _end(self, timeout_ms: int | None) -> float:
        limit_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        return time.monotonic() + limit_ms / 1000

    def _check_time(self, end: float) -> None:
        if time.monotonic() > end:
            raise self._unavailable("it took too long")

    def _unavailable(self, error: object) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._folder}: {error}; nothing was stored. Mend the disk, or raise timeout_ms "
            f"({self._timeout_ms}), or revoke_budget_ms for commits within a rebalance"
        )

    def _opened(self) -> ManifestLog:
        if self._log is None:
            raise IllegalStateError("the sink of files is not open; call open() first")
        return self._log

    def close(self) -> None:
        """See ``Sink.close``."""
        self._log = None


class JsonLines(FileSink):
    """Rows as lines of JSON in UTF-8, each batch one file, each row once.

    Values are written as ``onceflow.sdk.serde.JSON`` writes them: dates, decimals and UUIDs as
    text, bytes as base64; NaN and the infinities are refused.

    Args:
        folder: Where the files go, as ``part-GROUP-NUMBER.jsonl``; it must exist.
        timeout_ms: Bound of each claim and write, looked at between steps.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The timeout is not positive.
    """

    suffix = ".jsonl"

    def encode(self, rows: Sequence[Row], out: BinaryIO) -> None:
        """See ``FileSink.encode``."""
        try:
            for row in rows:
                out.write(to_json(row))
                out.write(b"\n")
        except SerializationError as error:
            raise SinkRowError(
                f"{self._folder}: row {row!r:.200} {error}. Convert its values before write(); "
                "nothing of the batch was written"
            ) from error


def published(folder: str | Path, suffix: str) -> Iterator[BinaryIO]:
    """Open the published files of a folder, in order of group and number.

    The latest file of a group is opened in the staging folder, if it is not renamed yet.

    Args:
        folder: The folder of a sink.
        suffix: End of the names, such as ``.jsonl``.
    """
    path = Path(folder)
    pending: dict[str, tuple[ManifestLog, Manifest]] = {}
    for group in (path / HIDDEN).iterdir() if (path / HIDDEN).is_dir() else ():
        log = ManifestLog(path, group.name)
        if (latest := log.latest()).file.endswith(suffix):
            pending[latest.file] = (log, latest)
    # Listed after the manifests: a file that is not here yet is pending, or newer.
    names = {found.name for found in path.iterdir() if found.name.endswith(suffix)}
    for name in sorted(names | pending.keys()):
        if name in names:
            opened: BinaryIO | None = (path / name).open("rb")
        else:
            log, latest = pending[name]
            opened = log.opened(latest)  # None if it was deleted.
        if opened is not None:
            with opened:
                yield opened


def read_json_lines(folder: str | Path) -> Iterator[dict[str, object]]:
    """Return the rows that ``JsonLines`` published, in order of group and number.

    Args:
        folder: The folder of the sink.
    """
    for file in published(folder, JsonLines.suffix):
        for line in file:
            yield json.loads(line)
