"""Java programs of ours (`tests/conformance/java`) against jars that Maven fetches once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import real_kafka

SOURCES = Path(__file__).parents[1] / "conformance" / "java"
JVM = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def unavailable_reason() -> str | None:
    """Why the programs cannot be run here, or None when they can."""
    if reason := real_kafka.unavailable_reason():
        return reason
    compiler = Path(real_kafka.java() or "").parent / "javac"
    if not compiler.exists() and shutil.which("javac") is None:
        return "javac is missing (a JDK 17+)"
    if not real_kafka.has_streams_jars() and shutil.which("mvn") is None:
        return "Maven is missing, and Kafka Streams' jars were not fetched before"
    return None


def compiled(name: str) -> Path:
    """The folder with the program's classes, made anew when the source changed."""
    source = SOURCES / f"{name}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = real_kafka.cache_folder() / "classes" / f"{name}-{digest}"
    if not (folder / f"{name}.class").exists():
        folder.mkdir(parents=True, exist_ok=True)
        class_path = f"{real_kafka.streams_jars()}/*"
        compiler = shutil.which("javac") or str(Path(real_kafka.java() or "").parent / "javac")
        subprocess.run(
            [compiler, "-nowarn", "-cp", class_path, "-d", str(folder), str(source)], check=True
        )
    return folder


def command(name: str, *args: str) -> list[str]:
    """The command line that runs a program."""
    program = real_kafka.java()
    assert program is not None
    class_path = f"{compiled(name)}:{real_kafka.streams_jars()}/*"
    return [program, *JVM, "-cp", class_path, name, *args]


def run(name: str, *args: str, timeout_s: float = 120) -> list[str]:
    """Run a program to its end and give the lines that it printed.

    Raises:
        AssertionError: It failed; with what it said.
    """
    done = subprocess.run(command(name, *args), capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()
