"""Turns a declared message into straight-line Python for one version and one direction.

Consecutive fixed-size fields become one `struct` call; strings, lengths and tagged fields are
written out in place; nested structs are calls of their own compiled function. The source text is
kept for tracebacks. Nothing here knows any particular message. A Heartbeat request of version 4
is read by this (without the part for tagged fields, which are rare):

    def decode(data, pos, end, budget):
        o = new(c0)
        n2 = data[pos]
        pos += 1
        if n2 > 127: n2, pos = long_string_size(data, pos - 1)
        if n2:
            e1 = pos + n2 - 1
            if e1 > end: raise too_long('group_id')
            o.group_id = str(data[pos:e1], 'utf-8')
            pos = e1
        else: raise null('group_id')
        o.generation_id, n4, = c5(data, pos)
        ...
        return o, pos

Generated decoders rely on three facts. Positions only grow. Every length is compared with the bytes
that are left before anything is made from it. `unpack_from` and indexing refuse to read past the
end by themselves. So memory follows the bytes received, and `budget`, charged per array element
and unknown tag, bounds it once more for large messages.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from onceflow.sdk.protocol.primitives import (
    SHORT_UVARINTS,
    Buffer,
    MalformedError,
    decode_uvarint,
    encode_uvarint,
    uuid_of,
)
from onceflow.sdk.protocol.schema import (
    NEVER,
    REQUIRED,
    AbsentFieldError,
    Decoder,
    Encoder,
    Field,
    Message,
)

FIXED: Final[Mapping[str, tuple[str, int]]] = {
    "boolean": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""Struct code and size of each fixed-size kind."""

ELEMENT_VALUES: Final = 4
"""Least that an array element counts against the budget: it costs more than its bytes."""

MAX_STRING: Final = 0x7FFF
"""Longest string in bytes; Kafka refuses longer ones in either form."""

_EMPTY: Final = object()


@functools.cache
def compile_encoder(message_type: type[Message], version: int, flexible: bool) -> Encoder:
    """Write the function that encodes a class in one version: `encode(message, write)`."""
    source = _EncoderSource(version, flexible)
    source.message(message_type)
    encoder: Encoder = source.compile(f"{message_type.__qualname__} v{version} encoder")
    return encoder


@functools.cache
def compile_decoder(message_type: type[Message], version: int, flexible: bool) -> Decoder:
    """Write the function that decodes a class: `decode(data, pos, end, budget)`."""
    source = _DecoderSource(version, flexible)
    source.message(message_type)
    decoder: Decoder = source.compile(f"{message_type.__qualname__} v{version} decoder")
    return decoder


def compile_constructor(message_type: type[Message]) -> Callable[..., None]:
    """Write `__init__` for a class: keywords only, a fresh list per instance."""
    source = _Source("__init__", {"EMPTY": _EMPTY})
    arguments = ["self", "*"]
    for name, field in message_type.fields().items():
        value = name
        if field.default is REQUIRED:
            arguments.append(name)
        elif isinstance(field.default, (list, tuple)):
            arguments.append(f"{name}=EMPTY")
            value = f"[] if {name} is EMPTY else {name}"
        else:
            arguments.append(f"{name}={source.constant(field.default)}")
        source.line(f"self.{name} = {value}")
    source.line("self.unknown_tagged_fields = unknown_tagged_fields")
    source.arguments = ", ".join([*arguments, "unknown_tagged_fields=None"])
    constructor: Callable[..., None] = source.compile(f"{message_type.__qualname__}.__init__")
    constructor.__qualname__ = f"{message_type.__qualname__}.__init__"
    return constructor


@functools.cache
def smallest_size(message_type: type[Message], version: int, flexible: bool) -> int:
    """The least number of bytes that a struct takes in one version."""
    present = (
        field
        for field in message_type.fields().values()
        if field.tag is None and field.is_present(version)
    )
    return sum(_smallest(field, version, flexible) for field in present) + flexible


def _smallest(field: Field, version: int, flexible: bool) -> int:
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.struct_type is not None:
        nullable = field.is_nullable(version)
        return 1 if nullable else smallest_size(field.struct_type, version, flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


class _Source:
    """A function being written: its lines, and the values that it uses by name."""

    def __init__(self, function: str, namespace: Mapping[str, object], arguments: str = "") -> None:
        self.function = function
        self.arguments = arguments
        self.namespace = dict(namespace)
        self.lines: list[str] = []
        self._depth = 1
        self._numbers = itertools.count()

    def local(self, prefix: str) -> str:
        """A fresh name for a local variable."""
        return f"{prefix}{next(self._numbers)}"

    def constant(self, value: object) -> str:
        """A fresh name that stands for a value."""
        name = self.local("c")
        self.namespace[name] = value
        return name

    def line(self, text: str) -> None:
        """Add one line at the present depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that opens a block, and indent what is added within."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def compile(self, label: str) -> Any:
        """Make the function; its text stays readable in tracebacks and debuggers."""
        text = "\n".join([f"def {self.function}({self.arguments}):", *self.lines, ""])
        filename = f"<onceflow {label}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.namespace)
        return self.namespace[self.function]


class _EncoderSource(_Source):
    """Writes `encode(o, w)`: o is the message, w takes each piece of bytes."""

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__("encode", _ENCODER_NAMES, "o, w")
        self.version = version
        self.flexible = flexible
        self.writer = "w"
        self.run: list[tuple[str, str]] = []  # struct code and expression

    def message(self, message_type: type[Message]) -> None:
        """Write all fields of a class."""
        tagged = []
        for name, field in message_type.fields().items():
            if not field.is_present(self.version):
                self._refuse(name, field)
            elif field.tag is not None:
                tagged.append((field.tag, name, field))
            else:
                self._value(field, f"o.{name}")
        if not self.flexible:
            self.line("if o.unknown_tagged_fields: raise absent('unknown_tagged_fields')")
            self._flush()
        elif tagged:
            self._tagged_fields(sorted(tagged, key=operator.itemgetter(0)))
        else:
            self._no_tagged_fields()

    def _refuse(self, name: str, field: Field) -> None:
        if not field.ignorable:
            test = self._is_set(f"o.{name}", field)
            self.line(f"if {test}: raise absent({name!r})")

    def _is_set(self, value: str, field: Field) -> str:
        default = field.absent_value
        if default is None:
            return f"{value} is not None"
        if isinstance(default, (list, tuple)):  # An empty tuple is as good as an empty list.
            return f"{value} is None or {value}" if field.nullable != NEVER else value
        return f"{value} != {self.constant(default)}"

    def _flush(self) -> None:
        if self.run:
            pack = struct.Struct(">" + "".join(code for code, _ in self.run)).pack
            values = ", ".join(value for code, value in self.run if code != "x")
            self.line(f"{self.writer}({self.constant(pack)}({values}))")
            self.run.clear()

    def _value(self, field: Field, value: str) -> None:
        nullable = field.is_nullable(self.version)
        if field.kind in FIXED:
            code = FIXED[field.kind][0]
            self.run.append((code, f"{value}.bytes" if field.kind == "uuid" else value))
        elif field.kind == "struct":
            self._struct(field, value, nullable)
        elif field.kind == "string":
            self._string(value, nullable)
        else:
            self._sized(field, value, nullable)

    def _struct(self, field: Field, value: str, nullable: bool) -> None:
        assert field.struct_type is not None
        encode = self.constant(compile_encoder(field.struct_type, self.version, self.flexible))
        self._flush()
        if not nullable:
            self.line(f"{encode}({value}, {self.writer})")
            return
        # In its place the mark is an int8; in a tagged field it is an unsigned number.
        null = "\\xff" if field.tag is None else "\\x00"
        with self.block(f"if {value} is None:"):
            self.line(f"{self.writer}(b'{null}')")
        with self.block("else:"):
            self.line(f"{self.writer}(b'\\x01')")
            self.line(f"{encode}({value}, {self.writer})")

    def _string(self, value: str, nullable: bool) -> None:
        text, size = self.local("s"), self.local("n")
        if nullable:
            self.line(f"{text} = {value}")
            with self.block(f"if {text} is None:"):
                self.line(f"{text} = b''")
                self.line(f"{size} = -1")
            with self.block("else:"):
                self.line(f"{text} = {text}.encode()")
                self.line(f"{size} = len({text})")
        else:
            self.line(f"{text} = {value}.encode()")
            self.line(f"{size} = len({text})")
        self._length(size, "h", "long_string")
        self.line(f"{self.writer}({text})")

    def _sized(self, field: Field, value: str, nullable: bool) -> None:
        content, size = self.local("v"), self.local("n")
        self.line(f"{content} = {value}")
        count = f"len({content})"
        self.line(f"{size} = " + (f"-1 if {content} is None else {count}" if nullable else count))
        self._length(size, "i", "uvarint")
        if field.element is not None:
            self._elements(field.element, content, size)
        elif nullable:
            self.line(f"if {content} is not None: {self.writer}({content})")
        else:
            self.line(f"{self.writer}({content})")

    def _elements(self, element: Field, content: str, size: str) -> None:
        if element.kind in FIXED and element.kind != "uuid":
            code = FIXED[element.kind][0]
            self.line(
                f"if {size} > 0: {self.writer}(pack('>%d{code}' % {size}, *{content}))",
            )
            return
        item = self.local("x")
        with self.block(f"for {item} in {content} or ():"):
            self._value(element, item)
            self._flush()

    def _length(self, size: str, code: str, long: str) -> None:
        """Write a length (-1 for null) in the form of the version, and everything before it."""
        if not self.flexible:
            self.run.append((code, size))
        self._flush()
        if self.flexible:
            self.line(
                f"{self.writer}(SHORT[{size} + 1] if {size} < 127 else {long}({size} + 1))",
            )

    def _no_tagged_fields(self) -> None:
        run = self.run.copy()
        with self.block("if not o.unknown_tagged_fields:"):
            self.run.append(("x", ""))  # A zero byte: no tagged fields.
            self._flush()
        with self.block("else:"):
            self.run = run
            self._flush()
            self.line("write_tags(w, o.unknown_tagged_fields)")

    def _tagged_fields(self, tagged: list[tuple[int, str, Field]]) -> None:
        self._flush()
        self.line("t = {}")
        for tag, name, field in tagged:
            value = self.local("f")
            self.line(f"{value} = o.{name}")
            with self.block(f"if {self._is_set(value, field)}:"):
                self.line("p = []")
                self.line("a = p.append")
                self.writer = "a"
                self._value(field, value)
                self._flush()
                self.writer = "w"
                self.line(f"t[{tag}] = b''.join(p)")
        self.line("if o.unknown_tagged_fields: t = o.unknown_tagged_fields | t")
        self.line("if t: write_tags(w, t)")
        self.line("else: w(b'\\0')")


class _DecoderSource(_Source):
    """Writes `decode(data, pos, end, budget)`, which returns the message and its end."""

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__("decode", _DECODER_NAMES, "data, pos, end, budget")
        self.version = version
        self.flexible = flexible
        self.run: list[tuple[str, int, str]] = []  # struct code, size, target
        self.after_run: list[str] = []

    def message(self, message_type: type[Message]) -> None:
        """Read all fields of a class."""
        self.line(f"o = new({self.constant(message_type)})")
        tagged = []
        for name, field in message_type.fields().items():
            if field.tag is None and field.is_present(self.version):
                self._value(field, f"o.{name}", name)
                continue
            default = field.absent_value
            listed = isinstance(default, (list, tuple))
            self.line(f"o.{name} = " + ("[]" if listed else self.constant(default)))
            if field.is_present(self.version):
                tagged.append((field.tag, name, field))
        if self.flexible:
            self._tagged_fields(tagged)
        else:
            self.line("o.unknown_tagged_fields = None")
        self._flush()
        self.line("return o, pos")

    def _flush(self) -> None:
        if not self.run:
            return
        targets = ", ".join(target for _, _, target in self.run)
        if len(self.run) == 1 and self.run[0][0] == "B":
            self.line(f"{targets} = data[pos]")
        else:
            unpack = struct.Struct(">" + "".join(code for code, _, _ in self.run)).unpack_from
            self.line(f"{targets}, = {self.constant(unpack)}(data, pos)")
        self.line(f"pos += {sum(size for _, size, _ in self.run)}")
        self.run.clear()
        for line in self.after_run:
            self.line(line)
        self.after_run.clear()

    def _value(self, field: Field, target: str, name: str) -> None:
        nullable = field.is_nullable(self.version)
        if field.kind in FIXED:
            code, size = FIXED[field.kind]
            if field.kind == "uuid":
                raw = self.local("u")
                self.after_run.append(f"{target} = uuid_of({raw})")
                self.run.append((code, size, raw))
            else:
                self.run.append((code, size, target))
        elif field.kind == "struct":
            self._struct(field, target, nullable)
        elif field.kind == "array":
            self._array(field, target, name, nullable)
        else:
            self._bytes(field, target, name, nullable)

    def _struct(self, field: Field, target: str, nullable: bool) -> None:
        assert field.struct_type is not None
        decode = self.constant(compile_decoder(field.struct_type, self.version, self.flexible))
        call = f"{target}, pos = {decode}(data, pos, end, budget)"
        if not nullable:
            self._flush()
            self.line(call)
            return
        mark = self.local("n")
        self.run.append(("b", 1, mark))
        self._flush()
        null = f"{mark} < 0" if field.tag is None else f"{mark} == 0"
        self.line(f"if {null}: {target} = None")
        self.line(f"else: {call}")

    def _bytes(self, field: Field, target: str, name: str, nullable: bool) -> None:
        stop = self.local("e")
        is_string = field.kind == "string"
        with self._length(target, name, nullable, is_string) as size:
            self.line(f"{stop} = pos + {size}")
            self.line(f"if {stop} > end: raise too_long({name!r})")
            if is_string:
                self.line(f"{target} = str(data[pos:{stop}], 'utf-8')")
            elif field.kind == "records":
                self.line(f"{target} = memoryview(data)[pos:{stop}]")
            else:
                self.line(f"{target} = bytes(data[pos:{stop}])")
            self.line(f"pos = {stop}")

    def _array(self, field: Field, target: str, name: str, nullable: bool) -> None:
        element = field.element
        assert element is not None
        smallest = max(1, _smallest(element, self.version, self.flexible))
        fields = len(element.struct_type.fields()) if element.struct_type else 1
        count = self.local("k")
        with self._length(target, name, nullable, is_string=False) as size:
            self.line(f"{count} = {size}")
            self.line(f"if {count} * {smallest} > end - pos: raise too_long({name!r})")
            self.line(f"budget[0] -= {count} * {max(ELEMENT_VALUES, fields)}")
            self.line(f"if budget[0] < 0: raise too_many({name!r})")
            if element.kind in FIXED and element.kind != "uuid":
                code, item_size = FIXED[element.kind]
                self.line(f"{target} = list(unpack_from('>%d{code}' % {count}, data, pos))")
                self.line(f"pos += {count} * {item_size}")
                return
            items, item = self.local("l"), self.local("x")
            self.line(f"{target} = {items} = []")
            with self.block(f"for _ in range({count}):"):
                self._value(element, item, name)
                self._flush()
                self.line(f"{items}.append({item})")

    @contextmanager
    def _length(self, target: str, name: str, nullable: bool, is_string: bool) -> Iterator[str]:
        """Read a length with everything before it; the body is for a value that is not null."""
        size = self.local("n")
        if self.flexible:
            self.run.append(("B", 1, size))
            self._flush()
            long = "long_string_size" if is_string else "decode_uvarint"
            self.line(f"if {size} > 127: {size}, pos = {long}(data, pos - 1)")
        else:
            self.run.append(("h", 2, size) if is_string else ("i", 4, size))
            self._flush()
        with self.block(f"if {size}:" if self.flexible else f"if {size} >= 0:"):
            yield f"{size} - 1" if self.flexible else size
        self.line(f"else: {target} = None" if nullable else f"else: raise null({name!r})")

    def _tagged_fields(self, tagged: list[tuple[int | None, str, Field]]) -> None:
        self.run.append(("B", 1, "tags"))
        self._flush()
        self.line("unknown = None")
        with self.block("if tags:"):
            self.line("if tags > 127: tags, pos = decode_uvarint(data, pos - 1)")
            self.line("if tags * 2 > end - pos: raise too_long('tagged fields')")
            self.line("budget[0] -= tags * 2")
            self.line("if budget[0] < 0: raise too_many('tagged fields')")
            self.line("last = -1")
            with self.block("for _ in range(tags):"):
                self.line("tag, pos = decode_uvarint(data, pos)")
                self.line("size, pos = decode_uvarint(data, pos)")
                self.line("stop = pos + size")
                self.line("if stop > end or tag <= last: raise bad_tag(tag)")
                self.line("last = tag")
                for number, name, field in tagged:
                    with self.block(f"if tag == {number}:"):
                        self._value(field, f"o.{name}", name)
                        self._flush()
                        self.line("if pos != stop: raise bad_tag(tag)")
                        self.line("continue")
                self.line("if unknown is None: unknown = {}")
                self.line("unknown[tag] = bytes(data[pos:stop])")
                self.line("pos = stop")
        self.line("o.unknown_tagged_fields = unknown")


def _write_tags(write: Callable[[Buffer], object], tags: Mapping[int, bytes]) -> None:
    write(encode_uvarint(len(tags)))
    for tag in sorted(tags):
        content = tags[tag]
        write(encode_uvarint(tag) + encode_uvarint(len(content)))
        write(content)


def _long_string(size_and_one: int) -> bytes:
    if size_and_one > MAX_STRING + 1:
        raise ValueError(f"a string of {size_and_one - 1} bytes is longer than {MAX_STRING}")
    return encode_uvarint(size_and_one)


def _long_string_size(data: Buffer, pos: int) -> tuple[int, int]:
    size_and_one, pos = decode_uvarint(data, pos)
    if size_and_one > MAX_STRING + 1:
        raise MalformedError("a string is longer than 32,767 bytes")
    return size_and_one, pos


def _null(name: str) -> MalformedError:
    return MalformedError(f"{name} is null")


def _too_long(name: str) -> MalformedError:
    return MalformedError(f"{name} is longer than the bytes that are left")


def _too_many(name: str) -> MalformedError:
    return MalformedError(f"too many values in one message, at {name}")


def _bad_tag(tag: int) -> MalformedError:
    return MalformedError(f"tagged field {tag} is out of order or has a wrong size")


_ENCODER_NAMES: Final = {
    "SHORT": SHORT_UVARINTS,
    "absent": AbsentFieldError,
    "long_string": _long_string,
    "pack": struct.pack,
    "uvarint": encode_uvarint,
    "write_tags": _write_tags,
}
_DECODER_NAMES: Final = {
    "bad_tag": _bad_tag,
    "decode_uvarint": decode_uvarint,
    "long_string_size": _long_string_size,
    "new": object.__new__,
    "null": _null,
    "too_long": _too_long,
    "too_many": _too_many,
    "unpack_from": struct.unpack_from,
    "uuid_of": uuid_of,
}
