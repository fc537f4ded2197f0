"""Goal: a micro-batch's transaction is all or nothing, whatever happens to driver, tasks, answers.

Method: the steps of a batch attempt are called as the sink calls them, without a JVM: joined
producers stand for tasks, files laid by hand for the checkpoint, a relay loses answers. The same
against Apache Kafka in conformance runs.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
import spark_world
from case_proxy import Action, Proxy

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    BatchEncoder,
    NewTopic,
    Producer,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.errors import ConfigError, FatalError, KafkaError, ProducerFencedError
from onceflow.sdk.protocol.api.transactions import EndTxnRequest
from onceflow.spark_integration import BatchWriteError, transaction
from onceflow.spark_integration.checkpoint import CheckpointError
from onceflow.spark_integration.encoding import RowEncoder
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.transaction import OpenBatch, TaskReport
from onceflow.spark_integration.writer import RowWriter

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
        self.plans = 0
        number = next(NUMBERS)
        self.topic, self.source = f"spark-out-{number}", f"spark-in-{number}"
        with Admin(bootstrap_servers=cluster) as admin:
            admin.create_topics([NewTopic(self.topic, 2, 1), NewTopic(self.source, 1, 1)])
            self.cluster_id = admin.describe_cluster().cluster_id
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
        self.plans += 1  # The time of the planning, in Spark's file.
        lines = [
            "v1",
            json.dumps({"batchTimestampMs": self.plans}),
            self.position(offset),
        ]
        (self.folder / "offsets" / str(batch_id)).write_text("\n".join(lines))

    def position(self, offset: int) -> str:
        """A source's offsets, as our source writes them."""
        return json.dumps({self.source: {"0": offset}, "@onceflow": {"cluster": self.cluster_id}})

    def begin(self, batch_id: int | None = None) -> OpenBatch:
        return transaction.begin(self.options(), batch_id)

    def last_published(self) -> int:
        """Number of the last batch that the query published, -1 for none."""
        last = self.begin().progress.last(QUERY, self.topic)
        return -1 if last is None else last.batch_id

    def task(self, identity: ProducerIdentity, partition: int, values: list[str]) -> None:
        """What a task does: write some rows of one partition."""
        with Producer(bootstrap_servers=self.cluster, joined_identity=identity) as producer:
            producer.send_many(self.topic, [v.encode() for v in values], partition=partition)
            producer.flush()

    def commit(self, opened: OpenBatch, rows: Mapping[int, int]) -> None:
        counted = {TopicPartition(self.topic, n): count for n, count in rows.items()}
        transaction.commit(self.options(), opened, counted)

    def leave(
        self, identity: ProducerIdentity, rows: Mapping[int, list[str]], attempt: int = 0
    ) -> TaskReport:
        """What a task with few rows reports: finished batches, and nothing written."""
        encoder = BatchEncoder(self.topic, 2, self.options().encoding)
        made = []
        for partition, values in rows.items():
            encoded = [v.encode() for v in values]
            made += encoder.encode(encoded, partitions=[partition] * len(values), timestamps_ms=1)
        held = tuple((self.topic, batch) for batch in made + encoder.finish())
        return TaskReport(0, 0, identity, {}, held=held, attempt=attempt)

    def commit_left(
        self, opened: OpenBatch, reports: list[TaskReport], rows: Mapping[int, int] | None = None
    ) -> None:
        counted = {TopicPartition(self.topic, n): count for n, count in (rows or {}).items()}
        left = transaction.left_by(reports, counted)
        transaction.commit(self.options(), opened, counted, left)

    def publish(self, batch_id: int, offset: int, *values: str) -> None:
        self.plan(batch_id, offset)
        opened = self.begin()
        assert not opened.is_published
        self.task(opened.identity, 0, list(values))
        self.commit(opened, {0: len(values)})

    def visible(self) -> list[str]:
        return spark_world.values_of(self.cluster, self.topic)

    def source_offset(self) -> int | None:
        with Admin(bootstrap_servers=self.cluster) as admin:
            stored = admin.list_group_offsets(self.options().source_group_id, require_stable=True)
        found = stored.get(TopicPartition(self.source, 0))
        return None if found is None else found.offset


@pytest.fixture
def query(cluster: str, tmp_path: Path) -> Query:
    return Query(cluster, tmp_path / "checkpoint")


def test_rows_of_all_tasks_offsets_and_progress_become_visible_together(query: Query) -> None:
    query.plan(0, 42)
    opened = query.begin()
    assert not opened.is_published
    query.task(opened.identity, 0, ["a", "b"])
    query.task(opened.identity, 1, ["c"])
    assert query.visible() == []
    assert query.source_offset() is None
    query.commit(opened, {0: 2, 1: 1})
    assert query.visible() == ["a", "b", "c"]
    assert query.source_offset() == 42
    assert query.begin().is_published


def test_batches_follow_each_other_under_new_epochs(query: Query) -> None:
    for batch_id in range(3):
        query.publish(batch_id, 10 * batch_id, f"of-{batch_id}")
    assert query.visible() == ["of-0", "of-1", "of-2"]
    assert query.last_published() == 2


def test_published_batch_is_known_to_a_restarted_driver_but_not_to_another_query(
    query: Query,
) -> None:
    query.publish(7, 1, "once")
    assert query.begin().is_published
    query.plan(8, 2)
    assert not query.begin().is_published
    (query.folder / "metadata").write_text(json.dumps({"id": "a new checkpoint's query"}))
    assert not query.begin(7).is_published


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
    query.commit(opened, {0: 1})
    assert query.visible() == ["kept"]


def test_tasks_of_an_aborted_attempt_are_fenced(query: Query) -> None:
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["lost"])
    transaction.abort(query.options(), opened.identity)
    with pytest.raises(KafkaError):
        query.task(opened.identity, 1, ["zombie"])
    with pytest.raises(KafkaError):
        query.commit(opened, {0: 1})
    assert query.visible() == []


def test_attempt_without_any_row_can_be_aborted(query: Query) -> None:
    query.plan(0, 1)
    opened = query.begin()
    transaction.abort(query.options(), opened.identity)
    query.publish(0, 1, "next")
    assert query.visible() == ["next"]


def test_rows_that_tasks_left_are_published_by_the_commit(query: Query) -> None:
    for batch_id in range(3):
        query.plan(batch_id, batch_id + 1)
        opened = query.begin()
        rows: dict[int, list[str]] = {0: [f"{batch_id}-a"], 1: [f"{batch_id}-b"]}
        reports = [query.leave(opened.identity, rows), query.leave(opened.identity, {0: ["c"]})]
        query.commit_left(opened, reports)
    wanted = [f"{n}-{name}" for n in range(3) for name in "ab"]
    assert query.visible() == [*wanted, "c", "c", "c"]
    assert query.source_offset() == 3
    assert query.begin().is_published


@pytest.mark.parametrize("rest", [{0: ["a"], 1: ["b"]}, {1: ["b"]}, {}], ids=["all", "one", "no"])
def test_first_attempt_of_a_task_that_wrote_adds_nothing_to_what_the_second_one_leaves(
    query: Query, rest: dict[int, list[str]]
) -> None:
    """The second one computed fewer rows; the first one lives on and writes later, too."""
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["of the first attempt"])
    query.commit_left(opened, [query.leave(opened.identity, rest, attempt=1)])
    with pytest.raises(KafkaError):
        query.task(opened.identity, 1, ["too late"])
    assert query.visible() == [value for values in rest.values() for value in values]
    assert query.begin().is_published
    query.publish(1, 2, "next")
    assert len(query.visible()) == len(rest) + 1


def test_rows_are_left_beside_those_that_other_tasks_wrote(query: Query) -> None:
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["a", "b"])
    query.commit_left(opened, [query.leave(opened.identity, {1: ["c"]})], {0: 2})
    assert query.visible() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("partition", "attempt", "message"), [(0, 0, r"several tasks.*route"), (1, 1, "attempt 1")]
)
def test_rows_left_where_a_task_wrote_or_by_a_second_attempt_are_refused(
    query: Query, partition: int, attempt: int, message: str
) -> None:
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["a"])
    report = query.leave(opened.identity, {partition: ["b"]}, attempt=attempt)
    with pytest.raises(BatchWriteError, match=message):
        query.commit_left(opened, [report], {0: 1})
    transaction.abort(query.options(), opened.identity)
    assert query.visible() == []


def test_rows_that_tasks_left_are_not_sent_by_a_driver_that_was_replaced(query: Query) -> None:
    query.plan(0, 1)
    old = query.begin()
    report = query.leave(old.identity, {0: ["old"], 1: ["old"]})
    new = query.begin()
    query.task(new.identity, 0, ["new"])
    with pytest.raises(FatalError):
        query.commit_left(old, [report])
    query.commit(new, {0: 1})
    with pytest.raises(FatalError):
        query.commit_left(old, [report])
    assert query.visible() == ["new"]


def test_late_abort_of_an_old_driver_does_not_disturb_the_new_one(query: Query) -> None:
    query.plan(0, 1)
    old = query.begin()
    query.task(old.identity, 1, ["old"])
    new = query.begin()
    query.task(new.identity, 0, ["new"])
    with pytest.raises(FatalError):
        transaction.abort(query.options(), old.identity)
    with pytest.raises(ProducerFencedError):
        query.commit(old, {1: 1})
    query.commit(new, {0: 1})
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
            query.commit(opened, {0: 1})
        finally:
            transaction.logger.removeHandler(gave_up)
        assert gave_up.count == 1
        assert query.visible() == ["row"]
        assert query.begin().is_published


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
    query.plan(0, 1)
    options = query.options(**{"kafka.transaction.timeout.ms": "99999999"})
    with pytest.raises(ConfigError, match=r"kafka.transaction.timeout.ms=99999999.*900000"):
        transaction.begin(options)


def test_batch_without_rows_still_moves_the_source_offsets(query: Query) -> None:
    query.plan(3, 17)
    query.commit(query.begin(), {})
    assert query.source_offset() == 17
    assert query.begin().is_published


def test_missing_plan_of_a_batch_is_an_error(query: Query) -> None:
    with pytest.raises(CheckpointError, match="offsets/9"):
        query.begin(9)


def test_checkpoint_that_was_set_back_is_refused_whatever_its_batches_hold(query: Query) -> None:
    query.publish(0, 10, "a")
    saved = (query.folder / "offsets" / "0").read_bytes()
    query.publish(1, 20, "b")
    for offset in (15, 20, 35):
        query.plan(1, offset)
        with pytest.raises(ConfigError, match=r"set back or copied.*startingOffsets=committed"):
            query.begin()
    (query.folder / "offsets" / "1").unlink()
    (query.folder / "offsets" / "0").write_bytes(saved)
    with pytest.raises(ConfigError, match="batch 0 is to be published, but batch 1"):
        query.begin()
    assert query.visible() == ["a", "b"]


def copied(query: Query, folder: Path) -> SinkOptions:
    """The same query from a copy of its checkpoint, without a name of its own."""
    shutil.copytree(query.folder, folder)
    return query.options(checkpointLocation=str(folder))


@pytest.fixture
def unnamed(cluster: str, tmp_path: Path) -> Query:
    """A query whose id names it."""
    made = Query(cluster, tmp_path / "checkpoint")
    (made.folder / "metadata").write_text(json.dumps({"id": f"id-{next(NUMBERS)}"}))
    del made.given["transactionalId"]
    return made


def test_copy_that_is_behind_is_refused_and_does_not_fence_the_original(
    unnamed: Query, tmp_path: Path
) -> None:
    unnamed.publish(0, 10, "a")
    options = copied(unnamed, tmp_path / "copy")
    unnamed.publish(1, 20, "b")
    unnamed.plan(2, 30)
    opened = unnamed.begin()
    unnamed.task(opened.identity, 0, ["c"])
    with pytest.raises(ConfigError, match="set back or copied"):
        transaction.begin(options)
    unnamed.commit(opened, {0: 1})
    assert unnamed.visible() == ["a", "b", "c"]


def test_second_live_query_of_one_identity_fences_the_first(unnamed: Query, tmp_path: Path) -> None:
    """The copy is as far as the original; the one that publishes first is the one that goes on."""
    unnamed.publish(0, 10, "a")
    options = copied(unnamed, tmp_path / "copy")
    (tmp_path / "copy" / "offsets" / "1").write_text(f'v1\n{{"batch":1}}\n{unnamed.position(20)}')
    unnamed.plan(1, 20)
    first = unnamed.begin()
    unnamed.task(first.identity, 0, ["of the original"])
    second = transaction.begin(options)
    unnamed.task(second.identity, 0, ["of the copy"])
    with pytest.raises(ProducerFencedError):
        unnamed.commit(first, {0: 1})
    transaction.commit(options, second, {TopicPartition(unnamed.topic, 0): 1})
    with pytest.raises(ConfigError, match="set back or copied"):
        unnamed.begin()
    assert unnamed.visible() == ["a", "of the copy"]


def test_two_queries_under_one_name_do_not_hide_each_others_batches(query: Query) -> None:
    """The first dies before its checkpoint knows of its batch, the second publishes, the first
    comes back."""
    query.publish(0, 10, "a")
    own = (query.folder / "metadata").read_text()
    plan = (query.folder / "offsets" / "0").read_bytes()
    (query.folder / "metadata").write_text(json.dumps({"id": "another query"}))
    query.plan(0, 10)
    opened = query.begin()
    query.task(opened.identity, 0, ["b"])
    query.commit(opened, {0: 1})
    (query.folder / "metadata").write_text(own)
    (query.folder / "offsets" / "0").write_bytes(plan)
    assert query.begin().is_published


def test_offsets_of_topics_that_are_not_here_are_not_published(query: Query) -> None:
    """Ours says which cluster it reads; Spark's own source does not."""
    here, gone = {"0": 0}, {"0": 5}
    sources: list[dict[str, object]] = [
        {query.source: {"0": 7}, "@onceflow": {"cluster": "another"}},
        {"not-here": gone},
        {"not-here": gone, query.topic: here, "@onceflow": {"cluster": query.cluster_id}},
        {query.topic: {"1": 10**6}},
    ]
    lines = ["v1", "{}", *(json.dumps(source) for source in sources)]
    (query.folder / "offsets" / "0").write_text("\n".join(lines))
    opened = query.begin()
    assert opened.offsets == {TopicPartition(query.topic, 0): 0}
    query.commit(opened, {})
    assert query.begin().is_published


def test_group_with_commits_of_somebody_else_is_refused(query: Query) -> None:
    with Admin(bootstrap_servers=query.cluster) as admin:
        group = query.options().progress_group_id
        admin.alter_group_offsets(group, {TopicPartition(query.topic, 0): 5})
    query.plan(0, 1)
    with pytest.raises(ConfigError, match="choose another groupId"):
        query.begin()


def test_partition_that_another_attempt_wrote_to_is_refused(query: Query) -> None:
    """As when Spark repeats a stage: the repetition's tasks count their attempts from 0 again."""
    query.plan(0, 1)
    opened = query.begin()
    query.task(opened.identity, 0, ["of the first run"])
    columns = SinkColumns(0, key=None, topic=None, partition=1, headers=None, timestamp=None)
    options = query.options()
    with (
        Producer(bootstrap_servers=query.cluster, joined_identity=opened.identity) as producer,
        Admin(bootstrap_servers=query.cluster) as admin,
    ):
        encoder = RowEncoder(options, columns, CountsLookup(options.admin), 1, moves_on=False)
        writer = RowWriter(producer, admin, 1, encoder)
        writer.write(rows_of(["free"], 1))
        writer.finish()
        writer.write(rows_of(["again"], 0))
        with pytest.raises(BatchWriteError, match=rf"wrote to {query.topic}-0"):
            writer.finish()
        producer.flush()
    assert writer.rows == {TopicPartition(query.topic, 1): 1}


def rows_of(values: list[str], partition: int) -> pa.RecordBatch:
    numbers = pa.array([partition] * len(values), pa.int32())
    return pa.record_batch({"value": pa.array(values), "partition": numbers})
