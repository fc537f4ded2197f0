"""A sink that inserts rows into a table of SQLite, with the offsets in the same file.

Each batch is one transaction that begins IMMEDIATE, so no other program can write the file while
the sink reads the offsets, writes the rows and stores the new offsets. ``synchronous`` is FULL: a
committed batch survives a power failure (https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import contextlib
import copy
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Self

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.sinks import ledger
from onceflow.transactions.sinks.columns import by_row, runs
from onceflow.transactions.sinks.errors import (
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries, Entry, Row
from onceflow.transactions.sinks.sink import Observer, Steps

_LEDGER = """
CREATE TABLE IF NOT EXISTS onceflow_offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL,
    next_offset INTEGER, owner TEXT NOT NULL, epoch INTEGER NOT NULL, topic_id TEXT NOT NULL,
    PRIMARY KEY (group_id, topic, "partition")
)
"""
_READ = (
    "SELECT next_offset, owner, epoch, topic_id FROM onceflow_offsets"
    ' WHERE group_id = ? AND topic = ? AND "partition" = ?'
)
_STORE = "INSERT OR REPLACE INTO onceflow_offsets VALUES (?, ?, ?, ?, ?, ?, ?)"
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
"""Primary result codes of errors of the file, not of the rows."""
_ROWS_OF_STATEMENT = 50
_STEPS_PER_LOOK = 10_000
"""Instructions of SQLite's virtual machine between two checks of the time, about a millisecond."""


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _is_passing(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _PASSING


class Sqlite:
    """Stores rows in a table of an SQLite file.

    The table must exist; offsets are kept in the table ``onceflow_offsets`` of the same file.

    Args:
        path: The file.
        table: Table that takes the rows; None for offsets alone, as for ``Http``.
        key: Columns of a unique key: a row replaces the other columns of one with the same key.
            Without it rows are only inserted.
        timeout_ms: Limit of each claim and write, including the wait for other writers.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The path is in memory, a name is empty, the key is a string, or the timeout
            is not positive.
    """

    def __init__(
        self,
        path: str | Path,
        table: str | None = None,
        *,
        key: Sequence[str] = (),
        timeout_ms: int = 5_000,
        observer: Observer | None = None,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigError("path", path, "must be a file: memory does not survive a restart")
        if isinstance(key, str):
            raise ConfigError("key", key, f"must be a sequence of columns, such as [{key!r}]")
        if table == "" or "" in key or (key and table is None):
            raise ConfigError(
                "table", table, "the names of a table and its columns must not be empty"
            )
        if timeout_ms <= 0:
            raise ConfigError("timeout_ms", timeout_ms, "must be positive; 5000 is the default")
        self._path = str(path)
        self._table = table
        self._key = tuple(key)
        self._timeout_ms = timeout_ms
        self._steps = Steps(observer)
        self._group_id = ""
        self._connection: sqlite3.Connection | None = None

    @property
    def needs_table(self) -> bool:
        """Whether it keeps offsets alone, because it names no table."""
        return self._table is None

    def copy(self, table: str | None = None) -> Self:
        """Return an unopened sink like this one.

        Args:
            table: Table of the copy, if this sink names none.
        """
        made = copy.copy(self)
        made._connection, made._group_id = None, ""
        if self._table is None:
            made._table = table
        return made

    def open(self, group_id: str) -> None:
        """Connect, and make the ledger's table.

        Args:
            group_id: The consumer group.

        Raises:
            ConfigError: The file has no such table, or the table no such key column.
            SinkUnavailableError: The file cannot be opened, or others hold it.
        """
        self._group_id = group_id
        self._connect()

    def _connect(self) -> sqlite3.Connection:
        try:
            self._connection = self._connection_to_table()
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        return self._connection

    def _connection_to_table(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._timeout_ms / 1000,
            isolation_level=None,  # sqlite3 begins no transactions itself
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            if self._table is not None:
                self._check_table(connection, self._table)
            connection.execute(_LEDGER)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_table(self, connection: sqlite3.Connection, table: str) -> None:
        """Have SQLite check the unique index by planning an insert, which is not run.

        Raises:
            ConfigError: Table, columns or index are missing.
        """
        found = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        columns = {column[1] for column in found}
        if not columns:
            raise ConfigError("table", table, f"{self._path} has no such table; make it")
        for name in self._key:
            if name not in columns:
                raise ConfigError("key", name, f"table {table} has no such column")
        if not self._key:
            return
        text = self._insert_text(table, self._key)
        try:
            connection.execute(f"EXPLAIN {text}", [None] * len(self._key)).close()
        except sqlite3.OperationalError as error:
            if _is_passing(error):
                raise
            remedy = f"needs a unique index of {table} over exactly these columns ({error})"
            raise ConfigError("key", list(self._key), remedy) from error

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``."""
        # A new connection: closing the old one rolls back a transaction that it may still have.
        self._check_open()
        self._disconnect()
        connection = self._connect()
        with self._transaction(connection, self._timeout_ms):
            found = self._read(connection, partitions)
            claimed = ledger.claim(found, partitions, owner, topic_ids)
            self._store(connection, claimed)
        return claimed

    def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``."""
        return self._read(self._connected(), partitions)

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``."""
        connection = self._connected()
        limit_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        with self._transaction(connection, limit_ms):
            with self._steps("offsets read"):
                found = self._read(connection, list(batch.moves))
                advanced = ledger.advance(found, batch)
            with self._steps("rows"):
                self._insert(connection, batch.rows)
            with self._steps("offsets"):
                self._store(connection, advanced)

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection, limit_ms: int) -> Iterator[None]:
        end = time.monotonic() + limit_ms / 1000
        connection.execute(f"PRAGMA busy_timeout = {limit_ms}")
        try:
            with self._steps("begin"):
                connection.execute("BEGIN IMMEDIATE")
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_PER_LOOK)
            yield
        except Exception as error:
            self._undo(connection)
            if _is_passing(error):
                raise self._unavailable(error) from error
            raise
        finally:
            # An interruption within COMMIT would make its outcome unknown.
            connection.set_progress_handler(None, _STEPS_PER_LOOK)
        try:
            with self._steps("commit"):
                connection.execute("COMMIT")
        except Exception as error:
            raise SinkOutcomeUnknownError(f"{self._path}: COMMIT failed: {error}") from error

    def _undo(self, connection: sqlite3.Connection) -> None:
        """Roll back, unless SQLite has done so itself, as after an interruption."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _unavailable(self, error: Exception) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._path}: {error}; nothing was stored. If other programs hold the file for long, "
            f"raise timeout_ms ({self._timeout_ms}), or revoke_budget_ms for commits within a "
            "rebalance"
        )

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        table = self._table
        if rows and table is None:
            raise SinkRowError(f"{self._path}: this sink keeps offsets alone; name its table")
        for columns, values in runs(rows, by_row):
            try:
                size = self._rows_of_statement(connection, columns)
                whole = len(values) // size * size
                text = self._insert_text(table or "", columns, size)
                flat = [
                    tuple(chain.from_iterable(values[start : start + size]))
                    for start in range(0, whole, size)
                ]
                connection.executemany(text, flat)
                connection.executemany(self._insert_text(table or "", columns), values[whole:])
            except (sqlite3.Error, OverflowError, ValueError) as error:
                if _is_passing(error):
                    raise
                raise SinkRowError(
                    f"table {self._table}, columns {', '.join(columns)}: {error}. Mend the rows or "
                    "the table; nothing of the batch was written"
                ) from error

    def _rows_of_statement(self, connection: sqlite3.Connection, columns: Sequence[str]) -> int:
        """How many rows one statement takes, which costs half of a statement for each row."""
        values_max = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        return max(1, min(_ROWS_OF_STATEMENT, values_max // max(1, len(columns))))

    def _insert_text(self, table: str, columns: Sequence[str], rows: int = 1) -> str:
        """Return the statement for rows of these columns.

        Raises:
            SinkRowError: A row has no column, or lacks one of the key.
        """
        missing = [name for name in self._key if name not in columns]
        if missing or not columns:
            raise SinkRowError(
                f"table {table}: a row has the columns {list(columns)} and lacks "
                f"{', '.join(missing) or 'any column'}; nothing of the batch was written"
            )
        names = ", ".join(map(quoted, columns))
        marks = ", ".join(["(" + ", ".join("?" * len(columns)) + ")"] * rows)
        text = f"INSERT INTO {quoted(table)} ({names}) VALUES {marks}"
        if self._key:
            others = [quoted(name) for name in columns if name not in self._key]
            change = ", ".join(f"{name} = excluded.{name}" for name in others)
            action = f"UPDATE SET {change}" if others else "NOTHING"
            text += f" ON CONFLICT ({', '.join(map(quoted, self._key))}) DO {action}"
        return text

    def _read(
        self, connection: sqlite3.Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Entry]:
        entries = {}
        for tp in partitions:
            place = (self._group_id, tp.topic, tp.partition)
            found = connection.execute(_READ, place).fetchone()
            if found is not None:
                entries[tp] = Entry(found[1], found[2], found[0], found[3])
        return entries

    def _store(self, connection: sqlite3.Connection, entries: Entries) -> None:
        connection.executemany(
            _STORE,
            [
                (self._group_id, tp.topic, tp.partition, e.offset, e.owner, e.epoch, e.topic_id)
                for tp, e in entries.items()
            ],
        )

    def _connected(self) -> sqlite3.Connection:
        self._check_open()
        if self._connection is None:
            raise SinkUnavailableError(
                f"{self._path}: the last claim could not open the file; nothing was stored. The "
                "next claim opens it again"
            )
        return self._connection

    def _check_open(self) -> None:
        if not self._group_id:
            raise IllegalStateError("the SQLite sink is not open; call open() first")

    def close(self) -> None:
        """See ``Sink.close``."""
        self._group_id = ""
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
