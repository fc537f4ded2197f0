"""What of an application cannot run on Spark; it is refused when the pipeline is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from onceflow.processors.graph.nodes import AggregateNode, FunctionNode, JoinNode, TimerNode
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.settings import AppSettings
from onceflow.sdk.errors import ConfigError

NOT_OF_APPS: Final[Mapping[str, str]] = {
    "subscribe": "the application names its topics",
    "subscribepattern": "the application names its topics",
    "assign": "the application needs all partitions of its topics",
    "includeheaders": "records always come with their headers",
    "topic": "the application names its topics",
    "minpartitions": "records of a Kafka partition are processed in order, by one task",
    "maxrecordsperpartition": "records of a Kafka partition are processed in order, by one task",
    "client": "the settings of the App count; give them to App(client=), or to onceflow run",
    "isolation.level": "applications read committed records",
}
"""Options of source and sink that a pipeline sets itself, with the reason."""
STATE_API: Final = "pyspark.sql.streaming.proto.StateMessage_pb2"
"""What PySpark's workers import to keep state."""


def refuse_unfit(topology: Topology, settings: AppSettings, options: Mapping[str, str]) -> None:
    """Raise for what cannot run on Spark.

    Args:
        topology: The application.
        settings: Its settings.
        options: Options of the pipeline.

    Raises:
        ConfigError: Something cannot run; the error says what, why, and what to do.
    """
    for name in options:
        folded = name.lower().removeprefix("kafka.")
        if folded in NOT_OF_APPS:
            raise ConfigError(name, options[name], f"{NOT_OF_APPS[folded]}; leave it out")
    tables = [table.topic for table in topology.global_tables]
    if tables:
        raise ConfigError(
            "global_table",
            ", ".join(tables),
            "Spark's tasks live for one micro-batch and would read the whole table each time; use "
            "app.table() under the same key, or run the application with onceflow's own workers",
        )
    if settings.max_task_idle_ms > 0:
        raise ConfigError(
            "max_task_idle_ms",
            settings.max_task_idle_ms,
            "a micro-batch has all records that the topics held when it was planned, and waits "
            "for no others; leave it out",
        )
    if stateful_parts(topology):
        _require_state_api()
    joined = [part for part in topology.sub_topologies if len(part.input_topics) > 1]
    limit = {name.lower(): value for name, value in options.items()}.get("maxoffsetspertrigger")
    if joined and limit is not None:
        raise ConfigError(
            "maxOffsetsPerTrigger",
            limit,
            f"{' and '.join(joined[0].input_topics)} are processed together in the order of their "
            "timestamps, so each micro-batch needs all that both hold; leave it out",
        )


def _require_state_api() -> None:
    """Raise where PySpark's workers could not keep state; Spark itself says that they crashed.

    Raises:
        ConfigError: Protobuf, which PySpark does not install, is missing or too old.
    """
    try:
        importlib.import_module(STATE_API)
    except Exception as error:  # an older protobuf raises errors of its own
        raise ConfigError(
            "protobuf", str(error), "PySpark keeps state by it: pip install 'onceflow[spark]'"
        ) from error


def stateful_parts(topology: Topology) -> frozenset[str]:
    """Names of the sub-topologies that keep state."""
    return frozenset(part.name for part in topology.sub_topologies if part.states)


def needs_timers(part: SubTopology) -> bool:
    """Whether something in a sub-topology may fall due by the wall clock."""
    for node in part.nodes:
        if isinstance(node, TimerNode):
            return True
        if isinstance(node, AggregateNode | JoinNode) and node.timing.idle_ms is not None:
            return True
        if isinstance(node, FunctionNode) and node.parking is not None:
            return True
    return False
