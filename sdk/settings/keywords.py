"""Keyword arguments as types. Written by ``tools/settings_keywords.py``; do not edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from onceflow.sdk.model.partitions import IsolationLevel, ProducerIdentity
from onceflow.sdk.observe.interceptors import ConsumerInterceptor, ProducerInterceptor
from onceflow.sdk.settings.config import (
    AdminConfig,
    BufferPolicy,
    CompressionType,
    ConsumerConfig,
    DeserializerFunction,
    NamedAssignor,
    Partitioner,
    ProducerConfig,
    SerializerFunction,
)
from onceflow.sdk.settings.security import SecurityConfig


class CommonOwn(TypedDict, total=False):
    """See ``ClientConfig``."""

    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    bootstrap_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    connections_max_idle_ms: int
    socket_connection_setup_timeout_ms: int
    max_response_bytes: int
    security: SecurityConfig


class CommonKeywords(CommonOwn, total=False):
    """See ``ClientConfig``."""

    bootstrap_servers: str | Sequence[str]


class ProducerOwn(TypedDict, total=False):
    """See ``ProducerConfig``."""

    acks: int | str
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    joined_identity: ProducerIdentity | None
    resumed_identity: ProducerIdentity | None
    compression_type: CompressionType | None
    compression_level: int | None
    linger_ms: int
    batch_size: int
    max_request_size: int
    buffer_memory: int
    buffer_full: BufferPolicy
    max_block_ms: int
    delivery_timeout_ms: int
    metadata_max_idle_ms: int
    max_in_flight_requests_per_connection: int
    partitioner: Partitioner | None
    key_serializer: SerializerFunction | None
    value_serializer: SerializerFunction | None


class ProducerKeywords(CommonKeywords, ProducerOwn, total=False):
    """See ``ProducerConfig``."""

    config: ProducerConfig | Mapping[str, object]
    interceptors: Sequence[ProducerInterceptor]


class ConsumerRest(TypedDict, total=False):
    """See ``ConsumerConfig``."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    isolation_level: str | IsolationLevel
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    partition_assignment_strategy: Sequence[str | NamedAssignor]
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    client_rack: str
    allow_auto_create_topics: bool
    exclude_internal_topics: bool


class ConsumerOwn(ConsumerRest, total=False):
    """See ``ConsumerConfig``."""

    key_deserializer: DeserializerFunction | None
    value_deserializer: DeserializerFunction | None


class ReaderKeywords(CommonKeywords, ConsumerRest, total=False):
    """See ``ConsumerConfig``."""

    interceptors: Sequence[ConsumerInterceptor]


class ConsumerKeywords(CommonKeywords, ConsumerOwn, total=False):
    """See ``ConsumerConfig``."""

    config: ConsumerConfig | Mapping[str, object]
    interceptors: Sequence[ConsumerInterceptor]


class AdminOwn(TypedDict, total=False):
    """See ``AdminConfig``."""


class AdminKeywords(CommonKeywords, AdminOwn, total=False):
    """See ``AdminConfig``."""

    config: AdminConfig | Mapping[str, object]


class ClientKeywords(CommonKeywords, ProducerOwn, ConsumerOwn, total=False):
    """See ``ClientConfig``."""
