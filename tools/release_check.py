"""Install what `make dist` builds into clean environments, compiled and plain, and try it.

``python tools/release_check.py`` builds the source archive and the wheel of this interpreter, and
takes every Python that `tools/pythons.sh` finds. For each one it installs the wheel (that of
another interpreter is built from the source archive) and, forbidding to compile, the source
archive, each into a new virtual environment, and runs `tools/smoke.py` there. Without a C compiler
it fails: a release is compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class StepFailedError(Exception):
    """A command failed; the text is what it printed."""


def run(command: list[str | Path], **environment: str) -> str:
    """Run a command away from the tree, and return what it printed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env=variables | environment,
        timeout=900,
    )
    if done.returncode:
        shown = " ".join(map(str, command))
        raise StepFailedError(f"{shown}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build as `make dist` does.

    Returns:
        The source archive, and the wheel that was built from it for this interpreter.
    """
    run([sys.executable, "-m", "build", "-o", folder, ROOT], ONCEFLOW_COMPILE="1")
    (archive,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(archive) as opened:
        links = [m.name for m in opened.getmembers() if not (m.isfile() or m.isdir())]
    if links:
        raise StepFailedError(f"{archive.name} holds more than files and folders: {links}")
    return archive, wheel


def wheel_for(python: str, archive: Path, ours: Path, folder: Path) -> Path:
    """The wheel for an interpreter: the one at hand, or built as its pip would build it."""
    suffix = run([python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"])
    if suffix.strip() == sysconfig.get_config_var("SOABI"):
        return ours
    # pip remembers what it built of an archive by the archive's path, so each gets a new one.
    folder.mkdir()
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, archive]
    run(command, ONCEFLOW_COMPILE="1")
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_in_new_environment(python: str, package: Path, engine: str, folder: Path) -> str:
    """Install a package and run the smoke test; returns the line that this prints."""
    run([python, "-m", "venv", folder])
    command = [folder / "bin" / "python", "-m", "pip", "install", "-q", package]
    run(command, ONCEFLOW_COMPILE="1" if engine == "compiled" else "0")
    told = run([folder / "bin" / "onceflow", "--version"])
    if f"({engine}" not in told:
        raise StepFailedError(f"onceflow --version says {told!r}, not {engine}")
    return run([folder / "bin" / "python", ROOT / "tools" / "smoke.py", engine]).strip()


def main() -> None:
    """Build, and go through the interpreters."""
    found = run(["bash", ROOT / "tools" / "pythons.sh"]).split()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onceflow-release-") as name:
        work = Path(name)
        try:
            archive, ours = build(work / "dist")
            for number, python in enumerate(found):
                wheel = wheel_for(python, archive, ours, work / f"wheels-{number}")
                for engine, package in (("compiled", wheel), ("plain", archive)):
                    folder = work / f"{engine}-{number}"
                    line = try_in_new_environment(python, package, engine, folder)
                    print(f"{package.name}: {line}", flush=True)
        except StepFailedError as error:
            sys.exit(f"release-check: failed: {error}")
    print(f"release-check: {len(found)} interpreters in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
