"""Goal: Protobuf values carry the place of their message in the schema whose id they carry, of any
form that a registry keeps, and come back whole whatever their messages are made of.

Method: descriptors made for the test, registered as they are, changed, or as text; random messages
with fields of every kind, from printed seeds.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry import Schema, SchemaReference, SchemaRegistry, protobuf_serde

Field = descriptor_pb2.FieldDescriptorProto
NUMBERS = [
    f"{sign}{bits}" for bits in (32, 64) for sign in ("INT", "UINT", "SINT", "FIXED", "SFIXED")
] + ["DOUBLE", "FLOAT"]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with FakeRegistry(level="NONE") as fake:
        yield SchemaRegistry(fake.url, retries_wait_ms=1)


def file_of(*messages: Any, name: str = "f.proto", package: str = "p", **more: Any) -> Any:
    return descriptor_pb2.FileDescriptorProto(
        name=name, package=package, syntax="proto3", message_type=messages, **more
    )


def message(name: str, *fields: Any, nested: Any = (), **more: Any) -> Any:
    return descriptor_pb2.DescriptorProto(name=name, field=fields, nested_type=nested, **more)


def field(number: int, kind: str, type_name: str = "", repeated: bool = False) -> Any:
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    return Field(
        name=f"f{number}", number=number, label=label, type_name=type_name or None,
        type=getattr(Field, f"TYPE_{kind}"),
    )  # fmt: skip


def map_entry(name: str, value: Any) -> Any:
    key = field(1, "STRING")
    key.name, value.name = "key", "value"
    options = descriptor_pb2.MessageOptions(map_entry=True)
    return message(name, key, value, options=options)


def classes(*files: Any) -> dict[str, Any]:
    """The message classes of files, by full name; files that others import come first."""
    pool = descriptor_pool.DescriptorPool()
    for each in files:
        pool.Add(each)
    waiting = [m for f in files for m in pool.FindFileByName(f.name).message_types_by_name.values()]
    found = {}
    for each in waiting:
        found[each.full_name] = message_factory.GetMessageClass(each)
        waiting += each.nested_types
    return found


def base64_of(file: Any) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def placed(registry: SchemaRegistry, value: Any, **options: Any) -> bytes:
    """What stands between the id and the message."""
    data = protobuf_serde(registry, **options).serialize(value, "t")
    assert data is not None
    return data[5 : len(data) - len(value.SerializeToString())]


A = message("A", field(1, "STRING"))
B = message("B", field(1, "STRING"), nested=[message("X"), message("Y", field(1, "INT64"))])


def test_the_place_is_that_in_the_newest_version(registry: SchemaRegistry) -> None:
    """Which has other messages before the one that is written."""
    kinds = classes(file_of(B))
    value = kinds["p.B"](f1="b")
    assert placed(registry, value) == b"\x00"
    registry.register("t-value", Schema(base64_of(file_of(A, B)), "PROTOBUF"))
    assert placed(registry, value, use_latest_version=True) == b"\x02\x02"
    newest = protobuf_serde(registry, use_latest_version=True).bind("t")
    found = protobuf_serde(registry).deserialize(newest.serialize(value), "t")
    assert str(found) == str(value)


def test_the_place_is_that_in_the_form_that_the_registry_keeps(registry: SchemaRegistry) -> None:
    """A registry that normalizes may change the order of messages and leave out map entries."""
    entry = map_entry("F1Entry", field(2, "INT32"))
    own = file_of(message("M", field(1, "MESSAGE", ".p.M.F1Entry", True), nested=[entry, A, B]))
    value = classes(own)["p.M.B"](f1="x")
    assert placed(registry, value) == b"\x04\x00\x04"  # the entry counts where it is kept
    kept = SchemaRegistry(registry.config.url)
    text = """syntax = "proto3"; package p;
        // message A { in a comment
        option (x) = { value: "message A {" };
        message M { map<string, int32> f1 = 1; /* message A { */
          enum E { ZERO = 0; } oneof o { string message = 2; }
          message A { string f1 = 1; } message B { message X {} message Y {} }
        }"""
    kept.schema = lambda *_, **__: Schema(text, "PROTOBUF")  # type: ignore[method-assign]
    assert placed(kept, value) == b"\x04\x00\x02"
    nested = classes(own)["p.M.B.Y"](f1=5)
    assert placed(kept, nested) == b"\x06\x00\x02\x02"
    data = protobuf_serde(kept).serialize(nested, "t")
    assert data is not None
    assert protobuf_serde(kept, type(nested)).deserialize(data, "t") == nested
    with pytest.raises(SerializationError, match=r"p\.M\.B\.Y, but message_type is p\.M\.B"):
        protobuf_serde(kept, type(value)).deserialize(data, "t")
    with pytest.raises(SerializationError, match=r"only as \.proto text; set message_type"):
        protobuf_serde(kept).deserialize(data, "t")


def test_a_message_that_the_schema_does_not_have_is_refused(registry: SchemaRegistry) -> None:
    registry.register("t-value", Schema(base64_of(file_of(A)), "PROTOBUF"))
    value = classes(file_of(B))["p.B"](f1="b")
    with pytest.raises(SerializationError, match=r"no message p\.B; it has p\.A"):
        protobuf_serde(registry, use_latest_version=True).serialize(value, "t")
    other = classes(file_of(A, package=""))["A"](f1="a")
    with pytest.raises(SerializationError, match="no message A; it has"):
        protobuf_serde(registry, use_latest_version=True).serialize(other, "t")


@pytest.mark.parametrize(
    ("own", "newest", "said"),
    [
        ("STRING", "INT32", "encoded as text or bytes, but the subject's newest schema has number"),
        ("SINT64", "INT64", "encoded as zigzag number"),
        ("FLOAT", "FIXED32", "encoded as float, but"),
        ("STRING", "BYTES", None),
        ("INT32", "INT64", None),
        ("INT32", None, None),
    ],
)
def test_a_field_of_another_type_in_the_newest_version_is_refused(
    registry: SchemaRegistry, own: str, newest: str | None, said: str | None
) -> None:
    """Its readers would take the bytes for something else."""
    inner = [message("I", field(1, kind)) if kind else message("I") for kind in (own, newest)]
    outer = message("O", field(1, "MESSAGE", ".p.I"))
    registry.register("t-value", Schema(base64_of(file_of(outer, inner[1])), "PROTOBUF"))
    value = classes(file_of(outer, inner[0]))["p.O"]()
    serde = protobuf_serde(registry, use_latest_version=True)
    if said is None:
        assert serde.serialize(value, "t") is not None
    else:
        with pytest.raises(SerializationError, match=rf"field 1 \(f1\) of p.I is {said}"):
            serde.serialize(value, "t")


def test_a_file_of_enums_alone_can_be_imported(registry: SchemaRegistry) -> None:
    values = [descriptor_pb2.EnumValueDescriptorProto(name=n, number=i) for i, n in enumerate("AB")]
    enums = file_of(
        name="e.proto",
        enum_type=[descriptor_pb2.EnumDescriptorProto(name="E", value=values)],
    )
    user = file_of(message("U", field(1, "ENUM", ".p.E")), dependency=["e.proto"])
    value = classes(enums, user)["p.U"](f1=1)
    data = protobuf_serde(registry).serialize(value, "t")
    assert data is not None
    assert str(protobuf_serde(registry).deserialize(data, "t")) == str(value)
    reference = registry.latest("t-value").schema.references
    assert reference == (SchemaReference("e.proto", "e.proto", 1),)


def test_what_a_registry_knows_by_itself_is_not_registered(registry: SchemaRegistry) -> None:
    pytest.importorskip("google.type.date_pb2", reason="googleapis-common-protos has no wheel")
    from google.type import date_pb2

    date = descriptor_pb2.FileDescriptorProto.FromString(date_pb2.DESCRIPTOR.serialized_pb)
    user = file_of(
        message("U", field(1, "MESSAGE", ".google.type.Date")),
        dependency=["google/type/date.proto"],
    )
    value = classes(date, user)["p.U"]()
    value.f1.year = 2026
    data = protobuf_serde(registry).serialize(value, "t")
    assert data is not None
    assert registry.subjects() == ["t-value"]
    assert str(protobuf_serde(registry).deserialize(data, "t")) == str(value)
    missing = file_of(A, dependency=["google/type/nothing.proto"])
    schema_id = registry.register("m", Schema(base64_of(missing), "PROTOBUF"))
    prefix = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    with pytest.raises(SerializationError, match=r"imports google/type/nothing\.proto"):
        protobuf_serde(registry).deserialize(prefix, "t")


# --- every shape


class Shapes:
    """Random files with one tree of messages, and values of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def message(self, name: str, full: str, depth: int) -> Any:
        rng = self.rng
        found = message(name)
        for number in range(1, rng.randint(1, 6) + 1):
            roll = rng.random()
            if roll < 0.5 or depth == 0:
                kind = rng.choice([*NUMBERS, "BOOL", "STRING", "BYTES"])
                found.field.append(field(number, kind, repeated=rng.random() < 0.3))
            elif roll < 0.65:
                value = field(2, rng.choice([*NUMBERS, "BYTES"]))
                found.nested_type.append(map_entry(f"F{number}Entry", value))
                found.field.append(field(number, "MESSAGE", f"{full}.F{number}Entry", True))
            elif roll < 0.75:
                enum = found.enum_type.add(name=f"E{number}")
                for value in (0, 1, -5):
                    enum.value.add(name=f"V{number}_{value & 0xFF}", number=value)
                found.field.append(field(number, "ENUM", f"{full}.E{number}"))
            else:
                inner = f"N{number}"
                found.nested_type.append(self.message(inner, f"{full}.{inner}", depth - 1))
                found.field.append(
                    field(number, "MESSAGE", f"{full}.{inner}", repeated=rng.random() < 0.4)
                )
        singular = [f for f in found.field if f.label == Field.LABEL_OPTIONAL]
        if len(singular) > 1 and rng.random() < 0.5:
            found.oneof_decl.add(name="one")
            for each in singular[:2]:
                each.oneof_index = 0
        return found

    def fill(self, value: Any) -> Any:
        rng = self.rng
        for each in value.DESCRIPTOR.fields:
            if rng.random() < 0.3:
                continue
            entry = each.message_type
            if entry is not None and entry.GetOptions().map_entry:
                getattr(value, each.name)["k"] = self.plain(entry.fields_by_name["value"])
            elif entry is not None:
                target = getattr(value, each.name)
                self.fill(target.add() if hasattr(target, "add") else target)
            elif hasattr(getattr(value, each.name), "extend"):
                getattr(value, each.name).extend([self.plain(each) for _ in range(2)])
            else:
                setattr(value, each.name, self.plain(each))
        return value

    def plain(self, each: Any) -> Any:
        rng = self.rng
        kind = Field.Type.Name(each.type).removeprefix("TYPE_")
        if kind == "ENUM":
            return rng.choice([0, 1, -5])
        if kind in ("STRING", "BYTES"):
            text = "".join(rng.choices("aé\0", k=3))
            return text if kind == "STRING" else text.encode()
        if kind == "BOOL":
            return rng.random() < 0.5
        if kind in ("DOUBLE", "FLOAT"):
            return rng.choice([0.5, -2.0, float("inf")])
        bits = 64 if "64" in kind else 32
        unsigned = kind.startswith(("U", "FIXED"))
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return rng.choice([low, high, rng.randint(low, high)])


def test_every_shape_comes_back(registry: SchemaRegistry) -> None:
    start = random.randrange(2**32)
    print(f"seed {start}")
    for seed in range(start, start + 100):
        shapes = Shapes(random.Random(seed))
        file = file_of(
            *(shapes.message(name, f".p.{name}", 2) for name in ("One", "Two")),
            name=f"s{seed}.proto",
        )
        kinds = classes(file)
        name = shapes.rng.choice(sorted(n for n in kinds if not n.endswith("Entry")))
        value = shapes.fill(kinds[name]())
        data = protobuf_serde(registry).serialize(value, f"s{seed}")
        assert data is not None
        assert protobuf_serde(registry, kinds[name]).deserialize(data, "t") == value, seed
        unknown: Any = protobuf_serde(registry).deserialize(data, "t")
        assert unknown.DESCRIPTOR.full_name == name
        assert str(unknown) == str(value), seed
