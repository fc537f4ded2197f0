"""Requests from plain data, and answers as plain data that two brokers can be compared by.

A conversation names what only a broker can know (topic ids, producer ids, member ids) by symbols
such as ``$pid:p0``; `build` puts the values in. `Normal` takes what differs between any two runs
out of an answer: ids become the order in which they appeared, the present becomes "now", lists
without an order are sorted, and texts for people are left out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    check_crc,
    decode_batch,
    iter_batch_headers,
    parse_control_batch,
)
from onceflow.sdk.protocol.schema import Field, Message

Plain = Any
HOUR_MS = 3_600_000
SHOWN_MAX = 500
LEFT_OUT = {
    "throttle_time_ms",
    "error_message",
    "batch_index_error_message",
    "documentation",
    "host",
    "port",
    "cluster_id",
    "brokers",
    "coordinator_epoch",
    "heartbeat_interval_ms",
    "log_dir",
    "total_bytes",
    "usable_bytes",
}
TIMES = {
    "timestamp",
    "last_timestamp",
    "log_append_time_ms",
    "transaction_start_time_ms",
}
SETTINGS_LEFT_OUT = (
    "remote.",
    "local.retention",
    "errors.deadletterqueue",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "preallocate",
    "share.",
    "streams.",
)
"""Settings of what our broker does not have (docs/kafka-differences.md)."""
KEPT_IN_THE_CLUSTER = ("unclean.leader.election.enable",)
NAMES = ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name")
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def build(
    message_type: type[Message], version: int, body: Plain, resolve: Callable[[Plain], Plain]
) -> Message:
    """A message of one version; what the version lacks is left out, what is not given is default.

    Args:
        message_type: Class of the message or struct.
        version: Version of the request.
        body: Values by the fields' names; may be symbolic.
        resolve: Gives the value of a symbol, and anything else as it is.
    """
    values: dict[str, Plain] = {}
    for name, field in message_type.fields().items():
        absent = field.absent_value
        values[name] = list(absent) if isinstance(absent, list) else absent
        if name in body and field.is_present(version):
            value = _built(field, version, body[name], resolve)
            if value is not None or field.is_nullable(version):
                values[name] = value
    return message_type(**values)


def _built(field: Field, version: int, value: Plain, resolve: Callable[[Plain], Plain]) -> Plain:
    value = resolve(value)
    if value is None:
        return None
    if field.kind == "array":
        assert field.element is not None
        return [_built(field.element, version, item, resolve) for item in value]
    if field.kind == "struct":
        assert field.struct_type is not None
        return build(field.struct_type, version, value, resolve)
    return value


class Normal:
    """What one run of a conversation knows of a broker's ids, so that answers lose them.

    Args:
        prefix: Begins every name of this conversation; lists that name others are cut down.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[object, str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, kind: str, value: object) -> None:
        """Give an id its place in the order of its kind; the second time changes nothing."""
        if value not in self._known:
            number = self._counts[kind] = self._counts.get(kind, -1) + 1
            self._known[value] = f"<{kind} {number}>"

    def answer(self, message: Message, version: int) -> Plain:
        """An answer without what differs between any two runs."""
        shown: dict[str, Plain] = {}
        for name, field in message.fields().items():
            if not field.is_present(version) or name in LEFT_OUT:
                continue
            value = self._field(name, getattr(message, name), version)
            if value is not None or field.is_nullable(version):
                shown[name] = value
        if shown.get("records") and shown.get("aborted_transactions"):
            # Kafka's index is coarse: its list may go beyond what it returned.
            last = shown["records"][-1]
            end = last["base_offset"] + last.get("last_offset_delta", 0)
            listed = shown["aborted_transactions"]
            shown["aborted_transactions"] = [one for one in listed if one["first_offset"] <= end]
        if not shown.get("records") and not shown.get("aborted_transactions"):
            # Null or empty depends on where Kafka cuts the records of the partition before.
            shown.pop("aborted_transactions", None)
        return shown

    def _field(self, name: str, value: Plain, version: int) -> Plain:
        if name == "records":
            return None if value is None else self._batches(bytes(value))
        if isinstance(value, Message):
            return self.answer(value, version)
        if isinstance(value, list):
            items = [self._field(name, item, version) for item in value]
            if name == "responses":
                items = _by_topic(items)
            return sorted((item for item in items if self._is_ours(item)), key=_order)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).hex()
        if isinstance(value, UUID):
            return "<zero>" if value == ZERO_UUID else self._known.get(value, "<unknown id>")
        if isinstance(value, str):
            return self._known.get(value) or _UUID_TEXT.sub("<uuid>", value)
        if name == "session_id":
            return "<session>" if value > 0 else value
        if name == "producer_id":
            return self._known.get(("pid", value), value)
        return self._time(value) if name in TIMES else value

    def _is_ours(self, item: Plain) -> bool:
        if not isinstance(item, dict):
            return True
        if "is_sensitive" in item and item["name"].startswith(SETTINGS_LEFT_OUT):
            return False
        if "is_sensitive" in item and item["name"] in KEPT_IN_THE_CLUSTER:
            _as_default(item)
        name = next((item[key] for key in NAMES if isinstance(item.get(key), str)), None)
        if item.get("topic") == "__consumer_offsets":
            item["partitions"] = "<as many as there are>"
        marks = ("protocol_type", "transaction_state", "is_internal", "resource_type")
        listed = any(mark in item for mark in marks)
        return name is None or not listed or name.startswith(self._prefix) or not name

    def _time(self, value: int) -> Plain:
        return "<now>" if abs(time.time() * 1000 - value) < HOUR_MS else value

    def _batches(self, data: bytes) -> Plain:
        batches = []
        try:
            for position, header in iter_batch_headers(data):
                if position + header.size_bytes > len(data):
                    break  # Apache Kafka cuts the last batch off anywhere.
                check_crc(data, position, header)
                shown: dict[str, Plain] = header._asdict()
                for name in ("batch_length", "crc"):
                    del shown[name]
                for name in ("base_timestamp", "max_timestamp"):
                    shown[name] = self._time(shown[name])
                pid = header.producer_id
                shown["producer_id"] = self._known.get(("pid", pid), pid)
                if header.is_control:
                    shown["control"] = parse_control_batch(data, position).type
                else:
                    shown["data"] = [
                        (
                            record.offset,
                            self._time(record.timestamp),
                            _text(record.key),
                            _text(record.value),
                            len(record.headers),
                        )
                        for record in decode_batch(data, position, header=header)
                    ]
                batches.append(shown)
        except InvalidBatchError as error:
            if "cut" not in str(error) and "short" not in str(error) and not batches:
                batches.append({"invalid": type(error).__name__})
        return batches


def _by_topic(items: list[Plain]) -> list[Plain]:
    """Fetch answers with a topic's partitions together; Kafka repeats a topic between others."""
    merged: dict[object, Plain] = {}
    for item in items:
        name = item.get("topic_id") or item.get("topic")
        if "partitions" in item and name in merged:
            merged[name]["partitions"] += item["partitions"]
        else:
            merged[name or len(merged)] = item
    for item in merged.values():
        if "partitions" in item:
            item["partitions"].sort(key=_order)
    return list(merged.values())


def _as_default(setting: dict[str, Plain]) -> None:
    """KRaft writes this broker setting into its own log, so that its source is another."""
    if setting["config_source"] == 3:
        setting["config_source"] = 5
    setting.pop("synonyms", None)


def _text(value: bytes | memoryview | None) -> str | None:
    return None if value is None else bytes(value)[:40].decode("latin-1")


def _order(item: Plain) -> str:
    if isinstance(item, Mapping):
        keys = ("name", "topic", "topic_id", "partition_index", "partition", "index", "group_id")
        return json.dumps([[str(item.get(k)) for k in keys], item], sort_keys=True, default=str)
    return json.dumps(item, sort_keys=True, default=str)


def first_difference(left: Plain, right: Plain, path: str = "") -> str | None:
    """Where two plain values part, with both sides; None when they are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            found = first_difference(
                left.get(key, "<absent>"), right.get(key, "<absent>"), f"{path}.{key}"
            )
            if found:
                return found
        return None
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        found_all = (first_difference(a, b, f"{path}[{i}]") for i, (a, b) in pairs)
        return next((found for found in found_all if found), None)
    if left == right:
        return None
    if isinstance(left, list) and isinstance(right, list):
        left, right = (
            [item for item in left if item not in right],
            [item for item in right if item not in left],
        )
    return f"{path}: Apache Kafka {_short(left)}, onceflow {_short(right)}"


def _short(value: Plain) -> str:
    text = repr(value)
    return text if len(text) < SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
