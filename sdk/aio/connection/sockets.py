"""Resolves names, connects sockets, and finds out whether an address speaks TLS.

It decides in which order the addresses of a name are tried, and which errors are refusals.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from functools import partial
from typing import Any, Final

from onceflow.sdk.aio.connection.lookups import in_thread
from onceflow.sdk.core.connection.handshake import SPEAKS_TLS, foreign_protocol
from onceflow.sdk.errors import BrokerConnectionError, KafkaError
from onceflow.sdk.settings.config import ClientConfig

PROBE_LIMIT_S: Final = 1.0
"""How long an address may take to answer whether it speaks TLS."""

REFUSALS: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""Errors of a connection to an address where no server listens; they occur at once."""


async def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, Any]]:
    """Return the addresses of a name; a numeric address needs no look-up."""
    with contextlib.suppress(socket.gaierror):
        figures = socket.AI_NUMERICHOST
        return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=figures)]
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        # Not in the loop's executor: the program could not end while a name server is silent.
        return [*await in_thread(resolve)]
    except RuntimeError:
        # At the end of the program no thread can be started. The loop then serves only a producer
        # that is being closed, so it may wait here.
        return [*resolve()]


async def connect_socket(
    loop: asyncio.AbstractEventLoop, host: str, port: int, config: ClientConfig
) -> socket.socket:
    """Connect to the first address of a name that accepts the connection (KIP-602).

    Each address gets a share of the time, so that one without an answer does not keep the others
    from being tried. (asyncio's own racing of addresses leaks sockets in Python 3.11.)
    """
    try:
        found = await _addresses(host, port)
    except socket.gaierror as error:
        raise refusal(f"{host}:{port}: {describe(error)}") from error
    if host == "localhost":
        # localhost means both loopback addresses (RFC 6761), even if a hosts file lacks one.
        known = {entry[4][0] for entry in found}
        missing = {"127.0.0.1", "::1"} - known if socket.has_ipv6 else set()
        for loopback in missing:
            found += await _addresses(loopback, port)
    share_s = config.socket_connection_setup_timeout_ms / 1000 / len(found)
    errors: list[str] = []
    refused = True
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(share_s):
                await loop.sock_connect(sock, address)
            return sock
        except OSError as error:  # TimeoutError is one of them
            sock.close()
            why = describe(error)
            errors.append(why if len(found) == 1 else f"{address[0]}: {why}")
            refused = refused and error.errno in REFUSALS
        except BaseException:
            sock.close()
            raise
    what = f"{host}:{port}: {', '.join(errors)}"
    raise refusal(what) if refused else BrokerConnectionError(what)


def refusal(what: str) -> BrokerConnectionError:
    """Return the error of an address where no broker can be now."""
    error = BrokerConnectionError(what)
    error.refused = True
    return error


def describe(error: OSError) -> str:
    """Describe an error of a socket, for messages."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror})"
    if isinstance(error, ConnectionResetError) and not error.args:
        return "closed by the broker"  # asyncio's text for an end within TLS is empty
    return error.strerror or str(error) or type(error).__name__


async def speaks_tls(
    loop: asyncio.AbstractEventLoop, host: str, port: int, config: ClientConfig
) -> bool:
    """Whether an address answers the first message of a TLS handshake in TLS."""
    answer: asyncio.Future[bytes] = loop.create_future()
    sock: socket.socket | None = None
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            sock = await connect_socket(loop, host, port, config)
            transport, _ = await loop.create_connection(lambda: _FirstBytes(answer), sock=sock)
            transport.write(_client_hello())
            return bool(foreign_protocol(await answer) == SPEAKS_TLS)
    except (KafkaError, OSError):  # TimeoutError is one of them
        return False
    finally:
        if transport is not None:
            transport.abort()
        elif sock is not None:
            sock.close()


class _FirstBytes(asyncio.Protocol):
    """Reports the first bytes that arrive; none if the connection ends before."""

    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer

    def data_received(self, data: bytes) -> None:
        self._tell(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(b"")

    def _tell(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(data)


def _client_hello() -> bytes:
    """Return the first message of a TLS handshake; the peer's certificate does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    written = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), written).do_handshake()
    return written.read()
