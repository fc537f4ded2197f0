"""The loop of one worker: poll, process, commit, and handle rebalances, failures and the end.

The worker decides when a unit ends, which partitions are paused, what follows a failed unit, and
how the process ends. Nodes process records, tasks hold them, and the ledger ends units. The worker
is a coroutine over ``Calls`` and ``Services``, so the same loop runs blocking, beside async
handlers, and over asyncio clients on virtual time. It starts no thread, reads no clock itself and
never sleeps.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from onceflow.processors.assign import CoPartitioned, Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.changelog import Restorer
from onceflow.processors.copies import Copies
from onceflow.processors.errors import (
    ProcessingError,
    StateMismatchError,
    StoppedError,
    TopicSetupError,
)
from onceflow.processors.figures import TaskPicture, WorkerFigures, WorkerPicture
from onceflow.processors.global_rows import GlobalRows
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.hooks import Resources
from onceflow.processors.identity import Slot, claim_slot, slot_in_use
from onceflow.processors.inputs import BadInputs
from onceflow.processors.lanes import Run
from onceflow.processors.ledger.base import Ledger, Polled
from onceflow.processors.nodes.base import Surroundings
from onceflow.processors.nodes.programs import make_programs
from onceflow.processors.notes import decode_note, encode_note, latest
from onceflow.processors.overlap import InFlight
from onceflow.processors.provisioning import Provisioned, TopicAdmin, provision, watch
from onceflow.processors.purging import Purge
from onceflow.processors.queries import Queries
from onceflow.processors.report import RunReport, Tally
from onceflow.processors.rights import NOT_AUTHORIZED, explain
from onceflow.processors.run_end import RunEnd
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.processors.task_stores import TaskStores
from onceflow.processors.unit import Place, Unit
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
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import Abort, TransactionalIdInUseError
from onceflow.transactions.colour import Maybe, settle

logger: logging.Logger = logging.getLogger("onceflow.processors")

T = TypeVar("T")

IDLE_POLL_MS = 1_000
STANDBY_POLL_MS = 100
"""Longest wait of a poll beside copies of state, which are followed between polls."""
RESTORE_SLICE_MS = 100
RETRY_OPEN_MS = 50
BUSY_POLL_MS = 10
"""Longest time between two polls while overlapping calls are running."""
FORCED_CLOSE_MS = 1_000
TOPICS_CHECKED_S = 10.0
"""Seconds between two checks of the topics of a running worker."""
COMPLETE_NOTED_S = 600.0
"""Seconds between two notes that stores are complete. A store without such a note for longer than
``delete.retention.ms`` is rebuilt, as its changelog may lack deletions."""
OTHERS_ASKED_S = 1.0
"""Seconds between two looks at the group's offsets, when a bounded run has done its own part."""
LOCK_TOLD_S = 5.0
"""Seconds between two log lines about a store that another process has locked."""

_BEGIN_AGAIN = (
    RetriableError,
    AbortableError,
    CommitFailedError,
    CommitOutcomeUnknownError,
    UnknownServerError,  # A coordinator whose disk is full says nothing better.
    UnreleasedInstanceIdError,
)
"""New clients or a wait may help: a killed predecessor keeps its instance id for some time."""


class Worker:
    """One worker of an application, and the ``LedgerOwner`` of its ledger.

    Args:
        topology: The application.
        settings: How it runs.
        services: Makes clients, opens stores, tells the time.
        until_end: Whether it ends when what was in its inputs at the start is processed.
        figures: Counters of the process, which go on from those of a former worker.
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
        self._unit = Unit(
            self._clock,
            settings.commit_interval_ms,
            settings.commit_records,
            settings.aborts_max,
            settings.commit_bytes,
        )
        self._run_end = RunEnd(topology.output_topics) if until_end else None
        self._reached_end = False
        self._others_asked_s = self._clock() - OTHERS_ASKED_S
        self._in_flight = InFlight(self._clock)
        self._resources = Resources(topology.hooks)
        self._global_rows = GlobalRows(topology.global_tables, services.changelog_reader)
        self._programs = make_programs(
            topology,
            Surroundings(
                self._unit.lanes,
                self._clock,
                services.wall_ms,
                settings.output_bytes_max,
                settings.max_future_ms,
                self._resources,
                self._global_rows,
            ),
        )
        meters = [meter for program in self._programs.values() for meter in program.meters]
        self._tally = Tally(self._unit.lanes, topology.dead_letter_topics, meters)
        self._restorer = Restorer(services.changelog_reader, self._clock)
        self._tasks = Tasks(topology, self._make_task, self._restorer)
        self._stores = TaskStores(topology, settings, services)
        self._copies = Copies(
            topology, settings, self._stores, self._restorer, self._clock, services.wall_ms
        )
        self.queries: Queries = Queries(topology, self._stores, self._wake_poll)
        self._bad = BadInputs(self._clock)
        self._topics: Provisioned | None = None
        self._admin: TopicAdmin | None = None
        self._ledger: Ledger | None = None
        self._slot: Slot | None = None
        self._records_max = 1
        self._paused: set[TopicPartition] = set()
        self._failed: dict[Place, int] = {}
        self._failed_count = 0
        self._was_aborted = False
        self._stopping = False
        self._is_held = False
        self._leave_group = True
        self.figures: WorkerFigures = figures or WorkerFigures()
        nodes = [node for program in self._programs.values() for node in program.nodes]
        names = dict.fromkeys(node.name for node in nodes)
        counts = self.figures.begin(topology.dead_letter_topics, names)
        for node in nodes:
            node.failures.tally = counts[node.name]
        self._joined = False
        self._checked_s = self._noted_s = self._clock()
        self._purge = Purge(topology.repartition_topics, self._checked_s)
        self._told_s = self._checked_s - LOCK_TOLD_S

    def _make_task(self, part: SubTopology, partition: int) -> Task:
        topics = self._topics
        assert topics is not None
        topics.check_partition(part, partition)
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
            if decode_note(self._open.note(tp)) is not None:
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
        self._wake_poll()

    def interrupt(self) -> None:
        """Make a waiting call return, as the worker ends."""
        self._services.wake()
        self._wake_poll()

    def _wake_poll(self) -> None:
        ledger = self._ledger
        if ledger is not None:
            ledger.wakeup()

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
            await self._commit(calls)
            close_ms = self._settings.shutdown_timeout_ms // 2
        except (FencedInstanceIdError, TransactionalIdInUseError) as error:
            raise slot_in_use(self._topology.app, self._slot) from error
        except KafkaError as error:
            close_ms = self._settings.shutdown_timeout_ms // 2
            await self._check_rights(calls, error)
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

    async def _check_rights(self, calls: Calls, error: KafkaError) -> None:
        """End the worker if the user lacks a right; other refusals pass."""
        if isinstance(error, NOT_AUTHORIZED) and self._admin is not None:
            await calls(explain(error, self._topology, self._settings, self._slot, self._admin))

    async def _count_failure(self, calls: Calls, error: KafkaError) -> None:
        await self._check_rights(calls, error)
        self._unit.aborts += 1
        self._unit.check_exhausted(error)
        logger.warning("beginning again after: %s", error)

    async def _start(self, calls: Calls) -> None:
        """Check the topics and open the ledger.

        It fails if no broker answers the first call; later it waits for brokers that are away.
        """
        self._admin = await calls(_made(self._services.admin))
        while not self._stopping:
            try:
                self._topics = await calls(provision(self._topology, self._settings, self._admin))
                self._stores.topics = self._topics
                self._global_rows.cover(self._topics.partitions)
                await self._read_global_tables(calls)
                if self._stopping:
                    return
                if self._slot is None:
                    directory = self._settings.state_dir / self._topology.app
                    self._slot = claim_slot(directory, self._settings.slot)
                if self._run_end is not None and not self._run_end.is_set:
                    await self._take_ends(calls, self._topology.input_topics)
                await self._open_ledger(calls)
            except (*_BEGIN_AGAIN, NoBrokersAvailableError) as error:
                await self._count_failure(calls, error)
                await self._drop_ledger(calls)
                delay_s = self._unit.backoff_ms() / 1000
                await calls(_made(partial(self._services.sleep, delay_s)))
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
        joins = any(len(part.input_topics) > 1 for part in self._topology.sub_topologies)
        config = self._settings.session_config(
            self._topology.app,
            self._topology.input_topics,
            self._slot.name,
            CoPartitioned(self._topology) if joins else None,
            [*self._topology.table_topics, *self._topology.repartition_topics],
            self._copies.placing(),
        )
        self._records_max = config.consumer.max_poll_records
        if self._topology.sink is None:
            self._ledger = self._services.ledger(config, self, self._unit, calls)
        else:
            self._ledger = self._services.sink_ledger(
                config, self, self._unit, calls, self._topology
            )
        await calls(self._ledger.open())

    async def _close(self, timeout_ms: int) -> None:
        ledger = self._ledger
        try:
            if ledger is not None:
                await ledger.close(timeout_ms, leave_group=self._leave_group)
        except KafkaError as error:
            logger.warning("closing: %s", error)
        finally:
            self._copies.close()
            await self._restorer.close()
            await self._global_rows.close()
            if self._admin is not None:
                await settle(self._admin.close())

    async def _begin_again(self, calls: Calls, error: KafkaError) -> None:
        """Begin again with new clients, the same slot, and state from the stores."""
        while not self._stopping:
            await self._count_failure(calls, error)
            await self._check_topics(calls, now=True)
            await self._drop_ledger(calls)
            delay_s = self._unit.backoff_ms() / 1000
            await calls(_made(partial(self._services.sleep, delay_s)))
            try:
                await self._open_ledger(calls)
            except StoppedError:
                return
            except (*_BEGIN_AGAIN, NoBrokersAvailableError) as again:
                error = again
            else:
                return

    async def _drop_ledger(self, calls: Calls) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                await calls(ledger.close(self._settings.revoke_budget_ms, leave_group=True))
            except KafkaError as error:
                logger.debug("closing before beginning again: %s", error)
        for task in self._tasks:
            task.aborted()
            self._unit.forget(task.rows)
        if self._run_end is not None:
            self._run_end.read_again(self._tasks.owned)
        self._tasks.release_all()
        self._tally.dropped()
        self._unit.clear()
        self._paused.clear()
        self._bad.clear()
        self._joined = False
        self.figures.picture = WorkerPicture(self._clock(), joined=False)

    @property
    def _open(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    # The loop ------------------------------------------------------------------------------

    async def _round(self, calls: Calls) -> None:
        unit = self._unit
        self._was_aborted = False
        held = self._is_held
        for each in self._tasks:
            each.drain(held)
        limit = max(1, min(self._records_max, unit.room))
        poll_ms = 0 if self._in_flight.busy else self._poll_ms()
        polled = await calls(self._open.poll(poll_ms, limit))
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
        await self.queries.serve(calls, self._open, self._tasks, self._copies.servers)
        await self._read_global_tables(calls)
        if self._tasks.restoring:
            await self._restore(calls, 0 if polled.records else RESTORE_SLICE_MS)
        await self._copies.keep(calls, self._tasks)
        await self._step_tasks(calls, held=held)
        if not self._was_aborted:
            await self._push(calls)
        if unit.is_due or held:
            await self._commit(calls)
        if self._run_end is not None:
            await self._check_end(calls, self._run_end)
        await self._hold_back(calls)
        await self._keep_house(calls)
        if self._was_aborted and unit.backoff_ms():
            await self._back_off(calls)
        if self._in_flight.busy and not self._stopping:
            await self._in_flight.wait(min(BUSY_POLL_MS, self._poll_ms()) / 1000)

    async def _take_ends(self, calls: Calls, topics: Sequence[str]) -> bool:
        """Note the present ends of topics; return whether any has grown."""
        assert self._topics is not None
        assert self._admin is not None
        assert self._run_end is not None
        counts = self._topics.partitions
        wanted = [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]
        return self._run_end.take(await calls(_made(partial(self._admin.bounds, wanted))))

    async def _check_end(self, calls: Calls, end: RunEnd) -> None:
        """End a bounded run when all of its records are committed."""
        owned = self._tasks.owned
        if self._was_aborted or self._tasks.restoring or self._tasks.incomplete:
            return
        if any(task.has_records for task in self._tasks):
            return
        for partition in sorted(owned - end.passed()):
            if not end.note_position(partition, await calls(self._open.position(partition))):
                return
        if self._unit.count and not await self._commit(calls):
            return
        now_s = self._clock()
        if self._stopping or now_s - self._others_asked_s < OTHERS_ASKED_S:
            return
        self._others_asked_s = now_s
        assert self._admin is not None
        committed = await calls(_made(partial(self._admin.committed, self._topology.group)))
        # The commit may have brought a rebalance.
        if end.missing(self._tasks.owned, committed.get) or self._tasks.owned - end.passed():
            return
        written = set(self._topology.output_topics)
        again = [topic for topic in self._topology.input_topics if topic in written]
        if again and await self._take_ends(calls, again):
            self._others_asked_s -= OTHERS_ASKED_S
            return
        self._reached_end = self._stopping = True

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
            while not (self._stopping or self._was_aborted or self._is_held is not held):
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
            await self._commit(calls)  # What precedes the record is good.
            raise
        self._tally.after(task)
        if unit.is_due:
            await self._commit(calls)

    async def _finish_calls(self, calls: Calls) -> None:
        """Wait for running calls, and take their results into the last units; begin no more.

        Calls that take too long are dropped: their records come again.
        """
        tasks = [task for task in self._tasks if task.overlap is not None]
        for task in tasks:
            task.drain(True)
        end_s = self._clock() + self._settings.shutdown_timeout_ms / 2_000
        self._was_aborted = False
        while not self._was_aborted:
            busy = self._in_flight.busy
            for task in tasks:
                now_s = self._clock()
                while not self._was_aborted and task.ready_s(now_s) == now_s:
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
            if not at_end and partition not in self._paused:
                at_end = await calls(self._open.at_end(partition))
            task.inboxes.note_end(partition, at_end)

    # Failures ------------------------------------------------------------------------------

    async def _on_unit_error(self, calls: Calls, error: Exception) -> None:
        """Handle the error of a commit within a rebalance."""
        if isinstance(error, RecordError):
            self._suspect(error)
        else:
            raise error

    async def _on_input_error(self, calls: Calls, polled: Polled) -> None:
        """Pause a partition that cannot be read, to fetch it again; others go on.

        Raises:
            ProcessingError: It stayed unreadable.
            KafkaError: The error is none of a partition.
        """
        error = polled.input_error
        assert error is not None
        partition = self._bad.note(error)
        if partition is None or self._tasks.of(partition) is None:
            await self._commit(calls)
            if isinstance(error, NoOffsetForPartitionError):
                # While this process slept, a successor may have purged processed records.
                await calls(self._open.check_membership())
            raise error
        if self._bad.given_up(partition):
            await self._step_tasks(calls)
            await self._commit(calls)
            raise self._bad.failure(partition)
        await calls(self._open.pause([partition]))
        self._paused.add(partition)

    def _suspect(self, error: RecordError) -> None:
        """Find the record or due row whose outputs the brokers refuse, by halving units."""
        if self._failed_count == 1 and len(self._failed) == 1:
            ((place, upto),) = self._failed.items()
            for task in self._tasks:
                if place in task.inputs or place == task.rows:
                    task.refuse_outputs(place, upto, error)
        else:
            self._unit.suspect(self._failed, self._failed_count)
        self._unit.check_exhausted(error)

    async def _back_off(self, calls: Calls) -> None:
        """Take no records for a while; polling goes on, which keeps the membership."""
        until_s = self._clock() + self._unit.backoff_ms() / 1000
        for task in self._tasks:
            task.held_until_s = until_s

    # Ending units --------------------------------------------------------------------------

    async def _push(self, calls: Calls) -> None:
        """Send outputs early, so that they are under way while the next records are processed."""
        if self._unit.is_careful or not self._unit.lanes.size:
            return
        runs = self._unit.lanes.take()
        self.figures.sent(runs)
        try:
            if not await calls(self._open.send(runs)):
                self._unit.check_exhausted(self._open.last_abort)
        except RecordError as error:
            self._suspect(error)

    async def _commit(self, calls: Calls) -> bool:
        """Commit the unit; return False if it became an abort."""
        if not self._unit.count:
            return True
        began_s = self._clock()
        try:
            done = await calls(self._open.commit())
        except RecordError as error:
            self._suspect(error)
            return False
        if done:
            self.figures.commit_took(self._clock() - began_s)
        else:
            self._unit.check_exhausted(self._open.last_abort)
        return done

    # Holding back --------------------------------------------------------------------------

    async def _hold_back(self, calls: Calls) -> None:
        """Pause partitions whose task waits or whose inbox is full, and resume the others."""
        now_s = self._clock()
        wanted: set[TopicPartition] = set()
        for task in self._tasks:
            if task.status is not TaskStatus.RUNNING:
                wanted.update(task.inputs)
                continue
            if task.blocked_until_s(now_s) is not None:
                # Go on reading the empty ones of several inputs: a record that arrives may be
                # earlier than those in the inboxes (KIP-695).
                empty = task.inboxes.empty() if len(task.inputs) > 1 else []
                wanted.update(tp for tp in task.inputs if tp not in empty)
            else:
                wanted.update(task.full(self._records_max))
        if self._is_held:
            wanted |= self._tasks.owned
        wanted |= self._bad.held()
        if self._run_end is not None:
            wanted |= self._run_end.passed() & self._tasks.owned
        wanted |= self._tasks.incomplete
        if wanted != self._paused:
            pause, resume = wanted - self._paused, self._paused - wanted
            if pause:
                await calls(self._open.pause(sorted(pause)))
            if resume:
                owned = self._tasks.owned
                await calls(self._open.resume(sorted(resume & owned)))
            self._paused = wanted

    # State ---------------------------------------------------------------------------------

    async def _restore(self, calls: Calls, timeout_ms: int) -> None:
        """Open stores and replay changelogs for a while."""
        try:
            for task in self._tasks.opening:
                await self._open_store(calls, task)
            for state in await calls(self._restorer.step(timeout_ms)):
                for task in self._tasks:
                    if task.state is state:
                        self._complete(task)
        except StateMismatchError:
            # While this process slept or waited for the store, a successor may have moved offsets
            # and state on. Then the lost membership is the error to raise.
            await calls(self._open.check_membership())
            raise
        await self._hold_back(calls)

    async def _open_store(self, calls: Calls, task: Task) -> None:
        state = task.state
        assert state is not None
        state.use_note(latest(decode_note(self._open.note(tp)) for tp in task.inputs))
        opened = self._copies.give(task.id)
        if opened is None:
            opened = self._stores.open_map(task.id)
        if opened is None:
            now_s = self._clock()
            if now_s - self._told_s >= LOCK_TOLD_S:
                self._told_s = now_s
                logger.warning(
                    "state of %s waits: another process holds %s.lock; it goes on when that "
                    "process has closed it",
                    task.id,
                    self._stores.path_of(task.id),
                )
            return
        try:
            state.use(opened)
        except BaseException:
            opened.close()
            raise
        task.status = TaskStatus.RESTORING
        if await calls(self._restorer.add(state, task.id.partition)):
            self._complete(task)

    def _complete(self, task: Task) -> None:
        assert task.state is not None
        task.state.complete(self._services.wall_ms())
        task.run()
        logger.info("state of %s is complete", task.id)

    async def _keep_house(self, calls: Calls) -> None:
        now_s = self._clock()
        if self.figures.is_due(now_s):
            self.figures.picture = self._picture(now_s)
            self._copies.tell(self._tasks)
        if now_s - self._noted_s >= COMPLETE_NOTED_S:
            self._noted_s = now_s
            for task in self._tasks:
                if task.state is not None and task.status is TaskStatus.RUNNING:
                    task.state.note_complete(self._services.wall_ms())
        if now_s - self._checked_s >= TOPICS_CHECKED_S:
            await self._check_topics(calls)
        for partition in self._bad.due():
            await calls(self._open.read_again(partition))
        assert self._admin is not None
        await self._purge.step(calls, self._admin, self._tasks.owned, self._open.place, now_s)

    def _picture(self, now_s: float) -> WorkerPicture:
        """Make the snapshot of the tasks that other threads read."""
        tasks = tuple(
            TaskPicture(
                str(task.id),
                task.status.name,
                None if task.state is None else task.state.disk_bytes,
            )
            for task in self._tasks
        )
        places = {tp: self._open.place(tp) for tp in self._tasks.owned}
        known = {tp: place for tp, place in places.items() if place is not None}
        copies = {str(id): lag for id, lag in self._copies.lags.items()}
        return WorkerPicture(now_s, self._joined, tasks, known, self._restorer.left, copies)

    async def _check_topics(self, calls: Calls, *, now: bool = False) -> None:
        """Check whether topics were deleted, made again, or have grown.

        Raises:
            TopicSetupError: One is not what it was.
        """
        self._checked_s = self._clock()
        assert self._admin is not None
        assert self._topics is not None
        try:
            counts = await calls(watch(self._topology, self._topics, self._admin))
            self._global_rows.cover(counts)  # New partitions are read too.
        except TopicSetupError:
            if self._unit.count and not now:
                await self._commit(calls)
            raise
        except KafkaError as error:
            logger.debug("looking at the topics: %s", error)

    # The ledger's owner --------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Make tasks; those with state stay paused until it is restored."""
        if partitions:
            logger.info("assigned %s", ", ".join(map(str, partitions)))
        self._joined = True
        waiting = self._tasks.assign(partitions)
        self._paused.difference_update(partitions)
        self._paused.update(waiting)
        return waiting

    def collect(self) -> list[Run]:
        """Return the unsent records of the unit: outputs, then state changes."""
        runs = self._unit.lanes.take()
        for task in self._tasks:
            if task.state is not None and task.status is TaskStatus.RUNNING:
                runs += task.state.collect()
        self.figures.sent(runs)
        return runs

    def offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets and notes of the unit, by the tasks' progress."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in self._tasks:
            progress = self._progress_of(task)
            if progress:
                note = "" if task.state is None else encode_note(task.state.note())
                for partition, offset in progress.items():
                    found[partition] = OffsetAndMetadata(offset, note)
        return found

    def _progress_of(self, task: Task) -> dict[TopicPartition, int]:
        """Return a task's offsets; the committed ones if the unit holds only due rows of it.

        A commit without any offset would not be refused when the partition has another owner.
        """
        if task.progress or not task.fired:
            return task.progress
        places = ((tp, self._open.place(tp)) for tp in task.inputs)
        return {tp: place for tp, place in places if place is not None}

    def committed(self) -> None:
        """Write the committed unit's state to the maps."""
        self._tally.committed()
        progress: dict[Place, int] = {}
        for task in self._tasks:
            progress.update(task.reached)
            if task.committed():
                self._unit.found()
        self.figures.committed(self._unit.count)
        self._unit.committed(progress)

    def aborted(self, abort: Abort) -> None:
        """Drop the aborted unit and all polled records, which are read again."""
        self._failed = {}
        for task in self._tasks:
            self._failed.update(task.reached)
            task.aborted()
        self._tally.dropped()
        if self._run_end is not None:
            self._run_end.read_again(self._tasks.owned)
        self._failed_count = self._unit.count
        self._unit.aborted(abort, self._failed)
        self._was_aborted = True
        self.figures.aborted(abort.reason)

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> list[TopicPartition]:
        """Close the stores of lost or revoked partitions, before a successor opens them."""
        if partitions:
            logger.info("%s %s", "lost" if lost else "revoked", ", ".join(map(str, partitions)))
        self._paused.difference_update(partitions)
        if lost and any(task.fired for task in self._tasks):
            # Without polled records the session aborts nothing, but the unit holds due rows.
            for task in self._tasks:
                task.aborted()
            self._tally.dropped()
            self._unit.clear()
        for partition in partitions:
            self._unit.forget(partition)
            owner = self._tasks.of(partition)
            if owner is not None:
                self._unit.forget(owner.rows)
            self._bad.forget(partition)
        self._copies.closing(self._tasks, partitions)
        self._tasks.release(partitions)
        self._copies.tell(self._tasks)
        # A task that lost one input is closed; polled records of its others are read again.
        if self._run_end is not None:
            self._run_end.read_again([*partitions, *self._tasks.incomplete])
        kept = sorted(self._tasks.incomplete - self._paused)
        self._paused.update(kept)
        return kept


async def _made(make: Callable[[], Maybe[T]]) -> T:
    """Call within the coroutine, so that ``Calls`` decides in which thread."""
    return await settle(make())
