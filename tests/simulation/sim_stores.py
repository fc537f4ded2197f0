"""Runs with a database: its faults, and what is replaced of the product for it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sim_ending
import sim_setup
import sim_trouble
from sim_database import Place, Server
from sim_postgres import LEDGER, OUTBOX, ROWS, Database, DatabaseFaults, SimPoll
from sim_threads import SimPortal, SimThreading, WaitingProducer
from sim_world import ProcessDiedError

from onceflow.sdk.sync import admin, consumer, producer
from onceflow.transactions.outbox import relay
from onceflow.transactions.sinks import postgres
from onceflow.transactions.two_phase import decisions
from onceflow.transactions.two_phase import session as two_phase

if TYPE_CHECKING:
    from sim_run import Simulation
    from sim_work import Worker
    from sim_world import Process

DSN = "dbname=simulated"
RESTARTS, ENDS = "database restarts", "connection ends"


@dataclass
class Storm:
    """What goes wrong with the database while faults happen.

    Attributes:
        faults: Of single statements.
        troubles: Names of faults that may happen, with repetitions as weights.
        dies_at_step: How often a process dies before or after a step.
    """

    faults: DatabaseFaults = field(default_factory=DatabaseFaults)
    troubles: list[str] = field(default_factory=list)
    dies_at_step: float = 0.0


def draw_storm(seed: object) -> Storm:
    """The database's faults of a seed."""
    rng = random.Random(f"{seed}/database")

    def maybe(most: float) -> float:
        return most * rng.random() if rng.random() < 0.5 else 0.0

    faults = DatabaseFaults(
        rng.choice((300, 3_000, 20_000)), maybe(0.02), maybe(0.02), maybe(0.01), maybe(0.2)
    )
    troubles = [name for name in (RESTARTS, ENDS, ENDS) if rng.random() < 0.4]
    return Storm(faults, troubles, rng.choice((0.0, 0.01, 0.04)))


class Stores:
    """The database of a run.

    Args:
        sim: The run.
        storm: What goes wrong.

    Attributes:
        database: The database.
        put: Rows that were committed to the outbox, by their ids.
        wrong: What was noticed while the run went on.
    """

    def __init__(self, sim: Simulation, storm: Storm) -> None:
        self.sim = sim
        self.storm = storm
        self.database = Database(Server(sim.world))
        self.database.faults = storm.faults
        self.database.server.on_commit.append(self._look)
        self.put: dict[Any, Any] = {}
        self.wrong: list[str] = []

    @property
    def server(self) -> Server:
        """The server."""
        return self.database.server

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Have the product's blocking code use this database, and threads of the simulation."""
        database = self.database
        replaced: list[tuple[Any, str, object]] = [
            *((module, "Portal", SimPortal) for module in (admin, consumer, producer)),
            (producer, "_LIVE", set()),
            *(
                (m, "connected", database.connected)
                for m in (postgres, decisions, two_phase, relay)
            ),
            (postgres, "cut_after", database.cut_after),
            (relay, "Producer", WaitingProducer),
            (relay, "threading", SimThreading),
            (relay, "select", _Select(database)),
        ]
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        try:
            for owner, name, value in replaced:
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in originals:
                setattr(owner, name, value)

    def happen(self, trouble: str, rng: random.Random) -> bool:
        """Let the database die, or one of its connections."""
        if trouble == RESTARTS and self.server.is_up:
            self.server.restart(rng.choice((10_000, 300_000, 2_000_000)))
        elif trouble == ENDS and self.server.sessions:
            self.server.end_session(rng.choice(self.server.sessions))
        return trouble in (RESTARTS, ENDS)

    def end_faults(self) -> None:
        """From now on everything works."""
        self.database.faults = DatabaseFaults()

    def observer(self, worker: Worker, process: Process) -> Callable[[str], None]:
        """Note the steps of the product, and let the process die at some."""

        def observe(step: str) -> None:
            worker.note(process.name, "step", step)
            if not self.sim.calm and worker.random.random() < self.storm.dies_at_step:
                process.die()
                sim_trouble.start_again(self.sim, worker, worker.random.randrange(1_000_000))
                raise ProcessDiedError

        return observe

    # Rules ---------------------------------------------------------------------------------

    def _look(self, writes: Mapping[Place, Any]) -> None:
        """Rows and offsets are in one transaction, and the offsets go forward."""
        before = self.server.table(LEDGER)
        moved: dict[tuple[str, int], tuple[int, int]] = {}
        for (name, key), entry in writes.items():
            if name != LEDGER:
                continue
            _, topic, number = key  # type: ignore[misc]
            old = before.get(key)
            began = -1 if old is None or old.offset is None else old.offset
            ends = -1 if entry.offset is None else entry.offset
            moved[topic, number] = began, ends
            if ends < began or (old is not None and entry.epoch < old.epoch):
                self.wrong.append(f"offsets go back: {key} from {old} to {entry}")
        for (name, key), row in writes.items():
            if name == OUTBOX and row is not None:
                self.put[key] = row
            if name == ROWS and row is not None and "offset" in row:
                began, ends = moved.get((row["topic"], row["partition"]), (-1, -1))
                if not began <= row["offset"] < ends:
                    self.wrong.append(f"rows apart from offsets: {row} with {moved}")

    def stored_offsets(self, group: str) -> dict[str, int]:
        """The offsets of a group in the ledger, by partition."""
        return {
            f"{topic}-{number}": entry.offset
            for (owner, topic, number), entry in self.server.table(LEDGER).items()
            if owner == group and entry.offset is not None
        }

    def ledger(self, group: str) -> dict[tuple[str, int], int]:
        """The same, by topic and partition number."""
        found = self.stored_offsets(group)
        return {(p.rpartition("-")[0], int(p.rpartition("-")[2])): n for p, n in found.items()}

    def rows(self) -> list[Mapping[str, Any]]:
        """Rows in the order of their writes."""
        return [row for _, row in sorted(self.server.table(ROWS).items())]

    def end(self) -> list[str]:
        """What was wrong, once the server has noticed of everybody that he left."""
        for session in list(self.server.sessions):
            self.server.end_session(session)
        return [*self.wrong, *self.server.problems()]


def shown_too_early(sim: Simulation, group: str) -> list[str]:
    """The group's offsets, which only show the lag, are not above those in the ledger."""
    assert sim.stores is not None
    stored = sim.stores.stored_offsets(group)
    return [
        f"shown too early: {place} {offset} is above {stored.get(place, 0)}"
        for place, offset in (sim_ending.committed_offsets(sim, group) or {}).items()
        if offset > stored.get(place, 0)
    ]


class _Select:
    """Stands in for the module ``select``."""

    POLLIN = 1

    def __init__(self, database: Database) -> None:
        self._database = database

    def poll(self) -> SimPoll:
        return SimPoll(self._database)


def surround(setup: sim_setup.Setup, seed: object) -> Storm:
    """Add a database to the surroundings of a run: its faults among the others."""
    storm = draw_storm(seed)
    setup.troubles += storm.troubles
    if setup.properties.get("onceflow.durability") == "kafka" and setup.power:
        # Inputs may be gone and their rows not, which no rule here could tell apart.
        setup.properties["onceflow.durability"] = random.Random(f"{seed}/kept").choice(
            ("group", "always")
        )
    return storm
