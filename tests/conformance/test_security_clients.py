"""Goal: published clients come in by every secure way, and ours come in to Apache Kafka.

Method: one record written and read by each client with each mechanism. Tests marked "kafka" start
an Apache Kafka of their own, with TLS, SASL and sessions of a second and a half.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import real_kafka
from cryptography.hazmat.primitives.asymmetric import rsa
from security_world import LISTENERS, jwks, settings_of, token
from tls_world import Identity, TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncProducer,
    Consumer,
    Producer,
    SecurityConfig,
    TopicPartition,
)
from onceflow.sdk.errors import SaslAuthenticationFailedError

WAIT_SECONDS = 60
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = (*(f"SASL_SSL {mechanism}" for mechanism in MECHANISMS), "SASL_PLAINTEXT PLAIN", "SSL",
        "MTLS")  # fmt: skip
PASSWORDS = {"PLAIN": ("alice", "secret")}
SCRAM_USER = ("dave", "salted")

WriteAndRead = Callable[[str, str, "World"], list[bytes]]


class World:
    """Certificates and the key of tokens, and what a way needs of them."""

    def __init__(self, folder: Path) -> None:
        self.tls = TlsWorld(folder)
        self.broker = self.tls.issue("broker")
        self.client: Identity = self.tls.issue("client")
        self.key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)

    def token(self) -> str:
        """A good token."""
        return token(self.key)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def ours(world: World) -> Iterator[Broker]:
    (world.tls.folder / "jwks.json").write_text(jwks(world.key))
    with Broker(listeners=LISTENERS, settings=settings_of(world.tls)) as broker:
        yield broker


# --- published clients on the bundled broker


def confluent(way: str, servers: str, world: World) -> list[bytes]:
    """librdkafka."""
    from confluent_kafka import Consumer as Reader
    from confluent_kafka import Producer as Writer

    protocol, _, mechanism = way.partition(" ")
    settings: dict[str, object] = {
        "bootstrap.servers": servers,
        "security.protocol": "SSL" if protocol == "MTLS" else protocol,
    }
    if protocol != "SASL_PLAINTEXT":
        settings["ssl.ca.location"] = str(world.tls.authority)
    if protocol == "MTLS":
        settings["ssl.certificate.location"] = str(world.client.certificate)
        settings["ssl.key.location"] = str(world.client.key)
    if mechanism:
        settings["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda config: (world.token(), time.time() + 50)
    elif mechanism:
        user = PASSWORDS.get(mechanism, SCRAM_USER)
        settings |= {"sasl.username": user[0], "sasl.password": user[1]}
    topic = f"confluent-{way.replace(' ', '-')}"
    failures: list[object] = []
    writer = Writer(settings)
    writer.poll(0)  # asks for a token
    writer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
    assert writer.flush(WAIT_SECONDS) == 0
    assert failures == [None]
    reader = Reader({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        reader.subscribe([topic])
        found = []
        deadline = time.monotonic() + WAIT_SECONDS
        while not found and time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value())
        return found
    finally:
        reader.close()


def kafka_python(way: str, servers: str, world: World) -> list[bytes]:
    """kafka-python."""
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return world.token()

    protocol, _, mechanism = way.partition(" ")
    settings: dict[str, object] = {
        "bootstrap_servers": servers,
        "security_protocol": "SSL" if protocol == "MTLS" else protocol,
    }
    if protocol != "SASL_PLAINTEXT":
        settings["ssl_cafile"] = str(world.tls.authority)
    if protocol == "MTLS":
        settings["ssl_certfile"] = str(world.client.certificate)
        settings["ssl_keyfile"] = str(world.client.key)
    if mechanism:
        settings["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens()
    elif mechanism:
        user = PASSWORDS.get(mechanism, SCRAM_USER)
        settings |= {"sasl_plain_username": user[0], "sasl_plain_password": user[1]}
    topic = f"kafka-python-{way.replace(' ', '-')}"
    writer = KafkaProducer(**settings)
    writer.send(topic, b"x").get(WAIT_SECONDS)
    writer.close()
    reader = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_SECONDS * 1000
    )
    try:
        return [next(reader).value]
    finally:
        reader.close()


def aiokafka(way: str, servers: str, world: World) -> list[bytes]:
    """aiokafka."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return world.token()

    protocol, _, mechanism = way.partition(" ")
    settings: dict[str, object] = {
        "bootstrap_servers": servers,
        "security_protocol": "SSL" if protocol == "MTLS" else protocol,
    }
    if protocol != "SASL_PLAINTEXT":
        identity = world.client if protocol == "MTLS" else None
        settings["ssl_context"] = world.tls.client_context(identity)
    if mechanism:
        settings["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens()
    elif mechanism:
        user = PASSWORDS.get(mechanism, SCRAM_USER)
        settings |= {"sasl_plain_username": user[0], "sasl_plain_password": user[1]}
    topic = f"aiokafka-{way.replace(' ', '-')}"

    async def write_and_read() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as writer:
            await writer.send_and_wait(topic, b"x")
        async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as reader:
            return [(await asyncio.wait_for(reader.getone(), WAIT_SECONDS)).value]

    return asyncio.run(write_and_read())


@pytest.mark.foreign
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python's import
@pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka], ids=lambda c: c.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_published_clients_come_in(
    ours: Broker, world: World, client: WriteAndRead, way: str
) -> None:
    servers = ours.bootstrap_servers_of(way.partition(" ")[0])
    assert client(way, servers, world) == [b"x"]


# --- our clients on Apache Kafka


class SecureKafka(real_kafka.ApacheKafka):
    """Apache Kafka with a listener for each way."""

    def __init__(self, data: Path, world: World) -> None:
        plain, controller, sasl, sasl_ssl, mtls = real_kafka.free_ports(5)
        host = real_kafka.HOST
        self.ports = {"SASL_PLAINTEXT": sasl, "SASL_SSL": sasl_ssl, "MTLS": mtls}
        outside = ",".join(f"{name}://{host}:{port}" for name, port in self.ports.items())
        jaas = "org.apache.kafka.common.security"
        settings = {
            "listeners": f"PLAINTEXT://{host}:{plain},CONTROLLER://{host}:{controller},{outside}",
            "advertised.listeners": f"PLAINTEXT://{host}:{plain},{outside}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "controller.quorum.voters": f"1@{host}:{controller}",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(world.broker.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(world.tls.authority),
            "listener.name.mtls.ssl.client.auth": "required",
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{name}"
            settings |= {
                f"{prefix}.plain.sasl.jaas.config": f"{jaas}.plain.PlainLoginModule required "
                'user_alice="secret";',
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule "
                "required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule "
                "required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{jaas}.oauthbearer."
                'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";',
                f"{prefix}.connections.max.reauth.ms": "1500",
            }
        super().__init__(data, port=plain, settings=settings)
        self.controller_port = controller


@pytest.fixture(scope="module")
def theirs(
    world: World, tmp_path_factory: pytest.TempPathFactory, kafka_tools: None
) -> Iterator[SecureKafka]:
    with SecureKafka(tmp_path_factory.mktemp("secure-kafka"), world) as kafka:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            real_kafka.tool(
                "kafka-configs", "--bootstrap-server", kafka.bootstrap_servers, "--alter",
                "--entity-type", "users", "--entity-name", SCRAM_USER[0],
                "--add-config", f"{mechanism}=[password={SCRAM_USER[1]}]",
            )  # fmt: skip
        yield kafka


def unsigned_token() -> str:
    """What Apache Kafka takes without settings of its own: a token that nobody signed."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "carol", "iat": now, "exp": now + 60})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join((*encoded, b"")).decode()


def how_to(way: str, world: World) -> SecurityConfig:
    """Our settings for a way."""
    protocol, _, mechanism = way.partition(" ")
    values: dict[str, object] = {"security_protocol": "SSL" if protocol == "MTLS" else protocol}
    if protocol != "SASL_PLAINTEXT":
        values["ssl_cafile"] = str(world.tls.authority)
    if protocol == "MTLS":
        values["ssl_certfile"] = str(world.client.both)
    if mechanism:
        values["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        values["sasl_oauth_token_provider"] = unsigned_token
    elif mechanism:
        user = PASSWORDS.get(mechanism, SCRAM_USER)
        values |= {"sasl_username": user[0], "sasl_password": user[1]}
    return SecurityConfig(**values)  # type: ignore[arg-type]


@pytest.mark.kafka
@pytest.mark.parametrize("way", [way for way in WAYS if way != "SSL"])
def test_our_clients_come_in_to_apache_kafka(theirs: SecureKafka, world: World, way: str) -> None:
    servers = f"127.0.0.1:{theirs.ports[way.partition(' ')[0]]}"
    how = how_to(way, world)
    topic = f"ours-{way.replace(' ', '-')}"
    with Producer(bootstrap_servers=servers, security=how) as producer:
        producer.send(topic, value=b"x")
        producer.flush()
    with Consumer(bootstrap_servers=servers, security=how, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while not found and time.monotonic() < deadline:
            batches = reader.poll(timeout_ms=1_000).values()
            found = [each.value for batch in batches for each in batch]
        assert found == [b"x"]


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_sessions_on_apache_kafka_are_renewed(
    theirs: SecureKafka, world: World, mechanism: str
) -> None:
    """It closes a connection whose session of 1.5 s is over at the next request (KIP-368)."""
    servers = f"127.0.0.1:{theirs.ports['SASL_SSL']}"
    how = how_to(f"SASL_SSL {mechanism}", world)
    async with AsyncProducer(bootstrap_servers=servers, security=how, linger_ms=0) as producer:
        topic = f"renewed-{mechanism}"
        await (await producer.send(topic, value=b"0"))
        opened = producer.metrics().connections.connection_creation_total
        last = 0
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            last = (await (await producer.send(topic, value=b"x"))).offset
        await producer.flush()
        assert last > 5
        assert producer.metrics().connections.connection_creation_total <= opened + 1


@pytest.mark.kafka
async def test_apache_kafka_refuses_a_wrong_password_at_once(
    theirs: SecureKafka, world: World
) -> None:
    servers = f"127.0.0.1:{theirs.ports['SASL_PLAINTEXT']}"
    for mechanism in MECHANISMS[:3]:
        how = SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username=SCRAM_USER[0],
            sasl_password="wrong",
        )
        producer = AsyncProducer(bootstrap_servers=servers, security=how)
        with pytest.raises(SaslAuthenticationFailedError):
            await producer.start()
        await producer.close()
