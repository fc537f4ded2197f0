"""Goal: the journal tells what was asked and answered and when, stays bounded, and a capture of the
connections can be read by others.

Method: raw requests to a broker in process. Captures are taken apart here by hand, and by tshark
where it is installed.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_requests import fetch_request, produce, produce_request, topic_metadata
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.testing import Fault, journal
from onceflow.broker_lite.testing.capture import SEGMENT_BYTES_MAX, Capture
from onceflow.broker_lite.testing.request_parts import Part
from onceflow.sdk.protocol.api.cluster import MetadataRequest
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock, journal=True) as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def test_answers_come_with_both_times(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    start_ms = clock()
    wire.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
    await until(lambda: len(broker.state.purgatory) == 1)
    entry = broker.journal.select("Fetch")[0]
    assert (entry.now_ms, entry.answered_ms, entry.answer) == (start_ms, None, None)
    clock.advance(250)
    async with Wire(broker) as other:
        await produce(other, "t", batch(b"a"))
    await wire.receive()
    assert entry.answered_ms == start_ms + 250
    assert isinstance(entry.answer, FetchResponse)
    assert (entry.client_id, entry.principal, entry.node_id) == ("test", "User:ANONYMOUS", 1)


async def test_entries_are_found_by_what_they_name(broker: Broker, wire: Wire) -> None:
    broker.create_topic("u")
    broker.faults.add("Produce", Fault.ERROR, topic="u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        request = produce_request(topic, batch(b"a"))
        request.topic_data[0].partition_data[0].index = partition
        wire.send(request, 9, client_id=f"client-{topic}")
        await wire.receive()
    await topic_metadata(wire, "t")
    found = broker.journal.select
    assert [entry.key for entry in found()] == ["Produce", "Produce", "Produce", "Metadata"]
    assert len(found("Produce", topic="t")) == 2
    assert len(found(ProduceRequest, topic="t", partition=1)) == 1
    assert len(found(topic="t")) == 3
    assert [entry.fault for entry in found(client_id="client-u")] == [Fault.ERROR]
    assert [entry.number for entry in found(after=3)] == [4]
    broker.journal.clear()
    assert not found()


async def test_topics_that_are_named_by_id_are_found_by_name(broker: Broker, wire: Wire) -> None:
    topic = broker.state.topics.get("t")
    assert topic is not None
    request = produce_request("t", batch(b"a"))
    request.topic_data[0].name, request.topic_data[0].topic_id = "", topic.topic_id
    wire.send(request, 13)
    await wire.receive()
    wire.send(fetch_request(topic.topic_id, 0), 16)
    await wire.receive()
    assert [entry.key for entry in broker.journal.select(topic="t")] == ["Produce", "Fetch"]
    assert broker.journal.select(topic="u") == []


def test_it_is_read_while_requests_come() -> None:
    """Found by a test that looked into a broker under load: the broker's thread writes it."""
    noted = journal.Journal()

    class Nosy(journal.JournalEntry):
        def parts(self) -> list[Part]:
            noted.add(entry_of(journal.JournalEntry))
            return [Part(topic="t")]

    def entry_of(kind: type[journal.JournalEntry]) -> journal.JournalEntry:
        return kind(noted.next_number(), 0, 1, "c", "User:a", 1, 12, MetadataRequest(topics=None))

    for _ in range(3):
        noted.add(entry_of(Nosy))
    assert [entry.number for entry in noted.select(topic="t")] == [1, 2, 3]
    for entry in noted:
        noted.answered(entry, None, 1)
        noted.clear()
    assert noted.select() == []


async def test_old_entries_make_room(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "JOURNAL_ENTRIES_MAX", 3)
    for _ in range(5):
        await topic_metadata(wire, "t")
    assert [entry.number for entry in broker.journal] == [3, 4, 5]
    assert broker.journal.dropped == 2
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MAX", 21_000)
    for _ in range(4):
        await produce(wire, "t", batch(b"x" * 9_000))
    assert [entry.number for entry in broker.journal] == [8, 9]


# --- captures

FRAME = struct.Struct("<IIII")


def streams(data: bytes) -> dict[tuple[int, int], bytes]:
    """Bytes of both directions of every connection, by source and destination port."""
    assert struct.unpack_from("<IHH", data) == (0xA1B2C3D4, 2, 4)
    position, found, following = 24, {}, {}
    while position < len(data):
        _, micros, size, original = FRAME.unpack_from(data, position)
        assert micros < 1_000_000
        assert size == original
        packet = data[position + FRAME.size : position + FRAME.size + size]
        position += FRAME.size + size
        v4 = packet[12:14] == b"\x08\x00"
        ip, tcp = packet[14 : 34 if v4 else 54], packet[34 if v4 else 54 :]
        if v4:
            assert struct.unpack_from(">H", ip, 2)[0] == size - 14
            total = sum(struct.unpack(">10H", ip))
            assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
        source, target, sequence = struct.unpack_from(">HHI", tcp)
        flags, payload = tcp[13], tcp[20:]
        key = (source, target)
        if flags & 0x02:
            following[key] = sequence + 1
            continue
        assert sequence == following[key]
        following[key] += len(payload)
        found[key] = found.get(key, b"") + payload
    return found


async def captured(path: Path, host: str = "127.0.0.1") -> tuple[int, dict[tuple[int, int], bytes]]:
    """A short conversation, in versions that tshark 4.0 knows."""
    async with Broker(journal_file=path, host=host) as broker:
        broker.create_topic("t")
        async with Wire(broker) as wire:
            topic = MetadataRequest.MetadataRequestTopic(name="t")
            wire.send(MetadataRequest(topics=[topic]), 8)
            wire.send(produce_request("t", batch(b"x" * 100_000)), 8)
            wire.send(fetch_request("t", 0), 11)
            for _ in range(3):
                await wire.receive()
        port = broker.port
    return port, streams(path.read_bytes())  # noqa: ASYNC240 - nothing else is to happen meanwhile


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_capture_holds_every_byte_of_both_directions(tmp_path: Path, host: str) -> None:
    port, found = await captured(tmp_path / "c.pcap", host)
    (asked,) = [data for (_, target), data in found.items() if target == port]
    (answered,) = [data for (source, _), data in found.items() if source == port]

    def keys(data: bytes) -> list[int]:
        position, kinds = 0, []
        while position < len(data):
            size, kind = struct.unpack_from(">ih", data, position)
            kinds.append(kind)
            position += 4 + size
        return kinds

    assert keys(asked) == [3, 0, 1]
    assert len(keys(answered)) == 3
    assert len(answered) > 100_000


async def test_a_cut_answer_is_captured_as_it_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "c.pcap"
    async with Broker(journal_file=path) as broker, Wire(broker) as wire:
        broker.faults.add("Metadata", Fault.CUT_ANSWER, cut_bytes=5)
        with pytest.raises(ConnectionError):
            await topic_metadata(wire, "t")
    found = streams(path.read_bytes())
    assert [len(data) for (source, _), data in found.items() if source == broker.port] == [5]


def test_a_capture_ends_at_its_limit_and_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "c.pcap"
    capture = Capture(path, max_bytes=1_000)
    capture.opened(1, ("127.0.0.1", 5), ("127.0.0.1", 6), 0)
    for _ in range(100):
        capture.received(1, b"x" * 100, 0)
    size = path.stat().st_size
    assert 500 < size <= 1_000
    assert len(streams(path.read_bytes())[5, 6]) % 100 == 0
    full = Capture("/dev/full") if Path("/dev/full").exists() else capture
    full.opened(1, ("127.0.0.1", 5), ("127.0.0.1", 6), 0)
    full.close()


def test_large_pieces_are_made_of_segments(tmp_path: Path) -> None:
    capture = Capture(tmp_path / "c.pcap")
    capture.opened(1, ("127.0.0.1", 5), ("127.0.0.1", 6), 0)
    capture.sent(1, b"x" * (2 * SEGMENT_BYTES_MAX + 1), 0)
    capture.closed(1, 0)
    capture.close()
    assert len(streams((tmp_path / "c.pcap").read_bytes())[6, 5]) == 2 * SEGMENT_BYTES_MAX + 1


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
async def test_tshark_reads_a_capture_as_kafka(tmp_path: Path) -> None:
    port, _ = await captured(tmp_path / "c.pcap")
    done = subprocess.run(  # noqa: ASYNC221 - nothing else is to happen meanwhile
        ["tshark", "-r", str(tmp_path / "c.pcap"), "-d", f"tcp.port=={port},kafka",
         "-T", "json", "-Y", "kafka"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    packets = json.loads(done.stdout)
    text = done.stdout
    assert len(packets) >= 4
    for name, key in (("Metadata", 3), ("Produce", 0), ("Fetch", 1)):
        assert f'"kafka.api_key": "{key}"' in text, name
    assert '"kafka.topic_name": "t"' in text
    assert "Malformed" not in text
