"""Goal: what a producer writes without a serializer a processor reads without a format, NaN is
refused before it is written, and another format is named with its remedy. Pydantic models work like
dataclasses; a class that nothing can make of bytes is refused when it is declared.

Method: values through the producer's default serializer and a processor in the test driver.
"""

from __future__ import annotations

import datetime
import math

import pydantic
import pytest

from onceflow.processors import App, MapState, State
from onceflow.processors.errors import DeclarationError, ProcessingError
from onceflow.processors.testing import TestDriver
from onceflow.sdk.core.produce.appending import to_bytes
from onceflow.sdk.serde import JSON, MSGPACK


def doubling(format: str = "json") -> TestDriver:
    app = App("formats")

    @app.processor("in", to="out", format=format)
    def double(value: dict[str, float]) -> dict[str, float]:
        return {name: number * 2 for name, number in value.items()}

    return TestDriver(app)


def test_the_producer_and_processors_have_one_default() -> None:
    driver = doubling()
    driver.send("in", to_bytes({"a": 1.5}, None, "value", "in"))
    assert [JSON.deserialize(data) for data in driver.values("out", bytes)] == [{"a": 3.0}]


@pytest.mark.parametrize(
    ("format", "writer", "remedy"),
    [
        ("json", MSGPACK, 'the bytes are MessagePack: declare the processor with format="msgpack"'),
        ("msgpack", JSON, 'the bytes are JSON: declare the processor with format="json"'),
    ],
)
def test_another_format_is_named(format: str, writer: object, remedy: str) -> None:
    driver = doubling(format)
    with pytest.raises(ProcessingError, match=remedy):
        driver.send("in", writer.serialize({"a": 1.0}))  # type: ignore[attr-defined]


def test_a_processor_never_writes_nan_as_null() -> None:
    driver = doubling()
    with pytest.raises(ProcessingError, match="JSON has no NaN"):
        driver.send("in", JSON.serialize({"a": 1e308}))  # twice this is infinite
    assert math.isinf(1e308 * 2)
    assert driver.values("out", bytes) == []


class Item(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    pieces: int
    paid_on: datetime.date


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")
    raw: bytes = b""
    items: list[Item] = []


ORDER = {"no": 7, "raw": "ab", "items": [{"pieces": 2, "paid_on": "2026-11-28"}]}


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_models_are_read_and_written(format: str) -> None:
    app = App("models")

    @app.processor("in", to="out", format=format)
    def more(order: Order) -> Order:
        order.number += 1
        return order

    driver = TestDriver(app)
    given = ORDER if format == "json" else ORDER | {"items": []}  # MessagePack has no dates
    driver.send("in", given)
    serde = JSON if format == "json" else MSGPACK
    (found,) = driver.values("out", bytes)
    raw = "ab" if format == "json" else b"ab"
    assert serde.deserialize(found) == given | {"no": 8, "raw": raw}  # type: ignore[arg-type]


def test_models_within_other_types_are_read() -> None:
    app = App("models")
    got: list[object] = []

    @app.processor("in")
    def take(orders: dict[str, Order | None]) -> None:
        got.append(orders)

    TestDriver(app).send("in", {"a": ORDER, "b": None})
    assert got == [{"a": Order.model_validate_json(JSON.serialize(ORDER)), "b": None}]


def test_model_that_refuses_a_value_says_why() -> None:
    app = App("models")

    @app.processor("in", dead_letter="dead")
    def take(order: Order) -> None: ...

    driver = TestDriver(app)
    driver.send("in", {"no": "seven"})
    (letter,) = driver.dead_letters("dead")
    message = dict(letter.headers)["onceflow.error.message"]
    assert message is not None
    assert b"value of take does not fit" in message
    assert b"valid integer" in message


def test_models_are_kept_in_state() -> None:
    """With the bytes in them as they are."""
    app = App("models")

    @app.processor("in", to="out")
    def keep(order: Order, last: State[Order], all_: MapState[int, Order]) -> bytes:
        before = last.get()
        order.raw = b"\xff" if before is None else before.raw + b"\xfe"
        last.set(order)
        all_[order.number] = order
        return b"".join(kept.raw for kept in all_.values())

    driver = TestDriver(app)
    driver.send("in", {"no": 1}, key="k")
    driver.send("in", {"no": 2}, key="k")
    assert driver.values("out") == [b"\xff", b"\xff\xff\xfe"]


class Opaque:
    """Nothing says how it is made of bytes."""


@pytest.mark.parametrize("kind", [Opaque, list[Opaque], dict[str, Opaque] | None])
def test_class_that_nothing_can_make_of_bytes_is_refused_when_declared(kind: object) -> None:
    def value(incoming: object) -> None: ...

    def state(incoming: bytes, kept: object) -> None: ...

    value.__annotations__["incoming"] = kind
    state.__annotations__["kept"] = State[kind]  # type: ignore[valid-type]
    for function in (value, state):
        with pytest.raises(
            DeclarationError, match=r"cannot decode .*Opaque; make it a dataclass, .*"
        ):
            App("opaque").processor("in")(function)


def test_any_class_goes_from_one_function_to_another() -> None:
    """Nothing is written and read in between."""
    app = App("opaque")
    got: list[object] = []

    @app.processor("in")
    def make(value: bytes) -> Opaque:
        return Opaque()

    @app.processor(make)
    def take(value: Opaque) -> None:
        got.append(type(value))

    TestDriver(app).send("in", b"x")
    assert got == [Opaque]
