"""Goal: the batch builder keeps its promises on size, order, identity and compression.

Method: batches are built and read back; patched headers are compared with batches built that way.
"""

from __future__ import annotations

import os

import pytest

from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.batch_building import RecordHeaders, append_scattered
from onceflow.sdk.protocol.records import (
    HEADER_SIZE,
    Codec,
    InvalidBatchError,
    RecordBatchBuilder,
    check_crc,
    decode_batch,
    encode_batch,
    increment_sequence,
    iter_batch_headers,
    parse_batch_header,
    patch_base_offset,
    set_log_append_time,
    set_producer_state,
    set_timestamps,
    validate_batch,
)

NOW = 1_700_000_000_000


def test_null_and_empty_stay_different() -> None:
    batch = encode_batch([(NOW, None, b"", []), (NOW, b"", None, [])])
    assert [(r.key, r.value) for r in decode_batch(batch)] == [(None, b""), (b"", None)]


def test_a_full_batch_refuses_and_keeps_what_it_has() -> None:
    builder = RecordBatchBuilder(batch_size=200)
    sizes = []
    while (size := builder.append(NOW, b"k", b"v" * 30, [])) is not None:
        sizes.append(size)
    assert builder.records_count == len(sizes) == 3
    assert builder.size_bytes == HEADER_SIZE + sum(sizes)
    assert len(decode_batch(builder.build())) == 3


def test_a_batch_is_filled_to_its_last_byte() -> None:
    """In every engine, so that all write the same batches."""
    size = RecordBatchBuilder().append(NOW, b"k", b"v", [])
    assert size is not None
    builder = RecordBatchBuilder(HEADER_SIZE + 2 * size)
    assert [builder.append(NOW, b"k", b"v", []) for _ in range(3)] == [size, size, None]


@pytest.mark.parametrize("times", [[-1], [-1, -1], [-1, NOW, -1], [-1, 2**63 - 1], [5, -1, 0]])
def test_records_without_a_timestamp_take_none_of_others(times: list[int]) -> None:
    batch = encode_batch([(time, b"k", b"v", []) for time in times])
    found = [-1 if record.timestamp is None else record.timestamp for record in decode_batch(batch)]
    assert found == times
    header = parse_batch_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))


def test_the_first_record_fits_whatever_its_size() -> None:
    builder = RecordBatchBuilder(batch_size=100)
    assert builder.append(NOW, None, b"v" * 1000, []) is not None
    assert builder.append(NOW, None, b"v", []) is None


def test_scattered_records_go_to_the_batch_of_their_partition_until_one_is_full() -> None:
    values: list[bytes | None] = [b"%03d" % i for i in range(100)]
    targets = [i % 3 for i in range(100)]
    builders: list[RecordBatchBuilder | None] = [None] * 3
    taken: list[list[bytes | None]] = [[], [], []]
    at = 0
    while at < len(values):
        at = append_scattered(builders, targets, at, 100, NOW, None, values, None)
        if at < len(values):
            full = builders[targets[at]]
            if full is not None:
                taken[targets[at]] += [r.value for r in decode_batch(full.build())]
            builders[targets[at]] = RecordBatchBuilder(batch_size=200)
    for number, builder in enumerate(builders):
        assert builder is not None
        taken[number] += [r.value for r in decode_batch(builder.build())]
    assert taken == [values[number::3] for number in range(3)]


def test_scattered_records_go_on_after_single_ones_with_all_their_fields() -> None:
    builder = RecordBatchBuilder(batch_size=10_000)
    builder.append(NOW, None, b"first", [])
    keys: list[bytes | None] = [b"1", None, b"3"]
    values: list[bytes | None] = [b"x", None, b"z"]
    headers: list[RecordHeaders] = [[], [("n", b"v"), ("n", None)], []]
    times = [NOW, NOW + 5, NOW - 7]
    assert append_scattered([builder], [0] * 3, 1, 3, times, keys, values, headers) == 3
    builder.append(NOW, None, b"last", [])
    batch = builder.build()
    found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decode_batch(batch)]
    assert found == [
        (0, NOW, None, b"first", []),
        (1, NOW + 5, None, None, headers[1]),
        (2, NOW - 7, b"3", b"z", []),
        (3, NOW, None, b"last", []),
    ]
    header = parse_batch_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 5)


def test_no_records_take_no_place() -> None:
    builder = RecordBatchBuilder()
    assert append_scattered([builder], [], 0, 0, NOW, None, [], None) == 0
    assert append_scattered([builder], [0], 1, 1, NOW, None, [b"x"], None) == 1
    assert builder.records_count == 0


def test_a_value_of_a_wrong_type_leaves_the_batch_usable() -> None:
    builder = RecordBatchBuilder()
    with pytest.raises(TypeError):
        append_scattered([builder], [0, 0], 0, 2, NOW, None, [b"a", 7], None)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        builder.append(NOW, 1, b"", [])  # type: ignore[arg-type]
    builder.append(NOW, None, b"b", [])
    assert [r.value for r in decode_batch(builder.build())] == [b"a", b"b"]


def test_any_buffer_is_a_key_or_value() -> None:
    batch = encode_batch([(NOW, memoryview(b"key"), bytearray(b"value"), [])])
    (record,) = decode_batch(batch)
    assert (record.key, record.value) == (b"key", b"value")


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_records_that_do_not_shrink_stay_plain(codec: Codec) -> None:
    batch = encode_batch([(NOW, None, os.urandom(300), [])], codec=codec)
    assert parse_batch_header(batch).codec == Codec.NONE
    validate_batch(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_identity_is_the_same_set_before_or_after(codec: Codec) -> None:
    records = [(NOW, None, b"v" * 200, []) for _ in range(3)]
    before = encode_batch(
        records,
        codec=codec,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
    )
    after = encode_batch(records, codec=codec)
    set_producer_state(after, 9, 2, 40, True)
    assert after == before
    set_producer_state(after, 9, 3, 0)
    header = parse_batch_header(after)
    assert (header.producer_epoch, header.base_sequence) == (3, 0)
    assert header.is_transactional
    check_crc(after, 0, header)


def test_an_empty_batch_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


def test_sequences_wrap_to_zero() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 3, 5) == 2
    assert increment_sequence(0, 2**31 - 1) == 2**31 - 1


def test_a_log_places_a_batch_without_a_new_checksum() -> None:
    batch = encode_batch([(NOW, None, b"v", [])])
    crc = parse_batch_header(batch).crc
    patch_base_offset(batch, 77, 4)
    header = parse_batch_header(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (77, 4, crc)
    check_crc(batch, 0, header)
    assert decode_batch(batch)[0].offset == 77


def test_log_append_time_replaces_all_timestamps() -> None:
    batch = encode_batch([(NOW, None, b"a", []), (NOW + 9, None, b"b", [])])
    set_log_append_time(batch, NOW + 1000)
    header = parse_batch_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in decode_batch(batch)] == [NOW + 1000, NOW + 1000]
    set_timestamps(batch, TimestampType.CREATE_TIME, NOW + 9)
    assert batch == encode_batch([(NOW, None, b"a", []), (NOW + 9, None, b"b", [])])


def test_batches_are_walked_to_the_last_whole_one() -> None:
    one = encode_batch([(NOW, None, b"a", [])])
    two = encode_batch([(NOW, None, b"b", [])], base_offset=1)
    data = bytes(one + two)
    assert [(p, h.base_offset) for p, h in iter_batch_headers(data)] == [(0, 0), (len(one), 1)]
    for cut in range(len(one), len(data)):
        assert [position for position, _ in iter_batch_headers(data[:cut])] == [0]


def test_bytes_that_are_no_batch_are_refused() -> None:
    batch = encode_batch([(NOW, None, b"a", [])])
    with pytest.raises(InvalidBatchError, match="within its header"):
        parse_batch_header(batch[:60])
    old = bytearray(batch)
    old[16] = 1
    with pytest.raises(InvalidBatchError, match="version 1"):
        parse_batch_header(old)
    short = bytearray(batch)
    short[8:12] = (48).to_bytes(4, "big")
    with pytest.raises(InvalidBatchError, match="48 bytes"):
        parse_batch_header(short)
