"""Frames and headers: what stands around a message on a connection.

Every request and response is one frame: a length of four bytes, a header, a message. Request
headers have form 2 and response headers form 1 where the message version is flexible (KIP-482),
forms 1 and 0 otherwise; an ApiVersions response always has form 0, so that a client can read it
before it knows what the broker speaks. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from onceflow.sdk.errors import LocalProtocolError, RemoteProtocolError
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.primitives import Buffer, MalformedError, decode_uvarint
from onceflow.sdk.protocol.schema import Message, Request, Response

API_VERSIONS: Final = 18
SMALL_FRAME: Final = 65_536
"""Frames up to this size are handed out as bytes (faster to decode), larger ones as views."""
SMALL_PART: Final = 4_096
"""Parts up to this size are joined; larger ones, such as record batches, are never copied."""

_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">ihhih")  # length, key, version, correlation, client id
_RESPONSE_HEADER: Final = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER: Final = struct.Struct(">iib")


class RequestHeader(NamedTuple):
    """Header of a request.

    Attributes:
        api_key: Number of the request kind.
        api_version: Version of the request.
        correlation_id: Number that the response repeats.
        client_id: Name that the client gave itself, or None.
        end: Where the request's message begins in the frame.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


class FrameSplitter:
    """Cuts a stream of bytes into frames.

    Large frames are gathered once and handed out without a further copy. What is kept between
    calls never exceeds one frame.
    """

    __slots__ = ("_buffer", "_max_bytes", "_wanted")

    def __init__(self, max_bytes: int) -> None:
        """Make a splitter for one connection.

        Args:
            max_bytes: Largest frame to be accepted, without its length prefix (Kafka property
                ``socket.request.max.bytes`` on the broker's side).
        """
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._wanted = -1  # Size of the buffered frame, prefix included, once it is known.

    def limit(self, max_bytes: int) -> None:
        """Accept frames up to another size from the next one on."""
        self._max_bytes = max_bytes

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame are held."""
        return len(self._buffer)

    @property
    def frame_bytes(self) -> int:
        """How many bytes the frame will take that is being received; 0 between frames."""
        return self._wanted if self._wanted > 0 else len(self._buffer)

    def feed(self, data: Buffer) -> list[bytes | memoryview]:
        """Take the next bytes of the stream.

        Args:
            data: What was received; must not be changed afterwards.

        Returns:
            Every frame that is now complete, without its length prefix.

        Raises:
            RemoteProtocolError: A length is not positive or above the limit. The stream cannot be
                read any further.
        """
        frames: list[bytes | memoryview] = []
        pos = 0
        if self._buffer:
            pos = self._complete(data, frames)
        end = len(data)
        while end - pos >= 4:
            size = self._frame_size(data, pos)
            stop = pos + size
            if stop > end:
                self._wanted = size
                break
            if type(data) is bytes and size <= SMALL_FRAME:
                frames.append(data[pos + 4 : stop])  # As `_frame`, without a view in between.
            else:
                frames.append(_frame(data, pos + 4, stop))
            pos = stop
        if pos < end:
            self._buffer += data if pos == 0 else memoryview(data)[pos:]
        return frames

    def _complete(self, data: Buffer, frames: list[bytes | memoryview]) -> int:
        """Fill up the frame that was begun; returns how much of the data that took."""
        buffer = self._buffer
        taken = 0
        if self._wanted < 0:
            taken = min(4 - len(buffer), len(data))
            buffer += data[:taken]
            if len(buffer) < 4:
                return taken
            self._wanted = self._frame_size(buffer, 0)
        missing = self._wanted - len(buffer)
        more = memoryview(data)[taken : taken + missing]
        buffer += more
        if len(more) == missing:
            frames.append(_frame(buffer, 4, self._wanted))
            self._buffer = bytearray()
            self._wanted = -1
        return taken + len(more)

    def _frame_size(self, data: Buffer, pos: int) -> int:
        size: int = _LENGTH.unpack_from(data, pos)[0]
        if not 0 < size <= self._max_bytes:
            raise RemoteProtocolError(
                f"a frame of {size} bytes was announced; allowed are 1 to {self._max_bytes}"
            )
        return size + 4


def _frame(data: Buffer, start: int, stop: int) -> bytes | memoryview:
    view = memoryview(data)[start:stop]
    return view.tobytes() if len(view) <= SMALL_FRAME else view.toreadonly()


def encode_request(
    request: Request, *, api_version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Make a request's frame.

    Args:
        request: The message.
        api_version: Version in which to write it.
        correlation_id: Number that the response will repeat.
        client_id: Kafka property ``client.id``.

    Returns:
        The frame in parts, length prefix included; large byte strings are the caller's own.

    Raises:
        LocalProtocolError: A field holds what this version cannot carry.
        UnsupportedVersionError: The message has no such version.
    """
    name = b"" if client_id is None else client_id.encode()
    if len(name) > 0x7FFF:
        raise LocalProtocolError("client_id is longer than 32,767 bytes")
    tail = name + b"\0" if _is_flexible(type(request), api_version) else name

    def head(size: int) -> bytes:
        name_size = -1 if client_id is None else len(name)
        return (
            _REQUEST_HEADER.pack(
                size + 10 + len(tail), request.api_key, api_version, correlation_id, name_size
            )
            + tail
        )

    return _frame_parts(request, api_version, head)


def encode_response(response: Response, *, api_version: int, correlation_id: int) -> list[Buffer]:
    """Make a response's frame.

    Args:
        response: The message.
        api_version: Version of the request that it answers.
        correlation_id: Number from the request.

    Returns:
        The frame in parts, length prefix included; large byte strings are the caller's own.

    Raises:
        LocalProtocolError: A field holds what this version cannot carry.
        UnsupportedVersionError: The message has no such version.
    """
    flexible = _is_flexible(type(response), api_version) and response.api_key != API_VERSIONS

    def head(size: int) -> bytes:
        if flexible:
            return _FLEXIBLE_RESPONSE_HEADER.pack(size + 5, correlation_id, 0)
        return _RESPONSE_HEADER.pack(size + 4, correlation_id)

    return _frame_parts(response, api_version, head)


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Read the header of a request.

    For a kind that onceflow does not know, `end` is only right for header form 1.

    Args:
        frame: A whole frame without its length prefix.

    Raises:
        RemoteProtocolError: The bytes are no request header.
    """
    try:
        api_key, api_version, correlation_id, size = struct.unpack_from(">hhih", frame)
        end = 10 + max(size, 0)
        if end > len(frame):
            raise MalformedError("the client id is longer than the frame")
        client_id = None if size < 0 else str(frame[10:end], "utf-8")
        entry = API.get(api_key)
        if entry is not None and _is_flexible(entry.request_type, api_version):
            end = _skip_tagged_fields(frame, end)
    except (MalformedError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the bytes are not a request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def decode_response_header(frame: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """Read the header of a response.

    Args:
        frame: A whole frame without its length prefix.
        api_key: Kind of the request that it answers.
        api_version: Version of that request.

    Returns:
        The correlation id, and where the message begins.

    Raises:
        RemoteProtocolError: The bytes are no response header.
    """
    try:
        correlation_id: int = _LENGTH.unpack_from(frame)[0]
        end = 4
        if api_key != API_VERSIONS and _is_flexible(API[api_key].response_type, api_version):
            end = _skip_tagged_fields(frame, end)
    except (MalformedError, struct.error, IndexError) as error:
        raise RemoteProtocolError(f"the bytes are not a response header: {error}") from error
    return correlation_id, end


def _is_flexible(message_type: type[Message], version: int) -> bool:
    first = message_type.flexible_from
    return first is not None and version >= first


def _skip_tagged_fields(frame: Buffer, pos: int) -> int:
    count, pos = decode_uvarint(frame, pos)
    for _ in range(count):  # Each takes two bytes at least, so IndexError ends a lie.
        _, pos = decode_uvarint(frame, pos)
        size, pos = decode_uvarint(frame, pos)
        pos += size
    if pos > len(frame):
        raise MalformedError("a tagged field is longer than the frame")
    return pos


def _frame_parts(message: Message, version: int, head: Callable[[int], bytes]) -> list[Buffer]:
    """Encode a message, put a head before it, and join all parts but the large ones."""
    pieces: list[Buffer] = []
    message.encode_into(pieces.append, version)
    size = sum(map(len, pieces))
    if size <= SMALL_PART:
        pieces.insert(0, head(size))
        return [b"".join(pieces)]
    parts: list[Buffer] = []
    small: list[Buffer] = [head(size)]
    for piece in pieces:
        if len(piece) <= SMALL_PART:
            small.append(piece)
            continue
        if small:
            parts.append(b"".join(small))
            small.clear()
        parts.append(piece)
    if small:
        parts.append(b"".join(small))
    return parts


__all__ = [
    "FrameSplitter",
    "RequestHeader",
    "decode_request_header",
    "decode_response_header",
    "encode_request",
    "encode_response",
]
