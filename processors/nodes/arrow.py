"""Converts values of many records to Arrow data, and Arrow results to values.

pyarrow is imported here only, at the first use.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from onceflow.processors.errors import DeserializationError
from onceflow.processors.values import Format
from onceflow.sdk.serde import format_remark

if TYPE_CHECKING:
    import pyarrow as pa

_one_value = msgspec.json.Decoder(msgspec.Raw).decode


def to_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return values as an array of binary data."""
    import pyarrow as pa

    return pa.array(values, pa.binary())


def to_record_batch(
    values: Sequence[bytes | None], format: Format, schema: object, what: str
) -> pa.RecordBatch:
    """Return objects as columns.

    Args:
        values: Encoded objects, one for each record.
        format: Their format.
        schema: Arrow schema; None infers one from these values.
        what: Name of the function, for messages.

    Raises:
        DeserializationError: A value is not an object, or does not fit the schema.
    """
    import pyarrow as pa

    if None in values:
        raise DeserializationError(
            f"a value of {what} is None (a tombstone), which has no columns; use "
            "list[... | None] to receive tombstones"
        )
    present = cast("Sequence[bytes]", values)
    try:
        if format is Format.JSON:
            return _from_json(present, cast("pa.Schema | None", schema))
        decode = msgspec.msgpack.Decoder(dict[str, object]).decode
        return pa.RecordBatch.from_pylist([decode(value) for value in present], schema=schema)
    except (pa.ArrowException, msgspec.MsgspecError, ValueError, TypeError) as error:
        remark = format_remark(bytes(present[0]), format.value, "declare the other format=")
        raise DeserializationError(
            f"values of {what} cannot be read as columns: {error}{remark}"
        ) from error


def _from_json(values: Sequence[bytes], schema: pa.Schema | None) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import json

    # Two objects in one record and none in another would shift the values between them by a row.
    for value in values:
        _one_value(value)
    data = b"\n".join(values)
    options = json.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=True,
        unexpected_field_behavior="infer" if schema is None else "ignore",
    )
    # One block: the types of a later block would have to match those of the first.
    reading = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    table = json.read_json(io.BytesIO(data), reading, options)
    if table.num_rows != len(values):
        raise ValueError(f"{len(values)} records have {table.num_rows} objects")
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def to_rows(result: object) -> list[object] | None:
    """Return an Arrow result as one object for each record; None for any other result."""
    found = getattr(result, "to_pylist", None)
    return None if found is None else cast("list[object]", found())
