"""The cluster's topics for consumer groups: ids, partition counts, and the names of a pattern.

It decides whether topics have changed for a group, and which topics its patterns select. The
assignors decide which member gets which partition.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import RegexChange
from onceflow.broker_lite.coordinators.consumer.requests import TopicRights
from onceflow.broker_lite.coordinators.consumer.topic_regex import RegexError, TopicRegex

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

COMPILED_MAX = 200
"""Most compiled patterns that are kept, so that clients cannot fill the memory with them."""


class TopicLike(Protocol):
    """A topic as a coordinator sees it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def topic_id(self) -> UUID:
        """Its id; a topic that is created again under the same name has another one."""

    @property
    def partitions(self) -> Sequence[object]:
        """Its partitions."""


class TopicsView(Protocol):
    """The broker's topics."""

    @property
    def changes(self) -> int:
        """Rises whenever a topic is created, grows or is deleted."""

    def get(self, name: str) -> TopicLike | None:
        """The topic of that name."""

    def get_by_id(self, topic_id: UUID) -> TopicLike | None:
        """The topic of that id."""

    def __iter__(self) -> Iterator[TopicLike]:
        """All topics."""


class ConsumerTopics:
    """The topics, for all consumer groups of the broker."""

    __slots__ = ("_compiled", "view")

    def __init__(self, view: TopicsView) -> None:
        self.view: TopicsView = view
        self._compiled: dict[str, TopicRegex] = {}

    def compile(self, regex: str) -> None:
        """Check a pattern.

        Raises:
            RegexError: The pattern is invalid, or takes too long with the present topics.
        """
        if regex:
            self._compile(regex).select((topic.name for topic in self.view), bounded=True)

    def _compile(self, regex: str) -> TopicRegex:
        compiled = self._compiled.get(regex)
        if compiled is None:
            compiled = TopicRegex(regex)
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            self._compiled[regex] = compiled
        return compiled

    def ids_of(self, names: Iterable[str]) -> dict[UUID, int]:
        """Partition counts, by id, of those topics that exist."""
        found = {}
        for name in names:
            topic = self.view.get(name)
            if topic is not None:
                found[topic.topic_id] = len(topic.partitions)
        return found

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None if it was deleted."""
        topic = self.view.get_by_id(topic_id)
        return None if topic is None else topic.name

    def digest(self, names: Collection[str]) -> int:
        """Return a hash of the topics' ids and partition counts; 0 for no topics."""
        topics = [topic for name in sorted(names) if (topic := self.view.get(name)) is not None]
        if not topics:
            return 0
        text = "\0".join(f"{t.name} {t.topic_id} {len(t.partitions)}" for t in topics)
        data = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(data, "big", signed=True)

    def resolve(self, draft: GroupDraft, now_ms: int, rights: TopicRights) -> bool:
        """Bring the group's patterns up to date with the present topics.

        As in Apache Kafka, a pattern selects only topics that the heartbeat's sender may describe.
        Changed ACLs take effect with the next heartbeat; in Apache Kafka with the next refresh.

        Args:
            draft: The group.
            now_ms: Wall milliseconds.
            rights: Topics that patterns may select.

        Returns:
            Whether any pattern selects other topics than before.
        """
        group = draft.group
        used = group.used_regexes()
        seen = self.view.changes + rights.version
        stale = group.regexes_seen != seen
        changed = False
        for regex in sorted(set(group.regexes) - used):
            draft.add(RegexChange(regex, None))
        for regex in sorted(used):
            known = group.regexes.get(regex)
            if known is not None and not stale:
                continue
            topics = frozenset(filter(rights.may_describe, self._matching(regex)))
            if known is None or known.topics != topics:
                draft.add(RegexChange(regex, topics, self.view.changes, now_ms))
                changed = True
        draft.group.regexes_seen = seen
        return changed

    def _matching(self, regex: str) -> frozenset[str]:
        """Return the matching topics; as in Apache Kafka, internal ones too."""
        try:
            return self._compile(regex).select(topic.name for topic in self.view)
        except RegexError as error:  # Stored by Apache Kafka, or while google-re2 was installed.
            logger.error("pattern %r selects nothing here: %s", regex, error)
            return frozenset()
