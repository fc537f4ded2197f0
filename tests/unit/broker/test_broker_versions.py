"""Goal: nothing is advertised that does not work (FC-45, KIP-35).

Method: every advertised version of every key gets requests with random field values, seeded,
through their bytes; the answer must encode and read back in that version with nothing left over. A
request may park, or cost the connection where the protocol says so, but never raise.
"""

from __future__ import annotations

import logging
import random
import struct

import pytest
from broker_state import SocketlessBroker
from wire_values import random_message

from onceflow.broker_lite.broker import BrokerState
from onceflow.broker_lite.dispatch import Dispatcher
from onceflow.broker_lite.registry import HandlerRegistry, Registration, load_handlers
from onceflow.broker_lite.request_context import CloseConnection, RequestContext
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from onceflow.sdk.protocol.schema import Request

REGISTRATIONS = load_handlers().registrations()
ROUNDS = 12
PRODUCE = 0

AK_4_3 = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6),
    11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4),
    19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4),
    26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3), 31: (1, 3),
    32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5),
    36: (0, 2), 37: (0, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0),
    48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2),
    61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0),
}  # fmt: skip
"""What Apache Kafka 4.3 advertises for the keys that are served here."""


def advertised(broker: SocketlessBroker, api_version: int = 4) -> dict[int, tuple[int, int]]:
    response = broker.ask(
        ApiVersionsRequest(client_software_name="test", client_software_version="1.0"), api_version
    )
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == 0
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


@pytest.mark.parametrize(
    "registration", REGISTRATIONS, ids=lambda entry: entry.request_type.__name__
)
def test_every_served_version_gives_a_parseable_answer(
    registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-45: a parseable reply in every advertised version."""
    caplog.set_level(logging.CRITICAL, "onceflow")
    broker = SocketlessBroker()
    rng = random.Random(20)
    request_type = registration.request_type
    for version in range(registration.min_version, registration.max_version + 1):
        answered = 0
        for _ in range(ROUNDS):
            request = random_message(request_type, version, rng, unknown_tags=True)
            assert isinstance(request, Request)
            try:
                answered += broker.ask(request, version) is not None
            except CloseConnection:
                assert request_type.api_key == PRODUCE
        if request_type.api_key != PRODUCE:
            assert answered
        broker.advance(400_000)
    broker.close()


def test_advertised_versions_are_those_of_apache_kafka() -> None:
    """Trap 66 among them: Produce is advertised from 0."""
    assert advertised(SocketlessBroker()) == AK_4_3


def test_features_tell_transactions_of_version_2_and_consumer_groups() -> None:
    response = SocketlessBroker().ask(
        ApiVersionsRequest(client_software_name="test", client_software_version="1.0"), 4
    )
    assert isinstance(response, ApiVersionsResponse)
    assert {
        feature.name: (feature.min_version_level, feature.max_version_level)
        for feature in response.finalized_features
    } == {
        "eligible.leader.replicas.version": (1, 1),
        "transaction.version": (2, 2),
        "group.version": (1, 1),
    }
    assert {feature.name for feature in response.supported_features} == {
        "eligible.leader.replicas.version",
        "transaction.version",
        "group.version",
    }


def test_features_that_begin_at_level_0_are_left_out_where_clients_cannot_read_them() -> None:
    """KAFKA-17011: Java clients up to 3.7 end when they meet one; what is in force they read."""
    answers = []
    for version in (3, 4):
        answer = SocketlessBroker().ask(
            ApiVersionsRequest(client_software_name="test", client_software_version="1.0"), version
        )
        assert isinstance(answer, ApiVersionsResponse)
        answers.append(answer)
    older, newer = answers
    assert older.finalized_features == newer.finalized_features != []
    assert [feature for feature in older.supported_features if feature.min_version < 1] == []
    assert {feature.min_version for feature in newer.supported_features} == {0}


@pytest.mark.parametrize("name", ["", "-x", "x y", "ünï"])
def test_software_name_that_is_none_is_refused(name: str) -> None:
    response = SocketlessBroker().ask(
        ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3
    )
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == 42


@pytest.mark.parametrize(
    ("api_key", "api_version"), [(0, 2), (0, 99), (1, 3), (999, 0), (76, 1), (-1, 0)]
)
def test_unserved_key_or_version_is_a_protocol_error(api_key: int, api_version: int) -> None:
    """Trap 62: it costs that connection, and nothing else."""
    broker = SocketlessBroker()
    frame = struct.pack(">hhih", api_key, api_version, 1, -1) + b"\0"
    with pytest.raises(RemoteProtocolError, match="not served"):
        Dispatcher(broker.state, broker.connection).dispatch(frame, broker.now_ms)


def test_coordinator_is_this_node_for_groups_and_transactions() -> None:
    broker = SocketlessBroker()
    for key_type in (0, 1):
        response = broker.ask(
            FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"]), 6
        )
        assert isinstance(response, FindCoordinatorResponse)
        assert [
            (entry.key, entry.node_id, entry.host, entry.port, entry.error_code)
            for entry in response.coordinators
        ] == [("a", 1, "127.0.0.1", 9092, 0), ("b", 1, "127.0.0.1", 9092, 0)]
    assert {topic.name for topic in broker.state.topics} == {
        "__consumer_offsets",
        "__transaction_state",
    }


def test_coordinator_of_share_groups_is_refused_with_a_reason() -> None:
    response = SocketlessBroker().ask(
        FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"]), 6
    )
    assert isinstance(response, FindCoordinatorResponse)
    assert response.coordinators[0].error_code == 42
    assert "not served" in (response.coordinators[0].error_message or "")


def test_two_handlers_for_one_request_are_refused() -> None:
    registry = HandlerRegistry()

    @registry.handles(FindCoordinatorRequest)
    def first(
        state: BrokerState, context: RequestContext, request: FindCoordinatorRequest, now_ms: int
    ) -> FindCoordinatorResponse:
        return FindCoordinatorResponse()

    with pytest.raises(ValueError, match="two handlers"):
        registry.handles(FindCoordinatorRequest)(first)


def test_version_that_is_not_declared_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="declares versions 0-6"):
        HandlerRegistry().handles(FindCoordinatorRequest, versions=(0, 7))
