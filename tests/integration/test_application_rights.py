"""Goal: the rights that the operating page names are what an application needs: no less, no more.

Method: the page's commands, run as a user who may do everything, give the rights on a broker that
decides by ACLs. An application with state, outputs and dead letters runs with them. Without any one
of them it ends at the first refusal, and the commands that its error names are what it lacked.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Unpack

import pytest
from command_line import CommandLine
from processor_processes import wait_for
from secured_broker import as_file, as_root, properties, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
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


def shop(client: Path, folder: Path, **settings: Unpack[AppKeywords]) -> App:
    app = App("shop", client=client, state_dir=folder / "state", slot="0", **settings)

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


def remedies(error: BaseException | None) -> list[list[str]]:
    """Words of the commands in the error of an application that lacks rights."""
    assert isinstance(error, RightsMissingError), error
    commands = re.findall(r"onceflow (acls add User:)NAME ([^;]+)", str(error))
    return [shlex.split(f"{start}shop {rest}") for start, rest in commands]


@pytest.mark.parametrize("missing", RIGHTS, ids=[" ".join(right[3:]) for right in RIGHTS])
def test_it_says_what_is_missing(
    missing: list[str],
    broker: Broker,
    world: TlsWorld,
    root: ClientSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    give(broker, world, tmp_path, [right for right in RIGHTS if right != missing])
    told = remedies(work_and_restore(broker, world, root, tmp_path))
    assert "again after" not in caplog.text
    (command,) = told
    assert command[3:6] == missing[3:6]
    assert command[command.index("--name") + 1].startswith(missing[missing.index("--name") + 1])
    give(broker, world, tmp_path, told)
    assert work_and_restore(broker, world, root, tmp_path) is None


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_without_any_right_it_lists_all(
    guarantee: str, broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    client = as_file(broker, world, tmp_path / "app.properties")
    app = shop(client, tmp_path, processing_guarantee=guarantee)
    places = [
        ("--resource", "topic", "--name", "orders"),
        ("--resource", "topic", "--name", "bills"),
        ("--resource", "topic", "--name", "bad"),
        ("--resource", "topic", "--name", "shop-bill-total-changelog"),
        ("--resource", "group", "--name", "shop"),
    ]
    if guarantee == "exactly_once_v2":
        places.append(("--resource", "transactional-id", "--name", "shop-", "--prefixed"))
    told = remedies(outcome(app, lambda: False))
    assert {tuple(c[c.index("--resource") :]) for c in told} == set(places)


def test_a_right_taken_away_ends_a_running_worker(
    broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    give(broker, world, tmp_path, COMMANDS)
    client = as_file(broker, world, tmp_path / "app.properties")
    taken = False

    def take() -> bool:
        nonlocal taken
        if not taken and committed_in(root, "bills") >= 2:
            taken = True
            with Admin(config=root.admin()) as admin:
                admin.delete_acls([AclFilter(resource_name="bills")])
            with Producer(config=root.producer()) as producer:
                producer.send("orders", b"1", key=b"ann").result()
        return False

    (command,) = remedies(outcome(shop(client, tmp_path / "one"), take))
    assert command == [
        "acls",
        "add",
        "User:shop",
        "write",
        "--resource",
        "topic",
        "--name",
        "bills",
    ]
    assert committed_in(root, "bills") == 2
