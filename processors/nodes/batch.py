"""Runs functions over many records (``batch=``): one call for a run of records, all or nothing.

A run whose call fails is halved until the record at fault is alone; the policy applies to that one,
and the others are processed. So the function may get records again, as after each abort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from onceflow.processors.batches import Field, Form, Part
from onceflow.processors.declare.signatures import lookup_of
from onceflow.processors.errors import ProcessingError
from onceflow.processors.frame import Frame
from onceflow.processors.graph.nodes import BatchNode
from onceflow.processors.nodes.arrow import to_array, to_record_batch, to_rows
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.nodes.lookups import make_lookup
from onceflow.processors.nodes.results import Results
from onceflow.processors.unit import Unit
from onceflow.processors.values import Format
from onceflow.sdk.model.consumer_record import ConsumerRecord

Bytes = bytes | None
Fill = Callable[[Sequence[ConsumerRecord]], object]


class BatchWork:
    """Runs one batch function.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
    """

    is_async = False
    takes_slices = True

    def __init__(self, node: BatchNode, around: Surroundings) -> None:
        self.name: str = node.name
        dead = node.policy.dead_letter_topic
        letters = None if dead is None else around.lanes.declared(dead)
        self.failures: Failures = Failures(node.name, node.policy, letters, around.clock)
        self._function = node.function
        self._size = node.size
        self._results: Results = Results(
            node, around.lanes, feeds=False, record_bytes_max=around.record_bytes_max
        )
        self._fills = [
            _fill(part, node.format, node.name) for part in node.parts if part.argument is None
        ]
        self._finds = [
            (index, make_lookup(node.name, part.argument, around))
            for index, part in enumerate(node.parts)
            if part.argument is not None
        ]
        fields = [part.field for part in node.parts if part.argument is None]
        by_value = any(
            part.argument is not None and lookup_of(part.argument.annotation) for part in node.parts
        )
        self._value_at = fields.index(Field.VALUE) if by_value else None

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process one record by itself."""
        rows = self._rows([frame.record], stores, frame)
        if rows is not None:
            self._results.put(frame, rows[0])

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """As ``call``."""
        self.call(frame, stores)

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Process records straight into the unit; see ``WorkNode.run_slice``."""
        index, error = start, None
        while index < stop and error is None:
            before = index
            index, error = self._run(records, index, min(stop, index + self._size), stores)
            if self.failures.counts and index > before:
                self.failures.good(records[before].partition, index - before)
            if unit.clock() >= unit.due_s:
                break
        return index, error

    def _run(
        self, records: Sequence[ConsumerRecord], start: int, stop: int, stores: Stores
    ) -> tuple[int, Exception | None]:
        """Process a run, and halve it if it fails; return as ``run_slice``."""
        try:
            self._take(records[start:stop], stores)
        except ProcessingError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            if stop - start == 1:
                return start, error
            middle = (start + stop) // 2
            done, found = self._run(records, start, middle, stores)
            if found is not None:
                return done, found
            return self._run(records, middle, stop, stores)
        return stop, None

    def _take(self, records: Sequence[ConsumerRecord], stores: Stores) -> None:
        """Make one call, and put its results into the unit when all of them are encoded."""
        rows = self._rows(records, stores)
        if rows is None or self._results.put_all(records, rows):
            return
        frames = [Frame(record, record) for record in records]
        for frame, row in zip(frames, rows, strict=True):
            self._results.put(frame, row)
        for frame in frames:
            frame.keep()

    def _arguments(
        self, records: Sequence[ConsumerRecord], stores: Stores, frame: Frame | None
    ) -> list[object]:
        """Return the arguments; rows of tables are looked up for each record."""
        filled = [fill(records) for fill in self._fills]
        if self._finds:
            frames = [Frame(record, record) for record in records] if frame is None else [frame]
            values = [None] * len(records) if self._value_at is None else filled[self._value_at]
            pairs = list(zip(frames, cast("Sequence[object]", values), strict=True))
            for index, find in self._finds:
                filled.insert(index, [find(each, stores, value) for each, value in pairs])
        return filled

    def _rows(
        self, records: Sequence[ConsumerRecord], stores: Stores, frame: Frame | None = None
    ) -> Sequence[object] | None:
        """Call the function; return its result for each record, or None for no output at all."""
        result = self._function(*self._arguments(records, stores, frame))
        if result is None:
            return None
        rows: Sequence[object] | None = to_rows(result)
        if rows is None:
            rows = list(result) if isinstance(result, list | tuple | Iterator) else [result]
        if len(rows) != len(records):
            first = records[0]
            # This must not count as a failure of records: halves down to one record would pass, and
            # a function that aggregates would give wrong results without an error.
            raise ProcessingError(
                f"{self.name} gave {len(rows)} results for {len(records)} records from "
                f"{first.topic}-{first.partition}@{first.offset} on; a batch function gives one "
                "for each record (None for no output), or None for all",
                first.topic,
                first.partition,
                first.offset,
                1,
            )
        return rows


def _fill(part: Part, format: Format, name: str) -> Fill:
    """Make the function that fills one parameter."""
    if part.field is Field.HEADERS:
        return lambda records: [record.headers for record in records]
    is_key = part.field is Field.KEY

    def data(records: Sequence[ConsumerRecord]) -> list[Bytes]:
        return [record.key if is_key else record.value for record in records]

    if part.form is Form.ARRAY:
        return lambda records: to_array(data(records))
    if part.form is Form.RECORD_BATCH:
        return lambda records: to_record_batch(data(records), format, part.schema, name)
    decode = part.decode
    assert decode is not None
    return lambda records: list(map(decode, data(records)))
