"""One simulated run from its seed: set up, faults, calm, and the verdict.

``simulate(seed)`` is the whole of it. Nothing outside of the seed has an influence, so that the
same seed gives the same history, event by event, as long as the code is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sim_ending
import sim_nodes
import sim_trouble
from sim_admin import Administrator, TopicOwner
from sim_broker import SimBroker
from sim_checker import Checker, Ending
from sim_history import History
from sim_network import CALM, Network
from sim_setup import TOPICS, Setup, draw
from sim_stores import Stores
from sim_work import (
    CompactionProducer,
    GroupConsumer,
    IdempotentProducer,
    Reader,
    SessionWorker,
    ShortLivedProducer,
    TransactionalProducer,
    Worker,
)
from sim_world import EPOCH_US, Process, StuckError, World

from onceflow.broker_lite import broker, topics
from onceflow.broker_lite.log import LogConfig
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.topic_config import log_config

CALM_LIMIT_US = 60_000_000
"""Virtual time after the last fault within which everybody must be done."""

INTERNAL_SEGMENT_BYTES = 104_857_600
"""Default of the coordinators' topics, by which they are told from the others."""

LARGEST_GROUP_BYTES = 6_000
"""Room for one record of a coordinator, which has to fit into a segment."""

TOPIC_CONFIGS = {
    "a": {"segment.ms": "2000"},
    "b": {},
    "compact": {
        "cleanup.policy": "compact",
        "segment.ms": "300",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "500",
    },
    "short": {"retention.ms": "1500", "segment.ms": "300", "retention.bytes": "2000"},
}


@dataclass
class Result:
    """What a run gave.

    Attributes:
        seed: Its seed.
        problems: What was wrong; empty when all is well.
        breakdowns: Those of them that are wrong whatever was told to clients: who hangs, breaks
            with another error than the SDK's, or leaves something behind.
        history: What happened.
        digest: Hash of the history.
        virtual_s: Virtual length.
        counts: How often what happened.
    """

    seed: object
    problems: list[str]
    history: History
    digest: str
    virtual_s: float
    counts: dict[str, int] = field(default_factory=dict)
    breakdowns: list[str] = field(default_factory=list)


class Simulation:
    """The running parts of one run.

    Attributes:
        stores: The database, in runs that have one.
    """

    stores: Stores | None = None

    def __init__(
        self, seed: object, setup: Setup | None = None, network: type[Network] = Network
    ) -> None:
        self.setup = setup or draw(seed)
        self.world = World(seed)
        self.network = network(self.world)
        self.broker = SimBroker(self.world, self.network, self.setup.properties, self.setup.nodes)
        self.workers: list[Worker] = []
        self.calm = False
        self.may_lose_records = self.setup.power and not self.broker.config.durable
        self.partitions = self.setup.partitions
        self.protocols = self.setup.protocols
        self.static_members = self.setup.static_members
        self.transaction_timeout_ms = self.setup.transaction_timeout_ms
        # A batch has to fit into a segment.
        self.batch_sizes = (120, 300) if self.setup.segment_bytes < 10_000 else (120, 16_384)
        self._drained: dict[str, tuple[int, bool]] = {}

    # --- for workers

    def spawn(self, name: str) -> Process:
        """A client's process."""
        process = self.world.start(name)
        self.network.join(process)
        return process

    def is_over(self) -> bool:
        """Whether everybody who writes or commits is done."""
        return self.calm and all(
            worker.finished
            for worker in self.workers
            if not isinstance(worker, Reader | Administrator | TopicOwner)
        )

    def inputs_of(self, group: str) -> tuple[str, ...]:
        """The topics that a group reads."""
        return ("a",)

    def drained(self, group: str) -> bool:
        """Whether a group has committed everything that its topics hold and ever will hold."""
        if not self.calm or not self.broker.is_up:
            return False
        looked_us, answer = self._drained.get(group, (-1_000_000, False))
        if answer or self.world.now_us - looked_us < 50_000:
            return answer
        writers = (IdempotentProducer, TransactionalProducer)
        answer = all(w.finished for w in self.workers if isinstance(w, writers))
        answer = answer and self.is_at_end(group)
        self._drained[group] = (self.world.now_us, answer)
        return answer

    def is_at_end(self, group: str) -> bool:
        """Whether a group has committed everything that its topics hold at the moment."""
        topics = self.inputs_of(group)
        return all(sim_ending.group_is_at_end(self, group, topic) for topic in topics)

    # --- life

    def surroundings(self) -> contextlib.AbstractContextManager[object]:
        """What else of the product is replaced for this run."""
        return contextlib.nullcontext() if self.stores is None else self.stores.replaced()

    def happen(self, trouble: str, rng: random.Random) -> bool:
        """Let something go wrong that only this kind of run has; False if it has no such thing."""
        return self.stores is not None and self.stores.happen(trouble, rng)

    def make_workers(self) -> None:
        """Everybody who takes part."""
        setup = self.setup
        makers: dict[str, Any] = {
            "producer": lambda i: IdempotentProducer(self, f"prod{i}", setup.units),
            "transactional": lambda i: TransactionalProducer(self, f"txn{i}", setup.units // 2),
            "compaction": lambda i: CompactionProducer(self, f"comp{i}", 2 * setup.units),
            "short": lambda i: ShortLivedProducer(self, f"short{i}", 2 * setup.units),
            "session": lambda i: SessionWorker(self, f"sess{i}", i),
            "group": lambda i: GroupConsumer(self, f"group{i}", 0),
            "committed reader": lambda i: Reader(self, f"rc{i}", "read_committed", list(TOPICS)),
            "reader": lambda i: Reader(self, f"ru{i}", "read_uncommitted", list(TOPICS)),
            "admin": lambda i: Administrator(self, f"admin{i}", 2 * setup.units),
            "owner": lambda i: TopicOwner(self, f"owner{i}", setup.units // 2),
        }
        for kind, count in setup.workers.items():
            for index in range(count):
                self.workers.append(makers[kind](index))

    def run(self) -> None:
        """Everything up to the point where nobody has anything left to do."""
        world = self.world
        self.broker.start()
        world.run(lambda: self.broker.is_up, 5_000_000)
        self._create_topics()
        self.make_workers()
        self.fill()
        rng = world.stream("starts")
        for worker in self.workers:
            if not worker.finished:
                world.after(rng.randrange(400_000), worker.start)
        sim_trouble.begin(self)
        self._watch()
        world.run(lambda: self.calm, self.setup.duration_us + 60_000_000)
        end_us = world.now_us + CALM_LIMIT_US
        world.run(lambda: all(worker.finished for worker in self.workers), end_us)
        world.run(lambda: sim_ending.is_settled(self), world.now_us + CALM_LIMIT_US)

    def fill(self) -> None:
        """What workers do before anybody else begins, and before faults happen."""

    def judge(self) -> list[str]:
        """What a kind of run has to say beside the checker, once nothing moves any more."""
        return []

    def end_faults(self) -> None:
        """From now on everything works."""
        self.calm = True
        if self.stores is not None:
            self.stores.end_faults()
        self.network.faults = CALM
        self.network.heal()
        disk = self.broker.disk
        disk.full = False
        disk.die_in_writes = disk.fail_in_writes = disk.fail_in_syncs = None
        self.world.note("sim", "calm")
        sim_nodes.end(self)
        for worker in self.workers:
            for process in self.world.processes:
                if process.name.startswith(f"{worker.name}/") and process is not worker.process:
                    process.die()
                process.paused_until_us = min(process.paused_until_us, self.world.now_us + 500_000)
            if worker.process is not None and not worker.process.alive and not worker.finished:
                worker.start()

    def _create_topics(self) -> None:
        state, process = self.broker.state, self.broker.process
        assert state is not None
        assert process is not None
        for name in TOPICS:
            state.topics.create(
                name, self.partitions[name], dict(TOPIC_CONFIGS[name]), process.wall_ms()
            )
        if self.may_lose_records:
            self.broker.on_recovered.append(lambda: sim_ending.note_keys(self))
        # Everybody needs them; what becomes of new ones is for those who make them.
        self.broker.disk.sync_all()

    def _watch(self) -> None:
        """Look at the broker's positions now and then."""
        self.broker.check_positions()
        self.world.after(150_000, self._watch)


def simulate(
    seed: object,
    setup: Setup | None = None,
    network: type[Network] = Network,
    kind: type[Simulation] = Simulation,
) -> Result:
    """One run.

    Args:
        seed: Anything that has a repr.
        setup: What takes part; drawn from the seed by default.
        network: The kind of network.
        kind: The kind of run.
    """
    sim = kind(seed, setup, network)
    problems: list[str] = []
    with own_world(sim.world, sim.setup.segment_bytes) as logged, sim.surroundings():
        ending = Ending()
        try:
            sim.run()
            ending = sim_ending.look(sim)
            problems += sim.judge()
        except StuckError as error:
            waiting = [worker.name for worker in sim.workers if not worker.finished]
            problems.append(f"stuck: {error}; still busy: {waiting}")
            problems.append(sim_ending.where_tasks_wait(sim, waiting))
        digest = sim.world.history.digest()
        _bury(sim)
    problems += sim.broker.problems
    for process in sim.world.processes:
        problems += [f"{process.name}: {what}" for what in process.faults]
    problems += logged
    breakdowns = list(problems)
    if ending.logs:
        problems += Checker(sim.world.history, ending).check()
    return Result(
        seed,
        problems,
        sim.world.history,
        digest,
        sim.world.now_us / 1e6,
        {
            "events": len(sim.world.history.events),
            "broker starts": sim.broker.starts,
            "disk failures": sim.broker.disk_failures,
            "cuts": sim.network.cuts,
            "acked": len(sim.world.history.of("acked")),
            "committed": len(sim.world.history.of("committed")),
            "writes": sim.broker.disk.writes,
        },
        breakdowns,
    )


def _bury(sim: Simulation) -> None:
    for process in sim.world.processes:
        process.alive = False
        process.loop.abandon()
        process.loop.bury()


class _ErrorLog(logging.Handler):
    """Errors that the product logs with a traceback are faults of the product."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self.world = world
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not sim_trouble.is_expected(error):
            import traceback

            place = "".join(traceback.format_exception(error)[-6:])
            self.found.append(f"logged: {record.getMessage()}: {error!r}\n{place}")


@contextlib.contextmanager
def own_world(world: World, segment_bytes: int) -> Iterator[list[str]]:
    """Give product code the world's clocks and randomness, and put everything back."""

    def wall() -> float:
        process = world.current
        return (process.wall_ms() / 1000) if process else (EPOCH_US + world.now_us) / 1e6

    uuids = world.stream("uuids")

    def small_segments(overrides: Mapping[str, str], config: BrokerConfig) -> LogConfig:
        values = log_config(overrides, config)
        internal = values.segment_bytes == INTERNAL_SEGMENT_BYTES
        limit = max(segment_bytes, LARGEST_GROUP_BYTES) if internal else segment_bytes
        return values.replace(segment_bytes=min(values.segment_bytes, limit))

    state = random.getstate()
    random.seed(f"{world.seed}/global")
    handler = _ErrorLog(world)
    logger = logging.getLogger("onceflow")
    level = logger.level
    replaced = [
        (time, "time", wall),
        (time, "monotonic", lambda: world.now_us / 1e6),
        (uuid, "uuid4", lambda: uuid.UUID(int=uuids.getrandbits(128), version=4)),
        (broker, "log_config", small_segments),
        (topics, "log_config", small_segments),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    collecting = gc.isenabled()
    gc.disable()
    propagate = logger.propagate
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        yield handler.found
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value)
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        random.setstate(state)
        asyncio.events._set_running_loop(None)
        if collecting:
            gc.enable()
