"""The data source ``onceflow``: its registration and what Spark asks it for.

Decides nothing but which reader or writer serves which request. Everything here is pickled by
Spark, so clients are opened in the readers' and writers' methods, never here; modules are imported
where they are needed, so that a reading worker does not load what writes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from onceflow.sdk import ClientSettings
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.schema import source_schema

if TYPE_CHECKING:
    from onceflow.spark_integration.reader import OnceflowReader, OnceflowStreamReader
    from onceflow.spark_integration.stream_write import OnceflowStreamWriter

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


class OnceflowDataSource(DataSource):
    """Kafka topics as Spark tables, read and written exactly once, as batches and as streams.

    Attributes:
        given: Settings of the clients that are no options; None outside of an application's
            pipeline.
    """

    given: ClassVar[ClientSettings | None] = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "onceflow"

    def schema(self) -> str:
        """Columns of Spark's own Kafka source; ``includeHeaders`` adds the headers.

        With ``valueFormat`` the values have their own type.

        Raises:
            ConfigError: That type cannot be found.
        """
        folded = {name.lower(): value for name, value in self.options.items()}
        has_headers = folded.get("includeheaders", "false").lower() == "true"
        if "valueformat" not in folded:
            return source_schema(has_headers)
        from onceflow.spark_integration.value_types import value_type

        return source_schema(has_headers, value_type(self.options, self.given))

    def reader(self, schema: StructType) -> OnceflowReader:
        """A bounded read.

        Args:
            schema: The columns of `schema`, as Spark read them.
        """
        from onceflow.spark_integration.options import SourceOptions
        from onceflow.spark_integration.reader import OnceflowReader

        options = SourceOptions.parse(self.options, streaming=False)
        return OnceflowReader(options.with_schema(schema))

    def streamReader(self, schema: StructType) -> OnceflowStreamReader:  # noqa: N802
        """An unbounded read.

        Args:
            schema: The columns of `schema`, as Spark read them.
        """
        from onceflow.spark_integration.options import SourceOptions
        from onceflow.spark_integration.reader import OnceflowStreamReader

        options = SourceOptions.parse(self.options, streaming=True, client=self.given)
        return OnceflowStreamReader(options.with_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A write of a bounded table as one transaction.

        Args:
            schema: Columns of the rows.
            overwrite: Whether the mode is overwrite, which a log cannot do.

        Raises:
            ConfigError: An option is wrong, or the mode is not append.
        """
        from onceflow.spark_integration.batch_write import OnceflowWriter
        from onceflow.spark_integration.options import SinkOptions

        if overwrite:
            raise ConfigError("mode", "overwrite", 'a topic cannot be replaced; use "append"')
        options = SinkOptions.parse(self.options)
        if options.checkpoint_location is not None:
            raise ConfigError(
                "checkpointLocation",
                options.checkpoint_location,
                "belongs to writeStream; a write is repeatable by `writeId`",
            )
        return OnceflowWriter(options, schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> OnceflowStreamWriter:
        """The exactly-once sink; output mode complete would mean to replace, which a log cannot.

        Args:
            schema: Columns of the stream.
            overwrite: Not used.

        Raises:
            ConfigError: An option is wrong, or there is no ``checkpointLocation``.
        """
        from onceflow.spark_integration.options import SinkOptions
        from onceflow.spark_integration.stream_write import OnceflowStreamWriter

        options = SinkOptions.parse(self.options)
        if options.write_id is not None:
            raise ConfigError("writeId", options.write_id, "belongs to df.write; leave it out")
        if options.checkpoint_location is None:
            raise ConfigError(
                "checkpointLocation", "", "set it on the writer: .option('checkpointLocation', DIR)"
            )
        return OnceflowStreamWriter(options, schema)


def register(spark: SparkSession) -> None:
    """Make ``format("onceflow")`` known to a session.

    Args:
        spark: The session.

    Raises:
        ConfigError: ``spark.speculation`` is on (two copies of a task would write twice), or
            Spark's Python workers would run another Python than this one.
    """
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigError("spark.speculation", "true", "turn it off for exactly-once output")
    program: str | None = None
    # Spark Connect has no such thing: the server chooses its Python.
    with contextlib.suppress(PySparkAttributeError):
        context = spark.sparkContext
        program = context.pythonExec
        _warn_of_tokens(name for name, _ in context.getConf().getAll())
    if program is not None and str(spark.conf.get("spark.master", "")).startswith("local"):
        _check_worker_python(program)
    elif spark.conf.get("spark.stage.maxConsecutiveAttempts", "4") != "1":
        logger.warning(
            "set spark.stage.maxConsecutiveAttempts=1 where the data source sink is used: a stage "
            "that Spark repeats after the loss of an executor must not write twice"
        )
    spark.dataSource.register(OnceflowDataSource)


def _warn_of_tokens(settings: Iterable[str]) -> None:
    """Tell that Spark's settings of delegation tokens have no effect here."""
    ours = sorted(name for name in settings if name.startswith("spark.kafka.clusters."))
    if ours:
        logger.warning(
            "%s: Spark gets delegation tokens for its own Kafka connector only; "
            'give format("onceflow") the options kafka.sasl.* or a file of settings (client)',
            ", ".join(ours),
        )


def _check_worker_python(program: str) -> None:
    """Local workers start with a Python program found by name; it must have this package."""
    found = shutil.which(program)
    # A Python that was started by a relative path keeps the `..` of it in its own name.
    own = os.path.dirname(os.path.abspath(sys.executable))
    if found is None or os.path.dirname(os.path.abspath(found)) != own:
        raise ConfigError(
            "PYSPARK_PYTHON",
            program,
            "Spark's workers must run the Python that has onceflow: set "
            "os.environ['PYSPARK_PYTHON'] = sys.executable before the session is made",
        )
