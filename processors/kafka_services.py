"""The runner's outside world on real brokers: the SDK's clients behind the runner's protocols.

The only module of the area that names the SDK's client classes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from onceflow.processors.errors import TopicSetupError
from onceflow.processors.provisioning import TopicAdmin, TopicFacts
from onceflow.processors.restoration import ChangelogReader
from onceflow.processors.settings import AppSettings
from onceflow.sdk import Admin, Consumer
from onceflow.sdk.errors import TopicAlreadyExistsError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import IsolationLevel, NewTopic, TopicPartition
from onceflow.transactions import SessionConfig, SessionListener, TransactionSession

CREATE_WAIT_S = 10.0
CREATE_CHECK_S = 0.05


class KafkaTopicAdmin:
    """Topics by the SDK's ``Admin``."""

    def __init__(self, settings: AppSettings) -> None:
        self._admin = Admin(config=settings.admin_config())

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """Facts of those topics that exist."""
        existing = set(self._admin.list_topics())
        wanted = [topic for topic in dict.fromkeys(topics) if topic in existing]
        if not wanted:
            return {}
        return {
            name: TopicFacts(
                len(found.partitions),
                str(found.topic_id),
                min((len(p.replicas) for p in found.partitions), default=1),
            )
            for name, found in self._admin.describe_topics(wanted).items()
        }

    def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics, and wait until all brokers' answers show them."""
        for topic in topics:
            try:
                self._admin.create_topics([topic])
            except TopicAlreadyExistsError:
                continue  # Another worker was faster.
        deadline = time.monotonic() + CREATE_WAIT_S
        names = {topic.name for topic in topics}
        while not names <= set(self._admin.list_topics()):
            if time.monotonic() > deadline:
                raise TopicSetupError(f"created topics do not appear: {', '.join(sorted(names))}")
            time.sleep(CREATE_CHECK_S)

    def cleanup_policy(self, topic: str) -> str:
        """The topic's ``cleanup.policy``."""
        return self._admin.describe_configs([topic])[topic]["cleanup.policy"].value or ""

    def close(self) -> None:
        """Release connections."""
        self._admin.close()


class KafkaChangelogReader:
    """Changelogs by a consumer outside of any group."""

    def __init__(self, settings: AppSettings) -> None:
        self._admin = Admin(config=settings.admin_config())
        self._consumer = Consumer(config=settings.restoring_config())

    def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Log start offset and high watermark of each partition."""
        starts = self._admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = self._admin.list_offsets(
            dict.fromkeys(partitions, "latest"),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        return {tp: (starts[tp].offset, ends[tp].offset) for tp in partitions}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self._consumer.assign(list(positions))
        for partition, offset in positions.items():
            self._consumer.seek(partition, offset)

    def poll(self, timeout_ms: int) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """Take records."""
        return self._consumer.poll(timeout_ms=timeout_ms)

    def position(self, partition: TopicPartition) -> int:
        """Where reading goes on, behind markers and aborted records."""
        return self._consumer.position(partition)

    def close(self) -> None:
        """Release connections."""
        self._consumer.close()
        self._admin.close()


class KafkaServices:
    """Everything on the brokers of one application's settings."""

    def __init__(self, settings: AppSettings) -> None:
        self._settings = settings

    def admin(self) -> TopicAdmin:
        """Access for topics."""
        return KafkaTopicAdmin(self._settings)

    def session(self, config: SessionConfig, listener: SessionListener) -> TransactionSession:
        """A session that tells the listener."""
        return TransactionSession(config, listener=listener)

    def changelog_reader(self) -> ChangelogReader:
        """A reader of changelogs."""
        return KafkaChangelogReader(self._settings)

    def monotonic_s(self) -> float:
        """Monotonic clock in seconds."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Wall clock in milliseconds."""
        return int(time.time() * 1000)
