"""Settings of a consume-transform-produce session, and those of its clients under them.

The session changes some defaults of its producer and consumer, and refuses values that break
exactly-once. Every other setting of theirs is given as a setting of the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, Unpack, cast, overload

from onceflow.sdk import ClientSettings, ConsumerConfig, ProducerConfig
from onceflow.sdk.errors import ConfigError, InvalidTopicError
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.sdk.serde import Deserializer
from onceflow.sdk.settings.declare import REQUIRED, Settings, instance, text, whole, words
from onceflow.sdk.settings.sources import ClientSource
from onceflow.transactions import timeouts

if TYPE_CHECKING:
    from onceflow.transactions.keywords import SessionKeywords, SessionRest

K = TypeVar("K")
V = TypeVar("V")

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Default of ``transaction.timeout.ms`` in a session: how long a crashed process holds up readers.
"""
CONSUMER_DEFAULTS: Final[Mapping[str, object]] = {
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "none",  # stops with the gap named where a committed offset is gone
    "max_poll_records": 1_000,
}


class SessionSettings(Settings, in_kafka=False):
    """Settings that sessions and applications share."""

    client: ClientSettings = instance(
        ClientSettings(),
        "Settings of every client that is made: the address, security and all others; "
        "`ClientSettings`, a dictionary of Kafka's names, or the path of a file.",
        ClientSettings,
    )
    commit_interval_ms: int = whole(
        100,
        "Age of a transaction at which it is to be committed. Readers of committed data see "
        "outputs this much later.",
        1,
    )
    revoke_budget_ms: int = whole(
        5_000, "Time for the commit within a rebalance; after that it becomes an abort.", 1
    )
    operation_timeout_ms: int = whole(30_000, "Bound of each blocking call to the brokers.", 1)
    fence_window_ms: int = whole(
        60_000, "Two fences within this time mean that the transactional id is shared.", 1
    )
    start_from: str = text(
        "earliest",
        "Where a partition without a committed offset begins, decided once, when it is assigned.",
        choices=("earliest", "latest"),
    )

    def __init__(
        self,
        *,
        client: ClientSource | None = None,
        consumer_settings: Mapping[str, object] | None = None,
        producer_settings: Mapping[str, object] | None = None,
        **settings: object,
    ) -> None:
        """Take settings by name; those of clients are passed on.

        Args:
            client: Settings of the clients, which the others override.
            consumer_settings: Settings of consumers only, by name.
            producer_settings: Settings of producers only, by name.
            **settings: Settings of this class, or of clients.

        Raises:
            ConfigError: A value cannot work, or settings contradict each other.
        """
        self.check_names(settings)
        sections = {"consumer": consumer_settings or {}, "producer": producer_settings or {}}
        handed_on = {name: settings.pop(name) for name in settings.keys() - self.declared.keys()}
        clients = ClientSettings.of(client).updated(handed_on, **sections)
        super().__init__(client=clients, **settings)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """See :meth:`Settings.check_names`.

        Args:
            given: Names of settings, of this class or of clients.

        Raises:
            ConfigError: The first name that does not exist; the nearest one is named.
        """
        further = ("consumer_settings", "producer_settings")
        ClientSettings.check_names(given, cls.kind, (*cls.declared, *further))


class SessionConfig(SessionSettings, Generic[KeyT_co, ValueT_co], in_kafka=False, kind="session"):
    """Settings of a session; the types of the keys and values that it reads are its parameters.

    The types follow from ``key_deserializer`` and ``value_deserializer``, as for a consumer.

    It also takes settings of its clients, which are then in `producer` and `consumer`:
    ``SessionConfig(topics=["in"], group_id="g", linger_ms=20).producer.linger_ms``.

    Raises:
        ConfigError: A value cannot work, or the time limits contradict each other.
    """

    topics: Sequence[str] = words(REQUIRED, "Input topics.")
    topics_from_start: Sequence[str] = words(
        (), "Topics of these that begin at their beginning, whatever `start_from` says."
    )
    slot: str = text(
        "0",
        "Name of this process within its group. With the group it makes the transactional id, so "
        "it must survive a restart and differ between live processes.",
    )

    @overload
    def __init__(
        self: SessionConfig[bytes | None, bytes | None],
        *,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SessionConfig[K | None, bytes | None],
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SessionConfig[bytes | None, V | None],
        *,
        key_deserializer: None = None,
        value_deserializer: Deserializer[V],
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SessionConfig[K | None, V | None],
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SessionConfig[object, object], **settings: Unpack[SessionKeywords]
    ) -> None: ...
    def __init__(self, **settings: Unpack[SessionKeywords]) -> None:
        """See ``SessionSettings``.

        Args:
            **settings: Settings by name.

        Raises:
            ConfigError: A value cannot work, or settings contradict each other.
        """
        super().__init__(**settings)

    def _check(self) -> None:
        if not self.topics:
            raise ConfigError("topics", self.topics, "must name at least one topic")
        for topic in self.topics:
            try:
                check_topic_name(topic)
            except InvalidTopicError as error:
                raise ConfigError("topics", topic, str(error)) from error
        if not self.slot:
            raise ConfigError(
                "slot", self.slot, "must name this process within its group, such as '0'"
            )
        # Check these before a client is made, as a new producer fences a running one.
        if self.consumer.group_id is None:
            raise ConfigError("group_id", None, "must be set: offsets are stored by group")
        if self.consumer.enable_auto_commit:
            remedy = "a session commits offsets with its outputs; leave it out"
            raise ConfigError("enable_auto_commit", True, remedy)
        if self.consumer.isolation is not IsolationLevel.READ_COMMITTED:
            remedy = "a session reads committed records; leave it out"
            raise ConfigError("isolation_level", self.consumer.isolation_level, remedy)
        timeouts.check(self)

    @classmethod
    def of(cls, config: AnySessionConfig | None, settings: SessionKeywords) -> AnySessionConfig:
        """Return a configuration with some settings changed, or one made of these settings.

        Args:
            config: The configuration, or None.
            settings: Settings by name, which win.

        Raises:
            ConfigError: A value cannot work.
        """
        return SessionConfig(**settings) if config is None else config.replace(**settings)

    @property
    def own_transactional_id(self) -> str:
        """The transactional id: as given, or made of group and slot."""
        return self.producer.transactional_id or f"{self.consumer.group_id}-{self.slot}"

    @cached_property
    def producer(self) -> ProducerConfig:
        """The producer's settings: what was given, the session's defaults, the SDK's.

        Raises:
            ConfigError: The producer would refuse them.
        """
        found = self.client.values("producer")
        timeout_ms = cast("int", found.get("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS))
        request_ms = cast("int", found.get("request_timeout_ms", min(30_000, timeout_ms)))
        linger_ms = cast("int", found.get("linger_ms", ProducerConfig.linger_ms))
        defaults = {
            "transactional_id": f"{self.consumer.group_id}-{self.slot}",
            "transaction_timeout_ms": timeout_ms,
            "request_timeout_ms": request_ms,
            # A record delivered after its transaction has timed out is useless.
            "delivery_timeout_ms": max(2 * timeout_ms, request_ms + linger_ms),
            "max_block_ms": self.operation_timeout_ms,
        }
        return ProducerConfig.build({**defaults, **found})

    @cached_property
    def consumer(self) -> ConsumerConfig:
        """The consumer's settings: what was given, the session's defaults, the SDK's.

        Raises:
            ConfigError: The consumer would refuse them.
        """
        found = self.client.values("consumer")
        defaults = {**CONSUMER_DEFAULTS, "default_api_timeout_ms": self.operation_timeout_ms}
        if found.get("group_protocol") != "consumer":
            # Under the consumer protocol (KIP-848) the coordinator assigns partitions,
            # incrementally.
            defaults["partition_assignment_strategy"] = ("cooperative-sticky",)
        return ConsumerConfig.build({**defaults, **found})


AnySessionConfig: TypeAlias = SessionConfig[object, object]
"""The settings of a session that reads whatever types."""
