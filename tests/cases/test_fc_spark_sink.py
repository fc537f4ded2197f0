"""Goal: the field case of the Spark sink (T9): each row once, whatever dies in between.

Method: driver processes copy a topic and are killed, by themselves right after a commit and by the
test in the middle of the writes; a read_committed consumer tells what is there.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from spark_driver import Plan, run, start
from spark_world import fill, spark_session, unavailable_reason, values_of, wait_until

from onceflow.sdk import Admin, IsolationLevel, NewTopic, TopicPartition
from onceflow.sdk.errors import ConfigError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
ROWS = 100
LATER_ROWS = 10_000


def log_end(cluster: str, topic: str) -> int:
    """Records and markers of a topic, whether they can be seen or not."""
    wanted = {TopicPartition(topic, n): "latest" for n in range(2)}
    with Admin(bootstrap_servers=cluster) as admin:
        found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(answer.offset for answer in found.values())


@pytest.mark.parametrize(
    "sink", ["data source", pytest.param("foreach_batch", marks=pytest.mark.chaos)]
)
def test_fc_58_exactly_once_sink_against_driver_crash(
    cluster: str, name: str, tmp_path: Path, sink: str
) -> None:
    source, log = f"{name}-in", tmp_path / "driver.log"
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(source, 2, 1), NewTopic(name, 2, 1)])
    rows = [f"a{row}".encode() for row in range(ROWS)]
    fill(cluster, source, rows, keys=rows, partition=None)
    plan = Plan(sink, cluster, source, name, str(tmp_path / "checkpoint"), LATER_ROWS, 0)

    assert start(plan, log).wait(150) == -signal.SIGKILL, log.read_text()[-3000:]
    commits = tmp_path / "checkpoint" / "commits"
    assert not (commits / "0").exists(), "it had to die before the checkpoint knew"
    assert len(values_of(cluster, name)) == ROWS

    later = [f"b{row}".encode() for row in range(LATER_ROWS)]
    fill(cluster, source, later, keys=later, partition=None)
    plan = replace(plan, dies_after_commit_of=None)
    published = log_end(cluster, name)
    driver = start(replace(plan, batch_size=512), log)
    wait_until(lambda: log_end(cluster, name) > published + 500, "the next batch being written")
    os.killpg(driver.pid, signal.SIGKILL)
    assert driver.wait(30) == -signal.SIGKILL
    assert len(values_of(cluster, name)) == ROWS, "batch 1 must not be visible"

    with spark_session() as spark:
        run(spark, plan)
    repeated = {v: n for v, n in Counter(values_of(cluster, name)).items() if n > 1}
    assert repeated == {}
    assert values_of(cluster, name) == sorted(v.decode() for v in (*rows, *later))
    assert len(values_of(cluster, name, "read_uncommitted")) > ROWS + LATER_ROWS


def test_fc_58_speculative_execution_is_refused_at_the_start() -> None:
    with (
        pytest.raises(ConfigError, match=r"spark\.speculation='true': turn it off"),
        spark_session({"spark.speculation": "true"}),
    ):
        pass
