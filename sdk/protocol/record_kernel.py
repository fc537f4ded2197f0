"""Records to bytes and back, field by field: plain Python that mypyc may compile.

This is the one place where each record costs something, in the clients and in the broker, so it is
written for a compiler: native integers, one pass, and the growing buffer of librt, mypyc's runtime
library. The build backend (`tools/build_backend.py`) compiles it where it can; elsewhere the same
source runs as it is, and `COMPILED` tells which. The two differ in one place, `RecordWriter.write`,
where plain Python joins finished bytes instead of writing one byte after the other.
What belongs to the batch as a whole is in `batch_header`.

Every length is checked against the bytes that are there before it is used, and a byte beyond the
end is an error, compiled as well. The layout is that of batches of magic 2 (KIP-98).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

COMPILED: Final = not __file__.endswith(".py")
"""Whether this module runs as machine code."""

NOTHING: Final = 0
VALUES: Final = 1
EVERYTHING: Final = 2
RECORDS: Final = 3

Headers = list[tuple[str, bytes | None]]

_LOW_63: Final = 0x7FFF_FFFF_FFFF_FFFF
_LEAST: Final = -0x8000_0000_0000_0000
_LOW_57: Final = 0x01FF_FFFF_FFFF_FFFF

_ENCODED: Final[dict[int, bytes]] = {}
"""Numbers in zigzag form, for plain Python."""


class MalformedRecordError(ValueError):
    """The bytes are no records; the text says which rule they break."""


def _put(out: BytesWriter, number: i64) -> None:
    """Append a number in zigzag form."""
    raw: i64 = (number << 1) ^ (number >> 63)
    while raw > 127 or raw < 0:
        out.append(u8((raw & 0x7F) | 0x80))
        raw = (raw >> 7) & _LOW_57
    out.append(u8(raw))


def _encoded(number: i64) -> bytes:
    """A number in zigzag form; those that most records need are made once."""
    known = _ENCODED.get(number)
    if known is not None:
        return known
    out = BytesWriter()
    _put(out, _in_64_bits(number))
    made = out.getvalue()
    if -64 <= number < 8192:  # two bytes at most
        _ENCODED[number] = made
    return made


def _size(number: i64) -> i64:
    """Bytes that a number takes in zigzag form."""
    raw: i64 = (number << 1) ^ (number >> 63)
    size: i64 = 1
    while raw > 127 or raw < 0:
        raw = (raw >> 7) & _LOW_57
        size += 1
    return size


class RecordWriter:
    """Collects the records of one batch in one buffer, without an object of its own for any.

    Attributes:
        size_bytes: Bytes of the records so far.
        count: Records so far.
        base_timestamp: Timestamp of the first one in milliseconds, -1 before.
        max_timestamp: The largest timestamp in milliseconds, -1 before.
    """

    def __init__(self, limit: i64) -> None:
        """Start an empty batch.

        Args:
            limit: Bytes of records at which it is full; the first record always fits.
        """
        self.size_bytes: i64 = 0
        self.count: i64 = 0
        self.base_timestamp: i64 = -1
        self.max_timestamp: i64 = -1
        self._limit: i64 = limit
        self._out = BytesWriter()
        self._parts: list[bytes] = []  # what plain Python has instead

    def write(
        self,
        offset: i64,
        timestamp_ms: i64,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> i64:
        """Add one record.

        Args:
            offset: Its number in the batch; that is `count`.
            timestamp_ms: Milliseconds since 1970-01-01 UTC, or -1.
            key: Key, or None.
            value: Value, or None.
            headers: Pairs of name and value.

        Returns:
            Its size, or 0 if the batch is full.
        """
        if COMPILED:
            return self._write_bytewise(offset, timestamp_ms, key, value, headers)
        # Joined of finished pieces: the fewest steps of the interpreter.
        base: i64 = timestamp_ms if self.count == 0 else self.base_timestamp
        if not _LEAST <= timestamp_ms <= _LOW_63:
            raise OverflowError(f"timestamp {timestamp_ms} does not fit 64 bits")
        body = b"".join(
            (
                b"\0",  # the attributes, of which none is used
                _encoded(timestamp_ms - base),
                _encoded(offset),
                _encoded(-1 if key is None else len(key)),
                b"" if key is None else key,
                _encoded(-1 if value is None else len(value)),
                b"" if value is None else value,
                _joined_headers(headers) if headers else b"\0",
            )
        )
        size = _encoded(len(body))
        whole: i64 = len(size) + len(body)
        if self.count and self.size_bytes + whole > self._limit:
            return 0
        self._parts += (size, body)
        self.base_timestamp = base
        if timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.size_bytes += whole
        self.count += 1
        return whole

    def _write_bytewise(
        self,
        offset: i64,
        timestamp_ms: i64,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> i64:
        """Do what `write` does, into one growing buffer: the fewest steps of a processor."""
        base: i64 = timestamp_ms if self.count == 0 else self.base_timestamp
        delta: i64 = timestamp_ms - base
        key_size: i64 = -1 if key is None else len(key)
        value_size: i64 = -1 if value is None else len(value)
        size: i64 = 2 + _size(delta) + _size(offset) + _size(key_size) + _size(value_size)
        if key is not None:
            size += key_size
        if value is not None:
            size += value_size
        if headers:
            size += _headers_size(headers) - 1
        whole: i64 = size + _size(size)
        if self.count > 0 and self.size_bytes + whole > self._limit:
            return 0
        out = self._out
        try:
            _put(out, size)
            out.append(0)  # the attributes, of which none is used
            _put(out, delta)
            _put(out, offset)
            _put(out, key_size)
            if key is not None:
                out.write(key)
            _put(out, value_size)
            if value is not None:
                out.write(value)
            if headers:
                _put_headers(out, headers)
            else:
                out.append(0)
        except BaseException:  # Memory ended: no part of the record may stay.
            out.truncate(self.size_bytes)
            raise
        self.base_timestamp = base
        if timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.size_bytes += whole
        self.count += 1
        return whole

    def take(self) -> bytes:
        """The bytes of all records; the writer is used up."""
        if not COMPILED:
            data = b"".join(self._parts)
            self._parts = []
            return data
        data = self._out.getvalue()
        self._out = BytesWriter()
        return data


def _joined_headers(headers: Headers) -> bytes:
    parts = [_encoded(len(headers))]
    for name, content in headers:
        encoded = name.encode()
        parts += (_encoded(len(encoded)), encoded)
        parts.append(_encoded(-1 if content is None else len(content)))
        if content is not None:
            parts.append(content)
    return b"".join(parts)


def _headers_size(headers: Headers) -> i64:
    total: i64 = _size(len(headers))
    for name, content in headers:
        size: i64 = len(name.encode())
        total += _size(size) + size
        size = -1 if content is None else len(content)
        total += _size(size)
        if content is not None:
            total += size
    return total


def _put_headers(out: BytesWriter, headers: Headers) -> None:
    _put(out, len(headers))
    for name, content in headers:
        encoded = name.encode()
        _put(out, len(encoded))
        out.write(encoded)
        _put(out, -1 if content is None else len(content))
        if content is not None:
            out.write(content)


def append_scattered(
    writers: list[RecordWriter | None],
    targets: list[int],
    start: i64,
    stop: i64,
    timestamp_ms: i64,
    timestamps_ms: list[int] | None,
    keys: list[bytes | None] | None,
    values: list[bytes | None],
    headers: list[Headers] | None,
) -> i64:
    """Add records to the writers of their partitions, in order, until one is full or missing.

    Args:
        writers: Writer by partition; None where there is none yet.
        targets: Partition of each record.
        start: Index of the first record.
        stop: Index after the last one.
        timestamp_ms: Timestamp of all records, unless each has its own.
        timestamps_ms: Timestamp of each record, or None.
        keys: Key of each record, or None for no keys.
        values: Value of each record.
        headers: Headers of each record, or None.

    Returns:
        Index of the first record that was not taken.
    """
    at: i64 = start
    key: bytes | None = None
    some: Headers | None = None
    while at < stop:
        writer = writers[targets[at]]
        if writer is None:
            break
        if keys is not None:
            key = keys[at]
        if timestamps_ms is not None:
            timestamp_ms = timestamps_ms[at]
        if headers is not None:
            some = headers[at]
        if writer.write(writer.count, timestamp_ms, key, values[at], some) == 0:
            break
        at += 1
    return at


def only_bytes(items: list[object]) -> bool:
    """Whether every item is bytes or None."""
    return all(item is None or isinstance(item, bytes) for item in items)


def _more(data: bytes, pos: i64, raw: i64, most_bytes: i64) -> tuple[i64, i64]:
    """The rest of a number whose first byte is `raw` and whose second is at `pos`.

    Returns:
        The number, still in zigzag form, and where it ends.
    """
    raw &= 127
    shift: i64 = 7
    while True:
        byte: i64 = data[pos]
        pos += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return raw, pos
        shift += 7
        if shift == most_bytes * 7:
            raise MalformedRecordError("a number in a record is too long")


def _rest(data: bytes, pos: i64, raw: i64, most_bytes: i64) -> tuple[i64, i64]:
    """As `_more`, with a short way for two bytes, the case that matters beside that of one."""
    byte: i64 = data[pos]
    if byte < 128:
        return (raw & 127) | (byte << 7), pos + 1
    return _more(data, pos, raw, most_bytes)


def _number(data: bytes, pos: i64) -> tuple[i64, i64]:
    """A number of 32 bits and where it ends."""
    raw: i64 = data[pos]
    pos += 1
    if raw > 127:
        raw, pos = _rest(data, pos, raw, 5)
    return (raw >> 1) ^ -(raw & 1), pos


def _in_64_bits(number: int) -> int:
    """A sum as machine code, and Java, has it; plain Python's numbers do not end."""
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class RecordMaker:
    """What makes an object of each record, and what is the same in all of a batch."""

    def __init__(
        self,
        make: Callable[..., object],
        topic: str,
        partition: object,
        timestamp_type: object,
        timestamp_ms: object,
        leader_epoch: object,
    ) -> None:
        """Prepare for one batch.

        Args:
            make: Called with topic, partition, offset, timestamp in milliseconds, timestamp type,
                key, value, headers, leader epoch.
            topic: Topic of the records.
            partition: Partition of the records.
            timestamp_type: Who set the timestamps.
            timestamp_ms: Timestamp of all records in milliseconds, None where each has its own.
            leader_epoch: Leader epoch of the batch.
        """
        self.make = make
        self.topic = topic
        self.partition = partition
        self.timestamp_type = timestamp_type
        self.timestamp_ms = timestamp_ms
        self.leader_epoch = leader_epoch


@final
class Columns:
    """Records of one batch, field by field; what was not asked for stays empty.

    Attributes:
        offsets: Offset of each record; empty where they count up by one.
        timestamps_ms: Timestamp of each in milliseconds.
        keys: Key of each, None without.
        values: Value of each, None without.
        headers: By number of the record, for those that have some.
        records: An object for each, if these were asked for and nothing else.
        min_timestamp: Least timestamp in milliseconds.
        max_timestamp: Largest timestamp in milliseconds.
        keyless: How many records have no key.
        misplaced: Number of the first record whose offset does not count up by one, -1 for none.
        misplaced_delta: Where it claims to be.
        base_offset: Offset of the batch that is read.
        maker: Makes an object of each of its records, or None.
    """

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps_ms: list[object] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}
        self.records: list[object] = []
        self.min_timestamp: i64 = _LOW_63
        self.max_timestamp: i64 = -_LOW_63
        self.keyless: i64 = 0
        self.misplaced: i64 = -1
        self.misplaced_delta: i64 = -1
        self.base_offset: i64 = 0
        self.maker: RecordMaker | None = None
        self._stamped: i64 = 0
        self._stamp: object = None  # the same as an object: most often it is the next one's too

    def note_gap(self, number: i64, delta: i64) -> None:
        """Count in a record that is not where it should be: from the first on, offsets are kept."""
        if self.misplaced < 0:
            self.misplaced, self.misplaced_delta = number, delta
            if self.keys:
                self.offsets = list(range(self.base_offset, self.base_offset + number))

    def keep(
        self,
        number: i64,
        delta: i64,
        timestamp_ms: i64,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> None:
        """Take in all fields of a record, or what the maker makes of them."""
        if self._stamp is None or timestamp_ms != self._stamped:
            self._stamp, self._stamped = timestamp_ms, timestamp_ms
        stamp, maker, offset = self._stamp, self.maker, self.base_offset + delta
        if maker is None:
            self.keys.append(key)
            self.values.append(value)
            self.timestamps_ms.append(stamp)
            if self.misplaced >= 0:
                self.offsets.append(offset)
            if headers is not None:
                self.headers[number] = headers
            return
        self.records.append(
            maker.make(
                maker.topic,
                maker.partition,
                offset,
                stamp if maker.timestamp_ms is None else maker.timestamp_ms,
                maker.timestamp_type,
                key,
                value,
                () if headers is None else headers,
                maker.leader_epoch,
            )
        )


def walk(
    data: bytes,
    start: i64,
    count: i64,
    base_offset: i64,
    base_timestamp: i64,
    want: i64,
    first: i64 = 0,
    maker: RecordMaker | None = None,
    into: Columns | None = None,
) -> Columns:
    """Check the structure of every record of a batch, and read what is wanted of it.

    Args:
        data: Bytes of the batch, uncompressed; they end where the records end.
        start: Where the records begin.
        count: How many there are.
        base_offset: Offset of the batch.
        base_timestamp: Time that the records' own ones are relative to, in milliseconds.
        want: `NOTHING` (checks only), `VALUES`, `EVERYTHING`, or `RECORDS` by the maker.
        first: Number in its batch of the first of these records; 0 where they are read.
        maker: Makes an object of each record.
        into: Where what is read is added to, otherwise unused; behind an error it holds a part.

    Raises:
        MalformedRecordError, IndexError: The bytes are no such records.
    """
    columns = Columns() if into is None else into
    columns.base_offset, columns.maker = base_offset, maker
    _walk(data, start, first, first + count, base_timestamp, want, columns)
    return columns


def _walk(
    data: bytes, pos: i64, number: i64, stop: i64, base_timestamp: i64, want: i64, columns: Columns
) -> None:
    """Do what `walk` does, for the records from `number` to `stop`, which begin at `pos`."""
    plain, wants_all, wants_values = not COMPILED, want > VALUES, want > NOTHING
    least: i64 = columns.min_timestamp
    largest: i64 = columns.max_timestamp
    end: i64 = len(data)
    while number < stop:
        # Numbers of one byte are read in place: a call for each would cost plain Python the most.
        raw: i64 = data[pos]
        pos += 1
        if raw > 127:
            raw, pos = _rest(data, pos, raw, 5)
        record_end: i64 = pos + (raw >> 1)
        if raw & 1 or record_end > end:
            raise MalformedRecordError("a record is longer than the bytes that are there")
        raw = data[pos + 1]  # behind the attributes, of which none is used
        pos += 2
        if raw > 127:
            raw, pos = _rest(data, pos, raw, 10)
        timestamp_ms: i64 = base_timestamp + (((raw >> 1) & _LOW_63) ^ -(raw & 1))
        if plain and not _LEAST <= timestamp_ms <= _LOW_63:
            timestamp_ms = _in_64_bits(timestamp_ms)
        if timestamp_ms < least:
            least = timestamp_ms
        if timestamp_ms > largest:
            largest = timestamp_ms
        raw = data[pos]
        pos += 1
        if raw > 127:
            raw, pos = _rest(data, pos, raw, 5)
        delta: i64 = (raw >> 1) ^ -(raw & 1)
        if delta != number:
            columns.note_gap(number, delta)
        raw = data[pos]
        pos += 1
        if raw > 127:
            raw, pos = _rest(data, pos, raw, 5)
        key: bytes | None = None
        if raw & 1:
            columns.keyless += 1
        else:
            key = data[pos : pos + (raw >> 1)] if wants_all else None
            pos += raw >> 1
        raw = data[pos]
        pos += 1
        if raw > 127:
            raw, pos = _rest(data, pos, raw, 5)
        value: bytes | None = None
        if not raw & 1:
            if pos + (raw >> 1) > record_end:
                raise MalformedRecordError("a field is longer than its record")
            value = data[pos : pos + (raw >> 1)] if wants_values else None
            pos += raw >> 1
        headers: Headers | None = None
        if pos + 1 != record_end or data[pos] != 0:
            headers = _read_headers(data, pos, record_end, wants_all)
        if wants_all:
            columns.keep(number, delta, timestamp_ms, key, value, headers)
        elif wants_values:
            columns.values.append(value)
        pos = record_end
        number += 1
    if pos != end:
        raise MalformedRecordError("bytes follow the last record of a batch")
    columns.min_timestamp, columns.max_timestamp = least, largest


def _read_headers(data: bytes, pos: i64, end: i64, wanted: bool) -> Headers:
    """Go over the headers of a record that ends at `end`, from their number on.

    As Java does it, a name that is not UTF-8 gets replacement characters.

    Returns:
        The headers, or none where they are not wanted.
    """
    found: Headers = []
    count, pos = _number(data, pos)
    if count < 0:
        raise MalformedRecordError(f"a record claims {count} headers")
    while count > 0:
        size, name_start = _number(data, pos)
        if size < 0 or name_start + size > end:
            raise MalformedRecordError("a record header has no name, or one beyond its record")
        name_end = name_start + size
        size, start = _number(data, name_end)
        pos = start if size < 0 else start + size
        if pos > end:
            raise MalformedRecordError("a record header is longer than its record")
        if wanted:
            content = None if size < 0 else data[start:pos]
            found.append((data[name_start:name_end].decode("utf-8", "replace"), content))
        count -= 1
    if pos != end:
        raise MalformedRecordError("the parts of a record do not fill its length")
    return found
