"""Converts what fastavro read into what the application gets.

fastavro decodes bytes into raw values by the writer's schema. This module then converts logical
types to Python's types, adds the branch's name to a value of a union where the branch would be
lost, and resolves values to the reader's schema. It follows the rules of Java's library. Where that
library would silently return another number (a decimal of another scale), it refuses the value.
Parts of a value that need no change are not copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Final, Literal

from onceflow.sdk.schema_registry.avro.fitting import raw_default
from onceflow.sdk.schema_registry.avro.logical import Misfit, typed_of
from onceflow.sdk.schema_registry.avro.names import code_name, with_name
from onceflow.sdk.schema_registry.avro.schemas import MISSING, Field, SchemaFault, Type, affected

Change = Callable[[object], object]

_PROMOTED: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_LOOK: Final = {"record": "mapping", "map": "mapping", "enum": "text", "string": "text",
                "fixed": "bytes", "bytes": "bytes"}  # fmt: skip
"""Python's type of raw values, for the kinds that share it with another kind."""


class Mismatch(SchemaFault):
    """A written value cannot be resolved to the reader's schema."""


def needs_pairs(union: Type) -> bool:
    """Whether raw values of several branches of a union have the same Python type."""
    looks = [_LOOK[each.kind] for each in union.branches if each.kind in _LOOK]
    return len(set(looks)) < len(looks)


def _typed_look(type_: Type) -> str:
    if type_.logical in ("decimal", "big-decimal"):
        return "decimal"
    return type_.logical or _LOOK.get(type_.kind, type_.kind)


class Resolver:
    """Makes the function that converts fastavro's values to the application's.

    Args:
        pairs: Which values of unions come as pairs of the branch's name and the value: "none",
            those of "named" types (fastavro's ``return_named_type``), or "all" (in defaults).
        names: Whether a value of a union carries its type's name if several branches have the same
            Python type.
    """

    def __init__(self, pairs: Literal["none", "named", "all"], *, names: bool) -> None:
        self._pairs = pairs
        self._names = names
        self._made: dict[tuple[int, int], Change | None] = {}
        self._open: set[tuple[int, int]] = set()
        self._changed: set[int] = set()

    def change(self, writer: Type, reader: Type) -> Change | None:
        """Return the function; None if values need no change.

        Args:
            writer: Schema that the bytes were written with.
            reader: Schema to resolve to; the same object if the application gave none.

        Raises:
            Mismatch: Schema resolution does not allow this pair of schemas.
        """
        key = (id(writer), id(reader))
        if not self._made and not self._open:
            self._changed = affected(writer, self._needs_change)
        if writer is reader and id(writer) not in self._changed:
            return None
        if key in self._open:  # a type that contains itself: its function is not finished yet
            return self._later(key)
        if key not in self._made:
            self._open.add(key)
            try:
                self._made[key] = self._make(writer, reader)
            finally:
                self._open.remove(key)
        return self._made[key]

    def _later(self, key: tuple[int, int]) -> Change:
        def apply(value: object) -> object:
            change = self._made[key]
            return value if change is None else change(value)

        return apply

    def _needs_change(self, type_: Type) -> bool:
        if type_.kind != "union":
            return bool(type_.logical)
        return self._paired(type_) or any(self._needs_name(each, type_) for each in type_.branches)

    def _needs_name(self, branch: Type, union: Type) -> bool:
        """Whether values carry the branch's name, as another branch has the same Python type.

        Values of the types string and bytes never do: a plain ``str`` or ``bytes`` means them.
        """
        if not self._names or (not branch.name and branch.kind != "map"):
            return False
        look = _typed_look(branch)
        return any(_typed_look(each) == look for each in union.branches if each is not branch)

    def _paired(self, union: Type) -> bool:
        """Whether values of a union may come as pairs of branch name and value."""
        named = any(each.name for each in union.branches)
        return self._pairs == "all" or (self._pairs == "named" and named)

    def _make(self, writer: Type, reader: Type) -> Change | None:
        if writer.kind == "union":
            return self._from_union(writer, reader)
        if reader.kind == "union":
            branch = self._branch_for(writer, reader)
            change = self.change(writer, branch)
            return _naming(change, branch) if self._needs_name(branch, reader) else change
        if writer.kind != reader.kind:
            return _promotion(writer, reader)
        _check_alike(writer, reader)
        match writer.kind:
            case "record":
                return self._record(writer, reader)
            case "array":
                items = self.change(writer.inner, reader.inner)
                return None if items is None else lambda value: _all(value, items)
            case "map":
                values = self.change(writer.inner, reader.inner)
                return None if values is None else lambda value: _all_values(value, values)
            case "enum":
                return None if writer is reader else _enum(writer, reader)
        return typed_of(reader)

    # unions

    def _from_union(self, writer: Type, reader: Type) -> Change | None:
        changes: dict[str, Change | None] = {}
        for branch in writer.branches:
            if reader is writer:
                changes[code_name(branch)] = self._kept_branch(branch, reader)
                continue
            try:
                changes[code_name(branch)] = self.change(branch, reader)
            except Mismatch as error:
                changes[code_name(branch)] = _refusing(str(error))
        if not self._paired(writer) and all(each is None for each in changes.values()):
            return None
        kinds = {branch.kind: code_name(branch) for branch in writer.branches}

        def change(value: object) -> object:
            if type(value) is tuple:
                code, value = value
            else:
                code = _code_of(value, kinds)
            found = changes[code]
            return value if found is None else found(value)

        return change

    def _kept_branch(self, branch: Type, union: Type) -> Change | None:
        change = self.change(branch, branch)
        return _naming(change, branch) if self._needs_name(branch, union) else change

    def _branch_for(self, writer: Type, union: Type) -> Type:
        """Return the branch of the reader's union that a type resolves to (Java's Resolver)."""
        alike = [each for each in union.branches if each.kind == writer.kind]
        if writer.name:
            for each in alike:
                if _same_name(writer, each, full=True):
                    return each
            alike = [each for each in alike if self._fits(writer, each)]
            by_short_name = [each for each in alike if _same_name(writer, each, full=False)]
            if writer.kind != "record":
                alike = by_short_name
            alike = by_short_name or alike
        if alike:
            return alike[0]
        for each in union.branches:
            if each.kind in _PROMOTED.get(writer.kind, ()):
                return each
        raise Mismatch(f"the reader's union has no branch for the writer's type {writer.label}")

    def _fits(self, writer: Type, reader: Type) -> bool:
        try:
            self.change(writer, reader)
        except Mismatch:
            return False
        return True

    # records

    def _record(self, writer: Type, reader: Type) -> Change | None:
        if writer is reader:
            return self._kept_record(writer)
        written = {each.name: each for each in writer.fields}
        parts: list[tuple[str, str, Change | None]] = []
        defaults: list[tuple[str, Callable[[], object]]] = []
        for each in reader.fields:
            source = next((written[n] for n in (each.name, *each.aliases) if n in written), None)
            if source is None:
                defaults.append((each.name, self._default(each, reader)))
            else:
                parts.append((each.name, source.name, self.change(source.type, each.type)))
        if not defaults and len(parts) == len(written):
            changed = [(name, change) for name, source, change in parts if change is not None]
            if not changed and all(name == source for name, source, _ in parts):
                return None

        def change(value: object) -> object:
            assert isinstance(value, dict)
            out = {}
            for name, source, inner in parts:
                out[name] = value[source] if inner is None else inner(value[source])
            for name, default in defaults:
                out[name] = default()
            return out

        return change

    def _kept_record(self, record: Type) -> Change | None:
        found = [(each.name, self.change(each.type, each.type)) for each in record.fields]
        changes = [(name, change) for name, change in found if change is not None]
        if not changes:
            return None

        def change(value: object) -> object:
            assert isinstance(value, dict)
            for name, inner in changes:
                value[name] = inner(value[name])
            return value

        return change

    def _default(self, each: Field, record: Type) -> Callable[[], object]:
        """Return a function that gives a new copy each time: the application may change it."""
        if each.default is MISSING:
            raise Mismatch(
                f"the field {each.name!r} of the reader's {record.name} has no default, and the "
                "writer's schema does not have it"
            )
        try:
            raw = raw_default(each.type, each.default, each.name)
        except Misfit as error:
            raise Mismatch(str(error)) from None
        change = Resolver("all", names=self._names).change(each.type, each.type)
        if change is None:
            return lambda: copy.deepcopy(raw)
        return lambda: change(copy.deepcopy(raw))


def _naming(change: Change | None, type_: Type) -> Change:
    if change is None:
        return lambda value: with_name(value, type_.label)
    return lambda value: with_name(change(value), type_.label)


def _refusing(reason: str) -> Change:
    def refuse(value: object) -> object:
        raise Mismatch(reason)

    return refuse


def _code_of(value: object, kinds: Mapping[str, str]) -> str:
    """Return the branch of a value that fastavro gives without the branch's name."""
    for kind in _KINDS_OF[type(value)]:
        if kind in kinds:
            return kinds[kind]
    raise Mismatch(f"the union has no branch for a {type(value).__name__}")


_KINDS_OF: Final[Mapping[type, tuple[str, ...]]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("int", "long"),
    float: ("double", "float"),
    str: ("string", "enum"),
    bytes: ("bytes", "fixed"),
    list: ("array",),
    dict: ("map", "record"),
}


# single types


def _promotion(writer: Type, reader: Type) -> Change | None:
    if reader.kind not in _PROMOTED.get(writer.kind, ()):
        raise _different(writer.label, reader.label)
    _check_alike(writer, reader)
    typed = typed_of(reader)
    if reader.kind == "float":
        return _to_float
    if reader.kind == "double":
        return float if writer.kind != "float" else None  # type: ignore[return-value]
    if reader.kind == "bytes":
        return _then(lambda value: value.encode(), typed)  # type: ignore[attr-defined]
    if reader.kind == "string":
        return _then(lambda value: value.decode(), typed)  # type: ignore[attr-defined]
    return typed


def _to_float(value: object) -> object:
    """Convert to the nearest 32-bit float, rounded once, as Java's cast does."""
    assert isinstance(value, int)
    shift = max(0, value.bit_length() - 24)
    kept, rest = divmod(value, 1 << shift)
    half = (1 << shift) >> 1
    kept += rest > half or (rest == half and shift > 0 and kept % 2 == 1)
    return float(kept << shift)


def _then(first: Change, second: Change | None) -> Change:
    return first if second is None else lambda value: second(first(value))


def _check_alike(writer: Type, reader: Type) -> None:
    """Refuse a pair of types whose values would silently change."""
    if writer is reader:
        return
    if writer.kind == "fixed" and writer.size != reader.size:
        raise _different(f"{writer.name} of {writer.size} bytes", f"one of {reader.size} bytes")
    if writer.kind in ("enum", "fixed") and not _same_name(writer, reader, full=False):
        raise _different(writer.name, reader.name)
    if writer.logical and reader.logical and _meaning(writer) != _meaning(reader):
        raise _different(_meaning(writer), _meaning(reader))


def _different(written: str, read: str) -> Mismatch:
    return Mismatch(f"the writer's schema has {written} where the reader's schema has {read}")


def _meaning(type_: Type) -> str:
    return f"{type_.logical} of scale {type_.scale}" if type_.precision else type_.logical


def _same_name(writer: Type, reader: Type, *, full: bool) -> bool:
    names = {reader.name, *reader.aliases}
    if full or writer.name in names:
        return writer.name in names
    return writer.name.rpartition(".")[2] in {name.rpartition(".")[2] for name in names}


def _enum(writer: Type, reader: Type) -> Change | None:
    if set(writer.symbols) <= set(reader.symbols):
        return None
    known, default = frozenset(reader.symbols), reader.default

    def change(value: object) -> object:
        if value in known:
            return value
        if not default:
            raise Mismatch(f"the reader's {reader.name} has no symbol {value!r} and no default")
        return default

    return change


def _all(value: object, items: Change) -> object:
    assert isinstance(value, list)
    return [items(each) for each in value]


def _all_values(value: object, values: Change) -> object:
    assert isinstance(value, dict)
    return {key: values(each) for key, each in value.items()}
