"""Checks of topics: can they lose records that were acknowledged?

The wanted number of replicas is 3, or the number of brokers where there are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault

REPLICAS: Final = 3
IN_SYNC: Final = 2


def few_replicas(facts: Facts) -> Iterator[Fault]:
    """Topics with fewer replicas than the cluster could hold."""
    wanted = min(REPLICAS, len(facts.brokers))
    for name, topic in facts.topics.items():
        count = min((len(p.replicas) for p in topic.partitions), default=wanted)
        if count < wanted:
            yield Fault(
                f"topic {name}",
                f"{count} of {wanted} possible replicas",
                f"raise it to {wanted} by a reassignment (kafka-reassign-partitions.sh); for new "
                f"topics give --replicas {wanted}, or set default.replication.factor={wanted}",
            )


def in_sync_replicas(facts: Facts) -> Iterator[Fault]:
    """Topics whose ``min.insync.replicas`` protects nothing, or stops all writes."""
    for name, topic in facts.topics.items():
        replicas = min((len(p.replicas) for p in topic.partitions), default=1)
        least = int(facts.topic_configs[name].get("min.insync.replicas") or 1)
        alter = f"onceflow topics alter {name} --set min.insync.replicas"
        if least > replicas:
            yield Fault(
                f"topic {name}",
                f"min.insync.replicas={least} with {replicas} replicas: every write is refused",
                f"{alter}={max(1, replicas - 1)}",
            )
        elif replicas >= IN_SYNC and least == 1:
            yield Fault(
                f"topic {name}",
                f"min.insync.replicas=1 with {replicas} replicas",
                f"{alter}=2" if replicas > IN_SYNC else f"raise the replicas to 3, then {alter}=2",
            )
        elif replicas > 1 and least == replicas:
            yield Fault(
                f"topic {name}",
                f"min.insync.replicas={least} with {replicas} replicas: writes stop as soon as one "
                "broker is away",
                f"{alter}={replicas - 1}" if replicas > IN_SYNC else "raise the replicas to 3",
            )


def unclean_elections(facts: Facts) -> Iterator[Fault]:
    """Topics that elect leaders out of sync."""
    for name, configs in facts.topic_configs.items():
        if configs.get("unclean.leader.election.enable") == "true":
            yield Fault(
                f"topic {name}",
                "unclean.leader.election.enable=true",
                f"onceflow topics alter {name} --set unclean.leader.election.enable=false",
            )


CHECKS: Final = (
    Check(
        "replication",
        "the loss of one disk loses the partition, with records that were acknowledged",
        few_replicas,
    ),
    Check(
        "min-isr",
        "acks=all waits for that many replicas: with 1 an acknowledged record may be on one disk "
        "only, and with all of them one broker's restart stops writing",
        in_sync_replicas,
    ),
    Check(
        "unclean-election",
        "a replica that is behind may become leader, and what it does not have is lost",
        unclean_elections,
    ),
)
