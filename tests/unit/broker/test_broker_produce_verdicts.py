"""Goal: the broker answers Apache Kafka's code for records that it refuses as a whole, so that
clients repeat what may succeed and nothing else.

Method: every case of a table goes to a broker without sockets; the conformance tests hold the same
table against Apache Kafka. Markers, which only brokers write, follow the same rule for epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import record_verdicts
from broker_requests import produce_request
from broker_state import START_MS, SocketlessBroker

from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

CASES = record_verdicts.cases(START_MS)


@pytest.fixture
def broker() -> Iterator[SocketlessBroker]:
    running = SocketlessBroker()
    running.state.topics.create("t", 1, {}, running.now_ms)
    yield running
    running.close()


def end_offset(broker: SocketlessBroker) -> int:
    topic = broker.state.topics.get("t")
    assert topic is not None
    return topic.partitions[0].log_end_offset


@pytest.mark.parametrize("case", CASES)
def test_the_code_is_that_of_apache_kafka(case: str, broker: SocketlessBroker) -> None:
    data, expected = CASES[case]
    answer = broker.ask(produce_request("t", data), 9)
    assert isinstance(answer, ProduceResponse)
    found = answer.responses[0].partition_responses[0]
    assert found.error_code == expected
    assert (found.error_message is None) is (expected is ErrorCode.NONE)
    assert end_offset(broker) == int(expected is ErrorCode.NONE)


@pytest.mark.parametrize("producer_epoch", [-2, -3, -32768])
def test_a_marker_with_an_impossible_epoch_is_refused(
    producer_epoch: int, broker: SocketlessBroker
) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=7,
                producer_epoch=producer_epoch,
                transaction_result=True,
                topics=[marker.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                coordinator_epoch=0,
            )
        ]
    )
    answer = broker.ask(request, 1)
    assert isinstance(answer, WriteTxnMarkersResponse)
    found = answer.markers[0].topics[0].partitions[0]
    assert found.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_offset(broker) == 0
