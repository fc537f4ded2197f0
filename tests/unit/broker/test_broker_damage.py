"""Goal: a damaged file of the data folder is rebuilt or named; it never costs records in silence.

Method: a folder with several segments, producers, a transaction, settings and committed offsets is
closed in order or not; then one file is emptied, cut, garbled or removed, and a broker is started.
It must give all records and offsets back, or refuse with the name of the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from broker_requests import produce_request
from broker_state import SocketlessBroker
from broker_wire import batch, values_of

from onceflow.broker_lite.log import DataFolderError, MemoryStorage, PartitionLog
from onceflow.sdk.model import IsolationLevel
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
NAMED = {"meta.properties", "topic-configs.json", "producer-id-block"}
"""What cannot be rebuilt."""


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


DAMAGES: dict[str, Callable[[bytearray], object]] = {
    "emptied": lambda data: data.clear(),
    "cut": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "garbled": lambda data: data.__setitem__(slice(None), b"\xff" * len(data)),
    "zeroed": lambda data: data.__setitem__(slice(None), bytes(len(data))),
    "flipped": lambda data: data.__setitem__(len(data) // 2, data[len(data) // 2] ^ 0xFF),
}


def is_data(name: str) -> bool:
    return name.endswith(".log")


@pytest.fixture(scope="module")
def folders() -> dict[bool, MemoryStorage]:
    """What a stop in order and a kill leave."""
    result = {}
    for clean in (True, False):
        broker = filled()
        storage = broker.state.log_manager._storage
        assert isinstance(storage, MemoryStorage)
        if clean:
            broker.close()
        result[clean] = storage
    return result


def start(storage: MemoryStorage, name: str) -> SocketlessBroker | None:
    """A broker on the folder; None when it refuses, which it may do for a few files only."""
    if name not in NAMED:
        return SocketlessBroker(storage=storage)
    try:
        return SocketlessBroker(storage=storage)
    except DataFolderError as error:
        text = str(error)
    assert name in text
    assert not storage._locked, "a start that failed gives the folder back"
    return None


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [*DAMAGES, "removed"])
def test_one_damaged_file_costs_no_record_in_silence(
    folders: dict[bool, MemoryStorage], clean: bool, damage: str
) -> None:
    original = folders[clean]
    expected = [b"%d %d" % (kind, number) for kind in (0, 1) for number in range(RECORDS)]
    expected.append(b"last")
    tried = 0
    for directory, files in original.content.items():
        for name, data in files.items():
            if is_data(name) or (damage != "removed" and not data):
                continue
            storage = MemoryStorage()
            storage.content = copy.deepcopy(original.content)
            target = storage.content[directory]
            if damage == "removed":
                del target[name]
            else:
                DAMAGES[damage](target[name])
            where = f"{directory}/{name} {damage}"
            tried += 1
            broker = start(storage, name)
            if broker is None:
                continue
            assert all_values(broker) == expected, where
            assert committed(broker) == 17, where
            assert log(broker).last_stable_offset == log(broker).high_watermark, where
            used = {producer.producer_id for producer in log(broker).producers()}
            assert new_identity(broker, None)[0] not in used, where
            read = log(broker).read(0, 100, isolation_level=IsolationLevel.READ_COMMITTED)
            assert [first for _, first in read.aborted_transactions or ()] == [0], where
    assert tried > 10
