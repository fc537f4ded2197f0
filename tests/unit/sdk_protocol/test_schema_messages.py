"""Goal: a declared message behaves as a value and is written exactly as Kafka's rules say.

Method: a message made for these tests, covering every specifier, compared with bytes written out by
hand from KIP-482 and Kafka's protocol guide (never with bytes of our own encoder).
"""

from __future__ import annotations

import copy
import pickle
import struct as binary
from uuid import UUID

import pytest

from onceflow.sdk.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
    version_range,
)


class Numbers(Message, versions="0-1", flexible="1+"):
    flag: bool = boolean()
    a: int = int8()
    b: int = int16()
    c: int = uint16()
    d: int = int32()
    e: int = uint32()
    f: int = int64()
    g: float = float64()
    h: UUID = uuid()


class Texts(Message, versions="0-2", flexible="1+"):
    name: str = string()
    note: str | None = string(nullable="0+", default=None)
    blob: bytes = bytes_()
    batch: bytes | memoryview | None = records(nullable="0-1", default=None)


class Tree(Message, versions="0-3", flexible="2+"):
    class Leaf(Struct):
        index: int = int32()
        weight: int = int16("1+", default=-1)

    class Extra(Struct):
        value: int = int64()

    leaves: list[Leaf] = array(Leaf)
    ids: list[int] | None = array(int32, nullable="0+", default=None)
    names: list[str] = array(string, "1+", default=[])
    topic_ids: list[UUID] = array(uuid, "3+", default=[], ignorable=True)
    best: Leaf | None = struct(Leaf, "3+", nullable="3+", default=None)
    label: str | None = string(nullable="2+", default=None, tag=0, tagged="2+")
    extra: Extra | None = struct(Extra, default=None, tag=1, tagged="2+")
    marks: list[int] = array(int8, default=[], tag=4, tagged="3+")


NUMBERS = Numbers(flag=True, a=-2, b=-3, c=65535, d=-4, e=4294967295, f=-5, g=1.5, h=UUID(int=7))
NUMBERS_BYTES = (
    b"\x01\xfe\xff\xfd\xff\xff\xff\xff\xff\xfc\xff\xff\xff\xff"
    b"\xff\xff\xff\xff\xff\xff\xff\xfb\x3f\xf8\0\0\0\0\0\0" + bytes(15) + b"\x07"
)


def both_ways(message: Message, version: int, expected: bytes) -> None:
    assert message.encode(version) == expected
    for data in (expected, memoryview(expected), memoryview(bytearray(expected))):
        assert type(message).decode(data, version) == (message, len(expected))
    shifted = b"abc" + expected + b"trailing"
    assert type(message).decode(shifted, version, 3) == (message, 3 + len(expected))


def test_numbers_are_big_endian() -> None:
    both_ways(NUMBERS, 0, NUMBERS_BYTES)


def test_a_flexible_version_ends_with_its_tagged_fields() -> None:
    """Trap 65."""
    both_ways(NUMBERS, 1, NUMBERS_BYTES + b"\0")


def test_strings_and_bytes_carry_a_length_of_two_or_four_bytes() -> None:
    both_ways(
        Texts(name="é", note="x", blob=b"yz", batch=b"batch"),
        0,
        b"\0\x02\xc3\xa9\0\x01x\0\0\0\x02yz\0\0\0\x05batch",
    )


def test_null_is_length_minus_one() -> None:
    both_ways(Texts(name="", blob=b""), 0, b"\0\0\xff\xff\0\0\0\0\xff\xff\xff\xff")


def test_compact_lengths_are_one_more_than_the_length() -> None:
    both_ways(Texts(name="", blob=b"yz", batch=b"b"), 1, b"\x01\0\x03yz\x02b\0")


@pytest.mark.parametrize(
    ("size", "prefix"),
    [(126, b"\x7f"), (127, b"\x80\x01"), (128, b"\x81\x01"), (16383, b"\x80\x80\x01")],
)
def test_compact_lengths_grow_by_seven_bits(size: int, prefix: bytes) -> None:
    text = "t" * size
    both_ways(
        Texts(name=text, blob=b"", note=text, batch=b"r" * size),
        1,
        prefix + text.encode() + prefix + text.encode() + b"\x01" + prefix + b"r" * size + b"\0",
    )


def test_nested_structs_and_arrays_without_flexibility() -> None:
    tree = Tree(leaves=[Tree.Leaf(index=1), Tree.Leaf(index=2)], ids=[3, 4])
    both_ways(tree, 0, b"\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\0\0\x03\0\0\0\x04")


def test_a_field_joins_in_its_first_version() -> None:
    tree = Tree(leaves=[Tree.Leaf(index=1, weight=5)], names=["a", "b"])
    both_ways(
        tree,
        1,
        b"\0\0\0\x01\0\0\0\x01\0\x05\xff\xff\xff\xff\0\0\0\x02\0\x01a\0\x01b",
    )


def test_tagged_fields_are_left_out_at_their_default() -> None:
    both_ways(Tree(leaves=[]), 2, b"\x01\0\x01\0")


def test_tagged_fields_are_written_in_the_order_of_their_tags() -> None:
    tree = Tree(
        leaves=[Tree.Leaf(index=1, weight=2, unknown_tagged_fields={9: b"in"})],
        ids=[],
        topic_ids=[ZERO_UUID],
        best=Tree.Leaf(index=6, weight=7),
        label="L",
        extra=Tree.Extra(value=8),
        marks=[1, 2],
        unknown_tagged_fields={200: b"late", 2: b""},
    )
    both_ways(
        tree,
        3,
        b"\x02\0\0\0\x01\0\x02\x01\x09\x02in"
        b"\x01"
        b"\x01"
        b"\x02" + bytes(16) + b"\x01\0\0\0\x06\0\x07\0"
        b"\x05"
        b"\x00\x02\x02L"
        b"\x01\x09\0\0\0\0\0\0\0\x08\0"
        b"\x02\x00"
        b"\x04\x03\x03\x01\x02"
        b"\xc8\x01\x04late",
    )


def test_null_in_a_tagged_array_differs_from_its_empty_default() -> None:
    class Marked(Message, versions="0", flexible="0+"):
        marks: list[int] | None = array(int8, nullable="0+", default=[], tag=0, tagged="0+")

    both_ways(Marked(), 0, b"\0")
    both_ways(Marked(marks=None), 0, b"\x01\x00\x01\x00")
    assert Marked(marks=()).encode(0) == b"\0"  # type: ignore[arg-type]


def test_more_than_127_unknown_tags_survive() -> None:
    """Trap 65."""
    tree = Tree(leaves=[], unknown_tagged_fields=dict.fromkeys(range(300, 600), b"x"))
    assert Tree.decode(tree.encode(2), 2)[0] == tree


def test_record_batches_are_never_copied() -> None:
    batch = bytearray(100_000)
    parts: list[object] = []
    Texts(name="n", blob=b"", batch=batch).encode_into(parts.append, 1)
    assert any(part is batch for part in parts)
    data = Texts(name="n", blob=b"", batch=batch).encode(1)
    decoded, _ = Texts.decode(data, 1)
    assert isinstance(decoded.batch, memoryview)
    assert decoded.batch.obj is data


def test_a_value_that_the_version_cannot_carry_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="names is set"):
        Tree(leaves=[], names=["x"]).encode(0)
    with pytest.raises(LocalProtocolError, match="weight is set"):
        Tree(leaves=[Tree.Leaf(index=1, weight=1)]).encode(0)
    with pytest.raises(LocalProtocolError, match="label is set"):
        Tree(leaves=[], label="x").encode(1)
    with pytest.raises(LocalProtocolError, match="unknown_tagged_fields is set"):
        Tree(leaves=[], unknown_tagged_fields={1: b""}).encode(1)


def test_an_ignorable_value_is_dropped() -> None:
    assert Tree(leaves=[], topic_ids=[ZERO_UUID]).encode(2) == Tree(leaves=[]).encode(2)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Texts(name=None, blob=b""), "name is None"),  # type: ignore[arg-type]
        (Texts(name=b"x", blob=b""), "name is a bytes, not a string"),  # type: ignore[arg-type]
        (Texts(name="x" * 32768, blob=b""), "name has 32768 bytes"),
        (Texts(name="x", blob=None), "blob is None"),  # type: ignore[arg-type]
        (Texts(name="\ud800", blob=b""), "surrogates not allowed"),
        (Tree(leaves=[Tree.Leaf(index=2**31)]), r"leaves\[0\]\.index is 2147483648"),
        (Tree(leaves=[None]), r"leaves\[0\] is None"),  # type: ignore[list-item]
        (Tree(leaves=None), "leaves is None"),  # type: ignore[arg-type]
        (Tree(leaves=5), "leaves is a int, not a list"),  # type: ignore[arg-type]
        (Tree(leaves=[7]), r"leaves\[0\] is a int, not a struct"),  # type: ignore[list-item]
        (Tree(leaves=[], ids=[1, 2**31]), r"ids\[1\] is 2147483648, which is no int32"),
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_a_value_outside_its_type_is_refused_by_name(
    message: Message, fault: str, version: int
) -> None:
    if version == 2 and isinstance(message, Texts):
        message.batch = b""
    with pytest.raises(LocalProtocolError, match=fault):
        message.encode(version)


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    with pytest.raises(LocalProtocolError):
        Texts(name="x", blob=b"", batch=None).encode(2)
    with pytest.raises(RemoteProtocolError, match="batch is null"):
        Texts.decode(b"\x01\0\x01\0\0", 2)


def test_versions_outside_the_declaration_are_refused() -> None:
    for version in (-1, 4, 99):
        with pytest.raises(UnsupportedVersionError, match="0 to 3"):
            Tree(leaves=[]).encode(version)
        with pytest.raises(UnsupportedVersionError, match="0 to 3"):
            Tree.decode(b"", version)


def test_defaults_stand_in_for_fields_that_a_version_lacks() -> None:
    tree, _ = Tree.decode(b"\0\0\0\x01\0\0\0\x01\xff\xff\xff\xff", 0)
    assert tree == Tree(leaves=[Tree.Leaf(index=1)])
    tree.names.append("mine")
    assert Tree.decode(b"\0\0\0\0\xff\xff\xff\xff", 0)[0].names == []
    assert Tree(leaves=[]).names == []


def test_the_constructor_takes_required_fields_by_keyword_only() -> None:
    with pytest.raises(TypeError, match="index"):
        Tree.Leaf()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Tree.Leaf(1)  # type: ignore[misc,call-arg]
    with pytest.raises(TypeError, match="colour"):
        Tree.Leaf(index=1, colour=2)  # type: ignore[call-arg]


def test_messages_compare_by_value_and_are_not_hashable() -> None:
    assert Tree.Leaf(index=1) == Tree.Leaf(index=1)
    assert Tree.Leaf(index=1) != Tree.Leaf(index=2)
    assert Tree.Leaf(index=1) != Tree.Extra(value=1)
    assert Tree.Leaf(index=1) != Tree.Leaf(index=1, unknown_tagged_fields={0: b""})
    with pytest.raises(TypeError):
        hash(Tree.Leaf(index=1))


def test_a_subclass_has_the_fields_of_its_base() -> None:
    class Wider(Texts, versions="0-2", flexible="1+"):
        more: int = int8()

    message = Wider(name="n", blob=b"", more=3)
    assert message.encode(0) == Texts(name="n", blob=b"").encode(0) + b"\x03"


def test_messages_have_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Tree.Leaf(index=1).colour = 1  # type: ignore[attr-defined]


def test_repr_shows_what_differs_from_the_defaults_and_hides_bytes() -> None:
    assert repr(Tree(leaves=[Tree.Leaf(index=1)])) == "Tree(leaves=[Tree.Leaf(index=1)])"
    assert repr(Texts(name="n", blob=b"secret")) == "Texts(name='n', blob=<6 bytes>)"


def test_messages_can_be_copied_and_pickled() -> None:
    tree = Tree(leaves=[Tree.Leaf(index=1)], unknown_tagged_fields={1: b"x"})
    assert copy.deepcopy(tree) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree


@pytest.mark.parametrize(
    ("data", "version", "cause"),
    [
        (b"", 0, "unpack"),
        (b"\0\0\0\x01", 0, "leaves is longer"),
        (b"\xff\xff\xff\xff", 0, "leaves is null"),
        (b"\xff\xff\xff\xfe", 0, "leaves is null"),
        (b"\x7f\xff\xff\xff" + bytes(100), 0, "leaves is longer"),
        (b"\0", 2, "leaves is null"),
        (b"\x80\x80\x80\x80\x80\x01" + bytes(100), 2, "varint is too long"),
        (b"\xff\xff\xff\xff\x7f" + bytes(100), 2, "varint is too large"),
        (b"\x01\0\x01\x01\0\x02\x00\0", 2, "tagged field 0"),  # size 2, content of size 1
        (b"\x01\0\x01\x01\0\x05\x02L", 2, "tagged field 0"),  # size beyond the end
        (b"\x01\0\x01\x02\x05\0\x05\0", 2, "tagged field 5"),  # twice
        (b"\x01\0\x01\x02\x05\0\x03\0", 2, "tagged field 3"),  # falling order
        (b"\x01\0\x01\x7f", 2, "tagged fields is longer"),
        (b"\x01\0\x02\x02\xff\0", 2, "utf-8"),
        (b"\x01\0\x02\x81\x80\x02" + bytes(40_000), 2, "32,767"),
    ],
)
def test_malformed_bytes_are_a_remote_protocol_error(data: bytes, version: int, cause: str) -> None:
    with pytest.raises(RemoteProtocolError, match=cause):
        Tree.decode(data, version)


def test_a_negative_array_length_is_null_as_in_kafka() -> None:
    data = b"\0\0\0\0" + binary.pack(">i", -7)
    assert Tree.decode(data, 0) == (Tree(leaves=[], ids=None), 8)


def test_the_budget_bounds_the_values_of_one_message() -> None:
    tree = Tree(leaves=[Tree.Leaf(index=i) for i in range(10)], ids=[0] * 30)
    data = tree.encode(2)
    assert Tree.decode(data, 2, max_values=160) == (tree, len(data))
    with pytest.raises(RemoteProtocolError, match="too many values in one message, at ids"):
        Tree.decode(data, 2, max_values=159)
    tagged = Tree(leaves=[], unknown_tagged_fields=dict.fromkeys(range(10, 20), b"")).encode(2)
    with pytest.raises(RemoteProtocolError, match="too many"):
        Tree.decode(tagged, 2, max_values=19)


def test_version_ranges_are_read_as_kafka_writes_them() -> None:
    assert version_range("3") == (3, 3)
    assert version_range("3-7") == (3, 7)
    assert version_range("3+") == (3, 32767)
    first, last = version_range("")
    assert first > last


def test_declarations_that_cannot_work_are_refused() -> None:
    with pytest.raises(TypeError, match="default"):
        int32(tag=0, tagged="1+")
    with pytest.raises(TypeError, match="belong together"):
        int32(tag=0, default=0)
