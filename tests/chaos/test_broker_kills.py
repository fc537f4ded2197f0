"""Goal: a broker killed with SIGKILL under load loses nothing acknowledged and repeats nothing.

Method: idempotent and transactional producers, readers and group members, ours and those of
confluent-kafka, each a process of its own, keep going while the daemon is killed at random moments
and started on the same folder. At the end their journals are compared with the topic. The time from
the kill to the first answer and to the first acknowledged write is printed, as is the seed;
``ONCEFLOW_CHAOS_SEED`` repeats a run's moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_broker import PROBE_TOPIC, Reckoning, Recovery, Worker, kill_often, report
from chaos_worker import PARTITIONS
from stock_clients import Row, wait_until
from stock_confluent import ConfluentProducer, settings_for
from stock_daemon import StockDaemon
from stock_scenarios import make_topic

TOPIC = "chaos"
CLIENTS = ("onceflow", "confluent-kafka")
GIGABYTE = 1_000_000_000
LARGE_VALUE = 10_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StockDaemon]:
    daemon = StockDaemon(tmp_path / "data")
    daemon.start()
    make_topic(daemon.bootstrap_servers, TOPIC, PARTITIONS)
    make_topic(daemon.bootstrap_servers, PROBE_TOPIC, 1)
    try:
        yield daemon
    finally:
        daemon.stop()


def seed_of_this_run() -> int:
    return int(os.environ.get("ONCEFLOW_CHAOS_SEED") or random.randrange(1_000_000))


@contextlib.contextmanager
def load(
    daemon: StockDaemon, folder: Path, seed: int, roles: tuple[str, ...]
) -> Iterator[list[Worker]]:
    workers = [
        Worker(role, client, daemon.bootstrap_servers, TOPIC, folder, seed)
        for role in roles
        for client in CLIENTS
    ]
    try:
        wait_until(lambda: all(w.busy() for w in workers if w.role != "read"), "all at work")
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def run_kills(
    daemon: StockDaemon, folder: Path, seed: int, kills: int, pause_s: tuple[float, float]
) -> tuple[Recovery, Reckoning]:
    with load(daemon, folder, seed, ("produce", "transact", "read", "group")) as workers:
        recovery = kill_often(daemon, kills, random.Random(seed), pause_s)
        for writers in (True, False):
            those = [w for w in workers if (w.role in ("produce", "transact")) is writers]
            for worker in those:
                worker.ask_to_finish()
            for worker in those:
                worker.finish()
        reckoning = Reckoning(daemon.bootstrap_servers, TOPIC, workers)
        reckoning.check()
    return recovery, reckoning


@pytest.mark.slow
@pytest.mark.foreign
@pytest.mark.timeout(180)
def test_three_kills(daemon: StockDaemon, tmp_path: Path) -> None:
    run_kills(daemon, tmp_path, seed=3, kills=3, pause_s=(0.2, 1.0))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_twenty_kills(
    daemon: StockDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of_this_run()
    with capsys.disabled():
        print(f"\nONCEFLOW_CHAOS_SEED={seed}", flush=True)
        recovery, reckoning = run_kills(daemon, tmp_path, seed, kills=20, pause_s=(0.1, 2.0))
        figures = {"kills": 20, **recovery.figures(), **reckoning.figures}
        print(report("broker-kills", seed, figures), flush=True)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_kills_with_a_gigabyte_of_log(
    daemon: StockDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of_this_run()
    make_topic(daemon.bootstrap_servers, "large", PARTITIONS)
    fill(daemon.bootstrap_servers, "large", GIGABYTE)
    with capsys.disabled():
        print(f"\nONCEFLOW_CHAOS_SEED={seed}", flush=True)
        recovery = Recovery()
        stop = threading.Event()
        writer = threading.Thread(target=trickle, args=(daemon.bootstrap_servers, "large", stop))
        recovery.kill_and_start(daemon)
        writer.start()
        try:
            moments = random.Random(seed)
            for _ in range(7):
                stop.wait(moments.uniform(0.1, 2.0))
                recovery.kill_and_start(daemon)
        finally:
            stop.set()
            writer.join()
        size = sum(file.stat().st_size for file in daemon.data.rglob("*.log"))
        figures: dict[str, object] = {"kills": 8, "log_mb": size // 1_000_000}
        first = {
            "first_kill_ms": [round(recovery.answered_ms[0]), round(recovery.acknowledged_ms[0])]
        }
        print(
            report("broker-kills-1gb", seed, {**figures, **first, **recovery.figures()}), flush=True
        )


def fill(bootstrap: str, topic: str, size_bytes: int) -> None:
    """Write that much, in large records, acknowledged."""
    import confluent_kafka

    producer = confluent_kafka.Producer(
        settings_for(bootstrap, enable_idempotence=True, linger_ms=20)
    )
    value = os.urandom(LARGE_VALUE)
    for number in range(size_bytes // LARGE_VALUE):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def trickle(bootstrap: str, topic: str, stop: threading.Event) -> None:
    """Keep writing until told to stop; nothing may fail."""
    producer = ConfluentProducer(bootstrap, "none", 5, None)
    while not stop.wait(0.01):
        for number in range(PARTITIONS):
            producer.send(topic, Row(number, os.urandom(1_000)))
        producer.flush()
    producer.close()
