"""Goal: a session that one thread polls refuses calls of another thread that would end its work.

Method: a poll waits for records in this thread; a second thread calls until it is refused, and then
wakes the poll. Afterwards each thread may call again. A session of Kafka transactions, one with a
sink.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import TopicPartition
from onceflow.sdk.errors import IllegalStateError
from onceflow.transactions import TransactionSession
from onceflow.transactions.sinks import SinkSession, Sqlite

DEADLINE_S = 30.0
AnySession = TransactionSession | SinkSession


def transactions(broker: Broker, path: Path) -> AnySession:
    return TransactionSession(
        topics=["in"], bootstrap_servers=broker.bootstrap_servers, group_id="g"
    )


def sink(broker: Broker, path: Path) -> AnySession:
    with contextlib.closing(sqlite3.connect(path / "rows.db")) as connection:
        connection.execute("CREATE TABLE rows (text)")
    rows = Sqlite(path / "rows.db", "rows")
    return SinkSession(
        rows, topics=["in"], bootstrap_servers=broker.bootstrap_servers, group_id="g"
    )


def refused(session: AnySession, call: Callable[[], object]) -> list[str]:
    """Poll here, and make a call elsewhere until it is refused; return what the error says."""
    found: list[str] = []
    until_s = time.monotonic() + DEADLINE_S

    def beside() -> None:
        while not found and time.monotonic() < until_s:
            try:
                call()
            except IllegalStateError as error:
                found.append(str(error))
        session.wakeup()

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        while thread.is_alive():
            with contextlib.suppress(IllegalStateError):  # The other thread was within its call.
                session.poll(1_000)
    finally:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (transactions, "commit"),
        (transactions, "abort"),
        (transactions, "put_back"),
        (sink, "commit"),
        (sink, "abort"),
    ],
)
def test_another_thread_may_not_end_the_work_of_a_poll(
    tmp_path: Path, make: Callable[[Broker, Path], AnySession], name: str
) -> None:
    with Broker() as broker:
        broker.create_topic("in", partitions=1)
        with make(broker, tmp_path) as session:
            session.poll(0)
            arguments = ([TopicPartition("in", 0)],) if name == "put_back" else ()
            call = getattr(session, name)
            (error,) = refused(session, lambda: call(*arguments))
            assert f"{name}() while another thread" in error
            call(*arguments)
            session.poll(0)
