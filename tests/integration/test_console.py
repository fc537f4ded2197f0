"""Goal: the console shows what a cluster holds, changes nothing, and answers no other site.

Method: its server runs in this process beside our broker, and beside Apache Kafka with `make
conformance`; transactions are committed, aborted and left open.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from command_line import CommandLine
from console_server import Console, console_of
from consumer_worlds import fresh, make_topic
from real_kafka import free_ports

from onceflow.broker_lite import Broker
from onceflow.console.server import Writing
from onceflow.console.workers import Workers
from onceflow.processors.policies import dead_letter_headers
from onceflow.sdk import Consumer, ConsumerRecord, Producer
from onceflow.sdk.errors import ConfigError, SerializationError


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class World(NamedTuple):
    """A console and the address of its cluster."""

    console: Console
    bootstrap: str


@pytest.fixture(
    scope="module",
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)],
    ids=["ours", "kafka"],
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    bootstrap = request.getfixturevalue(request.param).bootstrap_servers
    with console_of(bootstrap) as console:
        yield World(console, bootstrap)


def test_each_message_has_the_fate_of_its_transaction(world: World) -> None:
    topic = make_topic(world.bootstrap)
    with (
        Producer(bootstrap_servers=world.bootstrap, transactional_id=fresh("id")) as ends,
        Producer(bootstrap_servers=world.bootstrap, transactional_id=fresh("id")) as stays,
        Producer(bootstrap_servers=world.bootstrap) as plain,
    ):
        plain.send(topic, b"plain", key=b"k", headers=[("trace", b"7f")]).result()
        ends.begin_transaction()
        ends.send(topic, b"committed").result()
        ends.commit_transaction()
        ends.begin_transaction()
        ends.send(topic, b"aborted").result()
        ends.abort_transaction()
        stays.begin_transaction()
        stays.send(topic, b"open").result()
        ends.begin_transaction()
        ends.send(topic, b"after").result()
        ends.commit_transaction()

        page = world.console.get(f"/api/topics/{topic}/messages?from=earliest")
        shown = [
            (each["kind"], each["transaction"], each["value"] and each["value"]["text"])
            for each in page["messages"]
        ]
        assert shown == [
            ("record", None, "plain"),
            ("record", "committed", "committed"),
            ("commit", None, None),
            ("record", "aborted", "aborted"),
            ("abort", None, None),
            ("record", "open", "open"),
            ("record", "committed", "after"),
            ("commit", None, None),
        ]
        assert page["messages"][0]["key"]["text"] == "k"
        assert page["messages"][0]["headers"][0][0] == "trace"
        assert (page["last_stable_offset"], page["high_watermark"]) == (5, 8)

        (place,) = world.console.get(f"/api/topics/{topic}")["partitions"]
        assert (place["start"], place["stable"], place["end"]) == (0, 5, 8)
        assert [each["first_offset"] for each in place["open_transactions"]] == [5]
        topics = world.console.get("/api/topics")
        (row,) = [each for each in topics if each["topic"] == topic]
        assert (row["offsets"], row["behind_open_transactions"]) == (8, 3)
        stays.abort_transaction()


def test_pages_go_on_where_the_last_one_ended(world: World) -> None:
    topic = make_topic(world.bootstrap)
    with Producer(bootstrap_servers=world.bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(250)])
    newest = world.console.get(f"/api/topics/{topic}/messages")
    assert [each["offset"] for each in newest["messages"]] == list(range(150, 250))
    offsets: list[int] = []
    start = "earliest"
    while len(offsets) < 250:
        page = world.console.get(f"/api/topics/{topic}/messages?from={start}&limit=90")
        offsets += [each["offset"] for each in page["messages"]]
        start = str(page["next_offset"])
    assert offsets == list(range(250))
    by_time = newest["messages"][0]["timestamp_ms"]
    page = world.console.get(f"/api/topics/{topic}/messages?from=@{by_time}&limit=1")
    assert page["messages"][0]["timestamp_ms"] >= by_time
    later = world.console.get(f"/api/topics/{topic}/messages?from=@{by_time + 10**9}")
    assert later["messages"] == []
    beyond = world.console.get(f"/api/topics/{topic}/messages?from=9999")
    assert (beyond["messages"], beyond["next_offset"]) == ([], 250)


def test_groups_are_shown_with_members_and_lag(world: World) -> None:
    topic, name = make_topic(world.bootstrap), fresh("reports/daily")
    with (
        Producer(bootstrap_servers=world.bootstrap) as producer,
        Consumer(
            topic,
            bootstrap_servers=world.bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            max_poll_records=10,
            enable_auto_commit=False,
        ) as consumer,
    ):
        producer.send_many(topic, [b"v"] * 30)
        producer.flush()
        read = 0
        while read < 10:
            read += sum(map(len, consumer.poll(timeout_ms=500).values()))
        consumer.commit()
        (row,) = [each for each in world.console.get("/api/groups") if each["group"] == name]
        assert (row["state"], row["lag"]) == ("Stable", 20)
        group = world.console.get(f"/api/groups/{name.replace('/', '%2F')}")
        assert (group["members"], group["state"]) == (1, "Stable")
        (place,) = group["partitions"]
        assert (place["committed"], place["end"], place["lag"]) == (10, 30, 20)
        assert place["client_id"] == consumer.config.client_id
        while not group["history"]:
            group = world.console.get(f"/api/groups/{name.replace('/', '%2F')}")
        assert group["history"][-1][1] == 20


def test_open_transactions_come_first_with_age_and_partitions(world: World) -> None:
    topic, done, running = make_topic(world.bootstrap), fresh("aaa-done"), fresh("zzz-open")
    with (
        Producer(bootstrap_servers=world.bootstrap, transactional_id=done) as ends,
        Producer(bootstrap_servers=world.bootstrap, transactional_id=running) as stays,
    ):
        with ends.transaction():
            ends.send(topic, b"x")
        stays.begin_transaction()
        stays.send(topic, b"y").result()
        rows = world.console.get("/api/transactions")
        assert rows[0]["transactional_id"] == running
        assert rows[0]["partitions"] == [{"topic": topic, "partition": 0}]
        assert rows[0]["age_ms"] >= 0
        assert done in [each["transactional_id"] for each in rows]
        assert world.console.get("/api/overview")["open_transactions"] >= 1
        stays.abort_transaction()


def test_topics_show_their_throughput(world: World) -> None:
    topic = make_topic(world.bootstrap)
    rate = None
    with Producer(bootstrap_servers=world.bootstrap) as producer:
        while not rate:
            producer.send(topic, b"v").result()
            rows = world.console.get("/api/topics")
            (rate,) = [each["offsets_a_second"] for each in rows if each["topic"] == topic]
    assert rate > 0


def test_a_dead_letter_tells_its_failure(world: World) -> None:
    dead = make_topic(world.bootstrap)
    failed = ConsumerRecord("orders", 1, 7, headers=[("trace", b"7f")])
    earlier = dead_letter_headers(failed, KeyError("x"), 1, "earlier")
    again = ConsumerRecord("orders", 1, 7, headers=earlier)
    told = dead_letter_headers(again, ValueError("never right"), 3, "price")
    with Producer(bootstrap_servers=world.bootstrap) as producer:
        producer.send(dead, b"bad", headers=told).result()
        producer.send(dead, b"no dead letter").result()
    first, second = world.console.get(f"/api/topics/{dead}/messages")["messages"]
    failure = first["failure"]
    assert (failure["class"], failure["message"]) == ("builtins.ValueError", "never right")
    assert (failure["topic"], failure["partition"], failure["offset"]) == ("orders", "1", "7")
    assert (failure["processor"], failure["attempts"]) == ("price", "3")
    assert "never right" in failure["traceback"]
    assert second["failure"] is None


def test_wrong_questions_are_told_what_is_wrong(world: World) -> None:
    topic = make_topic(world.bootstrap)
    for path, status, words in [
        (f"/api/topics/{topic}/messages?partition=x", 400, "partition='x'"),
        (f"/api/topics/{topic}/messages?limit=0", 400, "limit='0'"),
        (f"/api/topics/{topic}/messages?limit=100000", 400, "from 1 to 1000"),
        (f"/api/topics/{topic}/messages?from=soon", 400, "from='soon'"),
        (f"/api/topics/{topic}/messages?from=-1", 400, "from='-1'"),
        (f"/api/topics/{topic}/messages?from={'9' * 5000}", 400, "from='999"),
        (f"/api/topics/{topic}/messages?from={'0' * 30}{'9' * 30}", 400, "from='000"),
        (f"/api/topics/{topic}/messages?from=9223372036854775808", 400, "from='922"),
        (f"/api/topics/{topic}/messages?partition=7", 404, "7"),
        (f"/api/topics/{fresh('missing')}", 404, "missing"),
        (f"/api/topics/{fresh('missing')}/messages", 404, "missing"),
    ]:
        found, answer = world.console.ask(path)
        assert found == status, (path, answer)
        assert words in answer["error"], path
    # None of these questions made a topic.
    assert not [each for each in world.console.get("/api/topics") if "missing" in each["topic"]]


def test_other_sites_and_other_methods_are_refused(world: World) -> None:
    assert world.console.ask("/api/topics", host="evil.example")[0] == 400
    assert world.console.ask("/api/topics", host="localhost")[0] == 200
    assert world.console.ask("/api/topics", method="POST")[0] == 405
    connection = http.client.HTTPConnection("127.0.0.1", world.console.port)
    connection.request("GET", "/")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert "onceflow console" in text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in text.replace("http-equiv", ""), "the page loads nothing from elsewhere"


def test_paths_outside_of_the_pages_are_not_served(world: World) -> None:
    for path in ("/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "/console.py"):
        assert world.console.ask(path)[0] == 404, path


def test_a_taken_port_is_told(broker: Broker) -> None:
    with console_of(broker.bootstrap_servers) as console:
        said = CommandLine(broker.bootstrap_servers).error(
            "console", "--port", str(console.port), status=1
        )
    assert f"--port {console.port}" in said
    assert "Next:" in said


def test_a_cluster_that_does_not_answer_is_an_error_of_the_command() -> None:
    said = CommandLine(f"127.0.0.1:{free_ports(1)[0]}").error("console", "--port", "0", status=4)
    assert "no broker answered" in said
    assert "Traceback" not in said


def test_every_address_needs_names(broker: Broker) -> None:
    for host in ("0.0.0.0", "::"):
        said = CommandLine(broker.bootstrap_servers).error("console", "--host", host, status=2)
        assert "--allow-host NAME" in said


@pytest.mark.parametrize(
    ("host", "asked"), [("::1", "[::1]"), ("127.0.0.1", "localhost"), ("127.0.0.1", "far.example")]
)
def test_the_command_serves_by_each_name(broker: Broker, host: str, asked: str) -> None:
    command = [sys.executable, "-m", "onceflow", "console", "--bootstrap", broker.bootstrap_servers]
    command += ["--port", "0", "--host", host, "--allow-host", "far.example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+) ", process.stdout.readline())
            assert found
            connection = http.client.HTTPConnection(host, int(found[1]), timeout=60)
            connection.request("GET", "/api/overview", headers={"Host": f"{asked}:{found[1]}"})
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.terminate()


def test_nothing_is_changed_without_the_switch_and_the_token(broker: Broker) -> None:
    asked: list[tuple[str, bool]] = []

    def replay(topic: str, dry_run: bool) -> list[dict[str, object]]:
        asked.append((topic, dry_run))
        return [{"topic": "orders", "records": 2}]

    where = broker.bootstrap_servers
    with console_of(where) as reading:
        assert reading.get("/api/writing") == {"replay": False}
        status, found = reading.ask("/api/topics/dead/replay", method="POST", token="t")
        assert (status, found["error"]) == (403, "the console was started without --write")
    with console_of(where, writing=Writing("right", replay)) as writing:
        assert writing.get("/api/writing") == {"replay": True}
        for token in (None, "", "wrong", "righ", "right2"):
            status, found = writing.ask("/api/topics/dead/replay", method="POST", token=token)
            assert (status, "token" in found["error"]) == (403, True)
        assert writing.ask("/api/topics/dead/replay")[0] == 404
        asked.clear()
        path = "/api/topics/dead/replay"
        for query, dry_run in (("?dry_run=1", True), ("", False)):
            status, found = writing.ask(path + query, method="POST", token="right")
            assert (status, found["dry_run"]) == (200, dry_run)
            assert found["sent"] == [{"topic": "orders", "records": 2}]
        assert asked == [("dead", True), ("dead", False)]


def test_values_with_a_schema_are_read_with_it_or_say_why_not(broker: Broker) -> None:
    def decode(data: bytes, topic: str, field: str) -> object:
        if data[5:] == b"broken":
            raise SerializationError("not of schema 7")
        return {"topic": topic, "field": field, "rest": data[5:].decode()}

    where = broker.bootstrap_servers
    topic = make_topic(where)
    prefix = b"\0\0\0\0\x07"
    with Producer(bootstrap_servers=where) as producer:
        for value in (prefix + b"good", prefix + b"broken", b"plain"):
            producer.send(topic, value, partition=0).result()
    with console_of(where, decode=decode) as console:
        page = console.get(f"/api/topics/{topic}/messages?from=earliest")
    first, second, third = (each["value"] for each in page["messages"])
    assert first["format"] == "schema 7"
    assert json.loads(first["text"]) == {"topic": topic, "field": "value", "rest": "good"}
    assert (second["text"], second["problem"]) == ("YnJva2Vu", "not of schema 7")
    assert (third["format"], third["text"]) == ("text", "plain")


def test_workers_that_do_not_answer_are_named(broker: Broker) -> None:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with console_of(broker.bootstrap_servers, workers=[address]) as console:
        (row,) = console.get("/api/processors")
    assert row["address"] == address
    assert row["error"].startswith("no status: ")
    with pytest.raises(ConfigError, match="--worker"):
        Workers(["127.0.0.1:8080"])
    (answer,) = (CommandLine("127.0.0.1:1").error("console", "--worker", "ftp://x", status=2),)
    assert "http://HOST:PORT" in answer
