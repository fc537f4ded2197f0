"""Goal: no error that a broker may answer ends a worker that could go on, or makes it wrong.

Method: a counting worker on the in-process broker. Each request that it sends is answered once with
each retriable or abortable code, while records come; all outputs must come, once and in order.
Then errors that show in a send: a delivery that fails, a fence, a second worker under one slot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import wait_for
from running_apps import running

from onceflow.broker_lite.testing import Broker, Fault
from onceflow.broker_lite.testing.committed import KafkaRecords
from onceflow.processors import App, SlotInUseError, State
from onceflow.sdk import Producer
from onceflow.sdk.errors import AbortableError, BrokerError, RetriableError
from onceflow.sdk.protocol.error_codes import ErrorCode

CODES = [
    ErrorCode(code)
    for code, kind in sorted(BrokerError.by_code.items())
    if issubclass(kind, AbortableError | RetriableError)
]
AT_WORK = [
    "AddPartitionsToTxn",
    "EndTxn",
    "Fetch",
    "Heartbeat",
    "Metadata",
    "OffsetFetch",
    "Produce",
    "TxnOffsetCommit",
]
"""Requests that a worker sends again and again."""

AT_THE_START = ["FindCoordinator", "InitProducerId", "JoinGroup", "ListOffsets", "SyncGroup"]
"""Requests of a start, also of the one in place that follows trouble."""

AT_A_START = [
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.UNKNOWN_MEMBER_ID,
]
"""Codes that starts are tried with in each run of the suite; all of them under ``make chaos``."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with Broker(settings=settings) as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=1)
        yield broker


def counting(broker: Broker, state_dir: Path, **settings: object) -> App:
    app = App(
        "counting",
        broker.bootstrap_servers,
        state_dir=state_dir,
        client_id="worker",
        **{
            "commit_interval_ms": 10,
            "transaction_timeout_ms": 2_000,
            "session_timeout_ms": 3_000,
            "heartbeat_interval_ms": 100,
            "operation_timeout_ms": 3_000,
            "retry_backoff_ms": 10,
        }
        | settings,  # type: ignore[arg-type]
    )

    @app.processor("in", to="out")
    def count(value: bytes, seen: State[int]) -> bytes:
        seen.set(seen.get(0) + 1)
        return b"%s:%d" % (value, seen.get())

    return app


def outputs(broker: Broker) -> list[bytes | None]:
    return KafkaRecords(broker).committed("out").values


class Feeder:
    """Writes numbered records and waits for their outputs."""

    def __init__(self, broker: Broker, ended: list[BaseException]) -> None:
        self.broker = broker
        self.ended = ended
        self.producer = Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0)
        self.count = 0

    def feed(self, what: str) -> None:
        for _ in range(2):
            self.producer.send("in", b"%d" % self.count, key=b"k").result(10)
            self.count += 1
        wanted = [b"%d:%d" % (number, number + 1) for number in range(self.count)]
        wait_for(lambda: bool(self.ended) or len(outputs(self.broker)) >= self.count, what)
        assert self.ended == [], what
        assert outputs(self.broker) == wanted, what

    def close(self) -> None:
        self.producer.close()


@pytest.mark.slow
@pytest.mark.parametrize("request_name", AT_WORK)
def test_every_code_in_every_request_of_a_worker(
    broker: Broker, tmp_path: Path, request_name: str
) -> None:
    with running(counting(broker, tmp_path)) as ended:
        feeder = Feeder(broker, ended)
        try:
            feeder.feed("the start")
            for code in CODES:
                broker.faults.add(request_name, Fault.ERROR, error=code, client_id="worker")
                feeder.feed(f"{request_name} answered with {code.name}")
                broker.faults.clear()
        finally:
            feeder.close()


def start_in_place(broker: Broker, tmp_path: Path, name: str, codes: list[ErrorCode]) -> None:
    """Have the coordinator lose the member and fence the producer: a start follows, in place."""
    with running(counting(broker, tmp_path)) as ended:
        feeder = Feeder(broker, ended)
        try:
            feeder.feed("the start")
            for code in codes:
                lost, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.PRODUCER_FENCED
                broker.faults.add(name, Fault.ERROR, error=code, client_id="worker")
                broker.faults.add("Heartbeat", Fault.ERROR, error=lost, client_id="worker")
                broker.faults.add("EndTxn", Fault.ERROR, error=fenced, client_id="worker")
                feeder.feed(f"{name} answered with {code.name}")
                broker.faults.clear()
        finally:
            feeder.close()


@pytest.mark.slow
@pytest.mark.parametrize("request_name", AT_THE_START)
def test_codes_in_every_request_of_a_start_in_place(
    broker: Broker, tmp_path: Path, request_name: str
) -> None:
    start_in_place(broker, tmp_path, request_name, AT_A_START)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("request_name", AT_THE_START)
def test_every_code_in_every_request_of_a_start_in_place(
    broker: Broker, tmp_path: Path, request_name: str
) -> None:
    start_in_place(broker, tmp_path, request_name, CODES)


def test_delivery_that_fails_in_a_send_aborts(broker: Broker, tmp_path: Path) -> None:
    """Acknowledgements stay away for longer than ``delivery_timeout_ms``; the failure shows in a
    send, long before a commit."""
    app = counting(
        broker,
        tmp_path,
        transaction_timeout_ms=1_000,
        delivery_timeout_ms=600,
        producer_settings={"request_timeout_ms": 300},
        commit_interval_ms=900,
        max_poll_records=1,
    )
    with running(app) as ended:
        feeder = Feeder(broker, ended)
        try:
            feeder.feed("the start")
            held = broker.faults.add("Produce", Fault.HOLD, topic="out", times=None)
            for number in range(4):
                feeder.producer.send("in", b"%d" % (feeder.count + number), key=b"k").result(10)
            feeder.count += 4
            wait_for(lambda: len(held.held) >= 2, "requests that are held")
            broker.faults.clear()
            feeder.feed("after the failure")
        finally:
            feeder.close()


def test_frozen_for_longer_than_its_transaction(broker: Broker, tmp_path: Path) -> None:
    """As after SIGSTOP: the coordinator has aborted, records are refused for their epoch."""
    gate, entered = threading.Event(), threading.Event()
    app = App(
        "frozen",
        broker.bootstrap_servers,
        state_dir=tmp_path,
        transaction_timeout_ms=500,
        commit_interval_ms=400,
        max_poll_records=1,
    )

    @app.processor("in", to="out")
    def handle(value: bytes) -> bytes:
        if value == b"1" and not entered.is_set():
            entered.set()
            assert gate.wait(20)
        return value

    with running(app) as ended, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(3):
            producer.send("in", b"%d" % number, partition=0).result(10)
        assert entered.wait(20)
        broker.advance(1_500)  # Three times the transaction timeout.
        gate.set()
        wait_for(lambda: bool(ended) or len(outputs(broker)) >= 3, "all outputs")
        assert ended == []
    assert outputs(broker) == [b"0", b"1", b"2"]


def test_two_live_workers_under_one_slot(broker: Broker, tmp_path: Path) -> None:
    """The older one ends with the reason, after at most two fencings; the newer one works."""
    older = counting(broker, tmp_path / "older", slot="same")
    newer = counting(broker, tmp_path / "newer", slot="same")
    with running(older) as older_ended:
        feeder = Feeder(broker, older_ended)
        try:
            feeder.feed("the older one at work")
            with running(newer) as newer_ended:
                wait_for(lambda: bool(older_ended) or bool(newer_ended), "one of them ends")
                assert newer_ended == []
                (error,) = older_ended
                assert isinstance(error, SlotInUseError)
                assert "slot 'same' of application counting is used by another" in str(error)
                feeder.ended = newer_ended
                feeder.feed("the newer one at work")
        finally:
            feeder.close()
