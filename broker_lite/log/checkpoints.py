"""Renders and parses the small text files beside the logs, in Kafka's formats.

These are pure functions; the log manager and the partition log decide when a file is written. A
damaged file raises ValueError.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import METADATA_TOPIC

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
METADATA_FOLDER = f"{METADATA_TOPIC}-0"
META_FILE = "meta.properties"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
TOPIC_CONFIGS_FILE = "topic-configs.json"

_VERSION = "0"


def render_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return a root checkpoint: version, count, then ``topic partition offset`` lines."""
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {at}" for (topic, partition), at in sorted(offsets.items())]
    return _text(lines)


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the content of a root checkpoint.

    Raises:
        ValueError: The file is damaged.
    """
    found = {}
    for line in _counted_lines(data):
        topic, partition, offset = line.split(" ")
        found[TopicPartition(topic, int(partition))] = int(offset)
    return found


def render_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """``leader-epoch-checkpoint``: version, count, then ``epoch start_offset`` lines."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return _text([_VERSION, str(len(lines)), *lines])


def parse_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """The content of ``leader-epoch-checkpoint``.

    Raises:
        ValueError: The file is damaged.
    """
    entries = []
    for line in _counted_lines(data):
        epoch, start_offset = line.split(" ")
        entries.append((int(epoch), int(start_offset)))
    return entries


def render_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """``partition.metadata``: the topic id in Kafka's base64 form."""
    return _text(["version: 0", f"topic_id: {render_uuid(topic_id)}"])


def parse_partition_metadata(data: bytes) -> uuid.UUID:
    """The topic id in ``partition.metadata``.

    Raises:
        ValueError: The file is damaged.
    """
    for line in data.decode().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return parse_uuid(value.strip())
    raise ValueError("partition.metadata names no topic_id")


def render_uuid(value: uuid.UUID) -> str:
    """22 characters of URL-safe base64 without padding, as Kafka writes ids."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> uuid.UUID:
    """The id in Kafka's base64 form.

    Raises:
        ValueError: The text is not an id.
    """
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def render_properties(values: Mapping[str, str]) -> bytes:
    """A Java properties file of plain keys and values."""
    return _text([f"{name}={value}" for name, value in sorted(values.items())])


def parse_properties(data: bytes) -> dict[str, str]:
    """A Java properties file of plain keys and values."""
    values = {}
    for line in data.decode().splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "!")):
            name, _, value = line.partition("=")
            values[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values


def render_clean_shutdown() -> bytes:
    """``.kafka_cleanshutdown``: says that every log was closed in order."""
    return json.dumps({"version": 0, "brokerEpoch": -1}, allow_nan=False).encode()


def render_topic_configs(configs: Mapping[str, Mapping[str, str]]) -> bytes:
    """``topic-configs.json``: the settings that differ from the defaults, by topic."""
    return (json.dumps(configs, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def parse_topic_configs(data: bytes) -> dict[str, dict[str, str]]:
    """The content of ``topic-configs.json``.

    Raises:
        ValueError: The file is damaged.
    """
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("topic-configs.json does not hold a JSON object")
    return {
        str(topic): {str(name): str(value) for name, value in dict(values).items()}
        for topic, values in found.items()
    }


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _counted_lines(data: bytes) -> list[str]:
    lines = data.decode().splitlines()
    # Without the final line end, the last number may be cut: 12 of 123.
    whole = data.endswith(b"\n") and len(lines) >= 2
    if not whole or lines[0] != _VERSION or len(lines) - 2 != int(lines[1]):
        raise ValueError("the checkpoint file has another version, or is cut short")
    return lines[2:]
