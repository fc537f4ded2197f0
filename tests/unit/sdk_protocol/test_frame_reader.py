"""Goal: a stream received into a reader's memory is cut into the frames that were put into it.

Method: one stream in every way of cutting, against the splitter that servers use; streams with
lengths that lie; the memory that they cost.
"""

from __future__ import annotations

import itertools
import random
import struct
import tracemalloc

import pytest
from fed import feed

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol import frame_reader
from onceflow.sdk.protocol.frame import SMALL_FRAME, FrameSplitter
from onceflow.sdk.protocol.frame_reader import FIRST_BYTES, SHARED_BYTES, FrameReader

LIMIT = 1 << 30


def stream(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def test_every_pair_of_cuts() -> None:
    frames = [b"a", b"bcd", b"ef"]
    data = stream(frames)
    for first, second in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        reader = FrameReader(3)
        parts = (data[:first], data[first:second], data[second:])
        assert [frame for part in parts for frame in feed(reader, part)] == frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_all_sizes_cut_anywhere_are_those_of_the_splitter(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(frame_reader, "FIRST_BYTES", rng.choice((70_000, 200_000, FIRST_BYTES)))
    border = [SMALL_FRAME - 1, SMALL_FRAME, SMALL_FRAME + 1, SHARED_BYTES, 2 * SMALL_FRAME]
    sizes = [rng.choice((1, 3, rng.randrange(1, 2_000), *border, 400_000)) for _ in range(30)]
    data = stream([rng.randbytes(size) for size in sizes])
    reader, splitter, found, expected = FrameReader(LIMIT), FrameSplitter(LIMIT), [], []
    while data:
        cut = rng.choice((1, 3, 5_000, 100_000, len(data)))
        found += [bytes(frame) for frame in feed(reader, data[:cut])]
        expected += [bytes(frame) for frame in splitter.feed(data[:cut])]
        assert len(found) == len(expected)  # As soon as it is complete.
        data = data[cut:]
    assert found == expected
    assert len(found) == 30


def test_frames_stay_as_they_are_while_the_next_ones_arrive() -> None:
    reader = FrameReader(LIMIT)
    kept = feed(reader, stream([b"s" * 9, b"x" * 200_000]))
    feed(reader, stream([b"t" * 9, b"y" * 200_000]))
    assert kept == [b"s" * 9, b"x" * 200_000]
    assert kept[1].readonly


@pytest.mark.parametrize("size", [0, -1, -(2**31), 11, 2**31 - 1])
@pytest.mark.parametrize("step", [1, 3, 4, 8])
def test_a_length_that_is_not_allowed_ends_the_stream(size: int, step: int) -> None:
    reader = FrameReader(10)
    data = stream([b"ok"]) + struct.pack(">i", size) + b"rest"
    with pytest.raises(RemoteProtocolError, match=f"a frame of {size} bytes"):
        for start in range(0, len(data), step):
            feed(reader, data[start : start + step])


def test_an_announced_length_costs_no_more_than_the_first_piece() -> None:
    reader = FrameReader(2**31 - 1)
    tracemalloc.start()
    feed(reader, struct.pack(">i", 2**31 - 1) + b"little")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < FIRST_BYTES + 100_000
