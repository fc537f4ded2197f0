"""Goal: functions with a sink are declared like others, and what a sink cannot commit is refused.

Method: applications are declared and inspected, or driven in memory by the test driver, which keeps
the rows and opens no sink.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onceflow.processors import App, Context, DeclarationError, Output, ProcessingError, State
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import ConfigError
from onceflow.transactions.sinks import AsyncSink, JsonLines, Sqlite


@dataclasses.dataclass
class Order:
    id: int
    item: str


class Line(msgspec.Struct):
    id: int
    item: str


@pytest.fixture
def sink(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path / "rows.db", "orders")


def test_rows_come_as_dictionaries_dataclasses_and_structs(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink)
    def store(order: Order) -> dict[str, object] | Order | Line | None:
        kinds: list[dict[str, object] | Order | Line | None] = [
            {"id": order.id, "item": order.item},
            order,
            Line(order.id, order.item),
            None,
        ]
        return kinds[order.id % 4]

    assert store(Order(1, "tea")) == Order(1, "tea")
    driver = TestDriver(app)
    for number in range(4):
        driver.send("orders", {"id": number, "item": "tea"})
    assert driver.rows == [{"id": number, "item": "tea"} for number in range(3)]


def test_one_record_gives_several_rows_and_keys_and_contexts_are_given(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink)
    def store(key: str, value: int, context: Context) -> Iterator[dict[str, object]]:
        for number in range(value):
            yield {"id": f"{key}-{context.record.offset}-{number}"}

    driver = TestDriver(app)
    driver.send("orders", 2, key="a")
    driver.send("orders", 1, key="b")
    assert [row["id"] for row in driver.rows] == ["a-0-0", "a-0-1", "b-1-0"]


async def test_async_functions_give_rows(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink, concurrency=4)
    async def store(value: int) -> AsyncIterator[dict[str, object]]:
        for number in range(value):
            yield {"id": number}

    driver = TestDriver(app)
    await driver.send_async("orders", 2)
    assert driver.rows == [{"id": 0}, {"id": 1}]


def test_functions_stand_in_front_of_a_sink(sink: Sqlite) -> None:
    app = App("rows")

    @app.processor("orders")
    def parse(value: str) -> Order | None:
        return None if not value else Order(len(value), value)

    @app.sink(parse, sink)
    def store(order: Order) -> dict[str, object]:
        return {"id": order.id}

    driver = TestDriver(app)
    for value in ("tea", "", "milk"):
        driver.send("orders", value)
    assert driver.rows == [{"id": 3}, {"id": 4}]


def test_a_record_that_fails_follows_the_policy_and_stores_nothing(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink, dead_letter="refused", retries=1)
    def store(value: int) -> Iterator[dict[str, object]]:
        yield {"id": value}
        if value < 0:
            raise ValueError("negative")

    driver = TestDriver(app)
    for value in (1, -2, 3):
        driver.send("orders", value)
    driver.send("orders", b"no number")
    assert driver.rows == [{"id": 1}, {"id": 3}]
    assert [letter.value for letter in driver.dead_letters("refused")] == [b"-2", b"no number"]


@pytest.mark.parametrize("given", ["text", Output({"id": 1}, topic="out"), 7])
def test_what_is_no_row_fails_its_record(sink: Sqlite, given: object) -> None:
    app = App("rows")

    @app.sink("orders", sink)
    def store(value: bytes) -> object:
        return given

    driver = TestDriver(app)
    with pytest.raises(ProcessingError, match=r"row of a sink is|share no transaction"):
        driver.send("orders", b"x")
    assert driver.rows == []


def test_a_sink_without_a_table_takes_the_topics_name(tmp_path: Path) -> None:
    app = App("rows")

    @app.sink("orders", Sqlite(tmp_path / "rows.db"))
    def store(value: bytes) -> dict[str, object]:
        return {"id": 1}

    sink = app.topology().sink
    assert isinstance(sink, Sqlite)
    assert not sink.needs_table
    with pytest.raises(ConfigError, match="orders"):
        sink.open("g")  # the file has no such table

    with pytest.raises(DeclarationError, match="names no table"):

        @app.sink(["a", "b"], Sqlite(tmp_path / "rows.db"))
        def other(value: bytes) -> dict[str, object]:
            return {"id": 1}


def test_a_topology_shows_its_sink(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink, dead_letter="refused")
    def store(order: Order) -> Order:
        return order

    text = str(app.topology())
    assert "sink store" in text
    assert "stores in    Sqlite" in text
    (node,) = [n for n in json.loads(app.topology().to_json())["nodes"] if n["name"] == "store"]
    assert node["kind"] == "storing"
    assert node["writes"] == ["refused"]
    assert "store" in app.topology().to_mermaid()


class Asynchronous(AsyncSink):
    """A sink whose calls are awaited."""


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: "sqlite", "must be a sink"),
        (lambda: Sqlite, "must be a sink"),
        (Asynchronous, "asyncio sink"),
    ],
)
def test_what_is_no_sink_is_refused(make: Callable[[], object], told: str) -> None:
    app = App("rows")
    with pytest.raises(DeclarationError, match=told):

        @app.sink("orders", make())  # type: ignore[arg-type]
        def store(value: bytes) -> dict[str, object]:
            return {}


def test_functions_that_give_no_rows_are_refused(sink: Sqlite) -> None:
    app = App("rows")
    with pytest.raises(DeclarationError, match="returns str: a row is a dictionary"):

        @app.sink("orders", sink)
        def text(value: bytes) -> str:
            return ""

    with pytest.raises(DeclarationError, match="returns int: a row"):

        @app.sink("orders", sink)
        def numbers(value: bytes) -> list[int]:
            return []


def _state(app: App) -> None:
    @app.processor("other")
    def count(value: bytes, seen: State[int]) -> None:
        seen.set(1)


def _topic(app: App) -> None:
    @app.processor("other", to="out")
    def copy(value: bytes) -> bytes:
        return value


def _rekey(app: App) -> None:
    @app.processor("other", key=lambda value: value)
    def again(value: str) -> None:
        pass


def _table(app: App) -> None:
    app.table("rows", str)


def _sink(app: App) -> None:
    @app.sink("other", JsonLines("."))
    def lines(value: bytes) -> dict[str, object]:
        return {}


def _parked(app: App) -> None:
    @app.processor("other", park=True, retries=1, dead_letter="d")
    def waits(value: bytes) -> None:
        pass


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (_state, "count keeps state"),
        (_topic, "copy writes the topic out"),
        (_rekey, "again-repartition"),
        (_table, "rows keeps state"),
        (_sink, "lines has another sink"),
        (_parked, "waits keeps state"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_kafka_commits_is_refused_beside_a_sink(
    sink: Sqlite, declare: Callable[[App], None], told: str, first: bool
) -> None:
    """In either order of declaration."""
    app = App("rows")

    def store(value: bytes) -> dict[str, object]:
        return {}

    if first:
        app.sink("orders", sink)(store)
        with pytest.raises(DeclarationError, match=told):
            declare(app)
        return
    declare(app)
    with pytest.raises(DeclarationError, match="in an application of its own"):
        app.sink("orders", sink)(store)


def test_two_functions_may_share_a_sink(sink: Sqlite) -> None:
    app = App("rows")

    @app.sink("orders", sink)
    def store(value: bytes) -> dict[str, object]:
        return {"from": "orders"}

    @app.sink("returns", sink)
    def take_back(value: bytes) -> dict[str, object]:
        return {"from": "returns"}

    driver = TestDriver(app)
    driver.send("orders", b"")
    driver.send("returns", b"")
    assert driver.rows == [{"from": "orders"}, {"from": "returns"}]


def test_many_records_at_once_give_rows_as_lists_and_as_arrow_data(sink: Sqlite) -> None:
    app = App("rows")
    sizes: list[int] = []

    @app.sink("orders", sink, batch=3)
    def store(orders: list[Order], key: list[str]) -> list[object]:
        sizes.append(len(orders))
        kinds: list[Callable[[Order], object]] = [
            lambda order: {"id": order.id, "item": order.item},
            lambda order: order,
            lambda order: None,
            lambda order: [{"id": order.id, "item": "a"}, {"id": order.id, "item": "b"}],
        ]
        return [kinds[order.id % 4](order) for order in orders]

    @app.sink("lines", sink, batch=100)
    def columns(lines: pa.RecordBatch) -> pa.RecordBatch:
        return lines.append_column("twice", pc.multiply(lines["id"], 2)).select(["id", "twice"])

    driver = TestDriver(app)
    for number in range(4):
        driver.send("orders", {"id": number, "item": "tea"}, key="k")
    driver.send("lines", {"id": 7, "item": "milk"})
    assert driver.rows == [
        {"id": 0, "item": "tea"},
        {"id": 1, "item": "tea"},
        {"id": 3, "item": "a"},
        {"id": 3, "item": "b"},
        {"id": 7, "twice": 14},
    ]
    assert "batch        up to 3 records a call" in str(app.topology())


def test_batches_that_give_no_rows_are_refused(sink: Sqlite) -> None:
    app = App("rows")
    with pytest.raises(DeclarationError, match="one entry for each record"):

        @app.sink("orders", sink, batch=10)
        def store(orders: list[Order]) -> list[int]:
            return [order.id for order in orders]

    with pytest.raises(DeclarationError, match="concurrency= and batch= cannot be combined"):

        @app.sink("orders", sink, batch=10, concurrency=2)
        def other(orders: list[Order]) -> list[Order]:
            return orders
