"""Goal: what of an application cannot run on Spark is refused with the reason, its parts travel to
Spark's tasks whole, and its state over Spark's unordered map is what the worker's map is.

Method: declared applications without a broker or a session; the map over a dictionary in place of
Spark's state, beside the worker's own map with the same random writes.
"""

import random
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest

from onceflow.cli.run_on_spark import module_archive
from onceflow.processors import App, State, Timers, Tumbling, minutes
from onceflow.processors.lanes import Run
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.bytemap import Marks
from onceflow.processors.stores.memory import MemoryMap
from onceflow.sdk import ConsumerRecord
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.spark_integration.apps.engine import Engine
from onceflow.spark_integration.apps.limits import (
    STATE_API,
    needs_timers,
    refuse_unfit,
    stateful_parts,
)
from onceflow.spark_integration.apps.rows import packed_outputs, unpacked_outputs
from onceflow.spark_integration.apps.shipping import Shipped, unpacked
from onceflow.spark_integration.apps.state import SparkMap, TaskNotes


class Rows:
    """Spark's map state, as a dictionary without an order."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.reads = 0

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None:  # noqa: N802
        self.reads += 1
        found = self.values.get(key[0])
        return None if found is None else (found,)

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:  # noqa: N802
        self.values[key[0]] = value[0]

    def removeKey(self, key: tuple[bytes]) -> None:  # noqa: N802
        self.values.pop(key[0], None)

    def iterator(self) -> Iterator[tuple[tuple[bytes], tuple[bytes]]]:
        pairs = list(self.values.items())
        random.Random(1).shuffle(pairs)
        return (((key,), (value,)) for key, value in pairs)


@dataclass
class Order:
    customer: str


def simple(**settings: object) -> App:
    app = App("simple", **settings)  # type: ignore[arg-type]

    @app.processor("in", to="out")
    def same(value: str) -> str:
        return value

    return app


def joining() -> App:
    app = App("joining")

    @app.join("left", "right", within=timedelta(seconds=1), to="out")
    def pair(left: str, right: str) -> str:
        return left + right

    return app


def looking_up() -> App:
    app = App("looking-up")
    names = app.global_table("names", str, key=str)

    @app.processor("orders", to="out")
    def name(
        order: Order, found: Annotated[str | None, names.by(lambda order: order.customer)]
    ) -> str:
        return found or ""

    return app


@pytest.mark.parametrize(
    ("app", "options", "field", "reason"),
    [
        (looking_up(), {}, "global_table", "one micro-batch and would read the whole table"),
        (simple(max_task_idle_ms=5), {}, "max_task_idle_ms", "waits for no others"),
        (joining(), {"maxoffsetspertrigger": "5"}, "maxOffsetsPerTrigger", "left and right are"),
        (simple(), {"minPartitions": "5"}, "minPartitions", "in order, by one task"),
        (simple(), {"subscribe": "x"}, "subscribe", "names its topics"),
        (simple(), {"kafka.isolation.level": "x"}, "kafka.isolation.level", "committed records"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(
    app: App, options: dict[str, str], field: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        refuse_unfit(app.topology(), app.settings, options)
    assert caught.value.field == field


def test_protobuf_that_is_missing_is_named_where_an_application_keeps_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark needs it and does not install it; its worker would only be said to have crashed."""
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, STATE_API, raising=False)
    refuse_unfit(simple().topology(), AppSettings(), {})
    with pytest.raises(ConfigError, match=r"pip install 'onceflow\[spark\]'") as caught:
        refuse_unfit(joining().topology(), AppSettings(), {})
    assert caught.value.field == "protobuf"


def test_a_limit_of_offsets_is_taken_where_inputs_are_processed_alone() -> None:
    refuse_unfit(simple().topology(), AppSettings(), {"maxOffsetsPerTrigger": "5"})


def test_timers_of_spark_are_used_only_where_the_wall_clock_counts() -> None:
    app = App("timed")

    @app.aggregate("in", window=Tumbling(minutes(1)), to="sums")
    def total(value: int, sum: int = 0) -> int:
        return sum + value

    @app.processor("readings")
    def watch(reading: float, timers: Timers, last: State[float]) -> None:
        timers.set(after=minutes(1), by_wall=True)

    @app.timer(watch, to="alarms")
    def silent(key: str) -> str:
        return key

    parts = {part.name: part for part in app.topology().sub_topologies}
    assert {name: needs_timers(part) for name, part in parts.items()} == {
        "in": False,
        "readings": True,
    }
    assert stateful_parts(app.topology()) == {"in", "readings"}
    assert stateful_parts(simple().topology()) == frozenset()


def counting() -> App:
    app = App("counting")

    @app.processor("in", to="out")
    def count(order: Order, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{order.customer} {seen.get()}"

    return app


def shipped(app: App) -> Shipped:
    topology = app.topology()
    counts = dict.fromkeys(topology.input_topics, 2)
    return unpacked(Shipped.of(topology, app.settings, counts).packed())


def test_an_application_travels_with_its_types_and_functions_and_keeps_its_state() -> None:
    state = Rows()
    records = [
        ConsumerRecord("in", 1, offset, 5, key=b"k", value=b'{"customer":"ann"}')
        for offset in range(3)
    ]
    values: list[bytes | None] = []
    for _ in range(2):  # Two micro-batches, each with a new process's engine.
        engine = Engine(shipped(counting()))
        runs, due_ms = engine.process("in", 1, {TopicPartition("in", 1): records}, SparkMap(state))
        engine.close()
        assert due_ms is None
        values += [value for run in runs for value in run.values]
    assert values == [b"ann %d" % (number + 1) for number in range(6)]


def test_an_application_that_cannot_be_pickled_is_refused() -> None:
    app = App("locked")
    lock = threading.Lock()

    @app.processor("in", to="out")
    def read(value: str) -> str:
        with lock:
            return value

    with pytest.raises(ConfigError, match="startup function open what cannot be pickled"):
        Shipped.of(app.topology(), app.settings, {"in": 1}).packed()


def test_a_partition_that_came_later_does_not_meet_state() -> None:
    engine = Engine(shipped(counting()))
    with pytest.raises(Exception, match="has more partitions than the 2 of the start"):
        engine.process("in", 2, {}, SparkMap(Rows()))


@pytest.mark.parametrize("seed", range(20))
def test_the_map_over_sparks_state_is_the_workers_map(seed: int) -> None:
    chance, state, plain = random.Random(seed), Rows(), MemoryMap()
    for batch in range(4):
        ours = SparkMap(state)
        assert ours.notes == TaskNotes(begun=batch > 0)
        for _ in range(chance.randrange(6)):
            keys = [b"\0\1" + bytes([chance.randrange(12)]) for _ in range(4)]
            writes = {key: chance.choice([None, b"v%d" % chance.randrange(99)]) for key in keys}
            marks = Marks(group="g", partitions=batch)
            ours.apply(writes, marks)
            plain.apply(writes, marks)
            key = b"\0\1" + bytes([chance.randrange(12)])
            assert ours.get(key) == plain.get(key)
            if chance.random() < 0.5:
                start, end = sorted(b"\0\1" + bytes([chance.randrange(13)]) for _ in range(2))
                reverse = chance.random() < 0.5
                assert list(ours.range(start, end, reverse=reverse)) == list(
                    plain.range(start, end, reverse=reverse)
                )
        ours.store(TaskNotes(begun=True))
    kept = {key: value for key, value in state.values.items() if key[:2] == b"\0\1"}
    assert kept == dict(plain.range(b"", None))
    assert SparkMap(state).marks == plain.marks


def test_single_values_are_read_without_the_whole_map() -> None:
    state = Rows()
    state.values = {b"\0\1k%d" % number: b"v" for number in range(100)}
    ours = SparkMap(state)
    assert ours.get(b"\0\1k5") == b"v"
    assert ours.get(b"\0\1k5") == b"v"
    assert state.reads == 3  # Marks, notes, and the key once.


def test_outputs_keep_headers_partition_and_missing_times() -> None:
    runs = [
        Run("out", [b"a", None], [b"k", None], [7, 8]),
        Run("other", [b"b"], [None], None, 3, (("h", b"1"), ("h", None))),
    ]
    pyarrow = pytest.importorskip("pyarrow")
    packed = pyarrow.RecordBatch.from_pydict({"data": [packed_outputs(runs)]})
    rows = [row for batch in unpacked_outputs(iter([packed])) for row in batch.to_pylist()]
    assert [(r["topic"], r["key"], r["value"], r["partition"]) for r in rows] == [
        ("out", b"k", b"a", None),
        ("out", None, None, None),
        ("other", None, b"b", 3),
    ]
    assert rows[0]["timestamp"].microsecond == 7_000
    assert rows[2]["timestamp"] is None
    assert rows[2]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_a_module_of_the_working_directory_is_shipped_and_an_installed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_tests" / "parts").mkdir(parents=True)
    for name in ("__init__.py", "app.py", "parts/__init__.py", "data.csv"):
        (tmp_path / "shop_of_tests" / name).write_text("")
    (tmp_path / "single_of_tests.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    archive = module_archive("shop_of_tests.app", tmp_path)
    assert archive is not None
    assert sorted(zipfile.ZipFile(archive).namelist()) == [
        "shop_of_tests/__init__.py",
        "shop_of_tests/app.py",
        "shop_of_tests/parts/__init__.py",
    ]
    assert module_archive("single_of_tests", tmp_path) == tmp_path / "single_of_tests.py"
    assert module_archive("pytest", tmp_path) is None
