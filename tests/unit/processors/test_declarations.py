"""Goal: declarations mean what they say, need no network, and wrong ones name the remedy.

Method: applications are declared and inspected, or driven in memory by the test driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypedDict

import msgspec
import pytest
from click.testing import CliRunner

from onceflow.cli.run import run as run_command
from onceflow.processors import (
    App,
    Context,
    DeclarationError,
    Output,
    OutputRefusedError,
    ProcessingError,
    Retries,
    State,
)
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.consumer_record import ConsumerRecord


@dataclasses.dataclass
class Order:
    item: str
    pieces: int = 1


class Price(msgspec.Struct):
    cents: int


class Place(TypedDict):
    city: str


def test_a_decorated_function_stays_a_function() -> None:
    app = App("a")

    @app.processor("in", to="out")
    def upper(value: str) -> str:
        return value.upper()

    assert upper("x") == "X"


def test_values_follow_their_annotations() -> None:
    app = App("typed")
    seen: list[object] = []

    @app.processor("raw")
    def raw(value: bytes) -> None:
        seen.append(value)

    @app.processor("bare")
    def bare(value):  # type: ignore[no-untyped-def]
        seen.append(value)

    @app.processor("orders", to="orders-out")
    def order(order: Order) -> Order:
        seen.append(order)
        return dataclasses.replace(order, pieces=2)

    @app.processor("prices", to="prices-out", format="msgpack")
    def price(price: Price) -> Price:
        seen.append(price)
        return price

    @app.processor("places")
    def place(place: Place | None) -> None:
        seen.append(place)

    driver = TestDriver(app)
    driver.send("raw", b"\xff")
    driver.send("bare", b"\xfe")
    driver.send("orders", {"item": "pen"})
    driver.send("prices", {"cents": 5})
    driver.send("places", {"city": "Ulm"})
    driver.send("places", None)
    assert seen == [b"\xff", b"\xfe", Order("pen"), Price(5), {"city": "Ulm"}, None]
    assert driver.values("orders-out", Order) == [Order("pen", 2)]
    assert msgspec.msgpack.decode(driver.outputs("prices-out")[0].value) == {"cents": 5}


def test_tombstone_needs_an_annotation_that_allows_it() -> None:
    """Trap 76: None means delete; a handler that does not expect it must not meet it."""
    app = App("tombstones")

    @app.processor("in")
    def handle(value: str) -> None:
        return None

    with pytest.raises(ProcessingError, match=r"annotate it with \| None"):
        TestDriver(app).send("in", None)


def test_arguments_by_annotation_and_by_name() -> None:
    app = App("arguments")
    seen: list[object] = []

    @app.processor("in")
    def handle(
        value: str,
        key: int,
        headers: list[tuple[str, bytes]],
        record: ConsumerRecord,
        context: Context,
        *,
        option: str = "own",
    ) -> None:
        seen.extend(
            (value, key, list(headers), record.offset, context.record_id, context.attempt, option)
        )

    TestDriver(app).send("in", "v", key=7, headers=[("h", b"1")])
    assert seen == ["v", 7, [("h", b"1")], 0, "in-0-0", 1, "own"]


def test_one_several_or_no_outputs() -> None:
    app = App("outputs")

    @app.processor("in", to="out")
    def handle(value: str) -> Iterator[object]:
        if value == "none":
            return
        yield value
        yield Output(value, topic="other", key="k2", headers=[("h", None)], timestamp_ms=9)
        yield Output([1, 2])

    driver = TestDriver(app)
    driver.send("in", "none")
    driver.send("in", "a", key="k", timestamp_ms=5)
    assert driver.values("out") == [b"a", b"[1,2]"]
    (other,) = driver.outputs("other")
    assert (other.key, other.timestamp_ms, other.headers) == (b"k2", 9, [("h", None)])
    assert [record.timestamp_ms for record in driver.outputs("out")] == [5, 5]


def test_an_input_without_a_timestamp_gives_the_present_time() -> None:
    """Some old batches have none (-1), and no producer takes that for one."""
    app = App("times")

    @app.processor("in", to="out")
    def plain(value: bytes) -> bytes:
        return value

    @app.processor("in2", to="out2", dead_letter="dead")
    def several(value: bytes) -> Iterator[object]:
        yield value
        yield Output(value, headers=[("h", b"1")])
        if value == b"bad":
            raise ValueError

    driver = TestDriver(app)
    driver.send("in", b"a", timestamp_ms=-1)
    driver.send("in2", b"a", timestamp_ms=-1)
    driver.send("in2", b"bad", timestamp_ms=-1)
    for topic, count in (("out", 1), ("out2", 2), ("dead", 1)):
        found = [record.timestamp_ms for record in driver.outputs(topic)]
        assert found == [driver.now_ms] * count, topic


async def test_async_generators() -> None:
    app = App("generators")

    @app.processor("in", to="out")
    async def handle(value: str) -> AsyncIterator[str]:
        yield value
        yield value + "!"

    driver = TestDriver(app)
    await driver.send_async("in", "a")
    assert driver.values("out") == [b"a", b"a!"]


def test_returned_value_without_a_topic_is_an_error() -> None:
    app = App("nowhere")

    @app.processor("in")
    def handle(value: str) -> object:
        return value

    with pytest.raises(ProcessingError, match="has no to= topic"):
        TestDriver(app).send("in", "a")


def test_an_annotated_return_without_a_topic_is_refused_before_anything_runs() -> None:
    def text(value: str) -> str:
        return value

    def mapping(value: str) -> dict[str, int]:
        return {value: 1}

    for handler, shown in ((text, "str"), (mapping, r"dict\[str, int\]")):
        app = App("nowhere-declared")
        app.processor("in")(handler)
        with pytest.raises(DeclarationError, match=f"returns {shown} but has no to= topic"):
            TestDriver(app)


def test_send_after_the_record_is_refused() -> None:
    """Field case 64: it would land in the transaction of a later record."""
    app = App("late")
    kept: list[Context] = []
    states: list[State[int]] = []

    @app.processor("in", to="out")
    def handle(value: str, context: Context, seen: State[int]) -> None:
        kept.append(context)
        states.append(seen)

    TestDriver(app).send("in", "a", key="k")
    with pytest.raises(OutputRefusedError, match="record in-0-0 was finished"):
        kept[0].send("out", "late")
    with pytest.raises(OutputRefusedError, match="'seen' of handle was written after"):
        states[0].set(1)


def test_state_by_key_with_types_that_survive() -> None:
    """Trap 65: no detour over JSON; trap 62: the record's key and no other."""
    app = App("states")
    keys: list[str] = []

    @app.processor("in", to="out")
    def handle(
        value: str, orders: State[str, Order], pairs: State[dict[int, tuple[bytes, float]]]
    ) -> None:
        keys.append(orders.key)  # type: ignore[arg-type]
        order = orders.get() or Order(value, 0)
        order.pieces += 1
        orders.set(order)
        pairs.set({1: (b"\xff", 0.5)})
        if value == "gone":
            orders.delete()
            assert orders.get("nothing") == "nothing"

    driver = TestDriver(app)
    driver.send("in", "pen", key="k1")
    driver.send("in", "pen", key="k1")
    driver.send("in", "cup", key="k2")
    driver.send("in", "gone", key="k2")
    assert driver.state("handle", "orders") == {b"k1": Order("pen", 2)}
    assert driver.state("handle", "pairs")[b"k1"] == {1: (b"\xff", 0.5)}
    assert keys == ["k1", "k1", "k2", "k2"]


def test_state_needs_a_key() -> None:
    app = App("keyless")

    @app.processor("in")
    def handle(value: str, seen: State[int]) -> None:
        seen.set(1)

    with pytest.raises(ProcessingError, match="the record has no key"):
        TestDriver(app).send("in", "a")


def test_retries_move_the_drivers_clock() -> None:
    app = App("clock")
    attempts: list[int] = []

    @app.processor("in", to="out", retries=Retries(3, backoff_ms=100, backoff_max_ms=250))
    def handle(value: str, context: Context) -> str:
        attempts.append(context.attempt)
        if context.attempt < 4:
            raise ValueError("not yet")
        return value

    driver = TestDriver(app)
    driver.send("in", "a")
    assert attempts == [1, 2, 3, 4]
    assert driver.now_ms == 100 + 200 + 250
    assert driver.values("out") == [b"a"]


def test_topology_prints_itself() -> None:
    app = App("shop")

    @app.processor("orders", to="bills", retries=2, dead_letter="broken-orders")
    async def bill(order: Order, total: State[int]) -> int:
        return 1

    assert str(app.topology()).splitlines() == [
        "application shop",
        "  sub-topology 0: orders",
        "    async processor bill",
        "      reads        orders",
        "      writes       bills",
        "      state        total: int in lmdb, changelog shop-bill-total-changelog",
        "      retries      2, 100 to 10000 ms apart",
        "      then         dead letter to broken-orders",
    ]


def test_wrong_declarations_name_the_remedy() -> None:
    app = App("wrong")

    def two(a: str, b: str) -> None: ...
    def stars(*values: str) -> None: ...
    def bare_state(value: str, seen: State) -> None: ...  # type: ignore[type-arg]
    def unknown(value: Order | Price) -> None: ...
    def good(value: str) -> None: ...

    for function, message in (
        (two, "which of a, b gets the record's value"),
        (stars, "name every parameter"),
        (bare_state, r"write State\[...\]"),
        (unknown, "cannot decode"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.processor("in")(function)
    app.processor("in")(good)
    with pytest.raises(DeclarationError, match="two processors of wrong have the name 'good'"):
        app.processor("elsewhere")(good)
    with pytest.raises(DeclarationError, match="contradict"):
        app.processor("in2", name="x", dead_letter="d", on_error="skip")(good)
    with pytest.raises(DeclarationError, match="application name"):
        App("not a topic name")
    with pytest.raises(ValueError, match="transaction_timeout_ms"):
        App("times", transaction_timeout_ms=100)


def test_command_line_explains_itself_and_prints_the_topology(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = CliRunner().invoke(run_command, ["--help"])
    assert "Example: onceflow run my_module:app" in shown.output
    described = CliRunner().invoke(run_command, ["examples.task2_count.app:app", "--topology"])
    assert "changelog task2-count-count-seen-changelog" in described.output
    missing = CliRunner().invoke(run_command, ["no_such_module:app"])
    assert missing.exit_code == 2
    assert "no module 'no_such_module'" in missing.output
    wrong = CliRunner().invoke(run_command, ["json:app"])
    assert "json has no App named 'app'; make one" in wrong.output


def test_the_command_says_what_it_reads_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "run", lambda self, **options: None)
    target = "examples.task2_count.app:app"
    done = CliRunner().invoke(run_command, [target, "--bootstrap", "kafka-1:9092"])
    assert done.exit_code == 0
    assert f"onceflow run {target}: task2-count reads clicks at kafka-1:9092" in done.output


def broken(value: bytes) -> None:
    raise ValueError("a bug")


def test_the_command_shows_where_a_handler_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(app: App, **options: object) -> None:
        failing = App("failing")
        failing.processor("in")(broken)
        TestDriver(failing).send("in", b"x")

    monkeypatch.setattr(App, "run", run)
    done = CliRunner().invoke(run_command, ["examples.task2_count.app:app"])
    assert done.exit_code == 1
    assert 'in broken\n    raise ValueError("a bug")\n' in done.output
    assert f"ValueError('a bug') at {__file__}:" in done.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop_window:ap", "it has shop_window:app"),
        ("../shop_window.py", "give MODULE:APP"),
        ("", "give MODULE:APP"),
        ("shop_broken:app", "shop_broken imports 'no_such_package', which is not installed"),
        ("shop_window.missing:app", "no module 'shop_window.missing'"),
    ],
)
def test_a_wrong_application_on_the_command_line_says_what_to_do(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_window.py").write_text(
        "from onceflow.processors import App\napp = App('shop-window', 'localhost:9092')\n"
    )
    (tmp_path / "shop_broken.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(run_command, [target])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("target", ["shop_door.py", "./shop_door.py:app", "shop_door"])
def test_a_file_in_this_directory_is_an_application_too(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_door.py").write_text(
        "from onceflow.processors import App\napp = App('shop-door', 'localhost:9092')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(run_command, [target, "--topology"])
    assert result.exit_code == 0, result.output
    assert "application shop-door" in result.output


def test_the_driver_names_what_there_is() -> None:
    app = App("typos")

    @app.processor("in", to="totals")
    def count(value: str, key: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return value

    driver = TestDriver(app)
    with pytest.raises(LookupError, match="topic 'nope' is none of this application: in, totals"):
        driver.send("nope", "x")
    with pytest.raises(LookupError, match="topic 'total' is none of this application"):
        driver.values("total")
    with pytest.raises(LookupError, match=r"no state count\.zz; there are: count\.seen"):
        driver.state("count", "zz")
    driver.send("in", "x", key="k")
    assert driver.values("totals") == [b"x"]
    assert driver.values("written-sometimes") == []
    assert list(driver.state("count", "seen").values()) == [1]


def test_a_processor_does_not_feed_itself_unless_it_says_so() -> None:
    app = App("a")

    def again(value: str) -> str:
        return value

    def countdown(value: int) -> Output | None:
        return Output(value - 1, topic="in") if value else None

    with pytest.raises(DeclarationError, match=r"again: .*own input topic 'in'.*for ever"):
        app.processor("in", to="in")(again)
    app.processor("in")(countdown)
    assert list(app.topology().input_topics) == ["in"]


# By kafka-python's murmur2, which is Java's, among seven partitions.
KAFKAS_PARTITIONS = {"a": 5, "b": 6, "21": 3, "héllo": 2, "x" * 99: 0}


def test_the_driver_partitions_by_the_key_as_kafka_does() -> None:
    app = App("spread")

    @app.processor("in", to="out")
    def handle(value: str, key: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value} {seen.get(0)}"

    driver = TestDriver(app, partitions=7)
    for key in KAFKAS_PARTITIONS:
        driver.send("in", "v", key=key)
        driver.send("in", "v", key=key)
    for topic in ("in", "out"):
        found = {record.key.decode(): record.partition for record in driver.outputs(topic)}
        assert found == KAFKAS_PARTITIONS
    assert driver.values("out", str) == ["v 1", "v 2"] * len(KAFKAS_PARTITIONS)
    driver.send("in", "v", key="a", partition=6)
    assert driver.outputs("in")[-1].partition == 6


def test_an_annotation_that_is_no_name_of_the_module_says_what_to_do() -> None:
    app = App("hidden")

    def handle(value: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DeclarationError, match="define the type at the top of the module"):
        app.processor("in")(handle)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda app: app.processor("in", retrys=3), "retrys=3: processor .* mean retries"),
        (lambda app: app.processor("in", batchs=3), "batchs=3: processor .* mean batch"),
        (lambda app: app.aggregate("in", window=None, emitt=1), "aggregate .* mean emit"),
        (lambda app: app.table("in", str, stores="memory"), "table .* mean store"),
        (lambda app: app.join("a", "b", withn=1), "join .* mean within"),
        (lambda app: app.timer(print, onerror="skip"), "timer .* mean on_error"),
        (lambda app: app.processor("in", zzzz=1), "choose from to, key, branches, batch, conc"),
    ],
)
def test_unknown_options_get_a_suggestion(declare: Callable[[App], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare(App("options"))
