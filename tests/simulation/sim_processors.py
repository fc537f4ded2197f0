"""Applications in the simulation: workers that process ``a``, with everything that interrupts them.

The worker is the product's, over the SDK's asyncio clients; only the local disk is replaced, by one
that outlives processes and can be lost. What an application does is drawn from the seed, so that
all workers of a run do the same: copy, count by key, or count in a chain of two functions with a
map. Handlers fail for a while, for good, and after they have changed state.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import sim_setup
from sim_processor_checker import fails, is_refused
from sim_work import TIMES, IdempotentProducer, Sending, Worker, member_times

from onceflow.processors import App, Context, DeadLetterLimits, MapState, Retries, State, StoreKind
from onceflow.processors.calls import Calls, InPlace
from onceflow.processors.errors import SlotInUseError
from onceflow.processors.kafka_services import Bytes, KafkaChangelogReader, KafkaTopicAdmin
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.ledger.transaction import TransactionLedger
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.unit import Unit
from onceflow.sdk import AsyncAdmin, AsyncConsumer
from onceflow.sdk.errors import (
    KafkaError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    RetriableError,
)
from onceflow.transactions import AsyncTransactionSession, SessionConfig

if TYPE_CHECKING:
    from sim_run import Simulation
    from sim_world import Process

GROUP = "counts"
OUTPUT, DEAD = "counted", "dead"
KEYS = 5
TOO_LARGE = 120_000
"""Bytes of an output that no segment takes."""

EXPECTED = (SlotInUseError, NoBrokersAvailableError, RequestTimedOutError, RetriableError)
"""How a worker may end by itself while faults happen: it was replaced, or no broker answers its
start. A supervisor starts it again."""


@dataclass(frozen=True)
class Shape:
    """What the application of a run is like.

    Attributes:
        kind: ``copy``, ``count`` or ``chain``.
        store: Where state lies.
        is_async: Whether handlers are coroutines.
        failing: Of a hundred records, how many fail for a while.
        backoff_ms: First wait between attempts.
        disk_is_lost: How often a start finds an empty disk.
    """

    kind: str
    store: StoreKind
    is_async: bool
    failing: int
    backoff_ms: int
    disk_is_lost: float


def draw_shape(seed: object) -> Shape:
    """The application of a seed."""
    rng = random.Random(f"{seed}/application")
    return Shape(
        rng.choice(("copy", "count", "count", "chain")),
        rng.choice((StoreKind.LMDB, StoreKind.LMDB, StoreKind.MEMORY)),
        rng.random() < 0.3,
        rng.choice((0, 10, 30)),
        rng.choice((1, 300, 2_000)),
        rng.choice((0.0, 0.3)),
    )


def draw(seed: object) -> sim_setup.Setup:
    """The surroundings of a seed: as in every run, but with applications."""
    setup = sim_setup.draw(seed)
    rng = random.Random(f"{seed}/processors")
    setup.workers = {
        **dict.fromkeys(setup.workers, 0),
        "input": rng.choice((1, 1, 2)),
        "transactional": rng.choice((0, 0, 1)),
        "application": rng.choice((1, 2, 3, 3)),
    }
    setup.units = rng.choice((20, 40, 80))
    setup.duration_us = rng.choice((3_000_000, 6_000_000))
    setup.trouble_every_us = rng.choice((150_000, 400_000))
    setup.segment_bytes = rng.choice((20_000, 100_000))  # A dead letter has to fit in.
    setup.troubles += ["kill worker", "pause worker", "zombie", "cut"]
    if setup.properties.get("onceflow.durability") == "kafka" and setup.power:
        # Inputs may be gone and their outputs not, which no rule here could tell apart.
        setup.properties["onceflow.durability"] = rng.choice(("group", "always"))
    return setup


class KeyedProducer(IdempotentProducer):
    """Fills the input of the application."""

    keys = KEYS

    def next_value(self, me: str) -> bytes:
        self.count += 1
        kind = self.random.choice(("", "", "", "", "", "", "", "", "!", "#"))
        return f"{me}.{self.count}{kind}".encode()

    async def _send(self, me: str, sending: Sending) -> None:
        await super()._send(me, sending)
        if not self.sim.calm:
            await self.pause(150)  # Records come while all of it happens.


# The local disk ------------------------------------------------------------------------------


class KeptMap(MemoryMap):
    """The map of a task on a disk that outlives its process."""

    holder: Process | None = None

    def close(self) -> None:
        self.holder = None


class LocalDisk:
    """What one host keeps of the state of its tasks."""

    def __init__(self) -> None:
        self.maps: dict[Path, KeptMap] = {}

    def open(self, path: Path, process: Process) -> ByteMap | None:
        """The map, unless a process that lives holds it."""
        found = self.maps.setdefault(path, KeptMap())
        if found.holder is not None and found.holder.alive and found.holder is not process:
            return None
        found.holder = process
        return found

    def lose(self) -> None:
        """Another host takes over, whose disk is empty."""
        self.maps = {}


class SimServices:
    """The outside world of one life of a worker."""

    def __init__(self, sim: Simulation, disk: LocalDisk, process: Process) -> None:
        self.sim = sim
        self.disk = disk
        self.process = process
        self.woken = asyncio.Event()
        self.settings: AppSettings

    async def admin(self) -> KafkaTopicAdmin:
        return KafkaTopicAdmin(await self._admin(), self.sleep, self.monotonic_s)

    async def _admin(self) -> AsyncAdmin:
        admin = AsyncAdmin(config=self.settings.admin_config())
        try:
            await admin.start()
        except BaseException:
            await admin.close()
            raise
        return admin

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        async def make(listener: TransactionLedger) -> AsyncTransactionSession:
            session = AsyncTransactionSession(config, listener=listener)
            try:
                await session.start()
            except BaseException:
                await session.close(0)
                raise
            return session

        return TransactionLedger(make, owner, unit.lanes, calls, config.revoke_budget_ms)

    async def changelog_reader(self) -> KafkaChangelogReader:
        admin = await self._admin()
        consumer = AsyncConsumer(config=self.settings.restoring_config())
        try:
            await consumer.start()
        except BaseException:
            await consumer.close()
            await admin.close()
            raise
        return KafkaChangelogReader(admin, cast("AsyncConsumer[Bytes, Bytes]", consumer))

    def open_map(self, kind: StoreKind, directory: Path, tombstone_age_ms: int) -> ByteMap | None:
        return MemoryMap() if kind is StoreKind.MEMORY else self.disk.open(directory, self.process)

    def monotonic_s(self) -> float:
        return self.sim.world.now_us / 1e6

    def wall_ms(self) -> int:
        return self.process.wall_ms()

    async def sleep(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.woken.wait(), delay_s)

    def wake(self) -> None:
        self.woken.set()


# Workers -------------------------------------------------------------------------------------


class ApplicationWorker(Worker):
    """One worker of the application, through all of its lives."""

    def __init__(self, sim: Simulation, name: str, shape: Shape) -> None:
        super().__init__(sim, name, 0)
        self.shape = shape
        self.disk = LocalDisk()

    async def work(self, me: str) -> None:
        process = self.process
        assert process is not None
        while not self.sim.drained(GROUP):
            if self.random.random() < self.shape.disk_is_lost:
                self.disk.lose()
            app = self._app()
            services = SimServices(self.sim, self.disk, process)
            services.settings = app.settings
            worker = app._make_worker(services)
            stopping = asyncio.create_task(self._stop(me, app, self.sim.world.now_us))
            self.note(me, "worker begins")
            try:
                await worker.run(InPlace())
                self.note(me, "worker ends")
            except KafkaError as error:
                if not isinstance(error, EXPECTED):
                    process.fault(f"worker ended by {type(error).__name__}: {error}")
                await self.failed(me, "worker", error)
            finally:
                app._worker = None
                stopping.cancel()
                await asyncio.wait([stopping])

    async def _stop(self, me: str, app: App, began_us: int) -> None:
        """Stop in order after a while, or when all is done."""
        after_us = self.random.choice((300_000, 1_000_000, 3_000_000, 30_000_000))
        while not self.sim.drained(GROUP):
            if self.sim.world.now_us - began_us > after_us and not self.sim.calm:
                break
            await asyncio.sleep(0.1)
        leave = self.random.random() < 0.5
        self.note(me, "worker is stopped", leave)
        app._stop(leave_group=leave)

    def _app(self) -> App:
        rng, sim = self.random, self.sim
        protocol = rng.choice(sim.protocols)
        times = {
            "session_timeout_ms": max(3_000, sim.transaction_timeout_ms),
            "heartbeat_interval_ms": 700,
            "fetch_max_wait_ms": 300,
        }
        app = App(
            GROUP,
            sim.broker.addresses,
            slot=self.name,
            state_dir=Path("/sim"),
            commit_interval_ms=rng.choice((1, 30, 200)),
            commit_records=rng.choice((1, 5, 1_000)),
            transaction_timeout_ms=sim.transaction_timeout_ms,
            max_poll_interval_ms=6_000,
            max_poll_records=rng.choice((1, 5, 100)),
            operation_timeout_ms=3_000,
            revoke_budget_ms=1_500,
            shutdown_timeout_ms=6_000,
            aborts_max=500,
            partitions=-1,
            consumer_settings={**TIMES, **member_times(protocol, times), **protocol},
            producer_settings={
                **TIMES,
                "linger_ms": rng.choice((0, 10)),
                "batch_size": rng.choice(sim.batch_sizes),
            },
        )
        self._declare(app)
        return app

    def _declare(self, app: App) -> None:
        shape = self.shape
        failed: dict[bytes, int] = {}

        def trouble(value: bytes) -> None:
            if fails(value):
                raise ValueError("poison")
            chance = random.Random(value)
            if not self.sim.calm and chance.randrange(100) < shape.failing:
                failed[value] = failed.get(value, 0) + 1
                if failed[value] <= chance.randrange(1, 3):
                    raise LookupError("for a while")

        retries = Retries(3, backoff_ms=shape.backoff_ms, only=(LookupError,))
        options = {
            "dead_letter": DEAD,
            "limits": DeadLetterLimits(10**6, 1.0),
            "store": shape.store,
            "retries": retries,
        }

        def shown(value: bytes, count: int) -> bytes:
            text = b"%s:%d" % (value, count)
            return text.rjust(TOO_LARGE) if is_refused(value) else text

        def copy(value: bytes) -> bytes:
            trouble(value)
            return shown(value, 0)

        def count(value: bytes, seen: State[int]) -> bytes:
            seen.set(seen.get(0) + 1)
            trouble(value)  # What it has set is taken back.
            return shown(value, seen.get(0))

        def add(value: bytes, seen: MapState[str, int], context: Context) -> bytes:
            seen["n"] = seen.get("n", 0) + 1
            trouble(value)
            return shown(value, seen["n"])

        async def pass_on(value: bytes) -> bytes:
            await asyncio.sleep(0.002)
            return value

        async def count_async(value: bytes, seen: State[int]) -> bytes:
            seen.set(seen.get(0) + 1)
            await asyncio.sleep(0.005)
            trouble(value)
            return shown(value, seen.get(0))

        if shape.kind == "copy":
            app.processor("a", to=OUTPUT, name="step", **options)(copy)
        elif shape.kind == "count":
            function = count_async if shape.is_async else count
            app.processor("a", to=OUTPUT, name="step", **options)(function)
        else:
            app.processor("a", name="step", **options)(add)
            app.processor(add, to=OUTPUT, name="last", dead_letter=DEAD)(pass_on)
