"""Goal: our broker answers like Apache Kafka, whatever it is asked.

Method: random conversations from fixed seeds are played with both, answer by answer
(`tests/support/differential.py`, which also runs as a program over any number of seeds). What
differs is a fault, or a line of docs/kafka-differences.md that `differential_known` points to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import real_kafka
from differential import OUR_SETTINGS, Pair, run
from differential_groups import FAMILIES, conversation
from differential_known import KNOWN
from differential_world import World

from onceflow.broker_lite import Broker

DIFFERENCES = Path(__file__).parents[2] / "docs" / "kafka-differences.md"
SEEDS_EACH = 10


@pytest.fixture(scope="module")
def pair(apache_kafka: real_kafka.ApacheKafka) -> Iterator[Pair]:
    with Broker(settings=OUR_SETTINGS) as broker:
        yield Pair(apache_kafka.bootstrap_servers, broker.bootstrap_servers)


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, 51, SEEDS_EACH))
def test_both_brokers_answer_a_random_conversation_alike(first: int, pair: Pair) -> None:
    found = run(pair, range(first, first + SEEDS_EACH), print)
    assert not found, "\n\n".join(map(str, found))


def test_conversations_are_repeatable_and_every_family_comes_up() -> None:
    versions = dict.fromkeys(range(100), (0, 13)) | {1: (4, 18), 0: (3, 13), 9: (1, 10)}
    assert conversation(7, versions) == conversation(7, versions)
    asked = {step.get("key") for seed in range(60) for step in conversation(seed, versions)}
    assert {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22, 23, 24} <= asked
    assert {25, 26, 28, 29, 30, 31, 32, 33, 35, 37, 42, 43, 44, 45, 46, 47, 48, 49} <= asked
    assert {50, 51, 60, 61, 65, 66, 68, 69, 74, 75} <= asked
    assert len(FAMILIES) >= 11


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.line)
def test_a_known_difference_is_on_the_page_of_differences(known: object) -> None:
    assert known.line in DIFFERENCES.read_text()  # type: ignore[attr-defined]


TOPIC = {"name": "$name:t", "num_partitions": 1, "replication_factor": 1}
CREATION: dict[str, object] = {"key": 19, "version": 7, "body": {"topics": [TOPIC]}}
DESCRIPTION: dict[str, object] = {"key": 69, "version": 1, "body": {"group_ids": ["$name:g"]}}
NAMES = {"u": "uniform", "r": "range", "-": None}


def subscribe(
    member: str, assignor: str | None = None, instance: str | None = None, epoch: int = 0
) -> dict[str, object]:
    body = {
        "group_id": "$name:g",
        "member_id": member,
        "instance_id": instance,
        "member_epoch": epoch,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["$name:t"],
        "server_assignor": assignor,
        "topic_partitions": [],
    }
    return {"key": 68, "version": 1, "body": body}


def played(*steps: dict[str, object]) -> list[Any]:
    """Answers of our broker."""
    with Broker() as broker:
        return World(broker.bootstrap_servers, "x-", park_s=0.1).run([CREATION, *steps])[1:]


@pytest.mark.parametrize(
    ("votes", "vote", "rises"),
    [
        ("-", "r", True), ("-", "u", False), ("-", "-", False),
        ("u-", "u", False), ("u-", "r", True), ("r-", "u", True), ("r-", "r", False),
        ("uu", "r", True), ("rr", "u", True), ("ur", "u", False), ("ru", "r", True),
        ("ru", "u", False), ("uuu", "r", False), ("uur", "u", False), ("uru", "r", True),
        ("urr", "u", True), ("rru", "r", False),
    ],
)  # fmt: skip
def test_a_vote_that_changes_the_assignor_raises_the_groups_epoch(
    votes: str, vote: str, rises: bool
) -> None:
    """Found by seeds 3 and 6062, and asked of Apache Kafka 4.4: the last member votes again, and
    its own wish decides between equals.
    """
    members = [subscribe(f"m{number}", NAMES[each]) for number, each in enumerate(votes)]
    again = subscribe(f"m{len(votes) - 1}", NAMES[vote])
    answers = played(*members, DESCRIPTION, again, DESCRIPTION)
    before, after = (answers[at]["groups"][0]["group_epoch"] for at in (-3, -1))
    assert after - before == rises


def test_a_static_member_that_is_here_cannot_join_again() -> None:
    """Found by seed 6060, and asked of Apache Kafka 4.4: under its own id too
    (UNRELEASED_INSTANCE_ID), until it says that it goes away.
    """
    there = subscribe("m", instance="i")
    answers = played(there, there, subscribe("m", instance="i", epoch=-2), there)
    assert [answer["error_code"] for answer in answers] == [0, 111, 0, 0]


def test_what_a_group_reads_is_settled_when_its_generation_begins() -> None:
    """Found by seed 175, and asked of Apache Kafka 4.4: a member that says otherwise meanwhile
    changes nothing before the next generation (GROUP_SUBSCRIBED_TO_TOPIC).
    """
    topics = [
        {"name": f"$name:{topic}", "num_partitions": 1, "replication_factor": 1}
        for topic in ("t0", "t1", "t2")
    ]
    steps = [
        {"key": 19, "version": 7, "body": {"topics": topics}},
        join("m1", ["t0"]),
        join("m2", ["t0", "t1"], instance="i"),
        join("m2", ["t0"], instance="i"),
        *(
            {
                "key": 47,
                "version": 0,
                "connection": "admin",
                "body": {
                    "group_id": "$name:g",
                    "topics": [{"name": f"$name:{topic}", "partitions": [{"partition_index": 0}]}],
                },
            }
            for topic in ("t0", "t1", "t2")
        ),
    ]
    with Broker() as broker:
        answers = World(broker.bootstrap_servers, "x-", park_s=0.1).run(steps)
    assert answers[3] == "parked", "the first member was promised a place"
    deleted = [answer["topics"][0]["partitions"][0]["error_code"] for answer in answers[4:]]
    assert deleted == [86, 86, 0]


def test_whoever_is_taken_out_of_a_group_is_told_no_member_id() -> None:
    """Found by seed 3070, and asked of Apache Kafka 4.4."""
    leaving = [{"member_id": "", "group_instance_id": "i"}]
    steps = [
        join("m1", ["t0"], instance="first"),
        join("m2", ["t0"], instance="i"),
        {
            "key": 13,
            "version": 5,
            "connection": "admin",
            "body": {"group_id": "$name:g", "members": leaving},
        },
    ]
    with Broker() as broker:
        answers = World(broker.bootstrap_servers, "x-", park_s=0.1).run(steps)
    assert (answers[1]["error_code"], answers[1]["member_id"]) == (25, "")


@pytest.mark.parametrize(
    ("passwords", "iterations", "code"),
    [
        (["aa", "aa"], [8192, 8192], 92), (["", "aa"], [8192, 8192], 92),
        (["", ""], [8192, 8192], 92),
        (["aa", "aa"], [10, 8192], 93), (["aa", "aa"], [8192, 10], 92), ([""], [8192], 93),
    ],
)  # fmt: skip
def test_a_user_that_is_named_twice_is_refused_for_the_first_reason_that_kafka_has(
    passwords: list[str], iterations: list[int], code: int
) -> None:
    """Found by seed 6360, and asked of Apache Kafka 4.4, which fails at an empty password alone."""
    upsertions = [
        {
            "name": "$name:u",
            "mechanism": 1,
            "iterations": often,
            "salt": {"hex": "01"},
            "salted_password": {"hex": password},
        }
        for password, often in zip(passwords, iterations, strict=True)
    ]
    (answer,) = played({"key": 51, "version": 0, "body": {"upsertions": upsertions}})
    assert [result["error_code"] for result in answer["results"]] == [code]


def join(member: str, topics: list[str], instance: str | None = None) -> dict[str, object]:
    body = {
        "group_id": "$name:g",
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": f"$member:{member}",
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": {"subscription": topics}}],
    }
    return {"key": 11, "version": 9, "body": body, "connection": member, "binds": member}


class TwoAnswers(Pair):
    """A pair whose second broker answers one request otherwise; for the program itself."""

    def __init__(self, broken: int) -> None:
        self.broken = broken

    def compare(self, steps):  # type: ignore[no-untyped-def]
        from differential import Difference

        opened = any(step["key"] == 19 for step in steps)
        for index, step in enumerate(steps):
            if step["key"] == self.broken and opened:
                return Difference(index, ".x[0].y: a, b", list(steps[: index + 1]))
        return None


def test_a_difference_is_cut_down_to_the_steps_that_it_needs() -> None:
    steps = [{"key": key} for key in (3, 19, 1, 2, 19, 5, 7, 8, 26, 9)]
    pair = TwoAnswers(26)
    found = pair.confirmed(steps)
    assert found is not None
    assert [step["key"] for step in pair.shrunk(found).steps] == [19, 26]
