"""A broker whose folder has something of everything, for tests that damage it."""

from __future__ import annotations

from broker_requests import produce_request
from broker_state import SocketlessBroker
from broker_wire import batch, values_of

from onceflow.broker_lite.log import MemoryStorage, PartitionLog
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

RECORDS = 30
"""Records of each of the two transactions."""


def commit(broker: SocketlessBroker, offset: int) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    broker.ask(
        OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        ),
        8,
    )


def committed(broker: SocketlessBroker) -> int:
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    response = broker.ask(OffsetFetchRequest(groups=[group]), 8)
    assert isinstance(response, OffsetFetchResponse)
    return response.groups[0].topics[0].partitions[0].committed_offset


def new_identity(broker: SocketlessBroker, transactional_id: str | None) -> tuple[int, int]:
    response = broker.ask(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4
    )
    assert isinstance(response, InitProducerIdResponse)
    return response.producer_id, response.producer_epoch


def send(broker: SocketlessBroker, value: bytes, identity: tuple[int, int], sequence: int) -> None:
    records = batch(
        value,
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=sequence,
        transactional=True,
        timestamp_ms=broker.now_ms,
    )
    response = broker.ask(produce_request("t", records, transactional_id="x"), 12)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0


def filled() -> SocketlessBroker:
    """A broker with one transaction of many records, half of them in an aborted one before."""
    broker = SocketlessBroker(storage=MemoryStorage())
    config = CreateTopicsRequest.CreatableTopicConfig(name="index.interval.bytes", value="100")
    broker.ask(
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name="t", num_partitions=1, replication_factor=1, assignments=[],
                    configs=[config],
                )
            ]
        ),
        7,
    )  # fmt: skip
    for committing in (False, True):
        identity = new_identity(broker, "x")
        for number in range(RECORDS):
            send(broker, b"%d %d" % (committing, number), identity, number)
            if number % 10 == 9:
                log(broker).roll(broker.now_ms)
        ended = broker.ask(
            EndTxnRequest(
                transactional_id="x",
                producer_id=identity[0],
                producer_epoch=identity[1],
                committed=committing,
            ),
            4,
        )
        assert isinstance(ended, EndTxnResponse)
        assert ended.error_code == 0
    idempotent = new_identity(broker, None)
    records = batch(b"last", producer_id=idempotent[0], producer_epoch=0, base_sequence=0,
                    timestamp_ms=broker.now_ms)  # fmt: skip
    broker.ask(produce_request("t", records), 9)
    commit(broker, 17)
    broker.state.log_manager.checkpoint(broker.now_ms)
    return broker


def log(broker: SocketlessBroker) -> PartitionLog:
    found = broker.state.topics.partition("t", 0)
    assert found is not None
    return found


def all_values(broker: SocketlessBroker) -> list[bytes | None]:
    partition = log(broker)
    offset, values = partition.log_start_offset, []
    while offset < partition.log_end_offset:
        values += values_of(partition.read(offset, 1).records)
        offset += 1
    return values
