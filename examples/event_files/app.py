"""Events as files, each event once: JSON lines for people, Parquet for queries.

Two applications, because each commits in the transaction of its own folder.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow

from onceflow.processors import App
from onceflow.transactions.sinks import JsonLines, Parquet

ROOT = Path(os.environ.get("EVENTS", "events"))
SCHEMA = pyarrow.schema(
    [("user", pyarrow.string()), ("page", pyarrow.string()), ("at", pyarrow.timestamp("ms", "UTC"))]
)

for folder in ("lines", "columns"):
    (ROOT / folder).mkdir(parents=True, exist_ok=True)


class Event(msgspec.Struct):
    user: str
    page: str
    at_ms: int


lines = App("event-lines", "localhost:9092", commit_interval_ms=5_000)
columns = App("event-columns", "localhost:9092", commit_interval_ms=5_000)


@lines.sink("events", JsonLines(ROOT / "lines"), dead_letter="events-unreadable")
def line(event: Event) -> Event:
    return event


@columns.sink("events", Parquet(ROOT / "columns", SCHEMA), on_error="skip")
def row(event: Event) -> dict[str, object]:
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    return {"user": event.user, "page": event.page, "at": at}
