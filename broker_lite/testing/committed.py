"""Sends records to a broker in tests, reads committed ones, and explains their differences.

It reads the broker's logs without a client and without waiting, and returns what a
``read_committed`` consumer would get: no records of open or aborted transactions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    iter_batch_headers,
)
from onceflow.sdk.protocol.records import decode_batch

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState
    from onceflow.broker_lite.log import PartitionLog
    from onceflow.broker_lite.testing.in_process import Broker
    from onceflow.sdk import Producer

READ_BYTES = 1 << 20
SHOWN_BYTES = 60
DIFFERENCES_MAX = 40


class Committed(NamedTuple):
    """One committed record.

    Attributes:
        value: Its value.
        key: Its key.
        partition: Its partition.
        offset: Its offset.
        headers: Names and values.
        timestamp_ms: Its time.
    """

    value: bytes | None
    key: bytes | None
    partition: int
    offset: int
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class CommittedRecords(list[Committed]):
    """Committed records of a topic, sorted by partition and offset.

    It equals a list of values, of pairs of key and value, or of whole records, whichever the list
    holds; ``in_any_order`` ignores the order.
    """

    def __init__(self, records: Iterable[Committed], *, ordered: bool = True) -> None:
        super().__init__(records)
        self.ordered = ordered

    @property
    def values(self) -> list[bytes | None]:
        """The values."""
        return [record.value for record in self]

    @property
    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        """Pairs of key and value."""
        return [(record.key, record.value) for record in self]

    @property
    def in_any_order(self) -> CommittedRecords:
        """The same records, compared in any order."""
        return CommittedRecords(self, ordered=False)

    def of_partition(self, partition: int) -> CommittedRecords:
        """Return the records of one partition."""
        return CommittedRecords(
            (record for record in self if record.partition == partition), ordered=self.ordered
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        mine, theirs = self._as(other), list(other)
        if not self.ordered:
            mine, theirs = sorted(mine, key=repr), sorted(theirs, key=repr)
        return mine == theirs

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # as for lists

    def _as(self, other: Sequence[object]) -> list[object]:
        first = other[0] if other else None
        if isinstance(first, Committed):
            return list(self)
        if isinstance(first, tuple) and len(first) == 2:
            return list(self.pairs)
        return list(self.values)


class KafkaRecords:
    """Sends records to topics of a broker, and reads the committed ones.

    Args:
        broker: The broker; it must be running.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stack = ExitStack()
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def put(
        self,
        topic: str,
        *records: bytes | tuple[bytes | None, bytes | None] | None,
        partition: int | None = None,
    ) -> None:
        """Send records and wait until they are acknowledged.

        Args:
            topic: Topic name.
            records: Values, or pairs of key and value.
            partition: Partition number; None lets the producer choose.
        """
        from onceflow.sdk import Producer

        if self._producer is None:
            self._producer = self._stack.enter_context(
                Producer(bootstrap_servers=self._broker.bootstrap_servers)
            )
        deliveries = []
        for record in records:
            key, value = record if isinstance(record, tuple) else (None, record)
            deliveries.append(self._producer.send(topic, value, key=key, partition=partition))
        self._producer.flush()
        for delivery in deliveries:
            delivery.result(timeout=0)

    def committed(self, topic: str) -> CommittedRecords:
        """Return what a reader of committed records sees in a topic now, from its start.

        Args:
            topic: Name of the topic.

        Raises:
            KeyError: The topic does not exist.
        """
        return self._broker.call(lambda state, now_ms: _committed(state, topic))

    def offsets(self, group_id: str, topic: str) -> dict[int, int]:
        """Return the offsets that a group has committed in a topic, by partition.

        Args:
            group_id: The group.
            topic: Name of the topic.
        """
        from onceflow.sdk import Admin

        with Admin(bootstrap_servers=self._broker.bootstrap_servers) as admin:
            found = admin.list_group_offsets(group_id)
        return {
            partition.partition: offset.offset
            for partition, offset in found.items()
            if partition.topic == topic and offset is not None
        }


def _committed(state: BrokerState, name: str) -> CommittedRecords:
    topic = state.topics.get(name)
    if topic is None:
        names = ", ".join(sorted(topic.name for topic in state.topics)) or "none"
        raise KeyError(f"unknown topic {name!r}; create it first (topics: {names})")
    found: list[Committed] = []
    for index, log in enumerate(topic.partitions):
        found.extend(_of_log(log, index))
    return CommittedRecords(found)


def _of_log(log: PartitionLog, partition: int) -> Iterable[Committed]:
    position, end = log.log_start_offset, log.last_stable_offset
    aborted: set[tuple[int, int]] = set()
    while position < end:
        result = log.read(
            position, READ_BYTES, isolation_level=IsolationLevel.READ_COMMITTED,
            minimum_one_batch=True,
        )  # fmt: skip
        data = bytes(result.records)
        aborted |= set(result.aborted_transactions or ())
        before = position
        for place, header in iter_batch_headers(data):
            position = header.next_offset
            if header.attributes & CONTROL_BIT:
                # The marker ends this producer's transaction, committed or aborted.
                aborted = {
                    each for each in aborted
                    if each[0] != header.producer_id or each[1] > header.base_offset
                }  # fmt: skip
                continue
            if header.attributes & TRANSACTIONAL_BIT and any(
                producer_id == header.producer_id and first <= header.base_offset
                for producer_id, first in aborted
            ):
                continue
            for record in decode_batch(data, place):
                yield Committed(
                    None if record.value is None else bytes(record.value),
                    None if record.key is None else bytes(record.key),
                    partition,
                    record.offset,
                    tuple((each[0], each[1]) for each in record.headers),
                    record.timestamp or 0,
                )
        if position == before:
            return


# --- differences


def explain(left: CommittedRecords, right: object) -> list[str] | None:
    """Return lines that show how committed records differ from the expected ones.

    Args:
        left: What is committed.
        right: What was expected; for anything but a list, None is returned.
    """
    if not isinstance(right, Sequence) or isinstance(right, str | bytes):
        return None
    mine, theirs = [_shown(each) for each in left._as(right)], [_shown(each) for each in right]
    if not left.ordered:
        mine, theirs = sorted(mine), sorted(theirs)
    order = "" if left.ordered else " (in any order)"
    lines = [f"{len(mine)} committed, {len(theirs)} expected{order}"]
    if left.ordered and sorted(mine) == sorted(theirs):
        lines.append("the same records in another order; - expected, + committed:")
    else:
        lines.append("- expected and missing, + committed and not expected:")
    differences = [
        line
        for line in difflib.unified_diff(theirs, mine, lineterm="", n=1)
        if not line.startswith(("---", "+++", "@@"))
    ]
    lines += differences[:DIFFERENCES_MAX]
    if len(differences) > DIFFERENCES_MAX:
        lines.append(f"... and {len(differences) - DIFFERENCES_MAX} lines more")
    return lines


def _shown(record: object) -> str:
    if isinstance(record, Committed):
        key, value = _shown(record.key), _shown(record.value)
        return f"{record.partition}@{record.offset} {key}: {value}"
    if isinstance(record, tuple):
        return ": ".join(map(_shown, record))
    if isinstance(record, bytes):
        text = repr(record)
        return (
            text
            if len(record) <= SHOWN_BYTES
            else f"{record[:SHOWN_BYTES]!r}... ({len(record)} bytes)"
        )
    return repr(record)
