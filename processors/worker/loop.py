"""The loop of one worker: poll, process, commit, and handle rebalances, failures and the end.

The loop decides when a unit ends, and how the process ends. Nodes process records, tasks hold them,
and the ledger ends units. The other modules of this folder decide what follows the end of a unit,
which partitions are paused, and how state is made ready. The worker is a coroutine over ``Calls``
and ``Services``, so the same loop runs blocking, beside async handlers, and over asyncio clients on
virtual time. It starts no thread, reads no clock itself and never sleeps.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls, made
from onceflow.processors.changelog import Restorer
from onceflow.processors.copies import Copies
from onceflow.processors.errors import (
    ProcessingError,
    StoppedError,
)
from onceflow.processors.figures import WorkerFigures, WorkerPicture
from onceflow.processors.global_rows import GlobalRows
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.hooks import Resources
from onceflow.processors.identity import Slot, claim_slot, slot_in_use
from onceflow.processors.ledger.base import Polled
from onceflow.processors.nodes.base import Program, Surroundings
from onceflow.processors.nodes.programs import make_programs
from onceflow.processors.notes import decode_note
from onceflow.processors.overlap import InFlight
from onceflow.processors.provisioning import provision
from onceflow.processors.queries import Queries
from onceflow.processors.report import RunReport, Tally
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.processors.task_stores import TaskStores
from onceflow.processors.unit import Unit
from onceflow.processors.worker.bounded import BoundedRun
from onceflow.processors.worker.connections import Connections
from onceflow.processors.worker.inputs import BadInputs
from onceflow.processors.worker.pauses import Pauses
from onceflow.processors.worker.run_end import RunEnd
from onceflow.processors.worker.state_opening import StateOpening
from onceflow.processors.worker.units import Units
from onceflow.processors.worker.upkeep import Upkeep
from onceflow.sdk.errors import (
    AbortableError,
    CommitFailedError,
    CommitOutcomeUnknownError,
    FencedInstanceIdError,
    KafkaError,
    NoBrokersAvailableError,
    NoOffsetForPartitionError,
    RecordError,
    RetriableError,
    UnknownServerError,
    UnreleasedInstanceIdError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import TransactionalIdInUseError

logger: logging.Logger = logging.getLogger("onceflow.processors")

IDLE_POLL_MS = 1_000
STANDBY_POLL_MS = 100
"""Longest wait of a poll beside copies of state, which are followed between polls."""
RESTORE_SLICE_MS = 100
RETRY_OPEN_MS = 50
BUSY_POLL_MS = 10
"""Longest time between two polls while overlapping calls are running."""
FORCED_CLOSE_MS = 1_000

_BEGIN_AGAIN = (
    RetriableError,
    AbortableError,
    CommitFailedError,
    CommitOutcomeUnknownError,
    UnknownServerError,  # A coordinator whose disk is full says nothing better.
    UnreleasedInstanceIdError,
)
"""New clients or a wait may help: a killed worker keeps its instance id for some time."""


class Worker:
    """One worker of an application.

    Args:
        topology: The application.
        settings: How it runs.
        services: Makes clients, opens stores, tells the time.
        until_end: Whether it ends when what was in its inputs at the start is processed.
        figures: Counters of the process, which continue those of a former worker.
    """

    def __init__(
        self,
        topology: Topology,
        settings: AppSettings,
        services: Services,
        *,
        until_end: bool = False,
        figures: WorkerFigures | None = None,
    ) -> None:
        self._topology = topology
        self._settings = settings
        self._services = services
        self._clock = services.monotonic_s
        self._unit = self._make_unit()
        self._connections = Connections(topology, settings, services)
        self._run_end = RunEnd(topology.output_topics) if until_end else None
        self._reached_end = False
        self._in_flight = InFlight(self._clock)
        self._resources = Resources(topology.hooks)
        self._global_rows = GlobalRows(topology.global_tables, services.changelog_reader)
        self._programs = self._make_programs()
        meters = [meter for program in self._programs.values() for meter in program.meters]
        self._tally = Tally(self._unit.lanes, topology.dead_letter_topics, meters)
        self._restorer = Restorer(services.changelog_reader, self._clock)
        self._tasks = Tasks(topology, self._make_task, self._restorer)
        self._stores = TaskStores(topology, settings, services)
        self._copies = Copies(
            topology, settings, self._stores, self._restorer, self._clock, services.wall_ms
        )
        self.queries: Queries = Queries(topology, self._stores, self._connections.wake_poll)
        self._bad = BadInputs(self._clock)
        self._slot: Slot | None = None
        self._stopping = False
        self._is_held = False
        self._leave_group = True
        self.figures: WorkerFigures = figures or WorkerFigures()
        self._count_functions()
        clock, run_end = self._clock, self._run_end
        tasks, stores, connections = self._tasks, self._stores, self._connections
        self._pauses = Pauses(tasks, self._bad, run_end)
        self._units = Units(
            self._unit,
            tasks,
            connections,
            self._copies,
            self._bad,
            self._pauses,
            run_end,
            self._tally,
            self.figures,
            clock,
        )
        self._opening = StateOpening(
            tasks, stores, self._copies, self._restorer, clock, services.wall_ms
        )
        self._upkeep = Upkeep(
            topology,
            tasks,
            stores,
            connections,
            self._units,
            self._copies,
            self._restorer,
            self._global_rows,
            self.figures,
            clock,
        )
        self._bounded = (
            BoundedRun(run_end, topology, stores, tasks, connections, clock) if run_end else None
        )

    def _make_unit(self) -> Unit:
        settings = self._settings
        return Unit(
            self._clock,
            settings.commit_interval_ms,
            settings.commit_records,
            settings.aborts_max,
            settings.commit_bytes,
        )

    def _make_programs(self) -> dict[str, Program]:
        settings = self._settings
        around = Surroundings(
            self._unit.lanes,
            self._clock,
            self._services.wall_ms,
            settings.output_bytes_max,
            settings.max_future_ms,
            self._resources,
            self._global_rows,
        )
        return make_programs(self._topology, around)

    def _count_functions(self) -> None:
        """Have the nodes count for the metrics, by function."""
        nodes = [node for program in self._programs.values() for node in program.nodes]
        names = dict.fromkeys(node.name for node in nodes)
        counts = self.figures.begin(self._topology.dead_letter_topics, names)
        for node in nodes:
            node.failures.tally = counts[node.name]

    def _make_task(self, part: SubTopology, partition: int) -> Task:
        self._stores.found.check_partition(part, partition)
        inputs = [TopicPartition(topic, partition) for topic in part.input_topics]
        id = TaskId(part.name, partition)
        state = self._stores.make_state(id) if part.states else None
        return Task(
            id,
            self._programs[part.name],
            inputs,
            state,
            self._settings.max_task_idle_ms,
            self._tables_to_load(part, partition),
            self._in_flight,
        )

    def _tables_to_load(self, part: SubTopology, partition: int) -> list[TopicPartition]:
        """Return the tables to read to their ends first: those of a task that never took a record.

        Later the order of timestamps alone decides which row a record meets, also after a restart.
        """
        streams = [topic for topic in part.input_topics if topic not in part.table_topics]
        if not streams:
            return []
        for topic in streams:
            tp = TopicPartition(topic, partition)
            if decode_note(self._connections.ledger.note(tp)) is not None:
                return []
        return [TopicPartition(topic, partition) for topic in part.table_topics]

    # Life ----------------------------------------------------------------------------------

    def stop(self, *, leave_group: bool = True) -> None:
        """Ask for an orderly end; callable from signal handlers and other threads.

        Args:
            leave_group: False keeps the partitions for the next start of this slot, until the
                session times out.
        """
        self._leave_group = leave_group
        self._stopping = True
        self._unit.due_s = 0.0  # The record in hand is the last one.
        self.interrupt()

    def hold(self, *, held: bool) -> None:
        """Pause or resume taking records; callable from any thread.

        Args:
            held: Whether records wait. Calls in hand end, and what is done is committed.
        """
        self._is_held = held
        self._unit.due_s = 0.0  # The record in hand is the last one for now.
        self._connections.wake_poll()

    def interrupt(self) -> None:
        """Make a waiting call return, as the worker ends."""
        self._services.wake()
        self._connections.wake_poll()

    def report(self) -> RunReport:
        """Return the report so far."""
        return self._tally.report(reached_end=self._reached_end)

    async def run(self, calls: Calls) -> None:
        """Process until ``stop``, the end of a bounded run, or an error.

        Args:
            calls: Runs what asks brokers.

        Raises:
            ProcessingError: A record failed and the policy is to stop, or an input is damaged.
            TooManyAbortsError: No unit succeeds any more.
            SlotInUseError: Another live worker has taken over the slot.
            TopicSetupError: A topic is missing or does not fit, also one that went later.
            StateDirectoryError: State cannot be used, or does not belong to the offsets.
            RightsMissingError: The user lacks a right.
            KafkaError: The brokers refuse for good.
        """
        close_ms = FORCED_CLOSE_MS
        try:
            with contextlib.suppress(StoppedError):
                await self._start(calls)
            if not self._stopping:
                await self._resources.open()
            while not self._stopping:
                try:
                    await self._round(calls)
                except _BEGIN_AGAIN as error:
                    await self._begin_again(calls, error)
            await self._finish_calls(calls)
            await self._units.commit(calls)
            close_ms = self._settings.shutdown_timeout_ms // 2
        except (FencedInstanceIdError, TransactionalIdInUseError) as error:
            raise slot_in_use(self._topology.app, self._slot) from error
        except KafkaError as error:
            close_ms = self._settings.shutdown_timeout_ms // 2
            await self._connections.check_rights(calls, error, self._slot)
            raise
        finally:
            try:
                await calls(self._close(close_ms))
            finally:
                for task in self._tasks:
                    task.aborted()
                await self._in_flight.finish(close_ms / 1000)
                await self._resources.close()
                self.queries.close()
                self._tasks.release_all()
                if self._slot is not None:
                    self._slot.release()
                calls.close()

    async def _count_failure(self, calls: Calls, error: KafkaError) -> None:
        await self._connections.check_rights(calls, error, self._slot)
        self._unit.aborts += 1
        self._unit.check_exhausted(error)
        logger.warning("beginning again after: %s", error)

    async def _start(self, calls: Calls) -> None:
        """Check the topics and open the ledger.

        It fails if no broker answers the first call; later it waits for brokers that are away.
        """
        connections = self._connections
        await connections.open_admin(calls)
        while not self._stopping:
            try:
                topics = await calls(provision(self._topology, self._settings, connections.admin))
                self._stores.topics = topics
                self._global_rows.cover(topics.partitions)
                await self._read_global_tables(calls)
                if self._stopping:
                    return
                if self._slot is None:
                    directory = self._settings.state_dir / self._topology.app
                    self._slot = claim_slot(directory, self._settings.slot)
                if self._bounded is not None:
                    await self._bounded.begin(calls)
                await self._open_ledger(calls)
            except (*_BEGIN_AGAIN, NoBrokersAvailableError) as error:
                await self._count_failure(calls, error)
                await self._drop_ledger(calls)
                delay_s = self._unit.backoff_ms() / 1000
                await calls(made(partial(self._services.sleep, delay_s)))
            else:
                return

    async def _read_global_tables(self, calls: Calls) -> None:
        """Read new rows of global tables, and wait until they are complete."""
        if not self._global_rows.tables:
            return
        await calls(self._global_rows.step(0))
        while not (self._global_rows.complete or self._stopping):
            await calls(self._global_rows.step(RESTORE_SLICE_MS))

    async def _open_ledger(self, calls: Calls) -> None:
        assert self._slot is not None
        await self._connections.open_ledger(
            calls, self._units, self._unit, self._slot.name, self._copies.placing()
        )

    async def _close(self, timeout_ms: int) -> None:
        try:
            await self._connections.close_ledger(timeout_ms, leave_group=self._leave_group)
        finally:
            self._copies.close()
            await self._restorer.close()
            await self._global_rows.close()
            await self._connections.close_admin()

    async def _begin_again(self, calls: Calls, error: KafkaError) -> None:
        """Begin again with new clients, the same slot, and state from the stores."""
        while not self._stopping:
            await self._count_failure(calls, error)
            await self._upkeep.check_topics(calls, now=True)
            await self._drop_ledger(calls)
            delay_s = self._unit.backoff_ms() / 1000
            await calls(made(partial(self._services.sleep, delay_s)))
            try:
                await self._open_ledger(calls)
            except StoppedError:
                return
            except (*_BEGIN_AGAIN, NoBrokersAvailableError) as again:
                error = again
            else:
                return

    async def _drop_ledger(self, calls: Calls) -> None:
        await self._connections.drop_ledger(calls)
        self._units.drop()
        self.figures.picture = WorkerPicture(self._clock(), joined=False)

    # The loop ------------------------------------------------------------------------------

    async def _round(self, calls: Calls) -> None:
        unit = self._unit
        self._units.was_aborted = False
        held = self._is_held
        for each in self._tasks:
            each.drain(held)
        limit = max(1, min(self._connections.records_max, unit.room))
        poll_ms = 0 if self._in_flight.busy else self._poll_ms()
        polled = await calls(self._connections.ledger.poll(poll_ms, limit))
        if polled.unit_error is not None:
            await self._on_unit_error(calls, polled.unit_error)
            return
        if polled.input_error is not None:
            await self._on_input_error(calls, polled)
        self.figures.took(polled.records)
        for partition, records in polled.records.items():
            if self._run_end is not None:
                records = self._run_end.cut(partition, records)
            task = self._tasks.of(partition)
            assert task is not None, f"{partition} is read and belongs to no task"
            task.put(partition, records)
            self._bad.read(partition)
        await self.queries.serve(calls, self._connections.ledger, self._tasks, self._copies.servers)
        await self._read_global_tables(calls)
        if self._tasks.restoring:
            slice_ms = 0 if polled.records else RESTORE_SLICE_MS
            await self._opening.step(calls, self._connections.ledger, slice_ms)
            await self._hold_back(calls)
        await self._copies.keep(calls, self._tasks)
        await self._step_tasks(calls, held=held)
        if not self._units.was_aborted:
            await self._units.push(calls)
        if unit.is_due or held:
            await self._units.commit(calls)
        if self._bounded is not None:
            await self._check_end(calls, self._bounded)
        await self._hold_back(calls)
        self._opening.note_complete()
        await self._upkeep.step(calls)
        for partition in self._bad.due():
            await calls(self._connections.ledger.read_again(partition))
        if self._units.was_aborted and unit.backoff_ms():
            await self._back_off(calls)
        if self._in_flight.busy and not self._stopping:
            await self._in_flight.wait(min(BUSY_POLL_MS, self._poll_ms()) / 1000)

    async def _check_end(self, calls: Calls, bounded: BoundedRun) -> None:
        """End a bounded run when all of its records are committed."""
        if self._units.was_aborted or not await bounded.own_part_read(calls):
            return
        if not await self._units.commit(calls) or self._stopping:
            return
        if await bounded.whole_run_done(calls):
            self._reached_end = self._stopping = True

    async def _hold_back(self, calls: Calls) -> None:
        await self._pauses.hold_back(
            calls,
            self._connections.ledger,
            self._connections.records_max,
            self._clock(),
            held=self._is_held,
        )

    def _poll_ms(self) -> int:
        """Return how long a poll may wait for records."""
        if self._tasks.restoring:
            return RETRY_OPEN_MS if self._tasks.opening else 0
        now_s = self._clock()
        idle_ms = STANDBY_POLL_MS if self._copies.active else IDLE_POLL_MS
        until_s = now_s + idle_ms / 1000
        if self._unit.count:
            until_s = min(until_s, self._unit.due_s)
        for task in self._tasks:
            ready_s = None if self._is_held else task.ready_s(now_s)
            if ready_s is not None:
                until_s = min(until_s, ready_s)
        bad_s = self._bad.next_s()
        if bad_s is not None:
            until_s = min(until_s, bad_s)
        # Rounded up: a poll that returned too early would be repeated at once.
        return max(0, -int((now_s - until_s) * 1000 // 1))

    async def _step_tasks(self, calls: Calls, *, held: bool = False) -> None:
        """Let each task process its records, with commits in between when they are due.

        Args:
            calls: Runs what asks brokers.
            held: Whether only calls that overlap and are in hand come to their ends.
        """
        for task in self._tasks:
            if held and task.overlap is None:
                continue
            while not (self._stopping or self._units.was_aborted or self._is_held is not held):
                if len(task.inputs) > 1 and task.status is TaskStatus.RUNNING:
                    await self._note_ends(calls, task)
                now_s = self._clock()
                ready_s = task.ready_s(now_s)
                if ready_s is None or ready_s > now_s:
                    break
                await self._step(calls, task)

    async def _step(self, calls: Calls, task: Task) -> None:
        unit = self._unit
        unit.started()
        self._tally.before(task)
        try:
            await task.step(unit)
        except ProcessingError:
            self._tally.after(task)
            await self._units.commit(calls)  # What precedes the record is good.
            raise
        self._tally.after(task)
        if unit.is_due:
            await self._units.commit(calls)
            self._upkeep.take_picture()

    async def _finish_calls(self, calls: Calls) -> None:
        """Wait for running calls, and take their results into the last units; begin no more.

        Calls that take too long are dropped: their records come again.
        """
        tasks = [task for task in self._tasks if task.overlap is not None]
        for task in tasks:
            task.drain(True)
        end_s = self._clock() + self._settings.shutdown_timeout_ms / 2_000
        self._units.was_aborted = False
        while not self._units.was_aborted:
            busy = self._in_flight.busy
            for task in tasks:
                now_s = self._clock()
                while not self._units.was_aborted and task.ready_s(now_s) == now_s:
                    await self._step(calls, task)
            left_s = end_s - self._clock()
            if not busy or left_s <= 0:
                return
            await self._in_flight.wait(left_s)

    async def _note_ends(self, calls: Calls, task: Task) -> None:
        """Tell a task which of its empty inputs were read to their ends.

        Nothing is heard of a paused partition, so its end may have moved. Behind the end of a
        bounded run nothing is waited for.
        """
        passed = frozenset[TopicPartition]() if self._run_end is None else self._run_end.passed()
        for partition in task.inboxes.empty():
            at_end = partition in passed
            if not at_end and partition not in self._pauses.paused:
                at_end = await calls(self._connections.ledger.at_end(partition))
            task.inboxes.note_end(partition, at_end)

    # Failures ------------------------------------------------------------------------------

    async def _on_unit_error(self, calls: Calls, error: Exception) -> None:
        """Handle the error of a commit within a rebalance."""
        if isinstance(error, RecordError):
            self._units.suspect(error)
        else:
            raise error

    async def _on_input_error(self, calls: Calls, polled: Polled) -> None:
        """Pause a partition that cannot be read, to fetch it again; others continue.

        Raises:
            ProcessingError: It stayed unreadable.
            KafkaError: The error does not belong to a partition.
        """
        error = polled.input_error
        assert error is not None
        partition = self._bad.note(error)
        if partition is None or self._tasks.of(partition) is None:
            await self._units.commit(calls)
            if isinstance(error, NoOffsetForPartitionError):
                # While this process slept, a successor may have purged processed records.
                await calls(self._connections.ledger.check_membership())
            raise error
        if self._bad.given_up(partition):
            await self._step_tasks(calls)
            await self._units.commit(calls)
            raise self._bad.failure(partition)
        await self._pauses.pause(calls, self._connections.ledger, partition)

    async def _back_off(self, calls: Calls) -> None:
        """Take no records for a while; polling continues, which keeps the membership."""
        until_s = self._clock() + self._unit.backoff_ms() / 1000
        for task in self._tasks:
            task.held_until_s = until_s
