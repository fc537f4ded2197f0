"""Goal: one bad bootstrap server never keeps a client from a good one, and where there is no good
one the client says soon, and in one error, what is wrong with each.

Method: real sockets. Bad servers of every kind stand first, in the middle and last in the list,
under default timeouts; errors are compared with what a user has to learn from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from producer_peer import Fate, scripted_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    SecurityConfig,
)
from onceflow.sdk.aio.connection import racing
from onceflow.sdk.errors import (
    ConfigError,
    NoBrokersAvailableError,
    RemoteProtocolError,
    SaslAuthenticationFailedError,
)
from onceflow.sdk.protocol.api.cluster import MetadataRequest
from onceflow.transactions import TransactionSession


class BadServer:
    """Takes connections and treats them badly.

    Attributes:
        address: Where it listens.
        taken: How many connections it took.
    """

    def __init__(self, answer: bytes | None) -> None:
        """Listen.

        Args:
            answer: What it sends after the first bytes; empty to stay silent, None to hang up.
        """
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.taken = 0
        self._answer = answer
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self.taken += 1
            with contextlib.suppress(OSError):
                peer.recv(1_000)
                if self._answer is None:
                    peer.close()
                    continue
                peer.sendall(self._answer)
            self._held.append(peer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for peer in self._held:
            peer.close()


@pytest.fixture
def bad_server() -> Iterator[Callable[[str], BadServer]]:
    """Makes servers of a kind."""
    made: list[BadServer] = []
    answers = {"web": b"HTTP/1.1 400 Bad Request\r\n\r\n", "other bytes": b"\x00\x00\x00\x05abcde"}

    def make(kind: str) -> BadServer:
        answer = {"mute": b"", "hangs up": None, **answers}[kind]
        made.append(BadServer(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port of this machine on which nobody listens, and that nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


KINDS = ("web", "other bytes", "mute", "hangs up", "dead", "no such name")
CLIENTS: dict[str, Callable[..., Any]] = {
    "Producer": Producer,
    "Consumer": lambda **settings: Consumer("t", group_id="g", **settings),
    "Admin": Admin,
}


def bad_address(kind: str, make: Callable[[str], BadServer], dead_port: int) -> str:
    if kind == "dead":
        return f"127.0.0.1:{dead_port}"
    return "no-such-host.invalid:9092" if kind == "no such name" else make(kind).address


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_bootstrap_server_is_passed_over(
    kind: str,
    place: int,
    bad_server: Callable[[str], BadServer],
    dead_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(racing, "PATIENCE_MS", 50)
    with Broker() as broker:
        servers = [broker.bootstrap_servers] * 2
        servers.insert(place, bad_address(kind, bad_server, dead_port))
        for make in CLIENTS.values():
            make(bootstrap_servers=servers).close()


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_all_bad_ones_before_the_last_are_passed_over(
    make: Callable[..., Any], bad_server: Callable[[str], BadServer], dead_port: int
) -> None:
    bad = [bad_address(kind, bad_server, dead_port) for kind in KINDS]
    with Broker() as broker:
        make(bootstrap_servers=[*bad, broker.bootstrap_servers]).close()


@pytest.mark.parametrize("make", [AsyncProducer, AsyncConsumer, AsyncAdmin])
async def test_a_server_that_hangs_after_its_versions_is_passed_over(make: Any) -> None:
    async with scripted_broker() as hanging, Broker() as broker:
        hanging.next(MetadataRequest, *[Fate.SWALLOW] * 50)
        client = make(bootstrap_servers=[hanging.address, broker.bootstrap_servers])
        await client.start()
        assert hanging.requests(MetadataRequest)
        await client.close()


@pytest.mark.parametrize("node_id", [0, 1])
async def test_a_known_broker_that_hangs_does_not_keep_the_others_from_being_asked(
    node_id: int,
) -> None:
    """After the start the known brokers are asked, and one of them may have stopped."""
    async with Broker(nodes=2) as broker:
        hours = {"request_timeout_ms": 7_200_000, "default_api_timeout_ms": 7_200_000}
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers, **hours) as admin:
            nodes = [node.node_id for node in (await admin.describe_cluster()).nodes]
            rule = broker.faults.add(
                MetadataRequest, Fault.HOLD, times=None, node_id=nodes[node_id]
            )
            assert await admin.list_topics() == []
            broker.faults.release(rule)


# --- no good one


def one_error(error: BaseException) -> bool:
    """Whether a traceback of the error shows no other one."""
    text = "".join(traceback.format_exception(error))
    return text.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_addresses_that_refuse_everywhere_are_told_soon_and_in_one_error(
    make: Callable[..., Any], dead_port: int
) -> None:
    servers = [f"127.0.0.1:{dead_port}", "no-such-host.invalid:9092"]
    with pytest.raises(NoBrokersAvailableError) as caught:
        make(bootstrap_servers=servers, bootstrap_timeout_ms=200)
    assert f"127.0.0.1:{dead_port} (connection refused)" in str(caught.value)
    assert "no-such-host.invalid:9092 (the name does not resolve" in str(caught.value)
    assert "within 200 ms (bootstrap_timeout_ms)" in str(caught.value)
    assert one_error(caught.value)


def test_so_it_is_with_a_session(dead_port: int) -> None:
    with pytest.raises(NoBrokersAvailableError, match="within 200 ms") as caught:
        TransactionSession(
            bootstrap_servers=f"127.0.0.1:{dead_port}",
            bootstrap_timeout_ms=200,
            group_id="g",
            transactional_id="t",
            topics=["t"],
        )
    assert one_error(caught.value)


async def test_so_it_is_with_asyncio(dead_port: int) -> None:
    admin = AsyncAdmin(bootstrap_servers=f"127.0.0.1:{dead_port}", bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokersAvailableError, match="within 0 ms") as caught:
        await admin.start()
    assert one_error(caught.value)
    await admin.close()


def test_a_shorter_limit_of_the_call_holds(dead_port: int) -> None:
    with pytest.raises(NoBrokersAvailableError, match=r"within 100 ms; tried"):
        Producer(bootstrap_servers=f"127.0.0.1:{dead_port}", max_block_ms=100)


async def test_a_broker_that_begins_within_the_limit_is_found() -> None:
    async with scripted_broker() as broker:
        await broker.stop()
        admin = AsyncAdmin(bootstrap_servers=broker.address, bootstrap_timeout_ms=60_000)
        starting = asyncio.ensure_future(admin.start())
        await asyncio.wait([starting], timeout=0.2)
        assert not starting.done()
        await broker.start()
        await starting
        await admin.close()


def test_a_server_that_may_yet_answer_is_waited_for(
    bad_server: Callable[[str], BadServer], dead_port: int
) -> None:
    """A broker that is being started may hang up: that is no refusal."""
    server = bad_server("hangs up")
    with pytest.raises(NoBrokersAvailableError, match="within 1500 ms; tried"):
        Admin(
            bootstrap_servers=[server.address, f"127.0.0.1:{dead_port}"],
            bootstrap_timeout_ms=0,
            default_api_timeout_ms=1_500,
        )
    assert server.taken > 2


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_tls_port_that_is_spoken_to_in_plain_text_is_named(tmp_path: Path, protocol: str) -> None:
    identity = TlsWorld(tmp_path).issue("broker")
    sasl = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "hunter2"}
    credentials = sasl if protocol == "SASL_PLAINTEXT" else {}
    security = SecurityConfig(security_protocol=protocol, **credentials)  # type: ignore[arg-type]
    settings = {"ssl.keystore.location": str(identity.both)}
    with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker:
        for make in CLIENTS.values():
            with pytest.raises(RemoteProtocolError) as caught:
                make(bootstrap_servers=broker.bootstrap_servers, security=security)
            said = "it speaks TLS; set security_protocol to SSL or SASL_SSL"
            assert said in str(caught.value)
            assert broker.bootstrap_servers in str(caught.value)


def test_a_tls_server_that_answers_with_an_alert_is_named() -> None:
    server = BadServer(b"\x15\x03\x03\x00\x02\x02\x46")
    with pytest.raises(RemoteProtocolError, match="it speaks TLS; set security_protocol"):
        Admin(bootstrap_servers=server.address)
    server.close()


@pytest.mark.parametrize(
    ("kind", "said"), [("web", "it is a web server"), ("other bytes", "is it a Kafka broker")]
)
def test_a_server_of_another_kind_is_told_at_once(
    kind: str, said: str, bad_server: Callable[[str], BadServer]
) -> None:
    server = bad_server(kind)
    with pytest.raises(RemoteProtocolError, match=said) as caught:
        Admin(bootstrap_servers=server.address)
    assert server.address in str(caught.value)


def test_credentials_that_are_refused_are_told_although_another_server_is_dead(
    dead_port: int,
) -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "x.PlainLoginModule required "
        'user_me="right";',
    }
    security = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password="wrong",
    )
    with Broker(listeners="SASL_PLAINTEXT://127.0.0.1:0", settings=settings) as broker:
        servers = [broker.bootstrap_servers, f"127.0.0.1:{dead_port}"]
        with pytest.raises(SaslAuthenticationFailedError):
            Admin(bootstrap_servers=servers, security=security)


# --- names


def resolve_here(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a name, with and without its final dot, be this machine."""
    resolve = socket.getaddrinfo

    def here(host: Any, *args: Any, **options: Any) -> Any:
        text = host.decode() if isinstance(host, bytes) else host
        return resolve("127.0.0.1" if (text or "").rstrip(".") == name else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)


@pytest.mark.parametrize("name", ["broker.test", "broker.test."])
def test_a_name_with_its_final_dot_is_the_certificates_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TlsWorld(tmp_path)
    identity = world.issue("broker", hosts=("broker.test",))
    resolve_here(monkeypatch, "broker.test")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    settings = {
        "ssl.keystore.location": str(identity.both),
        "advertised.listeners": f"SSL://{name}:{port}",
    }
    security = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
    with (
        Broker(listeners=f"SSL://127.0.0.1:{port}", settings=settings),
        Producer(bootstrap_servers=f"{name}:{port}", security=security) as producer,
    ):
        assert producer.send("t", b"1").result(30).offset == 0


# --- signals

SLOW_NAME = """
import socket, threading
resolve = socket.getaddrinfo
def slow(host, *args, **options):
    if options.get("flags"):
        raise socket.gaierror(-2, "not in figures")
    print("waiting", flush=True)
    threading.Event().wait()
socket.getaddrinfo = slow
"""
BLOCKING = """
import signal, sys
from onceflow.sdk import Admin, Consumer, Producer
from onceflow.transactions import TransactionSession
def session(**settings):
    return TransactionSession(group_id="g", transactional_id="t", topics=["t"], **settings)
def stop(*_):
    raise SystemExit(3)
signal.signal(signal.SIGTERM, stop)
{make}(bootstrap_servers=sys.argv[1], bootstrap_timeout_ms=600_000, **{settings})
"""
ASYNCIO = """
import asyncio, signal, sys
from onceflow.sdk import AsyncProducer
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    await AsyncProducer(bootstrap_servers=sys.argv[1], bootstrap_timeout_ms=600_000).start()
try:
    asyncio.run(main())
except asyncio.CancelledError:
    sys.exit(3)
"""
PROGRAMS = {
    "Producer": BLOCKING.format(make="Producer", settings="dict(max_block_ms=600_000)"),
    "Consumer": BLOCKING.format(make="Consumer", settings="{}"),
    "Admin": BLOCKING.format(make="Admin", settings="{}"),
    "TransactionSession": BLOCKING.format(make="session", settings="{}"),
    "AsyncProducer": ASYNCIO,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("where", ["refuses", "name server hangs"])
def test_a_signal_ends_a_client_that_waits_for_its_broker(
    program: str, where: str, dead_port: int
) -> None:
    """A client that could not be interrupted would end this test by its time limit."""
    if where == "refuses":
        server = f"127.0.0.1:{dead_port}"
        ready = "import logging, sys; logging.basicConfig(stream=sys.stdout, level=10)\n"
    else:
        server, ready = "kafka.test:9092", SLOW_NAME
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", ready + program, server],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = ""
    while "waiting" not in line and "no connection after" not in line:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("limit", [-1, 1.5, "soon"])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_timeout_ms"):
        Admin(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=limit)
