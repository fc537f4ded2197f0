"""Departures and weather as two streams on Spark, joined by airport and hour, exactly once.

The functions here are the steps; ``__main__.py`` and ``flights.ipynb`` call them one after another.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

from examples.flights.data import flight_rows, folder
from onceflow.sdk import Admin, NewTopic, Producer
from onceflow.spark_integration import foreach_batch, register, run_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

DEPARTURES, WEATHER, JOINED = "departures", "weather", "delays-in-weather"
PARTITIONS = 3
LATENESS = "2 hours"
"""How long departures and weather may come after others of a later time."""
DEPARTURE = "id INT, origin STRING, time TIMESTAMP, carrier STRING, delay INT"
HOUR = "origin STRING, time TIMESTAMP, wind DOUBLE, visibility DOUBLE"
BATCH_MAX = 20_000


def session() -> SparkSession:
    """A small local session; on a cluster spark-submit makes it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("spark-flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def make_topics(bootstrap: str) -> None:
    """Create the three topics."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in (DEPARTURES, WEATHER, JOINED)])


def departures(rows: int) -> list[dict[str, Any]]:
    """The first flights of the year that departed, with minutes of delay."""
    found = (
        {
            "id": number,
            "origin": row["origin"],
            "time": row["time_hour"],
            "carrier": row["carrier"],
            "delay": int(float(row["dep_delay"])),
        }
        for number, row in enumerate(flight_rows())
        if row["dep_delay"] != "NA"
    )
    return sorted(itertools.islice(found, rows), key=lambda flight: flight["time"])


def weather(until: str) -> Iterator[dict[str, Any]]:
    """Wind in miles an hour and visibility in miles, by airport and hour, up to an hour."""
    with (folder() / "weather.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["time_hour"] <= until and row["wind_speed"] != "NA":
                wind, visibility = float(row["wind_speed"]), float(row["visib"])
                place = {"origin": row["origin"], "time": row["time_hour"]}
                yield {**place, "wind": wind, "visibility": visibility}


def send(bootstrap: str, topic: str, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON, with their airport as the key; return how many."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        sent = [
            producer.send(topic, json.dumps(row, allow_nan=False), key=row["origin"].encode())
            for row in rows
        ]
    return len(sent)


def stream(spark: SparkSession, bootstrap: str, topic: str, schema: str) -> DataFrame:
    """A topic of JSON as columns, with a watermark."""
    return (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_MAX))
        .options(valueFormat="json", valueSchema=schema)
        .load()
        .select("value.*")
        .withWatermark("time", LATENESS)
    )


def run(spark: SparkSession, bootstrap: str, checkpoint: str) -> list[StreamingQuery]:
    """Join both streams and publish the rows, up to where the topics end now.

    Returns:
        The query, and those before it if it had to be started again.
    """
    flights = stream(spark, bootstrap, DEPARTURES, DEPARTURE)
    hours = stream(spark, bootstrap, WEATHER, HOUR)
    joined = flights.join(hours, ["origin", "time"]).select(
        F.col("origin").alias("key"),
        F.struct("id", "origin", "time", "carrier", "delay", "wind", "visibility").alias("value"),
    )
    options: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap, "topic": JOINED}
    publish = foreach_batch(checkpointLocation=checkpoint, valueFormat="json", **options)
    writer = joined.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint)
    started: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        started.append(writer.trigger(availableNow=True).start())
        return started[-1]

    run_query(start)
    return started


def late_rows(queries: list[StreamingQuery]) -> int:
    """How many rows came behind the watermark and were left out."""
    return sum(
        int(operator["numRowsDroppedByWatermark"])
        for query in queries
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


def joined_rows(spark: SparkSession, bootstrap: str) -> DataFrame:
    """What was published, as a table."""
    return (
        spark.read.format("onceflow")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", JOINED)
        .options(valueFormat="json", valueSchema=f"{DEPARTURE}, wind DOUBLE, visibility DOUBLE")
        .load()
        .select("value.*")
    )


def delay_by_wind(joined: DataFrame) -> list[tuple[int, int, float]]:
    """Wind in steps of five miles an hour, flights, and their mean delay in minutes."""
    step = (F.floor(F.col("wind") / 5) * 5).cast("int").alias("step")
    found = joined.groupBy(step).agg(F.count("*").alias("flights"), F.mean("delay").alias("delay"))
    return [(row["step"], row["flights"], row["delay"]) for row in found.sort("step").collect()]


class Picture(str):
    """A picture as SVG; a notebook shows it."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return self


def picture(steps: list[tuple[int, int, float]]) -> Picture:
    """Bars of the mean delay by wind, as SVG."""
    width, height, bottom = 60, 220, 40
    top = max((delay for _, _, delay in steps), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * max(len(steps), 1) + 20}" '
        f'height="{height + bottom + 40}" font-family="sans-serif" font-size="12">',
        '<text x="10" y="18">Mean departure delay in minutes, by wind in miles an hour</text>',
    ]
    for place, (wind, flights, delay) in enumerate(steps):
        tall = max(1, round(height * max(delay, 0) / top))
        left, upper = 10 + place * width, 30 + height - tall
        parts += [
            f'<rect x="{left}" y="{upper}" width="{width - 12}" height="{tall}" fill="#4878a8"/>',
            f'<text x="{left}" y="{upper - 3}">{delay:.1f}</text>',
            f'<text x="{left}" y="{height + 46}">{wind}-{wind + 5}</text>',
            f'<text x="{left}" y="{height + 62}" fill="#777">{flights}</text>',
        ]
    return Picture("\n".join([*parts, "</svg>\n"]))


def write_picture(path: Path, steps: list[tuple[int, int, float]]) -> None:
    """Write the picture to a file."""
    path.write_text(picture(steps))
