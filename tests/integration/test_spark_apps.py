"""Goal: an application gives the same committed output on Spark as in a worker.

Method: each example of processing runs over the same records on two brokers, in a worker and as a
Spark pipeline. All output topics are compared by partition and key: values, headers, timestamps,
order. Further applications show what examples do not: state over restarts, async functions,
startup functions, several partitions.
"""

import asyncio
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_world import read_topic, spark_session, unavailable_reason, wait_until

from onceflow.broker_lite import Broker
from onceflow.processors import App, ListState, MapState, State, Tumbling, seconds
from onceflow.sdk import Producer
from onceflow.spark_integration import QueryFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
START_MS = 1_767_225_600_000
NUMBERS = itertools.count(1)
Records = dict[str, list[tuple[str | None, bytes]]]


def _payments() -> list[tuple[str | None, bytes]]:
    times = ("10:00:05", "10:01:03", "10:00:59", "10:01:15", "10:00:58", "10:02:30", "10:04:00")
    return [
        (shop, b'{"cents":%d,"paid_at":"2026-01-01T%sZ"}' % (place + 1, time.encode()))
        for place, time in enumerate(times)
        for shop in ("tea", "milk", "rice", "salt")
    ]


INPUTS: dict[str, Records] = {
    "task1_transform": {"orders": [(f"k{n % 5}", b"order %d" % n) for n in range(40)]},
    "task2_count": {"clicks": [(f"user{n % 7}", b"x") for n in range(60)]},
    "task5_dead_letter": {
        "payments": [
            *((f"k{n}", b'{"euros":%d}' % n) for n in range(10)),
            ("bad", b'{"dollars":1}'),
            ("worse", b"no json"),
            *((f"k{n}", b'{"euros":%d}' % n) for n in range(10, 14)),
        ]
    },
    "word_count": {"lines": [(str(n), b"to be or not to be") for n in range(8)]},
    "minute_sums": {"payments": _payments()},
    "enrichment": {
        "customers": [(f"c{n}", b'{"name":"Name %d"}' % n) for n in range(6)],
        "orders": [(str(n), b'{"id":"%d","customer_id":"c%d"}' % (n, n % 8)) for n in range(20)],
    },
    "orders_payments": {
        "orders": [
            (str(n % 9), b'{"item":"item %d","at":%d}' % (n, at))
            for n, at in enumerate((0, 60, 90, 100, 130, 200, 4000, 4100, 4200, 8000, 8100, 8200))
        ],
        "payments": [(str(n), b'{"cents":%d,"at":%d}' % (100 * n, 30 + n)) for n in range(6)],
    },
    "click_sessions": {
        "clicks": [
            (user, b'{"page":"%s","at":%d}' % (page, at))
            for page, at in (
                (b"/", 0),
                (b"/tea", 600),
                (b"/", 5000),
                (b"/buy", 9000),
                (b"/a", 9900),
            )
            for user in ("ann", "bob", "cid", "dan")
        ]
    },
    "activity_tracking": {
        "clicks": [
            (f"user{n % 5}", b'{"page":"/%d","at":%d}' % (n * n % 3, n * n * 150))
            for n in range(60)
        ]
        + [("user0", b"no json"), ("user1", b'{"page":"/","at":20}')]
    },
}
"""Records of each example's inputs."""
ONE_PARTITION = ("activity_tracking",)
"""Whose days close by the visits of all partitions, in whatever order these were processed."""


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    with spark_session() as session:
        yield session


def load(name: str) -> App:
    """An example's application."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.app
    assert isinstance(app, App)
    return app


def feed(broker: Broker, records: Records, partitions: int, start_ms: int = START_MS) -> None:
    """Write records with timestamps that do not depend on the run, a second apart."""
    times = itertools.count(start_ms, 1_000)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for topic, pairs in records.items():
            if topic not in broker_topics(broker):
                broker.create_topic(topic, partitions=partitions)
            for key, value in pairs:
                producer.send(
                    topic,
                    value,
                    key=None if key is None else key.encode(),
                    timestamp_ms=next(times),
                )


def broker_topics(broker: Broker) -> set[str]:
    from onceflow.sdk import Admin

    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return set(admin.list_topics())


Seen = dict[tuple[str, int, bytes | None], list[tuple[object, ...]]]
ERRORS = "onceflow.error."


def seen(broker: Broker, app: App) -> Seen:
    """Committed outputs by topic, partition and key, in order."""
    found: Seen = defaultdict(list)
    topology = app.topology()
    for topic in topology.output_topics:
        for record in read_topic(broker.bootstrap_servers, topic):
            headers = [h for h in record.headers if h[0] != f"{ERRORS}traceback"]
            where = (topic, record.partition, record.key)
            found[where].append((record.value, record.timestamp_ms, headers))
    return dict(found)


def in_worker(app: App, broker: Broker, state_dir: Path) -> None:
    app.configure(bootstrap_servers=broker.bootstrap_servers, state_dir=state_dir)
    report = app.run(until_end=True)
    assert report.reached_end


def on_spark(app: App, broker: Broker, spark: "SparkSession", checkpoint: Path) -> None:
    app.configure(bootstrap_servers=broker.bootstrap_servers)
    app.to_spark(spark, checkpointLocation=str(checkpoint)).run(until_end=True)


def run_on_both(
    make: Callable[[], App],
    portions: list[Records],
    spark: "SparkSession",
    tmp_path: Path,
    partitions: int = 2,
) -> tuple[Seen, Seen]:
    """Run an application over portions of records, with a restart after each; both outputs."""
    with Broker() as ours, Broker() as theirs:
        for number, portion in enumerate(portions):
            start_ms = START_MS + number * 50_000
            feed(ours, portion, partitions, start_ms)
            feed(theirs, portion, partitions, start_ms)
            in_worker(make(), ours, tmp_path / "state")
            on_spark(make(), theirs, spark, tmp_path / "checkpoint")
        return seen(ours, make()), seen(theirs, make())


def in_any_order(found: Seen) -> Seen:
    """Outputs without their order: what is written under another key comes from many partitions."""
    return {where: sorted(records, key=repr) for where, records in found.items()}


SHORT = ("task5_dead_letter", "enrichment")
"""Examples that run in each test run; Spark takes some ten seconds for each."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.chaos) for n in INPUTS]
)
def test_an_example_gives_the_same_on_both_engines(
    name: str, spark: "SparkSession", tmp_path: Path
) -> None:
    partitions = 1 if name in ONE_PARTITION else 2
    ours, theirs = run_on_both(lambda: load(name), [INPUTS[name]], spark, tmp_path, partitions)
    assert ours, "the example wrote nothing"
    if load(name).topology().repartition_topics:
        ours, theirs = in_any_order(ours), in_any_order(theirs)
    assert theirs == ours


def evolving() -> App:
    """State of three kinds, an async function, a startup function, and windows, in one task."""
    app = App("evolving")

    class Prefix:
        text = "p"

    @app.startup
    def prefix() -> Prefix:
        return Prefix()

    @app.processor("words", to="seen")
    async def see(
        word: str, key: str, words: ListState[str], counts: MapState[str, int], given: Prefix
    ) -> str:
        await asyncio.sleep(0)
        words.append(word)
        counts[word] = counts.get(word, 0) + 1
        return f"{given.text} {key} {len(words)} {word} {counts[word]}"

    @app.aggregate("words", window=Tumbling(seconds(30)), to="sums", late="words-late")
    def many(word: str, count: int = 0) -> int:
        return count + 1

    return app


def test_state_and_open_windows_outlive_a_restart(spark: "SparkSession", tmp_path: Path) -> None:
    """Portions overlap in time, so that the second one has late records of closed windows."""
    portions = [
        {"words": [(f"k{n % 3}", b"word%d" % (n % 4)) for n in range(count)]} for count in (70, 20)
    ]
    ours, theirs = run_on_both(evolving, portions, spark, tmp_path)
    assert {topic for topic, _, _ in ours} == {"seen", "sums", "words-late"}
    assert theirs == ours


def swelling() -> App:
    """Outputs that are much larger than records, with state."""
    app = App("swelling")

    @app.processor("in", to="out")
    def swell(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{seen.get()} " + value * 30_000

    return app


@pytest.mark.chaos
def test_state_is_right_where_a_micro_batch_is_computed_twice(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """It is expected to be small, so the driver is to send it; it is not, so tasks do."""
    portion: Records = {"in": [(f"k{n % 4}", b"x") for n in range(120)]}
    ours, theirs = run_on_both(swelling, [portion, portion], spark, tmp_path, 1)
    assert sum(map(len, ours.values())) == 240
    assert theirs == ours


def test_what_is_due_by_the_wall_clock_comes_without_records(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with Broker() as broker:
        feed(broker, {"readings": [("attic", b"20.5"), ("attic", b"21.0")]}, 2)
        app = load("silent_sensors")
        app.configure(bootstrap_servers=broker.bootstrap_servers)
        query = app.to_spark(spark, checkpointLocation=str(tmp_path)).start()
        try:
            wait_until(
                lambda: not query.isActive or bool(seen(broker, app)), "an alarm is committed"
            )
        finally:
            query.stop()
        assert query.exception() is None
        ((_, values),) = seen(broker, app).items()
        assert [value for value, _, _ in values] == [b"attic is silent, last reading 21.0"]


def test_a_record_that_fails_ends_the_query_and_nothing_of_its_batch_is_published(
    spark: "SparkSession", tmp_path: Path
) -> None:
    app = App("failing")

    @app.processor("in", to="out")
    def check(value: str) -> str:
        if value == "bad":
            raise ValueError("this one is bad")
        return value

    with Broker() as broker:
        feed(broker, {"in": [("k", b"good"), ("k", b"bad")]}, 1)
        app.configure(bootstrap_servers=broker.bootstrap_servers)
        pipeline = app.to_spark(spark, checkpointLocation=str(tmp_path))
        with pytest.raises(QueryFailedError, match=r"ProcessingError: check failed at in-0@1"):
            pipeline.run(until_end=True)
        assert pipeline.publish.metrics.aborted_attempts == 1
        assert seen(broker, app) == {}


PROGRAM = """
from onceflow.processors import App, State
from shop_on_spark.words import loud

app = App("shop", {address!r})


@app.processor("in", to="out")
def count(value: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return f"{{loud(value)}}{{seen.get()}}"
"""


@pytest.mark.chaos
def test_the_command_runs_an_application_on_executors_of_their_own(tmp_path: Path) -> None:
    """Two executor processes, which run elsewhere and get the application as an archive."""
    package = tmp_path / "shop_on_spark"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("def loud(text):\n    return text.upper()\n")
    with Broker() as broker:
        (package / "app.py").write_text(PROGRAM.format(address=broker.bootstrap_servers))
        feed(broker, {"in": [(f"k{n % 2}", b"a") for n in range(6)]}, 2)
        command = [sys.executable, "-m", "onceflow.cli", "run", "shop_on_spark.app:app"]
        options = ["--engine", "spark", "--master", "local-cluster[2,1,1024]", "--until-end"]
        where = ["--checkpoint", str(tmp_path / "checkpoint"), "--json"]
        done = subprocess.run(
            [*command, *options, *where],
            cwd=tmp_path,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        ended = json.loads(done.stdout.splitlines()[-1])
        assert (ended["event"], ended["rows"], ended["transactions"]) == ("ended", 6, 1)
        values = sorted(r.value or b"" for r in read_topic(broker.bootstrap_servers, "out"))
        assert values == [b"A1", b"A1", b"A2", b"A2", b"A3", b"A3"]


def test_the_command_refuses_what_belongs_to_workers(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("from onceflow.processors import App\napp = App('small')\n")
    command = [sys.executable, "-m", "onceflow.cli", "run", "small:app"]
    for options, told in (
        (["--engine", "spark", "--slot", "a"], "Spark's tasks have no slots"),
        (["--checkpoint", "x"], "--checkpoint and --master belong to --engine spark"),
    ):
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert told in done.stderr
