"""Stands in for psycopg: connections from simulated processes to the database in memory.

It knows the statements of the product by their text, which it takes from the product, and those of
the simulated applications. Between client and server time passes; a connection may end before a
statement arrives, or before its answer does, and a client that dies or gives up leaves the server
to notice that.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import OperationalError, errors, pq
from psycopg.sql import SQL, Composable, Identifier
from sim_database import Answer, Server, ServerSession, Statement, Transaction
from sim_threads import process_here, wait

from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions.outbox import relay, table
from onceflow.transactions.postgres_client import Cut
from onceflow.transactions.sinks import postgres
from onceflow.transactions.sinks.ledger import Entry
from onceflow.transactions.two_phase import decisions

if TYPE_CHECKING:
    from sim_world import Process

LEDGER, ROWS, OUTBOX, BALANCES = "onceflow_offsets", "rows", "onceflow_outbox", "balances"
REFUSED = b"#"
"""End of values that the table of rows does not take."""

CLOSED = "the connection is closed"
LOST = "server closed the connection unexpectedly"


@dataclass
class DatabaseFaults:
    """How often what goes wrong with a statement.

    Attributes:
        delay_us: Longest usual way of a statement or an answer.
        cut_before: How often the connection ends before the statement arrives.
        cut_after: How often it ends before the answer arrives.
        slow: How often the way takes seconds.
        refuse: How often a connection is refused.
    """

    delay_us: int = 300
    cut_before: float = 0.0
    cut_after: float = 0.0
    slow: float = 0.0
    refuse: float = 0.0


class Database:
    """A database and the way to it.

    Attributes:
        server: The server.
        faults: What goes wrong on the way.
        statements: How many were asked for.
        lost: How many connections ended in the middle of one.
        handles: Connections by file number.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.world = server.world
        self.faults = DatabaseFaults()
        self.statements = 0
        self.lost = 0
        self.handles: list[SimConnection] = []
        self.random = server.world.stream("way to the database")

    def connected(self, dsn: str, timeout_ms: int) -> SimConnection:
        """Stands in for ``postgres_client.connected``."""
        process = process_here()
        return wait(self._connect(process, timeout_ms))

    async def _connect(self, process: Process, timeout_ms: int) -> SimConnection:
        await asyncio.sleep(self.way_us() / 1e6)
        if not self.server.is_up or self.random.random() < self.faults.refuse:
            raise OperationalError("connection refused")
        connection = SimConnection(self, process, self.server.connect(process.name))
        self.handles.append(connection)
        return connection

    def way_us(self) -> int:
        """How long a statement or an answer takes."""
        if self.random.random() < self.faults.slow:
            return self.random.choice((1_000_000, 4_000_000))
        return self.random.randrange(50, 50 + self.faults.delay_us)

    @contextlib.contextmanager
    def cut_after(self, connection: SimConnection, limit_ms: int) -> Iterator[Cut]:
        """Stands in for ``postgres_client.cut_after``."""
        cut = Cut()
        outer, connection.limit = connection.limit, (self.world.now_us + limit_ms * 1_000, cut)
        try:
            yield cut
        finally:
            connection.limit = outer


class SimConnection:
    """Stands in for a connection of psycopg.

    Attributes:
        closed: Whether this side knows that it has ended.
        autocommit: Whether no statement begins a transaction by itself.
        limit: When it is cut, and who is told of that.
        adapters: How values are encoded.
        connection: None: names in statements are quoted without asking a server.
    """

    connection = None
    adapters = psycopg.adapters

    def __init__(self, database: Database, process: Process, session: ServerSession) -> None:
        self.closed = False
        self.autocommit = True
        self.limit: tuple[int, Cut] | None = None
        self._database = database
        self._process = process
        self._session = session
        self._status = pq.TransactionStatus.IDLE
        self._handlers: list[Callable[[object], None]] = []
        self._has_news = False
        self._news: asyncio.Future[None] | None = None
        self._unanswered: list[asyncio.Future[Answer]] = []
        session.told = self._told
        process.on_death.append(lambda: database.server.client_left(session))

    @property
    def info(self) -> SimpleNamespace:
        status = pq.TransactionStatus.UNKNOWN if self.closed else self._status
        # Under another encoding than UTF-8 rows are given to the connection, not encoded before.
        return SimpleNamespace(transaction_status=status, encoding="latin-1")

    # Statements ----------------------------------------------------------------------------

    def execute(self, query: str | Composable, params: Sequence[object] = ()) -> SimCursor:
        statement = statement_of(_text(query), params)
        if self._status is pq.TransactionStatus.IDLE and not self.autocommit:
            self._ask(_begin(None))
        return SimCursor(self, self._ask(statement))

    def _ask(self, statement: Statement) -> Answer:
        if self.closed:
            raise OperationalError(CLOSED)
        return wait(self._asked(statement))

    async def _asked(self, statement: Statement) -> Answer:
        database, session = self._database, self._session
        database.statements += 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        left_s = None if self.limit is None else (self.limit[0] - database.world.now_us) / 1e6
        rng, faults = database.random, database.faults
        if rng.random() < faults.cut_before:
            self._lose()
            raise OperationalError(LOST)
        is_lost = rng.random() < faults.cut_after

        def arrive() -> None:
            if session.is_open:
                database.server.run(session, statement, answered)
            else:
                back(OperationalError(LOST))

        def answered(answer: Answer | Exception) -> None:
            if is_lost:
                database.server.end_session(session)
                back(OperationalError(LOST))
                return
            open_one = session.transaction
            back(answer, "idle" if open_one is None else "failed" if open_one.has_failed else "on")

        def back(answer: Answer | Exception, status: str = "") -> None:
            database.world.after(
                database.way_us(), lambda: self._process.call(lambda: give(answer, status))
            )

        def give(answer: Answer | Exception, status: str) -> None:
            if future.done():
                return
            if status:
                self._status = _STATUS[status]
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self._unanswered.append(future)
        try:
            database.world.after(database.way_us(), arrive)
            done, _ = await asyncio.wait([future], timeout=left_s)
        finally:
            self._unanswered.remove(future)
        if not done:
            assert self.limit is not None
            self.limit[1].happened = True
            future.cancel()
            self._lose()
            raise OperationalError(LOST)
        self._handle_news()
        try:
            return future.result()
        except OperationalError as error:
            if error.sqlstate in (None, errors.AdminShutdown.sqlstate):
                self._lose()
            raise

    def _lose(self) -> None:
        """The connection has ended in the middle of a statement."""
        self._database.lost += 1
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._database.server.client_left(self._session)

    def __enter__(self) -> SimConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def rollback(self) -> None:
        if self.closed:
            raise OperationalError(CLOSED)
        if self._status is not pq.TransactionStatus.IDLE:
            self._ask(_rollback)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._ask(_begin(None))
        try:
            yield
        except BaseException:
            if not self.closed:
                self.rollback()
            raise
        self._ask(_commit)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[SimCursor]:
        yield SimCursor(self, Answer())

    # Notifications -------------------------------------------------------------------------

    def fileno(self) -> int:
        if self.closed:
            raise OperationalError(CLOSED)
        return self._database.handles.index(self)

    def add_notify_handler(self, handler: Callable[[object], None]) -> None:
        self._handlers.append(handler)

    def _told(self, is_end: bool) -> None:
        self._process.call(lambda: self._hear(is_end))

    def _hear(self, is_end: bool) -> None:
        self._has_news = True
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        if is_end:
            for future in self._unanswered:
                if not future.done():
                    future.set_exception(self._end_error())

    def _end_error(self) -> OperationalError:
        """The server may say why, or not."""
        if self._database.random.random() < 0.5:
            return errors.AdminShutdown("terminating connection due to administrator command")
        return OperationalError(LOST)

    def _handle_news(self) -> None:
        if self._has_news:
            self._has_news = False
            for handler in self._handlers:
                handler(None)

    async def news(self, timeout_s: float) -> bool:
        """Wait until there is something to read."""
        if not self._has_news:
            self._news = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._news], timeout=timeout_s)
            self._news = None
        return self._has_news


class SimCursor:
    """The answer to a statement; also what copies rows."""

    def __init__(self, connection: SimConnection, answer: Answer) -> None:
        self._connection = connection
        self.rowcount = answer.count
        self.statusmessage = answer.status
        self._rows = list(answer.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    @contextlib.contextmanager
    def copy(self, query: Composable) -> Iterator[SimpleNamespace]:
        columns = re.fullmatch(r'COPY "rows" \((.*)\) FROM STDIN', _text(query))
        assert columns is not None, _text(query)
        names = [name.strip('"') for name in columns.group(1).split(", ")]
        copied: list[Sequence[object]] = []
        yield SimpleNamespace(write_row=copied.append)
        self._connection._ask(_copy([dict(zip(names, row, strict=True)) for row in copied]))


class SimPoll:
    """Stands in for ``select.poll``: waits for news of one connection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: SimConnection | None = None

    def register(self, handle: int, _: int) -> None:
        self._connection = self._database.handles[handle]

    def poll(self, timeout_ms: float) -> bool:
        assert self._connection is not None
        return wait(self._connection.news(timeout_ms / 1_000))


# What statements do -----------------------------------------------------------------------------

_STATUS = {
    "idle": pq.TransactionStatus.IDLE,
    "on": pq.TransactionStatus.INTRANS,
    "failed": pq.TransactionStatus.INERROR,
}


def _text(query: str | Composable) -> str:
    text = query if isinstance(query, str) else query.as_string(None)
    return " ".join(text.split())


def _checked(statement: Statement) -> Statement:
    """Refuse a statement in a transaction that has failed."""

    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        if own.has_failed:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        return statement(server, session, own)

    return run


def _begin(limit_ms: int | None) -> Statement:
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        own.is_implied = False
        own.limit_ms = limit_ms
        return Answer(status="BEGIN")

    return run


def _rollback(server: Server, session: ServerSession, own: Transaction) -> Answer:
    server.end(own, commit=False)
    return Answer(status="ROLLBACK")


def _commit(server: Server, session: ServerSession, own: Transaction) -> Answer:
    if own.has_failed:
        return _rollback(server, session, own)
    has_rows = any(name == OUTBOX and row is not None for (name, _), row in own.writes.items())
    server.end(own, commit=True)
    if has_rows:
        server.tell()
    return Answer(status="COMMIT")


def _prepare(gid: str) -> Statement:
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        if own.has_failed:
            return _rollback(server, session, own)
        server.prepare(own, gid)
        server.world.note("database", "prepared", gid, session.name)
        return Answer(status="PREPARE TRANSACTION")

    return run


def _finish(gid: str, *, commit: bool) -> Statement:
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        server.finish(gid, commit=commit)
        server.world.note("database", "finished", gid, commit)
        return Answer()

    return run


def _copy(rows: Sequence[dict[str, object]]) -> Statement:
    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        for row in rows:
            if bytes(row["value"]).endswith(REFUSED):
                raise errors.InvalidTextRepresentation(f"invalid input: {row}")
            server.write(own, ROWS, server.next_number(), row)
        return Answer(count=len(rows))

    return run


def _answering(*rows: tuple[object, ...]) -> Callable[[Sequence[Any]], Statement]:
    """A statement that changes nothing and always has the same answer."""
    return lambda params: _checked(lambda server, session, own: Answer(rows))


def _keys(topics: Sequence[str], numbers: Sequence[int], group: str) -> list[Any]:
    return sorted((group, *place) for place in zip(topics, numbers, strict=True))


def _add_offsets(params: Sequence[Any]) -> Statement:
    group, topics, numbers = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        for key in _keys(topics, numbers, group):
            if server.row(own, LEDGER, key) is None:
                server.lock(own, LEDGER, key)
                if server.row(own, LEDGER, key) is None:
                    server.write(own, LEDGER, key, Entry("", 0))
        return Answer()

    return run


def _read_offsets(params: Sequence[Any], *, locks: bool) -> Statement:
    topics, numbers, group = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        rows = []
        for key in _keys(topics, numbers, group):
            if locks and server.row(own, LEDGER, key) is not None:
                server.lock(own, LEDGER, key)
            entry = server.row(own, LEDGER, key)
            if entry is not None:
                rows.append((*key[1:], entry.owner, entry.epoch, entry.offset, entry.topic_id))
        return Answer(rows)

    return run


def _store_offsets(params: Sequence[Any]) -> Statement:
    *columns, group = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        count = 0
        for topic, number, offset, owner, epoch, topic_id in zip(*columns, strict=True):
            key = (group, topic, number)
            if server.row(own, LEDGER, key) is not None:
                server.write(own, LEDGER, key, Entry(owner, epoch, offset, topic_id))
                count += 1
        return Answer(count=count)

    return run


def _in_doubt(params: Sequence[Any]) -> Statement:
    (prefix,) = params
    return lambda server, session, own: Answer(
        [(gid,) for gid in server.prepared if gid.startswith(prefix)]
    )


def _insert_row(params: Sequence[Any]) -> Statement:
    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        server.write(own, ROWS, server.next_number(), {"value": params[0]})
        return Answer(count=1)

    return run


def _add_to_balance(params: Sequence[Any]) -> Statement:
    (name,) = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        server.lock(own, BALANCES, name)
        server.write(own, BALANCES, name, (server.row(own, BALANCES, name) or 0) + 1)
        return Answer(count=1)

    return run


def _set_timeout(limit_ms: int) -> Statement:
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        own.limit_ms = limit_ms
        return Answer()

    return _checked(run)


def _put(params: Sequence[Any]) -> Statement:
    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        server.write(own, OUTBOX, server.next_number(), tuple(params))
        return Answer(count=1)

    return run


def _read_outbox(params: Sequence[Any]) -> Statement:
    most, most_bytes = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        found, size = [], 0
        for number, row in list(server.rows(own, OUTBOX))[:most]:
            if size < most_bytes:
                found.append((number, *row))
            size += sum(len(part or b"") for part in row[1:3])
        return Answer(found)

    return run


def _delete_from_outbox(params: Sequence[Any]) -> Statement:
    (numbers,) = params

    @_checked
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        there = [n for n in numbers if server.row(own, OUTBOX, n) is not None]
        for number in there:
            server.lock(own, OUTBOX, number)
            server.write(own, OUTBOX, number, None)
        return Answer(count=len(there))

    return run


def _take_lock(params: Sequence[Any]) -> Statement:
    return lambda server, session, own: Answer([(server.take_key(session, tuple(params)),)])


def _limit_idle(limit_ms: int) -> Statement:
    def run(server: Server, session: ServerSession, own: Transaction) -> Answer:
        session.idle_limit_us = limit_ms * 1_000
        return Answer()

    return run


def _listen(server: Server, session: ServerSession, own: Transaction) -> Answer:
    session.listens = True
    return Answer()


def _known(template: str) -> str:
    names = {"ledger": Identifier(LEDGER), "table": Identifier(OUTBOX)}
    used = {name: each for name, each in names.items() if f"{{{name}}}" in template}
    return _text(SQL(template).format(**used) if used else template)


INSERT_ROW = "INSERT INTO rows (value) VALUES (%s)"
ADD_TO_BALANCE = "UPDATE balances SET number = number + 1 WHERE name = %s"

_STATEMENTS: dict[str, Callable[[Sequence[Any]], Statement]] = {
    _known(postgres._LEDGER): _answering(),
    _known(postgres._READ): lambda params: _read_offsets(params, locks=False),
    _known(postgres._LOCK): lambda params: _read_offsets(params, locks=True),
    _known(postgres._ADD): _add_offsets,
    _known(postgres._STORE): _store_offsets,
    _known(decisions._IN_DOUBT): _in_doubt,
    _known(relay._READ): _read_outbox,
    _known(relay._DELETE): _delete_from_outbox,
    _known(relay._LOCK): _take_lock,
    _known(table._PUT): _put,
    INSERT_ROW: _insert_row,
    ADD_TO_BALANCE: _add_to_balance,
    'EXPLAIN INSERT INTO "rows" DEFAULT VALUES': _answering(),
    "SELECT to_regclass(%s)": _answering((None,)),
    "SELECT pg_advisory_xact_lock(hashtext(%s))": _answering(),
    "SHOW max_prepared_transactions": _answering(("10",)),
    "COMMIT": lambda params: _commit,
    "ROLLBACK": lambda params: _rollback,
}

_PATTERNS: Sequence[tuple[str, Callable[[str], Statement]]] = (
    (
        r"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = (\d+)",
        lambda limit: _begin(int(limit)),
    ),
    (r"SET LOCAL statement_timeout = (\d+)", lambda limit: _set_timeout(int(limit))),
    (r"PREPARE TRANSACTION '(.*)'", _prepare),
    (r"COMMIT PREPARED '(.*)'", lambda gid: _finish(gid, commit=True)),
    (r"ROLLBACK PREPARED '(.*)'", lambda gid: _finish(gid, commit=False)),
    (r"SET idle_session_timeout = (\d+)", lambda limit: _limit_idle(int(limit))),
    (r'LISTEN "(.*)"', lambda channel: _listen),
)


def statement_of(text: str, params: Sequence[object]) -> Statement:
    """What a statement does, by its text.

    Raises:
        AssertionError: The model does not know it.
    """
    if text in _STATEMENTS:
        return _STATEMENTS[text](params)
    for pattern, make in _PATTERNS:
        found = re.fullmatch(pattern, text)
        if found is not None:
            return make(found.group(1))
    raise AssertionError(f"the model of the database does not know {text!r}")


def row_of(record: ConsumerRecord) -> dict[str, object]:
    """The row of a record: its place and its value."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "value": record.value,
    }
