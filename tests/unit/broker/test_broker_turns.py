"""Goal: a connection takes turns. Everything that is at hand is handled in one turn and answered in
one write, in the order of the requests; no turn is long, and what it leaves in memory is bounded.

Method: connections of a broker in process get a transport that only notes what is written to it, so
that each read and each write is counted exactly; time is a number that the test moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from broker_requests import fetch_request, produce_request
from record_bytes import batch, record

from onceflow.broker_lite import Broker
from onceflow.broker_lite.net.connection import (
    REQUESTS_PER_TURN_MAX,
    TURN_ANSWER_BYTES_MAX,
    TURN_MS_MAX,
    ClientConnection,
)
from onceflow.broker_lite.registry import Registration
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.services import Services
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, MetadataRequest
from onceflow.sdk.protocol.frame import FrameSplitter, encode_request
from onceflow.sdk.protocol.schema import Request

START_MS = 1_700_000_000_000


class Clock:
    """Wall milliseconds that move when a test says so."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Peer(asyncio.Transport):
    """A transport without a socket: what the broker writes is kept, a write an entry."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        server = broker._running().server
        self.writes: list[bytes] = []
        self.takes_writes: int | None = None
        self.most_waiting_bytes = 0
        self.closed = False
        self.connection = ClientConnection(server, server.endpoints[0])
        self.connection.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 9092)}.get(name)

    def write(self, data: Any) -> None:
        waiting_bytes = len(data) + self.connection._outgoing.waiting_bytes
        self.most_waiting_bytes = max(self.most_waiting_bytes, waiting_bytes)
        self.writes.append(bytes(data))
        if self.takes_writes is not None and len(self.writes) >= self.takes_writes:
            self.connection.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self.connection.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def send(self, *requests: tuple[Request, int], client_id: str | None = "t") -> None:
        """Let the broker read requests, all at once; they are numbered from 0."""
        frames = [
            part
            for number, (request, version) in enumerate(requests)
            for part in encode_request(
                request, api_version=version, correlation_id=number, client_id=client_id
            )
        ]
        self.connection.data_received(b"".join(frames))

    @property
    def answered(self) -> list[int]:
        """Correlation ids of all answers, in order."""
        frames = FrameSplitter(1 << 30).feed(b"".join(self.writes))
        return [int.from_bytes(frame[:4], "big") for frame in frames]


class Working:
    """Stands before the handlers: each request takes its time, and who was handled is noted."""

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        self.work = work
        self.contexts: list[RequestContext] = []
        self.versions: list[tuple[type[Request], int]] = []

    def handle(
        self,
        registration: Registration,
        state: Services,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        self.work()
        self.contexts.append(context)
        self.versions.append((type(request), context.api_version))
        return registration.handler(state, context, request, now_ms)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock) as running:
        running.create_topic("t")
        yield running


HELLO = (ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)


def produced(count: int) -> list[tuple[Request, int]]:
    return [(produce_request("t", batch(record(0, key=b"k"), 1)), 9) for _ in range(count)]


async def test_everything_at_hand_is_answered_in_one_write_and_in_order(broker: Broker) -> None:
    peer = Peer(broker)
    peer.send(*produced(10), HELLO, *produced(10))
    assert len(peer.writes) == 1
    assert peer.answered == list(range(21))
    topic = broker.state.topics.get("t")
    assert topic is not None
    assert topic.partitions[0].log_end_offset == 20


async def test_a_turn_ends_after_a_number_of_requests(broker: Broker) -> None:
    first, second = Peer(broker), Peer(broker)
    broker.state.interceptor = working = Working()
    first.send(*produced(2 * REQUESTS_PER_TURN_MAX + 1))
    second.send(*produced(1))
    assert first.answered == list(range(REQUESTS_PER_TURN_MAX))
    assert second.answered == [0]
    for _ in range(3):
        await asyncio.sleep(0)
    assert first.answered == list(range(2 * REQUESTS_PER_TURN_MAX + 1))
    assert len(first.writes) == 3
    assert len(working.contexts) == 2 * REQUESTS_PER_TURN_MAX + 2


async def test_a_turn_ends_with_the_request_that_takes_long(broker: Broker, clock: Clock) -> None:
    def work() -> None:
        clock.now_ms += TURN_MS_MAX

    first, second = Peer(broker), Peer(broker)
    broker.state.interceptor = working = Working(work)
    first.send(*produced(3))
    second.send(*produced(3))
    assert (first.answered, second.answered) == ([0], [0])
    for _ in range(3):
        await asyncio.sleep(0)
    assert (first.answered, second.answered) == ([0, 1, 2], [0, 1, 2])
    ids = [context.connection_id for context in working.contexts]
    assert ids == [ids[0], ids[1]] * 3


async def test_large_answers_of_a_turn_do_not_pile_up(broker: Broker) -> None:
    topic = broker.state.topics.get("t")
    assert topic is not None
    size = TURN_ANSWER_BYTES_MAX // 2
    topic.partitions[0].append(batch(record(0, value=bytes(size)), 1), now_ms=START_MS)
    peer = Peer(broker)
    peer.send(*[(fetch_request("t", 0), 12)] * 20)
    assert peer.answered == list(range(20))
    assert TURN_ANSWER_BYTES_MAX < peer.most_waiting_bytes < TURN_ANSWER_BYTES_MAX + 2 * size


async def test_a_peer_that_takes_no_more_ends_the_turn(broker: Broker) -> None:
    topic = broker.state.topics.get("t")
    assert topic is not None
    value = bytes(2 * TURN_ANSWER_BYTES_MAX)
    topic.partitions[0].append(batch(record(0, value=value), 1), now_ms=START_MS)
    peer = Peer(broker)
    peer.takes_writes = 1
    broker.state.interceptor = working = Working()
    peer.send(*[(fetch_request("t", 0), 12)] * 5)
    assert len(working.contexts) == 1
    assert broker.state.unsent_bytes > 0
    peer.takes_writes = None
    peer.connection.resume_writing()
    await asyncio.sleep(0)
    assert peer.answered == list(range(5))
    assert broker.state.unsent_bytes == 0


async def test_what_was_answered_before_a_parked_request_is_sent_at_once(broker: Broker) -> None:
    peer = Peer(broker)
    peer.send(HELLO, (fetch_request("t", 0, max_wait_ms=10_000), 12), HELLO, HELLO)
    assert peer.answered == [0]
    other = Peer(broker)
    other.send(*produced(1))
    await asyncio.sleep(0)
    assert peer.answered == [0, 1, 2, 3]


async def test_answers_before_a_malformed_request_are_sent_before_the_end(broker: Broker) -> None:
    peer = Peer(broker)
    good = b"".join(encode_request(HELLO[0], api_version=4, correlation_id=0, client_id="t"))
    peer.connection.data_received(good + good + b"\0\0\0\4\x7f\xff\0\0")
    assert len(peer.answered) == 2
    assert peer.closed


async def test_each_request_has_the_header_that_it_came_with(broker: Broker) -> None:
    broker.state.interceptor = working = Working()
    peer = Peer(broker)
    metadata = MetadataRequest(topics=[])
    peer.send((metadata, 12), (metadata, 12), (metadata, 9), HELLO, (metadata, 9))
    peer.send((metadata, 9), client_id="other")
    peer.send((metadata, 9), client_id=None)
    peer.send((metadata, 1), client_id="")
    seen = [(kind.__name__, version) for kind, version in working.versions]
    named = "MetadataRequest"
    assert seen == [
        *((named, 12), (named, 12), (named, 9), ("ApiVersionsRequest", 4)),
        *((named, 9), (named, 9), (named, 9), (named, 1)),
    ]
    clients = [context.client_id for context in working.contexts]
    assert clients == ["t"] * 5 + ["other", None, ""]
    assert peer.answered == [0, 1, 2, 3, 4, 0, 0, 0]


async def test_a_known_header_is_not_used_for_another_principal(broker: Broker) -> None:
    broker.state.interceptor = working = Working()
    peer = Peer(broker)
    state = peer.connection.state
    assert state is not None
    peer.send(HELLO, HELLO)
    state.principal = "User:alice"
    peer.send(HELLO)
    principals = [context.principal for context in working.contexts]
    assert principals == ["User:ANONYMOUS", "User:ANONYMOUS", "User:alice"]
