"""Goal: applications count exactly once while their workers and the broker are killed, frozen and
restarted, and no worker ends by itself.

Method: three worker processes count by key, with handlers that fail for a while, against a broker
process; a producer goes on writing. Something happens every moment, drawn from a printed seed
(ONCEFLOW_CHAOS_SEED repeats it). Afterwards the committed output holds, for each key, every count
once, which a dictionary over the input says too.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import Worker, read_all, wait_for, workers_in
from stock_daemon import StockDaemon

from onceflow.sdk import Admin, NewTopic, Producer

PARTITIONS, KEYS, WORKERS = 6, 40, 3

PROGRAM = """
import logging, random, sys
from onceflow.processors import App, Retries, State

bootstrap, directory, protocol = sys.argv[1:4]
logging.basicConfig(level=logging.INFO)
app = App(
    "counter",
    bootstrap,
    state_dir=directory,
    commit_interval_ms=100,
    aborts_max=1_000,
    consumer_settings={"group_protocol": protocol} if protocol == "consumer" else {},
)
failed = set()

@app.processor("in", to="out", retries=Retries(3, backoff_ms=200, only=(LookupError,)))
def count(value: bytes, seen: State[int]) -> bytes:
    seen.set(seen.get(0) + 1)
    if random.random() < 0.01 and value not in failed:
        failed.add(value)
        raise LookupError("for a while")
    return b"%s:%d" % (value, seen.get(0))

app.run()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StockDaemon]:
    daemon = StockDaemon(tmp_path / "broker")
    daemon.start()
    yield daemon
    daemon.kill()


def seed_of_this_run() -> int:
    return int(os.environ.get("ONCEFLOW_CHAOS_SEED") or random.randrange(1_000_000))


class Feeder(threading.Thread):
    """Writes keys in turn until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.counts: collections.Counter[bytes] = collections.Counter()

    def run(self) -> None:
        chance = random.Random(1)
        with Producer(bootstrap_servers=self.bootstrap, delivery_timeout_ms=120_000) as producer:
            while not self.stopping.wait(0.02):
                for _ in range(chance.randrange(1, 40)):
                    key = b"k%d" % chance.randrange(KEYS)
                    self.counts[key] += 1
                    producer.send("in", key, key=key)
            producer.flush(120_000)


def trouble(chance: random.Random, daemon: StockDaemon, running: list[Worker], start) -> None:  # type: ignore[no-untyped-def]
    """One thing that goes wrong."""
    place = chance.randrange(len(running))
    worker = running[place]
    match chance.choice(("kill", "kill", "freeze", "stop", "broker")):
        case "kill":
            worker.kill()
            running[place] = start(place)
        case "freeze":
            worker.signal(signal.SIGSTOP)
            threading.Event().wait(chance.choice((0.3, 2.0)))
            worker.signal(signal.SIGCONT)
        case "stop":
            # Before it is there, a signal ends the interpreter.
            wait_for(lambda: "producer id" in worker.output(), "a worker at work")
            number = chance.choice((signal.SIGTERM, signal.SIGINT))
            assert worker.stop(60, number) == 0, worker.output()[-3_000:]
            running[place] = start(place)
        case "broker":
            daemon.kill()
            threading.Event().wait(chance.choice((0.0, 1.0)))
            daemon.start()


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_counts_are_exact(
    protocol: str, daemon: StockDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of_this_run()
    with capsys.disabled():
        print(f"\nONCEFLOW_CHAOS_SEED={seed}", flush=True)
    chance = random.Random(seed)
    address = daemon.bootstrap_servers
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic("in", PARTITIONS, 1), NewTopic("out", PARTITIONS, 1)])
    feeder = Feeder(address)
    with workers_in(tmp_path) as workers:

        def start(place: int) -> Worker:
            return workers.start(PROGRAM, address, str(tmp_path / f"disk-{place}"), protocol)

        running = [start(place) for place in range(WORKERS)]
        feeder.start()
        for _ in range(20):
            threading.Event().wait(chance.uniform(0.1, 1.5))
            trouble(chance, daemon, running, start)
            ended = [w for w in running if w.process.poll() is not None]
            assert not ended, ended[0].output()[-3_000:]
        feeder.stopping.set()
        feeder.join()
        total = sum(feeder.counts.values())
        check_all_is_done(address, total)
        for worker in running:
            assert worker.stop(60) == 0, worker.output()[-3_000:]
    found = collections.Counter(record.value for record in read_all(address, "out"))
    wanted = {b"%s:%d" % (k, n) for k, count in feeder.counts.items() for n in range(1, count + 1)}
    assert found == collections.Counter(wanted)
    with capsys.disabled():
        print(f"{protocol}: {total} records, {len(workers.all)} processes", flush=True)


def check_all_is_done(address: str, total: int) -> None:
    def done() -> bool:
        return len(read_all(address, "out")) >= total

    wait_for(done, f"{total} outputs", 120)
