"""The outbox's table: services put records into it in their own transactions.

Ids have the order of insertion, not of commits. A row with a lower id may become visible after one
with a higher id, so a reader must not continue from the highest id; the relay takes all visible
rows and deletes them. This keeps the order of records of one key: a transaction that changes the
same row waits for the earlier one (a row lock) and inserts afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceflow.sdk.errors import ConfigError, IllegalStateError, RecordError
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.transactions.postgres_client import (
    SQL,
    Composed,
    Identifier,
    Literal,
    PostgresConnection,
    identifier,
    psycopg,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

    from onceflow.transactions.sinks.ledger import Letter

_MAKE = """
CREATE TABLE IF NOT EXISTS {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL, key bytea, value bytea,
    header_names text[] NOT NULL DEFAULT '{{}}', header_values bytea[] NOT NULL DEFAULT '{{}}',
    "partition" integer, timestamp_ms bigint
);
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify(TG_ARGV[0], ''); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}({channel})
"""
_PUT = """
INSERT INTO {table} (topic, key, value, header_names, header_values, "partition", timestamp_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
_NAMED = "onceflow_outbox_notify"


class OutboxRowError(RecordError):
    """A row of the outbox cannot be sent; it stays in the table, and later rows wait.

    Attributes:
        row_id: The row's id.
    """

    def __init__(self, message: str, row_id: int) -> None:
        super().__init__(message)
        self.row_id = row_id

    def __reduce__(self) -> tuple[type[OutboxRowError], tuple[str, int], dict[str, object]]:
        return type(self), (str(self), self.row_id), self.__dict__


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row of the outbox: one record to send.

    Attributes:
        id: Its id in the table.
        topic: Topic to send it to.
        key: Key, which chooses the partition if none is given.
        value: Value.
        header_names: Names of its headers.
        header_values: Their values.
        partition: Partition; None to choose by key.
        timestamp_ms: Timestamp; None for that of sending.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    header_names: Sequence[str] = ()
    header_values: Sequence[bytes | None] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Outbox:
    """A table of records that are sent once the transaction that put them there has committed.

    ::

        outbox = Outbox()
        with psycopg.connect(DSN) as connection:
            connection.execute("INSERT INTO orders ...")
            outbox.put(connection, "orders", b"...", key=b"7")

    Args:
        table: Name of the table, such as ``onceflow_outbox`` or ``shop.outbox``.

    Raises:
        ConfigError: The name has an empty part, or more than two.
    """

    def __init__(self, table: str = "onceflow_outbox") -> None:
        self.name: str = table
        self.table: Identifier = identifier("table", table)

    @property
    def channel(self) -> str:
        """The channel on which the table's trigger notifies of new rows."""
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        return f"onceflow_{digest[:32]}"  # a channel's name has at most 63 bytes

    def make(self, connection: PostgresConnection) -> None:
        """Make table and trigger, if they do not exist.

        Args:
            connection: A connection whose role may make tables and functions.
        """
        schema = self.name.rpartition(".")[0]
        function = Identifier(*filter(None, (schema, _NAMED)))
        text = SQL(_MAKE).format(
            table=self.table,
            function=function,
            trigger=Identifier(_NAMED),
            channel=Literal(self.channel),
        )
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.channel,))
            connection.execute(text)

    def put(
        self,
        connection: PostgresConnection,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Insert a record within the connection's open transaction.

        Args:
            connection: The service's connection.
            topic: Topic to send it to.
            value: Value as bytes; None for a tombstone.
            key: Key as bytes; records of one key are sent in the order of their insertion.
            headers: Names and values.
            partition: Partition; None to choose by key.
            timestamp_ms: Timestamp; None for that of sending.

        Raises:
            IllegalStateError: The connection commits each statement by itself.
            ConfigError: A field is not what the relay could send.
            InvalidTopicError: No broker takes the topic's name.
        """
        self._check(connection.autocommit, connection.info.transaction_status)
        row = checked_row(topic, value, key, headers, partition, timestamp_ms)
        connection.execute(self._put(), row)

    async def put_async(
        self,
        connection: AsyncConnection[TupleRow],
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Insert a record within the open transaction of an asyncio connection; see ``put``.

        Args:
            connection: The service's connection.
            topic: Topic to send it to.
            value: Value as bytes; None for a tombstone.
            key: Key as bytes.
            headers: Names and values.
            partition: Partition; None to choose by key.
            timestamp_ms: Timestamp; None for that of sending.

        Raises:
            IllegalStateError: The connection commits each statement by itself.
            ConfigError: A field is not what the relay could send.
        """
        self._check(connection.autocommit, connection.info.transaction_status)
        row = checked_row(topic, value, key, headers, partition, timestamp_ms)
        await connection.execute(self._put(), row)

    def put_letters(self, connection: PostgresConnection, letters: Sequence[Letter]) -> None:
        """Insert dead letters within the connection's open transaction, as ``put`` does.

        Args:
            connection: The sink's connection.
            letters: The dead letters.
        """
        rows = [
            checked_row(each.topic, each.value, each.key, each.headers, None, each.timestamp_ms)
            for each in letters
        ]
        with connection.cursor() as cursor:
            cursor.executemany(self._put(), rows)

    def _put(self) -> Composed:
        return SQL(_PUT).format(table=self.table)

    def _check(self, autocommit: bool, status: psycopg.pq.TransactionStatus) -> None:
        if autocommit and status == psycopg.pq.TransactionStatus.IDLE:
            raise IllegalStateError(
                "put() outside of a transaction: the record would be sent though the rows that it "
                "tells of are not committed; use 'with connection.transaction():'"
            )

    def statement(self, text: str) -> Composed:
        """Return a statement about this table, ``{table}`` and ``{channel}`` in it.

        Args:
            text: The statement.
        """
        return SQL(text).format(table=self.table, channel=Identifier(self.channel))


def checked_row(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    partition: int | None,
    timestamp_ms: int | None,
) -> tuple[object, ...]:
    """Return the columns of a row, refusing what the relay could not send.

    Raises:
        ConfigError: A field has the wrong type or value.
        InvalidTopicError: No broker takes the topic's name.
    """
    check_topic_name(topic)
    listed = list(headers)
    for field, data in (("key", key), ("value", value), *((f"header {n!r}", v) for n, v in listed)):
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError(field, data, "must be bytes or None, such as JSON.serialize(value)")
    for name, _ in listed:
        if not isinstance(name, str):
            raise ConfigError("headers", name, "the name of a header must be a string")
    for field, number in (("partition", partition), ("timestamp_ms", timestamp_ms)):
        if number is not None and (not isinstance(number, int) or number < 0):
            raise ConfigError(field, number, "must be None, 0 or more")
    names, values = [name for name, _ in listed], [data for _, data in listed]
    return topic, key, value, names, values, partition, timestamp_ms
