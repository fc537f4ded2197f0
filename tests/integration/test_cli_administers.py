"""Goal: topics and groups are administered from the command line, on our broker and on Kafka.

Method: each command runs in this process against a broker on a real socket, with ``--json``; the
same tests run against Apache Kafka with `make conformance`. What people read, exit status and the
ways to connect are looked at on our broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import CommandLine
from consumer_worlds import fresh, write

from onceflow.broker_lite import Broker
from onceflow.cli import COMMANDS, main
from onceflow.sdk import Consumer, TopicPartition


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


# --- topics ---


def test_topics_are_made_changed_and_deleted(onceflow: CommandLine) -> None:
    name = fresh("topic")
    options = ("--partitions", "2", "--replicas", "1", "--set", "retention.ms=60000")
    dry = onceflow.json("topics", "create", name, *options, "--dry-run")
    assert dry == [{"topic": name, "result": "could be created"}]
    assert name not in [each["topic"] for each in onceflow.json("topics", "list")]
    assert onceflow.json("topics", "create", name, *options)[0]["result"] == "created"
    again = onceflow.json("topics", "create", name, "--if-not-exists")
    assert again == [{"topic": name, "result": "exists"}]
    listed = {each["topic"]: each for each in onceflow.json("topics", "list")}
    assert listed[name] == {"topic": name, "partitions": 2, "replicas": 1, "internal": False}

    onceflow.json("topics", "alter", name, "--partitions", "3", "--set", "cleanup.policy=compact")
    (shown,) = onceflow.json("topics", "describe", name)
    assert shown["settings"]["cleanup.policy"] == "compact"
    assert shown["settings"]["retention.ms"] == "60000"
    assert [each["partition"] for each in shown["partitions"]] == [0, 1, 2]
    onceflow.json("topics", "alter", name, "--unset", "retention.ms")
    assert "retention.ms" not in onceflow.json("topics", "describe", name)[0]["settings"]

    onceflow.json("topics", "delete", name, "--yes")
    assert name not in [each["topic"] for each in onceflow.json("topics", "list")]


def test_a_refused_setting_leaves_the_partitions_as_they_were(onceflow: CommandLine) -> None:
    name = fresh("topic")
    onceflow.call("topics", "create", name, "--partitions", "1")
    onceflow.error(
        *("topics", "alter", name, "--partitions", "5", "--set", "retention.ms=soon"), status=1
    )
    onceflow.call("topics", "alter", name, "--partitions", "5", "--dry-run")
    (shown,) = onceflow.json("topics", "describe", name)
    assert len(shown["partitions"]) == 1


def test_nothing_is_deleted_without_consent_or_beside_an_unknown_name(ours: CommandLine) -> None:
    name = fresh("topic")
    ours.call("topics", "create", name)
    assert "--yes" in ours.error("topics", "delete", name, status=6)
    assert "topics list" in ours.error("topics", "delete", name, "nowhere", "--yes", status=3)
    assert name in [each["topic"] for each in ours.json("topics", "list")]


# --- groups ---


def test_a_group_is_shown_with_its_lag_reset_and_deleted(onceflow: CommandLine) -> None:
    topic, group = fresh("topic"), fresh("group")
    onceflow.call("topics", "create", topic, "--partitions", "1")
    write(onceflow.bootstrap, topic, ["one", "two", "three"])
    place = TopicPartition(topic, 0)
    settings = {"bootstrap_servers": onceflow.bootstrap, "enable_auto_commit": False}
    with Consumer(**settings, group_id=group) as consumer:
        consumer.assign([place])
        consumer.commit({place: 1})
    assert group in [each["group"] for each in onceflow.json("groups", "list")]
    (shown,) = onceflow.json("groups", "describe", group)
    (row,) = shown["partitions"]
    assert (row["committed"], row["end"], row["lag"], shown["lag"]) == (1, 3, 2, 2)

    plan = [{"topic": topic, "partition": 0, "current": 1, "new": 3}]
    reset = ("groups", "reset", group, "--to", "latest")
    assert onceflow.json(*reset, "--dry-run")["partitions"] == plan
    assert onceflow.json("groups", "describe", group)[0]["lag"] == 2
    assert onceflow.json(*reset, "--topic", f"{topic}:0")["partitions"] == plan
    assert onceflow.json("groups", "describe", group)[0]["lag"] == 0
    onceflow.json("groups", "reset", group, "--shift-by", "-2")
    onceflow.json("groups", "reset", group, "--to-time", "1h", "--topic", topic)
    assert onceflow.json("groups", "describe", group)[0]["lag"] == 3

    onceflow.json("groups", "delete", group, "--yes")
    assert "groups list" in onceflow.error("groups", "describe", group, status=3)


def test_members_are_named_and_hold_up_a_reset(ours: CommandLine) -> None:
    topic, group = fresh("topic"), fresh("group")
    ours.call("topics", "create", topic, "--partitions", "1")
    with Consumer(
        topic, bootstrap_servers=ours.bootstrap, group_id=group, client_id="reader-7"
    ) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        (shown,) = ours.json("groups", "describe", group)
        assert shown["members"][0]["partitions"] == [f"{topic}:0"]
        assert shown["partitions"][0]["client_id"] == "reader-7"
        assert "reader-7" in ours.call("groups", "describe", group).stdout
        reset = ("groups", "reset", group, "--to", "earliest", "--topic", topic)
        assert "stop the group's members" in ours.error(*reset, status=1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("reset", "g"), "one of --to, --to-time and --shift-by"),
        (("reset", "g", "--to", "latest", "--shift-by", "1"), "one of --to"),
        (("reset", "g", "--to", "soon", "--topic", "t:0"), "soon"),
        (("reset", "g", "--to-time", "soon"), "15m"),
        (("reset", "g", "--to", "latest", "--topic", "t:x"), "TOPIC:PARTITION"),
    ],
)
def test_a_wrong_target_is_refused(ours: CommandLine, words: tuple[str, ...], told: str) -> None:
    assert told in ours.error("groups", *words, status=2)


# --- the same for all ---


def all_commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    context = main.make_context("onceflow", ["x"], resilient_parsing=True)
    for name in COMMANDS:
        command = main.get_command(context, name)
        inner = getattr(command, "commands", None)
        found += [(name, each) for each in inner] if inner else [(name,)]
    return found


@pytest.mark.parametrize("words", all_commands(), ids="-".join)
def test_each_command_has_an_example_and_a_form_for_scripts(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*words, "-h"], prog_name="onceflow").stdout
    assert "Example: " in shown
    assert f"onceflow {' '.join(words)}" in shown.rpartition("Example: ")[2]
    if words != ("console",):  # It serves pages until it is stopped.
        assert "--json" in shown


def test_a_mistyped_word_is_answered_with_the_nearest(ours: CommandLine) -> None:
    assert "did you mean topics?" in ours.error("topcs", "list", status=2)
    assert "did you mean list?" in ours.error("topics", "lits", status=2)
    assert "--json" in ours.error("topics", "list", "--jsn", status=2)
    assert "there are list, create" in ours.error("topics", "zzz", status=2)


def test_no_option_takes_a_password() -> None:
    for words in all_commands():
        shown = CliRunner().invoke(main, [*words, "--help"]).stdout.lower()
        assert "--password" not in shown
        assert "--sasl-password" not in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(ours: CommandLine, shell: str) -> None:
    assert "_ONCEFLOW_COMPLETE" in ours.json("completion", shell)["script"]


# --- ways to connect ---


def test_file_profile_environment_and_option_name_the_cluster(
    broker: Broker, tmp_path: Path
) -> None:
    right, wrong = broker.bootstrap_servers, "127.0.0.1:1"
    file = tmp_path / "onceflow" / "here.toml"
    file.parent.mkdir()
    file.write_text(f'bootstrap.servers = "{right}"\n[consumer]\nmax_poll_records = 7\n')
    home = {"XDG_CONFIG_HOME": str(tmp_path), "ONCEFLOW_BOOTSTRAP_SERVERS": None}
    nowhere = CommandLine(wrong)
    for options in (("--config", str(file)), ("--profile", "here")):
        nowhere.call("topics", "list", *options, environ=home)
    for name, value in (("CONFIG", str(file)), ("PROFILE", "here")):
        nowhere.call("topics", "list", environ={**home, f"ONCEFLOW_{name}": value})
    nowhere.call("topics", "list", "--bootstrap", right)
    told = nowhere.call("topics", "list", "--profile", "her", environ=home, status=2).stderr
    assert "there are here" in told
    both = ("--profile", "here", "--config", str(file))
    assert "one of the two" in nowhere.call("topics", "list", *both, status=2).stderr


def test_a_broker_that_is_not_there_has_its_own_status() -> None:
    limit = {"ONCEFLOW_DEFAULT_API_TIMEOUT_MS": "300"}
    told = CommandLine("127.0.0.1:1").call("topics", "list", status=4, environ=limit).stderr
    assert "--bootstrap HOST:PORT" in told
    assert "Traceback" not in told


def test_an_unknown_variable_is_named(ours: CommandLine) -> None:
    told = ours.call("topics", "list", status=2, environ={"ONCEFLOW_LINGER": "3"}).stderr
    assert "linger" in told
