"""Settings of a consume-transform-produce session, and the clients' settings made from them.

The session fixes what exactly-once needs (isolation level, no automatic commits, idempotence, a
transactional id); everything else of the clients can be set through ``consumer_settings`` and
``producer_settings``. Nothing here connects to anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from onceflow.sdk.errors import ConfigError, InvalidTopicError
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.sdk.settings.checks import NamedSettings, check_choice, check_kinds, check_range
from onceflow.sdk.settings.config import ConsumerConfig, ProducerConfig
from onceflow.transactions import timeouts

_OWNED_CONSUMER = frozenset(
    {"group_id", "isolation_level", "enable_auto_commit", "bootstrap_servers", "auto_offset_reset"}
)
_OWNED_PRODUCER = frozenset(
    {"transactional_id", "enable_idempotence", "acks", "bootstrap_servers", "joined_identity"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig(NamedSettings):
    """Settings of a session.

    Attributes:
        topics: Input topics.
        bootstrap_servers: Addresses as ``host:port``.
        group_id: Consumer group whose offsets tell what is done (``group.id``).
        slot: Name of this process within the group. With the group it makes the transactional
            id, so it must survive a restart and differ between live processes.
        transactional_id: Replaces the id made of group and slot (``transactional.id``).
        group_instance_id: Static membership (``group.instance.id``, KIP-345).
        commit_interval_ms: Age of a transaction at which ``commit_due`` becomes true. Readers of
            committed data see outputs this much later.
        transaction_timeout_ms: After this the coordinator aborts (``transaction.timeout.ms``);
            10,000 here, because a crashed process holds readers back for that long at worst.
        session_timeout_ms: ``session.timeout.ms``; under the consumer protocol it is the broker's
            ``group.consumer.session.timeout.ms`` that counts, and this should be no more than that.
        max_poll_interval_ms: ``max.poll.interval.ms``, also the rebalance timeout.
        max_poll_records: Most records that one poll returns (``max.poll.records``).
        revoke_budget_ms: Time for the commit within a rebalance; after that it becomes an abort.
        operation_timeout_ms: Bound of each blocking call to the brokers.
        fence_window_ms: Two fences within this time mean that the id is shared.
        start_from: Where a partition without a committed offset begins: ``earliest`` or
            ``latest``, decided once, when it is assigned.
        auto_offset_reset: What to do when the committed offset does not exist any more:
            ``none`` stops with the gap named; ``earliest`` and ``latest`` go on with a gap.
        consumer_settings: Further settings of the consumer, such as
            ``{"group_protocol": "consumer"}`` for groups of KIP-848.
        producer_settings: Further settings of the producer.

    Raises:
        ConfigError: A value cannot work, or the time limits contradict each other.
    """

    topics: Sequence[str]
    bootstrap_servers: str | Sequence[str]
    group_id: str
    slot: str = "0"
    transactional_id: str | None = None
    group_instance_id: str | None = None
    commit_interval_ms: int = 100
    transaction_timeout_ms: int = 10_000
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 1_000
    revoke_budget_ms: int = 5_000
    operation_timeout_ms: int = 30_000
    fence_window_ms: int = 60_000
    start_from: str = "earliest"
    auto_offset_reset: str = "none"
    consumer_settings: Mapping[str, object] = field(default_factory=dict)
    producer_settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self)
        given: object = self.topics
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise ConfigError("topics", given, "give a sequence of at least one topic name")
        for topic in self.topics:
            try:
                check_topic_name(topic)
            except InvalidTopicError as error:
                raise ConfigError("topics", topic, str(error)) from error
        if not self.group_id:
            raise ConfigError("group_id", self.group_id, "offsets are kept by group: name one")
        if not self.slot:
            raise ConfigError("slot", self.slot, "name this process within its group, such as '0'")
        check_choice("start_from", self.start_from, ("earliest", "latest"))
        check_choice("auto_offset_reset", self.auto_offset_reset, ("none", "earliest", "latest"))
        for name in ("max_poll_records", "operation_timeout_ms", "fence_window_ms"):
            check_range(name, getattr(self, name), 1)
        for name, settings, owned in (
            ("consumer_settings", self.consumer_settings, _OWNED_CONSUMER),
            ("producer_settings", self.producer_settings, _OWNED_PRODUCER),
        ):
            if not all(isinstance(key, str) for key in settings):
                raise ConfigError(name, settings, "names of settings are texts")
            taken = sorted(owned & settings.keys())
            if taken:
                raise ConfigError(name, taken, "the session sets these; leave them out")
        timeouts.check(self)
        # What the clients would refuse is refused here, before one of them fences a predecessor.
        ProducerConfig.from_settings(self.producer_options())
        ConsumerConfig.from_settings(self.consumer_options())

    @classmethod
    def _elsewhere(cls) -> Mapping[str, str]:
        return {
            item.name: f"{place}={{{item.name!r}: ...}}"
            for kind, place in (
                (ConsumerConfig, "consumer_settings"),
                (ProducerConfig, "producer_settings"),
            )
            for item in fields(kind)
        }

    @property
    def own_transactional_id(self) -> str:
        """The transactional id: as given, or made of group and slot."""
        return self.transactional_id or f"{self.group_id}-{self.slot}"

    def producer_options(self) -> dict[str, object]:
        """Arguments for the producer's constructor."""
        options: dict[str, object] = {
            "request_timeout_ms": min(30_000, self.transaction_timeout_ms),
            # A record that is not delivered while its transaction can live is of no use.
            "delivery_timeout_ms": 2 * self.transaction_timeout_ms,
            "max_block_ms": self.operation_timeout_ms,
            **self.producer_settings,
        }
        options["bootstrap_servers"] = self.bootstrap_servers
        options["transactional_id"] = self.own_transactional_id
        options["transaction_timeout_ms"] = self.transaction_timeout_ms
        return options

    def consumer_options(self) -> dict[str, object]:
        """Arguments for the consumer's constructor."""
        options: dict[str, object] = {
            "default_api_timeout_ms": self.operation_timeout_ms,
            **self.consumer_settings,
        }
        options["bootstrap_servers"] = self.bootstrap_servers
        options["group_id"] = self.group_id
        options["group_instance_id"] = self.group_instance_id
        options["isolation_level"] = "read_committed"
        options["enable_auto_commit"] = False
        options["auto_offset_reset"] = self.auto_offset_reset
        if options.get("group_protocol") != "consumer":
            # Under the consumer protocol (KIP-848) the coordinator divides, step by step in any
            # case, and it is the broker's setting that says how long a member may be silent.
            options.setdefault("partition_assignment_strategy", ("cooperative-sticky",))
            options["session_timeout_ms"] = self.session_timeout_ms
        options["max_poll_interval_ms"] = self.max_poll_interval_ms
        options["max_poll_records"] = self.max_poll_records
        return options
