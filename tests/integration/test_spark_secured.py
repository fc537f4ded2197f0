"""Goal: the Spark adapter works on a cluster that asks for TLS, SASL and permissions.

Method: one properties file is all that source, sink and ``foreach_batch`` are told, beside options
that win over it; rows go from a topic through a micro-batch to another, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from secured_broker import Grant, as_file, as_root, grant, secured_broker
from spark_world import finish, spark_session, unavailable_reason
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, ClientSettings, Consumer, NewTopic, Producer, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
GRANTED: list[Grant] = [
    ("TOPIC", "in", "LITERAL", ("READ",)),
    ("TOPIC", "out", "LITERAL", ("READ", "WRITE")),
    ("GROUP", "spark", "PREFIXED", ("READ",)),
    ("TRANSACTIONAL_ID", "spark", "LITERAL", ("WRITE",)),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


@pytest.fixture
def broker(world: TlsWorld) -> Iterator[Broker]:
    with secured_broker(world) as running:
        yield running


@pytest.fixture
def root(broker: Broker, world: TlsWorld) -> ClientSettings:
    client = as_root(broker, world)
    with Admin(config=client.admin()) as admin:
        admin.create_topics([NewTopic("in", 2), NewTopic("out", 1)])
    grant(client, GRANTED)
    with Producer(config=client.producer()) as producer:
        for number in range(20):
            producer.send("in", b"%d" % number, key=b"%d" % number)
    return client


@pytest.mark.parametrize("way", ["sink", "foreach_batch"])
def test_rows_pass_through_a_secured_cluster_once(
    way: str,
    spark: SparkSession,
    root: ClientSettings,
    broker: Broker,
    world: TlsWorld,
    tmp_path: Path,
) -> None:
    from onceflow.spark_integration import foreach_batch, partition_counts, route

    client = {"client": str(as_file(broker, world, tmp_path / "client.properties"))}
    checkpoint = str(tmp_path / "checkpoint")
    out = {"topic": "out", "transactionalId": "spark", "checkpointLocation": checkpoint}
    rows = (
        spark.readStream.format("onceflow")
        .options(**client, subscribe="in", startingOffsets="earliest")
        .options(**{"kafka.fetch.max.wait.ms": "50", "kafka.client.id": "spark"})
        .load()
        .select("key", "value")
    )
    if way == "sink":
        counts = partition_counts(client, ["out"])
        writer = route(rows, counts, topic="out").writeStream.format("onceflow")
        writer = writer.options(**client, **out, **{"kafka.linger.ms": "0"})
    else:
        publish = foreach_batch(client=client["client"], **out)
        writer = rows.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint)
    finish(writer.trigger(availableNow=True).start())
    with Consumer(config=root.reader(auto_offset_reset="earliest")) as consumer:
        partition = TopicPartition("out", 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes] = []
        while consumer.position(partition) < end:
            for batch in consumer.poll(timeout_ms=1_000).values():
                found += [record.value or b"" for record in batch]
    assert sorted(found) == sorted(b"%d" % number for number in range(20))
