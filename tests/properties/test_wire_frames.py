"""Goal: a conversation survives any delivery: every message in every version, sent as a frame, is
the same message again when the stream arrives whole, byte by byte, or cut anywhere.

Method: frames of all messages are sent through one FrameSplitter; headers are compared with those
of kafka-python. Hypothesis chooses the cuts.
"""

from __future__ import annotations

import random
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
from wire_values import all_message_versions, each_version, per_message, random_message

from onceflow.sdk.protocol.frame import (
    FrameSplitter,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)
from onceflow.sdk.protocol.schema import Message, Request, Response

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.api_header import RequestHeader, ResponseHeader


def make(message_type: type[Message], version: int) -> Message:
    rng = random.Random(f"{message_type.__name__} {version}")
    return random_message(message_type, version, rng, unknown_tags=True)


def frame_bytes(message: Message, version: int, correlation_id: int = 7) -> bytes:
    if isinstance(message, Request):
        parts = encode_request(
            message, api_version=version, correlation_id=correlation_id, client_id="me"
        )
    else:
        assert isinstance(message, Response)
        parts = encode_response(message, api_version=version, correlation_id=correlation_id)
    return b"".join(parts)


def read_frame(
    message_type: type[Message], version: int, frame: bytes | memoryview, correlation_id: int = 7
) -> Message:
    if issubclass(message_type, Request):
        header = decode_request_header(frame)
        assert header[:4] == (message_type.api_key, version, correlation_id, "me")
        start = header.end
    else:
        assert issubclass(message_type, Response)
        found, start = decode_response_header(frame, message_type.api_key, version)
        assert found == correlation_id
    message, end = message_type.decode(frame, version, start)
    assert end == len(frame)
    return message


@per_message
@each_version
def test_whole_and_byte_by_byte_and_with_data_behind(
    message_type: type[Message], version: int
) -> None:
    message = make(message_type, version)
    data = frame_bytes(message, version)
    (whole,) = FrameSplitter(len(data)).feed(data)
    assert read_frame(message_type, version, whole) == message
    splitter = FrameSplitter(len(data))
    (slow,) = [frame for i in range(len(data)) for frame in splitter.feed(data[i : i + 1])]
    assert slow == whole
    splitter = FrameSplitter(len(data))
    assert splitter.feed(data + data + data[:5]) == [whole, whole]
    assert splitter.feed(data[5:]) == [whole]


@per_message
@each_version
def test_headers_equal_those_of_kafka_python(message_type: type[Message], version: int) -> None:
    message = make(message_type, version)
    first = message_type.flexible_from
    flexible = first is not None and version >= first
    if isinstance(message, Request):
        header = RequestHeader(
            request_api_key=message.api_key,
            request_api_version=version,
            correlation_id=7,
            client_id="me",
        ).encode(flexible=flexible)
    else:
        assert isinstance(message, Response)
        in_old_form = message.api_key == 18  # An ApiVersions response, whatever its version.
        header = ResponseHeader(correlation_id=7).encode(flexible=flexible and not in_old_form)
    body = message.encode(version)
    expected = (len(header) + len(body)).to_bytes(4, "big") + header + body
    assert frame_bytes(message, version) == expected


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_one_stream_of_many_messages_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    sent = [(t, v, make(t, v)) for t, v in rng.sample(list(all_message_versions()), 20)]
    data = b"".join(frame_bytes(m, v, number) for number, (_, v, m) in enumerate(sent))
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice((0, 3, 40))))
    splitter = FrameSplitter(1_000_000)
    frames = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)
        for frame in splitter.feed(data[start:end])
    ]
    received = [
        read_frame(t, v, frame, number)
        for number, ((t, v, _), frame) in enumerate(zip(sent, frames, strict=True))
    ]
    assert received == [message for _, _, message in sent]
