"""Notes of topic creations, growths and deletions, so that the next start can complete them.

A topic has several folders, and the process may die between two of them. The note is written first.
It says how many partitions the topic is to have, 0 for a deletion. The log manager makes and
removes the folders.
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
    """An unfinished change of one topic.

    Attributes:
        topic_id: Id of the topic, since a name may be used again.
        partitions: How many partitions it is to have; 0 for a deletion.
    """

    topic_id: uuid.UUID
    partitions: int


class TopicChanges:
    """The unfinished changes by topic, in a file of the root.

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
        """Every unfinished change."""
        return dict(self._pending)

    def get(self, topic: str) -> TopicChange | None:
        """Return the unfinished change of a topic, or None."""
        return self._pending.get(topic)

    def begin(self, topic: str, topic_id: uuid.UUID, partitions: int) -> None:
        """Note a change before it begins.

        Raises:
            OSError: It is noted only in memory.
        """
        self._pending[topic] = TopicChange(topic_id, partitions)
        self._write(self._pending)

    def finish(self, topic: str) -> None:
        """Remove the note of a change that is complete or given up.

        Raises:
            OSError: The note is still in the file.
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
