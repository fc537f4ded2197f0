"""Goal: what Kafka's users have written down works here: property files, and the variables of
Kafka's images.

Method: texts and variables, and what they come to; the format is that of Java's properties.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS, BrokerConfig
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.broker_lite.settings.kafka_settings import (
    CLUSTER_ID_VARIABLES,
    Variable,
    adapt,
    read_environment,
    read_file,
)
from onceflow.sdk.errors import ConfigError


def from_variables(environment: dict[str, str]) -> dict[str, str]:
    """Values by property."""
    return {name: each.value for name, each in read_environment(environment).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1\nc = 2 \n", {"a.b": "1", "c": "2 "}),
        ("# no\n! no\n\n  a=1", {"a": "1"}),
        ("a:1\nb 2\nc\t=3\nd", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("a=1,\\\n   2,\\\n 3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
        ("a\\=b=c\\:d\\ne\\u00e9", {"a=b": "c:d\ne\u00e9"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
    ],
)
def test_files_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert read_file(text) == expected


def test_a_broken_escape_is_named() -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        read_file("a=\\u00g1")


def test_variables_are_read_as_kafkas_image_reads_them() -> None:
    found = from_variables(
        {
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_LISTENER_NAME_SASL__X_SCRAM___SHA___256_A": "v",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_OPTS": "",
            "PATH": "/bin",
        }
    )
    assert found == {"num.partitions": "3", "listener.name.sasl_x.scram-sha-256.a": "v"}


def test_what_kubernetes_tells_of_a_service_is_no_setting() -> None:
    told = {
        f"KAFKA{service}_{name}": value
        for service in ("", "_BROKER_0")
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "9092",
            "SERVICE_PORT_CLIENTS_TLS": "9093",
            "PORT": "tcp://10.0.0.1:9092",
            "PORT_9092_TCP": "tcp://10.0.0.1:9092",
            "PORT_9092_TCP_PROTO": "tcp",
            "PORT_9092_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    assert from_variables(told) == {}
    # An old setting of Kafka's is refused later, like everything that there is not.
    assert from_variables({"KAFKA_PORT": "9092"}) == {"port": "9092"}
    assert not any(
        from_variables({name: "x"}) == {}
        for name in ("KAFKA_" + setting.replace(".", "_").upper() for setting in BROKER_SETTINGS)
    )


@pytest.mark.parametrize("variable", CLUSTER_ID_VARIABLES)
def test_the_cluster_id_of_compose_files_is_a_setting(variable: str) -> None:
    found = read_environment({variable: "MkU3OEVBNTcwNTJENDM2Qk"})
    assert found == {"onceflow.cluster.id": Variable(variable, "MkU3OEVBNTcwNTJENDM2Qk")}
    assert read_environment({variable: ""}) == {}


def test_two_cluster_ids_are_refused_by_the_variables_names() -> None:
    same = {"CLUSTER_ID": "a", "KAFKA_CLUSTER_ID": "a"}
    assert from_variables(same) == {"onceflow.cluster.id": "a"}
    with pytest.raises(ConfigError, match="CLUSTER_ID names another cluster") as caught:
        read_environment({"CLUSTER_ID": "a", "KAFKA_KRAFT_CLUSTER_ID": "b"})
    assert caught.value.field == "KAFKA_KRAFT_CLUSTER_ID"


@pytest.mark.parametrize("value", ["true", "True", "yes", "1"])
def test_kraft_mode_is_what_there_is(value: str) -> None:
    assert read_environment({"KAFKA_KRAFT_MODE": value}) == {}


@pytest.mark.parametrize("value", ["false", "", "no"])
def test_another_mode_is_refused_by_the_variables_name(value: str) -> None:
    with pytest.raises(ConfigError, match="ZooKeeper") as caught:
        read_environment({"KAFKA_KRAFT_MODE": value})
    assert caught.value.field == "KAFKA_KRAFT_MODE"


@pytest.mark.parametrize("text", ["with a space", "x" * 65, "a/b"])
def test_what_cannot_be_a_cluster_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({"onceflow.cluster.id": text})
    assert caught.value.field == "onceflow.cluster.id"


KRAFT_EXAMPLE = """
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_a_usual_file_of_a_kraft_node_is_taken() -> None:
    settings = adapt(read_file(KRAFT_EXAMPLE))
    assert settings.data == "/tmp/kraft-combined-logs"
    assert settings.properties["listeners"] == "PLAINTEXT://:9092"
    assert settings.properties["advertised.listeners"] == "PLAINTEXT://localhost:9092"
    assert "process.roles" in settings.passed_over
    config = BrokerConfig.from_properties(settings.properties)
    assert config.node_id == 7


def test_older_names_are_understood() -> None:
    assert adapt({"broker.id": "5", "log.dir": "/d"})[:2] == ({"node.id": "5"}, "/d")
    assert adapt({"broker.id": "-1"}).properties == {}
    assert adapt({"broker.id": "5", "node.id": "6"}).properties == {"node.id": "6"}


def test_several_folders_are_refused() -> None:
    with pytest.raises(ConfigError, match="one folder"):
        adapt({"log.dirs": "/a,/b"})


def test_a_slip_of_the_pen_is_still_noticed() -> None:
    settings = adapt({"num.partition": "3"})
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        BrokerConfig.from_properties(settings.properties)


def test_nothing_that_has_an_effect_is_passed_over() -> None:
    assert not adapt(dict.fromkeys(BROKER_SETTINGS, "x")).passed_over


def test_what_may_be_set_at_run_time_without_effect_is_passed_over_in_a_file() -> None:
    assert adapt(dict.fromkeys(IDLE_DYNAMIC_SETTINGS, "1")).properties == {}
