"""Goal: a micro-batch is published once, by both sinks, through failures of tasks and driver.

Method: the data source sink (with ``route``) and ``foreach_batch`` copy one topic to another while
tasks fail at chosen rows, the driver fails between commit and checkpoint, and answers are lost.
What a read_committed consumer finds must be the input, once. One scenario runs on Apache Kafka in
conformance runs, all of them in ``make chaos``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from case_proxy import Action, Proxy
from spark_world import (
    fill,
    finish,
    read_topic,
    spark_session,
    stream,
    unavailable_reason,
    values_of,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import EndTxnRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.spark_integration import (
    foreach_batch,
    lag_of,
    partition_counts,
    route,
    run_query,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
NUMBERS = itertools.count(1)
VALUES = [f"{partition}-{row}" for partition in range(2) for row in range(10)]
Change = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Two failures of a task are allowed, so that its second attempt is seen.
    with spark_session({"spark.master": "local[2,2]"}) as session:
        yield session


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(params=["onceflow", pytest.param("apache-kafka", marks=pytest.mark.chaos)])
def cluster(request: pytest.FixtureRequest) -> str:
    name = "broker" if request.param == "onceflow" else "apache_kafka"
    address: str = request.getfixturevalue(name).bootstrap_servers
    return address


class Copy:
    """A query that copies a topic of twenty rows to another one of two partitions."""

    def __init__(self, spark: SparkSession, cluster: str, folder: Path, sink: str) -> None:
        self.spark, self.cluster = spark, cluster
        self.sink, _, self.way = sink.partition(" by ")
        number = next(NUMBERS)
        self.source, self.target = f"copy-in-{number}", f"copy-out-{number}"
        with Admin(bootstrap_servers=cluster) as admin:
            admin.create_topics([NewTopic(self.source, 2, 1), NewTopic(self.target, 2, 1)])
        for partition in range(2):
            values = [f"{partition}-{row}".encode() for row in range(10)]
            fill(cluster, self.source, values, keys=values, partition=partition)
        self.checkpoint = folder / "checkpoint"
        self.options = {
            "kafka.bootstrap.servers": cluster,
            "checkpointLocation": str(self.checkpoint),
            "topic": self.target,
            "transactionalId": self.target,
        }

    def start(self, change: Change | None = None, **reading: str) -> StreamingQuery:
        """Start the query up to the present end of the source."""
        rows = stream(self.spark, self.cluster, self.source, **reading).select("key", "value")
        changed = change(rows) if change else rows
        changed = changed.drop("key") if self.way == "tasks without keys" else changed
        if self.way.startswith("tasks"):
            self.options["driverRowsMax"] = "0"
        writer = changed.writeStream.option("checkpointLocation", str(self.checkpoint))
        if self.sink == "foreach_batch":
            writer = writer.foreachBatch(foreach_batch(attempts_max=3, **self.options))
        else:
            counts = partition_counts(self.options, [self.target])
            encoding = None if self.way == "rows" else self.options
            routed = route(changed, counts, topic=self.options.get("topic"), options=encoding)
            writer = routed.writeStream.format("onceflow").options(**self.options)
        return writer.trigger(availableNow=True).start()

    def run(self, change: Change | None = None, **reading: str) -> None:
        finish(self.start(change, **reading))

    def visible(self) -> list[str]:
        return values_of(self.cluster, self.target)

    def written(self) -> list[str]:
        return values_of(self.cluster, self.target, "read_uncommitted")

    def forget_commit(self, batch_id: int) -> None:
        """What is left when the driver dies before it notes that a batch is done."""
        (self.checkpoint / "commits" / str(batch_id)).unlink()
        (self.checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)

    def committed(self) -> dict[TopicPartition, int]:
        with Admin(bootstrap_servers=self.cluster) as admin:
            stored = admin.list_group_offsets(self.target, require_stable=True)
        return {tp: entry.offset for tp, entry in stored.items()}


@pytest.fixture
def copy(request: pytest.FixtureRequest, spark: SparkSession, cluster: str, tmp_path: Path) -> Copy:
    """By the sink that the test names."""
    return Copy(spark, cluster, tmp_path, request.param)


on_both_clusters = pytest.mark.parametrize(
    "cluster",
    ["onceflow", pytest.param("apache-kafka", marks=pytest.mark.kafka)],
    indirect=True,
)
both_sinks = pytest.mark.parametrize("copy", ["data source", "foreach_batch"], indirect=True)
# The driver or the commit writes small batches; tasks write larger ones.
every_way = pytest.mark.parametrize(
    "copy",
    [
        "data source",
        "data source by tasks",
        "foreach_batch",
        "foreach_batch by tasks",
        "foreach_batch by tasks without keys",
    ],
    indirect=True,
)
data_source = pytest.mark.parametrize("copy", ["data source"], indirect=True)
batch_function = pytest.mark.parametrize("copy", ["foreach_batch"], indirect=True)


def failing_once(marker: Path, value: str) -> Change:
    """Rows that fail, where this value comes, for as long as the marker file does not exist."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

    def check(text):  # no hints: Spark would read them
        if text == value and not marker.exists():
            marker.touch()
            raise ValueError("the task fails here, once")
        return text

    checked = F.udf(check, "string")
    return lambda rows: rows.withColumn("value", checked(rows["value"].cast("string")))


@on_both_clusters
@every_way
def test_rows_and_offsets_of_all_micro_batches_are_published_once(copy: Copy) -> None:
    copy.run(maxOffsetsPerTrigger="8")
    assert copy.visible() == VALUES
    assert copy.committed() == {TopicPartition(copy.source, n): 10 for n in range(2)}
    by_partition = {r.value: r.partition for r in read_topic(copy.cluster, copy.target)}
    assert set(by_partition.values()) == {0, 1}
    copy.run()
    assert copy.visible() == VALUES


@both_sinks
def test_batch_that_was_published_is_skipped_when_the_checkpoint_does_not_know(
    copy: Copy,
) -> None:
    copy.run()
    copy.forget_commit(0)
    fill(copy.cluster, copy.source, [b"new"])
    copy.run()
    assert copy.visible() == [*VALUES, "new"]
    assert copy.written() == copy.visible()


@data_source
def test_lost_checkpoint_is_resumed_from_the_group(copy: Copy, tmp_path: Path) -> None:
    copy.run()
    copy.checkpoint = tmp_path / "another"
    copy.options["checkpointLocation"] = str(copy.checkpoint)
    fill(copy.cluster, copy.source, [b"new"])
    copy.run(startingOffsets="committed", groupId=copy.target)
    assert copy.visible() == [*VALUES, "new"]


@batch_function
def test_task_that_fails_before_the_writing_stage_is_sparks_own_affair(
    copy: Copy, tmp_path: Path
) -> None:
    copy.run(failing_once(tmp_path / "failed", "1-7"))
    assert (tmp_path / "failed").exists()
    assert copy.visible() == VALUES
    assert copy.written() == VALUES


@every_way
def test_task_that_fails_after_some_rows_were_written(copy: Copy) -> None:
    """What the attempt left in the log belongs to an aborted transaction."""
    with Proxy(copy.cluster) as proxy:
        copy.options |= {
            "kafka.bootstrap.servers": proxy.bootstrap_servers,
            "kafka.batch.size": "64",
            "kafka.linger.ms": "0",
        }
        proxy.add(
            ProduceRequest, Action.ANSWER, every=3, times=1, error=ErrorCode.UNKNOWN_SERVER_ERROR
        )
        if copy.sink == "foreach_batch":
            copy.run()
        else:
            with pytest.raises(Exception, match="nothing was published: UNKNOWN_SERVER_ERROR"):
                copy.run()
            assert copy.visible() == []
            copy.run()
    assert copy.visible() == VALUES
    assert len(copy.written()) > len(VALUES)


@data_source
def test_supervised_query_starts_again_and_publishes_each_row_once(copy: Copy) -> None:
    with Proxy(copy.cluster) as proxy:
        copy.options["kafka.bootstrap.servers"] = proxy.bootstrap_servers
        proxy.add(ProduceRequest, Action.ANSWER, times=1, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        queries: list[StreamingQuery] = []

        def start() -> StreamingQuery:
            queries.append(copy.start(maxOffsetsPerTrigger="8"))
            return queries[-1]

        run_query(start, wait_s=0)
    assert len(queries) == 2
    assert copy.visible() == VALUES
    assert lag_of(queries[-1]) == {TopicPartition(copy.source, n): 0 for n in range(2)}


def test_publisher_counts_what_it_published(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    copy = Copy(spark, broker.bootstrap_servers, tmp_path, "foreach_batch")
    with Proxy(copy.cluster) as proxy:
        copy.options["kafka.bootstrap.servers"] = proxy.bootstrap_servers
        proxy.add(ProduceRequest, Action.ANSWER, times=1, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        publish = foreach_batch(**copy.options)
        rows = stream(spark, copy.cluster, copy.source, maxOffsetsPerTrigger="10")
        writer = rows.select("key", "value").writeStream.foreachBatch(publish)
        writer = writer.option("checkpointLocation", str(copy.checkpoint))
        finish(writer.trigger(availableNow=True).start())
    found = publish.metrics
    assert (found.last_batch_id, found.transactions, found.rows) == (1, 2, 20)
    assert (found.aborted_attempts, found.skipped_batches) == (1, 0)
    assert found.bytes > 20


@data_source
def test_answer_to_the_commit_is_lost(copy: Copy) -> None:
    with Proxy(copy.cluster) as proxy:
        copy.options["kafka.bootstrap.servers"] = proxy.bootstrap_servers
        proxy.add(EndTxnRequest, Action.DROP_REPLY, times=1)
        copy.run(maxOffsetsPerTrigger="12")
    assert copy.visible() == VALUES
    assert copy.written() == VALUES


@pytest.mark.parametrize(
    "copy", ["data source", "foreach_batch", "foreach_batch by tasks"], indirect=True
)
def test_rows_choose_topic_partition_headers_and_time(copy: Copy) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

    del copy.options["topic"]
    header = F.struct(F.lit("h").alias("key"), F.col("key").alias("value"))

    def change(rows: DataFrame) -> DataFrame:
        return rows.select(
            F.lit(copy.target).alias("topic"),
            F.when(F.col("value").startswith("0-"), 1).alias("partition"),
            F.when(F.col("value") != b"1-9", F.col("value")).alias("value"),
            "key",
            F.array(header).alias("headers"),
            F.timestamp_millis(F.lit(1_600_000_000_123)).alias("timestamp"),
        )

    copy.run(change)
    found = {r.key: r for r in read_topic(copy.cluster, copy.target)}
    assert len(found) == 20
    assert found[b"1-9"].value is None
    assert {found[f"0-{row}".encode()].partition for row in range(10)} == {1}
    assert {r.timestamp_ms for r in found.values()} == {1_600_000_000_123}
    assert all(list(r.headers) == [("h", key)] for key, r in found.items())


@data_source
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["cast(1 AS int) AS value"], "column value"),
        (["named_struct('a', value) AS value"], "to_json"),
        (["value", "'x' AS partition"], "column partition"),
    ],
)
def test_wrong_column_is_named_before_anything_runs(
    copy: Copy, columns: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        copy.start(lambda rows: rows.selectExpr(*columns))


@batch_function
def test_partition_that_does_not_exist_is_named_and_nothing_is_published(copy: Copy) -> None:
    with pytest.raises(Exception, match="column partition=99"):
        copy.run(lambda rows: rows.selectExpr("value", "99 AS partition"))
    assert copy.visible() == []


@both_sinks
def test_whole_frame_of_the_source_is_written(copy: Copy) -> None:
    rows = stream(copy.spark, copy.cluster, copy.source, includeHeaders="true")

    def change(_: DataFrame) -> DataFrame:
        upper = rows.withColumnRenamed("key", "KEY").withColumnRenamed("partition", "Partition")
        return upper.selectExpr("*", "cast(null AS bigint) AS unused").withColumn(
            "Partition", upper["Partition"].cast("bigint")
        )

    copy.run(change)
    assert copy.visible() == VALUES
    found = read_topic(copy.cluster, copy.target)
    assert {r.value: f"{r.partition}-".encode() for r in found} == {
        r.value: r.value[:2] for r in found if r.value
    }
    assert all(r.key == r.value for r in found)


@batch_function
def test_partition_beyond_32_bits_is_no_other_partition(copy: Copy) -> None:
    with pytest.raises(Exception, match="column partition=4294967296"):
        copy.run(lambda rows: rows.selectExpr("value", "4294967296 AS partition"))
    assert copy.visible() == []


@both_sinks
def test_strict_columns_refuse_what_is_not_written(copy: Copy) -> None:
    copy.options["strictColumns"] = "true"
    with pytest.raises(Exception, match="column='kye'"):
        copy.run(lambda rows: rows.selectExpr("value", "'x' AS kye"))
    assert copy.visible() == []


@data_source
def test_row_without_a_topic_is_an_error_and_nothing_is_published(copy: Copy) -> None:
    del copy.options["topic"]
    named = f"if(value = '1-3', null, '{copy.target}') AS topic"
    with pytest.raises(Exception, match="column topic"):
        copy.run(lambda rows: rows.selectExpr("value", named))
    assert copy.visible() == []


def start_without_route(copy: Copy, **options: str) -> StreamingQuery:
    """Two tasks have rows of one partition."""
    rows = stream(copy.spark, copy.cluster, copy.source).selectExpr("value", "0 AS partition")
    writer = rows.writeStream.format("onceflow").options(**copy.options, **options)
    return writer.trigger(availableNow=True).start()


@data_source
def test_tasks_that_share_a_partition_are_refused_with_the_remedy(copy: Copy) -> None:
    query = start_without_route(copy, driverRowsMax="0")
    with pytest.raises(Exception, match=r"onceflow\.spark_integration\.route\(\)"):
        finish(query)
    assert copy.visible() == []


@data_source
def test_tasks_with_few_rows_may_share_a_partition(copy: Copy) -> None:
    finish(start_without_route(copy))
    assert copy.visible() == copy.written() == VALUES
    assert {record.partition for record in read_topic(copy.cluster, copy.target)} == {0}


@data_source
def test_task_that_fails_once_before_it_wrote_is_run_again_by_spark(
    copy: Copy, tmp_path: Path
) -> None:
    """Its second attempt leaves its rows to the commit, as the first would have done."""
    rows = stream(copy.spark, copy.cluster, copy.source).select("key", "value")
    failing = failing_once(tmp_path / "failed", "1-7")(rows)
    writer = failing.writeStream.format("onceflow").options(**copy.options)
    finish(writer.trigger(availableNow=True).start())
    assert (tmp_path / "failed").exists()
    assert copy.visible() == copy.written() == VALUES


@batch_function
def test_batch_that_grows_beyond_what_the_driver_takes_is_written_by_tasks(copy: Copy) -> None:
    """The first one by what its tasks find, the next one by what the first one was."""
    grown = [f"{value}-{n}" for value in VALUES for n in range(1_000)]
    copy.run(
        lambda rows: rows.selectExpr(
            "key", "explode(sequence(0, 999)) AS n", "cast(value AS string) AS v"
        ).selectExpr("key", "concat(v, '-', n, repeat(' ', 200)) AS value"),
        maxOffsetsPerTrigger="12",
    )
    assert sorted(value.rstrip() for value in copy.visible()) == sorted(grown)
    assert len(copy.written()) == len(grown)


@batch_function
def test_failing_user_function_is_not_tried_again(copy: Copy) -> None:
    calls: list[int] = []

    def transform(rows: DataFrame, batch_id: int) -> DataFrame:
        calls.append(batch_id)
        raise LookupError("the user's own error")

    query = (
        stream(copy.spark, copy.cluster, copy.source)
        .writeStream.foreachBatch(foreach_batch(transform, **copy.options))
        .option("checkpointLocation", str(copy.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="the user's own error"):
        finish(query)
    assert calls == [0]
    assert copy.visible() == []
