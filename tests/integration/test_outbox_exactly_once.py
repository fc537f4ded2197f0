"""Goal: the relay sends each committed row of an outbox once, in the order of its key.

Method: the in-process broker and a schema of PostgreSQL for each test; services put rows in
transactions that overlap; the relay is killed at each step, sleeps past its failover time, loses
its connection, and meets rows that no broker takes.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer, execute, rows_of
from processor_processes import Worker, Workers, read_all, wait_for, workers_in

from onceflow.broker_lite import Broker
from onceflow.sdk import Producer
from onceflow.sdk.errors import ConfigError, IllegalStateError, InvalidTopicError
from onceflow.transactions import TransactionalIdInUseError
from onceflow.transactions.outbox import Outbox, OutboxRelay, OutboxRowError

RELAY = """
import os, signal, sys
from onceflow.transactions.outbox import OutboxRelay

bootstrap, dsn, moment, failover = sys.argv[1:5]

def observe(found):
    if found == moment:
        print("there", flush=True)
        os.kill(os.getpid(), signal.SIGKILL if failover == "0" else signal.SIGSTOP)

with OutboxRelay(
    dsn, bootstrap_servers=bootstrap, observer=observe, poll_interval_ms=100, batch_rows=10,
    failover_ms=int(failover) or 30_000,
) as relay:
    relay.run(until_empty=failover == "0")
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders", partitions=2)
        yield broker


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    dsn = postgres.schema()
    with psycopg.connect(dsn) as connection:
        Outbox().make(connection)
        Outbox().make(connection)  # is there already
    return dsn


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def put(dsn: str, *numbers: int) -> None:
    """As a service does, all in one transaction."""
    with psycopg.connect(dsn) as connection:
        for number in numbers:
            Outbox().put(connection, "orders", b"%d" % number, key=b"key %d" % (number % 3))


def sent(broker: Broker) -> list[int]:
    return [int(record.value or b"") for record in read_all(broker.bootstrap_servers, "orders")]


def left(dsn: str) -> int:
    return len(rows_of(dsn, "SELECT id FROM onceflow_outbox"))


def relay_of(broker: Broker, dsn: str, **settings: object) -> OutboxRelay:
    return OutboxRelay(dsn, bootstrap_servers=broker.bootstrap_servers, **settings)  # type: ignore[arg-type]


def relay_all(broker: Broker, dsn: str, **settings: object) -> int:
    with relay_of(broker, dsn, **settings) as relay:
        return relay.run(until_empty=True)


def in_order_of_keys(numbers: list[int]) -> bool:
    return all(
        mine == sorted(mine) for key in range(3) for mine in [[n for n in numbers if n % 3 == key]]
    )


def test_rows_are_sent_as_they_were_put_and_deleted(broker: Broker, dsn: str) -> None:
    headers = [("a", b"1"), ("b", None)]
    with psycopg.connect(dsn) as connection:
        Outbox().put(
            connection, "orders", b"v", key=b"k", headers=headers, partition=1, timestamp_ms=7
        )
        Outbox().put(connection, "orders", None, headers=[("message-id", b"mine")])
    assert relay_all(broker, dsn) == 2
    found = {r.value: r for r in read_all(broker.bootstrap_servers, "orders")}
    record = found[b"v"]
    assert (record.partition, record.key, record.timestamp_ms) == (1, b"k", 7)
    assert list(record.headers) == [*headers, ("message-id", b"outbox-1")]
    assert list(found[None].headers) == [("message-id", b"mine")]
    assert left(dsn) == 0
    assert relay_all(broker, dsn) == 0


def test_what_a_service_rolls_back_is_not_sent(broker: Broker, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        Outbox().put(connection, "orders", b"1")
        connection.rollback()
        Outbox().put(connection, "orders", b"2")
    assert relay_all(broker, dsn) == 1
    assert sent(broker) == [2]


async def test_asyncio_services_put_rows(broker: Broker, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await Outbox().put_async(connection, "orders", b"5", key=b"k")
    assert relay_all(broker, dsn) == 1
    assert sent(broker) == [5]


def test_a_row_that_commits_behind_later_ids_is_not_passed_over(broker: Broker, dsn: str) -> None:
    """Ids are given at the insert and not at the commit."""
    with psycopg.connect(dsn) as slow:
        Outbox().put(slow, "orders", b"1")
        put(dsn, 2, 3)
        assert relay_all(broker, dsn) == 2
        slow.commit()
    assert relay_all(broker, dsn) == 1
    assert sorted(sent(broker)) == [1, 2, 3]


def test_batches_are_bounded_and_keys_keep_their_order(broker: Broker, dsn: str) -> None:
    reads: list[str] = []
    put(dsn, *range(50))
    assert relay_all(broker, dsn, batch_rows=7, observer=reads.append) == 50
    assert reads.count("after delete") == 8
    numbers = sent(broker)
    assert sorted(numbers) == list(range(50))
    assert in_order_of_keys(numbers)
    reads.clear()
    with psycopg.connect(dsn) as connection:
        for _ in range(3):
            Outbox().put(connection, "orders", b"7" * 1000)
    assert relay_all(broker, dsn, batch_bytes=500, observer=reads.append) == 3
    assert reads.count("after delete") == 3


STEPS = ("read", "send", "commit", "delete")


@pytest.mark.parametrize("moment", [f"{when} {s}" for s in STEPS for when in ("before", "after")])
def test_a_killed_relay_sends_each_row_once(
    broker: Broker, dsn: str, tmp_path: Path, moment: str
) -> None:
    put(dsn, *range(25))
    (tmp_path / "relay.py").write_text(RELAY)
    program = [sys.executable, "relay.py", broker.bootstrap_servers, dsn, moment, "0"]
    for _ in range(2):
        done = subprocess.run(program, cwd=tmp_path, check=False)
        assert done.returncode == -signal.SIGKILL
    relay_all(broker, dsn)
    numbers = sent(broker)
    assert sorted(numbers) == list(range(25))
    assert in_order_of_keys(numbers)
    assert left(dsn) == 0


def test_a_relay_that_stands_by_waits_between_two_tries(broker: Broker, dsn: str) -> None:
    with relay_of(broker, dsn) as working, relay_of(broker, dsn) as waiting:
        assert working._take_over()
        assert not waiting._take_over()
        put(dsn, 1)
        waiting._wait()  # until it is notified of the row
        assert not waiting._take_over()
        assert not waiting._take_over()
        assert not waiting._notified  # or its next wait would end at once, and each one after it


@pytest.mark.parametrize("moment", ["before finish", "after finish"])
def test_a_relay_that_is_killed_while_it_finishes_what_another_began(
    broker: Broker, dsn: str, tmp_path: Path, moment: str
) -> None:
    put(dsn, *range(25))
    (tmp_path / "relay.py").write_text(RELAY)
    for killed_at in ("after commit", moment):
        program = [sys.executable, "relay.py", broker.bootstrap_servers, dsn, killed_at, "0"]
        assert subprocess.run(program, cwd=tmp_path, check=False).returncode == -signal.SIGKILL
        assert sorted(sent(broker)) == list(range(10))  # sent once, by the first
    relay_all(broker, dsn)
    assert sorted(sent(broker)) == list(range(25))
    assert left(dsn) == 0


def start(workers: Workers, broker: Broker, dsn: str, moment: str, failover_ms: int) -> Worker:
    return workers.start(RELAY, broker.bootstrap_servers, dsn, moment, str(failover_ms))


@pytest.mark.parametrize("moment", ["before send", "before commit", "before delete"])
def test_a_relay_that_sleeps_is_replaced_and_sends_nothing_more(
    broker: Broker, dsn: str, workers: Workers, moment: str
) -> None:
    put(dsn, *range(10))
    sleeper = start(workers, broker, dsn, moment, 1_000)
    wait_for(lambda: "there" in sleeper.output(), "the relay sleeps")
    start(workers, broker, dsn, "never", 1_000)
    wait_for(lambda: left(dsn) == 0, "the other relay took over")
    put(dsn, *range(10, 20))
    sleeper.signal(signal.SIGCONT)
    wait_for(lambda: left(dsn) == 0, "all rows are gone")
    wait_for(lambda: len(sent(broker)) >= 20, "all are sent")
    assert sorted(sent(broker)) == list(range(20))
    assert in_order_of_keys(sent(broker))


@contextlib.contextmanager
def running(relay: OutboxRelay) -> Iterator[list[BaseException | int]]:
    """The relay in a thread; gives what it returned or raised."""
    ends: list[BaseException | int] = []

    def run() -> None:
        try:
            ends.append(relay.run())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ends
    finally:
        relay.stop()
        thread.join(60)
        relay.close()
        assert not thread.is_alive()


def test_a_notification_wakes_the_relay(broker: Broker, dsn: str) -> None:
    reads: list[str] = []
    relay = relay_of(
        broker, dsn, poll_interval_ms=600_000, failover_ms=1_800_000, observer=reads.append
    )
    with running(relay) as ends:
        wait_for(lambda: "after read" in reads, "the relay found the table empty")
        put(dsn, 1)
        wait_for(lambda: sent(broker) == [1], "the row was sent")
    assert ends == [1]


def test_without_notifications_the_table_is_looked_at(broker: Broker, dsn: str) -> None:
    execute(dsn, "DROP TRIGGER onceflow_outbox_notify ON onceflow_outbox")
    reads: list[str] = []
    with running(relay_of(broker, dsn, poll_interval_ms=50, observer=reads.append)):
        wait_for(lambda: "after read" in reads, "the relay found the table empty")
        put(dsn, 1)
        wait_for(lambda: sent(broker) == [1], "the row was sent")


@pytest.mark.parametrize("moment", ["after read", "before delete"])
def test_a_lost_connection_to_the_database_is_made_again(
    broker: Broker, dsn: str, moment: str
) -> None:
    relay: OutboxRelay
    cut: list[int] = []

    def observe(found: str) -> None:
        if found == moment and not cut and left(dsn):
            assert relay._connection is not None
            cut.append(relay._connection.info.backend_pid)
            execute(dsn, f"SELECT pg_terminate_backend({cut[0]}, 10000)")

    relay = relay_of(broker, dsn, poll_interval_ms=50, observer=observe)
    put(dsn, 1, 2)
    with running(relay):
        wait_for(lambda: left(dsn) == 0, "the rows are gone")
        put(dsn, 3)
        wait_for(lambda: len(sent(broker)) >= 3, "all were sent")
    assert cut
    assert sorted(sent(broker)) == [1, 2, 3]


@pytest.mark.parametrize(
    "moment", ["after read", "before send", "after send", "before commit", "after commit"]
)
def test_a_run_after_an_interrupted_one_sends_each_row_once(
    broker: Broker, dsn: str, moment: str
) -> None:
    """As in a notebook, where a cell is interrupted and run again."""
    interruptions = [KeyboardInterrupt()]

    def observe(found: str) -> None:
        if found == moment and interruptions:
            raise interruptions.pop()

    put(dsn, 1, 2, 3)
    with relay_of(broker, dsn, observer=observe) as relay:
        with pytest.raises(KeyboardInterrupt):
            relay.run(until_empty=True)
        relay.run(until_empty=True)
    assert sorted(sent(broker)) == [1, 2, 3]
    assert left(dsn) == 0


def test_two_databases_under_one_name_are_told(
    broker: Broker, dsn: str, postgres: PostgresServer
) -> None:
    """Their locks are apart, so that only the fences show it."""

    def steal(moment: str) -> None:
        if moment == "before send":
            Producer(
                bootstrap_servers=broker.bootstrap_servers,
                transactional_id="onceflow-outbox-outbox",
            ).close()

    put(dsn, 1)
    with (
        relay_of(broker, dsn, observer=steal) as relay,
        pytest.raises(TransactionalIdInUseError, match="its own name"),
    ):
        relay.run()
    assert left(dsn) == 1


def test_a_row_that_cannot_be_sent_is_named_and_holds_up_those_behind_it(
    broker: Broker, dsn: str
) -> None:
    put(dsn, 1)
    with psycopg.connect(dsn) as connection:
        Outbox().put(connection, "orders", b"x" * 2_000_000)
    put(dsn, 3)
    with pytest.raises(OutboxRowError, match=r"row 2 for topic orders.*DELETE") as refused:
        relay_all(broker, dsn)
    assert refused.value.row_id == 2
    assert sent(broker) == []  # one transaction
    execute(dsn, "DELETE FROM onceflow_outbox WHERE id = 2")
    assert relay_all(broker, dsn) == 2
    assert sorted(sent(broker)) == [1, 3]


def test_what_could_not_be_sent_is_refused_when_it_is_put(dsn: str) -> None:
    outbox = Outbox()
    with psycopg.connect(dsn) as connection:
        with pytest.raises(InvalidTopicError):
            outbox.put(connection, "no such/topic", b"")
        with pytest.raises(ConfigError, match=r"value.*JSON\.serialize"):
            outbox.put(connection, "orders", {"a": 1})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="partition"):
            outbox.put(connection, "orders", b"", partition=-1)
        with pytest.raises(ConfigError, match="header"):
            outbox.put(connection, "orders", b"", headers=[("a", "text")])  # type: ignore[list-item]
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(IllegalStateError, match="transaction"),
    ):
        outbox.put(connection, "orders", b"")
    assert left(dsn) == 0


def test_what_cannot_work_is_told(broker: Broker, dsn: str, postgres: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="batch_rows"):
        relay_of(broker, dsn, batch_rows=0)
    with pytest.raises(ConfigError, match="failover_ms"):
        relay_of(broker, dsn, failover_ms=1_000)
    with pytest.raises(ConfigError, match="Outbox"):
        relay_all(broker, postgres.schema())
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("onceflow-outbox-mine", b"something else", key=b"sent")
    with pytest.raises(ConfigError, match="not a note"):
        relay_all(broker, dsn, name="mine")


def test_the_latest_note_is_found_behind_many_aborted_ones(broker: Broker, dsn: str) -> None:
    put(dsn, 1)
    relay_all(broker, dsn)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="onceflow-outbox-outbox"
    ) as producer:
        for _ in range(40):
            producer.begin_transaction()
            producer.send("onceflow-outbox-outbox", b"aborted", key=b"sent")
            producer.flush()
            producer.abort_transaction()
    # As after a death between commit and deletion.
    execute(
        dsn,
        "INSERT INTO onceflow_outbox (id, topic, value) OVERRIDING SYSTEM VALUE"
        " VALUES (1, 'orders', '1')",
    )
    started = time.monotonic()
    assert relay_all(broker, dsn) == 0
    assert time.monotonic() - started < 60
    assert sent(broker) == [1]
    assert left(dsn) == 0
