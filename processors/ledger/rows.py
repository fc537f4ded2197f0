"""Rows of the open unit, collected for a sink.

A row goes the way of an output: it is in the frame of its call, reaches the unit when the record
has succeeded, and is dropped with the unit's other outputs. It is never encoded as bytes, so rows
have their own lane, from which the sink's ledger takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from onceflow.processors.lanes import Lane, Lanes
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers

LANE = "rows of a sink"
"""Name of the lane; no topic can have it."""

Row = Mapping[str, object]


class RowLane(Lane):
    """Rows, with the record that each was made from.

    Attributes:
        rows: Rows that are not written yet.
        records: The record of each row.
    """

    __slots__ = ("records", "rows")

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(LANE, lambda: 0.0)
        self.rows: list[Row] = []
        self.records: list[ConsumerRecord] = []
        lanes.keep(self)

    def add(
        self,
        value: object,
        key: object,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Add a row and its record, given as an output's value and key."""
        self.rows.append(cast("Row", value))
        self.records.append(cast("ConsumerRecord", key))

    def take_rows(self) -> tuple[list[Row], list[ConsumerRecord]]:
        """Remove and return the rows and their records."""
        found = self.rows, self.records
        self.clear()
        return found

    def clear(self) -> None:
        """Drop all rows."""
        self.rows, self.records = [], []


def row_lane(lanes: Lanes) -> RowLane:
    """Return the lane of rows, which the first call makes."""
    found = lanes.lane(LANE)
    return found if isinstance(found, RowLane) else RowLane(lanes)
