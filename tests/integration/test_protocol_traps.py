"""Goal: traps of the protocol that no other file has a natural place for (docs/protocol-traps.md).

Method: raw requests, and for headers raw bytes, against a broker in process.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
from broker_requests import FETCH_BY_NAME, fetch_request, produce
from broker_wire import Wire, batch, values_of

from onceflow.broker_lite import Broker
from onceflow.broker_lite.log import MemoryStorage
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse

LEFT_OUT_ON_PURPOSE = {38, 39, 40, 41, 71, 72, *range(76, 80), *range(83, 93)}
OFFSET_OUT_OF_RANGE = 1


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as wire:
        yield wire


@pytest.mark.parametrize("partition", [0, 7])
async def test_nobody_is_named_as_another_leader_where_there_is_none_trap_30(
    wire: Wire, partition: int
) -> None:
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch(b"v"))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    produced = await wire.ask(request, 10, ProduceResponse)
    assert produced.node_endpoints == []
    assert produced.responses[0].partition_responses[0].current_leader is None
    asked = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=1000
    )
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[asked])]
    found = await wire.ask(
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 12, FetchResponse
    )
    assert found.node_endpoints == []
    assert found.responses[0].partitions[0].current_leader is None


async def test_what_is_left_out_is_not_advertised_trap_59(wire: Wire) -> None:
    """Share groups (trap 59) above all: a client that sees their keys would use them."""
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = await wire.ask(request, 4, ApiVersionsResponse)
    served = {entry.api_key for entry in answer.api_keys}
    assert not served & LEFT_OUT_ON_PURPOSE
    assert {0, 1, 3, 18, 22} <= served
    assert "share.version" not in {feature.name for feature in answer.supported_features}


@pytest.mark.parametrize(
    ("key", "version", "client_tail", "body", "answer_tail"),
    [
        # Metadata 8 is not flexible: no tag section anywhere.
        (3, 8, b"", struct.pack(">ibbb", 0, 0, 0, 0), b""),
        # Metadata 9 is: request header 2 keeps the old string and adds tags, response header 1.
        (3, 9, b"\0", b"\x01\0\0\0\0", b"\0"),
        # ApiVersions 3 is flexible too, and its answer still has response header 0.
        (18, 3, b"\0", b"\x02a\x02b\0", b""),
    ],
    ids=["form 1", "form 2", "ApiVersions"],
)
async def test_header_forms_trap_63(
    wire: Wire, key: int, version: int, client_tail: bytes, body: bytes, answer_tail: bytes
) -> None:
    for correlation_id in (0, 77):
        head = struct.pack(">hhih", key, version, correlation_id, 2) + b"me" + client_tail
        frame = head + body
        wire.send_bytes(struct.pack(">i", len(frame)) + frame)
        answer = await wire.receive_frame()
        assert answer[:4] == struct.pack(">i", correlation_id)
        assert answer[4:].startswith(answer_tail)
        rest = answer[4 + len(answer_tail) :]
        if key == 3:
            assert rest[:4] == bytes(4)  # The throttle time comes first.
        else:
            assert rest[:2] == bytes(2)  # The error code does.


async def test_a_reader_at_the_end_is_not_told_out_of_range_after_a_restart_trap_76() -> None:
    storage = MemoryStorage()
    async with Broker(storage=storage) as broker:
        broker.create_topic("t")
        async with Wire(broker) as wire:
            for value in (b"a", b"b", b"c"):
                assert (await produce(wire, "t", batch(value))).error_code == 0
    async with Broker(storage=storage) as broker, Wire(broker) as wire:
        request = fetch_request("t", 3, max_wait_ms=0)
        answer = await wire.ask(request, FETCH_BY_NAME, FetchResponse)
        end = answer.responses[0].partitions[0]
        assert (end.error_code, end.high_watermark, values_of(end.records)) == (0, 3, [])
        request = fetch_request("t", 4, max_wait_ms=0)
        answer = await wire.ask(request, FETCH_BY_NAME, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "offset", "code", "diverging"),
    [(0, 2, 0, None), (0, 9, 0, (0, 2)), (5, 1, OFFSET_OUT_OF_RANGE, None)],
    ids=["the same log", "a longer one", "an epoch that is not known"],
)
async def test_who_has_another_log_is_told_where_it_parts_trap_77(
    wire: Wire, epoch: int, offset: int, code: int, diverging: tuple[int, int] | None
) -> None:
    """Also beyond the end, where OFFSET_OUT_OF_RANGE would make a client begin anew."""
    assert (await produce(wire, "t", batch(b"a", b"b"))).error_code == 0
    asked = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1000, last_fetched_epoch=epoch
    )
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[asked])]
    answer = await wire.ask(
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 12, FetchResponse
    )
    found = answer.responses[0].partitions[0]
    told = found.diverging_epoch
    assert found.error_code == code
    assert (told and (told.epoch, told.end_offset)) == diverging
