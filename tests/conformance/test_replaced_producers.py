"""Goal: on Apache Kafka too, a producer whose transactional id has expired never takes it back.

Method: the stories of ``replaced_producers`` on a node that forgets unused ids after seconds. On
our broker they run in `tests/integration/test_replaced_producers.py`, on its movable clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import real_kafka
from replaced_producers import (
    a_session_goes_on_after_its_id_expired,
    neither_comes_back_after_the_id_expired,
)

pytestmark = pytest.mark.kafka

FORGETFUL = {
    "transactional.id.expiration.ms": "8000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an Apache Kafka that forgets transactional ids soon."""
    with real_kafka.ApacheKafka(tmp_path_factory.mktemp("kafka"), settings=FORGETFUL) as kafka:
        yield kafka.bootstrap_servers


@pytest.mark.parametrize(
    "story", [neither_comes_back_after_the_id_expired, a_session_goes_on_after_its_id_expired]
)
def test_an_expired_id(
    story: Callable[[str, str, Callable[[], None]], None], forgetful: str, name: str
) -> None:
    story(forgetful, name, lambda: None)  # Waiting is all that it takes.
