"""Goal: a producer that may have been replaced never takes its transactional id back.

Method: two producers under one id on the broker in process, whose clock is moved on by days until
the id has expired. The same story runs on Apache Kafka in `tests/conformance`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from replaced_producers import (
    a_session_goes_on_after_its_id_expired,
    commit,
    committed_values,
    make_lasting_topic,
    neither_comes_back_after_the_id_expired,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import Producer
from onceflow.sdk.errors import FatalError, ProducerFencedError

QUARTER_DAY_MS = 21_600_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in process that forgets transactional ids, but no committed offsets."""
    with Broker(settings={"offsets.retention.minutes": 1_000_000}) as found:
        yield found


def idle(broker: Broker) -> None:
    """Nine days in which nothing happens; the id expires after seven."""
    for _ in range(36):
        broker.advance(QUARTER_DAY_MS)


def test_neither_comes_back_after_the_id_expired(broker: Broker) -> None:
    neither_comes_back_after_the_id_expired(broker.bootstrap_servers, "till", lambda: idle(broker))


def test_a_session_goes_on_after_its_id_expired(broker: Broker) -> None:
    a_session_goes_on_after_its_id_expired(broker.bootstrap_servers, "till", lambda: idle(broker))


@pytest.mark.parametrize("call", ["begin_transaction", "init_transactions"])
def test_an_older_producer_is_fenced_whatever_it_calls(broker: Broker, call: str) -> None:
    make_lasting_topic(broker.bootstrap_servers, "till")
    older = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="till")
    commit(older, "till", b"1")
    newer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="till")
    if call == "init_transactions":
        with pytest.raises(ProducerFencedError):
            older.init_transactions()
    with pytest.raises(FatalError):
        commit(older, "till", b"zombie")
    commit(newer, "till", b"2")
    older.close()
    newer.close()
    assert committed_values(broker.bootstrap_servers, "till") == [b"1", b"2"]
