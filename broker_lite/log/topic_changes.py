"""What is being done to a topic, noted before it is begun, so that the next start can finish it.

A topic is several folders, and a process may die between two of them. The note says how many
partitions the topic is to have, none for one that is to go. It decides nothing about how that is
brought about; the log manager does that.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import NamedTuple

from onceflow.broker_lite.log.checkpoints import parse_uuid, render_uuid
from onceflow.broker_lite.log.storage import Storage

TOPIC_CHANGES_FILE = "topic-changes.json"

_logger = logging.getLogger("onceflow.broker_lite.log")


class TopicChange(NamedTuple):
    """What one topic is to become.

    Attributes:
        topic_id: Which topic, as a name may be used again.
        partitions: How many partitions it is to have; 0 when it is to go.
    """

    topic_id: uuid.UUID
    partitions: int


class TopicChanges:
    """The changes that were begun and not finished, by topic; kept in a file of the root.

    Args:
        storage: The data folder.
    """

    __slots__ = ("_pending", "_storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pending = self._read()

    def __contains__(self, topic: str) -> bool:
        return topic in self._pending

    def pending(self) -> dict[str, TopicChange]:
        """Every change that was not finished."""
        return dict(self._pending)

    def get(self, topic: str) -> TopicChange | None:
        """The unfinished change of a topic, or None."""
        return self._pending.get(topic)

    def begin(self, topic: str, topic_id: uuid.UUID, partitions: int) -> None:
        """Note what a topic is to become.

        Raises:
            OSError: It is noted in memory only.
        """
        self._pending[topic] = TopicChange(topic_id, partitions)
        self._write(self._pending)

    def finish(self, topic: str) -> None:
        """The topic is what it was to become, or is left as it is.

        Raises:
            OSError: It is still noted.
        """
        if topic in self._pending:
            self._write({name: kept for name, kept in self._pending.items() if name != topic})
            del self._pending[topic]

    def _write(self, changes: dict[str, TopicChange]) -> None:
        if not changes:
            self._storage.remove(TOPIC_CHANGES_FILE)
            return
        entries = {
            topic: {"topic_id": render_uuid(change.topic_id), "partitions": change.partitions}
            for topic, change in changes.items()
        }
        data = (json.dumps(entries, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
        self._storage.replace(TOPIC_CHANGES_FILE, data)

    def _read(self) -> dict[str, TopicChange]:
        data = self._storage.read_bytes(TOPIC_CHANGES_FILE)
        if data is None:
            return {}
        try:
            return {
                str(topic): TopicChange(parse_uuid(entry["topic_id"]), int(entry["partitions"]))
                for topic, entry in dict(json.loads(data)).items()
            }
        except (ValueError, KeyError, TypeError):
            _logger.warning("%s is damaged and counts as empty", TOPIC_CHANGES_FILE)
            return {}
