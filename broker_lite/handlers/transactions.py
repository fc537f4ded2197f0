"""Transactions: converts requests for the transaction coordinator.

These functions check that partitions exist, and choose the error code that a request's version
knows. ``coordinators.transactions.coordinator`` decides what is allowed. TxnOffsetCommit is in
``group_offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.state_log import TransactionMarker
from onceflow.broker_lite.coordinators.transactions.states import TransactionEntry
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.topics import OFFSETS_TOPIC, TopicError, check_topic_name
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

INIT_KNOWS_FENCED_FROM = 4
TXN_KNOWS_FENCED_FROM = 2
"""First versions of InitProducerId, and of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn, whose
senders know PRODUCER_FENCED; older ones know INVALID_PRODUCER_EPOCH (trap 41)."""

END_BUMPS_EPOCH_FROM = 5
"""First EndTxn version of transaction version 2 (KIP-890)."""

ADD_IN_BATCHES_FROM = 4
"""First AddPartitionsToTxn version with several transactions and verification."""

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


def _named_for(code: ErrorCode, api_version: int, knows_fenced_from: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and api_version < knows_fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


@handles(InitProducerIdRequest)
def init_producer_id(
    state: Services, context: RequestContext, request: InitProducerIdRequest, now_ms: int
) -> InitProducerIdResponse:
    """Give a producer its producer id and epoch."""
    grant = state.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        now_ms,
    )
    return InitProducerIdResponse(
        error_code=_named_for(grant.error_code, context.api_version, INIT_KNOWS_FENCED_FROM),
        producer_id=grant.producer_id,
        producer_epoch=grant.producer_epoch,
    )


@handles(AddPartitionsToTxnRequest)
def add_partitions_to_txn(
    state: Services, context: RequestContext, request: AddPartitionsToTxnRequest, now_ms: int
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, or check that they are in them."""
    if context.api_version < ADD_IN_BATCHES_FROM:
        codes = _add_to_one(
            state,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            _partitions_of(request.v3_and_below_topics),
            now_ms,
        )
        named = {
            partition: _named_for(code, context.api_version, TXN_KNOWS_FENCED_FROM)
            for partition, code in codes.items()
        }
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_topic_results(request.v3_and_below_topics, named)
        )
    results = []
    for transaction in request.transactions:
        partitions = _partitions_of(transaction.topics)
        identity = (transaction.producer_id, transaction.producer_epoch)
        if transaction.verify_only:
            codes = state.transactions.verify_partitions(
                transaction.transactional_id, *identity, partitions
            )
        else:
            codes = _add_to_one(state, transaction.transactional_id, *identity, partitions, now_ms)
        results.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_topic_results(transaction.topics, codes),
            )
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _add_to_one(
    state: Services,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
    now_ms: int,
) -> dict[TopicPartition, ErrorCode]:
    """Add partitions to one transaction: all, or none if one does not exist (trap 48)."""
    missing = {each for each in partitions if state.topics.partition(*each) is None}
    if missing:
        return {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }
    code = state.transactions.add_partitions(
        transactional_id, producer_id, producer_epoch, partitions, now_ms
    )
    return dict.fromkeys(partitions, code)


def _partitions_of(topics: Sequence[_Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _topic_results(
    topics: Sequence[_Topic], codes: Mapping[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


@handles(AddOffsetsToTxnRequest)
def add_offsets_to_txn(
    state: Services, context: RequestContext, request: AddOffsetsToTxnRequest, now_ms: int
) -> AddOffsetsToTxnResponse:
    """Add a group's partition of ``__consumer_offsets`` to a transaction."""
    partition = TopicPartition(OFFSETS_TOPIC, state.groups.partition_for(request.group_id))
    code = state.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        now_ms,
    )
    return AddOffsetsToTxnResponse(
        error_code=_named_for(code, context.api_version, TXN_KNOWS_FENCED_FROM)
    )


@handles(EndTxnRequest)
def end_txn(
    state: Services, context: RequestContext, request: EndTxnRequest, now_ms: int
) -> EndTxnResponse | Deferred[EndTxnResponse | None]:
    """Commit or abort; the answer follows when the markers are written."""
    grant = state.transactions.end_transaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        now_ms,
        transaction_version=2 if context.api_version >= END_BUMPS_EPOCH_FROM else 0,
    )
    response = EndTxnResponse(
        error_code=_named_for(grant.error_code, context.api_version, TXN_KNOWS_FENCED_FROM),
        producer_id=grant.producer_id,
        producer_epoch=grant.producer_epoch,
    )
    deferred: Deferred[EndTxnResponse | None] = Deferred()

    def tell(code: ErrorCode | None) -> None:
        if code is None:
            deferred.complete(None)
        elif code is ErrorCode.NONE:
            deferred.complete(response)
        else:
            deferred.complete(EndTxnResponse(error_code=code))

    marked_later = grant.error_code is ErrorCode.NONE and state.transactions.decided.when_marked(
        request.transactional_id, tell
    )
    return deferred if marked_later else response


@handles(WriteTxnMarkersRequest)
def write_txn_markers(
    state: Services, context: RequestContext, request: WriteTxnMarkersRequest, now_ms: int
) -> WriteTxnMarkersResponse:
    """Write markers, by which administrators end hanging transactions."""
    results = []
    for wanted in request.markers:
        marker = TransactionMarker(
            producer_id=wanted.producer_id,
            producer_epoch=wanted.producer_epoch,
            committed=wanted.transaction_result,
            coordinator_epoch=wanted.coordinator_epoch,
            transaction_version=wanted.transaction_version,
        )
        topics = [
            WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=state.transactions.markers.write(
                            TopicPartition(topic.name, index), marker, now_ms
                        ),
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in wanted.topics
        ]
        results.append(
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=wanted.producer_id, topics=topics
            )
        )
    return WriteTxnMarkersResponse(markers=results)


@handles(DescribeTransactionsRequest)
def describe_transactions(
    state: Services, context: RequestContext, request: DescribeTransactionsRequest, now_ms: int
) -> DescribeTransactionsResponse:
    """Describe the state of transactional ids."""
    states = []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        found = state.transactions.describe(transactional_id)
        if isinstance(found, ErrorCode):
            states.append(
                DescribeTransactionsResponse.TransactionState(
                    error_code=found,
                    transactional_id=transactional_id,
                    transaction_start_time_ms=0,
                    producer_id=0,
                    producer_epoch=0,
                )
            )
        else:
            states.append(_described(found))
    return DescribeTransactionsResponse(transaction_states=states)


def _described(entry: TransactionEntry) -> DescribeTransactionsResponse.TransactionState:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(entry.partitions):
        topics.setdefault(name, []).append(index)
    return DescribeTransactionsResponse.TransactionState(
        transactional_id=entry.transactional_id,
        transaction_state=entry.state.label,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=entry.start_ms,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )


@handles(ListTransactionsRequest)
def list_transactions(
    state: Services, context: RequestContext, request: ListTransactionsRequest, now_ms: int
) -> ListTransactionsResponse:
    """List the transactional ids that pass the filters."""
    listing = state.transactions.list_transactions(
        request.state_filters,
        request.producer_id_filters,
        request.duration_filter,
        request.transactional_id_pattern,
        now_ms,
    )
    return ListTransactionsResponse(
        error_code=listing.error_code,
        unknown_state_filters=list(listing.unknown_states),
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=entry.transactional_id,
                producer_id=entry.producer_id,
                transaction_state=entry.state.label,
            )
            for entry in listing.entries
        ],
    )


# --- producers of partitions


@handles(DescribeProducersRequest)
def describe_producers(
    state: Services, context: RequestContext, request: DescribeProducersRequest, now_ms: int
) -> DescribeProducersResponse:
    """Describe the producers of each partition, and their open transactions (KIP-664)."""
    topics = []
    for asked in request.topics:
        partitions = []
        for index in dict.fromkeys(asked.partition_indexes):
            log = state.topics.partition(asked.name, index)
            code, message = ErrorCode.NONE, None
            if log is None:
                code, message = _no_partition(asked.name, index)
            partitions.append(
                DescribeProducersResponse.PartitionResponse(
                    partition_index=index,
                    error_code=code,
                    error_message=message,
                    active_producers=[
                        DescribeProducersResponse.ProducerState(
                            producer_id=producer.producer_id,
                            producer_epoch=producer.producer_epoch,
                            last_sequence=producer.last_sequence,
                            last_timestamp=producer.last_timestamp_ms,
                            coordinator_epoch=producer.coordinator_epoch,
                            current_txn_start_offset=producer.current_transaction_start_offset,
                        )
                        for producer in (log.producers() if log is not None else ())
                    ],
                )
            )
        topics.append(
            DescribeProducersResponse.TopicResponse(name=asked.name, partitions=partitions)
        )
    return DescribeProducersResponse(topics=topics)


def _no_partition(name: str, index: int) -> tuple[ErrorCode, str | None]:
    try:
        check_topic_name(name)
    except TopicError as error:
        return error.code, error.message
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' has no partition {index}."
