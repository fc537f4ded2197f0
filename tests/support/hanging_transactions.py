"""Transactions that hang: records of a transaction that its coordinator was not told of.

Clients have left them by their faults (KIP-890); brokers that verify partitions refuse them, so
`transaction.partition.verification.enable` must be off.
"""

from __future__ import annotations

import time

from onceflow.sdk import Admin, ProducerIdentity, TopicPartition
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.records import RecordBatchBuilder

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
ANNOUNCED_MAX = 11
"""Produce up to this version adds no partition to a transaction (KIP-890)."""


def leave_hanging(admin: Admin, partition: TopicPartition, identity: ProducerIdentity) -> None:
    """Write a record of a transaction that nobody has announced.

    Args:
        admin: Connected to the cluster.
        partition: Where to.
        identity: Who writes, as the record says.
    """
    builder = RecordBatchBuilder()
    builder.write(int(time.time() * 1000), None, b"hanging", None)
    data = builder.build(identity.producer_id, identity.producer_epoch, 0, transactional=True)
    request = ProduceRequest(
        transactional_id=identity.transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=partition.topic,
                partition_data=[
                    ProduceRequest.TopicProduceData.PartitionProduceData(
                        index=partition.partition, records=bytes(data)
                    )
                ],
            )
        ],
    )

    async def produce() -> None:
        pool = admin._async._pool
        leader = (await pool.refresh_metadata([partition.topic])).leader(partition)
        reply = await pool.request(leader, request, max_version=ANNOUNCED_MAX)
        assert isinstance(reply, ProduceResponse)
        (topic,) = reply.responses
        assert topic.partition_responses[0].error_code == 0

    admin._portal.call(produce)
