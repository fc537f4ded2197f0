"""Goal: keys and values with registered schemas are sent and read as JSON from the command line.

Method: what `consume --decode` prints is sent again and printed the same, for each language; the
SDK's serdes read what the command line wrote. The registry is a fake; the records lie on our broker
and, with `make conformance`, on Apache Kafka.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from consumer_worlds import fresh
from google.protobuf import descriptor_pb2
from protobuf_shapes import Money, Order
from schema_registry_fake import FakeRegistry

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition
from onceflow.sdk.schema_registry import (
    Schema,
    SchemaRegistry,
    avro_serde,
    json_schema_serde,
    protobuf_serde,
)

AVRO = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
        },
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "from",
            "type": [
                {"type": "record", "name": "Shop", "fields": [{"name": "no", "type": "int"}]},
                {"type": "record", "name": "Site", "fields": [{"name": "no", "type": "int"}]},
            ],
        },
    ],
}
SHAPE = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    which = "ours" if "ours" in request.fixturenames else "onceflow"
    name = fresh("topic")
    request.getfixturevalue(which).call("topics", "create", name, "--partitions", "1")
    return name


def printed(line: CommandLine, topic: str, registry: FakeRegistry, *more: str) -> list[Any]:
    words = ("consume", topic, "--decode", "value", "--registry", registry.url, *more, "--json")
    return [json.loads(each) for each in line.call(*words).stdout.splitlines()]


def test_avro_goes_there_and_back(
    onceflow: CommandLine, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    value = {
        "id": 7,
        "at": 1_700_000_000_000,
        "price": "\u00ff\u0001",
        "note": {"string": "x"},
        "from": {"shop.Site": {"no": 3}},
    }
    line = json.dumps({"key": {"long": 1}, "value": value})
    (tmp_path / "key.avsc").write_text('["null", "long"]')
    words = ("--format", "json", "--registry", registry.url)
    schemas = ("--value-schema", str(schema), "--key-schema", str(tmp_path / "key.avsc"))
    onceflow.call("produce", topic, *words, *schemas, input=line)
    (first,) = printed(onceflow, topic, registry, "--decode", "key")
    assert (first["key"], first["value"]) == ({"long": 1}, value)
    latest = ("--value-schema", "latest", "--key-schema", "latest")
    onceflow.call("produce", topic, *words, *latest, input=json.dumps(first))
    assert [each["value"] for each in printed(onceflow, topic, registry)] == [value, value]

    serde = avro_serde(SchemaRegistry(registry.url))
    with Consumer(
        bootstrap_servers=onceflow.bootstrap,
        auto_offset_reset="earliest",
        value_deserializer=serde.deserialize,
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        records: list[Any] = []
        while len(records) < 2:
            records += [each for found in consumer.poll(timeout_ms=200).values() for each in found]
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    assert records[1].value["at"] == at
    assert records[1].value["price"] == decimal.Decimal("-2.55")


def test_json_with_a_schema(
    onceflow: CommandLine, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(SHAPE))
    words = ("produce", topic, "--registry", registry.url, "--value-schema")
    onceflow.call(*words, str(schema), "--key-delimiter", ":", input='a:{"id": 1}\n')
    (record,) = printed(onceflow, topic, registry)
    assert (record["key"], record["value"]) == ("a", {"id": 1})
    with Producer(
        bootstrap_servers=onceflow.bootstrap,
        value_serializer=json_schema_serde(SchemaRegistry(registry.url), SHAPE).serialize,
    ) as producer:
        producer.send(topic, {"id": 2}).result()
    text = onceflow.call(
        *("consume", topic, "--decode", "value", "--registry", registry.url),
        *("--format", "{offset} {value}"),
    ).stdout
    assert text == '0 {"id": 1}\n1 {"id": 2}\n'
    told = onceflow.call(*words, "latest", input='{"id": "x"}\n', status=2).stderr
    assert "standard input, line 1: value" in told


def test_protobuf_messages(onceflow: CommandLine, topic: str, registry: FakeRegistry) -> None:
    serde = protobuf_serde(SchemaRegistry(registry.url))
    with Producer(
        bootstrap_servers=onceflow.bootstrap, value_serializer=serde.serialize
    ) as producer:
        producer.send(topic, Order(id=7, price=Money(cents=250))).result()
    (record,) = printed(onceflow, topic, registry)
    assert record["value"] == {"id": "7", "price": {"cents": "250"}}
    words = ("produce", topic, "--format", "json", "--registry", registry.url)
    onceflow.call(*words, "--value-schema", "latest", input=json.dumps(record))
    refund = ("--value-schema", "latest", "--message", "shop.Refund")
    onceflow.call(*words, *refund, input='{"value": {"reason": "broken"}}')
    values = [each["value"] for each in printed(onceflow, topic, registry)]
    assert values == [record["value"], record["value"], {"reason": "broken"}]
    wrong = onceflow.call(*words, *refund, input='{"value": {"nonsense": 1}}', status=2)
    assert "nonsense" in wrong.stderr


def test_a_protobuf_text_is_compiled_by_the_registry(
    ours: CommandLine, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    text = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    file = tmp_path / "money.proto"
    file.write_text(text)
    words = ("produce", topic, "--registry", registry.url, "--value-schema", str(file))
    assert "gives no descriptor" in ours.error(*words, status=1)
    descriptor = Money.DESCRIPTOR.file.serialized_pb
    registry.compiled[text] = base64.b64encode(descriptor).decode()
    ours.call(*words, input='{"cents": "5"}\n')
    assert printed(ours, topic, registry)[0]["value"] == {"cents": "5"}


def test_an_older_schema_of_a_file_is_the_one_that_is_written(
    ours: CommandLine, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    client = SchemaRegistry(registry.url)
    ids = []
    for number, name in enumerate(("cents", "pence")):
        text = f'syntax = "proto3"; package shop; message Money {{ int64 {name} = 1; }}'
        (tmp_path / f"{number}.proto").write_text(text)
        described = descriptor_pb2.FileDescriptorProto.FromString(
            Money.DESCRIPTOR.file.serialized_pb
        )
        described.message_type[0].field[0].name = name
        described.message_type[0].field[0].json_name = name
        registry.compiled[text] = base64.b64encode(described.SerializeToString()).decode()
        ids.append(client.register(f"{topic}-value", Schema(text, "PROTOBUF")))
    assert ids[0] != ids[1]
    words = ("produce", topic, "--registry", registry.url, "--value-schema")
    ours.call(*words, str(tmp_path / "0.proto"), input='{"cents": 5}\n')
    ours.call(*words, str(tmp_path / "1.proto"), input='{"pence": 6}\n')
    values = [each["value"] for each in printed(ours, topic, registry)]
    assert values == [{"cents": "5"}, {"pence": "6"}]


def test_tombstones_stay_and_what_has_no_schema_is_named(
    ours: CommandLine, topic: str, registry: FakeRegistry
) -> None:
    ours.call("produce", topic, "--format", "json", input='{"key": "a", "value": null}\n')
    assert printed(ours, topic, registry)[0]["value"] is None
    ours.call("produce", topic, input="plain\n")
    words = ("consume", topic, "--decode", "value", "--registry", registry.url)
    told = ours.error(*words, status=1)
    assert f"{topic}:0, offset 1" in told
    assert "without a schema registry" in told


def test_a_null_by_its_schema_is_not_printed_as_a_tombstone(
    ours: CommandLine, topic: str, registry: FakeRegistry
) -> None:
    serde = json_schema_serde(SchemaRegistry(registry.url), {}).bind(topic)
    with Producer(bootstrap_servers=ours.bootstrap) as producer:
        producer.send(topic, b"\x00\x00\x00\x00\x01null").result()
    assert serde.serialize({"first": 1})[:5] == b"\x00\x00\x00\x00\x01"
    words = ("consume", topic, "--decode", "value", "--registry", registry.url)
    assert "no tombstone" in ours.error(*words, status=1)


def test_places_that_name_the_registry(ours: CommandLine, topic: str, tmp_path: Path) -> None:
    words = ("consume", topic, "--decode", "value")
    assert "--registry URL" in ours.error(*words, status=2)
    with FakeRegistry(credentials="reader:secret") as registry:
        serde = json_schema_serde(
            SchemaRegistry(registry.url, basic_auth_user_info="reader:secret"), SHAPE
        )
        with Producer(
            bootstrap_servers=ours.bootstrap, value_serializer=serde.serialize
        ) as producer:
            producer.send(topic, {"id": 1}).result()
        properties = tmp_path / "client.properties"
        properties.write_text(
            f"schema.registry.url={registry.url}\nbasic.auth.user.info=reader:secret\n"
        )
        toml = tmp_path / "client.toml"
        toml.write_text(
            f'[schema.registry]\nurl = "{registry.url}"\n[basic.auth.user]\n'
            'info = "reader:secret"\n'
        )
        variables = {
            "ONCEFLOW_SCHEMA_REGISTRY_URL": registry.url,
            "ONCEFLOW_SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": "reader:secret",
        }
        assert ours.call(*words, "--config", str(properties)).stdout == '{"id": 1}\n'
        assert ours.call(*words, "--config", str(toml)).stdout == '{"id": 1}\n'
        assert ours.call(*words, environ=variables).stdout == '{"id": 1}\n'
        refused = ours.call(*words, "--registry", registry.url, status=1).stderr
        assert "secret" not in refused
        wrong = ours.call(*words, environ={"ONCEFLOW_SCHEMA_REGISTRY_ULR": "x"}, status=2)
        assert "ONCEFLOW_SCHEMA_REGISTRY_ULR" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--value-schema", "nowhere.avsc"), "nowhere.avsc"),
        (("--value-schema", "latest", "--message", "shop.Order"), "not found"),
    ],
)
def test_wrong_schemas(
    ours: CommandLine, topic: str, registry: FakeRegistry, words: tuple[str, ...], told: str
) -> None:
    result = ours.call("produce", topic, "--registry", registry.url, *words, status=None)
    assert result.exit_code in (1, 2)
    assert told in result.stderr
