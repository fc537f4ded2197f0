"""Goal: a change that the disk leaves half done ends the broker with a clear word, and not a
partition that takes nothing while transactions wait for it.

Method: an abort marker whose index entry cannot be written, on real files: its name is taken by a
folder. Seen as a daemon (by itself, and with the means for tests) and as a broker in a process.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer
from onceflow.sdk.errors import KafkaError

END_SECONDS_MAX = 30
INDEX = "t-0/00000000000000000000.txnindex"
ABORT_MS = 2_000


def abort_that_fails_half_way(address: str, data: Path) -> None:
    """Write what is acknowledged, then abort a transaction whose entry cannot be written."""
    with Producer(bootstrap_servers=address) as producer:
        producer.send("t", b"kept").result()
    doomed = Producer(bootstrap_servers=address, transactional_id="doomed")
    doomed.begin_transaction()
    doomed.send("t", b"aborted").result()
    (data / INDEX).unlink(missing_ok=True)
    (data / INDEX).mkdir()
    with pytest.raises(KafkaError):
        doomed.abort_transaction(ABORT_MS)
    doomed.close(0)


def committed_values(address: str) -> list[bytes | None]:
    with Consumer(
        bootstrap_servers=address,
        group_id="g",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        while not found:
            found += [r.value for records in consumer.poll(500).values() for r in records]
        return found


@pytest.mark.parametrize("options", [(), ("--control", "0")], ids=["plain", "for tests"])
def test_the_daemon_ends_with_status_3(tmp_path: Path, options: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.broker_lite", "--listen", "127.0.0.1:0",
         "--data", str(tmp_path), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"ready on (\S+)", process.stdout.readline())
        assert found is not None
        abort_that_fails_half_way(found[1], tmp_path)
        _, errors = process.communicate(timeout=END_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3
    assert f"the disk with {tmp_path} failed" in errors
    assert INDEX in errors
    assert "Traceback" not in errors
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_broker_in_a_process_stops_and_says_why(tmp_path: Path) -> None:
    stopped = threading.Event()
    with Broker(tmp_path) as broker:
        broker.disk.when_failed(stopped.set)
        broker.create_topic("t")
        abort_that_fails_half_way(broker.bootstrap_servers, tmp_path)
        assert stopped.wait(END_SECONDS_MAX)
        assert not broker.running
        assert broker.disk.failure is not None
        assert INDEX in str(broker.disk.failure)
        (tmp_path / INDEX).rmdir()
        broker.restart()
        assert broker.disk.failure is None
        assert committed_values(broker.bootstrap_servers) == [b"kept"]
        with Producer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="doomed"
        ) as producer:
            producer.begin_transaction()
            producer.send("t", b"after").result()
            producer.commit_transaction()
