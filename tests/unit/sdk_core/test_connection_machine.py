"""Goal: a connection pairs answers with requests, notices a dead or broken peer, and negotiates.

Method: the connection machine fed with bytes by hand, and the handshake flows with given answers.
"""

from __future__ import annotations

import pytest
from producer_flows import play

from onceflow.sdk.core.connection.connection import Connection
from onceflow.sdk.core.connection.handshake import (
    BEFORE_NEGOTIATION,
    BrokerVersions,
    negotiate_versions,
)
from onceflow.sdk.core.connection.sasl import authenticate_plain
from onceflow.sdk.core.flow import Send
from onceflow.sdk.errors import (
    KafkaError,
    RemoteProtocolError,
    SaslAuthenticationFailedError,
    UnsupportedVersionError,
)
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.security import SaslAuthenticateResponse, SaslHandshakeResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import encode_response
from onceflow.sdk.protocol.schema import Response


def answer(response: Response, version: int, correlation_id: int) -> bytes:
    """A response as bytes."""
    return b"".join(encode_response(response, api_version=version, correlation_id=correlation_id))


def ask_metadata(connection: Connection, now_ms: int = 0, timeout_ms: int = 1_000) -> int:
    """Send a request and return its correlation id."""
    correlation_id, parts = connection.send(MetadataRequest(topics=[]), 9, now_ms, timeout_ms)
    assert b"".join(parts)
    return correlation_id


def metadata_answer(correlation_id: int, **fields: int) -> bytes:
    """An empty answer to Metadata."""
    response = MetadataResponse(brokers=[], topics=[], **fields)  # type: ignore[arg-type]
    return answer(response, 9, correlation_id)


def test_answers_come_back_in_order_however_the_bytes_are_cut() -> None:
    connection = Connection("me", 1 << 20, 0)
    ids = [ask_metadata(connection) for _ in range(3)]
    data = b"".join(metadata_answer(i) for i in ids)
    found = []
    for start in range(0, len(data), 7):
        found += connection.receive(data[start : start + 7], 5)
    assert [a.correlation_id for a in found] == ids
    assert connection.in_flight_count == 0
    assert connection.last_used_ms == 5


def test_an_answer_out_of_order_breaks_the_connection() -> None:
    connection = Connection("me", 1 << 20, 0)
    ask_metadata(connection)
    second = ask_metadata(connection)
    with pytest.raises(RemoteProtocolError, match="expected"):
        connection.receive(metadata_answer(second), 0)


def test_an_answer_without_a_request_breaks_the_connection() -> None:
    connection = Connection("me", 1 << 20, 0)
    with pytest.raises(RemoteProtocolError, match="response without a request"):
        connection.receive(metadata_answer(1), 0)


def test_a_frame_above_the_limit_breaks_the_connection() -> None:
    connection = Connection("me", 100, 0)
    ask_metadata(connection)
    with pytest.raises(RemoteProtocolError):
        connection.receive((101).to_bytes(4, "big"), 0)


def test_a_request_without_an_answer_in_time_is_overdue() -> None:
    connection = Connection("me", 1 << 20, 0)
    ask_metadata(connection, timeout_ms=1_000)
    ask_metadata(connection, timeout_ms=300)
    assert connection.next_deadline_ms() == 300
    assert connection.overdue(299) is None
    assert "Metadata" in (connection.overdue(300) or "")


def test_a_request_that_is_never_answered_does_not_wait() -> None:
    connection = Connection("me", 1 << 20, 0)
    request = ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
    connection.send(request, 9, 0, 1, expects_answer=False)
    assert connection.in_flight_count == 0
    assert connection.next_deadline_ms() is None


def test_a_throttled_answer_mutes_the_connection() -> None:
    """Trap 68, the client's half."""
    connection = Connection("me", 1 << 20, 0)
    number = ask_metadata(connection)
    connection.receive(metadata_answer(number, throttle_time_ms=250), 100)
    assert connection.muted_until_ms == 350


def test_a_refused_version_question_is_answered_in_the_oldest_form() -> None:
    connection = Connection("me", 1 << 20, 0)
    number, _ = connection.send(
        ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4, 0, 1_000
    )
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    (found,) = connection.receive(answer(refusal, 0, number), 0)
    assert isinstance(found.response, ApiVersionsResponse)
    assert found.response.error_code == ErrorCode.UNSUPPORTED_VERSION


# handshake


def keys(**ranges: tuple[int, int]) -> list[ApiVersionsResponse.ApiVersion]:
    """Version ranges by k<API key>."""
    return [
        ApiVersionsResponse.ApiVersion(api_key=int(name[1:]), min_version=low, max_version=high)
        for name, (low, high) in ranges.items()
    ]


def test_negotiation_takes_ranges_and_features() -> None:
    feature = ApiVersionsResponse.FinalizedFeatureKey(
        name="transaction.version", max_version_level=2, min_version_level=2
    )
    reply = ApiVersionsResponse(api_keys=keys(k0=(3, 12)), finalized_features=[feature])
    versions, _ = play(negotiate_versions("1"), reply)
    assert versions.ranges == {0: (3, 12)}
    assert versions.transaction_version == 2
    assert versions.pick(ProduceRequest) == 12
    assert versions.pick(ProduceRequest, max_version=11) == 11


@pytest.mark.parametrize(("offered", "asked"), [(keys(k18=(0, 2)), 2), ([], 0)])
def test_an_older_broker_is_asked_again_in_its_version(
    offered: list[ApiVersionsResponse.ApiVersion], asked: int
) -> None:
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=offered)
    versions, steps = play(
        negotiate_versions("1"), refusal, ApiVersionsResponse(api_keys=keys(k3=(0, 5)))
    )
    assert versions.ranges == {3: (0, 5)}
    assert isinstance(steps[1], Send)
    assert steps[1].max_version == asked


def test_an_empty_range_is_no_answer() -> None:
    with pytest.raises(RemoteProtocolError):
        play(negotiate_versions("1"), ApiVersionsResponse(api_keys=keys(k3=(5, 1))))


def test_without_a_common_version_the_message_names_both_sides() -> None:
    versions = BrokerVersions({0: (0, 2)})
    assert versions.pick(ProduceRequest) is None
    with pytest.raises(UnsupportedVersionError, match=r"needs Produce in version 3 to 13.*0-2"):
        versions.require(ProduceRequest)
    with pytest.raises(UnsupportedVersionError, match="no version of it"):
        BrokerVersions({}).require(ProduceRequest)


def test_before_negotiation_only_the_handshake_may_be_sent() -> None:
    assert BEFORE_NEGOTIATION.pick(ApiVersionsRequest) == 4
    assert BEFORE_NEGOTIATION.pick(MetadataRequest) is None


def test_plain_credentials_travel_as_the_standard_says() -> None:
    _, steps = play(
        authenticate_plain("user", "secret"),
        SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
        SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b""),
    )
    assert isinstance(steps[1], Send)
    assert getattr(steps[1].request, "auth_bytes", b"") == b"\0user\0secret"


def test_refused_credentials_say_so() -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="no such user"):
        play(
            authenticate_plain("user", "secret"),
            SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
            SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message="no such user",
                auth_bytes=b"",
            ),
        )


def test_a_mechanism_that_is_not_offered_names_what_is() -> None:
    with pytest.raises(KafkaError, match="SCRAM-SHA-512"):
        play(
            authenticate_plain("user", "secret"),
            SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-512"]
            ),
        )
