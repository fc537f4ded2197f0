"""Runs functions whose results are rows of a sink (``@app.sink``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from onceflow.processors.context import Output
from onceflow.processors.errors import UndeliverableOutputError
from onceflow.processors.frame import Encoded, Frame, Item
from onceflow.processors.graph.nodes import BatchStoringNode, StoringNode, WorkingNode
from onceflow.processors.lanes import Lanes
from onceflow.processors.ledger.rows import Row, RowLane, row_lane
from onceflow.processors.nodes.base import Surroundings
from onceflow.processors.nodes.batch import BatchWork
from onceflow.processors.nodes.function import FunctionWork
from onceflow.processors.nodes.results import Results
from onceflow.processors.unit import Unit
from onceflow.sdk.model.consumer_record import ConsumerRecord


def as_row(name: str, value: object) -> Row:
    """Return a result as values by column name.

    Raises:
        UndeliverableOutputError: It is not a row.
    """
    if isinstance(value, Mapping):
        return cast("Row", value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise UndeliverableOutputError(
        f"{name} returned {type(value).__name__}: a row of a sink is a dictionary by column name, "
        "a dataclass or a msgspec.Struct"
    )


class RowResults(Results):
    """Puts rows into frames.

    Args:
        node: The function.
        lanes: Where outputs of the unit are collected.
        record_bytes_max: Not used, as rows are not sent to Kafka.
    """

    __slots__ = ("rows",)

    def __init__(self, node: WorkingNode, lanes: Lanes, record_bytes_max: int) -> None:
        super().__init__(node, lanes, feeds=False, record_bytes_max=record_bytes_max)
        self.rows: RowLane = row_lane(lanes)

    def put_all(self, records: Sequence[ConsumerRecord], rows: Sequence[object]) -> bool:
        """Put one row for each record straight into the unit; see ``Results.put_all``."""
        if not set(map(type, rows)) <= {dict, type(None)}:
            return False
        given = [
            (cast("Row", row), r) for row, r in zip(rows, records, strict=True) if row is not None
        ]
        self.rows.rows += [row for row, _ in given]
        self.rows.records += [record for _, record in given]
        return True

    def _add_plain(self, frame: Frame, value: object) -> None:
        row, record = as_row(self._name, value), frame.record
        frame.outputs.append(cast("Encoded", (self.rows, row, record, 0, (), None)))

    def _add_output(self, frame: Frame, output: Output) -> None:
        self._encode_output(frame.item, output)

    def _encode_output(self, item: Item, output: Output) -> Encoded:
        raise UndeliverableOutputError(
            f"{self._name} writes rows to a sink and gave an Output: a sink and a topic share no "
            "transaction; write the topic in another application, or use TwoPhaseSession"
        )


class StoringWork(FunctionWork):
    """Runs one function whose results are rows.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
    """

    def __init__(self, node: StoringNode, around: Surroundings) -> None:
        super().__init__(node, around)
        self._stored = RowResults(node, around.lanes, around.record_bytes_max)
        self._results = self._stored

    def _run_plain(
        self, records: Sequence[ConsumerRecord], start: int, stop: int, unit: Unit
    ) -> tuple[int, Exception | None]:
        form, clock, lane = self._slices, unit.clock, self._stored.rows
        assert form is not None
        decode, function = form.decode, self._function
        index = start
        try:
            for index in range(start, stop):
                record = records[index]
                result = function(decode(record.value))
                if type(result) is dict:
                    lane.rows.append(result)
                    lane.records.append(record)
                elif result is not None:
                    frame = Frame(record, record)
                    self._stored.put(frame, result)
                    frame.keep()
                if clock() >= unit.due_s:
                    return index + 1, None
        except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
            return index, error
        return stop, None


class BatchStoringWork(BatchWork):
    """Runs one function over many records whose results are rows.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
    """

    def __init__(self, node: BatchStoringNode, around: Surroundings) -> None:
        super().__init__(node, around)
        self._results = RowResults(node, around.lanes, around.record_bytes_max)
