"""Goal: whatever bytes arrive as a record batch, only our errors are raised and little is spent.

Method: hypothesis changes, cuts, joins and invents batches of every codec, with the checksum
repaired so that the damage reaches the code behind it; each reader must return or raise its errors.
What validation takes, every reader must be able to read.
"""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from record_bytes import batch

from onceflow.sdk.protocol.batch_header import compute_crc
from onceflow.sdk.protocol.compression import (
    Codec,
    CodecUnavailableError,
    DecompressionError,
    compress,
    decompress,
    decompress_chunks,
)
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    consumer_records,
    decode_batch,
    encode_batch,
    first_record_at_or_after,
    iter_batch_headers,
    max_timestamp_record,
    parse_batch_header,
    parse_control_batch,
    validate_batch,
)

ERRORS = (InvalidBatchError, CodecUnavailableError)
LIMIT = 1 << 20

values = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), values), max_size=3)
records = st.lists(
    st.tuples(st.integers(0, 2**45), values, values, headers), min_size=1, max_size=8
)
codecs = st.sampled_from(list(Codec))
edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6
)


def repaired(data: bytearray) -> bytes:
    """The bytes with a checksum that fits, as far as they look like a batch."""
    if len(data) >= 61:
        data[17:21] = compute_crc(data, 0, len(data)).to_bytes(4, "big")
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return bytes(data)


def read_everything(data: bytes) -> None:
    for read in (
        lambda: validate_batch(data, require_keys=True, timestamp_range=(0, 2**40)),
        lambda: decode_batch(data, max_bytes=LIMIT),
        lambda: decode_batch(data, verify_crc=False, max_bytes=LIMIT),
        lambda: consumer_records(data, parse_batch_header(data), 0, "t", 0, max_bytes=LIMIT),
        lambda: first_record_at_or_after(data, 0, 5),
        lambda: max_timestamp_record(data),
        lambda: parse_control_batch(data),
        lambda: list(iter_batch_headers(data)),
    ):
        with contextlib.suppress(*ERRORS):
            read()


@given(records, codecs)
def test_what_is_encoded_is_valid_and_comes_back(
    items: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Codec,
) -> None:
    data = encode_batch(items, codec=codec)
    valid = validate_batch(data)
    assert valid.max_timestamp == valid.header.max_timestamp == max(item[0] for item in items)
    found = [(r.timestamp, r.key, r.value, r.headers) for r in decode_batch(data)]
    assert found == items


@settings(max_examples=300)
@given(records, codecs, edits, st.booleans())
def test_changed_batches_raise_only_our_errors(
    items: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Codec,
    changes: list[tuple[float, int]],
    repair: bool,
) -> None:
    data = encode_batch(items, codec=codec)
    for place, byte in changes:
        data[int(place * len(data))] = byte
    read_everything(repaired(data) if repair else bytes(data))


@settings(max_examples=200)
@given(records, codecs, edits)
def test_changed_records_inside_a_compressed_batch_raise_only_our_errors(
    items: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Codec,
    changes: list[tuple[float, int]],
) -> None:
    plain = encode_batch(items)[61:]
    for place, byte in changes:
        plain[int(place * len(plain))] = byte
    data = batch(bytes(compress(codec, plain)), len(items), attributes=codec)
    read_everything(data)
    try:
        validate_batch(data)
    except InvalidBatchError:
        return
    assert [r.offset for r in decode_batch(data)] == list(range(len(items)))


@settings(max_examples=200)
@given(records, codecs, st.floats(0, 1), st.binary(max_size=30))
def test_cut_and_lengthened_batches_raise_only_our_errors(
    items: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Codec,
    place: float,
    tail: bytes,
) -> None:
    data = encode_batch(items, codec=codec)
    cut = data[: int(place * len(data))] + tail
    read_everything(bytes(cut))
    read_everything(repaired(cut))


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 7), st.integers(-1, 5))
def test_invented_records_raise_only_our_errors(body: bytes, attributes: int, count: int) -> None:
    read_everything(batch(body, count, attributes=attributes))


@settings(max_examples=300)
@given(codecs, st.binary(max_size=400), edits)
def test_damaged_blocks_raise_only_our_errors(
    codec: Codec, data: bytes, changes: list[tuple[float, int]]
) -> None:
    packed = bytearray(compress(codec, data))
    for place, byte in changes:
        if packed:
            packed[int(place * len(packed))] = byte
    for read in (
        lambda: len(decompress(codec, bytes(packed), max_bytes=LIMIT)),
        lambda: sum(map(len, decompress_chunks(codec, bytes(packed), max_bytes=LIMIT))),
    ):
        try:
            size = read()
        except DecompressionError:
            continue
        assert size <= LIMIT
