"""Goal: values of state come back as they were set, or are refused; damage is told.

Method: the codec alone, with values and damaged bytes of many kinds; keys against the order of
what they stand for.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.processors import (
    DeclarationError,
    Migration,
    StateCorruptedError,
    StateTypeError,
    StateValueError,
)
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import after, close, key_packing, split
from onceflow.processors.state.type_text import type_text


@dataclasses.dataclass
class Order:
    item: str
    pieces: int = 1


@dataclasses.dataclass
class Renamed:
    pieces: int
    item: str = ""


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Pair(NamedTuple):
    a: int
    b: str


class Place(TypedDict):
    city: str


class Tagged(msgspec.Struct, tag="t"):
    a: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def codec(kind: object, *migrations: Migration) -> ValueCodec:
    return ValueCodec(kind, "state 's' of f", migrations)


GOOD = [
    (int, 0),
    (int, -(2**63)),
    (int, 2**64 - 1),
    (float, 1.5),
    (str, ""),
    (str, "ü"),
    (bytes, b"\x00\xff"),
    (bool, False),
    (int | None, None),
    (Order, Order("pen", 2)),
    (list[int], [1, 2]),
    (dict[str, Order], {"a": Order("b")}),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (Place, {"city": "Ulm"}),
    (Colour, Colour.BLUE),
    (Literal["a", "b"], "b"),
    (Tree, Tree(1, [Tree(2)])),
]


@pytest.mark.parametrize(("kind", "value"), GOOD, ids=range(len(GOOD)))
def test_value_comes_back_as_it_was_set(kind: object, value: object) -> None:
    coder = codec(kind)
    kept = coder.keep(value)
    assert coder.open(kept) == value
    found = coder.decode(b"k", coder.encode(b"k", kept))
    assert found == value
    assert type(found) is type(value)


WRONG = [
    (int, 1.5),
    (int, True),
    (int, 2**64),
    (int, -(2**63) - 1),
    (int, "1"),
    (int, None),
    (str, b"bytes"),
    (str, "\ud800"),
    (bool, 1),
    (Order, {"item": "a"} | {"pieces": "two"}),
    (Order, Order(5)),  # type: ignore[arg-type]
    (list[int], [1, "2"]),
    (dict[str, int], {1: 1}),
    (Literal["a"], "b"),
    (bytes, object()),
]


@pytest.mark.parametrize(("kind", "value"), WRONG, ids=range(len(WRONG)))
def test_value_of_another_type_is_refused_when_it_is_set(kind: object, value: object) -> None:
    with pytest.raises(StateValueError, match="state 's' of f cannot hold"):
        codec(kind).keep(value)


def test_number_of_a_float_is_a_float() -> None:
    coder = codec(float)
    kept = coder.keep(1)
    assert (kept, type(kept)) == (1.0, float)


def test_later_changes_of_an_object_do_not_count() -> None:
    coder = codec(list[int])
    value = [1]
    kept = coder.keep(value)
    value.append(2)
    assert coder.open(kept) == [1]


def test_every_flipped_bit_is_noticed() -> None:
    coder = codec(int)
    data = coder.encode(b"key", 10)
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(StateCorruptedError, match="damaged"):
            coder.decode(b"key", bytes(flipped))
    with pytest.raises(StateCorruptedError):
        coder.decode(b"kex", data)  # A key's bit.
    for cut in range(len(data)):
        with pytest.raises(StateCorruptedError):
            coder.decode(b"key", data[:cut])


def test_type_without_codec_is_refused_when_declared() -> None:
    for kind in (Order | Renamed, complex | Order):
        with pytest.raises(DeclarationError, match="cannot decode"):
            codec(kind)


# Types ---------------------------------------------------------------------------------------


def test_a_type_is_its_structure_and_not_its_name() -> None:
    assert type_text(Order, "x") == type_text(Renamed, "x")
    assert type_text(int, "x") == "int"
    assert type_text(Tree, "x") == "object{children: list[ring[1]], value: int}"
    assert type_text(Pair, "x") == "array{a: int, b: str}"
    assert type_text(Tagged, "x") == "object{type='t', a: int}"
    assert type_text(Colour, "x") == "enum['blue', 'red']"
    assert type_text(str | None, "x") == type_text(None | str, "x")
    different = [int, float, Order, Pair, list[int], set[int], dict[str, int], int | None, Place]
    assert len({type_text(kind, "x") for kind in different}) == len(different)


def test_stored_value_of_another_type_is_refused_without_a_migration() -> None:
    data = codec(int).encode(b"k", 5)
    with pytest.raises(StateTypeError, match="declare a Migration"):
        codec(str).decode(b"k", data)


def test_migration_converts_what_is_stored() -> None:
    data = codec(int).encode(b"k", 5)
    coder = codec(Order, Migration(str), Migration(int, lambda pieces: Order("pen", pieces)))
    assert coder.open(coder.keep(coder.decode(b"k", data))) == Order("pen", 5)
    assert codec(float, Migration(int)).decode(b"k", data) == 5.0
    assert coder.encode(b"k", coder.keep(Order("a")))[5:7] != data[5:7]


@pytest.mark.parametrize("give", [lambda pieces: 1 // 0, lambda pieces: "no order"])
def test_migration_that_fails_says_so(give: object) -> None:
    data = codec(int).encode(b"k", 5)
    with pytest.raises(StateTypeError, match="its migration failed"):
        codec(Order, Migration(int, give)).decode(b"k", data)  # type: ignore[arg-type]


def test_versions_lead_from_each_to_the_next() -> None:
    """Cents became euros in version 2, and an order with a name in version 3."""
    first = Migration(int, lambda cents: cents / 100, version=1)
    second = Migration(float, lambda euros: Order("pen", int(euros)), version=2)
    old, middle = codec(int), codec(float, first)
    new = codec(Order, second, first)
    assert middle.decode(b"k", old.encode(b"k", 500)) == 5.0
    assert new.decode(b"k", old.encode(b"k", 500)) == Order("pen", 5)
    assert new.decode(b"k", middle.encode(b"k", 7.0)) == Order("pen", 7)
    kept = new.encode(b"k", new.keep(Order("ink", 1)))
    assert new.decode(b"k", kept) == Order("ink", 1)
    assert new.text.endswith(" (version 3)")
    assert new.earlier == ("float (version 2)", "int")


def test_a_version_tells_another_meaning_of_the_same_type() -> None:
    old = codec(int).encode(b"k", 500)
    new = codec(int, Migration(int, lambda cents: cents // 100, version=1))
    assert new.decode(b"k", old) == 5
    assert new.decode(b"k", new.encode(b"k", 500)) == 500
    with pytest.raises(StateTypeError, match="declare a Migration"):
        codec(int).decode(b"k", new.encode(b"k", 500))


def test_what_a_version_gives_must_fit_the_next() -> None:
    wrong = Migration(int, lambda cents: "five", version=1)
    new = codec(Order, wrong, Migration(float, lambda euros: Order("pen", 1), version=2))
    with pytest.raises(StateTypeError, match="its migration failed: Expected `float`"):
        new.decode(b"k", codec(int).encode(b"k", 500))


@pytest.mark.parametrize(
    ("migrations", "message"),
    [
        ([Migration(int, version=1), Migration(str)], "give each of its migrations a version="),
        ([Migration(int, version=1), Migration(str, version=3)], "from the versions 1, 3; each"),
        ([Migration(int, version=2), Migration(str, version=2)], "from the versions 2, 2; each"),
        ([Migration(float)], "two of its types look the same"),
        ([Migration(int), Migration(int)], "two of its types look the same"),
    ],
)
def test_migrations_that_lead_nowhere_are_refused(
    migrations: list[Migration], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        codec(float, *migrations)


# Keys ----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=6), max_size=20))
def test_closed_parts_sort_as_their_bytes_and_none_begins_another(parts: list[bytes]) -> None:
    assert sorted(parts) == sorted(parts, key=close)
    for one in parts:
        for other in parts:
            assert split(close(one) + other) == (one, other)
            if one != other:
                assert not close(one).startswith(close(other))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int, st.integers(-(2**63), 2**63 - 1)),
        (float, st.floats(allow_nan=False)),
        (str, st.text(alphabet=st.characters(exclude_categories=["Cs"]))),
        (bytes, st.binary()),
    ],
    ids=["int", "float", "str", "bytes"],
)
def test_packed_keys_sort_as_what_they_stand_for(
    kind: object, values: st.SearchStrategy[object]
) -> None:
    pack, unpack = key_packing(kind, "x")

    @given(values, values)
    def check(one: object, other: object) -> None:
        assert unpack(pack(one)) == one
        if one != other:
            assert (pack(one) < pack(other)) == (one < other)

    check()


def test_keys_of_other_types_are_refused() -> None:
    with pytest.raises(DeclarationError, match="use int, float, str or bytes"):
        key_packing(list, "map")
    pack, _ = key_packing(int, "map")
    for wrong in (True, "1", 1.0, 2**63, -(2**63) - 1):
        with pytest.raises(StateValueError):
            pack(wrong)


@given(st.binary(max_size=4))
def test_what_begins_with_a_prefix_ends_before_its_successor(prefix: bytes) -> None:
    end = after(prefix)
    assert end is None or (prefix + b"\xff" * 9 < end and not end.startswith(prefix))
    assert (end is None) == (prefix.strip(b"\xff") == b"")
