"""A model of PostgreSQL in memory: sessions, transactions, row locks, prepared transactions.

It keeps what the product relies on, under READ COMMITTED: a transaction's changes appear together
at its commit; a row that one transaction has locked makes the others wait; a prepared transaction
keeps its locks and outlives its session, and the server's death too; a lock of a session ends with
it. What statements mean is in ``sim_postgres``.

https://www.postgresql.org/docs/current/transaction-iso.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import errors

if TYPE_CHECKING:
    from sim_world import World

Place: TypeAlias = tuple[str, object]
"""A table and the key of one of its rows."""

NOTICED_US = (0, 20_000, 400_000, 1_500_000)
"""How long the server takes to notice that a client is gone."""

DEADLOCK_LIMIT = 50
"""How many transactions may wait for each other in a row."""


class BlockedError(Exception):
    """A statement waits for the end of another transaction."""

    def __init__(self, holder: Transaction) -> None:
        super().__init__()
        self.holder = holder


@dataclass
class Answer:
    """What the server answers to a statement.

    Attributes:
        rows: The rows that it returns.
        status: The command's tag, such as ``COMMIT``.
        count: How many rows it has changed; -1 where that is not told.
    """

    rows: Sequence[tuple[Any, ...]] = ()
    status: str = ""
    count: int = -1


class Transaction:
    """One transaction.

    Attributes:
        session: Whose it is; None once it is prepared.
        writes: Its changes; None for a row that it deletes.
        limit_ms: Limit of each of its statements (``statement_timeout``); None without.
        has_failed: Whether a statement failed, after which it can only be rolled back.
        is_implied: Whether it ends with its only statement.
        waiting: Statements that wait for its end.
    """

    def __init__(self, session: ServerSession, *, is_implied: bool) -> None:
        self.session: ServerSession | None = session
        self.writes: dict[Place, Any] = {}
        self.limit_ms: int | None = None
        self.has_failed = False
        self.is_implied = is_implied
        self.waiting: list[Callable[[], None]] = []


@dataclass(eq=False)
class ServerSession:
    """The server's side of one connection.

    Attributes:
        name: The client's process.
        is_open: False once either side has ended it.
        transaction: The open one.
        waits_for: The transaction for which its statement waits.
        keys: Its advisory locks.
        idle_limit_us: ``idle_session_timeout``; None without.
        listens: Whether it is told of new rows.
        last_us: When its last statement ended.
        busy: How many of its statements are under way.
        told: Called when the server has something to tell: a notification, or the end.
    """

    name: str
    is_open: bool = True
    transaction: Transaction | None = None
    waits_for: Transaction | None = None
    keys: set[object] = field(default_factory=set)
    idle_limit_us: int | None = None
    listens: bool = False
    last_us: int = 0
    busy: int = 0
    told: Callable[[bool], None] = lambda is_end: None


Statement: TypeAlias = Callable[["Server", ServerSession, Transaction], Answer]
"""What a statement does; it is done again from its start after it was blocked."""


class Server:
    """One database.

    Attributes:
        tables: Committed rows by table and key.
        prepared: Prepared transactions by name.
        sessions: Open sessions.
        commits: How many transactions have changed something.
        on_commit: Called with the changes of each commit, before they are applied.
        is_up: Whether it takes connections.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.stream("database")
        self.tables: dict[str, dict[Any, Any]] = {}
        self.prepared: dict[str, Transaction] = {}
        self.sessions: list[ServerSession] = []
        self.commits = 0
        self.on_commit: list[Callable[[Mapping[Place, Any]], None]] = []
        self.is_up = True
        self._locks: dict[Place, Transaction] = {}
        self._keys: dict[object, ServerSession] = {}
        self._counter = 0

    # Rows ----------------------------------------------------------------------------------

    def table(self, name: str) -> dict[Any, Any]:
        """Committed rows of a table."""
        return self.tables.setdefault(name, {})

    def next_number(self) -> int:
        """The next value of the sequence, which no rollback takes back."""
        self._counter += 1
        return self._counter

    def rows(self, transaction: Transaction, table: str) -> Iterator[tuple[Any, Any]]:
        """What a statement of a transaction sees of a table, by key."""
        found = dict(self.table(table))
        found.update({key: row for (name, key), row in transaction.writes.items() if name == table})
        return ((key, found[key]) for key in sorted(found) if found[key] is not None)

    def row(self, transaction: Transaction, table: str, key: object) -> Any:
        """One row as a transaction sees it; None if it is not there."""
        place = (table, key)
        if place in transaction.writes:
            return transaction.writes[place]
        return self.table(table).get(key)

    def lock(self, transaction: Transaction, table: str, key: object) -> None:
        """Lock a row until the transaction ends.

        Raises:
            BlockedError: Another one has locked it.
        """
        holder = self._locks.setdefault((table, key), transaction)
        if holder is not transaction:
            raise BlockedError(holder)

    def write(self, transaction: Transaction, table: str, key: object, row: Any) -> None:
        """Lock a row and change it; None deletes it."""
        self.lock(transaction, table, key)
        transaction.writes[table, key] = row

    def take_key(self, session: ServerSession, key: object) -> bool:
        """Take an advisory lock for a session, if no other session has it."""
        if self._keys.setdefault(key, session) is not session:
            return False
        session.keys.add(key)
        return True

    # Transactions --------------------------------------------------------------------------

    def begin(self, session: ServerSession, *, is_implied: bool = False) -> Transaction:
        """Begin a transaction in a session."""
        session.transaction = Transaction(session, is_implied=is_implied)
        return session.transaction

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or roll back."""
        session, transaction.session = transaction.session, None
        if session is not None:
            session.transaction = None
        if commit and transaction.writes:
            self.commits += 1
            for look in self.on_commit:
                look(transaction.writes)
            for (table, key), row in transaction.writes.items():
                if row is None:
                    self.table(table).pop(key, None)
                else:
                    self.table(table)[key] = row
        self._locks = {place: t for place, t in self._locks.items() if t is not transaction}
        waiting, transaction.waiting = transaction.waiting, []
        for again in waiting:
            self.world.after(0, again)

    def prepare(self, transaction: Transaction, gid: str) -> None:
        """Part a transaction from its session; its locks stay."""
        session, transaction.session = transaction.session, None
        assert session is not None
        session.transaction = None
        self.prepared[gid] = transaction

    def finish(self, gid: str, *, commit: bool) -> None:
        """Commit or roll back a prepared transaction.

        Raises:
            UndefinedObject: There is none of this name.
        """
        transaction = self.prepared.pop(gid, None)
        if transaction is None:
            raise errors.UndefinedObject(f'prepared transaction "{gid}" does not exist')
        self.end(transaction, commit=commit)

    def tell(self) -> None:
        """Notify the sessions that listen."""
        for session in self.sessions:
            if session.listens:
                self.world.after(self.random.randrange(3_000), lambda s=session: s.told(False))

    # Sessions ------------------------------------------------------------------------------

    def connect(self, name: str) -> ServerSession:
        """A new session."""
        session = ServerSession(name, last_us=self.world.now_us)
        self.sessions.append(session)
        return session

    def client_left(self, session: ServerSession) -> None:
        """Notice after a while that a client is gone; what it has sent is still carried out."""
        self.world.after(self.random.choice(NOTICED_US), lambda: self.end_session(session))

    def end_session(self, session: ServerSession) -> None:
        """End a session: what is open is rolled back, and its locks are free."""
        if not session.is_open:
            return
        session.is_open = False
        self.sessions.remove(session)
        for key in session.keys:
            del self._keys[key]
        if session.transaction is not None:
            self.end(session.transaction, commit=False)
        self.world.note("database", "session ends", session.name)
        session.told(True)

    def restart(self, down_us: int) -> None:
        """Die, and come back; prepared transactions are still there."""
        self.world.note("database", "dies", sorted(self.prepared))
        self.is_up = False
        for session in list(self.sessions):
            self.end_session(session)

        def up() -> None:
            self.is_up = True
            self.world.note("database", "is back")

        self.world.after(down_us, up)

    def problems(self) -> list[str]:
        """What nobody may leave behind, once nobody is connected."""
        found = [f"in doubt: {gid} is still prepared" for gid in self.prepared]
        return found + [f"in doubt: {place} is still locked" for place in self._locks]

    def run(
        self,
        session: ServerSession,
        statement: Statement,
        answer: Callable[[Answer | Exception], None],
    ) -> None:
        """Carry out a statement, now or behind the transactions that block it.

        Args:
            session: Whose statement it is.
            statement: What it does.
            answer: Called with the answer, unless the session ends first.
        """
        session.busy += 1
        _Running(self, session, statement, answer).attempt()

    def ran(self, session: ServerSession) -> None:
        """A statement has ended, and the session may be idle from now on."""
        session.busy -= 1
        session.last_us = self.world.now_us
        if session.idle_limit_us is not None:
            self.world.after(session.idle_limit_us + 1, lambda: self._end_idle(session))

    def _end_idle(self, session: ServerSession) -> None:
        limit_us = session.idle_limit_us
        idle = session.busy == 0 and session.transaction is None
        if limit_us is not None and idle and self.world.now_us - session.last_us > limit_us:
            self.end_session(session)


class _Running:
    """A statement under way."""

    def __init__(
        self,
        server: Server,
        session: ServerSession,
        statement: Statement,
        answer: Callable[[Answer | Exception], None],
    ) -> None:
        self._server = server
        self._session = session
        self._statement = statement
        self._answer = answer
        self._is_over = False
        self._is_limited = False

    def attempt(self) -> None:
        """Carry it out, unless another transaction is in its way."""
        if self._is_over:
            return
        server, session = self._server, self._session
        session.waits_for = None
        if not session.is_open:
            self._is_over = True
            return
        transaction = session.transaction or server.begin(session, is_implied=True)
        try:
            found = self._statement(server, session, transaction)
        except BlockedError as blocked:
            self._wait(blocked.holder, transaction)
        except errors.Error as error:
            self._fail(error, transaction)
        else:
            if transaction.is_implied and session.transaction is transaction:
                server.end(transaction, commit=True)
            self._end(found)

    def _wait(self, holder: Transaction, own: Transaction) -> None:
        server, session = self._server, self._session
        session.waits_for = holder
        holder.waiting.append(self.attempt)
        if _is_deadlock(session):
            self._fail(errors.DeadlockDetected("deadlock detected"), own)
        elif own.limit_ms is not None and not self._is_limited:
            self._is_limited = True
            late = errors.QueryCanceled("canceling statement due to statement timeout")
            server.world.after(own.limit_ms * 1_000, lambda: self._fail(late, own))

    def _fail(self, error: errors.Error, own: Transaction) -> None:
        if self._is_over or not self._session.is_open:
            return
        self._session.waits_for = None
        own.has_failed = True
        if own.is_implied:
            self._server.end(own, commit=False)
        self._end(error)

    def _end(self, found: Answer | Exception) -> None:
        self._is_over = True
        self._server.ran(self._session)
        self._answer(found)


def _is_deadlock(session: ServerSession) -> bool:
    """Whether the transactions that a session waits for wait for the session's own."""
    holder = session.waits_for
    for _ in range(DEADLOCK_LIMIT):
        if holder is None or holder.session is None:
            return False
        if holder.session is session:
            return True
        holder = holder.session.waits_for
    return True
