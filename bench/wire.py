"""What the wire costs: time to make a frame of a message, and to read the message from its frame.

Run `python bench/wire.py [NAME ...]`; prints one JSON line per message that matters for speed, or,
with `--every`, for each message there is, filled with random values. Each figure is the median
of five rounds, in microseconds for one message with its header. `crc_us` is the time of the CRC-32C
of the record batches in the message, which every broker and client pays as well: it is the scale
against which encode and decode are to be read.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import crc32c

from onceflow.sdk.protocol.api.cluster import ApiVersionsResponse, MetadataResponse
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitRequest, TxnOffsetCommitRequest
from onceflow.sdk.protocol.api.groups import HeartbeatRequest, JoinGroupResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import AddPartitionsToTxnRequest, EndTxnRequest
from onceflow.sdk.protocol.frame import (
    FrameSplitter,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.schema import Request, Response

ROUNDS = 5
SECONDS_PER_ROUND = 0.15
TOPIC_ID = UUID("6f1f3b2e-52f7-4a2b-9d5c-3f1b1e9a7c11")
BATCH_17_KB = bytes(17_408)
BATCH_1_MB = bytes(1_048_576)


def produce_request(version: int, batches: list[bytes]) -> ProduceRequest:
    partitions = [
        ProduceRequest.PartitionProduceData(index=index, records=batch)
        for index, batch in enumerate(batches)
    ]
    topic = ProduceRequest.TopicProduceData(
        name="" if version >= 13 else "orders",
        topic_id=TOPIC_ID if version >= 13 else UUID(int=0),
        partition_data=partitions,
    )
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetch_response(version: int, batch: bytes, partitions: int) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse(
        topic="" if version >= 13 else "orders",
        topic_id=TOPIC_ID if version >= 13 else UUID(int=0),
        partitions=[
            FetchResponse.PartitionData(
                partition_index=index,
                high_watermark=1_000_000,
                last_stable_offset=1_000_000,
                log_start_offset=0,
                aborted_transactions=[],
                records=batch,
            )
            for index in range(partitions)
        ],
    )
    return FetchResponse(responses=[topic])


def cases() -> Iterator[tuple[str, int, Request | Response, list[bytes]]]:
    """Label, version, message and the record batches in it."""
    for version in (7, 9, 13):
        request = produce_request(version, [BATCH_17_KB])
        yield "ProduceRequest 1 x 17 KB", version, request, [BATCH_17_KB]
    yield "ProduceRequest 6 x 17 KB", 13, produce_request(13, [BATCH_17_KB] * 6), [BATCH_17_KB] * 6
    for version in (11, 17):
        response = fetch_response(version, BATCH_1_MB, 6)
        yield "FetchResponse 6 x 1 MB", version, response, [BATCH_1_MB] * 6
    yield "FetchResponse 6 x 17 KB", 17, fetch_response(17, BATCH_17_KB, 6), [BATCH_17_KB] * 6
    for version, message in small_messages():
        yield type(message).__name__, version, message, []


def small_messages() -> Iterator[tuple[int, Request | Response]]:
    """Messages without records, of the size that they usually have."""
    outcome = ProduceResponse.TopicProduceResponse
    yield (
        13,
        ProduceResponse(
            responses=[
                outcome(
                    topic_id=TOPIC_ID,
                    partition_responses=[
                        outcome.PartitionProduceResponse(index=0, base_offset=1, log_start_offset=0)
                    ],
                )
            ]
        ),
    )
    asked = FetchRequest.FetchTopic.FetchPartition
    yield (
        17,
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        asked(partition=i, fetch_offset=5, partition_max_bytes=1_048_576)
                        for i in range(6)
                    ],
                )
            ],
        ),
    )
    topic = MetadataResponse.MetadataResponseTopic
    yield (
        12,
        MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=9092)
            ],
            topics=[
                topic(
                    name=f"topic-{number}",
                    topic_id=TOPIC_ID,
                    partitions=[
                        topic.MetadataResponsePartition(
                            partition_index=i, leader_id=0, replica_nodes=[0], isr_nodes=[0]
                        )
                        for i in range(6)
                    ],
                )
                for number in range(20)
            ],
        ),
    )
    yield (
        4,
        ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=9)
                for key in range(40)
            ],
        ),
    )
    commit_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    yield (
        9,
        OffsetCommitRequest(
            group_id="billing",
            member_id="member-1",
            topics=[
                commit_topic(
                    name="orders",
                    partitions=[
                        commit_topic.OffsetCommitRequestPartition(
                            partition_index=i, committed_offset=7, committed_metadata=""
                        )
                        for i in range(6)
                    ],
                )
            ],
        ),
    )
    txn_topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    yield (
        5,
        TxnOffsetCommitRequest(
            transactional_id="billing-0",
            group_id="billing",
            producer_id=4000,
            producer_epoch=3,
            topics=[
                txn_topic(
                    name="orders",
                    partitions=[
                        txn_topic.TxnOffsetCommitRequestPartition(
                            partition_index=i, committed_offset=7, committed_metadata=""
                        )
                        for i in range(6)
                    ],
                )
            ],
        ),
    )
    yield 4, HeartbeatRequest(group_id="billing", generation_id=3, member_id="member-1")
    yield (
        9,
        JoinGroupResponse(
            generation_id=3,
            protocol_type="consumer",
            protocol_name="range",
            leader="member-1",
            member_id="member-1",
            members=[
                JoinGroupResponse.JoinGroupResponseMember(member_id=f"m-{i}", metadata=bytes(60))
                for i in range(4)
            ],
        ),
    )
    added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    yield (
        3,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="billing-0",
            v3_and_below_producer_id=4000,
            v3_and_below_producer_epoch=3,
            v3_and_below_topics=[added(name="orders", partitions=list(range(6)))],
        ),
    )
    yield (
        5,
        EndTxnRequest(
            transactional_id="billing-0", producer_id=4000, producer_epoch=3, committed=True
        ),
    )


def microseconds(call: Callable[[], object]) -> float:
    """Median time of one call."""
    call()
    start = time.perf_counter()
    call()
    count = max(1, int(SECONDS_PER_ROUND / max(1e-7, time.perf_counter() - start)))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count * 1e6)
    return round(statistics.median(rounds), 2)


def measure(
    label: str, version: int, message: Request | Response, batches: list[bytes]
) -> dict[str, object]:
    """One line of the report."""

    def encode() -> list[Buffer]:
        if isinstance(message, Request):
            return encode_request(message, api_version=version, correlation_id=7, client_id="bench")
        return encode_response(message, api_version=version, correlation_id=7)

    stream = b"".join(encode())
    (frame,) = FrameSplitter(len(stream)).feed(stream)
    decode_message = type(message).decode

    def decode() -> object:
        if isinstance(message, Request):
            return decode_message(frame, version, decode_request_header(frame).end)
        start = decode_response_header(frame, message.api_key, version)[1]
        return decode_message(frame, version, start)

    line: dict[str, object] = {
        "bench": "wire",
        "message": label,
        "version": version,
        "frame_bytes": len(stream),
        "encode_us": microseconds(encode),
        "decode_us": microseconds(decode),
    }
    if batches:
        line["crc_us"] = microseconds(lambda: [crc32c.crc32c(batch) for batch in batches])
    return line


def every_message() -> Iterator[tuple[str, int, Request | Response, list[bytes]]]:
    """Each message of the registry in its newest version, with random values from a fixed seed."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    from wire_values import all_messages, random_message

    for message_type in all_messages():
        version = message_type.versions[1]
        message = random_message(message_type, version, random.Random(7))
        assert isinstance(message, Request | Response)
        yield message_type.__name__, version, message, []


def main() -> None:
    """Measure the cases whose label begins with one of the arguments, or all."""
    names = tuple(name for name in sys.argv[1:] if name != "--every") or ("",)
    for label, version, message, batches in every_message() if "--every" in sys.argv else cases():
        if label.startswith(names):
            print(json.dumps(measure(label, version, message, batches)), flush=True)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        main()
