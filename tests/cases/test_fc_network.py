"""Goal: whatever the network does, nothing is lost, stored twice, out of order, or half committed.

Method: one relay before our broker and Apache Kafka withholds answers, delays them by different
times (so that answers of different connections overtake each other), cuts connections and swallows
requests, all at once and by a seed, while an idempotent and a transactional producer write and a
group reads. Afterwards the topic is read past the relay. FC-01 and FC-49 are parts of it.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest
from case_proxy import Action, Proxy, Rule

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import EndTxnRequest

PARTITIONS = 3
RECORDS = 1_500
TRANSACTIONS = 24
TIMES = {"request_timeout_ms": 700, "delivery_timeout_ms": 90_000}


def trouble(proxy: Proxy, chance: random.Random) -> list[Rule]:
    """Rules of every kind; primes, so that they meet in ever other places."""
    rules = []
    for request, action, every in (
        (ProduceRequest, Action.DROP_REPLY, 11),
        (EndTxnRequest, Action.DROP_REPLY, 5),
        (OffsetCommitRequest, Action.DROP_REPLY, 3),
        (ProduceRequest, Action.CUT, 17),
        (FetchRequest, Action.CUT, 11),
        (FetchRequest, Action.SWALLOW, 17),
        (ProduceRequest, Action.SWALLOW, 31),
    ):
        rules.append(proxy.add(request, action, every=every, delay_ms=chance.choice((0, 50))))
    for every in (2, 3, 5):
        rules.append(proxy.add(None, Action.DELAY, every=every, delay_ms=chance.randint(1, 15)))
    return rules


def write_plainly(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, batch_size=500, **TIMES) as producer:
        sent = [
            producer.send(topic, b"plain-%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)
        ]
        for delivery in sent:
            delivery.result(120)


def write_in_transactions(bootstrap: str, topic: str, name: str) -> None:
    with Producer(
        bootstrap_servers=bootstrap, transactional_id=name, max_block_ms=90_000, **TIMES
    ) as producer:
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send(topic, b"txn-%d" % number, partition=partition)
            if number % 4 == 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def read_in_a_group(bootstrap: str, topic: str, wanted: int, found: list[bytes]) -> None:
    with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        request_timeout_ms=700,
        enable_auto_commit=True,
        auto_commit_interval_ms=100,
    ) as consumer:
        while len(found) < wanted:
            for records in consumer.poll(timeout_ms=200).values():
                found += [bytes(record.value or b"") for record in records]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1])
def test_everything_goes_wrong_at_once(cluster: str, name: str, seed: int) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    committed = TRANSACTIONS - TRANSACTIONS // 4
    wanted = RECORDS + PARTITIONS * committed
    delivered: list[bytes] = []
    failures: list[BaseException] = []

    def guarded(work: object, *args: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 - told by the test
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    with Proxy(cluster) as proxy:
        rules = trouble(proxy, random.Random(seed))
        address = proxy.bootstrap_servers
        threads = [
            guarded(write_plainly, address, name),
            guarded(write_in_transactions, address, name, f"{name}-txn"),
            guarded(read_in_a_group, address, name, wanted, delivered),
        ]
        for thread in threads:
            thread.join(200)
        assert not failures, failures
        assert not any(thread.is_alive() for thread in threads)
        assert [rule for rule in rules if rule.hits == 0] == []
    check(cluster, name, delivered, committed)


def check(bootstrap: str, topic: str, delivered: list[bytes], committed: int) -> None:
    by_partition: dict[int, list[bytes]] = defaultdict(list)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for partition, records in consumer.poll(timeout_ms=500).items():
                values = [bytes(record.value or b"") for record in records]
                by_partition[partition.partition] += values
    transactions = [b"txn-%d" % n for n in range(TRANSACTIONS) if n % 4 != 3]
    assert len(transactions) == committed
    for index in range(PARTITIONS):
        plain = [value for value in by_partition[index] if value.startswith(b"plain")]
        assert plain == [b"plain-%d" % n for n in range(RECORDS) if n % PARTITIONS == index]
        others = [value for value in by_partition[index] if value.startswith(b"txn")]
        assert others == transactions
    everything = [value for values in by_partition.values() for value in values]
    assert set(delivered) == set(everything)
