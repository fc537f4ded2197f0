"""Goal: keys of tokens that come from a URL are read again in time, and nothing waits for them.

Method: a small server of this machine gives keys, other keys, nonsense or nothing; brokers whose
clock is moved by hand read them, and clients come with tokens of the one and of the other key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from broker_wire import Wire, until
from cryptography.hazmat.primitives.asymmetric import rsa
from security_world import jwks, token

from onceflow.broker_lite import Broker
from onceflow.broker_lite.security.jwks import JwksKeys
from onceflow.broker_lite.testing import RunningClock
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

REFRESH_MS = 600_000
PAUSE_MS = 10_000
LISTENERS = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"


class KeyServer:
    """Gives `body` to everybody who asks; holds its answers while `gate` is shut."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked += 1
                owner.gate.wait(30)
                self.send_response(owner.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(owner.body)))
                self.end_headers()
                self.wfile.write(owner.body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def pair() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    one, two = (rsa.generate_private_key(public_exponent=65_537, key_size=2048) for _ in "12")
    return one, two


def broker_of(url: str, clock: RunningClock | None = None) -> Broker:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": REFRESH_MS,
        "sasl.oauthbearer.clock.skew.seconds": 86_400,
        "connection.failed.authentication.delay.ms": 0,
    }
    return Broker(listeners=LISTENERS, settings=settings, clock=clock)


async def taken(broker: Broker, bearer: str) -> bool:
    """Whether a client with that token gets in."""
    port = int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2])
    async with Wire(("127.0.0.1", port)) as wire:
        await wire.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1, SaslHandshakeResponse)
        said = f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()
        answer = await wire.ask(
            SaslAuthenticateRequest(auth_bytes=said), 2, SaslAuthenticateResponse
        )
        return not answer.error_code and not answer.auth_bytes


async def read_again(keys: KeyServer, clock: RunningClock) -> None:
    """Move the clock until the URL is asked again; the answer before may still be on its way."""
    before = keys.asked

    def asked() -> bool:
        clock.advance(PAUSE_MS // 100)
        return keys.asked > before

    clock.advance(REFRESH_MS)
    if keys.asked == before:
        await until(asked)


async def test_keys_are_read_again_in_time_and_outages_leave_the_former(
    keys: KeyServer, pair: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]
) -> None:
    old, new = pair
    keys.body = jwks(old).encode()
    clock = RunningClock()
    async with broker_of(keys.url, clock) as broker:
        assert await taken(broker, token(old))
        assert keys.asked == 1
        nothing = (b"[]", b'{"keys": 5}', b'{"keys": [5, {"kty": "RSA"}]}', b"[" * 100_000)
        answers = [(503, b""), (302, jwks(new, "two").encode()), *((200, each) for each in nothing)]
        for status, body in answers:
            keys.status, keys.body = status, body
            await read_again(keys, clock)
            assert await taken(broker, token(old)), status
        keys.status, keys.body = 200, jwks(new, "two").encode()
        await read_again(keys, clock)
        deadline = time.monotonic() + 60
        while await taken(broker, token(old)) and time.monotonic() < deadline:
            clock.advance(PAUSE_MS)
        assert not await taken(broker, token(old))
        assert await taken(broker, token(new, "two"))


async def test_an_unknown_key_makes_the_url_be_read_soon(
    keys: KeyServer, pair: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]
) -> None:
    """Also while that takes long: nobody waits for it, and it is asked once."""
    old, new = pair
    keys.body = jwks(old).encode()
    clock = RunningClock()
    async with broker_of(keys.url, clock) as broker:
        keys.body = jwks(new, "two").encode()
        assert not await taken(broker, token(new, "two"))
        keys.gate.clear()
        clock.advance(PAUSE_MS)
        await until(lambda: keys.asked == 2)
        clock.advance(PAUSE_MS)
        assert await taken(broker, token(old))
        assert keys.asked == 2
        keys.gate.set()
        deadline = time.monotonic() + 60
        while not await taken(broker, token(new, "two")) and time.monotonic() < deadline:
            clock.advance(PAUSE_MS)
        assert await taken(broker, token(new, "two"))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"keys": [7]}', b'{"keys": []}', b"x" * 1_100_000])
async def test_a_broker_does_not_start_without_keys(keys: KeyServer, body: bytes) -> None:
    keys.body = body
    with pytest.raises(ConfigError, match="cannot read the keys"):
        await broker_of(keys.url).start_async()


async def test_a_broker_does_not_start_when_nobody_answers(keys: KeyServer) -> None:
    url = keys.url
    keys.close()
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url.*cannot read the keys"):
        await broker_of(url).start_async()


@pytest.mark.parametrize("url", ["http://example.org/keys", "ftp://127.0.0.1/keys"])
async def test_keys_do_not_come_from_other_machines_in_plain_text(url: str) -> None:
    with pytest.raises(ConfigError, match="this machine"):
        await broker_of(url).start_async()


def test_keys_of_a_relative_path_are_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    (tmp_path / "keys.json").write_text(jwks(key))
    monkeypatch.chdir(tmp_path)
    keys = JwksKeys("keys.json")
    keys.refresh()
    monkeypatch.chdir("/")
    keys.refresh()
    assert keys.verify("RS256", "one", token(key))
