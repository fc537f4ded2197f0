"""Goal: the container class sets up what a client needs, keeps to the interface that users of
Kafka's container know, and cleans up, also when things go wrong.

Method: the engine's client is replaced by one that notes what it is asked; the real engine is the
business of `make container-test`.
"""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
from typing import Any

import pytest
from testcontainers.core import container as core
from testcontainers.core.network import Network

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import OnceflowContainer
from onceflow.broker_lite.testing.container import AnswersWaitStrategy


class FakeContainer:
    """A container that starts, or does not."""

    id = "c1"
    short_id = "c1"
    status = "running"

    def __init__(self) -> None:
        self.removed = False
        self.files: list[bytes] = []
        self.log = b"onceflow broker ready on 0.0.0.0:9093\n"

    def reload(self) -> None:
        pass

    def remove(self, *, force: bool, v: bool) -> None:
        assert force
        assert v
        self.removed = True

    def logs(self, **kwargs: object) -> bytes:
        return self.log if kwargs.get("stderr") is False or not kwargs else b""

    def put_archive(self, path: str, archive: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar.getmembers():
                extracted = tar.extractfile(member)
                assert extracted is not None
                self.files.append(f"{path}{member.name}=".encode() + extracted.read())


class FakeEngine:
    """What testcontainers asks of its engine."""

    made: list[tuple[dict[str, Any], FakeContainer]]
    failures: list[Exception]

    def __init__(self, **kwargs: object) -> None:
        self.client = self

    def host(self) -> str:
        return "localhost"

    def create(self, image: str, **kwargs: Any) -> FakeContainer:
        made = FakeContainer()
        seen = {name: dict(v) if isinstance(v, dict) else v for name, v in kwargs.items()}
        type(self).made.append(({"image": image, **seen}, made))
        return made

    def start(self, container: FakeContainer) -> None:
        if type(self).failures:
            raise type(self).failures.pop()

    def close(self) -> None:
        pass


class Quick(AnswersWaitStrategy):
    """Does not wait."""

    def wait_until_ready(self, container: object) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    FakeEngine.made, FakeEngine.failures = [], []
    monkeypatch.setattr(core, "DockerClient", FakeEngine)
    monkeypatch.setattr(core.c, "ryuk_disabled", True, raising=False)
    return FakeEngine


def started(**kwargs: Any) -> OnceflowContainer:
    return OnceflowContainer(_wait_strategy=Quick(), **kwargs).start()


def test_clients_are_told_the_address_that_they_reach(engine: type[FakeEngine]) -> None:
    kafka = started()
    asked, _ = engine.made[0]
    host, port = asked["ports"]["9093"]
    assert host == "127.0.0.1"
    assert kafka.get_bootstrap_server() == f"127.0.0.1:{port}"
    assert asked["environment"]["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://127.0.0.1:{port}"
    assert asked["environment"]["KAFKA_LISTENERS"] == (
        "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092"
    )
    assert kafka.get_exposed_port(9093) == port
    assert re.fullmatch(r"onceflow:\d.*", asked["image"])


def test_the_interface_of_kafkas_container_is_there(engine: type[FakeEngine]) -> None:
    kafka = OnceflowContainer("onceflow:any", 9094, "started", "OUT", "PLAINTEXT")
    assert kafka.with_kraft().with_cluster_id("c") is kafka
    assert (kafka.port, kafka.listener_name, kafka.security_protocol) == (9094, "OUT", "PLAINTEXT")
    assert (kafka.kraft_enabled, kafka.cluster_id) == (True, "c")
    assert kafka.wait_for.pattern == "started"
    assert kafka.listeners == "OUT://0.0.0.0:9094,BROKER://0.0.0.0:9092"
    assert kafka.security_protocol_map == "BROKER:PLAINTEXT,OUT:PLAINTEXT"
    with pytest.raises(ValueError, match="port"):
        OnceflowContainer(port_to_expose=9092)


def test_callers_settings_are_kept(engine: type[FakeEngine]) -> None:
    started(
        env={"KAFKA_NUM_PARTITIONS": "5", "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "9"},
        name="broker",
        volumes=[("/host", "/inside", "rw")],
        mem_limit="64m",
    )
    asked, _ = engine.made[0]
    assert asked["environment"]["KAFKA_NUM_PARTITIONS"] == "5"
    assert asked["environment"]["KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS"] == "9"
    assert (asked["name"], asked["mem_limit"]) == ("broker", "64m")
    assert asked["volumes"] == {"/host": {"bind": "/inside", "mode": "rw"}}


def test_containers_of_a_network_are_told_the_alias(engine: type[FakeEngine]) -> None:
    network = Network.__new__(Network)
    network.name = "net"
    started(network=network, network_aliases=["kafka", "other"])
    asked, _ = engine.made[0]
    told = asked["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert told.endswith(",BROKER://kafka:9092")
    assert asked["network"] == "net"


def test_on_the_hosts_network_the_broker_takes_the_chosen_ports(engine: type[FakeEngine]) -> None:
    kafka = started(network_mode="host")
    asked, _ = engine.made[0]
    assert asked["ports"] == {}
    _, _, port = kafka.get_bootstrap_server().rpartition(":")
    assert asked["environment"]["KAFKA_LISTENERS"].startswith(f"PLAINTEXT://0.0.0.0:{port},BROKER")
    assert kafka.get_exposed_port(kafka.port) == int(port)


def test_a_port_that_was_taken_meanwhile_is_chosen_again_once(engine: type[FakeEngine]) -> None:
    taken = RuntimeError("driver failed: Bind for 127.0.0.1:1 failed: port is already allocated")
    engine.failures = [taken]
    kafka = started()
    (first, gone), (second, _) = engine.made
    assert gone.removed
    assert first["ports"] != second["ports"]
    _, _, port = kafka.get_bootstrap_server().rpartition(":")
    assert second["environment"]["KAFKA_ADVERTISED_LISTENERS"].endswith(f":{port}")
    engine.failures = [taken, taken]
    with pytest.raises(RuntimeError, match="allocated"):
        started()


def test_a_start_that_fails_leaves_nothing(engine: type[FakeEngine]) -> None:
    engine.failures = [RuntimeError("no such image")]
    with (
        pytest.raises(RuntimeError, match="no such image"),
        OnceflowContainer(_wait_strategy=Quick()),
    ):
        pass
    assert all(made.removed for _, made in engine.made)


def test_files_and_the_hook_are_there(engine: type[FakeEngine]) -> None:
    class Mine(OnceflowContainer):
        def tc_start(self) -> None:
            self.create_file(b"content", "/file")

    Mine(_wait_strategy=Quick()).start()
    assert engine.made[0][1].files == [b"//file=content"]


def test_it_counts_as_started_when_the_broker_answers(engine: type[FakeEngine]) -> None:
    async def wait_for(port: int) -> None:
        kafka = OnceflowContainer()
        kafka._host_port = port
        strategy = AnswersWaitStrategy()
        strategy.with_startup_timeout(1).with_poll_interval(0.01)
        kafka._container = FakeContainer()  # type: ignore[assignment]
        await asyncio.to_thread(strategy.wait_until_ready, kafka)

    async def run() -> None:
        async with Broker() as broker:
            await wait_for(broker.port)
            port = broker.port
        with pytest.raises(TimeoutError, match="does not answer"):
            await wait_for(port)

    asyncio.run(run())
