"""Worker processes for tests, and what a reader of committed data sees afterwards.

A worker is a Python program given as text; it gets the broker's address as its first argument and
whatever else the test passes. Waiting is always for a condition, with a deadline.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onceflow.sdk import Consumer, Producer
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

DEADLINE_S = 60.0
ORDERLY = signal.SIGINT


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until something is so."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        pause.wait(0.02)


class Worker:
    """One process."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def kill(self) -> None:
        """As by a power cut."""
        self.process.kill()
        self.process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, deadline_s: float = 15, number: signal.Signals = ORDERLY) -> int:
        """Orderly end, which gives the partitions up unless it is by SIGTERM; the exit status."""
        self.signal(number)
        return self.process.wait(deadline_s)

    def output(self) -> str:
        return self.log.read_text()


class Workers:
    """Starts processes and leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: list[Worker] = []

    def start(self, program: str, *arguments: str) -> Worker:
        number = len(self.all)
        path = self.directory / f"worker-{abs(hash(program)) % 10**8}.py"
        path.write_text(program)
        worker = Worker(path, *arguments, log=self.directory / f"worker-{number}.log")
        self.all.append(worker)
        return worker


@contextlib.contextmanager
def workers_in(directory: Path) -> Iterator[Workers]:
    workers = Workers(directory)
    try:
        yield workers
    finally:
        for worker in workers.all:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
                worker.process.wait(30)


def fill(
    bootstrap: str, topic: str, values: Sequence[bytes], keys: Sequence[bytes] | None = None
) -> None:
    """Write values and wait for their acknowledgement."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_many(topic, values, keys)
        producer.flush()


def read_all(
    bootstrap: str, topic: str, isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """All records of a topic up to its end, as a reader of this isolation level sees it."""
    found: list[ConsumerRecord] = []
    with Consumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
    ) as consumer:
        numbers = consumer.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + DEADLINE_S
        while any(consumer.position(p) < ends[p] for p in partitions):
            assert time.monotonic() < deadline, f"{topic}: not read to its end {ends}"
            for batch in consumer.poll(100).values():
                found.extend(batch)
    return found


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """Values that a reader of committed data sees."""
    return [record.value for record in read_all(bootstrap, topic)]  # type: ignore[misc]


def wait_for_values(bootstrap: str, topic: str, expected: Sequence[bytes]) -> None:
    """Wait until a reader of committed data sees exactly these values, in any order.

    A broker may answer a commit before its markers are written, so this takes a moment.
    """
    wanted = sorted(expected)
    wait_for(
        lambda: len(committed_values(bootstrap, topic)) >= len(wanted),
        f"{len(wanted)} committed values in {topic}",
    )
    assert sorted(committed_values(bootstrap, topic)) == wanted


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """The group's offsets, 0 where there is none."""
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        found = consumer.committed(wanted)
    offsets = [found.get(partition) for partition in wanted]
    return [0 if offset is None else offset.offset for offset in offsets]


def ends(bootstrap: str, topic: str, partitions: int) -> tuple[list[int], list[int]]:
    """Last stable offsets and high watermarks."""
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    found = []
    for level in ("read_committed", "read_uncommitted"):
        with Consumer(bootstrap_servers=bootstrap, isolation_level=level) as consumer:
            offsets = consumer.end_offsets(wanted)
            found.append([offsets[partition] for partition in wanted])
    return found[0], found[1]
