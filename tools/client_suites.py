"""Run the tests that publishers of other clients wrote for them, against a broker of ours.

    python tools/client_suites.py kafka-python
    python tools/client_suites.py kafka-python --broker kafka -- -k admin
    python tools/client_suites.py franz-go
    python tools/client_suites.py librdkafka --source ~/librdkafka-2.0.2 -- 0081

kafka-python's tests are in its source distribution, which pip fetches, and run in an environment of
their own. franz-go's are in its Go module (needs Go). For librdkafka (and so for confluent-kafka,
which speaks through it) give a source tree in which ``./configure && make && make -C tests build``
has run; those of its tests run that need a broker, and some of them call Kafka's own tools (Java
and Maven). ``--broker kafka`` runs the same against Apache Kafka. What follows ``--`` is for pytest
or ``go test``, or names librdkafka's tests by number.
Nothing of the suites is kept in this repository: they lie below ``--folder``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
KAFKA_PYTHON = "3.0.12"
KAFKA_VERSION = "4.4.0"
NEEDED = ("pytest", "pytest-timeout", "py", "lz4", "zstandard", "python-snappy")
SERVICE = '"""Not needed: the broker is started by kafka_python_suite."""\n\n' + "\n".join(
    f"class {name}:\n    def __init__(self, *unused): ...\n"
    for name in ("ExternalService", "SpawnedService")
)
"""A module that the tests import, and that their source distribution lacks."""
LOCAL = ("TEST_F_LOCAL", "TEST_F_MANUAL")
"""Marks of librdkafka's tests that speak to no broker."""
TEST_S = 600
FRANZ_GO = "github.com/twmb/franz-go/pkg/kgo"
FRANZ_GO_VERSION = "1.22.3"
FRANZ_GO_SCALE = {"KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "10000"}
"""One replica, and fewer records than the half million that it takes by itself."""
LIBRDKAFKA_CONFIG = "test.topic.random=true\ntest.timeout.multiplier=3\n"
KAFKA_SCRIPTS = {
    "kafka-topics.sh": "kafka-topics",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}


def environment(broker: str, *paths: Path) -> dict[str, str]:
    """Variables that `suite_brokers` reads, and where modules are found."""
    return {
        **os.environ,
        "SUITE_BROKER": broker,
        "SUITE_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (*paths, SUPPORT))),
    }


def kafka_python(folder: Path, broker: str, rest: list[str]) -> int:
    """Fetch the source distribution once; run its integration tests by pytest."""
    source = folder / f"kafka_python-{KAFKA_PYTHON}"
    python = folder / "kafka-python-environment" / "bin" / "python"
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    pip = [python, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", f"kafka-python=={KAFKA_PYTHON}", *NEEDED], check=True)
    if not source.exists():
        what = ["--no-deps", "--no-binary", ":all:", f"kafka-python=={KAFKA_PYTHON}"]
        subprocess.run([*pip, "download", "--dest", folder, *what], check=True)
        with tarfile.open(f"{source}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        (source / "test" / "__init__.py").touch()
        (source / "test" / "service.py").write_text(SERVICE)
    variables = environment(broker, source)
    variables |= {"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": str(source)}
    command = [python, "-m", "pytest", "-q", "-p", "kafka_python_suite", "-o", "log_level=WARNING"]
    command += ["test/integration", *rest]
    return subprocess.run(command, cwd=source, env=variables).returncode


def franz_go(folder: Path, broker: str, rest: list[str]) -> int:
    """Fetch the module once; run the tests of its client, which find a broker by a variable."""
    module = folder / "franz-go"
    if not (module / "go.sum").exists():
        module.mkdir(exist_ok=True)
        (module / "go.mod").write_text("module suite\n\ngo 1.25\n")
        subprocess.run(
            ["go", "get", "-t", f"{FRANZ_GO}@v{FRANZ_GO_VERSION}"], cwd=module, check=True
        )
    with (
        tempfile.TemporaryDirectory(prefix="franz-go-suite-") as name,
        one_broker(Path(name), broker, {}) as servers,
    ):
        variables = {**os.environ, "KGO_SEEDS": servers, **FRANZ_GO_SCALE}
        command = ["go", "test", "-count=1", "-timeout=30m", *rest, FRANZ_GO]
        return subprocess.run(command, cwd=module, env=variables).returncode


@contextlib.contextmanager
def one_broker(folder: Path, broker: str, settings: dict[str, str]) -> Iterator[str]:
    """Run a broker; its address is the value."""
    sys.path.insert(0, str(SUPPORT))
    os.environ |= environment(broker)
    import suite_brokers

    running = suite_brokers.start(folder / "broker", settings=settings)
    try:
        yield f"127.0.0.1:{running.plain_port}"
    finally:
        running.stop()


def librdkafka(source: Path, broker: str, rest: list[str]) -> int:
    """Run each test by its runner, one process each, all against one broker."""
    tests = source.absolute() / "tests"
    found = re.findall(r"_TEST\((\d{4}_\w+),\s*([^,)]*)", (tests / "test.c").read_text())
    names = (
        rest
        or sorted(
            {
                name[:4]  # the runner takes each test whose name begins so
                for name, marks in found
                if name[:4] != "0000" and not any(mark in marks for mark in LOCAL)
            }
        )
    )
    failed = []
    with tempfile.TemporaryDirectory(prefix="librdkafka-suite-") as name:
        folder = Path(name)
        # As in the clusters that its publisher tests it on.
        with one_broker(folder, broker, {"group.initial.rebalance.delay.ms": "100"}) as servers:
            config = folder / "test.conf"
            config.write_text(f"bootstrap.servers={servers}\n{LIBRDKAFKA_CONFIG}")
            variables = {
                **os.environ,
                "RDKAFKA_TEST_CONF": str(config),
                "TEST_KAFKA_VERSION": "3.3.0",
                "LD_LIBRARY_PATH": f"{tests.parent / 'src'}:{tests.parent / 'src-cpp'}",
                "KAFKA_PATH": str(kafka_scripts(folder)),
                "BROKERS": servers,
            }
            for test in names:
                log = folder / f"{test}.log"
                verdict = _librdkafka_test(tests, test, variables, log)
                print(f"{test} {verdict}", flush=True)
                if verdict == "failed":
                    failed.append(test)
                    print(log.read_text(errors="replace")[-2000:])
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return bool(failed)


def kafka_scripts(folder: Path) -> Path:
    """A folder as Apache Kafka's own, with the two scripts that librdkafka's tests call."""
    (folder / "bin").mkdir()
    for name, tool in KAFKA_SCRIPTS.items():
        script = folder / "bin" / name
        command = f'"{sys.executable}" "{SUPPORT / "real_kafka.py"}" tool {tool} "$@"'
        script.write_text(f"#!/bin/sh\nexec {command}\n")
        script.chmod(0o755)
    return folder


def _librdkafka_test(tests: Path, test: str, variables: dict[str, str], log: Path) -> str:
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["./test-runner", "-p1"],
            cwd=tests,
            env={**variables, "TESTS": test},
            stdout=output,
            stderr=output,
        )
        try:
            code = process.wait(TEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    return "passed" if code == 0 else "failed"


def main() -> int:
    """Run one suite; 0 if all of it passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=["kafka-python", "franz-go", "librdkafka"])
    parser.add_argument("--broker", choices=["ours", "kafka"], default="ours")
    parser.add_argument("--source", type=Path, help="librdkafka's built source tree")
    parser.add_argument(
        "--folder", type=Path, default=Path.home() / ".cache" / "onceflow-client-suites"
    )
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    args, rest = parser.parse_args(given[:end]), given[end + 1 :]
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.suite == "kafka-python":
        return kafka_python(args.folder, args.broker, rest)
    if args.suite == "franz-go":
        return franz_go(args.folder, args.broker, rest)
    if args.source is None or not (args.source / "tests" / "test-runner").exists():
        parser.error("--source: give a source tree of librdkafka with its tests built")
    return librdkafka(args.source, args.broker, rest)


if __name__ == "__main__":
    sys.exit(main())
