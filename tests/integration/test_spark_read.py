"""Goal: reading takes the options of Spark's own Kafka source and means the same by them.

Method: topics of the in-process broker are read as batches and as streams, to their end or in
bounded micro-batches, and compared with what was written. Apache Kafka in ``make chaos``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_world import fill, finish, spark_session, stream, unavailable_reason

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from onceflow.spark_integration.options import SourceOptions
from onceflow.spark_integration.reader import OnceflowStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
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


def create(cluster: str, partitions: int = 2) -> str:
    """A new topic."""
    name = f"read-{next(NUMBERS)}"
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])
    return name


@pytest.fixture
def topic(cluster: str) -> str:
    """Two partitions with five rows each: 0-0 ... 0-4 and 1-0 ... 1-4, a second apart."""
    name = create(cluster)
    with Producer(bootstrap_servers=cluster) as producer:
        for partition, row in itertools.product(range(2), range(5)):
            producer.send(
                name,
                f"{partition}-{row}".encode(),
                key=b"k",
                partition=partition,
                timestamp_ms=1_600_000_000_000 + 1_000 * row,
                headers=[("h", b"1"), ("h", None)] if row == 0 else (),
            )
        producer.flush()
    return name


def batch(spark: SparkSession, cluster: str, **options: str) -> DataFrame:
    reader = spark.read.format("onceflow").option("kafka.bootstrap.servers", cluster)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def texts(df: DataFrame) -> list[str]:
    """The values as text, sorted."""
    return sorted(bytes(row.value).decode() for row in df.select("value").collect())


def offsets(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(numbers)}})


def rows(*spans: tuple[int, int, int]) -> list[str]:
    """Values of (partition, first row, row after the last)."""
    return [f"{p}-{row}" for p, start, end in spans for row in range(start, end)]


def drained(df: DataFrame, checkpoint: Path) -> list[list[str]]:
    """Run a stream to its present end; the values of each of its micro-batches."""
    found: list[list[str]] = []
    query = (
        df.writeStream.foreachBatch(lambda batch, _: found.append(texts(batch)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    return found


def all_of(batches: list[list[str]]) -> list[str]:
    return sorted(itertools.chain(*batches))


def test_columns_are_those_of_sparks_own_source(
    spark: SparkSession, cluster: str, topic: str
) -> None:
    df = batch(spark, cluster, subscribe=topic)
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    row = df.where("partition = 1 and offset = 3").first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value), row.topic) == (b"k", b"1-3", topic)
    assert row.timestampType == 0
    seconds = df.where("offset = 3").selectExpr("unix_millis(timestamp) AS ms").first()
    assert seconds is not None
    assert seconds.ms == 1_600_000_003_000


def test_headers_come_in_order_with_repeated_names_and_nulls(
    spark: SparkSession, cluster: str, topic: str
) -> None:
    df = batch(spark, cluster, subscribe=topic, includeHeaders="true").where("partition = 0")
    first, second = df.orderBy("offset").select("headers").take(2)
    assert [(h.key, h.value) for h in first.headers] == [("h", b"1"), ("h", None)]
    assert second.headers is None


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ((-2, -2), (-1, -1), rows((0, 0, 5), (1, 0, 5))),
        ((2, -2), (4, -1), rows((0, 2, 4), (1, 0, 5))),
        ((5, 4), (5, 5), rows((1, 4, 5))),
    ],
)
def test_batch_covers_the_given_offsets(
    spark: SparkSession,
    cluster: str,
    topic: str,
    starting: tuple[int, int],
    ending: tuple[int, int],
    expected: list[str],
) -> None:
    df = batch(
        spark,
        cluster,
        subscribe=topic,
        startingOffsets=offsets(topic, *starting),
        endingOffsets=offsets(topic, *ending),
    )
    assert texts(df) == expected


def test_batch_by_time(spark: SparkSession, cluster: str, topic: str) -> None:
    by_one_time = batch(
        spark,
        cluster,
        subscribe=topic,
        startingTimestamp="1600000002000",
        endingTimestamp="1600000004000",
    )
    assert texts(by_one_time) == rows((0, 2, 4), (1, 2, 4))
    each = json.dumps({topic: {"0": 1_600_000_004_000, "1": 1_600_000_000_001}})
    by_partition = batch(spark, cluster, subscribe=topic, startingOffsetsByTimestamp=each)
    assert texts(by_partition) == rows((0, 4, 5), (1, 1, 5))


def test_time_after_the_last_record_is_an_error_or_starts_at_the_end(
    spark: SparkSession, cluster: str, topic: str
) -> None:
    late = "1700000000000"
    with pytest.raises(Exception, match=r"starting time.*startingOffsetsByTimestampStrategy"):
        batch(spark, cluster, subscribe=topic, startingTimestamp=late).collect()
    df = batch(
        spark,
        cluster,
        subscribe=topic,
        startingTimestamp=late,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert texts(df) == []


def test_stream_waits_for_enough_offsets(cluster: str, topic: str) -> None:
    reader = OnceflowStreamReader(
        SourceOptions.parse(
            {
                "kafka.bootstrap.servers": cluster,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "minOffsetsPerTrigger": "3",
            },
            streaming=True,
        )
    )
    limit = ReadAllAvailable()
    first = reader.latestOffset(reader.initialOffset(), limit)
    fill(cluster, topic, [b"x", b"y"])
    assert reader.latestOffset(first, limit) == first
    fill(cluster, topic, [b"z"])
    assert reader.latestOffset(first, limit)[topic]["0"] == first[topic]["0"] + 3
    fill(cluster, topic, [b"last"])
    reader.prepareForTriggerAvailableNow()
    again = reader.latestOffset(reader.latestOffset(first, limit), limit)
    assert again[topic]["0"] == first[topic]["0"] + 4
    reader.stop()


def test_assign_and_pattern_choose_partitions_and_topics(
    spark: SparkSession, cluster: str, topic: str
) -> None:
    other = create(cluster, partitions=1)
    fill(cluster, other, [b"other"])
    assert texts(batch(spark, cluster, assign=json.dumps({topic: [1]}))) == rows((1, 0, 5))
    pattern = f"({topic}|{other})"
    found = texts(batch(spark, cluster, subscribePattern=pattern))
    assert found == [*rows((0, 0, 5), (1, 0, 5)), "other"]


def test_min_partitions_splits_the_reading(spark: SparkSession, cluster: str, topic: str) -> None:
    df = batch(spark, cluster, subscribe=topic, minPartitions="4")
    assert df.rdd.getNumPartitions() == 4
    assert texts(df) == rows((0, 0, 5), (1, 0, 5))


def test_unknown_topic_is_named(spark: SparkSession, cluster: str) -> None:
    with pytest.raises(Exception, match="no-such-topic"):
        batch(spark, cluster, subscribe="no-such-topic").count()


def test_wrong_option_is_named_before_anything_is_read(spark: SparkSession, cluster: str) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        batch(spark, cluster, subscribe="t", startingOffset="earliest").count()


def test_stream_is_cut_into_bounded_micro_batches_and_continues_after_a_restart(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path
) -> None:
    df = stream(spark, cluster, topic, maxOffsetsPerTrigger="4")
    batches = drained(df, tmp_path)
    assert all_of(batches) == rows((0, 0, 5), (1, 0, 5))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    fill(cluster, topic, [b"0-5"], partition=0)
    assert drained(df, tmp_path) == [["0-5"]]


def test_stream_from_latest_takes_only_what_comes_later(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path
) -> None:
    df = stream(spark, cluster, topic, startingOffsets="latest")
    assert all_of(drained(df, tmp_path)) == []
    fill(cluster, topic, [b"later"], partition=1)
    assert drained(df, tmp_path) == [["later"]]


def test_stream_resumes_from_the_commits_of_a_group(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path
) -> None:
    group = f"group-of-{topic}"
    with Admin(bootstrap_servers=cluster) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(3)})
    df = stream(spark, cluster, topic, startingOffsets="committed", groupId=group)
    assert drained(df, tmp_path) == [rows((0, 3, 5), (1, 0, 5))]


def test_expired_offsets_end_the_query_or_are_skipped_as_asked(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path
) -> None:
    strict = stream(spark, cluster, topic)
    drained(strict, tmp_path)
    fill(cluster, topic, [b"0-5", b"0-6", b"0-7"])
    with Admin(bootstrap_servers=cluster) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(Exception, match=f"{topic}-0: wanted 5, the log begins at 7"):
        drained(strict, tmp_path)
    lax = stream(spark, cluster, topic, failOnDataLoss="false")
    assert all_of(drained(lax, tmp_path)) == ["0-7"]


def test_position_of_an_uncommitted_transaction_is_not_passed(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path
) -> None:
    df = stream(spark, cluster, topic)
    with Producer(bootstrap_servers=cluster, transactional_id=f"open-{topic}") as producer:
        producer.begin_transaction()
        producer.send(topic, b"pending", partition=0)
        producer.flush()
        assert drained(df, tmp_path) == [rows((0, 0, 5), (1, 0, 5))]
        dirty = batch(
            spark, cluster, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"}
        )
        assert "pending" in texts(dirty)
        producer.commit_transaction()
    assert drained(df, tmp_path) == [["pending"]]
