"""The topics of the broker: names, ids, partitions, settings; creation, growth and deletion.

It decides which names are allowed and keeps the two indexes (name and id) consistent with the logs.
The handlers decide who may create a topic and when.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from onceflow.broker_lite.log.log_config import PARTITIONS_MAX
from onceflow.broker_lite.settings.topic_config import log_config
from onceflow.broker_lite.slices import finished
from onceflow.sdk.model.special_values import METADATA_TOPIC
from onceflow.sdk.model.topic_names import topic_name_fault
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from random import Random

    from onceflow.broker_lite.log import LogConfig, LogManager, PartitionLog
    from onceflow.broker_lite.purgatory import Purgatory
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.topics")

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC})

PRODUCER_ID_BLOCK_FILE = "producer-id-block"
"""Small file in the log root with the producer ids that were given out."""

_RESERVED_IDS = (ZERO_UUID, uuid.UUID(int=1))


class TopicError(Exception):
    """A topic operation that is refused.

    Attributes:
        code: Kafka's error code.
        message: What is wrong and what to do.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class Topic:
    """One topic.

    Attributes:
        name: Its name.
        topic_id: Its id; a topic that is created again has another one (trap 32).
        partitions: Logs by partition number.
        overrides: Settings of this topic, text by name.
        config: Settings in force.
        internal: True for the coordinators' topics.
        deleted: Whether it was deleted; code that still holds the object must drop it.
    """

    __slots__ = ("config", "deleted", "internal", "name", "overrides", "partitions", "topic_id")

    def __init__(
        self,
        name: str,
        topic_id: uuid.UUID,
        partitions: list[PartitionLog],
        overrides: dict[str, str],
        config: LogConfig,
    ) -> None:
        self.name: str = name
        self.topic_id: uuid.UUID = topic_id
        self.partitions: list[PartitionLog] = partitions
        self.overrides: dict[str, str] = overrides
        self.config: LogConfig = config
        self.internal: bool = name in INTERNAL_TOPICS
        self.deleted: bool = False


def check_topic_name(name: str) -> None:
    """Refuse a name that topics cannot have.

    Raises:
        TopicError: INVALID_TOPIC_EXCEPTION with the reason.
    """
    reason = topic_name_fault(name)
    if reason is None:
        return
    raise TopicError(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name!r} is not allowed: {reason}."
    )


class TopicRegistry:
    """All topics, by name and by id.

    Attributes:
        changes: Rises whenever a topic is created, grows or is deleted.
        on_deleted: Called with each deleted topic and the time, after its logs were removed.
    """

    __slots__ = (
        "_by_id",
        "_by_name",
        "_config",
        "_going",
        "_growing",
        "_in_making",
        "_log_manager",
        "_purgatory",
        "_random",
        "changes",
        "on_deleted",
    )  # fmt: skip

    def __init__(
        self,
        log_manager: LogManager,
        config: BrokerConfig,
        random: Random,
        purgatory: Purgatory,
        now_ms: int,
    ) -> None:
        self._log_manager = log_manager
        self._config = config
        self._random = random
        self._purgatory = purgatory
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._in_making: set[str] = set()
        self._growing: set[str] = set()
        self._going: set[str] = set()
        self.changes: int = 0
        self.on_deleted: list[Callable[[Topic, int], None]] = []
        for name, (topic_id, count) in log_manager.topics().items():
            overrides = dict(log_manager.topic_overrides(name))
            topic = Topic(name, topic_id, [], overrides, log_config(overrides, config))
            for index in range(count):
                log = log_manager.partition(name, index)
                if log is None:
                    # A crash does not cause this: the folder was removed by hand.
                    logger.error("partition %s-%d has no folder and begins empty", name, index)
                    log = log_manager.create_partition(
                        name, topic_id, index, topic.config, now_ms=now_ms
                    )
                topic.partitions.append(log)
            self._add(topic)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Topic | None:
        """Return the topic of that name, or None."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with that id, or None."""
        return self._by_id.get(topic_id)

    def in_making(self, name: str) -> bool:
        """Whether a topic of that name is being created or deleted."""
        return name in self._in_making or name in self._going

    def partition(self, name: str, index: int) -> PartitionLog | None:
        """Return the log of a partition, or None."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def check_new(self, name: str) -> None:
        """Refuse a name that is illegal, taken, or collides with a taken one.

        Raises:
            TopicError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS or INVALID_REQUEST.
        """
        check_topic_name(name)
        if name == METADATA_TOPIC:
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic '{name}' is prohibited."
            )
        if name in self._by_name or self.in_making(name):
            raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            folded = name.replace(".", "_")
            for other in chain(self._by_name, self._in_making):
                if other.replace(".", "_") == folded:
                    raise TopicError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION,
                        f"Topic '{name}' collides with existing topic: {other} "
                        "('.' and '_' count as the same in metric names).",
                    )

    def create(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str],
        now_ms: int,
    ) -> Topic:
        """Create a topic at once; see :meth:`creating`."""
        return finished(self.creating(name, partition_count, overrides, now_ms))

    def creating(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str],
        now_ms: int,
    ) -> Generator[None, None, Topic]:
        """Create a topic, in steps of one partition; the settings have been checked.

        The topic is visible after the last step; its name is taken from the first step on. If the
        process dies before, or the caller stops, the next start has the whole topic.

        Args:
            name: Name of the topic.
            partition_count: How many partitions, at least 1.
            overrides: Settings for this topic, text by name.
            now_ms: Wall milliseconds.

        Raises:
            TopicError: The name is refused, or the number of partitions.
        """
        self.check_new(name)
        _check_partition_count(partition_count)
        topic_id = self._new_id()
        config = log_config(overrides, self._config)
        partitions: list[PartitionLog] = []
        self._in_making.add(name)
        try:
            self._log_manager.set_topic_overrides(name, dict(overrides))
            for log in self._log_manager.growing(
                name, topic_id, partition_count, config, now_ms=now_ms
            ):
                partitions.append(log)
                yield
        except Exception as error:
            # The next start must not take the partitions that were made for a topic.
            with contextlib.suppress(OSError):
                self._log_manager.delete_topic(name, now_ms)
            if isinstance(error, OSError):
                raise _storage_error(name, error) from error
            raise
        finally:
            self._in_making.discard(name)
        # The broker's settings may have changed meanwhile.
        config = log_config(overrides, self._config)
        topic = Topic(name, topic_id, partitions, dict(overrides), config)
        self._add(topic)
        return topic

    def ensure_internal(self, name: str, now_ms: int) -> Topic:
        """Return the coordinators' topic of that name; create it if it does not exist."""
        topic = self._by_name.get(name)
        if topic is not None:
            return topic
        if name == OFFSETS_TOPIC:
            count = self._config.offsets_topic_num_partitions
            segment_bytes = self._config.offsets_topic_segment_bytes
        else:
            count = self._config.transaction_state_log_num_partitions
            segment_bytes = self._config.transaction_state_log_segment_bytes
        overrides = {
            "cleanup.policy": "compact",
            "compression.type": "producer" if name == OFFSETS_TOPIC else "uncompressed",
            "segment.bytes": str(segment_bytes),
        }
        return self.create(name, count, overrides, now_ms)

    def check_growth(self, topic: Topic, total: int) -> None:
        """Refuse a number of partitions that is not greater than the present one.

        Raises:
            TopicError: INVALID_PARTITIONS.
        """
        _check_partition_count(total)
        existing = len(topic.partitions)
        if total <= existing:
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic '{topic.name}' has {existing} partitions; it can only grow, "
                f"not become {total}.",
            )

    def add_partitions(self, topic: Topic, total: int, now_ms: int) -> None:
        """Let a topic grow to ``total`` partitions at once; see :meth:`growing`."""
        finished(self.growing(topic, total, now_ms))

    def growing(self, topic: Topic, total: int, now_ms: int) -> Generator[None, None, None]:
        """Let a topic grow, in steps of one partition; new ones are visible after the last step.

        If the process dies before, or the caller stops, the next start has all of them.

        Args:
            topic: The topic.
            total: The new number of partitions.
            now_ms: Wall milliseconds.

        Raises:
            TopicError: INVALID_PARTITIONS if it would not grow, REASSIGNMENT_IN_PROGRESS while it
                grows already, UNKNOWN_TOPIC_OR_PARTITION if it was deleted meanwhile.
        """
        self.check_growth(topic, total)
        name, manager = topic.name, self._log_manager
        if name in self._growing:
            raise TopicError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"Topic '{name}' is growing already; ask again when that is done.",
            )
        self._growing.add(name)
        try:
            for _ in manager.growing(name, topic.topic_id, total, topic.config, now_ms=now_ms):
                yield
                if topic.deleted:
                    raise TopicError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"Topic '{name}' was deleted while it grew.",
                    )
        except Exception as error:
            # Not when the steps are given up: the broker is closed then.
            if not topic.deleted:
                with contextlib.suppress(OSError):
                    manager.give_up_growth(name)
            self._take_in(topic, total)
            if isinstance(error, OSError):
                raise _storage_error(name, error) from error
            raise
        self._take_in(topic, total)

    def _take_in(self, topic: Topic, total: int) -> None:
        """Make the new partitions of a topic visible, as far as they were made."""
        self._growing.discard(topic.name)
        if topic.deleted:
            return
        self.changes += 1
        for index in range(len(topic.partitions), total):
            log = self._log_manager.partition(topic.name, index)
            if log is None:
                break
            topic.partitions.append(log)
            self._watch(topic, index, log)

    def set_overrides(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Replace the settings of a topic; they are in force at once."""
        try:
            self._log_manager.set_topic_overrides(topic.name, dict(overrides))
        except OSError as error:
            raise _storage_error(topic.name, error) from error
        topic.overrides = dict(overrides)
        topic.config = log_config(overrides, self._config)

    def apply_config(self, config: BrokerConfig) -> None:
        """Put other settings of the broker in force for every topic."""
        self._config = config
        for topic in self:
            topic.config = log_config(topic.overrides, config)
        self._log_manager.refresh_configs()

    def delete(self, topic: Topic, now_ms: int) -> None:
        """Delete a topic at once; see :meth:`deleting`."""
        finished(self.deleting(topic, now_ms))

    def deleting(self, topic: Topic, now_ms: int) -> Generator[None, None, None]:
        """Delete a topic with its logs, in steps of one partition.

        From the first step on the topic is not visible. Its name is free after the last step, which
        also wakes requests that wait for its partitions. If the process dies meanwhile, the next
        start has the whole topic or none of it.

        Args:
            topic: The topic.
            now_ms: Wall milliseconds.

        Raises:
            TopicError: KAFKA_STORAGE_ERROR; the topic is deleted, but some files may remain.
        """
        self.changes += 1
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        topic.deleted = True
        self._going.add(topic.name)
        try:
            yield from self._log_manager.deleting(topic.name, now_ms)
        except Exception as error:
            # Not when the steps are given up: the broker is closed then.
            self._tell_gone(topic, now_ms)
            if isinstance(error, OSError):
                raise _storage_error(topic.name, error) from error
            raise
        self._tell_gone(topic, now_ms)

    def _tell_gone(self, topic: Topic, now_ms: int) -> None:
        """Free the name, wake requests that wait for the topic, and call `on_deleted`."""
        self._going.discard(topic.name)
        for index in range(len(topic.partitions)):
            self._purgatory.wake((topic.topic_id, index))
        for callback in self.on_deleted:
            callback(topic, now_ms)

    def _add(self, topic: Topic) -> None:
        self.changes += 1
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        for index, log in enumerate(topic.partitions):
            self._watch(topic, index, log)

    def _watch(self, topic: Topic, index: int, log: PartitionLog) -> None:
        key = (topic.topic_id, index)
        wake = self._purgatory.wake
        log.listeners.append(lambda: wake(key))

    def _new_id(self) -> uuid.UUID:
        while True:
            topic_id = uuid.UUID(int=self._random.getrandbits(128), version=4)
            # A leading dash makes ids awkward on command lines; Kafka avoids it as well. In
            # base64url a dash stands for 62 in the first six bits.
            if (
                topic_id not in _RESERVED_IDS
                and topic_id not in self._by_id
                and topic_id.int >> 122 != 62
            ):
                return topic_id


def _storage_error(name: str, error: OSError) -> TopicError:
    return TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}' cannot be stored: {error}.")


def _check_partition_count(count: int) -> None:
    if count <= 0:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
        )
    if count > PARTITIONS_MAX:
        raise TopicError(
            ErrorCode.POLICY_VIOLATION, f"Number of partitions must be at most {PARTITIONS_MAX}."
        )
