"""One raw connection that speaks to the coordinators and tells answers as comparable values.

Nothing is negotiated. Only what any client would repeat is repeated: CONCURRENT_TRANSACTIONS, and
the errors by which Apache Kafka asks for patience while its markers are under way. Producer and
member ids differ from broker to broker, so answers name them only by equality.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from broker_requests import produce_request
from broker_wire import Wire, batch

from onceflow.sdk.protocol.api.admin import CreateTopicsRequest, CreateTopicsResponse
from onceflow.sdk.protocol.api.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from onceflow.sdk.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

Identity = tuple[int, int]

ATTEMPTS_MAX = 400
"""Twenty seconds: Apache Kafka looks for timed-out transactions every ten."""

PAUSE_SECONDS = 0.05
PATIENCE = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
}


async def patiently(ask: Callable[[], Awaitable[str]]) -> str:
    """Ask again while the answer is one that every client repeats."""
    for _ in range(ATTEMPTS_MAX):
        answer = await ask()
        if answer not in PATIENCE:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    return answer


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Look again until it is so; Apache Kafka gives no sign when it is."""
    for _ in range(ATTEMPTS_MAX):
        if await look():
            return
        await asyncio.sleep(PAUSE_SECONDS)
    raise AssertionError("it never came to that")


def name(code: int) -> str:
    """Name of an error code."""
    return ErrorCode(code).name


class CoordinatorClient:
    """Requests to the coordinators over one connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def prepare(self) -> None:
        """Make topics `in` and `out`, and wait until both coordinators answer."""
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=topic, num_partitions=2, replication_factor=1, assignments=[], configs=[]
            )
            for topic in ("in", "out")
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=10_000)
        await self.wire.ask(request, 7, CreateTopicsResponse)

        async def find(key_type: int) -> str:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["warm"])
            response = await self.wire.ask(request, 4, FindCoordinatorResponse)
            return name(response.coordinators[0].error_code)

        for key_type in (0, 1):
            await patiently(lambda key_type=key_type: find(key_type))  # type: ignore[misc]

        async def warm() -> str:
            return (await self.init("warm"))[0]

        await patiently(warm)
        await patiently(lambda: self.commit("warm", 1))

    # --- transactions

    async def init(
        self, transactional_id: str | None, identity: Identity = (-1, -1), version: int = 5,
        timeout_ms: int = 60_000,
    ) -> tuple[str, int, int]:  # fmt: skip
        """InitProducerId, once."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=identity[0],
            producer_epoch=identity[1],
        )
        response = await self.wire.ask(request, version, InitProducerIdResponse)
        return name(response.error_code), response.producer_id, response.producer_epoch

    async def identity(self, transactional_id: str, timeout_ms: int = 60_000) -> Identity:
        """InitProducerId until it succeeds."""
        identity = (-1, -1)

        async def ask() -> str:
            nonlocal identity
            code, *found = await self.init(transactional_id, timeout_ms=timeout_ms)
            identity = (found[0], found[1])
            return code

        assert await patiently(ask) == "NONE"
        return identity

    async def add(
        self, transactional_id: str, identity: Identity, *topics: tuple[str, list[int]],
        version: int = 3,
    ) -> list[tuple[str, int, str]]:  # fmt: skip
        """AddPartitionsToTxn in its single form."""
        wanted = topics or (("out", [0]),)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in wanted
            ],
        )
        codes: list[tuple[str, int, str]] = []

        async def ask() -> str:
            response = await self.wire.ask(request, version, AddPartitionsToTxnResponse)
            codes[:] = sorted(
                (topic.name, each.partition_index, name(each.partition_error_code))
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            )
            return codes[0][2]

        await patiently(ask)
        return codes

    async def end(
        self, transactional_id: str, identity: Identity, committed: bool, version: int
    ) -> tuple[str, int]:
        """EndTxn; the epoch is -1 below version 5."""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=committed,
        )
        epoch = -1

        async def ask() -> str:
            nonlocal epoch
            response = await self.wire.ask(request, version, EndTxnResponse)
            epoch = response.producer_epoch
            return name(response.error_code)

        return await patiently(ask), epoch

    async def produce(
        self, transactional_id: str, identity: Identity, sequence: int, version: int
    ) -> str:
        """Produce of one transactional record to partition 0 of `out`."""
        records = batch(
            b"x",
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
            transactional=True,
            timestamp_ms=int(time.time() * 1000),
        )
        request = produce_request("out", records, transactional_id=transactional_id)

        async def ask() -> str:
            response = await self.wire.ask(request, version, ProduceResponse)
            return name(response.responses[0].partition_responses[0].error_code)

        return await patiently(ask)

    async def commit_in_transaction(
        self, transactional_id: str, identity: Identity, group_id: str, offset: int = 5, *,
        version: int = 5, topic: str = "out", partition: int = 0, generation_id: int = -1,
        member_id: str = "", metadata: str = "",
    ) -> str:  # fmt: skip
        """TxnOffsetCommit of one offset."""
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            generation_id=generation_id,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )

        async def ask() -> str:
            response = await self.wire.ask(request, version, TxnOffsetCommitResponse)
            return name(response.topics[0].partitions[0].error_code)

        return await patiently(ask)

    # --- offsets

    async def commit(
        self, group_id: str, offset: int, generation_id: int = -1, member_id: str = "", *,
        instance: str | None = None, version: int = 9, topic: str = "out", partition: int = 0,
        metadata: str | None = "m",
    ) -> str:  # fmt: skip
        """OffsetCommit of one offset."""
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        response = await self.wire.ask(request, version, OffsetCommitResponse)
        return name(response.topics[0].partitions[0].error_code)

    async def fetch(
        self, group_id: str, *, stable: bool = True, topic: str = "out",
        partitions: Sequence[int] = (0,),
    ) -> list[tuple[int, int, str | None, str]]:  # fmt: skip
        """OffsetFetch: partition, offset, metadata, error."""
        wanted = OffsetFetchRequest.OffsetFetchRequestTopics(
            name=topic, partition_indexes=list(partitions)
        )
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[wanted])
        request = OffsetFetchRequest(groups=[group], require_stable=stable)
        response = await self.wire.ask(request, 8, OffsetFetchResponse)
        return [
            (each.partition_index, each.committed_offset, each.metadata, name(each.error_code))
            for found in response.groups[0].topics
            for each in found.partitions
        ]

    # --- membership

    @staticmethod
    def join_request(
        group_id: str, member_id: str = "", instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),), session_ms: int = 10_000,
        protocol_type: str = "consumer",
    ) -> JoinGroupRequest:  # fmt: skip
        """A JoinGroup request."""
        return JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=20_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=each, metadata=metadata)
                for each, metadata in protocols
            ],
        )

    async def join(self, request: JoinGroupRequest, version: int = 9) -> JoinGroupResponse:
        """JoinGroup; waits while it is parked."""
        return await self.wire.ask(request, version, JoinGroupResponse)

    async def member(self, group_id: str) -> str:
        """A member id, as the first half of joining gives it."""
        return (await self.join(self.join_request(group_id))).member_id

    @staticmethod
    def sync_request(
        group_id: str, generation_id: int, member_id: str,
        assignments: dict[str, bytes] | None = None, instance: str | None = None,
        protocol_type: str = "consumer", protocol_name: str = "range",
    ) -> SyncGroupRequest:  # fmt: skip
        """A SyncGroup request."""
        return SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in (assignments or {}).items()
            ],
        )

    async def sync(self, request: SyncGroupRequest) -> tuple[str, bytes]:
        """SyncGroup; waits while it is parked."""
        return sync_answer(await self.wire.ask(request, 5, SyncGroupResponse))

    async def beat(
        self, group_id: str, generation_id: int, member_id: str, instance: str | None = None
    ) -> str:
        """Heartbeat."""
        request = HeartbeatRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
        )
        return name((await self.wire.ask(request, 4, HeartbeatResponse)).error_code)

    async def leave(self, group_id: str, *members: tuple[str, str | None]) -> tuple[str, list[str]]:
        """LeaveGroup of several members."""
        request = LeaveGroupRequest(
            group_id=group_id,
            members=[
                LeaveGroupRequest.MemberIdentity(member_id=each, group_instance_id=instance)
                for each, instance in members
            ],
        )
        response = await self.wire.ask(request, 5, LeaveGroupResponse)
        return name(response.error_code), [name(each.error_code) for each in response.members]


def join_answer(response: JoinGroupResponse) -> tuple[object, ...]:
    """What can be compared of a JoinGroup answer."""
    return (
        name(response.error_code),
        response.generation_id,
        response.protocol_type,
        response.protocol_name,
        response.leader == response.member_id,
        len(response.members),
        response.skip_assignment,
        bool(response.member_id),
    )


def sync_answer(response: SyncGroupResponse) -> tuple[str, bytes]:
    """What can be compared of a SyncGroup answer."""
    return name(response.error_code), response.assignment
