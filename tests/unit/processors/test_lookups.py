"""Goal: batches, aggregates, timers and joins see the row of a table that one record alone sees.

Method: the test driver and workers over the in-memory cluster with runs of records between changes
of a table, against a dictionary; global tables by any key; declarations that cannot work; what the
drawings say of tables.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pytest
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import (
    App,
    DeclarationError,
    Output,
    ProcessingError,
    Session,
    State,
    Sum,
    Timer,
    Timers,
    Tumbling,
    milliseconds,
)
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition


@dataclass
class Price:
    cents: int


@dataclass
class Order:
    item: str
    count: int


def batches(store: str = "memory", **settings: object) -> tuple[App, list[int]]:
    """Prices orders in batches; the second value is the sizes of its calls."""
    app = App("shop", **settings)  # type: ignore[arg-type]
    prices = app.table("prices", Price, key=str, store=store)
    sizes: list[int] = []

    @app.processor("orders", to="out", batch=50)
    def price(
        counts: list[int], found: Annotated[list[Price | None], prices], key: list[str]
    ) -> list[str]:
        sizes.append(len(counts))
        rows = zip(counts, found, key, strict=True)
        return [f"{k}:{n * p.cents if p else '-'}" for n, p, k in rows]

    return app, sizes


@pytest.mark.parametrize("seed", range(5))
def test_batches_see_the_rows_of_their_times(tmp_path: Path, seed: int) -> None:
    """A run of records ends where a change of the table has its turn."""
    chance = random.Random(seed)
    world = World(tmp_path, "orders", "prices")
    orders, prices = (world.cluster.logs[TopicPartition(t, 0)] for t in ("orders", "prices"))
    orders.append(Entry(b"x", b"0", (), 0))
    app, sizes = batches("lmdb")
    world.run(app)  # A first commit, so that the table is read by time and not to its end.
    rows: dict[str, int] = {}
    wanted = [b"x:-"]
    for time_ms in range(2, 400, 2):
        key, number = chance.choice("ab"), chance.randint(1, 9)
        if chance.random() < 0.1:
            prices.append(Entry(key.encode(), b'{"cents":%d}' % number, (), time_ms))
            rows[key] = number
        else:
            orders.append(Entry(key.encode(), b"%d" % number, (), time_ms))
            wanted.append(f"{key}:{number * rows[key] if key in rows else '-'}".encode())
    app, sizes = batches("lmdb")
    world.run(app)
    assert world.cluster.values("out") == wanted
    assert max(sizes) > 1
    assert len(sizes) < len(wanted) / 2


def test_a_failing_record_of_a_batch_with_a_table() -> None:
    app = App("shop")
    prices = app.table("prices", Price, key=str)

    @app.processor("orders", to="out", batch=10, dead_letter="dead")
    def price(counts: list[int], found: Annotated[list[Price | None], prices]) -> list[int]:
        return [n * p.cents for n, p in zip(counts, found, strict=True)]  # type: ignore[union-attr]

    driver = TestDriver(app)
    driver.send("prices", Price(5), key="a")
    driver.send("orders", 2, key="a")
    driver.send("orders", 3, key="b")
    assert driver.values("out", int) == [10]
    assert [record.value for record in driver.dead_letters("dead")] == [b"3"]


def test_batches_look_up_global_tables_by_any_key(tmp_path: Path) -> None:
    app = App("shop")
    prices = app.global_table("prices", Price, key=str)

    @app.processor("orders", to="out", batch=10)
    def price(
        orders: list[Order],
        found: Annotated[list[Price | None], prices.by(lambda order: order.item)],
        own: Annotated[list[Price | None], prices],
    ) -> list[str]:
        return [
            f"{o.count * p.cents if p else '-'} {k.cents if k else '-'}"
            for o, p, k in zip(orders, found, own, strict=True)
        ]

    @app.processor("raw", to="weighed", batch=10)
    def weigh(values: pa.Array, own: Annotated[list[Price | None], prices]) -> list[int]:
        return [
            len(v) * (p.cents if p else 0) for v, p in zip(values.to_pylist(), own, strict=True)
        ]

    world = World(tmp_path, "orders", "raw", partitions=1)
    world.topics["prices"] = TopicFacts(2, "id-prices")
    for number, (item, cents) in enumerate((("tea", 3), ("jam", 7))):
        entry = Entry(item.encode(), b'{"cents":%d}' % cents, state="committed")
        world.cluster.logs[TopicPartition("prices", number)].append(entry)
    for number, item in enumerate(("tea", "jam", "oil")):
        value = b'{"item":"%s","count":%d}' % (item.encode(), number + 1)
        world.cluster.logs[TopicPartition("orders", 0)].append(Entry(b"jam", value))
        world.cluster.logs[TopicPartition("raw", 0)].append(Entry(item.encode(), b"ab"))
    world.run(app)
    assert world.cluster.values("out") == [b"3 7", b"14 7", b"- 7"]
    assert world.cluster.values("weighed") == [b"6", b"14", b"0"]


@pytest.mark.parametrize("window", [Tumbling(milliseconds(10)), Session(milliseconds(5))])
@pytest.mark.parametrize("emit", ["close", "update"])
def test_aggregates_look_up_tables(window: Tumbling | Session, emit: str) -> None:
    app = App("shop")
    prices = app.table("prices", Price, key=str)

    @app.aggregate("orders", window=window, fold=Sum(), to="sums", emit=emit)
    def cents(count: int, price: Annotated[Price | None, prices]) -> int:
        return count * price.cents if price else 0

    driver = TestDriver(app)
    driver.send("prices", Price(5), key="a", timestamp_ms=0)
    driver.send("orders", 2, key="a", timestamp_ms=0)
    driver.send("prices", Price(7), key="a", timestamp_ms=1)
    driver.send("orders", 2, key="a", timestamp_ms=2)
    driver.send("orders", 2, key="b", timestamp_ms=3)
    driver.send("orders", 0, key="c", timestamp_ms=100)
    wanted = {"close": [24, 0], "update": [10, 24, 0, 0]}
    assert driver.values("sums", int) == wanted[emit]


def test_folds_look_up_global_tables_once_a_record() -> None:
    app = App("shop")
    prices = app.global_table("prices", Price, key=str)
    asked: list[str] = []

    def item(order: Order) -> str:
        asked.append(order.item)
        return order.item

    @app.aggregate("orders", window=Tumbling(milliseconds(10)), to="sums")
    def cents(order: Order, price: Annotated[Price | None, prices.by(item)], total: int = 0) -> int:
        return total + (order.count * price.cents if price else 0)

    driver = TestDriver(app)
    driver.send("prices", Price(5), key="tea")
    driver.send("orders", Order("tea", 2), key="k", timestamp_ms=0)
    driver.send("orders", Order("tea", 3), key="k", timestamp_ms=1)
    driver.send("orders", Order("oil", 3), key="k", timestamp_ms=20)
    assert driver.values("sums", int) == [25]
    assert asked == ["tea", "tea", "oil"]


def test_timers_look_up_tables_by_their_key() -> None:
    app = App("shop")
    prices = app.table("prices", Price, key=str)
    names = app.global_table("names", str, key=str)

    @app.processor("orders")
    def remember(count: int, timers: Timers) -> None:
        timers.set("due", after=milliseconds(10))

    @app.timer(remember, to="out")
    def remind(
        key: str,
        timer: Timer,
        price: Annotated[Price | None, prices],
        name: Annotated[str | None, names],
    ) -> str:
        return f"{key} {price.cents if price else '-'} {name}"

    driver = TestDriver(app)
    driver.send("names", "Tea", key="tea")
    driver.send("orders", 1, key="tea", timestamp_ms=0)
    driver.send("prices", Price(7), key="tea", timestamp_ms=5)
    driver.send("orders", 1, key="oil", timestamp_ms=50)
    assert driver.values("out", str) == ["tea 7 Tea"]
    drawn = app.topology().describe()
    assert "timers of    remember" in drawn
    assert "looks up     prices, names (global)" in drawn


# Joins with tables ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("inner", [b"6 tea", b"4 jam"]), ("left", [b"6 tea", b"- oil", b"4 jam"])],
)
@pytest.mark.parametrize("derived", [False, True])
def test_a_stream_joins_a_global_table(kind: str, wanted: list[bytes], derived: bool) -> None:
    app = App("shop")
    prices = app.global_table("prices", Price, key=str)

    @app.processor("orders")
    def same(order: Order) -> Order:
        return order

    @app.join(
        same if derived else "orders", prices.by(lambda order: order.item), kind=kind, to="out"
    )
    def price(order: Order, found: Price | None) -> str:
        return f"{order.count * found.cents if found else '-'} {order.item}"

    if not derived:
        app = App("plain")
        prices = app.global_table("prices", Price, key=str)
        app.join("orders", prices.by(lambda order: order.item), kind=kind, to="out")(price)
    driver = TestDriver(app)
    driver.send("prices", Price(3), key="tea")
    driver.send("prices", Price(4), key="jam")
    for item, count in (("tea", 2), ("oil", 1), ("jam", 1)):
        driver.send("orders", Order(item, count), key="k")
    assert driver.values("out") == wanted


def test_a_stream_joins_a_table_by_its_key() -> None:
    app = App("shop")
    prices = app.table("prices", Price, key=str)

    @app.join("orders", prices, to="out")
    def price(count: int, key: str, *, found: Price) -> str:
        return f"{key} {count * found.cents}"

    assert price(2, "tea", found=Price(3)) == "tea 6"
    driver = TestDriver(app)
    driver.send("orders", 9, key="tea", timestamp_ms=1)
    driver.send("prices", Price(3), key="tea", timestamp_ms=2)
    driver.send("orders", 2, key="tea", timestamp_ms=3)
    assert driver.values("out") == [b"tea 6"]


# Joins of results -----------------------------------------------------------------------------


def joined(derived: bool, kind: str = "outer", **options: object) -> App:
    app = App("shop", **options)  # type: ignore[arg-type]

    @app.processor("left")
    def twice(value: int) -> list[int]:
        return [value] * (1 + value % 2)

    @app.processor("right", to=None if derived else "unused")
    def same(value: int) -> int:
        return value

    @app.join(
        twice,
        same if derived else "right",
        within=milliseconds(20),
        kind=kind,
        to="out",
        late="late",
    )
    def pair(left: int | None, right: int | None, key: str) -> str:
        return json.dumps([key, left, right])

    return app


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_results_of_functions_are_joined_like_the_records_of_topics(
    derived: bool, seed: int
) -> None:
    """Equal results of one record, with one key and one time, are records of their own."""
    chance = random.Random(seed)
    plain = App("plain")

    @plain.join("left", "right", within=milliseconds(20), kind="outer", to="out", late="late")
    def pair(left: int | None, right: int | None, key: str) -> str:
        return json.dumps([key, left, right])

    found, wanted = TestDriver(joined(derived)), TestDriver(plain)
    for _ in range(60):
        side, key = chance.choice(["left", "right"]), chance.choice("ab")
        value, time_ms = chance.randint(0, 9), chance.randint(0, 200)
        found.send(side, value, key=key, timestamp_ms=time_ms)
        for _ in range(1 + value % 2 if side == "left" else 1):
            wanted.send(side, value, key=key, timestamp_ms=time_ms)
    assert found.values("out") == wanted.values("out")
    assert found.values("out")
    assert found.values("late") == wanted.values("late")


class Killed(BaseException):
    """The process is gone."""


def die() -> None:
    raise Killed


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_joined_results_survive_kills(tmp_path: Path, call: str, after: bool) -> None:
    """Rows of equal results of one record are told apart by a number that restarts keep."""
    chance = random.Random(7)
    rows = [
        (chance.choice(["left", "right"]), chance.choice("ab"), chance.randint(0, 9), 4 * number)
        for number in range(40)
    ]

    def world(name: str) -> World:
        made = World(tmp_path / name, "left", "right")
        for side, key, value, time_ms in rows:
            entry = Entry(key.encode(), b"%d" % value, (), time_ms)
            made.cluster.logs[TopicPartition(side, 0)].append(entry)
        return made

    calm = world("calm")
    calm.run(joined(True))
    killed = world("killed")
    deaths = 0
    for at in (0, 3, 6):
        for _ in range(at):
            killed.cluster.do(call, lambda: None)
        killed.cluster.do(call, die, after=after)
        try:
            killed.run(joined(True, commit_records=4))
        except Killed:
            deaths += 1
        killed.cluster.forget_faults()
    assert deaths > 0
    killed.run(joined(True, commit_records=4))
    assert len(calm.cluster.values("out")) > 20

    def committed(of: World) -> list[object]:
        log = of.cluster.logs[TopicPartition("out", 0)]
        return [entry.value for entry in log if entry.state == "committed"]

    assert committed(killed) == committed(calm)


def test_a_stream_is_joined_with_itself_through_a_function() -> None:
    """Trap 75: each record meets the others and itself."""
    app = App("shop")

    @app.processor("visits")
    def same(value: int) -> int:
        return value

    @app.join("visits", same, within=milliseconds(5), to="out")
    def pair(left: int, right: int) -> str:
        return f"{left}{right}"

    driver = TestDriver(app)
    driver.send("visits", 1, key="k", timestamp_ms=0)
    driver.send("visits", 2, key="k", timestamp_ms=3)
    assert sorted(driver.values("out")) == [b"11", b"12", b"21", b"22"]


def test_results_under_another_key_are_not_joined() -> None:
    app = App("shop")

    @app.processor("left")
    def move(value: int) -> Output:
        return Output(value, key="other")

    @app.join(move, "right", within=milliseconds(5), to="out")
    def pair(left: int, right: int) -> int:
        return left + right

    with pytest.raises(ProcessingError, match="the key was changed"):
        TestDriver(app).send("left", 1, key="k")


def test_a_lost_result_behind_a_join_is_told() -> None:
    """A function whose results a join takes needs no target; one that nobody takes does."""
    assert joined(True).topology()
    app = App("shop")

    @app.processor("left")
    def lost(value: int) -> int:
        return value

    with pytest.raises(DeclarationError, match="lost returns"):
        app.topology()


# What cannot work -----------------------------------------------------------------------------


def refused(declare: Callable[[App], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare(App("wrong"))


def test_refused_lookups() -> None:
    def no_list(app: App) -> None:
        prices = app.table("prices", Price)

        @app.processor("in", to="out", batch=5)
        def f(values: list[int], price: Annotated[Price | None, prices]) -> list[int]: ...

    def columns(app: App) -> None:
        prices = app.global_table("prices", Price)

        @app.processor("in", to="out", batch=5)
        def f(
            values: pa.RecordBatch, price: Annotated[list[Price | None], prices.by(lambda v: v)]
        ) -> list[int]: ...

    def by_nothing(app: App) -> None:
        prices = app.global_table("prices", Price)

        @app.processor("in")
        def owner(value: int, timers: Timers) -> None: ...

        @app.timer(owner)
        def f(price: Annotated[Price | None, prices.by(lambda v: v)]) -> None: ...

    def beside(app: App) -> None:
        prices = app.table("prices", Price)

        @app.processor("in", to="out", batch=5)
        def f(values: list[int], price: Annotated[list[Price | None], prices]) -> list[int]: ...

        @app.processor("in", to="other")
        def g(value: int, seen: State[int]) -> int: ...

    refused(no_list, r"price: write Annotated\[list\[.*Price \| None\], ...\]")
    refused(columns, r"by\(\) needs each value as an object, not columns")
    refused(by_nothing, r"by\(\) needs a parameter for the value")
    refused(beside, "batch= needs one topic for itself")


def test_refused_joins() -> None:
    def both(left: int, right: int) -> int:
        return left

    def optional(left: int | None, right: int | None) -> int | None:
        return left

    def join(left: object, right: object, **options: object) -> Callable[[App], object]:
        def declare(app: App) -> None:
            known = {
                "table": app.table("table", int),
                "all": app.global_table("all", int),
                "words": app.processor("in")(words),
                "numbers": app.processor("in")(numbers),
            }
            known["by"] = known["all"].by(lambda value: value)  # type: ignore[attr-defined]
            sides = [known.get(str(side), side) for side in (left, right)]
            given = dict(options)
            function = given.pop("function", both)
            app.join(*sides, to="out", **given)(function)  # type: ignore[arg-type]

        return declare

    def words(value: int) -> str: ...

    def numbers(value: int) -> int: ...

    def bare(left, right: int) -> int: ...  # type: ignore[no-untyped-def]

    within = milliseconds(5)
    refused(join("all", "orders"), "the stream as left and the table as right")
    refused(join("by", "table"), "the stream as left and the table as right")
    refused(join("table", "all"), "a global table cannot be joined with a table")
    refused(join("table", "orders"), "the stream as left and the table as right")
    refused(join("orders", "all", kind="outer", function=optional), "write 'left'")
    refused(join("orders", "all", within=within), "within= is for joins of two streams")
    refused(join("orders", "all", kind="left"), r"right: int: kind='left'")
    refused(join("words", "all"), "takes left: int, but words gives str")
    refused(join("words", "orders", within=within), "takes left: int, but words gives str")
    refused(join("numbers", "numbers", within=within), "left and right are both")
    refused(join("numbers", "orders", within=within, function=bare), "annotate left")
    refused(join("numbers", 3, within=within), "right=3: must be a topic, or a function")
    join("numbers", "by")(App("right"))
    join("orders", "table")(App("right"))


def test_tables_are_drawn() -> None:
    app = App("shop")
    prices = app.table("prices", Price)
    names = app.global_table("names", str, name="all-names")

    @app.processor("orders", to="out")
    def enrich(
        order: int, price: Annotated[Price | None, prices], name: Annotated[str | None, names]
    ) -> int: ...

    topology = app.topology()
    assert "looks up     prices, all-names (global)" in topology.describe()
    drawn = json.loads(topology.to_json())
    (node,) = (node for node in drawn["nodes"] if node["name"] == "enrich")
    assert node["global_tables"] == ["all-names"]
    mermaid = topology.to_mermaid().splitlines()
    (topic,) = (line.split("[")[0].strip() for line in mermaid if '("names")' in line)
    (function,) = (line.split("[")[0].strip() for line in mermaid if '"enrich"' in line)
    assert '    g0[/"all-names<br/>global table"/]' in mermaid
    assert f"    {topic} --> g0" in mermaid
    assert f"    g0 -. looked up .-> {function}" in mermaid
