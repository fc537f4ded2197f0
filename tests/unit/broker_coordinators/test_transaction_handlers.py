"""Handlers of transactions, in every version: error names, batches, what does not exist.

Method: requests go through their bytes to a broker without sockets, answers come back the same way.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import pytest
from broker_requests import produce_request
from broker_state import SocketlessBroker
from broker_wire import batch

from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.testing.faulty_storage import with_faults
from onceflow.broker_lite.topics import TRANSACTION_TOPIC
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Identity = tuple[int, int]


RETRIED_WITHIN_MS = 60_000
"""A marker or a completion that failed is written by then, once the disk takes it."""


@pytest.fixture
def broker() -> Iterator[SocketlessBroker]:
    broker = SocketlessBroker()
    create_topic(broker)
    yield broker
    broker.close()


def create_topic(broker: SocketlessBroker) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name="out", num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)


def ask(
    broker: SocketlessBroker, request: Request, version: int, response_type: type[ResponseT]
) -> ResponseT:
    response = broker.ask(request, version)
    assert isinstance(response, response_type)
    return response


def init(
    broker: SocketlessBroker, version: int = 5, identity: Identity = (-1, -1)
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id="t",
        transaction_timeout_ms=60_000,
        producer_id=identity[0],
        producer_epoch=identity[1],
    )
    return ask(broker, request, version, InitProducerIdResponse)


def begin(broker: SocketlessBroker) -> Identity:
    response = init(broker)
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def add(
    broker: SocketlessBroker, identity: Identity, version: int, *topics: Topic
) -> dict[tuple[str, int], int]:
    wanted = list(topics) or [Topic(name="out", partitions=[0, 1])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=wanted,
    )
    response = ask(broker, request, version, AddPartitionsToTxnResponse)
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def end(
    broker: SocketlessBroker, identity: Identity, version: int, committed: bool = True
) -> EndTxnResponse:
    request = EndTxnRequest(
        transactional_id="t",
        producer_id=identity[0],
        producer_epoch=identity[1],
        committed=committed,
    )
    return ask(broker, request, version, EndTxnResponse)


def produce(broker: SocketlessBroker, identity: Identity, version: int, sequence: int = 0) -> int:
    records = batch(
        b"x",
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=sequence,
        transactional=True,
    )
    request = produce_request("out", records, transactional_id="t")
    response = ask(broker, request, version, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


class TestErrorNames:
    """PRODUCER_FENCED for those who know it, INVALID_PRODUCER_EPOCH for the others (trap 41)."""

    @pytest.mark.parametrize("version", range(6))
    def test_init(self, broker: SocketlessBroker, version: int) -> None:
        """Trap 41."""
        old = begin(broker)
        assert init(broker, version).error_code == 0
        if version >= 3:
            begin(broker)
            known = version >= 4
            expected = ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
            assert init(broker, version, old).error_code == expected

    @pytest.mark.parametrize("version", range(4))
    def test_add_partitions(self, broker: SocketlessBroker, version: int) -> None:
        old = begin(broker)
        begin(broker)
        known = version >= 2
        expected = ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
        assert set(add(broker, old, version).values()) == {expected}

    @pytest.mark.parametrize("version", range(5))
    def test_add_offsets(self, broker: SocketlessBroker, version: int) -> None:
        old = begin(broker)
        begin(broker)
        request = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=old[0], producer_epoch=old[1], group_id="g"
        )
        known = version >= 2
        expected = ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
        assert ask(broker, request, version, AddOffsetsToTxnResponse).error_code == expected

    @pytest.mark.parametrize("version", range(6))
    def test_end(self, broker: SocketlessBroker, version: int) -> None:
        old = begin(broker)
        begin(broker)
        begin(broker)
        known = version >= 2
        expected = ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
        assert end(broker, old, version).error_code == expected

    @pytest.mark.parametrize("version", [3, 9, 11, 12])
    def test_produce(self, broker: SocketlessBroker, version: int) -> None:
        old = begin(broker)
        begin(broker)
        assert produce(broker, old, version) == ErrorCode.INVALID_PRODUCER_EPOCH


class TestAddPartitions:
    @pytest.mark.parametrize("version", range(4))
    def test_single_form(self, broker: SocketlessBroker, version: int) -> None:
        assert set(add(broker, begin(broker), version).values()) == {0}

    def test_one_that_is_not_there_stops_the_others_trap_48(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        codes = add(
            broker,
            identity,
            3,
            Topic(name="out", partitions=[0, 7]),
            Topic(name="none", partitions=[0]),
        )
        assert codes == {
            ("out", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("out", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert produce(broker, identity, 9) == ErrorCode.INVALID_TXN_STATE

    @pytest.mark.parametrize("version", [4, 5])
    def test_batched_form(self, broker: SocketlessBroker, version: int) -> None:
        producer_id, epoch = begin(broker)
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        topics = [Topic(name="out", partitions=[0])]

        def codes(transactional_id: str, verify_only: bool) -> list[int]:
            request = AddPartitionsToTxnRequest(
                transactions=[
                    transaction(
                        transactional_id=name,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        verify_only=verify_only,
                        topics=topics,
                    )
                    for name in (transactional_id, "unknown")
                ]
            )
            response = ask(broker, request, version, AddPartitionsToTxnResponse)
            return [
                result.topic_results[0].results_by_partition[0].partition_error_code
                for result in response.results_by_transaction
            ]

        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert codes("t", True) == [ErrorCode.TRANSACTION_ABORTABLE, mapping]
        assert codes("t", False) == [ErrorCode.NONE, mapping]
        assert codes("t", True) == [ErrorCode.NONE, mapping]


class TestProduceInTransaction:
    @pytest.mark.parametrize(
        ("version", "code"),
        [
            (3, ErrorCode.INVALID_TXN_STATE),
            (10, ErrorCode.INVALID_TXN_STATE),
            (11, ErrorCode.TRANSACTION_ABORTABLE),
            (12, ErrorCode.NONE),
        ],
    )
    def test_partition_that_was_not_added_trap_46(
        self, broker: SocketlessBroker, version: int, code: ErrorCode
    ) -> None:
        assert produce(broker, begin(broker), version) == code

    def test_late_produce_leaves_no_hanging_transaction_trap_46(
        self, broker: SocketlessBroker
    ) -> None:
        identity = begin(broker)
        add(broker, identity, 3)
        assert produce(broker, identity, 11) == 0
        assert end(broker, identity, 3).error_code == 0
        assert produce(broker, identity, 11, 1) == ErrorCode.TRANSACTION_ABORTABLE
        log = broker.state.topics.partition("out", 0)
        assert log is not None
        assert log.last_stable_offset == log.high_watermark == 2

    def test_records_without_a_transactional_id_are_refused(self, broker: SocketlessBroker) -> None:
        producer_id, epoch = begin(broker)
        records = batch(
            b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=0,
            transactional=True,
        )  # fmt: skip
        response = ask(broker, produce_request("out", records), 9, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class TestEnd:
    def test_version_5_gives_the_next_identity(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        assert produce(broker, identity, 12) == 0
        response = end(broker, identity, 5)
        assert (response.producer_id, response.producer_epoch) == (identity[0], identity[1] + 1)
        assert produce(broker, (identity[0], identity[1] + 1), 12) == 0

    @pytest.mark.parametrize("version", range(5))
    def test_older_versions_keep_it(self, broker: SocketlessBroker, version: int) -> None:
        identity = begin(broker)
        assert end(broker, identity, version).error_code == ErrorCode.INVALID_TXN_STATE  # FC-08
        add(broker, identity, 3)
        assert end(broker, identity, version).error_code == 0
        add(broker, identity, 3)
        assert end(broker, identity, version, committed=False).error_code == 0


@pytest.mark.parametrize("durability", ["kafka", "group", "always"])
@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("failing", ["out", TRANSACTION_TOPIC])
def test_a_commit_that_is_not_through_is_asked_for_again(
    durability: str, version: int, failing: str
) -> None:
    """What is not done is not answered as done, whatever the durability; it is done later."""
    refused: list[str] = []
    writes: Counter[str | None] = Counter()

    def check(topic: str | None, partition: int | None) -> None:
        writes[topic] += 1
        # The coordinator's topic takes the decision, and not the completion after the marker.
        if topic in refused and (topic == "out" or writes["out"]):
            raise OSError(errno.ENOSPC, "no space left on device")

    storage = with_faults(MemoryStorage(), check)
    broker = SocketlessBroker({"onceflow.durability": durability}, storage)
    create_topic(broker)
    identity = begin(broker)
    add(broker, identity, 3)
    assert produce(broker, identity, 11 if version == 3 else 12) == 0
    writes.clear()
    refused.append(failing)
    assert end(broker, identity, version).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    refused.clear()
    broker.advance(RETRIED_WITHIN_MS)
    assert end(broker, identity, version).error_code == ErrorCode.NONE
    log = broker.state.topics.partition("out", 0)
    assert log is not None
    assert log.last_stable_offset == log.high_watermark == 2
    broker.close()


class TestTxnOffsetCommit:
    def commit(
        self,
        broker: SocketlessBroker,
        identity: Identity,
        version: int,
        *,
        topic: str = "out",
        generation_id: int = -1,
        group_id: str = "g",
    ) -> int:
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=group_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            generation_id=generation_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        partition(partition_index=0, committed_offset=3, committed_metadata=None)
                    ],
                )
            ],
        )
        response = ask(broker, request, version, TxnOffsetCommitResponse)
        return response.topics[0].partitions[0].error_code

    def add_group(self, broker: SocketlessBroker, identity: Identity, group_id: str = "g") -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id="t",
            producer_id=identity[0],
            producer_epoch=identity[1],
            group_id=group_id,
        )
        assert ask(broker, request, 3, AddOffsetsToTxnResponse).error_code == 0

    @pytest.mark.parametrize("version", range(6))
    def test_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        identity = begin(broker)
        if version < 5:
            self.add_group(broker, identity)
        assert self.commit(broker, identity, version) == 0
        assert end(broker, identity, 5 if version == 5 else 3).error_code == 0

    @pytest.mark.parametrize(
        ("version", "code"),
        [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
    )
    def test_group_that_was_not_added(
        self, broker: SocketlessBroker, version: int, code: ErrorCode
    ) -> None:
        assert self.commit(broker, begin(broker), version) == code

    def test_offset_commit_after_the_marker_is_refused(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        self.add_group(broker, identity)
        end(broker, identity, 3)
        assert self.commit(broker, identity, 3) == ErrorCode.INVALID_TXN_STATE

    def test_fenced_producer(self, broker: SocketlessBroker) -> None:
        old = begin(broker)
        begin(broker)
        for version in (3, 5):
            assert self.commit(broker, old, version) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_topic_that_is_not_there_trap_49(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        self.add_group(broker, identity)
        code = self.commit(broker, identity, 3, topic="none")
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_generation_is_checked_trap_49(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        self.add_group(broker, identity)
        code = self.commit(broker, identity, 3, generation_id=4)
        assert code == ErrorCode.ILLEGAL_GENERATION

    def test_empty_group_id_may_be_added_but_not_committed_to(
        self, broker: SocketlessBroker
    ) -> None:
        identity = begin(broker)
        self.add_group(broker, identity, "")
        code = self.commit(broker, identity, 3, group_id="")
        assert code == ErrorCode.INVALID_GROUP_ID


class TestMarkersAndQuestions:
    @pytest.mark.parametrize("version", [1, 2])
    def test_write_markers(self, broker: SocketlessBroker, version: int) -> None:
        identity = begin(broker)
        add(broker, identity, 3)
        produce(broker, identity, 11)
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=identity[0],
                    producer_epoch=identity[1],
                    transaction_result=False,
                    topics=[
                        topic(name="out", partition_indexes=[0, 9]),
                        topic(name="none", partition_indexes=[0]),
                    ],
                    coordinator_epoch=0,
                )
            ]
        )
        response = ask(broker, request, version, WriteTxnMarkersResponse)
        codes = [
            each.error_code for topic in response.markers[0].topics for each in topic.partitions
        ]
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [ErrorCode.NONE, missing, missing]
        log = broker.state.topics.partition("out", 0)
        assert log is not None
        assert log.last_stable_offset == log.high_watermark

    def test_describe(self, broker: SocketlessBroker) -> None:
        identity = begin(broker)
        add(broker, identity, 3)
        request = DescribeTransactionsRequest(transactional_ids=["t", "none"])
        response = ask(broker, request, 0, DescribeTransactionsResponse)
        found, missing = response.transaction_states
        assert (found.transaction_state, found.producer_id) == ("Ongoing", identity[0])
        assert [(each.topic, each.partitions) for each in found.topics] == [("out", [0, 1])]
        assert found.transaction_start_time_ms == broker.now_ms
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    @pytest.mark.parametrize("version", range(3))
    def test_list(self, broker: SocketlessBroker, version: int) -> None:
        begin(broker)
        request = ListTransactionsRequest(state_filters=["Empty", "Odd"])
        response = ask(broker, request, version, ListTransactionsResponse)
        assert response.unknown_state_filters == ["Odd"]
        assert [each.transactional_id for each in response.transaction_states] == ["t"]
