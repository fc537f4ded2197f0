"""Reads topics' settings from the metadata log that Apache Kafka leaves in a data folder.

Kafka (KRaft) keeps settings of topics only in ``__cluster_metadata``. A broker without them could
remove records, by its default retention, that a topic must keep. The log is only read, so that
Kafka finds it unchanged. The caller decides which of the settings it can use.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator

from onceflow.broker_lite.log.checkpoints import METADATA_FOLDER
from onceflow.broker_lite.log.log_errors import DataFolderError
from onceflow.broker_lite.log.storage import Storage
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    iter_batch_headers,
)
from onceflow.sdk.protocol.primitives import MalformedError, decode_uvarint, uuid_of
from onceflow.sdk.protocol.records import decode_batch

_LOG_NAME = re.compile(r"\d{20}\.log")
_SNAPSHOT_NAME = re.compile(r"(\d{20})-\d{10}\.checkpoint")
_TOPIC_RECORD, _CONFIG_RECORD, _REMOVE_TOPIC_RECORD = 2, 4, 9
_TOPIC_RESOURCE = 2
_UUID_SIZE = 16

_logger = logging.getLogger("onceflow.broker_lite.log")


def topic_settings(storage: Storage) -> dict[str, dict[str, str]]:
    """Return the settings of each topic, as text; none for a folder without the log.

    Raises:
        DataFolderError: A record in it cannot be read.
    """
    found = _Settings()
    for value in _values(storage):
        try:
            found.take(value)
        except (MalformedError, IndexError, UnicodeDecodeError) as error:
            raise DataFolderError(
                f"{METADATA_FOLDER}, where Apache Kafka keeps topics' settings, is damaged "
                f"({error}): restore it from a copy, or write {{}} to topic-configs.json, and "
                "every topic has the broker's settings"
            ) from None
    return {topic: settings for topic, settings in found.by_topic.items() if settings}


class _Settings:
    """The settings in the records that were read so far.

    Attributes:
        by_topic: Settings by topic and name.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[str, str]] = {}
        self._names: dict[uuid.UUID, str] = {}

    def take(self, value: bytes) -> None:
        """Apply the next record: the number of its kind, its version, and its fields."""
        position = 0
        _, position = decode_uvarint(value, position)
        kind, position = decode_uvarint(value, position)
        _, position = decode_uvarint(value, position)
        if kind == _TOPIC_RECORD:
            name, position = _text(value, position)
            self._names[_id(value, position)] = name or ""
        elif kind == _REMOVE_TOPIC_RECORD:
            self.by_topic.pop(self._names.pop(_id(value, position), ""), None)
        elif kind == _CONFIG_RECORD and value[position] == _TOPIC_RESOURCE:
            topic, position = _text(value, position + 1)
            name, position = _text(value, position)
            text, _ = _text(value, position)
            settings = self.by_topic.setdefault(topic or "", {})
            if text is None:
                settings.pop(name or "", None)
            else:
                settings[name or ""] = text


def _text(value: bytes, position: int) -> tuple[str | None, int]:
    size, position = decode_uvarint(value, position)
    if not size:
        return None, position
    end = position + size - 1
    if end > len(value):
        raise MalformedError(f"a text of {size - 1} bytes is cut")
    return value[position:end].decode(), end


def _id(value: bytes, position: int) -> uuid.UUID:
    if position + _UUID_SIZE > len(value):
        raise MalformedError("an id is cut")
    return uuid_of(value[position : position + _UUID_SIZE])


def _values(storage: Storage) -> Iterator[bytes]:
    """Yield the records of the newest snapshot, then those of the log after it."""
    names = sorted(storage.names(METADATA_FOLDER))
    snapshots = [found for found in map(_SNAPSHOT_NAME.fullmatch, names) if found]
    begin = 0
    if snapshots:
        begin = int(snapshots[-1][1])
        yield from _values_of(storage, snapshots[-1][0], 0)
    for name in names:
        if _LOG_NAME.fullmatch(name):
            yield from _values_of(storage, name, begin)


def _values_of(storage: Storage, name: str, begin: int) -> Iterator[bytes]:
    data = storage.read_bytes(f"{METADATA_FOLDER}/{name}") or b""
    try:
        for position, header in iter_batch_headers(data):
            if not header.is_control and header.base_offset >= begin:
                for record in decode_batch(data, position, header=header):
                    yield bytes(record.value or b"")
    except InvalidBatchError as error:  # A crash may leave half a batch at the end.
        _logger.warning("%s/%s is read up to a damaged batch: %s", METADATA_FOLDER, name, error)
