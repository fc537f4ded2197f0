"""Goal: at-least-once loses nothing on real sockets and opens no transaction.

Method: worker processes count by key over our broker and over Apache Kafka, and are killed while
they work. Each value is there at least once, offsets reach the end, and the brokers know of no
transactional id. What a killed predecessor with exactly-once left open is ended by the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, running_broker
from processor_processes import Workers, committed_offsets, fill, read_all, wait_for, workers_in

from onceflow.sdk import Admin

PROGRAM = """
import sys
from onceflow.processors import App, State

bootstrap, directory, group, topic = sys.argv[1:5]
guarantee = {
    "processing_guarantee": "at_least_once", "commit_interval_ms": 50, "session_timeout_ms": 6_000,
}
if sys.argv[5:]:
    guarantee = {
        "commit_interval_ms": 200_000, "transaction_timeout_ms": 250_000,
        "session_timeout_ms": 250_000,
    }
app = App(group, bootstrap, state_dir=directory, heartbeat_interval_ms=300, **guarantee)

@app.processor(topic, to=topic + "-out")
def count(value: bytes, seen: State[int]) -> bytes:
    seen.set(seen.get(0) + 1)
    return value

app.run()
"""


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


@pytest.mark.timeout(240)
def test_killed_workers_lose_nothing(address: str, workers: Workers, tmp_path: Path) -> None:
    topic, group = make_topic(address, 3), fresh("repeating")
    sent: list[bytes] = []

    def feed() -> None:
        more = [b"%d" % number for number in range(len(sent), len(sent) + 300)]
        fill(address, topic, more, [b"k%d" % (int(value) % 20) for value in more])
        sent.extend(more)

    def processed(count: int) -> None:
        wait_for(
            lambda: sum(committed_offsets(address, group, topic, 3)) >= count, f"{count} records"
        )

    arguments = (address, str(tmp_path / "disk"), group, topic)
    for _ in range(3):
        feed()
        worker = workers.start(PROGRAM, *arguments)
        processed(len(sent) - 200)
        worker.kill()
    feed()
    worker = workers.start(PROGRAM, *arguments)
    processed(len(sent))
    assert worker.stop() == 0, worker.output()
    found = [record.value for record in read_all(address, f"{topic}-out")]
    assert set(found) == set(sent)
    with Admin(bootstrap_servers=address) as admin:
        ids = [each.transactional_id for each in admin.list_transactions()]
    assert not [name for name in ids if name.startswith(group)]


@pytest.mark.timeout(240)
def test_transaction_of_a_predecessor_is_ended(
    address: str, workers: Workers, tmp_path: Path
) -> None:
    """Otherwise committed readers of the outputs wait for its timeout, of minutes here."""
    topic, group = make_topic(address, 1), fresh("changed")
    arguments = (address, str(tmp_path / "disk"), group, topic)
    first, more = [b"1", b"2", b"3"], [b"4", b"5"]

    def ongoing() -> list[str]:
        with Admin(bootstrap_servers=address) as admin:
            found = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
        return [name for name in found if name.startswith(group)]

    fill(address, topic, first, [b"k"] * 3)
    worker = workers.start(PROGRAM, *arguments, "exactly once")
    wait_for(lambda: bool(ongoing()), "an open transaction")
    worker.kill()
    fill(address, topic, more, [b"k"] * 2)
    worker = workers.start(PROGRAM, *arguments)
    wait_for(lambda: committed_offsets(address, group, topic, 1) == [5], "all records")
    assert worker.stop() == 0, worker.output()
    assert not ongoing()
    assert [record.value for record in read_all(address, f"{topic}-out")] == first + more
