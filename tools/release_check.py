"""Install what `make dist` builds into clean environments, compiled and plain, and try it.

``python tools/release_check.py`` builds the source archive and the wheel of this interpreter, and
takes every Python that `tools/pythons.sh` finds. For each one it installs the wheel (that of
another interpreter is built from the source archive) and, forbidding to compile, the source
archive, each into a new virtual environment, and runs `tools/smoke.py` there. Without a C compiler
it fails: a release is compiled.

Then it installs the wheel with its extras twice more, with the oldest and with the newest releases
of all libraries that pyproject.toml allows, and runs `tools/smoke_extras.py` too. The licences of
what came along are printed; one that is not known to be compatible is a failure.

At last it lets `tools/follow_tutorial.py` follow docs/tutorial.md with the wheel. Each line ends
with the seconds that its trial took. ``PARTS="ends tutorial"`` (or ``interpreters``) in the
environment asks for these parts only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from smoke_extras import EXTRAS

ROOT = Path(__file__).resolve().parents[1]


PARTS = ("interpreters", "ends", "tutorial")
ENDS = ("lowest-direct", "highest")
"""Which releases uv takes: the oldest of what the project names itself, or the newest."""
LICENCES = (
    "apache",
    "bsd",
    "isc",
    "lgpl",
    "lesser general public",
    "mit",
    "mozilla public",
    "mpl",
    "oldap-2.8",
    "psf",
    "python software foundation",
)
"""Words of licences under which a library may be used beside code under Apache-2.0."""
TELL_LICENCES = """
import importlib.metadata as m
for d in sorted(m.distributions(), key=lambda d: d.name.lower()):
    told = d.metadata
    names = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if "License" in c]
    text = told.get("License-Expression") or "; ".join(names) or (told.get("License") or "")
    print(d.name, d.version, " ".join(text.split())[:60], sep="\\t")
"""


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
    line = run([folder / "bin" / "python", ROOT / "tools" / "smoke.py", engine]).strip()
    return f"{package.name}: {line}"


def try_end(resolution: str, wheel: Path, folder: Path) -> str:
    """Install the wheel and its extras with releases of one end; returns what the trials print."""
    folder.mkdir()
    uv = [sys.executable, "-m", "uv", "pip"]
    found = folder / "found.txt"
    version = ".".join(map(str, sys.version_info[:2]))
    words = ["-q", "--resolution", resolution, "--python-version", version, "-o", found]
    run([*uv, "compile", *words, ROOT / "pyproject.toml", *_extra_words()])
    run([sys.executable, "-m", "venv", folder / "env"])
    python = folder / "env" / "bin" / "python"
    run([*uv, "install", "-q", "--python", python, "-r", found])
    run([python, "-m", "pip", "install", "-q", "--no-deps", wheel])
    told = [run([python, ROOT / "tools" / "smoke.py", "compiled"]).strip()]
    told.append(run([python, ROOT / "tools" / "smoke_extras.py"]).strip())
    licences = run([python, "-c", TELL_LICENCES]).strip()
    unknown = [
        line
        for line in licences.splitlines()
        if not any(word in line.partition("\t")[2].lower() for word in LICENCES)
    ]
    if unknown:
        raise StepFailedError("licences that nobody has looked at:\n" + "\n".join(unknown))
    listed = licences.splitlines() if resolution == ENDS[-1] else []
    return "\n".join([*listed, f"{resolution} releases: {', '.join(told)}"])


def _extra_words() -> list[str]:
    return [word for extra in EXTRAS for word in ("--extra", extra)]


def follow_tutorial(wheel: Path, folder: Path) -> str:
    """Follow the tutorial with the wheel; returns what the tool prints."""
    folder.mkdir()
    run([sys.executable, "-m", "pip", "download", "-q", "-d", folder, wheel, "pytest"])
    return run([sys.executable, ROOT / "tools" / "follow_tutorial.py", folder]).strip()


def trials(
    parts: Sequence[str], archive: Path, ours: Path, work: Path
) -> Iterator[Callable[[], str]]:
    """Yield what is to be tried; each trial returns what it prints.

    Raises:
        StepFailedError: A wheel cannot be built.
    """
    if "interpreters" in parts:
        for number, python in enumerate(run(["bash", ROOT / "tools" / "pythons.sh"]).split()):
            wheel = wheel_for(python, archive, ours, work / f"wheels-{number}")
            for engine, package in (("compiled", wheel), ("plain", archive)):
                folder = work / f"{engine}-{number}"
                yield partial(try_in_new_environment, python, package, engine, folder)
    if "ends" in parts:
        for resolution in ENDS:
            yield partial(try_end, resolution, ours, work / resolution)
    if "tutorial" in parts:
        yield partial(follow_tutorial, ours, work / "tutorial")


def main() -> None:
    """Build, and go through the parts."""
    parts = os.environ.get("PARTS", "").split() or PARTS
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"PARTS={' '.join(sorted(unknown))}: must be some of {', '.join(PARTS)}")
    begin = before = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onceflow-release-") as name:
        work = Path(name)
        try:
            archive, ours = build(work / "dist")
            print(f"built {ours.name}: {time.monotonic() - before:.0f} s", flush=True)
            before = time.monotonic()
            for trial in trials(parts, archive, ours, work):
                print(f"{trial()}: {time.monotonic() - before:.0f} s", flush=True)
                before = time.monotonic()
        except StepFailedError as error:
            sys.exit(f"release-check: failed: {error}")
    print(f"release-check: {', '.join(parts)} in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
