"""Follow docs/tutorial.md in an empty folder, as a newcomer would, and compare what is printed.

``python tools/follow_tutorial.py WHEELS`` takes the page's blocks in their order. A ``python``
block is the file that its first line names. A ``shell`` block is typed into one shell; one that
begins with ``# in a second terminal`` runs beside it, until the end. The ``text`` block behind a
``shell`` block is what it must print, where ``...`` stands for anything within a line.

The shell has an empty folder, an empty home, a PATH with ``python3`` and the system's programs, and
no other variable. WHEELS is a folder with the wheels of onceflow and of all that it needs; nothing
is fetched. On Linux the shell has a network of its own with nothing but the loopback address, so
that neither the page's port nor a package index of this machine plays a part.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
BESIDE = "# in a second terminal"
DEADLINE_S = 300
DONE = "follow-tutorial: the end of a block"
"""What the shell prints behind each block, unless one of its commands failed."""
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
INSIDE = "--inside"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
"""Linux' numbers, for bringing up the loopback interface of a new network."""


class UntrueError(Exception):
    """The page does not work as printed; the text tells where."""


class Step(NamedTuple):
    """One block to act upon.

    Attributes:
        kind: ``file``, ``shell`` or ``beside``.
        text: Its content.
        shown: What it must print; None if the page does not say.
    """

    kind: str
    text: str
    shown: str | None = None


def steps_of(page: str) -> list[Step]:
    """Read a page.

    Raises:
        UntrueError: It has a block that nothing can be done with.
    """
    found: list[Step] = []
    for language, content in re.findall(r"^```([^\n]*)\n(.*?)^```$", page, re.M | re.S):
        if language == "shell":
            found.append(Step("beside" if content.startswith(BESIDE) else "shell", content))
        elif language == "python" and re.match(r"# \w+\.py\n", content):
            found.append(Step("file", content))
        elif language == "text" and found and found[-1].kind != "file" and not found[-1].shown:
            found[-1] = found[-1]._replace(shown=content)
        else:
            raise UntrueError(f"a {language!r} block that cannot be followed:\n{content}")
    return found


def is_shown(printed: str, shown: str) -> bool:
    """Whether what was printed is what the page shows, ``...`` being anything within a line."""
    pattern = r"[^\n]*".join(map(re.escape, shown.rstrip("\n").split("...")))
    return re.fullmatch(pattern, _bare(printed)) is not None


def _bare(printed: str) -> str:
    return "\n".join(line.rstrip() for line in printed.rstrip("\n").split("\n"))


class Terminal:
    """A shell that runs one block after the other and keeps what they print.

    Args:
        folder: Where it starts.
        environment: All its variables.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/bash", "-e"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._printed = ""
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._printed += line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def run(self, step: Step) -> None:
        """Run a block to its end; one of a terminal of its own only until it has printed enough.

        Raises:
            UntrueError: A command failed, did not end, or printed something else.
        """
        assert self._process.stdin is not None
        with self._changed:
            self._printed = ""
        self._process.stdin.write(f"{{\n{step.text}}} < /dev/null\necho {DONE}\n")
        self._process.stdin.flush()
        beside = step.kind == "beside"

        def is_done() -> bool:
            shows = beside and (step.shown is None or is_shown(self._printed, step.shown))
            return shows or self._printed.endswith(f"{DONE}\n")

        self._wait(is_done)
        printed = self._printed.removesuffix(f"{DONE}\n")
        if printed == self._printed and not beside:
            raise UntrueError(f"{step.text}failed or did not end:\n{printed}")
        if step.shown is not None and not is_shown(printed, step.shown):
            raise UntrueError(f"{step.text}must print:\n{step.shown}but printed:\n{printed}")

    def _wait(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, the shell has ended, or for too long."""
        deadline = time.monotonic() + DEADLINE_S
        with self._changed:
            while not holds() and not self._ended and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())

    def close(self) -> None:
        """End the shell and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join()
        with self._process:  # Its pipes are closed, and it is waited for.
            pass


def follow(steps: list[Step], folder: Path, environment: dict[str, str]) -> None:
    """Do what the page says.

    Raises:
        UntrueError: It does not work as printed.
    """
    with contextlib.ExitStack() as ended:

        def terminal() -> Terminal:
            made = Terminal(folder, environment)
            ended.callback(made.close)
            return made

        first = terminal()
        for step in steps:
            begin = time.monotonic()
            if step.kind == "file":
                name = step.text.partition("\n")[0].removeprefix("# ")
                (folder / name).write_text(step.text)
            else:
                (terminal() if step.kind == "beside" else first).run(step)
                last = step.text.splitlines()[-1]
                print(f"{time.monotonic() - begin:5.1f} s  {last}", flush=True)


def newcomer(folder: Path, wheels: Path) -> dict[str, str]:
    """The variables of somebody who has Python, and for whom pip finds these wheels."""
    programs, home = folder / "programs", folder / "home"
    for made in (programs, home):
        made.mkdir()
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (programs / "python3").symlink_to(python)
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": f"{programs}:/usr/bin:/bin",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_INDEX": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


def bring_up_loopback() -> None:
    """Let the addresses of this machine itself be reached in a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = b"lo".ljust(16, b"\0")
        found = fcntl.ioctl(any_socket, SIOCGIFFLAGS, name + bytes(24))
        flags = struct.unpack_from("h", found, 16)[0] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, name + struct.pack("h", flags) + bytes(22))


def has_own_networks() -> bool:
    """Whether this user may make a network."""
    return (
        shutil.which(OWN_NETWORK[0]) is not None
        and subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    )


def main() -> None:
    """Follow the page, in a new network where that can be."""
    arguments = sys.argv[1:]
    if INSIDE not in arguments and has_own_networks():
        os.execvp(OWN_NETWORK[0], [*OWN_NETWORK, sys.executable, __file__, INSIDE, *arguments])
    if INSIDE in arguments:
        bring_up_loopback()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onceflow-tutorial-") as name:
        folder = Path(name, "empty")
        folder.mkdir()
        steps = steps_of(PAGE.read_text())
        try:
            follow(steps, folder, newcomer(Path(name), Path(arguments[-1]).absolute()))
        except UntrueError as error:
            sys.exit(f"docs/tutorial.md is untrue: {error}")
    print(f"the tutorial works as printed: {len(steps)} steps in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
