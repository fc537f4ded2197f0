"""Goal: a stream of bytes is cut into the frames that were put into it, however it is delivered.

Method: feed one stream in every way of cutting (whole, byte by byte, at each single place), and
streams with lengths that lie.
"""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import FrameSplitter

FRAMES = [b"a", b"bc" * 10, bytes(70_000), b"d", bytes(range(256)) * 300]
SHORT = [b"a", b"bcd", b"ef"]


def stream(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def test_all_frames_at_once() -> None:
    assert FrameSplitter(100_000).feed(stream(FRAMES)) == FRAMES


def test_byte_by_byte() -> None:
    splitter = FrameSplitter(100_000)
    data = stream(FRAMES)
    found = [frame for i in range(len(data)) for frame in splitter.feed(data[i : i + 1])]
    assert found == FRAMES
    assert splitter.buffered_bytes == 0


def test_every_pair_of_cuts() -> None:
    data = stream(SHORT)
    for first, second in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        splitter = FrameSplitter(3)
        found = []
        for part in (data[:first], data[first:second], data[second:]):
            found += splitter.feed(part)
        assert found == SHORT
        assert splitter.buffered_bytes == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer(kind: type) -> None:
    splitter = FrameSplitter(100_000)
    data = stream(FRAMES)
    found = splitter.feed(kind(data[:90_000])) + splitter.feed(kind(data[90_000:]))
    assert found == FRAMES


def test_frames_stay_as_they_are_while_the_next_ones_arrive() -> None:
    splitter = FrameSplitter(1_000_000)
    data = stream([b"x" * 200_000, b"y" * 200_000])
    first = [frame for i in range(0, 300_000, 1000) for frame in splitter.feed(data[i : i + 1000])]
    splitter.feed(data[300_000:])
    assert first == [b"x" * 200_000]


def test_nothing_is_kept_of_an_empty_feed() -> None:
    splitter = FrameSplitter(10)
    assert splitter.feed(b"") == []
    assert splitter.buffered_bytes == 0


@pytest.mark.parametrize("size", [0, -1, -(2**31), 11, 2**31 - 1])
@pytest.mark.parametrize("step", [1, 3, 4, 8])
def test_a_length_that_is_not_allowed_ends_the_stream(size: int, step: int) -> None:
    splitter = FrameSplitter(10)
    data = stream([b"ok"]) + struct.pack(">i", size) + b"rest"
    parts = [data[i : i + step] for i in range(0, len(data), step)]
    with pytest.raises(RemoteProtocolError, match=f"a frame of {size} bytes"):
        list(map(splitter.feed, parts))


def test_an_announced_length_allocates_nothing() -> None:
    splitter = FrameSplitter(2**31 - 1)
    tracemalloc.start()
    splitter.feed(struct.pack(">i", 2**31 - 1) + b"little")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000
    assert splitter.buffered_bytes == 10
