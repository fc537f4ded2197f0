"""Goal: settings are read from Kafka's names, files and the environment, in a known order, and what
means nothing here is explained.

Method: each place once, each rule of precedence, and the names of other clients.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onceflow.sdk import (
    AdminConfig,
    AsyncProducer,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
)
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.foreign_names import NOT_OFFERED, PASSED_OVER
from onceflow.sdk.settings.properties import parse_properties

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "hunter2",
}


def test_kafkas_names_are_read_with_their_types() -> None:
    config = ProducerConfig.from_properties(
        {
            "bootstrap.servers": "a:1,b:2",
            "linger.ms": "20",
            "enable.idempotence": "FALSE",
            "acks": "1",
            "compression.type": "gzip",
            "compression_level": 9,
            "transactional.id": "",
        }
    )
    assert (config.linger_ms, config.enable_idempotence, config.wire_acks) == (20, False, 1)
    assert (config.compression_type, config.compression_level) == ("gzip", 9)
    assert [str(address) for address in config.addresses] == ["a:1", "b:2"]
    assert config.transactional_id is None


def test_javas_assignors_are_known() -> None:
    config = ConsumerConfig.from_properties(
        {
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor, "
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            "isolation.level": "read_uncommitted",
        }
    )
    assert config.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert config.isolation_level == "read_uncommitted"


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"sasl.mechanism": None, "sasl.mechanisms": "PLAIN"},
        {
            "sasl.username": None,
            "sasl.password": None,
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            "username=\"me\" password='hunter2';",
        },
    ],
)
def test_security_is_read_by_the_names_of_several_clients(names: Mapping[str, str | None]) -> None:
    given = {n: v for n, v in {**SASL, **names}.items() if v is not None}
    security = AdminConfig.from_properties(given).security
    assert (security.sasl_username, security.sasl_password) == ("me", "hunter2")
    assert security.sasl_mechanism == "PLAIN"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"hun\"ter"', 'hun"ter'),
        (r"'hun\'t\\er'", "hun't\\er"),
        (r'"hun\ter\u"', "hun\teru"),
        (r'"\1012 \50"', "A2 ("),
        ('""', ""),
    ],
)
def test_escapes_in_a_jaas_text_mean_what_java_takes_them_for(written: str, meant: str) -> None:
    text = f"x.PlainLoginModule required username='me' password={written};"
    given = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text
    }  # fmt: skip
    assert AdminConfig.from_properties(given).security.sasl_password == meant


@pytest.mark.parametrize("field", ["sasl.username", "sasl.password"])
def test_credentials_that_utf_8_cannot_hold_are_refused_and_not_shown(field: str) -> None:
    with pytest.raises(ConfigError, match=field.replace(".", "_")) as found:
        AdminConfig.from_properties({**SASL, field: "hunter\udcff"})
    assert "hunter" not in str(found.value)
    assert found.value.__context__ is None, "it would carry the text"


@pytest.mark.parametrize("name", ["a.toml", "a.properties"])
def test_files_are_utf_8_whatever_wrote_them(tmp_path: Path, name: str) -> None:
    quote = '"' if name.endswith("toml") else ""
    path = tmp_path / name
    text = f"client_id = {quote}müller\u2028x{quote}\r\nbootstrap_servers = {quote}a:1{quote}\r\n"
    path.write_bytes(text.encode("utf-8-sig"))
    code = (
        "import sys; from onceflow.sdk import AdminConfig; c = AdminConfig.from_file(sys.argv[1]); "
        "print(ascii((c.client_id, c.bootstrap_servers)))"
    )
    run = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, str(path)],
        env={**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "('m\\xfcller\\u2028x', 'a:1')\n"


def test_tls_is_read_by_the_names_of_several_clients() -> None:
    java = ProducerConfig.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    ).security
    other = ProducerConfig.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }
    ).security
    assert java == other
    assert (java.ssl_cafile, java.ssl_check_hostname) == ("ca.pem", False)
    with pytest.raises(ConfigError, match="PEM"):
        ProducerConfig.from_properties({"ssl.truststore.type": "JKS"})


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"linger.mss": "1"}, "did you mean linger_ms"),
        ({"producer.group.id": "g"}, "setting of a consumer"),
        ({"linger.ms": "soon"}, "whole number"),
        ({"enable.idempotence": "yes"}, "true or false"),
        ({"partitioner.class": "x.Y"}, "partitioner="),
        ({"key.serializer": "x.Y"}, "keyword argument"),
        ({"interceptor.classes": "x.Y"}, "interceptors="),
        ({"retries": "3"}, "delivery_timeout_ms"),
        ({"message.timeout.ms": "3"}, "delivery_timeout_ms"),
        ({"metadata.broker.list": "a:1"}, "bootstrap_servers"),
        ({"statistics.interval.ms": "5"}, "metrics"),
        ({"linger.ms": "1", "linger_ms": "2"}, "contradicts linger.ms"),
        ({**SASL, "sasl.jaas.config": "username='x' password='y'"}, "contradicts sasl.username"),
        ({**SASL, "sasl.jaas.config": "required username='x';"}, "must hold"),
        ({"acks": "1"}, "enable_idempotence=False"),
        ({"joined.identity": "x"}, "keyword argument"),
    ],
)
def test_what_means_nothing_here_is_explained(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        ProducerConfig.from_properties(properties)
    assert "hunter2" not in str(found.value)


HOSTED = r"""
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc.example:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='me' \
  password='hunter2';
sasl.mechanism=PLAIN
client.dns.lookup=use_all_dns_ips
session.timeout.ms=45000
acks=all
schema.registry.url=https://registry.example
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=key:hunter3
"""
"""What hosting services of Kafka hand out: one file for every kind of client."""


@pytest.mark.parametrize(
    ("kind", "passed_over", "taken"),
    [
        (ProducerConfig, {"client.dns.lookup", "session.timeout.ms"}, {"acks": "all"}),
        (ConsumerConfig, {"client.dns.lookup", "acks"}, {"session_timeout_ms": 45_000}),
        (AdminConfig, {"client.dns.lookup", "acks", "session.timeout.ms"}, {}),
    ],
)
@pytest.mark.parametrize("place", ["file", "properties", "client"])
def test_what_belongs_to_another_client_is_passed_over_with_one_warning(
    kind: Any,
    passed_over: set[str],
    taken: dict[str, object],
    place: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if place == "file":
        config = kind.from_file(write(tmp_path, "client.properties", HOSTED))
    elif place == "properties":
        config = kind.load(properties=dict(parse_properties(HOSTED)))
    else:
        config = kind.from_settings({"config": dict(parse_properties(HOSTED))})
    assert config.security.sasl_username == "me"
    assert {name: getattr(config, name) for name in taken} == taken
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    listed = warning.getMessage().partition(": ")[2]
    registry = {"schema.registry.url", "basic.auth.credentials.source", "basic.auth.user.info"}
    assert {item.partition(" (")[0] for item in listed.split("), ")} == passed_over | registry
    assert "hunter" not in warning.getMessage()


def test_a_producers_settings_of_other_clients_are_passed_over_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """librdkafka and the Java client each take one file for producers and consumers."""
    given = {
        "partitioner.class": "x.Y",
        "compression.gzip.level": "3",
        "retries": "5",
        "key.serializer": "x.StringSerializer",
    }
    assert ConsumerConfig.from_properties(given) == ConsumerConfig()
    assert all(name in caplog.text for name in given)
    with pytest.raises(ConfigError, match="partitioner="):
        ProducerConfig.from_properties({"partitioner.class": "x.Y"})


@pytest.mark.parametrize("name", ["acks", "client_dns_lookup", "enable_idempotence"])
def test_a_keyword_argument_of_another_client_stays_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ConsumerConfig.from_settings({name: "all"})


def test_nothing_is_said_where_all_is_used(caplog: pytest.LogCaptureFixture) -> None:
    ConsumerConfig.from_properties({"group.id": "g", "session.timeout.ms": "45000"})
    assert not caplog.records


def test_a_setting_that_changes_what_a_client_does_is_never_passed_over() -> None:
    for name in PASSED_OVER:
        remedy = NOT_OFFERED.get(name, "")
        if not PASSED_OVER[name]:
            assert remedy.endswith(("leave it out", "leave it out)")), name


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        ("AWS_MSK_IAM", "unknown mechanism; use OAUTHBEARER"),
        ("GSSAPI", "unknown mechanism; Kerberos is not spoken"),
        ("SCRAM-SHA-1", "unknown mechanism; choose one of PLAIN, SCRAM-SHA-256"),
        ("plain", "unknown mechanism; choose one of PLAIN"),
    ],
)
def test_an_unknown_mechanism_is_told_before_what_else_is_set_for_it(
    mechanism: str, said: str
) -> None:
    given = {
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.IAMClientCallbackHandler",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
    }
    with pytest.raises(ConfigError, match=said) as found:
        AdminConfig.from_properties(given)
    assert (found.value.field, found.value.value) == ("sasl.mechanism", mechanism)
    with pytest.raises(ConfigError, match=said) as found:
        SecurityConfig(security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    assert (found.value.field, found.value.value) == ("sasl_mechanism", mechanism)


def test_explanations_name_settings_that_exist_and_none_that_is_ours() -> None:
    ours = {
        name for kind in (ProducerConfig, ConsumerConfig, AdminConfig) for name in kind.declared
    }
    for name, remedy in NOT_OFFERED.items():
        if name in ours:  # only code can be given for it
            assert "give a function" in remedy, name
        if remedy.startswith("use ") and "=" not in remedy and " " not in remedy[4:]:
            assert remedy[4:] in ours, name


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


PROPERTIES = r"""
# a comment
! another
bootstrap.servers = a:1,\
    b:2
client.id: name with \u00e4 and \= sign
linger.ms 7
"""


def test_a_file_of_properties(tmp_path: Path) -> None:
    config = ProducerConfig.from_file(write(tmp_path, "p.properties", PROPERTIES))
    assert config.bootstrap_servers == "a:1,b:2"
    assert config.client_id == "name with ä and = sign"
    assert config.linger_ms == 7
    assert dict(parse_properties("a\nb=\nc\\ d=e\\\\\n")) == {"a": "", "b": "", "c d": "e\\"}
    with pytest.raises(ConfigError, match=r"\\uxyz is no escape|four hexadecimal"):
        ProducerConfig.from_file(write(tmp_path, "bad.properties", "a=\\uxyz\n"))


TOML = """
[client]
client.id = "everybody"
bootstrap_servers = ["a:1", "b:2"]
[security]
protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl_username = "me"
"sasl.password" = "hunter2"
[producer]
linger.ms = 9
[consumer]
group_id = "g"
enable.auto.commit = false
"""


def test_a_file_in_toml_serves_all_clients(tmp_path: Path) -> None:
    path = write(tmp_path, "clients.toml", TOML)
    producer = ProducerConfig.from_file(path)
    consumer = ConsumerConfig.from_file(path, group_id="other")
    assert producer.linger_ms == 9
    assert producer.client_id == consumer.client_id == "everybody"
    assert producer.security == consumer.security
    assert producer.security.sasl_password == "hunter2"
    assert (consumer.group_id, consumer.enable_auto_commit) == ("other", False)
    assert list(producer.bootstrap_servers) == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "[producer]\nlinger = 3\n", r"linger.*did you mean linger_ms.*\[producer\]"),
        ("a.toml", "[producer\n", "cannot be read"),
        ("a.toml", "producer = 3\n", r"write it as a table \[producer\]"),
        ("a.toml", "[prodcer]\nlinger.ms = 3\n", r"no such table; did you mean \[producer\]"),
        ("a.toml", "[other]\nlinger.ms = 3\n", r"no such table; use \[client\]"),
        ("a.properties", "linger.ms=x\n", "whole number.*a.properties"),
    ],
)
def test_a_wrong_file_names_the_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ProducerConfig.from_file(write(tmp_path, name, text))
    with pytest.raises(ConfigError, match="No such file"):
        ProducerConfig.from_file(tmp_path / "nowhere.toml")


ENVIRONMENT = {
    "ONCEFLOW_BOOTSTRAP_SERVERS": "env:1",
    "ONCEFLOW_GROUP_ID": "for consumers only",
    "ONCEFLOW_LINGER_MS": "1",
    "ONCEFLOW_PRODUCER_LINGER_MS": "2",
    "ONCEFLOW_CONSUMER_CLIENT_ID": "c",
    "ONCEFLOW_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "ONCEFLOW_SASL_MECHANISM": "PLAIN",
    "ONCEFLOW_SASL_USERNAME": "me",
    "ONCEFLOW_SASL_PASSWORD": " hunter2 ",
    "HOME": "/root",
}


def test_the_environment_serves_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = ProducerConfig.from_env(ENVIRONMENT)
    consumer = ConsumerConfig.from_env(ENVIRONMENT)
    assert (producer.linger_ms, producer.client_id) == (2, "onceflow")
    assert (consumer.group_id, consumer.client_id) == ("for consumers only", "c")
    assert producer.security.sasl_password == " hunter2 "
    with pytest.raises(ConfigError, match=r"lingre_ms.*linger_ms.*ONCEFLOW_ before"):
        ProducerConfig.from_env({"ONCEFLOW_LINGRE_MS": "1"})
    with pytest.raises(ConfigError, match="ONCEFLOW_PRODUCER_ before"):
        ProducerConfig.from_env({"ONCEFLOW_PRODUCER_LINGER_MS": "x"})
    assert ProducerConfig.from_env({"SHOP_LINGER_MS": "3"}, prefix="SHOP_").linger_ms == 3
    with pytest.raises(ConfigError, match="prefix"):
        ProducerConfig.from_env(prefix="")
    monkeypatch.setenv("SHOP_LINGER_MS", "4")
    assert ProducerConfig.from_env(prefix="SHOP_").linger_ms == 4


def test_what_stands_nearer_to_the_call_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.toml",
        'linger_ms = 1\nbatch_size = 1\nacks = "all"\nclient_id = "f"\nmax_block_ms = 1\n',
    )
    config = ProducerConfig.load(
        file=path,
        environ={f"X_{n}": "2" for n in ("LINGER_MS", "BATCH_SIZE", "MAX_BLOCK_MS")},
        prefix="X_",
        properties={"linger.ms": 3, "batch.size": "3"},
        linger_ms=4,
    )
    chosen = config.linger_ms, config.batch_size, config.max_block_ms, config.client_id
    assert chosen == (4, 3, 2, "f")


def test_clients_take_a_configuration_and_override_it() -> None:
    base = ProducerConfig(linger_ms=3, client_id="x")
    assert AsyncProducer(config=base, linger_ms=4).config == ProducerConfig(
        linger_ms=4, client_id="x"
    )
    assert AsyncProducer(config={"linger.ms": "3"}, client_id="x").config == base
    wrong: Any = ConsumerConfig()
    with pytest.raises(ConfigError, match="must be a ProducerConfig"):
        AsyncProducer(config=wrong)
    with pytest.raises(ConfigError, match="did you mean linger_ms"):
        AsyncProducer(config=base, linger=4)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="enable_idempotence"):
        AsyncProducer(config=base, acks=1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression_level": 3}, "has no levels"),
        ({"compression_level": 3, "compression_type": "snappy"}, "has no levels"),
        ({"compression_level": 10, "compression_type": "gzip"}, "from 1 to 9"),
        ({"buffer_full": "drop"}, "'block', 'raise'"),
    ],
)
def test_levels_and_policies_are_checked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ProducerConfig(**settings)


def test_security_that_is_given_whole_wins_over_single_settings() -> None:
    given = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="a",
        sasl_password="b",
    )
    found = ProducerConfig.from_properties({"sasl.username": "other"}, security=given)
    assert found.security == given
