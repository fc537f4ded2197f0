"""Goal: Spark's own Kafka source and sink work with our broker, and the source with our sink.

Method: Spark's connector, fetched by Maven, copies a transactional topic in a process of its own;
what it left is read by our consumer. A checkpoint that lost its last commit shows what each sink
does with a repeated micro-batch.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import spark_stock
from spark_world import fill, unavailable_reason, values_of

from onceflow.broker_lite import Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(500),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is missing"),
]


def test_sparks_own_source_reads_our_broker_and_feeds_our_sink(
    tmp_path: Path, kafka_tools: None
) -> None:
    values = [f"{partition}-{row}" for partition in range(2) for row in range(10)]
    with Broker() as broker:
        servers = broker.bootstrap_servers
        for topic in ("in", "ours", "stock"):
            broker.create_topic(topic, partitions=2)
        for partition in range(2):
            part = [value.encode() for value in values if value.startswith(f"{partition}-")]
            fill(servers, "in", part, partition=partition, transactional_id="writer")
        fill(servers, "in", [b"aborted"], transactional_id="writer", commit=False)

        spark_stock.copy(servers, "in", tmp_path, ours="ours", stock="stock")
        assert values_of(servers, "ours") == values
        assert values_of(servers, "stock") == values

        for sink in ("ours", "stock"):
            for left_over in (tmp_path / sink / "commits").iterdir():
                left_over.unlink()
        spark_stock.copy(servers, "in", tmp_path, ours="ours", stock="stock")
        assert values_of(servers, "ours") == values
        repeated = Counter(values_of(servers, "stock"))
        assert set(repeated) == set(values)
        assert set(repeated.values()) == {2}, "Spark's own sink writes a repeated batch again"
