"""Why a message cannot be written: finds the first field whose value its type cannot hold.

Loaded only after an encoder has failed; compiled encoders do not check what `struct` checks anyway.
"""

from __future__ import annotations

import struct

from onceflow.sdk.protocol.compiler import FIXED, MAX_STRING
from onceflow.sdk.protocol.schema import Field, Message


def find_fault(message: Message, version: int) -> str | None:
    """The path of the first field at fault and what is wrong with it, or None.

    Args:
        message: What could not be written.
        version: Version in which it was to be written.
    """
    for name, field in type(message).fields().items():
        value = getattr(message, name)
        left_out = field.tag is not None and value is None
        if field.is_present(version) and not left_out:
            fault = _fault_in_value(field, value, version)
            if fault is not None:
                return name + fault
    return None


def _fault_in_value(field: Field, value: object, version: int) -> str | None:
    if value is None:
        return None if field.is_nullable(version) else " is None"
    if field.kind == "string":
        if not isinstance(value, str):
            return f" is a {type(value).__name__}, not a string"
        size = len(value.encode(errors="surrogatepass"))
        return f" has {size} bytes, more than {MAX_STRING}" if size > MAX_STRING else None
    if field.kind == "struct":
        if not isinstance(value, Message):
            return f" is a {type(value).__name__}, not a struct"
        fault = find_fault(value, version)
        return None if fault is None else f".{fault}"
    if field.kind == "array":
        return _fault_in_array(field, value, version)
    if field.kind in FIXED and field.kind != "uuid":
        try:
            struct.pack(">" + FIXED[field.kind][0], value)
        except (struct.error, OverflowError):
            return f" is {value!r}, which is no {field.kind}"
    return None


def _fault_in_array(field: Field, value: object, version: int) -> str | None:
    if not isinstance(value, (list, tuple)):
        return f" is a {type(value).__name__}, not a list"
    assert field.element is not None
    for index, item in enumerate(value):
        fault = _fault_in_value(field.element, item, version)
        if fault is not None:
            return f"[{index}]{fault}"
    return None


__all__ = ["find_fault"]
