"""A sink of Parquet files; needs pyarrow (``pip install 'onceflow[arrow]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from onceflow.sdk.errors import ConfigError
from onceflow.transactions.sinks.errors import SinkRowError
from onceflow.transactions.sinks.files import FileSink, published
from onceflow.transactions.sinks.ledger import Row
from onceflow.transactions.sinks.sink import Observer

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as _missing:
    raise ImportError("pyarrow is missing: pip install 'onceflow[arrow]'") from _missing


CODECS = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")


class Parquet(FileSink):
    """Writes rows as Parquet, one file for each batch.

    Args:
        folder: Where the files go, as ``part-GROUP-NUMBER.parquet``; it must exist.
        schema: Columns of every file. A row may leave out those that are nullable.
        compression: Codec of the pages: zstd, snappy, gzip, brotli, lz4 or none.
        timeout_ms: Limit of each claim and write, checked between steps.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The schema is not a ``pyarrow.Schema`` with columns, or the codec is unknown.
    """

    suffix = ".parquet"

    def __init__(
        self,
        folder: str | Path,
        schema: pyarrow.Schema,
        *,
        compression: str = "zstd",
        timeout_ms: int = 5_000,
        observer: Observer | None = None,
    ) -> None:
        if not isinstance(schema, pyarrow.Schema) or not schema.names:
            remedy = "must be a pyarrow.Schema with columns, such as schema([('id', int64())])"
            raise ConfigError("schema", schema, remedy)
        if compression not in CODECS:
            raise ConfigError("compression", compression, f"must be one of {', '.join(CODECS)}")
        super().__init__(folder, timeout_ms=timeout_ms, observer=observer)
        self._schema = schema
        self._compression = compression

    def encode(self, rows: Sequence[Row], out: BinaryIO) -> None:
        """See ``FileSink.encode``."""
        known = set(self._schema.names)
        for row in rows:
            if not known.issuperset(row):
                # pyarrow would leave these out silently.
                others = ", ".join(sorted(map(str, set(row) - known)))
                raise self._refused(f"the schema has no column {others}")
        try:
            table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema=self._schema)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._refused(error) from error
        for field in self._schema:
            if not field.nullable and table.column(field.name).null_count:
                raise self._refused(f"column {field.name} is not nullable and a row has no value")
        pyarrow.parquet.write_table(table, out, compression=self._compression)

    def _refused(self, error: object) -> SinkRowError:
        return SinkRowError(
            f"{self._folder}: {error}. Mend the rows or the schema; nothing of the batch was "
            "written"
        )


def read_parquet(folder: str | Path) -> pyarrow.Table:
    """Return the rows that ``Parquet`` published, in order of group and number.

    Args:
        folder: The folder of the sink.

    Raises:
        ConfigError: No file is published yet.
    """
    tables = [pyarrow.parquet.read_table(file) for file in published(folder, Parquet.suffix)]
    if not tables:
        raise ConfigError("folder", str(folder), "holds no published file yet")
    return pyarrow.concat_tables(tables)
