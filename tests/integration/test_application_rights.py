"""Goal: the rights that the operating page names are what an application needs: no less, no more.

Method: the page's commands, run as a user who may do everything, give the rights on a broker that
decides by ACLs. An application with state, outputs and dead letters runs with them, and fails
without any one of them.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from processor_processes import wait_for
from secured_broker import as_file, as_root, properties, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.processors import App, State
from onceflow.sdk import Admin, ClientSettings, Consumer, NewTopic, Producer, TopicPartition
from onceflow.sdk.errors import KafkaError

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
        admin.create_topics([NewTopic(name, 1) for name in ("orders", "bills", "bad")])
    with Producer(config=client.producer()) as producer:
        for value in (b"5", b"no number", b"7"):
            producer.send("orders", value, key=b"ann")
    return client


def give(broker: Broker, world: TlsWorld, folder: Path, rights: list[list[str]]) -> None:
    lines = properties(broker, world, "root", "hunter3")
    path = folder / "root.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    for right in rights:
        words = [word.replace("User:shop", "User:app") for word in right]
        CommandLine("").call(
            *words, "--config", str(path), environ={"ONCEFLOW_BOOTSTRAP_SERVERS": None}
        )


def shop(client: Path, folder: Path) -> App:
    app = App("shop", client=client, state_dir=folder / "state", slot="0", aborts_max=1)

    @app.processor("orders", to="bills", dead_letter="bad")
    def bill(cents: int, total: State[int] = State(0)) -> int:  # noqa: B008
        total.set(total.get() + cents)
        return total.get()

    return app


def committed_in(root: ClientSettings, topic: str) -> int:
    """How many records a reader of committed records finds."""
    place = TopicPartition(topic, 0)
    with Consumer(config=root.consumer(auto_offset_reset="earliest")) as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found = 0
        while consumer.position(place) < end:
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


def work_and_restore(
    broker: Broker, world: TlsWorld, root: ClientSettings, folder: Path
) -> BaseException | None:
    """Process everything, then go on with a new disk; returns the failure of either."""
    client = as_file(broker, world, folder / "app.properties")

    def until(bills: int) -> Callable[[], bool]:
        return lambda: committed_in(root, "bills") >= bills and committed_in(root, "bad") >= 1

    error = outcome(shop(client, folder / "one"), until(2))
    if error is not None:
        return error
    before = committed_in(root, "bills")
    with Producer(config=root.producer()) as producer:
        producer.send("orders", b"1", key=b"ann").result()
    return outcome(shop(client, folder / "two"), until(before + 1))


def test_an_application_runs_with_the_rights_of_the_page(
    broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    assert len(RIGHTS) == 8
    give(broker, world, tmp_path, COMMANDS)
    assert work_and_restore(broker, world, root, tmp_path) is None


@pytest.mark.parametrize("missing", RIGHTS, ids=[" ".join(right[3:]) for right in RIGHTS])
def test_it_says_what_is_missing(
    missing: list[str], broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    give(broker, world, tmp_path, [right for right in RIGHTS if right != missing])
    error = work_and_restore(broker, world, root, tmp_path)
    assert isinstance(error, KafkaError), "it ran without this right"
    # A topic that may not be described looks as if it did not exist, also on Apache Kafka.
    assert "AUTHORIZATION_FAILED" in str(error) or "topics do not exist: orders" in str(error)
