"""The entries of the transaction coordinator: ``__transaction_state``, cached by transactional id.

Each change is written to the log before it is made in the cache, so that the cache is never ahead
of the log that a restart reads. Records are in Kafka's layout: version 0, or the flexible version 1
if the feature ``transaction.version`` is at least 1. ``states`` decides which changes are legal.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.coordinators.state_log import KeyValue, StateLog, StoredRecord
from onceflow.broker_lite.coordinators.transactions.states import TransactionEntry, TransactionState
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from onceflow.sdk.protocol.internal_topics import (
    VERSION_SIZE,
    TransactionLogKey,
    TransactionLogValue,
    encode_with_version,
    read_version,
)

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.transaction")

_KEY_VERSION = 0


def encode_key(transactional_id: str) -> bytes:
    """Return the key of the records of one transactional id."""
    return encode_with_version(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def decode_key(data: bytes) -> str | None:
    """Return the transactional id of a key; None for an unknown record type."""
    if read_version(data) != _KEY_VERSION:
        return None
    key, _ = TransactionLogKey.decode(data, _KEY_VERSION, VERSION_SIZE)
    return key.transactional_id


def encode_value(entry: TransactionEntry, value_version: int) -> bytes:
    """Return the value of a record.

    Args:
        entry: The entry to store.
        value_version: 0, or 1 for the flexible layout with the fields of KIP-890.
    """
    partitions: list[TransactionLogValue.PartitionsSchema] | None = None
    if entry.state is not TransactionState.EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(entry.partitions):
            by_topic.setdefault(topic, []).append(partition)
        partitions = [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic.items()
        ]
    value = TransactionLogValue(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_status=int(entry.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=entry.last_update_ms,
        transaction_start_timestamp_ms=entry.start_ms,
    )
    if value_version >= 1:
        value.previous_producer_id = entry.previous_producer_id
        value.next_producer_id = entry.next_producer_id
        value.client_transaction_version = entry.client_transaction_version
    return encode_with_version(value, value_version)


def decode_value(transactional_id: str, data: bytes) -> TransactionEntry:
    """Return the entry in a record's value.

    Raises:
        RemoteProtocolError: The bytes are not a transaction log value of a known version.
    """
    version = read_version(data)
    lowest, highest = TransactionLogValue.versions
    if not lowest <= version <= highest:
        raise RemoteProtocolError(f"transaction log value has unknown version {version}")
    value, _ = TransactionLogValue.decode(data, version, VERSION_SIZE)
    return TransactionEntry(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        client_transaction_version=value.client_transaction_version,
    )


class TransactionLog:
    """Entries by transactional id, always equal to ``__transaction_state``."""

    __slots__ = ("_entries", "_log", "_value_version")

    def __init__(self, log: StateLog, transaction_version: int) -> None:
        self._log = log
        self._value_version = 1 if transaction_version >= 1 else 0
        self._entries: dict[str, TransactionEntry] = {}

    def set_transaction_version(self, level: int) -> None:
        """Write records in the layout of another level of the feature."""
        self._value_version = 1 if level >= 1 else 0

    def __iter__(self) -> Iterator[TransactionEntry]:
        return iter(list(self._entries.values()))

    def get(self, transactional_id: str) -> TransactionEntry | None:
        """Return the current entry; None if the id is unknown."""
        return self._entries.get(transactional_id)

    def partition_for(self, transactional_id: str) -> int:
        """Partition of ``__transaction_state`` that the id belongs to."""
        return coordinator_partition(transactional_id, self._log.partition_count)

    def coordinator_epoch(self, transactional_id: str) -> int:
        """Coordinator epoch for markers of the id."""
        return self._log.leader_epoch(self.partition_for(transactional_id))

    def raise_coordinator_epoch(self, transactional_id: str, known_epoch: int) -> None:
        """Let later markers of the id carry an epoch above one that some log knows."""
        self._log.begin_epoch_above(self.partition_for(transactional_id), known_epoch)

    def put(self, entry: TransactionEntry, now_ms: int) -> None:
        """Write ``entry``, then make it the current one.

        Raises:
            StateLogError: Nothing was written; the old entry stays.
        """
        transactional_id = entry.transactional_id
        # After a downgrade, open transactions of version 2 still need the fields of version 1.
        version = max(self._value_version, int(entry.client_transaction_version > 0))
        record = KeyValue(encode_key(transactional_id), encode_value(entry, version))
        self._log.append(self.partition_for(transactional_id), [record], now_ms)
        self._entries[transactional_id] = entry

    def remove(self, transactional_id: str, now_ms: int) -> None:
        """Write a tombstone, then forget the id.

        Raises:
            StateLogError: Nothing was written; the entry stays.
        """
        record = KeyValue(encode_key(transactional_id), None)
        self._log.append(self.partition_for(transactional_id), [record], now_ms)
        self._entries.pop(transactional_id, None)

    def load(self, now_ms: int) -> int:
        """Read the topic into the cache; the last record of an id wins.

        Args:
            now_ms: Wall milliseconds.

        Returns:
            The largest producer id seen, -1 for none.
        """
        self._log.prepare(now_ms)
        self._entries.clear()
        largest = NO_PRODUCER_ID
        for partition in range(self._log.partition_count):
            # Decode one value per id, not one per record, so that a start takes less time.
            newest: dict[bytes, StoredRecord] = {}
            for batch in self._log.batches(partition):
                for record in batch.records:
                    newest[record.key] = record
            for record in newest.values():
                largest = max(largest, self._replay(partition, record))
        for name, entry in self._entries.items():
            if entry.start_ms > now_ms:  # The clock was set back: restart its timeout.
                self._entries[name] = dataclasses.replace(entry, start_ms=now_ms)
        return largest

    def _replay(self, partition: int, record: StoredRecord) -> int:
        """Apply the newest record of a key; return the largest producer id in it."""
        if record.value is None:
            return NO_PRODUCER_ID
        try:
            transactional_id = decode_key(record.key)
            if transactional_id is None:
                return NO_PRODUCER_ID
            entry = decode_value(transactional_id, record.value)
        except (RemoteProtocolError, ValueError) as error:
            logger.error(
                "__transaction_state-%d: record at %d is not readable: %s",
                partition,
                record.offset,
                error,
            )
            return NO_PRODUCER_ID
        self._entries[transactional_id] = entry
        return max(entry.producer_id, entry.next_producer_id)
