"""Converts a consumer's settings to those of its group member, for both protocols.

It finds assignors by name, and converts a pattern for the coordinator. The settings themselves
check what each protocol allows.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from onceflow.sdk.core.group.assignors import ASSIGNORS, Assignor
from onceflow.sdk.core.group.steps import GroupSettings
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.config import ConsumerConfig

_READ_DIFFERENTLY: tuple[tuple[Callable[[re.Pattern[str]], object], str], ...] = (
    (
        lambda pattern: pattern.flags & re.VERBOSE,
        "the broker's RE2 reads it, which has no re.VERBOSE: leave out blanks and comments",
    ),
    (
        lambda pattern: re.search(r"(?<!\\)(?:\\\\)*\{,\d+\}", pattern.pattern),
        "the broker's RE2 reads it, to which {,n} is plain text: write {0,n}",
    ),
    (
        lambda pattern: re.search(r"\[:\^?[a-z]+:\]", pattern.pattern),
        "the broker's RE2 reads it, to which [:name:] is a class: put the colon elsewhere",
    ),
)
"""Forms with different meanings in Python's and in RE2's patterns, and the remedy."""


def group_settings(config: ConsumerConfig) -> GroupSettings:
    """Return the settings of the group member.

    Raises:
        ConfigError: An assignor is unknown.
    """
    assignors: list[Assignor] = []
    for wanted in config.partition_assignment_strategy:
        assignor: object = ASSIGNORS.get(wanted) if isinstance(wanted, str) else wanted
        if not isinstance(assignor, Assignor):
            raise ConfigError(
                "partition_assignment_strategy",
                wanted,
                f"must be one of {', '.join(ASSIGNORS)}, or an object with the methods of "
                "onceflow.sdk.core.group.assignors.Assignor",
            )
        assignors.append(assignor)
    return GroupSettings(
        group_id=config.group_id or "",
        group_instance_id=config.group_instance_id,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        assignors=tuple(assignors),
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        rack=config.client_rack or None,
        member_id=str(uuid.uuid4()) if config.group_protocol == "consumer" else "",
        remote_assignor=config.group_remote_assignor,
    )


def re2_text(pattern: re.Pattern[str]) -> str:
    """Return the pattern for the coordinator, with its flags in the text as RE2 needs.

    Both match whole names. The coordinator refuses what RE2 lacks (look-around, back-references),
    and the next poll raises that error. Forms that RE2 reads differently are refused here, because
    they would select other topics without an error.

    Raises:
        ConfigError: RE2 would read the pattern in another way.
    """
    for means, remedy in _READ_DIFFERENTLY:
        if means(pattern):
            remark = f"with group_protocol='consumer' {remedy}"
            raise ConfigError("pattern", pattern.pattern, remark)
    letters = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL))
        if pattern.flags & flag
    )
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
