"""Goal: a query whose processes are killed publishes each row once, with the right state, and goes
on when it is started again.

Method: driver processes write from one topic to another. In the matrix a driver with its JVM, an
executor or a Python worker gets SIGKILL at each step of a micro-batch, in an order that the seed
decides (``SPARK_CHAOS_SEED``), or at the first of them (``SPARK_CHAOS_STEPS``); the last driver may
finish. Elsewhere drivers are killed after a random number of records in the log. At the end the
kills inside an open transaction are counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from case_proxy import Proxy
from spark_driver import Plan, driver
from spark_killing import (
    DRIVER_STEPS,
    EXECUTOR,
    LEFT_STEPS,
    NOBODY,
    PUBLISHED_AT,
    PYTHON_WORKER,
    STEPS,
    TABLE_STEPS,
    WRITING_STEPS,
    Killing,
    Tally,
    Victim,
    in_order,
)
from spark_world import fill, read_topic, unavailable_reason, values_of, wait_until

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, IsolationLevel, NewTopic, TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
]
SEED = int(os.environ.get("SPARK_CHAOS_SEED", "1"))
STEPS_MAX = int(os.environ.get("SPARK_CHAOS_STEPS", "0")) or None
LOCAL, CLUSTER = "local[2]", "local-cluster[2,1,1024]"
ROWS_PER_KILL = 90
INSIDE_MIN = 0.6
KILLS_MIN = 100
"""So many kills must be there for the bound of the share: many steps of one query are outside."""
NAMES = itertools.count(1)
ROWS = 12_000
ROWS_PER_BATCH = 1_000
KILLS = 5


def log_end(admin: Admin) -> int:
    wanted = {TopicPartition("out", n): "latest" for n in range(3)}
    found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(answer.offset for answer in found.values())


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "sink",
    [
        "foreach_batch",
        "foreach_batch by tasks",
        "foreach_batch by tasks without keys",
        "data source",
        "data source by tasks",
    ],
)
def test_driver_killed_at_random_moments(
    sink: str, seed: int, tmp_path: Path, tally: list[Tally]
) -> None:
    chance, log = random.Random(seed), tmp_path / "driver.log"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Broker(tmp_path / "data"))
        servers = broker.bootstrap_servers
        admin = stack.enter_context(Admin(bootstrap_servers=servers))
        for topic in ("in", "out"):
            broker.create_topic(topic, partitions=3)
        rows = [f"row-{number}".encode() for number in range(ROWS)]
        fill(servers, "in", rows, keys=rows, partition=None)
        plan = Plan(sink, servers, "in", "out", str(tmp_path / "c"), ROWS_PER_BATCH, batch_size=512)
        tally.append(counted := Tally(admin, "out"))
        for _ in range(KILLS):
            goal = log_end(admin) + chance.randrange(1, 3 * ROWS_PER_BATCH)
            with driver(plan, log) as process:
                wait_until(
                    lambda goal=goal, process=process: (
                        log_end(admin) >= goal or process.poll() is not None
                    ),
                    f"{goal} records in the log",
                )
                if process.poll() is None:
                    counted.note()
                    os.killpg(process.pid, signal.SIGKILL)
                assert process.wait(60) in (0, -signal.SIGKILL), log.read_text()[-3000:]
        with driver(plan, log) as process:
            assert process.wait(300) == 0, log.read_text()[-3000:]
        found = Counter(values_of(servers, "out"))
    assert {value: count for value, count in found.items() if count > 1} == {}
    assert set(found) == {row.decode() for row in rows}


# The matrix --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[list[Tally]]:
    """What was killed in this module; the share inside transactions is printed and has a bound."""
    kept: list[Tally] = []
    yield kept
    kills, inside = sum(k.kills for k in kept), sum(k.inside for k in kept)
    told = f"seed {SEED}: {inside} of {kills} kills were inside an open transaction"
    print_line(request, told)
    if kills >= KILLS_MIN:
        assert inside >= INSIDE_MIN * kills, told


def print_line(request: pytest.FixtureRequest, text: str) -> None:
    """Print although output is captured."""
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"\n{text}")


class Scene:
    """Topics on a broker behind a relay, a query that is killed, and what has to be there then."""

    def __init__(self, address: str, proxy: Proxy, folder: Path, sink: str, master: str) -> None:
        number = next(NAMES)
        self.address = address
        self.source, self.target = f"kills-in-{number}", f"kills-out-{number}"
        self.log, self.checkpoint = folder / "driver.log", folder / "checkpoint"
        self.plan = Plan(
            sink,
            proxy.bootstrap_servers,
            self.source,
            self.target,
            str(self.checkpoint),
            ROWS_PER_KILL,
            master=master,
        )
        self.admin = Admin(bootstrap_servers=address)
        self.admin.create_topics([NewTopic(t, 3, 1) for t in (self.source, self.target)])
        self.killing = Killing(proxy, self.admin, self.transactional_id)
        self.written = 0
        self.writes = 1

    @property
    def transactional_id(self) -> str:
        if self.plan.sink == "table":
            return f"onceflow-spark-write.{self.target}.{self.plan.write_id}"
        return self.target

    def feed(self, count: int = ROWS_PER_KILL) -> None:
        rows = [f"row-{self.written + number}".encode() for number in range(count)]
        keys = [b"key-%d" % (int(row[4:]) % 20) for row in rows]
        fill(self.address, self.source, rows, keys=keys, partition=None)
        self.written += count

    def begin_another_write(self) -> None:
        """Go on with the same rows under a new id of a table's write."""
        self.writes += 1
        self.plan = replace(self.plan, write_id=f"write-{self.writes}")
        self.killing.transactional_id = self.transactional_id

    def finish(self) -> None:
        """Run the query to its end."""
        with driver(self.plan, self.log) as process:
            assert process.wait(300) == 0, self.log.read_text()[-3000:]

    def check(self) -> None:
        """Every row is there once; counts by key go up by one, in the order of the rows."""
        wanted = Counter({f"row-{number}": self.writes for number in range(self.written)})
        if self.plan.sink != "application":
            found = Counter(value.strip() for value in values_of(self.address, self.target))
            assert found - wanted == Counter(), "rows came more than once"
            assert wanted - found == Counter(), "rows are lost"
            return
        counts: dict[bytes | None, list[int]] = {}
        rows: Counter[str] = Counter()
        for record in read_topic(self.address, self.target):
            row, _, count = (record.value or b"").decode().partition("=")
            rows[row] += 1
            counts.setdefault(record.key, []).append(int(count))
        assert rows == wanted
        assert all(found == list(range(1, len(found) + 1)) for found in counts.values())


@pytest.fixture(params=["onceflow", pytest.param("apache-kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap_servers
        return
    with Broker(tmp_path / "data") as running:
        yield running.bootstrap_servers


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    with Proxy(address) as running:
        yield running


QUERIES = [
    ("foreach_batch by tasks", LOCAL),
    ("foreach_batch", LOCAL),
    ("data source", LOCAL),
    ("data source by tasks", LOCAL),
    ("application", LOCAL),
    ("foreach_batch by tasks", CLUSTER),
    ("application", CLUSTER),
]


STEPS_OF = {"foreach_batch": DRIVER_STEPS, "data source": LEFT_STEPS}
"""Steps of sinks whose tasks do not write small batches."""


def kill_drivers(scene: Scene, count: int | None = STEPS_MAX) -> None:
    for step in in_order(SEED, STEPS_OF.get(scene.plan.sink, STEPS), count):
        scene.feed()
        with driver(scene.plan, scene.log) as process:
            scene.killing.at(step, process, scene.checkpoint)
    scene.feed()
    scene.finish()
    scene.check()


@pytest.mark.chaos
@pytest.mark.parametrize(("sink", "master"), QUERIES)
def test_driver_killed_at_each_step(
    sink: str, master: str, address: str, proxy: Proxy, tmp_path: Path, tally: list[Tally]
) -> None:
    scene = Scene(address, proxy, tmp_path, sink, master)
    tally.append(scene.killing)
    kill_drivers(scene)


def test_driver_killed_at_a_step_that_the_seed_chooses(tmp_path: Path, tally: list[Tally]) -> None:
    """The short form of the matrix, in each test run."""
    with Broker(tmp_path / "data") as broker, Proxy(broker.bootstrap_servers) as proxy:
        scene = Scene(broker.bootstrap_servers, proxy, tmp_path, "application", LOCAL)
        tally.append(scene.killing)
        kill_drivers(scene, 1)


@pytest.mark.chaos
@pytest.mark.parametrize("sink", ["foreach_batch by tasks", "application"])
@pytest.mark.parametrize(
    ("victim", "master"), [(PYTHON_WORKER, LOCAL), (EXECUTOR, CLUSTER), (PYTHON_WORKER, CLUSTER)]
)
def test_workers_killed_while_they_write(
    victim: Victim,
    sink: str,
    master: str,
    address: str,
    proxy: Proxy,
    tmp_path: Path,
    tally: list[Tally],
) -> None:
    """The driver lives on and repeats the batch by itself."""
    scene = Scene(address, proxy, tmp_path, sink, master)
    tally.append(scene.killing)
    for step in in_order(SEED, WRITING_STEPS, STEPS_MAX or 3):
        scene.feed()
        with driver(scene.plan, scene.log) as process:
            scene.killing.at(step, process, scene.checkpoint, victim)
            assert process.wait(300) == 0, scene.log.read_text()[-3000:]
    scene.check()


@pytest.mark.chaos
def test_broker_killed_while_tasks_write(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Proxy(broker.bootstrap_servers) as proxy:
        scene = Scene(broker.bootstrap_servers, proxy, tmp_path, "application", LOCAL)
        for step in in_order(SEED, STEPS[4:14], 3):
            scene.feed()
            with driver(scene.plan, scene.log) as process:
                scene.killing.at(step, process, scene.checkpoint, NOBODY)
                broker.restart(kill=True)
                proxy.cut_all()
                assert process.wait(300) == 0, scene.log.read_text()[-3000:]
        scene.check()


@pytest.mark.chaos
def test_write_of_a_table_killed_at_each_step(
    address: str, proxy: Proxy, tmp_path: Path, tally: list[Tally]
) -> None:
    """Each write is begun again under its id until it is published, and once more then."""
    scene = Scene(address, proxy, tmp_path, "table", LOCAL)
    tally.append(scene.killing)
    scene.feed(900)
    for step in in_order(SEED, TABLE_STEPS, STEPS_MAX):
        with driver(scene.plan, scene.log) as process:
            scene.killing.at(step, process, scene.checkpoint)
        if step.name in PUBLISHED_AT:
            scene.finish()
            scene.check()
            scene.begin_another_write()
    for _ in range(2):
        scene.finish()
        scene.check()
