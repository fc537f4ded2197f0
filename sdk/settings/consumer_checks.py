"""Checks of a consumer's settings that belong together: group membership, and where to begin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.sdk.settings.config import ConsumerConfig

BY_DURATION: Final = "by_duration:"
"""Begins the value of ``auto.offset.reset`` that counts back from now (KIP-1106)."""

OLD_POLICIES: Final = {
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}
"""What librdkafka calls the values of ``auto.offset.reset`` too."""

_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_FACTORS_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def reset_duration_ms(policy: str) -> int | None:
    """How far back ``auto.offset.reset`` goes, in milliseconds; None for the other policies.

    Raises:
        ConfigError: The text after ``by_duration:`` is not an ISO-8601 duration.
    """
    if not policy.startswith(BY_DURATION):
        return None
    found = _DURATION.fullmatch(policy.removeprefix(BY_DURATION))
    if found is None:
        raise ConfigError(
            "auto_offset_reset",
            policy,
            "give days, hours, minutes and seconds as in by_duration:P1DT2H or by_duration:PT30M",
        )
    parts = {name: float(text) for name, text in found.groupdict().items() if text}
    return round(sum(value * _FACTORS_MS[name] for name, value in parts.items()))


def check_reset_policy(policy: object) -> None:
    """Raise ConfigError unless it is a value of ``auto.offset.reset``."""
    if policy in ("earliest", "latest", "none"):
        return
    if isinstance(policy, str) and reset_duration_ms(policy) is not None:
        return
    if isinstance(policy, str) and policy in OLD_POLICIES:
        raise ConfigError("auto_offset_reset", policy, f"write {OLD_POLICIES[policy]!r}")
    raise ConfigError(
        "auto_offset_reset", policy, "choose from earliest, latest, none, by_duration:PT1H"
    )


def check_group(config: ConsumerConfig) -> None:
    """Raise ConfigError unless the settings of the group fit together."""
    if config.group_id is not None and not config.group_id:
        raise ConfigError("group_id", "", "give a name or None")
    if config.group_instance_id is not None and config.group_id is None:
        raise ConfigError(
            "group_instance_id", config.group_instance_id, "static members need a group_id"
        )
    _check_protocol(config)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigError(
            "heartbeat_interval_ms",
            config.heartbeat_interval_ms,
            f"must be below session_timeout_ms ({config.session_timeout_ms}), usually a third",
        )
    if not config.partition_assignment_strategy:
        raise ConfigError("partition_assignment_strategy", (), "name at least one")


def _check_protocol(config: ConsumerConfig) -> None:
    """As in Kafka, what the coordinator decides cannot be set beside ``group.protocol``."""
    if config.group_protocol == "classic":
        if config.group_remote_assignor is not None:
            raise ConfigError(
                "group_remote_assignor",
                config.group_remote_assignor,
                'it needs group_protocol="consumer"; here partition_assignment_strategy counts',
            )
        return
    defaults = config.declared
    for name, remedy in (
        ("session_timeout_ms", "the group's consumer.session.timeout.ms on the broker"),
        ("heartbeat_interval_ms", "the group's consumer.heartbeat.interval.ms on the broker"),
        ("partition_assignment_strategy", "group_remote_assignor"),
    ):
        if getattr(config, name) != defaults[name].default:
            raise ConfigError(
                name,
                getattr(config, name),
                f'leave it out with group_protocol="consumer" and set {remedy}',
            )
