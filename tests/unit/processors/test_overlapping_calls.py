"""Goal: calls of different keys overlap, and everything is exactly-once and in order all the same.

Method: real worker, ledger, session, tasks and stores over the in-memory cluster, in an event loop
on its virtual clock (``virtual_loop``). Handlers sleep for drawn times, so calls end in another
order than they begin. Whatever interrupts them (failures, aborts, rebalances at every poll, stops,
a worker that dies), the committed outputs are those of a plain loop over the input.
"""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from processor_worlds import World
from virtual_loop import rest, run_async, run_in

from onceflow.processors import (
    App,
    Context,
    DeclarationError,
    ListState,
    MapState,
    OnError,
    Output,
    ProcessingError,
    Retries,
    State,
    Timers,
    Tumbling,
    minutes,
)
from onceflow.processors.calls import InPlace
from onceflow.processors.errors import OutputRefusedError
from onceflow.processors.overlap import ROW_PER_CALL
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    MessageTooLargeError,
    ProducerFencedError,
    TransactionAbortableError,
)
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
KEYS = 7
COUNT = 60


class Watch:
    """What goes on in handlers: how many at once, and by key."""

    def __init__(self) -> None:
        self.now: collections.Counter[str] = collections.Counter()
        self.most = 0
        self.order: list[tuple[str, str]] = []

    async def call(self, key: str, value: str, sleep_s: float) -> None:
        assert not self.now[key], f"two calls of {key} at once"
        self.now[key] += 1
        self.most = max(self.most, self.now.total())
        self.order.append((key, value))
        try:
            await rest(sleep_s)
        finally:
            self.now[key] -= 1


def world_of(tmp_path: Path, partitions: int = 1) -> World:
    world = World(tmp_path, "in", partitions=partitions)
    world.idle_polls_max = 900  # Polls are empty while calls go on.
    return world


def fill(world: World, count: int = COUNT, partition: int = 0) -> list[tuple[bytes, bytes]]:
    chance = random.Random(partition + count)
    found = []
    for number in range(count):
        key = b"k%d-%d" % (partition, chance.randrange(KEYS))
        world.cluster.put("in", b"v%d" % number, key=key, partition=partition)
        found.append((key, b"v%d" % number))
    return found


def counting(
    watch: Watch,
    failures: dict[str, int] | None = None,
    concurrency: int = 8,
    **settings: object,
) -> App:
    """Counts by key while it sleeps; raises on named values as often as told."""
    app = App("counts", **settings)  # type: ignore[arg-type]
    left = failures if failures is not None else {}

    @app.processor(
        "in",
        to="out",
        concurrency=concurrency,
        retries=Retries(3, backoff_ms=70),
        dead_letter="dead",
    )
    async def count(value: str, key: str, seen: State[int], parts: MapState[int, str]) -> str:
        before = seen.get(0)
        await watch.call(key, value, random.Random(f"{key}{value}").choice((0, 0.001, 0.02, 0.2)))
        assert seen.get(0) == before
        seen.set(before + 1)
        parts[before] = value
        if left.get(value, 0) > 0:
            left[value] -= 1
            raise ValueError(value)
        assert list(parts) == list(range(before + 1))
        return f"{key}:{value}:{before + 1}"

    return app


def model(records: list[tuple[bytes, bytes]]) -> list[bytes]:
    counts: collections.Counter[bytes] = collections.Counter()
    found = []
    for key, value in records:
        counts[key] += 1
        found.append(b"%s:%s:%d" % (key, value, counts[key]))
    return found


def test_calls_of_different_keys_overlap_up_to_the_bound(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    watch = Watch()
    app = App("slow")

    @app.processor("in", to="out", concurrency=25)
    async def slow(value: str, key: str) -> str:
        await watch.call(key, value, 0.05)
        return value

    for number in range(100):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    ended_ms: list[int] = []
    world.cluster.do("commit_transaction", lambda: ended_ms.append(world.now_ms), times=50)
    run_async(world, app)
    assert watch.most == 25
    assert world.cluster.values("out") == [b"%d" % number for number in range(100)]
    assert ended_ms[-1] - 1_000_000 < 4 * 50 + 200  # One after the other: 5,000.


def test_outputs_state_and_order_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    watch = Watch()
    records = fill(world)
    run_async(world, counting(watch))
    assert watch.most > 1
    assert world.cluster.values("out") == model(records)  # In the order of the input.
    for number in range(KEYS):
        key = f"k0-{number}"
        wanted = [v.decode() for k, v in records if k.decode() == key]
        assert [value for k, value in watch.order if k == key] == wanted


def test_a_slow_call_holds_up_its_own_key_alone(tmp_path: Path) -> None:
    """A key goes on behind a record that is done and waits for a slow one in front of it."""
    world = world_of(tmp_path)
    done: list[str] = []
    app = App("slow")

    @app.processor("in", to="out", concurrency=4)
    async def slow(value: str, seen: State[int], all_: ListState[str]) -> str:
        await rest(3 if value == "slow" else 0.01)
        seen.set(seen.get(0) + 1)
        all_.append(value)
        done.append(value)
        return f"{value}:{seen.get()}:{len(all_)}"

    world.cluster.put("in", b"slow", key=b"a")
    for number in range(10):
        world.cluster.put("in", b"%d" % number, key=b"b")
    world.cluster.put("in", b"behind", key=b"a")
    run_async(world, app)
    assert done == [*map(str, range(10)), "slow", "behind"]
    assert world.cluster.values("out") == [
        b"slow:1:1",
        *(b"%d:%d:%d" % (n, n + 1, n + 1) for n in range(10)),
        b"behind:2:2",
    ]


def test_a_commit_covers_what_stands_in_front_of_the_first_record_that_is_not_done(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path)
    app = App("prefix", commit_interval_ms=10)
    seen: list[tuple[int | None, list[object]]] = []

    @app.processor("in", to="out", concurrency=8)
    async def slow(value: str) -> str:
        await rest(0.5 if value == "2" else 0.001)
        if value == "2":
            seen.append((world.cluster.offset("in"), world.cluster.values("out")))
        return value

    for number in range(6):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    run_async(world, app)
    assert seen == [(2, [b"0", b"1"])]
    assert world.cluster.values("out") == [b"%d" % number for number in range(6)]


def test_a_worker_that_dies_leaves_nothing_of_calls_in_flight(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    dying = world.make(counting(Watch(), commit_interval_ms=10))

    async def die() -> None:
        running = asyncio.create_task(dying.run(InPlace()))
        while not world.cluster.offset("in"):
            await rest(0.01)
        running.cancel()
        await asyncio.wait([running])

    run_in(world, die())
    assert 0 < (world.cluster.offset("in") or 0) < COUNT
    run_async(world, counting(Watch()))
    assert world.cluster.values("out") == model(records)


# Failures ----------------------------------------------------------------------------------------


def test_a_retry_waits_beside_the_others(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    run_async(world, counting(Watch(), {"v3": 2, "v10": 3, "v11": 1}))
    assert world.cluster.values("out") == model(records)


def test_a_record_that_fails_for_good_leaves_nothing_of_itself(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    run_async(world, counting(Watch(), {"v3": 99, "v10": 99}))
    dead = [(b"v3", 3), (b"v10", 10)]
    assert world.cluster.values("dead") == [value for value, _ in dead]
    left = [pair for pair in records if pair[1] not in (b"v3", b"v10")]
    assert world.cluster.values("out") == model(left)
    (letter, _) = world.cluster.logs[TopicPartition("dead", 0)]
    assert dict(letter.headers)["onceflow.error.attempts"] == b"4"  # type: ignore[call-overload]


def test_a_stop_leaves_exactly_what_stands_in_front_of_the_record(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    calls: collections.Counter[str] = collections.Counter()

    def app_of(bad: str) -> App:
        app = App("stops")

        @app.processor("in", to="out", concurrency=8)
        async def step(value: str) -> str:
            calls[value] += 1
            await rest(0 if value == bad else 0.05)
            if value == bad:
                raise ValueError(value)
            return value

        return app

    for number in range(20):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    with pytest.raises(ProcessingError, match=r"step failed at in-0@5 after 1 attempt"):
        run_async(world, app_of("5"))
    assert world.cluster.offset("in") == 5
    assert world.cluster.values("out") == [b"%d" % number for number in range(5)]
    assert calls["19"] == 0  # Nothing is begun any more once it was the record's turn.
    run_async(world, app_of(""))
    assert world.cluster.values("out") == [b"%d" % number for number in range(20)]


def test_attempts_go_on_being_counted_over_an_abort(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    attempts: list[int] = []
    app = App("counted", commit_interval_ms=10)

    @app.processor("in", to="out", concurrency=4, dead_letter="dead", retries=Retries(2, 500))
    async def handle(value: str, context: Context) -> str:
        if value == "bad":
            attempts.append(context.attempt)
            raise ValueError(value)
        await rest(0)
        return value

    world.cluster.put("in", b"a", key=b"a")
    world.cluster.put("in", b"bad", key=b"b")
    world.cluster.fail("send_offsets_to_transaction", TransactionAbortableError())
    run_async(world, app)
    assert attempts == [1, 2, 3]
    assert world.cluster.values("out") == [b"a"]
    assert world.cluster.values("dead") == [b"bad"]


def test_an_output_that_brokers_refuse_is_found_and_given_up(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = App("large", commit_interval_ms=10)

    @app.processor("in", to="out", concurrency=4, dead_letter="dead")
    async def same(value: str) -> Output:
        await rest(0.001)
        return Output(value, topic="refusing" if value == "5" else "out")

    for number in range(12):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    world.cluster.fail("send refusing", MessageTooLargeError(), times=20)
    run_async(world, app)
    assert world.cluster.values("out") == [b"%d" % n for n in range(12) if n != 5]
    assert world.cluster.values("dead") == [b"5"]


def test_functions_behind_each_other_are_one_record(tmp_path: Path) -> None:
    """A chain and a second function of the topic: all of a record, or nothing; bounds of each."""
    world = world_of(tmp_path)
    ahead, behind = Watch(), Watch()
    app = App("chain")

    @app.processor("in")
    def parse(value: str, key: str) -> str:
        return f"{key}/{value}"

    @app.processor(parse, concurrency=6)
    async def look_up(value: str, key: str) -> str:
        await ahead.call(key, value, random.Random(value).choice((0.001, 0.05)))
        return value

    failures = {"k0-1": 2}

    @app.processor(look_up, to="out", retries=Retries(5, 30))
    async def last(value: str, key: str, seen: State[int]) -> str:
        await behind.call(value, value, 0.001)
        seen.set(seen.get(0) + 1)
        if failures.get(key, 0) > 0:
            failures[key] -= 1
            raise ValueError(value)
        return f"{value}:{seen.get()}"

    @app.processor("in", to="sizes")
    def size(value: bytes) -> int:
        return len(value)

    records = fill(world)
    run_async(world, app)
    assert ahead.most > 1
    assert behind.most == 1  # Without concurrency= its calls follow each other.
    wanted = [
        b"%s/%s:%s" % (*p, m.split(b":")[2]) for p, m in zip(records, model(records), strict=True)
    ]
    assert world.cluster.values("out") == wanted
    assert world.cluster.values("sizes") == [b"%d" % len(value) for _, value in records]


# Interruptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("other", [False, True], ids=["nobody", "another worker"])
@pytest.mark.parametrize("at", range(24))
def test_a_partition_goes_and_comes_back_while_calls_go_on(
    tmp_path: Path, at: int, other: bool, lost: bool
) -> None:
    world = world_of(tmp_path / "a", partitions=2)
    records = fill(world, 24, 0), fill(world, 24, 1)
    watch = Watch()

    def go() -> None:
        world.cluster.rebalance([IN1], lost=lost)
        if not other:
            world.cluster.rebalance([IN0, IN1])

    def come() -> None:
        if other:
            members, world.cluster.members = world.cluster.members, []
            peer = World(world.state_dir.with_name("b"))
            peer.cluster, peer.topics, peer.configs = world.cluster, world.topics, world.configs
            peer.now_ms, peer.owned = world.now_ms, [IN0]
            peer.idle_polls_max = 900
            # It runs to its end beside the loop of the first one, on a clock of its own.
            run_beside(peer, counting(Watch(), {"v5": 1}, commit_records=5))
            world.cluster.members = members
            world.cluster.rebalance([IN0, IN1])

    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", go)
    world.cluster.do("poll", come)
    run_async(world, counting(watch, {"v2": 2, "v9": 1}, commit_interval_ms=30))
    found = world.cluster.values("out")
    assert collections.Counter(found) == collections.Counter(
        [*model(records[0]), *model(records[1])]
    )
    for partition in range(2):
        prefix = b"k%d-" % partition
        wanted = model(records[partition])
        assert [v for v in found if v.startswith(prefix)] == wanted  # type: ignore[attr-defined]
        assert world.cluster.offset("in", partition) == 24


def run_beside(world: World, app: App) -> None:
    """Run a worker to its end from within the loop of another one."""
    running = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(None)
    task = asyncio.tasks._current_tasks.pop(running, None)  # type: ignore[attr-defined]
    try:
        run_async(world, app)
    finally:
        asyncio.events._set_running_loop(running)
        if task is not None:
            asyncio.tasks._current_tasks[running] = task  # type: ignore[attr-defined]


FAULTS: dict[str, Callable[[World], None]] = {
    "flush": lambda world: world.cluster.fail("flush", TransactionAbortableError()),
    "offsets": lambda world: world.cluster.fail(
        "send_offsets_to_transaction", TransactionAbortableError()
    ),
    "commit": lambda world: world.cluster.fail("commit_transaction", TransactionAbortableError()),
    "answer lost": lambda world: world.cluster.fail(
        "commit_transaction", CommitOutcomeUnknownError(), after=True, times=2
    ),
    "request lost": lambda world: world.cluster.fail(
        "commit_transaction", CommitOutcomeUnknownError(), times=2
    ),
    "fenced": lambda world: world.cluster.fail("commit_transaction", ProducerFencedError()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(0, 20, 2))
def test_a_unit_fails_while_calls_go_on(tmp_path: Path, at: int, fault: str) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: FAULTS[fault](world))
    run_async(world, counting(Watch(), {"v2": 1, "v30": 2}, commit_interval_ms=20))
    assert world.cluster.values("out") == model(records)
    assert world.cluster.offset("in") == COUNT


def test_a_dropped_call_adds_nothing_and_ends_before_its_record_begins_again(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path)
    events: list[str] = []
    refused: list[BaseException] = []
    app = App("dropped", commit_interval_ms=10)

    @app.processor("in", to="out", concurrency=4)
    async def handle(value: str, seen: State[int], context: Context) -> str:
        if value == "a":
            return value
        events.append("begins")
        try:
            await rest(0.3)
        except asyncio.CancelledError:
            await rest(0.1)  # Takes its time.
            seen.set(100)
            context.send("stray", "stray")
            events.append("ends")
            return "stray"
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get(0)}"

    world.cluster.put("in", b"a", key=b"a")
    world.cluster.put("in", b"b", key=b"b")
    world.cluster.fail("send_offsets_to_transaction", TransactionAbortableError())
    run_async(world, app)
    assert events == ["begins", "ends", "begins"]
    assert world.cluster.values("out") == [b"a", b"b1"]
    assert not world.cluster.values("stray")
    assert not refused


def test_a_forgotten_task_of_a_call_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    refused: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []
    app = App("stray")

    @app.processor("in", to="out", concurrency=2)
    async def handle(value: str, seen: State[int], context: Context) -> str:
        async def later() -> None:
            await rest(0.02)
            for write in (lambda: seen.set(9), lambda: context.send("stray", "x")):
                try:
                    if value == "a":
                        write()
                except OutputRefusedError as error:
                    refused.append(error)

        tasks.append(asyncio.create_task(later()))
        await rest(0.001 if value == "a" else 0.1)
        return value

    world.cluster.put("in", b"a", key=b"a")
    world.cluster.put("in", b"b", key=b"b")
    run_async(world, app)
    assert len(refused) == 2
    assert not world.cluster.values("stray")


def test_stop_lets_calls_in_hand_end_and_commits_them(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    begun: list[str] = []
    app = App("stopped")

    @app.processor("in", to="out", concurrency=4)
    async def handle(value: str) -> str:
        begun.append(value)
        if value == "3":
            app.stop()
        await rest(0.5)
        return value

    for number in range(20):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    run_async(world, app)
    assert begun == ["0", "1", "2", "3"]
    assert world.cluster.values("out") == [b"0", b"1", b"2", b"3"]
    assert world.cluster.offset("in") == 4


def test_stop_drops_calls_that_take_too_long(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    cancelled: list[str] = []
    app = App("stopped", shutdown_timeout_ms=1_000)

    @app.processor("in", to="out", concurrency=4)
    async def handle(value: str) -> str:
        app.stop()
        try:
            await rest(60 if value == "1" else 0.1)
        except asyncio.CancelledError:
            cancelled.append(value)
            raise
        return value

    for number in range(4):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    run_async(world, app)
    assert cancelled == ["1"]
    assert world.cluster.values("out") == [b"0"]  # What stands in front of it.
    assert world.cluster.offset("in") == 1
    assert world.now_ms < 1_002_000


def test_what_goes_ahead_of_a_slow_call_is_bounded(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    begun: list[str] = []
    at_the_end: list[int] = []
    app = App("bounded", max_poll_records=10)

    @app.processor("in", to="out", concurrency=2)
    async def handle(value: str) -> str:
        begun.append(value)
        if value == "0":
            await rest(5)
            at_the_end.append(len(begun))
            at_the_end.append(world.cluster.members[0].positions[IN0])
        return value

    for number in range(200):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    run_async(world, app)
    row = 2 * ROW_PER_CALL
    assert at_the_end[0] == row
    assert at_the_end[1] <= row + 20  # The partition is paused: one poll more than is kept.
    assert world.cluster.values("out") == [b"%d" % number for number in range(200)]


# Declarations, and tests without a broker --------------------------------------------------------


def declares_on(app: App, **options: object) -> Callable[..., object]:
    return app.processor("in", to="out", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [0, -1, True, "8", 10_001, None])
def test_bounds_of_concurrency(given: object) -> None:
    async def step(value: str) -> str:
        return value

    with pytest.raises(DeclarationError, match="must be a whole number from 1 to 10,000"):
        declares_on(App("a"), concurrency=given)(step)


def test_what_cannot_overlap_is_refused_with_the_remedy() -> None:
    def blocking(value: str) -> str:
        return value

    async def timing(value: str, timers: Timers) -> str:
        return value

    async def one(value: int) -> int:
        return value

    with pytest.raises(
        DeclarationError, match=r"only calls of async functions overlap; declare it with async def"
    ):
        declares_on(App("a"), concurrency=2)(blocking)
    with pytest.raises(DeclarationError, match=r"timers need the records of all keys in order"):
        declares_on(App("a"), concurrency=2)(timing)
    with pytest.raises(DeclarationError, match=r"concurrency= and batch= cannot be combined"):
        declares_on(App("a"), concurrency=2, batch=10)(one)
    with pytest.raises(DeclarationError, match=r"aggregate needs the records of all keys"):
        App("a").aggregate("in", window=Tumbling(minutes(1)), concurrency=2)  # type: ignore[call-arg]
    app = App("a")
    app.processor("in", concurrency=2)(one)

    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    with pytest.raises(
        DeclarationError, match=r"one: concurrency= cannot be used with total .* write to a topic"
    ):
        app.aggregate(one, window=Tumbling(minutes(1)), to="sums")(total)
    with pytest.raises(
        DeclarationError, match=r"one: concurrency= cannot be used with total .* write to a topic"
    ):
        app.aggregate("in", window=Tumbling(minutes(1)), to="sums")(total)


async def test_the_test_driver_runs_the_same_code() -> None:
    watch = Watch()
    app = App("driven")

    @app.processor(
        "in", to="out", concurrency=4, retries=Retries(2, 60_000, 60_000), dead_letter="dead"
    )
    async def count(value: str, key: str, seen: State[int]) -> str:
        await watch.call(key, value, 0.005)
        seen.set(seen.get(0) + 1)
        if value == "bad":
            raise ValueError(value)
        return f"{key}{value}{seen.get()}"

    driver = TestDriver(app)
    sent = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "bad"), ("b", "2")]
    await asyncio.gather(*(driver.send_async("in", value, key=key) for key, value in sent))
    assert watch.most > 1
    assert driver.values("out") == [b"a11", b"b11", b"a22", b"b22"]
    assert driver.state("count", "seen") == {b"a": 2, b"b": 2}
    assert [letter.value for letter in driver.dead_letters("dead")] == [b"bad"]
    assert driver.now_ms >= 120_000  # The retries moved the clock, and nothing waited.


async def test_the_test_driver_stops_at_a_failure_and_goes_on() -> None:
    app = App("driven")

    @app.processor("in", to="out", concurrency=4, on_error=OnError.STOP)
    async def step(value: str) -> str:
        await rest(0)
        if value == "bad":
            raise ValueError(value)
        return value

    driver = TestDriver(app)
    with pytest.raises(ProcessingError):
        await driver.send_async("in", "bad", key="a")
    await driver.send_async("in", "good", key="b")
    assert driver.values("out") == [b"good"]
