"""What the checks look at: the cluster's answers, the application and the settings of clients.

Each question is asked once, when the first check needs it. Nothing here judges, and nothing changes
the cluster.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceflow.broker_lite.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from onceflow.sdk.errors import (
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.admin import (
    ConfigResource,
    GroupDescription,
    ResourceType,
    TopicDescription,
    TransactionDescription,
)
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from onceflow.cli.connect import Connection
    from onceflow.processors.app import App
    from onceflow.sdk import Admin, ClientSettings


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command was asked to look at.

    Attributes:
        groups: Groups; empty for all, or the application's.
        topics: Topics; empty for all, or those of the application or the groups.
        open_for_ms: How long a transaction may be open.
    """

    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    open_for_ms: int = 60_000


@dataclass
class Facts:
    """A cluster, seen once.

    Attributes:
        connection: Settings of the command line.
        admin: Asks the cluster.
        wish: What to look at.
        app: The application, or None.
        misconfigured: Why the application's settings were refused, or empty.
        wall_ms: This machine's clock.
    """

    connection: Connection
    admin: Admin
    wish: Wish
    app: App | None = None
    misconfigured: str = ""
    wall_ms: Callable[[], int] = field(default=lambda: int(time.time() * 1000))

    @property
    def clients(self) -> ClientSettings:
        """Settings of the clients: the application's, or those of the command line."""
        return self.connection.settings if self.app is None else self.app.settings.client

    @functools.cached_property
    def brokers(self) -> list[int]:
        """Ids of the brokers."""
        return [node.node_id for node in self.admin.describe_cluster().nodes]

    @functools.cached_property
    def broker_configs(self) -> dict[int, dict[str, str]]:
        """Settings by broker."""
        resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in self.brokers]
        found = self.admin.describe_configs(resources)
        return {
            int(resource.name): {name: entry.value or "" for name, entry in entries.items()}
            for resource, entries in found.items()
            if isinstance(resource, ConfigResource)
        }

    @functools.cached_property
    def existing(self) -> set[str]:
        """Names of all topics, internal ones included."""
        return set(self.admin.list_topics(include_internal=True))

    @functools.cached_property
    def topic_names(self) -> list[str]:
        """Topics to look at that exist."""
        if self.wish.topics:
            missing = sorted(set(self.wish.topics) - self.existing)
            if missing:
                raise UnknownTopicOrPartitionError(f"topic {missing[0]!r}")
            return list(self.wish.topics)
        wanted = set(self.app_topics)
        if self.wish.groups:
            wanted |= {p.topic for group in self.groups.values() for p in _owned(group)}
            wanted |= {p.topic for name in self.groups for p in self.admin.list_group_offsets(name)}
        if self.app is not None or self.wish.groups:
            return sorted(wanted & self.existing)
        return sorted(name for name in self.existing if not name.startswith("__"))

    @property
    def app_topics(self) -> list[str]:
        """Inputs, outputs and changelogs of the application."""
        if self.app is None:
            return []
        topology = self.app.topology()
        tables = [table.topic for table in topology.global_tables]
        changelogs = [state.changelog for state in topology.states]
        every = [*topology.input_topics, *tables, *topology.output_topics, *changelogs]
        return list(dict.fromkeys(every))

    @functools.cached_property
    def topics(self) -> dict[str, TopicDescription]:
        """The topics to look at, and those in which brokers keep offsets and transactions."""
        internal = [each for each in (OFFSETS_TOPIC, TRANSACTION_TOPIC) if each in self.existing]
        names = list(dict.fromkeys([*self.topic_names, *internal]))
        return self.admin.describe_topics(names) if names else {}

    @functools.cached_property
    def topic_configs(self) -> dict[str, dict[str, str]]:
        """Settings by topic."""
        found = self.admin.describe_configs(list(self.topics)) if self.topics else {}
        return {
            str(name): {key: entry.value or "" for key, entry in entries.items()}
            for name, entries in found.items()
        }

    @functools.cached_property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of the topics to look at, those of the brokers left out."""
        return [
            TopicPartition(name, info.partition)
            for name in self.topic_names
            for info in self.topics[name].partitions
        ]

    @functools.cached_property
    def ends(self) -> dict[TopicPartition, tuple[int, int]]:
        """Last stable offset and high watermark by partition."""
        if not self.partitions:
            return {}
        wanted = dict.fromkeys(self.partitions, "latest")
        stable = self.admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        latest = self.admin.list_offsets(wanted)
        return {each: (stable[each].offset, latest[each].offset) for each in self.partitions}

    @functools.cached_property
    def group_names(self) -> list[str]:
        """Groups to look at."""
        if self.wish.groups:
            return list(self.wish.groups)
        if self.app is not None:
            return [self.app.settings.group_of(self.app.name)]
        return [
            each.group_id
            for each in self.admin.list_groups()
            if each.protocol_type in ("consumer", "")
        ]

    @functools.cached_property
    def groups(self) -> dict[str, GroupDescription]:
        """The groups to look at; one that does not exist is in the state Dead."""
        return self.admin.describe_groups(self.group_names) if self.group_names else {}

    @functools.cached_property
    def producer_ids(self) -> dict[int, str]:
        """Transactional id by producer id, of those that this user may see."""
        return {each.producer_id: each.transactional_id for each in self.admin.list_transactions()}

    @functools.cached_property
    def transactions(self) -> dict[str, TransactionDescription]:
        """What coordinators know of transactional ids: those of groups, or all; none of topics."""
        names = sorted(self.producer_ids.values())
        if self.app is not None or self.wish.groups:
            # A session's id is made of group and slot.
            names = [n for n in names if any(n.startswith(f"{g}-") for g in self.group_names)]
        elif self.wish.topics:
            return {}
        found = {name: self.transaction(name) for name in names}
        return {name: known for name, known in found.items() if known is not None}

    def transaction(self, name: str) -> TransactionDescription | None:
        """What the coordinator knows of a transactional id.

        Args:
            name: The transactional id.
        """
        try:
            return self.admin.describe_transactions([name])[name]
        except (TransactionalIdNotFoundError, TransactionalIdAuthorizationFailedError):
            return None  # Expired meanwhile; what this user may not see is another check's.

    @functools.cached_property
    def features(self) -> Mapping[str, tuple[int, int]]:
        """Finalized level and highest supported level, by feature."""
        found = self.admin.describe_features()
        return {
            name: (found.finalized.get(name, 0), supported[1])
            for name, supported in found.supported.items()
        }


def _owned(group: GroupDescription) -> list[TopicPartition]:
    return [place for member in group.members for place in member.assignment]
