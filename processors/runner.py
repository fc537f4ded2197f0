"""The loop of one worker: poll, process, commit, and everything that interrupts it.

The runner owns the session, the tasks and the engines of a process. It decides when a transaction
is committed, what is held back while records are retried or state is restored, how a failed
transaction is approached again, and how the process ends. How records are processed is the
engines' business, and how transactions are kept exactly-once is the session's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from onceflow.processors.calls import Attempt, Calls
from onceflow.processors.engine import Engine
from onceflow.processors.errors import ProcessingError, StateDirectoryError, TooManyAbortsError
from onceflow.processors.identity import Slot, claim_slot
from onceflow.processors.outputs import OutputBuffer
from onceflow.processors.pacing import Pacing
from onceflow.processors.provisioning import TopicAdmin, provision
from onceflow.processors.restoration import ChangelogReader
from onceflow.processors.settings import AppSettings
from onceflow.processors.tasks import StoreOpener, Task, Tasks
from onceflow.processors.topology import Topology
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    KafkaError,
    NoBrokersAvailableError,
    RecordError,
    RetriableError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import Abort, SessionConfig, SessionListener, TransactionSession

logger: logging.Logger = logging.getLogger("onceflow.processors")

IDLE_POLL_MS = 1_000
RESTORE_POLL_MS = 20
RESTORE_SLICE_MS = 100
HOLD_SLICE_MS = 1_000
FORCED_CLOSE_MS = 1_000


T = TypeVar("T")


class Services(Protocol):
    """The outside world of a runner."""

    def admin(self) -> TopicAdmin: ...
    def session(self, config: SessionConfig, listener: SessionListener) -> TransactionSession: ...
    def changelog_reader(self) -> ChangelogReader: ...
    def monotonic_s(self) -> float: ...
    def wall_ms(self) -> int: ...


class Started(NamedTuple):
    """What a worker has once it may poll."""

    slot: Slot
    tasks: Tasks
    session: TransactionSession

    def close(self) -> None:
        """Release it unused."""
        _close_at_once(self.session)
        self.tasks.close()
        self.slot.release()


def _close_at_once(session: TransactionSession) -> None:
    with contextlib.suppress(KafkaError):
        session.close(0)


class Runner:
    """One worker of an application. Also the session's listener.

    Args:
        topology: The application.
        settings: How it runs.
        services: Makes clients, tells the time.
    """

    def __init__(self, topology: Topology, settings: AppSettings, services: Services) -> None:
        self._topology = topology
        self._settings = settings
        self._services = services
        self._clock: Callable[[], float] = services.monotonic_s
        self._buffer = OutputBuffer(self._clock)
        self._engines = {
            spec.input_topic: Engine(spec, self._buffer, settings.output_bytes_max, self._clock)
            for spec in topology.processors
        }
        self._pacing = Pacing(
            settings.commit_interval_ms, settings.commit_records, settings.aborts_max
        )
        self._session: TransactionSession | None = None
        self._tasks: Tasks | None = None
        self._slot: Slot | None = None
        self._processed: dict[TopicPartition, int] = {}
        self._failed_range: dict[TopicPartition, int] = {}
        self._failed_count = 0
        self._doomed: dict[tuple[TopicPartition, int], RecordError] = {}
        self._buried: set[tuple[TopicPartition, int]] = set()
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # safe in signal handlers
        self._leave: Callable[[], None] | None = None
        self._held = False
        self._redo = False
        self._stopping = False

    # Life ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for an orderly end; callable from signal handlers and other threads."""
        self._stopping = True
        self._stops.put(None)
        self.interrupt()

    def interrupt(self) -> None:
        """Make a waiting poll return, and give up waiting for clients that are made."""
        leave = self._leave
        if leave is not None:
            leave()
        if self._session is not None:
            self._session.wakeup()

    async def run(self, call: Calls) -> None:
        """Process until ``stop`` or an error.

        Args:
            call: Makes blocking calls.

        Raises:
            ProcessingError: A record failed and the policy is to stop.
            TooManyAbortsError: No transaction succeeds any more.
            KafkaError: The brokers refuse for good.
        """
        close_ms = FORCED_CLOSE_MS
        try:
            started = await call(self._unless_stopped, self._start, Started.close)
            if started is not None:
                self._slot, self._tasks, self._session = started
            while not self._stopping:
                try:
                    await self._round(call)
                except (RetriableError, CommitOutcomeUnknownError) as error:
                    await self._restart(call, error)
            await self._commit(call)
            close_ms = self._settings.shutdown_timeout_ms // 2
        except KafkaError:
            close_ms = self._settings.shutdown_timeout_ms // 2
            raise
        finally:
            await call(self._close, close_ms)
            call.close()

    def _unless_stopped(self, step: Callable[[], T], undo: Callable[[T], None]) -> T | None:
        """Make something by brokers that may not answer; None when a stop is asked for first."""
        attempt = Attempt(step, undo)
        self._leave = attempt.leave
        try:
            return None if self._stopping else attempt.result()
        finally:
            self._leave = None

    def _start(self) -> Started:
        admin = self._services.admin()
        try:
            identities = provision(self._topology, self._settings, admin)
        finally:
            admin.close()
        directory = self._settings.state_dir / self._topology.app
        slot = claim_slot(directory, self._settings.slot)
        tasks = Tasks(
            self._topology,
            StoreOpener(directory / "state", identities, self._services.wall_ms),
            self._services.changelog_reader,
            self._clock,
            self._services.wall_ms,
        )
        try:
            return Started(slot, tasks, self._make_session(slot))
        except BaseException:
            slot.release()
            raise

    def _make_session(self, slot: Slot) -> TransactionSession:
        config = self._settings.session_config(
            self._topology.app, self._topology.input_topics, slot.name
        )
        return self._services.session(config, self)

    def _close(self, timeout_ms: int) -> None:
        try:
            if self._session is not None:
                self._session.close(timeout_ms)
        except KafkaError as error:
            logger.warning("closing: %s", error)
        finally:
            if self._tasks is not None:
                self._tasks.close()
            if self._slot is not None:
                self._slot.release()

    async def _restart(self, call: Calls, error: KafkaError) -> None:
        """Begin again in place: new clients, same slot, state from the stores."""
        while not self._stopping:
            logger.warning("beginning again after: %s", error)
            self._pacing.aborts += 1
            self._check_exhausted(error)
            await call(self._close_session)
            await call(self._pause, self._pacing.backoff_ms() / 1000)
            assert self._slot is not None
            make = functools.partial(self._make_session, self._slot)
            try:
                session = await call(self._unless_stopped, make, _close_at_once)
            except (RetriableError, NoBrokersAvailableError) as again:
                error = again
            else:
                self._session = session or self._session
                return

    def _pause(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._stops.get(timeout=seconds)

    def _close_session(self) -> None:
        tasks, session = self._parts()
        try:
            session.close(self._settings.revoke_budget_ms)
        except KafkaError as error:
            logger.debug("closing before beginning again: %s", error)
        tasks.aborted()
        tasks.release(list(tasks))
        self._buffer.clear()
        self._processed.clear()
        self._pacing.uncommitted = 0

    def _parts(self) -> tuple[Tasks, TransactionSession]:
        assert self._tasks is not None
        assert self._session is not None
        return self._tasks, self._session

    # The loop ------------------------------------------------------------------------------

    async def _round(self, call: Calls) -> None:
        tasks, session = self._parts()
        pacing = self._pacing
        self._redo = False
        most = session.config.consumer.max_poll_records
        limit = min(most, max(1, pacing.limit - pacing.uncommitted))
        try:
            batches = await call(session.poll, self._poll_ms(), limit)
        except RecordError as error:  # From outputs that a rebalance made us send.
            await self._suspect(call, error)
            return
        if tasks.restoring:
            ready = await call(tasks.advance, 0 if batches else RESTORE_SLICE_MS)
            if ready:
                session.resume(ready)
        if batches:
            pacing.started(self._clock())
        for partition, records in batches.items():
            if not await self._process(call, partition, records):
                if not self._redo and not self._stopping:
                    await call(session.abort)  # Read again what was left unprocessed.
                break
        else:
            await self._push(call)
        if pacing.uncommitted and self._clock() >= pacing.due_s:
            await self._commit(call)
        if self._redo and pacing.backoff_ms():
            await self._hold(call, pacing.backoff_ms())

    def _poll_ms(self) -> int:
        tasks, _ = self._parts()
        if tasks.restoring:
            return RESTORE_POLL_MS
        if self._pacing.uncommitted:
            return min(IDLE_POLL_MS, max(0, int((self._pacing.due_s - self._clock()) * 1000)))
        return IDLE_POLL_MS

    async def _process(
        self, call: Calls, partition: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> bool:
        """Process records of one partition; False when the rest is to be left alone."""
        tasks, _ = self._parts()
        engine, task = self._engines[partition.topic], tasks[partition]
        run, run_async, is_async = engine.run, engine.run_async, engine.is_async
        processed, pacing, clock = self._processed, self._pacing, self._clock
        limit, due_s = pacing.limit, pacing.due_s
        for record in records:
            try:
                if self._doomed and (partition, record.offset) in self._doomed:
                    self._give_up(engine, partition, record)
                elif is_async:
                    await run_async(record, task)
                else:
                    run(record, task)
            except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
                if not await self._recover(call, engine, task, record, error):
                    return False
                limit, due_s = pacing.limit, pacing.due_s
            processed[partition] = record.offset + 1
            pacing.uncommitted += 1
            if pacing.uncommitted >= limit or clock() >= due_s:
                if not await self._commit(call):
                    return False
                limit, due_s = pacing.limit, pacing.due_s
            if self._stopping:
                return False
        return True

    # Failures ------------------------------------------------------------------------------

    async def _recover(
        self,
        call: Calls,
        engine: Engine,
        task: Task,
        record: ConsumerRecord,
        error: Exception,
    ) -> bool:
        """Retry and follow the policy; False when the record is to be left alone."""
        if isinstance(error, ProcessingError):
            await self._commit(call)
            raise error
        if isinstance(error, StateDirectoryError):
            raise error  # Not the record's fault, and the state of the others is in doubt.

        async def wait(delay_ms: int) -> bool:
            return await self._wait(call, task, delay_ms)

        try:
            return await engine.recover(record, task, error, wait)
        except ProcessingError:
            await self._commit(call)  # What precedes the record is good.
            raise

    async def _wait(self, call: Calls, task: Task, delay_ms: int) -> bool:
        """Wait between attempts, as a live member of the group and without a transaction."""
        tasks, session = self._parts()
        if delay_ms <= 0:
            return not self._stopping
        if self._pacing.uncommitted and not await self._commit(call):
            return False
        await self._hold(call, delay_ms)
        partition = task.partition
        return (
            not self._stopping
            and not self._redo
            and self._session is session
            and partition in tasks
            and tasks[partition] is task
        )

    async def _hold(self, call: Calls, delay_ms: int) -> None:
        """Take no records for a while; polling goes on, so membership does too."""
        tasks, session = self._parts()
        deadline = self._clock() + delay_ms / 1000
        self._held = True
        session.pause(sorted(session.assignment()))
        try:
            while not self._stopping and (left_s := deadline - self._clock()) > 0:
                slice_ms = min(HOLD_SLICE_MS, max(1, int(left_s * 1000)))
                if await call(session.poll, slice_ms):
                    await call(session.abort)  # Not asked for: read again later.
        finally:
            self._held = False
        session.resume(sorted(p for p in session.assignment() if tasks.is_running(p)))

    def _give_up(self, engine: Engine, partition: TopicPartition, record: ConsumerRecord) -> None:
        """A record whose outputs the brokers refuse: as if its handler had failed."""
        where = (partition, record.offset)
        error = self._doomed[where]
        if where in self._buried:
            raise ProcessingError(
                f"neither the outputs of {partition}@{record.offset} nor its dead letter can be "
                f"delivered: {error}",
                record.topic,
                record.partition,
                record.offset,
                1,
            ) from error
        self._buried.add(where)
        logger.warning("outputs of %s@%d cannot be delivered: %s", partition, record.offset, error)
        engine.give_up(record, error, 1)

    # Ending transactions -------------------------------------------------------------------

    def _send_all(self) -> None:
        tasks, session = self._parts()
        self._buffer.push(session)
        tasks.send_changes(session)

    async def _push(self, call: Calls) -> None:
        """Send outputs early, so that they travel while the next records are processed."""
        if self._pacing.limit > 1:
            try:
                await call(self._buffer.push, self._parts()[1])
            except RecordError as error:
                await self._suspect(call, error)

    async def _commit(self, call: Calls) -> bool:
        """Commit what is processed; False when it became an abort."""
        if not self._processed:
            return True
        try:
            await call(self._send_all)
            done = await call(self._parts()[1].commit, dict(self._processed))
        except RecordError as error:
            await self._suspect(call, error)
            return False
        if not done:
            self._check_exhausted(self._parts()[1].last_abort)
        return done

    async def _suspect(self, call: Calls, error: RecordError) -> None:
        """Records whose outputs are refused: find the one to blame by taking them singly."""
        if not self._redo:
            await call(self._parts()[1].abort)
        processed = self._failed_range
        self._pacing.suspect(processed)
        if self._failed_count == 1:
            ((partition, upto),) = processed.items()
            self._doomed[partition, upto - 1] = error
        self._check_exhausted(error)

    def _check_exhausted(self, cause: object) -> None:
        if self._pacing.exhausted:
            raise TooManyAbortsError(
                f"{self._pacing.aborts} transactions aborted in a row; the last cause: {cause}"
            ) from (cause if isinstance(cause, Exception) else None)

    # The session's listener ----------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Make tasks; those with state stay paused until it is restored."""
        tasks, session = self._parts()
        waiting = tasks.assign(partitions)
        if partitions:
            logger.info("assigned %s", ", ".join(map(str, partitions)))
        if waiting or self._held:
            session.pause(list(partitions) if self._held else waiting)
        if waiting:
            session.wakeup()  # Restoring begins now, not when this poll has waited in vain.

    def progress(self) -> dict[TopicPartition, int]:
        """Within a rebalance: send what is processed, and tell up to where that is."""
        self._send_all()
        return dict(self._processed)

    def committed(self) -> None:
        """The transaction is committed: state reaches the stores."""
        tasks, _ = self._parts()
        tasks.committed()
        self._pacing.committed(self._processed, self._clock())
        if self._doomed:
            for partition, upto in self._processed.items():
                self._doomed.pop((partition, upto - 1), None)
                self._buried.discard((partition, upto - 1))
        self._processed.clear()

    def aborted(self, abort: Abort) -> None:
        """The transaction is aborted: everything since the last commit is void."""
        tasks, _ = self._parts()
        tasks.aborted()
        self._buffer.clear()
        self._failed_range = dict(self._processed)
        self._failed_count = self._pacing.uncommitted
        self._pacing.aborted(abort, self._failed_range)
        self._processed.clear()
        self._redo = True

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Partitions are gone: close their stores before the successor opens them."""
        tasks, _ = self._parts()
        if partitions:
            logger.info("%s %s", "lost" if lost else "revoked", ", ".join(map(str, partitions)))
        tasks.release(partitions)
        for partition in partitions:
            self._processed.pop(partition, None)
            self._pacing.forget(partition)
