"""Goal: copies of state on other workers take over when an owner dies, and restore only the rest;
what was never committed does not count there, and neither restarts nor new workers cost more.

Method: worker processes with state directories of their own on the in-process broker. Each prints
how far its copies are; its log tells from where it restores. Owners are killed, restarted and
joined by others, and outputs are compared with counts by key.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import Worker, Workers, committed_values, fill, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.processors import App
from onceflow.sdk import Producer
from onceflow.sdk.errors import ConfigError

PARTITIONS = 4
KEYS = 200
CHANGELOG = "standing-count-seen-changelog"
PROGRAM = """
import json, logging, sys, threading
from onceflow.processors import App, State

logging.basicConfig(level=logging.INFO, format="%(message)s")
app = App(
    "standing", bootstrap_servers=sys.argv[1], state_dir=sys.argv[2], num_standby_replicas=1,
    session_timeout_ms=int(sys.argv[4]), heartbeat_interval_ms=200, commit_interval_ms=50,
    transaction_timeout_ms=2_000,
    acceptable_recovery_lag=int(sys.argv[5]),
)

@app.processor("in", to="out", store=sys.argv[3])
def count(value: str, key: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return f"{key}:{seen.get()}"

def tell():
    told = None
    while True:
        picture = None if app.figures is None else app.figures.picture
        now = None if picture is None else [sorted(picture.copies.items()), picture.is_ready]
        if now != told:
            told = now
            print("copies", json.dumps(now), flush=True)
        threading.Event().wait(0.1)

threading.Thread(target=tell, daemon=True).start()
app.run()
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        broker.create_topic("in", partitions=PARTITIONS)
        broker.create_topic("out", partitions=PARTITIONS)
        yield broker


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def start(
    broker: Broker,
    workers: Workers,
    disk: Path,
    store: str = "lmdb",
    session_ms: int = 2_000,
    lag: int = 10_000,
) -> Worker:
    address = broker.bootstrap_servers
    return workers.start(PROGRAM, address, str(disk), store, str(session_ms), str(lag))


def copies(worker: Worker) -> dict[str, int]:
    """How far the copies of a worker are behind, as it told last."""
    told = re.findall(r"^copies (.*)$", worker.output(), re.M)
    last = json.loads(told[-1]) if told else None
    return {} if last is None else dict(last[0])


def assigned(worker: Worker) -> set[str]:
    """Partitions of the input that a worker has, by its log."""
    found: set[str] = set()
    for kind, names in re.findall(r"^(assigned|revoked|lost) (.+)$", worker.output(), re.M):
        change = set(names.split(", "))
        found = found | change if kind == "assigned" else found - change
    return found


def are_even(*several: Worker) -> bool:
    """Whether the workers share the partitions, and each has caught-up copies of the others'."""
    owned = [assigned(worker) for worker in several]
    copied = [copies(worker) for worker in several]
    return (
        sorted(name for each in owned for name in each) == [f"in-{n}" for n in range(PARTITIONS)]
        and sorted(map(len, owned)) == [PARTITIONS // len(several)] * len(several)
        and sorted(name for each in copied for name in each)
        == [f"in-{n}" for n in range(PARTITIONS)]
        and not any(set(own) & set(other) for own, other in zip(owned, copied, strict=True))
        and all(lag == 0 for each in copied for lag in each.values())
    )


class Counts:
    """What a reader of committed outputs must see."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.bootstrap_servers
        self.seen: Counter[int] = Counter()
        self.wanted: list[bytes] = []

    def put(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            keys = [b"%d" % key for key in range(KEYS)]
            fill(self.address, "in", keys, keys)
            self.seen.update(range(KEYS))
            self.wanted += [b"%d:%d" % (key, self.seen[key]) for key in range(KEYS)]

    def are_right(self) -> bool:
        found = committed_values(self.address, "out")
        assert len(found) <= len(self.wanted)
        return sorted(found) == sorted(self.wanted)


def restored(worker: Worker, after: int) -> list[tuple[int, int]]:
    """Ranges of offsets that a worker restored behind a place in its log."""
    found = re.findall(
        rf"^restoring {CHANGELOG}-\d+: offsets (\d+) to (\d+)$", worker.output()[after:], re.M
    )
    return [(int(begin), int(end)) for begin, end in found]


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_a_copy_takes_over_when_the_owner_is_killed(
    broker: Broker, workers: Workers, tmp_path: Path, store: str
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1", store)
    second = start(broker, workers, tmp_path / "disk-2", store)
    counts.put(3)
    wait_for(counts.are_right, "all is counted")
    wait_for(lambda: are_even(first, second), "the copies have caught up")
    place = len(second.output())
    first.kill()
    wait_for(lambda: len(assigned(second)) == PARTITIONS, "the second takes over")
    counts.put(2)
    wait_for(counts.are_right, "the state went on where it was")
    for begin, end in restored(second, place):
        assert begin > 3 * KEYS / PARTITIONS / 2, "it had a copy of what was committed"
        assert end - begin <= 20, "only markers are left"
    assert second.stop() == 0


def test_what_was_never_committed_does_not_count_in_a_copy(
    broker: Broker, workers: Workers, tmp_path: Path
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1")
    second = start(broker, workers, tmp_path / "disk-2")
    counts.put()
    wait_for(counts.are_right, "all is counted")
    wait_for(lambda: are_even(first, second), "the copies have caught up")
    # A zombie of the first worker: its transaction is open, and another one is aborted.
    with Producer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id="zombie",
        transaction_timeout_ms=60_000,
    ) as zombie:
        for ending in (zombie.abort_transaction, None):
            zombie.begin_transaction()
            for partition in range(PARTITIONS):
                for key in range(KEYS):
                    zombie.send(CHANGELOG, b"nonsense", key=b"%d" % key, partition=partition)
            zombie.flush()
            if ending is not None:
                ending()
        counts.put()
        wait_for(counts.are_right, "the owners go on beside it")
        first.kill()
        wait_for(lambda: len(assigned(second)) == PARTITIONS, "the second takes over")
        zombie.abort_transaction()
    counts.put()
    wait_for(counts.are_right, "its state has nothing of the zombie's")
    assert second.stop() == 0


def test_a_rolling_restart_moves_nothing(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1", session_ms=30_000)
    second = start(broker, workers, tmp_path / "disk-2", session_ms=30_000)
    counts.put()
    wait_for(lambda: are_even(first, second) and counts.are_right(), "both are at work")
    for disk, other in (("disk-2", first), ("disk-1", None)):
        worker, stays = (second, other) if other is not None else (first, second)
        before, held = len(stays.output()), assigned(worker)
        assert worker.stop(number=signal.SIGTERM) == 0
        again = start(broker, workers, tmp_path / disk, session_ms=30_000)
        wait_for(lambda: assigned(again) == held, "it has what it had")  # noqa: B023
        counts.put()
        wait_for(lambda: are_even(stays, again) and counts.are_right(), "its copies too")  # noqa: B023
        assert not re.search(r"^(assigned|revoked|lost) ", stays.output()[before:], re.M)
        first, second = (stays, again) if other is not None else (again, stays)
    assert (first.stop(), second.stop()) == (0, 0)


def test_tasks_move_to_a_new_worker_when_it_has_their_state(
    broker: Broker, workers: Workers, tmp_path: Path
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1", lag=0)
    counts.put(3)
    wait_for(counts.are_right, "all is counted")
    wait_for(lambda: len(assigned(first)) == PARTITIONS, "by one worker")
    second = start(broker, workers, tmp_path / "disk-2", lag=0)
    wait_for(lambda: are_even(first, second), "the tasks are divided")
    log = second.output()
    moved = re.search(r"^assigned in-", log, re.M)
    followed = re.search(rf"^following {CHANGELOG}-\d from offset 0", log, re.M)
    assert moved is not None
    assert followed is not None
    assert followed.start() < moved.start(), "its copies came first"
    for begin, end in restored(second, 0):
        assert begin > 3 * KEYS / PARTITIONS / 2
        assert end - begin <= 20
    counts.put()
    wait_for(counts.are_right, "the state went with them")
    assert (first.stop(), second.stop()) == (0, 0)


def test_settings_that_do_not_go_with_copies_are_refused() -> None:
    for name, value in (
        ("group_protocol", "consumer"),
        ("partition_assignment_strategy", ["range"]),
    ):
        with pytest.raises(ConfigError, match="num_standby_replicas"):
            App("refused", num_standby_replicas=1, **{name: value})  # type: ignore[arg-type]
