"""What two-phase commit adds to a commit: a session with PostgreSQL beside one of Kafka alone.

Prints one JSON line: p50 and p99 of ``commit()`` in milliseconds, each commit with one record, one
output and one row; the median that is added; and how many statements the database answers within
``commit()`` (PREPARE TRANSACTION and COMMIT PREPARED, a round trip each). The sessions take turns.

    python bench/two_phase.py --bootstrap 127.0.0.1:9092 --dsn postgresql:///bench
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg

from onceflow.sdk import Admin, NewTopic, Producer
from onceflow.transactions import TransactionSession
from onceflow.transactions.two_phase import TwoPhaseSession


def settings(args: argparse.Namespace, topic: str) -> dict[str, object]:
    return {"topics": [topic], "bootstrap_servers": args.bootstrap, "group_id": topic}


def take(poll: Callable[..., dict[object, list[object]]]) -> object:
    """One record."""
    while True:
        for records in poll(1_000, 1).values():
            return records[0]


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the statements that are answered, of all connections."""
    count, execute = [0], psycopg.Connection.execute

    def counting(self: object, *arguments: object, **options: object) -> object:
        count[0] += 1
        return execute(self, *arguments, **options)  # type: ignore[arg-type]

    psycopg.Connection.execute = counting  # type: ignore[assignment,method-assign]
    try:
        yield count
    finally:
        psycopg.Connection.execute = execute  # type: ignore[method-assign]


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--commits", type=int, default=200)
    args = parser.parse_args()
    run = uuid.uuid4().hex[:8]
    topics = [f"plain-{run}", f"both-{run}"]
    with Admin(bootstrap_servers=args.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in (*topics, f"out-{run}")])
    with Producer(bootstrap_servers=args.bootstrap) as producer:
        for topic in topics:
            producer.send_many(topic, [b"%d" % number for number in range(args.commits)])
        producer.flush()
    with psycopg.connect(args.dsn) as database:
        database.execute(f"CREATE TABLE rows_{run} (id bigint PRIMARY KEY)")
    took: dict[str, list[float]] = {"plain": [], "both": []}
    with (
        TransactionSession(**settings(args, topics[0])) as plain,  # type: ignore[arg-type]
        TwoPhaseSession(args.dsn, **settings(args, topics[1])) as both,  # type: ignore[arg-type]
        counted() as statements,
    ):
        answered = 0
        for number in range(args.commits):
            record = take(plain.poll)  # type: ignore[arg-type]
            plain.send(f"out-{run}", record.value)  # type: ignore[attr-defined]
            begun = time.perf_counter()
            assert plain.commit()
            took["plain"].append(time.perf_counter() - begun)
            record = take(both.poll)  # type: ignore[arg-type]
            both.connection.execute(f"INSERT INTO rows_{run} VALUES ({number})")
            both.send(f"out-{run}", record.value)  # type: ignore[attr-defined]
            before, begun = statements[0], time.perf_counter()
            assert both.commit()
            took["both"].append(time.perf_counter() - begun)
            answered = max(answered, statements[0] - before)
    with psycopg.connect(args.dsn) as database:
        database.execute(f"DROP TABLE rows_{run}")
    shown: dict[str, object] = {}
    for name, seconds in took.items():
        cuts = statistics.quantiles(seconds, n=100)
        shown[f"{name}_p50_ms"] = round(1_000 * cuts[49], 2)
        shown[f"{name}_p99_ms"] = round(1_000 * cuts[98], 2)
    added = statistics.median(took["both"]) - statistics.median(took["plain"])
    shown |= {
        "added_p50_ms": round(1_000 * added, 2),
        "round_trips": answered,
        "commits": args.commits,
    }
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
