"""Goal: declarations say the same as Kafka's schemas about versions, null, tags and defaults.

Method: walk our classes beside the schemas that kafka-python carries, and compare every property of
every field, within the versions that we offer. This finds what a comparison of bytes cannot, such
as a field that may be null but was never tried so. Deliberate differences are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wire_foreign import kafka_python_fields, kafka_python_type
from wire_values import all_messages

from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import REQUIRED, Field, Message

Range = tuple[int, int]

OTHER_DEFAULTS = {
    # Fields that some versions lack: "nothing said" reads better as None than as an empty text.
    ("FindCoordinatorResponse", "error_message"),
    ("FindCoordinatorResponse", "coordinators.error_message"),
    ("CreateTopicsResponse", "topics.error_message"),
    ("DescribeQuorumResponse", "error_message"),
    ("DescribeQuorumResponse", "topics.partitions.error_message"),
    ("DeleteTopicsResponse", "responses.name"),
    ("DescribeConfigsResponse", "results.configs.documentation"),
    ("SaslAuthenticateResponse", "error_message"),
    ("MetadataRequest", "topics.name"),
    # Ids that are not there are -1, as elsewhere in Kafka.
    ("FindCoordinatorResponse", "node_id"),
    ("FindCoordinatorResponse", "port"),
    ("AddPartitionsToTxnRequest", "v3_and_below_producer_id"),
    ("AddPartitionsToTxnRequest", "v3_and_below_producer_epoch"),
}
OTHER_NULLS = {
    ("DescribeConfigsResponse", "results.configs.documentation"),  # Absent below version 3.
}

WITHOUT_SCHEMA = {
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
}
"""Messages that kafka-python does not carry; bytes of other encoders hold them."""

WITH_SCHEMA = [kind for kind in all_messages() if kind.__name__ not in WITHOUT_SCHEMA]


def within(range_: Range | None, limits: Range) -> Range | None:
    if range_ is None:
        return None
    first, last = max(range_[0], limits[0]), min(range_[1], limits[1])
    return (first, last) if first <= last else None


def fields_side_by_side(
    message_type: type[Message], schema: Any, versions: Range, path: str = ""
) -> Iterator[tuple[str, Field, Any, Range]]:
    ours = message_type.fields()
    theirs = kafka_python_fields(message_type, schema)
    there = {name for name, field in theirs.items() if within(field._versions, versions)}
    assert set(ours) == there
    for name, field in ours.items():
        yield path + name, field, theirs[name], versions
        struct_type = (field.element or field).struct_type
        present = within(field.versions, versions)
        if struct_type is not None and present is not None:
            yield from fields_side_by_side(struct_type, theirs[name], present, f"{path}{name}.")


def test_the_list_of_messages_without_schema_is_exact() -> None:
    found = {t.__name__ for t in all_messages() if kafka_python_type(t.__name__) is None}
    assert found == WITHOUT_SCHEMA


@pytest.mark.parametrize("message_type", WITH_SCHEMA, ids=lambda t: t.__name__)
def test_every_field_has_kafkas_properties(message_type: type[Message]) -> None:
    name = message_type.__name__
    schema = kafka_python_type(name)._struct
    for path, ours, theirs, versions in fields_side_by_side(
        message_type, schema, message_type.versions
    ):
        present = within(ours.versions, versions)
        assert ours.tag == theirs.tag, path
        assert present == within(theirs._versions, versions), path
        if (name, path) not in OTHER_NULLS:
            assert present is not None
            assert within(ours.nullable, present) == within(theirs._nullable_versions, present), (
                path
            )
        if present != versions:
            assert ours.ignorable == bool(theirs._ignorable), path
        lacking = ours.tag is not None or present != versions
        if lacking and theirs.type_str != "bitfield" and (name, path) not in OTHER_DEFAULTS:
            default = theirs.default
            if ours.kind == "uuid" and default is None:
                default = ZERO_UUID
            assert ours.absent_value == default, path


def test_defaults_are_of_the_right_type() -> None:
    for message_type in WITH_SCHEMA:
        for path, ours, _, _ in fields_side_by_side(
            message_type, kafka_python_type(message_type.__name__)._struct, message_type.versions
        ):
            if ours.default is REQUIRED or ours.default is None or ours.kind == "records":
                continue
            assert type(ours.default) is type(Field(ours.kind, "0+").absent_value), (
                f"{message_type.__name__}.{path}"
            )
