"""Goal: rows of tables and records under another key meet as a plain program would let them meet.

Method: the test driver against dictionaries, over random input; workers over the in-memory cluster
with kills, a table that is longer than one poll, and topics that are purged; wrong declarations.
"""

import collections
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processor_fakes import Entry
from processor_worlds import FakeAdmin, World

from onceflow.processors import (
    App,
    Count,
    DeclarationError,
    ProcessingError,
    State,
    Table,
    TopicSetupError,
    Tumbling,
    milliseconds,
)
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import RequestTimedOutError, TransactionAbortableError
from onceflow.sdk.model.partitions import TopicPartition


@dataclass
class Customer:
    name: str


@dataclass
class Order:
    number: int
    customer: str


def shop(**options: object) -> App:
    app = App("shop", **options)  # type: ignore[arg-type]
    customers = app.table("customers", Customer, key=str)

    @app.processor("orders", to="out")
    def enrich(order: int, customer: Annotated[Customer | None, customers]) -> str:
        return f"{order}:{customer.name if customer else '-'}"

    return app


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("customers"), st.sampled_from("ab"), st.sampled_from(["X", "Y", None])),
        st.tuples(st.just("orders"), st.sampled_from("ab"), st.integers(0, 9)),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_functions_see_the_row_of_their_key(steps: list[tuple[str, str, object]]) -> None:
    driver, rows, wanted = TestDriver(shop(), partitions=2), dict[str, str](), list[bytes]()
    for topic, key, value in steps:
        if topic == "orders":
            driver.send(topic, value, key=key)
            wanted.append(f"{value}:{rows.get(key, '-')}".encode())
        elif value is None:
            driver.send(topic, None, key=key)
            rows.pop(key, None)
        else:
            driver.send(topic, Customer(str(value)), key=key)
            rows[key] = str(value)
    assert driver.values("out") == wanted
    assert driver.state("customers", "table") == {
        key.encode(): Customer(name) for key, name in rows.items()
    }


def put(world: World, topic: str, key: bytes, value: bytes | None, time_ms: int) -> None:
    world.cluster.logs[TopicPartition(topic, 0)].append(Entry(key, value, (), time_ms))


@pytest.mark.parametrize("start_from", ["earliest", "latest"])
def test_the_table_is_read_to_its_end_before_the_first_record(
    tmp_path: Path, start_from: str
) -> None:
    """Also where it is longer than a poll, later than the records, and the stream begins late."""
    world = World(tmp_path, "orders", "customers")
    for number in range(30):
        put(world, "customers", b"k%d" % number, b'{"name":"N%d"}' % number, 1_000)
    app = shop(max_poll_records=4, start_from=start_from)
    if start_from == "latest":
        world.cluster.do("poll", lambda: None)
        world.cluster.do("poll", lambda: put(world, "orders", b"k29", b"1", 5))
    else:
        put(world, "orders", b"k29", b"1", 5)
    world.run(app)
    assert world.cluster.values("out") == [b"1:N29"]


@pytest.mark.parametrize("call", ["send", "flush", "commit_transaction"])
def test_the_table_is_read_to_its_end_again_after_an_abort(tmp_path: Path, call: str) -> None:
    """Until a record is committed that met it, whatever that record's time."""
    world = World(tmp_path, "orders", "customers")
    for number in range(5):
        put(world, "customers", b"k", b'{"name":"N%d"}' % number, 1_000 + number)
    put(world, "orders", b"k", b"1", 5)
    world.cluster.fail(call, TransactionAbortableError("try again"))
    world.run(shop(max_poll_records=2))
    assert world.cluster.values("out") == [b"1:N4"]


class Killed(BaseException):
    """The process is gone."""


def die() -> None:
    raise Killed


CALLS = ["send", "flush", "send_offsets_to_transaction", "commit_transaction"]


def killed_at(world: World, app: Callable[[], App], call: str, at: int, after: bool) -> None:
    """Run a worker that is killed in the given call, and then one to the end."""
    for _ in range(at):
        world.cluster.do(call, lambda: None)
    world.cluster.do(call, die, after=after)
    try:
        world.run(app())
    except Killed:
        world.cluster.forget_faults()
        world.run(app())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("call", CALLS)
def test_tables_survive_kills(tmp_path: Path, call: str, at: int, after: bool) -> None:
    """The table is loaded once, before the first record, whatever that record's time. Later rows
    and records alternate in time, so each record's row is decided by order alone."""
    world = World(tmp_path, "orders", "customers")
    for number in range(12):
        put(world, "customers", b"k", b'{"name":"N%d"}' % number, 10 * number)
    put(world, "orders", b"k", b"1", 5)
    killed_at(world, lambda: shop(commit_records=3), call, at, after)
    for number in range(12, 18):
        put(world, "customers", b"k", b'{"name":"N%d"}' % number, 10 * number)
        put(world, "orders", b"k", b"%d" % number, 10 * number + 5)
    killed_at(world, lambda: shop(commit_records=3), call, at, after)
    wanted = [b"1:N11", *(b"%d:N%d" % (n, n) for n in range(12, 18))]
    assert world.cluster.values("out") == wanted


def keyed(**options: object) -> App:
    app = App("shop", **options)  # type: ignore[arg-type]

    @app.processor("orders", to="totals", key=lambda order: order.customer, dead_letter="dead")
    def total(order: Order, key: str, seen: State[int]) -> list[str]:
        seen.set(seen.get(0) + order.number)
        return [f"{key}={seen.get()}"]

    return app


ORDERS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["ann", "bob", "cem"])), max_size=25)


@settings(max_examples=60, deadline=None)
@given(orders=ORDERS)
def test_records_meet_under_their_new_key(orders: list[tuple[int, str]]) -> None:
    driver = TestDriver(keyed(), partitions=3)
    sums = collections.Counter[str]()
    wanted = []
    for number, (count, customer) in enumerate(orders):
        driver.send("orders", Order(count, customer), key=str(number), timestamp_ms=number)
        sums[customer] += count
        wanted.append(f"{customer}={sums[customer]}".encode())
    assert driver.values("totals") == wanted
    assert [r.timestamp_ms for r in driver.outputs("totals")] == list(range(len(orders)))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    orders=ORDERS,
    call=st.sampled_from(CALLS),
    at=st.integers(0, 30),
    after=st.booleans(),
    unit=st.sampled_from([1, 2, 100]),
)
def test_keys_survive_kills(
    tmp_path_factory: pytest.TempPathFactory,
    orders: list[tuple[int, str]],
    call: str,
    at: int,
    after: bool,
    unit: int,
) -> None:
    world = World(tmp_path_factory.mktemp("keys"), "orders")
    wanted, sums = [], collections.Counter[str]()
    for count, customer in orders:
        value = json.dumps({"number": count, "customer": customer}).encode()
        put(world, "orders", b"k", value, 0)
        sums[customer] += count
        wanted.append(f"{customer}={sums[customer]}".encode())
    killed_at(world, lambda: keyed(commit_records=unit), call, at, after)
    assert world.cluster.values("totals") == wanted


def test_what_is_processed_is_purged(tmp_path: Path) -> None:
    world = World(tmp_path, "orders")
    world.idle_polls_max = 40
    for number in range(5):
        put(world, "orders", b"k", b'{"number":1,"customer":"ann"}', number)
    world.run(keyed())
    own = TopicPartition("shop-total-repartition", 0)
    assert world.configs[own.topic] == {"cleanup.policy": "delete", "retention.ms": "-1"}
    assert world.log_starts[own] == world.cluster.offset(own.topic) == 5


def test_a_purge_that_fails_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, "orders")
    world.idle_polls_max = 100
    for number in range(5):
        put(world, "orders", b"k", b'{"number":1,"customer":"ann"}', number)
    purge, failed = FakeAdmin.purge, []

    def fails_first(admin: FakeAdmin, before: Mapping[TopicPartition, int]) -> None:
        if not failed:
            failed.append(before)
            raise RequestTimedOutError()
        purge(admin, before)

    monkeypatch.setattr(FakeAdmin, "purge", fails_first)
    world.run(keyed())
    own = TopicPartition("shop-total-repartition", 0)
    assert failed == [{own: 5}]
    assert world.log_starts[own] == 5


def test_headers_and_values_stay(tmp_path: Path) -> None:
    app = App("shop")

    @app.processor("in", to="out", key=lambda value: "k" + value)
    def echo(value: str, key: str, headers: object) -> str:
        return f"{key} {value} {headers}"

    driver = TestDriver(app)
    driver.send("in", "v", headers=[("h", b"1")])
    assert driver.values("out") == [b"kv v (('h', b'1'),)"]


def test_an_order_without_a_key_of_its_own() -> None:
    app = App("shop")

    @app.processor("in", to="out", key=lambda value: None)
    def echo(value: str) -> str:
        return value

    with pytest.raises(ProcessingError, match="echo-repartition: key= gave None"):
        TestDriver(app).send("in", "v")


def test_failures_on_the_way_to_the_new_key_follow_the_policy() -> None:
    driver = TestDriver(keyed())
    driver.send("orders", b"no order", key="k")
    assert [(r.key, r.value) for r in driver.dead_letters("dead")] == [(b"k", b"no order")]


def test_aggregates_take_another_key_too() -> None:
    app = App("shop")

    @app.aggregate(
        "words",
        key=lambda word: word.lower(),
        window=Tumbling(milliseconds(50)),
        to="counts",
        fold=Count(),
    )
    def word(word: str) -> str:
        return word

    driver = TestDriver(app)
    for text in ("tea", "Milk", "TEA"):
        driver.send("words", text, key=str(len(text)), timestamp_ms=5)
    driver.send("words", "x", timestamp_ms=100)
    counts = {record.key: record.value for record in driver.outputs("counts")}
    assert counts == {b"tea": b"2", b"milk": b"1"}


def test_inputs_that_do_not_lie_alike_are_refused_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path, "orders", "customers")
    world.topics["customers"] = TopicFacts(3, "id")
    with pytest.raises(TopicSetupError, match="customers has 3, orders has 1; re-partition"):
        world.run(shop())


def test_the_topic_of_the_new_key_lies_like_the_table(tmp_path: Path) -> None:
    """Orders have one partition and customers three: re-keying makes them meet."""
    world = World(tmp_path, "orders", "customers")
    world.topics["customers"] = TopicFacts(3, "id")
    app = App("shop")
    customers = app.table("customers", Customer)

    @app.processor("orders", to="out", key=lambda order: order.customer)
    def enrich(order: Order, customer: Annotated[Customer | None, customers]) -> None:
        return None

    world.run(app)
    assert world.topics["shop-enrich-repartition"].partitions == 3


def test_declarations_that_cannot_work() -> None:
    app = App("shop")
    customers = app.table("customers", Customer, key=str)
    other: Table[str, Customer] = App("other").table("customers", Customer, key=str)

    def wrong_table(order: int, customer: Annotated[Customer | None, other]) -> str:
        return ""

    def never_missing(order: int, customer: Annotated[Customer, customers]) -> str:
        return ""

    def wrong_type(order: int, customer: Annotated[Order | None, customers]) -> str:
        return ""

    def valueless(key: str) -> str:
        return key

    def plain(value: str) -> str:
        return value

    for function, options, message in (
        (wrong_table, {}, "table 'customers' belongs to another application"),
        (never_missing, {}, r"write Annotated\[.*Customer \| None, ...\]"),
        (wrong_type, {}, "table customers holds .*Customer"),
        (plain, {"key": "customer"}, "key='customer': must be a function of the value"),
        (valueless, {"key": len}, "key= needs a parameter for the value"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.processor("orders", to="out", **options)(function)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="topic 'customers' is table customers already"):
        app.table("customers", Customer)
    with pytest.raises(DeclarationError, match="table name 'a b'"):
        app.table("x", Customer, name="a b")
    with pytest.raises(DeclarationError, match="cannot be called"):
        customers()
