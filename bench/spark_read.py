"""Reads through Spark: our source beside Spark's own with read_committed, in one run.

Fills a topic with 100-byte rows in transactions and reads all columns of it by each source in turn
into Spark's ``noop`` sink. Spark's own source reads at its defaults and tuned (larger polls and
fetches). With ``--small`` micro-batches of so many rows are read instead. One JSON line for each.
The jars of Spark's connector come from Maven.

    python bench/spark_read.py --rows 1000000
    python bench/spark_read.py --small 1000 --batches 20
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import spark_stock
import spark_world
from spark_write import WARM_UP_BATCHES, cluster

from onceflow.sdk import Admin, NewTopic, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TUNED = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.fetch.max.bytes": str(64 * 2**20),
}
SOURCES = {
    "stock": ("kafka", {"kafka.isolation.level": "read_committed"}),
    "stock-tuned": ("kafka", {"kafka.isolation.level": "read_committed", **TUNED}),
    "onceflow": ("onceflow", {}),
}


def fill(servers: str, topic: str, rows: int, partitions: int) -> None:
    """Make a topic, with rows in transactions."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])
    with Producer(
        bootstrap_servers=servers, transactional_id=topic, batch_size=262_144, linger_ms=20
    ) as producer:
        for start in range(0, rows, 50_000):
            numbers = range(start, min(start + 50_000, rows))
            producer.begin_transaction()
            producer.send_many(
                topic, [b"%0100d" % n for n in numbers], [b"key-%d" % (n % 1000) for n in numbers]
            )
            producer.commit_transaction()


def read_all(spark: SparkSession, source: str, given: dict[str, str], rows: int) -> dict[str, int]:
    """Read the whole topic once."""
    name, options = SOURCES[source]
    frame = spark.read.format(name).options(**given, **options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"rows": rows, "rows_per_s": round(rows / (time.perf_counter() - began))}


def read_small(
    spark: SparkSession, source: str, given: dict[str, str], rows: int
) -> dict[str, float]:
    """Read the topic in micro-batches."""
    name, options = SOURCES[source]
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows)}
    frame = spark.readStream.format(name).options(**given, **options, **limit).load()
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    progress = [p["durationMs"] for p in query.recentProgress if p["numInputRows"]]
    took = [each["triggerExecution"] for each in progress[WARM_UP_BATCHES:]]
    return {"rows_per_batch": rows, "trigger_p50_ms": statistics.median(took)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="brokers; by default one in this process")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=0, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=20, help="how many small ones")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3, help="of each source, in turn")
    parser.add_argument("--sources", default=",".join(SOURCES))
    args = parser.parse_args()
    if args.small:
        args.rows = args.small * (args.batches + WARM_UP_BATCHES)
    settings = {"spark.jars": ",".join(spark_stock.jars())}
    with cluster(args) as servers, spark_world.spark_session(settings) as spark:
        topic = f"bench-read-{int(time.time())}"
        fill(servers, topic, args.rows, args.partitions)
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        for run in range(args.runs):
            for source in args.sources.split(","):
                found: dict[str, float] = {}
                if args.small:
                    found |= read_small(spark, source, given, args.small)
                else:
                    found |= read_all(spark, source, given, args.rows)
                load = {"load": round(os.getloadavg()[0], 1)}
                print(json.dumps({"run": run, "source": source, **found, **load}), flush=True)


if __name__ == "__main__":
    main()
