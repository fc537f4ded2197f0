"""Options of the Spark source and sink: read from Spark's strings, checked, frozen.

Names are those of Spark's own Kafka source and sink wherever these have one. This module decides
what is accepted and what is refused before anything is read or written; it talks to nobody.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onceflow.sdk import IsolationLevel, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords
from onceflow.spark_integration.client_options import (
    CONSUMER_OPTIONS,
    PRODUCER_OPTIONS,
    admin_settings,
    boolean,
    consumer_settings,
    positive,
    producer_settings,
)

PartitionOffsets = dict[TopicPartition, int]
"""An offset (or a time in milliseconds) for each named partition."""

EARLIEST = -2
LATEST = -1

_SOURCE_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "groupId",
    "pollTimeoutMs",
    "kafka.isolation.level",
)
_SINK_OPTIONS = (
    "topic",
    "transactionalId",
    "groupId",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
)
_SPARK_OWN = {"path", "paths", "outputmode", "numpartitions"}


def _checked(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Give the options under their documented spelling; Spark folds names to lower case."""
    spelling = {name.lower(): name for name in known}
    found = {}
    for name, value in options.items():
        if name.lower() in _SPARK_OWN:
            continue
        if name.lower() not in spelling:
            near = difflib.get_close_matches(name.lower(), spelling, n=1)
            hint = f"did you mean {spelling[near[0]]}?" if near else f"known: {', '.join(known)}"
            # Without the value: it may be a password under a misspelt name.
            raise ConfigError(name, "...", f"no such option; {hint}")
        found[spelling[name.lower()]] = value
    return found


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
    def parse(found: Mapping[str, str]) -> Subscription:
        """Read the one option of the three that is given."""
        ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in found]
        if len(ways) != 1:
            raise ConfigError(
                "subscribe, subscribePattern, assign",
                ", ".join(ways) or "none of them",
                "give exactly one",
            )
        value = found[ways[0]]
        if ways[0] == "subscribe":
            topics = tuple(t.strip() for t in value.split(",") if t.strip())
            if not topics:
                raise ConfigError("subscribe", value, "give topic names, comma separated")
            return Subscription(topics=topics)
        if ways[0] == "subscribePattern":
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
    def parse(found: Mapping[str, str], side: str, default: str) -> Bound:
        """Read ``<side>Timestamp``, ``<side>OffsetsByTimestamp`` or ``<side>Offsets``, in order."""
        if (name := f"{side}Timestamp") in found:
            return Bound("timestamps", timestamp_ms=positive(name, found[name]))
        if (name := f"{side}OffsetsByTimestamp") in found:
            return Bound("timestamps", parse_partition_map(name, found[name]))
        name = f"{side}Offsets"
        text = found.get(name, default)
        allowed = ("earliest", "latest", "committed") if side == "starting" else ("latest",)
        if text.lower() in allowed:
            return Bound(text.lower())
        if not text.lstrip().startswith("{"):
            raise ConfigError(name, text, f"give {', '.join(allowed)} or JSON by partition")
        values = parse_partition_map(name, text)
        lowest = EARLIEST if side == "starting" else LATEST
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
        max_offsets_per_trigger: Most offsets of one micro-batch, None without a limit.
        min_partitions: Least number of Spark tasks, None for one a Kafka partition.
        fail_on_data_loss: Whether expired or vanished offsets end the query (default true).
        include_headers: Whether the column ``headers`` is there (default false).
        group_id: Consumer group of ``startingOffsets=committed``.
        isolation_level: READ_COMMITTED unless ``kafka.isolation.level`` says otherwise.
        poll_timeout_ms: Longest wait for progress in a task, 120,000 ms by default.
        consumer: Settings of the tasks' consumers.
        admin: Settings of the driver's admin client.
    """

    subscription: Subscription
    starting: Bound
    ending: Bound
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group_id: str | None
    isolation_level: IsolationLevel
    poll_timeout_ms: int
    consumer: ConsumerKeywords
    admin: AdminKeywords

    @staticmethod
    def parse(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Check Spark's options.

        Raises:
            ConfigError: An option is unknown, missing or does not fit another.
        """
        found = _checked(options, (*_SOURCE_OPTIONS, *CONSUMER_OPTIONS))
        if streaming and (ends := [n for n in found if n.startswith("ending")]):
            raise ConfigError(ends[0], found[ends[0]], "a stream has no end; use spark.read")
        starting = Bound.parse(found, "starting", "latest" if streaming else "earliest")
        if not streaming and starting.kind == "latest":
            raise ConfigError("startingOffsets", "latest", "a batch from latest is always empty")
        if starting.kind == "committed" and "groupId" not in found:
            raise ConfigError("groupId", "", "startingOffsets=committed needs the group's name")
        isolation = found.get("kafka.isolation.level", "read_committed")
        if isolation not in {"read_committed", "read_uncommitted"}:
            raise ConfigError("kafka.isolation.level", isolation, "read_(un)committed")
        limit, least = found.get("maxOffsetsPerTrigger"), found.get("minPartitions")
        return SourceOptions(
            subscription=Subscription.parse(found),
            starting=starting,
            ending=Bound.parse(found, "ending", "latest"),
            max_offsets_per_trigger=positive("maxOffsetsPerTrigger", limit) if limit else None,
            min_partitions=positive("minPartitions", least) if least else None,
            fail_on_data_loss=boolean("failOnDataLoss", found.get("failOnDataLoss", "true")),
            include_headers=boolean("includeHeaders", found.get("includeHeaders", "false")),
            group_id=found.get("groupId"),
            isolation_level=IsolationLevel[isolation.upper()],
            poll_timeout_ms=positive("pollTimeoutMs", found.get("pollTimeoutMs", "120000")),
            consumer=consumer_settings(found),
            admin=admin_settings(found),
        )


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
        transactional_id: Stable name of the query's transactions; by default made of the query's
            name, else of its checkpoint location.
        group_id: Group that receives the source offsets; by default the transactional id.
        checkpoint_location: Where the query's checkpoint is; source offsets are read from there.
        producer: Settings of the producers, those of tasks and of the driver.
        admin: Settings of the driver's admin client.
    """

    topic: str | None
    transactional_id: str
    group_id: str
    checkpoint_location: str | None
    producer: ProducerKeywords
    admin: AdminKeywords

    @property
    def progress_group_id(self) -> str:
        """Group whose one entry tells which batch of which query was published last."""
        return f"{self.group_id}.progress"

    @staticmethod
    def parse(options: Mapping[str, str]) -> SinkOptions:
        """Check Spark's options.

        Raises:
            ConfigError: An option is unknown, or no stable name can be found for the query.
        """
        found = _checked(options, (*_SINK_OPTIONS, *PRODUCER_OPTIONS))
        checkpoint = found.get("checkpointLocation")
        name = found.get("transactionalId")
        if name is None and "queryName" in found:
            name = f"onceflow-spark-{found['queryName']}"
        if name is None and checkpoint is not None:
            digest = hashlib.sha256(_one_spelling(checkpoint).encode()).hexdigest()
            name = f"onceflow-spark-{digest[:16]}"
        if not name:
            raise ConfigError(
                "transactionalId",
                "",
                "give one, or queryName, or checkpointLocation: a stable name",
            )
        return SinkOptions(
            topic=found.get("topic"),
            transactional_id=name,
            group_id=found.get("groupId", name),
            checkpoint_location=checkpoint,
            producer=producer_settings(found),
            admin=admin_settings(found),
        )
