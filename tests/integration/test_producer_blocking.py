"""Goal: the blocking producer does on a real broker what it promises, and leaves nothing behind.

Method: a broker in this process (or the cluster named by ONCEFLOW_TEST_BOOTSTRAP), and
confluent-kafka as the reader of what was stored.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from producer_cluster import (
    committed_offset,
    fresh_name,
    make_topic,
    read_all,
    running_cluster,
    values,
)

from onceflow.sdk import ConsumerGroupMetadata, Producer, TopicPartition, serde
from onceflow.sdk.errors import (
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    MessageTooLargeError,
    NoBrokersAvailableError,
    ProducerFencedError,
    RecordTooLargeError,
    SerializationError,
    TransactionAbortedError,
)
from onceflow.sdk.settings.config import CompressionType


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker for all tests of this file."""
    with running_cluster() as address:
        yield address


def test_records_arrive_in_order_with_their_offsets(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        handles = [producer.send(topic, b"%d" % n) for n in range(2_000)]
        producer.flush()
        found = [handle.result(20) for handle in handles]
    assert [m.offset for m in found] == list(range(2_000))
    assert values(bootstrap, topic) == [b"%d" % n for n in range(2_000)]


def test_keys_values_headers_and_timestamps_come_back_as_they_were(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (None, b"x"),
        (b"", b"x"),
        (b"k", None),
        (b"k", b""),
        (None, None),
    ]
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number, (key, value) in enumerate(pairs):
            producer.send(topic, value, key=key, headers=headers, timestamp_ms=1_000 + number)
        producer.send(topic, "tëxt", key="kéy", timestamp_ms=9)
    found = read_all(bootstrap, topic)
    assert [(r.key, r.value) for r in found[:5]] == pairs
    assert [r.timestamp_ms for r in found] == [1_000, 1_001, 1_002, 1_003, 1_004, 9]
    assert found[0].headers == headers
    assert (found[5].key, found[5].value) == ("kéy".encode(), "tëxt".encode())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_readable_by_others(bootstrap: str, codec: str) -> None:
    topic = make_topic(bootstrap)
    sent = [b"value %d " % n * 5 for n in range(500)]
    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:  # type: ignore[arg-type]
        producer.send_many(topic, sent)
    assert values(bootstrap, topic) == sent


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 12)), ("zstd", (1, 19))]
)
def test_the_level_of_a_codec_changes_the_size_and_nothing_else(
    bootstrap: str, codec: CompressionType, levels: tuple[int, int]
) -> None:
    dice = random.Random(7)
    sent = [b"%x" % dice.getrandbits(90) * 3 + b"padding" for _ in range(2_000)]
    sizes = []
    for level in levels:
        topic = make_topic(bootstrap)
        with Producer(
            bootstrap_servers=bootstrap, compression_type=codec, compression_level=level
        ) as producer:
            producer.send_many(topic, sent)
            producer.flush()
            sizes.append(producer.metrics().batch_size_avg)
        assert values(bootstrap, topic) == sent
    assert sizes[0] > sizes[1]


def test_bulk_and_single_sends_agree_on_partitions(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 5)
    keys = [b"key-%d" % (n % 37) for n in range(1_000)]
    sent = [b"%d" % n for n in range(1_000)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        first = producer.send_many(topic, sent, keys).result(20)
        second = [producer.send(topic, v, key=k) for k, v in zip(keys, sent, strict=True)]
        assert [m.partition for m in first] == [h.result(20).partition for h in second]
        assert [m.partition for m in first[:37]] == [
            producer.partition_for(topic, key) for key in keys[:37]
        ]
        assert producer.partitions_for(topic) == set(range(5))
    by_place = {(r.partition, r.offset): r.value for r in read_all(bootstrap, topic)}
    assert [by_place[m.partition, m.offset] for m in first] == sent


def test_bulk_takes_timestamps_headers_and_a_partition(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_many(
            topic,
            ["a", b"b"],
            [b"k", None],
            partition=2,
            timestamps_ms=[5, 6],
            headers=[[("h", b"1")], []],
        )
        with pytest.raises(ConfigError, match="2 values"):
            producer.send_many(topic, [b"a", b"b"], [b"k"])
    found = read_all(bootstrap, topic)
    assert [(r.partition, r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
        (2, b"k", b"a", 5, [("h", b"1")]),
        (2, None, b"b", 6, []),
    ]


def test_serializers_and_a_partitioner_of_ones_own(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    with Producer(
        bootstrap_servers=bootstrap,
        value_serializer=serde.JSON.serialize,
        key_serializer=lambda key: b"%d" % key,
        partitioner=lambda _topic, key, every, _available: int(key or b"0") % len(every),
    ) as producer:
        producer.send(topic, {"a": 1}, key=7)
        producer.send(topic, None, key=8)
        with pytest.raises(SerializationError, match="JSON"):
            producer.send(topic, object(), key=1)
        with pytest.raises(SerializationError, match="key_serializer failed"):
            producer.send(topic, 1, key="x")
    assert [(r.partition, r.key, r.value) for r in read_all(bootstrap, topic)] == [
        (1, b"7", b'{"a":1}'),
        (2, b"8", None),
    ]


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks_work_when_asked_for(bootstrap: str, acks: int) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False) as producer:
        found = producer.send(topic, b"a").result(20)
        assert found.offset == (0 if acks else -1)
    deadline = time.monotonic() + 60
    while not values(bootstrap, topic):
        assert time.monotonic() < deadline


def test_a_missing_topic_is_made_or_reported_by_name(bootstrap: str) -> None:
    name = fresh_name("created")
    with Producer(bootstrap_servers=bootstrap, max_block_ms=10_000) as producer:
        assert producer.send(name, b"a").result(20).offset == 0


@pytest.mark.parametrize("name", ["a/b", " lead", "täst", "", ".", "..", "x" * 250])
def test_an_illegal_topic_name_fails_at_once_and_alone(bootstrap: str, name: str) -> None:
    good = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        began = time.monotonic()
        with pytest.raises(InvalidTopicError, match="topic name"):
            producer.send(name, b"a")
        assert time.monotonic() - began < 20
        producer.send(good, b"a").result(20)


def test_a_partition_that_does_not_exist_is_refused(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(ConfigError, match="partitions 0 to 1"):
            producer.send(topic, b"a", partition=2)
        with pytest.raises(SerializationError, match="JSON"):
            producer.send(topic, 1.5)


# sizes


def test_one_big_record_does_not_sink_its_neighbours(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(
        bootstrap_servers=bootstrap,
        max_request_size=10_000_000,
        batch_size=5_000_000,
        linger_ms=200,
    ) as producer:
        small = [producer.send(topic, b"s%d" % n) for n in range(5)]
        big = producer.send(topic, os.urandom(2_000_000))
        small += [producer.send(topic, b"s%d" % n) for n in range(5, 10)]
        with pytest.raises(MessageTooLargeError):
            big.result(20)
        offsets = [handle.result(20).offset for handle in small]
    assert offsets == list(range(10))
    assert values(bootstrap, topic) == [b"s%d" % n for n in range(10)]


def test_compression_lets_a_large_record_pass(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(
        bootstrap_servers=bootstrap, max_request_size=10_000_000, compression_type="gzip"
    ) as producer:
        producer.send(topic, bytes(2_000_000)).result(20)
        producer.send(topic, os.urandom(900_000)).result(20)


def test_the_local_limit_is_named(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(RecordTooLargeError, match="max_request_size"):
            producer.send(topic, bytes(2_000_000))
        producer.send(topic, b"next").result(20)


def test_a_small_memory_slows_down_and_loses_nothing(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    with Producer(
        bootstrap_servers=bootstrap,
        buffer_memory=100_000,
        max_request_size=50_000,
        batch_size=10_000,
    ) as producer:
        for n in range(3_000):
            producer.send(topic, b"x" * 200, key=b"%d" % n)
        producer.send_many(topic, [b"y" * 200] * 3_000)
    assert len(values(bootstrap, topic)) == 6_000


# failures that nobody looks at


def test_a_failure_that_nobody_looked_at_is_raised_by_the_next_call(bootstrap: str) -> None:
    topic = make_topic(bootstrap, cleanup_policy="compact")
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=0)
    delivery = producer.send(topic, b"no key")
    deadline = time.monotonic() + 60
    while not delivery.done():
        assert time.monotonic() < deadline
    with pytest.raises(Exception, match="key") as caught:
        producer.send(topic, b"v", key=b"k")
    assert "was not looked at" in caught.value.__notes__[0]
    producer.send(topic, b"v", key=b"k").result(20)
    producer.send(topic, b"no key")
    with pytest.raises(type(caught.value)):
        producer.flush()
    producer.send(topic, b"no key")
    with pytest.raises(type(caught.value)):
        producer.close()


def test_a_failure_that_was_looked_at_is_not_raised_again(bootstrap: str) -> None:
    topic = make_topic(bootstrap, cleanup_policy="compact")
    with Producer(bootstrap_servers=bootstrap) as producer:
        group = producer.send_many(topic, [b"a", b"b"])
        one = producer.send(topic, b"no key")
        with pytest.raises(Exception, match="key"):
            one.result(20)
        with pytest.raises(Exception, match="key"):
            group.result(20)
        assert set(group.exceptions()) == {0, 1}
        producer.flush()


# life


def test_using_a_closed_producer_is_refused(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    producer = Producer(bootstrap_servers=bootstrap)
    producer.send(topic, b"a")
    producer.close()
    producer.close()
    assert values(bootstrap, topic) == [b"a"]
    with pytest.raises(ClientClosedError):
        producer.send(topic, b"b")
    with pytest.raises(ClientClosedError):
        producer.flush()


def test_no_thread_is_left(bootstrap: str) -> None:
    before = set(threading.enumerate())
    producer = Producer(bootstrap_servers=bootstrap.replace("127.0.0.1", "localhost"))
    assert set(threading.enumerate()) - before
    producer.close()
    assert set(threading.enumerate()) <= before


def test_two_threads_may_close_at_once(bootstrap: str) -> None:
    """As the end of a program and a thread that still sends do."""
    topic = make_topic(bootstrap)

    def close(producer: Producer, both: threading.Barrier) -> None:
        both.wait(30)
        producer.close()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            producer, both = Producer(bootstrap_servers=bootstrap), threading.Barrier(2)
            sent = producer.send(topic, b"x")
            for end in [pool.submit(close, producer, both) for _ in range(2)]:
                end.result(30)
            assert sent.result(0).topic == topic


def test_dead_bootstrap_servers_are_listed_within_the_limit() -> None:
    began = time.monotonic()
    with pytest.raises(NoBrokersAvailableError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2") as caught:
        Producer(bootstrap_servers="127.0.0.1:1, 127.0.0.1:2", max_block_ms=500)
    assert time.monotonic() - began < 20
    assert "refused" in str(caught.value)


@pytest.mark.parametrize("dead_first", [True, False])
def test_a_dead_bootstrap_server_does_not_keep_us_out(bootstrap: str, dead_first: bool) -> None:
    servers = ["127.0.0.1:1", bootstrap]
    began = time.monotonic()
    with Producer(bootstrap_servers=servers if dead_first else servers[::-1]):
        assert time.monotonic() - began < 20


def test_many_threads_may_share_a_producer(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap, batch_size=1_000) as producer:

        def work(name: int) -> None:
            for n in range(500):
                producer.send(topic, b"%d" % n, key=b"%d" % name)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = read_all(bootstrap, topic)
    for name in range(4):
        assert [r.value for r in found if r.key == b"%d" % name] == [b"%d" % n for n in range(500)]


def test_a_forked_child_is_told_to_make_its_own(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    script = f"""
import os, sys
from onceflow.sdk import Producer
from onceflow.sdk.errors import IllegalStateError
p = Producer(bootstrap_servers={bootstrap!r})
p.send({topic!r}, b"parent").result(20)
pid = os.fork()
if pid == 0:
    caught = 0
    for call in (lambda: p.send({topic!r}, b"child"), p.flush):
        try:
            call()
        except IllegalStateError as error:
            caught += "fork" in str(error)
    p.close()
    os._exit(0 if caught == 2 else 1)
_, status = os.waitpid(pid, 0)
p.send({topic!r}, b"parent").result(20)
p.close()
sys.exit(status >> 8)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=30, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert values(bootstrap, topic) == [b"parent"] * 2


def test_ctrl_c_interrupts_a_wait(bootstrap: str) -> None:
    script = f"""
import sys, time
from onceflow.sdk import Producer
p = Producer(bootstrap_servers={bootstrap!r}, linger_ms=60000)
p.partitions_for({make_topic(bootstrap)!r})
d = p.send({make_topic(bootstrap)!r}, b"a")
try:
    print("waiting", flush=True)
    d.result()
except KeyboardInterrupt:
    began = time.monotonic()
    p.close()
    print("interrupted", d.result(1).offset, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert out == "interrupted 0\n"
    assert process.returncode == 0


# transactions


def test_a_committed_transaction_is_visible_as_a_whole_and_an_aborted_one_never(
    bootstrap: str,
) -> None:
    topic = make_topic(bootstrap, 2)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            producer.send(topic, b"b", partition=1)
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"x", partition=0).result(20)
            raise ZeroDivisionError
        producer.begin_transaction()
        producer.send(topic, b"y", partition=1)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_many(topic, [b"c", b"d"], partition=0)
        producer.commit_transaction()
    assert values(bootstrap, topic) == [b"a", b"c", b"d", b"b"]
    assert b"x" in values(bootstrap, topic, committed=False)


def test_empty_transactions_end_without_trouble(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        before = producer.identity
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({}, ConsumerGroupMetadata("g"))
        producer.commit_transaction()
        assert producer.identity == before
        with producer.transaction():
            assert producer.send(topic, b"a").result(20).offset == 0


def test_offsets_are_committed_with_the_transaction_only(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    group = ConsumerGroupMetadata(fresh_name("group"))
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, group)
        producer.abort_transaction()
        assert committed_offset(bootstrap, group.group_id, topic) == -1001
        producer.begin_transaction()
        producer.send(topic, b"a")
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, group)
        producer.commit_transaction()
    assert committed_offset(bootstrap, group.group_id, topic) == 7


def test_a_newer_producer_takes_over_and_the_older_one_is_told_once_and_for_all(
    bootstrap: str,
) -> None:
    topic = make_topic(bootstrap)
    name = fresh_name("id")
    with Producer(bootstrap_servers=bootstrap, transactional_id=name) as old:
        old.begin_transaction()
        old.send(topic, b"a").result(20)
        began = time.monotonic()
        with Producer(bootstrap_servers=bootstrap, transactional_id=name) as new:
            assert time.monotonic() - began < 20
            with new.transaction():
                new.send(topic, b"b")
        with pytest.raises(Exception, match=r".") as caught:
            old.send(topic, b"c").result(20)
        assert not isinstance(caught.value, AssertionError)
        with pytest.raises(ProducerFencedError, match="close this one"):
            old.abort_transaction()
        with pytest.raises(ProducerFencedError):
            old.begin_transaction()
        with pytest.raises(ProducerFencedError):
            old.send(topic, b"d")
    assert values(bootstrap, topic) == [b"b"]


def test_calls_in_the_wrong_order_say_what_to_do(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send(topic, b"a")
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="commit or abort"):
            producer.begin_transaction()
    with (
        Producer(bootstrap_servers=bootstrap) as plain,
        pytest.raises(IllegalStateError, match="transactional_id"),
    ):
        plain.begin_transaction()


def test_a_lost_record_makes_the_commit_fail(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(
        bootstrap_servers=bootstrap,
        transactional_id=fresh_name("id"),
        max_request_size=10_000_000,
    ) as producer:
        producer.begin_transaction()
        producer.send(topic, b"a").result(20)
        producer.send(topic, os.urandom(3_000_000))
        for _ in range(2):
            with pytest.raises(MessageTooLargeError):
                producer.commit_transaction()
        with pytest.raises(MessageTooLargeError):
            producer.send(topic, b"more")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"c")
    assert values(bootstrap, topic) == [b"c"]


def test_a_timeout_above_the_brokers_maximum_is_told_at_the_start(bootstrap: str) -> None:
    with pytest.raises(InvalidTransactionTimeoutError):
        Producer(
            bootstrap_servers=bootstrap,
            transactional_id=fresh_name("id"),
            transaction_timeout_ms=3_600_000,
        )


def test_closing_aborts_what_is_open(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        producer.begin_transaction()
        producer.send(topic, b"a").result(20)
    assert values(bootstrap, topic) == []


def test_init_again_raises_the_epoch_and_does_not_drop_what_is_open(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        first = producer.identity
        producer.init_transactions()
        assert producer.identity == first, "nothing was done under the identity yet"
        producer.begin_transaction()
        producer.send(topic, b"a").result(20)
        with pytest.raises(IllegalStateError, match="open transaction; commit or abort it first"):
            producer.init_transactions()
        producer.commit_transaction()
        ended = producer.identity
        producer.init_transactions()
        assert ended is not None
        assert producer.identity is not None
        assert producer.identity.producer_epoch > ended.producer_epoch
        with producer.transaction():
            producer.send(topic, b"b")
    assert values(bootstrap, topic) == [b"a", b"b"]


def test_init_within_a_broken_transaction_says_to_abort_it(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    ahead_ms = int(time.time() * 1000) + 1_000_000_000
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidTimestampError):
            producer.send(topic, b"a", timestamp_ms=ahead_ms).result(20)
        with pytest.raises(IllegalStateError, match=r"call abort_transaction\(\)"):
            producer.init_transactions()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"b")
    assert values(bootstrap, topic) == [b"b"]


def test_a_joined_producer_writes_into_anothers_transaction(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 2)
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id")) as owner:
        for value in (b"1", b"2"):
            owner.begin_transaction()
            identity = owner.identity
            assert identity is not None
            with Producer(bootstrap_servers=bootstrap, joined_identity=identity) as joined:
                joined.send(topic, value, partition=1)
                with pytest.raises(IllegalStateError, match="another producer owns"):
                    joined.commit_transaction()
            owner.note_partitions([TopicPartition(topic, 1)])
            assert values(bootstrap, topic) == [b"1"][: int(value) - 1]
            owner.commit_transaction()
    assert values(bootstrap, topic) == [b"1", b"2"]


def test_a_transaction_can_be_resumed_by_another_producer(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    first = Producer(bootstrap_servers=bootstrap, transactional_id=fresh_name("id"))
    first.begin_transaction()
    first.send(topic, b"a").result(20)
    identity = first.identity
    assert identity is not None
    with Producer(bootstrap_servers=bootstrap, resumed_identity=identity) as second:
        second.note_partitions([TopicPartition(topic, 0)])
        second.commit_transaction()
        with second.transaction():
            second.send(topic, b"b")
    assert values(bootstrap, topic) == [b"a", b"b"]
    first.close(1_000)


@pytest.mark.slow
def test_a_transaction_that_outlives_its_timeout_is_told_apart_from_a_takeover(
    bootstrap: str,
) -> None:
    topic = make_topic(bootstrap)
    with Producer(
        bootstrap_servers=bootstrap,
        transactional_id=fresh_name("id"),
        transaction_timeout_ms=1_000,
    ) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x").result(20)
        deadline = time.monotonic() + 60
        while values(bootstrap, topic, committed=False) and not _is_aborted(bootstrap, topic):
            assert time.monotonic() < deadline
        with pytest.raises(TransactionAbortedError, match="transaction_timeout_ms"):
            producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"y")
    assert values(bootstrap, topic) == [b"y"]


def _is_aborted(bootstrap: str, topic: str) -> bool:
    """Whether the last stable offset has passed the record: an abort marker is there."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": "read_committed"}
    )
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        return bool(high >= 2)
    finally:
        consumer.close()
