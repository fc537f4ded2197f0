"""Goal: the examples that write to other systems do what their pages say when processes are killed.

Method: each program's own processes beside an in-process broker and a schema of PostgreSQL. They
are killed by SIGKILL while work goes on, started again by the commands of their pages, and what
readers see at the end is compared with what went in.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from postgres_server import PostgresServer, rows_of
from processor_processes import fill, read_all, wait_for
from real_kafka import free_ports

from onceflow.broker_lite import Broker
from onceflow.transactions.sinks import read_json_lines

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


class Commands:
    """Starts the commands of a page; leaves no process behind.

    Attributes:
        environ: Variables that they get.
    """

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **environ}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"command-{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self.folder,
                env=self.environ,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def run(self, target: str) -> subprocess.Popen[bytes]:
        """``onceflow run``, with its state on the test's disk."""
        return self.start("onceflow", "run", target, "--state-dir", str(self.folder / "state"))

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                kill(process)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("command-*.log")))


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.schema()


@pytest.fixture
def commands(broker: Broker, tmp_path: Path) -> Iterator[Commands]:
    started = Commands(tmp_path, ONCEFLOW_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
    yield started
    started.end()


def killed_while(
    start: Callable[[], subprocess.Popen[bytes]], work: Callable[[], None], done: Callable[[], int]
) -> subprocess.Popen[bytes]:
    """Kill a process three times, each time when some of new work is done; give the fourth one."""
    for _ in range(3):
        process = start()
        goal = done() + 5
        work()
        wait_for(lambda: done() >= goal, "some work is done")  # noqa: B023 - at once
        kill(process)
    process = start()
    work()  # So that its start is over when all is done.
    return process


def answer(url: str, body: object = None, method: str = "GET") -> dict[str, object] | None:
    """The answer of a service; None where there is none."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as found:
            decoded = json.load(found)
            assert isinstance(decoded, dict)
            return decoded
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@pytest.mark.timeout(240)
def test_orders_and_records_of_the_shop_are_the_same(
    broker: Broker, dsn: str, commands: Commands
) -> None:
    (port,) = free_ports(1)
    commands.environ["ONCEFLOW_DSN"] = dsn
    broker.create_topic("orders", partitions=2)
    url = f"http://127.0.0.1:{port}"
    words = ("uvicorn", "examples.shop_outbox.app:app", "--port", str(port))
    numbers = itertools.count()
    placed: list[int] = []

    def place(count: int) -> None:
        """As a client that repeats a request until it is answered."""
        for number in itertools.islice(numbers, count):
            order = {"item": "tea", "cents": number}
            wait_for(
                lambda: answer(f"{url}/orders/{number}", order, "PUT") is not None,  # noqa: B023
                "the order is placed",
            )
            placed.append(number)

    def sent() -> list[int]:
        return sorted(
            int(record.key or b"") for record in read_all(broker.bootstrap_servers, "orders")
        )

    service = commands.start(*words)
    place(1)
    relay = commands.start("onceflow", "relay")
    for _ in range(3):
        place(10)
        kill(service)
        service = commands.start(*words)
        place(10)
        kill(relay)
        relay = commands.start("onceflow", "relay")
    place(5)
    assert answer(f"{url}/orders/{placed[-1]}", {"item": "x", "cents": 1}, "PUT") == {"new": False}
    wait_for(lambda: len(sent()) >= len(placed), "all records")
    stop(relay)
    assert sent() == placed, commands.log()
    assert [row for (row,) in rows_of(dsn, "SELECT id FROM orders ORDER BY id")] == placed
    assert rows_of(dsn, "SELECT * FROM onceflow_outbox") == []


@pytest.mark.timeout(240)
def test_no_cent_of_the_bank_is_lost_or_paid_twice(
    broker: Broker, dsn: str, commands: Commands
) -> None:
    commands.environ["ONCEFLOW_DSN"] = dsn
    for topic in ("payments", "payments-done", "payments-refused"):
        broker.create_topic(topic, partitions=1)
    numbers = itertools.count(1)
    sent: list[dict[str, object]] = []

    def work() -> None:
        more = [
            {"number": n, "payer": "ann", "payee": "bob", "cents": n}
            for n in itertools.islice(numbers, 70)
        ]
        sent.extend(more)
        fill(broker.bootstrap_servers, "payments", [json.dumps(each).encode() for each in more])

    def told(topic: str) -> list[dict[str, object]]:
        records = read_all(broker.bootstrap_servers, topic)
        return [json.loads(record.value or b"") for record in records]

    def done() -> int:
        return len(told("payments-done")) + len(told("payments-refused"))

    program = killed_while(lambda: commands.start("examples.bank_payments.app"), work, done)
    wait_for(lambda: done() >= len(sent), "all payments")
    stop(program)
    paid, refused = told("payments-done"), told("payments-refused")
    every = sorted(int(str(each["number"])) for each in [*paid, *refused])
    assert every == [each["number"] for each in sent], commands.log()
    assert refused, "ann had money for all payments"
    moved = sum(int(str(each["cents"])) for each in paid)
    balances = dict(rows_of(dsn, "SELECT name, cents FROM accounts"))  # type: ignore[arg-type]
    assert balances == {"ann": 10_000 - moved, "bob": 10_000 + moved}
    assert moved <= 10_000


@pytest.mark.timeout(240)
def test_each_event_is_in_the_files_once(
    broker: Broker, commands: Commands, tmp_path: Path
) -> None:
    broker.create_topic("events", partitions=2)
    commands.environ["EVENTS"] = str(tmp_path / "events")
    numbers = itertools.count()
    sent: list[int] = []

    def work() -> None:
        more = list(itertools.islice(numbers, 50))
        sent.extend(more)
        values = [json.dumps({"user": f"{n}", "page": "/", "at_ms": n}).encode() for n in more]
        fill(broker.bootstrap_servers, "events", values, [b"%d" % n for n in more])

    def lines() -> list[int]:
        folder = tmp_path / "events/lines"
        rows = read_json_lines(folder) if folder.exists() else ()
        return sorted(int(str(row["user"])) for row in rows)

    def columns() -> list[int]:
        folder = tmp_path / "events/columns"
        if not list(folder.glob("*.parquet")):
            return []
        return sorted(map(int, pyarrow.dataset.dataset(folder).to_table()["user"].to_pylist()))

    for name, found in (("lines", lines), ("columns", columns)):
        start = lambda name=name: commands.run(f"examples.event_files.app:{name}")  # noqa: E731
        worker = killed_while(start, work, lambda found=found: len(found()))  # type: ignore[misc]
        wait_for(lambda found=found: len(found()) >= len(sent), "all events")  # type: ignore[misc]
        stop(worker)
        assert found() == sent, commands.log()


@pytest.mark.timeout(240)
def test_parked_orders_survive_and_hold_up_nobody_else(
    broker: Broker, commands: Commands, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    commands.environ["SHIPPING"] = url
    broker.create_topic("orders", partitions=2)
    commands.start("examples.parked_retries.service", str(port))
    wait_for(lambda: answer(url) == {"parcels": 0}, "the service is up")
    down = tmp_path / "down"
    down.write_text("bob")
    sent: list[tuple[bytes, int]] = []

    def place(count: int) -> None:
        more = [
            (customer, len(sent) // 2 + n) for n in range(count) for customer in (b"ann", b"bob")
        ]
        sent.extend(more)
        values = [json.dumps({"item": f"{number}"}).encode() for _, number in more]
        fill(broker.bootstrap_servers, "orders", values, [customer for customer, _ in more])

    def shipped(customer: bytes) -> list[int]:
        records = read_all(broker.bootstrap_servers, "shipped")
        return [int(json.loads(r.value or b"")["item"]) for r in records if r.key == customer]

    for goal in (5, 10, 15):
        place(5)
        worker = commands.run("examples.parked_retries.app:app")
        wait_for(lambda: len(shipped(b"ann")) >= goal, "ann's orders go on")  # noqa: B023
        assert shipped(b"bob") == []
        kill(worker)
    down.unlink()
    worker = commands.run("examples.parked_retries.app:app")
    wait_for(lambda: len(shipped(b"bob")) >= 15, "bob's orders follow")
    stop(worker)
    assert shipped(b"ann") == shipped(b"bob") == list(range(15)), commands.log()
    assert answer(url) == {"parcels": 30}
    parcels = [
        json.loads(record.value or b"")["parcel"]
        for record in read_all(broker.bootstrap_servers, "shipped")
    ]
    assert sorted(parcels) == list(range(1, 31))
