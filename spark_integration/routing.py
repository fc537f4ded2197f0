"""Bringing all rows of one Kafka partition into one Spark task, before they are written.

The partition of a row is the one that the Java client would choose for its key (murmur2), so that
records written through Spark and through other clients meet in joins. The count of partitions comes
from the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from onceflow.sdk import murmur2_partition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.encoding import DATA_AT, SCHEMA, EncodingTask, marked, sink_columns
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup

TASKS_MAX = 64
"""Most Spark tasks that rows are spread over."""
TASKS_PER_CORE = 2
"""Most of them for each core, where the rows name their topics or have no keys."""


def _choose(
    counts: Mapping[str, int], keys: pa.Array, topics: pa.Array, spread: pa.Array
) -> pa.Array:
    """The partition of each row: by its key, else by ``spread``; null for an unknown topic.

    A key that comes often is hashed once.
    """
    chosen: list[int | None] = []
    known: dict[tuple[bytes, str], int] = {}
    for key, topic, number in zip(
        keys.to_pylist(), topics.to_pylist(), spread.to_pylist(), strict=True
    ):
        count = counts.get(topic)
        if count is None:
            chosen.append(None)
        elif key is None:
            chosen.append(number % count)
        else:
            found = known.get((key, topic))
            if found is None:
                found = known[key, topic] = murmur2_partition(key, count)
            chosen.append(found)
    return pa.array(chosen, pa.int32())


def route(
    df: DataFrame,
    counts: Mapping[str, int],
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Bring the rows of each Kafka partition into one Spark task.

    Rows that have a partition keep it.

    Args:
        df: Rows with the sink's columns (``value``, and ``key``, ``topic`` ... as they need).
        counts: Number of partitions of every topic that the rows may name; from
            ``partition_counts``.
        topic: Topic of every row; None when the rows have a column ``topic``.
        options: The sink's options. With them rows become finished Kafka batches before Spark
            moves them; give the sink the same ones.

    Returns:
        Without ``options``, the same rows with a column ``partition``, those of one Kafka
        partition in one Spark partition. With them, batches that only the sink can read.

    Raises:
        ConfigError: ``counts`` does not know the topic, an option is wrong, or the sink would
            refuse a column.
    """
    if options is not None:
        return _encoded(df, counts, topic, options)
    if topic is not None and topic not in counts:
        raise ConfigError("topic", topic, f"no such topic; known: {', '.join(sorted(counts))}")
    fixed = dict(counts) if topic is None else {topic: counts[topic]}
    return _routed(df, topic, fixed)


def _routed(df: DataFrame, topic: str | None, counts: dict[str, int]) -> DataFrame:
    at = SinkColumns.of(df.schema, topic, any_value=True)  # The sink knows whether it may.
    names = {
        name: df.columns[position]
        for name in ("key", "value", "topic", "partition", "headers", "timestamp")
        if (position := getattr(at, name)) is not None
    }

    def choose(keys: pa.Array, topics: pa.Array, spread: pa.Array) -> pa.Array:
        return _choose(counts, keys, topics, spread)

    partition_of = arrow_udf(choose, returnType=IntegerType())  # type: ignore[call-overload]
    topic_column = F.lit(topic) if topic is not None else F.col(names["topic"])
    key = F.col(names["key"]) if "key" in names else F.lit(None)
    # Rows without a key are spread by what they hold. A number drawn at random would change when
    # Spark computes a lost stage again, and rows would be lost or repeated on the way.
    spread = F.pmod(F.xxhash64(*[F.col(name) for name in names.values()]), F.lit(2**31 - 1))
    # As long numbers: 2**32 must not become partition 0.
    given = [F.col(names["partition"]).cast("long")] if "partition" in names else []
    chosen: Column = F.coalesce(
        *given, partition_of(key.cast("binary"), topic_column, spread).cast("long")
    )
    routed = df.withColumn(names.get("partition", "partition"), chosen)
    # One number for each pair of topic and partition, so that neighbours go to different tasks.
    shift = F.lit(0) if topic is not None else F.pmod(F.hash(topic_column), F.lit(2**20))
    number = F.col(names.get("partition", "partition")) + shift
    target = F.pmod(F.coalesce(number, F.lit(0)), F.lit(2**31 - 1)).cast("int")
    tasks = tasks_for(df, None if topic is None else counts[topic])
    return routed.repartitionById(tasks, target)


def _encoded(
    df: DataFrame, counts: Mapping[str, int], topic: str | None, given: Mapping[str, str]
) -> DataFrame:
    """Rows as finished batches, those of one Kafka partition in one Spark partition."""
    named = {} if topic is None else {"topic": topic}
    options = SinkOptions.parse({**given, **named})
    topic = options.topic
    if topic is not None and topic not in counts:
        raise ConfigError("topic", topic, f"no such topic; known: {', '.join(sorted(counts))}")
    fixed = dict(counts) if topic is None else {topic: counts[topic]}
    at = sink_columns(df.schema, options)
    kept = df.select(*[F.col(df.columns[position]) for position in at.positions()])
    at = sink_columns(kept.schema, options)
    names = [kept.columns[position] for position in at.positions()]
    # Rows without a key go where their contents say. If Spark computes a part again, each of them
    # must go to the same partition as before, or it would be lost or repeated.
    spread = F.pmod(F.xxhash64(*[F.col(name) for name in names]), _count_of(kept, at, fixed))
    chosen = spread.cast("long")
    if at.key is not None:
        chosen = F.when(F.col(kept.columns[at.key]).isNull(), chosen)
    name = "partition"
    if at.partition is not None:
        name = kept.columns[at.partition]
        chosen = F.coalesce(F.col(name).cast("long"), chosen)
    placed = kept.withColumn(name, chosen)
    columns = sink_columns(placed.schema, options)
    task = EncodingTask(options, columns, CountsLookup(options.admin, fixed))
    shift = F.lit(0) if topic is not None else F.pmod(F.hash(F.col("topic")), F.lit(2**20))
    tasks = tasks_for(df, None if topic is None else counts[topic])
    moved = placed.mapInArrow(task, SCHEMA).repartitionById(tasks, F.col("partition") + shift)
    found = [F.col(field.name) for field in moved.schema.fields]
    found[DATA_AT] = found[DATA_AT].alias("data", metadata=marked(options))
    return moved.select(*found)


def _count_of(df: DataFrame, at: SinkColumns, counts: Mapping[str, int]) -> Column:
    """How many partitions the topic of each row has; null for an unknown one."""
    if at.topic is None:
        return F.lit(next(iter(counts.values())))
    pairs = [F.lit(part) for pair in counts.items() for part in pair]
    return F.create_map(*pairs)[F.col(df.columns[at.topic])]


def tasks_for(df: DataFrame, count: int | None) -> int:
    """How many tasks the partitions are spread over.

    Args:
        df: The rows.
        count: How many partitions there are, None where rows name their topics.
    """
    return min(TASKS_MAX, TASKS_PER_CORE * cores_of(df) if count is None else count)


def cores_of(df: DataFrame) -> int:
    """Cores of the cluster as Spark knows them; Spark Connect does not tell."""
    try:
        return int(df.sparkSession.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        return TASKS_MAX
