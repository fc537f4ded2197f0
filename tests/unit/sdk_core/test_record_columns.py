"""Goal: columns hold the same as records, whole, in parts and joined, and become Arrow.

Method: records with every kind of field, through both ways, and a cursor that serves both.
"""

from __future__ import annotations

from typing import Any

import plain_modules
import pyarrow
import pytest
from record_bytes import batch, record

from onceflow.sdk.core.consume.record_cursor import RecordCursor
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.columns import RecordColumns, as_sequence
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    consumer_columns,
    consumer_records,
    decode_batch,
    decode_values,
    encode_batch,
    extend_columns,
    parse_batch_header,
    patch_base_offset,
    set_log_append_time,
)

P0 = TopicPartition("t", 0)
BATCH = encode_batch(
    [
        (1_000, b"k", b"v", [("h", b"1"), ("h", None)]),
        (1_005, None, b"", []),
        (990, b"", None, []),
    ]
)


@pytest.fixture(params=plain_modules.ENGINES, autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_modules.use(request.param, monkeypatch)


def columns(batch: bytes | bytearray = BATCH) -> RecordColumns:
    return consumer_columns(batch, parse_batch_header(batch), 0, "t", 0)


def records(batch: bytes | bytearray = BATCH) -> list[ConsumerRecord]:
    return consumer_records(batch, parse_batch_header(batch), 0, "t", 0)


def test_columns_are_the_records_field_by_field() -> None:
    assert list(columns()) == [columns()[at] for at in range(3)] == records()
    assert list(RecordColumns.from_records(records())) == records()
    assert list(columns().values) == [b"v", b"", None]
    assert columns()[-1] == records()[-1]
    with pytest.raises(IndexError):
        columns()[3]


def test_the_time_of_appending_counts_where_the_topic_says_so() -> None:
    batch = bytearray(BATCH)
    set_log_append_time(batch, 7_777)
    assert columns(batch).timestamps_ms == [7_777] * 3
    assert list(columns(batch)) == records(batch)


def test_values_alone_leave_the_rest_out() -> None:
    header = parse_batch_header(BATCH)
    found = consumer_columns(BATCH, header, 0, "t", 0, values_only=True)
    assert found.values == [b"v", b"", None]
    assert list(found.offsets) == [0, 1, 2]


def test_parts_and_joins_keep_every_field_in_place() -> None:
    both = columns()[1:]
    assert list(both) == records()[1:]
    both.extend(columns()[:1])
    assert list(both) == records()[1:] + records()[:1]
    whole = columns()[:2]
    whole.extend(columns()[2:])
    assert list(whole) == records()
    assert whole.offsets == columns().offsets or list(whole.offsets) == [0, 1, 2]


def test_batches_are_read_behind_each_other() -> None:
    second = bytearray(BATCH)
    patch_base_offset(second, 3, 0)
    first = bytearray(BATCH)
    patch_base_offset(first, 0, 0)
    late = bytearray(second)
    set_log_append_time(late, 7_777)
    for more in (second, late):
        expected = records(first) + records(more)
        into = records(first)
        assert consumer_records(more, parse_batch_header(more), 0, "t", 0, into=into) is into
        assert into == expected
        whole = columns(first)
        if not extend_columns(whole, more, parse_batch_header(more), 0):
            whole.extend(columns(more))
        whole.timestamp_type = expected[-1].timestamp_type  # type: ignore[assignment] # as if alike
        assert whole.values == [record.value for record in expected]
        assert list(whole)[3:] == expected[3:]


def test_values_are_read_behind_each_other_unless_offsets_are_missing() -> None:
    header = parse_batch_header(BATCH)
    into = consumer_columns(BATCH, header, 0, "t", 0, values_only=True)
    if not into.values_only:
        pytest.skip("the extension reads every field, so there are no values alone")
    more = bytearray(BATCH)
    patch_base_offset(more, 3, -1)
    assert extend_columns(into, more, parse_batch_header(more), 0)
    assert (into.offsets, into.values) == (range(6), [b"v", b"", None] * 2)
    gap = batch(record(0) + record(2), 2, base_offset=6, last_offset_delta=2)
    assert not extend_columns(into, gap, parse_batch_header(gap), 0)
    assert (into.offsets, into.values, into.values_only) == (
        range(6),
        [b"v", b"", None] * 2,
        True,
    )


@pytest.mark.parametrize(
    "broken", [record(0) + record(1)[:-1], record(0), record(0) + b"\0"], ids=["cut", "few", "more"]
)
def test_a_broken_batch_leaves_what_it_was_to_follow_as_it_was(broken: bytes) -> None:
    data = batch(broken, 2, base_offset=3)
    header = parse_batch_header(data)
    into, beside = records(), columns()
    with pytest.raises(InvalidBatchError):
        consumer_records(data, header, 0, "t", 0, into=into)
    assert into == records()
    values = consumer_columns(BATCH, parse_batch_header(BATCH), 0, "t", 0, values_only=True)
    for found in (beside, values):
        with pytest.raises(InvalidBatchError):
            extend_columns(found, data, header, 0)
    assert list(beside) == records()
    assert values.values == [b"v", b"", None]


@pytest.mark.parametrize("attributes", [0x7F, 0x80, 0xFF])
def test_attributes_of_a_record_change_nothing(attributes: int) -> None:
    odd = bytearray(record(0, key=b"k") + record(1, key=b"k"))
    odd[1] = attributes
    data = batch(bytes(odd), 2)
    plain = batch(record(0, key=b"k") + record(1, key=b"k"), 2)
    assert records(data) == records(plain)
    assert list(columns(data)) == records(plain)
    assert decode_values(data) == [b"value"] * 2
    assert [found.offset for found in decode_batch(data)] == [0, 1]


def test_arrow_gets_nulls_where_there_is_nothing() -> None:
    table = columns().to_arrow()
    assert table.to_pydict()["key"] == [b"k", None, b""]
    assert table.to_pydict()["value"] == [b"v", b"", None]
    assert table.schema.field("timestamp").type == pyarrow.timestamp("ms", "UTC")
    assert table.to_pydict()["offset"] == [0, 1, 2]


def subscription() -> Subscription:
    found = Subscription("earliest")
    found.assign_manually([P0])
    found.seek(P0, 3)  # where a fetch of the batch has moved it to
    return found


def test_a_cursor_serves_columns_as_records_and_records_as_columns() -> None:
    cursor = RecordCursor(subscription())
    cursor.load({P0: columns()})
    assert cursor.take(2) == {P0: records()[:2]}
    rest = cursor.take_columns(9, values_only=False)[P0]
    assert list(rest) == records()[2:]
    cursor.load({P0: records()})
    values = cursor.take_columns(9, values_only=True)[P0]
    assert (list(values.offsets), values.values) == ([0, 1, 2], [b"v", b"", None])
    assert values.values_only, "whichever way they came, or tables of them would differ"
    assert values.to_arrow().schema.names == ["offset", "value"]


@pytest.mark.parametrize("field", ["leader_epoch", "timestamp_type"])
def test_columns_end_where_a_run_changes_what_all_of_them_share(field: str) -> None:
    """A poll joins batches to one run; what of it was left over may be asked for as columns."""
    cursor, run = RecordCursor(subscription()), records()
    for item in run[1:]:
        setattr(item, field, 1)
    cursor.load({P0: list(run)})
    for expected in (run[:1], run[1:]):
        found = cursor.take_columns(9, values_only=False)[P0]
        assert list(found) == expected


def test_before_a_record_of_a_run_was_handed_out_its_epoch_is_not_that_of_the_position() -> None:
    known = subscription()
    known.state(P0).position_epoch = 9  # of the last record of the run
    cursor, run = RecordCursor(known), records()
    cursor.load({P0: run})
    assert known.positions()[P0].leader_epoch == -1
    cursor.next()
    assert known.positions()[P0].leader_epoch == run[0].leader_epoch
    cursor.take(9)
    assert known.positions()[P0].leader_epoch == 9


@pytest.mark.parametrize("form", ["records", "columns"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_what_was_taken_back_is_taken_again(form: str, first: int, limit: int) -> None:
    known = subscription()
    cursor = RecordCursor(known)
    cursor.load({P0: records() if form == "records" else columns()})
    expected = records()[first : first + limit]
    cursor.take(first)
    before = known.state(P0).position
    for _ in range(2):
        cursor.begin_taking()
        assert cursor.take(limit) == {P0: expected}
        assert known.state(P0).position == expected[-1].offset + 1
        cursor.take_back()
        assert known.state(P0).position == before
    cursor.begin_taking()
    assert list(cursor.take_columns(limit, values_only=False)[P0]) == expected
    cursor.end_taking()
    cursor.take_back()
    assert known.state(P0).position == expected[-1].offset + 1


def test_what_was_taken_back_is_no_more_than_was_taken() -> None:
    """The records of one run may have been put behind those of another in its own list."""
    cursor = RecordCursor(subscription())
    cursor.load({P0: records()})
    cursor.load({P0: records()})
    cursor.begin_taking()
    assert cursor.take(9) == {P0: records() * 2}
    cursor.take_back()
    assert cursor.take(9) == {P0: records() * 2}


def test_offsets_with_gaps_grow_in_place() -> None:
    """As many small batches with markers between them need it."""
    found = RecordColumns("t", 0, range(3), [b""] * 3)
    found.extend(RecordColumns("t", 0, range(4, 5), [b""]))
    offsets = found.offsets
    found.extend(RecordColumns("t", 0, range(6, 8), [b""] * 2))
    assert found.offsets is offsets
    assert offsets == [0, 1, 2, 4, 6, 7]


def test_a_run_that_was_given_away_is_the_applications() -> None:
    known = subscription()
    cursor = RecordCursor(known)
    run = records()
    cursor.load({P0: run})
    taken = cursor.take(9)
    assert taken[P0] is run, "it is not copied"
    run.append(run[0])
    assert cursor.take(9) == {}, "what the application adds is never handed out"
    assert known.state(P0).position == 3
    whole = columns()
    known.seek(P0, 3)
    cursor.load({P0: whole})
    assert cursor.take_columns(9, values_only=False)[P0] is whole
    whole.extend(columns())
    assert cursor.take_columns(9, values_only=False) == {}


def test_values_alone_are_never_served_as_records() -> None:
    known = subscription()
    cursor = RecordCursor(known)
    header = parse_batch_header(BATCH)
    run = consumer_columns(BATCH, header, 0, "t", 0, values_only=True)
    if not run.values_only:
        pytest.skip("the extension reads every field, so there is nothing to serve wrongly")
    cursor.load({P0: run})
    assert cursor.take_columns(1, values_only=True)[P0].values == [b"v"]
    before = known.state(P0).stamp
    assert cursor.take(9) == {}
    state = known.state(P0)
    assert (state.position, state.stamp != before) == (1, True), "it is fetched again from there"


def test_columns_of_other_libraries_are_taken_as_sequences() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy comes with the Spark extra")
    assert as_sequence(pyarrow.array([b"a", None], pyarrow.binary())) == [b"a", None]
    assert as_sequence(pyarrow.chunked_array([[b"a"], [b"b"]])) == [b"a", b"b"]
    assert as_sequence(numpy.array([1, 2])) == [1, 2]
    assert as_sequence((b"a",)) == (b"a",)


@pytest.mark.parametrize(
    "given", ["abc", b"abc", bytearray(b"a"), memoryview(b"a"), 5, None, {"a": 1}, iter([b"a"])]
)
def test_what_is_no_column_is_refused_by_name(given: Any) -> None:
    """Above all text and bytes: each letter would become a record."""
    with pytest.raises(ConfigError, match="must be a") as caught:
        as_sequence(given, "keys")
    assert caught.value.field == "keys"


def test_an_array_without_a_dimension_is_no_column() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy comes with the Spark extra")
    with pytest.raises(ConfigError, match="must be a sequence"):
        as_sequence(numpy.array(5))


def test_no_records_are_not_values_alone() -> None:
    assert not RecordColumns("t", 0, [], []).values_only
    assert RecordColumns("t", 0, [0], [b"v"]).values_only
