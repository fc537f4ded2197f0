"""Options ``kafka.*`` of the Spark source and sink, as settings of the SDK's clients.

Decides which of Kafka's properties may be given through Spark's options and how their text is
read; what a value means is checked by the clients' own configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from onceflow.sdk import AdminConfig, ConsumerConfig, ProducerConfig, SecurityConfig
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords


def boolean(name: str, value: str) -> bool:
    """Read an option's true or false.

    Raises:
        ConfigError: It is neither.
    """
    if value.lower() not in {"true", "false"}:
        raise ConfigError(name, value, "give true or false")
    return value.lower() == "true"


def positive(name: str, value: str) -> int:
    """Read an option's whole number of at least 1.

    Raises:
        ConfigError: It is none.
    """
    if not value.strip().isdigit() or int(value) < 1:
        raise ConfigError(name, value, "give a whole number of at least 1")
    return int(value)


def _natural(name: str, value: str) -> int:
    if not value.strip().isdigit():
        raise ConfigError(name, value, "give a whole number of at least 0")
    return int(value)


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigError(name, value, "give a value or leave the option out")
    return value


Reader = Callable[[str, str], object]
_COMMON: dict[str, Reader] = {
    "kafka.bootstrap.servers": _text,
    "kafka.client.id": _text,
    "kafka.request.timeout.ms": positive,
    "kafka.default.api.timeout.ms": positive,
}
_CONSUMER: dict[str, Reader] = {
    "kafka.fetch.max.bytes": positive,
    "kafka.max.partition.fetch.bytes": positive,
}
_PRODUCER: dict[str, Reader] = {
    "kafka.batch.size": positive,
    "kafka.buffer.memory": positive,
    "kafka.compression.type": _text,
    "kafka.delivery.timeout.ms": positive,
    "kafka.linger.ms": _natural,
    "kafka.max.block.ms": positive,
    "kafka.max.request.size": positive,
    "kafka.transaction.timeout.ms": positive,
}
_SECURITY: dict[str, Reader] = {
    "kafka.security.protocol": _text,
    "kafka.sasl.mechanism": _text,
    "kafka.sasl.username": _text,
    "kafka.sasl.password": _text,
    "kafka.ssl.cafile": _text,
    "kafka.ssl.certfile": _text,
    "kafka.ssl.keyfile": _text,
    "kafka.ssl.check.hostname": boolean,
}
CONSUMER_OPTIONS = (*_COMMON, *_CONSUMER, *_SECURITY)
"""Kafka's properties that the source takes."""
PRODUCER_OPTIONS = (*_COMMON, *_PRODUCER, *_SECURITY)
"""Kafka's properties that the sink takes."""


def _setting(option: str) -> str:
    return option.removeprefix("kafka.").replace(".", "_")


def _read(found: Mapping[str, str], readers: Mapping[str, Reader]) -> dict[str, object]:
    return {_setting(n): read(n, found[n]) for n, read in readers.items() if n in found}


def _settings(found: Mapping[str, str], own: Mapping[str, Reader]) -> dict[str, object]:
    if not found.get("kafka.bootstrap.servers", "").strip():
        raise ConfigError("kafka.bootstrap.servers", "", "give the brokers as host:port,host:port")
    settings = _read(found, {**_COMMON, **own})
    if secured := _read(found, _SECURITY):
        build = cast("Callable[..., SecurityConfig]", SecurityConfig)
        settings["security"] = build(**secured)
    return settings


def _named(error: ConfigError, found: Mapping[str, str]) -> ConfigError:
    """The same error under the name of the Spark option that it is about."""
    options = {_setting(option): option for option in found}
    return ConfigError(options.get(error.field, error.field), error.value, error.remedy)


def admin_settings(found: Mapping[str, str]) -> AdminKeywords:
    """Settings of an admin client.

    Args:
        found: Options by their documented names; others than ``kafka.*`` are ignored.

    Raises:
        ConfigError: One is missing or has a value that cannot work.
    """
    return _checked(found, {}, AdminConfig.from_settings)


def consumer_settings(found: Mapping[str, str]) -> ConsumerKeywords:
    """Settings of a task's consumer; see ``admin_settings``."""
    return cast(ConsumerKeywords, _checked(found, _CONSUMER, ConsumerConfig.from_settings))


def producer_settings(found: Mapping[str, str]) -> ProducerKeywords:
    """Settings of a producer; see ``admin_settings``."""
    return cast(ProducerKeywords, _checked(found, _PRODUCER, ProducerConfig.from_settings))


def _checked(
    found: Mapping[str, str],
    own: Mapping[str, Reader],
    check: Callable[[Mapping[str, object]], object],
) -> AdminKeywords:
    try:
        settings = _settings(found, own)
        check(settings)
    except ConfigError as error:
        raise _named(error, found) from error
    return cast(AdminKeywords, settings)
