"""Goal: what a producer writes without a serializer a processor reads without a format, NaN is
refused before it is written, and another format is named with its remedy.

Method: one dictionary through the producer's default serializer and a processor in the test driver.
"""

from __future__ import annotations

import math

import pytest

from onceflow.processors import App
from onceflow.processors.errors import ProcessingError
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
