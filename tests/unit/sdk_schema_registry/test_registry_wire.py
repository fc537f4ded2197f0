"""Goal: the bytes before a value are Confluent's, and hostile ones are refused with a reason.

Method: vectors written down by hand from the layout (zero byte, big-endian id, zigzag varints),
round trips, and every prefix of valid bytes.
"""

from __future__ import annotations

import pytest

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry.wire import (
    INDEXES_MAX,
    read_indexes,
    read_schema_id,
    write_indexes,
    write_prefix,
)

VECTORS = [
    ([0], b"\x00"),
    ([1], b"\x02\x02"),
    ([0, 0], b"\x04\x00\x00"),
    ([2, 1, 0], b"\x06\x04\x02\x00"),
    ([64], b"\x02\x80\x01"),
    ([8191], b"\x02\xfe\x7f"),
]


def test_prefix_is_a_zero_byte_and_the_id() -> None:
    assert write_prefix(1) == b"\x00\x00\x00\x00\x01"
    assert write_prefix(0x01020304) == b"\x00\x01\x02\x03\x04"
    assert read_schema_id(write_prefix(2**31 - 1) + b"value") == 2**31 - 1


@pytest.mark.parametrize(("indexes", "data"), VECTORS)
def test_indexes_have_their_bytes(indexes: list[int], data: bytes) -> None:
    assert write_indexes(indexes) == data
    assert read_indexes(b"\x00\x00\x00\x00\x07" + data + b"rest") == (
        tuple(indexes),
        5 + len(data),
    )


def test_the_long_form_of_the_first_message_is_read_too() -> None:
    assert read_indexes(b"\x02\x00", 0) == ((0,), 2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "too few"),
        (b"\x00\x00\x00\x01", "too few"),
        (b'{"a": 1}', "not 0"),
        (b"\x00\xff\xff\xff\xff", "is invalid"),
        (b"\x00\x00\x00\x00\x00", "is invalid"),
    ],
)
def test_bytes_without_a_schema_id_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(SerializationError, match=said):
        read_schema_id(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x04\x00",
        b"\x01",
        b"\x02\x01",
        write_indexes([0] * (INDEXES_MAX + 1)),
        b"\xfe\xff\xff\xff\x0f",
    ],
)
def test_indexes_that_cannot_be_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="index"):
        read_indexes(data, 0)
