"""Goal: the record kernel is the same program compiled and as plain Python, and agrees with others.

Method: random records, and random damage to their bytes, through the source beside the module that
is in use here; records and hashes against aiokafka's, and against the stream that reads by hand.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import ModuleType

import plain_modules
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from record_bytes import batch

from onceflow.sdk.core.produce import key_hash
from onceflow.sdk.core.produce.accumulator import TopicState
from onceflow.sdk.protocol import batch_building, record_kernel, record_validation
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    parse_batch_header,
)
from onceflow.sdk.protocol.batch_reading import READ_ERRORS, decode_batch
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.record_walk import RecordStream

source = plain_modules.kernel

data = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=300)
records = st.lists(
    st.tuples(
        st.integers(-1, 2**62),
        data,
        data,
        st.lists(st.tuples(st.text(max_size=9), data), max_size=3),
    ),
    min_size=1,
    max_size=80,
)


def written(
    kernel: ModuleType, items: list[tuple[int, object, object, object]]
) -> tuple[object, ...]:
    writer = kernel.RecordWriter(10_000)
    sizes = [writer.write(writer.count, *item) for item in items]
    return sizes, writer.count, writer.base_timestamp, writer.max_timestamp, writer.take()


def seen(kernel: ModuleType, body: bytes, count: int, want: int) -> object:
    try:
        columns = kernel.walk(body, 0, count, 1_000, 5, want)
    except READ_ERRORS as error:
        return type(error).__name__
    names = ("offsets", "timestamps_ms", "keys", "values", "headers", "min_timestamp")
    names += ("max_timestamp", "keyless", "misplaced", "misplaced_delta")
    return [getattr(columns, name) for name in names]


def test_without_the_kernel_the_source_says_so() -> None:
    assert source.COMPILED is False
    assert record_kernel.COMPILED is (Path(record_kernel.__file__).suffix != ".py")


@pytest.mark.parametrize("kernel", [source, record_kernel], ids=["source", "in use"])
def test_a_record_that_cannot_be_written_leaves_nothing_behind(kernel: ModuleType) -> None:
    writer, other = kernel.RecordWriter(10_000), kernel.RecordWriter(10_000)
    assert writer.write(0, 5, b"k", b"v", None) == other.write(0, 5, b"k", b"v", None)
    for name, content in (("name", "text"), ("\ud800", b""), (b"name", b"")):
        with pytest.raises((TypeError, UnicodeEncodeError, AttributeError)):
            writer.write(1, 9, b"k", b"v", [("fine", b""), (name, content)])
    assert (writer.count, writer.max_timestamp) == (1, 5)
    assert writer.write(1, 7, b"k", None, []) == other.write(1, 7, b"k", None, [])
    assert writer.take() == other.take()


@given(st.lists(st.none() | st.binary(max_size=40), max_size=30), st.integers(1, 50))
def test_partitions_of_keys_are_those_of_each_key(keys: list[bytes | None], count: int) -> None:
    expected = [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    for module in (key_hash, plain_modules.key_hash):
        assert module.murmur2_partitions(keys, count, -1) == expected
        ones = [-1 if key is None else module.murmur2_partition(key, count) for key in keys]
        assert ones == expected
    assert source.only_bytes(keys)
    assert record_kernel.only_bytes(keys)
    assert not source.only_bytes([*keys, "text"])
    assert not record_kernel.only_bytes([*keys, "text"])


@given(records)
def test_both_make_the_same_records(items: list[tuple]) -> None:  # type: ignore[type-arg]
    kept = items[:20]
    body = written(record_kernel, kept)[-1]
    seen_records = []
    for kernel in (source, record_kernel):
        for stamp in (None, 77):
            maker = kernel.RecordMaker(lambda *fields: fields, "t", 3, 0, stamp, 9)
            columns = kernel.Columns()
            columns.records = ["first"]
            kernel.walk(body, 0, len(kept), 1_000, 5, kernel.RECORDS, 0, maker, columns)
            assert (columns.keys, columns.values, columns.offsets) == ([], [], [])
            seen_records.append(columns.records)
    assert seen_records[:2] == seen_records[2:]
    plain, stamped = seen_records[:2]
    assert [fields[2] for fields in plain[1:]] == list(range(1_000, 1_000 + len(kept)))
    assert [fields[5:7] for fields in plain[1:]] == [item[1:3] for item in kept]
    assert [list(fields[7]) for fields in plain[1:]] == [item[3] for item in kept]
    assert {fields[3] for fields in stamped[1:]} == {77}


@given(records)
def test_both_write_the_same_bytes_and_both_read_them_back(items: list[tuple]) -> None:  # type: ignore[type-arg]
    kept: list[tuple] = []  # type: ignore[type-arg]
    size = 0
    for item in items:
        size += 40 + sum(len(part or b"") for part in item[1:3])
        size += sum(20 + 4 * len(n) + len(v or b"") for n, v in item[3])
        if size > 9_000:
            break
        kept.append(item)
    result = written(record_kernel, kept)
    assert written(source, kept) == result
    body = result[-1]
    assert isinstance(body, bytes)
    for want in (record_kernel.NOTHING, record_kernel.VALUES, record_kernel.EVERYTHING):
        assert seen(source, body, len(kept), want) == seen(record_kernel, body, len(kept), want)
    encoded = batch_building.encode_batch(kept)
    assert bytes(encoded[HEADER_SIZE:]) == body
    fields = [(r.key, r.value, list(r.headers)) for r in decode_batch(encoded)]
    assert fields == [(key, value, headers) for _, key, value, headers in kept]


@given(records, st.data())
def test_both_judge_damaged_bytes_alike(items: list[tuple], choose: st.DataObject) -> None:  # type: ignore[type-arg]
    body = bytearray(written(record_kernel, items)[-1])  # type: ignore[arg-type]
    for _ in range(choose.draw(st.integers(1, 4))):
        body[choose.draw(st.integers(0, len(body) - 1))] = choose.draw(st.integers(0, 255))
    cut = bytes(body[: choose.draw(st.integers(0, len(body)))])
    count = choose.draw(st.integers(0, len(items) + 1))
    want = choose.draw(st.integers(0, 2))
    for damaged in (bytes(body), cut):
        assert seen(source, damaged, count, want) == seen(record_kernel, damaged, count, want)


def verdict(data: bytes, engine: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        plain_modules.use(engine, patch)
        try:
            return record_validation.validate_batch(data).max_timestamp
        except InvalidBatchError as error:
            return error.code


def verdict_by_hand(data: bytes) -> object:
    """What the stream says that goes over the records field by field, without the kernel."""
    header = parse_batch_header(data)
    stream = RecordStream(iter((data[HEADER_SIZE:],)))
    largest = -1
    try:
        for index in range(header.records_count):
            frame = stream.walk_record(header.base_timestamp)
            if frame.offset_delta != index:
                return ErrorCode.INVALID_RECORD
            largest = max(largest, frame.timestamp)
    except InvalidBatchError as error:
        return error.code
    return largest if stream.at_end() else ErrorCode.INVALID_RECORD


def damaged_batch(items: list[tuple], choose: st.DataObject) -> bytes:  # type: ignore[type-arg]
    body = bytearray(written(record_kernel, items)[-1])  # type: ignore[arg-type]
    for _ in range(choose.draw(st.integers(1, 3))):
        body[choose.draw(st.integers(0, len(body) - 1))] = choose.draw(st.integers(0, 255))
    return batch(bytes(body), len(items), base_timestamp=choose.draw(st.sampled_from([0, 2**62])))


@given(records, st.data())
def test_a_broker_judges_a_batch_alike_without_machine_code(
    items: list[tuple],  # type: ignore[type-arg]
    choose: st.DataObject,
) -> None:
    damaged = damaged_batch(items, choose)
    expected = verdict_by_hand(damaged)
    assert [verdict(damaged, engine) for engine in plain_modules.ENGINES] == [expected, expected]


@pytest.mark.parametrize("body", ["0c800000000000", "1e84ffffffffffff00ffff2700000000"])
def test_attributes_above_127_are_no_longer_number(body: str) -> None:
    unusual = batch(bytes.fromhex(body), 1)
    expected = verdict_by_hand(unusual)
    assert [verdict(unusual, engine) for engine in plain_modules.ENGINES] == [expected, expected]


@pytest.mark.parametrize("length", range(0, 40, 7))
def test_a_number_that_does_not_end_is_refused(length: int) -> None:
    assert seen(record_kernel, b"\xff" * length, 1, 2) in ("MalformedRecordError", "IndexError")


@given(st.binary(max_size=40))
def test_hashes_agree(key: bytes) -> None:
    expected = murmur2(key) & 0xFFFFFFFF
    assert key_hash.murmur2(key) == plain_modules.key_hash.murmur2(key) == expected
    # What is compiled is tested as plain Python too.
    assert plain_modules.key_hash._murmur2(key) == expected


def test_keys_are_remembered_within_bounds() -> None:
    """Some megabytes in a process, whatever is sent: in plain Python only, and no long ones."""
    plain = plain_modules.key_hash
    for number in range(plain.REMEMBERED_KEYS_MAX + 1_000):
        plain.murmur2_partition(b"%d" % number, 6)
        assert len(plain._remembered) <= plain.REMEMBERED_KEYS_MAX
    assert plain._remembered
    long_key = b"k" * (plain.REMEMBERED_BYTES_MAX + 1)
    assert plain.murmur2(long_key) == murmur2(long_key) & 0xFFFFFFFF
    assert long_key not in plain._remembered
    if key_hash.COMPILED:
        state = TopicState("t", 6, range(6), lambda: 0.0)
        tracemalloc.start()
        for number in range(50_000):
            state.partition_for(b"%d" % number)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held < 100_000


@pytest.mark.parametrize("engine", plain_modules.ENGINES)
@given(items=records, first=st.integers(0, 2**62))
def test_an_independent_encoder_agrees(
    engine: str,
    items: list[tuple],  # type: ignore[type-arg]
    first: int,
) -> None:
    foreign = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    # Its first timestamp must not be -1, which it takes for none yet.
    items = [(first, *items[0][1:]), *items[1:]]
    for number, (timestamp, key, value, headers) in enumerate(items):
        foreign.append(number, timestamp, key, value, headers)
    expected = bytes(foreign.build())
    with pytest.MonkeyPatch.context() as patch:
        plain_modules.use(engine, patch)
        ours = bytes(batch_building.encode_batch(items))
        read = [tuple(record) for record in decode_batch(expected)]
    assert ours[HEADER_SIZE:] == expected[HEADER_SIZE:]
    assert read == [
        (r.offset, None if r.timestamp == -1 else r.timestamp, r.key, r.value, list(r.headers))
        for r in DefaultRecordBatch(ours)
    ]


@pytest.mark.parametrize("kernel", [source, record_kernel], ids=["source", "in use"])
def test_a_sum_of_timestamps_is_one_of_64_bits(kernel: ModuleType) -> None:
    # Java's numbers wrap, and so do the bytes that it writes; plain Python's do not end.
    writer = kernel.RecordWriter(1_000)
    for timestamp in (-1, 2**63 - 1):
        writer.write(writer.count, timestamp, None, None, None)
    columns = kernel.walk(writer.take(), 0, 2, 0, -1, kernel.EVERYTHING)
    assert columns.timestamps_ms == [-1, 2**63 - 1]
    with pytest.raises((OverflowError, TypeError)):
        writer.write(0, 2**63, None, None, None)
