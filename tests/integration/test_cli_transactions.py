"""Goal: transactions are shown and ended from the command line, and a live one is left alone.

Method: an open transaction and one that hangs, on a broker that does not verify partitions; the
tests of live transactions run against Apache Kafka too, with `make conformance`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import CommandLine
from consumer_worlds import fresh
from hanging_transactions import UNVERIFIED, leave_hanging

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Producer, TopicPartition
from onceflow.sdk.errors import KafkaError


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=UNVERIFIED) as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


def test_a_live_transaction_is_shown_and_only_fenced(onceflow: CommandLine) -> None:
    topic, name = fresh("topic"), fresh("id")
    onceflow.call("topics", "create", topic, "--partitions", "1")
    with Producer(bootstrap_servers=onceflow.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        listed = onceflow.json("txns", "list", "--state", "Ongoing")
        assert name in [each["transactional_id"] for each in listed]
        (shown,) = onceflow.json("txns", "describe", name)
        assert (shown["state"], shown["partitions"]) == ("Ongoing", [f"{topic}:0"])
        assert shown["age_ms"] >= 0
        (place,) = onceflow.json("topics", "describe", topic)[0]["partitions"]
        assert (place["stable"], place["end"]) == (0, 1)

        assert onceflow.json("txns", "find-hanging", topic) == []
        refused = onceflow.error("txns", "abort", f"{topic}:0", "--start-offset", "0", status=6)
        assert "txns fence" in refused
        (fenced,) = onceflow.json("txns", "fence", name)
        assert fenced["transactional_id"] == name
        (shown,) = onceflow.json("txns", "describe", name)
        assert shown["state"] in ("PrepareAbort", "CompleteAbort", "Empty")
        with pytest.raises(KafkaError):
            producer.commit_transaction()


def test_a_live_transaction_is_aborted_by_force(onceflow: CommandLine) -> None:
    topic, name = fresh("topic"), fresh("id")
    onceflow.call("topics", "create", topic, "--partitions", "1")
    with Producer(bootstrap_servers=onceflow.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        abort = ("txns", "abort", f"{topic}:0", "--start-offset", "0")
        assert onceflow.json(*abort, "--force")["start_offset"] == 0
        (place,) = onceflow.json("topics", "describe", topic)[0]["partitions"]
        assert place["stable"] == place["end"]
        producer.abort_transaction()


def test_a_hanging_transaction_is_found_and_ended(broker: Broker) -> None:
    line, topic = CommandLine(broker.bootstrap_servers), fresh("topic")
    line.call("topics", "create", topic, "--partitions", "1")
    with (
        Admin(bootstrap_servers=line.bootstrap) as admin,
        Producer(bootstrap_servers=line.bootstrap, transactional_id=fresh("id")) as producer,
    ):
        producer.init_transactions()
        assert producer.identity is not None
        leave_hanging(admin, TopicPartition(topic, 0), producer.identity)
    find = ("txns", "find-hanging", topic, "--max-timeout-ms", "0")
    (found,) = line.json(*find)
    assert (found["partition"], found["start_offset"]) == (0, 0)
    step = f"onceflow txns abort {topic}:0 --start-offset 0"
    assert step in line.call(*find).stderr
    assert line.json(*step.split()[1:])["producer_id"] == found["producer_id"]
    assert line.json(*find) == []


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("abort", "t:0"), 2, "--start-offset or --producer-id"),
        (("abort", "t", "--producer-id", "1"), 2, "TOPIC:PARTITION"),
        (("describe", "nobody-has-this"), 3, "txns list"),
    ],
)
def test_what_cannot_be_done_is_told(
    broker: Broker, words: tuple[str, ...], status: int, told: str
) -> None:
    assert told in CommandLine(broker.bootstrap_servers).error("txns", *words, status=status)
