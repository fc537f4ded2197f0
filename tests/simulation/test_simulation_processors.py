"""Goal: no seed of the simulation shows an application that processes a record twice, not at all,
out of order or with another count; and each of these would be noticed.

Method: workers of one application live through kills, pauses, zombies, rebalances, retries, broker
restarts and lost disks on virtual time; what they leave is compared with a plain model. Then faults
are put into the product in memory, one at a time, until the checker objects.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sim_processors
from sim_processor_run import simulate_processors
from sim_shapes import KINDS, PLAIN, TOGETHER, ProcessorSetup, make_quiet

from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.processors.assign import CoPartitioned, Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.frame import Frame
from onceflow.processors.graph.nodes import JoinNode
from onceflow.processors.inbox import Inboxes
from onceflow.processors.kafka_services import KafkaChangelogReader, KafkaTopicAdmin
from onceflow.processors.ledger.at_least_once import AtLeastOnceProducer
from onceflow.processors.nodes.base import Stores
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.nodes.late import LateRecords
from onceflow.processors.nodes.parking import ParkingWork
from onceflow.processors.nodes.rekey import RekeyWork
from onceflow.processors.notes import encode_note
from onceflow.processors.overlap import Overlap
from onceflow.processors.state.faces import State
from onceflow.processors.state.store import Layer, ValueStore
from onceflow.processors.state.task_state import TaskState
from onceflow.processors.state.timed import TimedStore
from onceflow.processors.task import Task
from onceflow.processors.unit import DueRows, Unit
from onceflow.processors.windows import FixedFrames
from onceflow.processors.worker.loop import Worker
from onceflow.processors.worker.run_end import RunEnd
from onceflow.processors.worker.units import Units
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.colour import settle

FIXED = range(1, 9)
OF_EACH_KIND = range(1, 4)
FRESH = 3
SEEDS_MAX = 60

Replace = Callable[[object, str, object], None]


def problems(seeds: Sequence[int]) -> list[str]:
    return [f"seed {s}: {text}" for s in seeds for text in simulate_processors(s).problems]


@pytest.mark.sim
def test_fixed_seeds() -> None:
    assert problems(FIXED) == []


@pytest.mark.sim
@pytest.mark.parametrize("kind", sorted({*KINDS} - {*PLAIN}))
def test_seeds_of_each_kind(kind: str) -> None:
    found = [simulate_processors(seed, (kind,)).problems for seed in OF_EACH_KIND]
    assert found == [[] for _ in OF_EACH_KIND]


@pytest.mark.sim
def test_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first} on")
    assert problems(range(first, first + FRESH)) == []


@pytest.mark.sim
def test_same_seed_gives_the_same_history() -> None:
    first = simulate_processors(5)
    simulate_processors(6)
    assert simulate_processors(5).history.events == first.history.events


# Planted faults ------------------------------------------------------------------------------


def _inboxes_outlive_an_abort(replace: Replace) -> None:
    clear = Inboxes.clear

    def aborted(self: Task) -> None:
        Inboxes.clear = lambda self: None  # type: ignore[method-assign]
        try:
            whole(self)
        finally:
            Inboxes.clear = clear  # type: ignore[method-assign]

    whole = Task.aborted
    replace(Task, "aborted", aborted)


def _tasks_outlive_their_partitions(replace: Replace) -> None:
    def release(self: Any, partitions: Sequence[TopicPartition]) -> None:
        self._owned.difference_update(partitions)

    replace(Tasks, "release", release)


def _offsets_of_waiting_tasks_are_left_out(replace: Replace) -> None:
    def offsets(self: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(
                offset, encode_note(task.state.note()) if task.state else ""
            )
            for task in self._tasks
            if task.waiting is None
            for partition, offset in task.progress.items()
        }

    replace(Units, "offsets", offsets)


def _offsets_run_ahead(replace: Replace) -> None:
    whole = Units.offsets

    def offsets(self: Units) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(found.offset + 1, found.metadata)
            for partition, found in whole(self).items()
        }

    replace(Units, "offsets", offsets)


def _state_outlives_an_abort(replace: Replace) -> None:
    replace(ValueStore, "drop", lambda self: None)
    replace(TaskState, "aborted", lambda self: self._sent.clear())


def _failed_calls_keep_what_they_set(replace: Replace) -> None:
    whole = State._finish
    replace(State, "_finish", lambda self, keep: whole(self, True))


def _map_writes_do_not_reach_the_record(replace: Replace) -> None:
    replace(Layer, "merge", lambda self: None)


def _nothing_is_restored(replace: Replace) -> None:
    whole = KafkaChangelogReader.bounds

    async def bounds(
        self: KafkaChangelogReader, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(await whole(self, partitions), (0, 0))

    replace(KafkaChangelogReader, "bounds", bounds)
    replace(TaskState, "begin_restoring", lambda self, name, start, end: end)


def _changes_are_not_logged(replace: Replace) -> None:
    replace(TaskState, "collect", lambda self: [])


def _records_that_fail_are_passed_over(replace: Replace) -> None:
    replace(Failures, "retry_delay_ms", lambda self, record, error, attempt: None)
    replace(Failures, "give_up", lambda self, record, error, attempts: None)


def _late_records_are_dropped(replace: Replace) -> None:
    replace(LateRecords, "give", lambda self, frame, time_ms, now_ms: None)


def _stream_time_is_not_logged(replace: Replace) -> None:
    whole = TimedStore.collect
    replace(
        TimedStore,
        "collect",
        lambda self: {key: value for key, value in whole(self).items() if key != b"t"},
    )


def _restored_windows_are_not_due(replace: Replace) -> None:
    replace(TimedStore, "with_index", lambda self, writes: dict(writes))


def _windows_take_late_records(replace: Replace) -> None:
    replace(FixedFrames, "closes_ms", lambda self, end_ms: end_ms + self.grace_ms + self.size_ms)


def _what_is_not_committed_is_purged(replace: Replace) -> None:
    whole = KafkaTopicAdmin.purge

    async def purge(self: KafkaTopicAdmin, before: Mapping[TopicPartition, int]) -> None:
        await whole(self, dict.fromkeys(before, -1))  # Up to the high watermark.

    replace(KafkaTopicAdmin, "purge", purge)


def _rekeyed_records_go_by_their_old_keys(replace: Replace) -> None:
    whole = RekeyWork.call

    def call(self: RekeyWork, frame: Frame, stores: Stores) -> None:
        whole(self, frame, stores)
        lane, value, _, *rest = frame.outputs[-1]
        frame.outputs[-1] = (lane, value, frame.record.key, *rest)

    replace(RekeyWork, "call", call)


def _no_input_is_waited_for(replace: Replace) -> None:
    async def note_ends(self: Worker, calls: object, task: Task) -> None:
        for partition in task.inboxes.empty():
            task.inboxes.note_end(partition, True)

    replace(Worker, "_note_ends", note_ends)


def _an_abort_forgets_that_tables_go_first(replace: Replace) -> None:
    whole = Inboxes.clear

    def clear(self: Inboxes) -> None:
        kept = set(self._first)
        whole(self)
        self._first = kept

    replace(Inboxes, "clear", clear)


def _inputs_of_a_task_go_to_several_members(replace: Replace) -> None:
    replace(CoPartitioned, "_part", lambda self, topic: topic)


def _joins_have_no_grace(replace: Replace) -> None:
    replace(JoinNode, "closes_ms", lambda self, time_ms: time_ms + self.within_ms + 1)


def _global_tables_begin_at_their_ends(replace: Replace) -> None:
    whole = KafkaChangelogReader.bounds

    async def bounds(
        self: KafkaChangelogReader,
        partitions: Sequence[TopicPartition],
        *,
        committed: bool = False,
    ) -> dict[TopicPartition, tuple[int, int]]:
        found = await whole(self, partitions, committed=committed)
        return {partition: (end, end) for partition, (_, end) in found.items()}

    replace(KafkaChangelogReader, "bounds", bounds)


def _deliveries_that_failed_do_not_count(replace: Replace) -> None:
    whole = AtLeastOnceProducer.flush

    async def flush(self: AtLeastOnceProducer, timeout_ms: int | None = None) -> None:
        with contextlib.suppress(KafkaError):
            await settle(whole(self, timeout_ms))

    replace(AtLeastOnceProducer, "flush", flush)


def _what_fails_of_an_aborted_unit_is_blamed_on_the_next(replace: Replace) -> None:
    replace(AtLeastOnceProducer, "abort_transaction", lambda self, timeout_ms=None: None)


def _units_of_one_worker_are_done_twice(replace: Replace) -> None:
    whole = AtLeastOnceProducer.commit_transaction

    async def commit(self: AtLeastOnceProducer, timeout_ms: int | None = None) -> None:
        if not any(offset.offset % 3 == 0 for offset in self._offsets.values()):  # type: ignore[union-attr]
            await whole(self, timeout_ms)

    replace(AtLeastOnceProducer, "commit_transaction", commit)


def _followers_of_parked_records_overtake(replace: Replace) -> None:
    replace(ParkingWork, "_is_behind", lambda self, frame, stores: False)
    replace(ParkingWork, "_is_parked", lambda self, stores, key: False)


def _parked_records_are_not_due(replace: Replace) -> None:
    replace(ParkingWork, "waits_ms", lambda self, stores: None)
    replace(ParkingWork, "next_due", lambda self, stores, partition: None)


def _a_refused_row_is_not_looked_for(replace: Replace) -> None:
    whole = Unit.suspect
    replace(
        Unit,
        "suspect",
        lambda self, progress, count: whole(
            self, {p: n for p, n in progress.items() if not isinstance(p, DueRows)}, count
        ),
    )
    replace(Task, "reached", property(lambda self: dict(self.progress)))


def _a_paused_worker_goes_on(replace: Replace) -> None:
    whole = Worker._step_tasks

    async def step(self: Worker, calls: Calls, *, held: bool = False) -> None:
        held, self._is_held = self._is_held, False
        try:
            await whole(self, calls)
        finally:
            self._is_held = held

    replace(Worker, "_step_tasks", step)


def _bounded_runs_end_early(replace: Replace) -> None:
    whole = RunEnd.note_position
    replace(RunEnd, "note_position", lambda self, partition, _: whole(self, partition, 2**60))


def _records_of_a_key_overlap(replace: Replace) -> None:
    whole = Overlap._take

    def take(self: Overlap, now_s: float) -> bool:
        self._last.clear()
        return whole(self, now_s)

    replace(Overlap, "_take", take)


def _held(setup: ProcessorSetup) -> None:
    assert setup.shape is not None
    setup.shape = dataclasses.replace(setup.shape, is_held=True)


def _bounded(setup: ProcessorSetup) -> None:
    assert setup.shape is not None
    setup.shape = dataclasses.replace(setup.shape, is_bounded=True)


def _overlapping(setup: ProcessorSetup) -> None:
    assert setup.shape is not None
    setup.shape = dataclasses.replace(setup.shape, is_async=True)


def _a_downgrade_is_taken_for_divided(replace: Replace) -> None:
    whole = GroupTable.write_downgrade

    def write(self: Any, group: Any, successor: Any, *args: Any, **options: Any) -> None:
        successor.leader = min(successor.members, default=None)
        whole(self, group, successor, *args, **options)

    replace(GroupTable, "write_downgrade", write)
    replace(sim_processors, "RETIRES", 0.5)


def _turned_groups(setup: ProcessorSetup) -> None:
    """Members come back under another protocol, or not at all, and the broker dies often."""
    setup.workers |= {"input": 1, "transactional": 0, "application": 3}
    setup.partitions["a"] = 3
    setup.units, setup.nodes, setup.duration_us = 20, 1, 3_000_000
    setup.troubles, setup.trouble_every_us = ["kill broker"], 300_000
    setup.protocols = [
        {"partition_assignment_strategy": ("cooperative-sticky",)},
        {"group_protocol": "consumer"},
    ]
    setup.properties |= {
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.session.timeout.ms": 900,
    }


ENDED = "worker ended by"
TWICE = ("processed twice", "wrong count", "ahead of offsets", ENDED)


@dataclass(frozen=True)
class Fault:
    """One way to break the product.

    Attributes:
        apply: Breaks it.
        rules: Beginnings of problems, one of which must be found.
        kinds: Applications that meet it.
        focus: Changes the setup so that a run meets it.
        seeds: Most seeds it may take.
    """

    apply: Callable[[Replace], None]
    rules: tuple[str, ...]
    kinds: tuple[str, ...] = PLAIN
    focus: Callable[[ProcessorSetup], None] = lambda setup: None
    seeds: int = SEEDS_MAX


FAULTS = {
    "inboxes outlive an abort": Fault(_inboxes_outlive_an_abort, TWICE, seeds=400),
    "tasks outlive their partitions": Fault(_tasks_outlive_their_partitions, TWICE, seeds=200),
    "offsets of waiting tasks are left out": Fault(_offsets_of_waiting_tasks_are_left_out, TWICE),
    "offsets run ahead": Fault(_offsets_run_ahead, ("not processed",)),
    "state outlives an abort": Fault(_state_outlives_an_abort, ("wrong count", "state differs")),
    "failed calls keep what they set": Fault(
        _failed_calls_keep_what_they_set, ("wrong count", "state differs")
    ),
    "a map's writes do not reach the record": Fault(
        _map_writes_do_not_reach_the_record, ("wrong count",)
    ),
    "nothing is restored": Fault(_nothing_is_restored, ("wrong count",)),
    "changes are not logged": Fault(_changes_are_not_logged, ("state differs", "wrong count")),
    "records that fail are passed over": Fault(
        _records_that_fail_are_passed_over, ("not processed", "dead letter")
    ),
    "late records are dropped": Fault(_late_records_are_dropped, ("late",), ("window",)),
    "stream time is not logged": Fault(_stream_time_is_not_logged, ("stream time",), ("window",)),
    "restored windows are not due": Fault(
        _restored_windows_are_not_due, ("wrong window", "state differs"), ("window",)
    ),
    "windows take late records": Fault(
        _windows_take_late_records, ("late", "wrong window"), ("window",)
    ),
    "what is not committed is purged": Fault(
        _what_is_not_committed_is_purged, ("stuck", "purged too early", "not processed"), ("rekey",)
    ),
    "re-keyed records go by their old keys": Fault(
        _rekeyed_records_go_by_their_old_keys, ("wrong key",), ("rekey",)
    ),
    "no input is waited for": Fault(
        _no_input_is_waited_for, ("input order", "wrong join"), ("merge", "join")
    ),
    "an abort forgets that tables go first": Fault(
        _an_abort_forgets_that_tables_go_first, ("wrong row",), ("table",)
    ),
    "inputs of a task go to several members": Fault(
        _inputs_of_a_task_go_to_several_members, ("stuck",), TOGETHER
    ),
    "global tables begin at their ends": Fault(
        _global_tables_begin_at_their_ends, ("wrong row",), ("global",)
    ),
    "a group that turned classic again takes its generation for divided": Fault(
        _a_downgrade_is_taken_for_divided, ("stuck",), ("copy",), _turned_groups, 400
    ),
    "deliveries that failed do not count": Fault(
        _deliveries_that_failed_do_not_count, ("not processed", "dead letter"), ("repeats",)
    ),
    "what fails of an aborted unit is blamed on the next": Fault(
        _what_fails_of_an_aborted_unit_is_blamed_on_the_next,
        ("dead letter", ENDED),
        ("repeats",),
        seeds=300,
    ),
    "units of one worker are done twice": Fault(
        _units_of_one_worker_are_done_twice, ("processed twice",), ("repeats",), make_quiet
    ),
    "followers of parked records overtake": Fault(
        _followers_of_parked_records_overtake, ("output order", "wrong count"), ("parked",)
    ),
    "parked records are not due": Fault(_parked_records_are_not_due, ("stuck",), ("parked",)),
    "a refused row is not looked for": Fault(
        _a_refused_row_is_not_looked_for, ("stuck", ENDED), ("parked",)
    ),
    "a paused worker goes on": Fault(
        _a_paused_worker_goes_on, ("worked while paused",), ("count",), _held
    ),
    "bounded runs end early": Fault(
        _bounded_runs_end_early, ("bounded run ended early",), ("count",), _bounded
    ),
    "records of a key overlap": Fault(
        _records_of_a_key_overlap, ("wrong count", "output order"), ("count",), _overlapping
    ),
    "joins have no grace": Fault(_joins_have_no_grace, ("late", "wrong join"), ("join",)),
    "restored buffers of joins are not due": Fault(
        _restored_windows_are_not_due, ("wrong join", "state differs"), ("join",)
    ),
}


SLOW = (
    "inboxes outlive an abort",
    "a group that turned classic again takes its generation for divided",
    "what is not committed is purged",
    "offsets run ahead",
    "offsets of waiting tasks are left out",
    "tasks outlive their partitions",
    "what fails of an aborted unit is blamed on the next",
    "a refused row is not looked for",
)
"""Those that take many seeds: run by ``pytest -m chaos tests/simulation``."""


def tells(problem: str, rules: tuple[str, ...]) -> bool:
    """Whether a problem is one of these; what a worker noticed is told behind its name."""
    return problem.startswith(rules) or any(f": {rule}" in problem for rule in rules)


def look_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.apply(monkeypatch.setattr)
    seen: list[str] = []
    for seed in range(1, fault.seeds + 1):
        found = simulate_processors(seed, fault.kinds, fault.focus).problems
        if any(tells(problem, fault.rules) for problem in found):
            print(f"{name}: found by seed {seed}")
            return
        seen += found[:1]
    pytest.fail(f"{name}: not found in {fault.seeds} seeds; other problems: {seen[:5]}")


@pytest.mark.sim
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW])
def test_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_for(name, monkeypatch)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLOW)
def test_slow_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_for(name, monkeypatch)
