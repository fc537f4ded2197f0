"""Maps settings of Kafka's Java client, librdkafka and the Python clients to ours, or to the reason
why they have no meaning here.

Names are written with underscores, which stand for dots too. ``names`` reports wrong names;
``sources`` reads files.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_VERSIONS = "versions are negotiated with each broker; leave it out"
_METRICS = "metrics() of a client gives its figures at any time; leave it out"
_LOGGING = "set the level of the loggers onceflow.* by Python's logging; leave it out"
_CALLBACK = "give a function as a keyword argument"
_SOCKETS = "the operating system's setting is used; leave it out"
_PUBLIC = "brokers are asked by the addresses that they advertise; leave it out"
_ON_COMMIT = "use ConsumerInterceptor.on_commit, by interceptors=[...]"
_KERBEROS = "Kerberos is not spoken; use SCRAM, OAUTHBEARER or TLS"
_CONTEXT = "use security=SecurityConfig(ssl_context=...)"
_PROXY = "brokers are reached directly; route their addresses through the proxy, and leave it out"
_SERDE = "give it to onceflow.sdk.schema_registry.SchemaRegistry"
_PEM = "convert the store to PEM and give"

NAMED_PARTITIONER: Final = (
    "without one it is murmur2, the Java client's choice, by which keys go to other partitions "
    "than with librdkafka's consistent_random"
)

NOT_OFFERED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # both faces of old Python clients
        "api_version": _VERSIONS,
        "api_version_auto_timeout_ms": _VERSIONS,
        "loop": "the client uses the loop it is started in; leave it out",
        "max_batch_size": "use batch_size",
        "selector": "the client uses asyncio; leave it out",
        "sock_chunk_bytes": _SOCKETS,
        "sock_chunk_buffer_count": _SOCKETS,
        "socket_options": _SOCKETS,
        "consumer_timeout_ms": "give poll() a timeout_ms; iteration itself never ends",
        "legacy_iterator": "leave it out",
        "sasl_kerberos_name": _KERBEROS,
        "sasl_kerberos_service_name": _KERBEROS,
        "sasl_kerberos_domain_name": _KERBEROS,
        "sasl_kerberos_keytab": _KERBEROS,
        "sasl_kerberos_principal": _KERBEROS,
        "sasl_kerberos_kinit_cmd": _KERBEROS,
        "ssl_password": "use security=SecurityConfig(ssl_key_password=...)",
        "ssl_ciphers": _CONTEXT,
        "ssl_crlfile": _CONTEXT,
        "ssl_crl_location": _CONTEXT,
        "metrics_enabled": _METRICS,
        "metric_group_prefix": _METRICS,
        "proxy_url": _PROXY,
        "socks5_proxy": _PROXY,
        "kafka_client": "clients make their own connections; leave it out",
        "rebalance_timeout_ms": "use max_poll_interval_ms, which bounds a rebalance as in Java",
        "enable_incremental_fetch_sessions": "fetch sessions are always used; leave it out",
        "default_offset_commit_callback": _ON_COMMIT,
        "offset_commit_cb": _ON_COMMIT,
        "rebalance_cb": "use subscribe(on_assigned=, on_revoked=, on_lost=)",
        "oauth_cb": "use security=SecurityConfig(sasl_oauth_token_provider=...)",
        # Java
        "retries": "sends are retried until delivery_timeout_ms is over; set that instead",
        "client_dns_lookup": "all addresses of a name are tried; leave it out",
        "send_buffer_bytes": _SOCKETS,
        "receive_buffer_bytes": _SOCKETS,
        "metric_reporters": _METRICS,
        "metrics_num_samples": _METRICS,
        "metrics_recording_level": _METRICS,
        "metrics_sample_window_ms": _METRICS,
        "auto_include_jmx_reporter": _METRICS,
        "enable_metrics_push": "brokers are sent no figures of clients (KIP-714); leave it out",
        "interceptor_classes": "give interceptors=[...] as a keyword argument",
        "partitioner_class": f"{_CALLBACK}: partitioner=...",
        "partitioner": f"{_CALLBACK}: partitioner=...; without one it is the Java client's choice",
        "partitioner_adaptive_partitioning_enable": "records without a key change partitions by "
        "batches; leave it out",
        "partitioner_availability_timeout_ms": "leave it out",
        "partitioner_ignore_keys": "send without a key, or give partitioner=",
        "key_serializer": f"{_CALLBACK}: key_serializer=...",
        "value_serializer": f"{_CALLBACK}: value_serializer=...",
        "key_deserializer": f"{_CALLBACK}: key_deserializer=...",
        "value_deserializer": f"{_CALLBACK}: value_deserializer=...",
        "metadata_recovery_strategy": "a client that reaches no broker goes back to "
        "bootstrap_servers (KIP-899); leave it out",
        "metadata_recovery_rebootstrap_trigger_ms": "leave it out",
        "bootstrap_controllers": "name brokers by bootstrap_servers",
        "security_providers": "use security=SecurityConfig(ssl_context=...)",
        "config_providers": "read the value yourself, or from the environment",
        "transaction_two_phase_commit_enable": "this client ends transactions; leave it out",
        "reconnect_backoff": "use reconnect_backoff_ms",
        "block_on_buffer_full": 'use buffer_full="block" or "raise"',
        "compression_gzip_level": 'use compression_type="gzip" and compression_level',
        "compression_lz4_level": 'use compression_type="lz4" and compression_level',
        "compression_zstd_level": 'use compression_type="zstd" and compression_level',
        "ssl_truststore_password": f"{_PEM} ssl.truststore.location alone",
        "ssl_keystore_password": f"{_PEM} ssl.keystore.location and ssl.key.location",
        "ssl_protocol": _CONTEXT,
        "ssl_enabled_protocols": _CONTEXT,
        "ssl_cipher_suites": _CONTEXT,
        "sasl_client_callback_handler_class": _CALLBACK,
        "sasl_login_callback_handler_class": _CALLBACK,
        "schema_registry_url": _SERDE,
        "basic_auth_user_info": _SERDE,
        "basic_auth_credentials_source": f"{_SERDE} as basic_auth_user_info",
        # librdkafka
        "metadata_broker_list": "use bootstrap_servers",
        "message_max_bytes": "use max_request_size",
        "batch_num_messages": "use batch_size (bytes)",
        "queue_buffering_max_ms": "use linger_ms",
        "queue_buffering_max_messages": "use buffer_memory (bytes)",
        "queue_buffering_max_kbytes": "use buffer_memory (bytes)",
        "message_timeout_ms": "use delivery_timeout_ms",
        "message_send_max_retries": "use delivery_timeout_ms",
        "compression_codec": "use compression_type",
        "request_required_acks": "use acks",
        "max_in_flight": "use max_in_flight_requests_per_connection",
        "socket_timeout_ms": "use request_timeout_ms",
        "socket_keepalive_enable": _SOCKETS,
        "socket_nagle_disable": "it is always off; leave it out",
        "socket_send_buffer_bytes": _SOCKETS,
        "socket_receive_buffer_bytes": _SOCKETS,
        "socket_max_fails": "leave it out",
        "broker_address_ttl": _PUBLIC,
        "broker_address_family": _PUBLIC,
        "api_version_request": _VERSIONS,
        "api_version_fallback_ms": _VERSIONS,
        "broker_version_fallback": _VERSIONS,
        "topic_metadata_refresh_interval_ms": "use metadata_max_age_ms",
        "topic_metadata_refresh_sparse": "leave it out",
        "statistics_interval_ms": _METRICS,
        "stats_cb": _METRICS,
        "error_cb": "errors are raised by the call that they concern; leave it out",
        "throttle_cb": _METRICS,
        "dr_cb": "use the delivery that send() returns, or interceptors=",
        "dr_msg_cb": "use the delivery that send() returns, or interceptors=",
        "on_delivery": "use the delivery that send() returns, or interceptors=",
        "delivery_report_only_error": "an unseen failure is raised by the next call; leave it out",
        "log_level": _LOGGING,
        "log_queue": _LOGGING,
        "logger": _LOGGING,
        "debug": _LOGGING,
        "enable_gapless_guarantee": "order and gaps are kept with idempotence; leave it out",
        "sticky_partitioning_linger_ms": "leave it out",
        "enable_auto_offset_store": "commit() takes offsets; set enable_auto_commit=False",
        "auto_commit_enable": "use enable_auto_commit",
        "enable_partition_eof": "compare position() with end_offsets(); leave it out",
        "fetch_wait_max_ms": "use fetch_max_wait_ms",
        "fetch_message_max_bytes": "use max_partition_fetch_bytes",
        "fetch_error_backoff_ms": "use retry_backoff_ms",
        "fetch_queue_backoff_ms": "a fetch is always on its way; leave it out",
        "queued_min_messages": "use fetch_max_bytes",
        "queued_max_messages_kbytes": "use fetch_max_bytes",
        "receive_message_max_bytes": "use max_response_bytes",
        "group_protocol_type": "leave it out",
        "coordinator_query_interval_ms": "leave it out",
        "max_poll_interval": "use max_poll_interval_ms",
        "sasl_plain": "use sasl.mechanism=PLAIN",
    }
)
"""Names that other clients know, and what to use here instead."""

PASSED_OVER: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "retries",
                "partitioner",
                "partitioner_class",
                "partitioner_adaptive_partitioning_enable",
                "partitioner_availability_timeout_ms",
                "partitioner_ignore_keys",
                "compression_gzip_level",
                "compression_lz4_level",
                "compression_zstd_level",
                "compression_codec",
                "block_on_buffer_full",
                "transaction_two_phase_commit_enable",
                "batch_num_messages",
                "queue_buffering_max_ms",
                "queue_buffering_max_messages",
                "queue_buffering_max_kbytes",
                "message_timeout_ms",
                "message_send_max_retries",
                "request_required_acks",
                "delivery_report_only_error",
                "enable_gapless_guarantee",
                "sticky_partitioning_linger_ms",
            ),
            "producer",
        ),
        **dict.fromkeys(
            (
                "consumer_timeout_ms",
                "rebalance_timeout_ms",
                "enable_auto_offset_store",
                "auto_commit_enable",
                "enable_partition_eof",
                "fetch_wait_max_ms",
                "fetch_message_max_bytes",
                "fetch_error_backoff_ms",
                "fetch_queue_backoff_ms",
                "queued_min_messages",
                "queued_max_messages_kbytes",
                "group_protocol_type",
                "coordinator_query_interval_ms",
            ),
            "consumer",
        ),
        **dict.fromkeys(
            (
                "schema_registry_url",
                "basic_auth_credentials_source",
                "basic_auth_user_info",
                "bearer_auth_credentials_source",
                "bearer_auth_token",
            ),
            "schema registry",
        ),
        **dict.fromkeys(
            (
                "api_version_request",
                "api_version_fallback_ms",
                "broker_version_fallback",
                "client_dns_lookup",
                "send_buffer_bytes",
                "receive_buffer_bytes",
                "socket_keepalive_enable",
                "socket_nagle_disable",
                "socket_send_buffer_bytes",
                "socket_receive_buffer_bytes",
                "metric_reporters",
                "metrics_num_samples",
                "metrics_recording_level",
                "metrics_sample_window_ms",
                "auto_include_jmx_reporter",
                "enable_metrics_push",
                "metadata_recovery_strategy",
                "metadata_recovery_rebootstrap_trigger_ms",
                "topic_metadata_refresh_sparse",
            ),
            "",
        ),
    }
)
"""Settings in a properties file that a client may ignore, and the kind of client that has them.

An empty kind means that the setting has no effect here: every client does what its usual value
asks for. Hosting services hand out one file for all kinds of clients.
"""

MECHANISM_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "GSSAPI": _KERBEROS,
        "AWS_MSK_IAM": "use OAUTHBEARER with a sasl_oauth_token_provider that signs a token "
        "(aws-msk-iam-sasl-signer-python makes such tokens)",
    }
)
"""SASL mechanisms of other clients that do not exist here, and what to use instead."""

ASSIGNOR_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RangeAssignor": "range",
        "RoundRobinAssignor": "roundrobin",
        "StickyAssignor": "sticky",
        "CooperativeStickyAssignor": "cooperative-sticky",
    }
)
"""Java's classes for ``partition.assignment.strategy``: our names."""
