"""Converts between Avro's logical types and Python's types, without any loss.

It covers what Java's library converts: decimals, UUIDs, dates, times, timestamps (in UTC) and local
timestamps (without a zone). A value that the raw type cannot hold exactly is refused, never
rounded. Nanosecond timestamps and durations stay raw: no Python type can hold them.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Final

from onceflow.sdk.protocol.primitives import MalformedError, decode_varlong, encode_varint
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
"""Longest decimal that is read, about 9,800 digits. The conversion takes time quadratic in the
length: a decimal of one megabyte would take minutes."""

BIG_DECIMAL_SCALE_MAX: Final = 100_000
"""Largest scale of a big-decimal that is read: otherwise a few bytes from the network become a
number that prints as megabytes."""


class Misfit(ValueError):
    """A value does not fit its type.

    Attributes:
        reason: Why it does not fit.
        path: Fields and positions that lead to the value, innermost first.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.')}: {self.reason}".removeprefix(": ")


def shown(value: object) -> str:
    """Return a value's type and its shortened ``repr``, for messages."""
    return f"{type(value).__name__} {repr(value)[:60]}"


# --- reading


def typed_of(type_: Type) -> Typed | None:
    """Return the function from a type's raw values to Python's; None if values stay raw."""
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
        raise ValueError(f"a decimal has {len(raw)} bytes; at most {DECIMAL_BYTES_MAX} are read")
    return int.from_bytes(raw, "big", signed=True)


def _time_of(micros: object) -> datetime.time:
    assert isinstance(micros, int)
    if not 0 <= micros < _DAY_MICROS:
        raise ValueError(f"{micros} microseconds are not a time of day")
    return (_LOCAL_EPOCH + micros * _MICROSECOND).time()


def _big_decimal_of(raw: object) -> decimal.Decimal:
    assert isinstance(raw, bytes)
    try:
        size, at = decode_varlong(raw, 0)
        if not 0 < size <= len(raw) - at:
            raise ValueError("a big-decimal is cut off")
        scale, end = decode_varlong(raw, at + size)
    except (MalformedError, IndexError):
        raise ValueError("a number in a big-decimal is cut off or too long") from None
    if end != len(raw) or abs(scale) > BIG_DECIMAL_SCALE_MAX:
        raise ValueError(
            f"a big-decimal has scale {scale}, at most {BIG_DECIMAL_SCALE_MAX} is read"
            if end == len(raw)
            else f"{len(raw) - end} bytes follow a big-decimal"
        )
    return _EXACT.scaleb(decimal.Decimal(_integer(raw[at : at + size])), -scale)


# --- writing


def raw_of(type_: Type) -> Typed:
    """Return the function from a logical type's Python values to raw ones; it raises Misfit.

    Raw values pass unchanged: a date may also be given as its number of days.
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
    sign, digits, exponent = _parts(value)
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
    """Encode in two's complement, in `size` bytes or the fewest possible (Java's BigInteger)."""
    if size is None:
        size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _parts(value: decimal.Decimal) -> tuple[int, tuple[int, ...], int]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise Misfit(f"finite decimal expected, got {value}")
    return sign, digits, exponent


def _big_decimal_raw(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = _parts(value)
    if abs(exponent) > BIG_DECIMAL_SCALE_MAX:
        raise Misfit(f"{shown(value)} has a scale beyond {BIG_DECIMAL_SCALE_MAX}")
    number = int(decimal.Decimal((0, digits, 0)))
    data = _signed(-number if sign else number)
    return encode_varint(len(data)) + data + encode_varint(-exponent)


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
        raise Misfit(f"date expected, got {shown(value)}; give value.date()")
    return value.toordinal() - _DAY if isinstance(value, datetime.date) else value


def _time_micros(value: object) -> object:
    if not isinstance(value, datetime.time):
        return value
    if value.tzinfo is not None:
        raise Misfit(f"time without a zone expected, got {shown(value)}")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _timestamp_micros(value: object, local: bool) -> object:
    if not isinstance(value, datetime.datetime):
        if isinstance(value, datetime.date):
            raise Misfit(f"datetime expected, got {shown(value)}")
        return value
    if (value.utcoffset() is None) != local:
        wanted = "without a zone" if local else "with a zone, such as datetime.now(UTC),"
        raise Misfit(f"datetime {wanted} expected, got {shown(value)}")
    return (value - (_LOCAL_EPOCH if local else _EPOCH)) // _MICROSECOND


def _whole(micros: object, factor: int, value: object) -> object:
    """Convert microseconds to the unit of the type; raw values pass unchanged."""
    if micros is value:
        return value
    assert isinstance(micros, int)
    if micros % factor:
        raise Misfit(f"{shown(value)} has microseconds, the type only milliseconds; round it")
    return micros // factor
