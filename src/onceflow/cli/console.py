"""The command ``onceflow console``: the web console of a cluster, until it is interrupted."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import click

from onceflow.cli.base import Command, Failure
from onceflow.cli.connect import Connection, connected


@click.command(
    cls=Command, epilog="Example: onceflow console --bootstrap localhost:9092 --port 8080"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="Port of the pages; 0 for any free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Any but loopback lets its whole network read.",
)
@click.option(
    "--sample-ms",
    type=click.IntRange(500),
    default=5_000,
    show_default=True,
    help="How often the lag of all groups is asked.",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@connected
def console(
    connection: Connection, port: int, host: str, sample_ms: int, until_stdin_ends: bool
) -> None:
    """Show topics, messages, groups and transactions in the browser.

    Nothing in the cluster is changed. Each message is marked committed, aborted or open.
    """
    try:
        import uvicorn

        from onceflow.console.batches import BatchAdmin
        from onceflow.console.server import application
    except ImportError as error:
        raise Failure(
            f"the console needs a web server: {error}\nNext: pip install 'onceflow[console]'", 1
        ) from error
    admin = BatchAdmin(config=connection.settings.admin())
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise Failure(
            f"--host {host} --port {port}: {error.strerror or error}\n"
            "Next: give another --port; 0 takes any free one",
            1,
        ) from error
    with listening:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"console at http://{shown}:{listening.getsockname()[1]} (Ctrl-C ends it)")
        config = uvicorn.Config(
            application(admin, host=shown, sample_ms=sample_ms),
            log_level="warning",
            access_log=False,
            ws="none",
        )
        server = uvicorn.Server(config)
        if until_stdin_ends:
            _when_stdin_ends(server.handle_exit)
        server.run(sockets=[listening])


def _when_stdin_ends(stop: Callable[[int, FrameType | None], None]) -> None:
    """Stop as after SIGTERM once whoever started this process is gone."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop(signal.SIGTERM, None)

    threading.Thread(target=watch, name="onceflow-console-stdin", daemon=True).start()
