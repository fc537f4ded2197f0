"""Goal: our admin client finds the transactions that Kafka's own tool finds, on either broker.

Method: hanging and live transactions in a topic of our daemon and of Apache Kafka; the table of
`kafka-transactions.sh find-hanging` against ours, and the tool's abort of one against our refusal
of the live one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import real_kafka
from hanging_transactions import UNVERIFIED, leave_hanging
from stock_daemon import StockDaemon

from onceflow.sdk import Admin, NewTopic, Producer, ProducerIdentity, TopicPartition
from onceflow.sdk.errors import IllegalStateError

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module", params=["bundled-broker", "apache-kafka"])
def unverified(
    request: pytest.FixtureRequest, kafka_tools: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a broker that takes unannounced partitions."""
    folder = tmp_path_factory.mktemp("unverified")
    if request.param == "apache-kafka":
        with real_kafka.ApacheKafka(folder, settings=UNVERIFIED) as kafka:
            yield kafka.bootstrap_servers
        return
    daemon = StockDaemon(folder / "data", UNVERIFIED)
    daemon.start()
    try:
        yield daemon.bootstrap_servers
    finally:
        daemon.stop()


def by_the_tool(bootstrap: str, topic: str) -> list[tuple[str, ...]]:
    """Topic, partition, producer id and epoch, coordinator epoch, start offset, last time."""
    shown = real_kafka.tool(
        "kafka-transactions", "--bootstrap-server", bootstrap,
        "find-hanging", "--topic", topic, "--max-transaction-timeout", "0",
    )  # fmt: skip
    head, *rows = (tuple(line.split()) for line in shown.splitlines() if line.strip())
    assert head[:4] == ("Topic", "Partition", "ProducerId", "ProducerEpoch"), head
    return sorted(row[:7] for row in rows)


def by_us(admin: Admin, topic: str) -> list[tuple[str, ...]]:
    """The same by our admin client."""
    return sorted(
        (
            *map(str, found.partition),
            str(found.producer.producer_id),
            str(found.producer.producer_epoch),
            str(found.producer.coordinator_epoch),
            str(found.producer.transaction_start_offset),
            str(found.producer.last_timestamp_ms),
        )
        for found in admin.find_hanging_transactions([topic], max_transaction_timeout_ms=0)
    )


def test_the_same_transactions_hang_for_kafkas_tool_and_for_us(unverified: str, name: str) -> None:
    with (
        Admin(bootstrap_servers=unverified) as admin,
        Producer(bootstrap_servers=unverified, transactional_id=name) as producer,
    ):
        admin.create_topics([NewTopic(name, 4)])
        assert by_us(admin, name) == by_the_tool(unverified, name) == []
        assert producer.identity is not None
        producer.begin_transaction()
        producer.send(name, b"live", partition=0).result()
        leave_hanging(admin, TopicPartition(name, 1), producer.identity)
        leave_hanging(admin, TopicPartition(name, 2), ProducerIdentity(name, 999_999, 3))
        theirs = by_the_tool(unverified, name)
        assert by_us(admin, name) == theirs
        assert [row[1] for row in theirs] == ["1", "2"]
        with pytest.raises(IllegalStateError, match="knows it as"):
            admin.abort_transaction(TopicPartition(name, 0), start_offset=0)
        admin.abort_transaction(TopicPartition(name, 1), start_offset=0)
        real_kafka.tool(
            "kafka-transactions", "--bootstrap-server", unverified,
            "abort", "--topic", name, "--partition", "2", "--start-offset", "0",
        )  # fmt: skip
        assert by_us(admin, name) == by_the_tool(unverified, name) == []
        producer.commit_transaction()
