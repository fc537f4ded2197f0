"""Goal: headers have the form that the request kind and version ask for.

Method: frames written by us are compared with bytes written out by hand from Kafka's protocol
guide, and with kafka-python's and kio's headers in `tests/properties/test_wire_foreign.py`.
"""

from __future__ import annotations

import pytest

from onceflow.sdk.errors import LocalProtocolError, RemoteProtocolError
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.frame import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)

HEARTBEAT, HEARTBEAT_RESPONSE = 12, 12


def heartbeat(version: int, client_id: str | None) -> bytes:
    request = API[12].request_type(group_id="g", generation_id=1, member_id="m")
    return b"".join(
        encode_request(request, api_version=version, correlation_id=7, client_id=client_id)
    )


def test_form_1_for_versions_that_are_not_flexible() -> None:
    assert heartbeat(0, "me") == (b"\0\0\0\x16\0\x0c\0\0\0\0\0\x07\0\x02me\0\x01g\0\0\0\x01\0\x01m")


def test_form_2_for_flexible_versions_keeps_the_old_string_form() -> None:
    assert heartbeat(4, "me") == (
        b"\0\0\0\x17\0\x0c\0\x04\0\0\0\x07\0\x02me\0\x02g\0\0\0\x01\x02m\0\0"
    )


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("client_id", ["", "é", None, "x" * 200])
def test_request_headers_are_read_as_written(version: int, client_id: str | None) -> None:
    frame = heartbeat(version, client_id)[4:]
    header = decode_request_header(frame)
    assert header[:4] == (12, version, 7, client_id)
    request, end = API[12].request_type.decode(frame, version, header.end)
    assert request.member_id == "m"
    assert end == len(frame)


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    """Traps 63 and 65."""
    frame = b"\0\x0c\0\x04\0\0\0\x07\xff\xff\x02\x00\x01x\x05\x00message"
    assert decode_request_header(frame) == RequestHeader(12, 4, 7, None, 16)


def test_a_too_new_version_still_has_a_header() -> None:
    frame = b"\0\x12\0\x63\0\0\0\x07\0\x01c\0whatever"
    assert decode_request_header(frame) == RequestHeader(18, 99, 7, "c", 12)


def test_an_unknown_kind_still_has_a_header() -> None:
    frame = b"\x12\x34\0\x01\0\0\0\x07\0\x01cwhatever"
    assert decode_request_header(frame) == RequestHeader(0x1234, 1, 7, "c", 11)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x0c\0\x04\0\0\0\x07\0",
        b"\0\x0c\0\x04\0\0\0\x07\0\x05abc",
        b"\0\x0c\0\x04\0\0\0\x07\0\x01\xff\0",
        b"\0\x0c\0\x04\0\0\0\x07\0\x01a",
        b"\0\x0c\0\x04\0\0\0\x07\0\x01a\xff\xff\xff\xff\x0f",
        b"\0\x0c\0\x04\0\0\0\x07\0\x01a\x01\x00\x05",
    ],
)
def test_bytes_that_are_no_request_header(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a request header"):
        decode_request_header(frame)


def response_frame(api_key: int, version: int, **fields: object) -> bytes:
    response = API[api_key].response_type(**fields)
    return b"".join(encode_response(response, api_version=version, correlation_id=7))


def test_response_headers_have_form_0_or_1() -> None:
    assert response_frame(12, 0, error_code=3) == b"\0\0\0\x06\0\0\0\x07\0\x03"
    assert response_frame(12, 4, error_code=3) == (b"\0\0\0\x0c\0\0\0\x07\0\0\0\0\0\0\x03\0")


@pytest.mark.parametrize("version", range(5))
def test_response_headers_are_read_as_written(version: int) -> None:
    frame = response_frame(12, version, error_code=3)[4:]
    assert decode_response_header(frame, 12, version) == (7, 5 if version == 4 else 4)


@pytest.mark.parametrize("version", range(5))
def test_an_api_versions_response_always_has_form_0(version: int) -> None:
    frame = response_frame(18, version, error_code=0, api_keys=[])[4:]
    assert decode_response_header(frame, 18, version) == (7, 4)
    assert API[18].response_type.decode(frame, version, 4)[1] == len(frame)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x07", b"\0\0\0\x07\x01\0\x09"])
def test_bytes_that_are_no_response_header(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a response header"):
        decode_response_header(frame, 12, 4)


def test_a_client_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="client_id"):
        heartbeat(0, "x" * 32_768)


def test_large_parts_are_passed_on_and_small_ones_joined() -> None:
    produce = API[0].request_type
    batches = [bytes(100_000), bytes(10), bytes(200_000)]
    request = produce(
        acks=-1,
        timeout_ms=1,
        topic_data=[
            produce.TopicProduceData(
                name="t",
                partition_data=[
                    produce.PartitionProduceData(index=i, records=batch)
                    for i, batch in enumerate(batches)
                ],
            )
        ],
    )
    parts = encode_request(request, api_version=9, correlation_id=1, client_id=None)
    assert len(parts) == 5
    assert parts[1] is batches[0]
    assert parts[3] is batches[2]
