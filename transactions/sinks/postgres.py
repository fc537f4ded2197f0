"""A sink that copies rows into a table of PostgreSQL, with the offsets in the same database.

Each batch is one transaction. It first locks the offsets' rows (``SELECT ... FOR UPDATE``): a claim
waits for the end of a running write, and a write after the claim finds another owner. Rows are
inserted by ``COPY``; with a key, into a temporary table and from there by ``ON CONFLICT``, or
straight into the table if all their keys are above the stored ones.
Needs psycopg 3 (``pip install 'onceflow[postgres]'``).

https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self, cast

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.outbox.inbox import Inbox
from onceflow.transactions.outbox.table import Outbox
from onceflow.transactions.postgres_client import (
    SQL,
    Composed,
    Cut,
    Identifier,
    Literal,
    PostgresConnection,
    checked_dsn,
    connected,
    cut_after,
    identifier,
    is_passing,
    psycopg,
)
from onceflow.transactions.sinks import copy_text, ledger
from onceflow.transactions.sinks.columns import by_column, runs
from onceflow.transactions.sinks.errors import (
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries, Entry, Row
from onceflow.transactions.sinks.sink import Observer, Steps

_LEDGER = """
CREATE TABLE IF NOT EXISTS {ledger} (
    group_id text NOT NULL, topic text NOT NULL, "partition" integer NOT NULL,
    next_offset bigint, owner text NOT NULL, epoch bigint NOT NULL, topic_id text NOT NULL,
    PRIMARY KEY (group_id, topic, "partition")
)
"""
_WANTED = 'unnest(%s::text[], %s::integer[]) AS wanted (topic, "partition")'
_READ = f"""
SELECT topic, "partition", owner, epoch, next_offset, topic_id
FROM {{ledger}} AS stored JOIN {_WANTED} USING (topic, "partition") WHERE group_id = %s
"""
_LOCK = _READ + 'ORDER BY topic, "partition" FOR UPDATE OF stored'
_ADD = f"""
INSERT INTO {{ledger}} SELECT %s, topic, "partition", NULL, '', 0, ''
FROM {_WANTED} ORDER BY topic, "partition" ON CONFLICT DO NOTHING
"""
_STORE = """
UPDATE {ledger} AS stored SET next_offset = new.next_offset, owner = new.owner, epoch = new.epoch,
    topic_id = new.topic_id
FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])
    AS new (topic, "partition", next_offset, owner, epoch, topic_id)
WHERE stored.group_id = %s AND (stored.topic, stored."partition") = (new.topic, new."partition")
"""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {}"
_STAGE = "CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS SELECT * FROM {} WITH NO DATA"
_STAGED = Identifier("pg_temp", "onceflow_rows")
_UPSERT = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage} ON CONFLICT ({key}) DO {action}
"""
# The last row of a key wins: in a newly filled table, ctid rises with the order of rows.
_UPSERT_LAST = """
INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {stage}
ORDER BY {key}, ctid DESC ON CONFLICT ({key}) DO {action}
"""
_INTEGERS = """
SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = ANY(%s)
    AND atttypid = ANY('{int2,int4,int8}'::regtype[])
"""


_APPENDED_ROWS_MIN = 500
"""Fewer rows are not worth the two further round trips."""


class Postgres:
    """Stores rows in a table of PostgreSQL.

    The table must exist; offsets are kept in the table ``onceflow_offsets`` of its schema. The role
    needs INSERT on the table (with a key SELECT and UPDATE too, and TEMPORARY on the database), and
    CREATE on the schema where ``onceflow_offsets``, inbox or outbox do not exist yet. Connect
    directly or through a pool in session mode: temporary tables belong to a connection.

    Args:
        dsn: Address of the database, as a URI or as ``key=value`` pairs of libpq.
        table: Table that takes the rows, such as ``orders`` or ``shop.orders``; None for offsets
            alone, as for ``Http``.
        key: Columns of a unique key: a row replaces the other columns of one with the same key.
            Without it rows are only inserted.
        inbox: Drops the rows of messages that it has seen, for producers that send at least once.
            ``write`` then needs the record of each row, and the record a message id.
        outbox: Table that takes the dead letters of an application, in the transaction of rows and
            offsets. An ``OutboxRelay`` sends them to their topics, each once. It is made if it does
            not exist.
        timeout_ms: Limit of each claim and write, including the wait for other transactions.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The address cannot be read, a name is empty, the key is a string, or the
            timeout is not positive.
        ImportError: psycopg is not installed.
    """

    def __init__(
        self,
        dsn: str,
        table: str | None = None,
        *,
        key: Sequence[str] = (),
        inbox: Inbox | None = None,
        outbox: Outbox | None = None,
        timeout_ms: int = 5_000,
        observer: Observer | None = None,
    ) -> None:
        if isinstance(key, str):
            raise ConfigError("key", key, f"must be a sequence of columns, such as [{key!r}]")
        if timeout_ms <= 0:
            raise ConfigError("timeout_ms", timeout_ms, "must be positive; 5000 is the default")
        if "" in key or (key and table is None):
            raise ConfigError("key", list(key), "the names of table and columns must not be empty")
        self._dsn = checked_dsn(dsn)
        self._use_table(table)
        self._key = tuple(key)
        self._integer_key = False
        self._appends = True
        self._inbox = inbox
        self._outbox = outbox
        self.needs_records: bool = inbox is not None
        self.keeps_letters: bool = outbox is not None
        self._timeout_ms = timeout_ms
        self._steps = Steps(observer)
        self._group_id = ""
        self._connection: PostgresConnection | None = None

    def _use_table(self, table: str | None) -> None:
        self._rows = table is not None
        self._name = "onceflow_offsets" if table is None else table
        self._table = identifier("table", self._name)
        schema = self._name.rpartition(".")[0]
        self._ledger = identifier("table", f"{schema}.onceflow_offsets".lstrip("."))

    @property
    def needs_table(self) -> bool:
        """Whether it keeps offsets alone, because it names no table."""
        return not self._rows

    def copy(self, table: str | None = None) -> Self:
        """Return an unopened sink like this one.

        Args:
            table: Table of the copy, if this sink names none.
        """
        made = copy.copy(self)
        made._connection, made._group_id = None, ""
        if table is not None and not self._rows:
            made._use_table(table)
        return made

    # Life ----------------------------------------------------------------------------------

    def open(self, group_id: str) -> None:
        """Connect, and make the ledger's table.

        Args:
            group_id: The consumer group.

        Raises:
            ConfigError: The database has no such table, the table no such key, or the role may
                not use them.
            SinkUnavailableError: The database cannot be reached.
        """
        self._group_id = group_id
        connection = self._connect()
        try:
            with self._bounded(connection):
                if self._rows:
                    self._check_table(connection)
                self._make_ledger(connection)
                if self._inbox is not None and not self._exists(connection, self._inbox.table):
                    self._inbox.make(connection)
                if self._outbox is not None and not self._exists(connection, self._outbox.table):
                    self._outbox.make(connection)
            self._make_stage(connection)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> PostgresConnection:
        self._check_open()
        self._disconnect()
        try:
            self._connection = connected(self._dsn, self._timeout_ms)
        except psycopg.OperationalError as error:
            raise SinkUnavailableError(f"{self._name}: {error}; nothing was stored") from error
        return self._connection

    def _check_table(self, connection: PostgresConnection) -> None:
        """Have PostgreSQL check table and key by planning an insert, which is not run.

        Raises:
            ConfigError: They do not fit.
        """
        text = SQL("EXPLAIN INSERT INTO {} DEFAULT VALUES").format(self._table)
        if self._key:
            text += SQL(" ON CONFLICT ({}) DO NOTHING").format(_listed(self._key))
        try:
            connection.execute(text)
        except psycopg.errors.UndefinedTable as error:
            remedy = "the database has no such table; make it, or name its schema"
            raise ConfigError("table", self._name, f"{remedy} ({_line(error)})") from error
        except psycopg.errors.ProgrammingError as error:
            if is_passing(error) or not self._key:
                raise
            remedy = f"must be columns of {self._name} with a unique index over exactly them"
            raise ConfigError("key", list(self._key), f"{remedy} ({_line(error)})") from error
        if self._key:
            place = (self._table.as_string(connection), list(self._key))
            found = connection.execute(_INTEGERS, place).fetchone()
            self._integer_key = found is not None and found[0] == len(self._key)

    def _make_ledger(self, connection: PostgresConnection) -> None:
        if not self._exists(connection, self._ledger):
            name = self._ledger.as_string(connection)
            # Without the lock, two sessions that make the table at once get an error.
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
                connection.execute(self._text(_LEDGER))

    def _exists(self, connection: PostgresConnection, table: Identifier) -> bool:
        name = table.as_string(connection)
        found = connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()
        return found is not None and found[0] is not None

    def _make_stage(self, connection: PostgresConnection) -> None:
        """Make this connection's temporary table, which is emptied at each commit."""
        if self._key:
            with self._bounded(connection):
                connection.execute(SQL(_STAGE).format(_STAGED, self._table))

    def close(self) -> None:
        """See ``Sink.close``."""
        self._group_id = ""
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Claims and writes ---------------------------------------------------------------------

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``."""
        # A new connection: the server ends the old one's transaction, and the lock below waits for
        # that, so the entries show how it ended.
        self._make_stage(self._connect())
        with self._transaction(self._timeout_ms) as connection:
            topics, numbers = _columns(partitions)
            connection.execute(self._text(_ADD), (self._group_id, topics, numbers))
            claimed = ledger.claim(
                self._read(connection, _LOCK, partitions), partitions, owner, topic_ids
            )
            self._store(connection, claimed)
        return claimed

    def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``."""
        connection = self._connected()
        with self._bounded(connection):
            return self._read(connection, _READ, partitions)

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``."""
        limit_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        with self._transaction(limit_ms) as connection:
            with self._steps("offsets read"):
                found = self._read(connection, _LOCK, list(batch.moves))
                advanced = ledger.advance(found, batch)
            with self._steps("rows"):
                self._insert(connection, self._new_rows(connection, batch))
            if batch.letters:
                assert self._outbox is not None
                with self._steps("letters"):
                    self._outbox.put_letters(connection, batch.letters)
            with self._steps("offsets"):
                self._store(connection, advanced)

    @contextlib.contextmanager
    def _transaction(self, limit_ms: int) -> Iterator[PostgresConnection]:
        connection = self._connected()
        with cut_after(connection, limit_ms) as cut:
            with self._told(connection, limit_ms, cut):
                with self._steps("begin"):
                    connection.execute(SQL(_BEGIN).format(Literal(limit_ms)))
                yield connection
            try:
                with self._steps("commit"):
                    done = connection.execute("COMMIT").statusmessage
            except Exception as error:
                raise self._commit_failure(connection, error, cut) from error
        if done != "COMMIT":
            raise SinkUnavailableError(f"{self._name}: the server answered {done} to COMMIT")

    def _commit_failure(
        self, connection: PostgresConnection, error: Exception, cut: Cut
    ) -> Exception:
        """Return the error for a COMMIT that failed: the server refused it, or did not answer."""
        state = getattr(error, "sqlstate", None)
        if isinstance(error, psycopg.errors.IntegrityError):
            return SinkRowError(
                f"table {self._name}: {_line(error)} at COMMIT. Mend the rows or the table; "
                "nothing of the batch was written"
            )
        if state is not None and state[:2] not in ("08", "57"):
            self._undo(connection)
            return self._unavailable(error, self._timeout_ms, cut)
        return SinkOutcomeUnknownError(f"{self._name}: COMMIT failed: {_told_by(error, cut)}")

    @contextlib.contextmanager
    def _bounded(self, connection: PostgresConnection) -> Iterator[None]:
        """Limit statements outside of a batch's transaction, and convert their errors."""
        limit_ms = self._timeout_ms
        with cut_after(connection, limit_ms) as cut, self._told(connection, limit_ms, cut):
            yield

    @contextlib.contextmanager
    def _told(self, connection: PostgresConnection, limit_ms: int, cut: Cut) -> Iterator[None]:
        """Roll the transaction back after an error, and convert the driver's errors."""
        try:
            yield
        except psycopg.Error as error:
            self._undo(connection)
            if is_passing(error):
                raise self._unavailable(error, limit_ms, cut) from error
            raise ConfigError(
                "table",
                self._name,
                f"PostgreSQL refuses what the sink does beside it: {_line(error)}. Give the role "
                "its rights, or mend onceflow_offsets",
            ) from error
        except Exception:
            self._undo(connection)
            raise

    def _undo(self, connection: PostgresConnection) -> None:
        with contextlib.suppress(psycopg.Error):
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")

    def _unavailable(self, error: Exception, limit_ms: int, cut: Cut) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._name}: {_told_by(error, cut)} (limit {limit_ms} ms); nothing was stored. If "
            "other transactions hold the table for long, raise timeout_ms, or revoke_budget_ms for "
            "commits within a rebalance"
        )

    # Rows ----------------------------------------------------------------------------------

    def _new_rows(self, connection: PostgresConnection, batch: Batch) -> Sequence[Row]:
        """Return the rows of messages that were not handled before, and mark these as handled.

        Raises:
            SinkRowError: A row came without its record, or a record without its id.
        """
        if self._inbox is None or not batch.rows:
            return batch.rows
        ids: list[bytes] = []
        firsts: dict[bytes, tuple[str, int, int]] = {}
        for record in batch.records or [None] * len(batch.rows):
            if record is None:
                raise SinkRowError("the inbox needs the record of a row; write(row, of=record)")
            try:
                ids.append(self._inbox.id_of(record))
            except ConfigError as error:
                raise SinkRowError(f"table {self._name}: {error}") from error
            firsts.setdefault(ids[-1], (record.topic, record.partition, record.offset))
        new = self._inbox.new(connection, firsts)
        return [
            row
            for row, message_id, record in zip(batch.rows, ids, batch.records, strict=True)
            if message_id in new
            and record is not None
            and firsts[message_id] == (record.topic, record.partition, record.offset)
        ]

    def _insert(self, connection: PostgresConnection, rows: Sequence[Row]) -> None:
        if rows and not self._rows:
            raise SinkRowError("this PostgreSQL sink keeps offsets alone; name its table")
        for number, (columns, values) in enumerate(runs(rows, by_column)):
            missing = [name for name in self._key if name not in columns]
            if missing or not columns:
                raise SinkRowError(
                    f"table {self._name}: a row has the columns {list(columns)} and lacks "
                    f"{', '.join(missing) or 'any column'}; nothing of the batch was written"
                )
            try:
                if not self._key:
                    self._copy(connection, self._table, columns, values)
                elif not self._append(connection, columns, values):
                    if number:
                        connection.execute(SQL("TRUNCATE {}").format(_STAGED))
                    self._copy(connection, _STAGED, columns, values)
                    connection.execute(self._upsert(columns, self._are_distinct(columns, values)))
            except (psycopg.Error, ValueError, OverflowError) as error:
                if is_passing(error):
                    raise
                raise SinkRowError(
                    f"table {self._name}, columns {', '.join(columns)}: {_line(error)}. Mend the "
                    "rows or the table (a dictionary needs psycopg's Json or Jsonb around it); "
                    "nothing of the batch was written"
                ) from error

    def _copy(
        self,
        connection: PostgresConnection,
        target: Identifier,
        columns: Sequence[str],
        values: Sequence[Sequence[object]],
    ) -> None:
        text = SQL("COPY {} ({}) FROM STDIN").format(target, _listed(columns))
        encoded = copy_text.lines(values) if _encodes_as_usual(connection) else None
        with connection.cursor() as cursor, cursor.copy(text) as copy:
            if encoded is None:
                for row in zip(*values, strict=True):
                    copy.write_row(row)
            else:
                for block in encoded:
                    copy.write(block)

    def _append(
        self,
        connection: PostgresConnection,
        columns: Sequence[str],
        values: Sequence[Sequence[object]],
    ) -> bool:
        """Copy rows with new keys straight into the table, which costs the server half.

        Keys above the greatest stored one are new. Another transaction may insert one of them at
        the same time; COPY then fails, as it does for rows that do not fit. The rows so far are
        undone, and the stage decides.

        Returns:
            Whether the rows are in the table.
        """
        if not self._appends or len(values[0]) < _APPENDED_ROWS_MIN or len(self._key) != 1:
            return False
        if not self._are_distinct(columns, values):
            return False
        (key,) = self._key
        text = SQL("SELECT max({}) FROM {}").format(Identifier(key), self._table)
        greatest = connection.execute(text).fetchone()
        least = min(cast("Sequence[int]", values[columns.index(key)]))
        if greatest is None or (greatest[0] is not None and greatest[0] >= least):
            return False
        connection.execute("SAVEPOINT onceflow_rows")
        try:
            with self._steps("append"):
                self._copy(connection, self._table, columns, values)
        except (psycopg.Error, ValueError, OverflowError) as error:
            if is_passing(error):
                raise
            connection.execute("ROLLBACK TO SAVEPOINT onceflow_rows")
            # COPY may be refused where INSERT is not, such as with row-level security.
            self._appends = isinstance(error, (psycopg.IntegrityError, psycopg.DataError))
            return False
        return True

    def _are_distinct(self, columns: Sequence[str], values: Sequence[Sequence[object]]) -> bool:
        """Whether each row certainly has a key of its own, so that the server need not sort.

        Of integers that is told here. Of other types only the database knows which are equal.
        """
        if not self._integer_key:
            return False
        parts = [values[columns.index(name)] for name in self._key]
        if any(set(map(type, part)) != {int} for part in parts):
            return False
        keys = set(parts[0]) if len(parts) == 1 else set(zip(*parts, strict=True))
        return len(keys) == len(parts[0])

    def _upsert(self, columns: Sequence[str], distinct: bool) -> Composed:
        others = [name for name in columns if name not in self._key]
        change = [SQL("{0} = EXCLUDED.{0}").format(Identifier(name)) for name in others]
        action = SQL("UPDATE SET {}").format(SQL(", ").join(change)) if others else SQL("NOTHING")
        return SQL(_UPSERT if distinct else _UPSERT_LAST).format(
            table=self._table,
            columns=_listed(columns),
            key=_listed(self._key),
            stage=_STAGED,
            action=action,
        )

    # Ledger --------------------------------------------------------------------------------

    def _read(
        self, connection: PostgresConnection, text: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Entry]:
        place = (*_columns(partitions), self._group_id)
        found = connection.execute(self._text(text), place).fetchall()
        return {TopicPartition(topic, number): Entry(*rest) for topic, number, *rest in found}

    def _store(self, connection: PostgresConnection, entries: Entries) -> None:
        topics, numbers = _columns(entries)
        stored = list(entries.values())
        changed = connection.execute(
            self._text(_STORE),
            (
                topics,
                numbers,
                [entry.offset for entry in stored],
                [entry.owner for entry in stored],
                [entry.epoch for entry in stored],
                [entry.topic_id for entry in stored],
                self._group_id,
            ),
        ).rowcount
        assert changed == len(entries), f"{changed} of {len(entries)} offsets were stored"

    def _text(self, text: str) -> Composed:
        return SQL(text).format(ledger=self._ledger)

    def _connected(self) -> PostgresConnection:
        self._check_open()
        if self._connection is None:
            raise SinkUnavailableError(
                f"{self._name}: the last claim could not connect; nothing was stored. The next "
                "claim connects again"
            )
        return self._connection

    def _check_open(self) -> None:
        if not self._group_id:
            raise IllegalStateError("the PostgreSQL sink is not open; call open() first")


def _encodes_as_usual(connection: PostgresConnection) -> bool:
    """Whether texts go as UTF-8, and the program has no dumpers of its own for plain types."""
    dumpers = [
        connection.adapters.get_dumper(kind, psycopg.adapt.PyFormat.TEXT)
        for kind in copy_text.PLAIN
    ]
    usual = all(dumper.__module__.startswith("psycopg") for dumper in dumpers)
    return usual and connection.info.encoding == "utf-8"


def _listed(names: Iterable[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def _columns(partitions: Iterable[TopicPartition]) -> tuple[list[str], list[int]]:
    found = list(partitions)
    return [tp.topic for tp in found], [tp.partition for tp in found]


def _told_by(error: Exception, cut: Cut) -> str:
    """Return the cause of an error: for a connection that was cut here, that."""
    return "no answer in time; the connection was cut" if cut.happened else _line(error)


def _line(error: Exception) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())
