"""Goal: `onceflow doctor` finds each planted fault, and nothing on a sound set-up.

Method: each fault is planted alone and looked for by the name of its check, on our broker and,
where the fault can be planted there, on Apache Kafka with `make conformance`. Clocks, old releases,
several brokers and rights are our broker's.
"""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from consumer_worlds import fresh, write
from hanging_transactions import UNVERIFIED, leave_hanging
from secured_broker import as_file, as_root, grant, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite.testing import Broker, RunningClock
from onceflow.cli.doctor import application
from onceflow.cli.doctor.checks import CHECKS
from onceflow.sdk import Admin, Consumer, NewTopic, Producer, ProducerIdentity, TopicPartition
from onceflow.sdk.protocol import record_kernel

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite also runs on the plain build, which is a fault of its own."""
    monkeypatch.setattr(record_kernel, "COMPILED", True)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=UNVERIFIED) as running:
        Producer(bootstrap_servers=running.bootstrap_servers, transactional_id="first").close()
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


MakeApp = Callable[..., str]


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeApp:
    """Write a module with an application; gives its MODULE:APP."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def write_module(topic: str, settings: str = 'slot="0"', value: str = "int") -> str:
        name = fresh("app").replace("-", "_")
        text = f"""
            from onceflow.processors import App, State

            app = App({name!r}, {settings})

            @app.processor({topic!r}, to={topic + "-out"!r})
            def add(value: {value}, total: State[int] = State(0)) -> int:
                return total.get() + 1
            """
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return f"{name}:app"

    return write_module


def diagnose(line: CommandLine, *words: str, environ: Any = None) -> dict[str, Any]:
    """What the doctor says; its exit status must fit that."""
    result = line.call("doctor", *words, "--json", status=None, environ=environ)
    said = json.loads(result.stdout)
    assert result.exit_code == (1 if said["findings"] else 0)
    return dict(said)


def names(said: dict[str, Any]) -> list[str]:
    return [each["check"] for each in said["findings"]]


def found(said: dict[str, Any], check: str) -> dict[str, str]:
    """The one finding of a check; it must say all that a reader needs."""
    (finding,) = [each for each in said["findings"] if each["check"] == check]
    assert all(finding[part] for part in ("where", "what", "why", "remedy"))
    return dict(finding)


def make_topic(line: CommandLine, partitions: int = 1, **configs: str) -> str:
    topic = fresh("topic")
    with Admin(bootstrap_servers=line.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, configs=configs)])
    return topic


def test_nothing_is_found_on_a_sound_set_up(onceflow: CommandLine, make_app: MakeApp) -> None:
    topic = make_topic(onceflow, 2)
    write(onceflow.bootstrap, topic, ["1", "2"])
    target = make_app(topic)
    group = target.partition(":")[0]
    with Consumer(topic, bootstrap_servers=onceflow.bootstrap, group_id=group) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        for words in (("--topic", topic), ("--group", group), ("--app", target)):
            assert diagnose(onceflow, *words) == {"findings": [], "skipped": []}
    assert "no fault found" in onceflow.call("doctor", "--app", target).stdout


def test_nothing_is_found_on_a_whole_sound_cluster() -> None:
    with Broker() as running:
        line = CommandLine(running.bootstrap_servers)
        topic, name = make_topic(line), fresh("id")
        write(line.bootstrap, topic, ["1"])
        with Producer(bootstrap_servers=line.bootstrap, transactional_id=name) as producer:
            producer.begin_transaction()
            producer.send(topic, b"x")
            producer.commit_transaction()
        assert diagnose(line) == {"findings": [], "skipped": []}


def test_people_read_what_where_why_and_what_to_do(ours: CommandLine) -> None:
    topic = make_topic(ours, **{"unclean.leader.election.enable": "true"})
    result = ours.call("doctor", "--topic", topic, status=1)
    assert f"topic {topic}: unclean.leader.election.enable=true [unclean-election]" in result.stdout
    assert "  why:  a replica that is behind" in result.stdout
    assert f"  next: onceflow topics alter {topic}" in result.stdout
    assert "1 fault found" in result.stderr


def test_too_many_replicas_in_sync_are_asked_for(onceflow: CommandLine) -> None:
    topic = make_topic(onceflow, **{"min.insync.replicas": "2"})
    said = diagnose(onceflow, "--topic", topic)
    assert "every write is refused" in found(said, "min-isr")["what"]


@pytest.mark.parametrize(
    ("replicas", "least", "checks"),
    [
        (1, "1", ["replication"]),
        (2, "1", ["replication", "min-isr"]),
        (3, "1", ["min-isr"]),
        (3, "3", ["min-isr"]),
        (3, "2", []),
    ],
)
def test_replication_of_three_brokers(replicas: int, least: str, checks: list[str]) -> None:
    with Broker(nodes=3) as running:
        line = CommandLine(running.bootstrap_servers)
        with Admin(bootstrap_servers=line.bootstrap) as admin:
            configs = {"min.insync.replicas": least}
            admin.create_topics([NewTopic("orders", 1, replicas, configs)])
        assert names(diagnose(line, "--topic", "orders")) == checks


def test_a_timeout_above_the_brokers(ours: CommandLine, make_app: MakeApp) -> None:
    with Broker(settings={"transaction.max.timeout.ms": "5000"}) as running:
        line = CommandLine(running.bootstrap_servers)
        topic = make_topic(line)
        said = diagnose(line, "--app", make_app(topic))
        assert "transaction.max.timeout.ms=5000" in found(said, "transaction-timeout")["what"]


def test_a_timeout_above_the_poll_interval(
    onceflow: CommandLine, make_app: MakeApp, tmp_path: Path
) -> None:
    topic = make_topic(onceflow)
    said = diagnose(onceflow, "--app", make_app(topic, "transaction_timeout_ms=400_000"))
    assert "max_poll_interval_ms" in found(said, "transaction-timeout")["what"]
    file = tmp_path / "client.properties"
    file.write_text("transaction.timeout.ms=400000\nmax.poll.interval.ms=300000\n")
    said = diagnose(onceflow, "--topic", topic, "--config", str(file))
    assert "max_poll_interval_ms=300000" in found(said, "transaction-timeout")["what"]


def test_readers_of_uncommitted_records(onceflow: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("isolation.level=read_uncommitted\n")
    said = diagnose(onceflow, "--topic", make_topic(onceflow), "--config", str(file))
    assert names(said) == ["read-uncommitted"]


@pytest.mark.parametrize("release", ["3.9", "2.8"])
def test_an_old_release(release: str) -> None:
    with Broker(settings={"onceflow.profile": release}) as running:
        said = diagnose(CommandLine(running.bootstrap_servers))
        assert "older than Kafka 4.0" in found(said, "old-transactions")["what"]


def test_an_old_version_of_transactions(broker: Broker) -> None:
    with Broker() as running, Admin(bootstrap_servers=running.bootstrap_servers) as admin:
        admin.update_features({"transaction.version": 1}, upgrade_type="safe_downgrade")
        said = diagnose(CommandLine(running.bootstrap_servers))
        assert "transaction.version=1" in found(said, "old-transactions")["what"]


@pytest.mark.parametrize("ahead_ms", [10_000, -10_000])
def test_a_clock_that_is_off(ahead_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunningClock()
    if ahead_ms > 0:
        clock.advance(ahead_ms)
    else:
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - ahead_ms / 1000)
    with Broker(clock=clock) as running:
        said = diagnose(CommandLine(running.bootstrap_servers))
        side = "ahead of" if ahead_ms > 0 else "behind"
        assert side in found(said, "clock-skew")["what"]


def test_records_from_the_future(onceflow: CommandLine) -> None:
    topic = make_topic(onceflow)
    with Producer(bootstrap_servers=onceflow.bootstrap) as producer:
        producer.send(topic, b"x", timestamp_ms=int(time.time() * 1000) + 600_000).result()
    said = diagnose(onceflow, "--topic", topic)
    assert f"{topic}:0, offset 0" in found(said, "future-records")["where"]


def test_one_transactional_id_on_two_processes(onceflow: CommandLine) -> None:
    topic, shared = make_topic(onceflow), fresh("shared")
    settings: Any = {"bootstrap_servers": onceflow.bootstrap, "transactional_id": shared}
    for _ in range(6):  # As two processes do that take it from each other.
        with Producer(**settings) as producer:
            producer.begin_transaction()
            producer.send(topic, b"x")
            producer.commit_transaction()
    said = diagnose(onceflow)
    (mine,) = [each for each in said["findings"] if each["where"] == f"transactional id {shared}"]
    assert mine["check"] == "shared-transactional-id"
    assert "6 producers" in mine["what"]


def test_a_last_stable_offset_that_stands_still(ours: CommandLine) -> None:
    topic = make_topic(ours)
    with Admin(bootstrap_servers=ours.bootstrap) as admin:
        leave_hanging(admin, TopicPartition(topic, 0), ProducerIdentity("nobody", 999_999, 0))
    assert diagnose(ours, "--topic", topic)["findings"] == []  # It may still be at work.
    said = diagnose(ours, "--topic", topic, "--open-for", "0ms")
    assert "txns abort" in found(said, "standing-offset")["remedy"]


def test_an_open_transaction_of_a_known_producer(onceflow: CommandLine) -> None:
    topic, name = make_topic(onceflow), fresh("id")
    with Producer(bootstrap_servers=onceflow.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x").result()
        said = diagnose(onceflow, "--topic", topic, "--open-for", "0ms")
        assert f"txns fence {name}" in found(said, "standing-offset")["remedy"]
        assert diagnose(onceflow, "--topic", topic)["findings"] == []
        producer.abort_transaction()


def test_one_client_id_twice(onceflow: CommandLine) -> None:
    topic, group = make_topic(onceflow, 2), fresh("group")
    settings: Any = {"bootstrap_servers": onceflow.bootstrap, "group_id": group}
    with (
        Consumer(topic, **settings, client_id="reader") as one,
        Consumer(topic, **settings, client_id="reader") as other,
    ):
        while not (one.assignment() and other.assignment()):
            one.poll(timeout_ms=100)
            other.poll(timeout_ms=100)
        said = diagnose(onceflow, "--group", group)
        assert "2 members have client_id='reader'" in found(said, "client-id-twice")["what"]


def test_a_plain_build(ours: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_kernel, "COMPILED", False)
    assert names(diagnose(ours, "--topic", make_topic(ours))) == ["plain-build"]


def test_a_password_without_tls(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "sasl.enabled.mechanisms": "PLAIN",
        "onceflow.sasl.plain.credentials": "app:secret",
    }
    with Broker(listeners="SASL_PLAINTEXT://127.0.0.1:0", settings=settings) as running:
        file = tmp_path / "client.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            "sasl.username=app\nsasl.password=secret\n"
        )
        line = CommandLine(running.bootstrap_servers_of("SASL_PLAINTEXT"))
        said = diagnose(line, "--config", str(file))
        assert names(said) == ["open-password"]
        assert "secret" not in json.dumps(said)


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no /dev/shm")
def test_state_in_memory_without_a_slot(onceflow: CommandLine, make_app: MakeApp) -> None:
    topic = make_topic(onceflow)
    place = f'state_dir="{SHARED_MEMORY / fresh("state")}"'
    said = diagnose(onceflow, "--app", make_app(topic, place))
    assert "tmpfs" in found(said, "ephemeral-state")["what"]
    assert diagnose(onceflow, "--app", make_app(topic, f'{place}, slot="0"'))["findings"] == []


def test_file_systems_are_told_by_the_longest_mount(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "overlay / overlay rw 0 0\n/dev/sda1 /data ext4 rw 0 0\ntmpfs /data/a\\040b tmpfs rw 0 0\n"
    )
    kinds = [
        application.file_system_of(Path(path), table)
        for path in ("/etc", "/data/x", "/database", "/data/a b/c", "/data/a")
    ]
    assert kinds == ["overlay", "ext4", "overlay", "tmpfs", "ext4"]
    assert application.file_system_of(Path("/x"), tmp_path / "none") == ""


def test_other_partition_counts(onceflow: CommandLine, make_app: MakeApp) -> None:
    topic = make_topic(onceflow, 2)
    said = diagnose(onceflow, "--app", make_app(topic, 'slot="0", partitions=3'))
    assert "partitions=3" in found(said, "partition-count")["what"]
    target = make_app(topic)
    group = target.partition(":")[0]
    with Admin(bootstrap_servers=onceflow.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{group}-add-total-changelog", 5)])
    said = diagnose(onceflow, "--app", target)
    assert "has 5 partitions but input" in found(said, "partition-count")["what"]
    said = diagnose(onceflow, "--app", make_app("nowhere"))
    assert "does not exist" in found(said, "partition-count")["what"]


def test_values_of_another_format(onceflow: CommandLine, make_app: MakeApp) -> None:
    topic = make_topic(onceflow)
    write(onceflow.bootstrap, topic, ["1", "two", "3"])
    finding = found(diagnose(onceflow, "--app", make_app(topic)), "value-format")
    assert finding["where"] == f"{topic}:0, offset 1"
    assert "add cannot decode the value" in finding["what"]
    assert diagnose(onceflow, "--app", make_app(topic, value="str"))["findings"] == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


def test_too_few_rights(world: TlsWorld, tmp_path: Path, make_app: MakeApp) -> None:
    with secured_broker(world) as running:
        root = as_root(running, world)
        with Admin(config=root.admin()) as admin:
            admin.create_topics(["orders", "orders-out"])
        config = ("--config", str(as_file(running, world, tmp_path / "client.properties")))
        line = CommandLine(running.bootstrap_servers_of("SASL_SSL"))
        target = make_app("orders")
        group = target.partition(":")[0]
        said = diagnose(line, "--app", target, *config)
        missing = {each["where"] for each in said["findings"] if each["check"] == "rights"}
        assert missing >= {"topic orders", f"group {group}", f"transactional id {group}-0"}
        assert {each["check"] for each in said["skipped"]} >= {"transaction-timeout"}
        grant(
            root,
            [
                ("TOPIC", "orders", "LITERAL", ("READ", "DESCRIBE_CONFIGS")),
                ("TOPIC", "orders-out", "LITERAL", ("READ", "DESCRIBE_CONFIGS")),
                ("TOPIC", f"{group}-", "PREFIXED", ("ALL",)),
                ("GROUP", group, "LITERAL", ("READ",)),
                ("TRANSACTIONAL_ID", f"{group}-", "PREFIXED", ("WRITE",)),
                ("CLUSTER", "kafka-cluster", "LITERAL", ("DESCRIBE", "DESCRIBE_CONFIGS")),
            ],
        )
        said = diagnose(line, "--app", target, *config)
        assert found(said, "rights")["where"] == "topic orders-out"
        assert "may not write" in found(said, "rights")["what"]
        grant(root, [("TOPIC", "orders-out", "LITERAL", ("WRITE",))])
        assert diagnose(line, "--app", target, *config)["findings"] == []


def test_every_check_has_a_name_of_its_own_and_is_in_the_page() -> None:
    every = [check.name for check in CHECKS]
    assert len(set(every)) == len(every)
    page = Path(__file__).parents[2].joinpath("docs", "command-line.md").read_text()
    assert [name for name in every if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("words", [("--topic", "nowhere"), ("--open-for", "soon")])
def test_wrong_calls(ours: CommandLine, words: tuple[str, str]) -> None:
    assert words[1] in ours.error("doctor", *words, status=3 if "--topic" in words else 2)
