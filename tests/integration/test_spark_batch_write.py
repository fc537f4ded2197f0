"""Goal: a write without a stream is published once under its id, whole or not at all.

Method: tables are written with ``df.write``, repeated, cut off before the commit, and written while
answers are lost; what a read_committed consumer finds is compared with the table.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from case_proxy import Action, Proxy
from spark_world import read_topic, spark_session, stream, unavailable_reason, values_of

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, Producer, murmur2_partition
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import EndTxnRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.spark_integration import partition_counts, route
from onceflow.spark_integration.batch_write import OpenWrite
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.writer import HELD_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
NUMBERS = itertools.count(1)
VALUES = sorted(f"row-{number}" for number in range(100))


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


class Table:
    """Rows in three Spark partitions, and the topic that they go to."""

    def __init__(self, spark: SparkSession, cluster: str) -> None:
        self.spark, self.cluster = spark, cluster
        self.topic = f"write-{next(NUMBERS)}"
        with Admin(bootstrap_servers=cluster) as admin:
            admin.create_topics([NewTopic(self.topic, 2, 1)])
        self.options = {"kafka.bootstrap.servers": cluster, "topic": self.topic}

    def rows(self, padding: int = 0, count: int = 100) -> DataFrame:
        return self.spark.range(0, count, 1, 3).selectExpr(
            "concat('key-', id % 7) AS key", f"concat('row-', id, repeat(' ', {padding})) AS value"
        )

    def write(self, rows: DataFrame | None = None, mode: str = "append", **options: str) -> None:
        df = self.rows() if rows is None else rows
        df.write.format("onceflow").mode(mode).options(**{**self.options, **options}).save()

    def visible(self, isolation: str = "read_committed") -> list[str]:
        return [value.rstrip() for value in values_of(self.cluster, self.topic, isolation)]


@pytest.fixture
def table(spark: SparkSession, cluster: str) -> Table:
    return Table(spark, cluster)


def test_write_with_an_id_is_published_once(table: Table) -> None:
    for _ in range(2):
        table.write(writeId="load-1")
    assert table.visible() == table.visible("read_uncommitted") == VALUES
    table.write(writeId="load-2")
    assert table.visible() == sorted(VALUES * 2)
    table.write(writeId="load-2", publishAgain="true")
    table.write()
    assert table.visible() == sorted(VALUES * 4)


def test_one_id_marks_a_load_into_each_of_several_topics(table: Table) -> None:
    other = Table(table.spark, table.cluster)
    for name in ("", "job"):
        given = {"name": name} if name else {}
        table.write(writeId="today", **given)
        other.write(writeId="today", **given)
    assert table.visible() == other.visible() == sorted(VALUES * 2)


def test_names_keep_the_ids_of_different_jobs_apart(table: Table) -> None:
    table.write(writeId="1", name="job-a")
    table.write(writeId="1", name="job-b")
    assert table.visible() == sorted(VALUES * 2)


def test_write_that_died_before_its_commit_is_written_whole_by_the_next_one(table: Table) -> None:
    opened = OpenWrite.begin(SinkOptions.parse({**table.options, "writeId": "load"}))
    producer = Producer(config=opened.options.joined(opened.identity))
    producer.send(table.topic, b"left behind", partition=0)
    producer.flush()
    assert table.visible() == []
    table.write(writeId="load")
    producer.send(table.topic, b"too late", partition=0)
    with pytest.raises(KafkaError):
        producer.flush()
    with contextlib.suppress(KafkaError):
        producer.close()
    assert table.visible() == VALUES


@pytest.mark.parametrize("lost", [Action.DROP_REPLY, Action.CUT])
def test_answer_to_the_commit_is_lost(table: Table, lost: Action) -> None:
    with Proxy(table.cluster) as proxy:
        proxy.add(EndTxnRequest, lost, times=1)
        table.options["kafka.bootstrap.servers"] = proxy.bootstrap_servers
        table.write(writeId="load")
        table.write(writeId="load")
    assert table.visible() == VALUES


def test_write_that_fails_publishes_nothing_and_can_be_repeated(table: Table) -> None:
    with Proxy(table.cluster) as proxy:
        proxy.add(ProduceRequest, Action.ANSWER, times=1, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        table.options["kafka.bootstrap.servers"] = proxy.bootstrap_servers
        with pytest.raises(Exception, match="UNKNOWN_SERVER_ERROR"):
            table.write(writeId="load")
        assert table.visible() == []
        table.write(writeId="load")
    assert table.visible() == VALUES


def test_large_table_is_written_when_each_partition_is_in_one_task(table: Table) -> None:
    padding = HELD_BYTES_MAX // 20
    rows = table.rows(padding)
    with pytest.raises(Exception, match=r"onceflow\.spark_integration\.route\(\)"):
        table.write(rows, writeId="load")
    assert table.visible() == []
    counts = partition_counts(table.options, [table.topic])
    table.write(route(rows, counts, topic=table.topic), writeId="load")
    assert table.visible() == VALUES
    table.write(route(rows, counts, options=table.options), writeId="again")
    assert table.visible() == sorted(VALUES * 2)


def test_encoded_rows_keep_key_partition_headers_and_time(table: Table) -> None:
    counts = partition_counts(table.options, [table.topic])
    numbered = table.rows().selectExpr("*", "CAST(substring(value, 5) AS BIGINT) AS id")
    rows = numbered.selectExpr(
        "CASE WHEN id % 3 = 0 THEN NULL ELSE key END AS Key",
        "value",
        "CASE WHEN id % 3 = 1 THEN 1L ELSE NULL END AS partition",
        "array(named_struct('key', 'h', 'value', CAST('v' AS BINARY))) AS headers",
        "timestamp_millis(id + 7) AS timestamp",
    )
    table.write(route(rows, counts, options=table.options))
    found = read_topic(table.cluster, table.topic)
    assert sorted(record.value.decode() for record in found if record.value) == VALUES
    for record in found:
        assert record.value is not None
        number = int(record.value.decode()[4:])
        assert list(record.headers) == [("h", b"v")]
        assert record.timestamp_ms == number + 7
        if number % 3 == 0:
            assert record.key is None
        else:
            assert record.key == b"key-%d" % (number % 7)
            wanted = 1 if number % 3 == 1 else murmur2_partition(record.key, 2)
            assert record.partition == wanted
    keyless = {record.partition for record in found if record.key is None}
    assert keyless == {0, 1}


def test_encoded_rows_name_their_topics(table: Table) -> None:
    del table.options["topic"]
    named = table.rows().selectExpr("*", f"'{table.topic}' AS topic")
    counts = partition_counts(table.options, [table.topic])
    table.write(route(named, counts, options=table.options))
    assert table.visible() == VALUES
    unknown = table.rows().selectExpr("*", "'nowhere' AS topic")
    with pytest.raises(Exception, match=r"topic 'nowhere' does not exist|nowhere"):
        table.write(route(unknown, counts, options=table.options))
    assert table.visible() == VALUES


def test_encoded_rows_are_refused_by_a_sink_with_other_options(table: Table) -> None:
    counts = partition_counts(table.options, [table.topic])
    routed = route(table.rows(), counts, options=table.options)
    with pytest.raises(Exception, match="encoded by other options than the sink has"):
        table.write(routed, **{"kafka.compression.type": "gzip"})
    assert table.visible() == []


def test_rows_name_their_topics_and_an_empty_table_counts_as_published(table: Table) -> None:
    del table.options["topic"]
    named = table.rows().selectExpr("*", f"'{table.topic}' AS topic")
    with pytest.raises(Exception, match=r"name=''.*writeId"):
        table.write(named, writeId="a")
    table.write(named, writeId="a", name="job")
    assert table.visible() == VALUES
    table.options["topic"] = table.topic
    table.write(table.rows(count=0), writeId="empty")
    table.write(writeId="empty")
    assert table.visible() == VALUES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "overwrite"}, "mode='overwrite'"),
        ({"checkpointLocation": "/c"}, "writeId"),
        ({"topic": "missing-topic"}, "missing-topic"),
        ({"writeIdd": "x"}, "did you mean writeId"),
    ],
)
def test_wrong_write_is_refused_with_the_remedy(
    table: Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        table.write(**options)  # type: ignore[arg-type]
    assert table.visible() == []


def test_stream_refuses_an_id_of_a_write(table: Table, tmp_path: Path) -> None:
    rows = stream(table.spark, table.cluster, table.topic).select("value")
    writer = rows.writeStream.format("onceflow").options(**table.options, writeId="x")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"writeId='x': belongs to df\.write"):
        query.awaitTermination()
