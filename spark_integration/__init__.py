"""PySpark adapter: Kafka topics as streaming tables, written exactly once.

``register(spark)`` makes ``format("onceflow")`` known; ``foreach_batch`` gives the same guarantee
to ``foreachBatch``. Needs the extra ``onceflow[spark]``.
"""

from onceflow.spark_integration.foreach_batch import foreach_batch
from onceflow.spark_integration.planning import DataLossError
from onceflow.spark_integration.routing import partition_counts, route
from onceflow.spark_integration.source import OnceflowDataSource, register
from onceflow.spark_integration.transaction import BatchWriteError

__all__ = [
    "BatchWriteError",
    "DataLossError",
    "OnceflowDataSource",
    "foreach_batch",
    "partition_counts",
    "register",
    "route",
]
