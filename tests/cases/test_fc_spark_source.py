"""Goal: field cases of the Spark source (T9): gaps, new partitions, odd metadata, whole rows.

Method: topics with transactions and headers, read as batch and as stream; partitions added and
metadata forged by a relay while a query runs; rows read back by the published clients too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from case_clients import read
from case_proxy import Action, Proxy
from spark_world import fill, finish, read_topic, spark_session, stream, unavailable_reason
from spark_world import wait_until as wait

from onceflow.sdk import Admin, NewTopic
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest, ListOffsetsResponse
from onceflow.sdk.protocol.schema import Request, Response
from onceflow.spark_integration import foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


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


class Reading:
    """A running query that collects the values it is given."""

    def __init__(self, df: DataFrame, checkpoint: Path, *, to_the_end: bool = False) -> None:
        self.values: list[str] = []
        writer = df.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(checkpoint)
        )
        writer = writer.trigger(availableNow=True) if to_the_end else writer
        self.query: StreamingQuery = writer.start()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        self.values += [bytes(row.value).decode() for row in batch.select("value").collect()]

    def wait_for(self, count: int) -> None:
        """Wait for rows; a failure of the query is raised."""

        def enough() -> bool:
            if (failure := self.query.exception()) is not None:
                raise failure
            return len(self.values) >= count

        wait(enough, f"{count} rows")

    def wait_idle(self) -> None:
        """Wait until the query has seen that nothing is there."""
        wait(lambda: "Waiting for data" in self.query.status["message"], "an idle query")


def batch_read(spark: SparkSession, cluster: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("onceflow").option("kafka.bootstrap.servers", cluster)
    return reader.option("subscribe", topic).options(**options).load()


def values(df: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in df.select("value").collect())


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_fc_56_transactional_topics_have_gaps(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path, isolation_level: str
) -> None:
    for text, commit in (("a1 a2", True), ("x1 x2 x3", False), ("a3", True), ("x4", False)):
        fill(
            cluster,
            topic,
            [value.encode() for value in text.split()],
            transactional_id=f"{topic}-writer",
            commit=commit,
        )
    expected = ["a1", "a2", "a3"]
    if isolation_level == "read_uncommitted":
        expected += ["x1", "x2", "x3", "x4"]
    level = {"kafka.isolation.level": isolation_level, "failOnDataLoss": "true"}
    assert values(batch_read(spark, cluster, topic, **level)) == expected

    df = stream(spark, cluster, topic, maxOffsetsPerTrigger="2", **level)
    reading = Reading(df, tmp_path, to_the_end=True)
    finish(reading.query)
    assert sorted(reading.values) == expected
    last = reading.query.lastProgress
    assert last is not None
    assert json.loads(last["sources"][0]["endOffset"])[topic] == {"0": 11}


def test_fc_61_partitions_added_to_a_running_query_are_read_from_their_start(
    spark: SparkSession, cluster: str, name: str, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
        fill(cluster, name, [b"before"])
        df = stream(spark, cluster, name, startingOffsets="latest")
        reading = Reading(df, tmp_path)
        reading.wait_idle()
        admin.create_partitions({name: 4})
    for partition in (2, 3):
        fill(cluster, name, [f"{partition}-{n}".encode() for n in range(10)], partition=partition)
    reading.wait_for(20)
    reading.wait_idle()  # Stopped before its commit, the last batch would rightly come again.
    reading.query.stop()
    assert sorted(reading.values) == [f"{p}-{n}" for p in (2, 3) for n in range(10)]

    again = Reading(df, tmp_path)
    fill(cluster, name, [b"after"], partition=3)
    again.wait_for(1)
    again.query.stop()
    assert again.values == ["after"]


def _empty_metadata(response: Response) -> Response:
    for topic in cast(MetadataResponse, response).topics:
        topic.partitions = []
    return response


def _empty_offsets(response: Response) -> Response:
    for topic in cast(ListOffsetsResponse, response).topics:
        topic.partitions = []
    return response


@pytest.mark.parametrize(
    ("request_type", "edit"),
    [(MetadataRequest, _empty_metadata), (ListOffsetsRequest, _empty_offsets)],
    ids=["Metadata", "ListOffsets"],
)
def test_fc_61_answer_without_partitions_repeats_nothing(
    spark: SparkSession,
    cluster: str,
    topic: str,
    proxy: Proxy,
    tmp_path: Path,
    request_type: type[Request],
    edit: Callable[[Response], Response],
) -> None:
    fill(cluster, topic, [b"first"])
    reading = Reading(stream(spark, proxy.bootstrap_servers, topic), tmp_path)
    reading.wait_for(1)
    reading.wait_idle()
    rule = proxy.add(request_type, Action.EDIT, times=1, edit=edit)
    wait(lambda: rule.hits == 1, "the forged answer")
    fill(cluster, topic, [b"second"])
    reading.wait_for(2)
    reading.query.stop()
    assert reading.values == ["first", "second"]


def test_fc_61_starting_offsets_that_leave_out_a_partition_are_refused(
    spark: SparkSession, cluster: str, name: str, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    df = stream(spark, cluster, name, startingOffsets=json.dumps({name: {"0": 0}}))
    with pytest.raises(Exception, match=f"missing: {name}-1"):
        finish(Reading(df, tmp_path, to_the_end=True).query)


def test_fc_62_rows_with_nulls_headers_and_timestamps(
    spark: SparkSession, cluster: str, name: str, topic: str, tmp_path: Path
) -> None:
    target = f"{name}-out"
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(target, 2, 1)])
    fill(cluster, topic, [b"trigger"], timestamp_ms=1_600_000_000_123)
    checkpoint = str(tmp_path / "checkpoint")
    options = {"kafka.bootstrap.servers": cluster, "checkpointLocation": checkpoint}
    rows = [
        (target, 1, None, b"v", None),
        (target, 0, "tombstone", None, None),
        (target, 0, "headed", b"v", [("a", b"1"), ("a", b"2"), ("b", None)]),
    ]
    columns = "topic STRING, partition INT, key STRING, value BINARY, "
    columns += "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

    def rows_of(batch: DataFrame, _: int) -> DataFrame:
        return batch.sparkSession.createDataFrame(rows, columns)

    source = stream(spark, cluster, topic)
    query = (
        source.writeStream.foreachBatch(foreach_batch(rows_of, **options))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    finish(query)

    written = {(r.partition, r.key): r for r in read_topic(cluster, target)}
    assert set(written) == {(1, None), (0, b"tombstone"), (0, b"headed")}
    assert written[0, b"tombstone"].value is None
    headers = list(written[0, b"headed"].headers)
    assert headers == [("a", b"1"), ("a", b"2"), ("b", None)]
    for client in ("confluent-kafka", "kafka-python"):
        stock = {row.key: row.value for row in read(client, cluster, target)}
        assert stock == {b"tombstone": None, b"headed": b"v"}

    plain = batch_read(spark, cluster, target)
    assert "headers" not in plain.columns
    assert plain.count() == 3
    headed = batch_read(spark, cluster, target, includeHeaders="true")
    found = {row.key and bytes(row.key): row.headers for row in headed.collect()}
    assert found[b"tombstone"] is None
    assert [(h.key, h.value and bytes(h.value)) for h in found[b"headed"]] == headers

    stamp = batch_read(spark, cluster, topic).selectExpr("unix_millis(timestamp)", "timestampType")
    assert [tuple(row) for row in stamp.collect()] == [(1_600_000_000_123, 0)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["CAST(null AS string) AS topic", "value"], "column topic"),
        (["'out' AS topic", "CAST(1 AS int) AS value"], "column value"),
    ],
)
def test_fc_62_rows_that_cannot_be_written_are_refused_by_column(
    spark: SparkSession,
    cluster: str,
    topic: str,
    tmp_path: Path,
    columns: list[str],
    message: str,
) -> None:
    fill(cluster, topic, [b"row"])
    checkpoint = str(tmp_path / "checkpoint")
    options = {
        "kafka.bootstrap.servers": cluster,
        "checkpointLocation": checkpoint,
        "groupId": topic,
    }
    query = (
        stream(spark, cluster, topic)
        .selectExpr(*columns)
        .writeStream.foreachBatch(foreach_batch(**options))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=message):
        finish(query)
    with Admin(bootstrap_servers=cluster) as admin:
        assert admin.list_group_offsets(topic) == {}
