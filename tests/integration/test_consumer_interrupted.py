"""Goal: whatever a signal handler raises within a poll, every record is returned once, in order.

Method: deserializers, which run in the loop's thread, send a signal to the thread that polls, and
interceptors raise in the middle of a poll; polls are interrupted at each point in turn at which
CPython lets signal handlers run. The application catches it and goes on polling.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from interruptions import POINTS_MAX, InterruptAt, Interruption

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, ConsumerInterceptor, Producer, TopicPartition

P0 = TopicPartition("t", 0)
COUNT = 3_000


def interrupt(*_: object) -> None:
    raise Interruption


@pytest.fixture
def broker() -> Iterator[Broker]:
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Broker() as running:
            running.create_topic("t")
            with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
                for start in range(0, COUNT, 100):
                    producer.send_many("t", [b"%d" % n for n in range(start, start + 100)])
                    producer.flush()
            yield running
    finally:
        signal.signal(signal.SIGUSR1, before)


def read_on(consumer: Consumer) -> Iterator[bytes]:
    """All values, whatever interrupts the polls."""
    forms = (
        lambda: [r.value for run in consumer.poll(10_000, 70).values() for r in run],
        lambda: [v for c in consumer.poll_columns(10_000, 70).values() for v in c.values],
        lambda: [next(consumer).value],
    )
    found = turn = 0
    while found < COUNT:
        turn += 1
        try:
            values = forms[turn % 3]()
        except Interruption:
            continue
        found += len(values)
        yield from values


def test_a_signal_while_the_loop_reads_loses_nothing(broker: Broker) -> None:
    sent: list[bytes] = []

    def read(data: bytes) -> bytes:
        if data.endswith(b"50") and data not in sent:
            sent.append(data)
            if waiting.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return data

    waiting = threading.Event()
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=read,
        max_partition_fetch_bytes=2_000,
    ) as consumer:
        consumer.assign([P0])
        call = consumer._portal.call

        def marked(*arguments: object, **options: object) -> object:
            """Only while the main thread waits for the loop may a signal come."""
            waiting.set()
            try:
                return call(*arguments, **options)  # type: ignore[arg-type]
            finally:
                waiting.clear()

        consumer._portal.call = marked  # type: ignore[method-assign, assignment]
        found = list(read_on(consumer))
    assert found == [b"%d" % number for number in range(COUNT)]
    assert len(sent) == COUNT // 100


class Interrupting(ConsumerInterceptor):
    """Raises at every other call."""

    def __init__(self) -> None:
        self.calls = 0

    def on_records(self, records: object) -> None:
        self.calls += 1
        if self.calls % 2:
            raise Interruption


@pytest.mark.parametrize("form", ["records", "columns"])
def test_what_an_interceptor_was_interrupted_with_is_returned_by_the_next_poll(
    broker: Broker, form: str
) -> None:
    found: list[object] = []
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        interceptors=[Interrupting()],
    ) as consumer:
        consumer.assign([P0])
        while len(found) < COUNT:
            before = consumer.position(P0)
            try:
                if form == "records":
                    for run in consumer.poll(10_000, 170).values():
                        found += [record.value for record in run]
                else:
                    for columns in consumer.poll_columns(10_000, 170).values():
                        found += columns.values
            except Interruption:
                assert consumer.position(P0) == before
        assert consumer.position(P0) == COUNT
    assert found == [b"%d" % number for number in range(COUNT)]


FORMS: dict[str, Callable[[Consumer], list[bytes | None]]] = {
    "records": lambda c: [r.value for run in c.poll(10_000, 7).values() for r in run],
    "columns": lambda c: [v for run in c.poll_columns(10_000, 7).values() for v in run.values],
    "iteration": lambda c: [next(c).value],
}


STEP = 7
"""Every seventh point is tried, from another one on in each run; all of them take minutes."""


@pytest.mark.parametrize("form", FORMS)
def test_interrupted_at_any_point_a_poll_loses_nothing(broker: Broker, form: str) -> None:
    take = FORMS[form]
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([P0])
        for point in range(random.randrange(STEP), POINTS_MAX, STEP):
            consumer.seek(P0, 0)
            found = [] if point % 2 else take(consumer)  # Whether some are read ahead.
            interrupt = InterruptAt(point // 2)
            found += interrupt.run(lambda: take(consumer)) or []
            while len(found) < 20:
                found += take(consumer)
            assert found == [b"%d" % number for number in range(len(found))], point
            if point % 2 and not interrupt.happened:
                break
        else:
            raise AssertionError(f"a poll has more than {POINTS_MAX // 2} points")
    assert point > 10, "the points of a poll were not seen"
