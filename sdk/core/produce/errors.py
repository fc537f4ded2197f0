"""Errors of records that were not stored: of a batch, and of single records.

It decides on the text and on the record that an error belongs to; the sender decides whether a
batch is given up.
"""

from __future__ import annotations

from onceflow.sdk.core.produce.batch import ProducerBatch
from onceflow.sdk.core.produce.messages import PartitionResult
from onceflow.sdk.core.produce.transaction_manager import fenced_error
from onceflow.sdk.errors import (
    DeliveryTimeoutError,
    InvalidRecordError,
    KafkaError,
    UnknownTopicIdError,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for


def delivery_timeout(
    batch: ProducerBatch, limit_ms: int, trouble: KafkaError | None
) -> DeliveryTimeoutError:
    """Return the error of a batch after ``delivery_timeout_ms``.

    Args:
        batch: The batch.
        limit_ms: ``delivery_timeout_ms``.
        trouble: The last error of its deliveries, or None.
    """
    fate = "it may or may not be stored" if batch.attempts else "it was never sent"
    cause = f"; the last trouble was: {trouble}" if trouble is not None else ""
    return DeliveryTimeoutError(
        f"{batch.count} records for {batch.topic}-{batch.partition} were not acknowledged "
        f"within delivery_timeout_ms ({limit_ms}); {fate}{cause}"
    )


def topic_made_anew(topic: str) -> UnknownTopicIdError:
    """Return the error of a transaction with records in a topic that was deleted meanwhile.

    Args:
        topic: Topic name.
    """
    return UnknownTopicIdError(
        f"topic {topic!r} was deleted and created again during the transaction; the records sent "
        "to it before are lost"
    )


def explain_refusal(
    batch: ProducerBatch, result: PartitionResult, transactional_id: str | None
) -> tuple[KafkaError, dict[int, KafkaError] | None]:
    """Return the error of a refused batch, and more exact ones of its records (KIP-467).

    Args:
        batch: The batch.
        result: The broker's answer.
        transactional_id: Whose transaction it belonged to, None outside of one.
    """
    where = f"{batch.topic}-{batch.partition}"
    if result.error_code == ErrorCode.PRODUCER_FENCED:
        return fenced_error(transactional_id), None
    message = f"{where}: {result.error_message}" if result.error_message else where
    error: KafkaError = error_for(result.error_code, message)
    if not result.record_errors:
        return error, None
    others = InvalidRecordError(
        f"{where}: another record of the same batch was refused, so none of it was stored"
    )
    records: dict[int, KafkaError] = dict.fromkeys(range(batch.count), others)
    for index, text in result.record_errors:
        records[index] = error_for(
            result.error_code, f"{where}: {text or result.error_message or ''}"
        )
    # The batch's error breaks transactions and flushes, so it is that of the first faulty record.
    return records[result.record_errors[0][0]], records
