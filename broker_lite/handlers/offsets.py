"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: questions about positions in logs.

Decides which special timestamps exist in which version, and up to which offset a reader may see the
log. The logs find the offsets.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from onceflow.broker_lite.log import LogError
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.model.partitions import IsolationLevel, OffsetAndTimestamp
from onceflow.sdk.model.special_values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from onceflow.sdk.protocol.api.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.log import PartitionLog
    from onceflow.broker_lite.services import Services

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.handlers")

SPECIAL_MIN_VERSION = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""First ListOffsets version that knows each special timestamp."""

LEADER_EPOCH_MIN_VERSION = 4
ANY_EPOCH = -1
NOTHING = -1

ListResult = ListOffsetsResponse.ListOffsetsPartitionResponse


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> ErrorCode:
    """Compare the client's leader epoch with the current one (KIP-320, trap 31)."""
    if current_leader_epoch == ANY_EPOCH or current_leader_epoch == log.leader_epoch:
        return ErrorCode.NONE
    if current_leader_epoch < log.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


@handles(ListOffsetsRequest)
def list_offsets(
    state: Services, context: RequestContext, request: ListOffsetsRequest, now_ms: int
) -> ListOffsetsResponse:
    """Return offsets by time, or the ends of the logs."""
    named = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            if named[topic.name, asked.partition_index] > 1:
                results.append(_no_offset(asked.partition_index, ErrorCode.INVALID_REQUEST))
                continue
            log = state.topics.partition(topic.name, asked.partition_index)
            results.append(_list_offset(log, asked, context.api_version, request.isolation_level))
        topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=results)
        )
    return ListOffsetsResponse(topics=topics)


def _list_offset(
    log: PartitionLog | None,
    asked: ListOffsetsRequest.ListOffsetsPartition,
    api_version: int,
    isolation_level: int,
) -> ListResult:
    index = asked.partition_index
    timestamp_ms = asked.timestamp
    if timestamp_ms < 0 and api_version < SPECIAL_MIN_VERSION.get(timestamp_ms, 2**15):
        return _no_offset(index, ErrorCode.UNSUPPORTED_VERSION)
    if log is None:
        return _no_offset(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    code = check_leader_epoch(log, asked.current_leader_epoch)
    if code:
        return _no_offset(index, code)
    level = (
        IsolationLevel.READ_COMMITTED
        if isolation_level == IsolationLevel.READ_COMMITTED
        else IsolationLevel.READ_UNCOMMITTED
    )
    found: OffsetAndTimestamp | None
    if timestamp_ms == LATEST_TIMESTAMP:
        found = log.latest(level)
    elif timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        found = log.earliest()
    elif timestamp_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        # Without tiered storage no offset is stored there.
        found = None
    elif timestamp_ms == MAX_TIMESTAMP:
        found = log.max_timestamp()
    else:
        found = log.offset_for_timestamp(timestamp_ms, level)
    if found is None:
        return _no_offset(index, ErrorCode.NONE)
    return ListResult(
        partition_index=index,
        error_code=0,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch if api_version >= LEADER_EPOCH_MIN_VERSION else NOTHING,
    )


def _no_offset(index: int, code: ErrorCode) -> ListResult:
    return ListResult(
        partition_index=index,
        error_code=code,
        timestamp=NOTHING,
        offset=NOTHING,
        leader_epoch=NOTHING,
    )


@handles(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    state: Services,
    context: RequestContext,
    request: OffsetForLeaderEpochRequest,
    now_ms: int,
) -> OffsetForLeaderEpochResponse:
    """Return where a leader epoch ends, by which a reader notices that the log lost records."""
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            log = state.topics.partition(topic.topic, asked.partition)
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if log is None
                else check_leader_epoch(log, asked.current_leader_epoch)
            )
            epoch, end_offset = NOTHING, NOTHING
            if log is not None and not code:
                epoch, end_offset = log.end_offset_for_epoch(asked.leader_epoch)
            results.append(
                OffsetForLeaderEpochResponse.EpochEndOffset(
                    error_code=code,
                    partition=asked.partition,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=results
            )
        )
    return OffsetForLeaderEpochResponse(topics=topics)


@handles(DeleteRecordsRequest)
def delete_records(
    state: Services, context: RequestContext, request: DeleteRecordsRequest, now_ms: int
) -> DeleteRecordsResponse:
    """Move log start offsets forward; -1 means up to the high watermark (trap 35)."""
    try:
        with state.log_manager.log_starts_together():
            return _delete_records(state, request)
    except OSError as error:
        return _not_noted(request, error)


def _not_noted(request: DeleteRecordsRequest, error: OSError) -> DeleteRecordsResponse:
    logger.error("deleted records may come back with the next start: %s", error)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsResponse.DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index,
                        low_watermark=NOTHING,
                        error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete_records(state: Services, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics = []
    for asked_topic in request.topics:
        topic = state.topics.get(asked_topic.name)
        results = []
        for asked in asked_topic.partitions:
            low_watermark = NOTHING
            if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.internal:
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif "delete" not in topic.config.cleanup_policy:
                code = ErrorCode.POLICY_VIOLATION
            else:
                code, low_watermark = _delete_before(
                    topic.partitions[asked.partition_index], asked.offset
                )
            results.append(
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index,
                    low_watermark=low_watermark,
                    error_code=code,
                )
            )
        topics.append(
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=asked_topic.name, partitions=results
            )
        )
    return DeleteRecordsResponse(topics=topics)


def _delete_before(log: PartitionLog, offset: int) -> tuple[ErrorCode, int]:
    before = log.high_watermark if offset == -1 else offset
    if not 0 <= before <= log.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, NOTHING
    try:
        log.delete_records_before(before)
    except LogError as error:
        return error.code, NOTHING
    return ErrorCode.NONE, log.log_start_offset
