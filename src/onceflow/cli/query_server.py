"""Answers queries of committed state over HTTP, for ``onceflow run --query-port``.

``GET /state/FUNCTION.STATE?key=KEY`` gives JSON for people and other languages; the typed client
(`onceflow.processors.StateClient`) takes MessagePack. Web pages are refused: a request must name
this host as the worker tells it to others, or by a loopback address.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from onceflow.cli.base import Failure
from onceflow.cli.console import EVERY_ADDRESS
from onceflow.processors.errors import (
    NotOwnerError,
    QueryError,
    StateNotReadyError,
    UnknownStateError,
)
from onceflow.processors.queries import Query
from onceflow.processors.state_client import MSGPACK, Reply
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.observe.answers import REQUEST_LIMIT_S
from onceflow.sdk.serde import model_to_mapping, to_json

if TYPE_CHECKING:
    from onceflow.processors.app import App

logger: logging.Logger = logging.getLogger("onceflow.run")

PATH: Final = "/state/"
TIMEOUT_MS: Final = 5_000
TIMEOUT_MAX_MS: Final = 60_000
ANSWERED_MAX: Final = 64
"""Queries that are answered at once; further connections wait."""
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_STATUS: Final[Mapping[type[Exception], int]] = {
    NotOwnerError: 421,
    StateNotReadyError: 503,
    UnknownStateError: 404,
    QueryError: 400,
}


class QueryServer:
    """Answers for one worker; also tells the application where it does.

    Args:
        app: The application; its ``application_server`` is set unless it is.
        host: Address to listen on.
        port: Port; 0 takes a free one.

    Raises:
        Failure: The port cannot be had, or others cannot know by which name to reach it.
    """

    def __init__(self, app: App, host: str, port: int) -> None:
        self._app = app
        advertised = app.settings.application_server
        if host in EVERY_ADDRESS and not advertised:
            raise Failure(
                f"--query-port {port}: {host} is every address, and others must know one of this "
                "worker\nNext: --serve-on ADDRESS, or application_server=HOST:PORT",
                2,
            )
        self._names = LOOPBACK | {host, advertised.rpartition(":")[0].strip("[]")}
        answer = self._answer
        gate = threading.BoundedSemaphore(ANSWERED_MAX)

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_LIMIT_S

            def do_GET(self) -> None:
                with gate:
                    status, kind, body = answer(self.path, self.headers)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                logger.debug(format, *arguments)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise Failure(
                f"--query-port {port}: cannot listen on {host}: {error.strerror}", 1
            ) from error
        self._server.daemon_threads = True
        if not advertised:
            shown = f"[{host}]" if ":" in host else host
            advertised = f"{shown}:{self._server.server_address[1]}"
            app.configure(application_server=advertised)
        self.address: str = advertised
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="onceflow-queries", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, target: str, headers: Any) -> tuple[int, str, bytes]:
        packs = MSGPACK in headers.get("Accept", "")
        try:
            status, reply = self._reply(target, headers)
        except Exception:
            logger.exception("query %s", target[:200])
            status, reply = 500, Reply(error="InternalError", message="see the worker's log")
        if packs:
            return status, MSGPACK, msgspec.msgpack.encode(reply)
        shown: dict[str, object] = (
            {"error": reply.error, "message": reply.message, "owner": reply.owner}
            if reply.error
            else {
                "found": reply.found,
                "value": msgspec.msgpack.decode(reply.value),
                "partition": reply.partition,
            }
        )
        return status, "application/json", to_json(shown)

    def _reply(self, target: str, headers: Any) -> tuple[int, Reply]:
        asked = urlsplit(f"//{headers.get('Host', '')}").hostname
        if asked not in self._names or headers.get("Origin") is not None:
            return 403, Reply(
                error="QueryError", message=f"Host {asked!r} is none of this worker's"
            )
        url = urlsplit(target)
        if not url.path.startswith(PATH):
            return 404, Reply(error="QueryError", message=f"ask {PATH}FUNCTION.STATE?key=KEY")
        try:
            query, timeout_s = _query_of(unquote(url.path.removeprefix(PATH)), url.query)
            found = self._app.query(query, timeout_s)
        except KafkaError as error:
            kind = next((kind for kind in _STATUS if isinstance(error, kind)), None)
            reply = Reply(error=type(error).__name__, message=str(error))
            if isinstance(error, NotOwnerError):
                reply.owner = error.owner
                reply.partition, reply.partitions = error.partition, error.partitions
            return (500 if kind is None else _STATUS[kind]), reply
        packed = msgspec.msgpack.encode(found.value, enc_hook=model_to_mapping)
        return 200, Reply(found.found, msgspec.Raw(packed), found.partition, found.partitions)


_NUMBERS = {"partition": 9, "timeout_ms": 9, "from_ms": 18, "to_ms": 18}
"""Numbers that a query may have, and their most digits."""


def _query_of(state: str, text: str) -> tuple[Query, float]:
    """What the words of a URL ask.

    Raises:
        QueryError: They cannot be read; names the word.
    """
    words = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
    unknown = words.keys() - {"key", "key_hex", *_NUMBERS}
    if unknown:
        raise QueryError(f"{sorted(unknown)[0]}: there are key, key_hex, {', '.join(_NUMBERS)}")
    if ("key" in words) == ("key_hex" in words):
        raise QueryError("key: give the key as key=TEXT, or its bytes as key_hex=HEX")
    try:
        key = words["key"].encode() if "key" in words else bytes.fromhex(words["key_hex"])
    except ValueError as error:
        raise QueryError(f"key_hex: {error}") from error
    numbers: dict[str, int | None] = {}
    for name, digits in _NUMBERS.items():
        word = words.get(name)
        if word is not None and not (word.isascii() and word.isdigit() and len(word) <= digits):
            raise QueryError(f"{name}={word!r}: must be a whole number")
        numbers[name] = None if word is None else int(word)
    given_ms = numbers["timeout_ms"]
    timeout_ms = TIMEOUT_MS if given_ms is None else min(given_ms, TIMEOUT_MAX_MS)
    where = (numbers["partition"], numbers["from_ms"], numbers["to_ms"])
    return Query(state, key, *where), timeout_ms / 1000
