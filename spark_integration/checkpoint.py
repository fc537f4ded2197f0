"""What a query's checkpoint says about its micro-batches; nothing is written to it.

Spark writes ``offsets/<batch id>`` before it runs a batch and ``commits/<batch id>`` after it. A
batch whose commit file is missing runs again from the same offsets file. The file holds the time
at which the batch was planned, so a hash of the whole file tells such a replay from another batch
that was planned later under the same number.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyarrow import fs

from onceflow.sdk import TopicPartition
from onceflow.spark_integration.planning import MARK

VERSIONS: Final = ("v1", "v2")

Offsets = dict[TopicPartition, int]


class CheckpointError(Exception):
    """The checkpoint cannot be read, or has a form that this version does not know."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The offsets of one Kafka source in a micro-batch.

    Attributes:
        cluster_id: Cluster that the source reads, None where the source does not say (Spark's own).
        starts: First offset by partition, as far as it is known.
        ends: Offset after the last one by partition.
    """

    cluster_id: str | None
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A micro-batch as Spark planned it.

    Attributes:
        batch_id: Number of the batch.
        digest: Hash of the offsets file, which differs for each planning.
        sources: The Kafka sources of the query.
        has_others: Whether there are sources that are not Kafka's.
    """

    batch_id: int
    digest: str
    sources: tuple[SourceRange, ...] = field(default=())
    has_others: bool = False

    @property
    def offsets_count(self) -> int | None:
        """Offsets that the batch reads, None where that is not known."""
        if self.has_others or not self.sources:
            return None
        return sum(
            max(0, end - source.starts.get(tp, 0))
            for source in self.sources
            for tp, end in source.ends.items()
        )


def least(offsets: Iterable[Mapping[TopicPartition, int]]) -> Offsets:
    """Join the offsets of several sources; of two that read one partition the lower one counts."""
    found: Offsets = {}
    for one in offsets:
        for tp, offset in one.items():
            found[tp] = min(offset, found.get(tp, offset))
    return found


class Checkpoint:
    """A query's checkpoint.

    Args:
        location: A path, or a URI that pyarrow can open.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        if "://" in location or location.startswith("file:"):
            self._files, self._path = fs.FileSystem.from_uri(location)
        else:
            self._files, self._path = fs.LocalFileSystem(), posixpath.abspath(location)

    def query_id(self) -> str:
        """The query's id, which stays the same over restarts and wherever the checkpoint is.

        Raises:
            CheckpointError: The checkpoint has no readable ``metadata`` file.
        """
        file = posixpath.join(self._path, "metadata")
        try:
            return str(json.loads(self._bytes("metadata"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read the query's id from {file}: {error}") from error

    def planned_ids(self) -> list[int]:
        """Numbers of the batches whose offsets are kept, ascending; Spark deletes old ones."""
        folder = fs.FileSelector(posixpath.join(self._path, "offsets"), allow_not_found=True)
        names = (info.base_name for info in self._files.get_file_info(folder))
        return sorted(int(name) for name in names if name.isdigit())

    def digest(self, batch_id: int) -> str | None:
        """Hash of a batch's offsets file, None when there is no such file."""
        if batch_id < 0:
            return None
        try:
            return _digest(self._bytes("offsets", str(batch_id)))
        except FileNotFoundError:
            return None

    def plan(self, batch_id: int | None = None) -> BatchPlan:
        """A batch as it was planned.

        Args:
            batch_id: Number of the batch; by default the last one that was planned, which is
                the one that runs.

        Raises:
            CheckpointError: The file is missing, or not of a form that is known.
        """
        if batch_id is None:
            batch_id = max(self.planned_ids(), default=0)
        content = self._offsets(batch_id)
        before = self._texts(batch_id - 1) if batch_id > 0 else {}
        sources, has_others = [], False
        for key, text in _source_texts(content, self._name(batch_id)).items():
            ends = _kafka_offsets(_json(text))
            if ends is not None:
                starts = self._starts(key, text, before.get(key), batch_id)
                sources.append(SourceRange(_mark(text).get("cluster"), starts, ends))
            has_others = has_others or ends is None
        return BatchPlan(batch_id, _digest(content), tuple(sources), has_others)

    def _starts(self, key: str, text: str, before: str | None, batch_id: int) -> Offsets:
        """Where a source's batch begins: at the end of the batch before it."""
        if batch_id > 0:
            return _kafka_offsets(_json(before or "")) or {}
        ours = _mark(text).get("start")
        if ours is not None:
            return _kafka_offsets(ours) or {}
        try:  # Spark's own source keeps its first offsets here, after a byte and a version.
            kept = self._bytes("sources", key, "0").decode(errors="replace")
        except OSError:
            return {}
        return _kafka_offsets(_json(kept[kept.find("{") :])) or {}

    def _texts(self, batch_id: int) -> dict[str, str]:
        try:
            content = self._bytes("offsets", str(batch_id))
        except FileNotFoundError:
            return {}
        return _source_texts(content, self._name(batch_id))

    def _offsets(self, batch_id: int) -> bytes:
        try:
            return self._bytes("offsets", str(batch_id))
        except OSError as error:
            raise CheckpointError(
                f"cannot read {self._name(batch_id)} of the query's checkpoint: {error}"
            ) from error

    def _name(self, batch_id: int) -> str:
        return posixpath.join(self._path, "offsets", str(batch_id))

    def _bytes(self, *names: str) -> bytes:
        with self._files.open_input_file(posixpath.join(self._path, *names)) as stream:
            return bytes(stream.read())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _source_texts(content: bytes, file: str) -> dict[str, str]:
    """Each source's offset as text, by the source's number (version 1) or name (version 2)."""
    lines = content.decode(errors="replace").splitlines()
    version = lines[0].strip() if lines else ""
    if len(lines) < 2 or not version.startswith("v"):
        raise CheckpointError(f"{file} is not an offsets file of Spark")
    if version not in VERSIONS:
        raise CheckpointError(
            f"{file} is an offset log of version {version!r}; this sink reads "
            f"{' and '.join(VERSIONS)}. Set spark.sql.streaming.offsetLog.formatVersion to 1 or 2 "
            "before the query's first start"
        )
    if version == "v1":
        return {str(number): text for number, text in enumerate(lines[2:])}
    named = (line.partition(":") for line in lines[2:] if line.strip())
    return {name: text for name, _, text in named}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _mark(text: str) -> Mapping[str, Any]:
    """What our source says beside its offsets; empty for other sources."""
    parsed = _json(text)
    mark = parsed.get(MARK) if isinstance(parsed, dict) else None
    return mark if isinstance(mark, dict) else {}


def _kafka_offsets(parsed: Any) -> Offsets | None:
    """Read one source's offsets, None when they have not the form that Kafka sources use."""
    if not isinstance(parsed, dict):
        return None
    found: Offsets = {}
    for topic, numbers in parsed.items():
        if topic == MARK:
            continue
        if not isinstance(numbers, dict):
            return None
        for partition, offset in numbers.items():
            if not str(partition).isdigit() or not isinstance(offset, int):
                return None
            found[TopicPartition(topic, int(partition))] = offset
    return found
