"""The same reading and writing by our SDK and by the published clients, for field cases.

Each function writes rows to, or reads a whole partition up to its end as of now, by the client that
is named. What a case is about stays in the case.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer
from onceflow.sdk.model.partitions import TopicPartition

OURS = "onceflow"
STOCK = ("confluent-kafka", "aiokafka", "kafka-python")
DEADLINE_S = 60.0


class Row(NamedTuple):
    """One record as a client gave it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


Pair = tuple[bytes | None, bytes | None]
Reader = Callable[[str, str, str, int], list[Row]]


def read(
    client: str,
    bootstrap: str,
    topic: str,
    isolation_level: str = "read_committed",
    start: int = 0,
) -> list[Row]:
    """All records of partition 0 from an offset to its end, as this client delivers them."""
    return READERS[client](bootstrap, topic, isolation_level, start)


def values(rows: Sequence[Row]) -> list[bytes | None]:
    """The values alone."""
    return [row.value for row in rows]


def _read_ours(bootstrap: str, topic: str, isolation_level: str, start: int) -> list[Row]:
    partition = TopicPartition(topic, 0)
    rows: list[Row] = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation_level) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        end = consumer.end_offsets([partition])[partition]
        deadline = time.monotonic() + DEADLINE_S
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"not read to {end}"
            for found in consumer.poll(100).values():
                rows += [Row(r.offset, r.key, r.value, r.timestamp_ms) for r in found]  # type: ignore[arg-type]
    return rows


def _read_confluent(bootstrap: str, topic: str, isolation_level: str, start: int) -> list[Row]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 10,
            "topic.metadata.refresh.fast.interval.ms": 10,
        }
    )
    rows: list[Row] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, "not read to the end"
            for message in consumer.consume(1000, 0.02):
                if error := message.error():
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return rows
                rows.append(
                    Row(message.offset(), message.key(), message.value(), message.timestamp()[1])
                )
    finally:
        consumer.close()


def _read_aiokafka(bootstrap: str, topic: str, isolation_level: str, start: int) -> list[Row]:
    return asyncio.run(_read_aiokafka_async(bootstrap, topic, isolation_level, start))


async def _read_aiokafka_async(
    bootstrap: str, topic: str, isolation_level: str, start: int
) -> list[Row]:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, enable_auto_commit=False
    )
    await consumer.start()
    rows: list[Row] = []
    try:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, start)
        end = (await consumer.end_offsets([partition]))[partition]
        # It counts no markers in its position (aiokafka #911), so the last offset is waited for.
        deadline = time.monotonic() + DEADLINE_S
        quiet = 0
        while quiet < 2 and (not rows or rows[-1].offset < end - 1):
            assert time.monotonic() < deadline, "not read to the end"
            found = await consumer.getmany(timeout_ms=200)
            quiet = 0 if found else quiet + 1
            for records in found.values():
                rows += [Row(r.offset, r.key, r.value, r.timestamp) for r in records]
    finally:
        await consumer.stop()
    return rows


def _read_kafka_python(bootstrap: str, topic: str, isolation_level: str, start: int) -> list[Row]:
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation_level, enable_auto_commit=False
        )
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, start)
            end = consumer.end_offsets([partition])[partition]
            deadline = time.monotonic() + DEADLINE_S
            while consumer.position(partition) < end:
                assert time.monotonic() < deadline, "not read to the end"
                for records in consumer.poll(200).values():
                    rows += [Row(r.offset, r.key, r.value, r.timestamp) for r in records]
        finally:
            consumer.close()
    return rows


READERS: dict[str, Reader] = {
    OURS: _read_ours,
    "confluent-kafka": _read_confluent,
    "aiokafka": _read_aiokafka,
    "kafka-python": _read_kafka_python,
}


def write(
    client: str, bootstrap: str, topic: str, pairs: Sequence[Pair], codec: str = "none"
) -> None:
    """Write pairs of key and value to partition 0, in one batch where the client allows it."""
    WRITERS[client](bootstrap, topic, pairs, codec)


Writer = Callable[[str, str, Sequence[Pair], str], None]


def _write_ours(bootstrap: str, topic: str, pairs: Sequence[Pair], codec: str) -> None:
    with Producer(
        bootstrap_servers=bootstrap,
        linger_ms=50,
        compression_type=codec,  # type: ignore[arg-type]
    ) as producer:
        for key, value in pairs:
            producer.send(topic, value, key=key, partition=0)
        producer.flush()


def _write_confluent(bootstrap: str, topic: str, pairs: Sequence[Pair], codec: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    failures: list[object] = []
    for key, value in pairs:
        producer.produce(
            topic,
            value,
            key=key,
            partition=0,
            on_delivery=lambda error, message: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert not failures


def _write_aiokafka(bootstrap: str, topic: str, pairs: Sequence[Pair], codec: str) -> None:
    import aiokafka

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            linger_ms=50,
            max_batch_size=1_000_000,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            sent = [await producer.send(topic, v, key=k, partition=0) for k, v in pairs]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(run())


def _write_kafka_python(bootstrap: str, topic: str, pairs: Sequence[Pair], codec: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            linger_ms=50,
            batch_size=1_000_000,
            compression_type=None if codec == "none" else codec,
        )
        try:
            sent = [producer.send(topic, v, key=k, partition=0) for k, v in pairs]
            producer.flush(DEADLINE_S)
            for future in sent:
                future.get(DEADLINE_S)
        finally:
            producer.close()


WRITERS: dict[str, Writer] = {
    OURS: _write_ours,
    "confluent-kafka": _write_confluent,
    "aiokafka": _write_aiokafka,
    "kafka-python": _write_kafka_python,
}


class SkippableClock:
    """Wall milliseconds of a broker, with jumps: what takes minutes is tested at once."""

    def __init__(self) -> None:
        self._skipped_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self._skipped_ms

    def skip(self, broker: Broker, duration_ms: int) -> None:
        """Let time pass at once, and the broker do what became due."""

        def run_due(state: object, now_ms: int) -> None:
            state.timers.run_due(now_ms)  # type: ignore[attr-defined]

        self._skipped_ms += duration_ms
        broker.call(run_due)
