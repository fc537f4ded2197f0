"""Goal: a query whose driver is killed at moments nobody chose still publishes each row once.

Method: driver processes copy a topic in many micro-batches; each is killed with its JVM after a
random number of further records in the output's log (visible or not), until a last one may finish.
The seed is in the test's name.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from spark_driver import Plan, driver
from spark_world import fill, unavailable_reason, values_of, wait_until

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, IsolationLevel, TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
]
ROWS = 12_000
ROWS_PER_BATCH = 1_000
KILLS = 5


def log_end(admin: Admin) -> int:
    wanted = {TopicPartition("out", n): "latest" for n in range(3)}
    found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(answer.offset for answer in found.values())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "sink",
    [
        "foreach_batch",
        "foreach_batch by tasks",
        "foreach_batch by tasks without keys",
        "data source",
    ],
)
def test_driver_killed_at_random_moments(sink: str, seed: int, tmp_path: Path) -> None:
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
                    os.killpg(process.pid, signal.SIGKILL)
                assert process.wait(60) in (0, -signal.SIGKILL), log.read_text()[-3000:]
        with driver(plan, log) as process:
            assert process.wait(300) == 0, log.read_text()[-3000:]
        found = Counter(values_of(servers, "out"))
    assert {value: count for value, count in found.items() if count > 1} == {}
    assert set(found) == {row.decode() for row in rows}
