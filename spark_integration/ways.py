"""Which way a micro-batch is written: by the driver if it is expected to be small, or by tasks.

Pure arithmetic. A batch is expected to make of its offsets what the batch before made of its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

DRIVER_BYTES_MAX: Final = 8 * 2**20
"""Most bytes that a batch is expected to have where the driver collects its rows."""


class Way(enum.Enum):
    """Who encodes and sends the rows of a micro-batch."""

    DRIVER = "the driver collects rows, encodes and sends them"
    BOUNDED = "tasks encode rows, each up to a limit, and the driver sends them"
    TASKS = "tasks encode and send"


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """What a batch turned out to be.

    Attributes:
        offsets: Offsets that it read, None where sources do not tell.
        rows: Rows that it wrote.
        bytes: Size of them.
    """

    offsets: int | None
    rows: int
    bytes: int


def way_of(offsets: int | None, seen: SeenBatch | None, rows_max: int) -> Way:
    """Choose the way of a batch.

    Args:
        offsets: Offsets that it reads, None where sources do not tell.
        seen: The batch before, None for the first one.
        rows_max: Most rows that the driver sends; 0 for none.
    """
    if rows_max == 0:
        return Way.TASKS
    if offsets is None:
        return Way.BOUNDED if seen is not None and seen.rows <= rows_max else Way.TASKS
    if seen is None or not seen.offsets:
        return Way.BOUNDED if offsets <= rows_max else Way.TASKS
    if offsets * max(seen.rows, 1) > rows_max * seen.offsets:
        return Way.TASKS
    expected_bytes = offsets * seen.bytes // seen.offsets
    if not seen.rows or expected_bytes > DRIVER_BYTES_MAX:
        return Way.BOUNDED
    return Way.DRIVER
