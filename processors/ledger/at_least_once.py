"""At-least-once: outputs are acknowledged, then the offsets are committed, without a transaction.

A session over these clients follows the same rules for units, ownership, membership, and commits
without an answer. Only the end of a unit differs. An abort takes nothing back, so a unit that is
done again writes its outputs twice. No producer is fenced. State changes are in the changelog
before their offsets are committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from onceflow.sdk import ProducerConfig
from onceflow.sdk.errors import (
    CommitFailedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    RequestTimedOutError,
    StaleMemberEpochError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailedError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from onceflow.sdk.model.admin import TransactionListing
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    Headers,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.transactions import SessionConfig
from onceflow.transactions.colour import Maybe, settle

logger: logging.Logger = logging.getLogger("onceflow.processors")

ABORT_WAIT_MS = 30_000
"""How long the records of an aborted unit are waited for; after that a new producer follows."""

_REFUSED = (
    CommitFailedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
"""After these errors the offsets are certainly not committed; after others, read them to know."""


class AtLeastOnceConfig(SessionConfig[bytes | None, bytes | None], in_kafka=False, kind="session"):
    """Settings of a session whose producer has no transactions."""

    @cached_property
    def producer(self) -> ProducerConfig:
        """The producer's settings, without a transactional id.

        Raises:
            ConfigError: The producer would refuse them.
        """
        found = dict(self.client.values("producer"))
        found.pop("transaction_timeout_ms", None)
        return ProducerConfig.build({"max_block_ms": self.operation_timeout_ms, **found})


class TransactionAdmin(Protocol):
    """Sees and ends transactions."""

    def list_transactions(
        self, *, states: Sequence[str] = ()
    ) -> Maybe[Sequence[TransactionListing]]: ...
    def fence_producers(self, transactional_ids: Iterable[str]) -> Maybe[object]: ...


async def end_predecessor(admin: TransactionAdmin, transactional_id: str) -> None:
    """Abort the transaction that an earlier exactly-once worker left open, if there is one.

    Otherwise it stays open until its timeout, and read_committed consumers wait at it.
    The transactions are listed, because a question to the coordinator would make its topic.

    Args:
        admin: Asks the brokers.
        transactional_id: Transactional id of the earlier worker.

    Raises:
        KafkaError: The brokers do not answer.
    """
    try:
        ongoing = await settle(admin.list_transactions(states=["Ongoing"]))
    except UnsupportedVersionError as error:
        logger.info("open transactions of an earlier worker are not looked for: %s", error)
        return
    if all(each.transactional_id != transactional_id for each in ongoing):
        return
    try:
        await settle(admin.fence_producers([transactional_id]))
    except TransactionalIdAuthorizationFailedError as error:
        logger.warning(
            "an earlier exactly-once worker left transaction %r open, and this worker may not end "
            "it (%s): committed readers wait until its timeout; allow WRITE on the transactional "
            "id, or end it with: onceflow txns fence %s",
            transactional_id,
            error,
            transactional_id,
        )
    else:
        logger.info("aborted transaction %r, which an earlier worker left open", transactional_id)


class PlainProducer(Protocol):
    """An idempotent producer without transactions, of either face."""

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> object: ...
    def flush(self, timeout_ms: int | None = None) -> Maybe[None]: ...
    def close(self, timeout_ms: int = ...) -> Maybe[None]: ...


class CommittingConsumer(Protocol):
    """A consumer that commits offsets."""

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Maybe[None]: ...


class AtLeastOnceProducer:
    """An idempotent producer with the interface of a session's transactional one.

    Args:
        producer: Sends records.
        consumer: Returns the session's present consumer, which commits.
    """

    def __init__(self, producer: PlainProducer, consumer: Callable[[], CommittingConsumer]) -> None:
        self._producer = producer
        self._consumer = consumer
        self._offsets: Mapping[TopicPartition, OffsetAndMetadata | int] = {}

    @property
    def identity(self) -> ProducerIdentity | None:
        """None: there are no transactions."""
        return None

    def begin_transaction(self) -> None:
        """Forget the offsets of the unit before."""
        self._offsets = {}

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object:
        """Send a record."""
        return self._producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> object:
        """Send a run of records."""
        return self._producer.send_many(
            topic, values, keys, partition=partition, timestamps_ms=timestamps_ms
        )

    def flush(self, timeout_ms: int | None = None) -> Maybe[None]:
        """Wait for all acknowledgements."""
        return self._producer.flush(timeout_ms)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        """Keep the offsets for the end of the unit, as no step may fail after their commit."""
        self._offsets = offsets

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Commit the offsets, after all acknowledgements.

        Raises:
            TransactionAbortableError: The group refuses them; the unit is done again.
            KafkaError: It is unknown whether they are committed.
        """
        offsets, self._offsets = self._offsets, {}
        if not offsets:
            return
        try:
            await settle(self._consumer().commit(offsets, timeout_ms=timeout_ms))
        except _REFUSED as error:
            raise TransactionAbortableError(f"the offsets were refused: {error}") from error

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Forget the offsets, and wait for the answers to the unit's records; stored ones stay.

        Otherwise a record that fails later would count as a failure of the next unit.

        Args:
            timeout_ms: Limit, half a minute by default.

        Raises:
            RequestTimedOutError: Records have no answer yet; the session must make a new producer.
        """
        self._offsets = {}
        try:
            limit_ms = ABORT_WAIT_MS if timeout_ms is None else timeout_ms
            await settle(self._producer.flush(timeout_ms=limit_ms))
        except RequestTimedOutError:
            raise
        except KafkaError as error:
            logger.debug("of a unit that is done again: %s", error)

    def close(self, timeout_ms: int = 0) -> Maybe[None]:
        """Close the producer."""
        return self._producer.close(timeout_ms)
