"""Goal: the HTTP sink has each row's effect once at a server that knows idempotency keys.

Method: the conformance kit against a server in this process that does the work of a key once; a
process that is killed at each step; answers that are lost, late, or refusals.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions.sinks import (
    Batch,
    Http,
    Move,
    SinkRowError,
    SinkUnavailableError,
    Sqlite,
)
from onceflow.transactions.sinks.testing import FIRST, SECOND, SinkConformance

KILLED = """
import os, signal, sys
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions.sinks import Batch, Http, Move, Sqlite
from onceflow.transactions.sinks.testing import FIRST

url, path, moment = sys.argv[1:]
armed = False

def observe(found):
    if armed and found == moment:
        os.kill(os.getpid(), signal.SIGKILL)

sink = Http(url, Sqlite(path), observer=observe)
sink.open("g")
entry = sink.claim([FIRST], "a")[FIRST]
armed = True
record = ConsumerRecord(FIRST.topic, 0, 4, 0)
sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 5)}, [{"id": 1}], [record]))
"""


class Server:
    """Does the work of each key once; the next requests may be answered otherwise.

    Attributes:
        rows: The work that was done.
        requests: Key and body of every request.
        faults: What to do with the next requests: a status, "lost" (work without an answer), or a
            status with seconds to wait.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.requests: list[tuple[str, dict[str, object]]] = []
        self.faults: deque[int | str | tuple[int, str]] = deque()
        self.keys: set[str] = set()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, wait = server.answer(self.headers["Idempotency-Key"], json.loads(body))
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                if wait:
                    self.send_header("Retry-After", wait)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"told")

            def log_message(self, *_: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/rows"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def answer(self, key: str, row: dict[str, object]) -> tuple[int, str]:
        with self._lock:
            self.requests.append((key, row))
            fault = self.faults.popleft() if self.faults else 200
            if isinstance(fault, tuple):
                return fault
            if fault in (200, "lost") and key not in self.keys:
                self.keys.add(key)
                self.rows.append(row)
            return (0, "") if isinstance(fault, str) else (fault, "")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


class TestHttp(SinkConformance):
    @pytest.fixture(autouse=True)
    def _target(self, server: Server, tmp_path: Path) -> None:
        self.server, self.path = server, tmp_path / "offsets.db"

    def make(self, observer=None) -> Http:  # type: ignore[no-untyped-def]
        return Http(self.server.url, Sqlite(self.path), observer=observer)

    def rows(self) -> Sequence[dict[str, object]]:
        return self.server.rows


STEPS = ("offsets read", "rows", "commit")


@pytest.mark.parametrize("moment", [f"{when} {s}" for s in STEPS for when in ("before", "after")])
def test_a_killed_process_is_made_up_for_under_the_same_keys(
    server: Server, tmp_path: Path, moment: str
) -> None:
    path = tmp_path / "offsets.db"
    program = [sys.executable, "-c", KILLED, server.url, str(path), moment]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    with opened(server, path) as sink:
        entry = sink.claim([FIRST], "b")[FIRST]
        assert entry.offset == (5 if moment == "after commit" else None)
        if entry.offset is None:
            record = ConsumerRecord(FIRST.topic, 0, 4, 0)
            move = Move(entry.epoch, None, 5)
            sink.write(Batch("b", {FIRST: move}, [{"id": 1}], [record]))
    assert server.rows == [{"id": 1}]
    assert len({key for key, _ in server.requests}) == 1


@contextlib.contextmanager
def opened(server: Server, path: Path, **settings: object) -> Iterator[Http]:
    sink = Http(server.url, Sqlite(path), **settings)  # type: ignore[arg-type]
    sink.open("g")
    with contextlib.closing(sink):
        yield sink


def batch_of(sink: Http, count: int) -> Batch:
    """Rows of two partitions, two of each record."""
    claimed = sink.claim([FIRST, SECOND], "a")
    records = [ConsumerRecord(*tp, n, 0) for n in range(count) for tp in claimed for _ in range(2)]
    rows = [{"id": number} for number in range(len(records))]
    moves = {tp: Move(entry.epoch, entry.offset, count) for tp, entry in claimed.items()}
    return Batch("a", moves, rows, records)


@pytest.mark.parametrize("connections", [1, 4])
def test_rows_of_a_partition_are_sent_in_order_each_under_its_key(
    server: Server, tmp_path: Path, connections: int
) -> None:
    with opened(server, tmp_path / "o.db", connections=connections) as sink:
        sink.write(batch_of(sink, 10))
    ids = [int(str(row["id"])) for row in server.rows]
    assert sorted(ids) == list(range(40))
    for partition in (0, 1):
        mine = [number for number in ids if number // 2 % 2 == partition]
        assert mine == sorted(mine)
    assert len({key for key, _ in server.requests}) == 40


@pytest.mark.parametrize("fault", [429, 503, 409, (429, "0"), "lost"])
def test_an_answer_that_may_change_is_asked_for_again(
    server: Server, tmp_path: Path, fault: int | str
) -> None:
    server.faults.extend([fault, fault])
    with opened(server, tmp_path / "o.db") as sink:
        batch = batch_of(sink, 1)
        sink.write(batch)
        assert sink.stored([FIRST])[FIRST].offset == 1
    assert len(server.rows) == 4
    assert len(server.requests) == 6


def test_a_server_that_never_answers_is_given_up_and_asked_again_later(
    server: Server, tmp_path: Path
) -> None:
    with opened(server, tmp_path / "o.db", connections=1) as sink:
        batch = batch_of(sink, 1)
        server.faults.extend(["lost", *[503] * 1000])
        with pytest.raises(SinkUnavailableError, match=r"until the time was over.*timeout_ms"):
            sink.write(batch, 200)
        assert sink.stored([FIRST])[FIRST].offset is None
        server.faults.clear()
        sink.write(batch)
    assert len(server.rows) == 4


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, SinkRowError), (400, SinkRowError), (404, ConfigError), (302, ConfigError)],
)
def test_a_refusal_is_told_and_moves_no_offset(
    server: Server, tmp_path: Path, status: int, kind: type[Exception]
) -> None:
    server.faults.append(status)
    with opened(server, tmp_path / "o.db") as sink:
        with pytest.raises(kind, match=f"answered {status}: told"):
            sink.write(batch_of(sink, 1))
        assert sink.stored([FIRST])[FIRST].offset is None


def test_a_refused_row_of_any_text_is_told(server: Server, tmp_path: Path) -> None:
    """The message shows the beginning of the row, which may end within a character."""
    for length in range(195, 200):
        server.faults.append(422)
        with opened(server, tmp_path / "o.db") as sink:
            entry = sink.claim([FIRST], "a")[FIRST]
            record = ConsumerRecord(FIRST.topic, 0, 4, 0)
            moves = {FIRST: Move(entry.epoch, entry.offset, 5)}
            rows = [{"t": "a" * (length - 7) + "\N{EURO SIGN}" * 9}]
            with pytest.raises(SinkRowError, match="answered 422: told"):
                sink.write(Batch("a", moves, rows, [record]))


def test_what_cannot_work_is_told(tmp_path: Path, server: Server) -> None:
    offsets = Sqlite(tmp_path / "o.db")
    for url in ("ftp://host/x", "host/x", "http:///x"):
        with pytest.raises(ConfigError, match="https://host/path"):
            Http(url, offsets)
    with pytest.raises(ConfigError, match="Authorization") as refused:
        Http("https://me:secret@host/x", offsets)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"connections.*positive"):
        Http(server.url, offsets, connections=0)
    with opened(server, tmp_path / "o.db") as sink:
        move = Move(sink.claim([FIRST], "a")[FIRST].epoch, None, 1)
        with pytest.raises(SinkRowError, match="of=record"):
            sink.write(Batch("a", {FIRST: move}, [{"id": 1}]))
        record = ConsumerRecord(*FIRST, 0, 0)
        with pytest.raises(SinkRowError, match="nothing was sent"):
            sink.write(Batch("a", {FIRST: move}, [{"id": float("nan")}], [record]))
    assert server.requests == []
