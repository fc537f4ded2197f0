"""Goal: topics and groups tell what the asking client may do with them (KIP-430).

Method: a user with few rights describes a topic and groups of both protocols, on our broker; with
`make conformance` an unrestricted one does so on Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from consumer_worlds import fresh
from secured_broker import as_root, grant, properties, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import AclOperation, Admin, ClientSettings, Consumer
from onceflow.sdk.errors import ConfigError, GroupAuthorizationFailedError


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def secured(world: TlsWorld) -> Iterator[Broker]:
    with secured_broker(world) as running:
        yield running


def test_a_user_with_few_rights_is_told_which(secured: Broker, world: TlsWorld) -> None:
    root = as_root(secured, world)
    topic, group = fresh("topic"), fresh("group")
    with Admin(config=root.admin()) as admin:
        admin.create_topics([topic])
    grant(
        root,
        [
            ("TOPIC", topic, "LITERAL", ("READ", "DESCRIBE_CONFIGS")),
            ("GROUP", group, "LITERAL", ("READ",)),
        ],
    )
    settings = ClientSettings.of(properties(secured, world, "app", "hunter2"))
    consumer = Consumer(config=settings.consumer(group_id=group))
    consumer.subscribe([topic])
    with Admin(config=settings.admin()) as admin, consumer:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        found = admin.describe_topics([topic], include_authorized_operations=True)[topic]
        assert found.authorized_operations == {
            AclOperation.READ,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
        }
        shown = admin.describe_groups([group], include_authorized_operations=True)[group]
        assert shown.authorized_operations == {AclOperation.READ, AclOperation.DESCRIBE}
        assert admin.describe_topics([topic])[topic].authorized_operations is None
        with pytest.raises(GroupAuthorizationFailedError):
            admin.describe_groups(["other"], include_authorized_operations=True)
        with pytest.raises(ConfigError, match="include_authorized_operations"):
            admin.describe_topics([topic], include_authorized_operations=1)  # type: ignore[arg-type]


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_who_may_do_everything_is_told_so(bootstrap: str, protocol: str) -> None:
    topic, group = fresh("topic"), fresh("group")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([topic])
        with Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, group_protocol=protocol
        ) as consumer:
            while not consumer.assignment():
                consumer.poll(timeout_ms=100)
            found = admin.describe_topics([topic], include_authorized_operations=True)[topic]
            assert found.authorized_operations is not None
            assert found.authorized_operations >= {AclOperation.WRITE, AclOperation.DELETE}
            shown = admin.describe_groups([group], include_authorized_operations=True)[group]
            assert shown.authorized_operations is not None
            assert shown.authorized_operations >= {AclOperation.READ, AclOperation.DELETE}
