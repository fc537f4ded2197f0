"""Java's Avro library as an oracle: the one that comes with PySpark, in a JVM of its own."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import uuid
from typing import Any

CONVERSIONS = (
    "Conversions$DecimalConversion", "Conversions$UUIDConversion",
    "Conversions$BigDecimalConversion", "data.TimeConversions$DateConversion",
    "data.TimeConversions$TimeMillisConversion", "data.TimeConversions$TimeMicrosConversion",
    "data.TimeConversions$TimestampMillisConversion",
    "data.TimeConversions$TimestampMicrosConversion",
    "data.TimeConversions$LocalTimestampMillisConversion",
    "data.TimeConversions$LocalTimestampMicrosConversion",
)  # fmt: skip


class JavaAvro:
    """The library; use it as a context."""

    def __enter__(self) -> JavaAvro:
        from pyspark.java_gateway import launch_gateway

        self._gateway = launch_gateway()
        jvm: Any = self._gateway.jvm
        self._avro = jvm.org.apache.avro
        self._data = self._avro.generic.GenericData()
        for name in CONVERSIONS:
            self._data.addLogicalTypeConversion(
                jvm.java.lang.Class.forName(f"org.apache.avro.{name}")
                .getDeclaredConstructor(self._gateway.new_array(jvm.java.lang.Class, 0))
                .newInstance(self._gateway.new_array(jvm.java.lang.Object, 0))
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(30)

    def read(self, data: bytes, writer: object, reader: object | None = None) -> Any:
        """The value of bytes as Java gives it, in Python's types.

        Raises:
            Exception: Java refuses a schema or the bytes.
        """
        return self._in_python(self._read(data, writer, reader))

    def written_again(self, data: bytes, schema: object) -> bytes:
        """The bytes that Java writes of the typed value that it reads."""
        out = self._gateway.jvm.java.io.ByteArrayOutputStream()
        encoder = self._avro.io.EncoderFactory.get().binaryEncoder(out, None)
        parsed = self._avro.Schema.Parser().parse(json.dumps(schema))
        writer = self._avro.generic.GenericDatumWriter(parsed, self._data)
        writer.write(self._read(data, schema, None), encoder)
        encoder.flush()
        return bytes(out.toByteArray())

    def _read(self, data: bytes, writer: object, reader: object | None) -> Any:
        written = self._avro.Schema.Parser().parse(json.dumps(writer))
        wanted = written if reader is None else self._avro.Schema.Parser().parse(json.dumps(reader))
        decoder = self._avro.io.DecoderFactory.get().binaryDecoder(bytearray(data), None)
        found = self._avro.generic.GenericDatumReader(written, wanted, self._data).read(
            None, decoder
        )
        if not decoder.isEnd():
            raise ValueError("bytes are left")
        return found

    def _in_python(self, value: Any) -> Any:
        """Types of their own for what Python has, text for nothing."""
        if value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
            return bytes(value) if isinstance(value, bytearray) else value
        if isinstance(value, decimal.Decimal):
            return value
        name = value.getClass().getName()
        if name.endswith("GenericData$Record"):
            fields = value.getSchema().getFields()
            return {field.name(): self._in_python(value.get(field.pos())) for field in fields}
        if name.endswith("GenericData$Fixed"):
            return bytes(value.bytes())
        if "GenericData$EnumSymbol" in name or name.endswith("Utf8"):
            return str(value.toString())
        if name.endswith("HeapByteBuffer"):
            return bytes(value.array())[value.position() : value.limit()]
        if name.endswith("BigDecimal"):
            return decimal.Decimal(value.toString())
        if name.startswith("java.util.UUID"):
            return uuid.UUID(value.toString())
        if name.startswith("java.time."):
            return _moment(name, value.toString())
        if name.endswith("Map"):
            return {
                str(entry.getKey().toString()): self._in_python(entry.getValue())
                for entry in value.entrySet().toArray()
            }
        return [self._in_python(value.get(index)) for index in range(value.size())]


def _moment(name: str, text: str) -> Any:
    text = re.sub(r"(\.\d{6})\d*", r"\1", text)
    kind = name.rpartition(".")[2]
    if kind == "LocalDate":
        return datetime.date.fromisoformat(text)
    if kind == "LocalTime":
        return datetime.time.fromisoformat(text)
    return datetime.datetime.fromisoformat(text)
