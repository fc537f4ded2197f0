"""The network between simulated processes: TCP as it looks from user space.

Bytes of one direction of a connection arrive once and in order, or the connection ends. Everything
else is up to the seed: how long they take, in which pieces they come, how much of what was under
way when a side went down still arrives, and whether the other side hears of it at all.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim_world import Process, World

HIGH_WATER = 65_536
RTO_US = 40_000
"""How soon after a partition healed what was held back goes on."""


@dataclass
class NetworkFaults:
    """How bad the network is; probabilities are for each piece that is written.

    Attributes:
        delay_us: Usual time from one side to the other.
        slow: That a piece takes a hundred times as long.
        split: That a piece arrives in several.
        cut_after: That the connection is cut when the piece was delivered (its answer is lost).
        cut_before: That the connection is cut instead of delivering the piece.
        cut_within: That the connection is cut after a part of the piece.
        refuse: That connecting is refused.
        silent: That a cut is not told to the side that wrote (half-open).
    """

    delay_us: int = 300
    slow: float = 0.0
    split: float = 0.0
    cut_after: float = 0.0
    cut_before: float = 0.0
    cut_within: float = 0.0
    refuse: float = 0.0
    silent: float = 0.2


CALM = NetworkFaults()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, name: str, addresses: Any) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.name = name
        self.peer: SimTransport
        self.protocol: Any = None
        self.addresses = addresses
        self.port: int = 0
        self.random = network.world.stream(f"link/{name}")
        self.is_down = False
        self.is_severed = False  # Nothing that is written after a lost piece may arrive.
        self.lost = False
        self.closing = False
        self.outgoing: deque[tuple[int, bytes]] = deque()
        self.outgoing_bytes = 0
        self.last_arrival_us = 0
        self.scheduled = False
        self.reading_paused = False
        self.writing_paused = False
        self.eof_after = False

    # --- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.addresses.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return not self.reading_paused

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self.peer.pump()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.outgoing_bytes

    def write(self, data: Any) -> None:
        if self.is_down or self.closing or not self.process.alive:
            return
        self.network.send(self, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.eof_after = True
            if not self.outgoing:
                self.finish()

    def abort(self) -> None:
        if not self.closing or not self.is_down:
            self.closing = True
            self.network.reset(self, None, tell_peer=True)

    # --- the network's side

    def finish(self) -> None:
        """Everything written before ``close`` is on its way out."""
        self.network.reset(self, None, tell_peer=True, everything_arrives=True)

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol that the connection is gone, once."""
        self.is_down = True
        self.closing = True
        if not self.lost:
            self.lost = True
            self.process.call(lambda: self.protocol.connection_lost(error))

    def pump(self) -> None:
        """Deliver what may be delivered by now."""
        if self.outgoing and not self.scheduled:
            self.scheduled = True
            when_us = self.network.not_before(self, self.outgoing[0][0])
            self.network.world.at(when_us, self._arrive)

    def _arrive(self) -> None:
        self.scheduled = False
        if not self.outgoing:
            return
        if self.network.holds(self):
            # The partition is still there; the network pumps again when it heals.
            return
        peer = self.peer
        if peer.reading_paused and not peer.is_down:
            return
        _, data = self.outgoing.popleft()
        self.outgoing_bytes -= len(data)
        if not peer.is_down and peer.process.alive and not peer.lost:
            peer.process.call(lambda: peer.receive(data))
        if self.writing_paused and self.outgoing_bytes < HIGH_WATER // 4 and not self.lost:
            self.writing_paused = False
            self.process.call(lambda: None if self.lost else self.protocol.resume_writing())
        if not self.outgoing and self.eof_after and not self.is_down:
            self.finish()
        self.pump()

    def receive(self, data: bytes) -> None:
        """In its own process: bytes arrived."""
        if not self.lost and not (self.closing and self.eof_after):
            self.protocol.data_received(data)


@dataclass
class _Listener:
    process: Process
    factory: Callable[[], Any]
    host: str
    port: int
    backlog: list[Any] = field(default_factory=list)


class _Server:
    """What ``create_server`` returns."""

    def __init__(self, network: Network, listener: _Listener) -> None:
        self._network = network
        self._listener = listener
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return (self._listener.host, self._listener.port)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._network.unlisten(self._listener)

    async def start_serving(self) -> None:
        self._network.serving(self._listener)

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return True


class Network:
    """Connections of all processes.

    Attributes:
        faults: How bad it is now.
        partitioned: Pairs of process names that do not reach each other, some with a port.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = CALM
        self.partitioned: set[frozenset[str | int]] = set()
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._pending: dict[int, SimTransport] = {}
        self._ends: dict[SimTransport, None] = {}
        self._random = world.stream("network")
        self._count = 0
        self.cuts = 0

    def join(self, process: Process) -> None:
        """Give a process its sockets."""
        process.loop.network = self
        process.on_death.append(lambda: self._died(process))

    # --- connecting

    def listen(self, process: Process, host: str, port: int, factory: Any) -> _Server:
        listener = _Listener(process, factory, host, port or 9092)
        if (host, listener.port) in self._listeners:
            raise OSError(98, "address already in use")
        return _Server(self, listener)

    def serving(self, listener: _Listener) -> None:
        self._listeners[listener.host, listener.port] = listener

    def unlisten(self, listener: _Listener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    async def connect(self, process: Process, sock: socket.socket, address: Any) -> None:
        await asyncio.sleep(self._delay_us(self._random) / 1e6)
        while True:
            listener = self._listeners.get(tuple(address))
            server = "broker" if listener is None else listener.process.name
            if not self.parted(process.name, server, address[1]):
                break
            await asyncio.sleep(RTO_US / 1e6)  # SYNs are lost; the caller has a time limit.
        if listener is None or self._random.random() < self.faults.refuse:
            raise ConnectionRefusedError(111, "connection refused")
        self._count += 1
        peer_name = ("127.0.0.1", 40_000 + self._count)
        name = f"{process.name}#{self._count}"
        client = SimTransport(self, process, f"{name}>", {"peername": tuple(address)})
        server_end = SimTransport(
            self, listener.process, f"{name}<", {"peername": peer_name, "sockname": tuple(address)}
        )
        client.peer, server_end.peer = server_end, client
        client.port = server_end.port = address[1]
        self._ends[client] = None
        self._ends[server_end] = None
        self._pending[sock.fileno()] = client
        factory = listener.factory

        def accept() -> None:
            if not server_end.lost:
                server_end.protocol = factory()
                server_end.protocol.connection_made(server_end)

        server_end.protocol = _Nobody()
        listener.process.call(accept)

    def adopt(self, process: Process, sock: socket.socket, factory: Any) -> tuple[Any, Any]:
        client = self._pending.pop(sock.fileno())
        sock.close()
        client.protocol = factory()
        if client.lost:
            raise ConnectionResetError(104, "connection reset by peer")
        client.protocol.connection_made(client)
        return client, client.protocol

    # --- bytes

    def send(self, end: SimTransport, data: bytes) -> None:
        if end.is_severed:
            return
        faults, rng = self.faults, end.random
        chance = rng.random()
        if chance < faults.cut_before:
            self._cut(end, rng)
            return
        chance -= faults.cut_before
        cut_after = False
        if chance < faults.cut_within:
            data, cut_after = data[: rng.randrange(len(data))], True
        elif chance - faults.cut_within < faults.cut_after:
            cut_after = True
        pieces = [data]
        if rng.random() < faults.split and len(data) > 1:
            marks = sorted(rng.randrange(1, len(data)) for _ in range(rng.randrange(1, 4)))
            pieces = [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]
        for piece in pieces:
            if piece:
                arrival_us = max(end.last_arrival_us, self.world.now_us + self._delay_us(rng))
                end.last_arrival_us = arrival_us
                end.outgoing.append((arrival_us, piece))
                end.outgoing_bytes += len(piece)
        if cut_after:
            end.is_severed = True
            self.world.at(end.last_arrival_us + 2, lambda: self._cut(end, rng))
        if end.outgoing_bytes > HIGH_WATER and not end.writing_paused:
            end.writing_paused = True
            end.process.call(lambda: None if end.lost else end.protocol.pause_writing())
        end.pump()

    def _delay_us(self, rng: Any) -> int:
        delay_us = self.faults.delay_us
        if self.faults.slow and rng.random() < self.faults.slow:
            delay_us *= 100
        return int(delay_us // 4 + rng.randrange(delay_us))

    def parted(self, one: str, other: str, port: int) -> bool:
        """Whether two processes do not reach each other, over any port or over this one."""
        return bool(self.partitioned) and (
            frozenset((one, other)) in self.partitioned
            or frozenset((one, other, port)) in self.partitioned
        )

    def holds(self, end: SimTransport) -> bool:
        return self.parted(end.process.name, end.peer.process.name, end.port)

    def not_before(self, end: SimTransport, when_us: int) -> int:
        return max(when_us, self.world.now_us + 1)

    def part(self, one: str, other: str, port: int | None = None) -> None:
        """No bytes between two processes from now on; with a port, to that node only."""
        link = (one, other) if port is None else (one, other, port)
        self.partitioned.add(frozenset(link))
        self.world.note("net", "partition", *link)

    def heal(self) -> None:
        """End all partitions; what TCP held back goes on a little later."""
        if self.partitioned:
            self.partitioned.clear()
            self.world.note("net", "heal")
            for end in list(self._ends):
                if end.outgoing:
                    self.world.after(RTO_US, end.pump)

    def cut_some(self, rng: Any) -> None:
        """Cut connections at once, any number of them."""
        for end in list(self._ends):
            if end in self._ends and rng.random() < 0.4:
                self._cut(end, rng)

    # --- ends of connections

    def _cut(self, end: SimTransport, rng: Any) -> None:
        """Something in between drops the connection."""
        if end.is_down and end.peer.is_down:
            return
        self.cuts += 1
        end.is_severed = True
        self.world.note("net", "cut", end.name)
        silent = rng.random() < self.faults.silent
        for side in (end.peer, end):
            if side is end and silent:
                # Half-open: this side never hears of it, and its bytes go nowhere.
                self._silence(side)
            else:
                delay_us = rng.randrange(2_000)
                self.world.after(delay_us, lambda side=side: self._reset_one(side))
        end.outgoing.clear()
        end.outgoing_bytes = 0

    def _silence(self, end: SimTransport) -> None:
        """Whatever this side writes is lost, and it is told nothing."""
        end.outgoing = _Void()

    def _reset_one(self, end: SimTransport) -> None:
        end.outgoing.clear()
        if end.process.alive:
            end.lose(ConnectionResetError(104, "connection reset by peer"))
        end.is_down = True
        self._ends.pop(end, None)

    def reset(
        self,
        end: SimTransport,
        error: Exception | None,
        *,
        tell_peer: bool,
        everything_arrives: bool = False,
    ) -> None:
        """This side is through with the connection; the other one hears of it in a while.

        Bytes that are under way may still arrive before that, all or some of them.
        """
        if end.is_down:
            return
        end.lose(error)
        self._ends.pop(end, None)
        peer = end.peer
        if not tell_peer or peer.is_down:
            return
        rng = end.random
        if end.outgoing and not everything_arrives:
            for _ in range(rng.randrange(len(end.outgoing) + 1)):
                end.outgoing.pop()
        after_us = max(end.last_arrival_us, self.world.now_us) + self._delay_us(rng)

        def tell() -> None:
            if peer.is_down:
                return
            if self.holds(end):
                self.world.after(RTO_US, tell)
                return
            if end.outgoing:
                self.world.after(1_000, tell)
                return
            if peer.process.alive:
                peer.process.call(lambda: self._eof(peer))

        self.world.at(after_us + 1, tell)

    def _eof(self, end: SimTransport) -> None:
        if end.lost:
            return
        end.lose(None)
        self._ends.pop(end, None)

    def _died(self, process: Process) -> None:
        """The kernel closes the sockets of a dead process; after a power loss nobody does."""
        for listener in list(self._listeners.values()):
            if listener.process is process:
                self.unlisten(listener)
        silent = self._random.random() < 0.25
        for end in [e for e in self._ends if e.process is process]:
            if silent:
                end.is_down = end.lost = True
                self._ends.pop(end, None)
                end.outgoing.clear()
                self._zombies(end)
            else:
                self.reset(end, None, tell_peer=True)

    def _zombies(self, end: SimTransport) -> None:
        """The peer of a machine that is off hears nothing until it writes to the next one."""
        peer = end.peer

        def told() -> None:
            if not peer.is_down and peer.process.alive:
                peer.lose(ConnectionResetError(104, "connection reset by peer"))
                self._ends.pop(peer, None)

        self.world.after(self._random.randrange(500_000, 8_000_000), told)


class _Nobody:
    """Before a connection was accepted."""

    def data_received(self, data: bytes) -> None:
        raise AssertionError("bytes before the connection was made")

    def connection_lost(self, error: Exception | None) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class _Void(deque):  # type: ignore[type-arg]
    """Swallows what is written."""

    def append(self, item: object) -> None:
        pass
