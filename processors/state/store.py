"""The stores of a task, and layers for uncommitted writes.

There are three layers: the byte map (committed values), the store (writes of the open unit), and
``Layer`` (writes of one record or one call). A read takes the value of the highest layer that has
the key; a range merges the layers in order. When a call succeeds, its layer is merged into the one
below; when it fails, the layer is dropped. When a unit is committed, the store is applied to the
map; when it is aborted, the store's writes are dropped.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, cast

from onceflow.processors.state.bytemap import ByteMap, prefix_of
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import after

CLEAN_MAX: Final = 50_000
"""Most committed values that a store of atoms caches. A full cache is emptied: that is cheaper
than to track which values were used least recently."""


class Rows(Protocol):
    """Ordered rows of bytes: a store, or a layer over one."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes | None) -> None: ...
    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]: ...


class Written:
    """Uncommitted writes, and ranges that merge them with the rows below.

    Attributes:
        writes: New value by key; None deletes.
        size_bytes: Approximate size of the writes.
    """

    __slots__ = ("_order", "size_bytes", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, bytes | None] = {}
        self.size_bytes: int = 0
        self._order: list[bytes] | None = None  # sorted keys, from the first range on

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a value; None deletes."""
        if self._order is not None and key not in self.writes:
            insort(self._order, key)
        self.writes[key] = value
        self.size_bytes += len(key) + (0 if value is None else len(value))

    def _grow(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def drop(self) -> None:
        """Drop all writes."""
        self.writes.clear()
        self.size_bytes = 0
        self._order = None

    def on_top(
        self,
        below: Iterator[tuple[bytes, bytes]],
        start: bytes,
        end: bytes | None,
        reverse: bool,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Merge the rows below with the writes in a range."""
        if not self.writes:
            return below
        if self._order is None:
            self._order = sorted(self.writes)
        first = bisect_left(self._order, start)
        last = len(self._order) if end is None else bisect_left(self._order, end)
        keys = self._order[first:last]
        if reverse:
            keys.reverse()
        return _merged(below, [(key, self.writes[key]) for key in keys], reverse)


def _merged(
    below: Iterator[tuple[bytes, bytes]],
    above: list[tuple[bytes, bytes | None]],
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    lower = next(below, None)
    for key, value in above:
        while lower is not None and (lower[0] > key if reverse else lower[0] < key):
            yield lower
            lower = next(below, None)
        if lower is not None and lower[0] == key:
            lower = next(below, None)
        if value is not None:
            yield key, value
    while lower is not None:
        yield lower
        lower = next(below, None)


class CommittedRows:
    """The committed rows of a store; they cannot be written.

    Args:
        committed: The task's map.
        prefix: The store's.
    """

    def __init__(self, committed: ByteMap, prefix: bytes) -> None:
        self._committed = committed
        self._prefix = prefix

    def get(self, key: bytes) -> bytes | None:
        """Return the stored bytes."""
        return self._committed.get(self._prefix + key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Refuse; what is committed changes by commits alone."""
        raise AssertionError("committed rows are read only")

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order."""
        prefix, size = self._prefix, len(self._prefix)
        top = after(prefix) if end is None else prefix + end
        for key, value in self._committed.range(prefix + start, top, reverse=reverse):
            yield key[size:], value


class Store(Written):
    """One store of a task, by bytes.

    Args:
        name: ``function.state``.
        number: Its prefix in the map.
        committed: The task's map.
        logged: Whether changes are written to a changelog.
    """

    __slots__ = ("_committed", "logged", "name", "prefix")

    def __init__(self, name: str, number: int, committed: ByteMap, *, logged: bool = True) -> None:
        super().__init__()
        self.name: str = name
        self.prefix: bytes = prefix_of(number)
        self.logged: bool = logged
        self._committed = committed

    def get(self, key: bytes) -> bytes | None:
        """Return the stored bytes, including uncommitted writes."""
        if key in self.writes:
            return self.writes[key]
        return self._committed.get(self.prefix + key)

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order, including uncommitted writes."""
        prefix = self.prefix
        top = after(prefix) if end is None else prefix + end
        size = len(prefix)
        below = (
            (key[size:], value)
            for key, value in self._committed.range(prefix + start, top, reverse=reverse)
        )
        return self.on_top(below, start, end, reverse)

    def collect(self) -> Mapping[bytes, bytes | None]:
        """Return the changes of the open unit: the last value of each key."""
        return self.writes

    def committed_rows(self) -> CommittedRows:
        """Return the rows that are committed, without the writes of the open unit."""
        return CommittedRows(self._committed, self.prefix)

    def committed(self) -> None:
        """Drop the writes, after the commit has applied them to the map."""
        self.drop()


class Layer(Written):
    """Writes of one record or one call, over a store or another layer."""

    __slots__ = ("_below",)

    def __init__(self, below: Rows) -> None:
        super().__init__()
        self._below = below

    def get(self, key: bytes) -> bytes | None:
        """Return the stored bytes, including this layer's writes."""
        if key in self.writes:
            return self.writes[key]
        return self._below.get(key)

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order, including this layer's writes."""
        return self.on_top(self._below.range(start, end, reverse=reverse), start, end, reverse)

    def lies_on(self, store: Store) -> None:
        """What lay between this layer and the store has reached the store."""
        self._below = store

    def merge(self) -> None:
        """Copy the writes to the layer below, after the call has succeeded."""
        put = self._below.put
        for key, value in self.writes.items():
            put(key, value)


class _Absent:
    """Marks a key without a value."""

    def __repr__(self) -> str:
        return "<no value>"


ABSENT: Final = _Absent()


class Values(Protocol):
    """Results of ``ValueCodec.keep`` by key: a store of values, or a layer over one."""

    @property
    def codec(self) -> ValueCodec: ...
    def load(self, key: bytes) -> object:
        """Return the kept value, or ``ABSENT``."""

    def save(self, key: bytes, kept: object) -> None:
        """Write a kept value; ``ABSENT`` deletes."""


class ValueStore(Store):
    """A store with one value for each key, which keeps objects until the commit.

    A commit encodes only the last value of each key. After it, up to ``CLEAN_MAX`` values that
    cannot be changed in place stay cached.
    """

    __slots__ = ("_clean", "codec", "fresh")

    def __init__(self, name: str, number: int, committed: ByteMap, codec: ValueCodec) -> None:
        super().__init__(name, number, committed)
        self.codec: ValueCodec = codec
        self.fresh: dict[bytes, object] = {}
        self._clean: dict[bytes, object] = {}

    def load(self, key: bytes) -> object:
        """Return the kept value, or ``ABSENT``."""
        found = self.fresh.get(key)
        if found is not None:
            return found
        found = self._clean.get(key)
        if found is not None:
            return found
        return self._load_committed(key)

    def _load_committed(self, key: bytes) -> object:
        data = self._committed.get(self.prefix + key)
        if data is None:
            return ABSENT
        codec = self.codec
        value = codec.decode(key, data)
        if codec.is_atom:
            if len(self._clean) >= CLEAN_MAX:
                self._clean.clear()
            self._clean[key] = value
            return value
        return codec.keep(value)

    def save(self, key: bytes, kept: object) -> None:
        """Write a kept value; ``ABSENT`` deletes."""
        self.fresh[key] = kept
        if self.codec.is_sized and kept is not ABSENT:
            self._grow(len(cast(bytes, kept)))

    def get(self, key: bytes) -> bytes | None:
        """Return the stored bytes, including uncommitted writes."""
        kept = self.load(key)
        return None if kept is ABSENT else self.codec.encode(key, kept)

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order, including uncommitted writes."""
        self.collect()
        return super().range(start, end, reverse=reverse)

    def collect(self) -> Mapping[bytes, bytes | None]:
        """Return the changes of the open unit, encoded."""
        self._order = None
        encode = self.codec.encode
        writes = self.writes
        writes.clear()
        for key, kept in self.fresh.items():
            writes[key] = None if kept is ABSENT else encode(key, kept)
        return writes

    def committed(self) -> None:
        """Drop the writes and update the cache, after the commit has applied them to the map."""
        if self.codec.is_atom:
            clean = self._clean
            if len(clean) + len(self.fresh) > CLEAN_MAX:
                clean.clear()
            for key, kept in self.fresh.items():
                if kept is ABSENT:
                    clean.pop(key, None)
                elif len(clean) < CLEAN_MAX:
                    clean[key] = kept
        self.drop()

    def drop(self) -> None:
        """Drop all writes."""
        super().drop()
        self.fresh.clear()


class ValueLayer:
    """Values that one record or one call set, over a store or another layer."""

    __slots__ = ("_below", "codec", "fresh")

    def __init__(self, below: Values) -> None:
        self._below = below
        self.codec: ValueCodec = below.codec
        self.fresh: dict[bytes, object] = {}

    def load(self, key: bytes) -> object:
        """Return the kept value, or ``ABSENT``."""
        found = self.fresh.get(key)
        return self._below.load(key) if found is None else found

    def save(self, key: bytes, kept: object) -> None:
        """Write a kept value; ``ABSENT`` deletes."""
        self.fresh[key] = kept

    def lies_on(self, store: Store) -> None:
        """What lay between this layer and the store has reached the store."""
        self._below = cast(ValueStore, store)

    def merge(self) -> None:
        """Copy the values to the layer below, after the call has succeeded."""
        for key, kept in self.fresh.items():
            self._below.save(key, kept)
