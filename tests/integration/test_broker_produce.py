"""Goal: Produce acknowledges exactly what was stored, and says per partition what was not and why.

Method: raw requests against a broker in process; what was stored is read back by Fetch. Traps are
those of naive brokers: see the docstrings.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import AsyncIterator

import pytest
from broker_requests import fetch, produce, produce_request, topic_metadata
from broker_wire import Wire, batch, values_of

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

NO_SUCH_ID = "00000000-0000-0000-0000-00000000ffff"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def producer_id(wire: Wire, transactional_id: str | None = None) -> tuple[int, int]:
    response = await wire.ask(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000),
        4,
        InitProducerIdResponse,
    )
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


@pytest.mark.parametrize("api_version", range(3, 13))
async def test_each_version_by_name_stores_and_tells_the_offset(
    wire: Wire, api_version: int
) -> None:
    first = await produce(wire, "t", batch(b"a", b"b"), api_version=api_version)
    second = await produce(wire, "t", batch(b"c"), api_version=api_version)
    assert (first.error_code, first.base_offset, first.log_append_time_ms) == (0, 0, -1)
    assert (second.error_code, second.base_offset) == (0, 2)
    assert values_of((await fetch(wire, "t")).records) == [b"a", b"b", b"c"]


async def test_version_13_names_the_topic_by_id(wire: Wire) -> None:
    topic = await topic_metadata(wire, "t")
    result = await produce(wire, topic.topic_id, batch(b"a"))
    assert (result.error_code, result.base_offset) == (0, 0)


async def test_unknown_topic_partition_and_id_are_errors_of_that_partition(wire: Wire) -> None:
    """Trap 15: never of the whole request."""
    assert (await produce(wire, "nowhere", batch(b"a"))).error_code == 3
    assert (await produce(wire, uuid.UUID(NO_SUCH_ID), batch(b"a"))).error_code == 100
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=batch(b"x"))
                    for index in (0, 7, 1, -1)
                ],
            )
        ],
    )
    response = await wire.ask(request, 9, ProduceResponse)
    assert [
        (result.index, result.error_code, result.base_offset)
        for result in response.responses[0].partition_responses
    ] == [(0, 0, 0), (7, 3, -1), (1, 0, 0), (-1, 3, -1)]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(None, ErrorCode.INVALID_RECORD, id="null, trap 9"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="empty, trap 9"),
        pytest.param(b"\0" * 60, ErrorCode.CORRUPT_MESSAGE, id="no header"),
        pytest.param(batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD, id="two batches, trap 8"),
    ],
)
async def test_records_that_are_no_batch_are_refused(
    wire: Wire, records: bytes | None, code: ErrorCode
) -> None:
    """Traps 8 and 9."""
    result = await produce(wire, "t", records)
    assert (result.error_code, result.base_offset) == (code, -1)
    assert (await fetch(wire, "t")).high_watermark == 0


async def test_flipped_bit_is_a_corrupt_message(wire: Wire) -> None:
    """Trap 8."""
    data = bytearray(batch(b"some value"))
    data[-3] ^= 1
    assert (await produce(wire, "t", bytes(data))).error_code == ErrorCode.CORRUPT_MESSAGE


async def test_zstd_before_version_7_is_refused(wire: Wire) -> None:
    """Trap 8, KIP-110."""
    data = batch(b"a" * 1000, codec=4)
    refused = await produce(wire, "t", data, api_version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    # Before anything is said of how many batches there are; so Apache Kafka (seed 6113).
    twice = await produce(wire, "t", data * 2, api_version=6)
    assert twice.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await produce(wire, "t", data, api_version=7)).error_code == 0


async def test_batch_over_the_topics_limit_is_too_large(broker: Broker, wire: Wire) -> None:
    """Trap 10."""
    broker.create_topic("small", configs={"max.message.bytes": "200"})
    assert (await produce(wire, "small", batch(b"x" * 300))).error_code == 10
    assert (await produce(wire, "small", batch(b"x" * 30))).error_code == 0


async def test_record_that_unpacks_to_more_than_its_topic_takes(broker: Broker, wire: Wire) -> None:
    broker.create_topic("u", configs={"max.decompressed.message.bytes": "100"})
    packed = batch(b"x" * 300, codec=1)
    assert (await produce(wire, "u", packed)).error_code == ErrorCode.INVALID_RECORD
    assert (await produce(wire, "u", batch(b"x" * 300))).error_code == 0
    assert (await produce(wire, "u", batch(b"x" * 50, codec=1))).error_code == 0


async def test_record_without_key_on_a_compacted_topic_is_named(broker: Broker, wire: Wire) -> None:
    """Trap 11: the whole batch is refused, with the records at fault from version 8 on."""
    broker.create_topic("c", configs={"cleanup.policy": "compact"})
    refused = await produce(wire, "c", batch(b"a", b"b"))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [0, 1]
    assert refused.error_message
    older = await produce(wire, "c", batch(b"a"), api_version=7)
    assert older.error_code == ErrorCode.INVALID_RECORD
    assert (await produce(wire, "c", batch(b"a", key=b"k"))).error_code == 0


async def test_log_append_time_is_set_and_told(broker: Broker, wire: Wire) -> None:
    """Trap 12."""
    broker.create_topic("l", configs={"message.timestamp.type": "LogAppendTime"})
    result = await produce(wire, "l", batch(b"a", timestamp_ms=1))
    assert result.log_append_time_ms > 1_600_000_000_000
    records = bytes((await fetch(wire, "l")).records or b"")
    assert struct.unpack_from(">q", records, 35)[0] == result.log_append_time_ms
    assert values_of(records) == [b"a"]  # Checks the checksum, too.


async def test_leader_epoch_and_base_offset_of_the_client_are_overwritten(wire: Wire) -> None:
    """Trap 13: neither validated nor kept."""
    data = bytearray(batch(b"a"))
    struct.pack_into(">i", data, 12, 77)
    await produce(wire, "t", bytes(data))
    result = await produce(wire, "t", bytes(data))
    assert (result.error_code, result.base_offset) == (0, 1)
    records = bytes((await fetch(wire, "t", 1)).records or b"")
    assert struct.unpack_from(">qii", records) == (1, len(records) - 12, 0)


async def test_acks_0_gets_no_answer_and_acks_other_is_refused(wire: Wire) -> None:
    """Trap 14."""
    wire.send(produce_request("t", batch(b"silent"), acks=0), 9)
    wire._sent.clear()
    assert (await produce(wire, "t", batch(b"a"), acks=1)).base_offset == 1
    assert (await produce(wire, "t", batch(b"a"), acks=2)).error_code == 21
    assert (await produce(wire, "t", batch(b"a"), acks=-2)).error_code == 21


async def test_acks_0_that_failed_closes_the_connection(wire: Wire) -> None:
    """Trap 14: so that the client looks at the metadata again."""
    wire.send(produce_request("nowhere", batch(b"a"), acks=0), 9)
    assert await wire.closed()


async def test_min_insync_replicas_asks_for_no_more_than_the_topics_replicas(
    broker: Broker, wire: Wire
) -> None:
    """Trap 14: Kafka compares with the smaller of the setting and the replication factor."""
    broker.create_topic("r", configs={"min.insync.replicas": "2"})
    assert (await produce(wire, "r", batch(b"a"))).error_code == 0
    assert (await produce(wire, "r", batch(b"b"), acks=1)).error_code == 0


async def test_retried_batch_gets_its_first_offset_again(wire: Wire) -> None:
    """Traps 1 and 2."""
    pid, epoch = await producer_id(wire)

    def numbered(sequence: int) -> bytes:
        return batch(b"v", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)

    offsets = [(await produce(wire, "t", numbered(n))).base_offset for n in range(6)]
    assert offsets == [0, 1, 2, 3, 4, 5]
    again = await produce(wire, "t", numbered(1))
    assert (again.error_code, again.base_offset) == (0, 1)
    too_old = await produce(wire, "t", numbered(0))
    assert too_old.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    gap = await produce(wire, "t", numbered(9))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await fetch(wire, "t")).high_watermark == 6


async def test_older_epoch_is_invalid_on_produce(wire: Wire) -> None:
    """Trap 5: INVALID_PRODUCER_EPOCH, never PRODUCER_FENCED."""
    newer = batch(b"v", producer_id=5, producer_epoch=3, base_sequence=0)
    older = batch(b"v", producer_id=5, producer_epoch=2, base_sequence=0)
    assert (await produce(wire, "t", newer)).error_code == 0
    assert (await produce(wire, "t", older)).error_code == 47


async def test_internal_topics_are_not_written_by_clients(broker: Broker, wire: Wire) -> None:
    broker.call(lambda state, now_ms: state.topics.ensure_internal("__consumer_offsets", now_ms))
    assert (await produce(wire, "__consumer_offsets", batch(b"a", key=b"k"))).error_code == 17


async def test_transactional_batch_needs_the_transactional_id(wire: Wire) -> None:
    """Trap 46: otherwise nobody could tell whether the transaction holds the partition."""
    pid, epoch = await producer_id(wire, "tx")
    data = batch(b"v", producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
    assert (await produce(wire, "t", data)).error_code == 53
    assert (await fetch(wire, "t")).high_watermark == 0


@pytest.mark.parametrize(
    ("api_version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE), (12, ErrorCode.NONE)],
)
async def test_partition_outside_of_the_transaction_is_refused_or_added(
    wire: Wire, api_version: int, code: ErrorCode
) -> None:
    """Trap 46, KIP-890: refused by verification, from version 12 on added on the way."""
    pid, epoch = await producer_id(wire, "tx")
    data = batch(b"v", producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
    result = await produce(wire, "t", data, transactional_id="tx", api_version=api_version)
    assert result.error_code == code
    assert (await fetch(wire, "t")).high_watermark == (1 if code == 0 else 0)


async def test_transactional_batches_of_two_producers_in_one_request_are_refused(
    wire: Wire,
) -> None:
    """Trap 7."""
    request = ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=index,
                        records=batch(
                            b"v",
                            producer_id=10 + index,
                            producer_epoch=0,
                            base_sequence=0,
                            transactional=True,
                        ),
                    )
                    for index in (0, 1)
                ],
            )
        ],
    )
    response = await wire.ask(request, 9, ProduceResponse)
    assert [result.error_code for result in response.responses[0].partition_responses] == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ] * 2


async def test_partition_named_twice_cannot_smuggle_a_transactional_batch_in(
    wire: Wire,
) -> None:
    """Trap 15: each entry is judged by its own batch."""
    hidden = batch(b"hidden", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=0, records=hidden),
                    ProduceRequest.PartitionProduceData(index=0, records=batch(b"open")),
                ],
            )
        ],
    )
    response = await wire.ask(request, 9, ProduceResponse)
    assert [result.error_code for result in response.responses[0].partition_responses] == [53, 0]
    assert values_of((await fetch(wire, "t")).records) == [b"open"]
