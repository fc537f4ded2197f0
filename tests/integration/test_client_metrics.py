"""Goal: clients give true figures of what they did, and interceptors see everything and break
nothing.

Method: both faces over a broker in this process, with orders to fail; figures are compared with
what was done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    OffsetAndMetadata,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from onceflow.sdk.errors import ConfigError, KafkaError, SerializationError
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

PART = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_a_producer_counts_what_it_sent(broker: Broker) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, compression_type="gzip", client_id="me"
    ) as producer:
        before = producer.metrics()
        assert before.record_send_total == before.byte_total == before.batch_size_avg == 0
        producer.send_many("t", [b"x" * 100] * 1_000)
        producer.flush()
        with pytest.raises(KafkaError):
            producer.send("t", b"x" * 2_000_000)
    found = producer.metrics()
    assert found.client_id == "me"
    assert found.record_send_total == 1_000
    assert found.record_error_total == found.record_retry_total == found.waiting_records == 0
    assert 0 < found.batch_size_avg <= found.batch_size_max <= found.byte_total < 50_000
    assert 0 < found.compression_rate_avg < 0.5
    assert found.records_per_request_avg * found.produce_request_total == pytest.approx(1_000)
    assert found.buffer_available_bytes == found.buffer_total_bytes
    assert found.requests_in_flight == 0
    links = found.connections
    assert links.connection_count == 0
    assert links.connection_creation_total == links.connection_close_total > 0
    assert links.outgoing_byte_total > found.byte_total
    assert links.incoming_byte_total > 0
    names = found.as_dict()
    assert names["record-send-total"] == names["record-send-total{t}"] == 1_000
    assert names["connection-count"] == 0
    assert all("_" not in name for name in names)


def test_topics_are_told_apart(broker: Broker) -> None:
    """Kafka's producer-topic-metrics, and the consumer's by topic and partition."""
    broker.create_topic("few", partitions=1)
    broker.create_topic("refused", partitions=1)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, compression_type="gzip", retry_backoff_ms=1
    ) as producer:
        producer.send_many("few", [b"x" * 100] * 10).result(20)
        producer.send_many("many", [b"y" * 100] * 90).result(20)
        again = ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.faults.add(ProduceRequest, Fault.ERROR, topic="few", error=again)
        producer.send("few", b"z").result(20)
        never = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        broker.faults.add(ProduceRequest, Fault.ERROR, topic="refused", error=never)
        with pytest.raises(KafkaError):
            producer.send("refused", b"z").result(20)
        found = producer.metrics()
    few, many, refused = (found.topics[name] for name in ("few", "many", "refused"))
    assert (few.record_send_total, many.record_send_total) == (11, 90)
    assert (few.record_retry_total, many.record_retry_total) == (1, 0)
    assert (few.record_error_total, refused.record_error_total) == (0, 1)
    assert sum(topic.byte_total for topic in found.topics.values()) == found.byte_total
    assert 0 < many.compression_rate < 1
    assert few.record_send_rate > 0

    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        parts = [TopicPartition("few", 0), TopicPartition("many", 0)]
        consumer.assign(parts)
        consumer.seek_to_beginning()
        count = 0
        while count < 101:
            count += sum(map(len, consumer.poll(5_000).values()))
        read = consumer.metrics()
        assert [consumer.current_lag(part) for part in parts] == [0, 0]
    assert {name: t.records_consumed_total for name, t in read.topics.items()} == {
        "few": 11, "many": 90,
    }  # fmt: skip
    sizes = [topic.bytes_consumed_total for topic in read.topics.values()]
    assert sum(sizes) == read.bytes_consumed_total
    assert min(sizes) > 0
    assert read.records_lead == dict(zip(parts, (11, 90), strict=True))
    assert read.records_lead_min == 11
    assert read.as_dict()["records-consumed-total{many}"] == 90


def test_transactions_are_counted(broker: Broker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer:
        with producer.transaction():
            producer.send("t", b"1")
        producer.begin_transaction()
        producer.send("t", b"2")
        producer.abort_transaction()
        found = producer.metrics()
    assert (found.txn_commit_total, found.txn_abort_total) == (1, 1)


def test_a_transaction_that_hangs_open_can_be_seen(broker: Broker) -> None:
    """What was committed behind it is invisible until it ends, without an error anywhere."""
    servers = broker.bootstrap_servers
    settings: dict[str, Any] = {"bootstrap_servers": servers, "auto_offset_reset": "earliest"}
    with (
        Producer(bootstrap_servers=servers, transactional_id="hangs") as hanging,
        Producer(bootstrap_servers=servers) as producer,
        Consumer(**settings) as careful,
        Consumer(**settings, isolation_level="read_uncommitted") as hasty,
    ):
        producer.send("t", b"before").result(20)
        hanging.begin_transaction()
        hanging.send("t", b"open").result(20)
        producer.send_many("t", [b"behind"] * 3)
        producer.flush()
        for consumer in (careful, hasty):
            consumer.assign([PART])
        while hasty.position(PART) < 5:
            hasty.poll(100)
        lags = {}
        while lags.get(PART) != 4 or careful.position(PART) < 1:
            careful.poll(100)
            lags = careful.metrics().last_stable_offset_lag
        found = careful.metrics()
        assert found.records_lag == {PART: 0}, "nothing is left to be read"
        assert found.last_stable_offset_lag_max == 4
        assert found.as_dict()["last-stable-offset-lag{t-0}"] == 4
        assert hasty.metrics().last_stable_offset_lag == {PART: 4}
        hanging.abort_transaction()
        while careful.position(PART) < 6:
            careful.poll(100)
        assert careful.metrics().last_stable_offset_lag == {PART: 0}


def test_a_consumer_counts_what_it_read(broker: Broker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many("t", [b"x" * 100] * 500)
    with Consumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        count = 0
        while count < 200:
            for records in consumer.poll(timeout_ms=5_000, max_records=200).values():
                count += len(records)
        lagging = consumer.metrics()
        consumer.commit()
        with pytest.raises(KafkaError):
            consumer.commit({TopicPartition("t", 99): 0})
        found = consumer.metrics()
    assert lagging.records_lag == {PART: 300}
    assert lagging.records_lag_max == 300
    assert found.as_dict()["records-lag{t-0}"] == 300
    assert found.records_consumed_total == 500  # decoded ahead
    assert found.bytes_consumed_total > 50_000
    assert found.fetch_total > 0
    assert (found.commit_total, found.rebalance_total) == (1, 1)
    assert found.assigned_partitions == 1
    assert found.last_rebalance_ms_ago >= 0
    closed = consumer.metrics()
    assert closed.partitions_lost_total == 0
    assert closed.connections.connection_count == 0


class Recorder(ProducerInterceptor):
    """Writes down what it sees, and marks records."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, object]] = []
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        marked = [*record.headers, ("by", self.name.encode())]  # type: ignore[misc]
        return dataclasses.replace(record, headers=marked)

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        self.seen.append(("stored", (record.value, metadata.offset)))

    def on_error(self, record: ProducerRecord, error: KafkaError) -> None:
        self.seen.append(("failed", (record.value, type(error))))

    def close(self) -> None:
        self.closed += 1


class Broken(ProducerInterceptor, ConsumerInterceptor):
    """Fails wherever it can."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        if record.value == b"odd":
            return "no record"  # type: ignore[return-value]
        if record.value == b"moved":
            return dataclasses.replace(record, topic="elsewhere")
        raise RuntimeError("on_send")

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        raise RuntimeError("on_acknowledgement")

    def on_error(self, record: ProducerRecord, error: KafkaError) -> None:
        raise RuntimeError("on_error")

    def on_records(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        raise RuntimeError("on_records")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise RuntimeError("on_commit")

    def close(self) -> None:
        raise RuntimeError("close")


class Watcher(ConsumerInterceptor):
    """Writes down what it sees."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    def on_records(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        self.values += [record.value for run in records.values() for record in run]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append(offsets)


SENT = [b"a", b"odd", b"moved", b"b", b"c"]


def check_producer(producer: Producer | AsyncProducer, *recorders: Recorder) -> None:
    for recorder in recorders:
        assert recorder.seen[0] == ("failed", (1.5, SerializationError))
        stored = [("stored", (value, offset)) for offset, value in enumerate(SENT)]
        assert recorder.seen[1:] == stored
        assert recorder.closed == 1
    # on_send and on_acknowledgement of each, on_send and on_error of the refused one, close
    assert producer.metrics().interceptor_error_total == 2 * len(SENT) + 2 + 1


def check_records(records: list[ConsumerRecord]) -> None:
    assert [record.value for record in records] == SENT
    for record in records:
        assert list(record.headers) == [("by", b"first"), ("by", b"last")]


def test_interceptors_see_everything_and_break_nothing(broker: Broker) -> None:
    first, last = Recorder("first"), Recorder("last")
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, interceptors=[first, Broken(), last]
    ) as producer:
        with pytest.raises(SerializationError):
            producer.send("t", 1.5)
        for value in SENT[:3]:
            assert producer.send("t", value).result(20).timestamp_ms > 0
        deliveries = producer.send_many("t", SENT[3:])
        assert [metadata.offset for metadata in deliveries.result(20)] == [3, 4]
    check_producer(producer, first, last)
    watcher = Watcher()
    with Consumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        interceptors=[Broken(), watcher],
    ) as consumer:
        records = [next(consumer)]
        while len(records) < 5:
            for run in consumer.poll(timeout_ms=5_000).values():
                records += run
        consumer.commit()
    check_records(records)
    assert watcher.values == SENT
    assert watcher.commits == [{PART: OffsetAndMetadata(5, "", records[-1].leader_epoch)}]


async def test_interceptors_of_asyncio_clients(broker: Broker) -> None:
    first, last = Recorder("first"), Recorder("last")
    producer = AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, interceptors=[first, Broken(), last]
    )
    async with producer:
        with pytest.raises(SerializationError):
            await producer.send("t", 1.5)
        for value in SENT[:3]:
            await (await producer.send("t", value))
        await (await producer.send_many("t", SENT[3:]))
    check_producer(producer, first, last)
    watcher = Watcher()
    async with AsyncConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        interceptors=[Broken(), watcher],
    ) as consumer:
        records = [await anext(consumer)]
        while len(records) < 5:
            for run in (await consumer.poll(timeout_ms=5_000)).values():
                records += run
        await consumer.commit()
    check_records(records)
    assert watcher.values == SENT
    assert len(watcher.commits) == 1


def test_what_is_no_interceptor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['Watcher'\]: must be a list of ProducerInterceptor"):
        AsyncProducer(interceptors=[Watcher()])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="must be a list of ConsumerInterceptor"):
        AsyncConsumer(interceptors=Watcher())  # type: ignore[arg-type]
