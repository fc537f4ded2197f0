"""Goal: each kind of fault does what it says to exactly the requests it is about, and counts them.

Method: rules on a broker in process with a clock that stands still, raw requests, and what came
back and what the broker kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_requests import fetch, fetch_request, produce, produce_request, topic_metadata
from broker_wire import Wire, batch, until, values_of

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.testing import Fault
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest, ListOffsetsResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import encode_response


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock, journal=True) as running:
        running.create_topic("t", partitions=2)
        running.create_topic("u")
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


def two_partitions() -> ProduceRequest:
    request = produce_request("t", batch(b"a"))
    data = ProduceRequest.PartitionProduceData(index=1, records=batch(b"b"))
    request.topic_data[0].partition_data.append(data)
    return request


def ends(broker: Broker, topic: str) -> list[int]:
    found = broker.state.topics.get(topic)
    assert found is not None
    return [log.log_end_offset for log in found.partitions]


class TestErrors:
    async def test_only_the_partition_meant_is_refused(self, broker: Broker, wire: Wire) -> None:
        rule = broker.faults.add(
            "Produce", Fault.ERROR, topic="t", partition=1, error=ErrorCode.REQUEST_TIMED_OUT
        )
        answer = await wire.ask(two_partitions(), 9, ProduceResponse)
        codes = {p.index: p.error_code for p in answer.responses[0].partition_responses}
        assert codes == {0: 0, 1: 7}
        assert ends(broker, "t") == [1, 0]
        assert rule.hits == 1

    async def test_other_topics_are_left_alone(self, broker: Broker, wire: Wire) -> None:
        rule = broker.faults.add("Produce", Fault.ERROR, topic="t", times=None)
        assert (await produce(wire, "u", batch(b"a"))).error_code == 0
        assert rule.hits == 0

    async def test_a_topic_is_known_by_its_id_too(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add("Produce", Fault.ERROR, topic="t")
        request = two_partitions()
        topic = broker.state.topics.get("t")
        assert topic is not None
        request.topic_data[0].name, request.topic_data[0].topic_id = "", topic.topic_id
        answer = await wire.ask(request, 13, ProduceResponse)
        codes = [p.error_code for p in answer.responses[0].partition_responses]
        assert codes == [-1, -1]

    async def test_lost_acknowledgement_of_acks_0_closes(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add("Produce", Fault.ERROR, topic="t", partition=1)
        request = two_partitions()
        request.acks = 0
        wire.send(request, 9)
        assert await wire.closed()
        assert ends(broker, "t") == [1, 0]

    async def test_fetch_in_a_session_is_met_too(self, broker: Broker, wire: Wire) -> None:
        request = fetch_request("t", 0, session_epoch=0)
        session_id = (await wire.ask(request, 12, FetchResponse)).session_id
        broker.faults.add("Fetch", Fault.ERROR, topic="t", error=ErrorCode.KAFKA_STORAGE_ERROR)
        again = FetchRequest(
            max_wait_ms=60_000, min_bytes=1, session_id=session_id, session_epoch=1, topics=[]
        )
        answer = await wire.ask(again, 12, FetchResponse)
        assert [p.error_code for t in answer.responses for p in t.partitions] == [56]
        await produce(wire, "t", batch(b"a"))
        again.session_epoch = 2
        answer = await wire.ask(again, 12, FetchResponse)
        assert [values_of(p.records) for t in answer.responses for p in t.partitions] == [[b"a"]]

    async def test_every_kind_of_request_may_be_meant(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add(None, Fault.ERROR, times=2, client_id="test")
        request = ListOffsetsRequest(
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name="t",
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
                    ],
                )
            ]
        )
        answer = await wire.ask(request, 5, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].error_code == -1
        assert (await produce(wire, "t", batch(b"a"))).error_code == -1
        assert (await produce(wire, "t", batch(b"a"))).error_code == 0

    async def test_only_the_client_meant(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add("Produce", Fault.ERROR, client_id="somebody-else", times=None)
        assert (await produce(wire, "t", batch(b"a"))).error_code == 0


class TestBytes:
    async def test_answer_is_cut_after_so_many_bytes(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add("Produce", Fault.CUT_ANSWER, cut_bytes=7)
        wire.send(produce_request("t", batch(b"a")), 9)
        assert len(await asyncio.wait_for(wire.reader.read(), 10)) == 7
        assert ends(broker, "t") == [1, 0]

    async def test_slow_answer_comes_in_pieces_by_the_clock(
        self, broker: Broker, wire: Wire, clock: VirtualClock
    ) -> None:
        broker.faults.add("Produce", Fault.SLOW_ANSWER, bytes_per_second=200)
        wire.send(produce_request("t", batch(b"a")), 9)
        wire.send(produce_request("t", batch(b"b")), 9)
        whole = 0
        for _ in range(3):
            part = await asyncio.wait_for(wire.reader.read(1000), 10)
            whole += len(part)
            assert len(part) == 10
            clock.advance(50)
        clock.advance(10_000)
        expected = sum(
            len(part)
            for entry in broker.journal.select("Produce")
            if entry.answer is not None
            for part in encode_response(entry.answer, api_version=9, correlation_id=1)
        )
        while whole < expected:
            clock.advance(50)
            whole += len(await asyncio.wait_for(wire.reader.read(1000), 10))
        assert whole == expected

    async def test_connections_are_reset_as_often_as_asked(self, broker: Broker) -> None:
        rule = broker.faults.add(None, Fault.REFUSE, times=2)
        for _ in range(2):
            async with Wire(broker) as refused:
                assert await refused.closed()
        async with Wire(broker) as connected:
            assert (await produce(connected, "t", batch(b"a"))).error_code == 0
        assert (rule.hits, rule.left) == (2, 0)


class TestPartition:
    async def test_nothing_passes_until_it_is_healed(self, broker: Broker, wire: Wire) -> None:
        wire.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
        await until(lambda: len(broker.state.purgatory) == 1)
        rule = broker.faults.add(None, Fault.PARTITION, client_id="test")
        async with Wire(broker) as other:
            other.send(produce_request("t", batch(b"a")), 9, client_id="other")
            await other.receive()
            # The answer to the parked fetch is there, and does not reach its client.
            await until(lambda: len(broker.state.purgatory) == 0)
            wire.send(produce_request("t", batch(b"b")), 9)
            other.send(produce_request("t", batch(b"c")), 9, client_id="other")
            await other.receive()
        assert ends(broker, "t") == [2, 0]
        assert not wire.reader._buffer  # type: ignore[attr-defined]
        broker.faults.release(rule)
        answer = await wire.receive()
        assert isinstance(answer, FetchResponse)
        assert isinstance(await wire.receive(), ProduceResponse)
        assert ends(broker, "t") == [3, 0]

    async def test_a_new_connection_does_not_get_around_it(self, broker: Broker) -> None:
        rule = broker.faults.add(None, Fault.PARTITION, client_id="test")
        async with Wire(broker) as late:
            late.send(produce_request("t", batch(b"a")), 9)
            await until(lambda: rule.hits == 1)
            assert ends(broker, "t") == [0, 0]
            broker.faults.clear()
            await late.receive()
        assert ends(broker, "t") == [1, 0]

    async def test_what_was_sent_before_giving_up_arrives_late(self, broker: Broker) -> None:
        # As with TCP: the bytes are on their way, and so is the end of the connection.
        rule = broker.faults.add(None, Fault.PARTITION, client_id="test")
        async with Wire(broker) as late:
            late.send(produce_request("t", batch(b"a")), 9)
            await until(lambda: rule.hits == 1)
        broker.faults.clear()
        async with Wire(broker) as other:
            assert (await fetch(other, "t")).high_watermark == 1


class TestDisk:
    async def test_only_writes_of_the_partition_meant_fail(
        self, broker: Broker, wire: Wire
    ) -> None:
        rule = broker.faults.add(None, Fault.DISK_ERROR, topic="t", partition=0, times=None)
        answer = await wire.ask(two_partitions(), 9, ProduceResponse)
        codes = {p.index: p.error_code for p in answer.responses[0].partition_responses}
        assert codes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: 0}
        assert rule.hits >= 1

    async def test_a_full_disk_creates_no_topic(self, broker: Broker, wire: Wire) -> None:
        broker.faults.add(None, Fault.DISK_ERROR, times=None)
        answer = await topic_metadata(wire, "new", create=True)
        assert answer.error_code != 0
        broker.faults.clear()
        assert (await topic_metadata(wire, "new", create=True)).error_code == 0


class TestLife:
    @pytest.mark.parametrize("kill", [False, True])
    @pytest.mark.parametrize("on_disk", [False, True])
    def test_what_was_acknowledged_outlives_kill_and_restart(
        self, tmp_path: Path, kill: bool, on_disk: bool
    ) -> None:
        async def write_and_read(value: bytes) -> list[bytes | None]:
            async with Wire(broker) as wire:
                assert (await produce(wire, "t", batch(value))).error_code == 0
                return values_of((await fetch(wire, "t")).records)

        with Broker(tmp_path if on_disk else None) as broker:
            broker.create_topic("t")
            address = broker.bootstrap_servers
            asyncio.run(write_and_read(b"a"))
            broker.restart(kill=kill)
            assert broker.bootstrap_servers == address
            assert asyncio.run(write_and_read(b"b")) == [b"a", b"b"]

    async def test_a_restart_lets_go_of_what_a_rule_holds(self, broker: Broker, wire: Wire) -> None:
        rule = broker.faults.add("Produce", Fault.HOLD)
        wire.send(produce_request("t", batch(b"a")), 9)
        await until(lambda: bool(rule.held))
        await broker.stop_async(clean=False)
        await broker.start_async()
        broker.faults.clear()
        assert ends(broker, "t") == [0, 0]


@pytest.mark.parametrize(
    ("key", "fault", "options", "field"),
    [
        ("Produc", Fault.ERROR, {}, "key"),
        ("Produce", Fault.ERROR, {"times": 0}, "times"),
        ("Produce", Fault.DELAY, {"delay_ms": -1}, "delay_ms"),
        ("Produce", Fault.CUT_ANSWER, {"cut_bytes": -1}, "cut_bytes"),
        ("Produce", Fault.SLOW_ANSWER, {}, "bytes_per_second"),
        ("Produce", Fault.DISK_ERROR, {}, "fault"),
        (None, Fault.DISK_ERROR, {"disk_error": "EPERMIT"}, "disk_error"),
        (None, Fault.REFUSE, {"client_id": "c"}, "fault"),
        ("Produce", Fault.PARTITION, {}, "fault"),
        ("Heartbeat", Fault.ERROR, {"topic": "t"}, "topic"),
    ],
)
def test_rule_that_makes_no_sense_is_refused_with_the_field(
    key: str | None, fault: Fault, options: dict[str, object], field: str
) -> None:
    broker = Broker()
    with pytest.raises(ConfigError) as caught:
        broker.faults.add(key, fault, **options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert not broker.faults.rules
