"""Goal: a query never passes over records in silence; what is lost stops it or is logged exactly.

Method: the source's reader is driven as Spark drives it, without a JVM, against the in-process
broker; its log is compared with what was deleted.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, Producer, TopicPartition

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from onceflow.spark_integration.options import SourceOptions
from onceflow.spark_integration.planning import DataLossError, OffsetRange
from onceflow.spark_integration.reader import OnceflowReader, OnceflowStreamReader, read_range

pytestmark = pytest.mark.spark
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


def made(broker: Broker, admin: Admin, name: str, values: int) -> str:
    """A topic of one partition with values 0, 1, ...; one of that name is deleted before."""
    if name in admin.list_topics():
        admin.delete_topics([name])
    admin.create_topics([NewTopic(name, 1, 1)])
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(name, [b"%d" % n for n in range(values)], partition=0)
    return name


@pytest.fixture
def topic(broker: Broker, admin: Admin) -> str:
    return made(broker, admin, f"loss-{next(NUMBERS)}", 5)


def options(
    broker: Broker, topic: str, *, fail: bool, streaming: bool = True, **more: str
) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(fail).lower(),
        "pollTimeoutMs": "20000",
    }
    return SourceOptions.parse({**given, **more}, streaming=streaming)


class Query:
    """Runs micro-batches as Spark does; a position is what the checkpoint would hold."""

    def __init__(self, options: SourceOptions) -> None:
        self.reader = OnceflowStreamReader(options)
        self.position: dict[str, Any] = self.reader.initialOffset()

    def plan(self) -> dict[str, Any]:
        """The end of the next micro-batch, as JSON keeps it."""
        end = self.reader.latestOffset(self.position, ReadAllAvailable())
        planned: dict[str, Any] = json.loads(json.dumps(end))
        return planned

    def run(self, end: dict[str, Any] | None = None) -> list[str]:
        """Values of the next micro-batch."""
        end = self.plan() if end is None else end
        found: list[str] = []
        for partition in self.reader.partitions(self.position, end):
            for rows in self.reader.read(partition):
                found += [value.decode() for value in rows.column("value").to_pylist()]
        self.position = end
        return found


@pytest.fixture
def lax(broker: Broker, topic: str) -> Iterator[Query]:
    query = Query(options(broker, topic, fail=False))
    yield query
    query.reader.stop()


@pytest.fixture
def strict(broker: Broker, topic: str) -> Iterator[Query]:
    query = Query(options(broker, topic, fail=True))
    yield query
    query.reader.stop()


@pytest.mark.parametrize("values", [3, 5, 8])
def test_topic_that_was_made_again_stops_the_query(
    broker: Broker, admin: Admin, topic: str, strict: Query, values: int
) -> None:
    assert len(strict.run()) == 5
    made(broker, admin, topic, values)
    with pytest.raises(DataLossError, match=f"deleted and created again.*{topic}.*failOnDataLoss"):
        strict.run()


@pytest.mark.parametrize("values", [3, 5, 8])
def test_topic_that_was_made_again_is_read_from_its_beginning_when_loss_is_allowed(
    broker: Broker, admin: Admin, topic: str, lax: Query, values: int, caplog: Any
) -> None:
    assert len(lax.run()) == 5
    made(broker, admin, topic, values)
    with caplog.at_level(logging.WARNING):
        assert lax.run() == [str(n) for n in range(values)]
    assert f"topic {topic} was deleted and made again; partition 0, read to offset 5" in caplog.text
    assert lax.run() == []


@pytest.mark.parametrize("fail", [True, False])
def test_batch_that_was_planned_before_the_topic_was_made_again_is_not_read_from_the_new_one(
    broker: Broker, admin: Admin, topic: str, lax: Query, strict: Query, fail: bool, caplog: Any
) -> None:
    query = strict if fail else lax
    planned = query.plan()
    made(broker, admin, topic, 8)
    if fail:
        with pytest.raises(DataLossError, match="deleted and created again"):
            query.run(planned)
        return
    with caplog.at_level(logging.WARNING):
        assert query.run(planned) == []
    assert f"topic {topic}, partition 0, offsets 0 to 4 (5 offsets)" in caplog.text
    assert len(query.run()) == 8


def test_first_batch_that_runs_again_keeps_its_offsets(broker: Broker, strict: Query) -> None:
    planned = strict.plan()
    again = Query(strict.reader._options)
    assert len(again.run(planned)) == 5
    again.reader.stop()


def test_position_of_an_older_version_without_ids_goes_on(strict: Query) -> None:
    strict.run()
    del strict.position["@onceflow"]["topics"]
    assert strict.run() == []


def test_expired_offsets_are_counted_in_the_log(
    broker: Broker, admin: Admin, topic: str, lax: Query, caplog: Any
) -> None:
    admin.delete_records({TopicPartition(topic, 0): 3})
    with caplog.at_level(logging.WARNING):
        assert lax.run() == ["3", "4"]
    assert f"topic {topic}, partition 0, offsets 0 to 2 (3 offsets)" in caplog.text


def test_deleted_topic_is_counted_in_the_log(
    admin: Admin, topic: str, lax: Query, caplog: Any
) -> None:
    planned = lax.plan()
    admin.delete_topics([topic])
    with caplog.at_level(logging.WARNING):
        assert lax.run(planned) == []
    assert f"topic {topic}, partition 0, offsets 0 to 4 (5 offsets)" in caplog.text


@pytest.mark.parametrize(("deleted", "kept"), [(2, ["2", "3"]), (5, [])])
def test_task_counts_what_is_deleted_while_it_reads(
    broker: Broker, admin: Admin, topic: str, deleted: int, kept: list[str], caplog: Any
) -> None:
    admin.delete_records({TopicPartition(topic, 0): deleted})
    with caplog.at_level(logging.WARNING):
        batches = list(read_range(options(broker, topic, fail=False), OffsetRange(topic, 0, 0, 4)))
    found = [v.decode() for rows in batches for v in rows.column("value").to_pylist()]
    assert found == kept
    last = min(deleted, 4)
    assert f"partition 0, offsets 0 to {last - 1} ({last} offsets)" in caplog.text


@pytest.mark.parametrize(("side", "streaming"), [("starting", True), ("starting", False),
                                                 ("ending", False)])  # fmt: skip
def test_offset_beyond_the_end_of_the_log_is_refused(
    broker: Broker, topic: str, side: str, streaming: bool
) -> None:
    found = options(
        broker,
        topic,
        fail=True,
        streaming=streaming,
        **{f"{side}Offsets": json.dumps({topic: {"0": 6}})},
    )
    stream, table = OnceflowStreamReader(found), OnceflowReader(found)
    plan = stream.initialOffset if streaming else table.partitions
    with pytest.raises(DataLossError, match=f"{side}Offsets.*{topic}-0: 6, but the log ends at 5"):
        plan()


def test_start_at_the_end_of_an_open_transaction_is_taken(
    broker: Broker, admin: Admin, topic: str
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        start = json.dumps({topic: {"0": 6}})
        reader = OnceflowStreamReader(options(broker, topic, fail=True, startingOffsets=start))
        assert reader.initialOffset()[topic] == {"0": 6}
        reader.stop()
        producer.abort_transaction()


def test_start_beyond_the_end_goes_to_the_end_when_loss_is_allowed(
    broker: Broker, topic: str, caplog: Any
) -> None:
    start = json.dumps({topic: {"0": 9}})
    reader = OnceflowStreamReader(options(broker, topic, fail=False, startingOffsets=start))
    with caplog.at_level(logging.WARNING):
        assert reader.initialOffset()[topic] == {"0": 5}
    assert f"startingOffsets: {topic}-0: 9, but the log ends at 5" in caplog.text
    reader.stop()
