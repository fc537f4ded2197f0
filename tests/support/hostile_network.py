"""A simulated network on which answers of the broker are damaged, held back, repeated or invented.

``FRAMES`` leaves what an answer says alone: lengths and correlation ids lie, answers are cut, come
twice, too late, never, or never end. Whatever a client was told then is true, so that the whole
history can be checked. ``CONTENT`` changes what answers say: error codes, offsets, epochs, counts,
addresses, any byte. Nothing that was told can be relied upon then, except that calls end.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from sim_network import CALM, Network, SimTransport, _Void
from sim_world import World
from wire_values import _value, random_message

from onceflow.sdk.errors import LocalProtocolError, RemoteProtocolError
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.frame import (
    FrameSplitter,
    decode_request_header,
    decode_response_header,
    encode_response,
)
from onceflow.sdk.protocol.schema import Message

FRAMES, CONTENT = "frames", "content"
ENDLESS_BYTES = 100_000_000
PIECE = bytes(60_000)
PIECES = 120
FRAME_MAX = 1 << 30
THROTTLE_MS_MAX = 2_000


class _Link:
    """What is known of one connection: requests without an answer, and pieces of frames."""

    def __init__(self) -> None:
        self.asked: deque[tuple[int, int]] = deque()
        self.requests = FrameSplitter(FRAME_MAX)
        self.answers = FrameSplitter(FRAME_MAX)
        self.last = b""
        self.mute = False


class HostileNetwork(Network):
    """Hurts some answers until calm is ordered.

    Attributes:
        how: ``FRAMES`` or ``CONTENT``.
        share: How many answers are hurt.
        hurt: How many were, by way.
    """

    how = FRAMES
    share = 0.06

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hurt: dict[str, int] = {}
        self._links: dict[SimTransport, _Link] = {}
        self._rng = world.stream("hostile")

    def send(self, end: SimTransport, data: bytes) -> None:
        from_client = end.name.endswith(">")
        link = self._links.setdefault(end if from_client else end.peer, _Link())
        if from_client:
            for frame in link.requests.feed(data):
                header = decode_request_header(frame)
                link.asked.append((header.api_key, header.api_version))
            super().send(end, data)
            return
        for frame in link.answers.feed(data):
            asked = link.asked.popleft() if link.asked else None
            whole = _framed(bytes(frame))
            if link.mute:
                continue
            if self.faults is CALM or asked is None or self._rng.random() >= self.share:
                super().send(end, whole)
            elif self.how == FRAMES:
                self._hurt_frame(end, link, whole)
            else:
                lie = self._lie(whole, *asked)
                # A client keeps silent for as long as it is told (KIP-219), be it for days.
                super().send(end, whole if _throttle_ms(lie, *asked) > THROTTLE_MS_MAX else lie)
            link.last = whole

    def _tell(self, what: str) -> None:
        self.hurt[what] = self.hurt.get(what, 0) + 1

    # --- frames

    def _hurt_frame(self, end: SimTransport, link: _Link, whole: bytes) -> None:
        rng = self._rng
        ways = ("cut", "longer", "shorter", "huge", "endless", "number", "twice", "late", "none",
                "unasked")  # fmt: skip
        way = rng.choice(ways)
        self._tell(way)
        self.world.note("net", "hostile", end.name, way)
        size = len(whole) - 4
        match way:
            case "cut":
                super().send(end, whole[: rng.randrange(1, len(whole))])
                link.mute = True
            case "longer":
                super().send(end, (size + rng.randrange(1, 400)).to_bytes(4, "big") + whole[4:])
            case "shorter":
                super().send(end, rng.randrange(size).to_bytes(4, "big") + whole[4:])
            case "huge":
                length = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
                super().send(end, length + whole[4:])
            case "endless":
                super().send(end, ENDLESS_BYTES.to_bytes(4, "big") + whole[4:])
                link.mute = True
                self._go_on(end, PIECES)
            case "number":
                number = int.from_bytes(whole[4:8], "big") + rng.choice((-1, 1, 1 << 31))
                super().send(end, whole[:4] + (number % (1 << 32)).to_bytes(4, "big") + whole[8:])
            case "twice":
                super().send(end, whole + whole)
            case "late":
                super().send(end, (link.last or whole) + whole)
            case "none":
                pass
            case "unasked":
                super().send(end, _framed(rng.randbytes(rng.randrange(1, 60))) + whole)

    def _go_on(self, end: SimTransport, pieces: int) -> None:
        if pieces and not end.is_down and not isinstance(end.outgoing, _Void):
            super().send(end, PIECE)
            self.world.after(1_000, lambda: self._go_on(end, pieces - 1))

    # --- what answers say

    def _lie(self, whole: bytes, api_key: int, version: int) -> bytes:
        rng = self._rng
        frame = whole[4:]
        response_type = API[api_key].response_type
        try:
            correlation_id, end = decode_response_header(frame, api_key, version)
            answer, _ = response_type.decode(frame, version, end)
        except RemoteProtocolError:  # ApiVersions of a version that is not known.
            return whole
        if rng.random() < 0.2:
            self._tell("bytes")
            return _framed(frame[:end] + _damaged(rng, frame[end:]))
        if rng.random() < 0.15:
            self._tell("invented")
            answer = random_message(response_type, version, rng)  # type: ignore[assignment]
        else:
            self._tell("field")
            first = response_type.flexible_from
            _change(rng, answer, version, first is not None and version >= first)
        try:
            parts = encode_response(answer, api_version=version, correlation_id=correlation_id)
        except LocalProtocolError:  # The lie cannot be told in that version.
            return whole
        return b"".join(parts)


def _throttle_ms(whole: bytes, api_key: int, version: int) -> int:
    frame = whole[4:]
    try:
        _, end = decode_response_header(frame, api_key, version)
        answer, _ = API[api_key].response_type.decode(frame, version, end)
    except RemoteProtocolError:
        return 0
    return getattr(answer, "throttle_time_ms", 0)


def _framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def _damaged(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body or b"\0")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
    return bytes(data)


def _change(rng: random.Random, message: Message, version: int, flexible: bool) -> None:
    """Change one field, at any depth; arrays also lose, gain or repeat elements."""
    fields = [
        (name, field) for name, field in message.fields().items() if field.is_present(version)
    ]
    if not fields:
        return
    name, field = rng.choice(fields)
    value: Any = getattr(message, name)
    if isinstance(value, Message) and rng.random() < 0.9:
        _change(rng, value, version, flexible)
        return
    if isinstance(value, list) and value:
        inner = rng.choice(value)
        if isinstance(inner, Message) and rng.random() < 0.8:
            _change(rng, inner, version, flexible)
            return
        setattr(message, name, rng.choice((value[:-1], value + value, [])))
        return
    if isinstance(value, bytes | bytearray | memoryview) and len(value):
        setattr(message, name, _damaged(rng, bytes(value)))
        return
    setattr(message, name, _value(name, field, version, rng, 1, False, flexible))
