"""Goal: the rights that the operating page names are what an application needs: no less, no more.

Method: the page's commands, run as a user who may do everything, give the rights on a broker that
decides by ACLs: ours, and Apache Kafka with its StandardAuthorizer. An application with state,
outputs and dead letters runs with them. Without any one of them it ends at the first refusal, and
the commands that its error names are what it lacked.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack
from uuid import uuid4

import pytest
import real_kafka
from command_line import CommandLine
from processor_processes import wait_for
from secured_broker import as_file, as_root, properties, secured_broker
from tls_world import TlsWorld

from onceflow.processors import App, RightsMissingError, State
from onceflow.processors.keywords import AppKeywords
from onceflow.sdk import (
    AclFilter,
    Admin,
    ClientSettings,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
COMMANDS = [
    shlex.split(line)[1:] for line in re.findall(r"^onceflow acls add .*$", PAGE.read_text(), re.M)
]
"""Words behind ``onceflow``."""


def single(command: list[str]) -> Iterator[list[str]]:
    """The same command, once for each operation."""
    first = command.index("--resource")
    for operation in command[3:first]:
        yield [*command[:3], operation, *command[first:]]


RIGHTS = [right for command in COMMANDS for right in single(command)]


class RightsKafka(real_kafka.ApacheKafka):
    """Apache Kafka with ACLs: everybody without a name may do everything, ``app`` what they say."""

    def __init__(self, data: Path) -> None:
        plain, controller, self.sasl_port = real_kafka.free_ports(3)
        host = real_kafka.HOST
        outside = f"SASL_PLAINTEXT://{host}:{self.sasl_port}"
        super().__init__(
            data,
            port=plain,
            settings=real_kafka.ANYBODY_MAY
            | {
                "listeners": f"PLAINTEXT://{host}:{plain},CONTROLLER://{host}:{controller},"
                f"{outside}",
                "advertised.listeners": f"PLAINTEXT://{host}:{plain},{outside}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SASL_PLAINTEXT:SASL_PLAINTEXT",
                "controller.quorum.voters": f"1@{host}:{controller}",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common."
                'security.plain.PlainLoginModule required user_app="hunter2";',
                "auto.create.topics.enable": "false",
            },
        )
        self.controller_port = controller


@dataclass(frozen=True)
class Place:
    """A cluster that decides by ACLs, and names on it that nothing else uses.

    Attributes:
        root: Settings of a user who may do everything.
        root_file: The same as a properties file.
        app_file: A properties file of the user ``app``.
        ending: What the names of the page get behind them here.
    """

    root: ClientSettings
    root_file: Path
    app_file: Path
    ending: str

    def named(self, name: str) -> str:
        """A name of the page, here."""
        return re.sub(r"^(orders|bills|bad|shop)(?=-|$)", rf"\g<1>{self.ending}", name)

    def make(self) -> None:
        """Make the topics, with two good records and a bad one."""
        with Admin(config=self.root.admin()) as admin:
            admin.delete_acls([AclFilter()])
            admin.create_topics([NewTopic(self.named(n), 1) for n in ("orders", "bills", "bad")])
        with Producer(config=self.root.producer()) as producer:
            for value in (b"5", b"no number", b"7"):
                producer.send(self.named("orders"), value, key=b"ann")

    def give(self, rights: list[list[str]]) -> None:
        """Run the commands, and wait until the cluster goes by them."""
        wanted = 0
        for right in rights:
            words = [self.named(word).replace("User:shop", "User:app") for word in right]
            wanted += words.index("--resource") - 3
            environ = {"ONCEFLOW_BOOTSTRAP_SERVERS": None}
            CommandLine("").call(*words, "--config", str(self.root_file), environ=environ)
        with Admin(config=self.root.admin()) as admin:
            wait_for(lambda: len(admin.describe_acls()) >= wanted, "the rights are given")


def written(path: Path, lines: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def kafka(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsKafka]:
    with RightsKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def ours(world: TlsWorld, tmp_path: Path) -> Iterator[Place]:
    with secured_broker(world) as broker:
        root = properties(broker, world, "root", "hunter3")
        app_file = as_file(broker, world, tmp_path / "app.properties")
        yield Place(
            as_root(broker, world), written(tmp_path / "root.properties", root), app_file, ""
        )


@pytest.fixture
def theirs(kafka: RightsKafka, tmp_path: Path) -> Place:
    root = {"bootstrap.servers": kafka.bootstrap_servers}
    app = {
        "bootstrap.servers": f"{real_kafka.HOST}:{kafka.sasl_port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": "hunter2",
    }
    return Place(
        ClientSettings.of(root),
        written(tmp_path / "root.properties", root),
        written(tmp_path / "app.properties", app),
        uuid4().hex[:6],
    )


@pytest.fixture(
    params=["ours", pytest.param("theirs", marks=pytest.mark.kafka)], ids=["ours", "apache-kafka"]
)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    found.make()
    return found


def shop(place: Place, folder: Path, **settings: Unpack[AppKeywords]) -> App:
    app = App(
        place.named("shop"),
        client=place.app_file,
        state_dir=folder / "state",
        slot="0",
        **settings,
    )

    @app.processor(place.named("orders"), to=place.named("bills"), dead_letter=place.named("bad"))
    def bill(cents: int, total: State[int] = State(0)) -> int:  # noqa: B008
        total.set(total.get() + cents)
        return total.get()

    return app


def committed_in(place: Place, topic: str) -> int:
    """How many records a reader of committed records finds."""
    partition = TopicPartition(place.named(topic), 0)
    with Consumer(config=place.root.consumer(auto_offset_reset="earliest")) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found = 0
        while consumer.position(partition) < end:
            found += sum(map(len, consumer.poll(1_000).values()))
        return found


def outcome(app: App, done: Callable[[], bool]) -> BaseException | None:
    """Run until a condition holds, or until the application fails; returns the failure."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            app.run()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for(lambda: bool(raised) or done(), "the application has worked or failed")
    finally:
        app.stop()
        thread.join(60)
    assert not thread.is_alive()
    return raised[0] if raised else None


def work_and_restore(place: Place, folder: Path) -> BaseException | None:
    """Process everything, then go on with a new disk; returns the failure of either."""

    def until(bills: int) -> Callable[[], bool]:
        return lambda: committed_in(place, "bills") >= bills and committed_in(place, "bad") >= 1

    error = outcome(shop(place, folder / "one"), until(2))
    if error is not None:
        return error
    before = committed_in(place, "bills")
    with Producer(config=place.root.producer()) as producer:
        producer.send(place.named("orders"), b"1", key=b"ann").result()
    return outcome(shop(place, folder / "two"), until(before + 1))


def test_an_application_runs_with_the_rights_of_the_page(place: Place, tmp_path: Path) -> None:
    assert len(RIGHTS) == 8
    place.give(COMMANDS)
    assert work_and_restore(place, tmp_path) is None


def remedies(error: BaseException | None) -> list[list[str]]:
    """Words of the commands in the error of an application that lacks rights."""
    assert isinstance(error, RightsMissingError), error
    commands = re.findall(r"onceflow (acls add User:)NAME ([^;]+)", str(error))
    return [shlex.split(f"{start}app {rest}") for start, rest in commands]


@pytest.mark.parametrize("missing", RIGHTS, ids=[" ".join(right[3:]) for right in RIGHTS])
def test_it_says_what_is_missing(
    missing: list[str], place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.give([right for right in RIGHTS if right != missing])
    told = remedies(work_and_restore(place, tmp_path))
    assert "again after" not in caplog.text
    (command,) = told
    assert command[3:6] == missing[3:6]
    name = place.named(missing[missing.index("--name") + 1])
    assert command[command.index("--name") + 1].startswith(name)
    place.give(told)
    assert work_and_restore(place, tmp_path) is None


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_without_any_right_it_lists_all(guarantee: str, place: Place, tmp_path: Path) -> None:
    wanted = [
        ("--resource", "topic", "--name", "orders"),
        ("--resource", "topic", "--name", "bills"),
        ("--resource", "topic", "--name", "bad"),
        ("--resource", "topic", "--name", "shop-bill-total-changelog"),
        ("--resource", "group", "--name", "shop"),
    ]
    if guarantee == "exactly_once_v2":
        wanted.append(("--resource", "transactional-id", "--name", "shop-", "--prefixed"))
    error = outcome(shop(place, tmp_path, processing_guarantee=guarantee), lambda: False)
    told = {tuple(c[c.index("--resource") :]) for c in remedies(error)}
    assert told == {tuple(map(place.named, words)) for words in wanted}


def test_a_right_taken_away_ends_a_running_worker(place: Place, tmp_path: Path) -> None:
    place.give(COMMANDS)
    taken = False

    def take() -> bool:
        nonlocal taken
        if not taken and committed_in(place, "bills") >= 2:
            taken = True
            with Admin(config=place.root.admin()) as admin:
                admin.delete_acls([AclFilter(resource_name=place.named("bills"))])
            with Producer(config=place.root.producer()) as producer:
                producer.send(place.named("orders"), b"1", key=b"ann").result()
        return False

    (command,) = remedies(outcome(shop(place, tmp_path / "one"), take))
    assert command[3:] == ["write", "--resource", "topic", "--name", place.named("bills")]
    assert committed_in(place, "bills") == 2
