"""Settings of producers, consumers and admin clients.

Each is declared once; this module adds which combinations contradict each other. It does not
decide what a setting does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal, Protocol, Self, cast, runtime_checkable

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import IsolationLevel, ProducerIdentity
from onceflow.sdk.observe.interceptors import ConsumerInterceptor, ProducerInterceptor
from onceflow.sdk.settings.addresses import Address, parse_bootstrap_servers
from onceflow.sdk.settings.consumer_checks import check_group, check_reset_policy
from onceflow.sdk.settings.declare import FUNCTION, Settings, instance, switch, text, whole, words
from onceflow.sdk.settings.foreign_names import ASSIGNOR_CLASSES, NAMED_PARTITIONER, NOT_OFFERED
from onceflow.sdk.settings.security import SecurityConfig

__all__ = [
    "AdminConfig",
    "BufferPolicy",
    "ClientConfig",
    "CompressionType",
    "ConsumerConfig",
    "NamedAssignor",
    "Partitioner",
    "ProducerConfig",
    "SecurityConfig",
]

PREFIX: Final = "ONCEFLOW_"
"""Default prefix of names in the environment."""
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
BufferPolicy = Literal["block", "raise"]
COMPRESSION_LEVELS: Final = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}
"""Least and greatest level of each codec that has one."""
Partitioner = Callable[[str, bytes | None, Sequence[int], Sequence[int]], int]
"""``partitioner(topic, key, all_partitions, available_partitions) -> partition``."""
SerializerFunction = Callable[..., bytes | None]
"""``serializer(key_or_value) -> bytes``; never called with None."""
DeserializerFunction = Callable[..., object]
"""``deserializer(data) -> object``; never called with None."""


@runtime_checkable
class NamedAssignor(Protocol):
    """What the configuration needs to know of a partition assignor: its name."""

    @property
    def name(self) -> str:
        """Name that members agree on, such as ``range``."""


class ClientConfig(Settings, kind="client"):
    """Settings that every client has."""

    remedies: ClassVar[Mapping[str, str]] = NOT_OFFERED

    bootstrap_servers: str | Sequence[str] = text(
        "localhost:9092",
        "Where to ask for the cluster first, as `host:port`, several by commas or as a list.",
        accepts=(Sequence,),
    )
    client_id: str = text("onceflow", "Name that brokers log and by which they set quotas.")
    request_timeout_ms: int = whole(
        30_000, "A request without an answer for so long closes its connection.", 1
    )
    default_api_timeout_ms: int = whole(60_000, "Limit of calls that are given no timeout.", 1)
    bootstrap_timeout_ms: int = whole(
        5_000,
        "How long a client that starts tries again while no bootstrap server can be a broker, "
        "since nothing listens there, its name does not resolve, or it speaks another protocol. "
        "Raise it where clients may start long before their brokers.",
        kafka="",
    )
    metadata_max_age_ms: int = whole(300_000, "Age at which metadata is asked for again.", 1)
    retry_backoff_ms: int = whole(100, "First wait before a retry.")
    retry_backoff_max_ms: int = whole(1_000, "Longest wait before a retry (KIP-580).")
    reconnect_backoff_ms: int = whole(50, "First wait before a broker is connected to again.")
    reconnect_backoff_max_ms: int = whole(1_000, "Longest wait before that.")
    connections_max_idle_ms: int = whole(540_000, "Close a connection without requests then.", 1)
    socket_connection_setup_timeout_ms: int = whole(10_000, "Limit of making a connection.", 1)
    max_response_bytes: int = whole(
        268_435_456,
        "Largest answer taken from a broker; protects memory from a broken one.",
        1,
        kafka="",
    )
    security: SecurityConfig = instance(
        SecurityConfig(), "TLS and SASL: `security.protocol` and others, see below.",
        SecurityConfig, kafka="",
    )  # fmt: skip

    def _check(self) -> None:
        parse_bootstrap_servers(self.bootstrap_servers)
        for first, longest, name in (
            (self.retry_backoff_ms, self.retry_backoff_max_ms, "retry_backoff"),
            (self.reconnect_backoff_ms, self.reconnect_backoff_max_ms, "reconnect_backoff"),
        ):
            if first > longest:
                raise ConfigError(f"{name}_ms", first, f"must not exceed {name}_max_ms ({longest})")

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The bootstrap servers as host and port."""
        return parse_bootstrap_servers(self.bootstrap_servers)

    @classmethod
    def places(cls) -> Mapping[str, str]:
        """See :meth:`Settings.places`."""
        names = {name: name for name in SecurityConfig.declared} | dict(SecurityConfig.places())
        return {
            **{asked: f"security=SecurityConfig({name}=...)" for asked, name in names.items()},
            **super().places(),
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Self:
        """Build the configuration from keyword arguments.

        Args:
            settings: Values by setting name; ``config`` may hold a configuration of this kind, or
                Kafka's dotted names, which the others override.

        Raises:
            ConfigError: A name does not exist (the nearest one is named), a value is out of
                range, or two settings contradict each other.
        """
        own = dict(settings)
        base = own.pop("config", None)
        cls.check_names(own)
        if base is None:
            return cls.build(own)
        if isinstance(base, cls):
            return base.replace(**own)
        if isinstance(base, Mapping):
            return cls._load(own, properties=cast("Mapping[str, object]", base))
        raise ConfigError("config", base, f"must be a {cls.__name__}, or a dictionary of settings")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **settings: object) -> Self:
        """Build the configuration from Kafka's dotted names, as ``bootstrap.servers``.

        Args:
            properties: Values by Kafka's name or ours; texts are read as numbers and switches
                where the setting is one. Security settings stand among them.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: As ``from_settings``; a setting of other clients is explained.
        """
        return cls._load(settings, properties=properties)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        prefix: str = PREFIX,
        **settings: object,
    ) -> Self:
        """Build the configuration from the environment, as ``ONCEFLOW_BOOTSTRAP_SERVERS``.

        ``ONCEFLOW_PRODUCER_LINGER_MS`` (or ``CONSUMER``, ``ADMIN``) is for that client only and
        wins over the name without. Settings of another kind of client are passed over.

        Args:
            environ: Variables; None reads those of the process.
            prefix: How the names begin; must not be empty.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: As ``from_settings``.
        """
        found = os.environ if environ is None else environ
        return cls._load(settings, environ=found, prefix=prefix)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **settings: object) -> Self:
        """Build the configuration from a file, ``*.toml`` or Java's properties.

        In TOML the tables ``[client]`` and ``[security]`` are for all clients, ``[producer]``,
        ``[consumer]`` and ``[admin]`` for one kind; in properties ``producer.linger.ms`` is.

        Args:
            path: The file.
            **settings: Keyword arguments, which win.

        Raises:
            ConfigError: The file cannot be read; or as ``from_settings``.
        """
        return cls._load(settings, file=path)

    @classmethod
    def load(
        cls,
        *,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: str = PREFIX,
        properties: Mapping[str, object] | None = None,
        **settings: object,
    ) -> Self:
        """Build the configuration from several places at once.

        What stands further to the right wins: default, file, environment, properties, keyword
        arguments. Settings of another kind of client are passed over, with one warning if they
        stand among the file's or the properties' plain names.

        Args:
            file: As for ``from_file``.
            environ: As for ``from_env``, but None reads nothing.
            prefix: As for ``from_env``.
            properties: As for ``from_properties``.
            **settings: Keyword arguments.

        Raises:
            ConfigError: As ``from_settings``; names the place of a wrong setting.
        """
        return cls._load(settings, file=file, environ=environ, prefix=prefix, properties=properties)

    @classmethod
    def _load(
        cls,
        settings: Mapping[str, object],
        *,
        file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: str = PREFIX,
        properties: Mapping[str, object] | None = None,
    ) -> Self:
        from onceflow.sdk.settings.sources import ClientSettings  # Late: it reads these classes.

        cls.check_names(settings)
        found = ClientSettings.load(
            file=file, environ=environ, prefix=prefix, properties=properties
        )
        found.warn_for(cls.kind)
        return cls.build(found.values(cls.kind, settings))


class ProducerConfig(ClientConfig, kind="producer"):
    """Settings of a producer."""

    acks: int | str = text(
        "all",
        "Who must have stored a record before it counts as sent: `all`, 1 for the leader alone, "
        "0 for none.",
        choices=("all", "0", "1", "-1", 0, 1, -1),
    )
    enable_idempotence: bool = switch(True, "Retries never duplicate.")
    transactional_id: str | None = text(None, "Stable name; makes the producer transactional.")
    transaction_timeout_ms: int = whole(
        60_000,
        "The coordinator aborts a transaction that is open for longer; at most the broker's "
        "maximum (15 min).",
        1,
    )
    joined_identity: ProducerIdentity | None = instance(
        None,
        "Produce within a transaction that another producer owns; this one then never begins or "
        "ends it. Within one transaction each partition may be written by one producer only, "
        "because the sequences of one identity are counted in one place.",
        ProducerIdentity,
        kafka="",
    )
    resumed_identity: ProducerIdentity | None = instance(
        None,
        "Go on, in another process, with the open transaction of a producer that had this "
        "identity: the producer starts inside it and may commit or abort it.",
        ProducerIdentity,
        kafka="",
    )
    compression_type: CompressionType | None = text(
        None, "Codec of the batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    compression_level: int | None = whole(
        None,
        "Level of the codec that `compression_type` names (KIP-390): gzip 1 to 9, lz4 1 to 17, "
        "zstd -131,072 to 22; None is Kafka's default for it.",
        -131_072,
        22,
        kafka="",
    )
    linger_ms: int = whole(5, "How long a batch waits for more records.")
    batch_size: int = whole(
        262_144,
        "Bytes of a full batch. Kafka has 16,384; the cost of a batch in Python asks for larger "
        "ones, and `linger_ms` bounds the wait all the same.",
        1,
    )
    max_request_size: int = whole(1_048_576, "Bytes of the largest request, and record.", 128)
    buffer_memory: int = whole(33_554_432, "Bytes of records that wait to be sent.", 1)
    buffer_full: BufferPolicy = text(
        "block",
        "What sending does while `buffer_memory` is full: `block` waits up to `max_block_ms`, "
        "`raise` raises BufferExhaustedError at once.",
        choices=("block", "raise"),
        kafka="",
    )
    max_block_ms: int = whole(
        60_000, "Longest wait for metadata, memory, or a transaction's coordinator."
    )
    delivery_timeout_ms: int = whole(
        120_000, "Limit from `send` to the acknowledgement, retries included (KIP-91).", 1
    )
    metadata_max_idle_ms: int = whole(
        300_000,
        "A topic that nothing was sent to for so long is left, and asked for again with its next "
        "record (KIP-526).",
        1,
    )
    max_in_flight_requests_per_connection: int = whole(
        5, "Requests that wait for their answers; order is kept.", 1
    )
    partitioner: Partitioner | None = instance(
        None,
        "Function that picks the partition. None is murmur2 of the key, and the sticky choice "
        "for records without a key (KIP-480, KIP-794).",
        FUNCTION,
        kafka="partitioner.class",
        hint=NAMED_PARTITIONER,
    )
    key_serializer: SerializerFunction | None = instance(
        None,
        "Function of the key; without one, bytes go as they are and text as UTF-8. None stays "
        "None and is not given to it.",
        FUNCTION,
    )
    value_serializer: SerializerFunction | None = instance(None, "Function of the value.", FUNCTION)
    interceptors: Sequence[ProducerInterceptor] = instance(
        (), "Objects that see every record on its way.", ProducerInterceptor,
        kafka="interceptor.classes",
    )  # fmt: skip

    def _check(self) -> None:
        super()._check()
        self._check_compression()
        self._check_delivery()
        self._check_idempotence()
        self._check_transactions()

    @property
    def wire_acks(self) -> int:
        """``acks`` as the protocol writes it: -1, 0 or 1."""
        return -1 if self.acks == "all" else int(self.acks)

    def _check_compression(self) -> None:
        level = self.compression_level
        if level is None:
            return
        bounds = COMPRESSION_LEVELS.get(self.compression_type or "none")
        if bounds is None:
            remedy = f"choose {', '.join(COMPRESSION_LEVELS)} or leave it out"
            raise ConfigError(
                "compression_level",
                level,
                f"compression_type={self.compression_type!r} has no levels; {remedy}",
            )
        if not bounds[0] <= level <= bounds[1]:
            raise ConfigError(
                "compression_level",
                level,
                f"must be from {bounds[0]} to {bounds[1]} for {self.compression_type}",
            )

    def _check_delivery(self) -> None:
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms < least:
            raise ConfigError(
                "delivery_timeout_ms",
                self.delivery_timeout_ms,
                f"must be at least linger_ms + request_timeout_ms ({least}); raise it or lower "
                "request_timeout_ms",
            )
        if self.max_request_size > self.buffer_memory:
            raise ConfigError(
                "buffer_memory",
                self.buffer_memory,
                f"must hold at least one request of max_request_size ({self.max_request_size})",
            )

    def _check_idempotence(self) -> None:
        if not self.enable_idempotence:
            return
        if self.wire_acks != -1:
            raise ConfigError(
                "acks",
                self.acks,
                'idempotence needs acks="all"; to go without it, say enable_idempotence=False',
            )
        if self.max_in_flight_requests_per_connection > 5:
            raise ConfigError(
                "max_in_flight_requests_per_connection",
                self.max_in_flight_requests_per_connection,
                "a broker remembers five batches of each producer, so idempotence allows at most "
                "5; for more, say enable_idempotence=False",
            )

    def _check_transactions(self) -> None:
        if self.transactional_id is not None:
            if not self.transactional_id:
                raise ConfigError("transactional_id", "", "give a name or None")
            if self.joined_identity is not None:
                raise ConfigError(
                    "joined_identity",
                    self.joined_identity,
                    "a producer either owns a transactional_id or joins another's transaction",
                )
        resumed = self.resumed_identity
        if resumed is not None:
            if self.joined_identity is not None:
                raise ConfigError(
                    "joined_identity", self.joined_identity, "resume or join, not both"
                )
            if self.transactional_id not in (None, resumed.transactional_id):
                raise ConfigError(
                    "transactional_id",
                    self.transactional_id,
                    f"resumed_identity belongs to {resumed.transactional_id!r}",
                )
        if (
            self.transactional_id or self.joined_identity or resumed
        ) and not self.enable_idempotence:
            raise ConfigError(
                "enable_idempotence", False, "transactions need the idempotent producer"
            )


class ConsumerConfig(ClientConfig, kind="consumer"):
    """Settings of a consumer."""

    group_id: str | None = text(None, "Consumer group; None reads without a group.")
    group_instance_id: str | None = text(None, "Name of a static member (KIP-345).")
    group_protocol: str = text(
        "classic",
        "With `consumer` (KIP-848) the coordinator divides the partitions, and sets session "
        "timeout and heartbeats.",
        choices=("classic", "consumer"),
    )
    group_remote_assignor: str | None = text(
        None,
        "Assignor for the coordinator, `uniform` or `range`; for the consumer protocol.",
    )
    isolation_level: str | IsolationLevel = text(
        "read_committed",
        "Whether records of open and aborted transactions are read; Kafka has read_uncommitted.",
        choices=("read_committed", "read_uncommitted", *IsolationLevel),
    )
    auto_offset_reset: str = text(
        "latest",
        "Where to begin without a committed offset: `earliest`, `latest`, `none`, or "
        "`by_duration:PT1H` (ISO 8601, counted back from now, KIP-1106). With `latest`, records "
        "that are written to a new partition before the group notices it "
        "(`metadata_max_age_ms`) are skipped.",
    )
    enable_auto_commit: bool = switch(True, "Commit positions now and then, while polling.")
    auto_commit_interval_ms: int = whole(5_000, "Time between these commits.", 1)
    max_poll_records: int = whole(500, "Most records that one poll returns.", 1)
    max_poll_interval_ms: int = whole(
        300_000, "Longest time between polls of a member; also its rebalance timeout.", 1
    )
    session_timeout_ms: int = whole(45_000, "How long a member may be silent.", 1)
    heartbeat_interval_ms: int = whole(3_000, "Time between heartbeats of a member.", 1)
    partition_assignment_strategy: Sequence[str | NamedAssignor] = words(
        ("range", "cooperative-sticky"),
        "Names of assignors, or assignors, the preferred one first; for the classic protocol.",
        accepts=(NamedAssignor,),
        spellings=ASSIGNOR_CLASSES,
        hint="such as ['range']",
    )
    fetch_min_bytes: int = whole(1, "Bytes for which a fetch waits at the broker.")
    fetch_max_wait_ms: int = whole(500, "How long it waits for them at most.")
    fetch_max_bytes: int = whole(52_428_800, "Most bytes of one fetch.", 1)
    max_partition_fetch_bytes: int = whole(1_048_576, "Most bytes of it of one partition.", 1)
    check_crcs: bool = switch(True, "Check the checksum of each batch.")
    client_rack: str = text("", "Read from a follower in the same rack (KIP-392).")
    allow_auto_create_topics: bool = switch(
        True, "Topics that are subscribed to are made if the broker allows it."
    )
    exclude_internal_topics: bool = switch(
        True,
        "A pattern leaves out Kafka's internal topics. With `group_protocol=consumer` the "
        "coordinator assigns what matches all the same; this consumer then does not read it, and "
        "shows it nowhere.",
    )
    key_deserializer: DeserializerFunction | None = instance(
        None, "Function of the key's bytes, not called for None.", FUNCTION
    )
    value_deserializer: DeserializerFunction | None = instance(
        None, "Function of the value's bytes, not called for None.", FUNCTION
    )
    interceptors: Sequence[ConsumerInterceptor] = instance(
        (), "Objects that see every record and commit.", ConsumerInterceptor,
        kafka="interceptor.classes",
    )  # fmt: skip

    def _check(self) -> None:
        super()._check()
        check_reset_policy(self.auto_offset_reset)
        check_group(self)
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ConfigError(
                "fetch_max_wait_ms",
                self.fetch_max_wait_ms,
                f"must be below request_timeout_ms ({self.request_timeout_ms}), or waiting for "
                "records would look like a dead broker",
            )

    @property
    def isolation(self) -> IsolationLevel:
        """The isolation level as an enum."""
        if isinstance(self.isolation_level, str):
            return IsolationLevel[self.isolation_level.upper()]
        return self.isolation_level


class AdminConfig(ClientConfig, kind="admin"):
    """Settings of an admin client: those that every client has."""
