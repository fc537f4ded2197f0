"""The engine of an application inside a Spark task: the worker's tasks, without a worker.

Each Kafka partition is one task with its inbox, its nodes and its state, as in a worker. Spark
moves the records and keeps the state; what is committed within a micro-batch here becomes visible
with the micro-batch, or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from onceflow.processors.errors import TopicSetupError
from onceflow.processors.graph.topology import SubTopology
from onceflow.processors.hooks import Resources
from onceflow.processors.lanes import Run
from onceflow.processors.nodes.base import Surroundings
from onceflow.processors.nodes.programs import make_programs
from onceflow.processors.overlap import InFlight
from onceflow.processors.state.task_state import TaskState
from onceflow.processors.state.timed import TimedStore
from onceflow.processors.task import Task, TaskId
from onceflow.processors.unit import Unit
from onceflow.sdk import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.spark_integration.apps.rows import (
    by_partition,
    output_batch,
    packed_outputs,
    records_of,
    unpacked_records,
)
from onceflow.spark_integration.apps.shipping import Shipped, unpacked
from onceflow.spark_integration.apps.state import SparkMap, TaskNotes
from onceflow.spark_integration.encoding import filled
from onceflow.transactions.colour import run_blocking

T = TypeVar("T")
Records = Mapping[TopicPartition, Sequence[ConsumerRecord]]

INTERVAL_MS: Final = 60_000
"""Time after which a unit within a micro-batch is ended, so that a long one does not pile up."""


class Engine:
    """The tasks of an application for one micro-batch, within one process.

    Args:
        shipped: The application.
        sleep: Waits so many seconds, before a record is tried again.
    """

    def __init__(self, shipped: Shipped, sleep: Callable[[float], None] = time.sleep) -> None:
        self._shipped = shipped
        self._sleep = sleep
        topology = shipped.topology
        self._parts: dict[str, SubTopology] = {p.name: p for p in topology.sub_topologies}
        self._unit = Unit(time.monotonic, INTERVAL_MS, shipped.unit_records, 1, shipped.unit_bytes)
        self._in_flight = InFlight(time.monotonic)
        self._resources = Resources(topology.hooks)
        self._floor_ms = 0
        around = Surroundings(
            self._unit.lanes,
            time.monotonic,
            self._wall_ms,
            shipped.record_bytes_max,
            shipped.max_future_ms,
            self._resources,
        )
        self._programs = make_programs(topology, around)
        self._runner = asyncio.Runner() if topology.is_async else None
        self._opened = False

    def _wall_ms(self) -> int:
        """Wall clock; never behind that of the driver, by which timers of Spark are due."""
        return max(self._floor_ms, int(time.time() * 1000))

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        return run_blocking(work) if self._runner is None else self._runner.run(work)

    def close(self) -> None:
        """Run the shutdown functions."""
        if self._opened:
            self._drive(self._resources.close())
        if self._runner is not None:
            self._runner.close()

    def process(
        self, part: str, partition: int, records: Records, map: SparkMap | None, now_ms: int = 0
    ) -> tuple[list[Run], int | None]:
        """Process the records of one task, and what is due.

        Args:
            part: Name of the sub-topology.
            partition: Partition number of the task.
            records: Records by input partition, in order.
            map: The state; None where the sub-topology keeps none.
            now_ms: Wall clock of the driver, 0 where it does not matter.

        Returns:
            The outputs, and the wall clock in milliseconds at which something else is due.

        Raises:
            ProcessingError: A record failed and the policy is to stop.
            TopicSetupError: The input has more partitions than when the query started.
            StateDirectoryError: The state belongs to other declarations.
        """
        self._floor_ms = now_ms
        task = self._task(self._parts[part], partition, map)
        notes = TaskNotes() if map is None else map.notes
        runs = self._drive(self._processed(task, records, begun=notes.begun))
        if map is not None:
            tables = self._parts[part].table_topics
            begun = notes.begun or any(tp.topic not in tables for tp in records)
            map.store(TaskNotes(begun, _moved_ms(task)))
        return runs, self._due_ms(task)

    def _task(self, part: SubTopology, partition: int, map: SparkMap | None) -> Task:
        count = self._shipped.counts[part.name]
        if part.states and partition >= count:
            raise TopicSetupError(
                f"input {part.input_topics[0]} has more partitions than the {count} of the start: "
                "keys would meet the state of others. Restore the partition count, or give the "
                "application a new name and checkpoint"
            )
        state = None
        if map is not None:
            state = TaskState(part.states, partition, self._shipped.rules(part.name))
            state.use(map)
            for name, moved_ms in map.notes.moved_wall_ms.items():
                store = state.stores.get(name)
                if isinstance(store, TimedStore):
                    store.moved_wall_ms = moved_ms
        inputs = [TopicPartition(topic, partition) for topic in part.input_topics]
        program = self._programs[part.name]
        task = Task(TaskId(part.name, partition), program, inputs, state, in_flight=self._in_flight)
        task.run()
        return task

    async def _processed(self, task: Task, records: Records, *, begun: bool) -> list[Run]:
        if not self._opened:  # Within the loop of async functions, where there is one.
            self._opened = True
            await self._resources.open()
        tables = self._parts[task.id.part].table_topics
        # A task that never took a record reads its tables first; later, time alone decides.
        first = {} if begun else {tp: r for tp, r in records.items() if tp.topic in tables}
        runs: list[Run] = []
        try:
            for portion in (first, {tp: r for tp, r in records.items() if tp not in first}):
                for tp, found in portion.items():
                    task.put(tp, found)
                for tp in task.inputs:
                    task.inboxes.note_end(tp, True)  # The micro-batch has no more of it.
                await self._run(task, runs)
        except BaseException:
            task.aborted()
            self._unit.clear()
            raise
        return runs

    async def _run(self, task: Task, runs: list[Run]) -> None:
        """Process what the task holds, and what is due now."""
        while True:
            ready_s = task.ready_s(time.monotonic())
            if ready_s is None or ready_s > time.monotonic():
                if task.busy:  # Calls that overlap go on; what comes of them is awaited.
                    await self._in_flight.wait(None)
                    continue
                if not task.has_records:
                    return  # What is due later waits for a timer of Spark.
                until_s = task.retry_s() if ready_s is None else ready_s
                assert until_s is not None, "a record waits for its next attempt"
                self._sleep(max(0.0, until_s - time.monotonic()))
                continue
            self._unit.started()
            await task.step(self._unit)
            if self._unit.count:
                runs += self._unit.lanes.take()
                if task.state is not None:
                    task.state.collect()  # Encodes what the stores keep as objects.
                progress = task.reached
                task.committed()
                self._unit.committed(progress)

    def _due_ms(self, task: Task) -> int | None:
        ready_s = task.ready_s(time.monotonic())
        if ready_s is None:
            return None
        return self._wall_ms() + max(1, round((ready_s - time.monotonic()) * 1000))


def _moved_ms(task: Task) -> dict[str, int]:
    """Wall clock at the last record of each timed store that has an idle limit."""
    return {
        name: store.moved_wall_ms
        for name, store in task.stores.items()
        if isinstance(store, TimedStore) and store.moved_wall_ms is not None
    }


class StatelessTask:
    """An application without state, as a function for ``mapInArrow``.

    Args:
        shipped: The application, as ``Shipped.packed`` gave it.
        parts: Name of the sub-topology by input topic.
    """

    def __init__(self, shipped: bytes, parts: Mapping[str, str]) -> None:
        self._shipped = shipped
        self._parts = parts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield outputs of rows of the source."""
        engine: Engine | None = None
        try:
            for batch in filled(batches):
                if engine is None:
                    engine = Engine(unpacked(self._shipped))
                for tp, rows in by_partition(batch):
                    records = {tp: records_of(tp, rows)}
                    part = self._parts[tp.topic]
                    runs, _ = engine.process(part, tp.partition, records, None)
                    if runs:
                        yield output_batch(runs)
        finally:
            if engine is not None:
                engine.close()


class PartitionProcessor(StatefulProcessor):
    """Tasks with state, for Spark's ``transformWithState``; the grouping key names the task.

    Args:
        shipped: The application, as ``Shipped.packed`` gave it.
        stateful: Names of the sub-topologies that keep state.
        has_timers: Whether something falls due by the wall clock.
    """

    def __init__(self, shipped: bytes, stateful: frozenset[str], *, has_timers: bool) -> None:
        self._shipped = shipped
        self._stateful = stateful
        self._has_timers = has_timers
        self._engine: Engine | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state to Spark; also called on the driver."""
        self._handle = handle
        self._rows = handle.getMapState("rows", "key BINARY", "value BINARY")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Process the records of one task in this micro-batch."""
        records = unpacked_records(bytes(row.data) for row in rows)
        return self._run(key[0], records, timerValues)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Process what fell due by the wall clock."""
        return self._run(key[0], {}, timerValues)

    def close(self) -> None:
        """Run the shutdown functions."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _run(self, task: str, records: Records, times: TimerValues) -> Iterator[Row]:
        if self._engine is None:
            self._engine = Engine(unpacked(self._shipped))
        part, _, number = task.rpartition("-")
        kept = SparkMap(self._rows) if part in self._stateful else None
        now_ms = times.getCurrentProcessingTimeInMs() if self._has_timers else 0
        runs, due_ms = self._engine.process(part, int(number), records, kept, now_ms)
        if self._has_timers:
            self._set_timer(now_ms, due_ms)
        return iter([Row(data=packed_outputs(runs))] if runs else [])

    def _set_timer(self, now_ms: int, due_ms: int | None) -> None:
        """Have one timer at most; Spark deletes by itself those that are due now."""
        later = [time_ms for time_ms in self._handle.listTimers() if time_ms > now_ms]
        for time_ms in later:
            if time_ms != due_ms:
                self._handle.deleteTimer(time_ms)
        if due_ms is not None and due_ms not in later:
            self._handle.registerTimer(due_ms)
