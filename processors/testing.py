"""Runs an application in memory, record by record, for tests: no broker, no files, no waiting.

Records go through the same tasks, nodes, policies, retries and state codecs as in a worker; each
record is one committed unit. For rebalances, crashes and aborts, which need a group or brokers, use
``onceflow.broker_lite.Broker`` in process.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import cast

from onceflow.processors.app import App
from onceflow.processors.global_rows import GlobalRows
from onceflow.processors.graph.nodes import WorkingNode
from onceflow.processors.graph.specs import StateKind, StateSpec
from onceflow.processors.graph.topology import SubTopology
from onceflow.processors.hooks import Resources
from onceflow.processors.lanes import Run
from onceflow.processors.ledger.rows import Row, row_lane
from onceflow.processors.nodes.base import Surroundings
from onceflow.processors.nodes.programs import make_programs
from onceflow.processors.overlap import InFlight
from onceflow.processors.state.keys import split
from onceflow.processors.state.store import Store
from onceflow.processors.state.task_state import StateRules, TaskState
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.task import Task, TaskId
from onceflow.processors.unit import Unit
from onceflow.processors.values import Format, decoder_for, encoder_for
from onceflow.sdk import murmur2_partition
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, RecordMetadata, TopicPartition
from onceflow.transactions.colour import run_blocking

PASSES_MAX = 100_000
"""Most records that one ``send`` may cause, so that an endless loop of processors is an error."""


class _Written:
    """Where the last record of a run was written."""

    def __init__(self, metadata: RecordMetadata) -> None:
        self._metadata = metadata

    def last(self) -> RecordMetadata:
        return self._metadata


class TestDriver:
    """An application in memory.

    ::

        driver = TestDriver(app)
        driver.send("words", "hello", key="k")
        assert driver.values("loud-words") == [b"HELLO"]

    Args:
        app: The application; its settings and brokers are not used.
        partitions: Partition count of each topic.
        start_ms: Start of the driver's clock; records get its time, and retries move it on.
    """

    __test__ = False  # Not a test class, for pytest.

    def __init__(self, app: App, *, partitions: int = 1, start_ms: int = 0) -> None:
        self.now_ms: int = start_ms
        self._partitions = partitions
        self._topology = app.topology()
        self._unit = Unit(self._seconds, 1, 1, 1)
        self._in_flight = InFlight(self._seconds)
        self._resources = Resources(self._topology.hooks)
        self._opened = False
        self._global_rows = GlobalRows(self._topology.global_tables)
        around = Surroundings(
            self._unit.lanes,
            self._seconds,
            lambda: self.now_ms,
            resources=self._resources,
            global_rows=self._global_rows,
        )
        self._programs = make_programs(self._topology, around)
        self._parts: dict[str, SubTopology] = {
            topic: part for part in self._topology.sub_topologies for topic in part.input_topics
        }
        self._tasks: dict[TaskId, Task] = {}
        self._logs: dict[TopicPartition, list[ConsumerRecord]] = defaultdict(list)
        self._order: dict[str, list[ConsumerRecord]] = defaultdict(list)
        self._pending: deque[ConsumerRecord] = deque()
        self._stored: list[Row] = []

    def _seconds(self) -> float:
        return self.now_ms / 1000

    # Input ---------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Write a record and process everything that follows from it.

        Args:
            topic: A topic that a processor reads, or another one of the application; without a
                processor the record is only kept.
            value: Encoded as an output of the topic's processor would be.
            key: Encoded like the value.
            headers: Headers.
            partition: Partition of the record; by default that of the key, as Kafka's producer
                chooses it, and 0 without a key.
            timestamp_ms: The driver's time by default.

        Raises:
            LookupError: No processor reads or writes the topic.
            ProcessingError: A record failed and the policy is to stop; its effects are undone.
            RuntimeError: Called within an event loop with async handlers; use ``send_async``.
        """
        self._put_input(topic, value, key, headers, partition, timestamp_ms)
        run_blocking(self._drain())

    async def send_async(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """``send`` for applications with async handlers.

        Args:
            topic: Input topic.
            value: Value, encoded as the processor of the topic reads it; None is a tombstone.
            key: Key, encoded like the value.
            headers: Pairs of name and bytes.
            partition: Partition of the input; by default that of the key.
            timestamp_ms: The driver's time by default.
        """
        self._put_input(topic, value, key, headers, partition, timestamp_ms)
        await self._drain()

    def close(self) -> None:
        """Run the shutdown functions, as the end of the application would."""
        run_blocking(self._resources.close())

    def advance(self, milliseconds: int) -> None:
        """Move the driver's clock on, and process everything that becomes due.

        Args:
            milliseconds: How far.
        """
        run_blocking(self._fall_due(self.now_ms + milliseconds))

    async def _fall_due(self, until_ms: int) -> None:
        """Stop at each moment at which something is due, as a clock would."""
        while True:
            ready_s = [task.ready_s(self._seconds()) for task in self._tasks.values()]
            due_ms = [math.ceil(round(due_s * 1000, 3)) for due_s in ready_s if due_s is not None]
            if not due_ms or min(due_ms) > until_ms:
                break
            self.now_ms = max(self.now_ms, min(due_ms))
            for task in list(self._tasks.values()):
                await self._run(task)
            await self._drain()
        self.now_ms = until_ms

    def _put_input(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        if topic not in self._topics():
            raise self._unknown_topic(topic)
        encode = encoder_for(self._format(topic))
        when = self.now_ms if timestamp_ms is None else timestamp_ms
        self._write(topic, partition, encode(key), encode(value), headers, when)

    def _format(self, topic: str) -> Format:
        """The layout of a topic's values: that of a processor that reads it, or of any."""
        if topic in self._global_rows.tables:
            return self._global_rows.tables[topic].format
        part = self._parts.get(topic)
        nodes = self._topology.working if part is None else part.working
        return nodes[0].format

    def _write(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> RecordMetadata:
        if partition is None:
            partition = 0 if key is None else murmur2_partition(key, self._partitions)
        log = self._logs[TopicPartition(topic, partition)]
        record = ConsumerRecord(
            topic, partition, len(log), timestamp_ms, key=key, value=value, headers=headers
        )
        if topic in self._global_rows.tables:
            self._global_rows.put(topic, partition, record.offset, key, value)
        log.append(record)
        self._order[topic].append(record)
        if topic in self._parts:
            self._pending.append(record)
        return RecordMetadata(topic, partition, record.offset, timestamp_ms)

    # Processing ----------------------------------------------------------------------------

    async def _drain(self) -> None:
        if not self._opened:  # Within the loop of async functions, where there is one.
            self._opened = True
            await self._resources.open()
        for _ in range(PASSES_MAX):
            if not self._pending:
                return
            await self._process(self._pending.popleft())
        raise RuntimeError(
            f"more than {PASSES_MAX} rounds followed from one record; does the "
            "application write to its own input topics?"
        )

    async def _process(self, record: ConsumerRecord) -> None:
        task = self._task(record)
        task.put(record.topic_partition, [record])
        for partition in task.inputs:
            task.inboxes.note_end(partition, True)  # There is nothing but what is sent.
        await self._run(task)

    async def _run(self, task: Task) -> None:
        """Process a task's records and due rows, each in its own unit."""
        try:
            while True:
                ready_s = task.ready_s(self._seconds())
                if ready_s is None or ready_s > self._seconds():
                    if task.busy:  # Calls that overlap go on; what comes of them is awaited.
                        await self._in_flight.wait(None)
                        continue
                    retry_s = task.retry_s()
                    if ready_s is None or retry_s is None:
                        return
                    self.now_ms = max(self.now_ms, round(retry_s * 1000))
                self._unit.started()
                await task.step(self._unit)
                if self._unit.count:
                    self._commit(task)
        except BaseException:
            task.aborted()
            self._unit.clear()
            raise

    def _commit(self, task: Task) -> None:
        runs = self._unit.lanes.take()
        if task.state is not None:
            runs += task.state.collect()
        for run in runs:
            run.sent = _Written(self._send(run))
        self._stored += row_lane(self._unit.lanes).take_rows()[0]
        if task.state is not None:
            task.state.note()
        progress = task.reached
        task.committed()
        self._unit.committed(progress)

    def _send(self, run: Run) -> RecordMetadata:
        times = run.timestamps_ms or [self.now_ms] * len(run.values)
        written = [
            self._write(run.topic, run.partition, key, value, run.headers, time_ms)
            for key, value, time_ms in zip(run.keys, run.values, times, strict=True)
        ]
        return written[-1]

    def _task(self, record: ConsumerRecord) -> Task:
        part = self._parts[record.topic]
        id = TaskId(part.name, record.partition)
        task = self._tasks.get(id)
        if task is None:
            inputs = [TopicPartition(topic, id.partition) for topic in part.input_topics]
            state = None
            if part.states:
                rules = StateRules(self._topology.group, self._partitions, {})
                state = TaskState(part.states, id.partition, rules)
                state.use(MemoryMap())
            program = self._programs[part.name]
            task = self._tasks[id] = Task(id, program, inputs, state, in_flight=self._in_flight)
            task.run()
        return task

    # Results -------------------------------------------------------------------------------

    def outputs(self, topic: str) -> list[ConsumerRecord]:
        """All records of a topic, inputs included, in the order in which they were written.

        Args:
            topic: Topic name. As handlers may write to undeclared topics, an unknown name gives an
                empty list, unless it looks like a misspelt known topic.

        Raises:
            LookupError: The name is nearly that of a known topic.
        """
        known = self._topics()
        if topic not in known and difflib.get_close_matches(topic, known, n=1, cutoff=0.8):
            raise self._unknown_topic(topic)
        return list(self._order.get(topic, ()))

    @property
    def rows(self) -> list[Mapping[str, object]]:
        """All rows that went to the application's sink, in order; the sink itself is not opened."""
        return list(self._stored)

    def _topics(self) -> set[str]:
        """Topics that are declared, or that hold records."""
        return {
            *self._order,
            *self._global_rows.tables,
            *self._topology.input_topics,
            *self._topology.output_topics,
        }

    def _unknown_topic(self, topic: str) -> LookupError:
        known = ", ".join(sorted(self._topics()))
        return LookupError(f"topic {topic!r} is none of this application: {known}")

    def values(self, topic: str, kind: type[object] = bytes) -> list[object]:
        """The values of a topic, decoded as ``kind``.

        Args:
            topic: Topic name.
            kind: Type to decode them as.

        Raises:
            LookupError: As ``outputs``.
        """
        decode = decoder_for(kind | None, self._written_format(topic), f"value of {topic}")
        return [decode(record.value) for record in self.outputs(topic)]

    def _written_format(self, topic: str) -> Format:
        """The layout of a topic's values: that of the function that writes it."""
        for node in self._topology.nodes:
            if isinstance(node, WorkingNode) and topic in node.targets:
                return node.format
        return self._format(topic)

    def state(self, processor: str, name: str) -> dict[bytes, object]:
        """The values of a state by key, over all partitions.

        Args:
            processor: Name of the processor.
            name: Name of its state.

        Returns:
            Values by the record's key: a dictionary for a ``MapState``, a list for a
            ``ListState``.

        Raises:
            LookupError: The state does not exist; the message lists the existing ones.
        """
        specs = {state.name: state for state in self._topology.states}
        spec = specs.get(f"{processor}.{name}")
        if spec is None:
            known = ", ".join(specs) or "none"
            raise LookupError(f"there is no state {processor}.{name}; there are: {known}")
        found: dict[bytes, object] = {}
        for task in self._tasks.values():
            if task.state is not None and spec.name in task.state.stores:
                _read(spec, task.state.stores[spec.name], found)
        return found

    def dead_letters(self, topic: str) -> list[ConsumerRecord]:
        """The records of a dead-letter topic; their headers tell what went wrong.

        Args:
            topic: The dead-letter topic.
        """
        return self.outputs(topic)


def _read(spec: StateSpec, store: Store, found: dict[bytes, object]) -> None:
    """All values of a state in one task."""
    for stored, data in store.range(b"", None):
        value = spec.codec.decode(stored, data)
        if spec.declaration.kind is StateKind.VALUE:
            found[stored] = value
            continue
        assert spec.packing is not None
        key, own = split(stored)
        if spec.declaration.kind is StateKind.LIST:
            cast("list[object]", found.setdefault(key, [])).append(value)
        else:
            cast("dict[object, object]", found.setdefault(key, {}))[spec.packing[1](own)] = value


__all__ = ["TestDriver"]
