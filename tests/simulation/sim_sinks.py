"""Runs whose clients keep what they do in a database: sinks, two-phase commit, outboxes.

A kind names what the clients are. The product's own code speaks to the database in memory
(``sim_postgres``), blocking or over asyncio.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import sim_ending
import sim_setup
from sim_postgres import ADD_TO_BALANCE, INSERT_ROW, OUTBOX, row_of
from sim_run import Result, Simulation, simulate
from sim_stores import DSN, Stores, Storm, shown_too_early, surround
from sim_threads import blocking, wait
from sim_work import (
    TIMES,
    IdempotentProducer,
    Sending,
    SessionWorker,
    Worker,
    member_times,
)

from onceflow.sdk.errors import (
    InvalidProducerEpochError,
    KafkaError,
    NoBrokersAvailableError,
    ProducerFencedError,
    RequestTimedOutError,
    RetriableError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions import SessionConfig
from onceflow.transactions.errors import TransactionalIdInUseError
from onceflow.transactions.outbox import Outbox, OutboxRelay
from onceflow.transactions.sinks import (
    AsyncSinkSession,
    Postgres,
    SinkSession,
    SinkSharedError,
    SinkUnavailableError,
)
from onceflow.transactions.two_phase import (
    ParticipantError,
    TwoPhaseSession,
    resolve_in_doubt,
)

SINKS, BOTH = "sinks", "session"
KINDS = ("sink", "two-phase", "two-phase", "outbox")

EXPECTED = (RetriableError, NoBrokersAvailableError, RequestTimedOutError, SinkSharedError)
"""How a session may end by itself while faults happen; a supervisor begins another one."""

FENCED = (ProducerFencedError, InvalidProducerEpochError, TransactionalIdInUseError)
"""What ``send`` says of a transaction that a successor, or its timeout, has ended."""


@dataclass
class StoreSetup(sim_setup.Setup):
    """A run's ingredients, with a database.

    Attributes:
        kind: One of ``KINDS``.
        database: What goes wrong with the database.
    """

    kind: str = ""
    database: Storm = field(default_factory=Storm)


def draw(seed: object, kinds: Sequence[str] = KINDS) -> StoreSetup:
    """The surroundings of a seed: as in every run, but with a database."""
    setup = sim_setup.draw(seed)
    rng = random.Random(f"{seed}/stores")
    kind = rng.choice(kinds)
    setup.workers = {
        **dict.fromkeys(setup.workers, 0),
        "input": rng.choice((1, 1, 2)),
        "transactional": rng.choice((0, 0, 1)),
        kind: rng.choice((1, 2, 3, 3)),
    }
    setup.units = rng.choice((60, 120))
    # Long enough for sessions to come into work between two troubles, and to be expelled.
    setup.duration_us = rng.choice((6_000_000, 12_000_000))
    setup.trouble_every_us = rng.choice((300_000, 800_000))
    # Most of it befalls the clients and the database: while no broker answers, nobody commits.
    setup.troubles = [name for name in setup.troubles if rng.random() < 0.3]
    setup.troubles += ["kill worker", "pause worker", "zombie", "zombie", "cut"]
    if kind == "two-phase":
        setup.workers["operator"] = 1
    if kind == "outbox":
        setup.workers |= {"input": 0, "service": rng.choice((1, 2))}
        setup.units = rng.choice((20, 40))
        setup.segment_bytes = 100_000  # A relay's batch has to fit in.
    storm = surround(setup, seed)
    return StoreSetup(**vars(setup), kind=kind, database=storm)


def session_config(worker: Worker, group: str, slot: str) -> SessionConfig:
    """Settings of a session in this run."""
    sim, rng = worker.sim, worker.random
    protocol = rng.choice(sim.protocols)
    times = {
        "session_timeout_ms": max(3_000, sim.transaction_timeout_ms),
        "heartbeat_interval_ms": 700,
        "fetch_max_wait_ms": 300,
    }
    return SessionConfig(
        topics=["a"],
        bootstrap_servers=sim.broker.addresses,
        group_id=group,
        slot=slot,
        commit_interval_ms=rng.choice((1, 30, 200)),
        transaction_timeout_ms=sim.transaction_timeout_ms,
        max_poll_interval_ms=6_000,
        max_poll_records=rng.choice((1, 5, 100)),
        operation_timeout_ms=3_000,
        revoke_budget_ms=1_500,
        consumer_settings={**TIMES, **member_times(protocol, times), **protocol},
        producer_settings={
            **TIMES,
            "linger_ms": rng.choice((0, 10)),
            "batch_size": rng.choice(sim.batch_sizes),
        },
    )


class StoreSimulation(Simulation):
    """A run with a database.

    Attributes:
        stores: The database.
    """

    stores: Stores

    def __init__(self, seed: object, setup: StoreSetup, *args: Any) -> None:
        super().__init__(seed, setup, *args)
        self.kind = setup.kind
        self.stores = Stores(self, setup.database)

    def make_workers(self) -> None:
        makers: dict[str, Callable[[int], Worker]] = {
            "input": lambda i: PacedProducer(self, f"input{i}", self.setup.units),
            "sink": lambda i: SinkWorker(self, f"sink{i}", i),
            "two-phase": lambda i: TwoPhaseWorker(self, f"both{i}", i),
            "operator": lambda i: Operator(self, f"oper{i}", 0),
            "service": lambda i: Service(self, f"serv{i}", self.setup.units),
            "outbox": lambda i: RelayWorker(self, f"relay{i}", 0),
        }
        for kind, make in makers.items():
            self.workers += [make(i) for i in range(self.setup.workers.pop(kind, 0))]
        super().make_workers()

    def is_at_end(self, group: str) -> bool:
        if group != SINKS:
            return super().is_at_end(group)
        return sim_ending.is_at_end(self, self.stores.stored_offsets(group), "a")

    def is_relayed(self) -> bool:
        """Whether all that services will ever put into the outbox is sent and deleted."""
        services = (w for w in self.workers if isinstance(w, Service))
        is_over = self.calm and all(service.finished for service in services)
        # A transaction of a service that died may be open until the server notices.
        is_open = any(s.name.startswith("serv") for s in self.stores.server.sessions)
        return is_over and not is_open and not self.stores.server.table(OUTBOX)

    def judge(self) -> list[str]:
        left = StoredRows(self)
        if self.kind == "sink":
            left.check_sink(SINKS)
        if self.kind == "two-phase":
            left.check_both()
        if self.kind == "outbox":
            left.check_sent()
        return [*left.problems, *self.stores.end()]


class PacedProducer(IdempotentProducer):
    """Sends records as long as faults happen, so that there is always something to do."""

    async def _send(self, me: str, sending: Sending) -> None:
        await super()._send(me, sending)
        if not self.sim.calm:
            await self.pause(150)


class SinkWorker(Worker):
    """Stores each record of ``a`` as a row, with its place, through a session with a sink."""

    def __init__(self, sim: StoreSimulation, name: str, slot: int) -> None:
        super().__init__(sim, name, 0)
        self.slot = slot
        self.stores = sim.stores

    async def work(self, me: str) -> None:
        process = self.process
        assert process is not None
        config = session_config(self, SINKS, str(self.slot))
        while not self.sim.drained(SINKS):
            sink = Postgres(
                DSN,
                "rows",
                timeout_ms=self.random.choice((300, 2_000)),
                observer=self.stores.observer(self, process),
            )
            try:
                if self.random.random() < 0.5:
                    await blocking(process, lambda s=sink: self._blocking_life(me, s, config))
                else:
                    await self._life(me, sink, config)
            except KafkaError as error:
                if not isinstance(error, EXPECTED):
                    process.fault(f"session ended by {type(error).__name__}: {error}")
                await self.failed(me, "session", error)
            await self.pause()

    async def _life(self, me: str, sink: Postgres, config: SessionConfig) -> None:
        async with AsyncSinkSession(sink, config) as session:
            while not self._ends():
                try:
                    for records in (await session.poll(200)).values():
                        self._write(me, session, records)
                    if self.random.random() < 0.3:
                        await self.pause(600)
                    if not self.sim.calm and self.random.random() < 0.05:
                        session.abort()
                    elif session.commit_due:
                        self.note(me, "sink commit", await session.commit())
                except SinkUnavailableError as error:
                    self.note(me, "sink unavailable", str(error)[:100])

    def _blocking_life(self, me: str, sink: Postgres, config: SessionConfig) -> None:
        with SinkSession(sink, config) as session:
            while not self._ends():
                try:
                    for records in session.poll(200).values():
                        self._write(me, session, records)
                    if self.random.random() < 0.3:
                        wait(self.pause(600))
                    if not self.sim.calm and self.random.random() < 0.05:
                        session.abort()
                    elif session.commit_due:
                        self.note(me, "sink commit", session.commit())
                except SinkUnavailableError as error:
                    self.note(me, "sink unavailable", str(error)[:100])

    def _ends(self) -> bool:
        """Whether all is done, or this session ends in order and another one begins."""
        early = not self.sim.calm and self.random.random() < 0.01
        return early or self.sim.drained(SINKS)

    def _write(
        self, me: str, session: SinkSession | AsyncSinkSession, records: Sequence[ConsumerRecord]
    ) -> None:
        self.note(me, "sink polled", [(r.partition, r.offset) for r in records])
        rows = [row_of(record) for record in records]
        if self.random.random() < 0.5:
            session.write_many(rows, of=records)
        else:
            for row, record in zip(rows, records, strict=True):
                session.write(row, of=record)


class TwoPhaseWorker(SessionWorker):
    """Copies ``a`` to ``b``, stores each record as a row, and counts rows, all in one step."""

    stores: Stores

    async def work(self, me: str) -> None:
        process = self.process
        assert process is not None
        assert self.sim.stores is not None
        self.stores = self.sim.stores
        config = session_config(self, BOTH, str(self.slot))
        while not self.sim.drained(BOTH):
            observer = self.stores.observer(self, process)
            try:
                await blocking(process, lambda o=observer: self._life(me, config, o))
            except KafkaError as error:
                if not isinstance(error, (*EXPECTED, *FENCED, ParticipantError)):
                    process.fault(f"session ended by {type(error).__name__}: {error}")
                await self.failed(me, "session", error)
            await self.pause()

    def _life(self, me: str, config: SessionConfig, observer: Callable[[str], None]) -> None:
        rng = self.random
        with TwoPhaseSession(DSN, config, observer=observer) as session:
            while not self.sim.drained(BOTH):
                if not self.sim.calm and rng.random() < 0.01:
                    return
                try:
                    for records in session.poll(200).values():
                        self.note(me, "input", str(records[0].partition), len(records))
                        self._do(session, records)
                    if rng.random() < 0.3:
                        wait(self.pause(600))
                    if not self.sim.calm and rng.random() < 0.05:
                        session.abort()
                    elif session.commit_due:
                        self.note(me, "both commit", session.commit())
                except ParticipantError as error:
                    self.note(me, "database failed", str(error)[:160])
                    session.abort()

    def _do(self, session: TwoPhaseSession, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            try:
                connection = session.connection
                connection.execute("SET LOCAL statement_timeout = 1000")
                connection.execute(INSERT_ROW, (record.value,))
                connection.execute(ADD_TO_BALANCE, (record.value[-1:],))
            except psycopg.Error as error:
                raise ParticipantError(f"a statement failed: {error}") from error
            session.send("b", b"out:" + record.value, key=record.value)


class Operator(Worker):
    """Finishes now and then what a session has in doubt, also while that session lives."""

    async def work(self, me: str) -> None:
        process = self.process
        assert process is not None
        slots = [w.slot for w in self.sim.workers if isinstance(w, TwoPhaseWorker)]
        left = list(slots)
        while left:
            await asyncio.sleep(self.random.choice((0.5, 2.0)))
            # In the end also what a process left that prepared after its successor had started.
            slot = left.pop() if self.sim.calm else self.random.choice(slots)
            name = f"{BOTH}-{slot}"
            client = {"bootstrap_servers": self.sim.broker.addresses, **TIMES}
            try:
                done = await blocking(
                    process, lambda n=name, c=client: resolve_in_doubt(DSN, n, client=c)
                )
                self.note(me, "resolved", name, done)
            except (KafkaError, psycopg.Error) as error:
                self.note(me, "resolving failed", name, str(error)[:100])
                left += [slot] if self.sim.calm else []


class Service(Worker):
    """Changes balances, and tells of it by records in the outbox, in one transaction."""

    async def work(self, me: str) -> None:
        process = self.process
        assert process is not None
        while self.left > 0:
            try:
                await blocking(process, lambda: self._life(me))
            except psycopg.Error as error:
                self.note(me, "service failed", str(error)[:100])
            await self.pause(200)

    def _life(self, me: str) -> None:
        rng = self.random
        assert self.sim.stores is not None
        connection: Any = self.sim.stores.database.connected(DSN, 10_000)
        connection.autocommit = False
        outbox = Outbox()
        try:
            while self.left > 0:
                self.left -= 1
                connection.execute("SET LOCAL statement_timeout = 1000")
                for key in sorted(rng.choices((b"k0", b"k1", b"k2"), k=rng.randrange(1, 4))):
                    connection.execute(ADD_TO_BALANCE, (key,))  # It keeps the order of a key.
                    outbox.put(connection, "b", b"out:" + self.next_value(me), key=key)
                if rng.random() < 0.2:
                    wait(self.pause(300))
                done = connection.execute("ROLLBACK" if rng.random() < 0.2 else "COMMIT")
                self.note(me, "service", done.statusmessage)
                if not self.sim.calm:
                    wait(self.pause(150))
        finally:
            connection.close()


class RelayWorker(Worker):
    """Sends what is in the outbox; several relays of one name take turns."""

    async def work(self, me: str) -> None:
        process, sim = self.process, self.sim
        assert process is not None
        assert isinstance(sim, StoreSimulation)
        while not sim.is_relayed():
            relay = OutboxRelay(
                DSN,
                name="shop",
                batch_rows=self.random.choice((1, 5, 500)),
                poll_interval_ms=200,
                failover_ms=self.random.choice((500, 3_000)),
                client={"bootstrap_servers": sim.broker.addresses, **TIMES},
                observer=sim.stores.observer(self, process),
            )
            stopping = asyncio.create_task(self._stop(relay))
            try:
                await blocking(process, lambda r=relay: self._life(me, r))
            except KafkaError as error:
                if not isinstance(error, (*EXPECTED, TransactionalIdInUseError)):
                    process.fault(f"relay ended by {type(error).__name__}: {error}")
                await self.failed(me, "relay", error)
            finally:
                stopping.cancel()
                await asyncio.wait([stopping])
            await self.pause()

    def _life(self, me: str, relay: OutboxRelay) -> None:
        with relay:
            self.note(me, "relayed", relay.run())

    async def _stop(self, relay: OutboxRelay) -> None:
        """Stop in order, when all is done or at some time before."""
        assert isinstance(self.sim, StoreSimulation)
        while not self.sim.is_relayed():
            if not self.sim.calm and self.random.random() < 0.02:
                break
            await asyncio.sleep(0.1)
        relay.stop()


class StoredRows:
    """Compares what is in the database with the committed input.

    Attributes:
        problems: What was found.
    """

    def __init__(self, sim: StoreSimulation) -> None:
        self.sim = sim
        self.problems: list[str] = []
        self.rows = sim.stores.rows()

    def check_sink(self, group: str) -> None:
        """Rows and stored offsets tell the same."""
        stored = self.sim.stores.stored_offsets(group)
        for number in range(self.sim.partitions["a"]):
            place = f"a-{number}"
            upto = stored.get(place, 0)
            records = sim_ending.stored_records(sim_ending.raw_batches(self.sim.broker.disk, place))
            wanted = [r.value for r in records if r.visible and r.offset < upto]
            found = [row["value"] for row in self.rows if row["partition"] == number]
            if found != wanted:
                rule = _difference(wanted, found)
                self.problems.append(f"{rule}: {place} below {upto}: {found} is not {wanted}")
        self.problems += shown_too_early(self.sim, group)

    def check_both(self) -> None:
        """Rows, outputs and committed inputs are the same, and so is what was counted."""
        disk = self.sim.broker.disk
        offsets = sim_ending.committed_offsets(self.sim, BOTH) or {}
        wanted = [
            record.value
            for number in range(self.sim.partitions["a"])
            for record in sim_ending.stored_records(sim_ending.raw_batches(disk, f"a-{number}"))
            if record.visible and record.offset < offsets.get(f"a-{number}", 0)
        ]
        found = [row["value"] for row in self.rows]
        if sorted(found) != sorted(wanted):
            missing, more = set(wanted) - set(found), set(found) - set(wanted)
            rule = _difference(wanted, found)
            self.problems.append(f"{rule}: {missing=}, {more=} in {len(found)} of {len(wanted)}")
        counted = sum(self.sim.stores.server.table("balances").values())
        if counted != len(found):
            self.problems.append(f"wrong balance: {counted} of {len(found)} rows were counted")

    def check_sent(self) -> None:
        """Each row that was committed to the outbox is sent once, in the order of its key."""
        put = {row[2]: (row[1], number) for number, row in self.sim.stores.put.items()}
        sent: list[bytes] = []
        for number in range(self.sim.partitions["b"]):
            last: dict[bytes | None, int] = {}
            batches = sim_ending.raw_batches(self.sim.broker.disk, f"b-{number}")
            for record in sim_ending.stored_records(batches):
                if not record.visible or not record.value.startswith(b"out:"):
                    continue
                sent.append(record.value)
                key, place = put.get(record.value, (record.key, 0))
                if place < last.get(key, 0):
                    self.problems.append(f"row order: {record.value!r} was sent too late")
                last[key] = place
        if sorted(sent) != sorted(put):
            missing, more = set(put) - set(sent), set(sent) - set(put)
            rule = _difference(sorted(put), sent)
            self.problems.append(f"{rule}: {missing=}, {more=} of {len(put)}")


def _difference(wanted: Sequence[object], found: Sequence[object]) -> str:
    if len(set(found)) < len(found):
        return "row twice"
    if set(wanted) - set(found):
        return "row missing"
    return "row out of nothing" if set(found) - set(wanted) else "row order"


def simulate_stores(
    seed: object,
    kinds: Sequence[str] = KINDS,
    focus: Callable[[StoreSetup], None] = lambda setup: None,
) -> Result:
    """One run with a database, of one of these kinds; see ``simulate``.

    Args:
        seed: Anything that has a repr.
        kinds: Kinds to draw from.
        focus: Changes what was drawn.
    """
    setup = draw(seed, kinds)
    focus(setup)
    return simulate(seed, setup, kind=StoreSimulation)
