"""An in-memory cluster with one consumer group, and clients that a session can be given.

It keeps Kafka's rules that matter to a session: a transaction's writes and offsets take effect
together, a new incarnation fences the old one and ends its transaction, positions are not part of
a transaction, offsets are fenced by generation and not by ownership. Tests break calls with
``cluster.fail`` and move partitions with ``cluster.rebalance``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onceflow.sdk.errors import (
    CommitFailedError,
    IllegalGenerationError,
    ProducerFencedError,
    UnknownMemberIdError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    RecordMetadata,
    TopicPartition,
)
from onceflow.transactions.colour import Maybe, run_blocking
from onceflow.transactions.config import SessionConfig
from onceflow.transactions.listener import RebalanceHooks


@dataclass
class Entry:
    """One record in a fake log. ``state`` is open, committed or aborted."""

    key: object
    value: object
    headers: object = ()
    timestamp_ms: int = 0
    state: str = "committed"


@dataclass
class OpenTransaction:
    entries: list[Entry] = field(default_factory=list)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class FakeDelivery:
    """Acknowledged at once."""

    def __init__(self, metadata: RecordMetadata) -> None:
        self.metadata = metadata

    def result(self, timeout: float | None = None) -> RecordMetadata:
        return self.metadata


class FakeDeliveries:
    """Several of them."""

    def __init__(self, metadata: list[RecordMetadata]) -> None:
        self.metadata = metadata

    def last(self) -> RecordMetadata:
        return self.metadata[-1]


class FakeCluster:
    """Logs, one group, transactional ids."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Entry]] = defaultdict(list)
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.leader_epoch = -1
        self.epochs: dict[str, int] = {}
        self.open: dict[str, OpenTransaction] = {}
        self.generation = 0
        self.members: list[FakeConsumer] = []
        self.calls: list[str] = []
        self.clients: list[object] = []
        self._faults: dict[str, deque[tuple[bool, Callable[[], None]]]] = defaultdict(deque)

    # Faults

    def fail(self, call: str, error: BaseException, *, after: bool = False, times: int = 1) -> None:
        """Make the next calls of one name raise, before or after they took effect."""

        def action() -> None:
            raise error

        self.do(call, action, after=after, times=times)

    def do(
        self, call: str, action: Callable[[], None], *, after: bool = False, times: int = 1
    ) -> None:
        """Run something within the next calls of one name."""
        for _ in range(times):
            self._faults[call].append((after, action))

    def forget_faults(self) -> None:
        """Let every call succeed again."""
        self._faults.clear()

    def enter(self, call: str) -> Callable[[], None]:
        """Note a call; gives what is to be run at its end."""
        self.calls.append(call)
        return self.meet(call)

    def meet(self, call: str) -> Callable[[], None]:
        """The fault of a call, without noting the call."""
        if self._faults[call]:
            after, action = self._faults[call].popleft()
            if after:
                return action
            action()
        return lambda: None

    # Data

    def put(self, topic: str, *values: object, partition: int = 0, key: object = None) -> None:
        for value in values:
            self.logs[TopicPartition(topic, partition)].append(Entry(key, value))

    def values(self, topic: str, partition: int = 0) -> list[object]:
        """What a reader of committed data sees."""
        log = self.logs[TopicPartition(topic, partition)]
        return [entry.value for entry in log if entry.state == "committed"]

    def offset(self, topic: str, partition: int = 0) -> int | None:
        found = self.committed.get(TopicPartition(topic, partition))
        return None if found is None else found.offset

    # Transactions and groups

    def init(self, transactional_id: str) -> int:
        self.end(transactional_id, commit=False)
        self.epochs[transactional_id] = self.epochs.get(transactional_id, -1) + 1
        return self.epochs[transactional_id]

    def end(self, transactional_id: str, *, commit: bool) -> None:
        transaction = self.open.pop(transactional_id, None)
        if transaction is not None:
            for entry in transaction.entries:
                entry.state = "committed" if commit else "aborted"
            if commit:
                self.committed.update(transaction.offsets)

    def rebalance(self, *assignments: Sequence[TopicPartition], lost: bool = False) -> None:
        """Give each member (in order of joining) its partitions; takes effect in its poll."""
        self.generation += 1
        for member, partitions in zip(self.members, assignments, strict=True):
            member.pending.append((set(partitions), lost, self.generation))


class FakeProducer:
    """A transactional producer that is acknowledged at once."""

    def __init__(self, cluster: FakeCluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.closed = False
        cluster.enter("init_transactions")
        self.epoch = cluster.init(transactional_id)
        self.begun = False

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, 1, self.epoch)

    def _check(self) -> None:
        if self.cluster.epochs[self.transactional_id] != self.epoch:
            raise ProducerFencedError()

    def init_transactions(self) -> None:
        self.epoch = self.cluster.init(self.transactional_id)

    def begin_transaction(self) -> None:
        end = self.cluster.enter("begin_transaction")
        self.begun = True
        end()

    def _transaction(self) -> OpenTransaction:
        self._check()
        assert self.begun, "send outside of a transaction"
        return self.cluster.open.setdefault(self.transactional_id, OpenTransaction())

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: object = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FakeDelivery:
        self.cluster.enter("send")
        self.cluster.meet(f"send {topic}")
        entry = Entry(key, value, headers, timestamp_ms or 0, "open")
        self._transaction().entries.append(entry)
        log = self.cluster.logs[TopicPartition(topic, partition or 0)]
        log.append(entry)
        return FakeDelivery(RecordMetadata(topic, partition or 0, len(log) - 1, 0))

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> FakeDeliveries:
        found = []
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            time_ms = None if timestamps_ms is None else timestamps_ms[index]
            sent = self.send(topic, value, key=key, partition=partition, timestamp_ms=time_ms)
            found.append(sent.metadata)
        return FakeDeliveries(found)

    def flush(self, timeout_ms: int | None = None) -> None:
        self.cluster.enter("flush")

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        end = self.cluster.enter("send_offsets_to_transaction")
        self.cluster.calls.append(f"offsets@{group_metadata.generation_id}")
        if group_metadata.member_id:  # Like the broker: no member id, no check.
            member = next(
                (m for m in self.cluster.members if m.member_id == group_metadata.member_id), None
            )
            if member is None:
                raise UnknownMemberIdError()
            if group_metadata.generation_id != member.known_generation:
                raise IllegalGenerationError()
        transaction = self._transaction()
        for partition, offset in offsets.items():
            assert isinstance(offset, OffsetAndMetadata)
            transaction.offsets[partition] = offset
        end()

    def commit_transaction(self, timeout_ms: int | None = None) -> None:
        end = self.cluster.enter("commit_transaction")
        self._check()
        self.begun = False
        self.cluster.end(self.transactional_id, commit=True)
        end()

    def abort_transaction(self, timeout_ms: int | None = None) -> None:
        end = self.cluster.enter("abort_transaction")
        self._check()
        self.begun = False
        self.cluster.end(self.transactional_id, commit=False)
        end()

    def close(self, timeout_ms: int = 0) -> None:
        self.closed = True


class FakePlainProducer:
    """An idempotent producer without transactions: what it sends is there at once, and stays."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        cluster.enter("plain producer")

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: object = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FakeDelivery:
        self.cluster.enter("send")
        self.cluster.meet(f"send {topic}")
        log = self.cluster.logs[TopicPartition(topic, partition or 0)]
        log.append(Entry(key, value, headers, timestamp_ms or 0))
        return FakeDelivery(RecordMetadata(topic, partition or 0, len(log) - 1, 0))

    send_many = FakeProducer.send_many

    def flush(self, timeout_ms: int | None = None) -> None:
        self.cluster.enter("flush")

    def close(self, timeout_ms: int = 0) -> None:
        pass


class FakeConsumer:
    """A member of the cluster's only group."""

    def __init__(self, cluster: FakeCluster, config: SessionConfig, hooks: RebalanceHooks) -> None:
        self.cluster = cluster
        self.config = config
        self.hooks = hooks
        self.member_id = f"member-{len(cluster.clients)}"
        self.known_generation = -1
        self.pending: deque[tuple[set[TopicPartition], bool, int]] = deque()
        self.owned: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.expelled = False
        self.closed = False
        self.left_group: bool | None = None
        cluster.clients.append(self)
        cluster.members.append(self)

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        self.cluster.enter("poll")
        for hook in self.rebalances():
            run_blocking(hook)
        left = max_records or self.config.consumer.max_poll_records
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for partition in sorted(self.owned - self.paused):
            log = self.cluster.logs[partition]
            stable = (n for n, entry in enumerate(log) if entry.state == "open")
            self.ends[partition] = next(stable, len(log))
            batch = []
            position = self.positions[partition]
            while position < len(log) and left and log[position].state != "open":
                entry = log[position]
                if entry.state == "committed":
                    batch.append(
                        ConsumerRecord(
                            *partition,
                            position,
                            entry.timestamp_ms,
                            key=entry.key,
                            value=entry.value,
                            headers=entry.headers,  # type: ignore[arg-type]
                            leader_epoch=self.cluster.leader_epoch,
                        )
                    )
                    left -= 1
                position += 1
            self.positions[partition] = position
            if batch:
                found[partition] = batch
        return found

    def rebalances(self) -> Iterator[Coroutine[object, None, None]]:
        """Carry out what is pending; every callback is handed out to be run."""
        while self.pending:
            yield from self._rebalance(*self.pending.popleft())

    def _rebalance(
        self, wanted: set[TopicPartition], lost: bool, generation: int
    ) -> Iterator[Coroutine[object, None, None]]:
        gone = sorted(self.owned - wanted)
        if lost:
            self.owned -= set(gone)
            self.known_generation = generation
            yield self.hooks.on_lost(gone)
        elif gone:
            try:
                yield self.hooks.on_revoked(gone)
            finally:  # They go, whatever the callback raised.
                self.owned -= set(gone)
        self.paused &= wanted
        self.known_generation = generation
        added = sorted(wanted - self.owned)
        for partition in added:
            self.ends.pop(partition, None)
        self.owned = set(wanted)
        for partition in added:
            committed = self.cluster.committed.get(partition)
            self.positions[partition] = -1 if committed is None else committed.offset
        yield self.hooks.on_assigned(added)

    def assignment(self) -> set[TopicPartition]:
        return set(self.owned)

    def group_metadata(self) -> ConsumerGroupMetadata:
        member_id = "" if self.expelled else self.member_id
        group_id = self.config.consumer.group_id or ""
        return ConsumerGroupMetadata(group_id, self.known_generation, member_id)

    def ensure_membership(self) -> None:
        self.cluster.enter("ensure_membership")
        if self.expelled or self not in self.cluster.members:
            raise CommitFailedError("expelled")

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.cluster.enter("committed")
        return {partition: self.cluster.committed.get(partition) for partition in partitions}

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        end = self.cluster.enter("commit")
        if self.expelled or self not in self.cluster.members:
            raise UnknownMemberIdError()
        for partition, offset in (offsets or {}).items():
            assert isinstance(offset, OffsetAndMetadata)
            self.cluster.committed[partition] = offset
        end()

    def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    def lag(self, partition: TopicPartition) -> int | None:
        """As of the last poll; paused partitions are not fetched."""
        end = self.ends.get(partition)
        return None if end is None else max(0, end - self.positions[partition])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.cluster.calls.append(f"seek {partition}@{offset}")
        self.positions[partition] = offset

    def seek_to_beginning(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self.positions[partition] = 0

    def seek_to_end(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self.positions[partition] = len(self.cluster.logs[partition])

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in self.paused.intersection(partitions):
            if self.lag(partition) == 0:
                del self.ends[partition]
            self.paused.discard(partition)

    def wakeup(self) -> None:
        self.cluster.calls.append("wakeup")

    def close(self, timeout_ms: int = 0, *, leave_group: bool | None = None) -> Maybe[None]:
        self.closed = True
        self.left_group = leave_group
        if self in self.cluster.members:
            self.cluster.members.remove(self)
        gone, self.owned = sorted(self.owned), set()
        return self.hooks.on_revoked(gone) if gone else None


class FakeClients:
    """Makes clients of one cluster; a consumer gets partitions at its first poll.

    Args:
        cluster: The cluster.
        partitions: What a new consumer is given at once.
    """

    def __init__(self, cluster: FakeCluster, partitions: Sequence[TopicPartition] = ()) -> None:
        self.cluster = cluster
        self.partitions = partitions

    def producer(self, config: SessionConfig) -> FakeProducer:
        return FakeProducer(self.cluster, config.own_transactional_id)

    def consumer(self, config: SessionConfig, hooks: RebalanceHooks) -> FakeConsumer:
        consumer = FakeConsumer(self.cluster, config, hooks)
        self.cluster.generation += 1
        consumer.pending.append((set(self.partitions), False, self.cluster.generation))
        return consumer
