"""A producer's machines without sockets: accumulator, sender and transactions on a virtual clock.

``Rig`` plays the face (appending) and the engine (plan, answer, fail); ``ModelLog`` plays a
broker's partition with Kafka's rules for sequences and epochs, so that a test can ask what a
reader would find.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from onceflow.sdk.core.connection.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
)
from onceflow.sdk.core.produce.accumulator import STICKY, Accumulator
from onceflow.sdk.core.produce.batch import DeliveryHandle
from onceflow.sdk.core.produce.messages import ProduceJob
from onceflow.sdk.core.produce.sender import Plan, Sender
from onceflow.sdk.core.produce.transaction_manager import TransactionManager, TransactionState
from onceflow.sdk.core.retry import Backoff
from onceflow.sdk.errors import BrokerConnectionError, KafkaError
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import decode_batch, increment_sequence, parse_batch_header
from onceflow.sdk.sync.delivery import Delivery, DeliveryMaker

NODE = 1
TOPIC = "t"


def metadata_of(partitions: int, *, topic: str = TOPIC, leader: int = NODE) -> ClusterMetadata:
    """A cluster of two nodes with one topic that one of them leads."""
    return ClusterMetadata(
        nodes={1: Node(1, "one", 9092), 2: Node(2, "two", 9092)},
        topics={
            topic: TopicMetadata(
                topic,
                partitions={n: PartitionMetadata(n, leader, 0) for n in range(partitions)},
            )
        },
    )


class Rig:
    """Machines, a clock, and the settings that tests vary; some are explained in ``__init__``."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        idempotent: bool = True,
        transactional_id: str | None = None,
        protocol_version: int = 2,
        linger_ms: int = 0,
        batch_size: int = 16_384,
        buffer_memory: int = 1 << 25,
        max_request_size: int = 1 << 20,
        delivery_timeout_ms: int = 120_000,
        max_in_flight: int = 5,
        known: bool = True,
    ) -> None:
        """Make the machines.

        Args:
            known: Whether the broker knows the producer already, so that batches may overlap.
        """
        self.now_ms = 1_000
        self.wakes = 0
        self.metadata = metadata_of(partitions)
        self.connected = {1, 2}
        self.accumulator: Accumulator[Delivery] = Accumulator(
            lock=threading.Lock(),
            clock_ms=lambda: self.now_ms,
            random=lambda: 0.5,
            handles=DeliveryMaker(),
            on_ready=self._woken,
            batch_size=batch_size,
            linger_ms=linger_ms,
            max_request_size=max_request_size,
            buffer_memory=buffer_memory,
            codec=0,
        )
        self.manager = TransactionManager(transactional_id)
        if idempotent:
            self.manager.move(TransactionState.INITIALIZING)
            self.manager.initialized(7, 0, protocol_version)
        else:
            self.manager.move(TransactionState.INITIALIZING)
            self.manager.move(TransactionState.READY)
        if transactional_id is not None:
            self.begin()
        self.sender = Sender(
            cast("Accumulator[DeliveryHandle]", self.accumulator),
            self.manager,
            Backoff(100, 1_000, lambda: 0.5),
            acks=-1,
            idempotent=idempotent,
            request_timeout_ms=30_000,
            delivery_timeout_ms=delivery_timeout_ms,
            max_request_size=max_request_size,
            max_in_flight=max_in_flight,
        )
        self.state = self.accumulator.topic_state(TOPIC, partitions, range(partitions))
        if known:
            for queue in self.state.queues:
                queue.producer_id, queue.producer_epoch = self.manager.producer_id, 0
                queue.known_until_ms = 1 << 60

    def _woken(self) -> None:
        self.wakes += 1

    def begin(self) -> None:
        """Open a transaction."""
        self.manager.begin(self.now_ms)
        self.accumulator.transaction = self.manager.number

    def send(self, value: bytes, *, partition: int = 0, key: bytes | None = None) -> DeliveryHandle:
        """Append one record."""
        delivery = self.accumulator.append(self.state, partition, key, value, [], self.now_ms)
        assert delivery is not None, "buffer_memory is full"
        return delivery

    def send_batch(self, *values: bytes, partition: int = 0) -> list[DeliveryHandle]:
        """Append records and close their batch."""
        handles = [self.send(value, partition=partition) for value in values]
        self.accumulator.seal(self.state.queues[partition])
        return handles

    def send_sticky(self, value: bytes) -> DeliveryHandle:
        """Append a record without key and partition."""
        return self.send(value, partition=STICKY)

    def plan(self) -> Plan:
        """What the sender wants to do now."""
        return self.sender.plan(self.metadata, self.connected.__contains__, self.now_ms)

    def jobs(self) -> list[ProduceJob]:
        """The requests that leave now, over as many looks as it takes."""
        found: list[ProduceJob] = []
        while plan := self.plan().jobs:
            found += plan
        return found

    def job(self) -> ProduceJob:
        """The one request that leaves now."""
        (job,) = self.jobs()
        return job

    def answer(self, job: ProduceJob, code: int = 0, base_offset: int = 0, **more: object) -> None:
        """Answer every partition of a request alike."""
        results = {
            (queue.topic, queue.partition): make_result(code, base_offset, **more)
            for queue, _ in job.items
        }
        self.answer_each(job, results)

    def answer_each(
        self,
        job: ProduceJob,
        results: Mapping[
            tuple[str, int], ProduceResponse.TopicProduceResponse.PartitionProduceResponse
        ],
    ) -> None:
        """Answer each partition of a request on its own."""
        topics: dict[str, list[ProduceResponse.PartitionProduceResponse]] = {}
        for (topic, partition), result in results.items():
            result.index = partition
            topics.setdefault(topic, []).append(result)
        response = ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(name=topic, partition_responses=found)
                for topic, found in topics.items()
            ]
        )
        self.sender.answered(job, response, self.now_ms)

    def serve(self, job: ProduceJob, logs: Mapping[int, ModelLog]) -> None:
        """Let model logs take a request's batches, and answer what they say."""
        results = {}
        for queue, batch in job.items:
            assert batch.data is not None
            results[queue.topic, queue.partition] = make_result(
                *logs[queue.partition].append(batch.data)
            )
        self.answer_each(job, results)

    def fail(self, job: ProduceJob, error: KafkaError | None = None) -> None:
        """The connection broke before the answer."""
        self.sender.failed(job, error or BrokerConnectionError("lost"), self.now_ms)

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds


def make_result(
    code: int, base_offset: int = -1, **more: object
) -> ProduceResponse.TopicProduceResponse.PartitionProduceResponse:
    """A partition's answer."""
    return ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
        index=0,
        error_code=code,
        base_offset=base_offset if not code else -1,
        **more,  # type: ignore[arg-type]
    )


def sequences(job: ProduceJob) -> list[tuple[int, int, int]]:
    """(epoch, base sequence, count) of each batch in a request, as its bytes say."""
    found = []
    for _, batch in job.items:
        assert batch.data is not None
        header = parse_batch_header(batch.data)
        found.append((header.producer_epoch, header.base_sequence, header.records_count))
    return found


def values_of(job: ProduceJob) -> list[bytes | None]:
    """The values in a request, in order."""
    found: list[bytes | None] = []
    for _, batch in job.items:
        assert batch.data is not None
        found += [record.value for record in decode_batch(batch.data)]
    return found


@dataclass
class _Producer:
    epoch: int
    next_sequence: int = 0
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


class ModelLog:
    """One partition with Kafka's rules: five batches remembered, gaps and old epochs refused."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.producers: dict[int, _Producer] = {}

    def append(self, data: bytes | bytearray) -> tuple[int, int]:
        """Take a batch.

        Returns:
            Error code and base offset.
        """
        header = parse_batch_header(data)
        values = [record.value for record in decode_batch(data)]
        if header.producer_id >= 0:
            known = self.producers.get(header.producer_id)
            if known is None:
                known = _Producer(header.producer_epoch, header.base_sequence)
                self.producers[header.producer_id] = known
            if header.producer_epoch < known.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > known.epoch:
                if header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                known = self.producers[header.producer_id] = _Producer(header.producer_epoch)
            for sequence, count, offset in known.recent:
                if (sequence, count) == (header.base_sequence, header.records_count):
                    return ErrorCode.NONE, offset
            if header.base_sequence != known.next_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.recent.append((header.base_sequence, header.records_count, len(self.values)))
            known.next_sequence = increment_sequence(header.base_sequence, header.records_count)
        base_offset = len(self.values)
        self.values += values
        return ErrorCode.NONE, base_offset
