"""The decision log: which prepared transaction of the database is to be committed.

The decision is the commit of the Kafka transaction. It holds a note with the name (gid) of the
database's prepared transaction, under the transactional id as key, in a compacted topic. So a
prepared transaction is committed if the latest committed note names it, and else rolled back.
Before the note is read, InitProducerId has ended whatever the transactional id had open (KIP-98).

A gid begins with a digest of the cluster's id and the transactional id. Sessions of two clusters
may share a database under the same transactional id, and each must only finish its own
transactions: the decision log of the other cluster does not know them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from onceflow.sdk import Admin, ClientSettings, Consumer, ConsumerConfig, NewTopic, Producer
from onceflow.sdk.errors import ConfigError, TopicAlreadyExistsError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.settings.sources import ClientSource
from onceflow.transactions.latest_note import latest_note
from onceflow.transactions.postgres_client import (
    SQL,
    Literal,
    PostgresConnection,
    connected,
    psycopg,
)
from onceflow.transactions.sinks.sink import Steps

logger: logging.Logger = logging.getLogger("onceflow.transactions.two_phase")

TOPIC = "onceflow-decisions"
_PREFIX = "onceflow-"
_LISTED = """
SELECT gid, prepared, owner FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %s) ORDER BY prepared
"""
_IN_DOUBT = """
SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)
"""


class Decisions:
    """Names the prepared transactions of one transactional id, and finds their decisions.

    Args:
        transactional_id: The transactional id.
        clients: Settings of the Kafka clients.
        topic: The decision log; all transactional ids may share it.
    """

    def __init__(self, transactional_id: str, clients: ClientSettings, topic: str = TOPIC) -> None:
        self.prefix: str = ""  # until ``open``
        self.key: bytes = transactional_id.encode()
        self.partition: TopicPartition = TopicPartition(topic, 0)
        self._clients = clients

    def new_gid(self) -> str:
        """Return a name for a prepared transaction, at most 200 bytes as PostgreSQL wants it."""
        assert self.prefix
        return self.prefix + uuid.uuid4().hex

    def open(self) -> None:
        """Ask for the cluster's id, and make the decision log if it does not exist.

        Raises:
            ConfigError: The cluster has no id.
            KafkaError: The brokers cannot be reached, or refuse.
        """
        with Admin(config=self._clients.admin()) as admin:
            self.prefix = _prefix_of(_cluster_id(admin), self.key.decode())
            if self.partition.topic not in admin.list_topics():
                new = NewTopic(self.partition.topic, 1, configs={"cleanup.policy": "compact"})
                with contextlib.suppress(TopicAlreadyExistsError):
                    admin.create_topics([new])

    def resolve(
        self, connection: PostgresConnection, steps: Steps | None = None, *, only: str = ""
    ) -> dict[str, bool]:
        """Commit or roll back what is prepared; return what was done, True for a commit.

        The transactional id must have been initialised before.

        Args:
            connection: A connection to the database that commits each statement by itself.
            steps: Told of each that is finished, for tests.
            only: The only one to finish, for a process that may have a successor by now: the
                successor's transactions are undecided until it commits.
        """
        assert self.prefix
        told = steps or Steps(None)
        listed = connection.execute(_IN_DOUBT, (self.prefix,))
        in_doubt = [gid for (gid,) in listed if only in ("", gid)]
        if not in_doubt:
            return {}
        note = latest_note(_reading(self._clients), self.partition, self.key)
        decided = {gid: note is not None and gid.encode() == note for gid in in_doubt}
        for gid, commit in decided.items():
            logger.warning("%s: %s is %s", self.key, gid, "committed" if commit else "rolled back")
            with told("resolve"):
                finish(connection, gid, commit)
        return decided


def _cluster_id(admin: Admin) -> str:
    found = admin.describe_cluster().cluster_id
    if not found:
        raise ConfigError(
            "bootstrap_servers",
            "(as given)",
            "this cluster has no id, so its prepared transactions look like those of "
            "another cluster; use brokers that have one, as Apache Kafka has since 0.10.1",
        )
    return found


def _prefix_of(cluster_id: str, transactional_id: str) -> str:
    digest = hashlib.sha256(f"{cluster_id}\0{transactional_id}".encode()).hexdigest()[:32]
    return f"{_PREFIX}{digest}-"


def _reading(clients: ClientSettings) -> ConsumerConfig:
    return clients.consumer(
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        key_deserializer=None,
        value_deserializer=None,
    )


def finish(connection: PostgresConnection, gid: str, commit: bool) -> None:
    """Commit or roll back a prepared transaction, if that is not done.

    Args:
        connection: A connection that commits each statement by itself.
        gid: Its name.
        commit: The decision.
    """
    text = SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
    with contextlib.suppress(psycopg.errors.UndefinedObject):
        connection.execute(text.format(Literal(gid)))


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A transaction that a session has prepared in the database and not finished yet.

    Attributes:
        gid: Its name in the database.
        transactional_id: Whose it is; None if neither brokers nor decision log know the id, also
            because it belongs to another cluster.
        prepared_at: When it was prepared, by the database's clock.
        owner: The database's user.
        decided: Whether the decision log says that it is to be committed. False is final only
            when the transactional id is fenced: its process may live and commit.
    """

    gid: str
    transactional_id: str | None
    prepared_at: datetime
    owner: str
    decided: bool


def list_in_doubt(
    dsn: str,
    *,
    client: ClientSource | None = None,
    transactional_ids: Iterable[str] = (),
    topic: str = TOPIC,
) -> list[InDoubt]:
    """List the prepared transactions of a database; change and fence nothing.

    A transaction that is being committed at the moment is listed too.

    Args:
        dsn: Address of the database.
        client: Settings of the Kafka clients.
        transactional_ids: Ids that the brokers may have forgotten.
        topic: The decision log.

    Returns:
        The oldest first.
    """
    clients = ClientSettings.of(client)
    with connected(dsn, timeout_ms=10_000) as connection:
        found = connection.execute(_LISTED, (_PREFIX,)).fetchall()
    if not found:
        return []
    with Admin(config=clients.admin()) as admin:
        cluster_id = _cluster_id(admin)
        ids = {each.transactional_id for each in admin.list_transactions()}
        has_log = topic in admin.list_topics()
    notes = _all_notes(_reading(clients), TopicPartition(topic, 0)) if has_log else {}
    names = {_prefix_of(cluster_id, name): name for name in {*transactional_ids, *ids, *notes}}
    listed = []
    for gid, prepared_at, owner in found:
        name = names.get(gid.rpartition("-")[0] + "-")
        decided = name is not None and notes.get(name) == gid
        listed.append(InDoubt(gid, name, prepared_at, owner, decided))
    return listed


def _all_notes(config: ConsumerConfig, partition: TopicPartition) -> Mapping[str, str]:
    """The latest committed note of each transactional id."""
    notes: dict[str, str] = {}
    with Consumer(config=config) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning([partition])
        while consumer.position(partition) < end:
            for records in consumer.poll(1_000).values():
                for record in records:
                    key, value = cast("bytes | None", record.key), cast("bytes", record.value)
                    if key and value:
                        notes[key.decode(errors="replace")] = value.decode(errors="replace")
    return notes


def resolve_in_doubt(
    dsn: str,
    transactional_id: str,
    *,
    client: ClientSource | None = None,
    topic: str = TOPIC,
) -> dict[str, bool]:
    """Finish what a process that will not come back has left prepared, for this cluster alone.

    A process that still lives under the transactional id is fenced: its open work is aborted and
    done again.

    Args:
        dsn: Address of the database.
        transactional_id: That of the process: ``GROUP-SLOT``, unless it was given another one.
        client: Settings of the Kafka clients.
        topic: The decision log.

    Returns:
        The names of prepared transactions; True for those that were committed.
    """
    clients = ClientSettings.of(client)
    decisions = Decisions(transactional_id, clients, topic)
    decisions.open()
    Producer(config=clients.producer(transactional_id=transactional_id)).close()
    with connected(dsn, timeout_ms=10_000) as connection:
        return decisions.resolve(connection)
