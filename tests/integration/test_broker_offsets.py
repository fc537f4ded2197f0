"""Goal: ListOffsets, OffsetForLeaderEpoch and DeleteRecords tell and move the right positions.

Method: raw requests against a broker in process, for every version and every special timestamp.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from broker_requests import fetch, list_offset, produce
from broker_wire import Wire, batch

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from onceflow.sdk.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
READ_COMMITTED = 1


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def fill(wire: Wire, *timestamps_ms: int) -> None:
    for timestamp_ms in timestamps_ms:
        result = await produce(wire, "t", batch(b"v", timestamp_ms=timestamp_ms))
        assert result.error_code == 0


async def delete_before(
    wire: Wire, topic: str, offset: int, *, partition: int = 0
) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
    response = await wire.ask(
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsPartition(
                            partition_index=partition, offset=offset
                        )
                    ],
                )
            ],
            timeout_ms=1000,
        ),
        2,
        DeleteRecordsResponse,
    )
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("api_version", range(1, 12))
async def test_ends_of_the_log_in_each_version(wire: Wire, api_version: int) -> None:
    await fill(wire, 10, 20)
    latest = await list_offset(wire, "t", LATEST, api_version=api_version)
    earliest = await list_offset(wire, "t", EARLIEST, api_version=api_version)
    assert (latest.error_code, latest.offset, latest.timestamp) == (0, 2, -1)
    assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 0, -1)
    assert latest.leader_epoch == (0 if api_version >= 4 else -1)


@pytest.mark.parametrize(
    ("timestamp_ms", "offset", "found_ms"),
    [(0, 0, 100), (100, 0, 100), (101, 1, 300), (300, 1, 300), (301, -1, -1)],
)
async def test_first_record_at_or_after_a_time(
    wire: Wire, timestamp_ms: int, offset: int, found_ms: int
) -> None:
    """Trap 33: timestamps need not rise; none found is -1 in every field, not an error."""
    await fill(wire, 100, 300, 200)
    found = await list_offset(wire, "t", timestamp_ms)
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, found_ms)
    assert found.leader_epoch == (0 if offset >= 0 else -1)


async def test_greatest_timestamp(wire: Wire) -> None:
    """Trap 34, KIP-734."""
    empty = await list_offset(wire, "t", MAX_TIMESTAMP)
    assert (empty.error_code, empty.offset, empty.timestamp) == (0, -1, -1)
    await fill(wire, 100, 300, 200)
    found = await list_offset(wire, "t", MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (1, 300)


async def test_local_start_is_the_start_and_there_is_no_other_tier(wire: Wire) -> None:
    await fill(wire, 1, 2)
    await delete_before(wire, "t", 1)
    assert (await list_offset(wire, "t", EARLIEST_LOCAL)).offset == 1
    assert (await list_offset(wire, "t", LATEST_TIERED)).offset == -1


@pytest.mark.parametrize(
    ("timestamp_ms", "api_version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-6, 10), (-7, 11), (-100, 11)],
)
async def test_special_timestamp_of_a_later_version_is_unsupported(
    wire: Wire, timestamp_ms: int, api_version: int
) -> None:
    result = await list_offset(wire, "t", timestamp_ms, api_version=api_version)
    assert result.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_latest_of_a_committed_reader_is_the_last_stable_offset(wire: Wire) -> None:
    """Trap 34."""
    await fill(wire, 1)
    init = await wire.ask(
        InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000),
        5,
        InitProducerIdResponse,
    )
    data = batch(
        b"open",
        timestamp_ms=50,
        producer_id=init.producer_id,
        producer_epoch=init.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    await produce(wire, "t", data, transactional_id="tx", api_version=12)
    assert (await list_offset(wire, "t", LATEST)).offset == 2
    committed = await list_offset(wire, "t", LATEST, isolation_level=READ_COMMITTED)
    assert committed.offset == 1
    hidden = await list_offset(wire, "t", 50, isolation_level=READ_COMMITTED)
    assert hidden.offset == -1
    assert (await list_offset(wire, "t", 50)).offset == 1


async def test_unknown_partition_epoch_and_repeated_partition(wire: Wire) -> None:
    """Trap 31."""
    assert (await list_offset(wire, "nowhere", LATEST)).error_code == 3
    later = await list_offset(wire, "t", LATEST, current_leader_epoch=5)
    assert later.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    response = await wire.ask(
        ListOffsetsRequest(
            topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked, asked])]
        ),
        8,
        ListOffsetsResponse,
    )
    assert [result.error_code for result in response.topics[0].partitions] == [42, 42]


async def test_deleted_records_move_the_start_that_everybody_is_told(wire: Wire) -> None:
    """Trap 35."""
    await fill(wire, 1, 2, 3)
    result = await delete_before(wire, "t", 2)
    assert (result.error_code, result.low_watermark) == (0, 2)
    assert (await list_offset(wire, "t", EARLIEST)).offset == 2
    assert (await fetch(wire, "t", 2)).log_start_offset == 2
    assert (await fetch(wire, "t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    everything = await delete_before(wire, "t", -1)
    assert (everything.error_code, everything.low_watermark) == (0, 3)


@pytest.mark.parametrize("offset", [-2, 4])
async def test_deletion_outside_of_the_log_is_out_of_range(wire: Wire, offset: int) -> None:
    """Trap 35."""
    await fill(wire, 1, 2, 3)
    result = await delete_before(wire, "t", offset)
    assert (result.error_code, result.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_deletion_needs_a_topic_that_deletes(broker: Broker, wire: Wire) -> None:
    """Trap 35."""
    broker.create_topic("c", configs={"cleanup.policy": "compact"})
    assert (await delete_before(wire, "c", 0)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await delete_before(wire, "nowhere", 0)).error_code == 3
    assert (await delete_before(wire, "t", 0, partition=7)).error_code == 3


@pytest.mark.parametrize("api_version", range(2, 5))
async def test_end_of_a_leader_epoch(wire: Wire, api_version: int) -> None:
    """Trap 31, KIP-320."""
    await fill(wire, 1, 2)

    async def ask(leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
        response = await wire.ask(
            OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                        topic="t",
                        partitions=[
                            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                                partition=0,
                                current_leader_epoch=current,
                                leader_epoch=leader_epoch,
                            )
                        ],
                    )
                ]
            ),
            api_version,
            OffsetForLeaderEpochResponse,
        )
        result = response.topics[0].partitions[0]
        return result.error_code, result.leader_epoch, result.end_offset

    assert await ask(0) == (0, 0, 2)
    assert await ask(3) == (0, -1, -1)
    assert await ask(0, current=3) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


async def test_producers_of_a_partition_are_shown(wire: Wire) -> None:
    """KIP-664."""
    data = batch(b"v", producer_id=7, producer_epoch=2, base_sequence=0)
    await produce(wire, "t", data)
    response = await wire.ask(
        DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 5])]
        ),
        0,
        DescribeProducersResponse,
    )
    known, unknown = response.topics[0].partitions
    assert [
        (producer.producer_id, producer.producer_epoch, producer.last_sequence)
        for producer in known.active_producers
    ] == [(7, 2, 0)]
    assert known.active_producers[0].current_txn_start_offset == -1
    assert unknown.error_code == 3
