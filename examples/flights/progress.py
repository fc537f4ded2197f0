"""How far each stage is, asked from the broker as any admin tool would ask.

Positions are offsets, which count transaction markers too; they are turned into shares of the
flights, and the end is reached when every position equals the log's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.flights.daily import GROUP as DAILY_GROUP
from examples.flights.data import DEPARTURES, FLIGHTS, PARTITIONS
from examples.flights.feed import GROUP as FEED_GROUP
from examples.flights.feed import POSITION
from onceflow.sdk import Admin, IsolationLevel, TopicPartition

APP_GROUP = "flights"


@dataclass(frozen=True, slots=True)
class Progress:
    """Flights through each stage, and whether all is done."""

    fed: int
    processed: int
    aggregated: int
    complete: bool


def _share(admin: Admin, group: str, topic: str) -> tuple[int, int]:
    """Sum of a group's committed offsets, and of the ends that read_committed shows."""
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    stored = admin.list_group_offsets(group)
    ends = admin.list_offsets(
        dict.fromkeys(partitions, "latest"), isolation_level=IsolationLevel.READ_COMMITTED
    )
    done = sum(stored[tp].offset for tp in partitions if tp in stored)
    return done, sum(ends[tp].offset for tp in partitions)


def ask(admin: Admin, rows: int) -> Progress:
    """Ask for all stages at once."""
    feed = admin.list_group_offsets(FEED_GROUP)
    fed = feed[POSITION].offset if POSITION in feed else 0
    read, written = _share(admin, APP_GROUP, FLIGHTS)
    processed = fed * read // written if written else 0
    summed, departed = _share(admin, DAILY_GROUP, DEPARTURES)
    aggregated = processed * summed // departed if departed else 0
    complete = fed >= rows and read == written and summed == departed and departed > 0
    return Progress(fed, processed, aggregated, complete)
