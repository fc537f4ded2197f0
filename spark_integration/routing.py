"""Bringing all rows of one Kafka partition into one Spark task, before they are written.

The partition of a row is the one that the Java client would choose for its key (murmur2), so that
records written through Spark and through other clients meet in joins. Which topics there are is
asked once, on the driver; a row's topic may be any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from onceflow.sdk import Admin, AdminConfig, murmur2_partition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.client_options import client_of
from onceflow.spark_integration.schema import SinkColumns

TASKS_MAX = 64
"""Most Spark tasks that rows are spread over."""


def partition_counts(
    options: Mapping[str, str], topics: Iterable[str] | None = None
) -> dict[str, int]:
    """Number of partitions of topics, asked on the driver.

    Args:
        options: The options ``kafka.*`` and ``client`` that readers and writers take.
        topics: Names; None for all topics that this user may see.

    Raises:
        UnknownTopicOrPartitionError: A topic does not exist.
    """
    return counts_by(client_of(options).admin(), topics)


def counts_by(config: AdminConfig, topics: Iterable[str] | None) -> dict[str, int]:
    """Number of partitions of topics, asked by an admin client with these settings."""
    with Admin(config=config) as admin:
        names = admin.list_topics() if topics is None else sorted(topics)
        described = admin.describe_topics(names)
    return {topic: description.partition_count for topic, description in described.items()}


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


def route(df: DataFrame, counts: Mapping[str, int], *, topic: str | None = None) -> DataFrame:
    """Fill the column ``partition`` and bring the rows of each Kafka partition together.

    Rows that have a partition keep it.

    Args:
        df: Rows with the sink's columns (``value``, and ``key``, ``topic`` ... as they need).
        counts: Number of partitions of every topic that the rows may name; from
            ``partition_counts``.
        topic: Topic of every row; None when the rows have a column ``topic``.

    Returns:
        The same rows, those of one Kafka partition in one Spark partition.

    Raises:
        ConfigError: ``counts`` does not know the topic, or the sink would refuse a column.
    """
    SinkColumns.of(df.schema, topic)
    if topic is not None and topic not in counts:
        raise ConfigError("topic", topic, f"no such topic; known: {', '.join(sorted(counts))}")
    fixed = dict(counts) if topic is None else {topic: counts[topic]}

    def choose(keys: pa.Array, topics: pa.Array, spread: pa.Array) -> pa.Array:
        return _choose(fixed, keys, topics, spread)

    partition_of = arrow_udf(choose, returnType=IntegerType())  # type: ignore[call-overload]
    topic_column = F.lit(topic) if topic is not None else F.col("topic")
    key = F.col("key").cast("binary") if "key" in df.columns else F.lit(None).cast("binary")
    # Rows without a key are spread by what they hold. A number drawn at random would change when
    # Spark computes a lost stage again, and rows would be lost or repeated on the way.
    spread = F.pmod(F.xxhash64(*[F.col(name) for name in df.columns]), F.lit(2**31 - 1))
    given = [F.col("partition")] if "partition" in df.columns else []
    chosen: Column = F.coalesce(*given, partition_of(key, topic_column, spread))
    routed = df.withColumn("partition", chosen)
    # One number for each pair of topic and partition, so that neighbours go to different tasks.
    shift = F.lit(0) if topic is not None else F.pmod(F.hash(topic_column), F.lit(2**20))
    tasks = max(1, min(TASKS_MAX, sum(fixed.values())))
    return routed.repartitionById(tasks, F.coalesce(F.col("partition") + shift, F.lit(0)))
