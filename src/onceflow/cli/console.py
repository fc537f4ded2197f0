"""The command ``onceflow console``: the web console of a cluster, until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from onceflow.cli.base import Command, Failure
from onceflow.cli.connect import Connection, connected
from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from onceflow.console.schemas import Decode
    from onceflow.console.server import Writing
    from onceflow.sdk import AsyncAdmin

EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})


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
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer requests that call this machine so, beside loopback and --host.",
)
@click.option(
    "--sample-ms",
    type=click.IntRange(500),
    default=5_000,
    show_default=True,
    help="How often the lag of all groups is asked.",
)
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="URL",
    help="Health port of workers, as http://HOST:PORT: their processors are shown.",
)
@click.option("--registry", metavar="URL", help="Schema registry, to decode keys and values.")
@click.option(
    "--write",
    is_flag=True,
    help="Let who has the token replay dead letters; it is printed at the start.",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@connected
def console(
    connection: Connection,
    port: int,
    host: str,
    names: tuple[str, ...],
    sample_ms: int,
    workers: tuple[str, ...],
    registry: str | None,
    write: bool,
    until_stdin_ends: bool,
) -> None:
    """Show topics, messages, groups, transactions and processors in the browser.

    Nothing in the cluster is changed, but for dead letters that are replayed with --write. Each
    message is marked committed, aborted or open.
    """
    if host in EVERY_ADDRESS and not names:
        raise click.UsageError(
            f"--host {host!r} is every address: say by which names browsers reach this machine, "
            "--allow-host NAME, so that no other site can have them ask for it"
        )
    try:
        import uvicorn

        from onceflow.console.batches import BatchAdmin
        from onceflow.console.server import application
        from onceflow.console.workers import Workers
    except ImportError as error:
        raise Failure(
            f"the console needs a web server: {error}\nNext: pip install 'onceflow[console]'", 1
        ) from error
    admin = BatchAdmin(config=connection.settings.admin())
    decode = _decoder(connection, registry)
    writing = _writing(connection) if write else None
    try:
        watched = Workers(workers)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
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
        address = f"http://{shown}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            application(
                admin,
                names=(host, shown, *names),
                sample_ms=sample_ms,
                workers=watched,
                decode=decode,
                writing=writing,
            ),
            log_level="warning",
            access_log=False,
            ws="none",
        )
        server = uvicorn.Server(config)
        if until_stdin_ends:
            _when_stdin_ends(server.handle_exit)
        if writing is not None:
            click.echo(f"token for replays: {writing.token}")
        asyncio.run(_serve(admin, server, listening, address))


def _decoder(connection: Connection, registry: str | None) -> Decode | None:
    """What reads keys and values with schemas; None where no registry is named."""
    if registry is None and not connection.registry_environ:
        return None
    from onceflow.cli.schemas import decoder, open_registry

    return decoder(open_registry(connection, registry))


def _writing(connection: Connection) -> Writing:
    """Who may replay dead letters, and how that is done."""
    from onceflow.cli.dlq import replay_group, replay_letters
    from onceflow.console.server import BadQueryError, Writing

    def replay(topic: str, dry_run: bool) -> list[dict[str, object]]:
        try:
            return replay_letters(connection, topic, None, replay_group(topic), None, dry_run)
        except Failure as failure:
            raise BadQueryError(failure.message) from failure

    return Writing(secrets.token_urlsafe(18), replay)


async def _serve(
    admin: AsyncAdmin, server: uvicorn.Server, listening: socket.socket, address: str
) -> None:
    """Serve once the cluster has answered, so that a wrong address is an error of the command."""
    async with admin:
        click.echo(f"console at {address} (Ctrl-C ends it)")
        await server.serve(sockets=[listening])


def _when_stdin_ends(stop: Callable[[int, FrameType | None], None]) -> None:
    """Stop as after SIGTERM when the process that started this one has ended."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop(signal.SIGTERM, None)

    threading.Thread(target=watch, name="onceflow-console-stdin", daemon=True).start()
