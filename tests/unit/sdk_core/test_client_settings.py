"""Goal: a program gives its clients' settings once, and each client gets those that it has.

Method: one object of keyword arguments, mappings, files of hosting services and variables; the
configurations that are made of it, and the one warning about what nothing here would obey.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from onceflow.sdk import AdminConfig, ClientSettings, ConsumerConfig, ProducerConfig, SecurityConfig
from onceflow.sdk.errors import ConfigError

CONFLUENT_JAVA = """
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc-abc12.europe-west1.gcp.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username='KEY' password='hunter2';
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
# Best practice for higher availability in Apache Kafka clients prior to 3.0
session.timeout.ms=45000
# Best practice for Kafka producer to prevent data loss
acks=all
# Required connection configs for Confluent Cloud Schema Registry
schema.registry.url=https://psrc-abc12.europe-west1.gcp.confluent.cloud
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=SRKEY:hunter2
"""
CONFLUENT_LIBRDKAFKA = """
bootstrap.servers=pkc-abc12.europe-west1.gcp.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.mechanisms=PLAIN
sasl.username=KEY
sasl.password=hunter2
session.timeout.ms=45000
client.id=ccloud-python-client-1
"""
EVENT_HUBS = """
bootstrap.servers=space.servicebus.windows.net:9093
request.timeout.ms=60000
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="$ConnectionString" password="Endpoint=sb://x/;SharedAccessKey=hunter2=";
metadata.max.idle.ms=180000
metadata.max.age.ms=180000
connections.max.idle.ms=180000
max.request.size=1000000
"""  # noqa: E501 - as the service writes it
AIVEN = """
bootstrap.servers=kafka-x.aivencloud.com:12345
security.protocol=SSL
ssl.ca.location=ca.pem
ssl.certificate.location=service.cert
ssl.key.location=service.key
"""
REDPANDA = """
bootstrap.servers=seed-1.cloud.redpanda.com:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="hunter2";
"""  # noqa: E501 - as the service writes it
SERVICES = {
    "confluent-java": (CONFLUENT_JAVA, ["client.dns.lookup", "schema.registry.url"]),
    "confluent-librdkafka": (CONFLUENT_LIBRDKAFKA, []),
    "event-hubs": (EVENT_HUBS, []),
    "aiven": (AIVEN, []),
    "redpanda": (REDPANDA, []),
}


@pytest.mark.parametrize("service", SERVICES)
def test_the_file_of_a_hosting_service_serves_every_client(
    service: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text, idle = SERVICES[service]
    path = tmp_path / "client.properties"
    path.write_text(text)
    client = ClientSettings.of(path)
    made = [client.producer(), client.consumer(group_id="g"), client.admin()]
    assert len({config.addresses for config in made}) == 1
    assert made[0].addresses[0].host in text
    assert all(config.security.uses_tls for config in made)
    assert len({config.security.sasl_username for config in made}) == 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == bool(idle)
    for name in idle:
        assert name in told[0]
    assert "hunter2" not in caplog.text + repr(client)


def test_what_belongs_to_another_client_is_passed_over_with_one_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(CONFLUENT_JAVA)
    assert ProducerConfig.from_file(path).wire_acks == -1
    assert ConsumerConfig.from_file(path).session_timeout_ms == 45_000
    AdminConfig.from_file(path)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    assert "session.timeout.ms" in told[0]
    assert "acks" not in told[0]
    assert "acks" in told[1]
    assert "session.timeout.ms" not in told[1]
    assert all(name in told[2] for name in ("acks", "session.timeout.ms", "client.dns.lookup"))


def test_settings_go_to_the_clients_that_have_them() -> None:
    security = SecurityConfig(security_protocol="SSL")
    client = ClientSettings(
        bootstrap_servers="a:1",
        security=security,
        linger_ms=20,
        max_poll_records=7,
        client_id="all",
        consumer={"client_id": "reader"},
    )
    producer = client.producer(linger_ms=30, acks="all")
    consumer = client.consumer()
    assert (producer.linger_ms, producer.client_id) == (30, "all")
    assert (consumer.max_poll_records, consumer.client_id) == (7, "reader")
    assert producer.security == consumer.security == client.admin().security == security
    assert client.admin().bootstrap_servers == "a:1"


def test_names_before_a_setting_give_it_to_one_kind() -> None:
    client = ClientSettings.of(
        {
            "bootstrap.servers": "a:1",
            "client.id": "all",
            "producer.client.id": "writer",
            "consumer.fetch.max.wait.ms": "9",
            "admin.request.timeout.ms": 5,
        }
    )
    assert client.producer().client_id == "writer"
    assert (client.consumer().client_id, client.consumer().fetch_max_wait_ms) == ("all", 9)
    assert client.admin().request_timeout_ms == 5
    assert client.producer().request_timeout_ms == 30_000


def test_the_nearest_place_wins_and_updates_win_over_all(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text('[client]\nlinger_ms = 1\nbatch_size = 1\n[producer]\nclient_id = "file"\n')
    client = ClientSettings.load(
        file=path, environ={"X_BATCH_SIZE": "2"}, prefix="X_", properties={"acks": "-1"}
    )
    found = client.updated({"linger_ms": 3}, producer={"client_id": "code"}).producer()
    assert (found.linger_ms, found.batch_size, found.acks, found.client_id) == (3, 2, "-1", "code")
    assert client.producer().client_id == "file"


def test_the_configuration_of_one_client_serves_the_others() -> None:
    client = ClientSettings.of(ProducerConfig(bootstrap_servers="a:1", linger_ms=9))
    assert client.consumer().bootstrap_servers == "a:1"
    assert client.producer().linger_ms == 9


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (5, "client=5: must be ClientSettings, a dictionary of settings, or a file's path"),
        ({"lingerms": 5}, "did you mean linger_ms"),
        ({"linger.ms": "soon"}, "linger.ms='soon': must be a whole number from 0"),
        ({"consumer.linger.ms": "5"}, "it is a setting of a producer"),
        ({"sasl.mechanism": "AWS_MSK_IAM", "security.protocol": "SASL_SSL"}, "unknown mechanism"),
        ("nowhere.properties", "No such file"),
    ],
)
def test_what_cannot_work_is_refused(source: object, said: str) -> None:
    def use() -> None:
        client = ClientSettings.of(source)  # type: ignore[arg-type]
        for make in (client.admin, client.producer, client.consumer):
            make()

    with pytest.raises(ConfigError) as found:
        use()
    assert said in str(found.value)


def test_keyword_arguments_are_checked_by_name() -> None:
    with pytest.raises(ConfigError, match="a client has no such setting; did you mean linger_ms"):
        ClientSettings(lingerms=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"write security=SecurityConfig\(sasl_username"):
        ClientSettings(sasl_username="x")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="an admin has no such setting"):
        ClientSettings(admin={"linger_ms": 5})


def test_they_can_be_compared_and_pickled() -> None:
    client = ClientSettings(linger_ms=5, security=SecurityConfig(security_protocol="SSL"))
    assert pickle.loads(pickle.dumps(client)) == client
    assert client != ClientSettings(linger_ms=6)


def test_variables_of_other_programs_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    others = {"ONCEFLOW_WEB_SERVICE_HOST": "10.0.0.7", "ONCEFLOW_REQUIRE_KAFKA": "1"}
    found = ClientSettings.load(
        environ={**others, "ONCEFLOW_UVLOOP": "0", "ONCEFLOW_LINGER_MS": "7"}
    )
    assert found.producer().linger_ms == 7
    (line,) = [record.getMessage() for record in caplog.records]
    assert all(name in line for name in others)
    assert "10.0.0.7" not in line
    for name in ("ONCEFLOW_LINGRE_MS", "ONCEFLOW_SASL_PASWORD", "ONCEFLOW_SSL_SOMETHING"):
        with pytest.raises(ConfigError, match="no such setting"):
            ClientSettings.load(environ={name: "7"})
