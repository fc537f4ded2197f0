"""State of a key, as a handler gets it, and the uncommitted writes behind it.

``State`` is bound to one record's key. ``StateStore`` keeps one named state of one partition: the
writes of the open transaction as an overlay over the committed store. The overlay is dropped on
abort and applied when the transaction is committed; ``tasks`` decides when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar, TypeVarTuple, cast, overload

from onceflow.processors.errors import OutputRefusedError
from onceflow.processors.values import StateCodec

Ts = TypeVarTuple("Ts")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class ReadsKeys(Protocol):
    """The committed values of one partition, by state and key."""

    def get(self, state: str, key: bytes) -> bytes | None: ...


class StateStore:
    """One named state of one partition.

    Args:
        name: Name of the state within its processor.
        codec: Codec of the values.
        committed: The committed values.
    """

    __slots__ = ("_committed", "codec", "name", "overlay", "unsent")

    def __init__(self, name: str, codec: StateCodec, committed: ReadsKeys) -> None:
        self.name: str = name
        self.codec: StateCodec = codec
        self._committed = committed
        self.overlay: dict[bytes, bytes | None] = {}
        self.unsent: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The stored bytes, uncommitted writes included."""
        overlay = self.overlay
        if key in overlay:
            return overlay[key]
        return self._committed.get(self.name, key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write, or delete with None; visible to later records of the transaction."""
        self.overlay[key] = value
        self.unsent[key] = value

    def drop(self) -> None:
        """Forget the uncommitted writes."""
        self.overlay.clear()
        self.unsent.clear()


class _Unchanged:
    """Marks a state that its handler did not write."""


_UNCHANGED = _Unchanged()


class State(Generic[*Ts]):
    """One value that belongs to the key of the record being processed.

    Annotate a parameter ``State[int]``, or ``State[str, int]`` to have the record's key decoded
    as ``str`` too. A write counts when the handler returns; when it raises, nothing of it stays.
    Writes go to a changelog topic in the same transaction as outputs and offsets.
    """

    __slots__ = ("_key", "_open", "_store", "_value", "key")

    def __init__(self, store: StateStore, stored_key: bytes, key: object) -> None:
        self._store = store
        self._key = stored_key
        self._value: object = _UNCHANGED
        self._open = True
        self.key: object = key
        """The record's key: bytes, or decoded with the two-part annotation."""

    @overload
    def get(self: State[V]) -> V | None: ...
    @overload
    def get(self: State[V], default: D) -> V | D: ...
    @overload
    def get(self: State[K, V]) -> V | None: ...
    @overload
    def get(self: State[K, V], default: D) -> V | D: ...
    def get(self, default: object = None) -> object:
        """The value, with this handler's own write included; ``default`` when there is none.

        Args:
            default: What to give where there is no value.
        """
        value = self._value
        if value is _UNCHANGED:
            stored = self._store.get(self._key)
            return default if stored is None else self._store.codec.decode(stored)
        if value is None:
            return default
        return self._store.codec.decode(cast(bytes, value))

    @overload
    def set(self: State[V], value: V) -> None: ...
    @overload
    def set(self: State[K, V], value: V) -> None: ...
    def set(self, value: object) -> None:
        """Replace the value. Later changes of a mutable object do not count: set it again.

        Args:
            value: A value of the declared type.
        """
        self._check_open()
        self._value = self._store.codec.encode(value)

    def delete(self) -> None:
        """Remove the value."""
        self._check_open()
        self._value = None

    def _check_open(self) -> None:
        if not self._open:
            raise OutputRefusedError(
                f"state {self._store.name!r} was written after its record was finished; "
                "await the task in the handler"
            )

    def _finish(self, keep: bool) -> None:
        """End of the handler: the write counts, or is dropped."""
        self._open = False
        if keep and self._value is not _UNCHANGED:
            self._store.put(self._key, cast("bytes | None", self._value))


def finish_states(states: Iterator[State[object]] | list[State[object]], keep: bool) -> None:
    """Close the states of a finished record."""
    for state in states:
        state._finish(keep)
