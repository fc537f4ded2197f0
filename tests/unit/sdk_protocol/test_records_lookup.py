"""Goal: reading and looking up inside batches, also those that compaction left behind.

Method: small batches with known timestamps and offsets, made by the encoder or by hand.
"""

from __future__ import annotations

import pytest
from record_bytes import batch, record, varint

from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    consumer_records,
    control_batch,
    decode_batch,
    decode_values,
    encode_batch,
    first_record_at_or_after,
    max_timestamp_record,
    parse_batch_header,
    parse_control_batch,
    set_log_append_time,
)

T = 1_700_000_000_000


@pytest.mark.parametrize("codec", list(Codec))
def test_the_first_record_at_or_after_a_time_is_found_in_any_order_of_times(codec: Codec) -> None:
    times = [T + 10, T + 5, T + 30, T + 20]
    data = encode_batch([(t, None, b"v" * 50, []) for t in times], codec=codec, base_offset=100)
    assert first_record_at_or_after(data, 0, T) == (100, T + 10)
    assert first_record_at_or_after(data, 0, T + 11) == (102, T + 30)
    assert first_record_at_or_after(data, 0, T + 30) == (102, T + 30)
    assert first_record_at_or_after(data, 0, T + 31) is None
    assert first_record_at_or_after(data, 0, T, first_offset=101) == (101, T + 5)


def test_a_log_that_starts_inside_a_batch_does_not_show_what_lies_before() -> None:
    data = encode_batch([(T + i, None, b"v", []) for i in range(4)], base_offset=100)
    assert first_record_at_or_after(data, 0, T, first_offset=102) == (102, T + 2)
    assert first_record_at_or_after(data, 0, T, first_offset=104) is None


def test_the_largest_timestamp_is_the_first_record_that_has_it() -> None:
    times = [T, T + 9, T + 3, T + 9]
    data = encode_batch([(t, None, b"v", []) for t in times], base_offset=7)
    assert max_timestamp_record(data) == (8, T + 9)
    set_log_append_time(data, T + 50)
    assert max_timestamp_record(data) == (7, T + 50)


def test_records_without_timestamps_have_no_largest() -> None:
    data = batch(record(0), 1, base_timestamp=-1, max_timestamp=-1)
    assert max_timestamp_record(data) is None
    assert first_record_at_or_after(data, 0, 0) is None
    records = consumer_records(data, parse_batch_header(data), 0, "t", 0)
    assert records[0].timestamp_ms == -1


def test_a_batch_is_read_where_it_stands() -> None:
    data = b"before" + batch(record(0, value=b"here"), 1) + b"after"
    assert decode_values(data, 6) == [b"here"]
    assert decode_values(memoryview(data), 6) == [b"here"]


def test_gaps_that_compaction_left_are_kept() -> None:
    data = batch(record(2) + record(5), 2, base_offset=40, last_offset_delta=9)
    assert [r.offset for r in decode_batch(data)] == [42, 45]
    assert parse_batch_header(data).next_offset == 50


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    data = batch(b"", 0, last_offset_delta=9, producer_id=5, producer_epoch=1, base_sequence=3)
    assert decode_batch(data) == []
    assert decode_values(data) == []
    assert parse_batch_header(data).next_offset == 10


def test_header_names_that_are_not_utf_8_are_read_with_replacements() -> None:
    data = batch(record(0, headers=[(b"\xff", b"x"), (b"ok", None)]) + record(1, value=None), 2)
    first, second = decode_batch(data)
    assert first.headers == [("\ufffd", b"x"), ("ok", None)]
    assert (second.value, second.headers, second.timestamp) == (None, [], T)
    records = consumer_records(data, parse_batch_header(data), 0, "t", 0)
    assert records[0].headers == [("\ufffd", b"x"), ("ok", None)]


def test_a_damaged_batch_is_noticed_by_its_checksum_only_if_asked() -> None:
    data = bytearray(encode_batch([(T, None, b"value", [])]))
    data[-2] ^= 1
    with pytest.raises(InvalidBatchError, match="checksum"):
        decode_batch(data)
    assert decode_batch(data, verify_crc=False)[0].value == b"valud"


@pytest.mark.parametrize(
    ("records", "count"),
    [(record(0), 2), (record(0) + b"x", 1), (varint(500) + b"abc", 1), (record(0, length=3), 1)],
)
def test_malformed_records_raise_one_error(records: bytes, count: int) -> None:
    data = batch(records, count)
    for read in (decode_batch, decode_values):
        with pytest.raises(InvalidBatchError, match="malformed"):
            read(data)


def test_a_reader_bounds_what_a_batch_may_unpack_to() -> None:
    records = record(0, value=bytes(100_000))
    data = batch(compress(Codec.ZSTD, records), 1, attributes=Codec.ZSTD)
    assert len(decode_values(data)[0] or b"") == 100_000
    with pytest.raises(InvalidBatchError, match="unpacks to more than 50000 bytes"):
        decode_values(data, max_bytes=50_000)


def test_a_marker_without_its_value_is_refused() -> None:
    key = b"\x00\x00\x00\x01"
    good = batch(record(0, key=key, value=bytes(6)), 1, attributes=0x30)
    assert parse_control_batch(good).is_commit
    for value in (None, b"", bytes(5)):
        data = batch(record(0, key=key, value=value), 1, attributes=0x30)
        with pytest.raises(InvalidBatchError, match="control batch"):
            parse_control_batch(data)
    with pytest.raises(InvalidBatchError, match="malformed"):
        parse_control_batch(batch(record(0, key=None), 1, attributes=0x20))


def test_control_records_of_other_kinds_are_neither_commit_nor_abort() -> None:
    """Trap 78."""
    data = batch(record(0, key=b"\x00\x00\x00\x02", value=b"raft"), 1, attributes=0x20)
    control = parse_control_batch(data)
    assert (control.type, control.is_commit, control.is_abort) == (2, False, False)


def test_data_is_no_control_batch() -> None:
    with pytest.raises(InvalidBatchError, match="not a control batch"):
        parse_control_batch(batch(record(0), 1))
    assert parse_batch_header(control_batch(1, 0, 0, True, timestamp_ms=T)).is_control
