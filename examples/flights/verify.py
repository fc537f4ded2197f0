"""Reads what the pipeline published and compares it with the file, flight by flight.

Everything is read as any consumer reads it: committed records only. A lost or repeated flight, a
wrong sum or a gap in a carrier's running count is a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from examples.flights.data import DAILY_DELAYS, DEAD_LETTERS, DEPARTURES, Figures
from onceflow.sdk import Consumer, ConsumerRecord, TopicPartition


def committed_records(bootstrap: str, topic: str) -> Iterator[ConsumerRecord]:
    """Every committed record of a topic, from its beginning to its present end."""
    with Consumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for records in consumer.poll(timeout_ms=500, max_records=10_000).values():
                yield from records


def value_of(record: ConsumerRecord) -> dict[str, Any]:
    """The JSON that a record holds."""
    assert isinstance(record.value, bytes)
    found: dict[str, Any] = json.loads(record.value)
    return found


@dataclass(slots=True)
class Published:
    """What the topics hold.

    Attributes:
        figures: The same figures as those computed from the file.
        count_errors: Departures whose running count (the processor's state) is not the next one.
        by_hour: Flights and minutes of delay by carrier and hour, for the picture.
    """

    figures: Figures
    count_errors: int
    by_hour: dict[tuple[str, int], tuple[int, int]]


def published(bootstrap: str) -> Published:
    """Read all three output topics."""
    figures = Figures()
    counts: dict[tuple[str, str], int] = {}
    by_hour: dict[tuple[str, int], tuple[int, int]] = {}
    count_errors = 0
    for record in committed_records(bootstrap, DEPARTURES):
        flight = value_of(record)
        figures.add_departure(flight["id"])
        place = (flight["carrier"], flight["origin"])
        counts[place] = counts.get(place, 0) + 1
        count_errors += flight["departures"] != counts[place]
        flights, delay = by_hour.get((flight["carrier"], flight["hour"]), (0, 0))
        by_hour[flight["carrier"], flight["hour"]] = (flights + 1, delay + flight["dep_delay"])
    for record in committed_records(bootstrap, DEAD_LETTERS):
        figures.add_dead(value_of(record)["id"])
    for record in committed_records(bootstrap, DAILY_DELAYS):
        day = value_of(record)
        figures.add_daily(day["carrier"], day["date"], day["flights"], day["delay"])
    return Published(figures, count_errors, by_hour)


@dataclass(slots=True)
class Verdict:
    """How the topics differ from the file; all zero when exactly-once held."""

    lost: int
    duplicated: int
    unexpected: int
    count_errors: int
    wrong_days: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.lost or self.duplicated or self.unexpected or self.count_errors or self.wrong_days
        )


def compare(expected: Figures, found: Published) -> Verdict:
    """Compare flight by flight and day by day."""
    lost = duplicated = unexpected = 0
    pairs = (
        (expected.departed, found.figures.departed),
        (expected.dead, found.figures.dead),
    )
    for wanted, seen in pairs:
        lost += sum(row_id not in seen for row_id in wanted)
        unexpected += sum(row_id not in wanted for row_id in seen)
        duplicated += sum(count - 1 for count in seen.values())
    days = {*expected.daily, *found.figures.daily}
    wrong_days = sum(expected.daily.get(d) != found.figures.daily.get(d) for d in days)
    return Verdict(lost, duplicated, unexpected, found.count_errors, wrong_days)
