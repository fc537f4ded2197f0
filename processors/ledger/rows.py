"""Rows of the open unit, collected for a sink.

A row travels like an output: it belongs to the frame of its call, reaches the unit when the record
succeeded, and is cleared with the unit's other outputs. It never becomes bytes, so it has a lane of
its own, from which the ledger of a sink takes it.
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
    """Rows, each beside the record that it was made from.

    Attributes:
        rows: Rows that are not written yet.
        records: The record of each.
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
        """Take a row and its record, in the places of an output's value and key."""
        self.rows.append(cast("Row", value))
        self.records.append(cast("ConsumerRecord", key))

    def take_rows(self) -> tuple[list[Row], list[ConsumerRecord]]:
        """What is collected; the lane is empty then."""
        found = self.rows, self.records
        self.clear()
        return found

    def clear(self) -> None:
        """Forget all."""
        self.rows, self.records = [], []


def row_lane(lanes: Lanes) -> RowLane:
    """The lane of rows, which is made when it is asked for first."""
    found = lanes.lane(LANE)
    return found if isinstance(found, RowLane) else RowLane(lanes)
