"""Goal: a test in any language can make faults, read the journal, move the clock and restart the
broker over HTTP, and nothing else can.

Method: requests as curl would send them, written by hand, to a broker in process and to a daemon;
Kafka requests beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from broker_requests import fetch, produce, topic_metadata
from broker_wire import Wire, batch, until, values_of

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import control

LOCAL = b"HTTP/1.1\r\nHost: localhost\r\n"
"""Rest of a request line, and the header that HTTP/1.1 demands."""
CHUNKED = LOCAL + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(control=0) as running:
        running.create_topic("t")
        yield running


async def raw(broker: Broker, text: bytes) -> tuple[int, dict[str, object]]:
    """Send bytes; gives status and JSON."""
    port = int(broker.control_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    is_json = b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body) if is_json else {"text": body.decode()}


async def ask(
    broker: Broker, method: str, path: str, body: object = None
) -> tuple[int, dict[str, object]]:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: {len(data)}\r\n\r\n"
    return await raw(broker, head.encode() + data)


async def test_rules_are_made_listed_counted_and_removed(broker: Broker) -> None:
    wish = {"key": "Produce", "fault": "error", "error": "REQUEST_TIMED_OUT", "topic": "t",
            "times": 2}  # fmt: skip
    status, rule = await ask(broker, "POST", "/rules", wish)
    assert status == 200
    assert {**wish, "hits": 0, "id": rule["id"]} == rule
    async with Wire(broker) as wire:
        assert (await produce(wire, "t", batch(b"a"))).error_code == 7
    status, listed = await ask(broker, "GET", "/rules")
    assert [(each["hits"], each["times"]) for each in listed["rules"]] == [(1, 1)]  # type: ignore[attr-defined]
    assert (await ask(broker, "DELETE", f"/rules/{rule['id']}"))[1]["hits"] == 1
    assert (await ask(broker, "GET", f"/rules/{rule['id']}"))[0] == 404
    async with Wire(broker) as wire:
        assert (await produce(wire, "t", batch(b"a"))).error_code == 0


@pytest.mark.parametrize(
    "wish",
    [
        {"fault": "delay", "key": 3, "delay_ms": 5, "times": None},
        {"fault": "drop_answer", "key": "Fetch", "client_id": "c"},
        {"fault": "drop_request", "group_id": "g"},
        {"fault": "cut_answer", "cut_bytes": 3},
        {"fault": "slow_answer", "bytes_per_second": 10},
        {"fault": "partition", "client_id": "c"},
        {"fault": "refuse", "times": 3},
        {"fault": "disk_error", "topic": "t", "partition": 0, "disk_error": "EIO"},
        {"fault": "hold", "transactional_id": "x"},
    ],
)
async def test_every_fault_can_be_asked_for(broker: Broker, wish: dict[str, object]) -> None:
    status, rule = await ask(broker, "POST", "/rules", wish)
    assert (status, rule["fault"]) == (200, wish["fault"])
    assert (await ask(broker, "DELETE", "/rules"))[0] == 200
    assert not broker.faults.rules


async def test_the_journal_can_be_switched_on_and_searched(broker: Broker) -> None:
    assert (await ask(broker, "PUT", "/journal", {"recording": True}))[0] == 200
    async with Wire(broker) as wire:
        await produce(wire, "t", batch(b"a", b"b"))
        await topic_metadata(wire, "t")
    _, found = await ask(broker, "GET", "/journal?key=Produce&topic=t&limit=5")
    (entry,) = found["entries"]  # type: ignore[misc]
    assert (entry["client_id"], entry["api_version"]) == ("test", 9)
    records = entry["request"]["topic_data"][0]["partition_data"][0]["records"]
    assert records["records"] == 2
    assert entry["answer"]["responses"][0]["partition_responses"][0]["base_offset"] == 0
    after = await ask(broker, "GET", f"/journal?after={entry['number']}")
    assert [each["key"] for each in after[1]["entries"]] == ["Metadata"]  # type: ignore[attr-defined]
    assert (await ask(broker, "DELETE", "/journal"))[1] == {"cleared": 2}


async def test_the_clock_can_be_moved(broker: Broker) -> None:
    _, before = await ask(broker, "GET", "/clock")
    _, after = await ask(broker, "POST", "/clock", {"advance_ms": 3_600_000})
    assert isinstance(before["now_ms"], int)
    assert isinstance(after["now_ms"], int)
    assert 3_600_000 <= after["now_ms"] - before["now_ms"] < 3_700_000


@pytest.mark.parametrize("kill", [False, True])
async def test_the_broker_can_be_restarted_and_keeps_its_data(broker: Broker, kill: bool) -> None:
    async with Wire(broker) as wire:
        await produce(wire, "t", batch(b"a"))
    status, described = await ask(broker, "POST", "/broker/restart", {"kill": kill})
    assert (status, described["running"]) == (200, True)
    async with Wire(broker) as wire:
        assert values_of((await fetch(wire, "t")).records) == [b"a"]


async def test_a_stopped_broker_refuses_and_can_be_started(broker: Broker) -> None:
    _, stopped = await ask(broker, "POST", "/broker/stop", {"kill": True})
    assert stopped["running"] is False
    with pytest.raises(ConnectionRefusedError):
        async with Wire(broker):
            pass
    assert (await ask(broker, "POST", "/clock", {"advance_ms": 1}))[0] == 200
    assert (await ask(broker, "POST", "/rules", {"fault": "hold"}))[0] == 200
    assert (await ask(broker, "DELETE", "/rules"))[0] == 200
    assert (await ask(broker, "POST", "/broker/start"))[1]["running"] is True
    assert (await ask(broker, "POST", "/broker/start"))[0] == 409


async def test_nodes_leaders_and_coordinators_can_be_moved() -> None:
    async with Broker(control=0, nodes=2) as broker:
        broker.create_topic("t")
        first = broker.leader("t", 0)
        other = 3 - first
        wish = {"topic": "t", "partition": 0, "node_id": other}
        assert (await ask(broker, "POST", "/leaders", wish))[1]["leader"] == other
        assert (await ask(broker, "POST", "/leaders/preferred"))[1] == {"moved": 1}
        wish = {"group_id": "g", "node_id": 1}
        assert (await ask(broker, "POST", "/coordinators", wish))[1]["coordinator"] == 1
        _, described = await ask(broker, "POST", f"/nodes/{first}/stop")
        assert described["nodes"][str(first)]["running"] is False  # type: ignore[index]
        assert described["nodes"][str(other)]["leads"] == ["t-0"]  # type: ignore[index]
        wish = {"topic": "t", "partition": 0, "node_id": first}
        assert (await ask(broker, "POST", "/leaders", wish))[0] == 409
        assert (await ask(broker, "POST", f"/nodes/{first}/start"))[0] == 200
        for method, path, body in (
            ("POST", "/nodes/77/stop", None),
            ("POST", "/leaders", {"topic": "u", "partition": 0, "node_id": 1}),
            ("POST", "/coordinators", {"node_id": 1}),
        ):
            assert (await ask(broker, method, path, body))[0] == 409


async def test_partitions_tell_their_figures(broker: Broker) -> None:
    broker.create_topic("figures")
    async with Wire(broker) as wire:
        await produce(wire, "figures", batch(b"a", b"b"))
    wanted = {
        "topic": "figures",
        "partition": 0,
        "log_start_offset": 0,
        "last_stable_offset": 2,
        "high_watermark": 2,
        "last_stable_offset_lag": 0,
        "open_transactions": {},
    }
    assert (await ask(broker, "GET", "/partitions?topic=figures"))[1] == [wanted]
    assert wanted in (await ask(broker, "GET", "/partitions"))[1]
    assert (await ask(broker, "GET", "/partitions?topic=none"))[0] == 409
    assert (await ask(broker, "GET", "/partitions?partition=0"))[0] == 400


async def test_the_index_lists_everything(broker: Broker) -> None:
    _, index = await ask(broker, "GET", "/")
    assert "POST /rules" in index
    assert "GET /journal" in index


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/rule", None, 404, "GET / lists"),
        ("PATCH", "/rules", None, 405, "GET and POST and DELETE"),
        ("GET", "/rules/77777777", None, 404, "GET /rules"),
        ("POST", "/rules", {"fault": "explode"}, 400, "drop_answer"),
        ("POST", "/rules", {}, 400, "fault"),
        ("POST", "/rules", {"fault": "error", "eror": "X"}, 400, "must be one of"),
        ("POST", "/rules", {"fault": "error", "error": "X"}, 400, "REQUEST_TIMED_OUT"),
        ("POST", "/rules", {"fault": "error", "error": 1234}, 400, "REQUEST_TIMED_OUT"),
        ("POST", "/rules", {"fault": "error", "key": "Produc"}, 400, "Produce"),
        ("POST", "/rules", {"fault": "error", "key": []}, 400, "Produce"),
        ("POST", "/rules", {"fault": "error", "times": "many"}, 400, "must be an integer"),
        ("POST", "/rules", {"fault": "error", "times": True}, 400, "must be an integer"),
        ("POST", "/rules", {"fault": "error", "times": 0}, 400, "at least 1"),
        ("POST", "/rules", {"fault": "error", "client_id": 5}, 400, "must be a string"),
        ("POST", "/rules", {"fault": "delay", "delay_ms": 10**12}, 400, "milliseconds"),
        ("POST", "/rules", [1], 400, "JSON object"),
        ("PUT", "/journal", {"recording": 1}, 400, "true or false"),
        ("GET", "/journal?limit=x", None, 400, "must be an integer"),
        ("GET", "/journal?client=x", None, 400, "client_id"),
        ("POST", "/clock", {"advance_ms": -1}, 400, "must be from 0 to"),
        ("POST", "/clock", {}, 400, "must be an integer"),
        ("POST", "/broker/stop", {"kill": 1}, 400, "must be true (a crash)"),
    ],
)
async def test_a_wrong_request_says_what_to_do(
    broker: Broker, method: str, path: str, body: object, status: int, text: str
) -> None:
    found, answer = await ask(broker, method, path, body)
    assert found == status
    assert text in str(answer["error"])
    assert broker.running


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET / SPDY/1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nnonsense\r\n\r\n", 400),
        (b"GET / " + LOCAL + b"x: " + b"y" * control.HEAD_BYTES_MAX, 400),
        (b"POST /rules " + LOCAL + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST /rules " + LOCAL + b"Content-Length: 99999999\r\n\r\n", 413),
        (b"POST /rules " + LOCAL + b"Content-Length: 1\r\n\r\n{", 400),
        (b"POST /rules " + LOCAL + b"Content-Length: 2\r\n\r\n\xff\xfe", 400),
        (b"POST /rules " + CHUNKED + b"5\r\n[1,2]\r\n0\r\n\r\n", 400),
        (b"POST /rules " + CHUNKED + b"zz\r\n", 400),
        (b"GET / " + LOCAL + b"Origin: http://example.org\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
    ],
)
async def test_bytes_that_are_no_request_of_ours_are_refused(
    broker: Broker, text: bytes, status: int
) -> None:
    assert (await raw(broker, text))[0] == status


@pytest.mark.parametrize(
    "text",
    [b"", b"GET / HTTP/1.1\r\n", b"POST /rules " + LOCAL + b"Content-Length: 9\r\n\r\n{"],
)
async def test_a_peer_that_sends_no_whole_request_is_sent_away(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(control, "CONNECTION_SECONDS_MAX", 0.01)
    port = int(broker.control_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_peer_that_takes_no_answer_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONNECTION_SECONDS_MAX", 0.01)

    async def much(request: control.ControlRequest) -> object:
        return "x" * 20_000_000

    server = control.ControlServer(much)
    await server.start(0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET / " + LOCAL + b"\r\n")
    await until(lambda: len(server.file_handles()) == 2)
    await until(lambda: len(server.file_handles()) == 1)
    writer.close()
    await server.stop()


async def test_the_time_that_an_answer_takes_is_not_the_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "CONNECTION_SECONDS_MAX", 0.01)
    rounds = 0
    cut = control._Connection._cut

    def counted(connection: control._Connection) -> None:
        nonlocal rounds
        rounds += 1
        cut(connection)

    monkeypatch.setattr(control._Connection, "_cut", counted)

    async def slow(request: control.ControlRequest) -> object:
        await until(lambda: rounds > 2)
        return "done"

    server = control.ControlServer(slow)
    await server.start(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / " + LOCAL + b"\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).endswith(b'"done"\n')
    writer.close()
    await server.stop()


async def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 3)
    async with Broker(control=0) as broker:
        port = int(broker.control_url.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert (await raw(broker, b"GET / " + LOCAL + b"\r\n"))[0] == 503
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        await until(lambda: len(broker._control.file_handles()) == 1)  # type: ignore[union-attr]
        assert (await ask(broker, "GET", "/broker"))[0] == 200


def test_without_its_library_the_endpoint_is_refused_when_the_broker_is_made() -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from onceflow.broker_lite import Broker\n"
        "Broker()\n"
        "try:\n    Broker(control=0)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("ConfigError")
    assert "pip install 'onceflow[testing]'" in done.stdout


async def test_the_endpoint_ends_with_the_broker_and_is_off_unless_asked_for() -> None:
    broker = Broker()
    async with broker:
        with pytest.raises(RuntimeError, match="control=0"):
            _ = broker.control_url
    asked = Broker(control=0)
    async with asked:
        port = int(asked.control_url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
