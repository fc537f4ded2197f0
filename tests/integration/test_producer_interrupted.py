"""Goal: whatever a signal handler raises within a send, what the producer took is sent, once each.

Method: sends are interrupted where CPython lets signal handlers run, at the entry of a function
and after a call of a built-in one, at each such point in turn; the program then goes on. Compiled
modules have no such points; `make test PLAIN=1` tries them as plain Python too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from interruptions import POINTS_MAX, InterruptAt
from processor_processes import wait_for

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition

P0 = TopicPartition("t", 0)
LIMIT_S = 20
LIMIT_MS = LIMIT_S * 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def send_one(producer: Producer) -> None:
    producer.send("t", b"one")


def send_in_bulk(producer: Producer) -> None:
    producer.send_many("t", [b"many"] * 3, [b"k%d" % number for number in range(3)])


def value_at(broker: Broker, offset: int) -> bytes | None:
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([P0])
        consumer.seek(P0, offset)
        return next(consumer).value


def wait_until_empty(producer: Producer) -> None:
    """Wait until everything was sent, without a flush; no byte may be counted for ever."""

    def is_empty() -> bool:
        figures = producer.metrics()
        return figures.buffer_available_bytes == figures.buffer_total_bytes

    wait_for(is_empty, "no record waits, and no memory is used", LIMIT_S)


@pytest.mark.parametrize("send", [send_one, send_in_bulk])
@pytest.mark.parametrize("held_bytes", [0, 10, 300], ids=["first", "further", "full"])
def test_interrupted_at_any_point_a_send_harms_no_other_record(
    broker: Broker, send: Callable[[Producer], None], held_bytes: int
) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, linger_ms=LIMIT_MS, batch_size=400
    ) as producer:
        producer.send("t", b"warm")
        producer.flush(LIMIT_MS)
        for point in range(POINTS_MAX):
            held = producer.send("t", b"h" * held_bytes) if held_bytes else None
            interrupt = InterruptAt(point)
            interrupt.run(lambda: send(producer))
            after = producer.send("t", b"after %d" % point)
            producer.flush(LIMIT_MS)
            if held is not None:
                assert value_at(broker, held.result(0).offset) == b"h" * held_bytes
            assert value_at(broker, after.result(0).offset) == b"after %d" % point
            wait_until_empty(producer)
            if not interrupt.happened:
                break
        else:
            raise AssertionError(f"a send has more than {POINTS_MAX} points")
    assert point > 1, "the points of a send were not seen"


@pytest.mark.parametrize("send", [send_one, send_in_bulk])
def test_interrupted_at_any_point_a_record_that_was_taken_leaves_by_itself(
    broker: Broker, send: Callable[[Producer], None]
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
        producer.send("t", b"warm").result(LIMIT_S)
        for point in range(POINTS_MAX):
            interrupt = InterruptAt(point)
            interrupt.run(lambda: send(producer))
            wait_until_empty(producer)
            if not interrupt.happened:
                break
        else:
            raise AssertionError(f"a send has more than {POINTS_MAX} points")
    assert point > 1, "the points of a send were not seen"
