"""The console beside the daemon: ``onceflow console`` as a child process, which ends with it.

It is a separate process, so that its work does not delay the broker's loop. It connects without TLS
and authentication, so it needs a listener without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence

from onceflow.broker_lite.settings.listeners import (
    WILDCARD_HOSTS,
    Listener,
    SecurityProtocol,
    parse_address,
)
from onceflow.sdk.errors import ConfigError

STOP_S = 5
"""How long the child may take to end before it is killed."""


def plain_listener(listeners: Sequence[Listener]) -> Listener:
    """Return the listener that a console can use.

    Args:
        listeners: Those of the broker.

    Raises:
        ConfigError: There is none without TLS and authentication.
    """
    for listener in listeners:
        if listener.protocol is SecurityProtocol.PLAINTEXT:
            return listener
    raise ConfigError(
        "--console",
        ", ".join(map(str, listeners)),
        "needs a PLAINTEXT listener; without one run onceflow console --config FILE beside it",
    )


@contextlib.asynccontextmanager
async def beside(
    port: int | None, listener: Listener | None, addresses: str
) -> AsyncIterator[None]:
    """Run the console during the ``async with`` block.

    Args:
        port: Port of its pages on the loopback address, 0 for any free one; None for no console.
        listener: The listener that it connects to.
        addresses: Addresses of the broker, with their ports.
    """
    if port is None or listener is None:
        yield
        return
    variables = {key: text for key, text in os.environ.items() if not key.startswith("ONCEFLOW_")}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onceflow", "console", "--port", str(port)),
        *("--bootstrap", bound_address(listener, addresses), "--until-stdin-ends"),
        env=variables,
        stdin=asyncio.subprocess.PIPE,  # The child ends when this pipe closes.
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), STOP_S)
        except TimeoutError:
            child.kill()
            await child.wait()


def bound_address(listener: Listener, addresses: str) -> str:
    """Return ``HOST:PORT`` under which this machine reaches a listener.

    Args:
        listener: The listener, whose configured port may be 0.
        addresses: Addresses of the broker: ``NAME://HOST:PORT`` of several, or ``HOST:PORT``.
    """
    bound = addresses.split(",")
    found = next((each for each in bound if each.startswith(f"{listener.name}://")), bound[0])
    host, port = parse_address("--listen", found.rpartition("://")[2])
    host = "127.0.0.1" if host in WILDCARD_HOSTS else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
