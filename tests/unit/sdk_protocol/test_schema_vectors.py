"""Goal: Apache Kafka's own Java classes read and write the same messages as we do.

Method: golden bytes that Kafka 4.4.0 wrote (`tests/vectors/README.md` says how), with each field
under the name and with the value that Kafka prints; we decode, compare every field, and encode.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from uuid import UUID

import pytest

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.schema import Field, Message

FILE = Path(__file__).parents[2] / "vectors" / "kafka_messages.jsonl"
VECTORS = [json.loads(line) for line in FILE.read_text().splitlines()]
RENAMED_SINCE = {"generationIdOrMemberEpoch": "generationId"}
"""Names of fields that changed after the release whose names we use."""
TYPES = {message_type.__name__: message_type for entry in API.values() for message_type in entry}


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def assert_equal_to_json(message: Message, printed: dict[str, object], version: int) -> None:
    fields = type(message).fields()
    names = {plain(name): name for name in fields}
    told = {}
    for name, value in printed.items():
        known = plain(name) if plain(name) in names else plain(RENAMED_SINCE[name])
        told[names[known]] = value
    for name, field in fields.items():
        value = getattr(message, name)
        if not field.is_present(version) or (field.tag is not None and value == field.default):
            assert name not in told
            continue
        assert_value(field, value, told[name], version)


def assert_value(field: Field, value: object, printed: object, version: int) -> None:
    if value is None:
        assert printed is None
    elif field.kind == "array":
        assert isinstance(value, list)
        assert isinstance(printed, list)
        assert field.element is not None
        for item, printed_item in zip(value, printed, strict=True):
            assert_value(field.element, item, printed_item, version)
    elif isinstance(value, Message):
        assert isinstance(printed, dict)
        assert_equal_to_json(value, printed, version)
    elif isinstance(value, UUID):
        assert printed == base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    elif isinstance(value, bytes):
        assert isinstance(printed, str)
        assert base64.b64decode(printed) == value
    elif field.kind != "records":  # Kafka does not print these; the bytes hold them.
        assert printed == value


@pytest.mark.parametrize(
    "vector", VECTORS, ids=[f"{vector['message']}-v{vector['version']}" for vector in VECTORS]
)
def test_kafkas_bytes_are_read_and_written(vector: dict[str, object]) -> None:
    version, data = vector["version"], bytes.fromhex(str(vector["bytes"]))
    assert isinstance(version, int)
    assert isinstance(vector["fields"], dict)
    message, end = TYPES[str(vector["message"])].decode(data, version)
    assert end == len(data)
    assert_equal_to_json(message, vector["fields"], version)
    assert message.encode(version) == data


def test_every_message_has_vectors_of_its_first_first_flexible_and_last_version() -> None:
    assert {(vector["message"], vector["version"]) for vector in VECTORS} == {
        (name, version)
        for name, message_type in TYPES.items()
        for version in (
            message_type.versions[0],
            message_type.flexible_from or message_type.versions[0],
            message_type.versions[1],
        )
    }
