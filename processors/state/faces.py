"""The state objects that a handler gets: one value, a map or a list for the record's key.

An object belongs to one call of the handler. Its writes take effect if the call succeeds; after the
call it refuses writes. A test can make one itself, as ``State(0)`` or ``MapState({"a": 1})``, and
call the handler like any other function.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Generic, TypeVar, TypeVarTuple, cast, overload

from onceflow.processors.errors import OutputRefusedError
from onceflow.processors.state.rows import BoundRows, FaceRows, PlainRows
from onceflow.processors.state.store import ABSENT, Values

Ts = TypeVarTuple("Ts")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


_ATOMS = frozenset({int, float, str, bytes, bool, type(None)})
"""Types whose values cannot be changed in place."""


class _Unchanged:
    """Marks a state that the handler has not written."""


_UNCHANGED = _Unchanged()


def _refusal(what: str) -> OutputRefusedError:
    return OutputRefusedError(
        f"{what} was written after its record was finished; await the task that writes it in the "
        "handler"
    )


class _Value:
    """The attribute ``State.value``; a descriptor, because the type depends on the annotation."""

    @overload
    def __get__(self, state: None, owner: object = None) -> _Value: ...
    @overload
    def __get__(self, state: State[V], owner: object = None) -> V: ...
    @overload
    def __get__(self, state: State[K, V], owner: object = None) -> V: ...
    def __get__(self, state: object, owner: object = None) -> object:
        if state is None:
            return self
        return cast("State[object]", state).get()

    @overload
    def __set__(self, state: State[V], value: V) -> None: ...
    @overload
    def __set__(self, state: State[K, V], value: V) -> None: ...
    def __set__(self, state: object, value: object) -> None:
        cast("State[object]", state).set(value)


class State(Generic[*Ts]):
    """One value for the key of the processed record.

    Annotate a parameter ``State[int]``, or ``State[str, int]`` to get the record's key decoded
    as ``str`` too; ``= State(0)`` as its default is the value of new keys::

        @app.processor("clicks", to="clicks-per-user")
        def count(click: Click, seen: State[int] = State(0)) -> int:
            seen.value += 1
            return seen.value

    Writes take effect when the handler returns, and are dropped when it raises. The worker writes
    them to a changelog topic in the same transaction as outputs and offsets.

    Args:
        initial: The value of keys without one; for a state that a test makes, its value.
    """

    __slots__ = ("_initial", "_kept", "_key", "_open", "_values", "key")

    value: _Value = _Value()
    """The value; ``initial`` for a key without one. Set it again after you change a mutable object:
    changes in place have no effect."""

    @overload
    def __init__(self: State[V], initial: V) -> None: ...
    @overload
    def __init__(self: State[K, V], initial: V) -> None: ...
    @overload
    def __init__(self) -> None: ...
    def __init__(self, initial: object = None) -> None:
        self._values: Values | None = None
        self._key = b""
        self._kept: object = _UNCHANGED
        self._open = True
        self._initial = initial
        self.key: object = None
        """The record's key: bytes, or decoded with the two-part annotation."""

    def _load(self) -> object:
        kept = self._kept
        if kept is not _UNCHANGED:
            return kept
        return ABSENT if self._values is None else self._values.load(self._key)

    @overload
    def get(self: State[V]) -> V | None: ...
    @overload
    def get(self: State[V], default: D) -> V | D: ...
    @overload
    def get(self: State[K, V]) -> V | None: ...
    @overload
    def get(self: State[K, V], default: D) -> V | D: ...
    def get(self, default: object = None) -> object:
        """Return the value, including a write of this call.

        Args:
            default: Returned if the key has no value; None returns ``initial``.
        """
        kept = self._load()
        if kept is ABSENT:
            if default is not None:
                return default
            initial = self._initial
            return initial if type(initial) in _ATOMS else copy.deepcopy(initial)
        return kept if self._values is None else self._values.codec.open(kept)

    @overload
    def set(self: State[V], value: V) -> None: ...
    @overload
    def set(self: State[K, V], value: V) -> None: ...
    def set(self, value: object) -> None:
        """Replace the value. Later changes of a mutable object have no effect: set it again.

        Args:
            value: A value of the declared type.

        Raises:
            StateValueError: The value does not have the declared type.
            OutputRefusedError: The record was finished already (a task was not awaited).
        """
        if not self._open:
            raise self._closed()
        self._kept = value if self._values is None else self._values.codec.keep(value)

    def delete(self) -> None:
        """Remove the value.

        Raises:
            OutputRefusedError: The record was finished already (a task was not awaited).
        """
        if not self._open:
            raise self._closed()
        self._kept = ABSENT

    def _closed(self) -> OutputRefusedError:
        return _refusal("State" if self._values is None else self._values.codec.what)

    def _finish(self, keep: bool) -> None:
        """End the call: apply its write, or drop it."""
        self._open = False
        if keep and self._kept is not _UNCHANGED and self._values is not None:
            self._values.save(self._key, self._kept)

    def __repr__(self) -> str:
        return f"State({cast('State[object]', self).get()!r})"


class BoundState(State[object]):
    """A state object for one call."""

    __slots__ = ()

    def __init__(self, values: Values, stored_key: bytes, key: object, initial: object) -> None:
        self._values = values
        self._key = stored_key
        self._kept = _UNCHANGED
        self._open = True
        self._initial = initial
        self.key = key


class MapState(MutableMapping[K, V]):
    """A map for the key of the processed record, ordered by its keys.

    Annotate a parameter ``MapState[str, int]``. Each entry is stored and logged separately, so that
    a large map costs only the entries that a record reads and writes. Keys are ``int``, ``float``,
    ``str`` or ``bytes``.

    Args:
        initial: Entries of a map that a test makes.
    """

    __slots__ = ("_open", "_rows")

    def __init__(self, initial: Mapping[K, V] | None = None) -> None:
        self._rows: FaceRows = PlainRows(dict(iter((initial or {}).items())))
        self._open = True

    def __getitem__(self, key: K) -> V:
        found = self._rows.get(key)
        if found is ABSENT:
            raise KeyError(key)
        return cast(V, found)

    def __setitem__(self, key: K, value: V) -> None:
        self._check_open()
        self._rows.put(key, value)

    def __delitem__(self, key: K) -> None:
        self._check_open()
        if self._rows.get(key) is ABSENT:
            raise KeyError(key)
        self._rows.delete(key)

    def __contains__(self, key: object) -> bool:
        return self._rows.get(key) is not ABSENT

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.range())

    def __len__(self) -> int:
        return sum(1 for _ in self._rows.range(None, None, reverse=False))

    def range(
        self, start: K | None = None, end: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Yield entries in order of their keys.

        Args:
            start: First key; None means the smallest.
            end: Key to stop before; None means after the largest.
            reverse: From the largest key to the smallest.
        """
        return cast("Iterator[tuple[K, V]]", self._rows.range(start, end, reverse=reverse))

    def clear(self) -> None:
        """Remove all entries."""
        self._check_open()
        for key, _ in list(self._rows.range(None, None, reverse=False)):
            self._rows.delete(key)

    def _check_open(self) -> None:
        if not self._open:
            raise _refusal(self._rows.what)

    def _finish(self, keep: bool) -> None:
        """End of the handler; its writes are in a layer, which the frame keeps or drops."""
        self._open = False

    def __repr__(self) -> str:
        return f"MapState({dict(self.items())!r})"


class ListState(Sequence[V]):
    """A list for the key of the processed record.

    Annotate a parameter ``ListState[int]``. Each element is stored and logged separately, so that
    ``append`` and ``pop_first`` cost the same however long the list is.

    Args:
        initial: Elements of a list that a test makes.
    """

    __slots__ = ("_open", "_rows")

    def __init__(self, initial: Iterable[V] = ()) -> None:
        self._rows: FaceRows = PlainRows(dict(enumerate(initial)))
        self._open = True

    def append(self, value: V) -> None:
        """Add at the end.

        Args:
            value: A value of the declared type.

        Raises:
            StateValueError: The value does not have the declared type.
        """
        self._check_open()
        last = next(self._rows.range(None, None, reverse=True), None)
        self._rows.put(0 if last is None else cast(int, last[0]) + 1, value)

    def extend(self, values: Iterable[V]) -> None:
        """Add several at the end.

        Args:
            values: Values of the declared type.
        """
        for value in values:
            self.append(value)

    def pop_first(self) -> V:
        """Remove and return the first element.

        Raises:
            IndexError: The list is empty.
        """
        self._check_open()
        first = next(self._rows.range(None, None, reverse=False), None)
        if first is None:
            raise IndexError("the list is empty")
        self._rows.delete(first[0])
        return cast(V, first[1])

    def clear(self) -> None:
        """Remove all elements."""
        self._check_open()
        for place, _ in list(self._rows.range(None, None, reverse=False)):
            self._rows.delete(place)

    def __iter__(self) -> Iterator[V]:
        return (cast(V, value) for _, value in self._rows.range(None, None, reverse=False))

    def __reversed__(self) -> Iterator[V]:
        return (cast(V, value) for _, value in self._rows.range(None, None, reverse=True))

    def __len__(self) -> int:
        return sum(1 for _ in self._rows.range(None, None, reverse=False))

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        if isinstance(index, slice):
            return list(self)[index]
        elements = reversed(self) if index < 0 else iter(self)
        for place, value in enumerate(elements):
            if place == (-index - 1 if index < 0 else index):
                return value
        raise IndexError(f"the list has no element {index}")

    def _check_open(self) -> None:
        if not self._open:
            raise _refusal(self._rows.what)

    def _finish(self, keep: bool) -> None:
        """End of the handler; its writes are in a layer, which the frame keeps or drops."""
        self._open = False

    def __repr__(self) -> str:
        return f"ListState({list(self)!r})"


Face = State[object] | MapState[object, object] | ListState[object]
"""A state object of a handler's parameter."""


def bound_map(rows: BoundRows) -> MapState[object, object]:
    """Make a map for one call."""
    face: MapState[object, object] = MapState()
    face._rows = rows
    return face


def bound_list(rows: BoundRows) -> ListState[object]:
    """Make a list for one call."""
    face: ListState[object] = ListState()
    face._rows = rows
    return face
