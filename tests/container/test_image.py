"""Goal: the image does what an image of a broker must: clients reach it from the host and from
other containers, it stops in order, its data outlives it, and it survives what is done to it.

Method: the image that `make image` built, on a real engine, with our clients, published ones, and
the unchanged Kafka container of testcontainers.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from stock_clients import wait_until
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from onceflow.broker_lite.testing import OnceflowContainer
from onceflow.sdk import Consumer, Producer

pytestmark = pytest.mark.container

IMAGE = os.environ.get("ONCEFLOW_IMAGE", "onceflow:latest")
DATA = "/var/lib/onceflow/data"
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[OnceflowContainer]:
    with OnceflowContainer(IMAGE) as container:
        yield container


@pytest.fixture
def volume() -> Iterator[str]:
    client = DockerClient().client
    made = client.volumes.create()
    yield made.name
    made.remove(force=True)
    client.close()


def commit(bootstrap: str, *values: bytes, topic: str = "t") -> None:
    with Producer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-x") as producer:
        for value in values:
            with producer.transaction():
                producer.send(topic, value)


def read(bootstrap: str, count: int, topic: str = "t") -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=uuid.uuid4().hex,
        auto_offset_reset="earliest",
    ) as consumer:
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
    return found


def answers(bootstrap: str) -> bool:
    try:
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=1)
    except confluent_kafka.KafkaException:
        return False
    return True


def test_records_and_transactions_pass_through(kafka: OnceflowContainer) -> None:
    bootstrap = kafka.get_bootstrap_server()
    commit(bootstrap, b"a", b"b")
    assert read(bootstrap, 2) == [b"a", b"b"]
    errors: list[object] = []
    stock = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    stock.produce("stock", b"c", on_delivery=lambda error, message: errors.append(error))
    assert stock.flush(DEADLINE_S) == 0
    assert errors == [None]
    assert read(bootstrap, 1, "stock") == [b"c"]


def test_it_is_no_root_and_healthy(kafka: OnceflowContainer) -> None:
    assert kafka.exec(["id", "-u"]).output.strip() != b"0"
    wrapped = kafka.get_wrapped_container()

    def healthy() -> bool:
        wrapped.reload()
        return bool(wrapped.attrs["State"]["Health"]["Status"] == "healthy")

    wait_until(healthy, "the health check passes")


def test_it_pauses_and_goes_on(kafka: OnceflowContainer) -> None:
    bootstrap = kafka.get_bootstrap_server()
    commit(bootstrap, b"before", topic="pause")
    wrapped = kafka.get_wrapped_container()
    wrapped.pause()
    assert not answers(bootstrap)
    wrapped.unpause()
    commit(bootstrap, b"after", topic="pause")
    assert read(bootstrap, 2, "pause") == [b"before", b"after"]


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_what_was_committed_survives_and_the_address_stays(how: str) -> None:
    with OnceflowContainer(IMAGE) as kafka:
        bootstrap = kafka.get_bootstrap_server()
        commit(bootstrap, b"a")
        wrapped = kafka.get_wrapped_container()
        if how == "kill":
            wrapped.kill("SIGKILL")
            wrapped.wait()
            wrapped.start()
        else:
            wrapped.restart(timeout=10)
        assert kafka.get_bootstrap_server() == bootstrap
        wait_until(lambda: answers(bootstrap), "it answers again")
        commit(bootstrap, b"b")
        assert read(bootstrap, 2) == [b"a", b"b"]


def test_data_outlives_the_container_on_its_volume(volume: str) -> None:
    with OnceflowContainer(IMAGE, volumes=[(volume, DATA, "rw")]) as kafka:
        commit(kafka.get_bootstrap_server(), b"a")
        wrapped = kafka.get_wrapped_container()
        wrapped.stop(timeout=20)
        assert wrapped.wait()["StatusCode"] == 0
    with OnceflowContainer(IMAGE, volumes=[(volume, DATA, "rw")]) as kafka:
        assert read(kafka.get_bootstrap_server(), 1) == [b"a"]


def test_variables_are_settings(kafka: OnceflowContainer) -> None:
    with OnceflowContainer(IMAGE, env={"KAFKA_NUM_PARTITIONS": "4"}) as other:
        bootstrap = other.get_bootstrap_server()
        commit(bootstrap, b"a")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert len(admin.list_topics("t", timeout=10).topics["t"].partitions) == 4


def test_a_setting_that_cannot_be_ends_it_with_the_reason() -> None:
    with (
        pytest.raises(RuntimeError),
        OnceflowContainer(IMAGE, env={"KAFKA_NUM_PARTITION": "4"}) as kafka,
    ):
        pytest.fail(kafka.log_tail())


def test_other_containers_reach_it_by_its_alias() -> None:
    code = (
        "import json; from onceflow.sdk import Producer\n"
        "with Producer(bootstrap_servers='kafka:9092') as p: d = p.send('t', b'inside')\n"
        "print(json.dumps({'offset': d.result(10).offset}))"
    )
    with (
        Network() as network,
        OnceflowContainer(IMAGE, network=network, network_aliases=["kafka"]) as kafka,
    ):
        with DockerContainer(IMAGE, command=["python", "-c", code], network=network) as client:
            assert client.wait() == 0, client.get_logs()
            assert json.loads(client.get_logs()[0]) == {"offset": 0}
        assert read(kafka.get_bootstrap_server(), 1) == [b"inside"]


@pytest.mark.parametrize("kraft", [False, True])
def test_the_unchanged_kafka_container_takes_the_image(kraft: bool) -> None:
    from testcontainers.community.kafka import KafkaContainer

    client = DockerClient().client
    client.images.get(IMAGE).tag("onceflow", "7.6.0")
    client.close()
    theirs = KafkaContainer(image="onceflow:7.6.0")
    if kraft:
        theirs.with_kraft()
    with theirs as kafka:
        bootstrap = kafka.get_bootstrap_server()
        commit(bootstrap, b"a")
        assert read(bootstrap, 1) == [b"a"]
