"""Goal: TLS, mutual TLS and every SASL mechanism let in who may come, and nobody else.

Method: one broker with a listener for each way, certificates made for the run, raw frames for what
no client would send.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from broker_wire import Wire, until
from cryptography.hazmat.primitives.asymmetric import rsa
from security_world import LISTENERS, jwks, settings_of, token
from tls_world import PASSWORD, TlsWorld

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import VirtualClock
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol import scram
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.api.security_admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    made.issue("client")
    return made


@pytest.fixture(scope="module")
def signing_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2048)


@pytest.fixture(scope="module")
def broker(world: TlsWorld, signing_key: rsa.RSAPrivateKey) -> Iterator[Broker]:
    (world.folder / "jwks.json").write_text(jwks(signing_key))
    with Broker(listeners=LISTENERS, settings=settings_of(world)) as running:
        yield running


def address(broker: Broker, listener: str) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers_of(listener).rpartition(":")
    return host, int(port)


class Talk(Wire):
    """A raw client of a listener, encrypted where that asks for it."""

    def __init__(
        self, broker: Broker, listener: str, context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address(broker, listener))
        self._context = context

    async def __aenter__(self) -> Talk:
        host, port = self._address
        self.reader, self.writer = await asyncio.open_connection(host, port, ssl=self._context)
        return self

    async def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        return await self.ask(
            SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse
        )

    async def token(self, data: bytes) -> SaslAuthenticateResponse:
        return await self.ask(SaslAuthenticateRequest(auth_bytes=data), 2, SaslAuthenticateResponse)

    async def plain(self, user: str = "alice", password: str = "secret") -> int:
        assert (await self.handshake("PLAIN")).error_code == 0
        return (await self.token(f"\0{user}\0{password}".encode())).error_code

    async def works(self) -> bool:
        return bool((await self.ask(MetadataRequest(topics=[]), 12, MetadataResponse)).brokers)


def principals(broker: Broker) -> set[str]:
    """Who speaks on the connections that are open."""

    def look(state: object, now_ms: int) -> set[str]:
        states = [connection.state for connection in broker._running().server._connections]
        return {state.principal for state in states if state is not None}

    return broker.call(look)


# --- TLS


async def test_tls_listener_serves_its_clients(broker: Broker, world: TlsWorld) -> None:
    async with Talk(broker, "SSL", world.client_context()) as talk:
        assert await talk.works()
        assert principals(broker) == {"User:ANONYMOUS"}


async def test_large_answers_and_requests_go_through_tls(broker: Broker, world: TlsWorld) -> None:
    """Longer than any record of TLS, and read slowly."""
    for number in range(300):
        broker.create_topic(f"topic-{number}-{'x' * 200}", partitions=3)
    async with Talk(broker, "SSL", world.client_context()) as talk:
        answer = await talk.ask(MetadataRequest(topics=None), 12, MetadataResponse)
        assert len(answer.topics) >= 300
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic.name) for topic in answer.topics]
        again = await talk.ask(MetadataRequest(topics=wanted), 12, MetadataResponse)
        assert len(again.topics) == len(answer.topics)


async def test_mutual_tls_names_the_client(broker: Broker, world: TlsWorld) -> None:
    """By ssl.principal.mapping.rules (KIP-371)."""
    identity = world.issue("client")
    for listener in ("MTLS", "WANTED"):
        async with Talk(broker, listener, world.client_context(identity)) as talk:
            assert await talk.works()
            assert principals(broker) == {"User:CLIENT"}
        await until(lambda: not principals(broker))


async def test_without_a_certificate_only_a_listener_that_requires_one_refuses(
    broker: Broker, world: TlsWorld
) -> None:
    async with Talk(broker, "WANTED", world.client_context()) as talk:
        assert await talk.works()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with Talk(broker, "MTLS", world.client_context()) as talk:
            await talk.works()


async def test_a_certificate_of_a_stranger_is_refused(
    broker: Broker, world: TlsWorld, tmp_path: Path
) -> None:
    stranger = TlsWorld(tmp_path, "another authority").issue("client")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with Talk(broker, "MTLS", world.client_context(stranger)) as talk:
            await talk.works()


@pytest.mark.parametrize("data", [b"\x00" * 64, b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff"])
async def test_bytes_that_are_no_tls_hurt_their_connection_only(
    broker: Broker, world: TlsWorld, data: bytes
) -> None:
    async with (
        Talk(broker, "SSL", world.client_context()) as good,
        Talk(broker, "SSL") as bad,
    ):
        bad.send_bytes(data)
        if data[0] != 0x16:
            await bad.reader.read()
        assert await good.works()


async def test_a_handshake_that_takes_too_long_is_given_up(world: TlsWorld) -> None:
    clock = VirtualClock()
    settings = {
        "ssl.keystore.location": str(world.folder / "broker.both.pem"),
        "onceflow.ssl.handshake.timeout.ms": 5_000,
    }
    async with (
        Broker(listeners="SSL://127.0.0.1:0", settings=settings, clock=clock) as broker,
        Talk(broker, "SSL") as idle,
        Talk(broker, "SSL", world.client_context()) as good,
    ):
        await until(lambda: broker.connection_count == 2)
        broker.advance(4_999)
        assert await good.works()
        assert broker.connection_count == 2
        broker.advance(1)
        assert await idle.closed()
        assert await good.works()


@pytest.mark.parametrize("form", ["PEM text", "encrypted PEM", "PKCS12"])
async def test_every_form_of_a_keystore_serves(world: TlsWorld, form: str) -> None:
    folder = world.folder
    settings: dict[str, object] = {
        "PEM text": {
            "ssl.keystore.key": (folder / "broker.key.pem").read_text(),
            "ssl.keystore.certificate.chain": (folder / "broker.cert.pem").read_text(),
        },
        "encrypted PEM": {
            "ssl.keystore.location": str(folder / "broker.encrypted.pem"),
            "ssl.key.password": PASSWORD,
        },
        "PKCS12": {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(folder / "broker.p12"),
            "ssl.keystore.password": PASSWORD,
        },
    }[form]  # type: ignore[assignment]
    async with (
        Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker,
        Talk(broker, "SSL", world.client_context()) as talk,
    ):
        assert await talk.works()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set it, or ssl.keystore.key"),
        ({"ssl.keystore.location": "/nowhere"}, "file that can be read"),
        ({"ssl.keystore.location": "AUTHORITY"}, "give a key in PEM form"),
        (
            {"ssl.keystore.location": "KEYSTORE", "ssl.client.auth": "required"},
            "ssl.truststore.location",
        ),
        (
            {"ssl.keystore.location": "KEYSTORE", "ssl.keystore.type": "PKCS12"},
            "give a PKCS12 file",
        ),
        (
            {
                "ssl.keystore.location": "KEYSTORE",
                "ssl.principal.mapping.rules": "RULE:^CN=(/$1/",
            },
            "regular expression",
        ),
    ],
)
async def test_tls_settings_that_cannot_work_are_refused(
    world: TlsWorld, settings: dict[str, object], message: str
) -> None:
    paths = {"AUTHORITY": world.authority, "KEYSTORE": world.folder / "broker.both.pem"}
    settings = {name: str(paths.get(str(value), value)) for name, value in settings.items()}
    with pytest.raises(ConfigError, match=message):
        await Broker(listeners="SSL://127.0.0.1:0", settings=settings).start_async()


@pytest.mark.parametrize(
    "url", ["http://[::1", "ftp://127.0.0.1/keys", "http://example.com/keys", "file:///no/keys", ""]
)
async def test_keys_that_cannot_be_had_are_refused_by_name(url: str) -> None:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": url,
    }
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        await Broker(settings=settings).start_async()


# --- SASL


async def scram_login(talk: Talk, mechanism: str, user: str, password: str) -> int:
    """Log in by SCRAM as RFC 5802 says, and check the broker's proof."""
    assert (await talk.handshake(mechanism)).error_code == 0
    bare = scram.client_first(user, "clientnonce")
    first = await talk.token(f"n,,{bare}".encode())
    assert first.error_code == 0
    nonce, salt, iterations = scram.read_server_first(bytes(first.auth_bytes))
    assert nonce.startswith("clientnonce")
    salted = scram.salted_password(mechanism, password, salt, iterations)
    final = f"c=biws,r={nonce}"
    message = f"{bare},{bytes(first.auth_bytes).decode()},{final}"
    proof = scram.encode_base64(scram.client_proof(mechanism, salted, message))
    last = await talk.token(f"{final},p={proof}".encode())
    if not last.error_code:
        keys = scram.keys_of(mechanism, salted, salt, iterations)
        signature = scram.server_signature(mechanism, keys.server_key, message)
        assert bytes(last.auth_bytes) == b"v=" + scram.encode_base64(signature).encode()
    return last.error_code


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_every_mechanism_lets_its_user_in(
    broker: Broker,
    world: TlsWorld,
    signing_key: rsa.RSAPrivateKey,
    listener: str,
    mechanism: str,
) -> None:
    context = world.client_context() if listener == "SASL_SSL" else None
    async with Talk(broker, listener, context) as talk:
        if mechanism == "PLAIN":
            assert await talk.plain() == 0
        elif mechanism == "OAUTHBEARER":
            assert (await talk.handshake(mechanism)).error_code == 0
            message = f"n,,\x01auth=Bearer {token(signing_key)}\x01\x01"
            answer = await talk.token(message.encode())
            assert answer.error_code == 0
            assert 0 < answer.session_lifetime_ms <= 60_000
        else:
            assert await scram_login(talk, mechanism, "dave", "salted") == 0
        assert await talk.works()
        user = {"PLAIN": "alice", "OAUTHBEARER": "carol"}.get(mechanism, "dave")
        assert principals(broker) == {f"User:{user}"}
    await until(lambda: not principals(broker))


@pytest.mark.parametrize("user", ["dave", "nobody"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_tells_a_wrong_user_as_little_as_a_wrong_password(
    broker: Broker, mechanism: str, user: str
) -> None:
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        assert await scram_login(talk, mechanism, user, "wrong") == 58
        assert await talk.closed()


async def test_scram_salts_of_an_unknown_user_stay_the_same(broker: Broker) -> None:
    salts = set()
    for _ in range(2):
        async with Talk(broker, "SASL_PLAINTEXT") as talk:
            await talk.handshake("SCRAM-SHA-256")
            first = await talk.token(b"n,,n=nobody,r=abc")
            salts.add(scram.read_server_first(bytes(first.auth_bytes))[1])
    assert len(salts) == 1


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=dave", b"n,,r=x,n=dave", b"p=tls-unique,,n=dave,r=x", b"n,,n=a=b,r=x",
     b"n,a=other,n=dave,r=x", b"\xff\xfe", b"n,,n=dave,r=x,tokenauth=true", b"x" * 10_000],
)  # fmt: skip
async def test_a_malformed_scram_message_is_refused(broker: Broker, message: bytes) -> None:
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        await talk.handshake("SCRAM-SHA-256")
        assert (await talk.token(message)).error_code == 58
        assert await talk.closed()


CLAIMS: list[dict[str, object]] = [
    {"exp": 1}, {"exp": None}, {"iat": None}, {"exp": "soon"}, {"aud": "strangers"},
    {"aud": None}, {"iss": "them"}, {"sub": ""}, {"sub": None}, {"nbf": 1 << 40},
    {"scope": 7}, {"sub": "carol\n"},
]  # fmt: skip


@pytest.mark.parametrize("claims", CLAIMS, ids=str)
async def test_a_token_with_wrong_claims_is_refused(
    broker: Broker, signing_key: rsa.RSAPrivateKey, claims: dict[str, object]
) -> None:
    assert await refused(broker, token(signing_key, **claims))


async def refused(broker: Broker, bearer: str) -> bool:
    """Whether a token is refused, in the two steps of RFC 7628."""
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        await talk.handshake("OAUTHBEARER")
        answer = await talk.token(f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())
        if answer.error_code == 0 and answer.auth_bytes:
            assert b"invalid_token" in bytes(answer.auth_bytes)
            assert (await talk.token(b"\x01")).error_code == 58
            return await talk.closed()
        return False


async def test_forged_tokens_are_refused(broker: Broker, signing_key: rsa.RSAPrivateKey) -> None:
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    good = token(signing_key)
    head, body, signature = good.split(".")
    unsigned = jwt.encode({"sub": "carol", "exp": 9e9, "iat": 1}, "", algorithm="none")
    symmetric = jwt.encode(
        {"sub": "carol", "exp": 9e9, "iat": 1, "aud": "kafka", "iss": "us"},
        "k" * 64, algorithm="HS256", headers={"kid": "one"},
    )  # fmt: skip
    forged = [
        token(other), token(signing_key, "two"), unsigned, symmetric, "a.b.c", f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
    ]  # fmt: skip
    for bearer in forged:
        assert await refused(broker, bearer), bearer
    assert not await refused(broker, good)


async def test_keys_that_change_in_their_file_are_found(
    world: TlsWorld, tmp_path: Path, signing_key: rsa.RSAPrivateKey
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(jwks(signing_key))
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": file.as_uri(),
        "connection.failed.authentication.delay.ms": 0,
    }
    newer = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    async with Broker(settings=settings) as broker:
        assert not await refused(broker, token(signing_key))
        assert await refused(broker, token(newer, "two"))
        file.write_text(jwks(newer, "two"))
        assert not await refused(broker, token(newer, "two"))
        assert await refused(broker, token(signing_key))


async def test_handshake_version_0_is_followed_by_bare_tokens(broker: Broker) -> None:
    """Trap 70."""
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        assert (await talk.handshake("PLAIN", version=0)).error_code == 0
        bare = b"\0alice\0secret"
        talk.send_bytes(len(bare).to_bytes(4, "big") + bare)
        assert await talk.reader.readexactly(4) == b"\0\0\0\0"
        assert await talk.works()
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        assert (await talk.handshake("PLAIN", version=0)).error_code == 0
        bare = b"\0alice\0wrong"
        talk.send_bytes(len(bare).to_bytes(4, "big") + bare)
        assert await talk.closed()


async def test_an_unknown_mechanism_is_answered_with_the_known_ones(broker: Broker) -> None:
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        answer = await talk.handshake("GSSAPI")
        assert answer.error_code == 33
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
        assert await talk.closed()


async def test_a_refusal_waits_for_its_delay() -> None:
    """connection.failed.authentication.delay.ms."""
    clock = VirtualClock()
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "onceflow.sasl.plain.credentials": "alice:secret",
        "connection.failed.authentication.delay.ms": 300,
    }
    async with (
        Broker(settings=settings, clock=clock) as broker,
        Talk(broker, "SASL_PLAINTEXT") as talk,
    ):
        await talk.handshake("PLAIN")
        talk.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0no"), 2)
        await until(lambda: bool(broker.state.timers.next_deadline_ms() == clock() + 300))
        broker.advance(299)
        assert broker.connection_count == 1
        broker.advance(1)
        answer = await talk.receive()
        assert isinstance(answer, SaslAuthenticateResponse)
        assert answer.error_code == 58
        assert await talk.closed()


# --- re-authentication


async def test_a_session_that_is_not_renewed_ends_with_its_next_request() -> None:
    """KIP-368."""
    clock = VirtualClock()
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "onceflow.sasl.plain.credentials": "alice:secret,bob:hidden",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": 10_000,
        "connection.failed.authentication.delay.ms": 0,
    }
    async with Broker(settings=settings, clock=clock) as broker:
        async with Talk(broker, "SASL_PLAINTEXT") as talk:
            await talk.handshake("PLAIN")
            answer = await talk.token(b"\0alice\0secret")
            assert answer.session_lifetime_ms == 10_000
            broker.advance(9_000)
            assert await talk.plain() == 0  # renewed
            broker.advance(9_000)
            assert await talk.works()
            broker.advance(1_001)
            talk.send(MetadataRequest(topics=[]), 12)
            assert await talk.closed()
        async with Talk(broker, "SASL_PLAINTEXT") as talk:
            assert await talk.plain() == 0
            broker.advance(11_000)
            assert await talk.plain() == 0  # late, and still taken
            assert await talk.works()


@pytest.mark.parametrize("what", ["user", "mechanism", "password", "other request", "too soon"])
async def test_renewing_must_not_change_who_speaks(what: str) -> None:
    """Trap 70."""
    clock = VirtualClock()
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "onceflow.sasl.plain.credentials": "alice:secret,bob:hidden",
        "connection.failed.authentication.delay.ms": 0,
    }
    async with (
        Broker(settings=settings, clock=clock) as broker,
        Talk(broker, "SASL_PLAINTEXT") as talk,
    ):
        assert await talk.plain() == 0
        if what == "user":
            assert await talk.plain("bob", "hidden") == 58
        elif what == "password":
            assert await talk.plain("alice", "other") == 58
        elif what == "mechanism":
            assert (await talk.handshake("SCRAM-SHA-256")).error_code == 0
            assert (await talk.token(b"n,,n=alice,r=x")).error_code == 58
        elif what == "other request":
            assert (await talk.handshake("PLAIN")).error_code == 0
            talk.send(MetadataRequest(topics=[]), 12)
        else:
            assert await talk.plain() == 0
            assert (await talk.handshake("PLAIN")).error_code == 34
            assert await talk.works()
            return
        assert await talk.closed()


# --- users of SCRAM


async def test_users_of_scram_are_made_changed_and_kept(tmp_path: Path) -> None:
    """KIP-554, over a restart."""
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "onceflow.sasl.scram.credentials": "first:one",
        "connection.failed.authentication.delay.ms": 0,
    }

    def upsertion(
        name: str, password: str, mechanism: int = 1, iterations: int = 4096
    ) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
        salted = scram.salted_password("SCRAM-SHA-256", password, b"salt", iterations)
        return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"salt",
            salted_password=salted,
        )

    def deletion(
        name: str, mechanism: int = 1
    ) -> AlterUserScramCredentialsRequest.ScramCredentialDeletion:
        return AlterUserScramCredentialsRequest.ScramCredentialDeletion(
            name=name, mechanism=mechanism
        )

    request = AlterUserScramCredentialsRequest(
        deletions=[deletion("first"), deletion("none")],
        upsertions=[
            upsertion("new", "two"),
            upsertion("few", "x", iterations=4095),
            upsertion("many", "x", iterations=16_385),
            upsertion("odd", "x", mechanism=3),
            upsertion("", "x"),
            upsertion("twice", "x"),
            upsertion("twice", "x", mechanism=2),
        ],
    )
    async with Broker(tmp_path, listeners=listeners, settings=settings) as broker:
        async with Talk(broker, "PLAINTEXT") as talk:
            answer = await talk.ask(request, 0, AlterUserScramCredentialsResponse)
        assert {each.user: each.error_code for each in answer.results} == {
            "first": 0, "none": 91, "twice": 92, "new": 0, "few": 93, "many": 93, "odd": 33, "": 93,
        }  # fmt: skip
    async with Broker(tmp_path, listeners=listeners, settings=settings) as broker:
        async with Talk(broker, "PLAINTEXT") as talk:
            described = await talk.ask(
                DescribeUserScramCredentialsRequest(users=None),
                0,
                DescribeUserScramCredentialsResponse,
            )
            found = [(one.user, one.credential_infos[0].iterations) for one in described.results]
            assert found == [("first", 4096), ("new", 4096)]
            name = DescribeUserScramCredentialsRequest.UserName
            some = await talk.ask(
                DescribeUserScramCredentialsRequest(
                    users=[name(name="new"), name(name="gone"), name(name="two"), name(name="two")]
                ),
                0,
                DescribeUserScramCredentialsResponse,
            )
            assert [each.error_code for each in some.results] == [0, 91, 92]
        for user, password, code in (("new", "two", 0), ("first", "one", 58)):
            async with Talk(broker, "SASL_PLAINTEXT") as talk:
                assert await scram_login(talk, "SCRAM-SHA-256", user, password) == code
        async with Talk(broker, "SASL_PLAINTEXT") as talk:
            assert await scram_login(talk, "SCRAM-SHA-512", "first", "one") == 0


# --- limits


async def test_connections_are_bounded_in_all_of_a_listener_and_from_an_address() -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0"
    base: dict[str, object] = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT"
    }
    for extra, listener in (
        ({"max.connections": 2}, "PLAINTEXT"),
        ({"listener.name.second.max.connections": 2}, "SECOND"),
        ({"max.connections.per.ip": 2}, "PLAINTEXT"),
        ({"max.connections.per.ip.overrides": "127.0.0.1:2"}, "PLAINTEXT"),
    ):
        async with Broker(listeners=listeners, settings={**base, **extra}) as broker:
            async with Talk(broker, listener) as one, Talk(broker, listener) as two:
                assert await one.works()
                assert await two.works()
                async with Talk(broker, listener) as third:
                    assert await third.closed()
                assert await one.works()
            await until(lambda broker=broker: broker.connection_count == 0)  # type: ignore[misc]
            async with Talk(broker, listener) as again:
                assert await again.works()


async def test_requests_in_memory_are_bounded() -> None:
    """queued.max.request.bytes: who has room goes on, who has none waits and then goes on too."""
    async with (
        Broker(settings={"queued.max.request.bytes": 50_000}) as broker,
        Talk(broker, "PLAINTEXT") as first,
        Talk(broker, "PLAINTEXT") as second,
    ):
        size = 100_000
        whole = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="x" * 200)])
        first.send_bytes(size.to_bytes(4, "big") + b"\0" * 10)
        pool = broker._running().server.pool
        assert pool is not None
        await until(lambda: not pool._free_bytes > 0)
        second.send_bytes(size.to_bytes(4, "big") + b"\0" * 10)
        await until(lambda: pool.waiting_count == 1)
        async with Talk(broker, "PLAINTEXT") as small:
            small.send(whole, 12)  # whole in one read, which needs no room
            assert isinstance(await small.receive(), MetadataResponse)
        first.send_bytes(b"\0" * (size - 10))  # malformed once complete: closed, and room again
        assert await first.closed()
        await until(lambda: pool.waiting_count == 0)
        second.send_bytes(b"\0" * (size - 10))
        assert await second.closed()
        await until(lambda: pool._free_bytes == 50_000)


async def test_an_unauthenticated_client_may_not_send_much(broker: Broker) -> None:
    """sasl.server.max.receive.size."""
    async with Talk(broker, "SASL_PLAINTEXT") as talk:
        talk.send_bytes((524_289).to_bytes(4, "big"))
        assert await talk.closed()


def test_plain_clients_of_a_tls_listener_do_not_hold_it_up(broker: Broker) -> None:
    """And a TLS client of a plain listener: its first bytes are no length that is allowed."""
    with socket.create_connection(address(broker, "PLAINTEXT")) as sock:
        sock.settimeout(10)
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert sock.recv(1) == b""
