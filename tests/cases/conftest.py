"""Fixtures of the field cases: a broker per module, Apache Kafka beside it, a fresh topic each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from case_clients import SkippableClock
from case_proxy import Proxy

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic

NUMBERS = itertools.count(1)
SETTINGS = {
    "group.min.session.timeout.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


@pytest.fixture(scope="module")
def clock() -> SkippableClock:
    """The clock of `broker`."""
    return SkippableClock()


@pytest.fixture(scope="module")
def broker(clock: SkippableClock) -> Iterator[Broker]:
    """Our broker, shared by a module's cases."""
    with Broker(settings=SETTINGS, clock=clock) as running:
        yield running


@pytest.fixture(params=["onceflow", pytest.param("apache-kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> str:
    """Address of our broker and, in conformance runs, of Apache Kafka."""
    name = "broker" if request.param == "onceflow" else "apache_kafka"
    address: str = request.getfixturevalue(name).bootstrap_servers
    return address


@pytest.fixture
def name() -> str:
    """A name that nobody else uses."""
    return f"case-{next(NUMBERS)}"


@pytest.fixture
def topic(cluster: str, name: str) -> str:
    """A fresh topic of one partition in `cluster`; records with old timestamps stay."""
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 1, 1, configs={"retention.ms": "-1"})])
    return name


@pytest.fixture
def proxy(cluster: str) -> Iterator[Proxy]:
    """A relay before `cluster`."""
    with Proxy(cluster) as relay:
        yield relay
