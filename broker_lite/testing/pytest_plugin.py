"""Fixtures for tests of programs that use Kafka.

Say ``pytest_plugins = ["onceflow.broker_lite.testing.pytest_plugin"]`` in ``conftest.py``. It
decides only how long a broker lives.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceflow.broker_lite.testing.in_process import Broker


@pytest.fixture
def kafka_broker() -> Iterator[Broker]:
    """A broker in memory for one test."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_kafka_broker() -> Iterator[Broker]:
    """A broker in memory for the whole run; give your topics names of their own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka_bootstrap_servers(kafka_broker: Broker) -> str:
    """``HOST:PORT`` of the broker of one test."""
    return kafka_broker.bootstrap_servers
