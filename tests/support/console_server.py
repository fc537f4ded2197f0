"""The console of a cluster on a free port of this process, and what it answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from onceflow.console.batches import BatchAdmin
from onceflow.console.schemas import Decode
from onceflow.console.server import Writing, application
from onceflow.console.workers import Workers

DEADLINE_S = 30


@dataclass(frozen=True)
class Console:
    """A running console.

    Attributes:
        port: Its port on 127.0.0.1.
    """

    port: int

    @property
    def address(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, host: str | None = None, method: str = "GET", token: str | None = None
    ) -> tuple[int, Any]:
        """Ask for a path; returns the status, and the JSON or the text of the answer."""
        request = urllib.request.Request(self.address + path, method=method)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        if host is not None:
            request.add_header("Host", host)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode()

    def get(self, path: str) -> Any:
        """Ask for a path that must be there; returns the JSON."""
        status, found = self.ask(path)
        assert status == 200, found
        return found


@contextlib.contextmanager
def console_of(
    bootstrap: str,
    *,
    sample_ms: int = 200,
    workers: Sequence[str] = (),
    decode: Decode | None = None,
    writing: Writing | None = None,
) -> Iterator[Console]:
    """Serve the console of a cluster.

    Args:
        bootstrap: Addresses of brokers.
        sample_ms: How often the lag is asked.
        workers: Addresses of workers.
        decode: Reads values with schemas.
        writing: What may be changed.
    """
    admin = BatchAdmin(bootstrap_servers=bootstrap)
    config = uvicorn.Config(
        application(
            admin,
            sample_ms=sample_ms,
            workers=Workers(workers),
            decode=decode,
            writing=writing,
        ),
        log_level="warning",
        access_log=False,
        ws="none",
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not server.started:
                assert thread.is_alive(), "the console did not start"
                assert time.monotonic() < deadline, "the console did not start in time"
                thread.join(0.01)
            yield Console(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the console did not stop"
