"""Streams the flights into the topic ``flights``, in transactions that carry their own position.

Each transaction holds some hundred flights and, as a committed offset of the group
``flights-feed``, the number of the next row. Whatever happens, a restart goes on where the last
transaction that took place ended.

Run as: python -m examples.flights.feed BOOTSTRAP ROWS SECONDS
"""

from __future__ import annotations

import itertools
import sys
import time

from examples.flights.data import FLIGHTS, flight_record, flight_rows
from onceflow.sdk import (
    Admin,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import KafkaError

GROUP = "flights-feed"
POSITION = TopicPartition(FLIGHTS, 0)
ROWS_PER_TRANSACTION = 400
RESTARTS_MAX = 50


def next_row(bootstrap: str) -> int:
    """The row after the last one that was published."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        stored = admin.list_group_offsets(GROUP, require_stable=True)
    return stored[POSITION].offset if POSITION in stored else 0


def feed(bootstrap: str, rows: int, per_second: float) -> None:
    """Publish the rows that are missing, at a given pace."""
    with Producer(
        bootstrap_servers=bootstrap,
        transactional_id=GROUP,
        transaction_timeout_ms=30_000,
        delivery_timeout_ms=25_000,
        request_timeout_ms=10_000,
    ) as producer:
        producer.init_transactions()
        first = next_row(bootstrap)
        started_at, sent = time.monotonic(), 0
        remaining = itertools.islice(enumerate(flight_rows()), first, rows)
        while chunk := list(itertools.islice(remaining, ROWS_PER_TRANSACTION)):
            with producer.transaction():
                for row_id, row in chunk:
                    key, value = flight_record(row_id, row)
                    producer.send(FLIGHTS, value, key=key)
                producer.send_offsets_to_transaction(
                    {POSITION: OffsetAndMetadata(chunk[-1][0] + 1)}, ConsumerGroupMetadata(GROUP)
                )
            sent += len(chunk)
            ahead = sent / per_second - (time.monotonic() - started_at)
            if ahead > 0:
                time.sleep(ahead)


def main() -> None:
    """Feed until every row is published, over errors and lost answers."""
    bootstrap, rows, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    for attempt in range(RESTARTS_MAX):
        try:
            return feed(bootstrap, rows, rows / seconds)
        except KafkaError as error:
            print(f"feed: attempt {attempt + 1}: {error!r}; going on", file=sys.stderr, flush=True)
            time.sleep(0.5)
    sys.exit(f"feed: gave up after {RESTARTS_MAX} attempts")


if __name__ == "__main__":
    main()
