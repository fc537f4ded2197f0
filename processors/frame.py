"""Frames: the effects of one call of user code, until the call has succeeded.

A frame holds outputs, state writes and results for other functions. When the call has returned and
everything is encoded, the frame is merged into the layer below; when the call fails, it is dropped.
If several calls belong to one record (functions that read the same topic, or each other's results),
their frames lie on a frame of the record. That one reaches the unit only when all calls are done,
so that a commit never covers half a record.

Each call has its own frame, so that calls may overlap. Records reach the unit in their order. The
frame of a finished record may wait for earlier records; a later record of the same key then reads
on top of it (``after``).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, cast

from onceflow.processors.context import Context
from onceflow.processors.lanes import Lane
from onceflow.processors.state.faces import Face
from onceflow.processors.state.store import Layer, Rows, Store, ValueLayer, Values, ValueStore
from onceflow.processors.state.timed import set_stream_time, stream_time_ms
from onceflow.processors.timers import Timers
from onceflow.processors.windows import Window
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers

Encoded: TypeAlias = "tuple[Lane, bytes | None, bytes | None, int, Headers, int | None]"
"""An output: lane, value, key, timestamp, headers, partition."""


class Item(Protocol):
    """The input of a call: a record of a topic, or a result of another function."""

    @property
    def value(self) -> object: ...
    @property
    def key(self) -> object: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


class Result:
    """A result of a function for another function, without a topic in between.

    Attributes:
        value: The value itself.
        key: The key as bytes.
        timestamp_ms: Its time.
        headers: Its headers.
        window: The window whose result it is, or None.
    """

    __slots__ = ("headers", "key", "timestamp_ms", "value", "window")

    def __init__(
        self,
        value: object,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        window: Window | None = None,
    ) -> None:
        self.value: object = value
        self.key: bytes | None = key
        self.timestamp_ms: int = timestamp_ms
        self.headers: Headers = headers
        self.window: Window | None = window


class Change(Result):
    """A change of a table, for a join.

    Attributes:
        table: Name of the table.
        existed: Whether the key had a row before.
    """

    __slots__ = ("existed", "table")

    def __init__(
        self, value: object, key: bytes, timestamp_ms: int, table: str, existed: bool
    ) -> None:
        super().__init__(value, key, timestamp_ms)
        self.table: str = table
        self.existed: bool = existed


class Due:
    """A row that is due: the input of a call that no record caused.

    Attributes:
        row: Its key in the store.
        key: The record key that it belongs to.
        timestamp_ms: Its time.
        value: None; the call reads the row.
        headers: Empty.
        record: A record that stands for the row, such as in a ``Context``.
        attempt: Attempts so far.

    Args:
        store: Its store.
        now_ms: Stream time when it was found due.
    """

    __slots__ = (
        "_now_ms",
        "_store",
        "attempt",
        "headers",
        "key",
        "record",
        "row",
        "timestamp_ms",
        "value",
    )

    def __init__(
        self,
        store: Store,
        now_ms: int,
        row: bytes,
        key: bytes,
        timestamp_ms: int,
        record: ConsumerRecord,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self.row: bytes = row
        self.key: bytes = key
        self.timestamp_ms: int = timestamp_ms
        self.value: object = None
        self.headers: Headers = ()
        self.record: ConsumerRecord = record
        self.attempt: int = 0

    @property
    def store(self) -> str:
        """Name of the store that it lies in."""
        return self._store.name

    def forget(self, frame: Frame) -> None:
        """Delete the row, and keep the stream time that made it due, also if that was by
        silence."""
        rows = frame.rows(self._store)
        rows.put(self.row, None)
        if self._now_ms > stream_time_ms(rows):
            set_stream_time(rows, self._now_ms)


class Frame:
    """The effects of one call, or of all calls of one record.

    Args:
        record: The record that it belongs to.
        item: The input of the call.
        attempt: 1 for the first attempt.
        below: The frame of the record, or None for a call that reaches the unit at once.
        after: For the frame of a record: the frame of the previous record of the same key, while
            that one has not reached the unit.

    Attributes:
        record: The record that it belongs to.
        item: The input of the call.
        attempt: 1 for the first attempt.
        context: The handler's context, if it has a parameter for it.
        faces: The handler's states.
        outputs: Outputs of the call, encoded.
        results: Results for other functions.
    """

    __slots__ = (
        "_after",
        "_below",
        "_layers",
        "attempt",
        "context",
        "faces",
        "item",
        "outputs",
        "record",
        "results",
    )

    def __init__(
        self,
        record: ConsumerRecord,
        item: Item,
        attempt: int = 1,
        below: Frame | None = None,
        after: Frame | None = None,
    ) -> None:
        self.record: ConsumerRecord = record
        self.item: Item = item
        self.attempt: int = attempt
        self.context: Context | None = None
        self.faces: list[Face | Timers] = []
        self.outputs: list[Encoded] = []
        self.results: list[Result] = []
        self._below = below
        self._after = after
        self._layers: dict[Store, Layer | ValueLayer] | None = None

    # States --------------------------------------------------------------------------------

    def values(self, store: ValueStore) -> Values:
        """Return the layer that a state by key reads, and writes when the call is kept: that of the
        record's frame, or the store. Until then the face holds the value that its call sets."""
        return store if self._below is None else self._below._value_layer(store)

    def rows(self, store: Store) -> Rows:
        """Return this call's layer of a store."""
        layers = self._all_layers()
        layer = layers.get(store)
        if layer is None:
            below = self._earlier(store) if self._below is None else self._below.rows(store)
            layer = layers[store] = Layer(cast(Rows, below))
        return cast(Layer, layer)

    def _value_layer(self, store: ValueStore) -> ValueLayer:
        layers = self._all_layers()
        layer = layers.get(store)
        if layer is None:
            layer = layers[store] = ValueLayer(cast(Values, self._earlier(store)))
        return cast(ValueLayer, layer)

    def _earlier(self, store: Store) -> Store | Layer | ValueLayer:
        """Return the layer of the previous record of the key, or the store."""
        frame = self._after
        while frame is not None:
            layer = None if frame._layers is None else frame._layers.get(store)
            if layer is not None:
                return layer
            frame = frame._after
        return store

    def _all_layers(self) -> dict[Store, Layer | ValueLayer]:
        if self._layers is None:
            self._layers = {}
        return self._layers

    # The end -------------------------------------------------------------------------------

    def keep(self) -> None:
        """Merge everything into the record's frame, or the unit, as the call has succeeded."""
        for face in self.faces:
            face._finish(True)
        if self._layers is not None:
            for store, layer in self._layers.items():
                if self._after is not None:
                    # The earlier frames are in the unit: without this, references to them pile up.
                    layer.lies_on(store)
                layer.merge()
        self._after = None
        if self._below is not None:
            self._below.outputs += self.outputs
        else:
            for lane, value, key, timestamp_ms, headers, partition in self.outputs:
                lane.add(value, key, timestamp_ms, headers, partition)

    def drop(self) -> None:
        """Drop everything, as the call has failed, and refuse writes of its stray tasks."""
        for face in self.faces:
            face._finish(False)
        if self.context is not None:
            self.context._finish()
