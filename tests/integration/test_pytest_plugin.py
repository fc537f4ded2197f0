"""Goal: the pytest plugin gives brokers, topics, records and clients as it says, and its assertions
tell what is missing.

Method: small test files in a pytest of their own; its outcomes and what it prints. Committed
records are compared in this process too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing.committed import KafkaRecords, explain
from onceflow.sdk import Producer

CONFTEST = 'pytest_plugins = ["onceflow.broker_lite.testing.pytest_plugin"]\n'

GOOD = """
import asyncio
import pytest
from onceflow.broker_lite import Broker

names = []

@pytest.mark.parametrize("number", [1, 2])
def test_names(kafka_topic, kafka_records, kafka, shared_kafka_broker, number):
    assert kafka is shared_kafka_broker
    names.append(kafka_topic("orders", partitions=2, retention_ms=5000))
    names.append(kafka_topic("orders"))
    assert len(set(names)) == len(names)
    assert all(name.startswith("test_names-") or name.startswith("test-names-") for name in names)
    assert kafka_records.committed(names[-2]) == []

def test_own(kafka_broker, kafka, shared_kafka_broker):
    assert kafka is kafka_broker and kafka is not shared_kafka_broker

@pytest.mark.kafka_broker(nodes=2, profile="4.0")
class TestMarked:
    @pytest.mark.kafka_broker(nodes=3)
    def test_marked(self, kafka, kafka_bootstrap_servers):
        assert kafka_bootstrap_servers.count(",") == 2
        assert kafka.state.profile.name == "4.0"

def test_clients(kafka_topic, kafka_producer, kafka_consumer, kafka_records):
    topic = kafka_topic()
    kafka_producer().send(topic, b"1").result(timeout=20)
    consumer = kafka_consumer(topic, group_id="g")
    polled = []
    while not polled:
        for records in consumer.poll(timeout_ms=200).values():
            polled += [record.value for record in records]
    assert polled == [b"1"]
    consumer.commit()
    assert kafka_records.offsets("g", topic) == {0: 1}

def test_no_group_is_needed(kafka_topic, kafka_admin, kafka_consumer, kafka_records):
    topic = kafka_topic()
    kafka_records.put(topic, b"1")
    for _ in range(2):
        assert next(kafka_consumer(topic)).value == b"1"
    assert topic in kafka_admin.list_topics()

def test_admin_for_asyncio(kafka_topic, kafka_async):
    topic = kafka_topic()
    async def run():
        async with kafka_async:
            assert topic in await (await kafka_async.admin()).list_topics()
            assert (await anext(await consumer())).value == b"2"
    async def consumer():
        producer = await kafka_async.producer()
        await producer.send_and_wait(topic, b"2")
        return await kafka_async.consumer(topic)
    asyncio.run(run())

def test_a_topic_that_is_missing(kafka_broker, kafka_records):
    kafka_broker.create_topic("there")
    with pytest.raises(KeyError, match="unknown topic 'missing'.*topics: there"):
        kafka_records.committed("missing")

def test_async(kafka_topic, kafka_async, kafka_records):
    topic = kafka_topic()
    async def run():
        async with kafka_async:
            producer = await kafka_async.producer()
            await producer.send(topic, b"1")
            await producer.flush()
    asyncio.run(run())
    assert kafka_records.committed(topic) == [b"1"]
"""

BAD = """
def test_differs(kafka_topic, kafka_records):
    topic = kafka_topic()
    kafka_records.put(topic, (b"a", b"1"), (b"b", b"2" * 100))
    assert kafka_records.committed(topic) == [(b"a", b"1"), (b"b", b"3")]
"""


MISSPELT = """
import pytest

@pytest.mark.kafka_broker(jurnal=True)
def test_journal(kafka):
    pass

@pytest.mark.kafka_broker(nodes=2, colour="red")
def test_colour(kafka):
    pass
"""


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
         "-p", "no:asyncio",
         "-W", "error", "--strict-markers", str(folder)],
        capture_output=True, text=True, timeout=110, check=False, cwd=folder,
    )  # fmt: skip


def test_fixtures_give_what_they_say(tmp_path: Path) -> None:
    done = run(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


def test_an_option_that_there_is_not_is_told_with_the_nearest(tmp_path: Path) -> None:
    done = run(tmp_path, MISSPELT)
    assert done.returncode == 1
    assert "kafka_broker has no option 'jurnal': did you mean journal?" in done.stdout
    assert "kafka_broker has no option 'colour': it has data, host, port," in done.stdout
    assert "TypeError" not in done.stdout


def test_a_difference_is_told_line_by_line(tmp_path: Path) -> None:
    done = run(tmp_path, BAD)
    assert done.returncode == 1
    assert "2 committed, 2 expected" in done.stdout
    assert "-b'b': b'3'" in done.stdout
    assert "(100 bytes)" in done.stdout


class TestCommitted:
    @pytest.fixture
    def records(self) -> object:
        with Broker() as broker, KafkaRecords(broker) as made:
            broker.create_topic("t", partitions=2)
            self.broker = broker
            yield made

    def test_open_and_aborted_transactions_are_not_there(self, records: KafkaRecords) -> None:
        with (
            Producer(
                bootstrap_servers=self.broker.bootstrap_servers, transactional_id="x"
            ) as producer,
            Producer(
                bootstrap_servers=self.broker.bootstrap_servers, transactional_id="y"
            ) as other,
        ):
            for number, outcome in enumerate(("commit", "abort", "commit", "abort")):
                producer.begin_transaction()
                producer.send("t", b"%d" % number, partition=0).result(timeout=20)
                records.put("t", b"plain", partition=0)
                getattr(producer, f"{outcome}_transaction")()
            assert records.committed("t") == [b"0", b"plain", b"plain", b"2", b"plain", b"plain"]
            other.begin_transaction()
            other.send("t", b"open", partition=1).result(timeout=20)
            records.put("t", b"behind", partition=1)
            assert records.committed("t").of_partition(1) == []
            other.commit_transaction()
            assert records.committed("t").of_partition(1) == [b"open", b"behind"]
        whole = records.committed("t")
        assert whole == list(whole)
        assert whole != [b"0"]
        assert whole.in_any_order == [b"plain"] * 4 + [b"behind", b"open", b"2", b"0"]

    def test_differences_are_explained(self, records: KafkaRecords) -> None:
        records.put("t", (b"a", b"1"), (b"a", b"2"))
        found = records.committed("t")
        lines = explain(found, [b"2", b"1"])
        assert lines is not None
        assert lines[1].startswith("the same records in another order")
        assert explain(found, 5) is None
        many = explain(found, [b"%d" % number for number in range(200)])
        assert many is not None
        assert many[-1].endswith("lines more")
        with pytest.raises(KeyError, match="unknown topic 'u'"):
            records.committed("u")
