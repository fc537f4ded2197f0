"""Runs the pipeline against a broker of its own: python -m examples.spark_flights [--rows N]."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from examples.spark_flights import pipeline
from onceflow.broker_lite import Broker


def run(rows: int, picture: Path) -> None:
    """Send flights and weather, join them in two runs of the query, and compare with the file.

    The second run gets flights that are hours behind: Spark leaves them out and counts them.
    """
    flights = pipeline.departures(rows)
    late, on_time = flights[:20], flights[20:]
    hours = list(pipeline.weather(flights[-1]["time"]))
    with Broker() as broker, tempfile.TemporaryDirectory() as folder:
        address, checkpoint = broker.bootstrap_servers, f"{folder}/checkpoint"
        pipeline.make_topics(address)
        pipeline.send(address, pipeline.WEATHER, hours)
        pipeline.send(address, pipeline.DEPARTURES, on_time)
        spark = pipeline.session()
        try:
            pipeline.run(spark, address, checkpoint)
            pipeline.send(address, pipeline.DEPARTURES, late)
            dropped = pipeline.late_rows(pipeline.run(spark, address, checkpoint))
            joined = pipeline.joined_rows(spark, address)
            published = sorted(row["id"] for row in joined.select("id").collect())
            pipeline.write_picture(picture, pipeline.delay_by_wind(joined))
        finally:
            spark.stop()
    known = {(hour["origin"], hour["time"]) for hour in hours}
    wanted = sorted(f["id"] for f in on_time if (f["origin"], f["time"]) in known)
    if published != wanted:
        raise SystemExit(f"{len(published)} rows were published, {len(wanted)} were expected")
    print(f"{len(published)} flights with their weather, each once; {dropped} came too late")
    print(f"picture: {picture}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="flights (default 20,000)")
    parser.add_argument("--picture", type=Path, default=Path("delay-by-wind.svg"))
    args = parser.parse_args()
    run(args.rows, args.picture)


if __name__ == "__main__":
    main()
