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
from onceflow.processors import App, State
from onceflow.processors.changelog import Restorer
from onceflow.processors.copies import Copies
from onceflow.processors.kafka_services import KafkaServices
from onceflow.processors.stores.lmdb import try_lock
from onceflow.processors.task import TaskId
from onceflow.processors.task_stores import TaskStores
from onceflow.sdk import Consumer, Producer
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import TopicPartition

PARTITIONS = 4
KEYS = 200
MARKERS = 20
"""Offsets at the end of a changelog that may be markers alone."""
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
        worker = app._worker
        placing = None if worker is None else worker._copies.assignor
        held = {} if placing is None else {str(id): n for id, n in placing.facts.sums.items()}
        now = None if picture is None else [sorted(picture.copies.items()), sorted(held.items())]
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
    last = _told(worker)
    return {} if last is None else dict(last[0])


def _told(worker: Worker) -> list[list[tuple[str, int]]] | None:
    told = re.findall(r"^copies (.*)$", worker.output(), re.M)
    return json.loads(told[-1]) if told else None


def changelog_ends(broker: Broker) -> dict[TopicPartition, int]:
    partitions = [TopicPartition(CHANGELOG, number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        return consumer.end_offsets(partitions)


def have_all(broker: Broker, *several: Worker) -> bool:
    """Whether each copy holds what is in its changelog now, but for the markers at its end."""
    ends = changelog_ends(broker)
    held = [dict(told[1]) for told in map(_told, several) if told is not None]
    copied = [
        (each, name) for each, worker in zip(held, several, strict=False) for name in copies(worker)
    ]
    return len(held) == len(several) and all(
        each.get(name, 0) >= ends[TopicPartition(CHANGELOG, int(name[3:]))] - MARKERS
        for each, name in copied
    )


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


def restored_by_partition(worker: Worker, after: int) -> list[tuple[TopicPartition, int, int]]:
    """Partitions and ranges of offsets that a worker restored behind a place in its log."""
    found = re.findall(
        rf"^restoring {CHANGELOG}-(\d+): offsets (\d+) to (\d+)$", worker.output()[after:], re.M
    )
    return [
        (TopicPartition(CHANGELOG, int(number)), int(begin), int(end))
        for number, begin, end in found
    ]


def restored(worker: Worker, after: int) -> list[tuple[int, int]]:
    """The ranges alone."""
    return [(begin, end) for _, begin, end in restored_by_partition(worker, after)]


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_a_copy_takes_over_when_the_owner_is_killed(
    broker: Broker, workers: Workers, tmp_path: Path, store: str
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1", store)
    second = start(broker, workers, tmp_path / "disk-2", store)
    counts.put(3)
    wait_for(counts.are_right, "all is counted")
    wait_for(lambda: are_even(first, second), "each copies the other's tasks")
    wait_for(lambda: have_all(broker, first, second), "the copies have caught up")
    place = len(second.output())
    first.kill()
    wait_for(lambda: len(assigned(second)) == PARTITIONS, "the second takes over")
    counts.put(2)
    wait_for(counts.are_right, "the state went on where it was")
    for begin, end in restored(second, place):
        assert begin > KEYS / PARTITIONS, "it had a copy of what was committed"
        assert end - begin <= MARKERS, "only markers are left"
    assert second.stop() == 0


def test_what_was_never_committed_does_not_count_in_a_copy(
    broker: Broker, workers: Workers, tmp_path: Path
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1")
    second = start(broker, workers, tmp_path / "disk-2")
    counts.put()
    wait_for(counts.are_right, "all is counted")
    wait_for(lambda: are_even(first, second), "each copies the other's tasks")
    wait_for(lambda: have_all(broker, first, second), "the copies have caught up")
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
        assert begin > KEYS / PARTITIONS
        assert end - begin <= MARKERS
    counts.put()
    wait_for(counts.are_right, "the state went with them")
    assert (first.stop(), second.stop()) == (0, 0)


def test_workers_that_all_stopped_get_back_what_their_disks_hold(
    broker: Broker, workers: Workers, tmp_path: Path
) -> None:
    counts = Counts(broker)
    first = start(broker, workers, tmp_path / "disk-1")
    second = start(broker, workers, tmp_path / "disk-2")
    counts.put(3)
    wait_for(lambda: are_even(first, second) and counts.are_right(), "both are at work")
    wait_for(lambda: have_all(broker, first, second), "the copies have caught up")
    ends = changelog_ends(broker)
    assert (first.stop(), second.stop()) == (0, 0)  # SIGINT leaves the group.
    again = [start(broker, workers, tmp_path / disk) for disk in ("disk-2", "disk-1")]
    counts.put()
    wait_for(lambda: are_even(*again) and counts.are_right(), "both are at work again")
    for worker in again:
        assert not re.search(rf"^following {CHANGELOG}-\d from offset 0$", worker.output(), re.M)
        for partition, begin, _ in restored_by_partition(worker, 0):
            assert begin >= ends[partition] - MARKERS, "what came since is restored, and no more"
    assert [worker.stop() for worker in again] == [0, 0]


def test_what_the_disk_holds_is_told_at_the_start(broker: Broker, tmp_path: Path) -> None:
    app = App(
        "standing", broker.bootstrap_servers, state_dir=tmp_path / "disk", num_standby_replicas=1
    )

    @app.processor("in", to="out")
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return value

    Counts(broker).put()
    app.run(until_end=True)
    topology = app.topology()
    services = KafkaServices(app.settings)
    stores = TaskStores(topology, app.settings, services)
    restorer = Restorer(services.changelog_reader, services.monotonic_s)
    copies = Copies(
        topology, app.settings, stores, restorer, services.monotonic_s, services.wall_ms
    )
    placing = copies.placing()
    assert placing is not None
    assert set(placing.facts.sums) == {TaskId("in", number) for number in range(PARTITIONS)}
    assert all(offsets > 0 for offsets in placing.facts.sums.values())
    lock = try_lock(tmp_path / "disk" / "standing" / "state" / "standing" / "in" / "0.lock")
    assert lock is not None
    with lock:
        assert len(stores.on_disk()) == PARTITIONS - 1, "another worker has one of them open"


def test_settings_that_do_not_go_with_copies_are_refused() -> None:
    for name, value in (
        ("group_protocol", "consumer"),
        ("partition_assignment_strategy", ["range"]),
    ):
        with pytest.raises(ConfigError, match="num_standby_replicas"):
            App("refused", num_standby_replicas=1, **{name: value})  # type: ignore[arg-type]
