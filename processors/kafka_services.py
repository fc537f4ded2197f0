"""The ``Services`` of a worker on real brokers, made of the SDK's clients.

No other module of processors uses the SDK's client classes.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from onceflow.processors.calls import Attempt, Calls
from onceflow.processors.changelog import ChangelogReader
from onceflow.processors.errors import StoppedError, TopicSetupError
from onceflow.processors.graph.specs import StoreKind
from onceflow.processors.graph.topology import Topology
from onceflow.processors.ledger.at_least_once import (
    AtLeastOnceConfig,
    AtLeastOnceProducer,
    end_predecessor,
)
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.ledger.sink import SinkLedger
from onceflow.processors.ledger.transaction import TransactionLedger
from onceflow.processors.provisioning import TopicAdmin, TopicFacts
from onceflow.processors.rights import NOT_AUTHORIZED, TOPIC, Need, missing_error
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.unit import Unit
from onceflow.sdk import Admin, AsyncAdmin, AsyncConsumer, Consumer, Producer, ProducerConfig
from onceflow.sdk.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.partitions import IsolationLevel, NewTopic, TopicPartition
from onceflow.transactions import SessionConfig, TransactionSession
from onceflow.transactions.clients import SessionProducer
from onceflow.transactions.colour import Maybe, run_blocking, settle
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.listener import RebalanceHooks, SessionListener
from onceflow.transactions.sdk_clients import BlockingClients
from onceflow.transactions.sinks import CopiedSink
from onceflow.transactions.sinks.session_core import SinkSessionCore

CREATE_WAIT_S = 10.0
CREATE_CHECK_S = 0.05
RESTORE_RECORDS_MAX = 100_000

Bytes: TypeAlias = "bytes | None"


async def _bounds(
    admin: Admin | AsyncAdmin, partitions: Sequence[TopicPartition], level: IsolationLevel
) -> dict[TopicPartition, tuple[int, int]]:
    starts = await settle(admin.list_offsets(dict.fromkeys(partitions, "earliest")))
    ends = await settle(
        admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level=level)
    )
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in partitions}


class KafkaTopicAdmin:
    """A ``TopicAdmin`` over the SDK's blocking or asyncio admin client.

    Args:
        admin: The client; ``close`` closes it.
        sleep: Waits for some seconds.
        monotonic_s: Monotonic seconds.
    """

    def __init__(
        self,
        admin: Admin | AsyncAdmin,
        sleep: Callable[[float], Maybe[None]] = time.sleep,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._sleep = sleep
        self._monotonic_s = monotonic_s

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """Describe those of the topics that exist.

        Raises:
            TopicAuthorizationFailedError: One may not be described.
        """
        existing = set(await settle(self._admin.list_topics()))
        wanted = []
        for topic in dict.fromkeys(topics):
            if topic not in existing:
                # The list also lacks topics that may not be described; a question by name tells.
                try:
                    await settle(self._admin.describe_topics([topic]))
                except UnknownTopicOrPartitionError:
                    continue
            wanted.append(topic)
        if not wanted:
            return {}
        return {
            name: TopicFacts(
                len(found.partitions),
                str(found.topic_id),
                min((len(p.replicas) for p in found.partitions), default=1),
            )
            for name, found in (await settle(self._admin.describe_topics(wanted))).items()
        }

    async def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics, and wait until brokers list them."""
        for topic in topics:
            try:
                await settle(self._admin.create_topics([topic]))
            except TopicAlreadyExistsError:
                continue  # Another worker was faster.
            except NOT_AUTHORIZED as error:
                need = Need(TOPIC, topic.name, (AclOperation.CREATE,), "it does not exist yet")
                raise missing_error([need]) from error
        deadline_s = self._monotonic_s() + CREATE_WAIT_S
        names = {topic.name for topic in topics}
        while not names <= set(await settle(self._admin.list_topics())):
            if self._monotonic_s() > deadline_s:
                raise TopicSetupError(
                    f"topics were created but do not appear: {', '.join(sorted(names))}; look "
                    "into the brokers' logs, then start again"
                )
            await settle(self._sleep(CREATE_CHECK_S))

    async def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics by Kafka's property names."""
        return {
            str(topic): {name: entry.value or "" for name, entry in entries.items()}
            for topic, entries in (await settle(self._admin.describe_configs(list(topics)))).items()
        }

    async def purge(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before these offsets."""
        await settle(self._admin.delete_records(before))

    async def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start offset and last stable offset of each partition."""
        return await _bounds(self._admin, partitions, IsolationLevel.READ_COMMITTED)

    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the committed offsets of a group."""
        found = await settle(self._admin.list_group_offsets(group))
        return {partition: entry.offset for partition, entry in found.items()}

    async def allowed(self, kind: AclResourceType, name: str) -> frozenset[AclOperation] | None:
        """Return what this user may do with a resource.

        Brokers tell it of topics and groups. Of a transactional id they tell only whether it may
        be described, which WRITE implies.
        """
        admin = self._admin
        try:
            if kind is AclResourceType.TOPIC:
                topics = await settle(
                    admin.describe_topics([name], include_authorized_operations=True)
                )
                return topics[name].authorized_operations
            if kind is AclResourceType.GROUP:
                groups = await settle(
                    admin.describe_groups([name], include_authorized_operations=True)
                )
                return groups[name].authorized_operations
            await settle(admin.describe_transactions([name]))
        except NOT_AUTHORIZED:
            return frozenset()
        except (TransactionalIdNotFoundError, UnknownTopicOrPartitionError):
            pass  # It does not exist yet.
        return None

    async def broker_count(self) -> int:
        """Return how many brokers the cluster has."""
        return len((await settle(self._admin.describe_cluster())).nodes)

    async def close(self) -> None:
        """Release connections."""
        await settle(self._admin.close())


class KafkaChangelogReader:
    """A ``ChangelogReader`` over a blocking or asyncio consumer outside of any group.

    Args:
        admin: Returns the bounds; ``close`` closes it.
        consumer: Reads, without deserializers, since changelogs hold bytes.
    """

    def __init__(
        self,
        admin: Admin | AsyncAdmin,
        consumer: Consumer[Bytes, Bytes] | AsyncConsumer[Bytes, Bytes],
    ) -> None:
        self._admin = admin
        self._consumer = consumer

    async def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark (or last stable offset) of partitions."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return await _bounds(self._admin, partitions, level)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read only these partitions, from these offsets on."""
        self._consumer.assign(list(positions))
        for partition, offset in positions.items():
            self._consumer.seek(partition, offset)

    async def poll(self, timeout_ms: int) -> Mapping[TopicPartition, RecordColumns]:
        """Take records."""
        return await settle(self._consumer.poll_columns(timeout_ms, RESTORE_RECORDS_MAX))

    async def position(self, partition: TopicPartition) -> int:
        """Return the next offset to read, after markers and aborted records."""
        return await settle(self._consumer.position(partition))

    async def close(self) -> None:
        """Release connections."""
        await settle(self._consumer.close())
        await settle(self._admin.close())


C = TypeVar("C")


def _close_at_once(session: TransactionSession) -> None:
    with contextlib.suppress(KafkaError):
        session.close(0)


def plain_producer(config: ProducerConfig, settings: AppSettings, name: str) -> Producer:
    """Make a producer without a transactional id, for a worker without transactions.

    Args:
        config: Its settings.
        settings: Of the application.
        name: The slot's transactional id, which an earlier exactly-once worker may have used.
    """
    with Admin(config=settings.admin_config()) as admin:
        run_blocking(end_predecessor(admin, name))
    return Producer(config=config)


class AtLeastOnceClients(BlockingClients):
    """The clients of a session without transactions.

    Args:
        settings: Of the application.
    """

    def __init__(self, settings: AppSettings) -> None:
        self._settings = settings
        self._now: Consumer[object, object] | None = None

    def producer(self, config: AnySessionConfig) -> SessionProducer:
        """Make a producer without a transactional id, which fences no at-least-once worker."""
        plain = plain_producer(config.producer, self._settings, config.own_transactional_id)
        return AtLeastOnceProducer(plain, self._consumer_now)

    def consumer(self, config: AnySessionConfig, hooks: RebalanceHooks) -> Consumer[object, object]:
        """Make a subscribed consumer, which also commits."""
        self._now = super().consumer(config, hooks)
        return self._now

    def _consumer_now(self) -> Consumer[object, object]:
        assert self._now is not None, "a commit needs a consumer"
        return self._now


class KafkaServices:
    """The outside world of a worker, by the settings of its application.

    Args:
        settings: Of the application.
    """

    def __init__(self, settings: AppSettings) -> None:
        self._settings = settings
        self._stopped = False
        # Its put() may interrupt another put() or a get(), as signal handlers do.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._leave: Callable[[], None] | None = None

    def _made(self, make: Callable[[], C], undo: Callable[[C], None]) -> C:
        """Make a client; ``wake`` ends the wait for brokers that do not answer.

        Raises:
            StoppedError: ``wake`` was called. If the client is made later, it is closed.
        """
        attempt = Attempt(make, undo)
        self._leave = attempt.leave
        try:
            made = None if self._stopped else attempt.result()
        finally:
            self._leave = None
        if made is None:
            raise StoppedError("the application was stopped while it waited for the brokers")
        return made

    def admin(self) -> TopicAdmin:
        """Make the access to topics."""
        admin = self._made(lambda: Admin(config=self._settings.admin_config()), Admin.close)
        return KafkaTopicAdmin(admin)

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        """Make the ledger of Kafka transactions, or of at-least-once."""
        repeats = self._settings.repeats
        clients = AtLeastOnceClients(self._settings) if repeats else BlockingClients()
        return TransactionLedger(
            lambda listener: self._made(
                lambda: TransactionSession(config, listener=listener, clients=clients),
                _close_at_once,
            ),
            owner,
            unit.lanes,
            calls,
            config.revoke_budget_ms,
        )

    def sink_ledger(
        self,
        config: SessionConfig,
        owner: LedgerOwner,
        unit: Unit,
        calls: Calls,
        topology: Topology,
    ) -> Ledger:
        """Make the ledger of the application's sink, of which it opens a copy."""
        sink = topology.sink
        assert sink is not None, "the application has no sink"
        plain = AtLeastOnceConfig.build({n: getattr(config, n) for n in SessionConfig.declared})
        opened = sink.copy() if isinstance(sink, CopiedSink) else sink

        def make(listener: SessionListener) -> SinkSessionCore:
            core = SinkSessionCore(config, BlockingClients(), opened, self.monotonic_s, listener)

            def start() -> SinkSessionCore:
                run_blocking(core.start())
                return core

            return self._made(start, lambda made: run_blocking(made.close(0)))

        return SinkLedger(
            make,
            lambda: plain_producer(plain.producer, self._settings, config.own_transactional_id),
            owner,
            unit.lanes,
            calls,
            topology.dead_letter_topics,
            config.revoke_budget_ms,
        )

    def changelog_reader(self) -> ChangelogReader:
        """Make a reader of changelogs."""
        admin = Admin(config=self._settings.admin_config())
        consumer = Consumer(config=self._settings.restoring_config())
        return KafkaChangelogReader(admin, cast("Consumer[Bytes, Bytes]", consumer))

    def open_map(self, kind: StoreKind, directory: Path, tombstone_age_ms: int) -> ByteMap | None:
        """Open the map of a task; None while another process has locked it."""
        if kind is StoreKind.MEMORY:
            return MemoryMap()
        from onceflow.processors.stores.lmdb import open_map

        return open_map(directory, self.wall_ms(), tombstone_age_ms)

    monotonic_s: staticmethod[[], float] = staticmethod(time.monotonic)
    """Monotonic clock in seconds; the function itself, since it is called for each record."""

    def wall_ms(self) -> int:
        """Wall clock in milliseconds."""
        return int(time.time() * 1000)

    def sleep(self, delay_s: float) -> None:
        """Wait; ``wake`` ends the wait early."""
        if not self._stopped:
            with contextlib.suppress(queue.Empty):
                self._stops.get(timeout=delay_s)

    def wake(self) -> None:
        """End a ``sleep`` and the wait for a client, now and later; also from signal handlers."""
        self._stopped = True
        self._stops.put(None)
        leave = self._leave
        if leave is not None:
            leave()
