"""Rows into SQLite and PostgreSQL, each record's once: a session with a sink, and a loop by hand.

Prints one JSON line: rows a second of both, and the session's over the loop's; the same of their
CPU time, which a busy machine leaves alone. The loop gives the same guarantee: it reads the stored
offsets, checks owner and epoch in the transaction of its rows, and writes them by ``executemany``
or by ``COPY`` and upsert. Both read by the same consumer, and take turns. With ``--stored`` the
tables hold the rows already, and each row overwrites one.

    python bench/sinks.py --bootstrap 127.0.0.1:9092 --sink sqlite
    python bench/sinks.py --bootstrap 127.0.0.1:9092 --sink postgres --dsn postgresql:///bench
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition
from onceflow.transactions.sinks import Postgres, SinkSession, Sqlite

TABLE = "CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY, item text NOT NULL, size bigint)"
OFFSETS = (
    "CREATE TABLE IF NOT EXISTS hand_offsets (topic text PRIMARY KEY, next_offset bigint,"
    " owner text, epoch bigint)"
)
Commit = Callable[[list[tuple[int, str, int]], int], None]


class Stopwatch:
    """Rows a second, by the clock and by the process's CPU time, from its start."""

    def __init__(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = time.process_time()

    def rates(self, rows: int) -> tuple[float, float]:
        """Rows a second by the clock, and by CPU time."""
        return (
            rows / (time.perf_counter() - self._wall_s),
            rows / (time.process_time() - self._cpu_s),
        )


def fill(args: argparse.Namespace, topic: str) -> None:
    """Write the input."""
    with Admin(bootstrap_servers=args.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    values = [b"item %09d " % number + b"x" * args.bytes for number in range(args.rows)]
    with Producer(bootstrap_servers=args.bootstrap, linger_ms=20) as producer:
        for start in range(0, args.rows, 10_000):
            producer.send_many(topic, values[start : start + 10_000])
        producer.flush()


def by_session(
    args: argparse.Namespace, topic: str, table: str, folder: Path
) -> tuple[float, float]:
    """Rows a second of a session, from the first polled record to the last commit."""
    if args.sink == "sqlite":
        sink: Sqlite | Postgres = Sqlite(folder / "bench.db", table, key=["id"])
    else:
        sink = Postgres(args.dsn, table, key=["id"])
    taken = pending = 0
    watch: Stopwatch | None = None
    with SinkSession(
        sink,
        topics=[topic],
        bootstrap_servers=args.bootstrap,
        group_id=f"bench-{topic}",
    ) as session:
        while taken < args.rows:
            for records in session.poll(1000).values():
                watch = watch or Stopwatch()
                rows = []
                for record in records:
                    text = (record.value or b"").decode()
                    rows.append({"id": record.offset, "item": text, "size": len(text)})
                session.write_many(rows, of=records)
                taken += len(records)
                pending += len(records)
            if pending >= args.commit_rows or taken >= args.rows:
                assert session.commit()
                pending = 0
        assert watch is not None
        return watch.rates(args.rows)


def by_hand(args: argparse.Namespace, topic: str, commit: Commit) -> tuple[float, float]:
    """Rows a second of a loop, from the first polled record to the last commit."""
    rows: list[tuple[int, str, int]] = []
    taken = 0
    watch: Stopwatch | None = None
    with Consumer(
        bootstrap_servers=args.bootstrap,
        isolation_level="read_committed",
        max_poll_records=1_000,
        enable_auto_commit=False,
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)  # as the new owner found it
        while taken < args.rows:
            for records in consumer.poll(1000).values():
                watch = watch or Stopwatch()
                for record in records:
                    text = (record.value or b"").decode()
                    rows.append((record.offset, text, len(text)))
                taken += len(records)
            if len(rows) >= args.commit_rows or taken >= args.rows:
                commit(rows, consumer.position(partition))
                rows = []
        assert watch is not None
        return watch.rates(args.rows)


@contextlib.contextmanager
def sqlite_by_hand(topic: str, table: str, path: Path) -> Iterator[Commit]:
    """What a careful program does in SQLite."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(OFFSETS)
    connection.execute("INSERT INTO hand_offsets VALUES (?, 0, 'me', 1)", (topic,))
    upsert = (
        f"INSERT INTO {table} (id, item, size) VALUES (?, ?, ?) ON CONFLICT (id)"
        " DO UPDATE SET item = excluded.item, size = excluded.size"
    )

    def commit(rows: list[tuple[int, str, int]], upto: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        place = (topic,)
        found = connection.execute("SELECT owner, epoch FROM hand_offsets WHERE topic = ?", place)
        assert found.fetchone() == ("me", 1), "fenced"
        connection.executemany(upsert, rows)
        connection.execute("UPDATE hand_offsets SET next_offset = ? WHERE topic = ?", (upto, topic))
        connection.execute("COMMIT")

    yield commit
    connection.close()


@contextlib.contextmanager
def postgres_by_hand(topic: str, table: str, dsn: str) -> Iterator[Commit]:
    """What a careful program does in PostgreSQL."""
    import psycopg

    connection = psycopg.connect(dsn)
    connection.execute(OFFSETS)
    connection.execute("INSERT INTO hand_offsets VALUES (%s, 0, 'me', 1)", (topic,))
    connection.execute(
        f"CREATE TEMPORARY TABLE stage ON COMMIT DELETE ROWS AS SELECT * FROM {table} WITH NO DATA"
    )
    connection.commit()
    place = "FROM hand_offsets WHERE topic = %s FOR UPDATE"

    def commit(rows: list[tuple[int, str, int]], upto: int) -> None:
        found = connection.execute(f"SELECT owner, epoch {place}", (topic,)).fetchone()
        assert found == ("me", 1), "fenced"
        with connection.cursor() as cursor, cursor.copy("COPY stage FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.execute(
            f"INSERT INTO {table} SELECT DISTINCT ON (id) * FROM stage ORDER BY id, ctid DESC"
            " ON CONFLICT (id) DO UPDATE SET item = EXCLUDED.item, size = EXCLUDED.size"
        )
        connection.execute(
            "UPDATE hand_offsets SET next_offset = %s WHERE topic = %s", (upto, topic)
        )
        connection.commit()

    yield commit
    connection.close()


def make_table(args: argparse.Namespace, table: str, folder: Path) -> None:
    """Make an empty table."""
    if args.sink == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "bench.db")) as database:
            database.execute(TABLE.format(table))
            if args.stored:
                text = f"INSERT INTO {table} VALUES (?, 'before', 0)"
                database.executemany(text, ((number,) for number in range(args.rows)))
                database.commit()
        return
    import psycopg

    with psycopg.connect(args.dsn) as database:
        database.execute(f"DROP TABLE IF EXISTS {table}")
        database.execute(TABLE.format(table))
        if args.stored:
            database.execute(
                f"INSERT INTO {table} SELECT n, 'before', 0 FROM generate_series(0, %s) AS n",
                (args.rows - 1,),
            )


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--sink", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--dsn", default="")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--commit-rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stored", action="store_true")
    args = parser.parse_args()
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    fill(args, topic)
    session: list[tuple[float, float]] = []
    loop: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(args.rounds):
            for table in (f"by_session_{number}", f"by_hand_{number}"):
                make_table(args, table, folder)
            session.append(by_session(args, topic, f"by_session_{number}", folder))
            if args.sink == "sqlite":
                by = sqlite_by_hand(f"{topic}-{number}", f"by_hand_{number}", folder / "bench.db")
            else:
                by = postgres_by_hand(f"{topic}-{number}", f"by_hand_{number}", args.dsn)
            with by as commit:
                loop.append(by_hand(args, topic, commit))
            forget(args, topic, folder)
    by_clock, by_cpu = (
        (statistics.median(each[n] for each in session), statistics.median(e[n] for e in loop))
        for n in range(2)
    )
    print(
        json.dumps(
            {
                "sink": args.sink,
                "session_rows_s": round(by_clock[0]),
                "loop_rows_s": round(by_clock[1]),
                "ratio": round(by_clock[0] / by_clock[1], 2),
                "cpu_ratio": round(by_cpu[0] / by_cpu[1], 2),
                "rounds": args.rounds,
                "rows": args.rows,
                "commit_rows": args.commit_rows,
            }
        )
    )


def forget(args: argparse.Namespace, topic: str, folder: Path) -> None:
    """Let the next round begin at the start of the topic."""
    text = f"DELETE FROM onceflow_offsets WHERE topic = '{topic}'"
    if args.sink == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "bench.db")) as database:
            database.execute(text)
            database.commit()
        return
    import psycopg

    with psycopg.connect(args.dsn) as database:
        database.execute(text)


if __name__ == "__main__":
    main()
