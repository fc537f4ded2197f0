"""The brokers that conformance tests run against: our daemon on a folder, and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
import real_kafka
from stock_daemon import StockDaemon

OURS = "bundled-broker"
APACHE_KAFKA = "apache-kafka"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockDaemon]:
    """`onceflow broker` as a process, one per test module."""
    settings: dict[str, object] = {
        f"group.consumer.{least}heartbeat.interval.ms": 200 for least in ("min.", "")
    }  # As in `real_kafka`, so that members of KIP-848 need not wait for five seconds each time.
    settings |= real_kafka.ANYBODY_MAY
    daemon = StockDaemon(tmp_path_factory.mktemp("daemon") / "data", settings)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(
    params=[
        pytest.param(OURS, marks=pytest.mark.foreign),
        pytest.param(APACHE_KAFKA, marks=pytest.mark.kafka),
    ]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of each of the two brokers: the same test shows where they differ."""
    fixture = "daemon" if request.param == OURS else "apache_kafka"
    address: str = request.getfixturevalue(fixture).bootstrap_servers
    return address


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that is free for topics, groups and transactional ids."""
    return f"conformance-{uuid4().hex[:12]}"
