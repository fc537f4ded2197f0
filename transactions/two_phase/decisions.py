"""The decision log: which prepared transaction of the database is to be committed.

The decision is the commit of the Kafka transaction. It holds a note with the name (gid) of the
database's prepared transaction, under the transactional id as key, in a compacted topic. So a
prepared transaction is committed if the latest committed note names it, and else rolled back.
Before the note is read, InitProducerId has ended whatever the transactional id had open (KIP-98).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid

from onceflow.sdk import Admin, ClientSettings, NewTopic, Producer
from onceflow.sdk.errors import TopicAlreadyExistsError
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

logger: logging.Logger = logging.getLogger("onceflow.transactions.two_phase")

TOPIC = "onceflow-decisions"
_IN_DOUBT = """
SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)
"""


class Decisions:
    """Names prepared transactions of one transactional id, and tells what was decided of them.

    Args:
        transactional_id: Whose transactions.
        clients: Settings of the Kafka clients.
        topic: The decision log; all transactional ids may share it.
    """

    def __init__(self, transactional_id: str, clients: ClientSettings, topic: str = TOPIC) -> None:
        digest = hashlib.sha256(transactional_id.encode()).hexdigest()[:32]
        self.prefix: str = f"onceflow-{digest}-"
        self.key: bytes = transactional_id.encode()
        self.partition: TopicPartition = TopicPartition(topic, 0)
        self._clients = clients

    def new_gid(self) -> str:
        """Return a name for a prepared transaction, at most 200 bytes as PostgreSQL wants it."""
        return self.prefix + uuid.uuid4().hex

    def make_topic(self) -> None:
        """Make the decision log, unless it is there."""
        with Admin(config=self._clients.admin()) as admin:
            if self.partition.topic not in admin.list_topics():
                new = NewTopic(self.partition.topic, 1, configs={"cleanup.policy": "compact"})
                with contextlib.suppress(TopicAlreadyExistsError):
                    admin.create_topics([new])

    def resolve(self, connection: PostgresConnection) -> dict[str, bool]:
        """Commit or roll back what is prepared; return what was done, True for a commit.

        The transactional id must have been initialised before.

        Args:
            connection: A connection to the database that commits each statement by itself.
        """
        in_doubt = [gid for (gid,) in connection.execute(_IN_DOUBT, (self.prefix,))]
        if not in_doubt:
            return {}
        config = self._clients.consumer(
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            key_deserializer=None,
            value_deserializer=None,
        )
        note = latest_note(config, self.partition, self.key)
        decided = {gid: note is not None and gid.encode() == note for gid in in_doubt}
        for gid, commit in decided.items():
            logger.warning("%s: %s is %s", self.key, gid, "committed" if commit else "rolled back")
            finish(connection, gid, commit)
        return decided


def finish(connection: PostgresConnection, gid: str, commit: bool) -> None:
    """Commit or roll back a prepared transaction, unless somebody has done so.

    Args:
        connection: A connection that commits each statement by itself.
        gid: Its name.
        commit: The decision.
    """
    text = SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
    with contextlib.suppress(psycopg.errors.UndefinedObject):
        connection.execute(text.format(Literal(gid)))


def resolve_in_doubt(
    dsn: str,
    transactional_id: str,
    *,
    client: ClientSource | None = None,
    topic: str = TOPIC,
) -> dict[str, bool]:
    """Finish what a process that will not come back has left prepared.

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
    decisions.make_topic()
    Producer(config=clients.producer(transactional_id=transactional_id)).close()
    with connected(dsn, timeout_ms=10_000) as connection:
        return decisions.resolve(connection)
