"""Goal: whatever bytes a connection carries, only that connection pays for them.

Method: a broker on a simulated network gets valid requests of every kind and version, of which most
are damaged (bytes replaced, cut, repeated, lengths that lie), in pieces of any size. An honest
connection asks in between and must be answered each time; no handler may end in a traceback, and
the broker's memory and positions stay what they were. Seeds are fixed; ``ONCEFLOW_FUZZ_SEEDS``
runs more.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import tracemalloc
from typing import Any

import pytest
from sim_broker import HOST, PORT, SimBroker
from sim_network import Network
from sim_run import own_world
from sim_world import World
from wire_values import random_message

from onceflow.sdk import AsyncAdmin, AsyncProducer
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.frame import encode_request
from onceflow.sdk.protocol.schema import Request

SEEDS = int(os.environ.get("ONCEFLOW_FUZZ_SEEDS", "3"))
FRAMES = 80
MEMORY_MAX = 64 * 1024 * 1024
PROPERTIES = {
    "socket.request.max.bytes": 1_048_576,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """A frame with some of its bytes wrong; one in four is whole."""
    data = bytearray(frame)
    for _ in range(rng.choice((0, 1, 1, 3))):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 30)]
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(1, 12))
        if not data:
            data = bytearray(1)
    if rng.random() < 0.8:  # Usually the length in front is true, so that the rest is looked at.
        data[:4] = (len(data) - 4).to_bytes(4, "big") if len(data) > 4 else b"\0\0\0\1"
    return bytes(data)


def some_frame(rng: random.Random) -> bytes:
    """A request of any kind in any version."""
    request_type = API[rng.choice(sorted(API))].request_type
    versions = request_type.versions
    version = rng.randint(versions[0], versions[-1])
    message = random_message(request_type, version, rng)
    assert isinstance(message, Request)
    parts = encode_request(message, api_version=version, correlation_id=7, client_id="fuzz")
    return b"".join(parts)


class Garbage:
    """A peer that writes and takes whatever comes."""

    def __init__(self) -> None:
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


async def _pour(network: Network, process: Any, rng: random.Random) -> None:
    peer: Any = None
    for _ in range(FRAMES):
        if peer is None or peer.lost:
            with socket.socket() as sock:
                await network.connect(process, sock, (HOST, PORT))
                _, peer = network.adopt(process, sock, Garbage)
        data = damaged(rng, some_frame(rng))
        middle = rng.randrange(len(data) + 1)
        for piece in (data[:middle], data[middle:]):
            if piece:
                peer.transport.write(piece)
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_garbage_hurts_only_its_connection(seed: int) -> None:
    world = World(f"fuzz {seed}")
    network = Network(world)
    broker = SimBroker(world, network, PROPERTIES)
    rng = world.stream("garbage")
    done: list[str] = []
    with own_world(world, 100_000) as logged:
        broker.start()
        world.run(lambda: broker.is_up, 5_000_000)
        garbage, honest = world.start("garbage"), world.start("honest")
        for process in (garbage, honest):
            network.join(process)

        async def pour() -> None:
            await _pour(network, garbage, rng)
            done.append("garbage")

        async def ask() -> None:
            async with (
                AsyncAdmin(bootstrap_servers=broker.addresses) as admin,
                AsyncProducer(bootstrap_servers=broker.addresses) as producer,
            ):
                await admin.create_topics(["honest"])
                for number in range(40):
                    stored = await producer.send_and_wait("honest", b"%d" % number, partition=0)
                    assert stored.offset == number
                    assert "honest" in await admin.list_topics()
            done.append("honest")

        tracemalloc.start()
        garbage.call(lambda: garbage.loop.create_task(pour()) and None)
        honest.call(lambda: honest.loop.create_task(ask()) and None)
        world.run(lambda: len(done) == 2 or bool(honest.faults), 200_000_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert broker.process is not None
        problems = [*broker.process.faults, *honest.faults, *garbage.faults, *logged]
        broker.check_positions()
        for process in world.processes:
            process.alive = False
            process.loop.abandon()
            process.loop.bury()
    assert problems == []
    assert broker.problems == []
    assert peak < MEMORY_MAX
