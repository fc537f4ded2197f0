"""Runs a worker for development, and starts it again when its source has changed.

A worker that ended, by an error or at the end of a bounded run, is started at the next change. The
worker is stopped as by SIGTERM: it commits, and keeps its place in the group for the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from onceflow.cli.base import Failure

SETTLED_S: Final = 0.2
"""How long files must be left alone: an editor may write a file in several steps."""
IGNORED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


def is_source(path: Path, folder: Path) -> bool:
    """Whether a change of a file means that the worker is to be started again.

    Args:
        path: The file.
        folder: The folder that is watched.
    """
    if path.suffix != ".py":
        return False
    parts = path.relative_to(folder).parts if path.is_relative_to(folder) else path.parts
    return not any(part in IGNORED or part.startswith(".") for part in parts)


def run_reloading(command: Sequence[str]) -> int:
    """Run a command until SIGINT or SIGTERM, and again after each change of the sources here.

    Args:
        command: Starts the worker.

    Returns:
        Exit status: that of the worker when it was stopped.

    Raises:
        Failure: The library that watches files is not installed.
    """
    try:
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer
    except ImportError as error:
        step = "pip install 'onceflow[reload]'"
        raise Failure(f"--reload: {error}\nNext: {step}", 2) from error
    folder = Path.cwd()

    async def watched() -> int:
        loop = asyncio.get_running_loop()
        reloader = Reloader(command)

        class Changes(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                names = (event.src_path, event.dest_path)
                if event.event_type in WRITES and any(
                    is_source(Path(str(name)), folder) for name in names if name
                ):
                    loop.call_soon_threadsafe(reloader.changed)

        observer = Observer()
        observer.schedule(Changes(), str(folder), recursive=True)
        observer.start()
        try:
            return await reloader.run()
        finally:
            observer.stop()
            await asyncio.to_thread(observer.join)

    return asyncio.run(watched())


WRITES: Final = frozenset({"created", "modified", "moved", "deleted"})


class Reloader:
    """Starts one process after the other.

    Args:
        command: Starts the worker.
        tell: Says what happens.
    """

    def __init__(
        self,
        command: Sequence[str],
        tell: Callable[[str], None] = lambda text: click.echo(text, err=True),
    ) -> None:
        self._command = command
        self._tell = tell
        self._changes = 0
        self._news = asyncio.Event()
        self._stopped_by: signal.Signals | None = None
        self._process: asyncio.subprocess.Process | None = None

    def changed(self) -> None:
        """Note that a source has changed."""
        self._changes += 1
        self._news.set()

    def stop(self, number: signal.Signals) -> None:
        """Hand a signal on to the worker, and start no other.

        Args:
            number: SIGINT or SIGTERM.
        """
        self._stopped_by = number
        self._news.set()
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def run(self) -> int:
        """Run until a signal.

        Returns:
            The exit status of the last worker, 0 if it was not running.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop, number)
        status = 0
        while self._stopped_by is None:
            status = await self._run_one()
            if self._stopped_by is None and not self._news.is_set():
                self._tell(f"onceflow run: ended with status {status}; waiting for a change")
                status = 0
                await self._news.wait()
            await self._settle()
        return max(0, status)

    async def _run_one(self) -> int:
        self._news.clear()
        # Ctrl-C of a terminal reaches all processes of its group: the worker gets it from here.
        here, there = socket.socketpair()
        with here:
            with there:
                self._process = await asyncio.create_subprocess_exec(
                    *(*self._command, "--lifeline", str(there.fileno())),
                    pass_fds=[there.fileno()],
                    process_group=0,
                )
            return await self._watch(self._process)

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        if self._stopped_by is not None:
            self._signal(self._stopped_by)
        ended = asyncio.create_task(process.wait())
        news = asyncio.create_task(self._news.wait())
        await asyncio.wait({ended, news}, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        if not ended.done() and self._stopped_by is None:
            self._tell("onceflow run: the source has changed; starting again")
            self._signal(signal.SIGTERM)
        status = await ended
        self._process = None
        return status

    async def _settle(self) -> None:
        """Wait until no file has changed for a moment."""
        seen = -1
        while self._stopped_by is None and seen != self._changes:
            seen = self._changes
            await asyncio.sleep(SETTLED_S)
