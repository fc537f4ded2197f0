"""The control endpoint: faults, journal, clock, and life of a broker over HTTP and JSON.

For tests in any language; it runs beside a broker in process, or in a daemon that was asked for it,
and only on this machine's own addresses. This module reads HTTP and writes it; what can be asked
is in ``control_calls``. Each connection serves one request, of bounded size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.serde import to_json

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.testing")

HEAD_BYTES_MAX = 16_384
"""Longest request line with headers."""

BODY_BYTES_MAX = 1_048_576
"""Longest body of a request."""

READ_SECONDS_MAX = 10.0
"""How long a peer may take to say what it wants."""

WRITE_SECONDS_MAX = 30.0
"""How long it may take to take the answer."""

CONNECTIONS_MAX = 64
"""Connections at a time; further ones are closed."""

HOST = "127.0.0.1"


class ControlRequest(NamedTuple):
    """What was asked.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        query: Query parameters; of a repeated one the last counts.
        body: Members of the JSON object that was sent; empty without one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, object]


class ControlError(Exception):
    """A request that is refused.

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
        answer: Gives what is to be answered, as plain values.

    Attributes:
        port: Where it listens, 0 before it does.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port: int = 0

    async def start(self, port: int) -> None:
        """Listen.

        Args:
            port: Port of 127.0.0.1, 0 for any free one.

        Raises:
            OSError: The port cannot be had.
        """
        self._server = await asyncio.start_server(self._serve, HOST, port, limit=HEAD_BYTES_MAX)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def file_handles(self) -> list[int]:
        """Handles of all sockets that are open."""
        listening = () if self._server is None else self._server.sockets
        open_ = (writer.get_extra_info("socket") for writer in list(self._open))
        return [each.fileno() for each in (*listening, *open_) if each is not None]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            status, answer = await self._answered(reader)
            body = to_json(answer) + b"\n"
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await writer.drain()
        except (OSError, TimeoutError):
            logger.debug("a peer of the control endpoint went away, or takes nothing")
            writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answered(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, object]:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                request = await _read(reader)
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
        except TimeoutError:
            return HTTPStatus.REQUEST_TIMEOUT, {"error": "the request took too long to arrive"}
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"this is no HTTP request: {error}"}
        except Exception as error:  # A fault of ours costs this answer, never the broker.
            logger.exception("a control request failed")
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}


async def _read(reader: asyncio.StreamReader) -> ControlRequest:
    """Read one request and check that it comes from this machine's user, not from a web page."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head[:-4].split("\r\n")
    method, _, rest = line.partition(" ")
    target, _, protocol = rest.rpartition(" ")
    if not method or not target or not protocol.startswith("HTTP/1."):
        raise ValueError(f"it begins with {line[:60]!r}")
    headers = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon:
            raise ValueError(f"there is a header {field[:60]!r}")
        headers[name.strip().lower()] = value.strip()
    # A page in a browser can send requests here too; it cannot leave these two out or change them.
    if "origin" in headers or not _is_loopback(headers.get("host", HOST)):
        raise ControlError(HTTPStatus.FORBIDDEN, "requests of web pages are not answered")
    parts = urlsplit(target)
    return ControlRequest(
        method.upper(), parts.path, dict(parse_qsl(parts.query)), await _body(reader, headers)
    )


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> Mapping[str, object]:
    size = headers.get("content-length", "0")
    if "transfer-encoding" in headers:
        raise ControlError(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length, not chunks")
    if not size.isascii() or not size.isdigit():
        raise ValueError(f"Content-Length is {size[:20]!r}")
    if len(size) > 9 or int(size) > BODY_BYTES_MAX:
        raise ControlError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {BODY_BYTES_MAX} bytes"
        )
    if not int(size):
        return {}
    try:
        body = json.loads(await reader.readexactly(int(size)))
    except (ValueError, RecursionError) as error:
        raise ControlError(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
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
