"""Goal: a query is started again only where that can help, and its failure is one readable line.

Method: queries that fail with texts as Spark makes them are run by the supervisor; figures are read
from progress reports as Spark gives them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from onceflow.sdk import TopicPartition, errors
from onceflow.spark_integration import QueryFailedError, explain, lag_of, run_query

TRACE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An error occurred
Traceback (most recent call last):
  File "x.py", line 1, in call
onceflow.sdk.errors.client.{cause}: {told}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "y.py", line 2, in call
onceflow.spark_integration.transaction.BatchWriteError: task 1 could not write: {told}
\tat org.apache.spark.Something(Something.scala:1)
"""


def failure(cause: str, told: str = "because") -> StreamingQueryException:
    return StreamingQueryException(TRACE.format(cause=cause, told=told))


class Query:
    """A query that ends with an error, or well."""

    id = "query-1"

    def __init__(self, error: BaseException | None, batch: int | None = None) -> None:
        self.error = error
        self.lastProgress = None if batch is None else {"batchId": batch}
        self.stopped = False

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.stopped = True


def run(queries: Iterator[Query], **settings: Any) -> list[float]:
    waits: list[float] = []
    run_query(lambda: next(queries), sleep=waits.append, **settings)  # type: ignore[arg-type,return-value]
    return waits


def test_first_line_is_what_is_wrong() -> None:
    assert explain(failure("ConfigError", "topic=1")) == (
        "BatchWriteError: task 1 could not write: topic=1"
    )
    python = "Job aborted\nTraceback (most recent call last):\nKeyError: 'x'\n\tat org.x"
    assert explain(StreamingQueryException(python)) == "KeyError: 'x'"
    assert explain(StreamingQueryException("\n lost executor\n\tat x")) == "lost executor"


def test_query_is_started_again_with_growing_waits_until_it_ends() -> None:
    passing = failure("RequestTimedOutError")
    assert run(iter([Query(passing), Query(passing), Query(passing), Query(None)])) == [1, 2, 4]


def test_finished_batches_begin_the_count_anew() -> None:
    queries = [Query(failure("RequestTimedOutError"), batch) for batch in (1, 2, 3)]
    assert run(iter([*queries, Query(None)]), restarts_max=1) == [1, 1, 1]


def test_query_that_fails_too_often_is_given_up() -> None:
    queries = (Query(failure("RequestTimedOutError")) for _ in itertools.count())
    with pytest.raises(QueryFailedError, match="given up after 2 restarts") as caught:
        run(queries, restarts_max=2)
    assert isinstance(caught.value.__cause__, StreamingQueryException)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cause", ["ConfigError", "ProducerFencedError", "RecordTooLargeError"])
def test_failure_that_stays_is_raised_at_once(cause: str) -> None:
    module = getattr(errors, cause).__module__
    text = TRACE.format(cause=cause, told="because").replace("onceflow.sdk.errors.client", module)
    queries = iter([Query(StreamingQueryException(text), 7), Query(None)])
    with pytest.raises(QueryFailedError, match="last finished batch: 7"):
        run(queries)
    assert next(queries).error is None, "it was not started again"


def test_interrupted_wait_stops_the_query() -> None:
    query = Query(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(iter([query]))
    assert query.stopped


def test_lag_is_told_by_partition() -> None:
    ours = {
        "endOffset": '{"t": {"0": 5, "1": 7}, "@onceflow": {"cluster": "c"}}',
        "latestOffset": '{"t": {"0": 9, "1": 7}}',
    }
    stock = {"endOffset": {"u": {"0": 1}}, "latestOffset": {"u": {"0": 4}}}
    files = {"endOffset": '{"logOffset": 3}', "latestOffset": None}
    progress = {"sources": [ours, stock, files]}
    assert lag_of(SimpleNamespace(lastProgress=progress)) == {  # type: ignore[arg-type]
        TopicPartition("t", 0): 4,
        TopicPartition("t", 1): 0,
        TopicPartition("u", 0): 3,
    }
    assert lag_of(SimpleNamespace(lastProgress=None)) == {}  # type: ignore[arg-type]
