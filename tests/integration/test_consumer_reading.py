"""Goal: a consumer reads what it should, from where it should, and knows its position.

Method: the blocking and the asyncio consumer against the bundled broker on a real socket, and
Apache Kafka where that is asked for; waits are polls under a deadline. Field cases FC-16, 17, 21,
32, 33 and 38 are among the rules shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from consumer_worlds import (
    BROKERS,
    fresh,
    make_topic,
    poll_until,
    read,
    read_to_end,
    running_broker,
    wait_for_end,
    write,
    write_in_transaction,
)

from onceflow.sdk import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import (
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    SerializationError,
)


@pytest.fixture(scope="module", params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


def assigned(
    bootstrap: str, topic: str, partitions: int = 1, reset: str = "earliest", **settings: object
) -> Consumer:
    consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset=reset, **settings)
    consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
    return consumer


@pytest.mark.parametrize("committed", [None, 2])
async def test_seek_right_after_assign_is_not_undone(bootstrap: str, committed: int | None) -> None:
    """Within one turn of the loop: the look-up of the start was begun, and must not be applied."""
    topic, group = make_topic(bootstrap), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, map(str, range(10)))
    async with AsyncConsumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        if committed is not None:
            await consumer.commit({partition: committed})
        consumer.assign([partition])
        consumer.seek(partition, 5)
        offsets: list[int] = []
        polls_without_news = 0
        while polls_without_news < 3:
            found = await consumer.poll(100)
            offsets += [record.offset for record in found.get(partition, [])]
            polls_without_news = 0 if found or not offsets else polls_without_news + 1
        assert offsets == [5, 6, 7, 8, 9]
        assert await consumer.position(partition) == 10


# --- isolation ---


def test_position_and_lag_step_over_a_marker_at_the_end(bootstrap: str) -> None:
    for commit in (True, False):
        topic = make_topic(bootstrap)
        partition = TopicPartition(topic, 0)
        write_in_transaction(bootstrap, topic, ["a", "b", "c"], commit=commit)
        group = fresh("group")
        with assigned(bootstrap, topic, group_id=group, enable_auto_commit=False) as consumer:
            wait_for_end(consumer, partition, 4)
            assert read_to_end(consumer, partition) == (["a", "b", "c"] if commit else [])
            assert consumer.position(partition) == 4
            assert consumer.lag(partition) == 0
            consumer.commit()
            committed = consumer.committed([partition])[partition]
            assert committed is not None
            assert committed.offset == 4
        with assigned(bootstrap, topic, group_id=group) as again:
            assert again.position(partition) == 4
            assert again.poll(100) == {}


def test_an_open_transaction_holds_back_everything_behind_it(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, ["r0"])
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=fresh("txn")) as producer,
        assigned(bootstrap, topic) as committed,
        assigned(bootstrap, topic, isolation_level="read_uncommitted") as everything,
        assigned(bootstrap, topic) as at_the_end,
    ):
        producer.begin_transaction()
        producer.send(topic, b"t1", partition=0)
        producer.flush()
        write(bootstrap, topic, ["r2"])
        assert everything.end_offsets([partition])[partition] == 3
        assert committed.end_offsets([partition])[partition] == 1
        assert read(everything, 3) == ["r0", "t1", "r2"]
        assert read_to_end(committed, partition) == ["r0"]
        at_the_end.seek_to_end()
        assert at_the_end.position(partition) == 1
        producer.commit_transaction()
        # Apache Kafka answers before the markers are written, so reading comes before asking.
        assert read(committed, 2) == ["t1", "r2"]
        assert read(at_the_end, 2) == ["t1", "r2"]
        assert committed.end_offsets([partition])[partition] == 4


def test_read_uncommitted_shows_aborted_records(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write_in_transaction(bootstrap, topic, ["u1"], commit=False)
    write_in_transaction(bootstrap, topic, ["u2"], commit=True)
    with assigned(bootstrap, topic, isolation_level="read_uncommitted") as consumer:
        assert read_to_end(consumer, TopicPartition(topic, 0)) == ["u1", "u2"]


# --- positions ---


@pytest.mark.parametrize("offset", [10, 500])
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_an_offset_out_of_range_follows_the_policy(bootstrap: str, reset: str, offset: int) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(100)])
    group = fresh("group")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({partition: 50})
        admin.alter_group_offsets(group, {partition: offset})
    with assigned(bootstrap, topic, reset=reset, group_id=group) as consumer:
        if reset == "earliest":
            assert read(consumer, 1)[0] == "50"
        elif reset == "latest":
            poll_until(lambda: consumer.position(partition) == 100, consumer)
        else:
            for _ in range(2):
                with pytest.raises(NoOffsetForPartitionError, match=f"offset {offset} of {topic}"):
                    poll_until(lambda: False, consumer)
            consumer.seek(partition, 99)
            assert read(consumer, 1) == ["99"]


def test_without_a_committed_offset_and_policy_the_partition_is_named(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with (
        assigned(bootstrap, topic, reset="none", group_id=fresh("group")) as consumer,
        pytest.raises(NoOffsetForPartitionError, match=f"{topic}-0 has no committed offset"),
    ):
        poll_until(lambda: False, consumer)


@pytest.mark.parametrize("values_only", [False, True])
async def test_columns_hold_what_a_poll_returns(bootstrap: str, values_only: bool) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    values = [str(number) for number in range(2_000)]
    write(bootstrap, topic, values)
    found: list[object] = []
    with assigned(bootstrap, topic, max_poll_records=300) as consumer:
        while len(found) < len(values):
            for run in consumer.poll_columns(5_000, values_only=values_only).values():
                assert len(run) <= 300
                found += run.values
                assert consumer.position(partition) == run.offsets[-1] + 1
        consumer.seek(partition, 7)
        consumer.poll_columns(5_000, 1, values_only=values_only)
        after = consumer.poll(5_000, 1) or consumer.poll(5_000, 1)
        assert [(r.offset, r.timestamp_ms > 0) for r in after[partition]] == [(8, True)]
    assert found == [value.encode() for value in values]
    async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer_2:
        consumer_2.assign([partition])
        consumer_2.seek_to_beginning([partition])
        first = await consumer_2.poll_columns(5_000, 10, values_only=values_only)
        assert first[partition].values == [value.encode() for value in values[:10]]


def test_a_seek_counts_at_once_and_drops_what_was_fetched(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(1_000)])
    with assigned(bootstrap, topic, max_poll_records=10) as consumer:
        assert read(consumer, 1)[0] == "0"
        consumer.seek(partition, 900)
        assert consumer.position(partition) == 900
        assert read(consumer, 1)[0] == "900"
        consumer.seek_to_beginning()
        assert read(consumer, 1)[0] == "0"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_can_be_entered_in_the_middle_of_a_batch(bootstrap: str, codec: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=50) as producer:
        for i in range(500):
            producer.send(topic, str(i).encode(), partition=0)
    with assigned(bootstrap, topic) as consumer:
        consumer.seek(TopicPartition(topic, 0), 250)
        assert read(consumer, 250) == [str(i) for i in range(250, 500)]


def test_offsets_for_timestamps(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap, compression_type="gzip", linger_ms=50) as producer:
        for time_ms in (1_000, 3_000, 2_000):
            producer.send(topic, b"x", partition=0, timestamp_ms=time_ms)
        producer.flush()
        producer.send(topic, b"x", partition=0, timestamp_ms=5_000)
    with assigned(bootstrap, topic) as consumer:
        found = [
            consumer.offsets_for_times({partition: time_ms})[partition]
            for time_ms in (0, 1_500, 2_500, 3_001, 5_001)
        ]
    assert [(f.offset, f.timestamp_ms) if f else None for f in found] == [
        (0, 1_000),
        (1, 3_000),
        (1, 3_000),
        (3, 5_000),
        None,
    ]


def test_pause_keeps_what_was_fetched_and_resume_returns_it(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(bootstrap, topic, ["a0", "a1"], partition=0)
    write(bootstrap, topic, ["b0", "b1"], partition=1)
    with assigned(bootstrap, topic, 2) as consumer:
        consumer.pause([p0])
        assert consumer.paused() == {p0}
        assert read(consumer, 2) == ["b0", "b1"]
        assert consumer.poll(50) == {}
        consumer.resume([p0])
        assert read(consumer, 2) == ["a0", "a1"]
        assert consumer.position(p1) == 2


# --- the application ---


def test_iteration_commits_only_what_was_handed_out(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(10)])
    group = fresh("group")
    with assigned(bootstrap, topic, group_id=group, enable_auto_commit=False) as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        consumer.commit()
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert committed.offset == 4
        assert read(consumer, 1)[0] == "4", "a poll goes on where the iteration stopped"


def test_deserializers_make_objects_and_name_what_they_refuse(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic, ["1", "x", "3"])
    with assigned(bootstrap, topic, value_deserializer=int) as consumer:
        (records,) = _first(consumer)
        assert [record.value for record in records] == [1]
        with pytest.raises(SerializationError, match=f"offset 1 of {topic}-0"):
            consumer.poll(1_000)
        consumer.seek(TopicPartition(topic, 0), 2)
        (records,) = _first(consumer)
        assert [record.value for record in records] == [3]


def _first(consumer: Consumer) -> list[list[object]]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        polled = consumer.poll(100)
        if polled:
            return list(polled.values())  # type: ignore[arg-type]
    raise AssertionError("no records")


def test_wakeup_ends_a_wait_from_another_thread(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with assigned(bootstrap, topic) as consumer:
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        began = time.monotonic()
        assert consumer.poll(60_000) == {}
        assert time.monotonic() - began < 200
        timer.join()


def test_a_deserializer_that_ends_the_program_does_so_and_the_consumer_can_be_closed(
    bootstrap: str,
) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"x", partition=0)
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    consumer = Consumer(topic, bootstrap_servers=bootstrap, value_deserializer=exit, **group)
    with pytest.raises(SystemExit):
        next(consumer)
    consumer.close()
    with Consumer(topic, bootstrap_servers=bootstrap, **group) as successor:
        assert next(successor).value == b"x"


def test_long_polling_answers_soon_after_a_write(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with assigned(bootstrap, topic) as consumer, Producer(bootstrap_servers=bootstrap) as producer:
        consumer.poll(200)
        timer = threading.Timer(0.2, lambda: producer.send(topic, b"x", partition=0))
        timer.start()
        began = time.monotonic()
        assert consumer.poll(60_000)
        assert time.monotonic() - began < 20
        timer.join()


def test_a_bad_topic_name_is_reported_and_not_waited_for(bootstrap: str) -> None:
    with (
        Consumer("a/b", bootstrap_servers=bootstrap, group_id=fresh("group")) as consumer,
        pytest.raises(InvalidTopicError, match="a/b"),
    ):
        poll_until(lambda: False, consumer, seconds=5)


def test_calls_that_need_a_group_say_so(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with assigned(bootstrap, topic) as consumer:
        for call in (consumer.commit, consumer.group_metadata, consumer.ensure_membership):
            with pytest.raises(IllegalStateError, match="group_id"):
                call()
        with pytest.raises(IllegalStateError, match="group_id"):
            consumer.subscribe([topic])


def test_a_closed_consumer_says_so(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    consumer = assigned(bootstrap, topic)
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()


async def test_the_asyncio_consumer_reads_by_iteration(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    write(bootstrap, topic, ["a", "b"], partition=0)
    write(bootstrap, topic, ["c"], partition=1)
    async with AsyncConsumer(
        topic, bootstrap_servers=bootstrap, group_id=fresh("group"), auto_offset_reset="earliest"
    ) as consumer:
        values = set()
        async for record in consumer:
            values.add(record.value)
            if len(values) == 3:
                break
    assert values == {b"a", b"b", b"c"}
