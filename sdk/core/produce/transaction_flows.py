"""A producer's requests to coordinators: identity, partitions, offsets, and the end.

Each is a flow that retries what may succeed later (KIP-360, KIP-447, KIP-588, KIP-890): after a
coordinator moved or while it loads, after a broken connection, and while the previous transaction's
markers are being written. The driver limits the time of a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from onceflow.sdk.core.flow import Coordinator, Flow, Forget, Sleep, ask
from onceflow.sdk.core.produce.transaction_manager import EndProgress, fenced_error
from onceflow.sdk.core.retry import (
    CONCURRENT_FIRST_MS,
    CONCURRENT_LONGEST_MS,
    Backoff,
    Recovery,
    recovery_for,
)
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ConcurrentTransactionsError,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    RemoteProtocolError,
    RequestTimedOutError,
)
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
    by_topic,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

T = TypeVar("T")

_MAYBE_WRITTEN = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Error codes with which the coordinator's log may hold the decision nevertheless: the write was
not confirmed in time, or the failure is unknown."""
CLIENT_ADD_PARTITIONS_MAX = 3
CLASSIC_END_MAX = 4
CLASSIC_OFFSETS_MAX = 4


def retrying(
    attempt: Callable[[], Flow[T]], coordinator: Coordinator | None, backoff: Backoff
) -> Flow[T]:
    """Repeat a flow as long as its failures are retriable.

    Args:
        attempt: Makes the flow of one try.
        coordinator: Its coordinator, which is looked up again if it seems to have moved.
        backoff: Waits between tries.

    Returns:
        The result of the successful try.

    Raises:
        KafkaError: The failure is final, or the driver's time ran out; then the last failure is
            named in the message.
    """
    failures = 0
    concurrent = Backoff(CONCURRENT_FIRST_MS, CONCURRENT_LONGEST_MS, backoff.random)
    while True:
        try:
            return (yield from attempt())
        except KafkaError as error:
            recovery = recovery_for(error, coordinator=coordinator is not None)
            if recovery is Recovery.NONE:
                raise
            failures += 1
            if (coordinator is not None and recovery is Recovery.FIND_COORDINATOR) or (
                isinstance(error, RequestTimedOutError) and coordinator is not None
            ):
                yield Forget(coordinator)
            waits = concurrent if isinstance(error, ConcurrentTransactionsError) else backoff
            last = error
        try:
            yield Sleep(waits.delay_ms(failures))
        except RequestTimedOutError as error:
            raise RequestTimedOutError(f"{error.message}; the last answer was: {last}") from last


def init_producer_id(
    transactional_id: str | None,
    transaction_timeout_ms: int,
    backoff: Backoff,
    *,
    current: ProducerIdentity | None = None,
) -> Flow[tuple[int, int]]:
    """Get a producer id and epoch.

    With a transactional id this fences older producers of the id and aborts their transaction.

    Args:
        transactional_id: The transactional id, None for an idempotent producer.
        transaction_timeout_ms: After which time the coordinator aborts an open transaction.
        backoff: Waits between tries.
        current: The identity whose epoch to raise (KIP-360); fails if a newer producer has the id.

    Returns:
        Producer id and epoch.

    Raises:
        ProducerFencedError: ``current`` was replaced.
        RemoteProtocolError: The answer holds no identity.
        KafkaError: The coordinator refuses.
    """
    target = _transaction_coordinator(transactional_id)

    def attempt() -> Flow[tuple[int, int]]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
        )
        if current is not None:
            request.producer_id = current.producer_id
            request.producer_epoch = current.producer_epoch
        reply = yield from ask(request, InitProducerIdResponse, target)
        if reply.error_code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise fenced_error(transactional_id)
        _check(reply.error_code)
        if reply.producer_id < 0 or reply.producer_epoch < 0:
            raise RemoteProtocolError(
                f"the broker gave producer id {reply.producer_id} and epoch "
                f"{reply.producer_epoch}; both begin at 0"
            )
        return reply.producer_id, reply.producer_epoch

    return (yield from retrying(attempt, target, backoff))


def add_partitions(
    identity: ProducerIdentity, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Flow[None]:
    """Add partitions to the transaction (protocol version 1).

    Args:
        identity: Who produces.
        partitions: The partitions.
        backoff: Waits between tries.

    Raises:
        KafkaError: The coordinator refuses a partition; its error is raised, not the ones of
            partitions that were not attempted because of it.
    """
    target = _transaction_coordinator(identity.transactional_id)
    topics = by_topic(partitions)

    def attempt() -> Flow[None]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in topics.items()
            ],
        )
        reply = yield from ask(
            request, AddPartitionsToTxnResponse, target, max_version=CLIENT_ADD_PARTITIONS_MAX
        )
        codes = {
            result.partition_error_code
            for topic in reply.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        _check_producer_codes(codes, identity)

    yield from retrying(attempt, target, backoff)


def commit_offsets(
    identity: ProducerIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroupMetadata,
    backoff: Backoff,
    *,
    protocol_version: int,
) -> Flow[None]:
    """Add a group's offsets to the transaction (KIP-447).

    Args:
        identity: Who produces.
        offsets: Next offset to read by partition.
        group: The member that read them; the group's coordinator refuses a stale one.
        backoff: Waits between tries.
        protocol_version: 1 adds the group to the transaction first.

    Raises:
        KafkaError: A coordinator refuses.
    """
    if protocol_version == 1:
        yield from _announce_group(identity, group.group_id, backoff)
    target = Coordinator(group.group_id, CoordinatorType.GROUP)
    left = dict(offsets)

    def attempt() -> Flow[None]:
        request = _offsets_request(identity, left, group)
        reply = yield from ask(
            request,
            TxnOffsetCommitResponse,
            target,
            max_version=CLASSIC_OFFSETS_MAX if protocol_version == 1 else None,
        )
        codes = set()
        for topic in reply.topics:
            for result in topic.partitions:
                codes.add(result.error_code)
                if result.error_code == ErrorCode.NONE:
                    left.pop(TopicPartition(topic.name, result.partition_index), None)
        _check_producer_codes(codes, identity)

    yield from retrying(attempt, target, backoff)


def end_transaction(
    identity: ProducerIdentity,
    backoff: Backoff,
    *,
    committed: bool,
    protocol_version: int,
    progress: EndProgress | None = None,
) -> Flow[tuple[int, int]]:
    """Commit or abort; after a lost answer, repeat the request with the same identity.

    Args:
        identity: Who produces.
        backoff: Waits between tries.
        committed: Whether to commit.
        protocol_version: With 2, the answer has the identity for the next transaction.
        progress: Notes what is known; one object for all attempts of one end.

    Returns:
        Producer id and epoch for the next transaction, -1 to keep the old.

    Raises:
        KafkaError: The coordinator refuses, or the driver's time ran out.
    """
    target = _transaction_coordinator(identity.transactional_id)
    known = EndProgress() if progress is None else progress

    def attempt() -> Flow[tuple[int, int]]:
        request = EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=committed,
        )
        arrived_before = known.may_have_arrived
        # True until there is an answer, since a cancelled caller ends this flow without one.
        known.may_have_arrived = True
        try:
            reply = yield from ask(
                request,
                EndTxnResponse,
                target,
                max_version=CLASSIC_END_MAX if protocol_version == 1 else None,
            )
        except BrokerConnectionError as error:
            if not error.may_have_arrived:
                known.may_have_arrived = arrived_before
            raise
        if reply.error_code not in _MAYBE_WRITTEN:
            known.may_have_arrived = arrived_before
        _check_producer_codes({reply.error_code}, identity)
        return reply.producer_id, reply.producer_epoch

    return (yield from retrying(attempt, target, backoff))


def check_group(group: ConsumerGroupMetadata) -> None:
    """Refuse group metadata that would let a zombie's offsets pass.

    A consumer outside of group management has generation -1 and an empty member id, which is
    accepted. Only one of the two means that the membership was lost.

    Args:
        group: The given metadata.

    Raises:
        IllegalStateError: Member id and generation do not belong together.
    """
    if not group.group_id:
        raise IllegalStateError("group_metadata has no group_id")
    if bool(group.member_id) != (group.generation_id >= 0):
        raise IllegalStateError(
            f"the metadata of group {group.group_id!r} is incomplete (generation "
            f"{group.generation_id}, member {group.member_id!r}): the consumer is no longer a "
            "member; abort, and take new metadata with the next records"
        )


def _announce_group(identity: ProducerIdentity, group_id: str, backoff: Backoff) -> Flow[None]:
    target = _transaction_coordinator(identity.transactional_id)

    def attempt() -> Flow[None]:
        request = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group_id,
        )
        reply = yield from ask(request, AddOffsetsToTxnResponse, target)
        _check_producer_codes({reply.error_code}, identity)

    yield from retrying(attempt, target, backoff)


def _offsets_request(
    identity: ProducerIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroupMetadata,
) -> TxnOffsetCommitRequest:
    message = TxnOffsetCommitRequest
    topics = by_topic(
        (
            topic,
            message.TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            ),
        )
        for (topic, index), offset in offsets.items()
    )
    return message(
        transactional_id=identity.transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            message.TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _transaction_coordinator(transactional_id: str | None) -> Coordinator | None:
    if transactional_id is None:
        return None
    return Coordinator(transactional_id, CoordinatorType.TRANSACTION)


def _check(code: int) -> None:
    if code:
        raise error_for(code)


def _check_producer_codes(codes: Iterable[int], identity: ProducerIdentity) -> None:
    """Raise the most important error of one answer."""
    found = {code for code in codes if code}
    if not found:
        return
    if ErrorCode.PRODUCER_FENCED in found:
        raise fenced_error(identity.transactional_id)
    causes = found - {ErrorCode.OPERATION_NOT_ATTEMPTED} or found
    errors: list[KafkaError] = [error_for(code) for code in sorted(causes)]
    final = [e for e in errors if recovery_for(e) is Recovery.NONE]
    raise (final or errors)[0]


FENCED = (ProducerFencedError, InvalidProducerEpochError)
