"""Goal: an application of ours gives what Kafka Streams gives on the same input.

Method: both read the same random topics on the in-process broker, exactly once, and every committed
result is compared: word counts behind another key, tumbling windows until they close (suppress),
hopping windows with each update, sessions, joins of streams of three kinds, a stream with a table.
Times of windows go back by more than grace. Where both differ by design the input keeps out of it:
sessions and joins get no record later than grace (a closed session of Kafka Streams may grow), and
rows of the table come before the orders (ours reads the table to its end first).
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import java_programs
import pytest
from processor_processes import committed_values
from stock_clients import wait_until

from onceflow.broker_lite.testing import Broker
from onceflow.processors import (
    App,
    Hopping,
    Session,
    State,
    Tumbling,
    Window,
    milliseconds,
)
from onceflow.sdk import Admin, Producer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

INPUTS = ["lines", "values", "clicks", "left", "right", "rows", "orders"]
RESULTS = ["words", "closed", "updates", "sessions", "inner", "some", "all", "enriched"]
END_MS = 100_000
"""Time of the last records, behind everything else, so that windows close."""


@pytest.fixture(scope="module")
def java() -> None:
    if reason := java_programs.unavailable_reason():
        pytest.skip(f"Java programs cannot run here: {reason}")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with Broker(data=tmp_path / "data", settings=settings) as running:
        yield running


def fill(broker: Broker, prefix: str, seed: int) -> int:
    """Write the input; how many records."""
    chance = random.Random(seed)
    base_ms = int(time.time()) // 3_600 * 3_600_000  # A multiple of all sizes of windows.
    count = 0
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:

        def send(topic: str, key: str, value: str, time_ms: int) -> None:
            nonlocal count
            count += 1
            stamp = base_ms + time_ms
            producer.send(
                prefix + topic, value.encode(), key=key.encode(), partition=0, timestamp_ms=stamp
            )

        def times(number: int, back_ms: int) -> int:
            return 500 + number * 6 - 2 * chance.randint(0, back_ms // 2)

        for number in range(300):
            key = chance.choice("abc")
            send("rows", f"{key}{number % 4}", f"row{number}", number)
            send("lines", key, " ".join(chance.choices(["ox", "elk", "cow"], k=3)), 500 + number)
            send("values", key, f"{number}", times(number, 120))
            send("clicks", key, f"{number}", times(number, 40) + number // 20 * 100)
            send(chance.choice(["left", "right"]), key, f"{number}", times(number, 30))
            send("orders", f"{key}{number % 5}", f"order{number}", 1_000 + number)
        for topic in ("values", "clicks", "left", "right"):
            send(topic, "end", "end", END_MS)
        producer.flush()
    return count


def ours(broker: Broker, prefix: str, state_dir: Path) -> App:
    """The same in our words."""
    app = App(f"{prefix}ours", broker.bootstrap_servers, state_dir=state_dir, max_task_idle_ms=500)

    @app.processor(f"{prefix}lines")
    def split(line: str) -> list[str]:
        return line.split(" ")

    @app.processor(split, key=lambda word: word, to=f"{prefix}ours-words")
    def count(word: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{word}={seen.get()}"

    def windows(topic: str, to: str, window: object, emit: str) -> None:
        @app.aggregate(
            f"{prefix}{topic}",
            window=window,  # type: ignore[arg-type]
            merge=(lambda left, right: left + right) if isinstance(window, Session) else None,
            emit=emit,
            name=f"fold-{to}",
        )
        def fold(value: str, found: list[str] = []) -> list[str]:  # noqa: B006 - one each
            return [*found, value]

        @app.processor(fold, to=f"{prefix}ours-{to}", name=f"show-{to}")
        def show(found: list[str], key: str, window: Window) -> str:
            return f"{key}@{window.start_ms}-{window.end_ms}={','.join(found)}"

    windows("values", "closed", Tumbling(milliseconds(50), grace=milliseconds(30)), "close")
    hopping = Hopping(milliseconds(60), milliseconds(25), grace=milliseconds(10))
    windows("values", "updates", hopping, "update")
    windows("clicks", "sessions", Session(milliseconds(20), grace=milliseconds(41)), "close")

    for kind, to in (("inner", "inner"), ("left", "some"), ("outer", "all")):

        @app.join(
            f"{prefix}left",
            f"{prefix}right",
            within=milliseconds(20),
            grace=milliseconds(31),
            kind=kind,
            to=f"{prefix}ours-{to}",
            name=f"join-{to}",
        )
        def pair(left: str | None, right: str | None) -> str:
            return f"{left or 'null'}|{right or 'null'}"

    rows = app.table(f"{prefix}rows", str, key=str)

    @app.processor(f"{prefix}orders", to=f"{prefix}ours-enriched")
    def enrich(order: str, row: Annotated[str | None, rows]) -> str:
        return f"{order}|{row or 'null'}"

    return app


def processed(broker: Broker, group: str, prefix: str) -> int:
    """How many records of the input a group has committed."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group)
    inputs = {f"{prefix}{name}" for name in INPUTS}
    return sum(entry.offset for tp, entry in found.items() if tp.topic in inputs)


def results(broker: Broker, prefix: str) -> dict[str, Counter[bytes]]:
    """Committed results; the values of a window in one order, for sessions are merged in any."""
    found = {}
    for name in RESULTS:
        values = committed_values(broker.bootstrap_servers, prefix + name)
        found[name] = Counter(map(_in_order, values))
    return found


def _in_order(value: bytes) -> bytes:
    if b"=" not in value:
        return value
    window, _, parts = value.partition(b"=")
    return window + b"=" + b",".join(sorted(parts.split(b",")))


@pytest.mark.parametrize("seed", [1, 2])
def test_results_are_those_of_kafka_streams(
    java: None, broker: Broker, tmp_path: Path, seed: int
) -> None:
    prefix = f"s{seed}-"
    for name in [*INPUTS, *RESULTS, *(f"ours-{name}" for name in RESULTS)]:
        broker.create_topic(prefix + name, partitions=1)
    total = fill(broker, prefix, seed)
    app = ours(broker, prefix, tmp_path / "ours")
    ours_thread = threading.Thread(target=app.run)
    log = tmp_path / "streams.log"
    group = f"{prefix}streams"
    with log.open("wb") as out:
        program = java_programs.command(
            "StreamsResults", broker.bootstrap_servers, group, str(tmp_path / "theirs"), prefix
        )
        theirs = subprocess.Popen(program, stdout=out, stderr=out)
    ours_thread.start()
    try:

        def all_done(name: str) -> Callable[[], bool]:
            return lambda: processed(broker, name, prefix) >= total

        wait_until(all_done(f"{prefix}ours"), "our application at its end", 90)
        try:
            wait_until(all_done(group), "Kafka Streams at its end", 60)
        except AssertionError as error:
            told = log.read_text(errors="replace")[-3_000:]
            done = processed(broker, group, prefix)
            raise AssertionError(f"{error} ({done} of {total} records): {told}") from error
        words = 3 * 300
        for place in (prefix, f"{prefix}ours-"):
            wait_until(
                lambda: results(broker, place)["words"].total() >= words,  # noqa: B023
                f"all counts in {place}words",
                60,
            )
    finally:
        theirs.terminate()
        theirs.wait(60)
        app.stop()
        ours_thread.join(30)
    wanted, found = results(broker, prefix), results(broker, f"{prefix}ours-")
    for name in RESULTS:
        assert wanted[name].total() > 50, (name, log.read_text(errors="replace")[-2_000:])
        assert found[name] == wanted[name], name
