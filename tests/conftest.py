"""Fixtures that every area's tests share: Apache Kafka itself, started once a run when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import real_kafka


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_kafka.ApacheKafka]:
    """A running Apache Kafka; skipped, with the reason, only where Java or Maven is missing."""
    if reason := real_kafka.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_KAFKA"):
            pytest.fail(f"Apache Kafka is required here: {reason}")
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    with real_kafka.ApacheKafka(tmp_path_factory.mktemp("apache-kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's own command-line tools (``real_kafka.tool``); skipped like ``apache_kafka``."""
    if reason := real_kafka.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_KAFKA"):
            pytest.fail(f"Apache Kafka's tools are required here: {reason}")
        pytest.skip(f"Apache Kafka's tools cannot run here: {reason}")
