"""Goal: a session is exactly-once on real sockets, through crashes, rebalances and zombies.

Method: the in-process broker; members are sessions in this process or in processes of their own,
which are killed, stopped past their session timeout, and continued.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import (
    Workers,
    committed_offsets,
    committed_values,
    ends,
    fill,
    wait_for,
    wait_for_values,
    workers_in,
)

from onceflow.broker_lite import Broker
from onceflow.transactions import (
    AsyncTransactionSession,
    SessionConfig,
    TransactionalIdInUseError,
    TransactionSession,
)

SETTINGS = {"group.min.session.timeout.ms": 100}

MEMBER = """
import sys, time
from onceflow.transactions import SessionConfig, TransactionSession

bootstrap, slot, stage, pause = sys.argv[1:5]
config = SessionConfig(
    topics=["in"], bootstrap_servers=bootstrap, group_id="g", slot=slot,
    session_timeout_ms=2_000, transaction_timeout_ms=2_000, max_poll_interval_ms=6_000,
    revoke_budget_ms=1_000, consumer_settings={"heartbeat_interval_ms": 200},
)
with TransactionSession(config) as session:
    while True:
        batches = session.poll(100, 20)
        for records in batches.values():
            for record in records:
                session.send("out", record.value, key=record.key)
        if batches:
            print("processed", flush=True)
            time.sleep(float(pause))
            done = session.commit()
            print("committed" if done else f"aborted {session.last_abort}", flush=True)
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=2)
        yield broker


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def config_for(broker: Broker, **changes: object) -> SessionConfig:
    settings: dict[str, object] = {
        "topics": ["in"],
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
    }
    return SessionConfig(**(settings | changes))  # type: ignore[arg-type]


def take(session: TransactionSession, count: int) -> int:
    """Poll and pass on until that many records were taken."""
    taken = 0
    deadline = time.monotonic() + 60
    while taken < count:
        assert time.monotonic() < deadline
        for records in session.poll(200).values():
            for record in records:
                session.send("out", record.value, key=record.key)
            taken += len(records)
    return taken


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_outputs_and_offsets_are_committed_together(broker: Broker) -> None:
    fill(broker.bootstrap_servers, "in", numbers(100), numbers(100))
    with TransactionSession(config_for(broker)) as session:
        take(session, 100)
        assert committed_values(broker.bootstrap_servers, "out") == []
        assert session.commit()
    wait_for_values(broker.bootstrap_servers, "out", numbers(100))
    assert sum(committed_offsets(broker.bootstrap_servers, "g", "in", 2)) == 100


def test_abort_reads_the_input_again(broker: Broker) -> None:
    """Field case 29, part A."""
    fill(broker.bootstrap_servers, "in", numbers(10), numbers(10))
    with TransactionSession(config_for(broker)) as session:
        take(session, 10)
        session.abort()
        assert committed_offsets(broker.bootstrap_servers, "g", "in", 2) == [0, 0]
        take(session, 10)
        assert session.commit()
    wait_for_values(broker.bootstrap_servers, "out", numbers(10))


async def test_asyncio_face(broker: Broker) -> None:
    fill(broker.bootstrap_servers, "in", numbers(50), numbers(50))
    async with AsyncTransactionSession(config_for(broker)) as session:
        taken = 0
        async for record in session.records(200):
            await session.send("out", record.value, key=record.key)
            taken += 1
            if taken == 50:
                break
        assert await session.commit()
    wait_for_values(broker.bootstrap_servers, "out", numbers(50))


def test_restart_after_a_kill_does_not_wait_for_the_transaction_timeout(
    broker: Broker, workers: Workers
) -> None:
    """Trap 9: InitProducerId under the stable id ends the predecessor's transaction."""
    fill(broker.bootstrap_servers, "in", numbers(10), numbers(10))
    member = workers.start(MEMBER, broker.bootstrap_servers, "0", "-", "60")
    wait_for(lambda: "processed" in member.output(), "first batch")
    member.kill()
    started = time.monotonic()
    with TransactionSession(config_for(broker)) as session:
        take(session, 10)
        assert session.commit()
    assert time.monotonic() - started < 40
    wait_for_values(broker.bootstrap_servers, "out", numbers(10))
    stable, high = ends(broker.bootstrap_servers, "out", 2)
    assert stable == high


def test_rebalance_between_process_and_commit(broker: Broker, workers: Workers) -> None:
    """aiokafka #844: a second member joins while the first holds uncommitted work."""
    values = numbers(200)
    fill(broker.bootstrap_servers, "in", values, values)
    first = workers.start(MEMBER, broker.bootstrap_servers, "0", "-", "0.3")
    wait_for(lambda: "processed" in first.output(), "first batch")
    second = workers.start(MEMBER, broker.bootstrap_servers, "1", "-", "0.1")

    def second_had_work() -> bool:
        # However late it starts, there is work left for it.
        more = [b"%d" % number for number in range(len(values), len(values) + 10)]
        fill(broker.bootstrap_servers, "in", more, more)
        values.extend(more)
        return "committed" in second.output()

    wait_for(second_had_work, "a commit of the second member")
    wait_for(
        lambda: sum(committed_offsets(broker.bootstrap_servers, "g", "in", 2)) == len(values),
        "all committed",
    )
    wait_for_values(broker.bootstrap_servers, "out", values)


def test_zombie_that_wakes_up_commits_nothing(broker: Broker, workers: Workers) -> None:
    """Stopped past its session timeout with work in hand; another member does the work."""
    fill(broker.bootstrap_servers, "in", numbers(40), numbers(40))
    zombie = workers.start(MEMBER, broker.bootstrap_servers, "0", "-", "0.5")
    wait_for(lambda: "processed" in zombie.output(), "first batch")
    zombie.signal(signal.SIGSTOP)
    workers.start(MEMBER, broker.bootstrap_servers, "1", "-", "0")
    wait_for(
        lambda: sum(committed_offsets(broker.bootstrap_servers, "g", "in", 2)) == 40,
        "the other member did all",
    )
    zombie.signal(signal.SIGCONT)
    wait_for(lambda: "aborted" in zombie.output(), "the zombie noticed")
    fill(broker.bootstrap_servers, "in", [b"more"] * 20, numbers(20))
    wait_for(
        lambda: sum(committed_offsets(broker.bootstrap_servers, "g", "in", 2)) == 60,
        "both go on",
    )
    wait_for_values(broker.bootstrap_servers, "out", numbers(40) + [b"more"] * 20)


def test_shared_slot_is_reported(broker: Broker) -> None:
    """Trap 10: two live sessions under one id."""
    fill(broker.bootstrap_servers, "in", numbers(4), numbers(4))
    with TransactionSession(config_for(broker)) as first:
        for _ in range(2):
            take(first, 4)
            steal_id(broker)
            assert first.commit() is False
        take(first, 4)
        steal_id(broker)
        with pytest.raises(TransactionalIdInUseError, match="'g-0' is shared"):
            first.commit()


def steal_id(broker: Broker) -> None:
    config = config_for(broker, group_id="h", transactional_id="g-0")
    TransactionSession(config).close()
