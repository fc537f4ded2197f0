"""Avro's logical types: Python's values from the raw ones and back, without any loss.

Types are those that Java's library gives: decimals, UUIDs, dates, times, timestamps (with a zone,
UTC) and local timestamps (without one). A value that the raw type cannot hold exactly is refused,
never rounded. Timestamps of nanoseconds and durations stay raw: Python has no type that holds them.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Final

from onceflow.sdk.schema_registry.avro.schemas import Type

Typed = Callable[[object], object]

_EXACT: Final = decimal.Context(
    prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)
_UTC: Final = datetime.UTC
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_LOCAL_EPOCH: Final = datetime.datetime(1970, 1, 1)
_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_DAY_MICROS: Final = 86_400_000_000
DECIMAL_BYTES_MAX: Final = 4_096
"""Longest decimal that is read, about 9,800 digits: the time to make one grows with the square of
its length, and a megabyte would take minutes."""

BIG_DECIMAL_SCALE_MAX: Final = 100_000
"""Largest scale of a big-decimal that is believed: a few bytes must not make a number of
megabytes once it is printed."""


class Misfit(ValueError):
    """A value does not fit its type.

    Attributes:
        reason: What is wrong with it.
        path: Fields and positions that lead to it, innermost first.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.')}: {self.reason}".removeprefix(": ")


def shown(value: object) -> str:
    """A value for a message, with its type and of bounded length."""
    return f"{type(value).__name__} {repr(value)[:60]}"


# --- reading


def typed_of(type_: Type) -> Typed | None:
    """Return the function from raw values of a type to Python's; None if values stay raw."""
    match type_.logical:
        case "decimal":
            return lambda raw: _EXACT.scaleb(decimal.Decimal(_integer(raw)), -type_.scale)
        case "big-decimal":
            return _big_decimal_of
        case "uuid" if type_.kind == "fixed":
            return lambda raw: uuid.UUID(bytes=raw)  # type: ignore[arg-type]
        case "uuid":
            return lambda raw: uuid.UUID(raw)  # type: ignore[arg-type]
        case "date":
            return lambda raw: datetime.date.fromordinal(raw + _DAY)  # type: ignore[operator]
        case "time-millis":
            return lambda raw: _time_of(raw * 1000)  # type: ignore[operator]
        case "time-micros":
            return _time_of
        case "":
            return None
    epoch = _LOCAL_EPOCH if type_.logical.startswith("local") else _EPOCH
    factor = 1000 if type_.logical.endswith("millis") else 1
    return lambda raw: epoch + raw * factor * _MICROSECOND  # type: ignore[operator]


def _integer(raw: object) -> int:
    assert isinstance(raw, bytes)
    if len(raw) > DECIMAL_BYTES_MAX:
        raise ValueError(f"decimal of {len(raw)} bytes; at most {DECIMAL_BYTES_MAX} are read")
    return int.from_bytes(raw, "big", signed=True)


def _time_of(micros: object) -> datetime.time:
    assert isinstance(micros, int)
    if not 0 <= micros < _DAY_MICROS:
        raise ValueError(f"time of day out of range: {micros} microseconds")
    return (_LOCAL_EPOCH + micros * _MICROSECOND).time()


def _big_decimal_of(raw: object) -> decimal.Decimal:
    assert isinstance(raw, bytes)
    size, at = _read_long(raw, 0)
    if not 0 < size <= len(raw) - at:
        raise ValueError("a big-decimal is cut off")
    scale, end = _read_long(raw, at + size)
    if end != len(raw) or abs(scale) > BIG_DECIMAL_SCALE_MAX:
        raise ValueError(f"big-decimal malformed, or of scale {scale}")
    return _EXACT.scaleb(decimal.Decimal(_integer(raw[at : at + size])), -scale)


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise ValueError("a number is cut off or too long")


# --- writing


def raw_of(type_: Type) -> Typed:
    """Return the function from Python's values of a logical type to raw ones; it raises Misfit.

    Raw values are let through: a ``date`` may also be given as its number of days.
    """
    logical = type_.logical
    if logical in ("decimal", "big-decimal"):
        return _decimal_writer(type_)
    if logical == "uuid":
        return _uuid_bytes if type_.kind == "fixed" else _uuid_text
    if logical == "date":
        return _date_raw
    factor = 1000 if logical.endswith("millis") else 1
    if logical.startswith("time-"):
        return lambda value: _whole(_time_micros(value), factor, value)
    local = logical.startswith("local")
    return lambda value: _whole(_timestamp_micros(value, local), factor, value)


def _decimal_writer(type_: Type) -> Typed:
    size = type_.size if type_.kind == "fixed" else None

    def write(value: object) -> object:
        if isinstance(value, decimal.Decimal):
            if type_.logical == "big-decimal":
                return _big_decimal_raw(value)
            return _signed(_unscaled(value, type_.precision, type_.scale), size)
        return value

    return write


def _unscaled(value: decimal.Decimal, precision: int, scale: int) -> int:
    if not value.is_finite():
        raise Misfit(f"{value} has no digits")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    if any(digits) and len(digits) + shift > precision:
        raise Misfit(f"{shown(value)} has more than {precision} digits at scale {scale}")
    number = int(decimal.Decimal((0, digits, 0)))
    if shift >= 0:
        number *= 10**shift if number else 1
    else:
        number, rest = divmod(number, 10 ** min(-shift, len(digits)))
        if rest or (number and -shift > len(digits)):
            raise Misfit(f"{shown(value)} has more than {scale} decimal places; round it")
    return -number if sign else number


def _signed(number: int, size: int | None = None) -> bytes:
    """Two's complement in as few bytes as possible, as Java's BigInteger has it, or in `size`."""
    if size is None:
        size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _big_decimal_raw(value: decimal.Decimal) -> bytes:
    if not value.is_finite():
        raise Misfit(f"{value} has no digits")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if abs(exponent) > BIG_DECIMAL_SCALE_MAX:
        raise Misfit(f"{value} has a scale beyond {BIG_DECIMAL_SCALE_MAX}")
    number = int(decimal.Decimal((0, digits, 0)))
    data = _signed(-number if sign else number)
    return _long(len(data)) + data + _long(-exponent)


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _uuid_bytes(value: object) -> object:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _uuid_text(value: object) -> object:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        try:
            if str(uuid.UUID(value)) == value.lower():
                return value
        except ValueError:
            pass
        raise Misfit(f"UUID expected, got {shown(value)}")
    return value


def _date_raw(value: object) -> object:
    if isinstance(value, datetime.datetime):
        raise Misfit(f"{shown(value)} has a time of day too; give value.date()")
    return value.toordinal() - _DAY if isinstance(value, datetime.date) else value


def _time_micros(value: object) -> object:
    if not isinstance(value, datetime.time):
        return value
    if value.tzinfo is not None:
        raise Misfit(f"{shown(value)} has a time zone, which a time of day cannot keep")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _timestamp_micros(value: object, local: bool) -> object:
    if not isinstance(value, datetime.datetime):
        if isinstance(value, datetime.date):
            raise Misfit(f"{shown(value)} has no time of day")
        return value
    if (value.utcoffset() is None) != local:
        remedy = "one without a zone" if local else "one with a zone, as datetime.now(UTC)"
        raise Misfit(f"{shown(value)}: give {remedy}")
    return (value - (_LOCAL_EPOCH if local else _EPOCH)) // _MICROSECOND


def _whole(micros: object, factor: int, value: object) -> object:
    """Microseconds in units of the type; raw values pass."""
    if micros is value:
        return value
    assert isinstance(micros, int)
    if micros % factor:
        raise Misfit(f"{shown(value)} has microseconds, which the type cannot keep; round it")
    return micros // factor
