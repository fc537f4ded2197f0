"""The control endpoint: faults, journal, clock, start and stop of a broker over HTTP and JSON.

It is for tests in any language, and listens only on 127.0.0.1. uvicorn implements HTTP. This module
limits the size and the time of requests, and turns JSON into calls of ``control_calls``. Each
connection serves one request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.serde import to_json

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState
except ImportError:
    raise ConfigError(
        "control", "a port", "pip install 'onceflow[testing]' for the control endpoint"
    ) from None

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.testing")

HEAD_BYTES_MAX = 16_384
"""Longest request line with headers."""

BODY_BYTES_MAX = 1_048_576
"""Longest body of a request."""

CONNECTION_SECONDS_MAX = 30.0
"""Time for a peer to send its request and to read the answer, without the broker's own work."""

CONNECTIONS_MAX = 64
"""Most connections; further ones get status 503."""

HOST = "127.0.0.1"


class ControlRequest(NamedTuple):
    """A request.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        query: Query parameters; the last value of a repeated one.
        body: Members of the sent JSON object; empty without one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, object]


class ControlError(Exception):
    """A request is refused.

    Attributes:
        status: HTTP status.
        message: What is wrong.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


Answer = Callable[[ControlRequest], Awaitable[object]]


class ControlServer:
    """An HTTP server for one broker.

    Args:
        answer: Returns the answer as plain values.

    Attributes:
        port: Port on which it listens; 0 before.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._state = ServerState()
        self.port: int = 0

    async def start(self, port: int) -> None:
        """Listen.

        Args:
            port: Port of 127.0.0.1, 0 for any free one.

        Raises:
            OSError: The port is taken.
        """
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(config, self._state, {}), HOST, port
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    def file_handles(self) -> list[int]:
        """Return the handles of all open sockets."""
        listening = () if self._server is None else self._server.sockets
        open_ = (each.transport.get_extra_info("socket") for each in self._connections())
        return [each.fileno() for each in (*listening, *open_) if each is not None]

    def _connections(self) -> list[_Connection]:
        return [each for each in self._state.connections if isinstance(each, _Connection)]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in self._connections():
            each.transport.abort()
        await asyncio.sleep(0)

    async def _serve(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer one request; uvicorn calls this application."""
        assert scope["type"] == "http"
        status, answer = await self._answered(scope, receive)
        body = to_json(answer) + b"\n"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send(
            {
                "type": "http.response.start",
                "status": status.value,
                "headers": headers,
                "trailers": False,
            }
        )
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answered(
        self, scope: HTTPScope, receive: ASGIReceiveCallable
    ) -> tuple[HTTPStatus, object]:
        try:
            _check_head(scope)
            body = _parse_body(await _read_body(receive))
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            request = ControlRequest(scope["method"], scope["path"], query, body)
            return HTTPStatus.OK, await self._answer(request)
        except ControlError as error:
            return error.status, {"error": str(error)}
        except ConfigError as error:
            return HTTPStatus.BAD_REQUEST, {
                "error": str(error),
                "field": error.field,
                "value": str(error.value),
                "remedy": error.remedy,
            }
        except Exception as error:  # a fault in our code must fail only this answer
            logger.exception("a control request failed")
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}


class _Connection(H11Protocol):
    """A connection that is cut when its peer takes too long, as uvicorn has no time limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._cut_later()

    def _cut_later(self) -> None:
        self._timer = self.loop.call_later(CONNECTION_SECONDS_MAX, self._cut)

    def _cut(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_started:
            self._cut_later()  # the broker works on the answer: the peer's time stops
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)


def _check_head(scope: HTTPScope) -> None:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    # A web page can send requests here too, but cannot omit or change these two headers.
    if b"origin" in headers or not _is_loopback(headers.get(b"host", HOST)):
        raise ControlError(HTTPStatus.FORBIDDEN, "requests of web pages are not answered")
    _check_size(int(headers.get(b"content-length", 0)))  # digits only, as uvicorn has checked


async def _read_body(receive: ASGIReceiveCallable) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            raise ControlError(HTTPStatus.BAD_REQUEST, "the request was cut off")
        body += event["body"]
        more = event["more_body"]
        _check_size(len(body))
    return body


def _check_size(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise ControlError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {BODY_BYTES_MAX} bytes"
        )


def _parse_body(data: bytes) -> Mapping[str, object]:
    if not data:
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ControlError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ControlError(HTTPStatus.BAD_REQUEST, 'send a JSON object, as in {"times": 1}')
    return body


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
