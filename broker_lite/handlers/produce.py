"""Produce: batches of records into the logs, with an answer per partition.

Decides acknowledgement rules and which partitions of a transactional request may be written; the
log checks the batches. Served from version 3 on. Versions 0 to 2 are advertised and not served,
because librdkafka looks for them before it compresses (KAFKA-18659, trap 66).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onceflow.broker_lite.log import AppendError
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import CloseConnection, RequestContext
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    CODEC_MASK,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_batch_header,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.topics import Topic

PartitionData = ProduceRequest.PartitionProduceData
PartitionResult = ProduceResponse.PartitionProduceResponse
TopicResult = ProduceResponse.TopicProduceResponse

_LENGTH = struct.Struct(">i")
LENGTH_AT = 8
MAGIC_AT = 16
OLD_LENGTH_MIN = 14
"""Smallest length of a record of format version 0, after its length field."""

ZSTD = 4
ZSTD_MIN_VERSION = 7
PRODUCE_TOPIC_ID_MIN_VERSION = 13
IMPLICIT_ADD_MIN_VERSION = 12
ACKS_ALL = -1
ACKS = (ACKS_ALL, 0, 1)
INTERNAL_WRITER = "__admin_client"
"""The only client id that may write to internal topics, as in Apache Kafka."""


class _Item:
    """One partition's batch on its way into the log.

    Attributes:
        data: The partition's part of the request.
        topic: The topic; None when it is unknown.
        header: Header of the batch; None if the partition is unknown.
        transactional: Whether the transaction must contain the partition.
        code: Why it is not appended; NONE if it may be.
        message: The error message to the code, or None.
    """

    __slots__ = ("code", "data", "header", "message", "topic", "transactional")

    def __init__(self, data: PartitionData, topic: Topic | None) -> None:
        self.data = data
        self.topic = topic
        self.header: BatchHeader | None = None
        self.transactional = False
        self.code = ErrorCode.NONE
        self.message: str | None = None

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        """Do not append it."""
        self.code = code
        self.message = message


@handles(ProduceRequest, advertised_min_version=0)
def produce(
    state: Services, context: RequestContext, request: ProduceRequest, now_ms: int
) -> ProduceResponse | None:
    """Append each partition's batch and report on each.

    Raises:
        CloseConnection: A batch with ``acks=0`` failed, which nothing else can tell (trap 14).
    """
    by_id = context.api_version >= PRODUCE_TOPIC_ID_MIN_VERSION
    by_topic: list[tuple[ProduceRequest.TopicProduceData, list[_Item]]] = []
    transactional: list[_Item] = []
    for topic_data in request.topic_data:
        topics = state.topics
        topic = topics.get_by_id(topic_data.topic_id) if by_id else topics.get(topic_data.name)
        items = []
        for data in topic_data.partition_data:
            item = _Item(data, topic)
            _judge(state, context, request.acks, item)
            items.append(item)
            if item.transactional:
                transactional.append(item)
        by_topic.append((topic_data, items))
    if transactional:
        _check_transaction(state, context, request, transactional, now_ms)
    if request.acks not in ACKS:
        for _, items in by_topic:
            for item in items:
                if not item.code:
                    message = f"acks={request.acks} is not -1, 0 or 1."
                    item.refuse(ErrorCode.INVALID_REQUIRED_ACKS, message)
    responses = []
    failed: list[str] = []
    for topic_data, items in by_topic:
        results = []
        for item in items:
            result = _append(context, item, now_ms)
            if result.error_code:
                failed.append(f"{topic_data.name}-{item.data.index}: {result.error_code}")
            results.append(result)
        responses.append(
            TopicResult(
                name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=results
            )
        )
    if request.acks == 0:
        if failed:
            raise CloseConnection(f"produce with acks=0 failed for {', '.join(failed[:5])}")
        return None
    return ProduceResponse(responses=responses)


def _judge(state: Services, context: RequestContext, acks: int, item: _Item) -> None:
    """Refuse a batch, or read its header."""
    topic, index = item.topic, item.data.index
    if topic is None:
        by_id = context.api_version >= PRODUCE_TOPIC_ID_MIN_VERSION
        item.refuse(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif not 0 <= index < len(topic.partitions):
        item.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif topic.internal and context.client_id != INTERNAL_WRITER:
        item.refuse(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{topic.name}' is written by the broker only.",
        )
    elif (
        acks == ACKS_ALL
        and topic.config.min_insync_replicas > 1
        and (missing := _missing_replicas(state, topic, index))
    ):
        item.refuse(ErrorCode.NOT_ENOUGH_REPLICAS, missing)
    else:
        _read_header(context, item)


def _missing_replicas(state: Services, topic: Topic, partition: int) -> str | None:
    """Return why ``acks=all`` fails; a topic never needs more replicas than it has."""
    placement = state.placement
    wanted = topic.config.min_insync_replicas
    wanted = min(wanted, len(placement.replicas(topic.name, partition)))
    found = len(placement.in_sync(topic.name, partition))
    if found >= wanted:
        return None
    return f"min.insync.replicas is {topic.config.min_insync_replicas}; {found} replicas run."


def _read_header(context: RequestContext, item: _Item) -> None:
    records = item.data.records
    if not records:
        item.refuse(ErrorCode.INVALID_RECORD, "There is no record batch for this partition.")
        return
    try:
        header = parse_batch_header(records, 0)
    except InvalidBatchError as error:
        item.refuse(*_unreadable(records, error))
        return
    attributes = header.attributes
    if attributes & CODEC_MASK == ZSTD and context.api_version < ZSTD_MIN_VERSION:
        item.refuse(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {ZSTD_MIN_VERSION} or later.",
        )
        return
    if header.batch_length + LENGTH_END < len(records):
        # Checked here, before the transaction takes the partition in for nothing.
        item.refuse(ErrorCode.INVALID_RECORD, "There is more than one record batch.")
        return
    item.header = header
    item.transactional = bool(attributes & TRANSACTIONAL_BIT) and header.producer_id >= 0


def _unreadable(records: Buffer, error: InvalidBatchError) -> tuple[ErrorCode, str]:
    """Return why the batch header cannot be read, as Apache Kafka does.

    Records of the formats before version 2 have no such header and may be shorter than one. They
    get a code that is not retriable; damaged ones get a retriable one.
    """
    size = len(records)
    if size < MAGIC_AT + 1:
        return ErrorCode.INVALID_RECORD, f"{size} bytes are too few for a record batch."
    length: int = _LENGTH.unpack_from(records, LENGTH_AT)[0]
    magic = records[MAGIC_AT]
    if length < OLD_LENGTH_MIN or magic > MAGIC:
        return ErrorCode.CORRUPT_MESSAGE, str(error)
    if LENGTH_END + length > size:
        return (
            ErrorCode.INVALID_RECORD,
            f"The record batch is cut: it has {size} of {LENGTH_END + length} bytes.",
        )
    if magic < MAGIC:
        return (
            ErrorCode.INVALID_RECORD,
            f"Records of format version {magic} are not supported: send record batches (version "
            f"{MAGIC}), which clients for Kafka 0.11 and later do.",
        )
    return ErrorCode.CORRUPT_MESSAGE, str(error)


def _check_transaction(
    state: Services,
    context: RequestContext,
    request: ProduceRequest,
    items: list[_Item],
    now_ms: int,
) -> None:
    """Refuse transactional batches whose partition is not in the transaction (KIP-890).

    Without this, a late batch would begin a transaction that is never ended and that blocks
    read_committed readers for ever (trap 46).
    """
    producers = {
        (item.header.producer_id, item.header.producer_epoch)
        for item in items
        if item.header is not None
    }
    if not request.transactional_id:
        for item in items:
            item.refuse(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "A request with transactional batches must carry the transactional id.",
            )
        return
    if len(producers) > 1:
        for item in items:
            item.refuse(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional batches of one request must come from one producer.",
            )
        return
    if (
        not state.config.transaction_partition_verification_enable
        and context.api_version < IMPLICIT_ADD_MIN_VERSION
    ):
        return
    producer_id, producer_epoch = producers.pop()
    denied = state.transactions.verify_or_add(
        request.transactional_id,
        producer_id,
        producer_epoch,
        [_partition(item) for item in items],
        context.api_version,
        now_ms,
    )
    for item in items:
        code = denied.get(_partition(item))
        if code is not None:
            item.refuse(code)


# With any other refusal by the log, Kafka's answer has the log's start.
_WITHOUT_LOG_START = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


def _reached_the_log(item: _Item, code: ErrorCode) -> bool:
    """Whether Kafka passes a batch that is refused with this code to the log at all."""
    header = item.header
    return (
        code not in _WITHOUT_LOG_START
        and header is not None
        and header.magic == MAGIC
        and header.size_bytes == len(item.data.records or b"")
    )


def _partition(item: _Item) -> TopicPartition:
    assert item.topic is not None  # Only batches with a header come here.
    return TopicPartition(item.topic.name, item.data.index)


def _append(context: RequestContext, item: _Item, now_ms: int) -> PartitionResult:
    """Append one partition's batch and report."""
    index = item.data.index
    records = item.data.records
    if item.code or item.topic is None or records is None:
        return PartitionResult(
            index=index, error_code=item.code, base_offset=-1, error_message=item.message
        )
    log = item.topic.partitions[index]
    try:
        result = log.append(
            records,
            now_ms=now_ms,
            header=item.header,
            # Transactions of version 2 begin each epoch at sequence 0 (KAFKA-18202, trap 4).
            first_sequence_zero=(
                context.api_version >= IMPLICIT_ADD_MIN_VERSION and item.transactional
            ),
        )
    except AppendError as error:
        return PartitionResult(
            index=index,
            error_code=error.code,
            base_offset=-1,
            log_start_offset=log.log_start_offset if _reached_the_log(item, error.code) else -1,
            record_errors=[
                ProduceResponse.BatchIndexAndErrorMessage(
                    batch_index=fault.batch_index, batch_index_error_message=fault.message
                )
                for fault in error.record_errors
            ],
            error_message=error.message,
        )
    return PartitionResult(
        index=index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
