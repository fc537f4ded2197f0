"""Goal: whatever happens to the topic of a global table, no record meets a wrong row in silence.

Method: workers on the in-process broker while the topic gets partitions, loses records, is damaged
on disk, or is deleted; workers that are killed or stopped while they read it for the first time;
an asyncio application.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pytest
from processor_processes import Worker, committed_values, wait_for

from onceflow.broker_lite.testing import Broker, Fault
from onceflow.processors import App, ProcessingError, TopicSetupError
from onceflow.processors.worker import upkeep
from onceflow.sdk import Admin, Producer, TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with Broker(data=tmp_path / "data", settings=settings) as running:
        running.create_topic("orders", partitions=1)
        running.create_topic("countries", partitions=2)
        yield running


@pytest.fixture(autouse=True)
def topics_are_checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TOPICS_CHECKED_S", 0.2)


class Shop:
    """An application whose records look up a global table, in a thread.

    Attributes:
        app: The application.
        errors: What it ended with.
    """

    def __init__(self, broker: Broker, state_dir: Path, *, is_async: bool = False) -> None:
        self.broker = broker
        self.app = App(
            "shop",
            broker.bootstrap_servers,
            state_dir=state_dir,
            commit_interval_ms=20,
            retry_backoff_ms=20,
            retry_backoff_max_ms=100,
        )
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        countries = self.app.global_table("countries", str, key=str)
        if is_async:

            @self.app.processor("orders", to="out")
            async def asked(
                code: str, country: Annotated[str | None, countries.by(lambda code: code)]
            ) -> str:
                return f"{code}:{country}"

        else:

            @self.app.processor("orders", to="out")
            def enrich(
                code: str, country: Annotated[str | None, countries.by(lambda code: code)]
            ) -> str:
                return f"{code}:{country}"

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)

    def results(self) -> list[bytes]:
        return committed_values(self.broker.bootstrap_servers, "out")

    def meets(self, producer: Producer, code: str, name: str | None) -> None:
        """Send orders until one meets the row."""
        wanted = f"{code}:{name}".encode()

        def met() -> bool:
            assert not self.errors
            producer.send("orders", code)
            producer.flush()
            return wanted in self.results()

        wait_for(met, f"a result {wanted!r}")


@contextmanager
def shop(broker: Broker, tmp_path: Path, *, is_async: bool = False) -> Iterator[Shop]:
    running = Shop(broker, tmp_path / "state", is_async=is_async)
    running.thread.start()
    try:
        yield running
    finally:
        running.app.stop()
        running.thread.join(30)
        assert not running.thread.is_alive()


@contextmanager
def producer_of(broker: Broker) -> Iterator[Producer]:
    text = {"key_serializer": str.encode, "value_serializer": str.encode}
    with Producer(bootstrap_servers=broker.bootstrap_servers, **text) as producer:  # type: ignore[arg-type]
        yield producer


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
def test_new_partitions_are_read_too(broker: Broker, tmp_path: Path, is_async: bool) -> None:
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.flush()
        with shop(broker, tmp_path, is_async=is_async) as running:
            running.meets(producer, "fr", "France")
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                admin.create_partitions({"countries": 4})
        with producer_of(broker) as knowing:  # Its metadata has the new partitions.
            knowing.send("countries", "Italy", key="it", partition=3)
            knowing.flush()
        with shop(broker, tmp_path, is_async=is_async) as running:
            running.meets(producer, "it", "Italy")
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                admin.create_partitions({"countries": 5})
            with producer_of(broker) as knowing:
                knowing.send("countries", "Spain", key="es", partition=4)
                knowing.flush()
            running.meets(producer, "es", "Spain")
            running.meets(producer, "fr", "France")
        assert not running.errors


def test_positions_out_of_range_are_read_again(broker: Broker, tmp_path: Path) -> None:
    """The rows are then those of a start: what was deleted from the topic is gone."""
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.send("countries", "Italy", key="it", partition=0)
        producer.send("countries", "Spain", key="es", partition=1)
        producer.flush()
        with shop(broker, tmp_path) as running:
            running.meets(producer, "fr", "France")
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                admin.delete_records({TopicPartition("countries", 0): 1})
            broker.faults.add(
                "Fetch", Fault.ERROR, error=ErrorCode.OFFSET_OUT_OF_RANGE, topic="countries"
            )
            running.meets(producer, "fr", None)
            running.meets(producer, "it", "Italy")
            running.meets(producer, "es", "Spain")
        assert not running.errors


def flip(data: Path, old: bytes, new: bytes) -> None:
    """Change bytes of the log of the table's first partition."""
    log = next((data / "data").glob("countries-0/*.log"))
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.index(old))
        file.write(new)


def test_damage_ends_the_worker_with_its_place(broker: Broker, tmp_path: Path) -> None:
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.flush()
        flip(tmp_path, b"France", b"Frbnce")
        producer.send("orders", "fr")
        producer.flush()
        with shop(broker, tmp_path) as running:
            wait_for(lambda: not running.thread.is_alive(), "the end of the worker")
        (error,) = running.errors
        assert isinstance(error, ProcessingError)
        assert (error.topic, error.partition, error.offset) == ("countries", 0, 0)
        assert "countries-0" in str(error)
        assert "restore the log" in str(error)
        assert running.results() == []
        flip(tmp_path, b"Frbnce", b"France")
        with shop(broker, tmp_path) as running:
            wait_for(lambda: running.results() == [b"fr:France"], "the result")
        assert not running.errors


def test_damaged_answer_is_fetched_again(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.flush()
        flip(tmp_path, b"France", b"Frbnce")
        producer.send("orders", "fr")
        producer.flush()
        with shop(broker, tmp_path) as running:
            wait_for(lambda: "cannot be read (attempt 1 of" in caplog.text, "the first attempt")
            flip(tmp_path, b"Frbnce", b"France")
            wait_for(lambda: running.results() == [b"fr:France"], "the result")
        assert not running.errors


def test_deleted_topic_ends_the_worker(broker: Broker, tmp_path: Path) -> None:
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.flush()
        with shop(broker, tmp_path) as running:
            running.meets(producer, "fr", "France")
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                admin.delete_topics(["countries"])
            wait_for(lambda: not running.thread.is_alive(), "the end of the worker")
        (error,) = running.errors
        assert isinstance(error, TopicSetupError)
        assert "countries" in str(error)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
def test_stop_during_the_first_read(broker: Broker, tmp_path: Path, is_async: bool) -> None:
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.send("orders", "fr")
        producer.flush()
        held = broker.faults.add("Fetch", Fault.HOLD, topic="countries", times=None)
        with shop(broker, tmp_path, is_async=is_async) as running:
            wait_for(lambda: held.hits > 0, "a fetch of the table")
            running.app.stop()
            wait_for(lambda: not running.thread.is_alive(), "the end of the worker")
        assert not running.errors
        assert running.results() == []
        broker.faults.clear()
        with shop(broker, tmp_path, is_async=is_async) as running:
            wait_for(lambda: running.results() == [b"fr:France"], "the result")


PROGRAM = """
import sys
from typing import Annotated
from onceflow.processors import App

app = App("shop", sys.argv[1], state_dir=sys.argv[2], commit_interval_ms=20)
countries = app.global_table("countries", str, key=str)


@app.processor("orders", to="out")
def enrich(code: str, country: Annotated[str | None, countries.by(lambda code: code)]) -> str:
    return f"{code}:{country}"


app.run()
"""


def test_worker_killed_during_the_first_read(broker: Broker, tmp_path: Path) -> None:
    """Nothing was taken yet; the next start reads everything."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = (broker.bootstrap_servers, str(tmp_path / "state"))
    with producer_of(broker) as producer:
        producer.send("countries", "France", key="fr", partition=0)
        producer.send("orders", "fr")
        producer.flush()
        held = broker.faults.add("Fetch", Fault.HOLD, topic="countries", times=None)
        first = Worker(program, *arguments, log=tmp_path / "log")
        wait_for(lambda: held.hits > 0, "a fetch of the table")
        first.kill()
        broker.faults.clear()
        second = Worker(program, *arguments, log=tmp_path / "log")
        try:
            wait_for(
                lambda: committed_values(broker.bootstrap_servers, "out") == [b"fr:France"],
                "the result",
            )
        finally:
            assert second.stop() == 0
