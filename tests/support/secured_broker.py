"""A broker that takes SCRAM over TLS only and decides by ACLs, and what its users are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclResourceType,
    Admin,
    ClientSettings,
)

Grant = tuple[str, str, str, tuple[str, ...]]
"""Type, name and pattern type of a resource, and what ``app`` may do with it."""


@contextmanager
def secured_broker(world: TlsWorld) -> Iterator[Broker]:
    """Users are ``app`` and ``root``, who may do everything."""
    settings: dict[str, object] = {
        "ssl.keystore.location": str(world.folder / "broker.both.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "onceflow.sasl.scram.credentials": "app:hunter2,root:hunter3",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
        "auto.create.topics.enable": False,
    }
    with Broker(listeners="SASL_SSL://127.0.0.1:0", settings=settings) as running:
        yield running


def properties(broker: Broker, world: TlsWorld, user: str, password: str) -> dict[str, str]:
    """What a hosting service hands out."""
    return {
        "bootstrap.servers": broker.bootstrap_servers_of("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(world.authority),
        "client.dns.lookup": "use_all_dns_ips",
        "session.timeout.ms": "45000",
        "acks": "all",
    }


def as_root(broker: Broker, world: TlsWorld) -> ClientSettings:
    return ClientSettings.of(properties(broker, world, "root", "hunter3"))


def as_file(broker: Broker, world: TlsWorld, path: Path) -> Path:
    """A properties file of ``app``."""
    lines = properties(broker, world, "app", "hunter2")
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def grant(root: ClientSettings, grants: Iterable[Grant]) -> None:
    bindings = [
        AclBinding(
            AclResourceType[kind],
            name,
            "User:app",
            AclOperation[operation],
            pattern_type=AclPatternType[pattern],
        )
        for kind, name, pattern, operations in grants
        for operation in operations
    ]
    with Admin(config=root.admin()) as admin:
        admin.create_acls(bindings)
