"""DescribeProducers: who writes to a partition, and which transactions are open there (KIP-664).

Decides nothing; it shows the producer state of the logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.topics import TopicError, check_topic_name
from onceflow.sdk.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services


@handles(DescribeProducersRequest)
def describe_producers(
    state: Services, context: RequestContext, request: DescribeProducersRequest, now_ms: int
) -> DescribeProducersResponse:
    """Producers that each partition remembers."""
    topics = []
    for asked in request.topics:
        partitions = []
        for index in dict.fromkeys(asked.partition_indexes):
            log = state.topics.partition(asked.name, index)
            code, message = ErrorCode.NONE, None
            if log is None:
                code, message = _missing(asked.name, index)
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


def _missing(name: str, index: int) -> tuple[ErrorCode, str | None]:
    try:
        check_topic_name(name)
    except TopicError as error:
        return error.code, error.message
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {index} of '{name}'."
