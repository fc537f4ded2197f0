"""Goal: whatever happens to a query's checkpoint, no row is lost or published twice in silence.

Method: queries publish, then their checkpoint is copied, moved, set back, lost, or robbed of its
last commit file, as crashes and operators do. What is visible afterwards must be the input, once,
or an error must say what to do. Sources are Kafka topics and files; sinks are both.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from case_proxy import Action, Proxy
from spark_world import (
    DEADLINE_S,
    fill,
    finish,
    spark_session,
    stream,
    unavailable_reason,
    values_of,
    wait_until,
    waiting_for,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, TopicPartition
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.spark_integration import foreach_batch, partition_counts, route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
NUMBERS = itertools.count(1)
SINKS = ["foreach_batch", "data source"]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class World:
    """One source topic of one partition and one output, with rows that are numbers."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.servers, self.folder = spark, broker.bootstrap_servers, folder
        number = next(NUMBERS)
        self.source, self.target = f"lineage-in-{number}", f"lineage-out-{number}"
        for topic in (self.source, self.target):
            broker.create_topic(topic, partitions=1)
        self.rows = 0
        self.checkpoint = folder / "checkpoint"

    def fill(self, count: int) -> None:
        values = [b"%05d" % number for number in range(self.rows, self.rows + count)]
        fill(self.servers, self.source, values, keys=values)
        self.rows += count

    def read(self, **reading: str) -> DataFrame:
        return stream(self.spark, self.servers, self.source, **reading).select("key", "value")

    def options(self, checkpoint: Path | None = None, **options: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "checkpointLocation": str(checkpoint or self.checkpoint),
            "topic": self.target,
            **options,
        }

    def start(
        self,
        rows: DataFrame,
        sink: str = "foreach_batch",
        checkpoint: Path | None = None,
        mode: str = "append",
        **options: str,
    ) -> StreamingQuery:
        given = self.options(checkpoint, **options)
        if sink == "foreach_batch":
            writer = rows.writeStream.foreachBatch(foreach_batch(**given))
            writer = writer.option("checkpointLocation", given["checkpointLocation"])
        else:
            routed = route(rows, partition_counts(given, [self.target]), topic=self.target)
            writer = routed.writeStream.format("onceflow").options(**given)
        return writer.outputMode(mode).trigger(availableNow=True).start()

    def run(self, rows: DataFrame | None = None, *args: object, **options: object) -> None:
        finish(self.start(self.read() if rows is None else rows, *args, **options))  # type: ignore[arg-type]

    def visible(self) -> list[str]:
        return values_of(self.servers, self.target)

    def expected(self) -> list[str]:
        return [f"{number:05d}" for number in range(self.rows)]

    def forget_last_commit(self) -> None:
        """What is left when the driver dies before it notes that a batch is done."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        with Admin(bootstrap_servers=self.servers) as admin:
            stored = admin.list_group_offsets(group_id, require_stable=True)
        return {tp: kept.offset for tp, kept in stored.items()}


@pytest.fixture
def world(spark: SparkSession, broker: Broker, tmp_path: Path) -> World:
    return World(spark, broker, tmp_path)


def run_function(world: World, function: Callable[[DataFrame, int], None]) -> None:
    writer = world.read(maxOffsetsPerTrigger="10").writeStream.foreachBatch(function)
    writer = writer.option("checkpointLocation", str(world.checkpoint))
    finish(writer.trigger(availableNow=True).start())


def half(world: World, rest: int) -> Callable[[DataFrame, int], DataFrame]:
    return lambda rows, _: rows.where(f"cast(cast(value as string) as int) % 2 = {rest}")


def test_second_publish_under_one_name_in_a_batch_is_refused(world: World) -> None:
    """It would take the first one's progress for its own and be skipped."""
    world.fill(20)
    even = foreach_batch(half(world, 0), **world.options())
    odd = foreach_batch(half(world, 1), **world.options())

    def both(rows: DataFrame, batch_id: int) -> None:
        even(rows, batch_id)
        odd(rows, batch_id)

    with pytest.raises(Exception, match=r"published under this name already.*publish\.many"):
        run_function(world, both)


def test_two_publishes_with_a_name_each_are_both_written(world: World) -> None:
    world.fill(20)
    parts = [
        foreach_batch(half(world, rest), **world.options(name=f"{world.target}-{rest}"))
        for rest in (0, 1)
    ]

    def both(rows: DataFrame, batch_id: int) -> None:
        for publish in parts:
            publish(rows, batch_id)

    run_function(world, both)
    assert world.visible() == world.expected()
    world.forget_last_commit()
    world.fill(7)
    run_function(world, both)
    assert world.visible() == world.expected()


def test_many_writes_several_frames_in_one_transaction(world: World, broker: Broker) -> None:
    world.fill(20)
    other = f"{world.target}-odd"
    broker.create_topic(other, partitions=2)
    options = world.options()
    del options["topic"]
    publish = foreach_batch(attempts_max=1, **options)
    fails: list[int] = [1]

    def both(rows: DataFrame, batch_id: int) -> None:
        frames = {topic: half(world, rest)(rows, batch_id) for rest, topic in enumerate(topics)}
        if batch_id in fails:  # The second frame fails when the first one is written.
            failing = "cast(raise_error('lost') AS string) AS value"
            frames[other] = frames[other].selectExpr(failing, "key")
        publish.many(frames, batch_id)

    topics = (world.target, other)
    with pytest.raises(Exception, match="lost"):
        run_function(world, both)
    assert [len(values_of(world.servers, topic)) for topic in topics] == [5, 5]
    fails.clear()
    run_function(world, both)
    assert sorted(world.visible() + values_of(world.servers, other)) == world.expected()
    world.forget_last_commit()
    run_function(world, both)
    assert sorted(world.visible() + values_of(world.servers, other)) == world.expected()


@pytest.mark.parametrize("sink", SINKS)
def test_moved_checkpoint_goes_on_after_a_death_between_publish_and_commit_file(
    world: World, sink: str
) -> None:
    world.fill(10)
    world.run(None, sink)
    world.forget_last_commit()
    moved = world.folder / "moved"
    shutil.move(world.checkpoint, moved)
    world.checkpoint = moved
    world.fill(10)
    world.run(None, sink)
    assert world.visible() == world.expected()


@pytest.mark.parametrize("sink", SINKS)
def test_copied_checkpoint_is_refused_once_the_original_went_on(world: World, sink: str) -> None:
    world.fill(10)
    world.run(None, sink)
    copied = world.folder / "copied"
    shutil.copytree(world.checkpoint, copied)
    world.fill(10)
    world.run(None, sink)
    with pytest.raises(Exception, match=r"set back or copied.*startingOffsets=committed"):
        world.run(None, sink, copied)
    assert world.visible() == world.expected()
    world.fill(10)
    world.run(None, sink)
    assert world.visible() == world.expected()


@pytest.mark.parametrize("limit", ["2", "10", "50"])
def test_checkpoint_that_was_set_back_is_refused(world: World, limit: str) -> None:
    """With smaller, equal and larger batches than were published."""
    world.fill(30)
    saved = world.folder / "saved"
    world.run(world.read(maxOffsetsPerTrigger="10"))
    shutil.copytree(world.checkpoint, saved)
    world.fill(30)
    world.run(world.read(maxOffsetsPerTrigger="10"))
    shutil.rmtree(world.checkpoint)
    shutil.move(saved, world.checkpoint)
    world.fill(5)
    with pytest.raises(Exception, match="set back or copied"):
        world.run(world.read(maxOffsetsPerTrigger=limit))
    assert world.visible() == world.expected()[:60]
    shutil.rmtree(world.checkpoint)
    world.run(world.read(startingOffsets="committed", groupId=last_group(world)))
    assert world.visible() == world.expected()


def last_group(world: World) -> str:
    """The group of the query that published, as its error names it."""
    with Admin(bootstrap_servers=world.servers) as admin:
        groups = [listing.group_id for listing in admin.list_groups()]
    held = [g for g in groups if TopicPartition(world.source, 0) in world.committed(g)]
    assert len(held) == 1
    return held[0]


def test_set_back_checkpoint_of_a_file_source_is_refused(world: World) -> None:
    """Its new batches have the numbers of published ones, and no offsets of Kafka."""
    files = world.folder / "files"
    files.mkdir()

    def read() -> DataFrame:
        return world.spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))

    def add(*numbers: int) -> None:
        for number in numbers:
            (files / f"{number}.txt").write_text(f"{number}\n")

    add(0, 1, 2)
    world.run(read())
    saved = world.folder / "saved"
    shutil.copytree(world.checkpoint, saved)
    add(3, 4)
    world.run(read())
    world.forget_last_commit()
    world.run(read())
    assert world.visible() == ["0", "1", "2", "3", "4"]
    shutil.rmtree(world.checkpoint)
    shutil.move(saved, world.checkpoint)
    add(5, 6, 7)
    with pytest.raises(Exception, match="set back or copied"):
        world.run(read())
    assert world.visible() == ["0", "1", "2", "3", "4"]
    shutil.rmtree(world.checkpoint)
    with pytest.raises(Exception, match="sources of this new checkpoint do not tell"):
        world.run(read())
    assert world.visible() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("named", [True, False], ids=["name", "query id"])
def test_lost_checkpoint_begun_again_from_the_start_is_refused(world: World, named: bool) -> None:
    names = {"name": world.target} if named else {}
    world.fill(10)
    world.run(None, **names)
    shutil.rmtree(world.checkpoint)
    world.fill(10)
    with pytest.raises(Exception, match=r"publish rows again.*begins at 0, published up to 10"):
        world.run(None, **names)
    assert world.visible() == world.expected()[:10]
    shutil.rmtree(world.checkpoint)
    rows = world.read(startingOffsets="committed", groupId=last_group(world))
    world.run(rows, **names)
    assert world.visible() == world.expected()
    shutil.rmtree(world.checkpoint)
    world.run(None, publishAgain="true", **names)
    assert world.visible() == sorted(world.expected() * 2)


@pytest.mark.parametrize(
    ("sink", "store", "version"),
    [
        ("foreach_batch", None, "1"),
        ("data source", None, "1"),
        ("foreach_batch", ROCKSDB, "2"),
        ("data source", ROCKSDB, "2"),
    ],
)
def test_stateful_query_restarts_when_its_commit_file_was_lost(
    world: World, sink: str, store: str | None, version: str
) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

    settings = {"spark.sql.streaming.stateStore.checkpointFormatVersion": version}
    if store is not None:
        settings["spark.sql.streaming.stateStore.providerClass"] = store
    for name, value in settings.items():
        world.spark.conf.set(name, value)
    counted = F.count("*").cast("string").alias("value")
    mode = "update" if sink == "foreach_batch" else "complete"  # Spark refuses update there.
    try:
        world.fill(10)
        for _ in range(2):
            rows = world.read().groupBy(F.lit(b"all").alias("key")).agg(counted)
            world.run(rows, sink, None, mode)
            world.forget_last_commit()
            world.fill(10)
        rows = world.read().groupBy(F.lit(b"all").alias("key")).agg(counted)
        world.run(rows, sink, None, mode)
    finally:
        for name in settings:
            world.spark.conf.unset(name)
    assert world.visible() == ["10", "20", "30"]


def test_offset_log_of_version_2_publishes_the_sources_offsets(world: World) -> None:
    name = "spark.sql.streaming.offsetLog.formatVersion"
    world.spark.conf.set(name, "2")
    try:
        world.fill(10)
        world.run(None, name=world.target)
    finally:
        world.spark.conf.unset(name)
    assert world.visible() == world.expected()
    assert world.committed(world.target) == {TopicPartition(world.source, 0): 10}


def test_sources_of_another_cluster_leave_no_offsets_here(world: World, broker: Broker) -> None:
    """Once its topic is missing here, then one of that name exists here too."""
    with Broker() as other:
        other.create_topic("elsewhere", partitions=1)
        fill(other.bootstrap_servers, "elsewhere", [b"a", b"b"])

        def read() -> DataFrame:
            rows = stream(world.spark, other.bootstrap_servers, "elsewhere")
            return rows.select("key", "value")

        world.run(read(), name=world.target)
        assert world.visible() == ["a", "b"]
        broker.create_topic("elsewhere", partitions=1)
        fill(other.bootstrap_servers, "elsewhere", [b"c"])
        world.run(read(), name=world.target)
        assert world.visible() == ["a", "b", "c"]
        assert world.committed(world.target) == {}


def test_stopped_query_does_not_try_its_batch_again(world: World) -> None:
    started, go_on = world.folder / "started", world.folder / "go_on"
    world.fill(4)
    rows = waiting_for(started, go_on)(world.read())
    calls: list[str] = []
    publish = foreach_batch(**world.options())

    def noting(batch: DataFrame, batch_id: int) -> None:
        calls.append("begun")
        try:
            publish(batch, batch_id)
            calls.append("published")
        finally:
            calls.append("over")

    writer = rows.writeStream.foreachBatch(noting)
    query = writer.option("checkpointLocation", str(world.checkpoint)).start()
    wait_until(started.exists, "the batch runs")
    query.stop()
    go_on.touch()
    wait_until(lambda: "over" in calls, "the function ends")
    assert calls == ["begun", "over"]
    assert world.visible() == []
    world.run()
    assert world.visible() == world.expected()


class StopAtRetry(logging.Handler):
    """Stops a query when its batch is about to be tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.query: StreamingQuery | None = None
        self.stopping: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if "trying again" in record.getMessage():
            wait_until(lambda: self.query is not None, "the query is known")
            query = self.query
            assert query is not None
            self.stopping = threading.Thread(target=query.stop)
            self.stopping.start()
            wait_until(lambda: not query.isActive, "the query is stopped")


def test_query_that_is_stopped_between_two_attempts_publishes_nothing(world: World) -> None:
    """No job runs at that moment, so Spark has nothing to cancel."""
    world.fill(4)
    handler, over = StopAtRetry(), threading.Event()
    source_logger = logging.getLogger("onceflow.spark_integration")
    with Proxy(world.servers) as proxy:
        options = world.options() | {"kafka.bootstrap.servers": proxy.bootstrap_servers}
        publish = foreach_batch(**options)

        def noting(batch: DataFrame, batch_id: int) -> None:
            try:
                publish(batch, batch_id)
            finally:
                over.set()

        proxy.add(ProduceRequest, Action.ANSWER, times=1, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        source_logger.addHandler(handler)
        try:
            writer = world.read().writeStream.foreachBatch(noting)
            writer = writer.option("checkpointLocation", str(world.checkpoint))
            handler.query = writer.start()
            assert over.wait(DEADLINE_S)
        finally:
            source_logger.removeHandler(handler)
    assert handler.stopping is not None
    handler.stopping.join(DEADLINE_S)
    assert world.visible() == []
    world.run()
    assert world.visible() == world.expected()


def test_topic_column_costs_as_much_as_the_rows_have_topics(world: World, broker: Broker) -> None:
    """No answer to the sink describes other topics, however many the cluster has."""
    for number in range(30):
        broker.create_topic(f"{world.target}-other-{number}", partitions=3)
    world.fill(4)
    described: set[str] = set()

    def note(response: MetadataResponse) -> MetadataResponse:
        described.update(str(topic.name) for topic in response.topics)
        return response

    with Proxy(world.servers) as proxy:
        proxy.add(MetadataRequest, Action.EDIT, edit=note)
        options = world.options() | {"kafka.bootstrap.servers": proxy.bootstrap_servers}
        del options["topic"]
        named = world.read().selectExpr("key", "value", f"'{world.target}' AS topic")
        writer = named.writeStream.foreachBatch(foreach_batch(**options))
        writer = writer.option("checkpointLocation", str(world.checkpoint))
        finish(writer.trigger(availableNow=True).start())
    assert world.visible() == world.expected()
    assert described <= {world.source, world.target}


def test_first_batch_of_a_query_that_begins_at_latest_keeps_its_start(world: World) -> None:
    """Spark asks again where a query begins when its first batch runs again."""
    world.fill(3)
    rows = world.read(startingOffsets="latest")

    def fail(batch: DataFrame, batch_id: int) -> None:
        world.fill(2)
        raise LookupError("the driver dies in the first batch")

    def start(function: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(function)
        return writer.option("checkpointLocation", str(world.checkpoint)).start()

    query = start(fail)
    with pytest.raises(Exception, match="the driver dies"):
        finish(query)
    again = start(foreach_batch(**world.options()))
    try:
        wait_until(lambda: world.visible() == world.expected()[3:], "rows since the first start")
    finally:
        again.stop()
