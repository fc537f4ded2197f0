"""Goal: calls that overlap are exactly-once on real sockets, whatever happens to their workers.

Method: worker processes count by key with an async handler that waits a drawn time, over our broker
and over Apache Kafka; they are killed, stopped in order and joined by others while calls go on.
Each committed output of a key is there once and in its order.
"""

from __future__ import annotations

import collections
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, running_broker
from processor_processes import Workers, committed_offsets, fill, read_all, wait_for, workers_in

from onceflow.sdk.model.consumer_record import ConsumerRecord

PARTITIONS, KEYS = 3, 40

PROGRAM = """
import asyncio, random, sys
from onceflow.processors import App, Retries, State

bootstrap, directory, group, topic = sys.argv[1:5]
app = App(
    group, bootstrap, state_dir=directory, commit_interval_ms=50,
    session_timeout_ms=6_000, transaction_timeout_ms=5_000, heartbeat_interval_ms=300,
)
now = set()

retries = Retries(5, 20, only=(LookupError,))

@app.processor(topic, to=topic + "-out", concurrency=16, retries=retries)
async def count(value: bytes, key: bytes, seen: State[int]) -> bytes:
    assert key not in now, "two calls of a key"
    now.add(key)
    try:
        before = seen.get(0)
        await asyncio.sleep(random.choice((0, 0.001, 0.02)))
        seen.set(before + 1)
        if random.random() < 0.02:
            raise LookupError("for a while")
        return b"%s:%d" % (value, before + 1)
    finally:
        now.discard(key)

print("started", flush=True)
app.run()
print("stopped", flush=True)
"""


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


@pytest.mark.timeout(240)
def test_workers_are_killed_stopped_and_joined_while_calls_go_on(
    address: str, workers: Workers, tmp_path: Path
) -> None:
    chance = random.Random(13)
    topic, group = make_topic(address, PARTITIONS), fresh("overlap")
    sent: collections.Counter[bytes] = collections.Counter()

    def start(number: int) -> int:
        workers.start(PROGRAM, address, str(tmp_path / f"disk-{number}"), group, topic)
        return len(workers.all) - 1

    def feed(count: int) -> None:
        keys = [b"k%d" % chance.randrange(KEYS) for _ in range(count)]
        sent.update(keys)
        fill(address, topic, keys, keys)

    def processed(count: int) -> None:
        wait_for(
            lambda: sum(committed_offsets(address, group, topic, PARTITIONS)) >= count,
            f"{count} records of {sent.total()}",
        )

    feed(300)
    first = start(0)
    processed(20)
    for _ in range(3):
        workers.all[first].kill()
        first = start(0)
        feed(200)
        processed(sent.total() - 250)
    second = start(1)  # Partitions move while calls go on, and back.
    wait_for(lambda: "started" in workers.all[second].output(), "the second worker")
    feed(300)
    processed(sent.total() - 100)
    feed(300)
    assert workers.all[first].stop(30) == 0, workers.all[first].output()
    processed(sent.total() - 200)
    feed(300)
    # Kept partitions wait for the next start of the slot.
    assert workers.all[second].stop(30, signal.SIGTERM) == 0, workers.all[second].output()
    second = start(1)
    processed(sent.total())
    assert workers.all[second].stop(30) == 0, workers.all[second].output()
    found = read_all(address, f"{topic}-out")
    assert {key: [*range(1, count + 1)] for key, count in sent.items()} == counts_of(found)


def counts_of(records: list[ConsumerRecord]) -> dict[bytes, list[int]]:
    """The counts that were written for each key, in the order in which they were."""
    found: dict[bytes, list[int]] = {}
    for record in records:
        key, count = record.value.split(b":")  # type: ignore[union-attr]
        found.setdefault(key, []).append(int(count))
    return found
