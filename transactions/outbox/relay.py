"""The relay: sends the rows of an outbox to topics, each once, and deletes them.

It handles one batch at a time: it reads rows, sends them and a note of their ids in one Kafka
transaction, commits that, and deletes the rows. If it dies between commit and deletion, the note
shows which rows were sent. It calls InitProducerId before it reads the note, so that no earlier
relay can commit after that (KIP-98). Of several relays with one name one works; the others wait for
its lock in the database and take over when its connection ends. The lock only avoids needless
fences: each row is sent once also without it.

NOTIFY wakes the relay when a transaction with new rows commits; it also looks every
``poll_interval_ms``.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from onceflow.sdk import Admin, ClientSettings, NewTopic, Producer
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    KafkaError,
    ProducerFencedError,
    TopicAlreadyExistsError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.settings.sources import ClientSource
from onceflow.transactions.abort_reasons import AbortReason, Reaction, judge
from onceflow.transactions.errors import TransactionalIdInUseError
from onceflow.transactions.fencing import FenceWatch
from onceflow.transactions.latest_note import latest_note
from onceflow.transactions.outbox import progress
from onceflow.transactions.outbox.inbox import ID_HEADER
from onceflow.transactions.outbox.table import Outbox, OutboxRow, OutboxRowError
from onceflow.transactions.postgres_client import (
    PostgresConnection,
    checked_dsn,
    connected,
    is_passing,
    psycopg,
)
from onceflow.transactions.sinks.sink import Observer, Steps

if TYPE_CHECKING:
    from onceflow.sdk.settings.keywords import ClientKeywords

logger: logging.Logger = logging.getLogger("onceflow.transactions.outbox")

# The first row is always returned; further ones as long as the sum of sizes is below the limit.
_READ = """
SELECT id, topic, key, value, header_names, header_values, "partition", timestamp_ms FROM (
    SELECT *, sum(size) OVER (ORDER BY id) - size AS before FROM (
        SELECT *, coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS size
        FROM {table} ORDER BY id LIMIT %s
    ) AS first
) AS summed WHERE before < %s ORDER BY id
"""
_DELETE = "DELETE FROM {table} WHERE id = ANY(%s)"
_LOCK = "SELECT pg_try_advisory_lock(hashtext('onceflow-outbox'), hashtext(%s))"
_LONGEST_PAUSE_S = 5.0
_LOOK_S = 0.25
"""Longest time until a relay that waits for rows notices ``stop``."""


@dataclass(slots=True)
class RelayFigures:
    """What a relay has done, for those who watch it from another thread.

    Attributes:
        is_working: Whether it holds the lock and its producer is made. False while another relay
            of its name works, and while database or brokers are away.
        is_standing_by: Whether another relay of its name works.
        rows: Rows that were sent.
        batches: Kafka transactions that were committed.
        failures: How often it began again.
        error: Why it began again the last time; empty before.
        beat_s: Monotonic time at which its loop last went round.
    """

    is_working: bool = False
    is_standing_by: bool = False
    rows: int = 0
    batches: int = 0
    failures: int = 0
    error: str = ""
    beat_s: float = field(default_factory=time.monotonic)


class OutboxRelay:
    """Sends the rows of an outbox to topics, each once, in the order of their keys.

    ::

        with OutboxRelay(DSN, bootstrap_servers="localhost:9092") as relay:
            relay.run()  # until stop() is called in another thread or a signal handler

    Readers need ``isolation_level="read_committed"``. Each record gets the header ``message-id``,
    for readers that cannot do that (see ``Inbox``).

    Args:
        dsn: Address of the database.
        outbox: The table.
        name: Name of the relay. It makes the transactional id and the topic
            ``onceflow-outbox-NAME`` of its notes, so each outbox needs one of its own.
        batch_rows: Most rows of one Kafka transaction.
        batch_bytes: Most bytes of keys and values of one; a single larger row goes alone.
        poll_interval_ms: Time between two looks for rows without a notification.
        failover_ms: After this time of silence the database ends a relay's connection (for example
            of a process that was stopped), and another relay takes over.
        client: Settings of the Kafka clients.
        observer: Called at each step, for tests.
        **settings: Settings of the Kafka clients by name, which win.

    Raises:
        ConfigError: A setting cannot work.
    """

    def __init__(
        self,
        dsn: str,
        outbox: Outbox | None = None,
        *,
        name: str = "outbox",
        batch_rows: int = 500,
        batch_bytes: int = 4_000_000,
        poll_interval_ms: int = 1_000,
        failover_ms: int = 30_000,
        client: ClientSource | None = None,
        observer: Observer | None = None,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        for setting, value in (
            ("batch_rows", batch_rows),
            ("batch_bytes", batch_bytes),
            ("poll_interval_ms", poll_interval_ms),
        ):
            if value <= 0:
                raise ConfigError(setting, value, "must be positive")
        if failover_ms < 2 * poll_interval_ms:
            remedy = f"must be at least twice poll_interval_ms ({poll_interval_ms})"
            raise ConfigError("failover_ms", failover_ms, remedy)
        self._dsn = checked_dsn(dsn)
        self._outbox = outbox or Outbox()
        self._name = name
        self._notes = TopicPartition(f"onceflow-outbox-{name}", 0)
        self._limits = (batch_rows, batch_bytes)
        self._poll_s = poll_interval_ms / 1000
        self._failover_ms = failover_ms
        self._clients = ClientSettings.of(client).updated(settings)
        # Made here, so that a wrong setting raises its error here.
        self._producer_config = self._clients.producer(transactional_id=self._notes.topic)
        self._steps = Steps(observer)
        self._stopping = threading.Event()
        self._connection: PostgresConnection | None = None
        self._producer: Producer | None = None
        self._notified = False
        self._fences = FenceWatch(60.0, limit=3)
        self.figures: RelayFigures = RelayFigures()

    # Life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stop(self) -> None:
        """Make ``run`` return after the present batch; may be called from anywhere."""
        self._stopping.set()

    def close(self) -> None:
        """Let go of the lock and close connection and producer."""
        self._stopping.set()
        self._let_go(timeout_ms=5_000)

    def run(self, *, until_empty: bool = False) -> int:
        """Relay until ``stop`` is called; return how many rows were sent.

        Lost connections and fences are logged, and the relay begins again.

        Args:
            until_empty: Return when the table was empty.

        Raises:
            OutboxRowError: A row cannot be sent. It stays in the table, and so do later rows.
            TransactionalIdInUseError: A relay of this name works for another database.
            ConfigError: The table is missing, or the topic of the notes holds something else.
            KafkaError: The brokers refuse what will not be right by itself, such as a missing
                topic or right.
        """
        sent, failures, figures = 0, 0, self.figures
        while not self._stopping.is_set():
            figures.beat_s = time.monotonic()
            try:
                if self._producer is None:
                    figures.is_working = self._take_over()
                    figures.is_standing_by = not figures.is_working
                if figures.is_standing_by:
                    self._wait()
                    continue
                batch = self._relay_batch()
                if not batch and not until_empty:
                    self._wait()
            except (KafkaError, psycopg.Error) as error:
                figures.is_working = figures.is_standing_by = False
                figures.error = " ".join(str(error).split())
                self._let_go(timeout_ms=1_000)
                self._check_passing(error)
                failures += 1
                figures.failures += 1
                logger.warning("relay %s begins again: %s", self._name, error)
                self._stopping.wait(min(0.1 * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S))
                continue
            except BaseException:
                # Such as a signal's: the batch may be committed. The next run reads its note.
                figures.is_working = figures.is_standing_by = False
                self._let_go(timeout_ms=1_000)
                raise
            failures = 0
            sent += batch
            figures.rows += batch
            figures.batches += batch > 0
            if not batch and until_empty:
                break
        return sent

    def _check_passing(self, error: Exception) -> None:
        """Raise errors after which beginning again would not help.

        Raises:
            KafkaError: The error.
            ConfigError: The database refuses what the relay does.
            TransactionalIdInUseError: Fences follow each other.
        """
        if isinstance(error, psycopg.Error):
            if is_passing(error):
                return
            told = " ".join(str(error).split())
            remedy = f"the database refuses: {told}; make the table by Outbox.make()"
            raise ConfigError("outbox", self._outbox.name, remedy) from error
        verdict = judge(error)
        fenced = verdict.reason in (AbortReason.FENCED, AbortReason.INVALID_EPOCH)
        if fenced and self._fences.fenced(time.monotonic()):
            raise TransactionalIdInUseError(
                f"transactional id {self._notes.topic!r} is shared: a relay of the name "
                f"{self._name!r} works for another database. Give each its own name"
            ) from error
        unknown = isinstance(error, CommitOutcomeUnknownError | ProducerFencedError)
        if not unknown and verdict.reaction is Reaction.RAISE:
            raise error

    def _let_go(self, timeout_ms: int) -> None:
        producer, self._producer = self._producer, None
        connection, self._connection = self._connection, None
        if producer is not None:
            # A commit without an answer is settled by the next InitProducerId.
            with contextlib.suppress(KafkaError):
                producer.close(timeout_ms=timeout_ms)
        if connection is not None:
            connection.close()

    # Taking over ---------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Become the relay that works, unless another one is; finish what the last one began."""
        connection = self._connected()
        self._notified = False  # Else a relay that stands by would try again without a pause.
        found = connection.execute(_LOCK, (self._name,)).fetchone()
        if found is None or not found[0]:
            return False
        self._make_notes_topic()
        # From here on, every transaction of an earlier relay is committed or aborted.
        producer = Producer(config=self._producer_config)
        try:
            # Their transaction is committed, so these rows were sent.
            with self._steps("finish"):
                self._delete(connection, self._last_note())
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        self._producer = producer
        return True

    def _connected(self) -> PostgresConnection:
        if self._connection is None or self._connection.closed:
            connection = connected(self._dsn, timeout_ms=10_000)
            self._connection = connection
            connection.add_notify_handler(self._on_notification)
            connection.execute(f"SET idle_session_timeout = {int(self._failover_ms)}")
            connection.execute(self._outbox.statement("LISTEN {channel}"))
        return self._connection

    def _on_notification(self, _: object) -> None:
        self._notified = True

    def _make_notes_topic(self) -> None:
        with Admin(config=self._clients.admin()) as admin:
            if self._notes.topic in admin.list_topics():
                return
            compacted = {"cleanup.policy": "compact"}
            with contextlib.suppress(TopicAlreadyExistsError):
                admin.create_topics([NewTopic(self._notes.topic, 1, configs=compacted)])

    def _last_note(self) -> list[int]:
        """Return the ids of the latest committed batch, whose rows may still be in the table."""
        config = self._clients.consumer(
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            key_deserializer=None,
            value_deserializer=None,
        )
        note = latest_note(config, self._notes, progress.KEY)
        return progress.decoded(note) if note else []

    # Batches -------------------------------------------------------------------------------

    def _relay_batch(self) -> int:
        """Send the present rows and delete them; return how many."""
        connection, producer = self._connected(), self._producer
        assert producer is not None, "the relay has no producer"
        self._notified = False
        with self._steps("read"):
            text = self._outbox.statement(_READ)
            rows = [OutboxRow(*row) for row in connection.execute(text, self._limits)]
        if not rows:
            return 0
        ids = [row.id for row in rows]
        with self._steps("send"):
            producer.begin_transaction()
            self._send(producer, rows)
            producer.send(self._notes.topic, progress.encoded(ids), key=progress.KEY, partition=0)
        with self._steps("commit"):
            producer.commit_transaction()
        with self._steps("delete"):
            self._delete(connection, ids)
        return len(rows)

    def _send(self, producer: Producer, rows: Sequence[OutboxRow]) -> None:
        """Send rows and wait for their acknowledgement.

        Raises:
            OutboxRowError: The brokers, or the producer, refuse one.
        """
        deliveries = []
        for row in rows:
            with _told(row):
                headers = list(zip(row.header_names, row.header_values, strict=True))
                if not any(name == ID_HEADER for name, _ in headers):
                    headers.append((ID_HEADER, f"{self._name}-{row.id}".encode()))
                delivery = producer.send(
                    row.topic,
                    row.value,
                    key=row.key,
                    headers=headers,
                    partition=row.partition,
                    timestamp_ms=row.timestamp_ms,
                )
            deliveries.append((row, delivery))
        for row, delivery in deliveries:
            with _told(row):
                delivery.result()

    def _delete(self, connection: PostgresConnection, ids: Sequence[int]) -> None:
        if ids:
            connection.execute(self._outbox.statement(_DELETE), (list(ids),))

    def _wait(self) -> None:
        """Wait for a notification, or until it is time to look again."""
        end = time.monotonic() + self._poll_s
        arriving = select.poll()
        arriving.register(self._connected().fileno(), select.POLLIN)
        while not self._notified and not self._stopping.is_set():
            left_s = end - time.monotonic()
            # The next statement takes in what has arrived, or finds the connection lost.
            if left_s <= 0 or arriving.poll(min(left_s, _LOOK_S) * 1000):
                return


@contextlib.contextmanager
def _told(row: OutboxRow) -> Iterator[None]:
    """Name the row that cannot be sent.

    Raises:
        OutboxRowError: The row is refused for what it is.
    """
    try:
        yield
    except KafkaError as error:
        if judge(error).reaction is not Reaction.RAISE:
            raise
        raise OutboxRowError(
            f"outbox row {row.id} for topic {row.topic}: {error}. It stays in the table and holds "
            f"up later rows; correct it or delete it (DELETE ... WHERE id = {row.id})",
            row.id,
        ) from error
