"""Checks the time limits of a session against each other, when the session is made.

With a commit interval longer than the transaction timeout, no transaction would be committed in
time. With a transaction timeout longer than the membership limits, an expelled member would hold
back the last stable offset. The broker checks its own ``transaction.max.timeout.ms`` at
InitProducerId; ``too_long_for_broker`` makes the error for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.transactions.config import AnySessionConfig


def _limits(config: AnySessionConfig) -> dict[str, int]:
    """Return the limits in order; each must be at most the next one.

    Under the consumer protocol (KIP-848) the session timeout is a setting of the broker.
    """
    consumer = config.consumer
    session = {} if consumer.group_protocol == "consumer" else {
        "session_timeout_ms": consumer.session_timeout_ms
    }  # fmt: skip
    transaction = {} if config.producer.transactional_id is None else {
        "commit_interval_ms": config.commit_interval_ms,
        "transaction_timeout_ms": config.producer.transaction_timeout_ms,
    }  # fmt: skip
    return {
        **transaction,
        **session,
        "max_poll_interval_ms": consumer.max_poll_interval_ms,
    }


def describe(config: AnySessionConfig) -> str:
    """Return the limits with their values, as text for messages and logs."""
    chain = " <= ".join(f"{name}={value}" for name, value in _limits(config).items())
    return (
        f"{chain.replace(' <= ', ' < ', 1)}, "
        f"revoke_budget_ms={config.revoke_budget_ms} < max_poll_interval_ms"
    )


def check(config: AnySessionConfig) -> None:
    """Refuse limits that cannot work together.

    Args:
        config: Settings with the five limits.

    Raises:
        ConfigError: A limit exceeds the next one; the message shows all values.
    """
    limits = _limits(config)
    # Without transactions (at-least-once) the commit interval has no limit.
    transaction_ms = limits.get("transaction_timeout_ms", 0)
    session_ms = limits.get("session_timeout_ms", transaction_ms)
    poll_ms = limits["max_poll_interval_ms"]
    for name, value, broken, remedy in (
        (
            "commit_interval_ms",
            config.commit_interval_ms,
            config.commit_interval_ms >= transaction_ms > 0,
            "must be shorter than the transaction timeout",
        ),
        (
            "transaction_timeout_ms",
            transaction_ms,
            transaction_ms > session_ms,
            "must not exceed the session timeout, or an expelled member keeps readers waiting",
        ),
        (
            "max_poll_interval_ms",
            poll_ms,
            session_ms > poll_ms,
            "must be at least the session timeout and the transaction timeout",
        ),
        (
            "revoke_budget_ms",
            config.revoke_budget_ms,
            config.revoke_budget_ms >= poll_ms,
            "a commit within a rebalance must end before the group gives up waiting "
            "(max_poll_interval_ms is the rebalance timeout)",
        ),
    ):
        if broken:
            raise ConfigError(name, value, f"{remedy}; the chain is {describe(config)}")


def too_long_for_broker(config: AnySessionConfig) -> ConfigError:
    """Return the error for a broker that refused the transaction timeout at InitProducerId."""
    return ConfigError(
        "transaction_timeout_ms",
        config.producer.transaction_timeout_ms,
        "the broker's transaction.max.timeout.ms is smaller (Kafka's default is 900000); lower "
        f"the one or raise the other; the chain is {describe(config)} and "
        "transaction_timeout_ms <= transaction.max.timeout.ms",
    )
