"""Goal: a micro-batch's transaction is all or nothing, whatever happens to driver, tasks, answers.

Method: the steps of a batch attempt are called as the sink calls them, without a JVM: joined
producers stand for tasks, files laid by hand for the checkpoint, a relay loses answers. The same
against Apache Kafka in conformance runs.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
import spark_world
from case_proxy import Action, Proxy

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, Producer, ProducerIdentity, TopicPartition
from onceflow.sdk.errors import ConfigError, FatalError, KafkaError, ProducerFencedError
from onceflow.sdk.protocol.api.transactions import EndTxnRequest
from onceflow.spark_integration import BatchWriteError, transaction
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.transaction import OpenBatch
from onceflow.spark_integration.writer import TaskRowWriter

pytestmark = pytest.mark.spark
NUMBERS = itertools.count(1)
QUERY = "query-of-this-checkpoint"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def older_broker() -> Iterator[Broker]:
    """One whose clients use transaction version 1: an epoch per producer, partitions announced."""
    with Broker(settings={"onceflow.transaction.version": 0}) as running:
        yield running


@pytest.fixture(
    params=["broker", "older_broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)]
)
def cluster(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param).bootstrap_servers
    return address


class Query:
    """A query with its topics and its checkpoint; what a test changes is an argument."""

    def __init__(self, cluster: str, folder: Path, **options: str) -> None:
        self.cluster = cluster
        self.folder = folder
        number = next(NUMBERS)
        self.topic, self.source = f"spark-out-{number}", f"spark-in-{number}"
        with Admin(bootstrap_servers=cluster) as admin:
            admin.create_topics([NewTopic(self.topic, 2, 1), NewTopic(self.source, 1, 1)])
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))
        self.given = {
            "kafka.bootstrap.servers": cluster,
            "checkpointLocation": str(folder),
            "transactionalId": f"spark-{number}",
            "topic": self.topic,
            **options,
        }

    def options(self, **changes: str) -> SinkOptions:
        return SinkOptions.parse({**self.given, **changes})

    def plan(self, batch_id: int, offset: int) -> None:
        """Write what Spark writes before it runs a batch."""
        lines = ["v1", "{}", json.dumps({self.source: {"0": offset}})]
        (self.folder / "offsets" / str(batch_id)).write_text("\n".join(lines))

    def begin(self) -> OpenBatch:
        return transaction.begin(self.options(), QUERY)

    def task(self, identity: ProducerIdentity, partition: int, values: list[str]) -> None:
        """What a task does: write some rows of one partition."""
        with Producer(bootstrap_servers=self.cluster, joined_identity=identity) as producer:
            producer.send_many(self.topic, [v.encode() for v in values], partition=partition)
            producer.flush()

    def commit(self, opened: OpenBatch, batch_id: int, rows: Mapping[int, int]) -> None:
        counted = {TopicPartition(self.topic, n): count for n, count in rows.items()}
        transaction.commit(self.options(), opened.identity, QUERY, batch_id, counted)

    def publish(self, batch_id: int, offset: int, *values: str) -> None:
        self.plan(batch_id, offset)
        opened = self.begin()
        self.task(opened.identity, 0, list(values))
        self.commit(opened, batch_id, {0: len(values)})

    def visible(self) -> list[str]:
        return spark_world.values_of(self.cluster, self.topic)

    def source_offset(self) -> int | None:
        with Admin(bootstrap_servers=self.cluster) as admin:
            stored = admin.list_group_offsets(self.options().group_id, require_stable=True)
        found = stored.get(TopicPartition(self.source, 0))
        return None if found is None else found.offset


@pytest.fixture
def query(cluster: str, tmp_path: Path) -> Query:
    return Query(cluster, tmp_path / "checkpoint")


def test_rows_of_all_tasks_offsets_and_progress_become_visible_together(query: Query) -> None:
    query.plan(0, 42)
    opened = query.begin()
    assert not opened.is_published(0)
    query.task(opened.identity, 0, ["a", "b"])
    query.task(opened.identity, 1, ["c"])
    assert query.visible() == []
    assert query.source_offset() is None
    query.commit(opened, 0, {0: 2, 1: 1})
    assert query.visible() == ["a", "b", "c"]
    assert query.source_offset() == 42
    assert query.begin().published_batch_id == 0


def test_batches_follow_each_other_under_new_epochs(query: Query) -> None:
    for batch_id in range(3):
        query.publish(batch_id, 10 * batch_id, f"of-{batch_id}")
    assert query.visible() == ["of-0", "of-1", "of-2"]
    assert query.begin().published_batch_id == 2


def test_published_batch_is_known_to_a_restarted_driver_but_not_to_another_query(
    query: Query,
) -> None:
    query.publish(7, 1, "once")
    assert query.begin().is_published(7)
    assert not query.begin().is_published(8)
    assert not transaction.begin(query.options(), "a new checkpoint's query").is_published(0)


def test_driver_that_died_in_the_middle_leaves_nothing_and_its_tasks_are_fenced(
    query: Query,
) -> None:
    query.plan(0, 1)
    dead = query.begin()
    query.task(dead.identity, 0, ["lost"])
    opened = query.begin()
    with pytest.raises(KafkaError):
        query.task(dead.identity, 1, ["zombie"])
    query.task(opened.identity, 0, ["kept"])
    query.commit(opened, 0, {0: 1})
    assert query.visible() == ["kept"]


def test_tasks_of_an_aborted_attempt_are_fenced(query: Query) -> None:
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["lost"])
    transaction.abort(query.options(), opened.identity)
    with pytest.raises(KafkaError):
        query.task(opened.identity, 1, ["zombie"])
    with pytest.raises(KafkaError):
        query.commit(opened, 0, {0: 1})
    assert query.visible() == []


def test_attempt_without_any_row_can_be_aborted(query: Query) -> None:
    opened = query.begin()
    transaction.abort(query.options(), opened.identity)
    query.publish(0, 1, "next")
    assert query.visible() == ["next"]


def test_late_abort_of_an_old_driver_does_not_disturb_the_new_one(query: Query) -> None:
    query.plan(0, 1)
    old = query.begin()
    query.task(old.identity, 1, ["old"])
    new = query.begin()
    query.task(new.identity, 0, ["new"])
    with pytest.raises(FatalError):
        transaction.abort(query.options(), old.identity)
    with pytest.raises(ProducerFencedError):
        query.commit(old, 0, {1: 1})
    query.commit(new, 0, {0: 1})
    assert query.visible() == ["new"]


@pytest.mark.parametrize("action", [Action.DROP_REPLY, Action.CUT], ids=["answer", "request"])
def test_commit_is_asked_for_again_when_its_answer_or_request_is_lost(
    cluster: str, tmp_path: Path, action: Action
) -> None:
    with Proxy(cluster) as proxy:
        query = Query(
            cluster, tmp_path / "c", **{"kafka.bootstrap.servers": proxy.bootstrap_servers}
        )
        proxy.add(EndTxnRequest, action, times=1)
        query.publish(0, 5, "once")
    assert query.visible() == ["once"]
    assert query.source_offset() == 5


@pytest.mark.parametrize("action", [Action.DROP_REPLY, Action.CUT], ids=["answers", "requests"])
def test_commit_of_unknown_outcome_is_asked_for_again(
    cluster: str, tmp_path: Path, action: Action
) -> None:
    """The cluster is silent until the first commit has given up, as its warning tells."""
    with Proxy(cluster) as proxy:
        options = {
            "kafka.bootstrap.servers": proxy.bootstrap_servers,
            "kafka.max.block.ms": "1500",
        }
        query = Query(cluster, tmp_path / "checkpoint", **options)
        query.plan(0, 5)
        opened = query.begin()
        query.task(opened.identity, 0, ["row"])
        proxy.add(EndTxnRequest, action)
        gave_up = OnMessage("asking again", proxy.clear)
        transaction.logger.addHandler(gave_up)
        try:
            query.commit(opened, 0, {0: 1})
        finally:
            transaction.logger.removeHandler(gave_up)
        assert gave_up.count == 1
        assert query.visible() == ["row"]
        assert query.begin().is_published(0)


class OnMessage(logging.Handler):
    """Does something when a message is logged."""

    def __init__(self, text: str, then: Callable[[], object]) -> None:
        super().__init__()
        self.text = text
        self.then = then
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.count += 1
            self.then()


def test_transaction_timeout_above_the_brokers_maximum_names_both(query: Query) -> None:
    options = query.options(**{"kafka.transaction.timeout.ms": "99999999"})
    with pytest.raises(ConfigError, match=r"kafka.transaction.timeout.ms=99999999.*900000"):
        transaction.begin(options, QUERY)


def test_batch_without_rows_still_moves_the_source_offsets(query: Query) -> None:
    query.plan(3, 17)
    query.commit(query.begin(), 3, {})
    assert query.source_offset() == 17
    assert query.begin().is_published(3)


def test_missing_plan_of_a_batch_is_an_error_and_nothing_is_published(query: Query) -> None:
    opened = query.begin()
    query.task(opened.identity, 0, ["row"])
    with pytest.raises(Exception, match="offsets/9"):
        query.commit(opened, 9, {0: 1})
    assert query.visible() == []


def test_batch_of_a_checkpoint_that_was_set_back_is_not_taken_for_published(query: Query) -> None:
    query.publish(0, 10, "a")
    query.publish(1, 20, "b")
    transaction.check_skipped(query.options(), 1)
    query.plan(1, 35)
    assert query.begin().is_published(1)
    with pytest.raises(ConfigError, match=r"planned to 35, published to 20.*=committed"):
        transaction.check_skipped(query.options(), 1)


def test_group_with_commits_of_somebody_else_is_refused(query: Query) -> None:
    with Admin(bootstrap_servers=query.cluster) as admin:
        group = query.options().progress_group_id
        admin.alter_group_offsets(group, {TopicPartition(query.topic, 0): 5})
    with pytest.raises(ConfigError, match="choose another groupId"):
        query.begin()


def test_partition_that_another_attempt_wrote_to_is_refused(query: Query) -> None:
    """As when Spark repeats a stage: the repetition's tasks count their attempts from 0 again."""
    opened = query.begin()
    query.task(opened.identity, 0, ["of the first run"])
    columns = SinkColumns(0, key=None, topic=None, partition=1, headers=None, timestamp=None)
    with (
        Producer(bootstrap_servers=query.cluster, joined_identity=opened.identity) as producer,
        Admin(bootstrap_servers=query.cluster) as admin,
    ):
        writer = TaskRowWriter(producer, admin, columns, query.topic, 1)
        writer.write(rows_of(["free"], 1))
        with pytest.raises(BatchWriteError, match=rf"wrote to {query.topic}-0"):
            writer.write(rows_of(["again"], 0))
        producer.flush()
    assert writer.rows == {TopicPartition(query.topic, 1): 1}


def rows_of(values: list[str], partition: int) -> pa.RecordBatch:
    numbers = pa.array([partition] * len(values), pa.int32())
    return pa.record_batch({"value": pa.array(values), "partition": numbers})
