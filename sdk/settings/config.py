"""Configuration of producers, consumers and admin clients as frozen dataclasses.

Each field names its Kafka property and default; this module decides which values are allowed and
which combinations contradict each other. It does not decide what a setting does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import IsolationLevel, ProducerIdentity
from onceflow.sdk.observe.interceptors import ConsumerInterceptor, ProducerInterceptor
from onceflow.sdk.settings.checks import (
    Address,
    check_callable,
    check_choice,
    check_instances,
    check_kinds,
    check_range,
    parse_bootstrap_servers,
)
from onceflow.sdk.settings.consumer_checks import check_group, check_reset_policy
from onceflow.sdk.settings.security import SecurityConfig
from onceflow.sdk.settings.sources import Loadable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(Loadable):
    """What every client shares.

    Attributes:
        bootstrap_servers: ``bootstrap.servers``: where to ask for the cluster first.
        client_id: ``client.id``: name that brokers log, default "onceflow".
        request_timeout_ms: ``request.timeout.ms``, default 30,000: a request without an answer
            for so long closes its connection.
        default_api_timeout_ms: ``default.api.timeout.ms``, default 60,000: limit of calls
            without a timeout of their own.
        bootstrap_timeout_ms: How long a client that starts tries again while no bootstrap server
            can be a broker, since nothing listens there, its name does not resolve, or it speaks
            another protocol; default 5,000. Raise it where clients may start long before their
            brokers (no Kafka property).
        metadata_max_age_ms: ``metadata.max.age.ms``, default 300,000.
        retry_backoff_ms: ``retry.backoff.ms``, default 100: first wait before a retry.
        retry_backoff_max_ms: ``retry.backoff.max.ms``, default 1,000 (KIP-580).
        reconnect_backoff_ms: ``reconnect.backoff.ms``, default 50.
        reconnect_backoff_max_ms: ``reconnect.backoff.max.ms``, default 1,000.
        connections_max_idle_ms: ``connections.max.idle.ms``, default 540,000.
        socket_connection_setup_timeout_ms: ``socket.connection.setup.timeout.ms``, 10,000.
        max_response_bytes: Largest answer taken from a broker, default 256 MiB (no Kafka
            property; protects memory from a broken peer).
        security: TLS and SASL (``security.protocol`` and others).
    """

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    client_id: str = "onceflow"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    bootstrap_timeout_ms: int = 5_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    connections_max_idle_ms: int = 540_000
    socket_connection_setup_timeout_ms: int = 10_000
    max_response_bytes: int = 268_435_456
    security: SecurityConfig = field(default_factory=SecurityConfig)

    def __post_init__(self) -> None:
        self._check_client()

    def _check_client(self) -> None:
        check_kinds(self, {"SecurityConfig": SecurityConfig, "ProducerIdentity": ProducerIdentity})
        parse_bootstrap_servers(self.bootstrap_servers)
        for name in (
            "request_timeout_ms",
            "default_api_timeout_ms",
            "metadata_max_age_ms",
            "connections_max_idle_ms",
            "socket_connection_setup_timeout_ms",
            "max_response_bytes",
        ):
            check_range(name, getattr(self, name), 1)
        check_range("bootstrap_timeout_ms", self.bootstrap_timeout_ms, 0)
        for name in ("retry_backoff", "reconnect_backoff"):
            first, longest = getattr(self, f"{name}_ms"), getattr(self, f"{name}_max_ms")
            check_range(f"{name}_ms", first, 0)
            check_range(f"{name}_max_ms", longest, 0)
            if first > longest:
                raise ConfigError(f"{name}_ms", first, f"must not exceed {name}_max_ms ({longest})")

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The bootstrap servers as host and port."""
        return parse_bootstrap_servers(self.bootstrap_servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer.

    Attributes:
        acks: ``acks``, default "all": who must have stored a record before it counts as sent.
        enable_idempotence: ``enable.idempotence``, default True: retries never duplicate.
        transactional_id: ``transactional.id``: stable name; makes the producer transactional.
        transaction_timeout_ms: ``transaction.timeout.ms``, default 60,000: the coordinator
            aborts a transaction that is open for longer; at most the broker's maximum (15 min).
        joined_identity: Produce within a transaction that another producer owns; this one then
            never begins or ends it. Within one transaction each partition may be written by one
            producer only, because the sequences of one identity are counted in one place.
        resumed_identity: Go on, in another process, with the open transaction of a producer that
            had this identity: the producer starts inside it and may commit or abort it.
        compression_type: ``compression.type``, default None.
        compression_level: ``compression.gzip.level`` (1 to 9), ``compression.lz4.level`` (1 to
            17) or ``compression.zstd.level`` (-131,072 to 22), by `compression_type`; None is
            Kafka's default for the codec (KIP-390).
        linger_ms: ``linger.ms``, default 5: how long a batch waits for more records.
        batch_size: ``batch.size`` in bytes; 262,144 here (Kafka: 16,384), since the cost of a
            batch in Python asks for larger ones; linger_ms bounds the wait all the same.
        max_request_size: ``max.request.size`` in bytes, default 1,048,576.
        buffer_memory: ``buffer.memory`` in bytes, default 33,554,432.
        buffer_full: What sending does while `buffer_memory` is full: "block" waits up to
            `max_block_ms`, "raise" raises BufferExhaustedError at once.
        max_block_ms: ``max.block.ms``, default 60,000: longest wait for metadata, memory,
            or a transaction's coordinator.
        delivery_timeout_ms: ``delivery.timeout.ms``, default 120,000 (KIP-91).
        max_in_flight_requests_per_connection: Kafka property of that name, default 5.
        partitioner: ``partitioner.class``: function that picks the partition; default murmur2
            of the key, and the sticky choice for records without a key (KIP-480, KIP-794).
        key_serializer: ``key.serializer``: function of the key; without one, bytes go as they
            are and text as UTF-8. None stays None and is not given to it.
        value_serializer: ``value.serializer``, likewise.
        interceptors: ``interceptor.classes``: objects that see every record on its way.
    """

    acks: int | str = "all"
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    joined_identity: ProducerIdentity | None = None
    resumed_identity: ProducerIdentity | None = None
    compression_type: CompressionType | None = None
    compression_level: int | None = None
    linger_ms: int = 5
    batch_size: int = 262_144
    max_request_size: int = 1_048_576
    buffer_memory: int = 33_554_432
    buffer_full: BufferPolicy = "block"
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    max_in_flight_requests_per_connection: int = 5
    partitioner: Partitioner | None = None
    key_serializer: SerializerFunction | None = None
    value_serializer: SerializerFunction | None = None
    interceptors: Sequence[ProducerInterceptor] = ()

    def __post_init__(self) -> None:
        self._check_client()
        check_choice("acks", self.acks, ("all", -1, 0, 1, "-1", "0", "1"))
        check_choice(
            "compression_type",
            self.compression_type,
            (None, "none", "gzip", "snappy", "lz4", "zstd"),
        )
        for name, least in (
            ("transaction_timeout_ms", 1),
            ("linger_ms", 0),
            ("batch_size", 1),
            ("max_request_size", 128),
            ("buffer_memory", 1),
            ("max_block_ms", 0),
            ("delivery_timeout_ms", 1),
            ("max_in_flight_requests_per_connection", 1),
        ):
            check_range(name, getattr(self, name), least)
        check_callable("partitioner", self.partitioner)
        check_choice("buffer_full", self.buffer_full, ("block", "raise"))
        self._check_compression()
        check_instances("interceptors", self.interceptors, ProducerInterceptor)
        self._check_delivery()
        self._check_idempotence()
        self._check_transactions()

    @property
    def wire_acks(self) -> int:
        """``acks`` as the protocol writes it: -1, 0 or 1."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def uses_sequences(self) -> bool:
        """Whether batches carry a producer id and sequences."""
        return self.enable_idempotence

    def _check_compression(self) -> None:
        if self.compression_level is None:
            return
        bounds = COMPRESSION_LEVELS.get(self.compression_type or "none")
        if bounds is None:
            raise ConfigError(
                "compression_level",
                self.compression_level,
                f"compression_type={self.compression_type!r} has no levels; choose "
                f"{', '.join(COMPRESSION_LEVELS)} or leave it out",
            )
        check_range("compression_level", self.compression_level, *bounds)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of a consumer.

    Attributes:
        group_id: ``group.id``; None reads without a group.
        group_instance_id: ``group.instance.id``: static membership (KIP-345).
        group_protocol: ``group.protocol``, default "classic"; with "consumer" (KIP-848) the
            coordinator divides the partitions, and sets session timeout and heartbeats.
        group_remote_assignor: ``group.remote.assignor``, default None: the assignor that the
            coordinator shall use, "uniform" or "range"; for the consumer protocol only.
        isolation_level: ``isolation.level``; "read_committed" here (Kafka: read_uncommitted).
        auto_offset_reset: ``auto.offset.reset``, default "latest"; "earliest", "none" or
            "by_duration:PT1H" (ISO 8601, counted back from now, KIP-1106). With
            "latest", records that are written to a new partition before the group notices it
            (``metadata_max_age_ms``) are skipped.
        enable_auto_commit: ``enable.auto.commit``, default True.
        auto_commit_interval_ms: ``auto.commit.interval.ms``, default 5,000.
        max_poll_records: ``max.poll.records``, default 500.
        max_poll_interval_ms: ``max.poll.interval.ms``, default 300,000.
        session_timeout_ms: ``session.timeout.ms``, default 45,000.
        heartbeat_interval_ms: ``heartbeat.interval.ms``, default 3,000.
        partition_assignment_strategy: ``partition.assignment.strategy``: names or assignors.
        fetch_min_bytes: ``fetch.min.bytes``, default 1.
        fetch_max_wait_ms: ``fetch.max.wait.ms``, default 500.
        fetch_max_bytes: ``fetch.max.bytes``, default 52,428,800.
        max_partition_fetch_bytes: ``max.partition.fetch.bytes``, default 1,048,576.
        check_crcs: ``check.crcs``, default True.
        client_rack: ``client.rack``, default "": read from a follower in the same rack (KIP-392).
        allow_auto_create_topics: ``allow.auto.create.topics``, default True.
        exclude_internal_topics: ``exclude.internal.topics``, default True: a pattern leaves out
            Kafka's internal topics. With ``group_protocol="consumer"`` the coordinator assigns
            what matches all the same; this consumer then does not read it, and shows it nowhere.
        key_deserializer: ``key.deserializer``: function of the bytes, not called for None.
        value_deserializer: ``value.deserializer``, likewise.
        interceptors: ``interceptor.classes``: objects that see every record and commit.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    isolation_level: str | IsolationLevel = "read_committed"
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    partition_assignment_strategy: Sequence[str | NamedAssignor] = ("range", "cooperative-sticky")
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    client_rack: str = ""
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    key_deserializer: DeserializerFunction | None = None
    value_deserializer: DeserializerFunction | None = None
    interceptors: Sequence[ConsumerInterceptor] = ()

    def __post_init__(self) -> None:
        self._check_client()
        check_reset_policy(self.auto_offset_reset)
        check_choice("group_protocol", self.group_protocol, ("classic", "consumer"))
        check_choice(
            "isolation_level",
            self.isolation_level,
            ("read_committed", "read_uncommitted", *IsolationLevel),
        )
        for name, least in (
            ("auto_commit_interval_ms", 1),
            ("max_poll_records", 1),
            ("max_poll_interval_ms", 1),
            ("session_timeout_ms", 1),
            ("heartbeat_interval_ms", 1),
            ("fetch_min_bytes", 0),
            ("fetch_max_wait_ms", 0),
            ("fetch_max_bytes", 1),
            ("max_partition_fetch_bytes", 1),
        ):
            check_range(name, getattr(self, name), least)
        check_instances("interceptors", self.interceptors, ConsumerInterceptor)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of an admin client: those that every client shares."""
