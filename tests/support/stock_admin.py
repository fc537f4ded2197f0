"""Every call of the published admin clients, with answers as plain values that two brokers can be
compared by.

A walk makes the calls of one client in order, on names that begin with a prefix, and notes each
answer or the error's kind. Names lose the prefix, and what differs between any two runs (ids,
times, addresses, texts for people) is left out. Where a change takes a moment to show, the walk
looks again until it does.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from aiokafka.protocol.struct import Struct
from differential_messages import KEPT_IN_THE_CLUSTER
from differential_messages import SETTINGS_LEFT_OUT as OTHERS_SETTINGS
from stock_clients import DEADLINE_S, wait_until
from stock_confluent import settings_for
from stock_scenarios import make_topic

Plain = Any

THEN = int(time.time() - 60) * 1000  # Retention takes what is older than a week.
RECORDS = 20
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ERROR = re.compile(r"\[Error -?\d+\] \w+")
LEFT_OUT = {
    "api_versions", "authorized_operations", "brokers", "cluster_id", "coordinator",
    "coordinator_epoch", "correlation_id", "documentation", "error_message", "error_msg",
    "finalized_epoch",
    "host", "id", "last_timestamp", "leader_epoch", "log_dir", "nodes", "port",
    "rack", "timeout", "throttle_time_ms", "timestamp", "topic_id", "total_bytes",
    "transaction_start_time_ms", "unknown_tagged_fields", "usable_bytes", "tags",
}  # fmt: skip
"""Addresses, times, ids, texts, and what a client adds of itself."""
SETTINGS_LEFT_OUT = (*OTHERS_SETTINGS, *KEPT_IN_THE_CLUSTER)


class Walk:
    """What one client was answered.

    Args:
        bootstrap: The broker.
        prefix: Begins every name.
    """

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.answers: dict[str, Plain] = {}

    def name(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def ask(self, what: str, call: Callable[[], object]) -> Plain:
        """Note what a call gives, or which error it raises."""
        answer = self._answer(call)
        self.answers[what] = answer
        return answer

    def ask_until(
        self, what: str, call: Callable[[], object], shown: Callable[[Plain], bool]
    ) -> Plain:
        """Note the first answer that shows what was changed before."""
        found: list[Plain] = []

        def looked() -> bool:
            found[:] = [self._answer(call)]
            return shown(found[0])

        wait_until(looked, f"{what}; {self.answers}")
        self.answers[what] = found[0]
        return found[0]

    def _answer(self, call: Callable[[], object]) -> Plain:
        try:
            return self.plain(call())
        except confluent_kafka.KafkaException as error:
            return f"raised {error.args[0].name()}"
        except Exception as error:  # noqa: BLE001 - whatever a client raises is its answer
            return f"raised {type(error).__name__}"

    def plain(self, value: object) -> Plain:
        """A client's value without what differs between any two runs."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, str):
            error = _ERROR.match(value)
            return error[0] if error else _IDS.sub("<id>", value.replace(self.prefix, ""))
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, type):
            return value.__name__
        if isinstance(value, Mapping):
            pairs = {self._key(key): each for key, each in value.items()}
            return {k: self._named(k, pairs[k]) for k in sorted(pairs) if self._is_kept(k)}
        if isinstance(value, list | set | frozenset) or type(value) is tuple:
            return sorted(map(self.plain, value), key=repr)
        return self._object(value)

    def _named(self, name: str, value: object) -> Plain:
        plain = self.plain(value)
        is_text = name == "error" and isinstance(plain, str) and not _ERROR.match(plain)
        return "<text>" if is_text and " " in plain else plain

    @staticmethod
    def _is_kept(name: str) -> bool:
        return name not in LEFT_OUT and not name.startswith(SETTINGS_LEFT_OUT)

    def _key(self, key: object) -> str:
        return (
            key
            if isinstance(key, str) and not key.startswith(self.prefix)
            else str(self.plain(key))
        )

    def _object(self, value: object) -> Plain:
        if isinstance(value, confluent_kafka.KafkaError):
            return value.name()
        if isinstance(value, Exception):
            return type(value).__name__
        if isinstance(value, confluent_kafka.TopicPartition):
            return self.plain(f"{value.topic}-{value.partition}@{value.offset}")
        if isinstance(value, Struct):
            return self.plain(value.to_object())
        if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
            return self.plain({k.lstrip("_"): v for k, v in vars(value).items()})
        if hasattr(value, "_asdict"):
            return self.plain(value._asdict())
        slots = [s for kind in type(value).__mro__ for s in getattr(kind, "__slots__", ())]
        return self.plain({s: getattr(value, s, None) for s in slots}) if slots else str(value)


def filled(walk: Walk, name: str) -> str:
    """A topic of two partitions with records a second apart in the first."""
    topic = walk.name(name)
    make_topic(walk.bootstrap, topic, 2)
    producer = confluent_kafka.Producer(settings_for(walk.bootstrap))
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=THEN + number * 1000)
    assert producer.flush(DEADLINE_S) == 0
    return topic


def open_transaction(walk: Walk, topic: str) -> confluent_kafka.Producer:
    """A producer in the middle of a transaction."""
    producer = confluent_kafka.Producer(
        settings_for(walk.bootstrap, transactional_id=walk.name("tx"))
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(DEADLINE_S) == 0
    return producer
