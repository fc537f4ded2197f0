"""Rows of a map or list state: objects ordered by key, in a store or in a plain dictionary."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol

from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import Packer, Unpacker, after, close
from onceflow.processors.state.store import ABSENT, Rows


class FaceRows(Protocol):
    """The rows that a map or list state reads and writes."""

    @property
    def what(self) -> str: ...
    def get(self, key: object) -> object: ...
    def put(self, key: object, value: object) -> None: ...
    def delete(self, key: object) -> None: ...
    def range(
        self, start: object, end: object, *, reverse: bool
    ) -> Iterator[tuple[object, object]]: ...


class PlainRows:
    """Rows of a state that a test made, in a dictionary."""

    def __init__(self, rows: dict[object, object]) -> None:
        self.what: str = "state"
        self._rows = rows

    def get(self, key: object) -> object:
        """Return the value, or ``ABSENT``."""
        return self._rows.get(key, ABSENT)

    def put(self, key: object, value: object) -> None:
        """Write a copy of a value."""
        self._rows[key] = copy.deepcopy(value)

    def delete(self, key: object) -> None:
        """Remove an entry."""
        self._rows.pop(key, None)

    def range(
        self, start: object, end: object, *, reverse: bool
    ) -> Iterator[tuple[object, object]]:
        """Yield entries in order."""
        for key in sorted(self._rows, reverse=reverse):  # type: ignore[type-var]
            if (start is None or key >= start) and (end is None or key < end):  # type: ignore[operator]
                yield key, self._rows[key]


class BoundRows:
    """The rows of one record key in a store.

    Args:
        rows: The store, or a layer on it.
        record_key: Key of the record.
        packing: Encoder and decoder of the rows' keys.
        codec: Codec of the values.
    """

    def __init__(
        self,
        rows: Rows,
        record_key: bytes,
        packing: tuple[Packer, Unpacker],
        codec: ValueCodec,
    ) -> None:
        self.what: str = codec.what
        self._rows = rows
        self._prefix = close(record_key)
        self._pack, self._unpack = packing
        self._codec = codec

    def get(self, key: object) -> object:
        """Return the value, or ``ABSENT``."""
        stored = self._prefix + self._pack(key)
        data = self._rows.get(stored)
        return ABSENT if data is None else self._codec.decode(stored, data)

    def put(self, key: object, value: object) -> None:
        """Write a value.

        Raises:
            StateValueError: Key or value does not have the declared type.
        """
        stored = self._prefix + self._pack(key)
        self._rows.put(stored, self._codec.encode(stored, self._codec.keep(value)))

    def delete(self, key: object) -> None:
        """Remove an entry."""
        self._rows.put(self._prefix + self._pack(key), None)

    def range(
        self, start: object, end: object, *, reverse: bool
    ) -> Iterator[tuple[object, object]]:
        """Yield entries in order."""
        prefix = self._prefix
        first = prefix if start is None else prefix + self._pack(start)
        last = after(prefix) if end is None else prefix + self._pack(end)
        size = len(prefix)
        for stored, data in self._rows.range(first, last, reverse=reverse):
            yield self._unpack(stored[size:]), self._codec.decode(stored, data)
