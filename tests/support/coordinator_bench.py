"""Coordinators on storage in memory, a hand-moved clock, and death after any durable write.

`Bench` holds what survives a process (`Disk`) and what does not (coordinators, timers). Every
durable write counts; `disk.die_after = n` lets the process die right after the n-th one, by an
exception that nothing in the coordinators catches. `restart()` then reloads from the disk.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from onceflow.broker_lite.coordinators.classic.coordinator import GroupCoordinator
from onceflow.broker_lite.coordinators.classic.group import GroupProtocol, JoinResult, SyncResult
from onceflow.broker_lite.coordinators.classic.requests import JoinRequest, MemberIdentity
from onceflow.broker_lite.coordinators.settings import GroupSettings, TransactionSettings
from onceflow.broker_lite.coordinators.state_log import (
    KeyValue,
    StateLogError,
    StoredBatch,
    StoredRecord,
)
from onceflow.broker_lite.coordinators.transactions.coordinator import (
    ProducerGrant,
    TransactionCoordinator,
)
from onceflow.broker_lite.coordinators.transactions.markers import TransactionMarkers
from onceflow.broker_lite.coordinators.transactions.producer_ids import ProducerIds
from onceflow.broker_lite.log import AppendError
from onceflow.broker_lite.purgatory import Deferred, Timers
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

START_MS = 1_700_000_000_000

T = TypeVar("T")


class ProcessDied(BaseException):
    """The process ended right after a durable write; nothing may catch it but the test."""


class FakeProducer(NamedTuple):
    """What a partition remembers of a producer."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1


class Entry(NamedTuple):
    """One batch of a fake partition: data or a marker."""

    producer_id: int
    producer_epoch: int
    value: str | None
    committed: bool | None = None
    stored: tuple[KeyValue, ...] = ()


class FakePartition:
    """A partition with fencing and open transactions, one record or batch per entry."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.entries: list[Entry] = []
        self.offset_of_entry: list[int] = []
        self.next_offset = 0
        self.refuse_markers_with: ErrorCode | None = None
        self.coordinator_epoch = -1

    def _epoch(self, producer_id: int) -> int:
        return max(
            (e.producer_epoch for e in self.entries if e.producer_id == producer_id), default=-1
        )

    def put(self, entry: Entry, records: int = 1) -> int:
        if entry.producer_id >= 0 and entry.producer_epoch < self._epoch(entry.producer_id):
            raise AppendError(ErrorCode.INVALID_PRODUCER_EPOCH, "older epoch")
        offset = self.next_offset
        self.entries.append(entry)
        self.offset_of_entry.append(offset)
        self.next_offset += records
        self._disk.written()
        return offset

    def produce(self, producer_id: int, producer_epoch: int, value: str) -> int:
        return self.put(Entry(producer_id, producer_epoch, value))

    def append_control(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
    ) -> object:
        if self.refuse_markers_with is not None:
            raise AppendError(self.refuse_markers_with, "told to")
        if coordinator_epoch < self.coordinator_epoch:
            raise AppendError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "older coordinator epoch")
        return self.put(Entry(producer_id, producer_epoch, None, committed))

    def has_open_transaction(self, producer_id: int) -> bool:
        is_open = False
        for entry in self.entries:
            if entry.producer_id == producer_id:
                is_open = entry.committed is None
        return is_open

    def producers(self) -> list[FakeProducer]:
        ids = {e.producer_id for e in self.entries if e.producer_id >= 0}
        return [
            FakeProducer(producer_id, self._epoch(producer_id), self.coordinator_epoch)
            for producer_id in ids
        ]

    def committed_values(self) -> list[str]:
        """What a read_committed consumer sees, up to the first open transaction."""
        outcome: dict[int, bool] = {}
        stable: list[str] = []
        for position in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[position]
            if entry.committed is not None:
                outcome[entry.producer_id] = entry.committed
            elif entry.value is not None and outcome.get(entry.producer_id, False):
                stable.append(entry.value)
        return stable[::-1]

    @property
    def markers(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.committed is not None]


class FakeTopic:
    """An internal topic as the coordinators use it."""

    def __init__(self, disk: Disk, partition_count: int) -> None:
        self.partitions = [FakePartition(disk) for _ in range(partition_count)]
        self.fail_with: ErrorCode | None = None
        self.epochs = [0] * partition_count

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def prepare(self, now_ms: int) -> None:
        pass

    def leader_epoch(self, partition: int) -> int:
        return self.epochs[partition]

    def begin_epoch_above(self, partition: int, known_epoch: int) -> None:
        self.epochs[partition] = max(self.epochs[partition], known_epoch + 1)

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        now_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        assert records, "a batch is never empty"
        if self.fail_with is not None:
            raise StateLogError(self.fail_with)
        try:
            return self.partitions[partition].put(
                Entry(producer_id, producer_epoch, None, None, tuple(records)), len(records)
            )
        except AppendError as error:
            raise StateLogError(error.code) from error

    def batches(self, partition: int) -> Iterator[StoredBatch]:
        log = self.partitions[partition]
        for entry, offset in zip(log.entries, log.offset_of_entry, strict=True):
            records = [
                StoredRecord(offset + position, record.key, record.value)
                for position, record in enumerate(entry.stored)
            ]
            yield StoredBatch(
                entry.producer_id,
                entry.producer_epoch,
                entry.producer_id >= 0,
                entry.committed,
                records,
            )


class Disk:
    """All that survives the process."""

    def __init__(self, partition_count: int = 4) -> None:
        self.writes = 0
        self.die_after: int | None = None
        self.offsets = FakeTopic(self, partition_count)
        self.transaction_state = FakeTopic(self, partition_count)
        self.data: dict[TopicPartition, FakePartition] = {}
        self.block: bytes | None = None
        self.block_fails = False

    def written(self) -> None:
        self.writes += 1
        if self.die_after is not None and self.writes >= self.die_after:
            self.die_after = None
            raise ProcessDied

    def partition(self, topic: str, index: int) -> FakePartition | None:
        if topic == OFFSETS_TOPIC:
            return self.offsets.partitions[index]
        return self.data.get(TopicPartition(topic, index))

    def create(self, topic: str, partitions: int = 1) -> list[FakePartition]:
        logs = [FakePartition(self) for _ in range(partitions)]
        self.data.update({TopicPartition(topic, i): log for i, log in enumerate(logs)})
        return logs

    def read(self) -> bytes | None:
        return self.block

    def write(self, data: bytes) -> None:
        if self.block_fails:
            raise OSError("disk full")
        self.block = data
        self.written()


@dataclass
class FakeClusterTopic:
    """A topic of which only the number of partitions matters."""

    name: str
    topic_id: uuid.UUID
    partitions: list[int]


class FakeTopics:
    """The topics that consumer groups see."""

    def __init__(self, **partition_counts: int) -> None:
        self.changes = 0
        self._topics: dict[str, FakeClusterTopic] = {}
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> uuid.UUID:
        """A new topic, or more partitions of one that is there."""
        self.changes += 1
        old = self._topics.get(name)
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name} {self.changes}")
        topic_id = topic_id if old is None else old.topic_id
        self._topics[name] = FakeClusterTopic(name, topic_id, list(range(count)))
        return topic_id

    def delete(self, name: str) -> None:
        self.changes += 1
        del self._topics[name]

    def get(self, name: str) -> FakeClusterTopic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> FakeClusterTopic | None:
        return next((t for t in self._topics.values() if t.topic_id == topic_id), None)

    def __iter__(self) -> Iterator[FakeClusterTopic]:
        return iter(self._topics.values())


@dataclass
class Bench:
    """A broker's coordinators with everything around them in memory."""

    group_settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(
            initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0
        )
    )
    transaction_settings: TransactionSettings = field(default_factory=TransactionSettings)
    disk: Disk = field(default_factory=Disk)
    topics: FakeTopics = field(default_factory=lambda: FakeTopics())
    now_ms: int = START_MS
    seed: int = 7

    timers: Timers = field(init=False)
    groups: GroupCoordinator = field(init=False)
    transactions: TransactionCoordinator = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.restart()

    def restart(self) -> None:
        """A new process on the same disk."""
        self.timers = Timers()
        self.groups = GroupCoordinator(
            self.group_settings, self.disk.offsets, self.timers, self.random, self.topics
        )
        self.transactions = TransactionCoordinator(
            self.transaction_settings,
            self.disk.transaction_state,
            TransactionMarkers(self.disk.partition, self.groups),
            ProducerIds(self.disk),
            self.timers,
        )
        self.groups.load(self.now_ms)
        self.transactions.load(self.now_ms)
        self.groups.start(self.now_ms)
        self.transactions.start(self.now_ms)

    def pass_ms(self, duration_ms: int) -> None:
        """Let time go by, running every timer at its own moment."""
        end_ms = self.now_ms + duration_ms
        while (due := self.timers.next_deadline_ms()) is not None and due <= end_ms:
            self.now_ms = max(self.now_ms, due)
            self.timers.run_due(self.now_ms)
        self.now_ms = end_ms

    # --- transactions

    def init(
        self,
        transactional_id: str = "t",
        producer_id: int = -1,
        producer_epoch: int = -1,
        timeout_ms: int = 60_000,
    ) -> ProducerGrant:
        return self.transactions.init_producer_id(
            transactional_id, timeout_ms, producer_id, producer_epoch, self.now_ms
        )

    def identity(self, transactional_id: str = "t", timeout_ms: int = 60_000) -> tuple[int, int]:
        """Init as a client does: ask again while the answer says so."""
        for _ in range(10):
            grant = self.init(transactional_id, timeout_ms=timeout_ms)
            if grant.error_code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                assert grant.error_code is ErrorCode.NONE
                return grant.producer_id, grant.producer_epoch
            self.pass_ms(20)
        raise AssertionError("InitProducerId never succeeded")

    def add(
        self,
        producer_id: int,
        producer_epoch: int,
        *partitions: TopicPartition,
        transactional_id: str = "t",
    ) -> ErrorCode:
        return self.transactions.add_partitions(
            transactional_id, producer_id, producer_epoch, partitions, self.now_ms
        )

    def end(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool = True,
        version: int = 0,
        transactional_id: str = "t",
    ) -> ProducerGrant:
        return self.transactions.end_transaction(
            transactional_id,
            producer_id,
            producer_epoch,
            committed,
            self.now_ms,
            transaction_version=version,
        )

    def state(self, transactional_id: str = "t") -> str:
        entry = self.transactions.describe(transactional_id)
        return entry.name if isinstance(entry, ErrorCode) else entry.state.label

    # --- groups

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance: str | None = None,
        version: int = 9,
        protocols: dict[str, bytes] | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        client_id: str = "c",
    ) -> JoinResult | Deferred[JoinResult]:
        offered = protocols if protocols is not None else {"range": b"sub"}
        return self.groups.join(
            JoinRequest(
                group_id,
                member_id,
                instance,
                client_id,
                "/127.0.0.1",
                session_ms,
                rebalance_ms,
                protocol_type,
                tuple(GroupProtocol(name, data) for name, data in offered.items()),
                version,
            ),
            self.now_ms,
        )

    def new_id(self, **options: object) -> str:
        """The member id of the first half of joining (KIP-394)."""
        result = self.join(**options)  # type: ignore[arg-type]
        assert isinstance(result, JoinResult)
        assert result.error_code is ErrorCode.MEMBER_ID_REQUIRED
        return result.member_id

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group_id: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> SyncResult | Deferred[SyncResult]:
        return self.groups.sync(
            group_id,
            generation_id,
            MemberIdentity(member_id, instance),
            protocol_type,
            protocol_name,
            assignments or {},
            self.now_ms,
        )

    def heartbeat(
        self,
        member_id: str,
        generation_id: int,
        *,
        group_id: str = "g",
        instance: str | None = None,
    ) -> ErrorCode:
        return self.groups.heartbeat(
            group_id, generation_id, MemberIdentity(member_id, instance), self.now_ms
        )

    def leave(
        self, member_id: str, *, group_id: str = "g", instance: str | None = None
    ) -> ErrorCode:
        code, codes = self.groups.leave(
            group_id, [MemberIdentity(member_id, instance)], self.now_ms
        )
        return code if code is not ErrorCode.NONE else codes[0]

    def group_state(self, group_id: str = "g") -> str:
        return self.groups.admin.describe(group_id).group_state

    def stable_pair(self, **options: object) -> tuple[JoinResult, JoinResult]:
        """A stable group of two, leader first; assignments are `a` and `b`."""
        first = self.new_id(**options)
        lead = done(self.join(first, **options))  # type: ignore[arg-type]
        done(self.sync(first, lead.generation_id, {first: b"a"}))
        second = self.new_id(**options)
        parked_second = self.join(second, **options)  # type: ignore[arg-type]
        lead = done(self.join(first, **options))  # type: ignore[arg-type]
        follow = done(parked_second)
        parked_sync = self.sync(second, follow.generation_id)
        done(self.sync(first, lead.generation_id, {first: b"a", second: b"b"}))
        assert done(parked_sync).assignment == b"b"
        return lead, follow


def is_parked(result: object) -> bool:
    """True while a deferred answer has not come."""
    return isinstance(result, Deferred) and not result.completed


def done(result: T | Deferred[T]) -> T:
    """The answer, given at once or by a deferred that is complete."""
    if not isinstance(result, Deferred):
        return result
    values: list[T] = []
    result.add_done_callback(values.append)
    assert values, "the answer is still parked"
    return values[0]
