"""A Spark driver that writes from one topic to another, as a process that tests kill.

As a program: ``python spark_driver.py JSON``, the JSON being a ``Plan``. It runs up
to the present end of the source, unless the plan makes it kill its own process group (driver, JVM)
right after a micro-batch was committed and before Spark notes that in the checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceflow.processors import App, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "SPARK_DRIVER_GROUP"


@dataclass(frozen=True)
class Plan:
    """What the driver does.

    Attributes:
        sink: ``data source`` or ``foreach_batch``, where the driver writes small batches; with
            ``by tasks`` or ``by tasks without keys`` behind it, it never does. ``data source by
            rows`` moves rows and not encoded batches. ``application``
            counts by key as an application of processors, ``table`` writes without a stream.
        bootstrap: Brokers.
        source: Topic to read.
        target: Topic to write; also the transactional id and the group.
        checkpoint: Folder.
        rows_per_batch: Offsets of a micro-batch.
        dies_after_commit_of: Micro-batch after whose commit it dies, None for never.
        batch_size: Bytes of a producer's batch; a small one makes writing slow enough to be met.
        master: Spark's master; ``local-cluster[2,1,1024]`` has executors of their own.
        write_id: Id of the write of a table.
    """

    sink: str
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    rows_per_batch: int
    dies_after_commit_of: int | None = None
    batch_size: int = 16_384
    master: str = "local[2]"
    write_id: str = "once"


def die() -> None:
    """End the driver and its JVM at once; Spark's Python workers notice and end a little later."""
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)


@contextlib.contextmanager
def driver(plan: Plan, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own; what is left of it is killed at the end."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(dataclasses.asdict(plan))],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def main() -> None:
    """Run the plan in a session of its own."""
    plan = Plan(**json.loads(sys.argv[1]))
    os.environ[GROUP] = str(os.getpgrp())
    sys.path.insert(0, str(Path(__file__).parent))
    from spark_world import spark_session

    with spark_session({"spark.master": plan.master}) as spark:
        WORKS.get(plan.sink, run)(spark, plan)


def run(spark: SparkSession, plan: Plan) -> None:
    """Run the plan in a session."""
    from spark_world import stream

    from onceflow.spark_integration import foreach_batch, partition_counts, route, run_query

    options = {
        "kafka.bootstrap.servers": plan.bootstrap,
        "kafka.batch.size": str(plan.batch_size),
        "kafka.linger.ms": "0",
        "checkpointLocation": plan.checkpoint,
        "topic": plan.target,
        "transactionalId": plan.target,
    }
    limit = str(plan.rows_per_batch)
    rows = stream(spark, plan.bootstrap, plan.source, maxOffsetsPerTrigger=limit)
    sink, _, way = plan.sink.partition(" by ")
    rows = rows.select(*(["value"] if way.endswith("without keys") else ["key", "value"]))
    if way.startswith("tasks"):
        options["driverRowsMax"] = "0"
    if sink == "foreach_batch":
        publish = foreach_batch(**options)

        def publish_and_die(batch: DataFrame, batch_id: int) -> None:
            publish(batch, batch_id)
            if batch_id == plan.dies_after_commit_of:
                die()

        writer = rows.writeStream.foreachBatch(publish_and_die)
    else:
        if plan.dies_after_commit_of is not None:
            spark.dataSource.register(dying_source(plan.dies_after_commit_of))
        counts = partition_counts(options, [plan.target])
        encoding = None if way == "rows" else options
        routed = route(rows, counts, topic=plan.target, options=encoding)
        writer = routed.writeStream.format("onceflow").options(**options)
    writer = writer.option("checkpointLocation", plan.checkpoint)
    # On a busy machine a Python worker of Spark may be too slow for Spark's patience.
    run_query(writer.trigger(availableNow=True).start)


def run_application(spark: SparkSession, plan: Plan) -> None:
    """Count the records of each key, with state, as an application of processors."""
    app = App("counting", plan.bootstrap)

    @app.processor(plan.source, to=plan.target)
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}={seen.get()}"

    options = {"name": plan.target, "maxOffsetsPerTrigger": str(plan.rows_per_batch)}
    options["driverRowsMax"] = "0"
    pipeline = app.to_spark(spark, checkpointLocation=plan.checkpoint, **options)
    pipeline.run(until_end=True)


def run_table(spark: SparkSession, plan: Plan) -> None:
    """Write what the source holds as one table, under an id."""
    from onceflow.spark_integration import partition_counts, route

    options = {"kafka.bootstrap.servers": plan.bootstrap}
    rows = (
        spark.read.format("onceflow")
        .options(subscribe=plan.source, startingOffsets="earliest", **options)
        .load()
        .selectExpr("key", "concat(value, repeat(' ', 3000)) AS value")
    )
    counts = partition_counts(options, [plan.target])
    routed = route(rows, counts, topic=plan.target, options=options)
    writer = routed.write.format("onceflow").mode("append")
    writer.options(topic=plan.target, writeId=plan.write_id, **options).save()


WORKS = {"application": run_application, "table": run_table}
"""What runs under the names of sinks that are none."""


def dying_source(batch_to_die_after: int) -> type:
    """The data source, with a sink that kills the driver after a commit."""
    from pyspark.sql.types import StructType

    from onceflow.spark_integration import OnceflowDataSource
    from onceflow.spark_integration.options import SinkOptions
    from onceflow.spark_integration.stream_write import OnceflowStreamWriter

    class Writer(OnceflowStreamWriter):
        def commit(self, messages, batchId):  # noqa: N803 - Spark's name
            super().commit(messages, batchId)
            if batchId == batch_to_die_after:
                die()

    class Source(OnceflowDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool):  # noqa: N802
            return Writer(SinkOptions.parse(self.options), schema)

    return Source


if __name__ == "__main__":
    main()
