"""Connections to PostgreSQL for the sink, the outbox, the inbox and two-phase commit.

No other module imports psycopg; without it, the error says what to install. This module decides
which errors are temporary, and limits the time of calls by closing their connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from onceflow.sdk.errors import ConfigError

try:
    import psycopg
    from psycopg.rows import TupleRow
    from psycopg.sql import SQL, Composed, Identifier, Literal
except ImportError as _missing:
    raise ImportError("psycopg is missing: pip install 'onceflow[postgres]'") from _missing

__all__ = ["SQL", "Composed", "Identifier", "Literal", "psycopg"]

PostgresConnection: TypeAlias = psycopg.Connection[TupleRow]

# Classes of SQLSTATE: connection, transaction rollback, resources, object state (a lock that is not
# available), operator intervention (a timeout or a shutdown), system, internal.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING = ("08", "40", "53", "55", "57", "58", "XX")


def checked_dsn(dsn: str) -> str:
    """Return the address of a database if libpq can read it.

    Raises:
        ConfigError: It cannot. The message does not hold the address, which may hold a password.
    """
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError(
            "dsn",
            "(hidden)",
            "libpq cannot read it; write postgresql://user@host:5432/database or "
            "'host=... user=... dbname=...'",
        ) from None
    return dsn


def has_password(dsn: str) -> bool:
    """Whether the address of a database holds a password.

    Raises:
        ConfigError: It cannot be read.
    """
    return bool(psycopg.conninfo.conninfo_to_dict(checked_dsn(dsn)).get("password"))


def identifier(field: str, name: str) -> Identifier:
    """Return a name for use in a statement; a dot separates schema and table.

    Args:
        field: The argument with the name, for the error.
        name: The name.

    Raises:
        ConfigError: A part is empty, or there are more than two.
    """
    parts = name.split(".")
    if "" in parts or len(parts) > 2:
        raise ConfigError(field, name, "must be a name such as orders or shop.orders")
    return Identifier(*parts)


def connected(dsn: str, timeout_ms: int) -> PostgresConnection:
    """Return a connection without implied transactions: BEGIN and COMMIT are statements.

    Args:
        dsn: The address.
        timeout_ms: Bound of connecting; libpq counts whole seconds and takes 2 at least.
    """
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    defaults: dict[str, str | int] = {
        "connect_timeout": max(2, timeout_ms // 1000),
        "fallback_application_name": "onceflow",
    }
    missing = {name: value for name, value in defaults.items() if name not in given}
    text = psycopg.conninfo.make_conninfo(dsn, **missing)
    return psycopg.connect(text, autocommit=True)


def is_passing(error: Exception) -> bool:
    """Whether an error is temporary: of the server or the connection, not of a row."""
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return str(state)[:2] in _PASSING


@dataclass(slots=True, eq=False)
class Cut:
    """Whether a connection was cut because its time was over.

    libpq tells of a cut as of a server that has closed the connection; only this tells them apart.

    Attributes:
        happened: Whether it was.
    """

    happened: bool = False


class _Watch:
    """One thread that cuts connections whose time is over.

    With a thread for each call, the caller would wait for the interpreter lock when that starts and
    ends. The thread drops deadlines of ended calls when it next wakes up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadlines: dict[socket.socket, tuple[float, Cut]] = {}
        self._wakes_s = float("inf")

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="onceflow-postgres", daemon=True).start()

    def add(self, handle: socket.socket, deadline_s: float, cut: Cut) -> None:
        """Cut a connection at a time, unless ``remove`` is called before."""
        with self._changed:
            self._deadlines[handle] = deadline_s, cut
            if deadline_s < self._wakes_s:
                self._changed.notify()

    def remove(self, handle: socket.socket) -> None:
        """Forget a connection; after this call it is never cut."""
        with self._changed:
            self._deadlines.pop(handle, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for handle, (deadline_s, cut) in list(self._deadlines.items()):
                    if deadline_s <= now_s:
                        del self._deadlines[handle]
                        cut.happened = True
                        with contextlib.suppress(OSError):
                            handle.shutdown(socket.SHUT_RDWR)
                ends = (deadline_s for deadline_s, _ in self._deadlines.values())
                self._wakes_s = min(ends, default=float("inf"))
                wait_s = None if not self._deadlines else self._wakes_s - now_s
                self._changed.wait(wait_s)


_watches: dict[int, _Watch] = {}
"""By process id: in a forked child the parent's thread does not exist, and its lock may stay
locked."""


def _watch() -> _Watch:
    new = _Watch()
    found = _watches.setdefault(os.getpid(), new)
    if found is new:
        found.start()
    return found


@contextlib.contextmanager
def cut_after(connection: PostgresConnection, limit_ms: int) -> Iterator[Cut]:
    """Cut a connection when the time is over.

    ``statement_timeout`` limits a server that runs. Without this, a call would wait without end for
    a stopped server or a broken network.

    Args:
        connection: The connection.
        limit_ms: When to cut it.
    """
    cut = Cut()
    if connection.closed:
        yield cut
        return
    handle = socket.socket(fileno=os.dup(connection.fileno()))
    watch = _watch()
    watch.add(handle, time.monotonic() + limit_ms / 1000, cut)
    try:
        yield cut
    finally:
        watch.remove(handle)
        handle.close()
