"""Goal: each row of the command line's comparison with Kafka's scripts is true on both brokers.

Method: the table of docs/command-line.md is read. For each row a topic, a group and a transaction
are made; the row's ``kafka-*.sh`` commands and our commands are run as printed against Apache Kafka
and against our broker, with the names of the page replaced. Both must succeed, and show the same
names where the row is about showing something. A command that waits for ever gets a limit.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import real_kafka
from command_line import CommandLine
from processor_processes import wait_for
from stock_daemon import StockDaemon

from onceflow.sdk import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    ConsumerGroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ScramUpsertion,
    TopicPartition,
)
from onceflow.sdk.errors import KafkaError

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
OFFLINE = "kafka-dump-log"
"""It reads files, so it takes no address."""
CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
}
"""Those that `real_kafka` does not know."""
ENDLESS = re.compile(r"kafka-console-consumer")
QUIET_MS = 5_000
LEFT_OUT = re.compile(r"\(none|kafka-streams")
"""Rows without a counterpart."""

SHOWN = {
    "list topics": "T",
    "leaders, replicas, settings of a topic": "T",
    "start and end of its partitions": "T",
    "list groups": "G",
    "lag of a group": "T",
    "what a reset would do": "T",
    "print a topic and go on": "three",
    "as a member of a group": "three",
    "list transactions": "ID",
    "one of them": "ID",
    "settings of a broker": "transactional.id.expiration.ms",
    "features": "transaction.version",
    "list ACLs": "alice",
    "users with SCRAM passwords": "alice",
    "list quotas": "producer_byte_rate",
    "print a segment, with its records": "three",
}
"""What both sides must show; other rows are about an effect."""

STATUS = {"end a hanging one": 6}
"""Exit status of our command, where it refuses: the transaction of this test is alive."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        need: What is wanted.
        theirs: Commands of Kafka's scripts.
        ours: Our command, without the program's name.
    """

    need: str
    theirs: list[str]
    ours: str


def rows() -> list[Row]:
    """The rows that have a command of Kafka's scripts."""
    text = PAGE.read_text().partition("## What you know from other tools")[2]
    found = []
    for need, theirs, ours in ROW.findall(text):
        commands = re.findall(r"`(kafka-[a-z-]+\.sh[^`]*)`", theirs)
        if commands and not LEFT_OUT.search(theirs):
            found.append(Row(need, commands, re.findall(r"`([^`]+)`", ours)[0]))
    return found


ROWS = rows()


@dataclass(frozen=True)
class Cluster:
    """One of the two brokers.

    Attributes:
        address: For clients.
        data: Its folder.
    """

    address: str
    data: Path


@pytest.fixture(params=["bundled-broker", "apache-kafka"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "apache-kafka":
        kafka: real_kafka.ApacheKafka = request.getfixturevalue("apache_kafka")
        return Cluster(kafka.bootstrap_servers, kafka.data / "log")
    daemon: StockDaemon = request.getfixturevalue("daemon")
    return Cluster(daemon.bootstrap_servers, daemon.data)


@pytest.fixture
def scene(cluster: Cluster, name: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the names of the page stand for here; all of it exists."""
    lines = tmp_path / "lines"
    lines.write_text("a:1\nb:2\n")
    password = tmp_path / "password"
    password.write_text("wonderland\n")
    partition = TopicPartition(name, 0)
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(bootstrap_servers=cluster.address))
        admin.create_topics([NewTopic(name, 1, configs={"cleanup.policy": "delete"})])
        producer = stack.enter_context(
            Producer(bootstrap_servers=cluster.address, transactional_id=f"{name}-id")
        )
        with producer.transaction():
            producer.send_many(name, [b"one", b"two", b"three"])
            positions = {partition: OffsetAndMetadata(2)}
            producer.send_offsets_to_transaction(positions, ConsumerGroupMetadata(f"{name}-group"))
        binding = AclBinding(AclResourceType.TOPIC, name, "User:alice", AclOperation.READ)
        admin.create_acls([binding])
        admin.alter_user_scram_credentials([ScramUpsertion("alice", "secret", "SCRAM-SHA-512")])
        CommandLine(cluster.address).call(
            "quotas", "set", "producer_byte_rate=9999", "--client-id", f"{name}-client"
        )
        wait_for(lambda: "alice" in admin.describe_user_scram_credentials(), "alice is known")
        yield {
            "T": name,
            "G": f"{name}-group",
            "ID": f"{name}-id",
            "C": f"{name}-client",
            "N": "4",  # behind three records and a marker
            "DATA": str(cluster.data),
            "FILE": str(lines),
            "PASSWORD": str(password),
        }


def in_hand(words: str, scene: dict[str, str]) -> tuple[list[str], str | None]:
    """Words of a command with the names of here, and what it reads from standard input."""
    command, _, file = words.partition(" < ")
    command = command.replace("password=...", "password=secret")
    command = command.replace("User:alice ...", "User:alice --topic T --force")
    name = re.compile(rf"(?<![\w-])({'|'.join(scene)})(?!\w)")
    words_here = [name.sub(lambda found: scene[found[1]], word) for word in shlex.split(command)]
    content = Path(scene["PASSWORD" if "users" in command else "FILE"]) if file else None
    return words_here, content.read_text() if content else None


def script(command: str, cluster: Cluster, scene: dict[str, str]) -> str:
    """Run one of Kafka's scripts; returns what it prints."""
    (program, *words), content = in_hand(command, scene)
    name = program.removesuffix(".sh")
    log = str(cluster.data / f"{scene['T']}-0" / "00000000000000000000.log")
    if name == OFFLINE:
        words = [
            log if word in ("00000000000000000000.log", scene["FILE"]) else word for word in words
        ]
    else:
        words = ["--bootstrap-server", cluster.address, *words]
    if ENDLESS.match(name):
        words += ["--timeout-ms", str(QUIET_MS)]
    known = CLASSES.get(name) or real_kafka.TOOL_CLASSES[name]
    jvm = ["-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    done = subprocess.run(
        real_kafka.java_command(known, *words, jvm=jvm),
        capture_output=True,
        text=True,
        input=content or "",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow  # a Java virtual machine for each command: minutes
@pytest.mark.parametrize("row", ROWS, ids=[row.need for row in ROWS])
def test_kafkas_scripts(row: Row, cluster: Cluster, scene: dict[str, str]) -> None:
    with ExitStack() as stack:
        prepare(row, cluster, scene, stack)
        printed = "".join(script(command, cluster, scene) for command in row.theirs)
    if row.need in SHOWN:
        assert scene.get(SHOWN[row.need], SHOWN[row.need]) in printed


@pytest.mark.parametrize("row", ROWS, ids=[row.need for row in ROWS])
def test_our_commands(row: Row, cluster: Cluster, scene: dict[str, str]) -> None:
    with ExitStack() as stack:
        prepare(row, cluster, scene, stack)
        words, content = in_hand(row.ours.replace(" --follow", ""), scene)
        line = CommandLine(cluster.address)
        done = line.call(*words, input=content, status=STATUS.get(row.need, 0))
    if row.need in SHOWN:
        assert scene.get(SHOWN[row.need], SHOWN[row.need]) in done.stdout


def prepare(row: Row, cluster: Cluster, scene: dict[str, str], stack: ExitStack) -> None:
    """Make what only one row needs."""
    if row.need == "make a topic":
        scene["T"] += "-new"
    if row.need == "end a hanging one":
        producer = Producer(
            bootstrap_servers=cluster.address, transactional_id=f"{scene['T']}-open"
        )
        stack.callback(close, producer)
        producer.begin_transaction()
        assert producer.send(scene["T"], b"four").result(30).offset == int(scene["N"])


def close(producer: Producer[bytes, bytes]) -> None:
    """Close a producer whose transaction somebody else may have ended."""
    with suppress(KafkaError):
        producer.close(timeout_ms=10_000)


def test_kafka_python_removes_members() -> None:
    """The table names this command of another library's, as Kafka's scripts have none."""
    (words,) = re.findall(r"kafka-python: `python ([^`]+)`", PAGE.read_text())
    done = subprocess.run(
        [sys.executable, *words.split(), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--group-id" in done.stdout


def test_the_table_is_read_whole() -> None:
    assert len(ROWS) > 35
    assert {row.need for row in ROWS} >= SHOWN.keys() | STATUS.keys()
