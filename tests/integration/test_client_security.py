"""Goal: our clients secure their connections as asked, show who they are, and say what is wrong.

Method: sync and asyncio clients against the bundled broker with a listener for each way; sessions
that end after a second under a steady load; brokers that cannot prove what they should.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from security_world import LISTENERS, jwks, settings_of, token
from tls_world import PASSWORD, TlsWorld

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import (
    AsyncConsumer,
    AsyncProducer,
    ClientCredentials,
    Consumer,
    OAuthToken,
    Producer,
    SecurityConfig,
    TopicPartition,
)
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ConfigError,
    KafkaError,
    NoBrokersAvailableError,
    RemoteProtocolError,
    SaslAuthenticationFailedError,
    SslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from onceflow.sdk.protocol.api.security import SaslAuthenticateRequest

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


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


def security(
    world: TlsWorld, key: rsa.RSAPrivateKey, protocol: str, mechanism: str | None, **more: object
) -> SecurityConfig:
    values: dict[str, object] = {"security_protocol": protocol, **more}
    if protocol.endswith("SSL"):
        values["ssl_cafile"] = str(world.authority)
    if mechanism == "OAUTHBEARER":
        values |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": lambda: token(key)}
    elif mechanism is not None:
        user = {"PLAIN": ("alice", "secret")}.get(mechanism, ("dave", "salted"))
        values |= {
            "sasl_mechanism": mechanism, "sasl_username": user[0], "sasl_password": user[1]
        }  # fmt: skip
    return SecurityConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_works(
    broker: Broker, world: TlsWorld, signing_key: rsa.RSAPrivateKey, protocol: str, mechanism: str
) -> None:
    how = security(world, signing_key, protocol, mechanism)
    servers = broker.bootstrap_servers_of(protocol)
    topic = f"{protocol}-{mechanism}"
    with Producer(bootstrap_servers=servers, security=how) as producer:
        sent = producer.send(topic, value=b"x" * 100_000)
        producer.flush()
        assert sent.result().offset == 0
    with Consumer(bootstrap_servers=servers, security=how, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic, 0)])
        found = [each for batch in reader.poll(timeout_ms=10_000).values() for each in batch]
        assert [len(each.value or b"") for each in found] == [100_000]


def test_mutual_tls_by_files_and_by_text(broker: Broker, world: TlsWorld) -> None:
    folder = world.folder
    ways: list[dict[str, object]] = [
        {"ssl_certfile": str(folder / "client.cert.pem"),
         "ssl_keyfile": str(folder / "client.key.pem")},
        {"ssl_certfile": str(folder / "client.both.pem")},
        {"ssl_certfile": str(folder / "client.encrypted.pem"), "ssl_key_password": PASSWORD},
        {"ssl_keystore_key": (folder / "client.key.pem").read_text(),
         "ssl_keystore_certificate_chain": (folder / "client.cert.pem").read_text()},
    ]  # fmt: skip
    for way in ways:
        how = SecurityConfig(
            security_protocol="SSL",
            ssl_truststore_certificates=world.authority.read_text(),
            **way,  # type: ignore[arg-type]
        )
        with Producer(
            bootstrap_servers=broker.bootstrap_servers_of("MTLS"), security=how
        ) as producer:
            producer.send("mtls", value=b"x")
            producer.flush()


async def fails(servers: str, how: SecurityConfig, **more: object) -> KafkaError:
    """What a client says that cannot come in."""
    producer = AsyncProducer(
        bootstrap_servers=servers,
        security=how,
        max_block_ms=1_500,
        **more,  # type: ignore[arg-type]
    )
    with pytest.raises(KafkaError) as caught:
        await producer.start()
    await producer.close()
    return caught.value


async def test_wrong_credentials_are_told_at_once(
    broker: Broker, world: TlsWorld, signing_key: rsa.RSAPrivateKey
) -> None:
    servers = broker.bootstrap_servers_of("SASL_PLAINTEXT")
    for mechanism in MECHANISMS[:3]:
        how = SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username="dave",
            sasl_password="no such word",
        )
        error = await fails(servers, how)
        assert isinstance(error, SaslAuthenticationFailedError)
        assert "no such word" not in str(error) + repr(error) + repr(how)
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    how = security(world, other, "SASL_PLAINTEXT", "OAUTHBEARER")
    error = await fails(servers, how)
    assert isinstance(error, SaslAuthenticationFailedError)
    assert "invalid_token" in str(error)


async def test_a_mechanism_that_is_not_offered_names_those_that_are() -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "onceflow.sasl.plain.credentials": "alice:secret",
    }
    async with Broker(settings=settings) as broker:
        how = SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="alice",
            sasl_password="secret",
        )
        error = await fails(broker.bootstrap_servers, how)
        assert isinstance(error, UnsupportedSaslMechanismError)
        assert "PLAIN" in str(error)


async def test_tls_that_cannot_work_is_told_at_once(
    broker: Broker, world: TlsWorld, tmp_path: Path
) -> None:
    stranger = TlsWorld(tmp_path, "a stranger")
    servers = broker.bootstrap_servers_of("SSL")
    trusting = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
    suspicious = SecurityConfig(security_protocol="SSL", ssl_cafile=str(stranger.authority))
    cases = [
        (servers, suspicious, "not trusted"),
        (broker.bootstrap_servers_of("PLAINTEXT"), trusting, "PLAINTEXT"),
        (broker.bootstrap_servers_of("MTLS"), trusting, "ssl_certfile"),
    ]
    for address, how, message in cases:
        error = await fails(address, how)
        if message == "PLAINTEXT":
            # A plain listener takes the hello for a length and hangs up.
            assert isinstance(error, NoBrokersAvailableError)
            assert "closed by the broker during the TLS handshake" in str(error), error
        else:
            assert isinstance(error, SslAuthenticationError), error
            assert message in str(error)


async def test_a_plain_client_of_a_secured_port_is_told(broker: Broker) -> None:
    error = await fails(broker.bootstrap_servers_of("SASL_PLAINTEXT"), SecurityConfig())
    assert isinstance(error, NoBrokersAvailableError)
    assert "closed by the broker" in str(error)
    assert "check security_protocol" in str(error)
    error = await fails(broker.bootstrap_servers_of("SSL"), SecurityConfig())
    assert isinstance(error, RemoteProtocolError)
    assert "it speaks TLS; set security_protocol to SSL or SASL_SSL" in str(error)


async def test_a_token_provider_that_exits_ends_no_thread(broker: Broker) -> None:
    how = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=lambda: sys.exit(3),
    )
    error = await fails(broker.bootstrap_servers_of("SASL_PLAINTEXT"), how)
    assert "sasl_oauth_token_provider failed: SystemExit" in str(error)


async def test_the_host_name_is_checked_unless_told_otherwise(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    elsewhere = world.issue("elsewhere", hosts=("kafka.example",))
    settings = {"ssl.keystore.location": str(elsewhere.both)}
    async with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker:
        strict = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
        error = await fails(broker.bootstrap_servers, strict)
        assert isinstance(error, SslAuthenticationError)
        assert "IP address mismatch" in str(error)
        lax = SecurityConfig(
            security_protocol="SSL", ssl_cafile=str(world.authority), ssl_check_hostname=False
        )
        async with AsyncProducer(
            bootstrap_servers=broker.bootstrap_servers, security=lax
        ) as producer:
            await producer.send("t", value=b"x")


async def test_tls_client_of_a_plain_service_is_told(world: TlsWorld) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        how = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
        error = await fails(f"127.0.0.1:{port}", how)
        assert isinstance(error, SslAuthenticationError)
        assert "does not speak TLS" in str(error)


# --- tokens


@pytest.mark.parametrize("form", ["plain", "async", "with extensions", "object"])
async def test_every_form_of_a_token_provider_works(
    broker: Broker, world: TlsWorld, signing_key: rsa.RSAPrivateKey, form: str
) -> None:
    threads: list[str] = []

    def plain() -> str:
        threads.append(threading.current_thread().name)
        return token(signing_key)

    async def awaited() -> str:
        return token(signing_key)

    def extended() -> OAuthToken:
        return OAuthToken(token(signing_key), {"trace": "a b"})

    class Provider:
        async def token(self) -> str:
            return token(signing_key)

    provider = {
        "plain": plain, "async": awaited, "with extensions": extended, "object": Provider().token,
    }[form]  # fmt: skip
    how = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
    )
    servers = broker.bootstrap_servers_of("SASL_PLAINTEXT")
    async with AsyncProducer(bootstrap_servers=servers, security=how) as producer:
        await producer.send("tokens", value=b"x")
    assert threading.current_thread().name not in threads  # it may block


async def test_a_failing_token_provider_is_asked_again_and_its_text_is_not_told() -> None:
    calls: list[int] = []

    def broken() -> str:
        calls.append(1)
        raise RuntimeError("the secret is hunter2")

    how = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=broken,
    )
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "onceflow.sasl.oauthbearer.unsecured": True,
    }
    async with Broker(settings=settings) as broker:
        error = await fails(broker.bootstrap_servers, how)
        assert isinstance(error, NoBrokersAvailableError | BrokerConnectionError)
        assert "RuntimeError" in str(error)
        assert "hunter2" not in str(error)
        assert len(calls) > 1


def test_client_credentials_get_tokens_and_keep_them(signing_key: rsa.RSAPrivateKey) -> None:
    asked: list[tuple[str, str]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.headers["Authorization"], body))
            refused = len(asked) > 1
            self.send_response(401 if refused else 200)
            self.end_headers()
            self.wfile.write(b"" if refused else b'{"access_token":"abc","expires_in":100}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/token"
        provider = ClientCredentials(url, "me", "s3cret", scope="kafka")
        assert provider() == "abc"
        assert provider() == "abc"
        assert asked == [
            ("Basic bWU6czNjcmV0", "grant_type=client_credentials&scope=kafka")
        ]  # fmt: skip
        assert "s3cret" not in repr(provider)
        with pytest.raises(BrokerConnectionError, match="HTTP 401") as caught:
            ClientCredentials(url, "me", "s3cret")()
        assert "s3cret" not in str(caught.value)
        server.shutdown()
        thread.join()
    with pytest.raises(BrokerConnectionError):
        ClientCredentials(url, "me", "s3cret")()
    with pytest.raises(ConfigError, match="https"):
        ClientCredentials("http://login.example/token", "me", "s3cret")


# --- sessions


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_sessions_are_renewed_under_load(
    world: TlsWorld, signing_key: rsa.RSAPrivateKey, mechanism: str
) -> None:
    """KIP-368: nothing is lost, doubled or reordered, and no connection is made again."""
    settings = settings_of(world) | {"connections.max.reauth.ms": 2_000}
    (world.folder / "jwks.json").write_text(jwks(signing_key))
    async with Broker(listeners=LISTENERS, settings=settings) as broker:
        how = security(world, signing_key, "SASL_PLAINTEXT", mechanism)
        servers = broker.bootstrap_servers_of("SASL_PLAINTEXT")
        renewals = 0

        def count(line: logging.LogRecord) -> bool:
            nonlocal renewals
            renewals += "authenticated again" in line.getMessage()
            return True

        logger = logging.getLogger("onceflow.connection")
        logger.addFilter(count)
        level = logger.level
        logger.setLevel(logging.DEBUG)
        try:
            async with (
                AsyncProducer(bootstrap_servers=servers, security=how, linger_ms=0) as producer,
                AsyncConsumer(
                    bootstrap_servers=servers, security=how, auto_offset_reset="earliest"
                ) as consumer,
            ):
                await producer.send("t", value=b"0")
                consumer.assign([TopicPartition("t", 0)])
                found: list[bytes] = []
                while not found:
                    for batch in (await consumer.poll(timeout_ms=100)).values():
                        found += [each.value or b"" for each in batch]
                opened = [
                    each.metrics().connections.connection_creation_total
                    for each in (producer, consumer)
                ]
                # So that there is something to hold back while a session is renewed.
                broker.faults.add(SaslAuthenticateRequest, Fault.DELAY, delay_ms=100)
                number = 1
                deadline = time.monotonic() + 60
                while renewals < 3 and time.monotonic() < deadline:
                    for _ in range(20):
                        await producer.send("t", value=b"%d" % number)
                        number += 1
                    for batch in (await consumer.poll(timeout_ms=20)).values():
                        found += [each.value or b"" for each in batch]
                await producer.flush()
                async with asyncio.timeout(30):
                    while len(found) < number:
                        for batch in (await consumer.poll(timeout_ms=100)).values():
                            found += [each.value or b"" for each in batch]
                assert found == [b"%d" % each for each in range(number)]
                assert renewals >= 3
                assert opened == [
                    each.metrics().connections.connection_creation_total
                    for each in (producer, consumer)
                ]
        finally:
            logger.removeFilter(count)
            logger.setLevel(level)


async def test_a_session_that_cannot_be_renewed_is_told(world: TlsWorld) -> None:
    """The password was changed meanwhile."""
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "onceflow.sasl.scram.credentials": "dave:salted",
        "connections.max.reauth.ms": 1_200,
    }
    async with Broker(settings=settings) as broker:
        how = SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="dave",
            sasl_password="salted",
        )
        producer = AsyncProducer(
            bootstrap_servers=broker.bootstrap_servers, security=how, default_api_timeout_ms=5_000
        )
        async with asyncio.timeout(40):
            await producer.start()
            await producer.send("t", value=b"x")
            await producer.flush()
            broker.state.scram_users._users = {}

            async def send_until_it_fails() -> None:
                while True:
                    await (await producer.send("t", value=b"y"))

            with pytest.raises(SaslAuthenticationFailedError):
                await send_until_it_fails()
            with contextlib.suppress(KafkaError):
                await producer.close()


# --- settings


def test_files_that_cannot_be_read_are_named(world: TlsWorld) -> None:
    for field, value in (("ssl_cafile", "/nowhere"), ("ssl_certfile", str(world.authority))):
        how = SecurityConfig(security_protocol="SSL", **{field: value})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=value):
            how.make_ssl_context()
    secret = SecurityConfig(
        security_protocol="SSL", ssl_keystore_key="PRIVATE", ssl_keystore_certificate_chain="C"
    )
    with pytest.raises(ConfigError) as caught:
        secret.make_ssl_context()
    assert "PRIVATE" not in str(caught.value) + repr(secret)


def test_tokens_that_cannot_be_sent_are_refused() -> None:
    for value in ("", "a b", "a\x01b", "\u00e9"):
        with pytest.raises(ConfigError):
            OAuthToken(value)
    with pytest.raises(ConfigError):
        OAuthToken("abc", {"auth": "x"})
    assert "abc" not in repr(OAuthToken("abc"))


def test_a_ready_context_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    how = SecurityConfig(security_protocol="SSL", ssl_context=context)
    assert how.make_ssl_context() is context
