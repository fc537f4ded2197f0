"""Applications in the simulation: their workers, with everything that interrupts them.

The worker is the product's, over the SDK's asyncio clients; only the local disk is replaced, by one
that outlives processes and can be lost. ``sim_shapes`` says what an application does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sim_shapes import GROUP, Handlers, Shape
from sim_work import TIMES, IdempotentProducer, Sending, Worker, member_times
from sim_world import EPOCH_US

from onceflow.processors import App, StoreKind
from onceflow.processors.calls import Calls, InPlace
from onceflow.processors.errors import SlotInUseError
from onceflow.processors.graph.topology import Topology
from onceflow.processors.kafka_services import Bytes, KafkaChangelogReader, KafkaTopicAdmin
from onceflow.processors.ledger.at_least_once import (
    AtLeastOnceConfig,
    AtLeastOnceProducer,
    end_predecessor,
)
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.ledger.sink import SinkLedger
from onceflow.processors.ledger.transaction import TransactionLedger
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.bytemap import ByteMap, Marks
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.unit import Unit
from onceflow.processors.worker.loop import Worker as ProductWorker
from onceflow.sdk import AsyncAdmin, AsyncConsumer, AsyncProducer
from onceflow.sdk.errors import (
    KafkaError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    RetriableError,
)
from onceflow.transactions import AsyncTransactionSession, SessionConfig
from onceflow.transactions.clients import SessionProducer
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.listener import RebalanceHooks, SessionListener
from onceflow.transactions.sdk_clients import AsyncioClients
from onceflow.transactions.sinks import Postgres
from onceflow.transactions.sinks.session_core import SinkSessionCore
from onceflow.transactions.sinks.threaded import asyncio_sink

if TYPE_CHECKING:
    from sim_processor_run import ProcessorSimulation as Simulation
    from sim_world import Process

KEYS = 5
RETIRES = 0.2
"""Of workers that were stopped in order, how many do not come back."""

STEP_MS, DISORDER_MS = 50, 500
"""Event time from one record of a producer to the next, and how far records are out of order."""

EXPECTED = (SlotInUseError, NoBrokersAvailableError, RequestTimedOutError, RetriableError)
"""How a worker may end by itself while faults happen: it was replaced, or no broker answers its
start. A supervisor starts it again."""


class KeyedProducer(IdempotentProducer):
    """Fills an input of the application.

    Args:
        sim: The run.
        name: Its name.
        left: Records to send.
        topic: The input.
        marks: Ends of values: ``!`` for those that fail, ``#`` for those whose output is refused.
    """

    keys = KEYS

    def __init__(self, sim: Simulation, name: str, left: int, topic: str, marks: str) -> None:
        super().__init__(sim, name, left)
        self.topic = topic
        self.marks = marks

    def next_value(self, me: str) -> bytes:
        self.count += 1
        mark = self.random.choice(("",) * 8 + tuple(self.marks))
        return f"{me}.{self.count}{mark}".encode()

    async def _send(self, me: str, sending: Sending) -> None:
        rng = self.random
        key = f"k{rng.randrange(self.keys)}".encode()
        time_ms = EPOCH_US // 1000 + self.count * STEP_MS - rng.randrange(DISORDER_MS)
        value = self.next_value(me)
        await sending.send(self.topic, value, key, None, timestamp_ms=time_ms)
        if self.sim.faults_began and not self.sim.calm:
            await self.pause(150)  # Records come while all of it happens.


# The local disk ------------------------------------------------------------------------------


GATHERED_COMMITS = 3
"""Commits that reach the disk together, as with LMDB; a process that dies loses them."""


class KeptMap(MemoryMap):
    """The map of a task on a disk that outlives its process."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: Process | None = None
        self._gathered = 0
        self._written: tuple[dict[bytes, bytes], Marks] = ({}, Marks())

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._write()
        return super().range(start, end, reverse=reverse)

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        super().apply(writes, marks)
        self._gathered += 1
        if not writes or self._gathered >= GATHERED_COMMITS:
            self._write()

    def clear(self, prefix: bytes, marks: Marks) -> None:
        super().clear(prefix, marks)
        self._gathered += 1
        self._write()

    def close(self) -> None:
        self._write()
        self.holder = None

    def _write(self) -> None:
        if self._gathered:
            self._gathered = 0
            self._written = (dict(self._values), self.marks)

    def died(self) -> None:
        """What its process had gathered is gone, values and marks together."""
        values, self.marks = self._written
        self._values, self._ordered, self._gathered = dict(values), None, 0


class LocalDisk:
    """What one host keeps of the state of its tasks."""

    def __init__(self) -> None:
        self.maps: dict[Path, KeptMap] = {}

    def open(self, path: Path, process: Process) -> ByteMap | None:
        """The map, unless a process that lives holds it."""
        found = self.maps.setdefault(path, KeptMap())
        if found.holder is not None and found.holder.alive and found.holder is not process:
            return None
        if found.holder is not None and not found.holder.alive:
            found.died()
        found.holder = process
        return found

    def lose(self) -> None:
        """Another host takes over, whose disk is empty."""
        self.maps = {}


class RepeatingClients(AsyncioClients):
    """The clients of a session with at-least-once, as ``KafkaServices`` makes the blocking ones.

    Args:
        services: Makes producers.
    """

    def __init__(self, services: SimServices) -> None:
        self._services = services
        self._now: AsyncConsumer[object, object] | None = None

    async def producer(self, config: AnySessionConfig) -> SessionProducer:
        """A producer that commits offsets by the consumer."""
        producer = await self._services.plain_producer(config)
        return AtLeastOnceProducer(producer, self._consumer_now)

    async def consumer(
        self, config: AnySessionConfig, hooks: RebalanceHooks
    ) -> AsyncConsumer[object, object]:
        """A subscribed consumer, which also commits."""
        self._now = await super().consumer(config, hooks)
        return self._now

    def _consumer_now(self) -> AsyncConsumer[object, object]:
        assert self._now is not None
        return self._now


class SimServices:
    """The outside world of one life of a worker."""

    def __init__(self, sim: Simulation, disk: LocalDisk, process: Process) -> None:
        self.sim = sim
        self.disk = disk
        self.process = process
        self.woken = asyncio.Event()
        self.settings: AppSettings

    async def admin(self) -> KafkaTopicAdmin:
        return KafkaTopicAdmin(await self.make_admin(), self.sleep, self.monotonic_s)

    async def make_admin(self) -> AsyncAdmin:
        admin = AsyncAdmin(config=self.settings.admin_config())
        try:
            await admin.start()
        except BaseException:
            await admin.close()
            raise
        return admin

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        async def make(listener: TransactionLedger) -> AsyncTransactionSession:
            clients = RepeatingClients(self) if self.settings.repeats else None
            session = AsyncTransactionSession(config, listener=listener, clients=clients)
            try:
                await session.start()
            except BaseException:
                await session.close(0)
                raise
            return session

        return TransactionLedger(make, owner, unit.lanes, calls, config.revoke_budget_ms)

    def sink_ledger(
        self,
        config: SessionConfig,
        owner: LedgerOwner,
        unit: Unit,
        calls: Calls,
        topology: Topology,
    ) -> Ledger:
        async def make(listener: SessionListener) -> SinkSessionCore:
            sink = asyncio_sink(cast("Postgres", topology.sink).copy())
            core = SinkSessionCore(config, AsyncioClients(), sink, self.monotonic_s, listener)
            try:
                await core.start()
            except BaseException:
                await core.close(0)
                raise
            return core

        async def letters() -> AsyncProducer:
            plain = AtLeastOnceConfig.build({n: getattr(config, n) for n in SessionConfig.declared})
            return await self.plain_producer(plain)

        return SinkLedger(
            make,
            letters,
            owner,
            unit.lanes,
            calls,
            topology.dead_letter_topics,
            config.revoke_budget_ms,
        )

    async def plain_producer(self, config: AnySessionConfig) -> AsyncProducer:
        """A producer that has ended what a predecessor with transactions left open."""
        admin = await self.make_admin()
        try:
            await end_predecessor(admin, config.own_transactional_id)
        finally:
            await admin.close()
        producer = AsyncProducer(config=config.producer)
        try:
            await producer.start()
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        return producer

    async def changelog_reader(self) -> KafkaChangelogReader:
        admin = await self.make_admin()
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
            app, handlers = self._app(process)
            services = SimServices(self.sim, self.disk, process)
            services.settings = app.settings
            bounded = self.shape.is_bounded and self.random.random() < 0.7
            ends = self.sim.input_ends() if bounded else {}
            worker = app._make_worker(services, until_end=bounded)
            beside = [asyncio.create_task(self._stop(me, app, self.sim.world.now_us))]
            if self.shape.is_held:
                beside.append(asyncio.create_task(self._hold(me, app, worker, handlers)))
            self.note(me, "worker begins", bounded)
            try:
                await worker.run(InPlace())
                self.note(me, "worker ends")
                if worker.report().reached_end:
                    self._check_end(ends)
                if self._retires():
                    self.note(me, "worker retires")
                    return
            except KafkaError as error:
                if not isinstance(error, EXPECTED):
                    process.fault(f"worker ended by {type(error).__name__}: {error}")
                await self.failed(me, "worker", error)
            finally:
                app._worker = None
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
            await self.pause()

    def _check_end(self, ends: Mapping[str, int]) -> None:
        """A bounded run says that all is done that was there when it began."""
        left = self.sim.uncommitted(ends)
        if left:
            assert self.process is not None
            self.process.fault(f"bounded run ended early: {left} are not committed")

    async def _hold(self, me: str, app: App, worker: ProductWorker, handlers: Handlers) -> None:
        """Pause the application now and then; while it is paused, no handler is called."""
        process = self.process
        assert process is not None

        def called(value: bytes) -> None:
            process.fault(f"worked while paused: {value!r}")

        while not self.sim.calm:
            await asyncio.sleep(self.random.choice((0.1, 0.5, 1.0)))
            app.pause()
            self.note(me, "application is paused")
            for _ in range(self.random.choice((1, 10, 30))):
                await asyncio.sleep(0.05)
                # Calls in hand end first, and a round that has begun goes on.
                if worker._tasks.owned <= worker._pauses.paused and not worker._in_flight.busy:
                    handlers.called = called
            handlers.called = lambda value: None
            self.note(me, "application goes on")
            app.resume()

    def _retires(self) -> bool:
        """Whether the application goes on with one worker less, as when it is scaled down."""
        others = (w for w in self.sim.workers if isinstance(w, ApplicationWorker) and w is not self)
        left = any(not worker.finished for worker in others)
        return left and not self.sim.calm and self.random.random() < RETIRES

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

    def _app(self, process: Process) -> tuple[App, Handlers]:
        rng, sim = self.random, self.sim
        protocol = rng.choice(sim.protocols)
        times = {
            "session_timeout_ms": max(3_000, sim.transaction_timeout_ms),
            "heartbeat_interval_ms": 700,
            "fetch_max_wait_ms": 300,
        }
        # A worker that is alone may have had transactions before; what they left open is ended.
        # Not the other way round: of changes that are not committed exactly-once wants none.
        alone = sum(isinstance(worker, ApplicationWorker) for worker in sim.workers) == 1
        sim.repeating = sim.repeating or self.shape.is_quiet or not alone or rng.random() < 0.5
        repeats = self.shape.repeats and sim.repeating
        app = App(
            GROUP,
            sim.broker.addresses,
            processing_guarantee="at_least_once" if repeats else "exactly_once_v2",
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
            max_task_idle_ms=self.shape.idle_ms,
            consumer_settings={**TIMES, **member_times(protocol, times), **protocol},
            producer_settings={
                **TIMES,
                "linger_ms": rng.choice((0, 10)),
                "batch_size": rng.choice(sim.batch_sizes),
            },
        )
        handlers = Handlers(self.shape, lambda: sim.calm)
        if sim.stores is not None:
            handlers.observer = sim.stores.observer(self, process)
        handlers.declare(app)
        return app, handlers
