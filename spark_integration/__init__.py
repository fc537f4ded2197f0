"""PySpark adapter: Kafka topics as streaming tables, written exactly once.

``register(spark)`` makes ``format("onceflow")`` known; ``foreach_batch`` gives the same guarantee
to ``foreachBatch``. Needs the extra ``onceflow[spark]``. Names are loaded at their first use, since
every Python worker of Spark imports this package and needs only a part of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.spark_integration.batch_function import foreach_batch as foreach_batch
    from onceflow.spark_integration.metrics import PublishMetrics as PublishMetrics
    from onceflow.spark_integration.metrics import lag_of as lag_of
    from onceflow.spark_integration.planning import DataLossError as DataLossError
    from onceflow.spark_integration.routing import route as route
    from onceflow.spark_integration.source import OnceflowDataSource as OnceflowDataSource
    from onceflow.spark_integration.source import register as register
    from onceflow.spark_integration.supervisor import QueryFailedError as QueryFailedError
    from onceflow.spark_integration.supervisor import explain as explain
    from onceflow.spark_integration.supervisor import run_query as run_query
    from onceflow.spark_integration.topics import partition_counts as partition_counts
    from onceflow.spark_integration.transaction import BatchWriteError as BatchWriteError

_HOMES = {
    "BatchWriteError": "transaction",
    "DataLossError": "planning",
    "OnceflowDataSource": "source",
    "PublishMetrics": "metrics",
    "QueryFailedError": "supervisor",
    "explain": "supervisor",
    "foreach_batch": "batch_function",
    "lag_of": "metrics",
    "partition_counts": "topics",
    "register": "source",
    "route": "routing",
    "run_query": "supervisor",
}

__all__ = [
    "BatchWriteError",
    "DataLossError",
    "OnceflowDataSource",
    "PublishMetrics",
    "QueryFailedError",
    "explain",
    "foreach_batch",
    "lag_of",
    "partition_counts",
    "register",
    "route",
    "run_query",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("pyspark", "pyarrow"):
            error.add_note("the Spark adapter needs them: pip install 'onceflow[spark]'")
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
