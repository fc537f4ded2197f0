"""Bringing all rows of one Kafka partition into one Spark task, before they are written.

The partition of a row is the one that the Java client would choose for its key (murmur2), so that
records written through Spark and through other clients meet in joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name for it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from onceflow.sdk import Admin, murmur2_partition

TASKS_MAX = 64


def partition_counts(client: Mapping[str, object], topics: Iterable[str]) -> dict[str, int]:
    """Number of partitions of each topic, asked on the driver."""
    names = ("bootstrap_servers", "client_id", "request_timeout_ms")
    with Admin(**{k: v for k, v in client.items() if k in names}) as admin:
        described = admin.describe_topics(sorted(topics))
    return {topic: len(description.partitions) for topic, description in described.items()}


def _partition_of(counts: Mapping[str, int], key: Column, topic: Column) -> Column:
    fixed = dict(counts)

    def choose(keys: pa.Array, topics: pa.Array) -> pa.Array:
        chosen = [
            None if k is None else murmur2_partition(k, fixed[t])
            for k, t in zip(keys.to_pylist(), topics.to_pylist(), strict=True)
        ]
        return pa.array(chosen, pa.int32())

    partition_of = arrow_udf(choose, returnType=IntegerType())  # type: ignore[call-overload]
    column: Column = partition_of(key.cast("binary"), topic)
    return column


def route(df: DataFrame, counts: Mapping[str, int], *, topic: str | None = None) -> DataFrame:
    """Fill the column ``partition`` and repartition by it.

    Args:
        df: Rows with the sink's columns (``value``, and ``key``, ``topic`` ... as they need).
        counts: Number of partitions of every topic that the rows may name; from
            ``partition_counts``.
        topic: Topic of every row; None when the rows have a column ``topic``.

    Returns:
        The same rows, those of one Kafka partition in one Spark partition.
    """
    topic_column = F.lit(topic) if topic is not None else F.col("topic")
    count_of = F.create_map([F.lit(x) for pair in counts.items() for x in pair])
    choices: list[Column] = [F.col("partition")] if "partition" in df.columns else []
    if "key" in df.columns:
        choices.append(_partition_of(counts, F.col("key"), topic_column))
    spread = F.monotonically_increasing_id() % count_of[topic_column]
    choices.append(spread.cast("int"))
    routed = df.withColumn("partition", F.coalesce(*choices))
    tasks = max(1, min(TASKS_MAX, sum(counts.values())))
    return routed.repartition(tasks, topic_column, F.col("partition"))
