"""Produce: batches of records into the logs, with an answer per partition.

Decides acknowledgement rules and which partitions of a transactional request may be written; what
is in a batch is checked by the log. Served from version 3; versions 0 to 2 are advertised without
being served, because librdkafka looks for them before it compresses (KAFKA-18659, trap 66).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.dispatch import CloseConnection, RequestContext, handles
from onceflow.broker_lite.log import AppendError
from onceflow.sdk.model import TopicPartition
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import HEADER_SIZE, BatchHeader, parse_batch_header

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState
    from onceflow.broker_lite.topics import Topic

logger = logging.getLogger("onceflow.broker_lite.produce")

PartitionData = ProduceRequest.PartitionProduceData
PartitionResult = ProduceResponse.PartitionProduceResponse

ZSTD = 4
ZSTD_MIN_VERSION = 7
CODEC_MASK = 0x07
TRANSACTIONAL_BIT = 0x10
TOPIC_ID_MIN_VERSION = 13
IMPLICIT_ADD_MIN_VERSION = 12
ACKS_ALL = -1
INTERNAL_WRITER = "__admin_client"
"""The one client id that may write to internal topics, as in Apache Kafka."""


class _Refused(Exception):
    """One partition's data is not to be appended."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message


@handles(ProduceRequest, advertised_min_version=0)
def produce(
    state: BrokerState, context: RequestContext, request: ProduceRequest, now_ms: int
) -> ProduceResponse | None:
    """Append each partition's batch and report on each.

    Raises:
        CloseConnection: With ``acks=0`` something failed: the only way to tell (trap 14).
    """
    if request.acks not in (-1, 0, 1):
        return _answer_all(
            request, ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not -1, 0 or 1."
        )
    heads = _parse_heads(state, context, request)
    transactional = {key: head for key, head in heads.items() if _is_transactional(head)}
    denied: dict[TopicPartition, ErrorCode] = {}
    if transactional:
        refusal = _check_transaction(request, transactional)
        if refusal is not None:
            return _closing_if_unheard(request, _answer_all(request, refusal.code, refusal.message))
        denied = _verify(state, context, request, transactional, now_ms)
    responses = []
    failed: list[str] = []
    for topic_data in request.topic_data:
        topic = _find_topic(state, context, topic_data)
        name = topic.name if topic is not None else topic_data.name
        results = []
        for data in topic_data.partition_data:
            try:
                head = heads.get(id(data))
                results.append(_append(state, context, request, topic, data, head, denied, now_ms))
            except _Refused as refused:
                failed.append(f"{name}-{data.index}: {refused.code.name}")
                results.append(
                    PartitionResult(
                        index=data.index,
                        error_code=refused.code,
                        base_offset=-1,
                        error_message=refused.message,
                    )
                )
            except AppendError as error:
                failed.append(f"{name}-{data.index}: {error.code.name}")
                results.append(_append_error(topic, data.index, error))
        responses.append(
            ProduceResponse.TopicProduceResponse(
                name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=results
            )
        )
    if request.acks == 0:
        if failed:
            raise CloseConnection(f"produce with acks=0 failed for {', '.join(failed[:5])}")
        return None
    return ProduceResponse(responses=responses)


def _find_topic(
    state: BrokerState, context: RequestContext, topic_data: ProduceRequest.TopicProduceData
) -> Topic | None:
    if context.api_version >= TOPIC_ID_MIN_VERSION:
        return state.topics.get_by_id(topic_data.topic_id)
    return state.topics.get(topic_data.name)


Head = tuple[BatchHeader, TopicPartition]
"""Header of one partition's batch, and where it is to go."""


def _parse_heads(
    state: BrokerState, context: RequestContext, request: ProduceRequest
) -> dict[int, Head]:
    """Headers of the batches that have one and whose partition exists, by ``id`` of their data.

    Not by partition: a hostile request may name one twice, with different batches.
    """
    heads: dict[int, Head] = {}
    for topic_data in request.topic_data:
        topic = _find_topic(state, context, topic_data)
        if topic is None:
            continue
        for data in topic_data.partition_data:
            if (
                data.records is not None
                and len(data.records) >= HEADER_SIZE
                and 0 <= data.index < len(topic.partitions)
            ):
                head = parse_batch_header(data.records, 0)
                heads[id(data)] = (head, TopicPartition(topic.name, data.index))
    return heads


def _is_transactional(head: Head) -> bool:
    header = head[0]
    return bool(header.attributes & TRANSACTIONAL_BIT) and header.producer_id >= 0


def _check_transaction(request: ProduceRequest, transactional: dict[int, Head]) -> _Refused | None:
    """What must hold for all transactional batches of a request together."""
    if not request.transactional_id:
        # Without the id nobody could tell whether the partition is in the transaction, and a
        # transaction that nobody ends would hold read_committed readers for ever.
        return _Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "A request with transactional batches must carry the transactional id.",
        )
    producers = {
        (header.producer_id, header.producer_epoch) for header, _ in transactional.values()
    }
    if len(producers) > 1:
        return _Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "Transactional batches of one request must come from one producer.",
        )
    return None


def _verify(
    state: BrokerState,
    context: RequestContext,
    request: ProduceRequest,
    transactional: dict[int, Head],
    now_ms: int,
) -> dict[TopicPartition, ErrorCode]:
    """Partitions that the transaction coordinator does not let in, with the code to answer."""
    if (
        not state.config.transaction_partition_verification_enable
        and context.api_version < IMPLICIT_ADD_MIN_VERSION
    ):
        return {}
    header = next(iter(transactional.values()))[0]
    return state.transactions.verify_or_add(
        request.transactional_id or "",
        header.producer_id,
        header.producer_epoch,
        [partition for _, partition in transactional.values()],
        context.api_version,
        now_ms,
    )


def _append(
    state: BrokerState,
    context: RequestContext,
    request: ProduceRequest,
    topic: Topic | None,
    data: PartitionData,
    head: Head | None,
    denied: dict[TopicPartition, ErrorCode],
    now_ms: int,
) -> PartitionResult:
    """Append one partition's batch.

    Raises:
        _Refused: A rule of this module.
        AppendError: A rule of the log.
    """
    if topic is None:
        if context.api_version >= TOPIC_ID_MIN_VERSION:
            raise _Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not 0 <= data.index < len(topic.partitions):
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.internal and context.client_id != INTERNAL_WRITER:
        raise _Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{topic.name}' is written by the broker only.",
        )
    if head is None or data.records is None:
        raise _Refused(ErrorCode.INVALID_RECORD, "There is no record batch for this partition.")
    header, partition = head
    code = denied.get(partition)
    if code is not None and _is_transactional(head):
        raise _Refused(code)
    if header.attributes & CODEC_MASK == ZSTD and context.api_version < ZSTD_MIN_VERSION:
        raise _Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {ZSTD_MIN_VERSION} or later.",
        )
    if request.acks == ACKS_ALL and topic.config.min_insync_replicas > 1:
        raise _Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"min.insync.replicas is {topic.config.min_insync_replicas}; this broker has 1.",
        )
    result = topic.partitions[data.index].append(
        data.records,
        now_ms=now_ms,
        # Transactions of version 2 begin each epoch at sequence 0 (KAFKA-18202, trap 4).
        first_sequence_zero=(
            context.api_version >= IMPLICIT_ADD_MIN_VERSION and _is_transactional(head)
        ),
    )
    return PartitionResult(
        index=data.index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _append_error(topic: Topic | None, index: int, error: AppendError) -> PartitionResult:
    assert topic is not None  # The log that raised belongs to it.
    return PartitionResult(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=topic.partitions[index].log_start_offset,
        record_errors=[
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=fault.batch_index, batch_index_error_message=fault.message
            )
            for fault in error.record_errors
        ],
        error_message=error.message,
    )


def _answer_all(request: ProduceRequest, code: ErrorCode, message: str | None) -> ProduceResponse:
    """The same error for every partition."""
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic_data.name,
                topic_id=topic_data.topic_id,
                partition_responses=[
                    PartitionResult(
                        index=data.index, error_code=code, base_offset=-1, error_message=message
                    )
                    for data in topic_data.partition_data
                ],
            )
            for topic_data in request.topic_data
        ]
    )


def _closing_if_unheard(request: ProduceRequest, response: ProduceResponse) -> ProduceResponse:
    if request.acks == 0:
        raise CloseConnection("produce with acks=0 failed")
    return response
