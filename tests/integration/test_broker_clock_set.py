"""Goal: a machine that slept, or whose clock was set, costs nobody anything: records with the
present time are taken, nobody's timeout is shorter by it, nothing is removed before its time.

Method: the broker's two sources of time are replaced by ones that a test sets apart, as a sleeping
machine does (its monotonic clock stands still) and as whoever sets its clock; real connections.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_requests import fetch_request, produce
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker
from onceflow.broker_lite import clock as broker_clock
from onceflow.broker_lite.broker import BrokerState
from onceflow.broker_lite.clock import SystemClock
from onceflow.broker_lite.coordinators.offset_commits import Committer, OffsetToCommit
from onceflow.broker_lite.coordinators.transactions.states import TransactionEntry
from onceflow.broker_lite.purgatory import Timers
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

SECOND_MS = 1000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
PARTITION = TopicPartition("t", 0)


class SystemTime:
    """The module ``time`` of a machine whose wall clock is set."""

    perf_counter_ns = staticmethod(time.perf_counter_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.set_by_ms = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.set_by_ms * 1_000_000

    def now_ms(self) -> int:
        return self.time_ns() // 1_000_000


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> SystemTime:
    replaced = SystemTime()
    monkeypatch.setattr(broker_clock, "time", replaced)
    return replaced


@pytest.fixture
async def broker(system: SystemTime) -> AsyncIterator[Broker]:
    async with Broker() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def joined(wire: Wire, session_timeout_ms: int) -> JoinGroupResponse:
    answer = await wire.ask(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        3,
        JoinGroupResponse,
    )
    share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"")
    request = SyncGroupRequest(
        group_id="g",
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        assignments=[share],
    )
    assert (await wire.ask(request, 3, SyncGroupResponse)).error_code == 0
    return answer


async def test_records_of_now_are_taken_after_the_machine_slept(
    system: SystemTime, broker: Broker, wire: Wire
) -> None:
    assert not (await produce(wire, "t", batch(b"1", timestamp_ms=system.now_ms()))).error_code
    for _ in range(2):
        system.set_by_ms += 8 * HOUR_MS
        answer = await produce(wire, "t", batch(b"2", timestamp_ms=system.now_ms()))
        assert (answer.error_code, answer.error_message) == (0, None)


async def test_a_member_is_not_expelled_for_the_time_that_the_machine_slept(
    system: SystemTime, broker: Broker, wire: Wire
) -> None:
    member = await joined(wire, 20_000)
    beat = HeartbeatRequest(
        group_id="g", generation_id=member.generation_id, member_id=member.member_id
    )
    for _ in range(3):
        broker.advance(15_000)  # Its session is over soon, and its timer due before.
        system.set_by_ms += 8 * HOUR_MS
        broker.advance(4_000)
        assert (await wire.ask(beat, 3, HeartbeatResponse)).error_code == 0
    broker.advance(20_001)
    assert (await wire.ask(beat, 3, HeartbeatResponse)).error_code != 0


async def test_long_polls_and_connections_go_on(
    system: SystemTime, broker: Broker, wire: Wire
) -> None:
    async with Wire(broker) as idle:
        assert not (await produce(idle, "t", batch(b"1"))).error_code
        wire.send(fetch_request("t", 1, max_wait_ms=HOUR_MS, min_bytes=1), 12)
        await until(lambda: len(broker.state.purgatory) == 1)
        system.set_by_ms += 8 * HOUR_MS
        broker.advance(1)  # All timers that are due by now run.
        assert not (await produce(idle, "t", batch(b"2"))).error_code
        answer = await wire.receive()
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].records


def aged_state(broker: Broker) -> tuple[int, bool, bool]:
    """Start of the log, whether the group's offset is there, whether the transactional id is."""

    def look(state: BrokerState, now_ms: int) -> tuple[int, bool, bool]:
        log = state.topics.partition("t", 0)
        assert log is not None
        offsets = state.groups.offsets.fetch("g", [PARTITION], require_stable=False)
        known = state.transactions.describe("x")
        return (
            log.log_start_offset,
            offsets[PARTITION].committed_offset == 1,
            isinstance(known, TransactionEntry),
        )

    return broker.call(look)


def commit_and_init(state: BrokerState, now_ms: int) -> None:
    offset = OffsetToCommit(PARTITION, 1)
    assert state.groups.offsets.commit(Committer("g"), [offset], now_ms)[PARTITION] == 0
    assert state.transactions.init_producer_id("x", SECOND_MS, -1, -1, now_ms).error_code == 0


async def test_nothing_is_removed_by_a_clock_that_was_ahead_and_is_set_right(
    system: SystemTime, tmp_path: Path
) -> None:
    settings = {
        "log.retention.ms": HOUR_MS,
        "offsets.retention.minutes": 60,
        "transactional.id.expiration.ms": HOUR_MS,
    }
    async with Broker(data=tmp_path, settings=settings) as broker, Wire(broker) as wire:
        broker.create_topic("t")
        answer = await produce(wire, "t", batch(b"1", timestamp_ms=system.now_ms()))
        assert not answer.error_code
        broker.call(commit_and_init)
    system.set_by_ms = YEAR_MS
    async with Broker(data=tmp_path, settings=settings) as broker:
        system.set_by_ms = 0
        broker.advance(HOUR_MS // 2)
        broker.advance(HOUR_MS // 3)  # Everything that looks at ages did so by now.
        assert aged_state(broker) == (0, True, True)
        broker.advance(HOUR_MS)
        broker.advance(HOUR_MS)  # Their time came, by the clock of the system.
        assert aged_state(broker) == (1, False, False)


def test_the_clock_follows_forward_and_never_goes_back(system: SystemTime) -> None:
    clock = SystemClock()
    told = []
    clock.on_set = lambda forward_ms, ahead_ms: told.append(
        (round(forward_ms, -3), round(ahead_ms, -3))
    )
    before = clock()
    system.set_by_ms = -10 * SECOND_MS
    assert 0 <= clock() - before < SECOND_MS
    system.set_by_ms = -4 * SECOND_MS
    assert 0 <= clock() - before < SECOND_MS
    system.set_by_ms = 20 * SECOND_MS
    assert 20 * SECOND_MS <= clock() - before < 21 * SECOND_MS
    clock()
    assert told == [(0, 10_000), (0, 4_000), (20_000, 0)]


def test_timers_that_are_shifted_keep_their_order_and_can_be_cancelled() -> None:
    timers, ran = Timers(), []
    timers.schedule(20, lambda now_ms: ran.append("second"))
    gone = timers.schedule(15, lambda now_ms: ran.append("cancelled"))
    first = timers.schedule(10, lambda now_ms: ran.append("first"))
    timers.shift(100)
    gone.cancel()
    assert (first.at_ms, timers.next_deadline_ms(), timers.run_due(109)) == (110, 110, 0)
    assert (timers.run_due(120), ran) == (2, ["first", "second"])
