"""Reads batches of a partition as they are in the log: with markers and aborted transactions.

A consumer hides both. The request is that of a consumer outside of any fetch session.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onceflow.sdk import AsyncAdmin, IsolationLevel, TopicPartition
from onceflow.sdk.core.admin.topics import Outcomes, fill_missing, outcome
from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.primitives import Buffer

BY_TOPIC_NAME: Final = 12
"""Last version of Fetch in which a topic is named; later ones ask for its id."""
WAIT_MS: Final = 100
"""Longest wait at the end of the log: what is not there yet is not waited for."""


class Batches(NamedTuple):
    """What a leader answered for one partition.

    Attributes:
        data: Batches one after the other; the last one may be cut off.
        high_watermark: End of what is replicated.
        last_stable_offset: Where the first open transaction begins, or the high watermark.
        log_start_offset: First offset that is still there.
        aborted: Producer id and first offset of the aborted transactions among the batches.
    """

    data: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]


class BatchAdmin(AsyncAdmin):
    """An admin client that can also read batches."""

    async def read_batches(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool,
        timeout_ms: int | None = None,
    ) -> Batches:
        """Return batches from an offset on.

        Args:
            partition: Which partition.
            offset: The first batch is the one that holds it.
            max_bytes: Bytes at most, except for a first batch that is larger.
            read_committed: End at the last stable offset, and tell which transactions aborted.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            OffsetOutOfRangeError: The log does not hold the offset.
            BrokerError: The leader refused.
        """

        def flow(
            leader: int, partitions: list[TopicPartition], _: int
        ) -> Flow[Outcomes[TopicPartition, Batches]]:
            return _fetch(leader, partitions, offset, max_bytes, read_committed)

        found = await self._asker.ask_leaders([partition], flow, timeout_ms)
        return found[partition]


def _fetch(
    leader: int, partitions: list[TopicPartition], offset: int, max_bytes: int, committed: bool
) -> Flow[Outcomes[TopicPartition, Batches]]:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    request = FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=level,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
            for topic, partition in partitions
        ],
    )
    reply = yield from ask(request, FetchResponse, leader, max_version=BY_TOPIC_NAME)
    found: Outcomes[TopicPartition, Batches] = {}
    for topic in reply.responses:
        for answer in topic.partitions:
            where = TopicPartition(topic.topic, answer.partition_index)
            batches = Batches(
                answer.records or b"",
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                tuple(
                    (each.producer_id, each.first_offset)
                    for each in answer.aborted_transactions or ()
                ),
            )
            code = answer.error_code or reply.error_code
            found[where] = outcome(code, None, where, batches)
    return fill_missing(partitions, found)
