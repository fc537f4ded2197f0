"""Goal: lost answers, timeouts and coordinator errors never lose or double anything.

Method: the in-process broker answers single requests wrongly, late or not at all; a session works
through its input all the same, and says what happened.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterator

import pytest
from processor_processes import committed_offsets, committed_values, ends, fill

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk.protocol.api.groups import HeartbeatRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.transactions import AbortReason, SessionConfig, TransactionSession

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=2)
        yield broker


def config_for(broker: Broker, **changes: object) -> SessionConfig:
    settings: dict[str, object] = {
        "topics": ["in"],
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
        "operation_timeout_ms": 3_000,
        "session_timeout_ms": 6_000,
        "transaction_timeout_ms": 6_000,
        "producer_settings": {"request_timeout_ms": 1_000},
    }
    return SessionConfig(**(settings | changes))  # type: ignore[arg-type]


VALUES = [b"%d" % number for number in range(60)]


def work_through(broker: Broker, session: TransactionSession) -> list[bool]:
    """Pass all input on in transactions of at most ten records."""
    outcomes = []
    deadline = time.monotonic() + 60
    while sum(committed_offsets(broker.bootstrap_servers, "g", "in", 2)) < len(VALUES):
        assert time.monotonic() < deadline, outcomes
        batches = session.poll(200, 10)
        for records in batches.values():
            for record in records:
                session.send("out", record.value, key=record.key)
        if batches:
            outcomes.append(session.commit())
    return outcomes


def check(broker: Broker) -> None:
    found = collections.Counter(committed_values(broker.bootstrap_servers, "out"))
    assert found == collections.Counter(VALUES)
    stable, high = ends(broker.bootstrap_servers, "out", 2)
    assert stable == high


@pytest.mark.parametrize(
    ("request_type", "fault", "options"),
    [
        (EndTxnRequest, Fault.DROP_ANSWER, {}),
        (EndTxnRequest, Fault.DROP_REQUEST, {}),
        (EndTxnRequest, Fault.ERROR, {"error": ErrorCode.UNKNOWN_SERVER_ERROR}),
        (EndTxnRequest, Fault.ERROR, {"error": ErrorCode.CONCURRENT_TRANSACTIONS}),
        (EndTxnRequest, Fault.ERROR, {"error": ErrorCode.NOT_COORDINATOR}),
        (EndTxnRequest, Fault.ERROR, {"error": ErrorCode.INVALID_PRODUCER_EPOCH}),
        (EndTxnRequest, Fault.ERROR, {"error": ErrorCode.TRANSACTION_ABORTABLE}),
        (TxnOffsetCommitRequest, Fault.DROP_ANSWER, {}),
        (TxnOffsetCommitRequest, Fault.ERROR, {"error": ErrorCode.ILLEGAL_GENERATION}),
        (TxnOffsetCommitRequest, Fault.ERROR, {"error": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}),
        (ProduceRequest, Fault.DROP_ANSWER, {}),
        (ProduceRequest, Fault.ERROR, {"error": ErrorCode.INVALID_PRODUCER_EPOCH}),
        (ProduceRequest, Fault.ERROR, {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER}),
        (HeartbeatRequest, Fault.ERROR, {"error": ErrorCode.UNKNOWN_MEMBER_ID}),
        (InitProducerIdRequest, Fault.ERROR, {"error": ErrorCode.CONCURRENT_TRANSACTIONS}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value, "name", None),
)
def test_fault_in_the_middle_of_the_work(
    broker: Broker, request_type: type, fault: Fault, options: dict[str, object]
) -> None:
    """Traps 13, 18 to 21: every record once, whatever single answer fails."""
    fill(broker.bootstrap_servers, "in", VALUES, VALUES)
    broker.faults.add(request_type, fault, times=2, **options)  # type: ignore[arg-type]
    with TransactionSession(config_for(broker)) as session:
        work_through(broker, session)
    check(broker)


def test_transaction_timeout_in_the_middle_of_a_batch(broker: Broker) -> None:
    """Trap 18: the coordinator aborts; the session starts anew and goes on."""
    fill(broker.bootstrap_servers, "in", VALUES, VALUES)
    config = config_for(broker, transaction_timeout_ms=1_000, producer_settings={"linger_ms": 0})
    with TransactionSession(config) as session:
        records = [r for batch in session.poll(5_000, 5).values() for r in batch]
        for record in records:
            session.send("out", record.value, key=record.key)
        threading.Event().wait(2.5)
        assert session.commit() is False
        assert session.last_abort is not None
        assert session.last_abort.reason in (AbortReason.INVALID_EPOCH, AbortReason.ABORTABLE)
        work_through(broker, session)
    check(broker)
