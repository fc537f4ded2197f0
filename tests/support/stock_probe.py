"""A bare client of one socket that asks whether a broker answers, and whether it takes a write."""

from __future__ import annotations

import socket
import struct

from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.frame import decode_response_header, encode_request
from onceflow.sdk.protocol.records import encode_batch

HOST = "127.0.0.1"
METADATA_WITHOUT_TOPICS = struct.pack(">hhih1si", 3, 1, 1, 1, b"p", 0)
PRODUCE_VERSION = 7


def _exchange(port: int, request: bytes, timeout_s: float) -> bytes | None:
    """One request on one connection; None when there was no whole answer."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(request)
            stream = connection.makefile("rb")
            size = stream.read(4)
            frame = stream.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
    except OSError:
        return None
    return frame if frame and len(frame) == int.from_bytes(size, "big") else None


def metadata_answered(port: int, timeout_s: float = 5) -> bool:
    """Whether a broker answers Metadata on this port."""
    size = len(METADATA_WITHOUT_TOPICS).to_bytes(4, "big")
    return _exchange(port, size + METADATA_WITHOUT_TOPICS, timeout_s) is not None


def produce_acknowledged(port: int, topic: str, value: bytes, timeout_s: float = 5) -> bool:
    """Whether a record sent to partition 0 was acknowledged without an error."""
    records = bytes(encode_batch([(0, None, value, [])]))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[ProduceRequest.PartitionProduceData(index=0, records=records)],
            )
        ],
    )
    parts = encode_request(
        request, api_version=PRODUCE_VERSION, correlation_id=1, client_id="probe"
    )
    frame = _exchange(port, b"".join(parts), timeout_s)
    if frame is None:
        return False
    _, end = decode_response_header(frame, ProduceRequest.api_key, PRODUCE_VERSION)
    response, _ = ProduceResponse.decode(frame, PRODUCE_VERSION, end)
    return response.responses[0].partition_responses[0].error_code == 0
