"""What an admin client asks about producers and transactions, and which of them hang (KIP-664).

As in ``topics``, every flow answers with an outcome for each item. A transaction hangs in a
partition if it is open there and its coordinator will never end it, as after a client that
produced without telling the coordinator. Readers of committed records wait at it for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from onceflow.sdk.core.admin.topics import Outcomes, fill_missing, outcome
from onceflow.sdk.core.flow import Coordinator, Flow, ask
from onceflow.sdk.core.produce.transaction_flows import init_producer_id
from onceflow.sdk.core.retry import Backoff
from onceflow.sdk.model.admin import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from onceflow.sdk.model.partitions import ProducerIdentity, TopicPartition, by_topic
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for


def fence_producer(
    transactional_id: str, timeout_ms: int, backoff: Backoff
) -> Flow[Outcomes[str, ProducerIdentity]]:
    """Take a transactional id, which fences its producer and ends what that left open."""
    producer_id, epoch = yield from init_producer_id(transactional_id, timeout_ms, backoff)
    return {transactional_id: ProducerIdentity(transactional_id, producer_id, epoch)}


def describe_producers(
    node_id: int, partitions: Collection[TopicPartition]
) -> Flow[Outcomes[TopicPartition, list[ProducerState]]]:
    """The producers that one leader knows in some of its partitions."""
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    )
    reply = yield from ask(request, DescribeProducersResponse, node_id)
    found: Outcomes[TopicPartition, list[ProducerState]] = {}
    for topic_answer in reply.topics:
        for answer in topic_answer.partitions:
            where = TopicPartition(topic_answer.name, answer.partition_index)
            states = [
                ProducerState(
                    state.producer_id,
                    state.producer_epoch,
                    state.last_sequence,
                    state.last_timestamp,
                    state.coordinator_epoch,
                    None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
                )
                for state in answer.active_producers
            ]
            found[where] = outcome(answer.error_code, answer.error_message, where, states)
    return fill_missing(partitions, found)


def describe_transaction(transactional_id: str) -> Flow[Outcomes[str, TransactionDescription]]:
    """State of one transactional id."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    coordinator = Coordinator(transactional_id, CoordinatorType.TRANSACTION)
    reply = yield from ask(request, DescribeTransactionsResponse, coordinator)
    found: Outcomes[str, TransactionDescription] = {}
    for state in reply.transaction_states:
        started_ms = state.transaction_start_time_ms
        description = TransactionDescription(
            state.transactional_id,
            state.transaction_state,
            state.producer_id,
            state.producer_epoch,
            state.transaction_timeout_ms,
            None if started_ms < 0 else started_ms,
            frozenset(
                TopicPartition(topic.topic, partition)
                for topic in state.topics
                for partition in topic.partitions
            ),
        )
        name = f"transactional id {state.transactional_id!r}"
        found[state.transactional_id] = outcome(state.error_code, None, name, description)
    return fill_missing([transactional_id], found)


def list_transactions(
    node_id: int, states: Collection[str], producer_ids: Collection[int]
) -> Flow[list[TransactionListing]]:
    """The transactional ids that one broker coordinates.

    Args:
        node_id: The broker.
        states: Only those in these states; empty for all.
        producer_ids: Only those of these producers; empty for all.

    Raises:
        BrokerError: The broker refused.
    """
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids)
    )
    reply = yield from ask(request, ListTransactionsResponse, node_id)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, "ListTransactions")
    return [
        TransactionListing(s.transactional_id, s.producer_id, s.transaction_state)
        for s in reply.transaction_states
    ]


def write_abort_marker(
    node_id: int, partition: TopicPartition, producer: ProducerState
) -> Flow[Outcomes[TopicPartition, None]]:
    """Have a leader end a producer's open transaction with an abort marker.

    It goes past the transaction coordinator, and is meant for transactions that the coordinator
    does not know any more (KIP-664).
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                name=partition.topic, partition_indexes=[partition.partition]
            )
        ],
        # A producer without any marker yet has -1 here, which no coordinator ever has.
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    reply = yield from ask(request, WriteTxnMarkersResponse, node_id)
    found: Outcomes[TopicPartition, None] = {}
    for result in reply.markers:
        for topic in result.topics:
            for answer in topic.partitions:
                where = TopicPartition(topic.name, answer.partition_index)
                found[where] = outcome(answer.error_code, None, where, None)
    return fill_missing([partition], found)


def open_for_long(
    producers: Mapping[TopicPartition, Iterable[ProducerState]], before_ms: int
) -> list[HangingTransaction]:
    """The open transactions in which nothing was written since a moment: they may hang.

    Args:
        producers: What the leaders know, by partition.
        before_ms: Milliseconds since 1970.
    """
    return [
        HangingTransaction(partition, producer)
        for partition, states in producers.items()
        for producer in states
        if producer.transaction_start_offset is not None and producer.last_timestamp_ms < before_ms
    ]


def coordinated(
    candidate: HangingTransaction, descriptions: Iterable[TransactionDescription]
) -> TransactionDescription | None:
    """The transaction by which a coordinator is going to end an open one; None if it hangs.

    A coordinator names the partitions that a transaction covers until it has written its marker
    there, so one that does not name the partition does not know of what is open in it.

    Args:
        candidate: The open transaction.
        descriptions: What coordinators know of its producer id.
    """
    for found in descriptions:
        same = found.producer_id == candidate.producer.producer_id
        if same and candidate.partition in found.partitions:
            return found
    return None
