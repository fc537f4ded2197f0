"""Frames out of a stream that is received into memory of their own.

A client's large answers are records: received straight into the frame that is handed out, they are
copied once, by the kernel, and with few system calls. Small frames share one piece of memory.
Nothing here does I/O.
"""

from __future__ import annotations

import struct
from typing import Final

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.frame import SMALL_FRAME

SHARED_BYTES: Final = SMALL_FRAME + 4
"""Memory for frames up to `SMALL_FRAME`, and for the beginning of larger ones."""
FIRST_BYTES: Final = 4 * 1024 * 1024
"""Memory that a large frame gets before anything of it came: its length may be a lie."""

_LENGTH: Final = struct.Struct(">i")


class FrameReader:
    """Cuts a stream into frames: whoever receives writes to `buffer`, and tells `received`."""

    __slots__ = ("_end", "_filled", "_large", "_max_bytes", "_shared", "_size", "_start")

    def __init__(self, max_bytes: int) -> None:
        """Make a reader for one connection.

        Args:
            max_bytes: Largest frame to be accepted, without its length prefix.
        """
        self._max_bytes = max_bytes
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._start = self._end = 0  # What of it is filled and not yet handed out.
        self._large: memoryview | None = None
        self._size = 0  # Of the large frame, without its prefix.
        self._filled = 0

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream are to be written; never empty."""
        large = self._large
        if large is None:
            if self._start:
                # A rest is moved to the front: it is shorter than a small frame.
                rest = bytes(self._shared[self._start : self._end])
                self._start, self._end = 0, len(rest)
                self._shared[: len(rest)] = rest
            return self._shared[self._end :]
        if self._filled == len(large):
            # Not enlarged in place: the memory may still be lent out.
            more = memoryview(bytearray(min(self._size, 2 * len(large))))
            more[: self._filled] = large
            large = self._large = more
        return large[self._filled :]

    def received(self, count: int) -> list[bytes | memoryview]:
        """Take note of bytes that were written to `buffer`.

        Args:
            count: How many.

        Returns:
            Every frame that is now complete, without its length prefix.

        Raises:
            RemoteProtocolError: A length is not positive or above the limit. The stream cannot be
                read any further.
        """
        if self._large is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            frame, self._large = self._large, None
            return [frame.toreadonly()]
        self._end += count
        frames: list[bytes | memoryview] = []
        shared, start = self._shared, self._start
        while self._end - start >= 4:
            size: int = _LENGTH.unpack_from(shared, start)[0]
            if not 0 < size <= self._max_bytes:
                raise RemoteProtocolError(
                    f"a frame of {size} bytes was announced; allowed are 1 to {self._max_bytes}"
                )
            stop = start + 4 + size
            if stop > self._end:
                if size > SMALL_FRAME:
                    start = self._begin_large(size, start + 4)
                break
            frames.append(shared[start + 4 : stop].tobytes())
            start = stop
        self._start = start
        if start == self._end:
            self._start = self._end = 0
        return frames

    def _begin_large(self, size: int, start: int) -> int:
        """Give a frame its own memory, with what of it came already; returns where that ends."""
        self._filled = self._end - start
        self._size = size
        self._large = memoryview(bytearray(min(size, FIRST_BYTES)))
        self._large[: self._filled] = self._shared[start : self._end]
        return self._end
