"""Goal: committed state can be asked for from outside, of whichever worker owns it, and never gives
what is not committed nor what a worker that lost its task still holds.

Method: applications on the in-process broker, as threads of this process and as commands with
several workers; handlers that wait hold transactions open, and a suspended worker wakes up after
others have gone on. Values are compared with what was committed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processor_processes import committed_values, fill, wait_for

from onceflow.broker_lite import Broker
from onceflow.cli.base import Failure
from onceflow.cli.query_server import QueryServer
from onceflow.processors import (
    App,
    Count,
    Hopping,
    ListState,
    MapState,
    Mean,
    NotOwnerError,
    Query,
    QueryError,
    Session,
    State,
    StateClient,
    StateNotReadyError,
    StateTypeError,
    Sum,
    Tumbling,
    UnknownStateError,
    WindowValue,
    hours,
    seconds,
)
from onceflow.sdk import Producer
from onceflow.sdk.errors import ConfigError

PARTITIONS = 4


@dataclass
class Basket:
    items: int
    last: str


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        for topic in ("in", "out"):
            broker.create_topic(topic, partitions=PARTITIONS)
        yield broker


gate = threading.Event()


def application(broker: Broker, tmp_path: Path, **settings: Any) -> App:
    app = App("asked", broker.bootstrap_servers, state_dir=tmp_path / "disk", **settings)

    @app.processor("in", to="out")
    def count(
        value: str,
        seen: State[int],
        basket: State[Basket],
        by_word: MapState[str, int],
        words: ListState[str],
    ) -> str:
        seen.set(seen.get(0) + 1)
        basket.set(Basket(seen.get(0), value))
        by_word[value] = by_word.get(value, 0) + 1
        words.append(value)
        if value == "wait":
            gate.wait(30)
        return value

    return app


@contextlib.contextmanager
def running(app: App) -> Iterator[QueryServer]:
    server = QueryServer(app, "127.0.0.1", 0)
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        gate.set()
        app.stop()
        thread.join(30)
        server.close()
        gate.clear()
        assert not thread.is_alive()


def put(broker: Broker, key: str, *values: str) -> None:
    encoded = [value.encode() for value in values]
    fill(broker.bootstrap_servers, "in", encoded, [key.encode()] * len(values))


def ask(address: str, path: str, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_values_of_all_kinds_with_their_types(broker: Broker, tmp_path: Path) -> None:
    with running(application(broker, tmp_path)) as server:
        put(broker, "bob", "a", "b", "a")
        client = StateClient([server.address])
        wait_for(lambda: client.get("count.seen", "bob", int) == 3, "all is committed")
        assert client.get("count.basket", "bob", Basket) == Basket(3, "a")
        assert client.get("count.by_word", b"bob", dict[str, int]) == {"a": 2, "b": 1}
        assert client.get("count.words", "bob", list[str]) == ["a", "b", "a"]
        assert client.get("count.seen", "nobody", int) is None
        assert client.get("count.words", "nobody", list[str]) is None
        with pytest.raises(StateTypeError, match=r"count.seen, key 'bob'.*give the state's type"):
            client.get("count.seen", "bob", str)
        with pytest.raises(UnknownStateError, match=r"it has count\.basket"):
            client.get("count.gone", "bob", int)
        with pytest.raises(QueryError, match="partition=9: must be from 0 to 3"):
            client.get("count.seen", "bob", int, partition=9)
        found = ask(server.address, "/state/count.basket?key=bob")
        assert found == (200, {"found": True, "value": {"items": 3, "last": "a"}, "partition": 2})


def windowed(broker: Broker, tmp_path: Path) -> App:
    app = App("asked", broker.bootstrap_servers, state_dir=tmp_path / "disk")

    @app.aggregate("in", window=Tumbling(seconds(10), grace=hours(1)), fold=Mean(), to="out")
    def mean(value: str) -> int:
        return int(value)

    @app.aggregate(
        "in", window=Hopping(seconds(10), seconds(5), grace=hours(1)), fold=Count(), to="out"
    )
    def hops(value: str) -> int:
        return 1

    @app.aggregate("in", window=Session(seconds(5), grace=hours(1)), fold=Sum(), to="out")
    def visits(value: str) -> int:
        return int(value)

    return app


def test_windows_by_key_and_time(broker: Broker, tmp_path: Path) -> None:
    second = 1_000

    def put_at() -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for key, time_s in (("bob", 1), ("bob", 4), ("ann", 5), ("bob", 12), ("bob", 31)):
                value = str(time_s).encode()
                producer.send("in", value, key=key.encode(), timestamp_ms=time_s * second)

    with running(windowed(broker, tmp_path)) as server:
        put_at()
        client = StateClient([server.address])

        def mean(*times: int) -> list[tuple[int, float]]:
            found = client.windows("mean.windows", "bob", float, **span(*times))
            assert all(each.end_ms == each.start_ms + 10 * second for each in found)
            return [(each.start_ms // second, each.value) for each in found]

        wait_for(lambda: mean() == [(0, 2.5), (10, 12.0), (30, 31.0)], "all is committed")
        assert mean(1) == [(10, 12.0), (30, 31.0)], "a window that began before is left out"
        assert mean(0, 10) == [(0, 2.5), (10, 12.0)], "the latest start is included"
        assert mean(11, 29) == []
        hops = client.windows("hops.windows", "ann", int, to_ms=7 * second)
        assert hops == [WindowValue(0, 10_000, 1), WindowValue(5_000, 15_000, 1)]

        def visits(*times: int) -> list[tuple[int, int, int]]:
            found = client.windows("visits.windows", "bob", int, **span(*times))
            return [(each.start_ms // second, each.end_ms // second, each.value) for each in found]

        wait_for(lambda: len(visits()) == 3, "the sessions are committed")
        assert visits() == [(1, 4, 5), (12, 12, 12), (31, 31, 31)]
        assert visits(3, 11) == [(1, 4, 5)], "it reaches into the range"
        assert visits(5, 11) == []
        assert visits(12, 31) == [(12, 12, 12), (31, 31, 31)]
        assert client.windows("visits.windows", "nobody", int) == []
        path = "/state/mean.windows?key=bob&from_ms=10000&to_ms=20000"
        value = [{"start_ms": 10_000, "end_ms": 20_000, "value": 12.0}]
        assert ask(server.address, path)[1]["value"] == value


def span(begin_s: int = 0, end_s: int | None = None) -> dict[str, int]:
    end = {} if end_s is None else {"to_ms": end_s * 1_000}
    return {"from_ms": begin_s * 1_000, **end}


def test_times_that_select_nothing_are_refused(broker: Broker, tmp_path: Path) -> None:
    with running(application(broker, tmp_path)) as server:
        client = StateClient([server.address])
        with pytest.raises(QueryError, match=r"from_ms=0: count\.seen has no windows"):
            client.windows("count.seen", "bob", int)
    with running(windowed(broker, tmp_path / "other")) as server:
        client = StateClient([server.address])
        with pytest.raises(QueryError, match="from_ms=2: must be at most to_ms=1"):
            client.windows("mean.windows", "bob", float, from_ms=2, to_ms=1)
        with pytest.raises(QueryError, match="from_ms=-1: must be milliseconds since 1970"):
            server._app.query(Query("mean.windows", b"bob", None, -1))
        with pytest.raises(UnknownStateError, match=r"it has hops\.windows, mean\.windows"):
            client.windows("gone.windows", "bob", float)
        path = "/state/mean.windows?key=a&to_ms=1" + 18 * "0"
        assert ask(server.address, path)[0] == 400


def test_what_is_not_committed_is_not_seen(broker: Broker, tmp_path: Path) -> None:
    app = application(broker, tmp_path, commit_interval_ms=100)
    with running(app) as server:
        put(broker, "bob", "a")
        client = StateClient([server.address])
        wait_for(lambda: client.get("count.seen", "bob", int) == 1, "the first is committed")
        put(broker, "bob", "b", "wait", "c")

        def until_busy() -> None:
            while True:
                assert app.query(Query("count.seen", b"bob"), 0.5).value in (1, 2)

        with pytest.raises(StateNotReadyError, match="busy with a function"):
            until_busy()  # The handler has the record that waits.
        gate.set()
        seen: list[int | None] = []
        wait_for(
            lambda: (seen.append(client.get("count.seen", "bob", int)), seen[-1] == 4)[1], "all"
        )
        assert set(seen) <= {1, 2, 3, 4}
        assert seen == sorted(seen)  # type: ignore[type-var]


def test_without_a_worker_and_while_it_starts(broker: Broker, tmp_path: Path) -> None:
    app = application(broker, tmp_path)
    with pytest.raises(StateNotReadyError, match="no worker of application asked runs here"):
        app.query(Query("count.seen", b"bob"))
    client = StateClient(["127.0.0.1:1"], timeout_ms=300)
    with pytest.raises(
        StateNotReadyError, match=r"no answer within 0.3 s; the last one: 127.0.0.1:1"
    ):
        client.get("count.seen", "bob", int)


def test_requests_that_are_no_queries_are_refused(broker: Broker, tmp_path: Path) -> None:
    with running(application(broker, tmp_path)) as server:
        for path, status, told in (
            ("/", 404, "ask /state/FUNCTION.STATE?key=KEY"),
            ("/state/count.seen", 400, "key: give the key"),
            ("/state/count.seen?key=a&key_hex=00", 400, "key: give the key"),
            ("/state/count.seen?key_hex=zz", 400, "key_hex"),
            ("/state/count.seen?key=a&partition=-1", 400, "partition='-1'"),
            ("/state/count.seen?key=a&what=1", 400, "what: there are"),
            ("/state/count.gone?key=a", 404, "it has count.basket, count.by_word, count.seen"),
        ):
            found, answer = ask(server.address, path)
            assert found == status, path
            assert told in answer["message"]
        path = "/state/count.seen?key=a"
        assert ask(server.address, path, Host="evil.example:80")[0] == 403
        assert ask(server.address, path, Origin="http://evil.example")[0] == 403


def test_addresses_are_checked() -> None:
    for wrong in ([], "127.0.0.1:1", ["127.0.0.1"], ["127.0.0.1:x"]):
        with pytest.raises(ConfigError, match="servers"):
            StateClient(wrong)
    with pytest.raises(ConfigError, match="application_server='here'"):
        App("refused", application_server="here")
    with pytest.raises(ConfigError, match="application_server"):
        App("refused", application_server="here:1", group_protocol="consumer")
    with pytest.raises(Failure, match="is every address"):
        QueryServer(App("refused"), "0.0.0.0", 0)


PROGRAM = """
from onceflow.processors import App, State

app = App(
    "asked", session_timeout_ms=2_000, transaction_timeout_ms=1_500, heartbeat_interval_ms=200,
    leave_on_sigterm=True,
)


@app.processor("in", to="out")
def count(value: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return value
"""


@contextlib.contextmanager
def command(broker: Broker, folder: Path, *words: str) -> Iterator[Any]:
    folder.mkdir(exist_ok=True)
    (folder / "asked.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "onceflow", "run", "asked:app", "--json"]
    process = subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap_servers, "--query-port", "0", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.communicate(timeout=30)


def test_a_query_finds_its_owner_and_a_stale_one_gives_no_value(
    broker: Broker, tmp_path: Path
) -> None:
    keys = [f"k{number}" for number in range(40)]

    def add() -> None:
        for key in keys:
            put(broker, key, "x")

    with (
        command(broker, tmp_path / "one") as (first, told_first),
        command(broker, tmp_path / "two") as (_, told_second),
    ):
        servers = [told["queries"].removeprefix("http://") for told in (told_first, told_second)]
        add()
        wait_for(
            lambda: len(committed_values(broker.bootstrap_servers, "out")) == len(keys), "counted"
        )
        client = StateClient(servers[:1], timeout_ms=30_000)
        for key in keys:
            assert client.get("count.seen", key, int) == 1

        def owners() -> set[str]:
            """Which worker answers for a key itself."""
            return {
                server
                for server in servers
                for key in keys
                if ask(server, f"/state/count.seen?key={key}")[0] == 200
            }

        wait_for(lambda: owners() == set(servers), "each has some of the tasks")
        away = next(
            key for key in keys if ask(servers[1], f"/state/count.seen?key={key}")[0] == 200
        )
        status, answer = ask(servers[0], f"/state/count.seen?key={away}")
        assert (status, answer["error"], answer["owner"]) == (421, "NotOwnerError", servers[1])
        # The first worker is suspended; the second takes its tasks over and goes on.
        mine = next(
            key for key in keys if ask(servers[0], f"/state/count.seen?key={key}")[0] == 200
        )
        os.kill(first.pid, signal.SIGSTOP)
        wait_for(
            lambda: ask(servers[1], f"/state/count.seen?key={mine}")[0] == 200, "it takes over"
        )
        add()
        other = StateClient(servers[1:], timeout_ms=30_000)
        wait_for(lambda: other.get("count.seen", mine, int) == 2, "it goes on")
        os.kill(first.pid, signal.SIGCONT)
        stale: list[tuple[int, Any]] = []

        def rejoined() -> bool:
            stale.append(ask(servers[0], f"/state/count.seen?key={mine}"))
            return len([each for each in stale if each[0] == 421]) > 0 or stale[-1][0] == 200

        wait_for(rejoined, "it has noticed")
        for status, answer in stale:
            assert status in (421, 503) or answer["value"] == 2, "an old value was told"
        for key in keys:
            assert client.get("count.seen", key, int) == 2


@pytest.mark.parametrize("kind", [(), ("--threads",)], ids=["processes", "threads"])
def test_several_workers_of_one_command_answer_each(
    broker: Broker, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    put(broker, "bob", "x")
    with command(broker, tmp_path / "one", "--workers", "2", *kind) as (process, start):
        assert "queries" not in start
        told = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert {each["worker"] for each in told} == {0, 1}
        servers = [each["queries"].removeprefix("http://") for each in told]
        assert len(set(servers)) == 2
        for server in servers:
            client = StateClient([server], timeout_ms=30_000)
            wait_for(lambda: client.get("count.seen", "bob", int) == 1, "whoever has it")  # noqa: B023
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_who_owns_nothing_says_where_to_ask() -> None:
    error = NotOwnerError("another worker has it", "10.0.0.2:7070", 3, 4)
    assert (error.owner, error.partition, error.partitions) == ("10.0.0.2:7070", 3, 4)
