"""The inbox: remembers a consumer's handled messages, in the transaction of their effects.

Producers that send at least once may send a message twice, as two records with one message id. The
inbox inserts the id in the transaction of the effects. A second record then finds the id, or waits
for the end of the first one's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.transactions.postgres_client import (
    SQL,
    Composed,
    Identifier,
    PostgresConnection,
    identifier,
    psycopg,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

ID_HEADER = "message-id"
"""Header in which the relay of the outbox, and other producers, give a message its id."""

_MAKE = """
CREATE TABLE IF NOT EXISTS {table} (
    group_id text NOT NULL, message_id bytea NOT NULL, seen timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, message_id)
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (seen)
"""
_ADD = """
INSERT INTO {table} (group_id, message_id)
SELECT %s, message_id FROM unnest(%s::bytea[]) AS new (message_id) ORDER BY message_id
ON CONFLICT DO NOTHING RETURNING message_id
"""
_FORGET = """
DELETE FROM {table} WHERE group_id = %s AND seen < now() - make_interval(secs => %s)
"""


class Inbox:
    """Remembers the messages of a consumer in a table of PostgreSQL.

    ::

        inbox = Inbox("billing")
        with psycopg.connect(DSN) as connection:
            if inbox.first(connection, message_id_of(record)):
                connection.execute("UPDATE accounts ...")

    Args:
        group_id: Name of the consumer; consumers with other names handle the same messages too.
        table: Name of the table.
        id_header: Header with the id of a message.

    Attributes:
        table: The table, as part of a statement.

    Raises:
        ConfigError: A name is empty.
    """

    def __init__(
        self, group_id: str, table: str = "onceflow_inbox", id_header: str = ID_HEADER
    ) -> None:
        for field, value in (("group_id", group_id), ("id_header", id_header)):
            if not isinstance(value, str) or not value:
                raise ConfigError(field, value, "must be a name that is not empty")
        self._group_id = group_id
        self.table: Identifier = identifier("table", table)
        self._index = identifier("table", f"{table.rpartition('.')[2]}_seen")
        self._id_header = id_header

    def make(self, connection: PostgresConnection) -> None:
        """Make the table, if it does not exist.

        Args:
            connection: A connection whose role may make tables.
        """
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('onceflow_inbox'))")
            connection.execute(SQL(_MAKE).format(table=self.table, index=self._index))

    def id_of(self, record: AnyRecord) -> bytes:
        """Return the id of a record's message.

        Args:
            record: A polled record.

        Raises:
            ConfigError: It has no such header.
        """
        for name, value in reversed(record.headers):
            if name == self._id_header and value:
                return bytes(value)
        raise ConfigError(
            "id_header",
            self._id_header,
            f"{record.topic}-{record.partition} offset {record.offset} has no such header; its "
            "producer must give each message an id",
        )

    def first(self, connection: PostgresConnection, message_id: bytes) -> bool:
        """Mark a message as handled, within the connection's open transaction.

        Args:
            connection: The connection on which the message's effects are written.
            message_id: Its id.

        Returns:
            True if it was not handled before; False for a repetition. If another transaction
            handles the same message now, the call waits for its end.

        Raises:
            IllegalStateError: The connection commits each statement by itself.
        """
        return bool(self.new(connection, [message_id]))

    def new(self, connection: PostgresConnection, message_ids: Iterable[bytes]) -> set[bytes]:
        """Mark messages as handled, within the open transaction; return those that were not before.

        Args:
            connection: The connection on which their effects are written.
            message_ids: Their ids.

        Raises:
            IllegalStateError: The connection commits each statement by itself.
        """
        self._check(connection.autocommit, connection.info.transaction_status)
        found = connection.execute(self._add(), self._place(message_ids)).fetchall()
        return {bytes(message_id) for (message_id,) in found}

    async def first_async(self, connection: AsyncConnection[TupleRow], message_id: bytes) -> bool:
        """Mark a message as handled, over an asyncio connection; see ``first``.

        Args:
            connection: The connection on which the message's effects are written.
            message_id: Its id.

        Raises:
            IllegalStateError: The connection commits each statement by itself.
        """
        self._check(connection.autocommit, connection.info.transaction_status)
        cursor = await connection.execute(self._add(), self._place([message_id]))
        return await cursor.fetchone() is not None

    def forget(self, connection: PostgresConnection, older_than_s: float) -> int:
        """Delete old message ids; return how many.

        Args:
            connection: A connection.
            older_than_s: Age in seconds, after which no producer repeats a message.

        Raises:
            ConfigError: The age is negative.
        """
        if older_than_s < 0:
            raise ConfigError("older_than_s", older_than_s, "must be 0 or more")
        text = SQL(_FORGET).format(table=self.table)
        return connection.execute(text, (self._group_id, older_than_s)).rowcount

    def _add(self) -> Composed:
        return SQL(_ADD).format(table=self.table)

    def _place(self, message_ids: Iterable[bytes]) -> tuple[str, Sequence[bytes]]:
        listed = list(message_ids)
        for each in listed:
            if not isinstance(each, bytes) or not each:
                raise ConfigError("message_id", each, "must be bytes that are not empty")
        return self._group_id, listed

    def _check(self, autocommit: bool, status: psycopg.pq.TransactionStatus) -> None:
        if autocommit and status == psycopg.pq.TransactionStatus.IDLE:
            raise IllegalStateError(
                "the inbox outside of a transaction would note a message whose effects may be "
                "lost; use 'with connection.transaction():'"
            )
