"""The folders of partitions in a data folder: finds, identifies and renames them.

It uses names of folders and the topic ids in them, and never looks at records.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.removals import Removals
from onceflow.broker_lite.log.storage import Storage
from onceflow.sdk.model.special_values import METADATA_TOPIC

DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FILE_NAME_MAX = 255


class PartitionFolders:
    """The folders of partitions in a data folder.

    Args:
        storage: The data folder.
        new_uuid: Source of names for renamed folders.
        removals: Removes the renamed folders later.
    """

    __slots__ = ("_new_uuid", "_removals", "_storage")

    def __init__(
        self, storage: Storage, new_uuid: Callable[[], uuid.UUID], removals: Removals
    ) -> None:
        self._storage = storage
        self._new_uuid = new_uuid
        self._removals = removals

    def by_topic(self, due_ms: int = 0) -> dict[str, dict[int, uuid.UUID | None]]:
        """Return topic ids by topic and partition; None for a folder that names none.

        Args:
            due_ms: Time from which folders that an earlier run renamed may be removed.
        """
        topics: dict[str, dict[int, uuid.UUID | None]] = {}
        known: dict[bytes, uuid.UUID | None] = {b"": None}
        for directory in self._storage.directories():
            if directory.endswith(DELETED_SUFFIX):
                self._removals.remove_folder(directory, due_ms)
                continue
            topic, _, number = directory.rpartition("-")
            if not topic or not number.isdecimal() or topic == METADATA_TOPIC:
                continue
            data = self._storage.read_bytes(f"{directory}/{checkpoints.PARTITION_METADATA_FILE}")
            content = data or b""
            if content not in known:  # All folders of a topic hold the same bytes.
                with contextlib.suppress(ValueError):
                    known[content] = checkpoints.parse_partition_metadata(content)
            topics.setdefault(topic, {})[int(number)] = known.get(content)
        return topics

    def partitions_of(self, topic: str) -> list[int]:
        """Numbers of the partitions of a topic that have a folder."""
        names = (directory.rpartition("-") for directory in self._storage.directories())
        return sorted(
            int(number) for name, _, number in names if name == topic and number.isdecimal()
        )

    def name_topic_id(self, topic: str, number: int, topic_id: uuid.UUID) -> None:
        """Write the topic id of a folder into it.

        Raises:
            OSError: It is as it was.
        """
        self._storage.replace(
            f"{topic}-{number}/{checkpoints.PARTITION_METADATA_FILE}",
            checkpoints.render_partition_metadata(topic_id),
        )

    def set_aside(self, topic: str, number: int, suffix: str = DELETED_SUFFIX) -> str:
        """Rename a folder, so that it is not a partition any more.

        Returns:
            Its new name.

        Raises:
            OSError: It is as it was.
        """
        ending = f".{self._new_uuid().hex}{suffix}"
        target = f"{topic}-{number}"[: FILE_NAME_MAX - len(ending)] + ending
        self._storage.rename_directory(f"{topic}-{number}", target)
        self._removals.forget_folder(f"{topic}-{number}")
        return target

    def discard(self, topic: str, number: int, due_ms: int = 0) -> None:
        """Rename a folder and have it removed later.

        Raises:
            OSError: It is as it was.
        """
        self._removals.remove_folder(self.set_aside(topic, number), due_ms)
