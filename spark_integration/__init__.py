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
    from onceflow.spark_integration.planning import DataLossError as DataLossError
    from onceflow.spark_integration.routing import route as route
    from onceflow.spark_integration.source import OnceflowDataSource as OnceflowDataSource
    from onceflow.spark_integration.source import register as register
    from onceflow.spark_integration.topics import partition_counts as partition_counts
    from onceflow.spark_integration.transaction import BatchWriteError as BatchWriteError

_HOMES = {
    "BatchWriteError": "transaction",
    "DataLossError": "planning",
    "OnceflowDataSource": "source",
    "foreach_batch": "batch_function",
    "partition_counts": "topics",
    "register": "source",
    "route": "routing",
}

__all__ = [
    "BatchWriteError",
    "DataLossError",
    "OnceflowDataSource",
    "foreach_batch",
    "partition_counts",
    "register",
    "route",
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
