"""Goal: an argument of the wrong kind is refused by name, with what to write instead.

Method: what newcomers from other clients write, in a table; no broker is needed for any of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerConfig,
    ConsumerGroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerConfig,
    TopicPartition,
)
from onceflow.sdk.core import arguments
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.sdk.serde import JSON

PART = TopicPartition("t", 0)
SETTINGS = {"bootstrap.servers": "localhost:1", "sasl.password": "secret"}


def grouped() -> Any:
    return AsyncConsumer(group_id="g")


def admin(call: str, *given: object) -> object:
    return asyncio.run(getattr(AsyncAdmin(), call)(*given))


def created(topic: object) -> object:
    return admin("create_topics", [topic])


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "one partition": (lambda: arguments.partition_list(PART), "must be a list of partitions"),
    "topic names": (lambda: arguments.partition_list(["t"]), "must be a list of partitions"),
    "assign": (lambda: grouped().assign(PART), "partitions=.*must be a list of partitions"),
    "pause": (lambda: grouped().pause(PART), "partitions=.*must be a list of partitions"),
    "rewind": (lambda: grouped().seek_to_beginning(PART), "partitions=.*must be a list"),
    "offsets in a list": (lambda: arguments.offsets_by_partition([PART]), "offsets=.*dictionary"),
    "offset as text": (lambda: arguments.offsets_by_partition({PART: "1"}), "offsets=.*dictionary"),
    "times in a list": (lambda: arguments.times_by_partition([PART]), "timestamps_ms=.*dictionary"),
    "group": (lambda: arguments.check_group_metadata("g"), r"consumer\.group_metadata\(\)"),
    "seconds": (lambda: arguments.whole_ms(10.5), r"timeout_ms=10.5: .*10.5 seconds are 10500"),
    "a switch": (lambda: arguments.limit_of(True, 5), "timeout_ms=True: give milliseconds"),
    "pattern": (lambda: grouped().subscribe(pattern="a("), "pattern='a\\(': .*regular expression"),
    "librdkafka's pattern": (lambda: grouped().subscribe(["^a.*"]), r"pattern='\^a\.\*'"),
    "topics in a list": (lambda: AsyncConsumer(cast("str", ["a"])), r"Consumer\('a', 'b'\)"),
    "settings as a topic": (lambda: Consumer(cast("str", SETTINGS)), r"topics='\*\*\*'.*config="),
    "num_partitions": (
        lambda: cast("Any", NewTopic)("t", num_partitions=3),
        "num_partitions.*did you mean partitions",
    ),
    "environ": (
        lambda: ProducerConfig.load(environ=cast("Any", True)),
        "environ=True: must be a dictionary, such as os.environ",
    ),
    "partitioner": (
        lambda: ProducerConfig(partitioner=cast("Any", "consistent_random")),
        "murmur2.*keys go to other partitions",
    ),
    "partitioner in a file": (
        lambda: ProducerConfig.from_properties({"partitioner": "consistent_random"}),
        "murmur2.*keys go to other partitions",
    ),
    "negative offset": (lambda: arguments.offsets_by_partition({PART: -1}), "next offset of t-0"),
    "negative time": (lambda: arguments.times_by_partition({PART: -1}), "timestamps_ms=-1"),
    "offset to seek to": (lambda: arguments.offset_of("5"), "offset='5': must be a whole number"),
    "for ever": (lambda: arguments.wait_ms(-1), "timeout_ms=-1: must be 0"),
    "number as a setting": (
        lambda: created(NewTopic("t", configs=cast("Any", {"retention.ms": 5}))),
        "retention.ms=5: write '5'",
    ),
    "switch as a setting": (
        lambda: admin("alter_configs", {"t": {"unclean.leader.election.enable": True}}),
        "enable=True: write 'true'",
    ),
    "settings in a list": (lambda: admin("alter_configs", {"t": ["a"]}), "configs of t=.*dict"),
    "changes in a list": (lambda: admin("alter_configs", ["t"]), "changes=.*dictionary"),
    "partitions as a text": (lambda: created(NewTopic("t", cast("Any", "3"))), "partitions of t"),
    "a pair for a topic": (lambda: created(("t", 3)), "list of NewTopic"),
    "a number for a topic": (lambda: admin("delete_topics", [5]), "topics=5: each name must be"),
    "no group": (lambda: admin("describe_groups", [None]), "groups=None: each name must be"),
    "a list of totals": (lambda: admin("create_partitions", ["t"]), "totals=.*dictionary"),
    "a total as a text": (lambda: admin("create_partitions", {"t": "6"}), "totals of t='6'"),
    "records by topic": (lambda: admin("delete_records", {"t": 5}), "before='t'.*partitions"),
    "an end as a text": (lambda: admin("delete_records", {PART: "5"}), "before of t-0='5'"),
    "a partition as a name": (lambda: admin("describe_producers", ["t"]), "list of partitions"),
    "a rule as a text": (lambda: admin("create_acls", ["t"]), "bindings='t'.*AclBinding"),
    "a resource as a number": (lambda: admin("describe_configs", [5]), "resources=5.*topic names"),
    "a quota without end": (
        lambda: admin("alter_client_quotas", [({"user": "a"}, {"producer_byte_rate": 10**400})]),
        "changes: producer_byte_rate=1000.*give None",
    ),
    "a serde to write": (
        lambda: ProducerConfig(value_serializer=cast("Any", JSON)),
        "value_serializer='Serde': must be its function, as value_serializer=X.serialize",
    ),
    "a serde to read": (
        lambda: ConsumerConfig(key_deserializer=cast("Any", JSON)),
        "key_deserializer='Serde': must be its function, as key_deserializer=X.deserialize",
    ),
    "smallest": (lambda: ConsumerConfig(auto_offset_reset="smallest"), "write 'earliest'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_says_what_to_write(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ConfigError) as raised:
        call()
    assert re.search(message, str(raised.value)), str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer, Admin, AsyncAdmin])
def test_settings_without_a_name_are_refused(kind: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match="config=") as raised:
        kind(SETTINGS)
    assert "secret" not in str(raised.value)


def test_what_is_right_is_taken() -> None:
    assert arguments.partition_list([("t", 0), PART]) == [PART, PART]
    assert arguments.partition_list({PART: 1}) == [PART]
    told = OffsetAndMetadata(3)
    assert arguments.offsets_by_partition({PART: 3}) == {PART: told}
    assert arguments.offsets_by_partition({("t", 0): told}) == {PART: told}
    assert arguments.times_by_partition({PART: 5}) == {PART: 5}
    arguments.check_group_metadata(ConsumerGroupMetadata("g"))
    assert arguments.limit_of(None, 7) == 7
    assert arguments.limit_of(0, 7) == 0
    assert arguments.topic_list("a") == arguments.topic_list(("a",)) == ["a"]
    assert NewTopic("t", 3, configs={"a": "b"}) == ("t", 3, -1, {"a": "b"})
    assert NewTopic("t")._replace(partitions=2).partitions == 2
    check_topic_name("t")
