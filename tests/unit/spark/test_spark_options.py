"""Goal: wrong options are refused before anything is read or written, naming option and remedy.

Method: option maps as Spark hands them over (names folded to lower case) are parsed.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from pathlib import Path

import pytest

from onceflow.sdk import ConsumerConfig, IsolationLevel, ProducerConfig, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import Kind, Settings
from onceflow.spark_integration.options import (
    NOT_OF_SOURCE,
    SinkOptions,
    SourceOptions,
    parse_partition_map,
    partition_map_text,
)
from onceflow.spark_integration.source import _warn_of_tokens

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
SOURCE = {**BASE, "subscribe": "a, b"}
SINK = {**BASE, "checkpointlocation": "/c", "topic": "out"}


def test_defaults_are_safe() -> None:
    options = SourceOptions.parse(SOURCE, streaming=True)
    assert options.subscription.topics == ("a", "b")
    assert options.isolation_level is IsolationLevel.READ_COMMITTED
    assert options.fail_on_data_loss
    assert options.starting.kind == "latest"
    assert SourceOptions.parse(SOURCE, streaming=False).starting.kind == "earliest"


def test_names_are_read_whatever_their_case() -> None:
    options = SourceOptions.parse(
        {**SOURCE, "maxoffsetspertrigger": "7", "INCLUDEHEADERS": "true"}, streaming=True
    )
    assert options.max_offsets_per_trigger == 7
    assert options.include_headers


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"startingofset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribepattern": "a.*"}, "give exactly one"),
        ({"maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"failondataloss": "yes"}, "failOnDataLoss"),
        ({"startingoffsets": "newest"}, "startingOffsets"),
        ({"startingoffsets": '{"a": 3}'}, "startingOffsets"),
        ({"startingoffsets": '{"a": {"0": -7}}'}, "a-0: -7"),
        ({"startingoffsets": "committed"}, "groupId"),
        ({"endingoffsets": "latest"}, "endingOffsets"),
        ({"kafka.isolation.level": "dirty"}, "kafka.isolation.level"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers"),
        ({"kafka.group.id": "g", "groupid": "h"}, "kafka.group.id"),
        ({"polltimeoutms": "5", "kafkaconsumer.polltimeoutms": "6"}, "kafkaConsumer.pollTimeoutMs"),
        ({"startingoffsetsbytimestampstrategy": "none"}, "startingOffsetsByTimestampStrategy"),
        ({"maxtriggerdelay": "soon"}, "maxTriggerDelay"),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, "minOffsetsPerTrigger"),
        ({"maxrecordsperpartition": "0"}, "maxRecordsPerPartition"),
    ],
)
def test_wrong_source_option_is_named(extra: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SourceOptions.parse({**SOURCE, **extra}, streaming=True)


JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p"'
# An example of each option that the documentation of Spark's connector lists, and of those
# properties that its users set most.
EXAMPLES = {
    "source": {
        "kafka.bootstrap.servers": "b:1",
        "assign": '{"t": [0]}',
        "subscribe": "t",
        "subscribePattern": "t.*",
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"t": {"0": 1000}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "startingOffsets": "earliest",
        "endingTimestamp": "1000",
        "endingOffsetsByTimestamp": '{"t": {"0": 1000}}',
        "endingOffsets": "latest",
        "failOnDataLoss": "false",
        "kafkaConsumer.pollTimeoutMs": "1000",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "1000",
        "maxOffsetsPerTrigger": "10",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "15m",
        "minPartitions": "10",
        "maxRecordsPerPartition": "10",
        "groupIdPrefix": "spark-kafka-source",
        "kafka.group.id": "g",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.max.poll.records": "10",
        "kafka.session.timeout.ms": "45000",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f"{JAAS};",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.password": "p",
        "kafka.auto.offset.reset": "earliest",
        "kafka.key.deserializer": "x.ByteArrayDeserializer",
        "kafka.value.deserializer": "x.ByteArrayDeserializer",
        "kafka.enable.auto.commit": "true",
        "kafka.interceptor.classes": "x.Interceptor",
    },
    "sink": {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "includeHeaders": "true",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.retries": "3",
        "kafka.sasl.jaas.config": f"{JAAS};",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.password": "p",
        "kafka.key.serializer": "x.ByteArraySerializer",
        "kafka.value.serializer": "x.ByteArraySerializer",
    },
}
PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
SECURITY = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": f"{JAAS};",
}


def parse_side(side: str, options: dict[str, str]) -> None:
    if side == "sink":
        SinkOptions.parse({**BASE, **options})
        return
    ways = ("subscribe", "subscribePattern", "assign")
    given = options if any(way in options for way in ways) else {**options, "subscribe": "t"}
    is_batch = any(name.startswith("ending") for name in given)
    SourceOptions.parse({**BASE, **given}, streaming=not is_batch)


def test_page_tells_of_each_option_of_sparks_connector_what_the_code_does() -> None:
    part = PAGE.read_text().partition("<!-- spark's own options -->")[2].partition("<!-- end -->")
    rows = re.findall(r"^\| (source|sink) \| `([^`]+)` \| (taken|refused)", part[0], re.M)
    assert [(side, name) for side, name, _ in rows] == [
        (side, name) for side, examples in EXAMPLES.items() for name in examples
    ]
    for side, name, verdict in rows:
        secured = (
            SECURITY if name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")) else {}
        )
        given = {**secured, name: EXAMPLES[side][name]}
        if verdict == "taken":
            parse_side(side, given)
        else:
            with pytest.raises(ConfigError, match=re.escape(name)):
                parse_side(side, given)


def test_options_of_sparks_connector_have_their_effect() -> None:
    given = {
        "kafkaconsumer.polltimeoutms": "5",
        "kafka.group.id": "g",
        "fetchoffset.numretries": "2",
        "fetchoffset.retryintervalms": "3",
        "minoffsetspertrigger": "4",
        "maxtriggerdelay": "2 h",
        "maxrecordsperpartition": "6",
        "startingoffsets": "committed",
    }
    found = SourceOptions.parse({**SOURCE, **given}, streaming=True)
    assert (found.poll_timeout_ms, found.group_id) == (5, "g")
    assert (found.listing_retries, found.listing_wait_ms) == (2, 3)
    assert (found.min_offsets_per_trigger, found.max_trigger_delay_ms) == (4, 7_200_000)
    assert found.max_records_per_partition == 6
    assert found.strict_times


def test_delegation_token_is_refused() -> None:
    token = {"kafka.sasl.jaas.config": f"{JAAS} tokenauth=true;"}
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.jaas\.config.*delegation tokens"):
        SinkOptions.parse({**BASE, **SECURITY, **token})


def test_settings_of_delegation_tokens_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_tokens(["spark.kafka.clusters.a.auth.bootstrap.servers", "spark.master"])
    assert "spark.kafka.clusters.a.auth.bootstrap.servers" in caplog.text
    caplog.clear()
    _warn_of_tokens(["spark.master"])
    assert not caplog.text


def test_assign_and_offsets_are_read_from_json() -> None:
    options = SourceOptions.parse(
        {**BASE, "assign": '{"t": [0, 2]}', "startingoffsets": '{"t": {"0": 5, "2": -2}}'},
        streaming=True,
    )
    assert options.subscription.partitions == (TopicPartition("t", 0), TopicPartition("t", 2))
    assert options.starting.values == {TopicPartition("t", 0): 5, TopicPartition("t", 2): -2}


def test_partition_map_round_trip() -> None:
    offsets = {TopicPartition("b", 1): 4, TopicPartition("a", 0): 9}
    text = partition_map_text(offsets)
    assert text == '{"a": {"0": 9}, "b": {"1": 4}}'
    assert parse_partition_map("x", text) == offsets


def test_identity_is_the_name_or_the_querys_id_and_never_the_path() -> None:
    unnamed = SinkOptions.parse({**SINK, "queryname": "q"}).of_query("id-1")
    assert unnamed.name == unnamed.source_group_id == "onceflow-spark-id-1"
    moved = SinkOptions.parse({**SINK, "checkpointlocation": "/moved"}).of_query("id-1")
    assert moved.progress_group_id == unnamed.progress_group_id == "onceflow-spark-id-1.progress"
    for option in ("name", "transactionalid"):
        given = SinkOptions.parse({**SINK, option: "mine"}).of_query("id-1")
        assert given.name == given.source_group_id == "mine"
        assert given.owner().transactional_id == "mine"
    grouped = SinkOptions.parse({**SINK, "name": "mine", "groupid": "g"}).of_query("id-1")
    assert (grouped.name, grouped.source_group_id) == ("mine", "g")


def test_every_spelling_of_a_checkpoint_leaves_the_same_trace() -> None:
    def traces(*locations: str) -> set[str]:
        options = ({**SINK, "checkpointlocation": location} for location in locations)
        return {SinkOptions.parse(one).trace_group_id for one in options}

    assert (
        len(traces("/data/c", "/data/c/", "file:/data/c", "file:///data/c", "/data/../data/c")) == 1
    )
    assert len(traces("s3://bucket/c", "s3://bucket/c/", "s3://bucket/d")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**SINK, "name": "a", "transactionalid": "b"}, "give `name` alone"),
        ({**SINK, "kafka.acks": "1"}, "kafka.acks"),
        ({**SINK, "kafka.linger.ms": "soon"}, "kafka.linger.ms"),
        ({**SINK, "transactionallid": "x"}, "did you mean transactionalId"),
    ],
)
def test_wrong_sink_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SinkOptions.parse(options)


@pytest.mark.parametrize(
    ("kind", "base"), [(ProducerConfig, SINK), (ConsumerConfig, SOURCE)], ids=["sink", "source"]
)
def test_every_property_of_a_client_is_an_option(
    kind: type[Settings], base: dict[str, str]
) -> None:
    """With its default as text, or refused with what to give instead."""
    options = {
        f"kafka.{setting.kafka}": text
        for setting in kind.declared.values()
        if setting.kafka and setting.kind is not Kind.CLASS
        if (text := setting.render(setting.default))
    }
    assert len(options) > 20
    if kind is ProducerConfig:
        SinkOptions.parse({**options, **base})
        return
    refused = {name for name in options if name.removeprefix("kafka.") in NOT_OF_SOURCE}
    kept = {name: text for name, text in options.items() if name not in refused}
    SourceOptions.parse({**kept, **base}, streaming=True)
    for name in refused:
        with pytest.raises(ConfigError, match=re.escape(name)):
            SourceOptions.parse({name: options[name], **base}, streaming=True)


def test_settings_of_a_file_reach_every_client_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nclient.id=file\nlinger.ms=7\nfetch.max.wait.ms=8\n")
    given = {"client": str(path), "kafka.client.id": "option"}
    source = SourceOptions.parse({**given, "subscribe": "a"}, streaming=True)
    sink = pickle.loads(pickle.dumps(SinkOptions.parse({**given, "transactionalid": "t"})))
    assert source.consumer.fetch_max_wait_ms == 8
    assert sink.owner().linger_ms == 7
    assert sink.owner().transaction_timeout_ms == 300_000
    for config in (source.consumer, source.admin, sink.admin, sink.owner()):
        assert (config.bootstrap_servers, config.client_id) == ("a:1", "option")
    code = SinkOptions.parse({"transactionalid": "t"}, {"bootstrap.servers": "b:1"})
    assert code.admin.bootstrap_servers == "b:1"
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        SinkOptions.parse({"transactionalid": "t"}, {"linger.ms": "1"})


def test_workers_python_is_the_same_however_its_path_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onceflow.spark_integration.source import _check_worker_python

    own = Path(sys.executable)
    monkeypatch.setattr(sys, "executable", str(own.parent / ".." / own.parent.name / own.name))
    _check_worker_python(str(own))
    _check_worker_python(os.path.relpath(own))
    with pytest.raises(ConfigError, match="PYSPARK_PYTHON"):
        _check_worker_python("/bin/sh")
