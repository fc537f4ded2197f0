"""Checks of brokers: their release, and their clock beside this machine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault

TRANSACTIONS: Final = "transaction.version"
TRANSACTION_VERSION: Final = 2
"""The level of KIP-890: a new epoch with every transaction."""
SKEW_MAX_MS: Final = 2_000
FUTURE_MAX_MS: Final = 60_000
"""Records may be stamped by other machines, whose clocks are not this check's subject."""


def old_transactions(facts: Facts) -> Iterator[Fault]:
    """A cluster without transactions of version 2."""
    level, supported = facts.features.get(TRANSACTIONS, (0, 0))
    if supported < TRANSACTION_VERSION:
        yield Fault(
            "the brokers",
            f"older than Kafka 4.0: they support {TRANSACTIONS} up to {supported}",
            "upgrade the brokers to 4.0 or later",
        )
    elif level < TRANSACTION_VERSION:
        yield Fault(
            "the cluster",
            f"{TRANSACTIONS}={level}; the brokers support {supported}",
            f"kafka-features.sh upgrade --feature {TRANSACTIONS}={TRANSACTION_VERSION}",
        )


def clock_skew(facts: Facts) -> Iterator[Fault]:
    """A controller's clock that differs from this machine's, and records from the future."""
    before_ms = facts.wall_ms()
    quorum = facts.admin.describe_metadata_quorum()
    after_ms = facts.wall_ms()
    for voter in quorum.voters:
        # The leader stamps itself with its clock at the moment of the answer (KIP-836).
        told_ms = voter.last_caught_up_timestamp_ms
        if voter.node_id != quorum.leader_id or told_ms < 0:
            continue
        apart_ms = max(told_ms - after_ms, before_ms - told_ms)
        if apart_ms > SKEW_MAX_MS:
            side = "ahead of" if told_ms > after_ms else "behind"
            yield Fault(
                f"controller {voter.node_id}",
                f"its clock is {apart_ms / 1000:.1f} s {side} this machine's",
                "let both follow a time server (chrony, systemd-timesyncd)",
            )


def future_records(facts: Facts) -> Iterator[Fault]:
    """Partitions whose latest timestamp is ahead of this machine's clock."""
    if not facts.partitions:
        return
    found = facts.admin.list_offsets(dict.fromkeys(facts.partitions, "max_timestamp"))
    now_ms = facts.wall_ms()
    for partition, latest in found.items():
        ahead_ms = latest.timestamp_ms - now_ms
        if ahead_ms > FUTURE_MAX_MS:
            yield Fault(
                f"{partition.topic}:{partition.partition}, offset {latest.offset}",
                f"a record's timestamp is {ahead_ms / 1000:.0f} s ahead of this machine's clock",
                "find the producer by its headers or key, and correct its clock or its timestamps "
                "(seconds in place of milliseconds, local time in place of UTC)",
            )


CHECKS: Final = (
    Check(
        "old-transactions",
        "a late request of an earlier transaction can get into the next one, or leave a "
        "transaction hanging for ever (KIP-890)",
        old_transactions,
    ),
    Check(
        "clock-skew",
        "brokers refuse records that are far ahead of their clocks, and retention, windows and "
        "waits are off by the difference",
        clock_skew,
    ),
    Check(
        "future-records",
        "stream time follows the greatest timestamp: windows close too early, and retention keeps "
        "the segment",
        future_records,
    ),
)
