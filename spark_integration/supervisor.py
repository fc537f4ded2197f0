"""Running a query for long: what its failure means, and starting it again where that may help.

Spark tells a failure of Python code as a Java trace with a Python trace inside. Here the one line
that says what is wrong is taken out of it, and its class decides whether to start again.
"""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, StreamingQueryException

from onceflow.sdk.errors import ConfigError, FatalError, RecordError
from onceflow.spark_integration.checkpoint import CheckpointError
from onceflow.spark_integration.planning import DataLossError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")

RESTARTS_MAX = 5
"""How often a query is started again without a finished batch in between."""
WAIT_S_MAX = 60.0
"""Longest wait before a query is started again, in seconds."""
_OURS: Final = re.compile(r"^(onceflow(?:\.\w+)*)\.(\w+): (.*)$", re.M)
_PYTHON: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.M)
_FINAL: Final = (
    ConfigError,
    RecordError,
    FatalError,
    DataLossError,
    CheckpointError,
    AnalysisException,
)


class QueryFailedError(Exception):
    """A streaming query failed; the first line says why. The cause is Spark's own error."""


def explain(error: BaseException) -> str:
    """The one line of a failure that says what is wrong.

    Args:
        error: What Spark raised, such as a StreamingQueryException.
    """
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        _, name, told = ours[-1]
        return f"{name}: {told}"
    python = _PYTHON.findall(text)
    if python:
        name, told = python[-1]
        return f"{name.rpartition('.')[2]}: {told}"
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))


def is_final(error: BaseException) -> bool:
    """Whether a failure stays when the query is started again.

    Those are wrong options, columns and rows, lost data, a checkpoint that must not go on, and a
    newer driver that has taken over.

    Args:
        error: What Spark raised.
    """
    if isinstance(error, _FINAL):
        return True
    return any(
        issubclass(_class_of(module, name), _FINAL) for module, name, _ in _OURS.findall(str(error))
    )


def _class_of(module: str, name: str) -> type:
    try:
        found = getattr(importlib.import_module(module), name, Exception)
    except ImportError:
        return Exception
    return found if isinstance(found, type) else Exception


def run_query(
    start: Callable[[], StreamingQuery],
    *,
    restarts_max: int = RESTARTS_MAX,
    wait_s: float = 1.0,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Run a query until it ends, and start it again from its checkpoint after a failure.

    A restart loses and repeats nothing: what was published stays, and the batch that failed runs
    again or is found to be published.

    Args:
        start: Starts the query, such as ``writer.start``.
        restarts_max: How often it is started again without a finished batch in between.
        wait_s: Seconds before the first restart; each further one waits twice as long, up to a
            minute.
        sleep: Waits so many seconds.

    Raises:
        QueryFailedError: The failure cannot pass, or the query failed too often.
    """
    failures = 0
    while True:
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            batch = _last_batch(query)
            told = explain(error)
            if is_final(error):
                raise QueryFailedError(f"{told} (last finished batch: {batch})") from error
            failures = 1 if batch is not None else failures + 1
            if failures > restarts_max:
                raise QueryFailedError(
                    f"{told} (last finished batch: {batch}; given up after {restarts_max} restarts "
                    "without a finished batch)"
                ) from error
            wait = min(wait_s * 2 ** (failures - 1), WAIT_S_MAX)
            logger.warning(
                "query %s failed: %s; last finished batch: %s, what was published stays; starts "
                "again in %.1f s (%d of %d)",
                query.id, told, batch, wait, failures, restarts_max,
            )  # fmt: skip
            sleep(wait)
        except BaseException:
            query.stop()
            raise
        else:
            return


def _last_batch(query: StreamingQuery) -> int | None:
    """The last batch that this run finished, None for none."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
