"""Goal: Fetch gives exactly what a reader may see, within the limits, and waits only when it must.

Method: raw requests against a broker in process. Waiting is driven by a virtual clock: a request
that must wait is shown to be parked, then woken by an event or by the clock.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from broker_requests import (
    FETCH_BY_ID,
    FETCH_BY_NAME,
    fetch,
    fetch_request,
    fetched,
    produce,
    topic_metadata,
)
from broker_wire import Wire, batch, until, values_of

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.sdk.protocol.api.admin import DeleteTopicsRequest, DeleteTopicsResponse
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

READ_COMMITTED = 1


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock) as running:
        running.create_topic("t", partitions=3)
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def parked(broker: Broker, wire: Wire) -> None:
    await wire.writer.drain()
    await until(lambda: len(broker.state.purgatory) > 0)


class Transaction:
    """A producer of transactions of version 2 on one connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.sequence = 0

    async def init(self, transactional_id: str = "tx") -> None:
        response = await self.wire.ask(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000),
            5,
            InitProducerIdResponse,
        )
        self.transactional_id = transactional_id
        self.pid, self.epoch = response.producer_id, response.producer_epoch

    async def send(self, *values: bytes) -> None:
        data = batch(
            *values,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        result = await produce(
            self.wire, "t", data, transactional_id=self.transactional_id, api_version=12
        )
        assert result.error_code == 0
        self.sequence += len(values)

    async def end(self, committed: bool) -> None:
        response = await self.wire.ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.pid,
                producer_epoch=self.epoch,
                committed=committed,
            ),
            5,
            EndTxnResponse,
        )
        assert response.error_code == 0
        self.pid, self.epoch, self.sequence = response.producer_id, response.producer_epoch, 0


# --- limits and bounds


@pytest.mark.parametrize("api_version", range(4, 13))
async def test_each_version_by_name_reads_what_was_written(wire: Wire, api_version: int) -> None:
    await produce(wire, "t", batch(b"a", b"b"))
    data = await fetch(wire, "t", api_version=api_version)
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 2, 2)
    assert values_of(data.records) == [b"a", b"b"]


@pytest.mark.parametrize("api_version", range(13, 19))
async def test_each_version_by_id_reads_what_was_written(wire: Wire, api_version: int) -> None:
    await produce(wire, "t", batch(b"a", b"b"))
    topic_id = (await topic_metadata(wire, "t")).topic_id
    data = await fetch(wire, topic_id, api_version=api_version)
    assert values_of(data.records) == [b"a", b"b"]


async def test_first_batch_is_given_over_every_limit(wire: Wire) -> None:
    """Trap 16: or the consumer is stuck for ever; the others obey the budget."""
    for partition in (0, 1):
        await produce(wire, "t", batch(b"x" * 5000), partition=partition)
        await produce(wire, "t", batch(b"y" * 5000), partition=partition)
    request = fetch_request("t", 0, 0, max_bytes=100, partition_max_bytes=10)
    data = fetched(await wire.ask(request, FETCH_BY_NAME, FetchResponse))
    assert values_of(data[0].records) == [b"x" * 5000]
    assert (data[1].error_code, values_of(data[1].records)) == (0, [])


async def test_budget_is_shared_in_the_order_asked(wire: Wire) -> None:
    """Trap 16."""
    for partition in (0, 1, 2):
        await produce(wire, "t", batch(b"x" * 1000), partition=partition)
    request = fetch_request("t", 0, 0, 0, max_bytes=2200)
    data = fetched(await wire.ask(request, FETCH_BY_NAME, FetchResponse))
    assert [len(values_of(data[n].records)) for n in (0, 1, 2)] == [1, 1, 0]


async def test_offset_inside_a_batch_gives_the_whole_batch(wire: Wire) -> None:
    """Trap 17: the client drops the earlier records."""
    await produce(wire, "t", batch(b"a", b"b", b"c"))
    assert values_of((await fetch(wire, "t", 1)).records) == [b"a", b"b", b"c"]


async def test_answer_ends_at_a_batch_border(wire: Wire) -> None:
    """Trap 18."""
    for _ in range(3):
        await produce(wire, "t", batch(b"x" * 1000))
    records = (await fetch(wire, "t", partition_max_bytes=2500)).records
    assert values_of(records) == [b"x" * 1000] * 2
    assert len(bytes(records or b"")) == 2 * len(batch(b"x" * 1000))


async def test_nothing_to_read_is_an_empty_string_not_null(wire: Wire) -> None:
    """Trap 19."""
    data = await fetch(wire, "t")
    assert (data.error_code, data.records) == (0, b"")


async def test_offset_out_of_bounds(broker: Broker, wire: Wire) -> None:
    """Trap 20."""
    await produce(wire, "t", batch(b"a", b"b"))
    broker.state.topics.get("t").partitions[0].delete_records_before(1)  # type: ignore[union-attr]
    assert (await fetch(wire, "t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await fetch(wire, "t", 1)).error_code == 0
    assert (await fetch(wire, "t", 2)).error_code == 0
    assert (await fetch(wire, "t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await fetch(wire, "t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_unknown_topic_partition_and_id(wire: Wire) -> None:
    """Trap 32."""
    assert (await fetch(wire, "nowhere")).error_code == 3
    unknown = uuid.UUID(int=12345)
    assert (await fetch(wire, unknown)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await fetch(wire, uuid.UUID(int=0))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    request = fetch_request("t", partitions={9: 0})
    assert fetched(await wire.ask(request, FETCH_BY_NAME, FetchResponse))[9].error_code == 3


async def test_topic_made_again_has_another_id(broker: Broker, wire: Wire) -> None:
    """Trap 32: old positions are not reused."""
    before = (await topic_metadata(wire, "t")).topic_id
    broker.call(lambda state, now_ms: state.topics.delete(state.topics.get("t"), now_ms))  # type: ignore[arg-type]
    broker.create_topic("t")
    after = (await topic_metadata(wire, "t")).topic_id
    assert before != after
    assert (await fetch(wire, before)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await fetch(wire, after)).error_code == 0


async def test_leader_epoch_of_the_asker_is_compared(wire: Wire) -> None:
    """Trap 31: -1 is not compared."""
    assert (await fetch(wire, "t", current_leader_epoch=0)).error_code == 0
    later = await fetch(wire, "t", current_leader_epoch=1)
    assert later.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- isolation


async def test_committed_reader_stops_at_the_open_transaction(wire: Wire, other: Wire) -> None:
    """Trap 22."""
    await produce(wire, "t", batch(b"before"))
    transaction = Transaction(other)
    await transaction.init()
    await transaction.send(b"open")
    await produce(wire, "t", batch(b"after"))
    data = await fetch(wire, "t", isolation_level=READ_COMMITTED)
    assert (data.high_watermark, data.last_stable_offset) == (3, 1)
    assert values_of(data.records) == [b"before"]
    assert data.aborted_transactions == []
    at_the_border = await fetch(wire, "t", 2, isolation_level=READ_COMMITTED)
    assert (at_the_border.error_code, at_the_border.records) == (0, b"")
    uncommitted = await fetch(wire, "t")
    assert values_of(uncommitted.records) == [b"before", b"open", b"after"]


async def test_aborted_transactions_are_listed_for_committed_readers_only(
    wire: Wire, other: Wire
) -> None:
    """Traps 23, 24, 25 and 26."""
    transaction = Transaction(other)
    await transaction.init()
    await transaction.send(b"dropped")
    await transaction.end(committed=False)
    await transaction.send(b"kept")
    await transaction.end(committed=True)
    data = await fetch(wire, "t", isolation_level=READ_COMMITTED)
    assert [
        (entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or []
    ] == [(transaction.pid, 0)]
    assert data.last_stable_offset == 4
    uncommitted = await fetch(wire, "t")
    assert uncommitted.aborted_transactions is None
    assert values_of(uncommitted.records) == [b"dropped", b"kept"]


async def test_committed_reader_works_where_no_transaction_ever_was(wire: Wire) -> None:
    """Trap 25: some clients always ask so."""
    await produce(wire, "t", batch(b"a"))
    data = await fetch(wire, "t", isolation_level=READ_COMMITTED)
    assert (values_of(data.records), data.aborted_transactions) == ([b"a"], [])


# --- long poll


async def test_fetch_waits_and_is_woken_by_a_produce(
    broker: Broker, wire: Wire, other: Wire, clock: VirtualClock
) -> None:
    """FC-48, 1; trap 21."""
    wire.send(fetch_request("t", 0, max_wait_ms=5_000), FETCH_BY_NAME)
    await parked(broker, wire)
    clock.advance(1_000)
    assert len(broker.state.purgatory) == 1
    await produce(other, "t", batch(b"a"))
    assert values_of(fetched(await wire.receive())[0].records) == [b"a"]
    assert len(broker.state.purgatory) == 0


async def test_fetch_returns_empty_when_the_wait_is_over(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    wire.send(fetch_request("t", 0, max_wait_ms=5_000), FETCH_BY_NAME)
    await parked(broker, wire)
    clock.advance(4_999)
    assert len(broker.state.purgatory) == 1
    clock.advance(1)
    data = fetched(await wire.receive())
    assert (data[0].error_code, data[0].records) == (0, b"")


async def test_min_bytes_counts_over_partitions_and_produces(
    broker: Broker, wire: Wire, other: Wire
) -> None:
    """Trap 21."""
    one = len(batch(b"x" * 100))
    wire.send(fetch_request("t", 0, 0, max_wait_ms=5_000, min_bytes=3 * one), FETCH_BY_NAME)
    await parked(broker, wire)
    await produce(other, "t", batch(b"x" * 100), partition=0)
    await produce(other, "t", batch(b"x" * 100), partition=1)
    assert len(broker.state.purgatory) == 1
    await produce(other, "t", batch(b"x" * 100), partition=0)
    data = fetched(await wire.receive())
    assert [len(values_of(data[n].records)) for n in (0, 1)] == [2, 1]


async def test_too_few_bytes_come_when_the_wait_is_over(
    broker: Broker, wire: Wire, other: Wire, clock: VirtualClock
) -> None:
    """FC-48, 4."""
    await produce(other, "t", batch(b"0123456789"))
    wire.send(fetch_request("t", 0, max_wait_ms=2_000, min_bytes=100_000), FETCH_BY_NAME)
    await parked(broker, wire)
    clock.advance(2_000)
    assert values_of(fetched(await wire.receive())[0].records) == [b"0123456789"]


async def test_available_bytes_are_capped_by_the_partitions_limit(
    broker: Broker, wire: Wire, other: Wire, clock: VirtualClock
) -> None:
    """Trap 21: what one partition may not give does not count."""
    for _ in range(5):
        await produce(other, "t", batch(b"x" * 1000))
    wire.send(
        fetch_request("t", 0, max_wait_ms=2_000, min_bytes=4_000, partition_max_bytes=1_500),
        FETCH_BY_NAME,
    )
    await parked(broker, wire)
    clock.advance(2_000)
    assert len(values_of(fetched(await wire.receive())[0].records)) == 1


async def test_available_bytes_are_counted_over_segments(broker: Broker, wire: Wire) -> None:
    """Trap 21: what lies in several segments is there, though one answer ends with the first."""
    broker.create_topic("s", configs={"segment.bytes": "1048576"})
    for _ in range(3):
        assert (await produce(wire, "s", batch(b"x" * 700_000))).error_code == 0
    request = fetch_request(
        "s", 0, max_wait_ms=600_000, min_bytes=2_000_000, partition_max_bytes=10_000_000
    )
    data = fetched(await wire.ask(request, FETCH_BY_NAME, FetchResponse))
    assert len(values_of(data[0].records)) >= 1


async def test_error_of_one_partition_is_answered_at_once(wire: Wire) -> None:
    """Trap 21."""
    request = fetch_request("t", partitions={0: 0, 77: 0}, max_wait_ms=600_000)
    assert fetched(await wire.ask(request, FETCH_BY_NAME, FetchResponse))[77].error_code == 3


async def test_commit_wakes_a_committed_reader_and_an_open_transaction_does_not(
    broker: Broker, wire: Wire, other: Wire
) -> None:
    """FC-48, 3; trap 21: woken by the last stable offset, not by appends alone."""
    transaction = Transaction(other)
    await transaction.init()
    await transaction.send(b"first")
    wire.send(
        fetch_request("t", 0, max_wait_ms=600_000, isolation_level=READ_COMMITTED), FETCH_BY_NAME
    )
    await parked(broker, wire)
    await transaction.send(b"second")
    assert len(broker.state.purgatory) == 1
    await transaction.end(committed=True)
    assert values_of(fetched(await wire.receive())[0].records) == [b"first", b"second"]


async def test_deletion_of_the_topic_answers_who_waits_for_it(
    broker: Broker, wire: Wire, other: Wire
) -> None:
    topic_id = (await topic_metadata(other, "t")).topic_id
    wire.send(fetch_request(topic_id, 0, max_wait_ms=600_000), FETCH_BY_ID)
    await parked(broker, wire)
    await other.ask(
        DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5, DeleteTopicsResponse
    )
    assert fetched(await wire.receive())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_many_waiting_readers_are_all_woken(broker: Broker, other: Wire) -> None:
    wires = [await Wire(broker).__aenter__() for _ in range(20)]
    for wire in wires:
        wire.send(fetch_request("t", 0, max_wait_ms=600_000), FETCH_BY_NAME)
    await until(lambda: len(broker.state.purgatory) == 20)
    await produce(other, "t", batch(b"a"))
    for wire in wires:
        assert values_of(fetched(await wire.receive())[0].records) == [b"a"]
        await wire.__aexit__(None, None, None)


async def test_waiting_costs_no_processor_time(broker: Broker, wire: Wire) -> None:
    """FC-48, 2: no polling; a parked fetch leaves the loop idle."""
    wire.send(fetch_request("t", 0, max_wait_ms=600_000), FETCH_BY_NAME)
    await parked(broker, wire)
    loop = asyncio.get_running_loop()
    turns = 0
    original = loop._run_once  # type: ignore[attr-defined]

    def counted() -> None:
        nonlocal turns
        turns += 1
        original()

    loop._run_once = counted  # type: ignore[attr-defined]
    try:
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.05)
    finally:
        del loop._run_once  # type: ignore[attr-defined]
    assert turns < 10


# --- sessions


class Session:
    """A consumer that keeps a fetch session on topic ``t``."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.session_id = 0
        self.epoch = 0

    async def ask(
        self,
        partitions: dict[int, int],
        *,
        forgotten: list[int] | None = None,
        max_bytes: int = 2**31 - 1,
    ) -> dict[int, FetchResponse.PartitionData]:
        response = await self.ask_raw(partitions, forgotten=forgotten, max_bytes=max_bytes)
        self.epoch += 1
        self.session_id = response.session_id
        return fetched(response)

    async def ask_raw(
        self,
        partitions: dict[int, int],
        *,
        forgotten: list[int] | None = None,
        api_version: int = FETCH_BY_NAME,
        max_bytes: int = 2**31 - 1,
    ) -> FetchResponse:
        return await self.wire.ask(
            fetch_request(
                "t",
                partitions=partitions,
                session_id=self.session_id,
                session_epoch=self.epoch,
                forgotten=forgotten,
                max_bytes=max_bytes,
            ),
            api_version,
            FetchResponse,
        )


async def test_session_repeats_nothing_that_did_not_change(wire: Wire, other: Wire) -> None:
    """Trap 28."""
    session = Session(wire)
    assert set(await session.ask({0: 0, 1: 0, 2: 0})) == {0, 1, 2}
    assert session.session_id > 0
    assert await session.ask({}) == {}
    await produce(other, "t", batch(b"a"), partition=1)
    news = await session.ask({})
    assert values_of(news[1].records) == [b"a"]
    assert set(news) == {1}
    assert await session.ask({1: 1}) == {}


async def test_forgotten_partition_leaves_the_session_and_comes_back(
    wire: Wire, other: Wire
) -> None:
    """Trap 28."""
    session = Session(wire)
    await session.ask({0: 0, 1: 0})
    await produce(other, "t", batch(b"a"), partition=0)
    await produce(other, "t", batch(b"b"), partition=1)
    assert set(await session.ask({}, forgotten=[0])) == {1}
    assert set(await session.ask({0: 0, 1: 1})) == {0}


async def test_error_is_repeated_and_recovery_is_reported(wire: Wire) -> None:
    """Trap 28: an error resets what was last told, so that the next good answer is sent."""
    session = Session(wire)
    await session.ask({0: 0})
    assert (await session.ask({0: 99}))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await session.ask({}))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    recovered = await session.ask({0: 0})
    assert (recovered[0].error_code, recovered[0].high_watermark) == (0, 0)
    assert await session.ask({}) == {}


async def test_partition_that_gave_data_goes_to_the_end(wire: Wire, other: Wire) -> None:
    """Trap 29: a busy partition does not starve the others."""
    session = Session(wire)
    await session.ask({0: 0, 1: 0})
    for _ in range(3):
        await produce(other, "t", batch(b"busy" * 100), partition=0)
    await produce(other, "t", batch(b"quiet"), partition=1)
    first = await session.ask({}, max_bytes=1)
    assert len(values_of(first[0].records)) == 1
    assert not first[1].records
    second = await session.ask({0: 1}, max_bytes=1)
    assert values_of(second[1].records) == [b"quiet"]
    assert 0 not in second


async def test_wrong_session_and_epoch_are_told(wire: Wire) -> None:
    """Trap 28."""
    session = Session(wire)
    await session.ask({0: 0})
    session.epoch += 1
    assert (await session.ask_raw({})).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch -= 1
    by_id = await session.ask_raw({}, api_version=13)
    assert by_id.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert (await session.ask_raw({})).error_code == 0
    session.session_id += 1
    assert (await session.ask_raw({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_epoch_0_and_final_epoch_close_the_session_they_name(wire: Wire) -> None:
    """Trap 28."""
    for closing_epoch, makes_one in ((0, True), (-1, False)):
        session = Session(wire)
        await session.ask({0: 0})
        old_id, old_epoch = session.session_id, session.epoch
        session.epoch = closing_epoch
        response = await session.ask_raw({0: 0})
        assert (response.session_id not in (0, old_id)) is makes_one
        session.session_id, session.epoch = old_id, old_epoch
        gone = await session.ask_raw({})
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_session_that_forgets_everything_is_gone(wire: Wire) -> None:
    session = Session(wire)
    await session.ask({0: 0})
    response = await session.ask_raw({}, forgotten=[0])
    assert (response.error_code, response.session_id) == (0, 0)


async def test_full_cache_answers_without_a_session_until_one_is_old() -> None:
    """Trap 28: id 0; a session that was idle long enough makes room."""
    clock = VirtualClock()
    settings = {"max.incremental.fetch.session.cache.slots": 1}
    async with Broker(clock=clock, settings=settings) as broker, Wire(broker) as wire:
        broker.create_topic("t")
        first, second, third = Session(wire), Session(wire), Session(wire)
        await first.ask({0: 0})
        await second.ask({0: 0})
        assert first.session_id > 0
        assert second.session_id == 0
        clock.advance(120_001)
        await third.ask({0: 0})
        assert third.session_id > 0
        gone = await first.ask_raw({})
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
