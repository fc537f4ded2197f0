"""Goal: whichever way a log is read, every record that may be seen comes once, whole and in order.

Method: logs of all kinds of batches at random; polls, columns, values, iteration, seeks, pauses,
broken batches and refusing deserializers in any order, with any limits, against a plain list, with
machine code and as plain Python. What was returned is destroyed, as an application may do.
"""

from __future__ import annotations

import random

import plain_modules
import pytest
from consumer_logs import LogBuilder
from mixed_logs import MixedLog, Visible

from onceflow.sdk.core.connection.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
)
from onceflow.sdk.core.consume.fetch_buffer import make_deserializer
from onceflow.sdk.core.consume.fetch_plan import FetchSettings
from onceflow.sdk.core.consume.fetcher import Fetcher
from onceflow.sdk.core.consume.record_cursor import RecordCursor
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.errors import KafkaError, RecordError, SerializationError
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.serde import LookupNeeded

TOPIC = "t"
NEWEST = 12  # by name
PARTS = [TopicPartition(TOPIC, number) for number in range(3)]
LEADERS = {p.partition: PartitionMetadata(p.partition, 1, -1, (1,), (1,)) for p in PARTS}
CLUSTER = ClusterMetadata(
    nodes={1: Node(1, "h", 1)},
    topics={TOPIC: TopicMetadata(TOPIC, ZERO_UUID, False, 0, LEADERS)},
)


class Reader:
    """A consumer without its loop, and beside it what it has to return."""

    def __init__(self, chance: random.Random, logs: list[MixedLog], deserializes: bool) -> None:
        self.chance = chance
        self.logs = dict(zip(PARTS, logs, strict=True))
        self.deserializes = deserializes
        self.refused: set[bytes] = set()
        self.looked_up: set[bytes] = set()
        self.subscription = Subscription("earliest")
        self.subscription.assign_manually(PARTS)
        self.expected: dict[TopicPartition, int] = {}
        for partition, log in self.logs.items():
            self.seek(partition, log.batches[0].base_offset)
        self.fetcher = Fetcher(
            FetchSettings(
                partition_max_bytes=chance.choice((200, 3_000, 100_000)),
                max_bytes=chance.choice((400, 10_000, 1_000_000)),
                check_crcs=True,
                deserialize=make_deserializer(None, self.read) if deserializes else None,
            ),
            self.subscription,
        )
        self.cursor = RecordCursor(self.subscription)
        self.ahead = chance.choice((1, 7, 50, 5_000))
        self.now_ms = 0

    def read(self, data: bytes) -> object:
        if data in self.refused:
            raise ValueError("refused")
        if len(data) == 63 and data not in self.looked_up:
            self.looked_up.add(data)
            raise LookupNeeded(lambda: None)
        return ["read", data]

    # --- the broker ---

    def fetch(self) -> bool:
        self.now_ms += 1_000
        news = False
        for plan in self.fetcher.plan(CLUSTER, self.now_ms, lambda _: NEWEST):
            topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, partitions=[])
            for partition, (_, offset) in plan.asked.items():
                log = self.logs[partition]
                data, aborted = log.read(offset, self.fetcher._settings.partition_max_bytes)
                news = news or bool(data)
                topic.partitions.append(
                    FetchResponse.PartitionData(
                        partition_index=partition.partition,
                        high_watermark=log.next_offset,
                        last_stable_offset=log.next_offset,
                        records=memoryview(data) if self.chance.random() < 0.5 else data,
                        aborted_transactions=[
                            FetchResponse.AbortedTransaction(producer_id=p, first_offset=o)
                            for p, o in aborted
                        ],
                    )
                )
            response = FetchResponse(session_id=0, responses=[topic])
            self.fetcher.on_response(plan, response, self.now_ms)
        return news

    # --- the application ---

    def fill(self, form: str, limit: int) -> None:
        ahead = max(limit, self.ahead)
        if not self.cursor.has_records:
            if form == "records":
                self.cursor.load(self.fetcher.take(ahead, self.now_ms))
            else:
                values_only = form == "values"
                columns = self.fetcher.take_columns(ahead, self.now_ms, values_only=values_only)
                self.cursor.load(columns)

    def poll(self, form: str, limit: int) -> dict:  # type: ignore[type-arg]
        def take() -> dict:  # type: ignore[type-arg]
            if form in ("records", "direct"):
                return self.cursor.take(limit)
            return self.cursor.take_columns(limit, values_only=form == "values")

        found = take()
        for _ in range(200):
            if found:
                return found
            self.fail_if_due()
            if form == "direct":
                found = self.fetcher.take(limit, self.now_ms)
            else:
                self.fill(form, limit)
                found = take()
            if found or self.fetcher.lookups:
                continue
            self.fail_if_due()
            more = self.fetch() or self.fetcher.has_data or self.fetcher.unreadable.has_failure
            if not more:
                return found
        raise AssertionError("it does not end")

    def fail_if_due(self) -> None:
        """As a poll does, before it takes anything."""
        failure = self.fetcher.unreadable.take_failure()
        if failure is not None:
            raise failure

    def one(self) -> ConsumerRecord | None:
        record = self.cursor.next()
        if record is None:
            for partition, records in self.poll("records", 1).items():
                assert len(records) == 1, partition
                return records[0]
        return record

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.subscription.seek(partition, offset)
        self.expected[partition] = offset

    # --- what must be ---

    def following(self, partition: TopicPartition) -> list[Visible]:
        log, start = self.logs[partition], self.expected[partition]
        return [item for item in log.visible if item.offset >= start]

    def check(self, partition: TopicPartition, found: list[tuple], fields: list[int]) -> None:  # type: ignore[type-arg]
        wanted = self.following(partition)[: len(found)]
        expected = []
        for item in wanted:
            value: object = item.value
            if self.deserializes and item.value is not None:
                value = ["read", item.value]
            whole = item._replace(value=value)  # type: ignore[arg-type]
            expected.append(tuple(whole[at] for at in fields))
        assert found == expected, partition
        broken = [b for b in self.logs[partition].batches if b.broken]
        for stored in broken:
            first = self.expected[partition]
            assert not (first < stored.next_offset <= wanted[-1].offset), "a broken batch passed"
        self.expected[partition] = wanted[-1].offset + 1

    def took(self, found: dict, limit: int, form: str) -> None:  # type: ignore[type-arg]
        assert sum(map(len, found.values())) <= limit
        for partition, run in found.items():
            assert len(run) > 0
            if isinstance(run, RecordColumns):
                assert run.values_only == (form == "values")
                self.took_columns(partition, run)
                run.values.clear()
                run.keys.clear()
                run.timestamps_ms.clear()
                run.headers.clear()
                if isinstance(run.offsets, list):
                    run.offsets.clear()
            else:
                self.check(partition, [as_tuple(item) for item in run], [*range(7)])
                for item in run:
                    item.value = item.key = "destroyed"
                run.clear()

    def took_columns(self, partition: TopicPartition, run: RecordColumns) -> None:
        assert len(run.offsets) == len(run.values)
        if run.values_only:
            assert not run.keys
            assert not run.headers
            assert not run.timestamps_ms
            rows = list(zip(run.offsets, run.values, strict=True))
            self.check(partition, rows, [0, 4])
            return
        assert len(run.keys) == len(run.timestamps_ms) == len(run.values)
        assert [as_tuple(item) for item in run] == [as_tuple(run[i]) for i in range(len(run))]
        self.check(partition, [as_tuple(item) for item in run], [*range(7)])

    def check_positions(self, *, at_end: bool) -> None:
        for partition, log in self.logs.items():
            state = self.subscription.state(partition)
            following = self.following(partition)
            broken = [
                b.base_offset
                for b in log.batches
                if b.broken and b.next_offset > self.expected[partition]
            ]
            latest = following[0].offset if following else log.next_offset
            if broken:
                latest = min(latest, max(broken[0], self.expected[partition]))
            assert self.expected[partition] <= state.position <= latest, partition
            if at_end and not state.paused:
                assert not following
                assert state.position == log.next_offset
            before = [b.leader_epoch for b in log.batches if b.base_offset < state.position]
            assert state.position_epoch in (-1, *before[-1:]), partition

    def failed(self, error: KafkaError) -> None:
        """Nothing was lost: the first record of a partition is the one; go on behind it."""
        if isinstance(error, SerializationError):
            for partition in PARTS:
                following = self.following(partition)
                if (
                    following
                    and following[0].value in self.refused
                    and f"offset {following[0].offset} of {partition}" in str(error)
                ):
                    self.seek(partition, following[0].offset + 1)
                    return
            raise AssertionError("no such record") from error
        assert isinstance(error, RecordError)
        for partition, log in self.logs.items():
            start = self.expected[partition]
            for stored in log.batches:
                if stored.broken and stored.next_offset > start:
                    between = [
                        item
                        for item in self.following(partition)
                        if item.offset < stored.base_offset
                    ]
                    if not between and error.place and error.place[:2] == partition:
                        assert f"cannot read {partition} at offset {error.place[2]}" in str(error)
                        self.seek(partition, stored.next_offset)
                        return
                    break
        raise AssertionError("nothing is broken there") from error


def as_tuple(item: ConsumerRecord) -> tuple:  # type: ignore[type-arg]
    return (
        item.offset,
        item.timestamp_ms,
        int(item.timestamp_type),
        item.key,
        item.value,
        tuple(item.headers),
        item.leader_epoch,
    )


def step(reader: Reader) -> None:
    chance = reader.chance
    limit = chance.choice((1, 2, 3, 10, 40, 500, 10_000))
    what = chance.choice(
        ("records", "direct", "columns", "values", "iterate", "seek", "pause", "resume", "fetch")
    )
    partition = chance.choice(PARTS)
    at_end = False
    try:
        if what == "seek" and chance.random() < 0.3:
            log = reader.logs[partition]
            reader.seek(partition, chance.randint(log.batches[0].base_offset, log.next_offset))
        elif what in ("pause", "resume"):
            reader.subscription.state(partition).paused = what == "pause"
        elif what == "fetch":
            reader.fetch()
        elif what == "iterate":
            for _ in range(chance.randint(1, 20)):
                record = reader.one()
                if record is None:
                    at_end = True
                    break
                where = TopicPartition(record.topic, record.partition)
                reader.check(where, [as_tuple(record)], [*range(7)])
        elif what != "seek":
            found = reader.poll(what, limit)
            reader.took(found, limit, what)
            at_end = not found
    except KafkaError as error:
        reader.failed(error)
    reader.check_positions(at_end=at_end)


def run(seed: int, steps: int = 60) -> None:
    chance = random.Random(seed)
    logs = []
    for _ in PARTS:
        start = chance.choice((0, 0, 7, 2**31 - 3, 2**62))
        log = MixedLog(chance, start, broken_part=chance.choice((0.0, 0.0, 0.05)))
        log.grow(chance.randint(1, 40))
        logs.append(log)
    reader = Reader(chance, logs, deserializes=chance.random() < 0.3)
    if reader.deserializes and chance.random() < 0.5:
        values = [item.value for log in logs for item in log.visible if item.value]
        reader.refused = set(chance.sample(values, min(2, len(values))))
    for _ in range(steps):
        step(reader)


@pytest.mark.parametrize("engine", plain_modules.ENGINES)
@pytest.mark.parametrize("seed", range(25))
def test_every_record_comes_once(seed: int, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_modules.use(engine, monkeypatch)
    run(seed)


@pytest.mark.parametrize("form", ["records", "columns", "values"])
@pytest.mark.parametrize("deserializes", [False, True])
def test_the_position_is_behind_the_markers_that_follow_the_last_record(
    form: str, deserializes: bool
) -> None:
    """FC-17: else the lag of a consumer that has read everything is not 0."""
    log = LogBuilder()
    for producer_id in (1, 2, 3):
        log.records(b"a", b"b", producer_id=producer_id, transactional=True)
        log.end(producer_id, committed=True)
    subscription = Subscription("earliest")
    subscription.assign_manually([PARTS[0]])
    subscription.seek(PARTS[0], 0)
    read = make_deserializer(None, bytes.decode) if deserializes else None
    fetcher = Fetcher(FetchSettings(deserialize=read), subscription)
    (plan,) = fetcher.plan(CLUSTER, 0, lambda _: NEWEST)
    topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, partitions=[log.fetch_answer(0)])
    fetcher.on_response(plan, FetchResponse(session_id=0, responses=[topic]), 0)
    if form == "records":
        values = [item.value for item in fetcher.take(100, 0)[PARTS[0]]]
    else:
        values = fetcher.take_columns(100, 0, values_only=form == "values")[PARTS[0]].values
    assert values == (["a", "b"] * 3 if deserializes else [b"a", b"b"] * 3)
    assert subscription.state(PARTS[0]).position == log.next_offset
    assert fetcher.buffered_bytes == 0


def test_a_paused_partition_does_not_hold_the_answer_that_its_records_came_in() -> None:
    """Which is as large as ``fetch_max_bytes``, however little of it is the partition's own."""
    log = LogBuilder()
    log.records(b"a", b"b")
    log.records(b"c")
    answers = [log.fetch_answer(0), log.fetch_answer(0)]
    frame = bytearray().join(answer.records or b"" for answer in answers)
    half = len(frame) // 2
    subscription = Subscription("earliest")
    subscription.assign_manually(PARTS[:2])
    for number, partition in enumerate(PARTS[:2]):
        subscription.seek(partition, 0)
        answers[number].partition_index = number
        answers[number].records = memoryview(frame)[number * half : (number + 1) * half]
    fetcher = Fetcher(FetchSettings(), subscription)
    (plan,) = fetcher.plan(CLUSTER, 0, lambda _: NEWEST)
    topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, partitions=answers)
    fetcher.on_response(plan, FetchResponse(session_id=0, responses=[topic]), 0)
    for answer in answers:
        answer.records = b""
    subscription.state(PARTS[0]).paused = True
    assert [item.value for item in fetcher.take(100, 0)[PARTS[1]]] == [b"a", b"b", b"c"]
    with pytest.raises(BufferError):
        frame.clear()
    held = fetcher.buffered_bytes
    fetcher.plan(CLUSTER, 0, lambda _: NEWEST)
    frame.clear()  # It could not, if anything pointed into it.
    assert fetcher.buffered_bytes == held == half
    subscription.state(PARTS[0]).paused = False
    assert [item.value for item in fetcher.take(100, 0)[PARTS[0]]] == [b"a", b"b", b"c"]
    assert fetcher.buffered_bytes == 0


@pytest.mark.parametrize("form", ["records", "columns"])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_what_a_deserializer_that_ends_the_program_cut_off_is_read_again(
    form: str, end: type[BaseException]
) -> None:
    """A commit on the way out covers nothing of it, and nothing is deserialized twice."""
    log = LogBuilder()
    log.records(b"a", b"b")
    log.records(b"c", b"d", b"e")
    subscription = Subscription("earliest")
    subscription.assign_manually(PARTS[:2])
    calls = 0

    def read(data: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise end
        return b"<" + data + b">"

    fetcher = Fetcher(FetchSettings(deserialize=make_deserializer(None, read)), subscription)
    for partition in PARTS[:2]:
        subscription.seek(partition, 0)

    def fetch_and_take() -> dict[TopicPartition, list[object]]:
        for plan in fetcher.plan(CLUSTER, 0, lambda _: NEWEST):
            answers = [log.fetch_answer(0), log.fetch_answer(0)]
            answers[1].partition_index = 1
            topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, partitions=answers)
            fetcher.on_response(plan, FetchResponse(session_id=0, responses=[topic]), 0)
        if form == "records":
            found = fetcher.take(100, 0)
            return {partition: [item.value for item in found[partition]] for partition in found}
        columns = fetcher.take_columns(100, 0, values_only=False)
        return {partition: columns[partition].values for partition in columns}

    with pytest.raises(end):
        fetch_and_take()
    assert [subscription.state(partition).position for partition in PARTS[:2]] == [0, 0]
    whole = [b"<%s>" % value for value in (b"a", b"b", b"c", b"d", b"e")]
    assert fetch_and_take() == dict.fromkeys(PARTS[:2], whole)
    assert [subscription.state(partition).position for partition in PARTS[:2]] == [5, 5]
    assert fetcher.buffered_bytes == 0
