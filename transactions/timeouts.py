"""The chain of time limits that a session depends on, checked when the session is made.

A commit interval longer than the transaction timeout never commits; a transaction timeout longer
than the membership limits lets a zombie hold the last stable offset. This module compares the
numbers and words the refusal. Only the broker knows its own ``transaction.max.timeout.ms``: it
checks that at InitProducerId, and ``too_long_for_broker`` words that refusal.
"""

from __future__ import annotations

from typing import Protocol

from onceflow.sdk.errors import ConfigError


class TimeLimits(Protocol):
    """The settings that are compared; ``SessionConfig`` has them all."""

    @property
    def commit_interval_ms(self) -> int: ...
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def session_timeout_ms(self) -> int: ...
    @property
    def max_poll_interval_ms(self) -> int: ...
    @property
    def revoke_budget_ms(self) -> int: ...


def describe(limits: TimeLimits) -> str:
    """The whole chain with its numbers, for messages and logs."""
    return (
        f"commit_interval_ms={limits.commit_interval_ms} < "
        f"transaction_timeout_ms={limits.transaction_timeout_ms} <= "
        f"session_timeout_ms={limits.session_timeout_ms} <= "
        f"max_poll_interval_ms={limits.max_poll_interval_ms}, "
        f"revoke_budget_ms={limits.revoke_budget_ms} < max_poll_interval_ms"
    )


def check(limits: TimeLimits) -> None:
    """Refuse limits that cannot work together.

    Args:
        limits: Milliseconds of the five settings.

    Raises:
        ConfigError: A link of the chain is broken; the message shows all numbers.
    """
    chain = describe(limits)
    for name in ("commit_interval_ms", "transaction_timeout_ms", "revoke_budget_ms"):
        value = getattr(limits, name)
        if value <= 0:
            raise ConfigError(name, value, f"must be positive; the chain is {chain}")
    if limits.commit_interval_ms >= limits.transaction_timeout_ms:
        raise ConfigError(
            "commit_interval_ms",
            limits.commit_interval_ms,
            f"must be shorter than the transaction timeout; the chain is {chain}",
        )
    if limits.transaction_timeout_ms > limits.session_timeout_ms:
        raise ConfigError(
            "transaction_timeout_ms",
            limits.transaction_timeout_ms,
            "must not exceed the session timeout, or an expelled member keeps readers waiting; "
            f"the chain is {chain}",
        )
    if limits.session_timeout_ms > limits.max_poll_interval_ms:
        raise ConfigError(
            "max_poll_interval_ms",
            limits.max_poll_interval_ms,
            f"must be at least the session timeout; the chain is {chain}",
        )
    if limits.revoke_budget_ms >= limits.max_poll_interval_ms:
        raise ConfigError(
            "revoke_budget_ms",
            limits.revoke_budget_ms,
            "a commit within a rebalance must end before the group gives up waiting "
            f"(max_poll_interval_ms is the rebalance timeout); the chain is {chain}",
        )


def too_long_for_broker(limits: TimeLimits) -> ConfigError:
    """The error for a broker that refused the transaction timeout at InitProducerId."""
    return ConfigError(
        "transaction_timeout_ms",
        limits.transaction_timeout_ms,
        "the broker's transaction.max.timeout.ms is smaller (Kafka's default is 900000); lower "
        f"the one or raise the other; the chain is {describe(limits)} and "
        "transaction_timeout_ms <= transaction.max.timeout.ms",
    )
