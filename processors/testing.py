"""Runs an application in memory, record by record, for tests: no broker, no files, no waiting.

Records go through the same engines, policies, retries and state codecs as in a worker; every record
is one committed transaction. What needs a group or brokers (rebalances, crashes, aborts) is not
played here: use ``onceflow.broker_lite.Broker`` in process for that.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Sequence

from onceflow.processors.app import App
from onceflow.processors.engine import Engine
from onceflow.processors.outputs import OutputBuffer
from onceflow.processors.stores.memory import MemoryTaskStore
from onceflow.processors.tasks import Task
from onceflow.processors.topology import ProcessorSpec
from onceflow.processors.values import decoder_for, encoder_for
from onceflow.sdk import murmur2_partition
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, RecordMetadata, TopicPartition
from onceflow.transactions.colour import run_blocking

PASSES_MAX = 100_000
"""Records that one ``send`` may cause, so that a ring of processors ends with an error."""


class _Written:
    """What a run of sends gave."""

    def __init__(self, metadata: list[RecordMetadata]) -> None:
        self._metadata = metadata

    def result(self, timeout: float | None = None) -> Sequence[RecordMetadata]:
        return self._metadata


class _Sink:
    """Takes outputs in a session's place."""

    def __init__(self, driver: TestDriver) -> None:
        self._driver = driver

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object:
        when = self._driver.now_ms if timestamp_ms is None else timestamp_ms
        return self._driver._take(topic, value, key, headers, partition, when)

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> _Written:
        found = []
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            when = self._driver.now_ms if timestamps_ms is None else timestamps_ms[index]
            found.append(self._driver._take(topic, value, key, (), partition, when))
        return _Written(found)


class TestDriver:
    """An application in memory.

    ::

        driver = TestDriver(app)
        driver.send("words", "hello", key="k")
        assert driver.values("loud-words") == [b"HELLO"]

    Args:
        app: The application; its settings and brokers are not used.
        partitions: Partition count of every topic.
        start_ms: Where the driver's clock begins; records get its time, retries move it on.
    """

    __test__ = False  # Not a test class, for pytest.

    def __init__(self, app: App, *, partitions: int = 1, start_ms: int = 0) -> None:
        self.now_ms: int = start_ms
        self._partitions = partitions
        self._topology = app.topology()
        self._buffer = OutputBuffer()
        self._sink = _Sink(self)
        self._engines = {
            spec.input_topic: Engine(spec, self._buffer) for spec in self._topology.processors
        }
        self._tasks: dict[TopicPartition, Task] = {}
        self._stores: dict[tuple[str, int], MemoryTaskStore] = {}
        self._logs: dict[TopicPartition, list[ConsumerRecord]] = defaultdict(list)
        self._order: dict[str, list[ConsumerRecord]] = defaultdict(list)
        self._pending: deque[ConsumerRecord] = deque()

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
            partition: Partition of the record; by its key as a producer chooses it by default.
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
            partition: Partition of the record; by its key by default.
            timestamp_ms: The driver's time by default.
        """
        self._put_input(topic, value, key, headers, partition, timestamp_ms)
        await self._drain()

    def advance(self, milliseconds: int) -> None:
        """Move the driver's clock on.

        Args:
            milliseconds: How far.
        """
        self.now_ms += milliseconds

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
        engine = self._engines.get(topic)
        encode = encoder_for((engine or next(iter(self._engines.values()))).spec.format)
        when = self.now_ms if timestamp_ms is None else timestamp_ms
        key_data = encode(key)
        chosen = self._partition_of(key_data) if partition is None else partition
        self._write(topic, chosen, key_data, encode(value), headers, when)

    def _take(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
    ) -> RecordMetadata:
        data, key_data = _as_bytes(value), _as_bytes(key)
        if partition is None:
            partition = self._partition_of(key_data)
        return self._write(topic, partition, key_data, data, headers, timestamp_ms)

    def _partition_of(self, key: bytes | None) -> int:
        """The producer's choice, which is Java's; records without a key go to the first."""
        return 0 if key is None else murmur2_partition(key, self._partitions)

    def _write(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> RecordMetadata:
        log = self._logs[TopicPartition(topic, partition)]
        record = ConsumerRecord(
            topic, partition, len(log), timestamp_ms, key=key, value=value, headers=headers
        )
        log.append(record)
        self._order[topic].append(record)
        if topic in self._engines:
            self._pending.append(record)
        return RecordMetadata(topic, partition, record.offset, timestamp_ms)

    # Processing ----------------------------------------------------------------------------

    async def _drain(self) -> None:
        for _ in range(PASSES_MAX):
            if not self._pending:
                return
            await self._process(self._pending.popleft())
        raise RuntimeError(f"more than {PASSES_MAX} records followed from one; is it a ring?")

    async def _process(self, record: ConsumerRecord) -> None:
        engine = self._engines[record.topic]
        task = self._task(engine.spec, record.topic_partition)
        try:
            if engine.is_async:
                await engine.run_async(record, task)
            else:
                engine.run(record, task)
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            await engine.recover(record, task, error, self._wait)
        self._buffer.push(self._sink)
        task.send_changes(self._sink)
        task.committed()

    async def _wait(self, delay_ms: int) -> bool:
        self.now_ms += delay_ms
        return True

    def _task(self, spec: ProcessorSpec, partition: TopicPartition) -> Task:
        task = self._tasks.get(partition)
        if task is None:
            task = self._tasks[partition] = Task(spec, partition)
            if spec.states:
                store = MemoryTaskStore()
                self._stores[spec.name, partition.partition] = store
                task.use(store)
        return task

    # Results -------------------------------------------------------------------------------

    def outputs(self, topic: str) -> list[ConsumerRecord]:
        """All records of a topic, inputs included, in the order in which they were written.

        Args:
            topic: Topic name. A handler may write to topics that are declared nowhere, so one
                without records is empty, unless it looks like a known one written wrongly.

        Raises:
            LookupError: It is none of the known topics, but nearly one.
        """
        known = self._topics()
        if topic not in known and difflib.get_close_matches(topic, known, n=1, cutoff=0.8):
            raise self._unknown_topic(topic)
        return list(self._order.get(topic, ()))

    def _topics(self) -> set[str]:
        """Topics that are declared, or that hold records."""
        found = set(self._order)
        for spec in self._topology.processors:
            names = (spec.input_topic, spec.output_topic, spec.dead_letter_topic)
            found.update(name for name in names if name is not None)
        return found

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
        format = next(iter(self._engines.values())).spec.format
        decode = decoder_for(kind | None, format, f"value of {topic}")
        return [decode(_as_bytes(record.value)) for record in self.outputs(topic)]

    def state(self, processor: str, name: str) -> dict[bytes, object]:
        """The values of a state by key, over all partitions.

        Args:
            processor: Name of the processor.
            name: Name of its state.

        Raises:
            LookupError: There is no such state; the ones there are are named.
        """
        found: dict[bytes, object] = {}
        codecs = {
            (spec.name, state.name): state.codec
            for spec in self._topology.processors
            for state in spec.states
        }
        codec = codecs.get((processor, name))
        if codec is None:
            known = ", ".join(f"{owner}.{state}" for owner, state in codecs) or "none"
            raise LookupError(f"there is no state {processor}.{name}; there are: {known}")
        for (owner, _), store in self._stores.items():
            if owner == processor:
                found.update((key, codec.decode(value)) for key, value in store.items(name))
        return found

    def dead_letters(self, topic: str) -> list[ConsumerRecord]:
        """The records of a dead-letter topic; their headers tell what went wrong.

        Args:
            topic: The dead-letter topic.
        """
        return self.outputs(topic)


def _as_bytes(value: object) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value


__all__ = ["TestDriver"]
