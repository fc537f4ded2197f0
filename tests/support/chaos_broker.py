"""Kills of a broker under load: workers that go on, kills at random moments, and the reckoning.

`Reckoning` compares what the journals say with what is in the topic at the end. It knows only what
clients were told: acknowledgements, outcomes of transactions, and what readers were given.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import chaos_worker
from chaos_worker import PARTITIONS
from confluent_kafka import TopicPartition
from stock_clients import wait_until
from stock_confluent import ConfluentKit
from stock_daemon import StockDaemon
from stock_probe import metadata_answered, produce_acknowledged

FINISH_S = 150.0
PROBE_TOPIC = "probe"
Place = tuple[int, int]


class Worker:
    """One process of `chaos_worker`."""

    def __init__(
        self, role: str, client: str, bootstrap: str, topic: str, folder: Path, seed: int
    ) -> None:
        self.role = role
        self.name = f"{role}-{client}"
        self.journal = folder / f"{self.name}.journal"
        self._log = folder / f"{self.name}.log"
        command = [sys.executable, chaos_worker.__file__, role, client, bootstrap, topic]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, self.name, str(self.journal), str(seed)], stdout=log, stderr=log
            )

    def lines(self) -> list[list[str]]:
        return [line.split(" ", 3) for line in self.journal.read_text().splitlines()]

    def busy(self) -> bool:
        """Whether the journal has begun; a worker that ended on its own is an error."""
        assert self.process.poll() is None, f"{self.name} ended: {self._log.read_text()}"
        return self.journal.exists() and self.journal.stat().st_size > 0

    def ask_to_finish(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        """Wait for the orderly end."""
        status = self.process.wait(FINISH_S)
        assert status == 0, f"{self.name} failed ({status}): {self._log.read_text()[-3000:]}"
        assert self.journal.read_text().splitlines()[-1].startswith("done")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)


@dataclass(slots=True)
class Recovery:
    """Times from SIGKILL to the first answer and to the first acknowledged write, in ms."""

    answered_ms: list[float] = field(default_factory=list)
    acknowledged_ms: list[float] = field(default_factory=list)

    def kill_and_start(self, daemon: StockDaemon) -> None:
        begin = time.monotonic()
        daemon.kill()
        daemon.spawn()
        wait_until(lambda: metadata_answered(daemon.port), "an answer after the kill")
        self.answered_ms.append((time.monotonic() - begin) * 1000)
        wait_until(
            lambda: produce_acknowledged(daemon.port, PROBE_TOPIC, b"p"), "an acknowledged write"
        )
        self.acknowledged_ms.append((time.monotonic() - begin) * 1000)

    def figures(self) -> dict[str, list[int]]:
        """Minimum, median and maximum."""
        return {
            name: [round(min(all_)), round(statistics.median(all_)), round(max(all_))]
            for name, all_ in (
                ("answered_ms", self.answered_ms),
                ("acknowledged_ms", self.acknowledged_ms),
            )
        }


def kill_often(
    daemon: StockDaemon, kills: int, moments: random.Random, pause_s: tuple[float, float]
) -> Recovery:
    """Kill and start again, that many times, at random moments."""
    recovery = Recovery()
    pause = threading.Event()
    for _ in range(kills):
        pause.wait(moments.uniform(*pause_s))
        recovery.kill_and_start(daemon)
    return recovery


class Reckoning:
    """What the topic holds at the end, and what everybody was told."""

    def __init__(self, bootstrap: str, topic: str, workers: Iterable[Worker]) -> None:
        self.workers = list(workers)
        self.placed = read_to_the_end(bootstrap, topic)
        self.by_producer: dict[str, list[tuple[Place, list[int]]]] = {}
        for place in sorted(self.placed):
            name, *numbers = self.placed[place].split(":")
            self.by_producer.setdefault(name, []).append((place, [int(n) for n in numbers]))
        self.figures: dict[str, int] = {}

    def check(self) -> None:
        for worker in self.workers:
            getattr(self, f"check_{worker.role}")(worker)

    def check_produce(self, worker: Worker) -> None:
        """Everything acknowledged is there once, in order; nothing else is there."""
        lines = worker.lines()
        failed = [line for line in lines if line[0] == "failed"]
        assert failed == [], worker.name
        acknowledged = {int(line[1]) for line in lines if line[0] == "ack"}
        assert acknowledged == set(range(int(lines[-1][1]))), worker.name
        for number in range(PARTITIONS):
            found = [
                sequence
                for (partition, _), (sequence,) in self.by_producer[worker.name]
                if partition == number
            ]
            expected = list(range(number, len(acknowledged), PARTITIONS))
            assert found == expected, difference(worker.name, found, expected)
        self.figures[f"{worker.name}_acknowledged"] = len(acknowledged)

    def check_transact(self, worker: Worker) -> None:
        """Committed: all of it, once, in order. Aborted: nothing. Unknown: one or the other."""
        lines = worker.lines()
        sizes = {int(line[1]): int(line[2]) for line in lines if line[0] == "commit"}
        aborted = {int(line[1]) for line in lines if line[0] == "abort"}
        unknown = {int(line[1]): int(line[2]) for line in lines if line[0] == "unknown"}
        found: dict[int, list[int]] = {}
        last: dict[int, list[int]] = {}
        for (partition, _), record in self.by_producer.get(worker.name, []):
            assert record > last.get(partition, []), f"{worker.name}: {record} out of order"
            last[partition] = record
            found.setdefault(record[0], []).append(record[1])
        assert not aborted & set(found), f"{worker.name}: aborted records are visible"
        for number, size in sizes.items():
            assert sorted(found.pop(number, [])) == list(range(size)), f"{worker.name}: {number}"
        for number, indexes in found.items():
            assert sorted(indexes) == list(range(unknown[number])), f"{worker.name}: {number}"
        self.figures[f"{worker.name}_committed"] = len(sizes)
        self.figures[f"{worker.name}_aborted"] = len(aborted)
        self.figures[f"{worker.name}_unknown"] = len(unknown)

    def check_read(self, worker: Worker) -> None:
        """The reader was given every record once, in order, and nothing else."""
        streams = streams_of(worker)
        for number in range(PARTITIONS):
            expected = [
                (place[1], value) for place, value in sorted(self.placed.items())
                if place[0] == number
            ]  # fmt: skip
            found = streams.get(number, [])
            assert found == expected, difference(worker.name, found, expected)
        self.figures[f"{worker.name}_records"] = sum(map(len, streams.values()))

    def check_group(self, worker: Worker) -> None:
        """The member was given every record at least once, and never something else."""
        seen = {
            (number, offset): value
            for number, stream in streams_of(worker).items()
            for offset, value in stream
        }
        assert seen == self.placed, worker.name


def streams_of(worker: Worker) -> dict[int, list[tuple[int, str]]]:
    """What a reader was given, by partition."""
    streams: dict[int, list[tuple[int, str]]] = {}
    for line in worker.lines():
        if line[0] == "at":
            streams.setdefault(int(line[1]), []).append((int(line[2]), line[3]))
    return streams


def difference(name: str, found: list[object], expected: list[object]) -> str:
    """Where two long lists part."""
    pairs = zip(found, expected, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    return (
        f"{name}: {len(found)} for {len(expected)}, they part at {at}: "
        f"{found[at : at + 3]} for {expected[at : at + 3]}"
    )


def read_to_the_end(bootstrap: str, topic: str) -> dict[Place, str]:
    """All committed records, as confluent-kafka reads them; each place once."""
    consumer = ConfluentKit().consumer(bootstrap, f"{topic}-reckoning")
    asker = ConfluentKit().consumer(bootstrap, f"{topic}-reckoning")
    found: dict[Place, str] = {}
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign({(topic, number): 0 for number in range(PARTITIONS)})
    ends = [asker.consumer.get_watermark_offsets(each, 30)[1] for each in partitions]

    def at_end() -> bool:
        for row in consumer.poll(0.2):
            place = (row.partition, row.offset)
            assert place not in found, f"{place} was read twice"
            found[place] = (row.value or b"").decode()
        positions = consumer.consumer.position(partitions)
        return all(at.offset >= end for at, end in zip(positions, ends, strict=True))

    wait_until(at_end, "the end of the topic", 120)
    consumer.close()
    asker.close()
    return found


def report(what: str, seed: int, figures: dict[str, object]) -> str:
    """One JSON line."""
    return json.dumps({"chaos": what, "seed": seed, **figures})
