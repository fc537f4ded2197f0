"""Spark: delay per carrier and day, from ``departures`` to ``daily_delays``, exactly once.

Each micro-batch publishes what it adds to a carrier's day; the sums over the topic are therefore
right only if no micro-batch is lost and none is published twice.

Run as: python -m examples.flights.daily BOOTSTRAP CHECKPOINT
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

from examples.flights.data import DAILY_DELAYS, DEPARTURES
from onceflow.spark_integration import foreach_batch, register

GROUP = "daily-delays"
ROWS_PER_BATCH_MAX = 30_000
DEPARTURE = "carrier STRING, date STRING, dep_delay INT"


def per_carrier_and_day(departures: DataFrame, batch_id: int) -> DataFrame:
    """What one micro-batch adds, as records keyed by carrier and day."""
    flights = departures.select(F.from_json(F.col("value").cast("string"), DEPARTURE).alias("d"))
    added = flights.groupBy("d.carrier", "d.date").agg(
        F.count("*").alias("flights"), F.sum("d.dep_delay").alias("delay")
    )
    return added.select(
        F.concat_ws("|", "carrier", "date").alias("key"),
        F.to_json(F.struct("carrier", "date", "flights", "delay")).alias("value"),
    )


def main() -> None:
    """Run the query until it is told to stop."""
    bootstrap, checkpoint = sys.argv[1:3]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("daily-delays")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    client: dict[str, Any] = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.transaction.timeout.ms": "60000",
    }
    publish = foreach_batch(
        per_carrier_and_day,
        topic=DAILY_DELAYS,
        transactionalId=GROUP,
        checkpointLocation=checkpoint,
        **client,
    )
    query = (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", DEPARTURES)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH_MAX))
        .load()
        .writeStream.foreachBatch(publish)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    query.awaitTermination()


if __name__ == "__main__":
    main()
