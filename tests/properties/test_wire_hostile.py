"""Goal: whatever bytes arrive, decoding ends with a message or with RemoteProtocolError, and uses
no more memory than the bytes justify.

Method: for every message and version, valid frames (seeded) are damaged: cut, extended, bytes
replaced, and a lie about a length written at every single place. Hypothesis chooses the damage and
shrinks it. Memory is measured with tracemalloc, time is bounded by the suite's timeout.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_values import each_version, per_message, random_message

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import (
    FrameSplitter,
    decode_request_header,
    decode_response_header,
)
from onceflow.sdk.protocol.schema import Message

QUICK = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

places = st.floats(0, 1, exclude_max=True)
damages = st.lists(
    st.one_of(
        st.tuples(st.just("replace"), places, st.binary(min_size=1, max_size=6)),
        st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=6)),
        st.tuples(st.just("delete"), places, st.integers(1, 8)),
        st.tuples(st.just("cut"), places, st.none()),
        st.tuples(st.just("append"), st.just(0.0), st.binary(max_size=40)),
    ),
    min_size=1,
    max_size=4,
)


def valid_bytes(message_type: type[Message], version: int, seed: int = 0) -> bytes:
    rng = random.Random(f"{message_type.__name__} {version} {seed}")
    return random_message(message_type, version, rng, unknown_tags=True).encode(version)


def damaged(data: bytes, damage: list[tuple[str, float, object]]) -> bytes:
    for action, place, content in damage:
        at = int(place * len(data))
        if action == "replace":
            assert isinstance(content, bytes)
            data = data[:at] + content + data[at + len(content) :]
        elif action == "insert":
            assert isinstance(content, bytes)
            data = data[:at] + content + data[at:]
        elif action == "delete":
            assert isinstance(content, int)
            data = data[:at] + data[at + content :]
        elif action == "cut":
            data = data[:at]
        else:
            assert isinstance(content, bytes)
            data += content
    return data


def decode(message_type: type[Message], data: bytes | memoryview, version: int) -> None:
    """Decode; only the one error is allowed, and what was read must be writable again."""
    try:
        message, end = message_type.decode(data, version)
    except RemoteProtocolError:
        return
    assert 0 <= end <= len(data)
    again = message.encode(version)
    assert message_type.decode(again, version) == (message, len(again))


@per_message
@QUICK
@given(seed=st.integers(0, 50), damage=damages)
@each_version
def test_damaged_messages(
    message_type: type[Message],
    version: int,
    seed: int,
    damage: list[tuple[str, float, object]],
) -> None:
    data = damaged(valid_bytes(message_type, version, seed), damage)
    decode(message_type, data, version)
    decode(message_type, memoryview(data), version)


@per_message
@QUICK
@given(data=st.binary(max_size=120))
@each_version
def test_arbitrary_bytes(message_type: type[Message], version: int, data: bytes) -> None:
    decode(message_type, data, version)


@per_message
@each_version
def test_every_cut_is_noticed(message_type: type[Message], version: int) -> None:
    data = valid_bytes(message_type, version)
    for end in range(0, len(data), 1 + len(data) // 300):
        with pytest.raises(RemoteProtocolError):
            message_type.decode(data[:end], version)


@per_message
@each_version
def test_what_follows_a_message_is_left_alone(message_type: type[Message], version: int) -> None:
    data = valid_bytes(message_type, version)
    message, end = message_type.decode(data, version)
    assert end == len(data)
    assert message_type.decode(b"before" + data + b"after", version, 6) == (message, end + 6)
    assert message.encode(version) == data


LIES = (
    b"\x7f\xff\xff\xff",  # the largest length of four bytes
    b"\x00\x01\x00\x00",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",  # the largest unsigned varint
    b"\xff\xff\xff\x07",
    b"\x81\x80\x04",  # 65,536 elements
)


@contextlib.contextmanager
def at_most(allowed: int) -> Iterator[None]:
    """Check the memory that the body has in use at any one time, under tracemalloc."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < allowed


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@per_message
def test_lies_about_lengths_cost_no_memory(message_type: type[Message]) -> None:
    for version in set(message_type.versions):
        data = valid_bytes(message_type, version)[:200]
        message_type.decode(valid_bytes(message_type, version), version)  # Compiles it.
        for at in range(len(data)):
            for lie in LIES:
                lying = data[:at] + lie + data[at + len(lie) :]
                # The constant is for the table of remembered uuids, which grows in one go.
                with at_most(150_000 + 100 * len(lying)), contextlib.suppress(RemoteProtocolError):
                    message_type.decode(lying, version)


@pytest.mark.usefixtures("traced")
@per_message
def test_the_budget_bounds_memory_however_long_the_message_is(
    message_type: type[Message],
) -> None:
    version = message_type.versions[1]
    data = valid_bytes(message_type, version)[:300]
    filler = bytes(600_000)
    for at in range(len(data)):
        lying = data[:at] + b"\x81\x80\x01" + filler  # 16,384 elements of nothing but zeros
        with at_most(800_000), contextlib.suppress(RemoteProtocolError):
            message_type.decode(lying, version, max_values=1_000)


@QUICK
@given(data=st.binary(max_size=60))
def test_headers_of_arbitrary_bytes(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        header = decode_request_header(data)
        assert header.end <= len(data)
    for api_key, api_version in ((0, 9), (0, 3), (18, 3)):
        with contextlib.suppress(RemoteProtocolError):
            _, end = decode_response_header(data, api_key, api_version)
            assert end <= len(data)


@QUICK
@given(parts=st.lists(st.binary(max_size=20), max_size=20))
def test_a_splitter_fed_with_arbitrary_bytes(parts: list[bytes]) -> None:
    splitter = FrameSplitter(64)
    with contextlib.suppress(RemoteProtocolError):
        for part in parts:
            for frame in splitter.feed(part):
                assert 0 < len(frame) <= 64
            assert splitter.buffered_bytes < 68
