"""Goal: a read_committed reader sees no aborted record and nothing behind an open transaction.

Method: several transactional producers of confluent-kafka take random steps (begin, send, commit,
abort) over a few partitions while others write plainly; a model says after each step which offsets
are visible and where the last stable offset is. A confluent-kafka consumer must see exactly that,
one from the start of the run and a fresh one at the end; our daemon is also killed and started
again while transactions are open. Seeds are part of the tests' names.
"""

from __future__ import annotations

import random

import confluent_kafka
import pytest
from stock_clients import DEADLINE_S, Row, by_partition, wait_until
from stock_confluent import ConfluentConsumer, ConfluentProducer, settings_for
from stock_daemon import StockDaemon
from stock_scenarios import closing, make_topic

PARTITIONS = 3
PRODUCERS = 5
STEPS = 90


class LogModel:
    """What a partition holds: records with their transaction, markers, and open transactions."""

    def __init__(self) -> None:
        self.end = 0
        self.records: list[tuple[int, bytes, int]] = []
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()

    def add(self, offset: int, value: bytes, transaction: int) -> None:
        """A record; transaction 0 is none."""
        assert offset == self.end, "the broker counts as the model does"
        self.records.append((offset, value, transaction))
        self.end = offset + 1
        if transaction:
            self.open.setdefault(transaction, offset)

    def finish(self, transaction: int, committed: bool) -> None:
        """The transaction's marker, where it took part."""
        if self.open.pop(transaction, None) is not None:
            self.end += 1
            if not committed:
                self.aborted.add(transaction)

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.end)

    def visible(self) -> list[tuple[int, bytes]]:
        stable = self.last_stable_offset
        return [
            (offset, value)
            for offset, value, transaction in self.records
            if offset < stable and transaction not in self.aborted
        ]


class Run:
    """Producers, their model and one reader that follows."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.random = random.Random(seed)
        self.logs = [LogModel() for _ in range(PARTITIONS)]
        self.plain = ConfluentProducer(bootstrap, "none", 0, None)
        self.producers = [
            ConfluentProducer(bootstrap, "none", 0, f"{topic}-{number}")
            for number in range(PRODUCERS)
        ]
        self.transactions: dict[int, int] = {}
        self.last_transaction = 0
        self.sent = 0
        self.seen: list[Row] = []
        self.reader = self.new_reader()
        # These read nothing: what they ask must not queue behind their own long polls.
        self.asker = ConfluentConsumer(bootstrap, f"{topic}-g", "read_committed", False)
        self.asker_of_all = ConfluentConsumer(bootstrap, f"{topic}-g", "read_uncommitted", False)

    def new_reader(self) -> ConfluentConsumer:
        reader = ConfluentConsumer(self.bootstrap, f"{self.topic}-g", "read_committed", False)
        reader.assign({(self.topic, number): 0 for number in range(PARTITIONS)})
        return reader

    def send(self, producer: ConfluentProducer, transaction: int) -> None:
        numbers = [self.random.randrange(PARTITIONS) for _ in range(self.random.randint(1, 3))]
        values = []
        for number in numbers:
            self.sent += 1
            values.append(b"%d/%d" % (transaction, self.sent))
            producer.send(self.topic, Row(number, values[-1]))
        for value, (number, offset) in sorted(
            zip(values, producer.flush(), strict=True), key=lambda pair: pair[1]
        ):
            self.logs[number].add(offset, value, transaction)

    def finish(self, number: int, committed: bool) -> None:
        transaction = self.transactions.pop(number)
        producer = self.producers[number]
        if committed:
            producer.commit()
        else:
            producer.abort()
        for log in self.logs:
            log.finish(transaction, committed)
        # Apache Kafka writes its markers after the answer; what follows must come behind them. The
        # last stable offset alone does not tell: another open transaction may hold it back.
        ends = [log.end for log in self.logs]
        wait_until(lambda: self.ends(self.asker_of_all) == ends, "the markers")
        wait_until(lambda: self.stable() == self.expected_stable(), "the last stable offsets")

    def ends(self, asker: ConfluentConsumer) -> list[int]:
        """Where each partition ends for a consumer of its isolation level, by librdkafka."""
        found = []
        for number in range(PARTITIONS):
            partition = confluent_kafka.TopicPartition(self.topic, number)
            found.append(asker.consumer.get_watermark_offsets(partition, DEADLINE_S)[1])
        return found

    def stable(self) -> list[int]:
        """Last stable offsets as librdkafka is told."""
        return self.ends(self.asker)

    def expected_stable(self) -> list[int]:
        return [log.last_stable_offset for log in self.logs]

    def step(self) -> None:
        number = self.random.randrange(PRODUCERS)
        producer = self.producers[number]
        action = self.random.random()
        if action < 0.15:
            self.send(self.plain, 0)
        elif number not in self.transactions:
            self.last_transaction += 1
            self.transactions[number] = self.last_transaction
            producer.begin()
            self.send(producer, self.last_transaction)
        elif action < 0.55:
            self.send(producer, self.transactions[number])
        else:
            self.finish(number, committed=action < 0.8)

    def check(self) -> None:
        """The reader sees what is visible, in order, and not one record more."""
        expected = {n: log.visible() for n, log in enumerate(self.logs) if log.visible()}

        def caught_up() -> bool:
            self.seen += self.reader.poll(0.05)
            return len(self.seen) >= sum(map(len, expected.values()))

        wait_until(caught_up, "the reader catches up")
        assert seen_by_partition(self.seen) == expected
        assert self.stable() == self.expected_stable()

    def check_fresh_reader(self) -> None:
        former, self.reader, self.seen = self.reader, self.new_reader(), []
        former.close()
        self.check()
        assert self.reader.poll(0.3) == []

    def end_all(self) -> None:
        for number in list(self.transactions):
            self.finish(number, committed=self.random.random() < 0.5)

    def close(self) -> None:
        for producer in (self.plain, *self.producers):
            producer.close()
        self.reader.close()
        self.asker.close()
        self.asker_of_all.close()


def seen_by_partition(rows: list[Row]) -> dict[int, list[tuple[int, bytes | None]]]:
    return {
        number: [(row.offset, row.value) for row in found]
        for number, found in by_partition(rows).items()
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_interleaved_transactions(bootstrap: str, name: str, seed: int) -> None:
    make_topic(bootstrap, name, PARTITIONS)
    run = Run(bootstrap, name, seed)
    with closing(run):
        for number in range(STEPS):
            run.step()
            if number % 10 == 9:
                run.check()
        run.check_fresh_reader()
        run.end_all()
        run.check_fresh_reader()


@pytest.mark.foreign
@pytest.mark.parametrize("seed", [11])
def test_interleaved_transactions_over_kills_of_the_broker(
    daemon: StockDaemon, name: str, seed: int
) -> None:
    make_topic(daemon.bootstrap_servers, name, PARTITIONS)
    run = Run(daemon.bootstrap_servers, name, seed)
    with closing(run):
        for number in range(STEPS):
            run.step()
            if number % 30 == 29:
                assert run.transactions, "the kill must meet open transactions"
                daemon.restart()
                run.check()
                run.check_fresh_reader()
        run.end_all()
        run.check_fresh_reader()


@pytest.mark.foreign
def test_consumer_settings_reach_the_broker(daemon: StockDaemon, name: str) -> None:
    """The same reader with read_uncommitted sees what was aborted: the filter is what hides it."""
    make_topic(daemon.bootstrap_servers, name, 1)
    producer = ConfluentProducer(daemon.bootstrap_servers, "none", 0, name)
    producer.begin()
    producer.send(name, Row(0, b"aborted"))
    producer.flush()
    producer.abort()
    found = {}
    for level in ("read_committed", "read_uncommitted"):
        reader = confluent_kafka.Consumer(
            settings_for(
                daemon.bootstrap_servers,
                group_id=name,
                isolation_level=level,
                enable_partition_eof=True,
            )
        )
        reader.assign([confluent_kafka.TopicPartition(name, 0, 0)])
        values = []
        while (message := reader.poll(DEADLINE_S)) is not None and message.error() is None:
            values.append(message.value())
        assert message is not None
        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        reader.close()
        found[level] = values
    producer.close()
    assert found == {"read_committed": [], "read_uncommitted": [b"aborted"]}
