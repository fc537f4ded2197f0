"""Goal: applications give exactly what their input says while their workers and the brokers are
killed, frozen and restarted, and no worker ends by itself.

Method: three worker processes of one application (``processor_chaos``: counts, windows, joins,
parked retries, overlapping calls, a sink), with handlers that fail for a while, against our broker
and against three nodes of Apache Kafka; a producer goes on writing. Something happens every moment,
drawn from a printed seed (ONCEFLOW_CHAOS_SEED repeats it). Afterwards the committed outputs are
those of plain dictionaries over the input, each once.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import real_kafka
from processor_chaos import HEAD, KINDS, MODELS, PROGRAMS, TAIL, Feeder, prepare, results, topics
from processor_processes import Worker, read_all, wait_for, workers_in
from real_kafka_cluster import NODES, ApacheKafkaCluster
from stock_daemon import StockDaemon

from onceflow.sdk import Admin

WORKERS = 3
TROUBLES, TROUBLES_OF_NODES = 20, 8
PROTOCOLS = ("classic", "consumer")

Pause = threading.Event


def seed_of_this_run() -> int:
    return int(os.environ.get("ONCEFLOW_CHAOS_SEED") or random.randrange(1_000_000))


class Run:
    """One run.

    Args:
        kind: The application.
        protocol: Of its group.
        bootstrap: The brokers.
        hurt: Does something to a broker.
        chance: Decides.
        directory: For programs, logs and state.
    """

    def __init__(
        self,
        kind: str,
        protocol: str,
        bootstrap: str,
        hurt: Callable[[], None],
        chance: random.Random,
        directory: Path,
    ) -> None:
        self.kind = kind
        self.protocol = protocol
        self.bootstrap = bootstrap
        self.hurt = hurt
        self.chance = chance
        self.directory = directory
        self.database = directory / "found.db"
        self.feeder = Feeder(kind, bootstrap)
        self.processes = 0

    def go(self, replicas: int, troubles: int) -> None:
        """Run it, and compare."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics(topics(replicas))
        prepare(self.kind, self.bootstrap, self.database)
        with workers_in(self.directory) as workers:
            program = HEAD + PROGRAMS[self.kind] + TAIL

            def start(place: int) -> Worker:
                disk = str(self.directory / f"disk-{place}")
                arguments = (self.bootstrap, disk, self.protocol, str(self.database))
                return workers.start(program, *arguments)

            running = [start(place) for place in range(WORKERS)]
            self.feeder.start()
            try:
                for _ in range(troubles):
                    Pause().wait(self.chance.uniform(0.1, 1.5))
                    self._trouble(running, start)
                    ended = [w for w in running if w.process.poll() is not None]
                    assert not ended, ended[0].output()[-3_000:]
            finally:
                self.feeder.stopping.set()
                self.feeder.join()
            wanted = MODELS[self.kind](self.feeder.fed)
            wait_for(lambda: len(self._found()) >= len(wanted), f"{len(wanted)} results", 180)
            for worker in running:
                assert worker.stop(60) == 0, worker.output()[-3_000:]
            self.processes = len(workers.all)
        found, expected = collections.Counter(self._found()), collections.Counter(wanted)
        assert (found - expected, expected - found) == ({}, {})
        assert read_all(self.bootstrap, "late") == []

    def _found(self) -> list[object]:
        found = results(self.kind, self.bootstrap, self.database)
        return [each for each in found if each[0] != b"end" and each[2] != b"end"]

    def _trouble(self, running: list[Worker], start: Callable[[int], Worker]) -> None:
        """One thing that goes wrong."""
        place = self.chance.randrange(len(running))
        worker = running[place]
        match self.chance.choice(("kill", "kill", "freeze", "stop", "broker")):
            case "kill":
                worker.kill()
                running[place] = start(place)
            case "freeze":
                worker.signal(signal.SIGSTOP)
                Pause().wait(self.chance.choice((0.3, 2.0)))
                worker.signal(signal.SIGCONT)
            case "stop":
                # Before it is there, a signal ends the interpreter.
                wait_for(
                    lambda: any(sign in worker.output() for sign in ("producer id", "assigned")),
                    "a worker at work",
                    120,
                )
                number = self.chance.choice((signal.SIGTERM, signal.SIGINT))
                assert worker.stop(60, number) == 0, worker.output()[-3_000:]
                running[place] = start(place)
            case "broker":
                self.hurt()


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}", flush=True)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_exact(
    kind: str, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of_this_run()
    tell(capsys, f"ONCEFLOW_CHAOS_SEED={seed} {kind} {protocol}")
    chance = random.Random(seed)
    daemon = StockDaemon(tmp_path / "broker")
    daemon.start()

    def hurt() -> None:
        daemon.kill()
        Pause().wait(chance.choice((0.0, 1.0)))
        daemon.start()

    try:
        run = Run(kind, protocol, daemon.bootstrap_servers, hurt, chance, tmp_path)
        run.go(1, TROUBLES)
    finally:
        daemon.kill()
    tell(
        capsys,
        f"{kind} {protocol}: {len(run.feeder.fed.values)} records, {run.processes} processes",
    )


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_exact_on_three_nodes(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leaders are killed; the group's protocol is drawn."""
    if reason := real_kafka.unavailable_reason():
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    seed = seed_of_this_run()
    chance = random.Random(seed)
    protocol = chance.choice(PROTOCOLS)
    tell(capsys, f"ONCEFLOW_CHAOS_SEED={seed} {kind} {protocol}, three nodes")
    with ApacheKafkaCluster(tmp_path / "cluster") as cluster:

        def hurt() -> None:
            leader = cluster.leader("in", chance.randrange(6))
            node = next(node for node in cluster.nodes if node.number == leader)
            node.stop(kill=True)
            Pause().wait(chance.choice((0.0, 4.0)))
            node.spawn()
            cluster.wait_complete()

        run = Run(kind, protocol, cluster.bootstrap_servers, hurt, chance, tmp_path)
        run.go(NODES, TROUBLES_OF_NODES)
    tell(
        capsys,
        f"{kind} {protocol}: {len(run.feeder.fed.values)} records, {run.processes} processes",
    )
