"""Durability `group` and `always` on real files, under real clients: all of it works, and is told.

Method: a broker in process on a folder; transactions, offsets and plain records through the SDK's
clients; then a kill, and another broker on the same folder. That answers wait for the flush is in
`tests/unit/broker_log/test_durability.py`.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    ConfigResource,
    Consumer,
    Producer,
    ResourceType,
    TopicPartition,
)

MODES = pytest.mark.parametrize("mode", ["group", "always"])


def read_all(bootstrap_servers: str, topic: str, count: int) -> list[bytes | None]:
    """Committed values of partition 0, at least ``count`` of them."""
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(50):
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
            if len(found) >= count:
                break
    return found


@MODES
def test_transactions_and_records_outlive_a_kill(mode: str, tmp_path: Path) -> None:
    with Broker(tmp_path, durability=mode) as broker:
        broker.create_topic("t")
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer:
            for number in range(3):
                with producer.transaction():
                    producer.send("t", b"%d" % number)
            producer.begin_transaction()
            producer.send("t", b"aborted")
            producer.abort_transaction()
        assert read_all(broker.bootstrap_servers, "t", 3) == [b"0", b"1", b"2"]
        broker.kill()
    with Broker(tmp_path, durability=mode) as broker:
        assert read_all(broker.bootstrap_servers, "t", 3) == [b"0", b"1", b"2"]


def test_producers_that_wait_at_once_share_flushes(tmp_path: Path) -> None:
    with Broker(tmp_path, durability="group") as broker:
        broker.create_topic("t")

        def send(worker: int) -> None:
            with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
                for number in range(20):
                    producer.send("t", b"%d-%d" % (worker, number))
                    producer.flush()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(send, range(6)))
        found = read_all(broker.bootstrap_servers, "t", 120)
    assert sorted(found, key=repr) == sorted(
        (b"%d-%d" % (worker, number) for worker in range(6) for number in range(20)), key=repr
    )


@MODES
def test_the_mode_is_told(mode: str, tmp_path: Path) -> None:
    with (
        Broker(tmp_path, durability=mode) as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        resource = ConfigResource(ResourceType.BROKER, "1")
        shown = admin.describe_configs([resource])[resource]
        assert shown["onceflow.durability"].value == mode
    daemon = subprocess.Popen(
        [
            *(sys.executable, "-m", "onceflow.cli", "broker", "--listen", "127.0.0.1:0"),
            *("--data", str(tmp_path), "--set", f"onceflow.durability={mode}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stdout is not None
        assert f"durability={mode} " in daemon.stdout.readline()
    finally:
        daemon.terminate()
        daemon.communicate(timeout=30)
