"""An application as a Spark pipeline: what is read, who processes it, and how it is published.

The source reads the application's input topics, Spark brings the records of one Kafka partition to
one task, and ``foreach_batch`` publishes the outputs. Topics between functions stay topics: what a
function writes there in one micro-batch is read in the next.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession

from onceflow.processors.graph.topology import Topology
from onceflow.processors.kafka_services import KafkaTopicAdmin
from onceflow.processors.provisioning import provision
from onceflow.processors.settings import AppSettings
from onceflow.sdk import Admin, ClientSettings, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.apps.engine import PartitionProcessor, StatelessTask
from onceflow.spark_integration.apps.limits import needs_timers, refuse_unfit, stateful_parts
from onceflow.spark_integration.apps.rows import OUTPUT, PACKED, Packing, unpacked_outputs
from onceflow.spark_integration.apps.shipping import Shipped
from onceflow.spark_integration.batch_function import ATTEMPTS_MAX, BatchPublisher
from onceflow.spark_integration.options import (
    SinkOptions,
    SinkSettings,
    SourceSettings,
    partition_map_text,
)
from onceflow.spark_integration.routing import TASKS_MAX
from onceflow.spark_integration.source import OnceflowDataSource, register
from onceflow.spark_integration.supervisor import run_query
from onceflow.transactions.colour import run_blocking

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")

STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""Spark's ``transformWithState`` needs this state store."""
TIMER_TRIGGER: Final = "1 second"
"""Time between micro-batches where something may fall due by the wall clock, unless it is set."""
CHECKPOINT_SETTING: Final = "spark.sql.streaming.checkpointLocation"
SparkSessionType: TypeAlias = SparkSession
"""The name by which other areas know it, which do not import PySpark."""


class SparkPipeline:
    """An application that runs on Spark; ``App.to_spark`` makes one.

    Attributes:
        rows: The outputs, with the columns of the sink, as a streaming table.
        publish: What publishes them; ``publish.metrics`` counts.
        checkpoint_location: Where Spark keeps offsets and state.
    """

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        settings: AppSettings,
        options: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._topology = topology
        self._settings = settings
        _refuse_session(spark)
        refuse_unfit(topology, settings, options)
        source, sink = _split(options)
        sink.setdefault("name", f"{topology.group}-spark")
        self.checkpoint_location: str = _checkpoint(spark, topology, sink)
        sink["checkpointLocation"] = self.checkpoint_location
        self.publish: BatchPublisher = BatchPublisher(
            None, SinkOptions.parse(sink, settings.client), ATTEMPTS_MAX
        )
        counts = self._prepared()
        self._tasks = sum(
            counts[part.input_topics[0]] for part in topology.sub_topologies if part.states
        )
        self._has_timers = any(needs_timers(part) for part in topology.sub_topologies)
        shipped = Shipped.of(topology, settings, counts).packed()
        self.rows: DataFrame = self._processed(self._source(source, counts), shipped)

    def _prepared(self) -> dict[str, int]:
        """Create missing topics, and return the partition counts.

        Raises:
            TopicSetupError: A topic is missing or does not fit.
        """
        with Admin(config=self._settings.admin_config()) as admin:
            made = provision(
                self._topology, self._settings, KafkaTopicAdmin(admin), changelogs=False
            )
            return dict(run_blocking(made).partitions)

    def _source(self, options: dict[str, str], counts: Mapping[str, int]) -> DataFrame:
        register(self._spark)
        source = source_with(f"onceflow-{self._topology.app}", self._settings.client)
        self._spark.dataSource.register(source)
        topics = self._topology.input_topics
        given = {
            "startingOffsets": self._starting(counts),
            **options,
            "subscribe": ",".join(topics),
            "includeHeaders": "true",
        }
        return self._spark.readStream.format(source.name()).options(**given).load()

    def _starting(self, counts: Mapping[str, int]) -> str:
        """Where new partitions begin: topics between functions and tables at their beginning."""
        if self._settings.start_from == "earliest":
            return "earliest"
        topology = self._topology
        whole = {*topology.table_topics, *topology.output_topics, *topology.repartition_topics}
        return partition_map_text(
            {
                TopicPartition(topic, number): -2 if topic in whole else -1
                for topic in topology.input_topics
                for number in range(counts[topic])
            }
        )

    def _processed(self, records: DataFrame, shipped: bytes) -> DataFrame:
        parts = {
            topic: part.name
            for part in self._topology.sub_topologies
            for topic in part.input_topics
        }
        stateful = stateful_parts(self._topology)
        if not stateful:
            return records.mapInArrow(StatelessTask(shipped, parts), OUTPUT)
        packed = records.mapInArrow(Packing(parts), PACKED)
        processor = PartitionProcessor(shipped, stateful, has_timers=self._has_timers)
        done = packed.groupBy("task").transformWithState(
            processor,
            "data BINARY",
            "append",
            "ProcessingTime" if self._has_timers else "None",
        )
        return done.mapInArrow(unpacked_outputs, OUTPUT)

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start the query.

        Args:
            **trigger: As for Spark's ``trigger``, such as ``processingTime="5 seconds"`` or
                ``availableNow=True``; by default one micro-batch follows the other, and where
                something may fall due by the wall clock they are a second apart.

        Returns:
            Spark's query.
        """
        writer: DataStreamWriter = self.rows.writeStream.foreachBatch(self.publish).queryName(
            self._topology.app
        )
        writer = writer.option("checkpointLocation", self.checkpoint_location)
        if not trigger and self._has_timers:
            trigger = {"processingTime": TIMER_TRIGGER}
        if trigger:
            writer = writer.trigger(**trigger)
        with _settings(self._spark, self._own_settings(bounded="availableNow" in trigger)):
            return writer.start()

    def _own_settings(self, *, bounded: bool) -> dict[str, str]:
        """Settings that the query takes from the session when it is started."""
        if not self._tasks:
            return {}
        # Timers would make Spark plan one micro-batch without data after the other, for ever.
        ends = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"} if bounded else {}
        return {
            **ends,
            "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
            "spark.sql.shuffle.partitions": str(min(self._tasks, TASKS_MAX)),
        }

    def run(self, *, until_end: bool = False, **trigger: Any) -> None:
        """Run the query, and start it again from its checkpoint after a failure that may pass.

        Args:
            until_end: Process what the topics hold now and what follows from it, and return.
                Windows and timers that are not due then stay open for the next run.
            **trigger: As for ``start``.

        Raises:
            QueryFailedError: A record failed and the policy is to stop, or the query failed too
                often.
        """
        if not until_end:
            run_query(lambda: self.start(**trigger))
            return
        while self._run_to_end() and self._feeds_itself:
            pass

    @property
    def _feeds_itself(self) -> bool:
        """Whether the application reads what it writes."""
        topology = self._topology
        return not {*topology.output_topics, *topology.repartition_topics}.isdisjoint(
            topology.input_topics
        )

    def _run_to_end(self) -> bool:
        """Process what the topics hold; return whether that was anything."""
        queries: list[StreamingQuery] = []

        def start() -> StreamingQuery:
            queries.append(self.start(availableNow=True))
            return queries[-1]

        run_query(start)
        return any(p["numInputRows"] for query in queries for p in query.recentProgress)


def source_with(name: str, client: ClientSettings) -> type[OnceflowDataSource]:
    """Return the data source with settings of its clients, which then are no options of the plan.

    Args:
        name: Its name for ``format(...)``.
        client: Settings of the clients.
    """

    class AppDataSource(OnceflowDataSource):
        given = client

        @classmethod
        def name(cls) -> str:
            return name

    return AppDataSource


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Give each option to the source, the sink, or both.

    Raises:
        ConfigError: Neither has it.
    """
    of_source = {setting.name.lower() for setting in SourceSettings.declared.values()}
    of_sink = {setting.name.lower() for setting in SinkSettings.declared.values()}
    source: dict[str, str] = {}
    sink: dict[str, str] = {}
    for name, value in options.items():
        folded = name.lower()
        if folded.startswith("kafka."):
            raise ConfigError(name, value, "the settings of the App count; give them to the App")
        if folded == "groupid":
            raise ConfigError(name, value, "give `name`, from which the groups are named")
        if folded in of_sink:
            sink[name] = value
        elif folded in of_source:
            source[name] = value
        else:
            SourceSettings.check_names([name])
    return source, sink


def _checkpoint(spark: SparkSession, topology: Topology, sink: Mapping[str, str]) -> str:
    """Where the checkpoint is: the option, or a folder under the session's setting.

    Raises:
        ConfigError: Neither is given.
    """
    folded = {name.lower(): value for name, value in sink.items()}
    given = folded.get("checkpointlocation")
    if given is not None:
        return given
    root = spark.conf.get(CHECKPOINT_SETTING, None)
    if root is None:
        raise ConfigError(
            "checkpointLocation",
            "",
            f"give it to to_spark(), or set {CHECKPOINT_SETTING}; Spark keeps offsets and state "
            "there",
        )
    return os.path.join(root, topology.app)


def _refuse_session(spark: SparkSession) -> None:
    """Raise for a session in which the pipeline could not run.

    Raises:
        ConfigError: It is one of Spark Connect.
    """
    try:
        _ = spark.sparkContext
    except PySparkAttributeError:
        raise ConfigError(
            "spark",
            "a session of Spark Connect",
            "give a session without Connect: foreach_batch must see whether Spark repeats a stage",
        ) from None


@contextlib.contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set a session's settings within; a query keeps those that it was started with."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
