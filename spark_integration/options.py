"""Options of the Spark source and sink: read from Spark's strings, checked, frozen.

Names are those of Spark's own Kafka source and sink wherever these have one. This module decides
what is accepted and what is refused before anything is read or written; it talks to nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from onceflow.sdk import (
    AdminConfig,
    ClientSettings,
    ConsumerConfig,
    IsolationLevel,
    ProducerConfig,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from onceflow.sdk.settings.declare import INT64_MAX, switch, text, whole
from onceflow.sdk.settings.sources import ClientSource
from onceflow.spark_integration.client_options import (
    SparkSettings,
    client_of,
    named_as_options,
    read_options,
)
from onceflow.spark_integration.values import ValueFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")
PartitionOffsets = dict[TopicPartition, int]
"""An offset (or a time in milliseconds) for each named partition."""

POLL_TIMEOUT_MS: Final = 120_000
"""Default of ``pollTimeoutMs``."""
BATCH_SIZE: Final = 262_144
"""Default of ``kafka.batch.size``: rows come in bulk, and large batches cost less."""
TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Default of ``kafka.transaction.timeout.ms``: a micro-batch has to end within it."""

NOT_OF_SOURCE: Final[Mapping[str, str]] = {
    "group.instance.id": "tasks read without a group; leave it out",
    "auto.offset.reset": "use startingOffsets, and failOnDataLoss",
    "enable.auto.commit": "the checkpoint keeps positions; leave it out",
    "key.deserializer": "the columns are binary; leave it out, and cast or decode them in Spark",
    "value.deserializer": "the columns are binary; leave it out, and cast or decode them in Spark",
    "interceptor.classes": "Java's classes do not run here; leave it out",
}
NOT_OF_SINK: Final[Mapping[str, str]] = {
    "transactional.id": "use name",
    "key.serializer": "the sink writes strings and bytes as they are; leave it out",
    "value.serializer": "the sink writes strings and bytes as they are; leave it out",
    "interceptor.classes": "Java's classes do not run here; leave it out",
    "partitioner.class": "Java's classes do not run here; give a column `partition`",
    "retries": "sends are retried until kafka.delivery.timeout.ms is over; set that instead",
}
GROUP_ID: Final = "kafka.group.id"
"""Option of Spark's own source that is taken as ``groupId``."""
NO_EFFECT: Final = "groupIdPrefix"
"""Option of Spark's own source that has nothing to act on: tasks read without a group."""
_DELAY: Final = re.compile(r"([0-9]+)\s*(ms|s|m|min|h|d)?")
_DELAY_UNITS_MS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000
}  # fmt: skip


class SourceSettings(SparkSettings, in_kafka=False, kind="source"):
    """Options of the source as Spark gives them."""

    subscribe: str | None = text(
        None, "Topics, by commas; exactly one of this and the next two.", name="subscribe"
    )
    subscribe_pattern: str | None = text(
        None, "Topics by a regular expression over whole names.", name="subscribePattern"
    )
    assign: str | None = text(None, 'Single partitions, `{"t": [0, 1]}`.')
    starting_offsets: str | None = text(
        None,
        "Where a new query starts: `earliest`, `latest`, `committed`, or "
        '`{"t": {"0": 23, "1": -2}}` (-2 earliest, -1 latest), which must name every partition; '
        "by default a stream starts at `latest` and a batch at `earliest`.",
        name="startingOffsets",
    )
    ending_offsets: str = text(
        "latest", "Where a batch ends; the same JSON, -1 latest.", name="endingOffsets"
    )
    starting_timestamp: int | None = whole(
        None,
        "One time in milliseconds for all partitions; wins over offsets.",
        1,
        INT64_MAX,
        name="startingTimestamp",
    )
    ending_timestamp: int | None = whole(
        None, "The same for the end of a batch.", 1, INT64_MAX, name="endingTimestamp"
    )
    starting_offsets_by_timestamp: str | None = text(
        None,
        'A time by partition, `{"t": {"0": 1600000000000}}`.',
        name="startingOffsetsByTimestamp",
    )
    starting_offsets_by_timestamp_strategy: str = text(
        "error",
        "What a starting time does after a partition's last record: `error` ends the query, "
        "`latest` starts at the end.",
        choices=("error", "latest"),
        name="startingOffsetsByTimestampStrategy",
    )
    ending_offsets_by_timestamp: str | None = text(
        None, "The same for the end of a batch.", name="endingOffsetsByTimestamp"
    )
    max_offsets_per_trigger: int | None = whole(
        None,
        "Most offsets of a micro-batch, shared out by backlog; by default there is no limit.",
        1,
        INT64_MAX,
        name="maxOffsetsPerTrigger",
    )
    min_offsets_per_trigger: int | None = whole(
        None,
        "A micro-batch waits until there are so many offsets, or until `maxTriggerDelay` is over. "
        "`Trigger.AvailableNow` does not wait.",
        1,
        INT64_MAX,
        name="minOffsetsPerTrigger",
    )
    max_trigger_delay: str = text(
        "15m",
        "Longest wait for `minOffsetsPerTrigger`: a number with ms, s, m, h or d; without one it "
        "is milliseconds.",
        name="maxTriggerDelay",
    )
    min_partitions: int | None = whole(
        None, "Splits large ranges into more tasks than there are partitions.", 1,
        name="minPartitions",
    )  # fmt: skip
    max_records_per_partition: int | None = whole(
        None,
        "Splits ranges with more offsets than this into several tasks.",
        1,
        INT64_MAX,
        name="maxRecordsPerPartition",
    )
    fail_on_data_loss: bool = switch(
        True,
        "Expired or vanished offsets, and a topic that was deleted and made again, end the query; "
        "`false` goes on with what is there and logs which offsets are skipped.",
        name="failOnDataLoss",
    )
    include_headers: bool = switch(False, "Adds the column `headers`.", name="includeHeaders")
    value_format: str | None = text(
        None,
        "Format of the values: the column `value` has their type then, and not `BINARY`.",
        choices=("json", "msgpack", "avro"),
        name="valueFormat",
    )
    value_registry: str | None = text(
        None, "Address of the schema registry, for `valueFormat=avro`.", name="valueRegistry"
    )
    value_schema: str | None = text(
        None,
        "With `valueFormat`, the type of the values: columns such as `id BIGINT, name STRING`. By "
        "default that of the newest registered schema for `avro`, else what a sample shows.",
        name="valueSchema",
    )
    value_sample: int = whole(
        100, "How many records the sample has by which a type is inferred.", 1, name="valueSample"
    )
    value_errors: str = text(
        "fail",
        "What a value that does not fit does: `fail` ends the query, `null` is read in its place.",
        choices=("fail", "null"),
        name="valueErrors",
    )
    group_id: str | None = text(
        None,
        "Group of `startingOffsets=committed`; `kafka.group.id` is another word for it.",
        name="groupId",
    )
    poll_timeout_ms: int | None = whole(
        None,
        "Longest wait of a task without progress; 120,000 unless it is set.",
        1,
        name="pollTimeoutMs",
    )
    consumer_poll_timeout_ms: int | None = whole(
        None, "Another word for `pollTimeoutMs`.", 1, name="kafkaConsumer.pollTimeoutMs"
    )
    fetch_offset_num_retries: int = whole(
        4,
        "How often the driver asks again for offsets or partitions that an answer lacks.",
        name="fetchOffset.numRetries",
    )
    fetch_offset_retry_interval_ms: int = whole(
        100, "First wait before it asks again; each wait is twice the one before, up to 2 s.",
        name="fetchOffset.retryIntervalMs",
    )  # fmt: skip


class SinkSettings(SparkSettings, in_kafka=False, kind="sink"):
    """Options of the sink as Spark gives them."""

    topic: str | None = text(None, "Topic of every row; by default the column `topic`.")
    checkpoint_location: str | None = text(
        None,
        "The query's checkpoint: a path, or a URI that pyarrow can open (`hdfs://`, `s3://`, ...); "
        "required.",
        name="checkpointLocation",
    )
    name: str | None = text(
        None,
        "Name of the query's transactions, group and progress, by default "
        "`onceflow-spark-<query id>` with the id that the checkpoint holds; two live queries must "
        "not share it, and it must not change while a checkpoint is in use.",
    )
    transactional_id: str | None = text(None, "Another word for `name`.", name="transactionalId")
    group_id: str | None = text(
        None,
        "Group that receives the source offsets, by default the name; "
        "`<groupId>.progress` holds the last batch.",
        name="groupId",
    )
    write_id: str | None = text(
        None,
        "`df.write` only: the id of this write. A write whose id was published under this name is "
        "not written again.",
        name="writeId",
    )
    publish_again: bool = switch(
        False,
        "`true` lets the first batch of a new checkpoint publish again what an earlier checkpoint "
        "published under this name or at this location.",
        name="publishAgain",
    )
    driver_rows_max: int = whole(
        10_000,
        "`foreach_batch`: a micro-batch of at most so many rows is sent by the driver, without a "
        "shuffle. The sink and `df.write`: a task with at most so many rows, and 256 KiB, leaves "
        "them to the commit. 0 lets tasks send all rows.",
        name="driverRowsMax",
    )
    strict_columns: bool = switch(
        False,
        "`true` makes a column that the sink does not write an error; else it is ignored.",
        name="strictColumns",
    )
    include_headers: bool = switch(
        False, "Taken for Spark's own sink; has no effect.", name="includeHeaders"
    )
    value_format: str | None = text(
        None,
        "Format to write `value` in, which may have any type then; `avro` writes with the newest "
        "registered schema of the topic.",
        choices=("json", "msgpack", "avro"),
        name="valueFormat",
    )
    value_registry: str | None = text(
        None, "Address of the schema registry, for `valueFormat=avro`.", name="valueRegistry"
    )


def parse_partition_map(name: str, text: str) -> PartitionOffsets:
    """Read Spark's JSON of topics, partitions and numbers: ``{"t": {"0": 23, "1": -2}}``.

    Raises:
        ConfigError: The text is not of that form.
    """
    try:
        parsed = json.loads(text)
        return {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in parsed.items()
            for partition, number in numbers.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(name, text, 'give JSON like {"topic": {"0": 23, "1": -2}}') from None


def partition_map_text(offsets: Mapping[TopicPartition, int]) -> str:
    """Write offsets in Spark's JSON form, sorted by topic and partition."""
    nested: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(nested, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions a source reads; exactly one of the three ways is set.

    Attributes:
        topics: Names (option ``subscribe``, comma separated).
        pattern: Regular expression over names (option ``subscribePattern``).
        partitions: Single partitions (option ``assign``, JSON ``{"t": [0, 1]}``).
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @staticmethod
    def parse(found: SourceSettings) -> Subscription:
        """Read the one option of the three that is given."""
        ways = {
            "subscribe": found.subscribe,
            "subscribePattern": found.subscribe_pattern,
            "assign": found.assign,
        }
        given = {name: value for name, value in ways.items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                "subscribe, subscribePattern, assign",
                ", ".join(given) or "none of them",
                "give exactly one",
            )
        ((way, value),) = given.items()
        if way == "subscribe":
            topics = tuple(t.strip() for t in value.split(",") if t.strip())
            if not topics:
                raise ConfigError("subscribe", value, "give topic names, comma separated")
            return Subscription(topics=topics)
        if way == "subscribePattern":
            return Subscription(pattern=value)
        try:
            partitions = tuple(
                TopicPartition(topic, int(number))
                for topic, numbers in json.loads(value).items()
                for number in numbers
            )
        except (ValueError, AttributeError, TypeError):
            raise ConfigError("assign", value, 'give JSON like {"topic": [0, 1]}') from None
        return Subscription(partitions=partitions)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends.

    Attributes:
        kind: ``earliest``, ``latest``, ``committed``, ``offsets`` or ``timestamps``.
        values: Offsets or milliseconds by partition, for the last two kinds.
        timestamp_ms: One time for all partitions, for kind ``timestamps``.
    """

    kind: str
    values: PartitionOffsets = field(default_factory=dict)
    timestamp_ms: int | None = None

    @staticmethod
    def parse(found: SourceSettings, side: str, default: str) -> Bound:
        """Read ``<side>Timestamp``, ``<side>OffsetsByTimestamp`` or ``<side>Offsets``, in order."""
        timestamp: int | None = getattr(found, f"{side}_timestamp")
        by_partition: str | None = getattr(found, f"{side}_offsets_by_timestamp")
        if timestamp is not None:
            return Bound("timestamps", timestamp_ms=timestamp)
        if by_partition is not None:
            name = f"{side}OffsetsByTimestamp"
            return Bound("timestamps", parse_partition_map(name, by_partition))
        name = f"{side}Offsets"
        offsets: str | None = getattr(found, f"{side}_offsets")
        text = default if offsets is None else offsets
        allowed = ("earliest", "latest", "committed") if side == "starting" else ("latest",)
        if text.lower() in allowed:
            return Bound(text.lower())
        if not text.lstrip().startswith("{"):
            raise ConfigError(name, text, f"give {', '.join(allowed)} or JSON by partition")
        values = parse_partition_map(name, text)
        lowest = EARLIEST_TIMESTAMP if side == "starting" else LATEST_TIMESTAMP
        for tp, offset in values.items():
            if offset < lowest:
                raise ConfigError(name, f"{tp}: {offset}", f"offsets are {lowest} or greater")
        return Bound("offsets", values)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options of the source.

    Attributes:
        subscription: What is read.
        starting: Where a new query starts (``latest`` for streams, ``earliest`` for batches).
        ending: Where a batch ends.
        strict_times: Whether a starting time after a partition's last record is an error.
        max_offsets_per_trigger: Most offsets of one micro-batch, None without a limit.
        min_offsets_per_trigger: Least offsets of one micro-batch, None without a limit.
        max_trigger_delay_ms: Longest wait for them, in milliseconds.
        min_partitions: Least number of Spark tasks, None for one a Kafka partition.
        max_records_per_partition: Most offsets of one Spark task, None without a limit.
        fail_on_data_loss: Whether expired or vanished offsets end the query (default true).
        include_headers: Whether the column ``headers`` is there (default false).
        group_id: Consumer group of ``startingOffsets=committed``.
        isolation_level: READ_COMMITTED unless ``kafka.isolation.level`` says otherwise.
        poll_timeout_ms: Longest wait for progress in a task, in milliseconds.
        listing_retries: How often an answer of the cluster that lacks something is asked again.
        listing_wait_ms: First wait before that, in milliseconds.
        consumer: Settings of the tasks' consumers.
        admin: Settings of the driver's admin client.
        value_format: How values become a column of their own type; None for bytes.
    """

    subscription: Subscription
    starting: Bound
    ending: Bound
    strict_times: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group_id: str | None
    isolation_level: IsolationLevel
    poll_timeout_ms: int
    listing_retries: int
    listing_wait_ms: int
    consumer: ConsumerConfig
    admin: AdminConfig
    value_format: ValueFormat | None = None

    def with_schema(self, schema: StructType) -> SourceOptions:
        """The options with the type of the values, which Spark tells.

        Args:
            schema: Columns of the source.
        """
        if self.value_format is None:
            return self
        kind = schema["value"].dataType
        return replace(self, value_format=replace(self.value_format, schema=kind))

    @staticmethod
    def parse(
        options: Mapping[str, str], *, streaming: bool, client: ClientSource | None = None
    ) -> SourceOptions:
        """Check Spark's options.

        Args:
            options: The options.
            streaming: Whether a stream is read.
            client: Settings of the clients, which the options override.

        Raises:
            ConfigError: An option is unknown, missing or does not fit another.
        """
        folded = {name.lower(): value for name, value in options.items()}
        aside = (GROUP_ID, NO_EFFECT.lower())
        options = {name: value for name, value in options.items() if name.lower() not in aside}
        found, given = read_options(SourceSettings, options), set(folded)
        group_id = _one("groupId", found.group_id, GROUP_ID, folded.get(GROUP_ID))
        poll_timeout_ms = _one(
            "pollTimeoutMs",
            found.poll_timeout_ms,
            "kafkaConsumer.pollTimeoutMs",
            found.consumer_poll_timeout_ms,
        )
        for setting in found.declared.values():
            if streaming and setting.name.startswith("ending") and setting.name.lower() in given:
                raise ConfigError(setting.name, "...", "a stream has no end; use spark.read")
        starting = Bound.parse(found, "starting", "latest" if streaming else "earliest")
        if not streaming and starting.kind == "latest":
            raise ConfigError("startingOffsets", "latest", "a batch from latest is always empty")
        if starting.kind == "committed" and group_id is None:
            raise ConfigError("groupId", "", "startingOffsets=committed needs the group's name")
        found_client = client_of(options, client, NOT_OF_SOURCE)
        with named_as_options(options):
            consumer = found_client.reader(auto_offset_reset="none")
            admin = found_client.admin()
        return SourceOptions(
            subscription=Subscription.parse(found),
            starting=starting,
            ending=Bound.parse(found, "ending", "latest"),
            strict_times=found.starting_offsets_by_timestamp_strategy == "error",
            max_offsets_per_trigger=found.max_offsets_per_trigger,
            min_offsets_per_trigger=_least_offsets(found),
            max_trigger_delay_ms=_delay_ms(found.max_trigger_delay),
            min_partitions=found.min_partitions,
            max_records_per_partition=found.max_records_per_partition,
            fail_on_data_loss=found.fail_on_data_loss,
            include_headers=found.include_headers,
            group_id=group_id,
            isolation_level=consumer.isolation,
            poll_timeout_ms=POLL_TIMEOUT_MS if poll_timeout_ms is None else poll_timeout_ms,
            listing_retries=found.fetch_offset_num_retries,
            listing_wait_ms=found.fetch_offset_retry_interval_ms,
            consumer=consumer,
            admin=admin,
            value_format=_value_format(found, found.value_errors == "null"),
        )


def _value_format(
    found: SourceSettings | SinkSettings, bad_values_are_null: bool = False
) -> ValueFormat | None:
    """The format of values; None for bytes and text.

    Raises:
        ConfigError: Something is given that needs a format, or a registry is missing.
    """
    if found.value_format is None:
        for name in ("value_registry", "value_schema"):
            value = getattr(found, name, None)
            if value is not None:
                raise ConfigError(found.declared[name].name, value, "give valueFormat with it")
        return None
    if found.value_format == "avro" and found.value_registry is None:
        raise ConfigError("valueRegistry", "", "valueFormat=avro needs it, as http://host:8081")
    return ValueFormat(found.value_format, None, found.value_registry, bad_values_are_null)


def _one(name: str, value: T | None, other_name: str, other: T | None) -> T | None:
    """The value of an option that has two names."""
    if value is not None and other is not None and value != other:
        raise ConfigError(other_name, other, f"{name}={value} says otherwise; give one of them")
    return other if value is None else value


def _least_offsets(found: SourceSettings) -> int | None:
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(
            "minOffsetsPerTrigger", least, f"must not be above maxOffsetsPerTrigger={most}"
        )
    return least


def _delay_ms(text: str) -> int:
    """Read a time as Spark writes it: ``15m``, ``30 s``, ``500``."""
    match = _DELAY.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError("maxTriggerDelay", text, "give a number with ms, s, m, h or d, as 15m")
    return int(match[1]) * _DELAY_UNITS_MS[match[2] or "ms"]


def _one_spelling(location: str) -> str:
    """One text for all ways to write a location; a query must not get a second identity."""
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    return location.rstrip("/") if "://" in location else os.path.abspath(location)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of the exactly-once sink.

    Attributes:
        topic: Topic of every row, None when the rows have a column ``topic``.
        name: Name of the query's transactions and groups, None to take it from the query's id.
        group_id: Group that receives the source offsets, None for the name.
        checkpoint_location: Where the query's checkpoint is; source offsets are read from there.
        client: Settings of the clients of tasks and driver.
        publish_again: Whether a new checkpoint may begin before what was published.
        is_named_by_query: Whether the name comes from the query's id.
        strict_columns: Whether columns that the sink does not write are an error.
        driver_rows_max: Most rows of a micro-batch that the driver sends itself, and of a task
            that leaves them to the commit.
        write_id: Id of a write without a stream, None for one that is not to be repeated.
        value_format: How the column ``value`` is written, None for bytes and text.
    """

    topic: str | None
    name: str | None
    group_id: str | None
    checkpoint_location: str | None
    client: ClientSettings
    publish_again: bool = False
    is_named_by_query: bool = False
    strict_columns: bool = False
    driver_rows_max: int = 0
    write_id: str | None = None
    value_format: ValueFormat | None = None

    def of_write(self) -> SinkOptions:
        """The options with a name for one write without a stream.

        Each id has its own, and so has each topic: one id may mark a load into several topics.

        Raises:
            ConfigError: There is an id, but nothing tells whose it is.
        """
        if self.write_id is not None and self.topic is None and self.name is None:
            raise ConfigError(
                "name", "", "give one: rows name their topics, so `writeId` alone says too little"
            )
        own = str(uuid.uuid4()) if self.write_id is None else self.write_id
        parts = [self.name or "onceflow-spark-write", self.topic, own]
        return replace(self, name=".".join(part for part in parts if part is not None))

    def of_query(self, query_id: str) -> SinkOptions:
        """The options with a name; it comes from the query's id where none was given.

        Args:
            query_id: The query's id in its checkpoint.
        """
        if self.name is not None and not self.is_named_by_query:
            return self
        return replace(self, name=f"onceflow-spark-{query_id}", is_named_by_query=True)

    def owner(self, identity: ProducerIdentity | None = None) -> ProducerConfig:
        """Settings of the driver's producer, which begins and ends transactions.

        Args:
            identity: Goes on with the open transaction of this identity.
        """
        return ProducerConfig.build(
            {
                "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                **self.client.values("producer"),
                "transactional_id": self._known_name,
                "resumed_identity": identity,
            }
        )

    def joined(self, identity: ProducerIdentity) -> ProducerConfig:
        """Settings of a task's producer, which writes within the driver's transaction.

        Args:
            identity: That of the driver's producer.
        """
        values = {"batch_size": BATCH_SIZE, **self.client.values("producer")}
        return ProducerConfig.build(
            {**values, "transactional_id": None, "joined_identity": identity}
        )

    @property
    def encoding(self) -> ProducerConfig:
        """Settings by which tasks encode rows before anybody sends them."""
        values = {"batch_size": BATCH_SIZE, **self.client.values("producer")}
        return ProducerConfig.build({**values, "transactional_id": None})

    @property
    def admin(self) -> AdminConfig:
        """Settings of an admin client."""
        return self.client.admin()

    @property
    def _known_name(self) -> str:
        assert self.name is not None, "of_query() gives a name"
        return self.name

    @property
    def source_group_id(self) -> str:
        """Group that receives the source offsets."""
        return self._known_name if self.group_id is None else self.group_id

    @property
    def progress_group_id(self) -> str:
        """Group whose one entry tells which batches were published last."""
        return f"{self.source_group_id}.progress"

    @property
    def trace_group_id(self) -> str:
        """Group that notes which query last used the checkpoint's location for this topic.

        It is no identity. It only finds a checkpoint that was lost and begun again.
        """
        assert self.checkpoint_location is not None, "checked when the options were read"
        text = f"{_one_spelling(self.checkpoint_location)}\n{self.topic or ''}"
        return f"onceflow-spark-at-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @staticmethod
    def parse(options: Mapping[str, str], client: ClientSource | None = None) -> SinkOptions:
        """Check Spark's options.

        Args:
            options: The options.
            client: Settings of the clients, which the options override.

        Raises:
            ConfigError: An option is unknown, or two contradict each other.
        """
        found = read_options(SinkSettings, options)
        names = {found.name, found.transactional_id} - {None}
        if len(names) > 1:
            raise ConfigError("transactionalId", found.transactional_id, "give `name` alone")
        made = SinkOptions(
            topic=found.topic,
            name=next(iter(names), None),
            group_id=found.group_id,
            checkpoint_location=found.checkpoint_location,
            client=client_of(options, client, NOT_OF_SINK),
            publish_again=found.publish_again,
            strict_columns=found.strict_columns,
            driver_rows_max=found.driver_rows_max,
            write_id=found.write_id,
            value_format=_value_format(found),
        )
        with named_as_options(options):  # what the clients would refuse
            for make in (made.of_query("query").owner, made.client.admin):
                make()
        return made
