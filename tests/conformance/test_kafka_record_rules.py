"""Goal: our validation of produced batches gives Apache Kafka's verdict, code by code.

Method: batches made by hand, each breaking one rule, go to a running Apache Kafka in Produce
version 9 and to `validate_batch`. Where the two differ on purpose, the difference is in the table
with its reason. What Kafka stores of batches that it corrects is read back and compared too, and
batches of every codec go through Kafka to librdkafka and back.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import real_kafka
import record_verdicts
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from record_bytes import batch, record

from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import FrameSplitter, decode_response_header, encode_request
from onceflow.sdk.protocol.records import (
    BatchHeader,
    InvalidBatchError,
    decode_batch,
    encode_batch,
    iter_batch_headers,
    set_timestamps,
    validate_batch,
)
from onceflow.sdk.protocol.schema import Request, Response

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

NOW = int(time.time() * 1000)
HOUR_MS = 3_600_000
ONE = record(0)
NONE, INVALID, CORRUPT = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR


def now_batch(records: bytes, count: int, **fields: int) -> bytes:
    times = {"base_timestamp": NOW, "max_timestamp": NOW} | fields
    return batch(records, count, **times)  # type: ignore[arg-type]


def same(data: bytes, code: ErrorCode) -> tuple[bytes, ErrorCode, ErrorCode]:
    return data, code, code


# Case: (records field, what Kafka answers, what we answer).
CASES: dict[str, tuple[bytes, ErrorCode, ErrorCode]] = {
    "good": same(now_batch(ONE, 1), NONE),
    "leader epoch of the client": same(now_batch(ONE, 1, leader_epoch=7), NONE),
    "no timestamp": same(batch(ONE, 1, base_timestamp=-1, max_timestamp=-1), NONE),
    "attributes of a record": same(now_batch(ONE[:1] + b"\x05" + ONE[2:], 1), NONE),
    "header name that is not UTF-8": same(now_batch(record(0, headers=[(b"\xff", b"x")]), 1), NONE),
    "base offset": same(now_batch(ONE, 1, base_offset=5), INVALID),
    "wrong checksum": same(now_batch(ONE, 1, crc=1), CORRUPT),
    "message format 0": same(now_batch(ONE, 1, magic=0), INVALID),
    "message format 1": same(now_batch(ONE, 1, magic=1), INVALID),
    "message format 3": same(now_batch(ONE, 1, magic=3), CORRUPT),
    "count 0": same(now_batch(b"", 0), INVALID),
    "count negative": same(now_batch(ONE, -1), INVALID),
    "last offset delta": same(now_batch(ONE, 1, last_offset_delta=1), INVALID),
    "last offset delta negative": same(now_batch(ONE, 1, last_offset_delta=-1), INVALID),
    "control batch": same(now_batch(ONE, 1, attributes=0x20), INVALID),
    "no sequence": same(now_batch(ONE, 1, producer_id=5, producer_epoch=0), INVALID),
    "a record too few": same(now_batch(ONE, 2), INVALID),
    "a record too many": same(now_batch(ONE + record(1), 1), INVALID),
    "a byte too many": same(now_batch(ONE + b"\x00", 1), INVALID),
    "record too short": same(now_batch(record(0, length=4), 1), INVALID),
    "record too long": same(now_batch(record(0, length=100), 1), INVALID),
    "record of negative length": same(now_batch(record(0, length=-1), 1), INVALID),
    "headers missing": same(now_batch(record(0, header_count=3), 1), INVALID),
    "negative header count": same(now_batch(record(0, header_count=-1), 1), INVALID),
    "header without a name": same(now_batch(record(0, headers=[(None, b"x")]), 1), INVALID),
    "two batches": same(now_batch(ONE, 1) * 2, INVALID),
    "cut batch": same(now_batch(ONE, 1)[:-1], INVALID),
    "cut header": same(now_batch(ONE, 1)[:60], INVALID),
    "nothing": same(b"", INVALID),
    "length below the header": same(now_batch(ONE, 1, batch_length=20), CORRUPT),
    "negative length": same(now_batch(ONE, 1, batch_length=-1), CORRUPT),
    "timestamp of tomorrow": same(
        now_batch(record(0, timestamp_delta=24 * HOUR_MS), 1, max_timestamp=NOW + 24 * HOUR_MS),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    # Kafka stores offsets that contradict each other; a reader would lose its place.
    "gap between plain records": (now_batch(ONE + record(2), 2), NONE, INVALID),
    # Kafka cuts these bytes off; no client sends them.
    "a byte behind the batch": (now_batch(ONE, 1) + b"\x00", NONE, INVALID),
    # Kafka has no codec 5 and fails on the look-up.
    "codec 5": (now_batch(ONE, 1, attributes=5), UNKNOWN, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
}
for _codec in list(Codec)[1:]:
    _hundred = bytes(compress(_codec, b"".join(record(i) for i in range(100))))
    _name = _codec.name.lower()
    CASES |= {
        f"{_name}: good": same(now_batch(_hundred, 100, attributes=_codec), NONE),
        f"{_name}: a record too many": same(
            now_batch(bytes(compress(_codec, ONE + record(1))), 1, attributes=_codec), INVALID
        ),
        # Where a codec fails, Kafka answers that it failed; we say that the batch is at fault.
        f"{_name}: gap": (
            now_batch(bytes(compress(_codec, ONE + record(2))), 2, attributes=_codec),
            UNKNOWN,
            INVALID,
        ),
        f"{_name}: garbage": (
            now_batch(b"garbage that no codec knows", 1, attributes=_codec),
            UNKNOWN,
            INVALID,
        ),
        f"{_name}: cut": (now_batch(_hundred[:-5], 100, attributes=_codec), UNKNOWN, INVALID),
    }


class Wire:
    """One connection; requests are answered in order, and a closed one is opened anew."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)

    def ask(self, request: Request, version: int) -> Response:
        parts = encode_request(request, api_version=version, correlation_id=1, client_id="rules")
        self._socket.sendall(b"".join(parts))
        splitter = FrameSplitter(1 << 24)
        frames: list[object] = []
        while not frames:
            data = self._socket.recv(1 << 16)
            assert data, "Kafka closed the connection"
            frames += splitter.feed(data)
        frame = bytes(frames[0])  # type: ignore[call-overload]
        _, end = decode_response_header(frame, request.api_key, version)
        return request.response_type.decode(frame, version, end)[0]

    def produce(self, topic: str, records: bytes) -> ProduceResponse.PartitionProduceResponse:
        data = ProduceRequest.PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        response = self.ask(request, 9)
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int) -> bytes:
        partition = FetchRequest.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        response = self.ask(request, 11)
        assert isinstance(response, FetchResponse)
        records = response.responses[0].partitions[0].records
        assert records is not None
        return bytes(records)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def wire(apache_kafka: real_kafka.ApacheKafka) -> Iterator[Wire]:
    connection = Wire(apache_kafka.bootstrap_servers)
    topics = []
    for name, policy in (("rules-plain", "delete"), ("rules-compact", "compact")):
        config = CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value=policy)
        topics.append(
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, configs=[config]
            )
        )
    connection.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
    good = now_batch(record(0, key=b"k"), 1)
    deadline = time.monotonic() + 30
    for name in ("rules-plain", "rules-compact"):
        while connection.produce(name, good).error_code != NONE:
            assert time.monotonic() < deadline, f"{name} has no leader"
    yield connection
    connection.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_librdkafka_reads_from_kafka_what_we_encoded(
    codec: Codec, wire: Wire, apache_kafka: real_kafka.ApacheKafka
) -> None:
    items = [
        (NOW + i, b"key %d" % i if i % 2 else None, b"value " * 40, [("h", b"%d" % i), ("n", None)])
        for i in range(40)
    ]
    answer = wire.produce("rules-plain", encode_batch(items, codec=codec))
    assert answer.error_code == NONE
    consumer = Consumer({"bootstrap.servers": apache_kafka.bootstrap_servers, "group.id": "r"})
    consumer.assign([KafkaPartition("rules-plain", 0, answer.base_offset)])
    messages = consumer.consume(len(items), timeout=30)
    consumer.close()
    found = [(m.timestamp()[1], m.key(), m.value(), m.headers()) for m in messages]
    assert found == items


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_from_kafka_what_librdkafka_encoded(
    codec: Codec, wire: Wire, apache_kafka: real_kafka.ApacheKafka
) -> None:
    settings = {
        "bootstrap.servers": apache_kafka.bootstrap_servers,
        "compression.type": codec.name.lower(),
        "linger.ms": 1000,
    }
    producer = Producer(settings)
    placed: list[int] = []
    for i in range(40):
        producer.produce(
            "rules-plain",
            b"value " * 40,
            b"key %d" % i if i % 2 else None,
            partition=0,
            timestamp=NOW + i,
            headers=[("h", b"%d" % i), ("n", None)],
            on_delivery=lambda _, message: placed.append(message.offset()),
        )
    assert producer.flush(30) == 0
    data = wire.fetch("rules-plain", placed[0])
    position, header = next(iter_batch_headers(data))
    assert header.codec == codec
    records = decode_batch(data, position, header=header)
    assert [record.offset for record in records] == placed
    assert [(r.timestamp, r.key, r.value, r.headers) for r in records] == [
        (NOW + i, b"key %d" % i if i % 2 else None, b"value " * 40, [("h", b"%d" % i), ("n", None)])
        for i in range(40)
    ]


def our_verdict(data: bytes, *, require_keys: bool = False) -> ErrorCode:
    try:
        validate_batch(data, require_keys=require_keys, timestamp_range=(0, NOW + HOUR_MS))
    except InvalidBatchError as error:
        return error.code
    return NONE


@pytest.mark.parametrize("case", CASES)
def test_kafka_and_we_judge_a_batch_as_the_table_says(case: str, wire: Wire) -> None:
    data, kafkas, ours = CASES[case]
    assert ErrorCode(wire.produce("rules-plain", data).error_code) is kafkas
    assert our_verdict(data) is ours


def test_keyless_records_are_refused_one_by_one_for_a_compacted_topic(wire: Wire) -> None:
    data = now_batch(record(0, key=b"k") + record(1) + record(2), 3)
    answer = wire.produce("rules-compact", data)
    with pytest.raises(InvalidBatchError) as caught:
        validate_batch(data, require_keys=True)
    assert caught.value.code == answer.error_code == INVALID
    theirs = [error.batch_index for error in answer.record_errors]
    assert [issue.batch_index for issue in caught.value.record_issues] == theirs == [1, 2]


@pytest.mark.parametrize(
    ("attributes", "max_timestamp"),
    [(0, NOW + 99), (8, NOW), (8, NOW + 99)],
    ids=["wrong largest timestamp", "the client says LogAppendTime", "both"],
)
def test_what_kafka_corrects_before_it_stores_we_correct_alike(
    attributes: int, max_timestamp: int, wire: Wire
) -> None:
    data = now_batch(ONE, 1, attributes=attributes, max_timestamp=max_timestamp)
    answer = wire.produce("rules-plain", data)
    assert answer.error_code == NONE
    stored = fetched_header(wire, answer.base_offset)
    ours = bytearray(data)
    set_timestamps(ours, TimestampType.CREATE_TIME, validate_batch(data).max_timestamp)
    expected = next(iter_batch_headers(ours))[1]
    for name in ("attributes", "base_timestamp", "max_timestamp", "crc"):
        assert getattr(stored, name) == getattr(expected, name)


def fetched_header(wire: Wire, offset: int) -> BatchHeader:
    records = wire.fetch("rules-plain", offset)
    return next(h for _, h in iter_batch_headers(records) if h.base_offset == offset)


@pytest.mark.parametrize("case", record_verdicts.cases(NOW))
def test_kafka_answers_what_our_broker_is_tested_for(case: str, wire: Wire) -> None:
    data, expected = record_verdicts.cases(NOW)[case]
    assert ErrorCode(wire.produce("rules-plain", data).error_code) is expected
