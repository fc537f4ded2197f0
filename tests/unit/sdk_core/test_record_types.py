"""Goal: the type parameters of records cost nothing and change nothing while a program runs.

Method: a batch is read in every form while calling a parametrized class is an error: that is how a
record would cost four times as much. What checkers make of the parameters is looked at in
`tests/house/test_documentation_typed.py`.
"""

from __future__ import annotations

import copy
import gc
import pickle
import typing

import pytest

from onceflow.processors import App
from onceflow.processors.testing import TestDriver
from onceflow.sdk import ConsumerRecord, RecordColumns
from onceflow.sdk.protocol.batch_reading import consumer_columns, consumer_records
from onceflow.sdk.protocol.records import encode_batch, parse_batch_header

BATCH = bytes(encode_batch([(5, None, b"a", []), (6, b"k", b"b", [])]))


def refuse(*_: object) -> object:
    raise AssertionError("a parametrized class is called")


def test_reading_calls_no_parametrized_class(monkeypatch: pytest.MonkeyPatch) -> None:
    header = parse_batch_header(BATCH)
    alias = type(ConsumerRecord[str, str])
    monkeypatch.setattr(alias, "__call__", refuse)
    with pytest.raises(AssertionError):
        ConsumerRecord[str, str]("t", 0, 0)
    columns = consumer_columns(BATCH, header, 0, "t", 0)
    assert [record.value for record in columns] == [b"a", b"b"]
    assert columns[1].value == b"b"
    assert columns[:1].values == [b"a"]
    assert RecordColumns.from_records(list(columns)).values == [b"a", b"b"]
    assert [record.value for record in consumer_records(BATCH, header, 0, "t", 0)] == [b"a", b"b"]


def test_a_record_is_as_light_as_without_parameters() -> None:
    record: ConsumerRecord[bytes, bytes] = ConsumerRecord("t", 0, 1, key=b"k", value=b"v")
    assert not gc.is_tracked(record)
    assert not hasattr(record, "__dict__")
    assert copy.copy(record) == pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("annotation", [ConsumerRecord, ConsumerRecord[bytes | None, bytes | None]])
def test_a_processor_takes_records_with_and_without_parameters(annotation: object) -> None:
    app = App("records")

    def handle(record: typing.Any) -> bytes:
        assert isinstance(record, ConsumerRecord)
        return record.value or b""

    handle.__annotations__["record"] = annotation
    app.processor("in", to="out")(handle)
    driver = TestDriver(app)
    driver.send("in", b"a")
    assert driver.values("out") == [b"a"]
