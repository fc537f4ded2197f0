"""Streaming writes through Spark: ours beside Spark's own at-least-once sink, in one run.

Copies a topic of 100-byte rows to another one, by each sink in turn, and prints one JSON line for
each: rows a second of one large micro-batch, or times of many small ones. Spark's connector reads
for all of them, so that only writing differs. Its jars come from Maven.

    python bench/spark_write.py --rows 300000
    python bench/spark_write.py --small 1000 --batches 20
    python bench/spark_write.py --bootstrap 127.0.0.1:9092 --sinks stock,foreach_batch
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import spark_stock
import spark_world

from onceflow.sdk import Admin, NewTopic, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SINKS = (
    "stock", "foreach_batch", "keyless-stock", "keyless", "sink", "sink-rows", "sink-one-task",
    "sink-no-route", "topic-column"
)  # fmt: skip
"""``sink`` routes finished batches and ``sink-rows`` rows. ``sink-one-task`` has one task and
``sink-no-route`` those of the source, which works for small batches."""
WARM_UP_BATCHES = 3


@contextlib.contextmanager
def cluster(args: argparse.Namespace) -> Iterator[str]:
    """The broker that was named, or one in this process."""
    if args.bootstrap:
        yield args.bootstrap
        return
    from onceflow.broker_lite import Broker

    with Broker() as broker:
        yield broker.bootstrap_servers


def fill(servers: str, topic: str, rows: int, partitions: int, others: int) -> None:
    """Make the source topic, and further ones that nobody reads."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics(
            [NewTopic(topic, partitions, 1)]
            + [NewTopic(f"{topic}-other-{number}", 1, 1) for number in range(others)]
        )
    with Producer(bootstrap_servers=servers, batch_size=262_144, linger_ms=20) as producer:
        for start in range(0, rows, 10_000):
            numbers = range(start, min(start + 10_000, rows))
            producer.send_many(
                topic, [b"%0100d" % n for n in numbers], [b"key-%d" % (n % 1000) for n in numbers]
            )


def copying(
    spark: SparkSession, servers: str, source: str, target: str, sink: str, folder: str, limit: int
) -> DataStreamWriter:
    """A query that copies with one sink."""
    from onceflow.spark_integration import foreach_batch, partition_counts, route

    given = {"kafka.bootstrap.servers": servers}
    reading = {**given, "subscribe": source, "startingOffsets": "earliest"}
    if limit:
        reading["maxOffsetsPerTrigger"] = str(limit)
    rows: DataFrame = spark.readStream.format("kafka").options(**reading).load()
    rows = rows.select(*(["value"] if "keyless" in sink else ["key", "value"]))
    options = {**given, "topic": target, "checkpointLocation": folder}
    if "stock" in sink:
        return rows.writeStream.format("kafka").options(**options)
    if sink in ("sink-one-task", "sink-no-route"):
        few = rows.coalesce(1) if sink == "sink-one-task" else rows
        return few.writeStream.format("onceflow").options(**options)
    if sink in ("sink", "sink-rows"):
        encoding = options if sink == "sink" else None
        counts = partition_counts(given, [target])
        routed = route(rows, counts, topic=target, options=encoding)
        return routed.writeStream.format("onceflow").options(**options)
    if sink == "topic-column":
        del options["topic"]
        rows = rows.selectExpr("key", "value", f"'{target}' AS topic")
    return rows.writeStream.foreachBatch(foreach_batch(**options)).option(
        "checkpointLocation", folder
    )


def measure(
    spark: SparkSession, servers: str, args: argparse.Namespace, source: str, sink: str, run: int
) -> dict[str, object]:
    """Run one query and look at its progress."""
    target = f"{source}-{sink}-{run}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(target, args.partitions, 1)])
    with tempfile.TemporaryDirectory() as folder:
        writer = copying(spark, servers, source, target, sink, f"{folder}/c", args.small)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
    took = [p["durationMs"]["addBatch"] for p in query.recentProgress if p["numInputRows"]]
    if args.small:
        kept = took[WARM_UP_BATCHES:]
        whole = [
            p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]
        ][WARM_UP_BATCHES:]
        return {
            "sink": sink,
            "rows_per_batch": args.small,
            "batches": len(kept),
            "add_batch_p50_ms": statistics.median(kept),
            "trigger_p50_ms": statistics.median(whole),
        }
    return {
        "sink": sink,
        "rows": args.rows,
        "rows_per_s": round(args.rows / (sum(took) / 1000)),
        "seconds_with_start": round(seconds, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="brokers; by default one in this process")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--small", type=int, default=0, help="rows of a micro-batch; 0: one batch")
    parser.add_argument("--batches", type=int, default=20, help="how many small ones")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--other-topics", type=int, default=0, help="topics that nobody reads")
    parser.add_argument("--runs", type=int, default=2, help="of each sink, in turn")
    parser.add_argument("--sinks", default=",".join(SINKS[:4]))
    args = parser.parse_args()
    if args.small:
        args.rows = args.small * (args.batches + WARM_UP_BATCHES)
    settings = {"spark.jars": ",".join(spark_stock.jars())}
    with cluster(args) as servers, spark_world.spark_session(settings) as spark:
        source = f"bench-{int(time.time())}"
        fill(servers, source, args.rows, args.partitions, args.other_topics)
        for run in range(args.runs):
            for sink in args.sinks.split(","):
                found = measure(spark, servers, args, source, sink, run)
                print(json.dumps({"run": run, **found}), flush=True)


if __name__ == "__main__":
    main()
