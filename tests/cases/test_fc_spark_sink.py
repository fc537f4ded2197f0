"""Goal: the field case of the Spark sink (T9): each row once, whatever dies in between.

Method: drivers copy a topic; one is gone before its checkpoint knows of its commit, one is killed
by SIGKILL in the middle of its writes; a read_committed consumer tells what is there.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_driver import Plan, driver, run
from spark_world import fill, spark_session, unavailable_reason, values_of, wait_until

from onceflow.sdk import Admin, IsolationLevel, NewTopic, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration import register
from onceflow.spark_integration.batch_function import refuse_speculation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
ROWS = 100
LATER_ROWS = 6_000


def log_end(admin: Admin, topic: str) -> int:
    """Records and markers of a topic, whether they can be seen or not."""
    wanted = {TopicPartition(topic, n): "latest" for n in range(2)}
    found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(answer.offset for answer in found.values())


@pytest.fixture(params=["onceflow", pytest.param("apache-kafka", marks=pytest.mark.chaos)])
def cluster(request: pytest.FixtureRequest) -> str:
    """Apache Kafka takes part in the long runs only: a JVM beside a JVM."""
    name = "broker" if request.param == "onceflow" else "apache_kafka"
    address: str = request.getfixturevalue(name).bootstrap_servers
    return address


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.mark.parametrize(
    ("sink", "first_death"),
    [
        ("data source by tasks", "commit entry removed"),
        pytest.param("data source by tasks", "SIGKILL", marks=pytest.mark.chaos),
        pytest.param("foreach_batch", "SIGKILL", marks=pytest.mark.chaos),
        pytest.param("foreach_batch by tasks", "SIGKILL", marks=pytest.mark.chaos),
        pytest.param("foreach_batch by tasks without keys", "SIGKILL", marks=pytest.mark.chaos),
    ],
)
def test_fc_58_exactly_once_sink_against_driver_crash(
    spark: SparkSession, cluster: str, name: str, tmp_path: Path, sink: str, first_death: str
) -> None:
    source, log = f"{name}-in", tmp_path / "driver.log"
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(source, 2, 1), NewTopic(name, 2, 1)])
    rows = [f"a{row}".encode() for row in range(ROWS)]
    fill(cluster, source, rows, keys=rows, partition=None)
    plan = Plan(sink, cluster, source, name, str(tmp_path / "checkpoint"), LATER_ROWS)

    commits = tmp_path / "checkpoint" / "commits"
    if first_death == "SIGKILL":
        with driver(replace(plan, dies_after_commit_of=0), log) as dying:
            assert dying.wait(300) == -signal.SIGKILL, log.read_text()[-3000:]
    else:
        run(spark, plan)
        for entry in commits.iterdir():
            entry.unlink()
    assert not (commits / "0").exists(), "the checkpoint must not know of the commit"
    assert len(values_of(cluster, name)) == ROWS

    later = [f"b{row}".encode() for row in range(LATER_ROWS)]
    fill(cluster, source, later, keys=later, partition=None)
    with Admin(bootstrap_servers=cluster) as admin:
        published = log_end(admin, name)
        with driver(replace(plan, batch_size=512), log) as dying:
            wait_until(lambda: log_end(admin, name) > published + 500, "batch 1 being written")
            os.killpg(dying.pid, signal.SIGKILL)
            assert dying.wait(30) == -signal.SIGKILL
    assert len(values_of(cluster, name)) == ROWS, "batch 1 must not be visible"

    run(spark, plan)
    repeated = {v: n for v, n in Counter(values_of(cluster, name)).items() if n > 1}
    assert repeated == {}
    assert values_of(cluster, name) == sorted(v.decode() for v in (*rows, *later))
    assert len(values_of(cluster, name, "read_uncommitted")) > ROWS + LATER_ROWS


def test_fc_58_speculative_execution_is_refused_at_the_start(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    spark.conf.set("spark.speculation", "true")
    try:
        with pytest.raises(ConfigError, match=r"spark\.speculation='true': turn it off"):
            register(spark)
        with pytest.raises(ConfigError, match=r"spark\.speculation='true': turn it off"):
            refuse_speculation(spark.range(1))
    finally:
        spark.conf.unset("spark.speculation")
