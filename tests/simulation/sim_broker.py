"""One simulated broker: the product's state, handlers, server and connections on a simulated disk.

It starts, dies and starts again on the same folder. While it runs, its positions are compared with
what the files say: read here by hand, so that a fault of the log's own reader is seen.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sim_disk import Disk, SimStorage
from sim_network import Network
from sim_world import EPOCH_US, Process, World

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.log import PartitionLog
from onceflow.broker_lite.net.server import Server
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import read_listeners
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.broker_lite.testing.nodes import Nodes
from onceflow.broker_lite.topics import Topic

HOST, PORT = "127.0.0.1", 9092

_HEADER = struct.Struct(">qiibIhiqqqhii")


def _is_of_the_disk(error: BaseException | None) -> bool:
    """Whether an error is what the disk was told to answer, or comes of that."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None


class RawBatch(NamedTuple):
    """The head of a batch, as it lies in a file."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    data: bytes


def raw_batches(disk: Disk, directory: str) -> Iterator[RawBatch]:
    """Every batch of a partition's folder, in the order of its segment files."""
    files = disk.content.content.get(directory, {})
    for name in sorted(name for name in files if name.endswith(".log")):
        yield from _batches_of(bytes(files[name]))


def _batches_of(data: bytes) -> Iterator[RawBatch]:
    position = 0
    while position + _HEADER.size <= len(data):
        (
            base,
            length,
            leader_epoch,
            magic,
            _,
            attributes,
            delta,
            _,
            _,
            producer_id,
            epoch,
            sequence,
            _,
        ) = _HEADER.unpack_from(data, position)
        end = position + 12 + length
        if magic != 2 or length < _HEADER.size - 12 or end > len(data):
            return  # What a death in the middle of a write left.
        yield RawBatch(
            base,
            base + delta,
            leader_epoch,
            producer_id,
            epoch,
            sequence,
            bool(attributes & 0x10),
            bool(attributes & 0x20),
            data[position:end],
        )
        position = end


class SimBroker:
    """The broker and its data folder.

    Attributes:
        disk: The data folder.
        state: What handlers share; None while it is down.
        starts: How often it was started.
        disk_failures: How often it ended because the disk left something half done.
        nodes: The nodes that answer, in its one process.
        wall_skew_us: How far its machine's clock is off at the next start.
    """

    def __init__(
        self, world: World, network: Network, properties: Mapping[str, object], nodes: int = 1
    ) -> None:
        self.world = world
        self.network = network
        self.disk = Disk(world)
        self.storage: SimStorage | None = None
        self.config = BrokerConfig.from_properties(properties, IN_PROCESS_DEFAULTS)
        self.nodes = Nodes(nodes, self.config.node_id)
        if not self.config.durable and self.disk.random.random() < 0.25:
            self.disk.sync_us = (3_000, 400_000)  # Nobody waits for it.
        self.state: BrokerState | None = None
        self.server: Server | None = None
        self.process = None
        self.starts = 0
        self.kills = 0
        self.disk_failures = 0
        self.wall_skew_us = 0
        self.problems: list[str] = []
        self.flushed: dict[str, int] = {}
        self.on_recovered: list[Callable[[], None]] = []
        self._lowest_stable: dict[tuple[str, int, str], int] = {}

    @property
    def addresses(self) -> str:
        """``bootstrap_servers`` for clients, with every node."""
        count = len(self.nodes.placement.nodes)
        return ",".join(f"{HOST}:{PORT + number}" for number in range(count))

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.state is not None and self.process is not None and self.process.alive

    def start(self) -> None:
        """Start it on its folder; it may die while it recovers."""
        self.starts += 1
        process = self.world.start(f"broker/{self.starts}")
        self.process = process
        process.wall_offset_us = self.wall_skew_us
        self.network.join(process)
        process.on_death.append(self._died)
        storage = self.storage = self.disk.mount(process, durable=self.config.durable)
        rng = random.Random(f"{self.world.seed}/broker/{self.starts}")

        async def serve() -> None:
            try:
                placement = self.nodes.begin()
                now_ms = process.wall_ms()
                state = open_broker(storage, self.config, rng, now_ms, placement=placement)
                state.interceptor = self.nodes.opened(state)
                placement.on_moved.append(self._moved)
                server = Server(state, process.wall_ms, lambda acceptor: acceptor.start_serving())
                listeners = read_listeners(self.config, HOST, PORT)
                await server.start(listeners, self.nodes.listeners_of)
            except Exception as error:  # noqa: BLE001 - a start that fails is tried again
                self.world.note(process.name, "start failed", repr(error))
                if not _is_of_the_disk(error):
                    self.problems.append(f"the broker does not start: {error!r}")
                process.die()
                return
            state.log_manager.on_failure = lambda error: self._disk_failed(process, error)
            if state.log_manager.failure is not None:
                process.die()
                return
            self.state, self.server = state, server
            self._lowest_stable.clear()
            self.world.note(process.name, "serving")
            self.world.note(process.name, "recovered", self._recovered(state))
            for callback in self.on_recovered:
                callback()

        process.call(lambda: asyncio.ensure_future(serve(), loop=process.loop) and None)

    def _disk_failed(self, process: Process, error: OSError) -> None:
        """What the daemon does then: end soon, without writing anything out."""
        self.world.note(process.name, "disk failed", repr(error))
        self.disk_failures += 1
        self.world.after(self.disk.random.choice((0, 1_000, 20_000)), process.die)

    def _moved(self, topic: Topic, partition: int, now_ms: int) -> None:
        log = topic.partitions[partition]
        leader = self.state.placement.leader(topic.name, partition) if self.state else None
        name = f"{topic.name}-{partition}"
        self.world.note(
            "broker", "leader", name, leader, log.leader_epoch,
            log.log_end_offset, topic.topic_id.hex, self._is_kept(name, log.leader_epoch),
        )  # fmt: skip

    def _is_kept(self, directory: str, leader_epoch: int) -> bool:
        """Whether the disk took the note of a leader epoch; a full one does not."""
        lines = bytes(self.disk.folder(directory).get("leader-epoch-checkpoint", b"")).splitlines()
        notes = bytes(self.disk.folder("").get("start-notes.json", b"{}"))
        noted = int(json.loads(notes).get("greatest_epoch", 0)) >= leader_epoch
        return noted and bool(lines) and lines[-1].startswith(b"%d " % leader_epoch)

    def _recovered(self, state: BrokerState) -> dict[str, tuple[int, int, str]]:
        """End, leader epoch and topic id of each partition."""
        return {
            f"{topic.name}-{index}": (log.log_end_offset, log.leader_epoch, topic.topic_id.hex)
            for topic in state.topics
            for index, log in enumerate(topic.partitions)
        }

    def _died(self) -> None:
        self.kills += 1
        if self.state is not None:
            self.flushed = {
                str(log.topic_partition): log.flushed_offset
                for log in self.state.log_manager.partitions()
            }
        self.state = self.server = None

    def kill(self) -> None:
        """End its process at once."""
        if self.process is not None:
            self.process.die()

    def check_positions(self) -> None:
        """Compare the positions of every partition with its files.

        The last stable offset may not pass the first record of an open transaction, and never goes
        back while the broker runs.
        """
        if self.state is None:
            return
        for topic in self.state.topics:
            for index, log in enumerate(topic.partitions):
                self._check_recovery_point(f"{topic.name}-{index}", log)
                if topic.internal:
                    continue
                place = (topic.name, index, topic.topic_id.hex)
                stable, high = log.last_stable_offset, log.high_watermark
                if not stable <= high <= log.log_end_offset:
                    self.problems.append(f"{place}: {stable} <= {high} <= {log.log_end_offset}")
                if stable < self._lowest_stable.get(place, 0):
                    self.problems.append(f"{place}: the last stable offset went back to {stable}")
                self._lowest_stable[place] = stable
                first_open = first_open_offset(raw_batches(self.disk, f"{topic.name}-{index}"))
                if first_open is not None and stable > first_open:
                    self.problems.append(
                        f"{place}: last stable offset {stable} is past the open transaction "
                        f"at {first_open}"
                    )

    def _check_recovery_point(self, directory: str, log: PartitionLog) -> None:
        """Once no flush is on its way, everything below the last roll is known to be safe.

        With the stricter durabilities, so is everything that may be read.
        """
        assert self.storage is not None
        if log.failed or self.storage.flushing[directory]:
            return
        files = self.disk.content.content.get(directory, {})
        last_roll = max((int(name[:20]) for name in files if name.endswith(".log")), default=0)
        if log.recovery_point < last_roll:
            self.problems.append(
                f"recovery point: {directory} rolled at {last_roll}, and it stays at "
                f"{log.recovery_point}"
            )
        if self.config.durable and log.flushed_offset < log.high_watermark:
            self.problems.append(
                f"recovery point: {directory} is shown up to {log.high_watermark}, and is on the "
                f"disk up to {log.flushed_offset}"
            )


def first_open_offset(batches: Iterator[RawBatch]) -> int | None:
    """Where the oldest transaction without a marker begins."""
    open_since: dict[int, int] = {}
    for batch in batches:
        if batch.control:
            open_since.pop(batch.producer_id, None)
        elif batch.transactional:
            open_since.setdefault(batch.producer_id, batch.base_offset)
    return min(open_since.values(), default=None)


def wall_start_ms() -> int:
    """Wall time at the start of a run."""
    return EPOCH_US // 1000
