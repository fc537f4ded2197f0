"""Goal: clients that keep what they do in a database leave the rows that their input says, whatever
is killed, cut or restarted; and the simulation would notice if they did not.

Method: ``make sim ARGS=--database`` for fixed and fresh seeds, and applications with a sink. Then a
fault is put into the product in memory, and seeds are run until one of the rules that it breaks is
told.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sim_network import CALM
from sim_processor_run import simulate_processors
from sim_run import Result
from sim_sinks import KINDS, StoreSetup, simulate_stores
from sim_stores import Storm

from onceflow.processors.ledger.sink import SinkLedger
from onceflow.processors.worker.units import Units
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.colour import settle
from onceflow.transactions.outbox import OutboxRelay, progress
from onceflow.transactions.outbox.table import OutboxRow
from onceflow.transactions.sinks import ledger, postgres
from onceflow.transactions.sinks.ledger import Batch, Entry
from onceflow.transactions.sinks.postgres import Postgres
from onceflow.transactions.sinks.session_core import SinkSessionCore
from onceflow.transactions.two_phase import TwoPhaseSession, decisions
from onceflow.transactions.two_phase.decisions import Decisions

Replace = Callable[[object, str, object], None]
Simulate = Callable[[object], Result]

FIXED = range(1, 5)
FRESH = 2
SEEDS_MAX = 60


@pytest.mark.sim
@pytest.mark.parametrize("kind", sorted({*KINDS}))
def test_fixed_seeds_of_each_kind(kind: str) -> None:
    found = [simulate_stores(seed, (kind,)).problems for seed in FIXED]
    assert found == [[] for _ in FIXED]


@pytest.mark.sim
def test_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first} on")
    found = [simulate_stores(seed).problems for seed in range(first, first + FRESH)]
    assert found == [[] for _ in range(FRESH)]


@pytest.mark.sim
@pytest.mark.parametrize("kind", sorted({*KINDS}))
def test_same_seed_gives_the_same_history(kind: str) -> None:
    """Although the product's blocking code has threads of its own."""
    first = simulate_stores(2, (kind,))
    simulate_stores(3, (kind,))
    assert simulate_stores(2, (kind,)).history.events == first.history.events


# Planted faults of sinks ---------------------------------------------------------------------


def _offsets_follow_the_rows(replace: Replace) -> None:
    def write(self: Postgres, batch: Batch, timeout_ms: int | None = None) -> None:
        with self._transaction(self._timeout_ms) as connection:
            found = self._read(connection, postgres._LOCK, list(batch.moves))
            advanced = ledger.advance(found, batch)
            self._insert(connection, batch.rows)
        with self._transaction(self._timeout_ms) as connection:
            self._store(connection, advanced)

    replace(Postgres, "write", write)


def _replaced_owners_write_on(replace: Replace) -> None:
    def advance(entries: Mapping[TopicPartition, Entry], batch: Batch) -> dict[Any, Entry]:
        return {
            partition: Entry(batch.owner, move.epoch, move.next, entries[partition].topic_id)
            for partition, move in batch.moves.items()
        }

    replace(ledger, "advance", advance)


def _reading_goes_on_at_the_groups_offsets(replace: Replace) -> None:
    whole = SinkSessionCore._claim

    async def claim(self: SinkSessionCore) -> None:
        partitions = sorted(self._unclaimed)
        await whole(self)
        if partitions and not self._unclaimed:
            for partition, found in (await settle(self.consumer.committed(partitions))).items():
                if found is not None:
                    await settle(self.consumer.seek(partition, found.offset))

    replace(SinkSessionCore, "_claim", claim)


def _rows_are_left_out_of_a_rebalance(replace: Replace) -> None:
    whole = SinkSessionCore._commit_before_leaving

    async def commit(self: SinkSessionCore) -> None:
        self._drop_rows()
        await whole(self)

    replace(SinkSessionCore, "_commit_before_leaving", commit)


def _rows_outlive_an_abort(replace: Replace) -> None:
    replace(SinkSessionCore, "_drop", lambda self: self._work.clear())


def _what_is_polled_is_shown(replace: Replace) -> None:
    whole = SinkSessionCore._committed

    def committed(self: SinkSessionCore, batch: Batch, consumer: Any) -> None:
        whole(self, batch, consumer)
        self._unshown = {partition: offset + 1 for partition, offset in self._unshown.items()}

    replace(SinkSessionCore, "_committed", committed)


def _a_claim_that_waits_is_an_error(replace: Replace) -> None:
    whole = SinkSessionCore.poll_result

    async def poll_result(self: SinkSessionCore, timeout_ms: int, most: int | None) -> Any:
        unclaimed, self._unclaimed = self._unclaimed, _Unseen(self._unclaimed)
        try:
            return await whole(self, timeout_ms, most)
        finally:
            self._unclaimed = set(self._unclaimed) if self._unclaimed else unclaimed

    replace(SinkSessionCore, "poll_result", poll_result)


class _Unseen(set):  # type: ignore[type-arg]
    def __bool__(self) -> bool:
        return False


# Planted faults of applications with a sink --------------------------------------------------


def _offsets_run_ahead(replace: Replace) -> None:
    whole = Units.offsets

    def offsets(self: Units) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(found.offset + 1, found.metadata)
            for partition, found in whole(self).items()
        }

    replace(Units, "offsets", offsets)


def _letters_are_not_waited_for(replace: Replace) -> None:
    async def send(self: SinkLedger, runs: Sequence[Any]) -> None:
        with contextlib.suppress(KafkaError):
            await _send(self, runs[:0])

    _send = SinkLedger._send
    replace(SinkLedger, "_send", send)


# Planted faults of two-phase commit ----------------------------------------------------------


def _nothing_is_resolved(replace: Replace) -> None:
    replace(Decisions, "resolve", lambda self, connection, steps=None, *, only="": {})


def _what_is_in_doubt_is_committed(replace: Replace) -> None:
    whole = decisions.finish
    replace(decisions, "finish", lambda connection, gid, commit: whole(connection, gid, True))


def _what_is_in_doubt_is_rolled_back(replace: Replace) -> None:
    whole = decisions.finish
    replace(decisions, "finish", lambda connection, gid, commit: whole(connection, gid, False))


def _the_database_commits_first(replace: Replace) -> None:
    whole = TwoPhaseSession._prepare

    def prepare(self: TwoPhaseSession[Any, Any]) -> None:
        whole(self)
        gid, self._prepared = self._prepared, ""
        if gid:
            self._handed_out, self._decided = False, (gid, True)
            self._finish_decided()

    replace(TwoPhaseSession, "_prepare", prepare)


def _work_is_prepared_although_a_commit_is_unknown(replace: Replace) -> None:
    def progress(self: TwoPhaseSession[Any, Any]) -> None:
        self._prepare()
        refusal = self._note(self._prepared) if self._prepared else None
        if refusal is not None:
            raise refusal

    replace(TwoPhaseSession, "progress", progress)


def _an_abort_leaves_the_database_alone(replace: Replace) -> None:
    def undo(self: TwoPhaseSession[Any, Any]) -> None:
        pass

    replace(TwoPhaseSession, "_undo", undo)


# Planted faults of the outbox's relay --------------------------------------------------------


def _the_last_note_is_not_looked_at(replace: Replace) -> None:
    replace(OutboxRelay, "_last_note", lambda self: [])


def _notes_are_empty(replace: Replace) -> None:
    whole = progress.encoded
    replace(progress, "encoded", lambda ids: whole(()))


def _rows_are_deleted_before_the_commit(replace: Replace) -> None:
    whole = OutboxRelay._send

    def send(self: OutboxRelay, producer: Any, rows: Sequence[OutboxRow]) -> None:
        whole(self, producer, rows)
        self._delete(self._connected(), [row.id for row in rows])

    replace(OutboxRelay, "_send", send)


def _keys_are_sent_in_reverse(replace: Replace) -> None:
    whole = OutboxRelay._send
    replace(OutboxRelay, "_send", lambda self, producer, rows: whole(self, producer, rows[::-1]))


ENDED = ("session ended by", "worker ended by")
ROWS = ("row missing", "row twice", "row out of nothing", "wrong balance")
TWICE = ("row twice", "rows apart from offsets", "offsets go back", *ENDED)


def _sleepy(setup: StoreSetup) -> None:
    """Nothing but clients that are taken for dead, and wake up."""
    setup.workers["sink"] = 3
    setup.partitions["a"] = 3
    setup.storm, setup.troubles, setup.trouble_every_us = CALM, ["zombie"], 300_000
    setup.database = Storm()


def sessions(seed: object) -> Result:
    return simulate_stores(seed, ("sink",))


def sleepy_sessions(seed: object) -> Result:
    return simulate_stores(seed, ("sink",), _sleepy)


def both(seed: object) -> Result:
    return simulate_stores(seed, ("two-phase",))


def relays(seed: object) -> Result:
    return simulate_stores(seed, ("outbox",))


def applications(seed: object) -> Result:
    return simulate_processors(seed, ("sink",))


@dataclass(frozen=True)
class Fault:
    """One way to break the product.

    Attributes:
        apply: Breaks it.
        rules: Beginnings of problems, one of which must be found.
        simulate: Runs a seed that may meet it.
        seeds: Most seeds it may take.
    """

    apply: Callable[[Replace], None]
    rules: tuple[str, ...]
    simulate: Simulate = sessions
    seeds: int = SEEDS_MAX


FAULTS = {
    "offsets follow the rows": Fault(_offsets_follow_the_rows, ("rows apart from offsets",)),
    "replaced owners write on": Fault(_replaced_owners_write_on, TWICE, sleepy_sessions, 200),
    "reading goes on at the group's offsets": Fault(
        _reading_goes_on_at_the_groups_offsets, ("row missing", *TWICE)
    ),
    "rows are left out of a rebalance": Fault(_rows_are_left_out_of_a_rebalance, ("row missing",)),
    "rows outlive an abort": Fault(_rows_outlive_an_abort, TWICE),
    "what is polled is shown": Fault(_what_is_polled_is_shown, ("shown too early",)),
    "a claim that waits is an error": Fault(_a_claim_that_waits_is_an_error, ENDED),
    "offsets run ahead": Fault(_offsets_run_ahead, ("row missing", *TWICE), applications),
    "nothing is resolved": Fault(_nothing_is_resolved, ("in doubt", "stuck"), both),
    "what is in doubt is committed": Fault(_what_is_in_doubt_is_committed, ROWS, both),
    "what is in doubt is rolled back": Fault(_what_is_in_doubt_is_rolled_back, ROWS, both),
    "the database commits first": Fault(_the_database_commits_first, ROWS, both),
    "work is prepared although a commit is unknown": Fault(
        _work_is_prepared_although_a_commit_is_unknown, ENDED, both
    ),
    "an abort leaves the database alone": Fault(
        _an_abort_leaves_the_database_alone, (*ROWS, "stuck"), both
    ),
    "the last note is not looked at": Fault(_the_last_note_is_not_looked_at, ROWS, relays),
    "notes are empty": Fault(_notes_are_empty, ROWS, relays),
    "rows are deleted before the commit": Fault(_rows_are_deleted_before_the_commit, ROWS, relays),
    "keys are sent in reverse": Fault(_keys_are_sent_in_reverse, ("row order",), relays),
    "letters are not sent": Fault(_letters_are_not_waited_for, ("dead letter",), applications),
}


SLOW = ("replaced owners write on",)
"""Those that take many seeds: run by ``pytest -m chaos tests/simulation``."""


def tells(problem: str, rules: tuple[str, ...]) -> bool:
    """Whether a problem is one of these; what a client noticed is told behind its name."""
    return problem.startswith(rules) or any(f": {rule}" in problem for rule in rules)


def look_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.apply(monkeypatch.setattr)
    seen: list[str] = []
    for seed in range(1, fault.seeds + 1):
        found = fault.simulate(seed).problems
        if any(tells(problem, fault.rules) for problem in found):
            print(f"{name}: found by seed {seed}")
            return
        seen += found[:1]
    pytest.fail(f"{name}: not found in {fault.seeds} seeds; other problems: {seen[:5]}")


@pytest.mark.sim
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW])
def test_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_for(name, monkeypatch)


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", SLOW)
def test_slow_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_for(name, monkeypatch)
