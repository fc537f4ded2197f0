"""The data source ``onceflow``: its registration and what Spark asks it for.

Decides nothing but which reader or writer serves which request. Everything here is pickled by
Spark, so clients are opened in the readers' and writers' methods, never here.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.options import SinkOptions, SourceOptions
from onceflow.spark_integration.reader import OnceflowReader, OnceflowStreamReader
from onceflow.spark_integration.schema import source_schema
from onceflow.spark_integration.writer import OnceflowStreamWriter


class OnceflowDataSource(DataSource):
    """Kafka topics as Spark tables: read (batch and stream) and written (stream, exactly once)."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "onceflow"

    def schema(self) -> str:
        """Columns of Spark's own Kafka source; ``includeHeaders`` adds the headers."""
        folded = {name.lower(): value for name, value in self.options.items()}
        return source_schema(folded.get("includeheaders", "false").lower() == "true")

    def reader(self, schema: StructType) -> OnceflowReader:
        """A bounded read."""
        return OnceflowReader(SourceOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> OnceflowStreamReader:  # noqa: N802
        """An unbounded read."""
        return OnceflowStreamReader(SourceOptions.parse(self.options, streaming=True))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> OnceflowStreamWriter:
        """The exactly-once sink; output mode complete would mean to replace, which a log cannot."""
        options = SinkOptions.parse(self.options)
        if options.checkpoint_location is None:
            raise ConfigError(
                "checkpointLocation", "", "set it on the writer: .option('checkpointLocation', DIR)"
            )
        return OnceflowStreamWriter(options, schema)


def register(spark: SparkSession) -> None:
    """Make ``format("onceflow")`` known to a session.

    Args:
        spark: The session. Its Python workers run ``PYSPARK_PYTHON``; when that is not set, the
            running interpreter is used, so that they find this package.

    Raises:
        ConfigError: ``spark.speculation`` is on; two copies of a task would write twice.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError("spark.speculation", "true", "turn it off for exactly-once output")
    spark.dataSource.register(OnceflowDataSource)
