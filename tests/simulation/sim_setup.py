"""What one run consists of, drawn from its seed: who takes part, how bad things get, and when.

Each seed has only some of the workloads and some of the faults, so that the others cannot hide
what they would show.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from sim_network import NetworkFaults

TOPICS = ("a", "b", "compact", "short")


@dataclass
class Setup:
    """A run's ingredients.

    Attributes:
        properties: Settings of the broker.
        segment_bytes: Size at which segments really roll, below Kafka's least.
        partitions: By topic.
        workers: Number of workers by kind.
        units: Work of each.
        storm: The network while faults happen.
        troubles: Names of faults that may happen, with repetitions as weights.
        trouble_every_us: Mean time between two.
        duration_us: How long faults go on.
        nodes: How many nodes the broker has.
        nodes_stay_down: Whether nodes that stopped stay so when the faults end.
        protocols: What members of groups speak, and who assigns; each picks one for a life.
        power: Whether a death of the machine is among the faults. With the default durability it
            costs what was not synced.
    """

    properties: dict[str, object]
    segment_bytes: int
    partitions: dict[str, int]
    workers: dict[str, int]
    units: int
    storm: NetworkFaults
    troubles: list[str]
    trouble_every_us: int
    duration_us: int
    power: bool
    transaction_timeout_ms: int
    static_members: bool
    protocols: list[dict[str, object]] = field(default_factory=lambda: [{}])
    nodes: int = 1
    nodes_stay_down: bool = False


TROUBLES = (
    "kill broker",
    "kill broker in write",
    "kill worker",
    "pause worker",
    "zombie",
    "partition",
    "cut",
    "disk full",
    "write fails",
    "sync fails",
    "clock",
    "delete records",
)

NODE_TROUBLES = (
    "move leader",
    "move coordinator",
    "stop node",
    "stop node",
    "start node",
    "elect leaders",
    "partition from node",
)


def draw(seed: object) -> Setup:
    """The setup of a seed."""
    rng = random.Random(f"{seed}/setup")
    power = rng.random() < 0.25
    properties: dict[str, object] = {
        "offsets.topic.num.partitions": rng.choice((1, 3)),
        "transaction.state.log.num.partitions": rng.choice((1, 3)),
        "group.min.session.timeout.ms": 500,
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.min.session.timeout.ms": 500,
        "group.consumer.session.timeout.ms": 4_000,
        "group.consumer.assignment.interval.ms": rng.choice((0, 0, 500)),
        "log.cleaner.backoff.ms": rng.choice((300, 2_000)),
        "log.retention.check.interval.ms": 700,
        "log.flush.offset.checkpoint.interval.ms": rng.choice((900, 60_000)),
        "log.segment.delete.delay.ms": 200,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 400,
        "onceflow.transaction.version": rng.choice((0, 2, 2)),
        "onceflow.end.txn.early.answer": rng.random() < 0.3,
        "onceflow.end.txn.marker.delay.ms": rng.choice((0, 0, 30)),
        "log.index.interval.bytes": rng.choice((60, 4_096)),
        "auto.create.topics.enable": False,
    }
    if power:
        properties["onceflow.durability"] = rng.choice(("group", "always", "kafka", "kafka"))
    workers = {
        "producer": rng.choice((0, 0, 1, 2)),
        "transactional": rng.choice((0, 1, 1, 2)),
        "session": rng.choice((0, 0, 1, 2)),
        "group": rng.choice((0, 0, 0, 1, 3)),
        "committed reader": rng.choice((0, 0, 1)),
        "reader": rng.choice((0, 0, 0, 1)),
        "compaction": rng.choice((0, 0, 0, 1)),
        "short": rng.choice((0, 0, 0, 1)),
        "admin": rng.choice((0, 0, 0, 1)),
    }
    if not any(workers[kind] for kind in ("producer", "transactional", "compaction", "short")):
        workers["producer"] = workers["transactional"] = 1
    setup = Setup(
        properties=properties,
        segment_bytes=rng.choice((700, 1_500, 100_000)),
        partitions={
            "a": rng.choice((1, 2, 3)),
            "b": rng.choice((1, 2)),
            "compact": 1,
            "short": 1,
        },
        workers=workers,
        units=rng.choice((4, 8, 20)),
        storm=_draw_network(rng),
        troubles=[name for name in TROUBLES if rng.random() < 0.4] or ["cut"],
        trouble_every_us=rng.choice((150_000, 600_000)),
        duration_us=rng.choice((1_000_000, 3_000_000)),
        power=power,
        transaction_timeout_ms=rng.choice((1_500, 4_000)),
        static_members=rng.random() < 0.3,
        protocols=[_draw_groups(rng)],
    )
    _draw_surroundings(setup, rng)
    if power and properties["onceflow.durability"] == "kafka":
        # Their inputs may be gone and their outputs not, which no rule here could tell apart.
        workers["session"] = 0
        setup.troubles += ["kill broker"] * 3
    return setup


def _draw_surroundings(setup: Setup, rng: random.Random) -> None:
    """Nodes, mixed protocols, administration, and durability where no power is lost."""
    if rng.random() < 0.4:
        setup.nodes = 3
        setup.nodes_stay_down = rng.random() < 0.5
        setup.troubles += [name for name in NODE_TROUBLES if rng.random() < 0.6]
    if rng.random() < 0.3:
        assignor = rng.choice(("range", "cooperative-sticky"))
        setup.protocols = [
            {"partition_assignment_strategy": (assignor,)},
            {"group_protocol": "consumer"},
        ]
    setup.workers["owner"] = rng.choice((0, 0, 0, 1))
    if not setup.power:
        setup.properties["onceflow.durability"] = rng.choice(("kafka", "kafka", "group", "always"))


def _draw_groups(rng: random.Random) -> dict[str, object]:
    """The protocol of all groups of a run, and who assigns."""
    if rng.random() < 0.4:
        return {
            "group_protocol": "consumer",
            "group_remote_assignor": rng.choice((None, "uniform", "range")),
        }
    assignors = ("range", "roundrobin", "cooperative-sticky", "cooperative-sticky")
    return {"partition_assignment_strategy": (rng.choice(assignors),)}


def _draw_network(rng: random.Random) -> NetworkFaults:
    def maybe(probability: float) -> float:
        return probability * rng.random() if rng.random() < 0.5 else 0.0

    return NetworkFaults(
        delay_us=rng.choice((200, 2_000, 10_000)),
        slow=maybe(0.05),
        split=maybe(0.5),
        cut_after=maybe(0.02),
        cut_before=maybe(0.02),
        cut_within=maybe(0.02),
        refuse=maybe(0.3),
        silent=rng.choice((0.0, 0.3)),
    )
