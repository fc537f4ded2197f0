"""Goal: a function over many records gives what it would give over single ones, each record once.

Method: a worker over the in-memory cluster with lists and Arrow data; every record in turn is the
one that fails, for good or for a while; declarations that cannot work are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from processor_worlds import World

from onceflow.processors import (
    App,
    Context,
    DeclarationError,
    Output,
    ProcessingError,
    Retries,
    State,
)
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.serde import JSON, MSGPACK

VALUES = [b"%d" % number for number in range(10)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "in")


def test_lists_of_values_keys_and_headers(world: World) -> None:
    sizes: list[int] = []
    app = App("lists")

    @app.processor("in", to="out", batch=4)
    def double(values: list[int], key: list[str], headers: list[object]) -> list[int]:
        assert key == ["k"] * len(values)
        assert len(headers) == len(values)
        sizes.append(len(values))
        return [2 * value for value in values]

    world.cluster.put("in", *VALUES, key=b"k")
    world.run(app)
    assert sizes == [4, 4, 2]
    assert world.cluster.values("out") == [b"%d" % (2 * number) for number in range(10)]
    outputs = world.cluster.logs[TopicPartition("out", 0)]
    inputs = world.cluster.logs[TopicPartition("in", 0)]
    assert [e.key for e in outputs] == [b"k"] * 10
    assert [e.timestamp_ms for e in outputs] == [e.timestamp_ms for e in inputs]
    assert world.cluster.offset("in") == 10


def test_results_may_be_none_or_name_a_topic(world: World) -> None:
    app = App("lists")

    @app.processor("in", to="out", batch=100)
    def odd(values: list[int]) -> list[object]:
        return [None if v % 2 else Output(v, topic="even") if v > 4 else v for v in values]

    world.cluster.put("in", *VALUES)
    world.run(app)
    assert world.cluster.values("out") == [b"0", b"2", b"4"]
    assert world.cluster.values("even") == [b"6", b"8"]
    silent = App("silent")
    seen: list[bytes] = []
    silent.processor("in", batch=100)(lambda_of(seen))
    world.cluster.put("in", b"10")
    world.run(silent)
    assert seen[-1] == b"10"
    assert world.cluster.offset("in") == 11


def lambda_of(seen: list[bytes]):  # type: ignore[no-untyped-def]
    def keep(values: list[bytes]) -> None:
        seen.extend(values)

    return keep


@pytest.mark.parametrize("bad", range(10))
@pytest.mark.parametrize("size", [1, 3, 10])
def test_record_to_blame_is_found_by_halves(world: World, bad: int, size: int) -> None:
    app = App("halves")
    calls: list[int] = []

    @app.processor("in", to="out", dead_letter="dead", batch=size)
    def copy(values: list[bytes]) -> list[bytes]:
        calls.append(len(values))
        if b"%d" % bad in values:
            raise ValueError("bad")
        return values

    world.cluster.put("in", *VALUES)
    world.run(app)
    good = [value for value in VALUES if value != b"%d" % bad]
    assert world.cluster.values("out") == good
    assert world.cluster.values("dead") == [b"%d" % bad]
    assert len(calls) <= 10 // size + 1 + 2 * 5


def test_record_that_fails_for_a_while_is_waited_for(world: World) -> None:
    app = App("while")
    failing = [3]

    @app.processor("in", to="out", retries=Retries(3, backoff_ms=500), batch=4)
    def copy(values: list[bytes]) -> list[bytes]:
        if b"5" in values and len(values) == 1 and failing[0]:
            failing[0] -= 1
            raise OSError("away")
        if b"5" in values and failing[0]:
            raise OSError("away")
        return values

    world.cluster.put("in", *VALUES)
    world.run(app)
    assert world.cluster.values("out") == VALUES


def test_value_that_does_not_fit_concerns_its_record_alone(world: World) -> None:
    app = App("fits")

    @app.processor("in", to="out", dead_letter="dead", batch=100)
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    world.cluster.put("in", b"1", b"x", b"3", None)  # type: ignore[arg-type]
    world.run(app)
    assert world.cluster.values("out") == [b"2", b"6"]
    assert world.cluster.values("dead") == [b"x", None]


def test_output_that_cannot_be_encoded_leaves_nothing_of_its_call(world: World) -> None:
    app = App("encodes")

    @app.processor("in", to="out", dead_letter="dead", batch=100)
    def give(values: list[int]) -> list[object]:
        return [object() if value == 7 else value for value in values]

    world.cluster.put("in", *VALUES)
    world.run(app)
    assert world.cluster.values("out") == [value for value in VALUES if value != b"7"]
    assert world.cluster.values("dead") == [b"7"]


@pytest.mark.parametrize("results", [[], [b"sum"], b"sum"], ids=str)
def test_another_number_of_results_stops(world: World, results: object) -> None:
    """A function that adds up would seem right for single records."""
    app = App("sums")

    @app.processor("in", to="out", dead_letter="dead", batch=100)
    def add(values: list[bytes]) -> object:
        return results

    world.cluster.put("in", *VALUES)
    with pytest.raises(ProcessingError, match=r"add gave \d results for 10 records from in-0@0"):
        world.run(app)
    assert world.cluster.values("dead") == []
    assert world.cluster.offset("in") is None


def test_calls_end_with_the_unit(world: World) -> None:
    app = App("units", commit_records=5)
    sizes: list[int] = []

    @app.processor("in", to="out", batch=8)
    def copy(values: list[bytes]) -> list[bytes]:
        sizes.append(len(values))
        return values

    world.cluster.put("in", *VALUES)
    world.run(app)
    assert sizes == [5, 5]
    assert world.cluster.values("out") == VALUES


# Arrow ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_objects_are_columns(world: World, format: str) -> None:
    app = App("columns")

    @app.processor("in", to="out", batch=1_000, format=format)
    def score(events: pa.RecordBatch) -> pa.Array:
        return pc.multiply(events.column("x"), 2)

    serde = JSON if format == "json" else MSGPACK
    world.cluster.put("in", *(serde.serialize({"x": n, "name": f"n{n}\n"}) for n in range(5)))
    world.run(app)
    assert [serde.deserialize(value) for value in world.cluster.values("out")] == [0, 2, 4, 6, 8]


SCHEMA = pa.schema([("x", pa.float64()), ("missing", pa.string())])


def test_schema_names_the_columns(world: World) -> None:
    app = App("schema")
    got: list[pa.Schema] = []

    @app.processor("in", to="out", batch=1_000)
    def same(events: Annotated[pa.RecordBatch, SCHEMA]) -> pa.RecordBatch:
        got.append(events.schema)
        return events

    world.cluster.put("in", b'{"x": 1, "other": [1]}', b'{"x": 2.5}')
    world.run(app)
    assert got == [SCHEMA]
    wanted = [{"x": 1.0, "missing": None}, {"x": 2.5, "missing": None}]
    assert [JSON.deserialize(value) for value in world.cluster.values("out")] == wanted


def test_values_as_an_array(world: World) -> None:
    app = App("arrays")

    @app.processor("in", to="out", batch=1_000)
    def upper(values: pa.Array) -> pa.Array:
        return pc.utf8_upper(values.cast(pa.string()))

    world.cluster.put("in", b"a", b"b")
    world.run(app)
    assert world.cluster.values("out") == [b"A", b"B"]


@pytest.mark.parametrize("bad", [b"[1]", b"{", b"", b"5", b'{"x": 1} {"x": 2}', None])
def test_value_that_is_no_object_is_found(world: World, bad: bytes | None) -> None:
    """Two objects in one record are not two records."""
    app = App("objects")

    @app.processor("in", to="out", dead_letter="dead", batch=1_000)
    def score(events: pa.RecordBatch) -> pa.Array:
        return events.column("x")

    world.cluster.put("in", b'{"x": 1}', bad, b'{"x": 3}')  # type: ignore[arg-type]
    world.run(app)
    assert world.cluster.values("out") == [b"1", b"3"]
    assert world.cluster.values("dead") == [bad]


def test_objects_are_not_shifted_between_records(world: World) -> None:
    """Two in one record and none in another are as many as there are records."""
    app = App("objects")

    @app.processor("in", to="out", dead_letter="dead", batch=1_000)
    def score(events: pa.RecordBatch) -> pa.Array:
        return events.column("x")

    double = b'{"x": 1}\n{"x": 2}'
    world.cluster.put("in", double, b"", b'{"x": 3}')
    world.run(app)
    assert world.cluster.values("out") == [b"3"]
    assert world.cluster.values("dead") == [double, b""]


# Declarations --------------------------------------------------------------------------------


def test_driver_gives_records_one_by_one() -> None:
    app = App("driver")

    @app.processor("in", to="out", batch=100)
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    driver = TestDriver(app)
    driver.send("in", 4)
    driver.send("in", 5)
    assert driver.values("out", int) == [8, 10]
    assert "batch        up to 100 records a call" in str(app.topology())


async def is_async(values: list[bytes]) -> None: ...
def with_state(values: list[bytes], seen: State[int]) -> None: ...
def with_context(values: list[bytes], context: Context) -> None: ...
def with_record(record: ConsumerRecord) -> None: ...
def single(value: bytes) -> None: ...
def bare(values: list) -> None: ...  # type: ignore[type-arg]
def keys_as_columns(values: list[bytes], key: pa.RecordBatch) -> None: ...
def good(values: list[bytes]) -> list[bytes]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (is_async, "batch= needs a plain function"),
        (with_state, "seen belongs to a single record"),
        (with_context, "context belongs to a single record"),
        (with_record, "record belongs to a single record"),
        (single, r"value as a list: annotate it with list"),
        (bare, r"values as a list"),
        (keys_as_columns, "a key has no columns"),
    ],
)
def test_what_cannot_be_filled_is_refused(function: object, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        App("a").processor("in", batch=10)(function)  # type: ignore[type-var]


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "9", 10**7])
def test_wrong_size_is_refused(batch: object) -> None:
    with pytest.raises(DeclarationError, match=r"batch=.*must be a whole number from 1"):
        App("a").processor("in", batch=batch)(good)  # type: ignore[arg-type]


def test_batches_need_a_topic_for_themselves() -> None:
    app = App("a")
    app.processor("in", batch=10, to="out")(good)
    with pytest.raises(DeclarationError, match=r"batch= needs one topic for itself.*single"):
        app.processor("in")(single)
    with pytest.raises(DeclarationError, match=r"batch= needs one topic for itself.*single"):
        app.processor(good)(single)
    with pytest.raises(DeclarationError, match=r"batch= needs one topic for itself.*b, c"):
        App("a").processor(["b", "c"], batch=10)(good)
    with pytest.raises(DeclarationError, match=r"batch= takes records of a topic, but good gives"):
        app.processor(good, batch=10, name="again")(good)
