"""Goal: rows go where the Java client would put them, and only what may pass is tried again.

Method: the choice of partitions is compared with the published client's partitioner; the rule for
retries and the checks at registration are called with each kind of error and setting.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from case_proxy import Action, Proxy
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkAttributeError, PythonException

from onceflow.broker_lite import Broker
from onceflow.sdk import ProducerIdentity
from onceflow.sdk.errors import (
    ConfigError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.spark_integration import OnceflowDataSource, foreach_batch
from onceflow.spark_integration.batch_function import _may_pass
from onceflow.spark_integration.frames import check_stage
from onceflow.spark_integration.options import SinkOptions, SourceOptions
from onceflow.spark_integration.routing import _choose
from onceflow.spark_integration.source import _check_worker_python, register
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.transaction import BatchWriteError
from onceflow.spark_integration.writer import own_partitions

SERVERS = {"kafka.bootstrap.servers": "b:9092"}


def choose(keys: list[bytes | None], topics: list[str | None], spread: list[int]) -> list[object]:
    counts = {"five": 5, "one": 1}
    chosen = _choose(counts, pa.array(keys, pa.binary()), pa.array(topics, pa.string()),
                     pa.array(spread, pa.int64()))  # fmt: skip
    return list(chosen.to_pylist())


def test_keys_go_where_the_published_clients_put_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.partitioner.default import murmur2
    keys = [bytes([n, n * 7 % 256]) * (n % 5) for n in range(200)]
    expected = [(murmur2(key) & 0x7FFFFFFF) % 5 for key in keys]
    assert choose(list(keys), ["five"] * 200, [0] * 200) == expected


def test_rows_without_a_key_are_spread_and_unknown_topics_are_left_open() -> None:
    found = choose([None, None, None, b"k"], ["five", "five", "one", "other"], [7, 9, 3, 1])
    assert found == [2, 4, 0, None]


def wrapped(cause: Exception) -> BatchWriteError:
    error = BatchWriteError("a task could not write")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RequestTimedOutError("slow"), True),
        (BatchWriteError("the stage was repeated"), True),
        (PythonException("a task failed"), True),
        (wrapped(RequestTimedOutError("slow")), True),
        (wrapped(RecordTooLargeError("large")), False),
        (wrapped(ConfigError("column topic", None, "give one")), False),
        (ConfigError("topic", "", "give one"), False),
        (ProducerFencedError("a newer driver"), False),
        (AnalysisException("no such column"), False),
        (LookupError("of the user's function"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, passes: bool) -> None:
    assert _may_pass(error) is passes


def test_security_options_reach_the_clients() -> None:
    options = {
        **SERVERS,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "p",
    }
    source = SourceOptions.parse({**options, "subscribe": "a"}, streaming=True)
    sink = SinkOptions.parse({**options, "transactionalId": "t"})
    owner, task = sink.owner(), sink.joined(ProducerIdentity("t", 1, 0))
    for config in (source.admin, source.consumer, sink.admin, owner, task):
        assert (config.security.sasl_username, config.security.sasl_password) == ("u", "p")


def parse(options: dict[str, str], *, source: bool) -> SourceOptions | SinkOptions:
    if source:
        return SourceOptions.parse({**options, "subscribe": "a"}, streaming=True)
    return SinkOptions.parse({**options, "transactionalId": "t"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.compression.type", "brotli"),
        ("kafka.batch.size", "many"),
        ("kafka.security.protocol", "SASL"),
        ("kafka.fetch.max.bytes", "0"),
        ("kafka.delivery.timeout.ms", "5"),
        ("kafka.sasl.mechanism", "NTLM"),
    ],
)
def test_wrong_kafka_option_is_named_as_it_was_given(option: str, value: str) -> None:
    given = {**SERVERS, option: value}
    if option == "kafka.sasl.mechanism":
        given["kafka.security.protocol"] = "SASL_SSL"
    with pytest.raises(ConfigError) as caught:
        parse(given, source="fetch" in option)
    assert caught.value.field == option


def test_workers_must_run_this_python() -> None:
    _check_worker_python(sys.executable)
    with pytest.raises(ConfigError, match="PYSPARK_PYTHON"):
        _check_worker_python("/nowhere/python3")


def test_speculation_is_refused() -> None:
    settings = {"spark.speculation": "true", "spark.master": "local[2]"}
    session = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: settings[name]))
    with pytest.raises(ConfigError, match=r"spark\.speculation"):
        register(session)


class ConnectSession:
    """What a session of Spark Connect answers."""

    conf = SimpleNamespace(
        get=lambda name, default: {"spark.master": "local[2]"}.get(name, default)
    )

    def __init__(self) -> None:
        self.registered: list[object] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)

    @property
    def sparkContext(self) -> object:  # noqa: N802 - Spark's name
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"}
        )


def test_spark_connect_has_the_source_and_no_foreach_batch(tmp_path: Path) -> None:
    session = ConnectSession()
    register(session)  # type: ignore[arg-type]
    assert session.registered == [OnceflowDataSource]
    publish = foreach_batch(topic="a", checkpointLocation=str(tmp_path), **SERVERS)
    with pytest.raises(ConfigError, match=r"Spark Connect.*Nothing was written"):
        publish(SimpleNamespace(sparkSession=session), 0)  # type: ignore[arg-type]


def test_counts_are_asked_for_the_topics_of_the_rows_and_once_each() -> None:
    with Broker() as broker, Proxy(broker.bootstrap_servers) as proxy:
        for name, count in (("a", 2), ("b", 3), ("other", 1)):
            broker.create_topic(name, partitions=count)
        described: list[str] = []

        def note(response: MetadataResponse) -> MetadataResponse:
            described.extend(str(topic.name) for topic in response.topics)
            return response

        proxy.add(MetadataRequest, Action.EDIT, edit=note)
        config = SinkOptions.parse({"kafka.bootstrap.servers": proxy.bootstrap_servers}).admin
        lookup = pickle.loads(pickle.dumps(CountsLookup(config)))
        assert lookup.of(["a", None, "a"]) == {"a": 2}
        assert lookup.of(["a", "b"]) == {"a": 2, "b": 3}
        assert sorted(described) == ["a", "b"]
        assert lookup.of(["b", "missing"]) == {"a": 2, "b": 3}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_tasks_own_every_partition_and_share_none(count: int, tasks_max: int, shift: int) -> None:
    tasks_max = min(tasks_max, count)
    owned = [own_partitions(task, tasks_max, count, shift) for task in range(tasks_max)]
    assert sorted(number for one in owned for number in one) == list(range(count))
    assert all(owned)


@pytest.mark.parametrize("attempt", [0, 1])
def test_repeated_writing_stage_fails_the_batch(attempt: int) -> None:
    stages = {7: SimpleNamespace(currentAttemptId=0), 8: SimpleNamespace(currentAttemptId=attempt)}
    tracker = SimpleNamespace(getStageInfo=stages.get)
    context = SimpleNamespace(statusTracker=lambda: tracker)
    df = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    expected = pytest.raises(BatchWriteError, match="stage 8") if attempt else nullcontext()
    with expected:
        check_stage(df, {7, 8, 9})
