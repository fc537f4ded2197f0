"""What a query's checkpoint says about a micro-batch: the offsets that its Kafka sources reached.

Spark writes ``offsets/<batch id>`` before a batch runs, so the file is there whenever the batch
is to be published. Only its form is known here; nothing is written.
"""

from __future__ import annotations

import json
import posixpath

from pyarrow import fs

from onceflow.sdk import TopicPartition

_SERIALIZED_VOID_OFFSET = "-"


class CheckpointError(Exception):
    """The checkpoint cannot be read, or says something that cannot be."""


def _open_folder(location: str) -> tuple[fs.FileSystem, str]:
    if "://" in location or location.startswith("file:"):
        filesystem, path = fs.FileSystem.from_uri(location)
        return filesystem, path
    return fs.LocalFileSystem(), posixpath.abspath(location)


def query_id(location: str) -> str:
    """The query's id, which stays the same over restarts from one checkpoint.

    Raises:
        CheckpointError: The checkpoint has no readable ``metadata`` file.
    """
    filesystem, path = _open_folder(location)
    file = posixpath.join(path, "metadata")
    try:
        with filesystem.open_input_file(file) as stream:
            return str(json.loads(bytes(stream.read()))["id"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot read the query's id from {file}: {error}") from error


def source_offsets(location: str, batch_id: int) -> dict[TopicPartition, int]:
    """Offsets after the last one of a micro-batch, for every Kafka source of the query.

    Args:
        location: The query's checkpoint, a path or a URI that pyarrow can open.
        batch_id: Number of the micro-batch.

    Returns:
        Offset by partition; empty when the query reads no Kafka source.

    Raises:
        CheckpointError: The file is missing or not of Spark's form.
    """
    filesystem, path = _open_folder(location)
    file = posixpath.join(path, "offsets", str(batch_id))
    try:
        with filesystem.open_input_file(file) as stream:
            lines = bytes(stream.read()).decode().splitlines()
    except OSError as error:
        raise CheckpointError(f"cannot read {file} of the query's checkpoint: {error}") from error
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise CheckpointError(f"{file} is not an offsets file of Spark")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        if line.strip() and line != _SERIALIZED_VOID_OFFSET:
            offsets.update(_kafka_offsets(line))
    return offsets


def _kafka_offsets(line: str) -> dict[TopicPartition, int]:
    """Read one source's offset if it has the form that Kafka sources use; else nothing."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            return {}
        for partition, offset in numbers.items():
            if not str(partition).isdigit() or not isinstance(offset, int):
                return {}
            found[TopicPartition(topic, int(partition))] = offset
    return found
