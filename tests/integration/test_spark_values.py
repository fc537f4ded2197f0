"""Goal: structured values are columns of their own type in Spark, both ways.

Method: JSON, MessagePack and Avro values are written to topics, read by the source with a type that
is given, inferred or registered, changed in Spark, written back by the sink's two ways, and read by
the SDK's serdes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest
from schema_registry_fake import FakeRegistry
from spark_world import fill, finish, read_topic, spark_session, stream, unavailable_reason

from onceflow.broker_lite import Broker
from onceflow.sdk.schema_registry import SchemaRegistry, avro_serde
from onceflow.spark_integration import foreach_batch, partition_counts, route

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
ORDERS = [{"id": number, "price": number / 2, "tags": ["x"] * number} for number in range(4)]
SCHEMA = "id BIGINT, price DOUBLE, tags ARRAY<STRING>"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        for topic in ("json", "msgpack", "avro", "json-out", "msgpack-out", "avro-out"):
            running.create_topic(topic)
        yield running


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with FakeRegistry() as running:
        yield running.url


@pytest.mark.parametrize("format", ["json", "msgpack", "avro"])
def test_structured_values_both_ways(
    format: str, spark: SparkSession, broker: Broker, registry: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    client = SchemaRegistry(url=registry)
    serde = avro_serde(client, AVRO)
    out = serde.bind(f"{format}-out")
    encode = {
        "json": msgspec.json.encode,
        "msgpack": msgspec.msgpack.encode,
        "avro": serde.bind(format).serialize,
    }[format]
    if format == "avro":
        out.serialize(ORDERS[0])  # Registers the schema that the sink writes with.
    fill(servers, format, [*map(encode, ORDERS), None])
    values = {"valueFormat": format} | ({"valueRegistry": registry} if format == "avro" else {})
    # The type: registered for Avro, given for MessagePack, inferred for JSON.
    given = {"valueSchema": SCHEMA} if format == "msgpack" else {}
    rows = stream(spark, servers, format, **values, **given)
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    assert kinds["value"] == "struct<id:bigint,price:double,tags:array<string>>"
    options = {"kafka.bootstrap.servers": servers, "topic": f"{format}-out", **values}
    checkpoint = str(tmp_path / "checkpoint")
    doubled = rows.selectExpr(
        "key", "value.id * 2 AS id", "value.price AS price", "value.tags AS tags", "value AS old"
    ).selectExpr("CASE WHEN old IS NULL THEN NULL ELSE struct(id, price, tags) END AS value")
    if format == "json":
        writer = doubled.writeStream.foreachBatch(
            foreach_batch(checkpointLocation=checkpoint, **options)
        )
    else:
        counts = partition_counts(options, [options["topic"]])
        encoding = options if format == "avro" else None
        routed = route(doubled, counts, topic=options["topic"], options=encoding)
        writer = routed.writeStream.format("onceflow").options(**options)
    finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    decode = {
        "json": msgspec.json.decode,
        "msgpack": msgspec.msgpack.decode,
        "avro": out.deserialize,
    }[format]
    found = [record.value for record in read_topic(servers, f"{format}-out")]
    assert None in found
    decoded = sorted((decode(v) for v in found if v is not None), key=lambda row: row["id"])
    assert decoded == [{**order, "id": order["id"] * 2} for order in ORDERS]
    client.close()


def test_a_value_that_does_not_fit_ends_the_query_with_its_place(
    spark: SparkSession, broker: Broker
) -> None:
    broker.create_topic("bad")
    fill(broker.bootstrap_servers, "bad", [b'{"id":1}', b"no json"])

    def read(**options: str) -> list[object]:
        table = spark.read.format("onceflow").options(
            subscribe="bad", valueFormat="json", valueSchema="id INT", **options
        )
        table = table.option("kafka.bootstrap.servers", broker.bootstrap_servers)
        return [row.id for row in table.load().select("value.id").collect()]

    with pytest.raises(Exception, match=r"bad-0@1: the value is not json of type struct<id:int>"):
        read()
    assert read(valueErrors="null") == [1, None]
