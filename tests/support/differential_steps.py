"""Random conversations about records and transactions, as plain steps (see `differential_world`).

Requests are mostly what a client would send next, with one value in some of them off by a little.
What a broker gives (ids, epochs, sequences) is named by a symbol, so that a conversation stays
playable when steps are taken out of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Plain = Any
Step = dict[str, Plain]
Action = Callable[["Plan"], Step | list[Step]]

EPOCH_MS = 1_600_000_000_000
CODECS = (0, 0, 0, 1, 2, 3, 4)
TOPIC_CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"message.timestamp.type": "LogAppendTime"},
    {"compression.type": "gzip"},
    {"compression.type": "uncompressed"},
    {"max.message.bytes": "300"},
    {"min.insync.replicas": "2"},
    {"message.timestamp.before.max.ms": "1000"},
)
ODD_FIELDS: tuple[dict[str, int], ...] = (
    {"base_offset": 7},
    {"leader_epoch": 9},
    {"magic": 1},
    {"magic": 3},
    {"crc": 1},
    {"last_offset_delta": 5},
    {"last_offset_delta": -1},
    {"attributes": 0x20},
    {"attributes": 0x08},
    {"max_timestamp": EPOCH_MS + 99_000},
    {"base_sequence": 3},
    {"producer_id": 77_777, "producer_epoch": 0, "base_sequence": 0},
    {"batch_length": 12},
)


class Plan:
    """The generator and the names that one conversation uses.

    Args:
        rng: Source of every choice.
        versions: First and last version of each request that both brokers serve.
    """

    def __init__(self, rng: random.Random, versions: dict[int, tuple[int, int]]) -> None:
        self.rng = rng
        self.versions = versions
        self.topics = [f"t{i}" for i in range(rng.choice((1, 2, 2, 3)))]
        self.partitions = {topic: rng.choice((1, 2, 3)) for topic in self.topics}
        self.producers = [f"p{i}" for i in range(rng.choice((1, 2, 3)))]
        self.transactional = {
            producer: f"x{rng.choice((0, 0, 1))}"
            for producer in self.producers
            if rng.random() < 0.7
        }
        self.groups = [f"g{i}" for i in range(rng.choice((1, 1, 2)))]
        self.members = [f"m{i}" for i in range(rng.choice((1, 2, 3, 4)))]
        self.assignor = rng.choice(("uniform", "range"))
        self.newest = rng.random() < 0.5

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def version(self, key: int, low: int = 0, high: int = 99) -> int:
        """A version of this request; half of the conversations like the newest."""
        first, last = self.versions[key]
        first, last = max(first, low), min(last, high)
        return last if self.newest and self.chance(0.7) else self.rng.randint(first, last)

    def step(self, key: int, body: Plain, **more: Plain) -> Step:
        """A step in a random version."""
        version = more.pop("version", None)
        return {
            "key": key,
            "version": self.version(key) if version is None else version,
            "body": body,
            **more,
        }

    def topic(self) -> str:
        return "no-such-topic" if self.chance(0.04) else self.rng.choice(self.topics)

    def partition(self, topic: str) -> int:
        if self.chance(0.04):
            return self.rng.choice((-1, 7))
        return self.rng.randrange(self.partitions.get(topic, 1))

    def some_topics(self) -> list[str]:
        """One topic, or each of several once."""
        if self.chance(0.7):
            return [self.topic()]
        return self.rng.sample(self.topics, self.rng.randint(1, len(self.topics)))

    def some_partitions(self, topic: str) -> list[int]:
        if self.chance(0.6):
            return [self.partition(topic)]
        return list(range(self.partitions.get(topic, 1)))

    def named(self, topic: str) -> dict[str, str]:
        """A topic by name and by id; the version takes what it has."""
        return {"name": f"$name:{topic}", "topic": f"$name:{topic}", "topic_id": f"$id:{topic}"}

    def epoch(self, producer: str) -> str:
        shift = self.rng.choice(("+1", "-1")) if self.chance(0.06) else ""
        return f"$epoch:{producer}{shift}"

    def identity(self, producer: str) -> dict[str, str]:
        return {"producer_id": f"$pid:{producer}", "producer_epoch": self.epoch(producer)}

    def group(self) -> str:
        return "no-such-group" if self.chance(0.03) else self.rng.choice(self.groups)


# --- topics


def create_topic(plan: Plan, topic: str, configs: dict[str, str]) -> Step:
    """The topic as the plan wants it, kept for ever whatever its records' times are."""
    settings = {"retention.ms": "-1", **configs}
    body = {
        "name": f"$name:{topic}",
        "num_partitions": plan.partitions[topic],
        "replication_factor": plan.rng.choice((1, -1)),
        "configs": [{"name": name, "value": value} for name, value in settings.items()],
    }
    version = plan.version(19, low=4)
    return plan.step(19, {"topics": [body], "timeout_ms": 10_000}, version=version)


def opening(plan: Plan) -> list[Step]:
    """Topics and producers, as every conversation begins."""
    steps = [create_topic(plan, topic, plan.rng.choice(TOPIC_CONFIGS)) for topic in plan.topics]
    for producer in plan.producers:
        if plan.chance(0.8):
            steps.append(init_producer(plan, producer, fresh=True))
    return steps


# --- producers


def init_producer(plan: Plan, producer: str | None = None, *, fresh: bool = False) -> Step:
    producer = producer or plan.rng.choice(plan.producers)
    transactional_id = plan.transactional.get(producer)
    body: dict[str, Plain] = {
        "transactional_id": f"$name:{transactional_id}" if transactional_id else None,
        "transaction_timeout_ms": plan.rng.choice((-1, 0, 900_001))
        if not fresh and plan.chance(0.08)
        else 60_000,
    }
    if not fresh and plan.chance(0.5):
        body |= {"producer_id": f"$pid:{producer}", "producer_epoch": plan.epoch(producer)}
    if not fresh and plan.chance(0.03):
        body["transactional_id"] = ""
    return plan.step(22, body, binds=producer)


def described_batch(
    plan: Plan, topic: str, partition: int, producer: str | None, epoch: str | None
) -> Plain:
    """One batch as a client would send it next, or with one thing off."""
    rng = plan.rng
    described: dict[str, Plain] = {
        "count": rng.choice((1, 1, 2, 3, 5)),
        "codec": rng.choice(CODECS),
        "timestamp": EPOCH_MS + rng.choice((0, 5, 10, 1000)) * 10,
        "step": rng.choice((0, 0, 1, 7, -2)),
    }
    if plan.chance(0.75):
        described["key"] = rng.choice(("k%d", "same"))
    if plan.chance(0.1):
        described["times"] = rng.choice((40, 400))
    if plan.chance(0.2):
        described["headers"] = 2
    if producer is not None:
        shift = rng.choice(("+1", "-1", "-2", "-7")) if plan.chance(0.2) else ""
        described |= {
            "producer": producer,
            "epoch": epoch,
            "sequence": f"$seq:{producer}:{topic}:{partition}{shift}",
        }
        if plan.chance(0.02):
            described["sequence"] = 0x7FFFFFFE
        if plan.chance(0.05):
            described["sequence"] = 0
        described["transactional"] = producer in plan.transactional and plan.chance(0.93)
        if producer in plan.transactional and not described["transactional"]:
            # A later epoch outside of the transaction would leave Kafka without an end to it.
            described["epoch"] = f"$epoch:{producer}"
    return described


def malformed(plan: Plan, batches: list[Plain]) -> list[Plain]:
    """Batches for one partition that break a rule; alone in their request, since Kafka then
    refuses every partition of it.
    """
    if plan.chance(0.25):
        return [*batches, *batches]
    return [batches[0] | {"fields": plan.rng.choice(ODD_FIELDS)}]


def produce(plan: Plan) -> Step:
    rng = plan.rng
    producer = rng.choice(plan.producers) if plan.chance(0.8) else None
    epoch = plan.epoch(producer) if producer else None
    topics = []
    for topic in plan.some_topics():
        partitions = []
        for partition in plan.some_partitions(topic):
            batches = [described_batch(plan, topic, partition, producer, epoch)]
            partitions.append({"index": partition, "records": {"batch": batches}})
        topics.append(plan.named(topic) | {"partition_data": partitions})
    if len(topics) == 1 and len(topics[0]["partition_data"]) == 1 and plan.chance(0.1):
        records = topics[0]["partition_data"][0]["records"]
        records["batch"] = malformed(plan, records["batch"])
    transactional_id = plan.transactional.get(producer) if producer else None
    if plan.chance(0.03):
        transactional_id = rng.choice(("x0", None))
    body = {
        "transactional_id": f"$name:{transactional_id}" if transactional_id else None,
        "acks": rng.choice((0, 1, 2)) if plan.chance(0.1) else -1,
        "timeout_ms": 5_000,
        "topic_data": topics,
    }
    return plan.step(0, body, version=plan.version(0, low=3))


# --- transactions


def add_partitions(plan: Plan, producer: str | None = None) -> Step:
    producer = producer or plan.rng.choice([*plan.transactional] or plan.producers)
    topics = [
        {"name": f"$name:{topic}", "partitions": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    name = f"$name:{plan.transactional.get(producer, 'x9')}"
    identity = plan.identity(producer)
    body = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": identity["producer_id"],
        "v3_and_below_producer_epoch": identity["producer_epoch"],
        "v3_and_below_topics": topics,
        "transactions": [
            {"transactional_id": name, **identity, "topics": topics, "verify_only": False}
        ],
    }
    return plan.step(24, body, version=plan.version(24, high=3))


def add_offsets(plan: Plan) -> Step:
    producer = plan.rng.choice([*plan.transactional] or plan.producers)
    name = f"$name:{plan.transactional.get(producer, 'x9')}"
    body = {
        "transactional_id": name,
        **plan.identity(producer),
        "group_id": f"$name:{plan.group()}",
    }
    return plan.step(25, body)


def commit_in_transaction(plan: Plan) -> Step:
    producer = plan.rng.choice([*plan.transactional] or plan.producers)
    body = {
        "transactional_id": f"$name:{plan.transactional.get(producer, 'x9')}",
        **plan.identity(producer),
        "group_id": f"$name:{plan.group()}",
        "topics": committed_topics(plan),
        "generation_id": -1,
        "member_id": "",
    }
    if plan.chance(0.3):
        member = plan.rng.choice(plan.members)
        body |= {"generation_id": f"$generation:{member}", "member_id": f"$member:{member}"}
    elif plan.chance(0.1):
        body |= {"generation_id": 3, "member_id": "nobody"}
    return plan.step(28, body)


def committed_topics(plan: Plan) -> Plain:
    """Offsets to commit, in the form that OffsetCommit and TxnOffsetCommit share."""
    return [
        plan.named(topic)
        | {
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": plan.rng.choice((0, 1, 2, 5, 10, -1)),
                    "committed_leader_epoch": plan.rng.choice((-1, 0, 3)),
                    "committed_metadata": plan.rng.choice(("", "m", None)),
                }
                for partition in plan.some_partitions(topic)
            ]
        }
        for topic in plan.some_topics()
    ]


def end_transaction(plan: Plan) -> Step:
    producer = plan.rng.choice([*plan.transactional] or plan.producers)
    body = {
        "transactional_id": f"$name:{plan.transactional.get(producer, 'x9')}",
        **plan.identity(producer),
        "committed": plan.chance(0.6),
    }
    return plan.step(26, body, binds=producer)


def describe_producers(plan: Plan) -> Step:
    topics = [
        {"name": f"$name:{topic}", "partition_indexes": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    return plan.step(61, {"topics": topics})


def describe_transactions(plan: Plan) -> Step:
    return plan.step(65, {"transactional_ids": ["$name:x0", "$name:x1", "$name:x9"]})


def list_transactions(plan: Plan) -> Step:
    states = plan.rng.choice(
        ([], [], ["Ongoing"], ["CompleteCommit", "CompleteAbort"], ["Empty", "Nonsense"])
    )
    body: dict[str, Plain] = {"state_filters": states, "duration_filter": -1}
    if plan.chance(0.3):
        body["producer_id_filters"] = ["$pid:p0"]
    if plan.chance(0.2):
        body["duration_filter"] = plan.rng.choice((0, 3_600_000))
    if plan.chance(0.3):
        body["transactional_id_pattern"] = plan.rng.choice((".*x0", ".*", "x0", "(", ""))
    return plan.step(66, body)


# --- reading


def fetch(plan: Plan) -> Step:
    rng = plan.rng
    topics = []
    for topic in plan.some_topics():
        partitions = [
            {
                "partition": partition,
                "fetch_offset": rng.choice((0, 0, 0, 1, 2, 3, 5, 8, 100, -1)),
                "partition_max_bytes": rng.choice((1, 100, 300, 1 << 20, 1 << 20)),
                "current_leader_epoch": rng.choice((0, 5)) if plan.chance(0.1) else -1,
                "last_fetched_epoch": rng.choice((0, 1)) if plan.chance(0.1) else -1,
                "log_start_offset": -1,
            }
            for partition in plan.some_partitions(topic)
        ]
        topics.append(plan.named(topic) | {"partitions": partitions})
    alone = len(topics) == 1 and len(topics[0]["partitions"]) == 1
    body: dict[str, Plain] = {
        "max_wait_ms": rng.choice((0, 20)),
        "min_bytes": rng.choice((0, 1, 1, 500)),
        # Kafka fills a limit up with a cut batch, which leaves less for the next partition.
        "max_bytes": rng.choice((1, 400, 1 << 20, 1 << 20)) if alone else 1 << 20,
        "isolation_level": rng.choice((0, 1)),
        "topics": topics,
    }
    more: dict[str, Plain] = {}
    if plan.chance(0.35):
        slot = rng.choice(("s0", "s1"))
        body |= {"session_id": f"$session:{slot}", "session_epoch": f"$sessionepoch:{slot}"}
        if plan.chance(0.1):
            body["session_epoch"] = rng.choice((0, 5, -1))
        if plan.chance(0.4):
            body["topics"] = []
        if plan.chance(0.2):
            topic = plan.topic()
            body["forgotten_topics_data"] = [
                plan.named(topic) | {"partitions": plan.some_partitions(topic)}
            ]
            body["topics"] = []
        more["version"] = plan.version(1, low=7)
        more["binds"] = slot
    return plan.step(1, body, **more)


def list_offsets(plan: Plan) -> Step:
    rng = plan.rng
    version = plan.version(2)
    special = [-1, -2]
    for first, timestamp in ((7, -3), (8, -4), (9, -5), (11, -6)):
        if version >= first or plan.chance(0.05):
            special.append(timestamp)
    topics = [
        {
            "name": f"$name:{topic}",
            "partitions": [
                {
                    "partition_index": partition,
                    "timestamp": rng.choice(
                        (*special, *special, EPOCH_MS + rng.choice((0, 1, 50, 101, 10_000)))
                    ),
                    "current_leader_epoch": rng.choice((0, 5)) if plan.chance(0.1) else -1,
                }
                for partition in plan.some_partitions(topic)
            ],
        }
        for topic in plan.some_topics()
    ]
    body = {"isolation_level": rng.choice((0, 1)), "topics": topics, "timeout_ms": 1000}
    return plan.step(2, body, version=version)


def delete_records(plan: Plan) -> Step:
    topics = [
        {
            "name": f"$name:{topic}",
            "partitions": [
                {"partition_index": p, "offset": plan.rng.choice((-1, 0, 1, 2, 3, 100, -2))}
                for p in plan.some_partitions(topic)
            ],
        }
        for topic in plan.some_topics()
    ]
    return plan.step(21, {"topics": topics, "timeout_ms": 1000})


def leader_epochs(plan: Plan) -> Step:
    topics = [
        {
            "topic": f"$name:{topic}",
            "partitions": [
                {
                    "partition": partition,
                    "current_leader_epoch": plan.rng.choice((-1, -1, 0, 4)),
                    "leader_epoch": plan.rng.choice((0, 0, 1, -1)),
                }
                for partition in plan.some_partitions(topic)
            ],
        }
        for topic in plan.some_topics()
    ]
    return plan.step(23, {"replica_id": -1, "topics": topics})
