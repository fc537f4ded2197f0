"""PostgreSQL for tests: one server in a temporary folder, on a free port of 127.0.0.1.

The programs come from the system (Debian package ``postgresql``). ``initdb`` refuses to run as
root, so there the server is run by ``nobody``. Each test gets a schema of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from real_kafka import free_ports

DEADLINE_S = 60
PROGRAMS = ("initdb", "postgres")
REMEDY = "install the Debian package postgresql, or put its programs into PATH"
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # the machine stays up through the tests
    "max_prepared_transactions": "10",
    "shared_buffers": "16MB",
    "max_connections": "50",
}


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, newest version first."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    return next((f for f in folders if all((f / name).exists() for name in PROGRAMS)), None)


def _version(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0


def unavailable_reason() -> str:
    """Why there can be no server; empty if there can."""
    return "" if programs() else f"no {' and '.join(PROGRAMS)} were found: {REMEDY}"


class PostgresServer:
    """A running server."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self._bin = bin_folder
        self._numbers = itertools.count()
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def initialise(self) -> None:
        done = subprocess.run(
            [
                *(str(self._bin / "initdb"), "-D", str(self.folder / "data"), "-U", "onceflow"),
                *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            capture_output=True,
            check=False,
            cwd=self.folder,
            **_unprivileged(),
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start, on another port if somebody took the free one meanwhile."""
        for _ in range(5):
            (self.port,) = free_ports(1)
            options = [f"--{name}={value}" for name, value in OPTIONS.items()]
            with (self.folder / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    [
                        *(str(self._bin / "postgres"), "-D", str(self.folder / "data")),
                        *("-p", str(self.port), *options),
                    ],
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    **_unprivileged(),
                )
            if self._comes_up():
                return
        raise AssertionError((self.folder / "log").read_text())

    def _comes_up(self) -> bool:
        assert self.process is not None
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.dsn):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        return False

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=onceflow dbname=postgres"

    def schema(self) -> str:
        """Make a schema; gives an address whose connections find and make tables there."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.dsn} options='-c search_path={name}'"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is PostgreSQL's fast shutdown; SIGQUIT leaves its files as a crash would."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(DEADLINE_S)
            self.process = None


def _unprivileged() -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    bin_folder = programs()
    assert bin_folder is not None, unavailable_reason()
    folder = Path(tempfile.mkdtemp(prefix="onceflow-postgres-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = PostgresServer(folder, bin_folder)
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rows_of(dsn: str, text: str) -> Sequence[tuple[object, ...]]:
    """What a reader sees."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text).fetchall()  # type: ignore[call-overload, no-any-return]


def execute(dsn: str, text: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(text)  # type: ignore[call-overload]
