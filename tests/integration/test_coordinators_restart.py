"""Groups and transactions survive the death of the broker's process, on real files.

Method: `Processor` over a real folder, dropped without a clean stop and opened again; and the
daemon itself, killed with SIGKILL under a published client that goes on against the next process.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from coordinator_processor import Processor, expected_outputs

from onceflow.broker_lite.log import RealStorage

DEADLINE_SECONDS = 60.0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_processor_goes_on_over_restarts(tmp_path: Path, version: int, clean: bool) -> None:
    producer_ids = set()
    for life in range(1, 4):
        processor = Processor(RealStorage(tmp_path), version)
        processor.run(life)
        assert sorted(processor.outputs()) == expected_outputs(life)
        producer_ids.add(processor.identity[0])
        processor.broker.state.log_manager.close(clean=clean)
    assert len(producer_ids) == 1, "a transactional id keeps its producer id"


def test_open_transaction_of_a_dead_process_is_ended_by_its_timeout(tmp_path: Path) -> None:
    processor = Processor(RealStorage(tmp_path), 2)
    processor.create_topics()
    processor.init()
    processor.send(0, "lost")
    processor.broker.state.log_manager.close(clean=False)
    again = Processor(RealStorage(tmp_path), 2)
    log = again.broker.state.topics.partition("out", 0)
    assert log is not None
    assert (log.last_stable_offset, log.high_watermark) == (0, 1)
    again.broker.advance(75_000)
    assert (log.last_stable_offset, log.high_watermark) == (2, 2)
    assert again.outputs() == []
    again.broker.close()


class Daemon:
    """`onceflow broker` on one folder and one port, life after life."""

    def __init__(self, data: Path) -> None:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._data = data
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        program = [sys.executable, "-m", "onceflow.broker_lite"]
        self._process = subprocess.Popen(
            [*program, "--data", str(self._data), "--listen", self.address],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert "ready" in self._process.stdout.readline()

    def end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal_number)
            process.wait(DEADLINE_SECONDS)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "data")
    daemon.start()
    yield daemon
    daemon.end(signal.SIGTERM)


@pytest.mark.foreign
def test_client_commits_against_the_next_process_after_sigkill(daemon: Daemon) -> None:
    settings = {"bootstrap.servers": daemon.address, "log_level": 0}
    admin = AdminClient(settings)
    for made in admin.create_topics([NewTopic("out", 1, 1)]).values():
        made.result(DEADLINE_SECONDS)
    producer = confluent_kafka.Producer(
        {**settings, "transactional.id": "t", "reconnect.backoff.max.ms": 200}
    )
    producer.init_transactions(DEADLINE_SECONDS)
    for life in range(2):
        producer.begin_transaction()
        producer.produce("out", f"before {life}".encode())
        assert producer.flush(DEADLINE_SECONDS) == 0
        daemon.end(signal.SIGKILL)
        daemon.start()
        producer.produce("out", f"after {life}".encode())
        producer.commit_transaction(DEADLINE_SECONDS)
    consumer = confluent_kafka.Consumer(
        {
            **settings,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["out"])
    found: list[bytes] = []
    while len(found) < 4:
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
    assert found == [b"before 0", b"after 0", b"before 1", b"after 1"]
    consumer.close()
